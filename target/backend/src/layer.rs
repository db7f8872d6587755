//! Layers over a backend, for tests: put on with
//! [`Disks::open_wrapped`](crate::Disks::open_wrapped).

mod delayed;
mod faulty;

pub use delayed::Delayed;
pub use faulty::{Fault, Faulty, Plan};
