//! Data in several segments of host memory: a last segment descriptor whose list of
//! keyed descriptors is in the capsule (Base 2.1, 4.3.2; RDMA transport 1.0, 3.3).
//!
//! The list is checked once, when the command begins. It stays in the capsule, so that
//! it does not increase the size of a request.

use nvmeof_wire::sgl::SGL_LEN;
use nvmeof_wire::sqe::SQE_LEN;
use nvmeof_wire::{Sgl, SglDescriptor, Status};
use zerocopy::FromBytes;

use super::Request;
use crate::{Data, Remote};

impl Request {
    /// Checks the list of `len` bytes, `offset` bytes after the command. Returns the key
    /// that the response is to invalidate.
    #[cold]
    pub(super) fn start_list(
        &mut self,
        capsule: &[u8],
        (offset, len): (u64, u32),
        most: u8,
    ) -> Option<u32> {
        match self.check_list(capsule, (offset, len), most) {
            Ok(key) => key,
            Err(status) => {
                self.sgl = Err(status);
                None
            }
        }
    }

    fn check_list(
        &mut self,
        capsule: &[u8],
        (offset, len): (u64, u32),
        most: u8,
    ) -> Result<Option<u32>, Status> {
        let len = usize::try_from(len).map_err(|_| Status::INVALID_SGL_SEGMENT)?;
        // Base 2.1, 4.3.2: the length of a segment is "a non-zero value" and "a
        // multiple of 16", or it is an Invalid SGL Segment Descriptor.
        if len == 0 || !len.is_multiple_of(SGL_LEN) {
            return Err(Status::INVALID_SGL_SEGMENT);
        }
        // Identify Controller, IOCCSZ: bytes of a message beyond it are not in the capsule.
        let room = usize::try_from(self.capsule_len).unwrap_or(usize::MAX);
        let capsule = capsule.get(..room).unwrap_or(capsule);
        // Base 2.1, 4.2.3, SGL Offset Invalid: "an invalid offset in the capsule is specified".
        let at = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(SQE_LEN))
            .filter(|at| *at < capsule.len())
            .ok_or(Status::SGL_OFFSET_INVALID)?;
        // Invalid Number of SGL Descriptors "is also used for invalid SGLs in a command
        // capsule": the list exceeds the capsule.
        let list = at.checked_add(len).and_then(|end| capsule.get(at..end));
        let list = list.ok_or(Status::INVALID_SGL_COUNT)?;
        // Identify Controller, MSDBD: "the maximum number of (Keyed) SGL Data
        // Block descriptors that a host is allowed to place in a capsule".
        let count = u8::try_from(len / SGL_LEN)
            .ok()
            .filter(|count| *count <= most)
            .ok_or(Status::INVALID_SGL_COUNT)?;
        let (mut total, mut whole, mut key) = (0u32, None, Key::None);
        let last = len / SGL_LEN - 1;
        for (at, raw) in list.chunks_exact(SGL_LEN).enumerate() {
            let one = keyed(raw).ok_or_else(|| mistake(raw, at == last))?;
            // No overflow: 16 lengths of 24 bits.
            total += one.remote.len;
            whole = whole.or(Some(one.remote));
            if one.invalidate {
                key = key.and(one.remote.key);
            }
        }
        let first = whole.ok_or(Status::INVALID_SGL_SEGMENT)?;
        self.list_at = u16::try_from(at).map_err(|_| Status::SGL_OFFSET_INVALID)?;
        self.list_count = count;
        self.sgl = Ok(Sgl::keyed(first.addr, total, first.key));
        Ok(key.only())
    }

    /// Data in host memory: in one segment, or in those of a list.
    #[inline]
    pub(super) fn remote(&self, remote: Remote) -> Data {
        if self.list_count == 0 {
            return Data::Remote(remote);
        }
        Data::List {
            at: self.list_at,
            count: self.list_count,
            len: remote.len,
        }
    }

    /// One descriptor for all segments of a list; only its length is meaningful.
    pub(crate) fn whole(&self) -> Remote {
        let len = match self.data {
            Data::List { len, .. } => len,
            _ => 0,
        };
        match self.sgl {
            Ok(Sgl::Keyed { addr, key, .. }) => Remote { addr, len, key },
            _ => Remote {
                addr: 0,
                len,
                key: 0,
            },
        }
    }

    /// The segments of host memory in its list, in order, limited to the length of the
    /// data. `capsule` is the capsule of the command. Empty for a command without a list.
    #[must_use]
    pub fn pieces(&self, capsule: &[u8]) -> Vec<Remote> {
        let Data::List { at, count, len } = self.data else {
            return Vec::new();
        };
        let start = usize::from(at);
        let end = start + usize::from(count) * SGL_LEN;
        let list = capsule.get(start..end).unwrap_or_default();
        let mut left = len;
        let pieces = list.chunks_exact(SGL_LEN).filter_map(keyed).map(|one| {
            let len = one.remote.len.min(left);
            left -= len;
            Remote { len, ..one.remote }
        });
        // Base 2.1, 4.3.2: a data block of length 0 is no error.
        pieces.filter(|piece| piece.len > 0).collect()
    }
}

/// The status for a descriptor of a last segment that is no keyed data block. Base 2.1,
/// 4.3.2: a segment descriptor elsewhere than at a segment's end is an Invalid Number of
/// SGL Descriptors, and one in a last segment an Invalid SGL Segment Descriptor.
fn mistake(raw: &[u8], is_last: bool) -> Status {
    const SEGMENT: u8 = 0x2;
    const LAST_SEGMENT: u8 = 0x3;
    let identifier = raw.last().copied().unwrap_or(0);
    match (identifier >> 4, is_last) {
        (SEGMENT | LAST_SEGMENT, false) => Status::INVALID_SGL_COUNT,
        (SEGMENT | LAST_SEGMENT, true) => Status::INVALID_SGL_SEGMENT,
        _ => Status::SGL_DESCRIPTOR_TYPE_INVALID,
    }
}

struct KeyedSegment {
    remote: Remote,
    invalidate: bool,
}

/// A keyed data block descriptor, the only kind that a list may have.
fn keyed(raw: &[u8]) -> Option<KeyedSegment> {
    let raw = SglDescriptor::read_from_bytes(raw).ok()?;
    match Sgl::parse(&raw) {
        Ok(Sgl::Keyed {
            addr,
            len,
            key,
            invalidate,
        }) => Some(KeyedSegment {
            remote: Remote { addr, len, key },
            invalidate,
        }),
        _ => None,
    }
}

/// The key to invalidate. A Send can invalidate one, so it does if all descriptors that
/// request it have the same key. The completion tells the host whether it was invalidated.
#[derive(Clone, Copy)]
enum Key {
    None,
    One(u32),
    Several,
}

impl Key {
    fn and(self, key: u32) -> Self {
        match self {
            Self::None => Self::One(key),
            Self::One(one) if one == key => self,
            Self::One(_) | Self::Several => Self::Several,
        }
    }

    fn only(self) -> Option<u32> {
        match self {
            Self::One(key) => Some(key),
            Self::None | Self::Several => None,
        }
    }
}
