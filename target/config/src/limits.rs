//! `[limits]`: keys of the configuration, their checks and their defaults.

use std::time::Duration;

use nvmeof_target_core::{Limits, PortLimit};
use serde::Deserialize;

use super::size::Size32;

/// Limits of the target: sizes, numbers and times that bound the resources of hosts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    /// Entries of the longest submission queue that a host can create: 2 to 1024.
    ///
    /// Default: `256`
    queue_depth: Option<u16>,
    /// I/O queues of one controller: 1 to 1024.
    ///
    /// Default: `16`
    io_queues: Option<u16>,
    /// Controllers of all hosts and subsystems together: 1 to 4096.
    ///
    /// Default: `64`
    controllers: Option<u16>,
    /// Discovery controllers, which `controllers` does not include: 1 to 4096. At the limit, a new
    /// one replaces the longest idle one of the host or port that has the most, see
    /// configuration.md.
    ///
    /// Default: `64`
    discovery_controllers: Option<u16>,
    /// Longest data of one command (MDTS): a power of two, 8K to 16M.
    ///
    /// Default: `"1M"`
    max_transfer: Option<Size32>,
    /// In-capsule data of one command (IOCCSZ): a multiple of 16, 0 to 64K. Each receive has
    /// room for it. More than 4K requires `max_descriptors = 1`.
    ///
    /// Default: `4096`
    in_capsule: Option<Size32>,
    /// Keyed SGL data block descriptors of one command (MSDBD): 1 to 16. Must be 1 if
    /// `in_capsule` is more than 4K: hosts with Linux 5.4 to 5.12 would corrupt the data that
    /// they write.
    ///
    /// Default: `16`
    max_descriptors: Option<u8>,
    /// Seconds after which a connection for an admin queue is closed if it has sent no Connect
    /// command. The time for an I/O queue is six times as long.
    ///
    /// Default: `10`
    connect_timeout_s: Option<u32>,
    /// Connections of one reactor that have sent no Connect command: 1 to 4096. At the limit, a new
    /// connection replaces the oldest of the peer that has the most of them. Connections for
    /// I/O queues that controllers of their peer requested and do not have yet have a limit of
    /// their own, twice as high.
    ///
    /// Default: `64`
    unconnected: Option<u16>,
    /// Controllers of one host: 1 to `controllers`. If left out: three quarters of
    /// `controllers`.
    host_controllers: Option<u16>,
    /// Controllers of all hosts through one port while there are other ports: 1 to `controllers`.
    /// The rest of `controllers` is reserved for the other ports in equal parts. The hosts of one
    /// port therefore cannot use all controllers, whatever NQNs they send. If left out: seven
    /// eighths of `controllers`.
    port_controllers: Option<u16>,
    /// I/O queues of one host, over all its controllers: 1 to 65535. If left out:
    /// `host_controllers` times `io_queues`.
    host_queues: Option<u16>,
    /// Outstanding commands of one host, counted as the entries of all its I/O queues:
    /// `queue_depth` to 67108864. If left out: half of `controllers` times `io_queues` times
    /// `queue_depth`. That default is at least 131072, or the entries that its controllers can have
    /// if these are fewer.
    host_commands: Option<u32>,
    /// Percent of the buffers of each reactor that one host may hold while there are other hosts: 1
    /// to 100. Below 100, capsule buffers for one I/O queue of another host are reserved even while
    /// a host is alone.
    ///
    /// Default: `75`
    host_memory: Option<u8>,
    /// Connections through one port: 2 to 1048576. Each queue is one connection. If left out, a
    /// single port has no limit of its own. With several ports, the limit of each is the sum of
    /// three numbers: all queues of `port_controllers` controllers (of at least four),
    /// `discovery_controllers`, and twice `unconnected` for each reactor.
    port_connections: Option<u32>,
    /// Outstanding commands through one port, counted as the entries of all its I/O queues:
    /// `queue_depth` to 67108864. If left out, a single port has no limit of its own. With several
    /// ports, the limit of each is three quarters of the entries that `port_controllers`
    /// controllers can have, and at least the entries of four.
    port_commands: Option<u32>,
    /// Percent of the buffers of each reactor that all hosts of one port may hold together while
    /// there are hosts of other ports: 1 to 100. Below 100, capsule buffers for one I/O queue
    /// through another port are reserved even while only one port has hosts.
    ///
    /// Default: `90`
    port_memory: Option<u8>,
    /// Whether every command restarts the keep-alive timer of its controller (CTRATT.TBKAS), or
    /// only Keep Alive.
    ///
    /// Default: `true`
    traffic_keep_alive: Option<bool>,
    /// Seconds within which the operations of a lost controller have ended (CQT): 0 to 65; 0: not
    /// reported. A host that cannot reset the controller through another one waits that long before
    /// it sends commands again. Set it to the longest time that an operation of the slowest backing
    /// store can take. For block devices, that is the request timeout of the kernel, 30 seconds by
    /// default.
    ///
    /// Default: `30`
    quiesce_time_s: Option<u32>,
    /// Hosts that may be registered with one namespace, for reservations: 1 to 8192.
    ///
    /// Default: `4096`
    registrants: Option<u16>,
    /// Whether a host that replaces its reservation key with 0 is unregistered. Linux unregisters
    /// so. With false, the command fails with Invalid Field, as the specification has it.
    ///
    /// Default: `true`
    zero_key_unregisters: Option<bool>,
    /// Whether a host is refused while a host with another NQN and the same host identifier is
    /// connected. Reservations take both for one host. With false, `ctl status` warns of them.
    ///
    /// Default: `false`
    unique_host_ids: Option<bool>,
}

