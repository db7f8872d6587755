//! All sizes and timeouts, which are fixed at start.

use std::time::Duration;

use nvmeof_target_reservations::Rules;

use crate::IoKind;

/// Sizes and timeouts of a target. They bound the resources that peers can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the longest submission queue, 2 to [`Limits::MAX_QUEUE_DEPTH`].
    pub queue_depth: u16,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// Controllers over all hosts and subsystems.
    pub controllers: u16,
    /// Discovery controllers. Any host may have them, so they do not count as
    /// [`controllers`](Self::controllers). At the limit, a new one replaces the one that
    /// was idle longest: of the host with more than two on one port, else of the port
    /// with the most.
    pub discovery_controllers: u16,
    /// Longest data of one command in bytes: a power of two, 8192 or more.
    pub max_transfer: u32,
    /// In-capsule data of one command in bytes: a multiple of 16.
    pub in_capsule: u32,
    /// Keyed descriptors of one command (MSDBD), 1 to
    /// [`Limits::DESCRIPTORS`]. Only 1 where in-capsule data are longer than
    /// [`Limits::LISTS_UP_TO`].
    pub max_descriptors: u8,
    /// How long the queue pair of an admin queue may exist without a Connect
    /// command. That of an I/O queue may exist six times as long, because Linux
    /// creates the queue pairs of all I/O queues before it sends the first Connect.
    pub connect_timeout: Duration,
    /// Queue pairs of one reactor that have not sent a Connect command. At the limit,
    /// a new one replaces the oldest one. Those for I/O queues that controllers of their
    /// peer lack have a limit of their own, twice as high.
    pub unconnected: u16,
    /// Controllers that one host may have, of [`controllers`](Self::controllers).
    pub host_controllers: u16,
    /// Controllers that one port may have while the model has other ports, of
    /// [`controllers`](Self::controllers). The remaining ones are reserved in equal parts
    /// for the other ports, because a connected controller cannot be reclaimed from its
    /// host. A lone port may have all.
    pub port_controllers: u16,
    /// I/O queues that one host may have, over all its controllers.
    pub host_queues: u16,
    /// Commands that one host may have outstanding: the entries of all its I/O
    /// queues together.
    pub host_commands: u32,
    /// Percentage of the buffers of each reactor that one host may hold while there are
    /// other hosts, 1 to 100.
    pub host_memory: u8,
    /// Connections that one port may have. Each queue is a connection.
    pub port_connections: PortLimit,
    /// Commands that may be outstanding on one port: the entries of all its I/O queues
    /// together.
    pub port_commands: PortLimit,
    /// Percentage of the buffers of each reactor that all hosts of one port may hold
    /// together while there are hosts of other ports, 1 to 100.
    pub port_memory: u8,
    /// Whether any command proves that the host is alive (CTRATT.TBKAS), or only the
    /// Keep Alive command.
    pub traffic_keep_alive: bool,
    /// Seconds within which the operations of a lost controller have ended (CQT), 0 to
    /// [`Limits::MAX_QUIESCE_TIME_S`]. Hosts that cannot reset the controller wait that long
    /// before they send its commands again. 0: not reported.
    pub quiesce_time_s: u32,
    /// Hosts that may be registered with one namespace, 1 to [`Limits::MAX_REGISTRANTS`].
    pub registrants: u16,
    /// Whether Reservation Register unregisters a host if it replaces its key with 0, as Linux
    /// does. Otherwise it is refused.
    pub zero_key_unregisters: bool,
    /// Whether a host is refused while another one, by NQN, has the same host identifier:
    /// reservations take them for one host.
    pub unique_host_ids: bool,
}

/// A limit of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLimit {
    /// While it is the only port of the model.
    pub alone: u32,
    /// While there are other ports.
    pub beside_others: u32,
}

impl PortLimit {
    /// The same in any case.
    #[must_use]
    pub const fn always(most: u32) -> Self {
        Self {
            alone: most,
            beside_others: most,
        }
    }

    /// The limit with `ports` ports.
    #[must_use]
    pub fn with_ports(self, ports: usize) -> u32 {
        if ports > 1 {
            self.beside_others
        } else {
            self.alone
        }
    }
}

