//! Zero-copy I/O in memory of the host: the backing store reads into it and writes from
//! it, if the provider can map it.

use nvmeof_memory::Buf;
use nvmeof_rdma::{Peer, QpId, RemoteSlice, Rights};
use nvmeof_target_core::{Action, Data, Event, IoKind, IoOp, Remote};

use super::path::slice;
use super::{Io, QueuePair};
use crate::tag::SlotId;

impl QueuePair {
    /// Maps the host's memory for the data of a read, so that no local buffer and no
    /// transfer is needed. Returns whether it did.
    #[inline]
    pub(super) fn read_in_place(&mut self, slot: SlotId, op: &IoOp, io: &mut Io<'_>) -> bool {
        if op.kind == IoKind::Read
            && self.shares_memory()
            && let Some(command) = self.slots.get(slot)
            && command.data.is_none()
            && let Data::Remote(remote) = command.request.data()
        {
            let mapped = map(*remote, op, Rights::REMOTE_WRITE, self.link.qp, io);
            return command.data.put(mapped);
        }
        false
    }

    /// The same for the data of a write. Returns the next action if it did.
    ///
    /// The data of all other commands are examined by the target. The host may change
    /// mapped memory at any moment, so those are copied first.
    pub(super) fn write_in_place(&mut self, slot: SlotId, io: &mut Io<'_>) -> Option<Action> {
        if !self.shares_memory() {
            return None;
        }
        let command = self.slots.get(slot)?;
        if command.data.is_none()
            && let Data::Remote(remote) = command.request.data()
            && let Some(op) = command.request.write()
        {
            let mapped = map(*remote, op, Rights::REMOTE_READ, self.link.qp, io);
            if command.data.put(mapped) {
                let event = Event::Pulled(&[]);
                return Some(self.core.step(io.now, &mut command.request, event));
            }
        }
        None
    }

    /// Whether its host may have memory that can be mapped: only a process on this
    /// machine has.
    #[inline]
    fn shares_memory(&self) -> bool {
        matches!(self.link.peer, Peer::Process { .. })
    }
}

/// Maps the memory that `remote` names for `op`, if possible and if its alignment suits
/// the backing store.
fn map(remote: Remote, op: &IoOp, rights: Rights, qp: QpId, io: &mut Io<'_>) -> Option<Buf> {
    let remote: RemoteSlice = slice(remote);
    let buf = io.provider.map_remote(qp, remote, rights)?;
    let aligned = is_aligned(buf.addr(), io.stores.buffer_alignment(op.store));
    let whole = u64::try_from(buf.len()) == Ok(op.len);
    (aligned && whole).then_some(buf)
}

/// Whether an address is a multiple of `alignment`, which is a power of two.
pub(super) fn is_aligned(addr: u64, alignment: u32) -> bool {
    addr & u64::from(alignment).saturating_sub(1) == 0
}
