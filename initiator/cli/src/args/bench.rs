//! The command line of a benchmark.

use std::time::Duration;

use clap::{Args, ValueEnum};

use nvmeof_initiator::ConnectOptions;

use super::numbers::{number, seconds, size};
use super::{IoQueues, Reconnects, Subsystem, paths};
use crate::failure::Failure;

/// `bench`
#[derive(Args, Debug)]
#[command(mut_arg("traddr", paths::several_addresses))]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) subsystem: Subsystem,
    /// Namespace ID
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) namespace_id: u32,
    /// Workload
    #[arg(long, value_name = "KIND", default_value = "randread")]
    pub(crate) rw: Kind,
    /// Size of each read or write
    #[arg(long, value_name = "SIZE", default_value = "4KiB",
          value_parser = size::<u32>(1..=u32::MAX.into()))]
    pub(crate) bs: u32,
    /// Reads and writes in flight on each queue; over several paths on one queue of
    /// each together
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = number::<u16>(1..=4096))]
    pub(crate) iodepth: u16,
    #[command(flatten)]
    pub(crate) queues: IoQueues,
    /// Seconds to measure, for example 10 or 0.5
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) runtime: Duration,
    /// Percentage of reads with randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = number::<u8>(0..=100))]
    pub(crate) rwmixread: u8,
    /// Largest write that is sent as in-capsule data
    #[arg(long, value_name = "SIZE", default_value = "4KiB",
          value_parser = size::<u32>(0..=u32::MAX.into()))]
    pub(crate) in_capsule: u32,
    /// Longest time to poll before sleeping, in microseconds: 0 to 1000000
    ///
    /// With the polled interface, the default is 1000000: use less if the target needs the CPU.
    /// With the async interface, it is 100.
    #[arg(long, value_name = "N", value_parser = number::<u32>(0..=1_000_000))]
    pub(crate) spin_us: Option<u32>,
    /// Reads and writes to start in each second on all queues together; default: no
    /// limit
    ///
    /// They start at the beginning of each millisecond, as many as --iodepth allows, and late
    /// ones as soon as possible. Latencies are counted from the actual start. Not with
    /// --interface async.
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..=1_000_000_000))]
    pub(crate) rate: Option<u32>,
    /// Interface of the initiator
    #[arg(long, value_name = "NAME", default_value = "polled")]
    pub(crate) interface: Interface,
    /// For several paths. One path is not connected again.
    #[command(flatten)]
    pub(crate) reconnects: Reconnects,
}

impl Bench {
    /// Options of a connection over each path.
    pub(crate) fn paths(&self) -> Result<Vec<ConnectOptions>, Failure> {
        self.subsystem.paths(|options| {
            self.queues.complete(options);
            options.in_capsule = self.in_capsule;
            options.spin = self.spin().unwrap_or(options.spin);
        })
    }

    /// Longest time to poll, if it was given.
    pub(crate) fn spin(&self) -> Option<Duration> {
        self.spin_us.map(|us| Duration::from_micros(u64::from(us)))
    }
}

/// The interfaces of the initiator that a benchmark can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Interface {
    /// One thread for each queue, which polls it.
    Polled,
    /// One thread for all queues, with a task for each operation in flight.
    Async,
}

/// The workloads of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    Randread,
    /// Random writes.
    Randwrite,
    /// Random reads and writes.
    Randrw,
}
