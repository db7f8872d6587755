//! I/O commands of the NVM command set. Reads and writes take no lock and
//! allocate nothing.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_target_reservations::Access;
use nvmeof_wire::admin::NSID_ALL;
use nvmeof_wire::nvm::{DatasetManagement, DsmRange, Io, IoFlags};
use nvmeof_wire::opcode::io;
use nvmeof_wire::reservation;
use nvmeof_wire::{Sqe, Status};
use zerocopy::FromBytes;

use super::commit;
use crate::controller::Controller;
use crate::health::Counting;
use crate::live::{Live, View};
use crate::namespace_view::{NamespaceView, VisibleNamespace};
use crate::quota::QuotaGuard;
use crate::request::{AfterFlush, Extent, Failure, Next, Request, Stage, bit};
use crate::{CloseCause, IoKind, IoOp, Limits, Namespace};

/// An I/O queue as a member of its controller.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) controller: Arc<Controller>,
    view: View,
    pub(super) counting: Counting,
    /// The controller's count of resets when the queue was connected.
    epoch: u32,
    /// Longest data of a command.
    max_transfer: u32,
    /// Pages of the longest piece of a command without data transfer.
    pub(super) piece: u8,
    /// Whether any command proves that the host is alive.
    traffic_keep_alive: bool,
    /// Whether hosts may reserve namespaces.
    reserves: bool,
    _quota: Quota,
}

/// A queue in the quotas of its host and of its port, if that is known.
#[derive(Debug)]
pub(super) struct Quota {
    pub(super) _host: QuotaGuard,
    pub(super) _port: Option<QuotaGuard>,
}

// Where fields of a command begin, in bytes.
pub(super) const CDW10: u16 = 40;
pub(super) const CDW12: u16 = 48;
/// In the protection information of a Verify.
const PRACT: u16 = bit(51, 5);

impl Joined {
    pub(super) fn new(
        controller: Arc<Controller>,
        live: &Arc<Live>,
        limits: &Limits,
        reserves: bool,
        quota: Quota,
    ) -> Self {
        Self {
            epoch: controller.hot.epoch(),
            view: live.view(Arc::clone(&controller.viewer)),
            controller,
            counting: live.health.join(),
            max_transfer: limits.max_transfer,
            piece: limits.piece(),
            traffic_keep_alive: limits.traffic_keep_alive,
            reserves,
            _quota: quota,
        }
    }

    /// The present view of the subsystem.
    pub(super) fn namespace_view(&self) -> &Arc<NamespaceView> {
        self.view.namespace_view()
    }

    /// Longest data of a command.
    pub(super) fn max_transfer(&self) -> u32 {
        self.max_transfer
    }

    /// Its subsystem.
    pub(super) fn live(&self) -> &Arc<Live> {
        self.view.live()
    }

    pub(super) fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Why the queue must be closed, if it must.
    pub(super) fn lost(&self) -> Option<CloseCause> {
        let hot = &self.controller.hot;
        if !hot.is_gone() && hot.epoch() == self.epoch {
            return None;
        }
        let cntlid = self.controller.cntlid;
        Some(CloseCause::ControllerGone { cntlid })
    }

    /// Updates the view of the subsystem for a new command.
    #[inline]
    pub(super) fn refresh_view(&mut self) {
        self.view.refresh();
    }

    pub(super) fn note_activity(&self, now: Duration) {
        if self.traffic_keep_alive {
            self.controller.hot.note_activity(now);
        }
    }

    /// Leaves the controller. Returns whether it had this queue until now.
    pub(super) fn leave(&self, qid: u16) -> bool {
        // After a reset the identifier may belong to a newer queue.
        if self.lost().is_some() {
            return false;
        }
        let mut cold = self.controller.lock();
        cold.aborts.queue_closed(qid);
        cold.queues.remove(&qid).is_some()
    }

    /// Whether the controller serves commands.
    pub(super) fn is_ready(&self) -> bool {
        self.controller.hot.is_ready()
    }

