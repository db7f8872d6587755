//! Yardsticks for benchmarks: minimal programs over the same media as the data path.
//!
//! Each yardstick does only what every data path over its medium must do: `tcp`,
//! `shm`. Also here are processes that `nvmeof-bench` runs beside a target: [`hold`]
//! keeps idle connections, [`hostile`] are hostile peers, [`beside`] is the honest host
//! beside them. The program `nvmeof-bench` measures and compares; this library does
//! not.
#![forbid(unsafe_code)]

mod asking;
pub mod beside;
pub mod hold;
pub mod hostile;
pub mod shm;
pub mod tally;
pub mod tcp;
