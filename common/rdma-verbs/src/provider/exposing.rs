//! Exposure of memory to peers, and its withdrawal.
//!
//! Devices with memory windows of type 2B have one protection domain and a window for each
//! exposure. A work request binds it to its queue pair; the peer's Send with Invalidate or a
//! local work request invalidates it. Other devices have a domain for each queue pair and a
//! registration for each exposure, which costs system calls but exposes nothing else.
//!
//! A queue pair whose peer is trusted has a domain of its own as well. Whole regions are
//! registered there for the peer, as long as the queue pair exists.

use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    CloseReason, ExposeError, QpId, RegionExposure, RemoteKey, RemoteSlice, Rights, explain,
};

use super::Verbs;
use super::queueing::{chain, domain_of, list};
use crate::adapter::AdapterId;
use crate::conn::{Conn, Phase, log_peer};
use crate::domain::Domain;
use crate::outstanding::SendItem;
use crate::sys::{MemoryRegion, MemoryWindow, Piece, SendOp};
use crate::windows::{KeyMap, next_key};
use crate::words::not_closed;

/// Exposed memory.
#[derive(Debug)]
pub(super) struct Exposure {
    pub(super) qp: QpId,
    /// `None` if it has returned already.
    pub(super) buf: Option<Buf>,
    pub(super) access: Access,
    /// Its owner withdrew it, and a device has to end the access.
    pub(super) withdrawn: bool,
}

