//! The command line of a benchmark.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Subsystem, seconds, size, size_or_zero};

/// `bench`
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace
    #[arg(long, value_name = "N")]
    pub(crate) namespace_id: u32,
    /// What to do
    #[arg(long, value_name = "KIND", default_value = "randread")]
    pub(crate) rw: Kind,
    /// Bytes of each read or write; k, m and g are powers of 1024
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size)]
    pub(crate) bs: u32,
    /// Reads and writes in flight on each queue
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) iodepth: u16,
    /// I/O queues, each with a thread of its own
    #[arg(short = 'i', long, alias = "nr-io-queues", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) io_queues: u16,
    /// Seconds to measure, for example 10 or 0.5
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) runtime: Duration,
    /// Percentage of reads with randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) rwmixread: u8,
    /// Most bytes of a write that go with its command
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = size_or_zero)]
    pub(crate) in_capsule: u32,
    /// Which interface of the initiator to use
    #[arg(long, value_name = "NAME", default_value = "polled")]
    pub(crate) interface: Interface,
}

/// The interfaces of the initiator that a benchmark can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// A thread polls each queue.
    Polled,
    /// One thread awaits everything: a task for each operation in flight.
    Async,
}

/// What a benchmark does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Reads one after the other.
    Read,
    /// Writes one after the other.
    Write,
    /// Reads anywhere.
    Randread,
    /// Writes anywhere.
    Randwrite,
    /// Both anywhere.
    Randrw,
}
