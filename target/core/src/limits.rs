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
    pub port_connections: u32,
    /// Commands that may be outstanding by one port: the entries of all I/O queues
    /// that came by it together.
    pub port_commands: u32,
    /// Of the buffers of each reactor, how many percent those who came by one port
    /// may hold together while there are some of other ports, 1 to 100.
    pub port_memory: u8,
    /// Whether any command proves that the host lives (CTRATT.TBKAS), or only
    /// the Keep Alive command does.
    pub traffic_keep_alive: bool,
}

impl Limits {
    /// Longest submission queue that can be asked for, in entries.
    pub const MAX_QUEUE_DEPTH: u16 = 1024;
    /// Entries of an admin queue, at most.
    pub const ADMIN_DEPTH: u16 = 32;
    /// Discovery controllers, which anybody may have and which therefore do
    /// not count as [`controllers`](Self::controllers). The one that was
    /// silent longest goes when one more comes.
    pub const DISCOVERY_CONTROLLERS: u16 = 64;
    /// Longest Write Zeroes command in bytes.
    pub const MAX_WRITE_ZEROES: u64 = 32 << 20;
    /// Longest Verify command in bytes.
    pub const MAX_VERIFY: u64 = 32 << 20;
    /// Blocks of one range of a Dataset Management command (DMRSL), and of all
    /// its ranges together (DMSL).
    pub const MAX_TRIM: u32 = u32::MAX;
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
    /// Bytes that are read at once for a command whose data stay here.
    const PIECE: u32 = 128 << 10;

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
            max_transfer: 1 << 20,
            in_capsule: 4096,
            max_descriptors: Self::DESCRIPTORS,
            connect_timeout: Duration::from_secs(10),
            unconnected: 64,
            host_controllers: 48,
            port_controllers: 56,
            host_queues: 1024,
            host_commands: 128 << 10,
            host_memory: 75,
            port_connections: 8192,
            port_commands: 512 << 10,
            port_memory: 90,
            traffic_keep_alive: true,
        }
    }
}