/// How a peer accesses it.
#[derive(Debug)]
pub(super) enum Access {
    /// No access any more: its queue pair is destroyed.
    Closed,
    Window {
        adapter: AdapterId,
        window: Arc<MemoryWindow>,
        /// A region of its own that it is bound to. To close it, both are destroyed.
        own: Option<Arc<MemoryRegion>>,
        state: WindowState,
    },
    Region {
        /// Closed when this is closed.
        region: MemoryRegion,
        /// The peer invalidated it.
        invalidated: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
    /// The local request to bind it is in progress, and it is to be destroyed.
    Binding,
    /// The local request to bind it is posted or complete.
    Open,
    /// The local request to invalidate it is in progress.
    Closing,
    /// The same, but the peer invalidated it before. It is not free until the request completes.
    Overtaken,
    /// Invalidated, by this side or by the peer.
    Closed,
}

/// Time for which a call waits for an entry of a send queue. It takes microseconds, unless
/// the peer blocks the queue pair.
pub(super) const TIMEOUT: Duration = Duration::from_millis(100);
/// Interval at which such a call looks for a failure of the device.
const LOOK: Duration = Duration::from_millis(1);

type Refusal = (ExposeError, Buf);

impl Verbs {
    pub(super) fn open_to_peer(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refusal> {
        let running = |conn: &&Conn| conn.phase == Phase::Running;
        let Some(conn) = self.conns.get(qp).filter(running) else {
            return Err((ExposeError::Closed, buf));
        };
        if conn.config.exposes == 0 {
            return Err((ExposeError::Full { max: 0 }, buf));
        }
        let max = self.config.limits.max_exposed;
        if self.exposed.len() >= max as usize {
            return Err((ExposeError::Full { max }, buf));
        }
        let link = conn.link.as_ref();
        let opened = if link.is_some_and(|link| link.domain.is_some()) {
            self.open_region(qp, &buf, rights)
        } else {
            self.open_window(qp, &buf, rights)
        };
        let (slice, access) = match opened {
            Ok(opened) => opened,
            Err(error) => return Err((error, buf)),
        };
        let exposure = Exposure {
            qp,
            buf: Some(buf),
            access,
            withdrawn: false,
        };
        self.exposed.insert(slice.key, exposure);
        Ok(slice)
    }

    pub(super) fn open_region_to_peer(
        &mut self,
        qp: QpId,
        region: &Region,
    ) -> io::Result<Option<RegionExposure>> {
        let trusted = |conn: &&mut Conn| conn.phase == Phase::Running && conn.config.trusts_peer;
        let conn = self.conns.get_mut(qp).filter(trusted);
        let Some(link) = conn.and_then(|conn| conn.link.as_mut()) else {
            return Ok(None);
        };
        // It is deregistered with this domain, which no other queue pair uses.
        let Some(domain) = &mut link.domain else {
            return Ok(None);
        };
        let (adapter, exposed) = (link.room.adapter, domain.expose(region));
        let adapter = self.adapter(adapter);
        exposed.map(Some).map_err(|source| match adapter {
            Some(adapter) => io::Error::other(adapter.not_registered(source)),
            None => source,
        })
    }

    fn open_window(
        &mut self,
        qp: QpId,
        buf: &Buf,
        rights: Rights,
    ) -> Result<(RemoteSlice, Access), ExposeError> {
        if !self.wait_for_entry(qp) {
            let max = self.config.limits.max_exposed;
            return Err(ExposeError::Full { max });
        }
        self.make_room(qp, 1);
        let conn = self.conns.get_mut(qp).ok_or(ExposeError::Closed)?;
        let link = conn.link.as_ref().ok_or(ExposeError::Closed)?;
        let adapter = self.adapters.get_mut(link.room.adapter.0 as usize);
        let adapter = adapter
            .and_then(Option::as_mut)
            .ok_or(ExposeError::Closed)?;
        let domain = adapter.shared.as_ref().ok_or(ExposeError::Closed)?;
        let shared = domain.region_of(buf).ok_or(ExposeError::NotRegistered)?;
        let once = adapter.windows_once();
        let own = once.then(|| register_exact(domain, shared, buf));
        let own = own.transpose().map_err(|error| {
            not_registered(conn, &error);
            ExposeError::Device
        })?;
        let region = own.as_ref().unwrap_or(shared);
        let window = adapter.windows.take(domain.pd()).unwrap_or_else(|error| {
            let (device, error) = (&adapter.name, explain(&error));
            log_peer!(warn, conn, device, "no memory window: {error}");
            None
        });
        let window = window.ok_or(ExposeError::Device)?;
        let key = free_key(&window, &self.exposed);
        let addr = region.name_of(buf.region_offset());
        let slice = slice_of(key, addr, buf)?;
        // A window of no bytes is not possible: this one exposes nothing.
        let (start, len, rights) = if buf.is_empty() {
            (region.first_name(), 1, Rights::empty())
        } else {
            (addr, u64::from(slice.len), rights)
        };
        let op = SendOp::Bind {
            window: Arc::clone(&window),
            key,
            region,
            keeps: once,
            addr: start,
            len,
            rights,
        };
        // The completion matters only if the window is destroyed, which must not be before.
        let (state, item) = match once {
            true => (WindowState::Binding, SendItem::Bind(slice.key)),
            false => (WindowState::Open, SendItem::Internal),
        };
        let adapter = link.room.adapter;
        chain(conn, item, op, once);
        let access = Access::Window {
            adapter,
            window,
            own,
            state,
        };
        conn.internal += 1;
        conn.exposed = true;
        list(&mut self.listed, conn);
        Ok((slice, access))
    }

    fn open_region(
        &mut self,
        qp: QpId,
        buf: &Buf,
        rights: Rights,
    ) -> Result<(RemoteSlice, Access), ExposeError> {
        let conn = self.conns.get_mut(qp).ok_or(ExposeError::Closed)?;
        conn.exposed = true;
        let link = conn.link.as_ref().ok_or(ExposeError::Closed)?;
        let domain = domain_of(&self.adapters, link).ok_or(ExposeError::Closed)?;
        let local = domain.region_of(buf).ok_or(ExposeError::NotRegistered)?;
        let addr = local.name_of(buf.region_offset());
        let mut piece = Piece {
            offset: buf.region_offset(),
            len: buf.len(),
            named: (!link.iwarp).then_some(addr),
        };
        let mut rights = rights;
        if buf.is_empty() {
            // A registration of no bytes is not possible: this one exposes nothing.
            piece = Piece {
                offset: 0,
                len: 1,
                named: None,
            };
            rights = Rights::empty();
        }
        // A key that is in use on another device, or was in use recently, is kept until an
        // unused one is found.
        let mut taken = Vec::new();
        loop {
            #[allow(
                unsafe_code,
                reason = "the buffer is the provider's until it is closed"
            )]
            // SAFETY: the view of `buf`, or nothing of it; the caller keeps it with the
            // returned value, which is closed before the buffer returns.
            let region =
                unsafe { MemoryRegion::remote(domain.pd(), local.region(), piece, rights) };
            let region = match region {
                Ok(region) => region,
                Err(error) => {
                    not_registered(conn, &error);
                    return Err(ExposeError::Device);
                }
            };
            let key = RemoteKey(region.remote_key());
            let used = self.exposed.contains_key(&key) || self.withdrawn.contains(key);
            if used && taken.len() < 16 {
                taken.push(region);
                continue;
            }
            let slice = slice_of(key.0, addr, buf)?;
            let access = Access::Region {
                region,
                invalidated: false,
            };
            return Ok((slice, access));
        }
    }

