//! Grants: memory that its owner lets the peer access directly, as sent by the owner and as
//! kept by the peer.

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
/// Address of the first byte of exposed memory.
const FIRST: u64 = 1 << 20;

const _: () = assert!(REGIONS <= 1 << 8);

/// A key for `len` bytes at offset `start` of a shared region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    key: u32,
    len: u32,
    /// Start: 48 bits; number of the region: 8; rights: 8.
    packed: u64,
}

impl Grant {
    /// `None` if a field is out of range.
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

    /// Writes it into fields of a record that are otherwise unused.
    pub(crate) fn write(&self, record: &mut Record) {
        record.key = self.key;
        record.rest = self.len;
        record.addr = self.packed;
    }

    /// Reads it from a record of a peer.
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

    /// The offset in the region of `remote`, if the grant allows the access.
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

/// Memory granted by a peer: its mapped regions, and its grants.
///
/// This is a private copy, which is checked before each use. A peer that sends an invalid
/// grant harms only its own memory.
pub(crate) struct PeerMemory {
    regions: Vec<Option<Lender>>,
    /// One entry for each slot, once there is a grant.
    grants: Vec<Grant>,
    /// Keeps the socket open for the peer as long as its memory is in use.
    alive: Arc<dyn fmt::Debug + Send + Sync>,
}

/// An empty slot: a grant of no bytes.
const NOTHING: Grant = Grant {
    key: 0,
    len: 0,
    packed: 0,
};

impl PeerMemory {
    pub(crate) fn new(alive: Arc<dyn fmt::Debug + Send + Sync>) -> Self {
        Self {
            regions: Vec::new(),
            grants: Vec::new(),
            alive,
        }
    }

    /// Maps the region `number` of the peer. False if the limit forbids it: then grants of it
    /// are not used.
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
            let text =
                format!("region {number} of {len} bytes arrived, number {next} was expected");
            return Err(wrong(format!("{text}, at most {REGIONS} are possible")));
        }
        let fd =
            fd.ok_or_else(|| wrong(format!("region {number} arrived without a file descriptor")))?;
        let size = usize::try_from(len).map_err(|_| wrong(format!("a region of {len} bytes")))?;
        let mapped = map(fd, size);
        let mapped = mapped.map_err(|error| wrong(format!("region {number}: {error}")))?;
        let room = mapped.is_some();
        let lender = mapped.map(|region| channel.lender(region, Arc::clone(&self.alive)));
        self.regions.push(lender);
        Ok(room)
    }

    /// Records a grant of the peer.
    pub(crate) fn grant(&mut self, record: &Record) {
        if self.grants.is_empty() {
            self.grants.resize(GRANT_SLOTS, NOTHING);
        }
        let grant = Grant::parse(record);
        if let Some(place) = self.grants.get_mut(grant_slot(grant.key)) {
            *place = grant;
        }
    }

    /// The bytes of `remote`, if they may be accessed directly now.
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
        // Mark first, then check: see `Channel::revoke`.
        (!channel.is_revoked(remote.key.0)).then_some(buf)
    }

    /// Forgets `key`, which is invalid from now on.
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

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taken")
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}
