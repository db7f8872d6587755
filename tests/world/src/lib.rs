//! Both cores over the simulated provider, one thread, one seed.
#![forbid(unsafe_code)]
