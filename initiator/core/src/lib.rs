//! What an NVMe over Fabrics host does, without I/O.
#![forbid(unsafe_code)]