    #[inline]
    pub(super) fn begin(
        &self,
        request: &mut Request,
        sqe: &Sqe,
        ready: bool,
    ) -> Result<Next, Failure> {
        if !ready {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        match sqe.opcode {
            io::READ => self.read(request, sqe),
            io::WRITE => self.write(request, sqe),
            _ => self.begin_other(request, sqe),
        }
    }

    /// A command that is neither a read nor a write.
    #[cold]
    fn begin_other(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        match sqe.opcode {
            io::FLUSH => self.flush(request),
            io::WRITE_ZEROES => self.write_zeroes(request, sqe),
            io::DATASET_MANAGEMENT => self.dataset_management(request, sqe),
            io::COMPARE => self.compare(request, sqe),
            io::VERIFY => self.verify(request, sqe),
            io::COPY => self.copy(request, sqe),
            opcode if self.reserves && reservation::COMMANDS.contains(&opcode) => {
                self.begin_reservation(request, sqe)
            }
            _ => Err(Failure::from(Status::INVALID_OPCODE).at(0)),
        }
    }

    /// Base 2.1, 3.2.1: a namespace id that is not active for the controller
    /// is refused.
    #[inline]
    pub(super) fn namespace(&self, nsid: u32) -> Result<&Namespace, Failure> {
        self.seen(nsid).map(|seen| &seen.namespace)
    }

    /// As [`namespace`](Self::namespace), if no reservation denies the host this access. Base 2.2,
    /// 8.1.1: the status of asymmetric access comes first.
    #[inline]
    pub(super) fn reach(&self, nsid: u32, access: Access) -> Result<&Namespace, Failure> {
        let seen = self.seen(nsid)?;
        match seen.accesses.has(access) {
            true => Ok(&seen.namespace),
            false => Err(Status::RESERVATION_CONFLICT.into()),
        }
    }

    /// The data of a command have arrived: a reservation may exclude its host by now.
    #[inline]
    pub(super) fn check_again(&mut self, request: &Request) -> Result<(), Failure> {
        self.view.refresh();
        if !self.view.namespace_view().is_restricted() {
            return Ok(());
        }
        let access = match &request.stage {
            Stage::Transfer(op) => access_of(op.kind),
            _ => Access::Write,
        };
        match self.view.namespace_view().permits(request.nsid, access) {
            true => Ok(()),
            false => Err(Status::RESERVATION_CONFLICT.into()),
        }
    }

    #[inline]
    fn seen(&self, nsid: u32) -> Result<&VisibleNamespace, Failure> {
        match self.view.namespace_view().get(nsid) {
            Some(seen) if seen.state.is_accessible() && seen.namespace.is_ready() => Ok(seen),
            _ => Err(unreachable_namespace(self.view.namespace_view(), nsid)),
        }
    }

    /// The failure of a command on a namespace that the host cannot access any more.
    pub(super) fn removed(&mut self, nsid: u32) -> Option<Failure> {
        self.view.refresh();
        let namespace_view = self.view.namespace_view();
        let is_there = namespace_view.get(nsid).is_some();
        (!is_there).then(|| Failure::no_namespace(namespace_view, nsid))
    }

    /// The namespace and the operation of a command with a range of blocks. NVM 1.0,
    /// figure 9: without protection information, PRINFO "is ignored".
    #[inline]
    pub(super) fn range(
        &self,
        request: &mut Request,
        sqe: &Sqe,
        kind: IoKind,
    ) -> Result<(&Namespace, IoOp), Failure> {
        let command = Io::parse(sqe);
        request.lba = command.slba;
        let namespace = self.reach(command.nsid, access_of(kind))?;
        let op = extent_of(namespace)
            .bytes(command.slba, command.blocks, kind)
            .ok_or_else(|| extent_of(namespace).missed(request).at(CDW10))?;
        let fua = command.flags.contains(IoFlags::FUA);
        Ok((namespace, IoOp { fua, ..op }))
    }

    /// Identify Controller, MDTS: "if the host submits a command that exceeds
    /// this transfer size, then the command is aborted with a status code of
    /// Invalid Field in Command".
    fn transferable(&self, op: &IoOp) -> Result<u32, Failure> {
        u32::try_from(op.len)
            .ok()
            .filter(|len| *len <= self.max_transfer)
            .ok_or(Failure::field(CDW12))
    }

    #[inline(always)]
    fn read(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let (_, op) = self.range(request, sqe, IoKind::Read)?;
        request.gives(self.transferable(&op)?)?;
        if op.fua {
            return Ok(commit::first(request, op));
        }
        request.stage = Stage::Executing(op);
        Ok(Next::Execute(op))
    }

    fn write(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let (namespace, mut op) = self.range(request, sqe, IoKind::Write)?;
        writable(namespace)?;
        request.takes(self.transferable(&op)?)?;
        op.fua |= self.controller.hot.writes_through();
        request.stage = Stage::Transfer(op);
        Ok(Next::Data)
    }

    fn compare(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let (_, op) = self.range(request, sqe, IoKind::Compare)?;
        request.takes(self.transferable(&op)?)?;
        request.stage = if op.fua {
            Stage::Commit(op)
        } else {
            Stage::Transfer(op)
        };
        Ok(Next::Data)
    }

    fn write_zeroes(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let deallocate = Io::parse(sqe).flags.contains(IoFlags::DEALLOCATE);
        let kind = IoKind::WriteZeroes { deallocate };
        let (namespace, mut op) = self.range(request, sqe, kind)?;
        writable(namespace)?;
        op.fua |= self.controller.hot.writes_through();
        Ok(next_piece(request, op))
    }

    /// NVM 1.0, 3.2.5: Verify reads the blocks "without transferring any data
    /// or metadata to the host".
    fn verify(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let pages = self.piece;
        let (_, op) = self.range(request, sqe, IoKind::Fetch { pages })?;
        // NVM 1.0, 3.2.5: if the PRACT bit is not cleared, "the controller shall abort the
        // command with a status of Invalid Field in Command".
        if Io::parse(sqe).flags.contains(IoFlags::PRACT) {
            return Err(Failure::field(PRACT));
        }
        Ok(match op.fua {
            true => commit::first(request, op),
            false => next_piece(request, op),
        })
    }

    /// Base 2.1, 7.2: namespace FFFFFFFFh means all of them, as VWC in Identify
    /// Controller says.
    fn flush(&self, request: &mut Request) -> Result<Next, Failure> {
        if request.nsid == NSID_ALL {
            let mut all = self.view.namespace_view().list().iter();
            if all.any(|seen| !seen.accesses.has(Access::Write)) {
                return Err(Status::RESERVATION_CONFLICT.into());
            }
            return self.flush_from(request, 0, AfterFlush::Completion);
        }
        let op = IoOp::flush(self.reach(request.nsid, Access::Write)?.store);
        request.stage = Stage::Executing(op);
        Ok(Next::Execute(op))
    }

    /// Flushes namespaces from NSID `from` on, then fails if one of them was not ready.
    pub(super) fn flush_from(
        &self,
        request: &mut Request,
        from: u32,
        then: AfterFlush,
    ) -> Result<Next, Failure> {
        let namespace_view = self.view.namespace_view();
        match flush_next(namespace_view, request, from, then) {
            Some(next) => Ok(next),
            None if namespace_view
                .list()
                .iter()
                .all(|one| one.namespace.is_ready()) =>
            {
                Ok(Next::Done(0))
            }
            None => Err(Failure::not_ready()),
        }
    }

    fn dataset_management(&self, request: &mut Request, sqe: &Sqe) -> Result<Next, Failure> {
        let command = DatasetManagement::parse(sqe);
        let namespace = self.reach(command.nsid, Access::Write)?;
        // Base 2.1, 8.1.16.2, figure 623: of a namespace that is write protected
        // the command is processed, but fails "if the specified action attempts
        // to modify the non-volatile storage medium". Hints do not.
        if command.deallocate {
            writable(namespace)?;
        }
        // Linux describes a whole page for any number of ranges.
        request.takes_at_most(command.data_len())?;
        request.stage = Stage::Ranges(command, extent_of(namespace));
        Ok(Next::Data)
    }
}

/// The access of an operation with a range of blocks.
fn access_of(kind: IoKind) -> Access {
    match kind {
        IoKind::Read | IoKind::Compare | IoKind::Fetch { .. } => Access::Read,
        _ => Access::Write,
    }
}

/// Executes the first piece of `left`, which has at least one block.
///
/// NVM 1.0, 3.2.5: with ONCS bit 7 set, as here, VSL "indicates the recommended maximum data
/// size for the Verify command", and longer commands "may encounter delays in processing".
/// 3.2.8 says the same of Write Zeroes, with bit 3 and WZSL. They are to be aborted only if
/// the bit is cleared. Longer commands are therefore split into operations of the
/// recommended length.
pub(super) fn next_piece(request: &mut Request, left: IoOp) -> Next {
    request.stage = Stage::Pieces(left);
    Next::Execute(first_piece(left))
}

/// The first operation of `left`.
pub(super) fn first_piece(left: IoOp) -> IoOp {
    let most = match left.kind {
        IoKind::Fetch { pages } => u64::from(pages) * u64::from(IoKind::PAGE),
        _ => Limits::LONG_WRITE_ZEROES,
    };
    IoOp {
        len: left.len.min(most),
        ..left
    }
}

/// Why a namespace cannot be used. Base 2.2, 8.1.1.6 to 8.1.1.8: the host may retry, on
/// this or another path.
#[cold]
fn unreachable_namespace(namespace_view: &NamespaceView, nsid: u32) -> Failure {
    match namespace_view.get(nsid).map(|seen| seen.state.refusal()) {
        Some(Some(status)) => Failure::transient(status),
        Some(None) => Failure::not_ready(),
        None => Failure::no_namespace(namespace_view, nsid),
    }
}

pub(super) fn writable(namespace: &Namespace) -> Result<(), Failure> {
    if namespace.readonly {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.into());
    }
    Ok(())
}

