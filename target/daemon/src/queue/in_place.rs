//! Commands whose data stay where they are: the disk reads into the host's own
//! memory, and writes from it, where the provider has that to offer.

use nvmeof_memory::Buf;
use nvmeof_rdma::{QpId, RemoteSlice, Rights};
use nvmeof_target_core::{Action, Data, Event, IoKind, IoOp, Remote};

use super::steps::slice;
use super::{Edge, Io};
use crate::tag::Place;

impl Edge {
    /// Takes the host's memory for the data of a read or write, so that no
    /// buffer of ours is needed and nothing moves over the connection. Gives the
    /// action that is next then, if it is another.
    ///
    /// Of all others the data are looked at here. A host may change them at any
    /// moment, so those are copied first.
    #[inline]
    pub(super) fn in_place(
        &mut self,
        slot: Place,
        action: &Action,
        io: &mut Io<'_>,
    ) -> Option<Action> {
        match action {
            Action::Execute(op) if op.kind == IoKind::Read => {
                if let Some(job) = self.slots.get(slot)
                    && job.data.is_none()
                    && let Data::Remote(remote) = job.request.data()
                {
                    job.data = map(*remote, op, Rights::REMOTE_WRITE, self.qp, io);
                }
            }
            Action::Pull { remote, .. } => {
                if let Some(job) = self.slots.get(slot)
                    && job.data.is_none()
                    && let Data::Remote(_) = job.request.data()
                    && let Some(op) = job.request.write()
                {
                    job.data = map(*remote, op, Rights::REMOTE_READ, self.qp, io);
                    if job.data.is_some() {
                        let event = Event::Pulled(&[]);
                        return Some(self.core.step(io.now, &mut job.request, event));
                    }
                }
            }
            _ => {}
        }
        None
    }
}

/// The memory that `remote` names for `op`, if it can be had and the disk takes
/// it from where it lies.
fn map(remote: Remote, op: &IoOp, rights: Rights, qp: QpId, io: &mut Io<'_>) -> Option<Buf> {
    let remote: RemoteSlice = slice(remote);
    let buf = io.provider.map_remote(qp, remote, rights)?;
    let alignment = io.storage.buffer_alignment(op.disk);
    let aligned = buf.addr().is_multiple_of(u64::from(alignment));
    let whole = u64::try_from(buf.len()) == Ok(op.len);
    (aligned && whole).then_some(buf)
}