impl Limits {
    /// Longest submission queue, in entries.
    pub const MAX_QUEUE_DEPTH: u16 = 1024;
    /// Largest [`registrants`](Self::registrants). Each change of the registrants of a namespace
    /// saves all of them.
    pub const MAX_REGISTRANTS: u16 = 8192;
    /// Largest [`quiesce_time_s`](Self::quiesce_time_s): CQT counts milliseconds in 16 bits.
    pub const MAX_QUIESCE_TIME_S: u32 = 65;
    /// Entries of an admin queue, at most.
    pub const ADMIN_DEPTH: u16 = 32;
    /// Recommended length of a Write Zeroes command (WZSL) in bytes. Longer commands are
    /// split into operations of this length.
    pub const LONG_WRITE_ZEROES: u64 = 32 << 20;
    /// Recommended length of a Verify command (VSL) in bytes.
    pub const LONG_VERIFY: u64 = 32 << 20;
    /// Maximum length of a fused Compare and Write in bytes. Every capsule buffer has
    /// this much space, so that neither half waits for a buffer.
    pub const MAX_FUSED: u32 = 4096;
    /// Keyed descriptors of one command, at most.
    pub const DESCRIPTORS: u8 = 16;
    /// In-capsule data above this many bytes require one descriptor per command: Linux
    /// hosts 5.4 to 5.12 corrupt long in-capsule data when the controller accepts
    /// several.
    pub const LISTS_UP_TO: u32 = 4096;
    /// Source ranges of a Copy command (MSRC, 0's based).
    pub const COPY_RANGES: u16 = 128;
    /// Bytes of all source ranges of a Copy command (MCL), and of one of them
    /// (MSSRL) as far as the field can represent it.
    pub const MAX_COPY: u64 = 64 << 20;
    /// Highest configurable number of commands of one host or port.
    pub const MAX_COMMANDS: u32 = 1 << 26;
    /// Highest configurable number of connections of one port.
    pub const MAX_CONNECTIONS: u32 = 1 << 20;
    /// Bytes per operation of a command without data transfer.
    const PIECE: u32 = 128 << 10;

    /// Lower bound of the default number of connections of a lone port, which other
    /// limits bound.
    const LONE_PORT: u32 = 8192;
    /// Lower bound of the default number of commands of a host, if its controllers can
    /// have as many: a lone host is not limited for the sake of others.
    const LONE_HOST: u32 = 128 << 10;
    /// Controllers, with all their queues and commands, that one host or port may always
    /// have, if there are as many.
    const AT_LEAST: u32 = 4;

    /// Derives the quotas of one host and one port: controllers, queues and commands.
    /// `threads` reactors accept connections, each of them
    /// [`unconnected`](Self::unconnected) ones.
    ///
    /// A host may have [`host_controllers`](Self::host_controllers) controllers, by
    /// default three quarters, so that two hosts leave each other some. It may have all
    /// queues of these, and half of the commands, since queues rarely have their maximum
    /// depth. A port may have more, for several hosts:
    /// [`port_controllers`](Self::port_controllers) controllers, by default seven eighths,
    /// their queues, and three quarters of their commands. A lone port may have all.
    /// `None` in `(of_host, of_port)` stands for the default.
    #[must_use]
    pub fn with_quotas(self, threads: u32, (of_host, of_port): (Option<u16>, Option<u16>)) -> Self {
        let all = u32::from(self.controllers);
        let least = all.min(Self::AT_LEAST);
        let host_controllers = of_host.unwrap_or(self.controllers - self.controllers / 4);
        let eighth = self.controllers.div_ceil(8);
        let port_controllers = of_port.unwrap_or((self.controllers - eighth).max(1));
        let by_host = u32::from(host_controllers);
        let by_port = u32::from(port_controllers).max(least);
        let queues = |controllers: u32| controllers.saturating_mul(self.io_queues.into());
        let depth = u32::from(self.queue_depth);
        let commands = |controllers| queues(controllers).saturating_mul(depth);
        // Connections without Connect, and as many that are closing.
        let others = 2u32.saturating_mul(self.unconnected.into());
        let others = others.saturating_mul(threads);
        let others = others.saturating_add(self.discovery_controllers.into());
        let connections = |controllers| {
            let admin_and_io = queues(controllers).saturating_add(controllers);
            admin_and_io.saturating_add(others)
        };
        let half = commands(all.div_ceil(2).max(least));
        Self {
            host_controllers,
            port_controllers,
            host_queues: u16::try_from(queues(by_host)).unwrap_or(u16::MAX),
            host_commands: half
                .max(commands(by_host).min(Self::LONE_HOST))
                .min(Self::MAX_COMMANDS),
            port_connections: PortLimit {
                alone: connections(all).clamp(Self::LONE_PORT, Self::MAX_CONNECTIONS),
                beside_others: connections(by_port).min(Self::MAX_CONNECTIONS),
            },
            port_commands: PortLimit {
                alone: commands(all).min(Self::MAX_COMMANDS),
                beside_others: commands((by_port - by_port / 4).max(least)).min(Self::MAX_COMMANDS),
            },
            ..self
        }
    }

    /// Blocks of one source range of a Copy command (MSSRL), and of all
    /// together (MCL), where a block has 2 to `block_shift` bytes.
    #[must_use]
    pub(crate) fn copy_blocks(block_shift: u8) -> (u16, u32) {
        let blocks = Self::MAX_COPY >> block_shift;
        (
            u16::try_from(blocks).unwrap_or(u16::MAX),
            u32::try_from(blocks).unwrap_or(u32::MAX),
        )
    }

    /// Pages of [`IoKind::PAGE`] bytes per operation, at most, of a command without data
    /// transfer: the buffer that it holds does not depend on its length.
    #[must_use]
    pub(crate) fn piece(&self) -> u8 {
        let pages = self.max_transfer.min(Self::PIECE) / IoKind::PAGE;
        u8::try_from(pages).unwrap_or(u8::MAX)
    }