    /// Waits until the send queue has a free internal entry. Events are reported by the next
    /// poll.
    #[inline]
    fn wait_for_entry(&mut self, qp: QpId) -> bool {
        self.has_entry(qp) || self.entry_is_freed(qp)
    }

    #[inline]
    pub(super) fn has_entry(&self, qp: QpId) -> bool {
        let link = |conn: &Conn| Some(conn.internal < conn.link.as_ref()?.extra);
        self.conns.get(qp).and_then(link).unwrap_or(false)
    }

    /// Posts the chain and takes completions until there is an entry, for at most [`TIMEOUT`].
    #[cold]
    fn entry_is_freed(&mut self, qp: QpId) -> bool {
        self.post_chain(qp);
        self.is_behind = true;
        let mut events = std::mem::take(&mut self.later);
        let start = Instant::now();
        let mut look = LOOK;
        let is_freed = loop {
            let progress = self.reap(&mut events);
            if self.has_entry(qp) {
                break true;
            }
            let ending = |conn: &Conn| conn.phase == Phase::Ending;
            if self.conns.get(qp).is_none_or(ending) {
                self.end_all(&mut events);
                break false;
            }
            if !progress {
                let waited = start.elapsed();
                if waited >= TIMEOUT {
                    break false;
                }
                if waited >= look {
                    // A failed device completes nothing any more.
                    look = waited + LOOK;
                    self.look_at_device(qp, &mut events);
                }
                // A software device may need this CPU.
                std::thread::yield_now();
            }
        };
        events.append(&mut self.later);
        self.later = events;
        is_freed
    }

    pub(super) fn close_to_peer(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError> {
        let exposure = match self.exposed.entry(key) {
            Entry::Occupied(entry) if entry.get().may_go_back() => entry.remove(),
            Entry::Occupied(entry) if !entry.get().withdrawn => {
                self.return_later(key);
                return Ok(None);
            }
            Entry::Occupied(_) | Entry::Vacant(_) => return Err(ExposeError::UnknownKey),
        };
        Ok(self.end_exposure(key, exposure))
    }

    /// Closes memory that the peer cannot access any more, or will not once it is closed.
    #[inline(always)]
    pub(super) fn end_exposure(&mut self, key: RemoteKey, exposure: Exposure) -> Option<Buf> {
        let qp = exposure.qp;
        if matches!(exposure.access, Access::Region { .. }) {
            self.withdrawn.add(key);
        }
        if let Err(error) = self.close_access(exposure.access) {
            self.abort_immediately(qp, not_closed(&error));
        }
        exposure.buf
    }

    /// Ends a queue pair immediately, because a key could not be invalidated: when it is
    /// destroyed its peer can access nothing, whatever keys exist.
    fn abort_immediately(&mut self, qp: QpId, reason: CloseReason) {
        self.fail_own(qp, reason);
        // In the error state alone, a device may still be at work.
        self.wait_no_longer(qp);
        let mut events = std::mem::take(&mut self.later);
        self.end_all(&mut events);
        events.append(&mut self.later);
        self.later = events;
    }

    /// Closes memory.
    ///
    /// # Errors
    /// If the peer may still access it, as long as its queue pair exists.
    fn close_access(&mut self, access: Access) -> io::Result<()> {
        let (adapter, window, own, state) = match access {
            Access::Closed => return Ok(()),
            Access::Region { region, .. } => return region.close(),
            Access::Window {
                adapter,
                window,
                own,
                state,
            } => (adapter, window, own, state),
        };
        let Some(adapter) = self.adapter(adapter) else {
            return Ok(());
        };
        if state == WindowState::Closed && own.is_none() {
            adapter.windows.give_back(window);
            return Ok(());
        }
        adapter.windows.lost();
        // The window is destroyed before its region. A chain that still contains it belongs
        // to a destroyed queue pair.
        let closed = Arc::into_inner(window).map_or(Ok(()), MemoryWindow::close);
        drop(own);
        closed
    }

    /// The peer of `qp` invalidated `key`. Returns whether it was allowed to: software
    /// devices let peers invalidate keys of others, and keys that are invalid already.
    pub(super) fn invalidated_by_peer(&mut self, qp: QpId, key: RemoteKey) -> bool {
        let Some(exposure) = self.exposed.get_mut(&key) else {
            return false;
        };
        let own = exposure.qp == qp;
        let first = match &mut exposure.access {
            Access::Closed => false,
            Access::Window { state, .. } => match state {
                WindowState::Binding | WindowState::Open => {
                    *state = WindowState::Closed;
                    true
                }
                // The local request is behind it and has no effect.
                WindowState::Closing => {
                    *state = WindowState::Overtaken;
                    self.touched.push(key);
                    true
                }
                WindowState::Overtaken | WindowState::Closed => false,
            },
            Access::Region { invalidated, .. } => !std::mem::replace(invalidated, true),
        };
        own && first
    }

    /// Closes everything that is exposed to the peer of `qp`: its queue pair is stopped.
    pub(super) fn close_all_to_peer(&mut self, qp: QpId) {
        let exposed = self.exposed.values_mut().filter(|one| one.qp == qp);
        let open = exposed.map(|one| std::mem::replace(&mut one.access, Access::Closed));
        let open: Vec<Access> = open.collect();
        for access in open {
            // The cause is in the log.
            if self.close_access(access).is_err() {
                // Its buffer returns when the queue pair is destroyed, so that is now.
                self.wait_no_longer(qp);
            }
        }
    }
}

impl Exposure {
    /// Whether the device has to invalidate it.
    pub(super) fn wants_invalidating(&self) -> bool {
        matches!(
            self.access,
            Access::Window {
                own: None,
                state: WindowState::Binding | WindowState::Open,
                ..
            }
        )
    }

