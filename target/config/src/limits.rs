//! Sizes of the target: their keys, and what they are where nobody says it.

use std::time::Duration;

use nvmeof_target_core::{Limits, OfPort};
use serde::Deserialize;

use super::size::Size32;

/// Sizes and times of the target. They bound what hosts can make it hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLimits {
    /// Entries of the longest submission queue that a host may ask for: 2 to 1024.
    ///
    /// Default: `256`
    queue_depth: Option<u16>,
    /// I/O queues of one controller: 1 to 1024.
    ///
    /// Default: `16`
    io_queues: Option<u16>,
    /// Controllers over all hosts and subsystems: 1 to 4096.
    ///
    /// Default: `64`
    controllers: Option<u16>,
    /// Discovery controllers, which do not count as `controllers`: 1 to 4096. When one more
    /// comes one of them goes: of whoever has more than two by one port, else of those who
    /// came by the port with most, the one silent longest.
    ///
    /// Default: `64`
    discovery_controllers: Option<u16>,
    /// Longest data of one command (MDTS): a power of two, 8K to 16M.
    ///
    /// Default: `"1M"`
    max_transfer: Option<Size32>,
    /// Data that may travel inside a command (IOCCSZ), which receives have room for: a multiple
    /// of 16, 0 to 64K. More than 4K goes with `max_descriptors = 1` only.
    ///
    /// Default: `4096`
    in_capsule: Option<Size32>,
    /// Keyed descriptors of one command (MSDBD): 1 to 16. Only 1 where `in_capsule` is more than
    /// 4K, because hosts with Linux 5.4 to 5.12 corrupt what they write otherwise.
    ///
    /// Default: `16`
    max_descriptors: Option<u8>,
    /// Seconds after which a connection for an admin queue ends that sent no Connect command;
    /// one for an I/O queue ends after six times as long.
    ///
    /// Default: `10`
    connect_timeout_s: Option<u32>,
    /// Connections of one thread that sent no Connect command yet: 1 to 4096. The oldest gives
    /// way to one more.
    ///
    /// Default: `64`
    unconnected: Option<u16>,
    /// Controllers that one host may have: 1 to `controllers`. Left out: three quarters of
    /// `controllers`.
    host_controllers: Option<u16>,
    /// Controllers of hosts that came by one port: 1 to `controllers`. It counts while there are
    /// other ports; what it leaves is kept for those, in equal shares, so that hosts of one port
    /// do not take all, whatever names they give. Left out: seven eighths of `controllers`.
    port_controllers: Option<u16>,
    /// I/O queues that one host may have, over all its controllers: 1 to 65535. Left out: as
    /// many as its controllers can have, `host_controllers` times `io_queues`.
    host_queues: Option<u16>,
    /// Commands that one host may have outstanding, the entries of all its I/O queues:
    /// `queue_depth` to 67108864. Left out: half of all there may be, which are `controllers`
    /// times `io_queues` times `queue_depth`, but 131072 at least, or all that its controllers
    /// can have.
    host_commands: Option<u32>,
    /// Percent of the buffers of each thread that one host may hold while there are others: 1 to
    /// 100. Below 100 a host that is alone leaves room for one queue of another.
    ///
    /// Default: `75`
    host_memory: Option<u8>,
    /// Connections that came by one port: 2 to 1048576. Each queue is one. Left out, and while
    /// there are other ports: those of `port_controllers`, but of four at least, of discovery
    /// controllers, and those without a Connect. A port that is alone has all there may be.
    port_connections: Option<u32>,
    /// Commands that may be outstanding by one port, the entries of all I/O queues that came by
    /// it: `queue_depth` to 67108864. Left out, and while there are other ports: three quarters of
    /// what `port_controllers` can have, but those of four controllers at least. A port that is
    /// alone has all.
    port_commands: Option<u32>,
    /// Percent of the buffers of each thread that the hosts of one port may hold together while
    /// there are hosts of other ports: 1 to 100. Below 100 those of a port that is alone leave
    /// room for one queue by another.
    ///
    /// Default: `90`
    port_memory: Option<u8>,
    /// Whether any command proves that a host lives (CTRATT.TBKAS), or only Keep Alive does.
    ///
    /// Default: `true`
    traffic_keep_alive: Option<bool>,
}

impl RawLimits {
    /// The sizes, with so many threads that receive connections.
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
            ..default
        };
        let of_controllers = (self.host_controllers, self.port_controllers);
        self.parts(&limits.shared_out(threads, of_controllers))
    }

    /// What else one host or one port may have is what was said, or its part.
    fn parts(&self, part: &Limits) -> Limits {
        Limits {
            host_queues: self.host_queues.unwrap_or(part.host_queues),
            host_commands: self.host_commands.unwrap_or(part.host_commands),
            port_connections: self
                .port_connections
                .map_or(part.port_connections, OfPort::always),
            port_commands: self
                .port_commands
                .map_or(part.port_commands, OfPort::always),
            ..part.clone()
        }
    }

    /// Whether the values go together. The error names the key.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let all = self.controllers.unwrap_or(Limits::default().controllers);
        let of_all = [
            ("host_controllers", self.host_controllers),
            ("port_controllers", self.port_controllers),
        ];
        for (key, given) in of_all {
            if let Some(given) = given.filter(|given| *given > all) {
                let what = format!(
                    "{given} is more than all there may be, limits.controllers = {all}; raise \
                     that, or lower this"
                );
                return Err((key, what));
            }
        }
        Ok(())
    }
}
