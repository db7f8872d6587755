//! One command in progress: parsed fields, location of its data, next step.

mod list;
mod reserving;

use nvmeof_wire::admin::{GetFeatures, GetLogPage, Identify, NSID_ALL};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::features::{FeatureId, WriteProtection};
use nvmeof_wire::nvm::DatasetManagement;
use nvmeof_wire::opcode::Opcode;
use nvmeof_wire::sqe::SQE_LEN;
use nvmeof_wire::{Sgl, Sqe, Status};

use crate::controller::Controller;
use crate::namespace_view::NamespaceView;
use crate::protection::ProtectionRequest;
pub(crate) use reserving::{ReservationCommand, Reserving, ReservingStep};

use crate::{Data, Executed, IoKind, IoOp, Limits, Remote};

/// A command in progress. The engine keeps it until the command completes.
#[derive(Debug)]
pub struct Request {
    pub(crate) cid: u16,
    pub(crate) opcode: Opcode,
    pub(crate) nsid: u32,
    /// First block, for the error log.
    pub(crate) lba: u64,
    pub(crate) stage: Stage,
    pub(crate) data: Data,
    /// Key that the response is to invalidate.
    pub(crate) invalidate: Option<u32>,
    /// For a list, a descriptor with the total length.
    sgl: Result<Sgl, Status>,
    capsule_len: u32,
    /// Offset of the descriptors of a list in the capsule.
    list_at: u16,
    /// Number of descriptors; 0 without a list.
    list_count: u8,
    /// Whether its queue counts it as outstanding.
    pub(crate) is_outstanding: bool,
}

/// Bounds of command capsules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes (IOCCSZ): further bytes are ignored.
    pub(crate) capsule: u32,
    /// Keyed descriptors (MSDBD).
    pub(crate) descriptors: u8,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Nothing: it has completed, or never begun.
    Over,
    /// The data of a Connect.
    Connect(Connect),
    /// The data of Set Features.
    Feature { fid: FeatureId, epoch: Epoch },
    /// The backing store, which makes writes stable that began before a host requested
    /// write protection.
    Protect {
        store: u32,
        nsid: u32,
        asked: ProtectionRequest,
        epoch: Epoch,
    },
    /// The save of a feature. Afterwards namespaces after `nsid` are protected, if it was the
    /// write protection of this one.
    Keep {
        protects: Option<(u32, WriteProtection)>,
        epoch: Epoch,
    },
    /// The data of a write or compare, then the backing store.
    Transfer(IoOp),
    /// Half of a fused operation: its data, then its execution.
    Fusing(IoOp),
    /// The data of a compare, if it is one; then a flush of the volatile cache of the
    /// backing store; then this operation.
    Commit(IoOp),
    /// The backing store.
    Executing(IoOp),
    /// The backing store, for the first piece of the rest to verify or to write zeroes to.
    Pieces(IoOp),
    /// The source ranges of a Copy command, or the backing store.
    Copy(Copying),
    /// The ranges of a Dataset Management command.
    Ranges(DatasetManagement, Extent),
    /// The backing store, for range `next - 1` of the command.
    Trim {
        command: DatasetManagement,
        extent: Extent,
        next: u16,
        /// Blocks of that range, from `lba` on.
        blocks: u32,
    },
    /// The flush of a backing store; then namespaces from NSID `from` on.
    FlushAll {
        store: u32,
        from: u32,
        then: AfterFlush,
    },
    /// A command that changes reservations: its data, the save, or earlier commands.
    Reserve(Reserving),
    /// A buffer for the report of the reservations of a namespace.
    Report { nsid: u32 },
    /// A buffer for the data of the response.
    Produce { page: Page, epoch: Epoch },
    /// The message of an Authentication Send, then the result of a computation.
    AuthSend { epoch: Epoch },
    /// A buffer for the message of an Authentication Receive.
    AuthReceive { epoch: Epoch },
}

/// The low bits of the epoch of the controller when an admin command began. After the next
/// reset the command gets no response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epoch(u16);

impl Epoch {
    pub(crate) fn of(controller: &Controller) -> Self {
        let [a, b, ..] = controller.hot.epoch().to_le_bytes();
        Self(u16::from_le_bytes([a, b]))
    }
}

impl Stage {
    /// Sets the epoch in which the command began, if its stage has one.
    pub(crate) fn begin_in(&mut self, began: Epoch) {
        if let Some(epoch) = self.epoch_mut() {
            *epoch = began;
        }
    }