    /// CQT in milliseconds.
    #[must_use]
    pub(crate) fn quiesce_time_ms(&self) -> u16 {
        let milliseconds = self.quiesce_time_s.saturating_mul(1000);
        u16::try_from(milliseconds).unwrap_or(u16::MAX)
    }

    /// How long queue `qid` may exist without a Connect command.
    #[must_use]
    pub fn connect_timeout_of(&self, qid: u16) -> Duration {
        match qid {
            0 => self.connect_timeout,
            _ => self.connect_timeout * 6,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_depth: 256,
            io_queues: 16,
            controllers: 64,
            discovery_controllers: 64,
            max_transfer: 1 << 20,
            in_capsule: 4096,
            max_descriptors: Self::DESCRIPTORS,
            connect_timeout: Duration::from_secs(10),
            unconnected: 64,
            host_controllers: 0,
            port_controllers: 0,
            host_queues: 0,
            host_commands: 0,
            host_memory: 75,
            port_connections: PortLimit::always(0),
            port_commands: PortLimit::always(0),
            port_memory: 90,
            traffic_keep_alive: true,
            quiesce_time_s: 30,
            registrants: Rules::default().most_registrants,
            zero_key_unregisters: Rules::default().replace_with_zero_unregisters,
            unique_host_ids: false,
        }
        .with_quotas(1, (None, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(controllers: u16, io_queues: u16, queue_depth: u16) -> Limits {
        let limits = Limits {
            controllers,
            io_queues,
            queue_depth,
            ..Limits::default()
        };
        limits.with_quotas(1, (None, None))
    }

    /// The quota of commands is lower than the queues can have; that of queues is what
    /// the controllers can have.
    #[test]
    fn quotas_are_less_than_the_total() {
        let limits = Limits::default();
        assert_eq!((limits.host_controllers, limits.port_controllers), (48, 56));
        assert_eq!(limits.host_queues, 48 * 16);
        assert_eq!(limits.host_commands, 128 << 10);
        assert!(limits.host_commands < 48 * 16 * 256);
        let port = PortLimit {
            alone: 64 * 16 * 256,
            beside_others: 42 * 16 * 256,
        };
        assert_eq!(limits.port_commands, port);
        let port = PortLimit {
            alone: 8192,
            beside_others: 56 * 17 + 64 + 2 * 64,
        };
        assert_eq!(limits.port_connections, port);
        assert_eq!(
            [0, 1, 2].map(|ports| port.with_ports(ports)),
            [8192, 8192, 1144]
        );
    }

    /// With few controllers, one host may use all of them.
    #[test]
    fn few_controllers_have_all_their_queues() {
        for controllers in 1..=4 {
            let limits = with(controllers, 16, 256);
            let its = u32::from(limits.host_controllers) * 16;
            assert!(u32::from(limits.host_queues) >= its);
            assert!(limits.host_commands >= its * 256);
            assert!(limits.port_commands.beside_others >= its * 256);
        }
        assert_eq!(with(1, 1, 2).host_commands, 2);
    }

    /// More controllers of a host or port include their queues.
    #[test]
    fn quotas_follow_the_number_of_controllers() {
        let limits = Limits::default().with_quotas(1, (Some(64), Some(64)));
        assert_eq!(limits.host_queues, 64 * 16);
        assert!(limits.port_connections.beside_others >= 64 * 17);
        let few = Limits::default().with_quotas(1, (Some(2), Some(3)));
        assert_eq!((few.host_controllers, few.port_controllers), (2, 3));
        assert_eq!(few.host_queues, 2 * 16);
    }

    /// A lone host may have the queues of its controllers with their maximum depth.
    #[test]
    fn lone_host_may_have_all_commands() {
        for controllers in [8, 16, 32] {
            let limits = with(controllers, 16, 256);
            let its = u32::from(limits.host_controllers) * 16 * 256;
            assert!(limits.host_commands >= its, "{controllers}");
        }
    }

    /// With two controllers or more, some are reserved for other ports.
    #[test]
    fn one_port_may_not_have_all_controllers() {
        for controllers in 2..=64 {
            assert!(with(controllers, 16, 256).port_controllers < controllers);
        }
        assert_eq!(with(1, 16, 256).port_controllers, 1);
    }

    /// Derived quotas do not exceed the configurable range.
    #[test]
    fn derived_quotas_are_in_the_configurable_range() {
        let limits = with(4096, 1024, 1024).with_quotas(256, (None, None));
        assert_eq!(limits.host_queues, u16::MAX);
        assert_eq!(limits.host_commands, Limits::MAX_COMMANDS);
        let most = PortLimit::always(Limits::MAX_COMMANDS);
        assert_eq!(limits.port_commands, most);
        let most = PortLimit::always(Limits::MAX_CONNECTIONS);
        assert_eq!(limits.port_connections, most);
    }
}
