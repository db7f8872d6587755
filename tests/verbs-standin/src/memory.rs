//! Protection domains, memory regions, memory windows, and the checks of their keys.

use std::collections::HashMap;

use slab::Slab;

use crate::raw::{Ptr, access, ibv_mr, ibv_mw, ibv_pd};

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) raw: Ptr<ibv_pd>,
    pub(crate) device: usize,
    /// Objects that were created in it.
    pub(crate) users: u32,
}

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) raw: Ptr<ibv_mr>,
    pub(crate) pd: usize,
    /// Address in this process.
    pub(crate) addr: u64,
    /// I/O address.
    pub(crate) named: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
    pub(crate) key: u32,
    /// A peer invalidated it.
    pub(crate) invalidated: bool,
    /// Windows that are bound to it.
    pub(crate) bound: u32,
}

/// A memory window of type 2.
#[derive(Debug)]
pub(crate) struct Mw {
    pub(crate) raw: Ptr<ibv_mw>,
    pub(crate) pd: usize,
    /// Upper 24 bits of its keys.
    pub(crate) index: u32,
    /// Its last key.
    pub(crate) last: Option<u32>,
    pub(crate) bound: Option<Binding>,
}

/// The range that a window opens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// Number of the queue pair.
    pub(crate) qp: u32,
    pub(crate) key: u32,
    pub(crate) mr: usize,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
}

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Region(usize),
    Window(usize),
}

/// The keys of one device, by their upper 24 bits.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    last: u32,
    owners: HashMap<u32, Owner>,
}

const INDICES: u32 = 1 << 24;

impl Keys {
    /// Adds an owner; returns the index in its keys. An index is reused as late as possible.
    pub(crate) fn add(&mut self, owner: Owner) -> u32 {
        loop {
            self.last = (self.last + 1) % INDICES;
            if self.last != 0 && !self.owners.contains_key(&self.last) {
                self.owners.insert(self.last, owner);
                return self.last;
            }
        }
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.owners.remove(&(key >> 8));
    }

    fn owner(&self, key: u32) -> Option<Owner> {
        self.owners.get(&(key >> 8)).copied()
    }
}

/// Bytes of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl Piece {
    /// Bytes of this library.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self {
            addr: bytes.as_ptr().expose_provenance() as u64,
            len: bytes.len() as u64,
        }
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.addr < other.addr + other.len && other.addr < self.addr + self.len
    }
}

/// A segment of a work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) key: u32,
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) key: u32,
}

/// Whose peer accesses memory: the domain and the number of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) pd: usize,
    pub(crate) qp: u32,
}

/// All memory objects.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) pds: Slab<Pd>,
    pub(crate) mrs: Slab<Mr>,
    pub(crate) mws: Slab<Mw>,
}

impl Mr {
    /// All of its bytes.
    pub(crate) fn all(&self) -> Piece {
        Piece {
            addr: self.addr,
            len: self.len,
        }
    }

    pub(crate) fn piece(&self, addr: u64, len: u64) -> Option<Piece> {
        let offset = addr.checked_sub(self.named)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Piece {
            addr: self.addr + offset,
            len,
        })
    }
}

impl Memory {
    /// The bytes of a local segment in the domain `pd`, if `wanted` access is allowed.
    pub(crate) fn local(
        &self,
        keys: &Keys,
        pd: usize,
        segment: Segment,
        wanted: u32,
    ) -> Option<Piece> {
        let Owner::Region(region) = keys.owner(segment.key)? else {
            return None;
        };
        let mr = self.mrs.get(region)?;
        let allowed = mr.key == segment.key && mr.pd == pd && !mr.invalidated;
        if !allowed || mr.access & wanted != wanted {
            return None;
        }
        mr.piece(segment.addr, segment.len)
    }

    /// The bytes of a local segment, whatever its owner allows.
    pub(crate) fn bytes_of(&self, keys: &Keys, segment: Segment) -> Option<Piece> {
        let Owner::Region(region) = keys.owner(segment.key)? else {
            return None;
        };
        self.mrs.get(region)?.piece(segment.addr, segment.len)
    }

    /// The bytes that the peer of a queue pair names, if `wanted` access is allowed.
    pub(crate) fn remote(
        &self,
        keys: &Keys,
        of: Reach,
        remote: Remote,
        len: u64,
        wanted: u32,
    ) -> Option<Piece> {
        match keys.owner(remote.key)? {
            Owner::Region(region) => {
                let mr = self.mrs.get(region)?;
                let allowed = mr.key == remote.key && mr.pd == of.pd && !mr.invalidated;
                (allowed && mr.access & wanted == wanted)
                    .then(|| mr.piece(remote.addr, len))
                    .flatten()
            }
            Owner::Window(window) => {
                let bound = self.mws.get(window)?.bound?;
                let allowed = bound.key == remote.key && bound.qp == of.qp;
                if !allowed || bound.access & wanted != wanted {
                    return None;
                }
                let offset = remote.addr.checked_sub(bound.addr)?;
                if offset.checked_add(len)? > bound.len {
                    return None;
                }
                self.mrs.get(bound.mr)?.piece(remote.addr, len)
            }
        }
    }

