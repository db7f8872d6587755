//! Listeners, which the providers of a group share: each connection goes to one of those that
//! listen on its address.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use nvmeof_rdma::Steering;

use crate::lock::lock;
use crate::mailbox::{Mailbox, Request};
use crate::sys::{CmEvent, CmEventKind, CmId, CmIdKey, EventChannel, set_nonblocking};

/// Interval at which a listener that lost its device tries to open it again.
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// Maximum events per call, so that others are served during a flood of requests.
const AT_ONCE: usize = 64;

/// Backlog of requests in the kernel.
const BACKLOG: u32 = 1024;

/// The listeners of a group of providers.
#[derive(Debug)]
pub(crate) struct Group {
    listeners: Mutex<Vec<Listener>>,
    channel: Arc<EventChannel>,
    steering: Steering,
}

#[derive(Debug)]
struct Listener {
    /// Address in use.
    addr: SocketAddr,
    /// `None` while its device is missing.
    id: Option<CmId>,
    tried: Instant,
    /// Members that listen.
    members: Vec<Arc<Mailbox>>,
}

impl Group {
    pub(crate) fn new(steering: Steering) -> io::Result<Arc<Self>> {
        let channel = EventChannel::new()?;
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(Self {
            listeners: Mutex::default(),
            channel,
            steering,
        }))
    }

    /// A descriptor that is readable when there may be requests.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Lets `member` listen on `addr`, alone or together with other members. Returns the
    /// address in use.
    pub(crate) fn listen(&self, addr: SocketAddr, member: &Arc<Mailbox>) -> io::Result<SocketAddr> {
        let mut listeners = lock(&self.listeners);
        if let Some(known) = listeners.iter_mut().find(|one| one.addr == addr) {
            if known.members.iter().any(|one| Arc::ptr_eq(one, member)) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            known.members.push(Arc::clone(member));
            return Ok(addr);
        }
        let id = open(&self.channel, addr)?;
        let port = id.local_addr().map_or(addr.port(), |local| local.port());
        let mut addr = addr;
        addr.set_port(port);
        listeners.push(Listener {
            addr,
            id: Some(id),
            tried: Instant::now(),
            members: vec![Arc::clone(member)],
        });
        Ok(addr)
    }

    /// `member` stops listening on `addr`.
    pub(crate) fn unlisten(&self, addr: SocketAddr, member: &Arc<Mailbox>) {
        let mut listeners = lock(&self.listeners);
        for one in listeners.iter_mut().filter(|one| one.addr == addr) {
            one.members.retain(|one| !Arc::ptr_eq(one, member));
        }
        // The last member closes the listener.
        listeners.retain(|one| !one.members.is_empty());
    }

    /// Distributes new requests. Returns whether there were any, or another member may be
    /// distributing them.
    pub(crate) fn hand_out(&self) -> bool {
        let mut listeners = match self.listeners.try_lock() {
            Ok(listeners) => listeners,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another member is distributing.
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut any = false;
        for _ in 0..AT_ONCE {
            #[allow(unsafe_code, reason = "the channel's events are taken here alone")]
            // SAFETY: only the holder of the lock takes events, and no id of this channel has
            // a queue pair: those of requests get one after their migration.
            let Ok(Some(event)) = (unsafe { self.channel.take() }) else {
                break;
            };
            any = true;
            let id = event.id;
            let of = |one: &&mut Listener| one.id.as_ref().map(CmId::key) == Some(id);
            let Some(listener) = listeners.iter_mut().find(of) else {
                // For a request that was not distributed yet, whose id is destroyed.
                continue;
            };
            match event.kind {
                CmEventKind::ConnectRequest => listener.assign(event, &self.steering),
                CmEventKind::DeviceRemoval => listener.lose(id),
                _ => {}
            }
        }
        any
    }

    /// Tries to listen on `addr` again. Returns whether no further attempt is needed.
    pub(crate) fn retry(&self, addr: SocketAddr) -> bool {
        let mut listeners = lock(&self.listeners);
        let Some(listener) = listeners.iter_mut().find(|one| one.addr == addr) else {
            return true;
        };
        if listener.id.is_none() && listener.tried.elapsed() >= RETRY / 2 {
            listener.tried = Instant::now();
            match open(&self.channel, addr) {
                Ok(id) => {
                    tracing::info!(%addr, "the RDMA device is back, listening again");
                    listener.id = Some(id);
                }
                Err(error) => tracing::debug!(%addr, "cannot listen again yet: {error}"),
            }
        }
        listener.id.is_some()
    }

    /// Calls `look` with the id of a listener on `addr`, which is bound to its device.
    pub(crate) fn with_id<R>(&self, addr: SocketAddr, look: impl FnOnce(&CmId) -> R) -> Option<R> {
        let listeners = lock(&self.listeners);
        let found = listeners.iter().find(|one| one.addr == addr)?;
        found.id.as_ref().map(look)
    }
}

impl Listener {
    fn assign(&self, event: CmEvent, steering: &Steering) {
        let Some(id) = event.request else { return };
        let mut request = Box::new(Request {
            at: self.addr,
            id,
            private_data: event.private_data,
            reads_in: event.reads_in,
            reads_out: event.reads_out,
            guard: None,
        });
        let peer = request.id.peer_addr().unwrap_or(self.addr).ip();
        let mut open: Vec<_> = self.members.iter().collect();
        let takes =
            |open: &[&Arc<Mailbox>], number| open.iter().position(|it| it.number() == number);
        while let Some(guard) = steering.choose(peer, |number| takes(&open, number).is_some())
            && let Some(at) = takes(&open, guard.member())
        {
            request.guard = Some(guard);
            match open.swap_remove(at).put_request(request) {
                Ok(()) => return,
                Err(back) => request = back,
            }
        }
        // No member takes it. Dropping the id rejects it as well, this does so immediately.
        let _ = request.id.reject(&[]);
    }

    fn lose(&mut self, id: CmIdKey) {
        if self.id.as_ref().map(CmId::key) == Some(id) {
            tracing::warn!(
                addr = %self.addr,
                "the RDMA device of this listener is gone; trying every second until it is back"
            );
            self.id = None;
            self.tried = Instant::now();
            for member in &self.members {
                member.lost(self.addr);
            }
        }
    }
}

fn open(channel: &Arc<EventChannel>, addr: SocketAddr) -> io::Result<CmId> {
    let id = CmId::new(channel, 0)?;
    id.set_reuse_addr()?;
    if addr.is_ipv6() {
        // `[::]` covers IPv6 only; IPv4 has an address of its own.
        id.set_only_v6()?;
    }
    id.bind(addr)?;
    id.listen(BACKLOG)?;
    Ok(id)
}
