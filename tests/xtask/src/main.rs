//! Everything a developer does with the project.
#![forbid(unsafe_code)]

fn main() {}