    /// Binds a window. Returns whether that is allowed (InfiniBand Architecture, 10.6.7.2).
    pub(crate) fn bind(&mut self, pd: usize, window: usize, bind: Binding) -> bool {
        let (Some(mr), Some(mw)) = (self.mrs.get_mut(bind.mr), self.mws.get_mut(window)) else {
            return false;
        };
        let writes = bind.access & access::REMOTE_WRITE != 0;
        let allowed = mw.pd == pd
            && mr.pd == pd
            && mw.bound.is_none()
            && bind.key >> 8 == mw.index
            && bind.len > 0
            && mr.access & access::BIND != 0
            && (!writes || mr.access & access::LOCAL_WRITE != 0)
            && mr.piece(bind.addr, bind.len).is_some();
        if allowed {
            mr.bound += 1;
            mw.bound = Some(bind);
            mw.last = Some(bind.key);
        }
        allowed
    }

    /// Ends the binding of a window.
    pub(crate) fn unbind(&mut self, window: usize) {
        let bound = self
            .mws
            .get_mut(window)
            .and_then(|window| window.bound.take());
        if let Some(mr) = bound.and_then(|bound| self.mrs.get_mut(bound.mr)) {
            mr.bound -= 1;
        }
    }

    /// Invalidates a key for a queue pair. Returns whether that is allowed.
    pub(crate) fn invalidate(
        &mut self,
        keys: &Keys,
        of: Reach,
        key: u32,
        kind: Invalidation,
    ) -> bool {
        match keys.owner(key) {
            Some(Owner::Window(window)) => {
                let Some(mw) = self.mws.get(window).filter(|mw| mw.pd == of.pd) else {
                    return false;
                };
                match mw.bound {
                    Some(bound) if bound.key == key && bound.qp == of.qp => {
                        self.unbind(window);
                        true
                    }
                    Some(_) => false,
                    None => kind.again && mw.last == Some(key),
                }
            }
            Some(Owner::Region(region)) if kind.regions => {
                let mr = self.mrs.get_mut(region);
                let remote = access::REMOTE_READ | access::REMOTE_WRITE;
                let Some(mr) = mr.filter(|mr| mr.pd == of.pd && mr.key == key) else {
                    return false;
                };
                let open = !mr.invalidated && mr.access & remote != 0;
                mr.invalidated = true;
                open
            }
            _ => false,
        }
    }
}

/// What may be invalidated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Invalidation {
    /// Regions as well as windows: on iWARP.
    pub(crate) regions: bool,
    /// A window that is invalid already: by its owner.
    pub(crate) again: bool,
}

/// Total length.
pub(crate) fn total(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.len).sum()
}

/// Copies `from` to the start of `to`, which is at least as long.
///
/// # Safety
/// All pieces are memory of this process that may be read and written now.
pub(crate) unsafe fn copy(from: &[Piece], to: &[Piece]) {
    let mut targets = to.iter().copied();
    let mut target = Piece { addr: 0, len: 0 };
    for mut source in from.iter().copied() {
        while source.len > 0 {
            while target.len == 0 {
                let Some(next) = targets.next() else { return };
                target = next;
            }
            let len = source.len.min(target.len);
            // SAFETY: both have `len` bytes left, as the caller promises; they may overlap.
            unsafe { copy_bytes(source.addr, target.addr, len) };
            for piece in [&mut source, &mut target] {
                piece.addr += len;
                piece.len -= len;
            }
        }
    }
}

/// The bytes of `from`.
///
/// # Safety
/// All pieces are memory of this process that may be read now.
pub(crate) unsafe fn bytes(from: &[Piece]) -> Vec<u8> {
    let len = usize::try_from(total(from)).unwrap_or_default();
    let mut bytes: Vec<u8> = vec![0; len];
    let to = Piece {
        addr: bytes.as_mut_ptr().expose_provenance() as u64,
        len: total(from),
    };
    // SAFETY: the caller promises it; the vector is as long.
    unsafe { copy(from, &[to]) };
    bytes
}

/// Copies bytes between addresses.
///
/// # Safety
/// The addresses are memory of this process with `len` bytes, which may be read and written.
unsafe fn copy_bytes(from: u64, to: u64, len: u64) {
    let (Ok(from), Ok(to), Ok(len)) = (
        usize::try_from(from),
        usize::try_from(to),
        usize::try_from(len),
    ) else {
        return;
    };
    // Registered memory was exposed when its address became a number.
    let from = std::ptr::with_exposed_provenance::<u8>(from);
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the caller promises it.
    unsafe { std::ptr::copy(from, to, len) };
}
