//! Resources of a connected queue, allocated when its Connect is processed: a peer
//! without a Connect holds next to nothing.

use nvmeof_memory::Buf;
use nvmeof_rdma::{PostError, QpOwner, Work};
use nvmeof_target_core::{Limits, Remote};

use super::path::slice;
use super::slots::Lent;
use super::{FIRST, Io, QueuePair};
use crate::tag::SlotId;

/// Capsule buffers for the receives of a whole queue, or for its share of a shared
/// receive queue.
pub(super) struct Room(Vec<Buf>);

/// Capsule buffers for the maximum number of admin queues: of I/O controllers, of
/// discovery controllers, and before a Connect, some of which may be closing.
pub(crate) fn all_admin_capsules(limits: &Limits) -> usize {
    let controllers = usize::from(limits.controllers) + usize::from(limits.discovery_controllers);
    let unconnected = 2 * usize::from(limits.unconnected);
    controllers * usize::from(Limits::ADMIN_DEPTH) + unconnected * usize::from(FIRST)
}

impl QueuePair {
    /// Before the core may process a Connect: allocates what the queue would need, or
    /// notifies the core that there is not enough. `None` on a connected queue.
    #[inline]
    pub(super) fn make_room(&mut self, io: &mut Io<'_>) -> Option<Room> {
        if self.core.is_connected() {
            return None;
        }
        Some(self.make_first_room(io))
    }

    #[cold]
    fn make_first_room(&mut self, io: &mut Io<'_>) -> Room {
        let needed = self
            .receives
            .needed(FIRST, self.core.entries(), &mut io.resources.shared);
        let pool = match self.core.qid() {
            0 => &io.resources.admin_capsules,
            _ => &io.resources.capsules,
        };
        let free = pool.available();
        let mut room = Vec::new();
        if free >= needed {
            room.extend((0..needed).map_while(|_| pool.take()));
        }
        let port = self.core.port();
        let exhausted = match self.core.qid() {
            0 => io
                .resources
                .accounts
                .without_admin_room(needed, free, pool.count()),
            _ => io.resources.accounts.without_room(port, needed, free),
        };
        self.core.set_exhausted(exhausted);
        self.core.set_room(if room.len() == needed {
            Ok(())
        } else {
            Err(format!(
                "{free} of the {needed} capsule buffers it needs are free; \
                 raise reactor.buffer_memory"
            ))
        });
        Room(room)
    }

    /// After that: posts the receives if the queue is connected now, before its host gets
    /// the response; otherwise returns everything.
    #[inline]
    pub(super) fn take_room(&mut self, room: Option<Room>, io: &mut Io<'_>) {
        if let Some(room) = room {
            self.take_first_room(room, io);
        }
    }

    #[cold]
    fn take_first_room(&mut self, Room(bufs): Room, io: &mut Io<'_>) {
        if !self.core.is_connected() {
            return;
        }
        let (host, subsystem, _) = self.core.association().unwrap_or_default();
        let owner = QpOwner::of_host(host, subsystem, self.core.qid());
        io.provider.set_owner(self.link.qp, owner);
        // Capsules of admin queues are not charged to a host.
        let counted = if self.is_admin() { 0 } else { bufs.len() };
        self.open_account(counted, io);
        self.slots.grow(self.core.entries());
        self.receives
            .grow(self.core.entries(), &mut io.resources.shared);
        for buf in bufs {
            match self.post_recv(buf, io.provider, &mut io.resources.shared) {
                Ok(()) => {}
                Err(PostError::Closed) => return,
                Err(why) => return self.refused(&why, io),
            }
        }
    }

    /// Pulls the data of a Connect into its capsule buffer, which is parsed already: only
    /// the host itself lacks a buffer meanwhile.
    pub(super) fn pull_connect(&mut self, slot: SlotId, remote: Remote, io: &mut Io<'_>) {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let capsule = self.slots.get(slot).and_then(|command| {
            let mut capsule = command.capsule.take()?;
            command.lent = Lent::Capsule;
            command.on_wire = Some(io.now);
            capsule.set_len(len).ok()?;
            Some(capsule)
        });
        let Some(local) = capsule else {
            return self.bug("the data of a Connect do not fit its capsule", io);
        };
        let remote = slice(remote);
        self.post(slot, Work::Read { local, remote }, io);
    }
}