    /// The epoch in which it began.
    pub(crate) fn epoch(mut self) -> Option<Epoch> {
        self.epoch_mut().copied()
    }

    /// The epoch of stages that may span a reset.
    fn epoch_mut(&mut self) -> Option<&mut Epoch> {
        match self {
            Self::Feature { epoch, .. }
            | Self::Protect { epoch, .. }
            | Self::Keep { epoch, .. }
            | Self::Produce { epoch, .. }
            | Self::AuthSend { epoch }
            | Self::AuthReceive { epoch }
            | Self::FlushAll {
                then: AfterFlush::WriteCc { epoch, .. },
                ..
            } => Some(epoch),
            _ => None,
        }
    }
}

/// The blocks of a namespace when a command began. The namespace may change before the
/// command completes, which still uses these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) store: u32,
    pub(crate) block_shift: u8,
    /// Whether the backing store can deallocate.
    pub(crate) deallocate: bool,
    pub(crate) blocks: u64,
}

/// A Copy command in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copying {
    pub(crate) extent: Extent,
    /// Destination of the first block of the range.
    pub(crate) to: u64,
    /// Blocks of the range before the piece.
    pub(crate) from: u32,
    /// Pages of the buffer, and so of the longest piece.
    pub(crate) pages: u8,
    /// Index of the range.
    pub(crate) at: u16,
    /// Number of ranges.
    pub(crate) ranges: u16,
    pub(crate) fua: bool,
    /// Whether the piece is being written, not read.
    pub(crate) storing: bool,
}

impl Copying {
    /// Its backing store.
    pub(crate) fn store(&self) -> u32 {
        self.extent.store
    }

    /// A block has 2 to this power bytes.
    pub(crate) fn block_shift(&self) -> u8 {
        self.extent.block_shift
    }

    /// Bytes of the buffer.
    pub(crate) fn room(&self) -> u32 {
        u32::from(self.pages) * IoKind::PAGE
    }
}

/// The step after all namespaces are flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterFlush {
    /// The response.
    Completion,
    /// CC is set to this value, which requests a shutdown.
    WriteCc { cc: u32, epoch: Epoch },
}

/// Data that this crate produces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    Identify(Identify),
    Log(GetLogPage),
    Feature(GetFeatures),
}

/// The next step of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Get its data; then continue by its stage.
    Data,
    Execute(IoOp),
    /// Half of a fused operation has its data.
    Fuse,
    Produce(u32),
    /// Wait for a save.
    Keep,
    /// Wait for a computation of the authentication.
    Compute,
    Hold,
    /// Complete it with this result.
    Done(u64),
    /// Complete it, then close the queue pair.
    DoneAndClose,
}

/// A command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Byte of the command with the error.
    pub(crate) location: Option<u16>,
    pub(crate) result: u64,
}

impl Bounds {
    /// The bounds with `in_capsule` bytes of in-capsule data.
    pub(crate) fn of(limits: &Limits, in_capsule: u32) -> Self {
        Self {
            capsule: u32::try_from(SQE_LEN)
                .unwrap_or(64)
                .saturating_add(in_capsule),
            descriptors: limits.max_descriptors,
        }
    }
}

impl From<Status> for Failure {
    /// With DNR: for nearly every status, a retry would fail again.
    fn from(status: Status) -> Self {
        Self {
            status: status.with_dnr(),
            location: None,
            result: 0,
        }
    }
}

impl Failure {
    /// The same, with the byte of the command that has the error.
    pub(crate) fn at(mut self, location: u16) -> Self {
        self.location = Some(location);
        self
    }

    /// Invalid Field in Command, at `location`: see [`bit`].
    pub(crate) fn field(location: u16) -> Self {
        Self::from(Status::INVALID_FIELD).at(location)
    }

    /// The failure of a command on a namespace that the host cannot access. Base 2.1, Common
    /// Command Format, NSID: an inactive identifier is an Invalid Field in Command, an
    /// invalid one an Invalid Namespace or Format, "unless otherwise specified"; where
    /// FFFFFFFFh "is not supported for that command", it is an Invalid Field in Command too.
    ///
    /// Linux hosts treat both alike: requests fail as not supported (`nvme_error_status`),
    /// and since neither is retried (DNR), a namespace with this status during a scan is
    /// removed (`nvme_validate_ns`).
    #[cold]
    pub(crate) fn no_namespace(namespace_view: &NamespaceView, nsid: u32) -> Self {
        if nsid == NSID_ALL || (1..=namespace_view.highest()).contains(&nsid) {
            Self::field(NSID)
        } else {
            Self::from(Status::INVALID_NAMESPACE).at(NSID)
        }
    }

