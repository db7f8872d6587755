//! The limit of file descriptors, and how it is divided.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::ports::Port;
use nvmeof_target_config::Config;

/// Most descriptors that are reserved for backing stores added later, and the fraction of the
/// limit that they may use.
const SPARE: usize = 16;
const SPARE_SHARE: usize = 64;

/// The fraction of the limit for connections to the control socket, and the same for those to
/// the address of metrics.
const HTTP_SHARE: usize = 16;
/// The least number of each kind of connection.
const HTTP_LEAST: usize = 4;
/// The largest number of each kind. The control socket has more: clients may have to wait for
/// the changes of others.
const MANAGING: usize = 1024;
const WATCHING: usize = 32;

/// The current limit of file descriptors of the process.
#[must_use]
pub fn limit() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// Most connections to the control socket.
#[must_use]
pub fn managing() -> usize {
    http(limit(), MANAGING)
}

/// Most connections to the TCP address of metrics.
#[must_use]
pub fn watching() -> usize {
    http(limit(), WATCHING)
}

fn http(limit: usize, most: usize) -> usize {
    (limit / HTTP_SHARE).clamp(HTTP_LEAST, most)
}

/// Raises the limit of file descriptors to the hard limit. Called before anything is opened:
/// each namespace uses a descriptor.
pub fn raise_limit() {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // If that fails, the current limit applies.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Most connections of each reactor. A connection uses one descriptor, and without free
/// descriptors existing connections would fail.
#[must_use]
pub fn share(config: &Config, reactors: usize, stores: usize, ports: &[Port]) -> u32 {
    let limit = limit();
    let devices = ports.iter().flat_map(|port| &port.providers);
    let listeners = [
        config.control().socket.is_some().then_some(MANAGING),
        config.metrics().listen.is_some().then_some(WATCHING),
    ];
    let listeners = listeners.into_iter().flatten();
    let others = Others {
        reactors,
        stores: stores.saturating_add(SPARE.min(limit / SPARE_SHARE)),
        devices: devices.map(|provider| provider.devices.len()).sum(),
        http: listeners.map(|most| http(limit, most)).sum(),
    };
    connections(limit, others)
}

/// Users of descriptors other than connections of hosts.
#[derive(Clone, Copy, Debug)]
struct Others {
    reactors: usize,
    stores: usize,
    /// RDMA devices.
    devices: usize,
    /// HTTP connections.
    http: usize,
}

/// Connections for each reactor, with `limit` descriptors in total. Connections of RDMA devices
/// use no descriptors.
fn connections(limit: usize, others: Others) -> u32 {
    /// Standard streams, signals, HTTP listeners and the epoll instances of their threads, and
    /// temporary descriptors of libraries.
    const OF_PROCESS: usize = 32;
    /// Epoll, ring, mailbox, listeners; epoll and connection events of RDMA
    /// devices.
    const OF_REACTOR: usize = 16;
    /// An RDMA device: its context, events and completions.
    const OF_DEVICE: usize = 4;
    let reactors = others.reactors.max(1);
    let of_reactor = OF_REACTOR + others.stores + OF_DEVICE * others.devices;
    let taken = OF_PROCESS + others.stores + others.http + reactors * of_reactor;
    let each = limit.saturating_sub(taken) / reactors;
    u32::try_from(each.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn others(reactors: usize, stores: usize, devices: usize, http: usize) -> Others {
        Others {
            reactors,
            stores,
            devices,
            http,
        }
    }

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        for (limit, others, expected) in [
            (1024, others(1, 1, 0, 0), 1024 - 32 - 1 - 17),
            (1024, others(1, 1, 2, 0), 1024 - 32 - 1 - 25),
            (1024, others(1, 1, 2, 100), 1024 - 32 - 1 - 25 - 100),
            (1 << 20, others(2, 0, 0, 0), ((1 << 20) - 32 - 32) / 2),
            // A host needs two connections.
            (64, others(1, 2, 0, 8), 4),
            (10, others(4, 9, 3, 12), 1),
            (usize::MAX, others(1, 0, 0, 0), u32::MAX),
        ] {
            assert_eq!(connections(limit, others), expected, "{others:?}");
        }
    }

    #[test]
    fn http_connections_have_a_share_of_the_limit() {
        for (limit, both) in [(64, [4, 4]), (256, [16, 16]), (1024, [64, 32])] {
            assert_eq!([http(limit, MANAGING), http(limit, WATCHING)], both);
        }
        assert_eq!(http(usize::MAX, WATCHING), WATCHING);
    }

    fn config(head: &str) -> Config {
        let text = format!("{head}[[port]]\ntraddr = \"127.0.0.1\"\nprovider = \"iwarp\"\n");
        Config::parse(Path::new("target.toml"), text).unwrap()
    }

    #[test]
    fn limit_is_raised_to_hard_limit_and_shared_with_http() {
        raise_limit();
        let none = share(&config("[control]\nsocket = \"\"\n"), 1, 1, &[]);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(soft, hard);
        let both = "[control]\nsocket = \"/run/x\"\n[metrics]\nlisten = \"127.0.0.1:9400\"\n";
        let both = share(&config(both), 1, 1, &[]);
        let taken = managing() + watching();
        assert_eq!(usize::try_from(none - both).unwrap(), taken);
    }
}
