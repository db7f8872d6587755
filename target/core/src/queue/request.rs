//! One command on its way: what was parsed, where its data are, what comes
//! next.

use nvmeof_wire::admin::{GetFeatures, GetLogPage, Identify};
use nvmeof_wire::fabrics::Connect;
use nvmeof_wire::nvm::DatasetManagement;
use nvmeof_wire::sqe::SQE_LEN;
use nvmeof_wire::{Sgl, Sqe, Status};

use crate::{Data, IoKind, IoOp, Remote};

/// A command that was begun. The edge keeps it until the command is answered.
#[derive(Debug)]
pub struct Request {
    pub(crate) cid: u16,
    pub(crate) nsid: u32,
    /// First block, for the error log.
    pub(crate) lba: u64,
    pub(crate) stage: Stage,
    pub(crate) data: Data,
    /// Key that the response is to invalidate.
    pub(crate) invalidate: Option<u32>,
    sgl: Result<Sgl, Status>,
    capsule_len: usize,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    /// Nothing: it is answered, or was never begun.
    Over,
    /// The data of a Connect.
    Connect(Connect),
    /// The data of Set Features, Host Behavior Support.
    HostBehavior,
    /// The data of a write or compare, then the disk.
    Transfer(IoOp),
    /// The disk.
    Disk(IoOp),
    /// The ranges of a Dataset Management command.
    Ranges(DatasetManagement, Extent),
    /// The disk, for range `next - 1` of the command.
    Trim {
        command: DatasetManagement,
        extent: Extent,
        next: u16,
    },
    /// The disk; then namespaces from number `from` on.
    FlushAll {
        disk: u32,
        from: u32,
        then: AfterFlush,
    },
    /// A buffer for the answer's data.
    Produce(Page),
}

/// The blocks of a namespace at the moment when a command was begun. The
/// namespace may change before the command ends, which it does on these.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) disk: u32,
    pub(crate) block_shift: u8,
    /// Whether the disk can give up space.
    pub(crate) deallocate: bool,
    pub(crate) blocks: u64,
}

/// What follows when all namespaces are flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterFlush {
    /// The answer.
    Answer,
    /// CC is written with this value: it asks for a shutdown.
    WriteCc(u32),
}

/// Data that the core makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Page {
    Identify(Identify),
    Log(GetLogPage),
    Feature(GetFeatures),
}

/// What comes next for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// Its data must be there; then its stage says.
    Data,
    Execute(IoOp),
    Produce(u32),
    Hold,
    /// Answered with this result.
    Done(u64),
    /// The queue pair is closed after the answer.
    DoneAndClose,
}

/// A command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Byte of the command at fault.
    pub(crate) location: Option<u16>,
    pub(crate) result: u64,
}

impl From<Status> for Failure {
    /// Repeating the command would fail again, for nearly every status.
    fn from(status: Status) -> Self {
        Self {
            status: status.with_dnr(),
            location: None,
            result: 0,
        }
    }
}

impl Failure {
    /// The same, with the byte of the command that is at fault.
    pub(crate) fn at(mut self, location: u16) -> Self {
        self.location = Some(location);
        self
    }

    /// Invalid Field in Command, at byte `location` of the command.
    pub(crate) fn field(location: u16) -> Self {
        Self::from(Status::INVALID_FIELD).at(location)
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

/// First byte of the data pointer in a command.
const DPTR: u16 = 24;

impl Default for Request {
    /// No command at all: what [`Queue::begin`](crate::Queue::begin) fills.
    fn default() -> Self {
        Self {
            cid: 0,
            nsid: 0,
            lba: 0,
            stage: Stage::Over,
            data: Data::None,
            invalidate: None,
            sgl: Ok(Sgl::None),
            capsule_len: 0,
        }
    }
}

impl Request {
    /// The write that waits for its data, if this is one: nobody but the disk
    /// looks at them, so that they may change until the disk has them.
    #[must_use]
    pub fn write(&self) -> Option<&IoOp> {
        match &self.stage {
            Stage::Transfer(op) if op.kind == IoKind::Write => Some(op),
            _ => None,
        }
    }

    /// The disk that the command was begun for, if it needs one and is not
    /// answered.
    #[must_use]
    pub fn disk(&self) -> Option<u32> {
        match self.stage {
            Stage::Transfer(op) | Stage::Disk(op) => Some(op.disk),
            Stage::Ranges(_, extent) | Stage::Trim { extent, .. } => Some(extent.disk),
            Stage::FlushAll { disk, .. } => Some(disk),
            Stage::Over | Stage::Connect(_) | Stage::HostBehavior | Stage::Produce(_) => None,
        }
    }

    /// Becomes the command `sqe` in a capsule of `capsule_len` bytes.
    pub(crate) fn start(&mut self, sqe: &Sqe, capsule_len: usize) {
        // Field by field: the rest of a stage or of data that were nothing is
        // not written.
        self.cid = sqe.cid.get();
        self.nsid = sqe.nsid.get();
        self.lba = 0;
        self.stage = Stage::Over;
        self.data = Data::None;
        self.sgl = Sgl::parse(&sqe.dptr);
        self.invalidate = match self.sgl {
            Ok(Sgl::Keyed {
                key,
                invalidate: true,
                ..
            }) => Some(key),
            _ => None,
        };
        self.capsule_len = capsule_len;
    }

    /// Whether it waits for the data of a compare.
    pub(crate) fn compares(&self) -> bool {
        matches!(self.stage, Stage::Transfer(op) if op.kind == IoKind::Compare)
    }

    /// Command identifier, for logs.
    #[must_use]
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Where its data are.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The command takes `len` bytes from the host: says where they are.
    pub(crate) fn takes(&mut self, len: u32) -> Result<(), Failure> {
        self.takes_first(len, false)
    }

    /// As [`takes`](Self::takes), but the host may show more than is taken.
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
                self.data = Data::Remote(Remote { addr, len, key });
                Ok(())
            }
            Sgl::InCapsule { offset, len: shown } if fits(shown) => {
                self.data = self.in_capsule(offset, len)?;
                Ok(())
            }
            Sgl::LastSegment { .. } => Err(failed(Status::SGL_DESCRIPTOR_TYPE_INVALID)),
            // Base 2.0, figure 96: "the total length of the data is less than
            // (or, where that is not supported, more than) the transfer".
            Sgl::Keyed { .. } | Sgl::InCapsule { .. } | Sgl::None => {
                Err(failed(Status::DATA_SGL_LENGTH_INVALID))
            }
        }
    }

    /// Base 2.0, 4.1.2: the offset counts from the start of in-capsule data,
    /// which follows the command since ICDOFF is 0.
    fn in_capsule(&self, offset: u64, len: u32) -> Result<Data, Failure> {
        let room = self.capsule_len.saturating_sub(SQE_LEN);
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

    /// The command gives `len` bytes to the host: notes where they go.
    pub(crate) fn gives(&mut self, len: u32) -> Result<(), Failure> {
        let failed = |status| Failure::from(status).at(DPTR);
        match self.sgl.map_err(failed)? {
            Sgl::Keyed {
                addr,
                len: shown,
                key,
                ..
            } if shown == len => {
                self.data = Data::Remote(Remote { addr, len, key });
                Ok(())
            }
            // A response capsule carries no data (RDMA transport, 2.2).
            Sgl::InCapsule { .. } | Sgl::LastSegment { .. } => {
                Err(failed(Status::SGL_DESCRIPTOR_TYPE_INVALID))
            }
            Sgl::Keyed { .. } | Sgl::None => Err(failed(Status::DATA_SGL_LENGTH_INVALID)),
        }
    }
}