    /// Base 2.1, 4.2.3, Namespace Not Ready: "the namespace is not ready to be
    /// accessed as a result of a condition other than a condition that is reported
    /// as an Asymmetric Namespace Access condition. The Do Not Retry bit indicates
    /// whether re-issuing the command at a later time may succeed": it may, after the
    /// backing store has recovered.
    pub(crate) fn not_ready() -> Self {
        Self::transient(Status::NAMESPACE_NOT_READY)
    }

    /// An operation of a command failed. Hosts send it again if its backing store is gone, and over
    /// another path if another target serves it: DNR would prevent that.
    pub(crate) fn of(outcome: Executed, kind: IoKind) -> Self {
        let status = outcome.status(kind);
        match outcome {
            Executed::Gone | Executed::Fenced | Executed::Standby => Self::transient(status),
            _ => status.into(),
        }
    }

    /// The same command may succeed later.
    pub(crate) fn transient(status: Status) -> Self {
        Self {
            status,
            location: None,
            result: 0,
        }
    }
}

/// Location of an error in a command, as in the error log (Parameter Error Location): the
/// byte in bits 7:0, its bit in bits 10:8.
pub(crate) const fn bit(byte: u16, bit: u16) -> u16 {
    byte | bit << 8
}

/// First byte of the namespace identifier in a command.
const NSID: u16 = 4;

/// First byte of the data pointer in a command.
const DPTR: u16 = 24;

impl Default for Request {
    /// No command: [`Queue::begin`](crate::Queue::begin) initializes it.
    fn default() -> Self {
        Self {
            is_outstanding: false,
            cid: 0,
            opcode: Opcode(0),
            nsid: 0,
            lba: 0,
            stage: Stage::Over,
            data: Data::None,
            invalidate: None,
            sgl: Ok(Sgl::None),
            capsule_len: 0,
            list_at: 0,
            list_count: 0,
        }
    }
}

impl Request {
    /// The write that waits for its data, if it is one. Only the backing store reads the
    /// data, so they may change until it has read them.
    #[must_use]
    pub fn write(&self) -> Option<&IoOp> {
        match &self.stage {
            Stage::Transfer(op) if op.kind == IoKind::Write => Some(op),
            _ => None,
        }
    }

    /// The backing store of the command, if it uses one and is in progress.
    #[must_use]
    pub fn store(&self) -> Option<u32> {
        match self.stage {
            Stage::Transfer(op)
            | Stage::Fusing(op)
            | Stage::Commit(op)
            | Stage::Executing(op)
            | Stage::Pieces(op) => Some(op.store),
            Stage::Copy(copying) => Some(copying.store()),
            Stage::Ranges(_, extent) | Stage::Trim { extent, .. } => Some(extent.store),
            Stage::FlushAll { store, .. } | Stage::Protect { store, .. } => Some(store),
            Stage::Reserve(reserving) => Some(reserving.store),
            Stage::Over
            | Stage::Connect(_)
            | Stage::Feature { .. }
            | Stage::Keep { .. }
            | Stage::Report { .. }
            | Stage::Produce { .. }
            | Stage::AuthSend { .. }
            | Stage::AuthReceive { .. } => None,
        }
    }

    /// The backing store that is being flushed for a Flush command.
    #[must_use]
    pub fn flushes(&self) -> Option<u32> {
        match self.stage {
            Stage::Executing(op) if op.kind == IoKind::Flush => Some(op.store),
            Stage::FlushAll {
                store,
                then: AfterFlush::Completion,
                ..
            } => Some(store),
            _ => None,
        }
    }

