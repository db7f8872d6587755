//! Memory that its owner lets the peer use in place: what the owner says of it,
//! and what the peer keeps of that.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nvmeof_memory::{Buf, ForeignRegion, Lender, SharedError};
use nvmeof_rdma::{Fault, RemoteKey, RemoteSlice, Rights};

use crate::channel::{Channel, GRANT_SLOTS, grant_slot};
use crate::fault::{codes, fault};
use crate::record::Record;

/// Regions that a peer may share.
pub(crate) const REGIONS: usize = 16;
/// What the first byte of exposed memory is called.
const FIRST: u64 = 1 << 20;

const _: () = assert!(REGIONS <= 1 << 8);

/// A key opens `len` bytes from byte `start` of a shared region on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    key: u32,
    len: u32,
    /// Start: 48 bits; number of the region: 8; rights: 8.
    packed: u64,
}

impl Grant {
    /// `None` when it cannot be said so.
    pub(crate) fn new(
        exposed: &RemoteSlice,
        rights: Rights,
        region: usize,
        start: u64,
    ) -> Option<Self> {
        let region = u8::try_from(region).ok()?;
        if exposed.addr != FIRST || exposed.len == 0 || start >> 48 != 0 {
            return None;
        }
        let packed = start | u64::from(region) << 48 | u64::from(rights.bits()) << 56;
        Some(Self {
            key: exposed.key.0,
            len: exposed.len,
            packed,
        })
    }

    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Says it in a record, which has no other use for these fields.
    pub(crate) fn write(&self, record: &mut Record) {
        record.key = self.key;
        record.rest = self.len;
        record.addr = self.packed;
    }

    /// What a peer said.
    fn parse(record: &Record) -> Self {
        Self {
            key: record.key,
            len: record.rest,
            packed: record.addr,
        }
    }

    fn region(&self) -> usize {
        usize::from(self.packed.to_be_bytes()[1])
    }

    fn rights(&self) -> Rights {
        Rights::from_bits_truncate(self.packed.to_be_bytes()[0])
    }

    /// Where in the region the bytes are that `remote` names, if the grant
    /// allows that.
    fn find(&self, remote: &RemoteSlice, rights: Rights) -> Option<u64> {
        let offset = remote.addr.checked_sub(FIRST)?;
        let end = offset.checked_add(u64::from(remote.len))?;
        let allowed = self.key == remote.key.0
            && self.rights().contains(rights)
            && remote.len > 0
            && end <= u64::from(self.len);
        let start = self.packed & ((1 << 48) - 1);
        allowed.then(|| start.saturating_add(offset))
    }
}

/// What a peer lets us use in place: its regions, mapped, and what it granted.
///
/// All this is our own copy of what the peer said at the time, and is checked
/// before each use. A peer that said something wrong harms its own memory.
pub(crate) struct Taken {
    regions: Vec<Option<Lender>>,
    /// One for each place, once there is any.
    grants: Vec<Grant>,
    /// Held for the peer as long as its memory is in use.
    alive: Arc<dyn fmt::Debug + Send + Sync>,
}

/// No grant: of no bytes.
const NOTHING: Grant = Grant {
    key: 0,
    len: 0,
    packed: 0,
};

impl Taken {
    pub(crate) fn new(alive: Arc<dyn fmt::Debug + Send + Sync>) -> Self {
        Self {
            regions: Vec::new(),
            grants: Vec::new(),
            alive,
        }
    }

    /// Maps the region that the peer calls `number`. False when there is no
    /// room for it: then what is granted of it is not used.
    pub(crate) fn map(
        &mut self,
        number: u32,
        len: u64,
        fd: Option<BorrowedFd<'_>>,
        channel: &Channel,
        map: impl FnOnce(BorrowedFd<'_>, usize) -> Result<Option<ForeignRegion>, SharedError>,
    ) -> Result<bool, Fault> {
        let wrong = |text: String| fault(codes::REGION, text);
        let next = self.regions.len();
        if usize::try_from(number) != Ok(next) || next >= REGIONS {
            let text = format!("region {number} of {len} bytes where number {next} is due");
            return Err(wrong(format!("{text}, {REGIONS} are the most")));
        }
        let fd = fd.ok_or_else(|| wrong(format!("region {number} came without memory")))?;
        let size = usize::try_from(len).map_err(|_| wrong(format!("a region of {len} bytes")))?;
        let mapped = map(fd, size);
        let mapped = mapped.map_err(|error| wrong(format!("region {number}: {error}")))?;
        let room = mapped.is_some();
        let lender = mapped.map(|region| channel.lender(region, Arc::clone(&self.alive)));
        self.regions.push(lender);
        Ok(room)
    }

    /// The peer granted something.
    pub(crate) fn grant(&mut self, record: &Record) {
        if self.grants.is_empty() {
            self.grants.resize(GRANT_SLOTS, NOTHING);
        }
        let grant = Grant::parse(record);
        if let Some(place) = self.grants.get_mut(grant_slot(grant.key)) {
            *place = grant;
        }
    }

    /// The bytes that `remote` names, if they may be used in place now.
    #[inline]
    pub(crate) fn lend(
        &self,
        remote: &RemoteSlice,
        rights: Rights,
        channel: &Channel,
    ) -> Option<Buf> {
        let number = grant_slot(remote.key.0);
        let grant = self.grants.get(number)?;
        let start = grant.find(remote, rights)?;
        let lender = self.regions.get(grant.region())?.as_ref()?;
        let buf = lender.lend(u32::try_from(number).ok()?, start, remote.len)?;
        // Marked first, and then looked at: see `Channel::revoke`.
        (!channel.is_revoked(remote.key.0)).then_some(buf)
    }

    /// The peer hears that `key` is invalid.
    pub(crate) fn forget(&mut self, RemoteKey(key): RemoteKey) {
        if let Some(grant) = self.grants.get_mut(grant_slot(key))
            && grant.key == key
        {
            *grant = NOTHING;
        }
    }

    /// Whether memory of `key` is in use.
    #[inline]
    pub(crate) fn uses(&self, RemoteKey(key): RemoteKey, channel: &Channel) -> bool {
        let grant = self.grants.get(grant_slot(key));
        grant.is_some_and(|grant| grant.key == key && grant.len > 0) && channel.is_marked(key)
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}