    /// Whether the peer invalidated it while the local request is in progress.
    pub(super) fn is_overtaken(&self) -> bool {
        matches!(
            self.access,
            Access::Window {
                state: WindowState::Overtaken,
                ..
            }
        )
    }

    /// Whether it returns at once when it is withdrawn.
    #[inline]
    fn may_go_back(&self) -> bool {
        !self.withdrawn && self.is_closable()
    }

    /// Whether the peer cannot access it any more, or will not once it is dropped.
    #[inline]
    pub(super) fn is_closable(&self) -> bool {
        match &self.access {
            Access::Window { own, state, .. } => match state {
                WindowState::Binding | WindowState::Closing | WindowState::Overtaken => false,
                WindowState::Open => own.is_some(),
                WindowState::Closed => true,
            },
            Access::Closed | Access::Region { .. } => true,
        }
    }
}

/// The local request of `qp` to bind a window is complete. Returns the key if it is withdrawn.
pub(super) fn window_opened(
    exposed: &mut KeyMap<Exposure>,
    qp: QpId,
    key: RemoteKey,
) -> Option<RemoteKey> {
    let exposure = exposed.get_mut(&key).filter(|one| one.qp == qp)?;
    if let Access::Window { state, .. } = &mut exposure.access
        && *state == WindowState::Binding
    {
        *state = WindowState::Open;
    }
    exposure.withdrawn.then_some(key)
}

/// The local request of `qp` to invalidate a window is complete. Returns the key.
pub(super) fn window_closed(
    exposed: &mut KeyMap<Exposure>,
    qp: QpId,
    key: RemoteKey,
) -> Option<RemoteKey> {
    let exposure = exposed.get_mut(&key).filter(|one| one.qp == qp)?;
    if let Access::Window { state, .. } = &mut exposure.access {
        *state = WindowState::Closed;
    }
    Some(key)
}

fn not_registered(conn: &Conn, error: &io::Error) {
    let error = explain(error);
    log_peer!(warn, conn, "memory cannot be exposed: {error}");
}

/// The next key of `window` that no other exposure has: two devices may use the same key.
fn free_key(window: &MemoryWindow, exposed: &KeyMap<Exposure>) -> u32 {
    let mut key = next_key(window.key());
    while exposed.contains_key(&RemoteKey(key)) && key != window.key() {
        key = next_key(key);
    }
    key
}

/// Registers exactly the exposed bytes, for a window of its own.
fn register_exact(
    domain: &Domain,
    shared: &MemoryRegion,
    buf: &Buf,
) -> io::Result<Arc<MemoryRegion>> {
    let offset = if buf.is_empty() {
        0
    } else {
        buf.region_offset()
    };
    let piece = Piece {
        offset,
        len: buf.len().max(1),
        named: Some(shared.name_of(offset)),
    };
    MemoryRegion::for_window(domain.pd(), shared.region(), piece).map(Arc::new)
}

fn slice_of(key: u32, addr: u64, buf: &Buf) -> Result<RemoteSlice, ExposeError> {
    let len = u32::try_from(buf.len()).map_err(|_| ExposeError::NotRegistered)?;
    Ok(RemoteSlice {
        key: RemoteKey(key),
        addr,
        len,
    })
}
