//! Yardsticks: what the media below the protocol can do on this machine.
//!
//! Each does, with as little as possible around it, what the data path has to
//! do in any case. What is measured against them is not in this library: the
//! program `nvmeof-bench` runs both in turn. Hosts that hold what they have, hostile
//! peers and the honest host beside them are here too: processes of their own as well.
#![forbid(unsafe_code)]

mod asking;
pub mod beside;
pub mod hold;
pub mod hostile;
pub mod shm;
pub mod tally;
pub mod tcp;
