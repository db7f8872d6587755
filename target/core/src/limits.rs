//! Every size that is decided at start.

use std::time::Duration;

use crate::IoKind;

/// Sizes and times of a target. They bound what peers can make it hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the longest submission queue, 2 to [`Limits::MAX_QUEUE_DEPTH`].
    pub queue_depth: u16,
    /// I/O queues of one controller.
    pub io_queues: u16,
    /// Controllers over all hosts and subsystems.
    pub controllers: u16,
    /// Discovery controllers, which anybody may have and which therefore do not count
    /// as [`controllers`](Self::controllers). When one more comes one of them goes:
    /// of whoever has more than two by one port, else of those who came by the port with
    /// most, the one that was silent longest.
    pub discovery_controllers: u16,
    /// Longest data of one command in bytes: a power of two, 8192 or more.
    pub max_transfer: u32,
    /// In-capsule data of one command in bytes: a multiple of 16.
    pub in_capsule: u32,
    /// Keyed descriptors of one command (MSDBD), 1 to
    /// [`Limits::DESCRIPTORS`]. Only 1 where in-capsule data are longer than
    /// [`Limits::LISTS_UP_TO`].
    pub max_descriptors: u8,
    /// How long the queue pair of an admin queue may stay without a Connect
    /// command. That of an I/O queue may six times as long: Linux makes the
    /// queue pairs of all I/O queues before it sends the first Connect.
    pub connect_timeout: Duration,
    /// Queue pairs of one reactor that sent no Connect command yet. The oldest
    /// is closed when one more comes.
    pub unconnected: u16,
    /// Of [`controllers`](Self::controllers), how many one host may have.
    pub host_controllers: u16,
    /// Of [`controllers`](Self::controllers), how many may have come by one port while
    /// the model has others. What that leaves is shared out to those others, and kept
    /// for each until it has its share: a controller that is there cannot be taken
    /// back from its host. A port that is alone has all.
    pub port_controllers: u16,
    /// I/O queues that one host may have, over all its controllers.
    pub host_queues: u16,
    /// Commands that one host may have outstanding: the entries of all its I/O
    /// queues together.
    pub host_commands: u32,
    /// Of the buffers of each reactor, how many percent one host may hold while
    /// there are others, 1 to 100.
    pub host_memory: u8,
    /// Connections that may have come by one port, which are its queues: each queue
    /// is a connection.
    pub port_connections: OfPort,
    /// Commands that may be outstanding by one port: the entries of all I/O queues
    /// that came by it together.
    pub port_commands: OfPort,
    /// Of the buffers of each reactor, how many percent those who came by one port
    /// may hold together while there are some of other ports, 1 to 100.
    pub port_memory: u8,
    /// Whether any command proves that the host lives (CTRATT.TBKAS), or only
    /// the Keep Alive command does.
    pub traffic_keep_alive: bool,
}

/// What hosts may have by one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfPort {
    /// While it is the only one of the model.
    pub alone: u32,
    /// While there are others.
    pub beside_others: u32,
}

impl OfPort {
    /// The same in any case.
    #[must_use]
    pub const fn always(most: u32) -> Self {
        Self {
            alone: most,
            beside_others: most,
        }
    }

    /// How much that is with so many ports.
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
    /// Longest submission queue that can be asked for, in entries.
    pub const MAX_QUEUE_DEPTH: u16 = 1024;
    /// Entries of an admin queue, at most.
    pub const ADMIN_DEPTH: u16 = 32;
    /// Bytes of a Write Zeroes command that are recommended (WZSL), and done at once.
    pub const LONG_WRITE_ZEROES: u64 = 32 << 20;
    /// Bytes of a Verify command that are recommended (VSL).
    pub const LONG_VERIFY: u64 = 32 << 20;
    /// Bytes of a fused Compare and Write, at most: what every capsule has room
    /// for, so that none of its halves waits for a buffer.
    pub const MAX_FUSED: u32 = 4096;
    /// Keyed descriptors of one command, at most.
    pub const DESCRIPTORS: u8 = 16;
    /// In-capsule data above this many bytes go with one descriptor for each
    /// command: Linux hosts 5.4 to 5.12 corrupt long in-capsule data when the
    /// controller takes several.
    pub const LISTS_UP_TO: u32 = 4096;
    /// Source ranges of a Copy command; MSRC says one less.
    pub const COPY_RANGES: u16 = 128;
    /// Bytes of all source ranges of a Copy command (MCL), and of one of them
    /// (MSSRL) as far as that field can say it.
    pub const MAX_COPY: u64 = 64 << 20;
    /// Commands of one host, or by one port, that can be configured.
    pub const MOST_COMMANDS: u32 = 1 << 26;
    /// Connections by one port that can be configured.
    pub const MOST_CONNECTIONS: u32 = 1 << 20;
    /// Bytes that are read at once for a command whose data stay here.
    const PIECE: u32 = 128 << 10;

    /// Connections that one port without others may have at least, where nobody says
    /// how many: other limits bound them.
    const LONE_PORT: u32 = 8192;
    /// Commands that a host has at least, if its controllers can have so many, where
    /// nobody says how many: a host that is alone is not refused for others.
    const LONE_HOST: u32 = 128 << 10;
    /// Controllers with all that they may have which are left to one host or port in
    /// any case, where there are as many: few controllers are not for many.
    const AT_LEAST: u32 = 4;

