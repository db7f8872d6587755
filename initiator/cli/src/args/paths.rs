//! Options of several paths, with the names and meanings of `nvme connect`.

use std::time::Duration;

use clap::{Arg, ArgAction, Args, ValueEnum};
use nvmeof_initiator::MultipathOptions;
use nvmeof_initiator::multipath::{PathPolicy, ReconnectOptions};

use super::numbers::number;

/// What to do about lost paths.
#[derive(Args, Debug)]
pub(crate) struct Reconnects {
    /// Longest delay between two attempts to connect a lost path, in seconds
    #[arg(long, value_name = "S", default_value_t = 1,
          value_parser = number::<u64>(1..=MOST_SECONDS))]
    pub(crate) reconnect_delay: u64,
    /// Seconds until a lost path is given up: 0 to not connect it again, -1 for
    /// never
    #[arg(long, value_name = "S", default_value = "600", allow_negative_numbers = true,
          value_parser = time_limit)]
    pub(crate) ctrl_loss_tmo: TimeLimit,
    /// Seconds after the loss of the last path until commands fail: -1 for not
    /// before the paths are given up
    #[arg(long = "fast_io_fail_tmo", alias = "fast-io-fail-tmo", value_name = "S",
          default_value = "-1", allow_negative_numbers = true, value_parser = time_limit)]
    pub(crate) fast_io_fail_tmo: TimeLimit,
    /// How to choose among several paths
    #[arg(long, value_name = "NAME", default_value = "round-robin")]
    pub(crate) iopolicy: Policy,
}

/// The longest time, in seconds.
const MOST_SECONDS: u64 = 1_000_000;

/// A time limit; none is -1 on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeLimit(pub(crate) Option<Duration>);

fn time_limit(text: &str) -> Result<TimeLimit, String> {
    if text == "-1" {
        return Ok(TimeLimit(None));
    }
    let seconds = number::<u64>(0..=MOST_SECONDS)(text).map_err(|why| format!("{why}, or -1"))?;
    Ok(TimeLimit(Some(Duration::from_secs(seconds))))
}

/// Policies of path choice, with the names of `iopolicy` in Linux, and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The nearest path by NUMA distance.
    Numa,
    /// One after the other.
    RoundRobin,
    /// The path with the fewest outstanding bytes.
    QueueDepth,
    /// The path with the shortest mean latency.
    Latency,
}

impl Reconnects {
    /// The options of the initiator.
    pub(crate) fn options(&self) -> MultipathOptions {
        let reconnect = ReconnectOptions {
            reconnect_delay: Duration::from_secs(self.reconnect_delay),
            ctrl_loss: self.ctrl_loss_tmo.0,
            fast_io_fail: self.fast_io_fail_tmo.0,
        };
        let policy = match self.iopolicy {
            Policy::Numa => PathPolicy::Numa,
            Policy::RoundRobin => PathPolicy::RoundRobin,
            Policy::QueueDepth => PathPolicy::QueueDepth,
            Policy::Latency => PathPolicy::Latency,
        };
        MultipathOptions {
            policy,
            reconnect,
            ..MultipathOptions::default()
        }
    }

    /// Whether a lost path is connected again.
    pub(crate) fn is_enabled(&self) -> bool {
        self.ctrl_loss_tmo.0 != Some(Duration::ZERO)
    }
}

/// `--traddr` of commands that use several paths.
pub(super) fn several_addresses(arg: Arg) -> Arg {
    arg.action(ArgAction::Append).value_name("ADDR,..").help(
        "Addresses of the target, one for each path, separated by commas: IP address or name, \
             optionally with :PORT (an IPv6 address then in brackets), or unix:/path for a Unix \
             socket on this host, with \\, for a comma in its path",
    )
}

/// `--keep-alive-tmo` of commands that connect lost paths again.
pub(super) fn required_keep_alive(arg: Arg) -> Arg {
    arg.value_parser(number::<u32>(1..=4_294_967))
        .help("Keep alive timeout in seconds; detects the loss of a path")
}