impl RawLimits {
    /// The limits, with `threads` reactors that accept connections.
    pub(crate) fn to_limits(&self, threads: u32) -> Limits {
        let default = Limits::default();
        let bytes = |size: Option<Size32>, default: u32| size.map_or(default, Size32::bytes);
        let limits = Limits {
            queue_depth: self.queue_depth.unwrap_or(default.queue_depth),
            io_queues: self.io_queues.unwrap_or(default.io_queues),
            controllers: self.controllers.unwrap_or(default.controllers),
            discovery_controllers: self
                .discovery_controllers
                .unwrap_or(default.discovery_controllers),
            max_transfer: bytes(self.max_transfer, default.max_transfer),
            in_capsule: bytes(self.in_capsule, default.in_capsule),
            max_descriptors: self.max_descriptors.unwrap_or(default.max_descriptors),
            connect_timeout: self
                .connect_timeout_s
                .map_or(default.connect_timeout, |s| Duration::from_secs(s.into())),
            unconnected: self.unconnected.unwrap_or(default.unconnected),
            host_memory: self.host_memory.unwrap_or(default.host_memory),
            port_memory: self.port_memory.unwrap_or(default.port_memory),
            traffic_keep_alive: self
                .traffic_keep_alive
                .unwrap_or(default.traffic_keep_alive),
            quiesce_time_s: self.quiesce_time_s.unwrap_or(default.quiesce_time_s),
            registrants: self.registrants.unwrap_or(default.registrants),
            zero_key_unregisters: self
                .zero_key_unregisters
                .unwrap_or(default.zero_key_unregisters),
            unique_host_ids: self.unique_host_ids.unwrap_or(default.unique_host_ids),
            ..default
        };
        let of_controllers = (self.host_controllers, self.port_controllers);
        self.with_shares(&limits.with_quotas(threads, of_controllers))
    }

    /// The other limits of one host and one port: as configured, or the default of `part`.
    fn with_shares(&self, part: &Limits) -> Limits {
        Limits {
            host_queues: self.host_queues.unwrap_or(part.host_queues),
            host_commands: self.host_commands.unwrap_or(part.host_commands),
            port_connections: self
                .port_connections
                .map_or(part.port_connections, PortLimit::always),
            port_commands: self
                .port_commands
                .map_or(part.port_commands, PortLimit::always),
            ..part.clone()
        }
    }

    /// Checks limits against each other. The error has the key.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let all = self.controllers.unwrap_or(Limits::default().controllers);
        let of_all = [
            ("host_controllers", self.host_controllers),
            ("port_controllers", self.port_controllers),
        ];
        for (key, given) in of_all {
            if let Some(given) = given.filter(|given| *given > all) {
                let what =
                    format!("{given} exceeds limits.controllers = {all}; raise that or lower this");
                return Err((key, what));
            }
        }
        Ok(())
    }
}