    /// Becomes the command `sqe` at the start of `capsule`.
    #[inline(always)]
    pub(crate) fn start(&mut self, sqe: &Sqe, capsule: &[u8], bounds: Bounds) {
        // Field by field, so that unused bytes of stage and data are not written.
        self.cid = sqe.cid.get();
        self.opcode = sqe.opcode;
        self.nsid = sqe.nsid.get();
        self.lba = 0;
        self.stage = Stage::Over;
        self.data = Data::None;
        self.sgl = Sgl::parse(&sqe.dptr);
        self.list_count = 0;
        self.is_outstanding = false;
        let len = u32::try_from(capsule.len()).unwrap_or(u32::MAX);
        self.capsule_len = len.min(bounds.capsule);
        self.invalidate = match self.sgl {
            Ok(Sgl::Keyed {
                key,
                invalidate: true,
                ..
            }) => Some(key),
            Ok(Sgl::LastSegment { offset, len }) => {
                self.start_list(capsule, (offset, len), bounds.descriptors)
            }
            _ => None,
        };
    }

    /// Bytes of the second buffer that it needs, besides the one for its data.
    pub(crate) fn spare(&self) -> u32 {
        match (&self.stage, &self.data) {
            (
                Stage::Transfer(op) | Stage::Commit(op),
                Data::Remote(Remote { len, .. }) | Data::List { len, .. },
            ) if op.kind == IoKind::Compare => *len,
            (Stage::Copy(copying), _) => copying.room(),
            _ => 0,
        }
    }

    /// Whether it has completed, or never begun.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Command identifier, for logs.
    #[must_use]
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Opcode, for logs.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// Namespace identifier of the command.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Location of its data.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The command transfers `len` bytes from the host: sets their location.
    pub(crate) fn takes(&mut self, len: u32) -> Result<(), Failure> {
        self.takes_first(len, false)
    }

    /// As [`takes`](Self::takes), but the descriptors may be longer.
    pub(crate) fn takes_at_most(&mut self, len: u32) -> Result<(), Failure> {
        self.takes_first(len, true)
    }

    fn takes_first(&mut self, len: u32, longer: bool) -> Result<(), Failure> {
        let fits = |shown: u32| shown == len || (longer && shown > len);
        let failed = |status| Failure::from(status).at(DPTR);
        match self.sgl.map_err(failed)? {
            Sgl::Keyed {
                addr,
                len: shown,
                key,
                ..
            } if fits(shown) => {
                self.data = self.remote(Remote { addr, len, key });
                Ok(())
            }
            Sgl::InCapsule { offset, len: shown } if fits(shown) => {
                self.data = self.in_capsule(offset, len)?;
                Ok(())
            }
            Sgl::LastSegment { .. } => Err(failed(Status::SGL_DESCRIPTOR_TYPE_INVALID)),
            // Base 2.1, 4.2.3: "the total length of the data is less than
            // (or, where that is not supported, more than) the transfer".
            Sgl::Keyed { .. } | Sgl::InCapsule { .. } | Sgl::None => {
                Err(failed(Status::DATA_SGL_LENGTH_INVALID))
            }
        }
    }

    /// Base 2.1, 4.3.2: the offset counts from the start of in-capsule data,
    /// which follows the command since ICDOFF is 0.
    fn in_capsule(&self, offset: u64, len: u32) -> Result<Data, Failure> {
        let capsule_len = usize::try_from(self.capsule_len).unwrap_or(usize::MAX);
        let room = capsule_len.saturating_sub(SQE_LEN);
        let failed = |status| Failure::from(status).at(DPTR);
        let offset = usize::try_from(offset)
            .ok()
            .filter(|offset| *offset <= room)
            .ok_or(failed(Status::SGL_OFFSET_INVALID))?;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= room - offset)
            .ok_or(failed(Status::DATA_SGL_LENGTH_INVALID))?;
        let start = SQE_LEN + offset;
        Ok(Data::Capsule(start..start + len))
    }

    /// The command transfers `len` bytes to the host: sets their destination.
    pub(crate) fn gives(&mut self, len: u32) -> Result<(), Failure> {
        let failed = |status| Failure::from(status).at(DPTR);
        match self.sgl.map_err(failed)? {
            Sgl::Keyed {
                addr,
                len: shown,
                key,
                ..
            } if shown == len => {
                self.data = self.remote(Remote { addr, len, key });
                Ok(())
            }
            // A response capsule carries no data (RDMA transport 1.0, 3.3).
            Sgl::InCapsule { .. } | Sgl::LastSegment { .. } => {
                Err(failed(Status::SGL_DESCRIPTOR_TYPE_INVALID))
            }
            Sgl::Keyed { .. } | Sgl::None => Err(failed(Status::DATA_SGL_LENGTH_INVALID)),
        }
    }
}