    /// The same with what is one host's part, or one port's, of the controllers, the
    /// queues and the commands that there may be; `threads` of them receive
    /// connections, each so many that are [`unconnected`](Self::unconnected).
    ///
    /// Of the controllers a host has what [`host_controllers`](Self::host_controllers)
    /// says, and else three quarters, so that two of them leave each other something; of
    /// the queues what these can have; and half of the commands, since hosts hardly have
    /// all their queues as long as they may be. A port has more, for several hosts: what
    /// [`port_controllers`](Self::port_controllers) says or seven eighths, their queues,
    /// and three quarters of the commands these can have; but all of it while it is
    /// alone. `None` of a controllers' part: it is not said.
    #[must_use]
    pub fn shared_out(self, threads: u32, (of_host, of_port): (Option<u16>, Option<u16>)) -> Self {
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
        // Those that are not connected yet, and as many that are closing.
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
                .min(Self::MOST_COMMANDS),
            port_connections: OfPort {
                alone: connections(all).clamp(Self::LONE_PORT, Self::MOST_CONNECTIONS),
                beside_others: connections(by_port).min(Self::MOST_CONNECTIONS),
            },
            port_commands: OfPort {
                alone: commands(all).min(Self::MOST_COMMANDS),
                beside_others: commands((by_port - by_port / 4).max(least))
                    .min(Self::MOST_COMMANDS),
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

    /// Pages of [`IoKind::PAGE`] bytes at once, at most, of a command whose data
    /// stay here: what it may hold of the buffers does not depend on how long it
    /// is.
    #[must_use]
    pub(crate) fn piece(&self) -> u8 {
        let pages = self.max_transfer.min(Self::PIECE) / IoKind::PAGE;
        u8::try_from(pages).unwrap_or(u8::MAX)
    }

    /// How long queue `qid` may stay without a Connect command.
    #[must_use]
    pub fn connect_patience(&self, qid: u16) -> Duration {
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
            port_connections: OfPort::always(0),
            port_commands: OfPort::always(0),
            port_memory: 90,
            traffic_keep_alive: true,
        }
        .shared_out(1, (None, None))
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
        limits.shared_out(1, (None, None))
    }

    /// Of commands less than the queues can have that one may have; of queues just
    /// those that its controllers can have.
    #[test]
    fn parts_are_less_than_there_is() {
        let limits = Limits::default();
        assert_eq!((limits.host_controllers, limits.port_controllers), (48, 56));
        assert_eq!(limits.host_queues, 48 * 16);
        assert_eq!(limits.host_commands, 128 << 10);
        assert!(limits.host_commands < 48 * 16 * 256);
        let port = OfPort {
            alone: 64 * 16 * 256,
            beside_others: 42 * 16 * 256,
        };
        assert_eq!(limits.port_commands, port);
        let port = OfPort {
            alone: 8192,
            beside_others: 56 * 17 + 64 + 2 * 64,
        };
        assert_eq!(limits.port_connections, port);
        assert_eq!(
            [0, 1, 2].map(|ports| port.with_ports(ports)),
            [8192, 8192, 1144]
        );
    }

    /// Where there are few controllers one host has use for all of them.
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

    /// Whoever lets a host or a port have more controllers lets them have their queues.
    #[test]
    fn parts_follow_those_of_the_controllers() {
        let limits = Limits::default().shared_out(1, (Some(64), Some(64)));
        assert_eq!(limits.host_queues, 64 * 16);
        assert!(limits.port_connections.beside_others >= 64 * 17);
        let few = Limits::default().shared_out(1, (Some(2), Some(3)));
        assert_eq!((few.host_controllers, few.port_controllers), (2, 3));
        assert_eq!(few.host_queues, 2 * 16);
    }

    /// A host that is alone has the queues of its controllers, as long as they may be.
    #[test]
    fn a_host_is_not_refused_for_the_sake_of_nobody() {
        for controllers in [8, 16, 32] {
            let limits = with(controllers, 16, 256);
            let its = u32::from(limits.host_controllers) * 16 * 256;
            assert!(limits.host_commands >= its, "{controllers}");
        }
    }

    /// Something is kept for other ports as soon as there are two controllers.
    #[test]
    fn one_port_does_not_have_all() {
        for controllers in 2..=64 {
            assert!(with(controllers, 16, 256).port_controllers < controllers);
        }
        assert_eq!(with(1, 16, 256).port_controllers, 1);
    }

    /// More than could be configured is nobody's part.
    #[test]
    fn parts_of_much_can_be_configured() {
        let limits = with(4096, 1024, 1024).shared_out(256, (None, None));
        assert_eq!(limits.host_queues, u16::MAX);
        assert_eq!(limits.host_commands, Limits::MOST_COMMANDS);
        let most = OfPort::always(Limits::MOST_COMMANDS);
        assert_eq!(limits.port_commands, most);
        let most = OfPort::always(Limits::MOST_CONNECTIONS);
        assert_eq!(limits.port_connections, most);
    }
}