/// The ranges of a Dataset Management command have arrived: all are checked before the
/// first is deallocated.
pub(super) fn ranges(
    request: &mut Request,
    command: DatasetManagement,
    extent: Extent,
    data: &[u8],
) -> Result<Next, Failure> {
    for at in 0..command.ranges {
        let range = entry_at::<DsmRange>(data, at)?;
        let slba = range.slba.get();
        let op = extent.bytes(slba, range.blocks.get(), IoKind::Deallocate);
        if op.is_none() {
            request.lba = slba;
            return Err(extent.missed(request));
        }
    }
    // Not Command Size Limit Exceeded, however many blocks. NVM 1.0, figure 43: "the
    // controller shall not return this status value if bit 2 is set to '1' in the
    // Optional NVM Command Support field".
    // NVM 1.0, 3.2.3: everything but Deallocate is a hint.
    if !command.deallocate || !extent.deallocate {
        return Ok(Next::Done(0));
    }
    trim(request, command, extent, 0, data)
}

/// Deallocates the next range of a Dataset Management command that is not empty.
pub(super) fn trim(
    request: &mut Request,
    command: DatasetManagement,
    extent: Extent,
    from: u16,
    data: &[u8],
) -> Result<Next, Failure> {
    for at in from..command.ranges {
        let range = entry_at::<DsmRange>(data, at)?;
        let slba = range.slba.get();
        let op = extent
            .bytes(slba, range.blocks.get(), IoKind::Deallocate)
            .ok_or(Failure::from(Status::LBA_OUT_OF_RANGE))?;
        if op.len > 0 {
            request.lba = slba;
            request.stage = Stage::Trim {
                command,
                extent,
                next: at + 1,
                blocks: range.blocks.get(),
            };
            return Ok(Next::Execute(op));
        }
    }
    Ok(Next::Done(0))
}

