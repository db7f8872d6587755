//! Byte formats of NVMe and NVMe over Fabrics.
#![forbid(unsafe_code)]