#[inline]
pub(super) fn extent_of(namespace: &Namespace) -> Extent {
    Extent {
        store: namespace.store,
        block_shift: namespace.block_shift,
        deallocate: namespace.deallocate,
        blocks: namespace.blocks,
    }
}

impl Extent {
    /// LBA Out of Range, for blocks from the LBA of the request on. The error log gets the
    /// first block that does not exist.
    #[cold]
    pub(super) fn missed(&self, request: &mut Request) -> Failure {
        request.lba = request.lba.max(self.blocks);
        Status::LBA_OUT_OF_RANGE.into()
    }

    /// The operation on `blocks` blocks from `slba` on; `None` if some do not exist.
    #[inline]
    pub(super) fn bytes(&self, slba: u64, blocks: u32, kind: IoKind) -> Option<IoOp> {
        let end = slba.checked_add(blocks.into())?;
        if end > self.blocks {
            return None;
        }
        // No overflow: a namespace as a whole has fewer than 2^63 bytes.
        Some(IoOp {
            store: self.store,
            kind,
            offset: slba << self.block_shift,
            len: u64::from(blocks) << self.block_shift,
            fua: false,
        })
    }
}

/// Flushes the first ready namespace in the view with an NSID of `from` or more; `None` if
/// all are flushed. By NSID, because positions in the list change when namespaces are added
/// or removed meanwhile. Inaccessible namespaces are flushed too: the host may have written
/// to them before.
pub(super) fn flush_next(
    namespace_view: &NamespaceView,
    request: &mut Request,
    from: u32,
    then: AfterFlush,
) -> Option<Next> {
    let mut namespaces = namespace_view.list().iter().map(|seen| &seen.namespace);
    let namespace = namespaces.find(|one| one.nsid >= from && one.is_ready())?;
    request.stage = Stage::FlushAll {
        store: namespace.store,
        from: namespace.nsid.saturating_add(1),
        then,
    };
    let kind = match then {
        AfterFlush::Completion => IoKind::Flush,
        AfterFlush::WriteCc { .. } => IoKind::FlushOwn,
    };
    Some(Next::Execute(IoOp {
        kind,
        ..IoOp::flush(namespace.store)
    }))
}

/// Entry `at` of a list that is the data of a command.
pub(super) fn entry_at<T: FromBytes>(data: &[u8], at: u16) -> Result<T, Failure> {
    let start = usize::from(at) * size_of::<T>();
    let range = data
        .get(start..)
        .and_then(|rest| T::read_from_prefix(rest).ok());
    match range {
        Some((range, _rest)) => Ok(range),
        None => Err(Status::INTERNAL_ERROR.into()),
    }
}
