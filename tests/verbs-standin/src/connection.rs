//! Connection management: what calls and time do to ids, and to the ids of their peers.

use std::net::SocketAddr;

use crate::address::{set_addrs, set_device};
use crate::device::Element;
use crate::faults::Point;
use crate::ids::{CmEvent, CmMessage, Id, IdState, Params, Peer};
use crate::links::{self, Connected};
use crate::message::{Connect, Message};
use crate::queue::{PeerQp, State};
use crate::raw::{Ptr, cm_event, event, rdma_cm_id, rdma_port_space, zeroed};
use crate::transfer;
use crate::world::World;

/// Reasons of the InfiniBand connection manager (InfiniBand Architecture, 12.6.7.2).
const REASON_TIMEOUT: i32 = 4;
const REASON_NO_SERVICE: i32 = 8;
const REASON_CONSUMER: i32 = 28;

/// An errno.
pub(crate) type Errno = i32;

/// Private data of a connection, as it is passed to the libraries.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub(crate) private_data: Vec<u8>,
    pub(crate) params: Params,
}

/// Lets time pass on a device.
pub(crate) fn tick(world: &mut World, device: usize) {
    transfer::tick(world, device);
    settle(world);
}

/// Handles what the execution of work requests left: broken streams, removed devices.
pub(crate) fn settle(world: &mut World) {
    while let Some(device) = world.removals.pop() {
        remove_device(world, device);
    }
    while let Some(qp) = world.broken.pop() {
        let id = world.qps.get(qp).map(|qp| qp.id);
        if let Some(id) = id {
            break_stream(world, id, false);
        }
    }
}

/// The stream of an id ended, by its `peer` or by itself: both sides are notified.
fn break_stream(world: &mut World, id: usize, by_peer: bool) {
    let Some(one) = world.ids.ids.get_mut(&id) else {
        return;
    };
    match one.state {
        IdState::Accepted | IdState::Connected | IdState::Leaving => one.state = IdState::Over,
        IdState::Connecting if by_peer && !one.ended => one.ended = true,
        _ => return,
    }
    let peer = one.peer;
    let qp = one.qp;
    world.ids.tell(id, cm_event::RDMA_CM_EVENT_DISCONNECTED, 0);
    if let Some(qp) = qp {
        transfer::stop(world, qp);
    }
    if let Some(peer) = peer {
        say(world, peer, CmMessage::StreamEnd);
    }
}

/// Sends a message to a peer. One of this process hears it at once.
fn say(world: &mut World, peer: Peer, message: CmMessage) {
    match peer {
        Peer::Here(id) => hear(world, id, message),
        Peer::There(link) => links::send(world, link, &Message::Cm(message)),
    }
}

/// A message of the peer arrived at an id.
pub(crate) fn hear(world: &mut World, id: usize, message: CmMessage) {
    let Some(one) = world.ids.ids.get(&id) else {
        return;
    };
    let device = one.device;
    match message {
        CmMessage::Reply {
            params,
            private_data,
        } => world.ids.report(CmEvent {
            id,
            listener: None,
            kind: cm_event::RDMA_CM_EVENT_ESTABLISHED,
            status: 0,
            private_data,
            params,
        }),
        CmMessage::ReadyToUse => {
            let device = device.and_then(|device| world.device_mut(device));
            let lost = device.is_some_and(|device| device.faults.hit(Point::Establish).is_some());
            if !lost {
                establish(world, id);
            }
        }
        CmMessage::Reject {
            status,
            private_data,
        } => {
            over(world, id);
            world.ids.report(CmEvent {
                id,
                listener: None,
                kind: cm_event::RDMA_CM_EVENT_REJECTED,
                status,
                private_data,
                params: Params::default(),
            });
        }
        CmMessage::Cancel => cancel(world, id, is_iwarp(world, device)),
        CmMessage::DisconnectRequest => hear_good_bye(world, id),
        CmMessage::DisconnectReply => part(world, id),
        CmMessage::StreamEnd => break_stream(world, id, true),
    }
}

/// The process of the peer of an id ended. Its kernel destroys what it had: it rejects
/// requests, gives up its own, and disconnects.
pub(crate) fn lose_peer(world: &mut World, id: usize, replied: bool) {
    let Some(one) = world.ids.ids.get(&id) else {
        return;
    };
    let (state, device) = (one.state, one.device);
    match state {
        IdState::Connecting if !replied => {
            let status = rejected(is_iwarp(world, device));
            let private_data = Vec::new();
            hear(
                world,
                id,
                CmMessage::Reject {
                    status,
                    private_data,
                },
            );
        }
        IdState::Requested => hear(world, id, CmMessage::Cancel),
        _ if is_iwarp(world, device) => {
            hear(world, id, CmMessage::StreamEnd);
            hear(world, id, CmMessage::DisconnectReply);
        }
        _ => {
            // If this side left first, a reply is enough.
            if !matches!(state, IdState::Over | IdState::Leaving) {
                hear(world, id, CmMessage::DisconnectRequest);
            }
            hear(world, id, CmMessage::DisconnectReply);
        }
    }
}

/// Creates an id on a channel.
pub(crate) fn create_id(world: &mut World, channel: usize, context: usize) -> usize {
    // SAFETY: numbers and pointers.
    let mut raw: rdma_cm_id = unsafe { zeroed() };
    raw.context = std::ptr::without_provenance_mut(context);
    // There is no other port space.
    raw.ps = rdma_port_space::RDMA_PS_TCP;
    if let Some(channel) = world.ids.channels.get(&channel) {
        raw.channel = channel.raw.as_ptr();
    }
    let raw = Ptr::new(raw);
    let id = Id {
        raw,
        channel,
        state: IdState::Idle,
        device: None,
        local: None,
        remote: None,
        qp: None,
        peer: None,
        reuse: false,
        ended: false,
        params: Params::default(),
        unacknowledged: 0,
    };
    world.ids.ids.insert(raw.addr(), id);
    raw.addr()
}

fn is_iwarp(world: &World, device: Option<usize>) -> bool {
    let device = device.and_then(|device| world.devices.get(device));
    device.is_some_and(|device| device.profile.is_iwarp())
}

/// The device with an address.
fn device_at(world: &World, addr: SocketAddr) -> Option<usize> {
    let mut devices = world.devices.iter();
    devices.rposition(|device| device.addr == addr.ip() && !device.removed)
}

/// The device that reaches an address: the one that is told to, the one that has the address,
/// or one in its network of 256 addresses.
fn device_towards(world: &World, addr: SocketAddr) -> Option<usize> {
    if let Some(at) = device_at(world, addr) {
        let from = world.devices.get(at)?.from.as_deref();
        return Some(from.and_then(|from| world.device_named(from)).unwrap_or(at));
    }
    let network = |addr: SocketAddr| match addr {
        SocketAddr::V4(addr) => Some(addr.ip().octets().map(u32::from)[..3].to_vec()),
        SocketAddr::V6(_) => None,
    };
    let wanted = network(addr)?;
    let mut devices = world.devices.iter();
    devices.rposition(|device| {
        !device.removed && network(SocketAddr::new(device.addr, 0)).as_ref() == Some(&wanted)
    })
}

fn assign_device(world: &mut World, id: usize, device: usize) {
    let context = world.devices.get(device).map(|device| device.context);
    if let (Some(one), Some(context)) = (world.ids.ids.get_mut(&id), context) {
        one.device = Some(device);
        set_device(one.raw, context);
    }
}

/// Binds an id to a local address.
pub(crate) fn bind(world: &mut World, id: usize, addr: SocketAddr) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    if one.state != IdState::Idle {
        return Err(libc::EINVAL);
    }
    let reuse = one.reuse;
    let device = device_at(world, addr);
    if device.is_none() && !addr.ip().is_unspecified() {
        let known = world.devices.iter().any(|one| one.addr == addr.ip());
        return Err(if known {
            libc::ENODEV
        } else {
            libc::EADDRNOTAVAIL
        });
    }
    let mut addr = addr;
    if addr.port() == 0 {
        while {
            addr.set_port(world.ids.free_port());
            links::is_taken(world, device, addr)
        } {}
    } else if world.ids.is_in_use(id, addr, reuse) {
        return Err(libc::EADDRINUSE);
    }
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.state = IdState::Bound;
        one.local = Some(addr);
        set_addrs(one.raw, Some(addr), None);
    }
    if let Some(device) = device {
        assign_device(world, id, device);
    }
    Ok(())
}

/// Listens on the address that an id is bound to.
pub(crate) fn listen(world: &mut World, id: usize) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    let (IdState::Bound, Some(local)) = (one.state, one.local) else {
        return Err(libc::EINVAL);
    };
    if world.ids.is_in_use(id, local, one.reuse) {
        return Err(libc::EADDRINUSE);
    }
    if let Some(folder) = links::folder_of(world, one.device) {
        let listening = links::listen(world, &folder, id, local);
        listening.map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL))?;
    }
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.state = IdState::Listening;
    }
    Ok(())
}

/// Finds the device towards an address.
pub(crate) fn resolve_addr(world: &mut World, id: usize, to: SocketAddr) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    if !matches!(one.state, IdState::Idle | IdState::Bound) {
        return Err(libc::EINVAL);
    }
    let Some(device) = one.device.or_else(|| device_towards(world, to)) else {
        let kind = cm_event::RDMA_CM_EVENT_ADDR_ERROR;
        world.ids.tell(id, kind, -libc::ENODEV);
        return Ok(());
    };
    let ip = world.devices.get(device).map(|device| device.addr);
    let port = world.ids.free_port();
    if let Some(one) = world.ids.ids.get_mut(&id) {
        let local = ip.map(|ip| SocketAddr::new(ip, port));
        one.local = one.local.or(local);
        one.remote = Some(to);
        one.state = IdState::Resolved;
        set_addrs(one.raw, one.local, one.remote);
    }
    assign_device(world, id, device);
    let kind = cm_event::RDMA_CM_EVENT_ADDR_RESOLVED;
    world.ids.tell(id, kind, 0);
    Ok(())
}

/// Finds the route.
pub(crate) fn resolve_route(world: &mut World, id: usize) -> Result<(), Errno> {
    let one = world.ids.ids.get_mut(&id).ok_or(libc::EINVAL)?;
    if one.state != IdState::Resolved {
        return Err(libc::EINVAL);
    }
    one.state = IdState::Routed;
    let kind = cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED;
    world.ids.tell(id, kind, 0);
    Ok(())
}

/// Checks private data against the limit of a device, and pads it as connection management of
/// InfiniBand does: a datagram carries all bytes that there is room for.
fn padded(
    world: &World,
    device: Option<usize>,
    which: usize,
    data: &[u8],
) -> Result<Vec<u8>, Errno> {
    let device = device.and_then(|device| world.devices.get(device));
    let profile = device.ok_or(libc::EINVAL)?.profile;
    let most = profile.private.get(which).copied().unwrap_or(0) as usize;
    if data.len() > most {
        return Err(libc::EINVAL);
    }
    let mut data = data.to_vec();
    if !profile.is_iwarp() {
        data.resize(most, 0);
    }
    Ok(data)
}

/// Requests a connection.
pub(crate) fn connect(world: &mut World, id: usize, offer: &Offer) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    let (IdState::Routed, Some(to), Some(_)) = (one.state, one.remote, one.qp) else {
        return Err(libc::EINVAL);
    };
    let (from, device) = (one.local, one.device);
    let private_data = padded(world, device, 0, &offer.private_data)?;
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.state = IdState::Connecting;
        one.params = offer.params;
    }
    let own = device.and_then(|device| world.device_mut(device));
    let lost = own.is_some_and(|device| device.faults.hit(Point::Connect).is_some());
    if lost {
        return Ok(());
    }
    let request = Connect {
        to,
        from,
        iwarp: is_iwarp(world, device),
        params: of_peer(offer.params),
        private_data,
    };
    let own = device.and_then(|device| world.devices.get(device));
    if let Some(folder) = own.and_then(|device| device.links.clone()) {
        match links::connect(world, &folder, id, request) {
            Connected::To(link) => set_peer(world, id, Peer::There(link)),
            Connected::NoListener(request) => refuse(world, Peer::Here(id), request.iwarp),
            Connected::NoAnswer => {}
        }
        return Ok(());
    }
    // If no device has the address, there is no machine and no answer.
    if device_at(world, to).is_some() {
        arrive(world, Peer::Here(id), request);
    }
    Ok(())
}

/// A request for a connection arrived at a device of this process.
pub(crate) fn arrive(world: &mut World, from: Peer, request: Connect) {
    let at = device_at(world, request.to);
    let same_kind = request.iwarp == is_iwarp(world, at);
    let listener = world.ids.listener(request.to).filter(|_| same_kind);
    let (Some(at), Some(listener)) = (at, listener) else {
        refuse(world, from, request.iwarp);
        return;
    };
    let (channel, context) = match world.ids.ids.get(&listener) {
        // SAFETY: the listener is not destroyed under the lock.
        Some(one) => (one.channel, unsafe { (*one.raw.as_ptr()).context }.addr()),
        None => return,
    };
    let new = create_id(world, channel, context);
    assign_device(world, new, at);
    if let Some(one) = world.ids.ids.get_mut(&new) {
        one.state = IdState::Requested;
        one.local = Some(request.to);
        one.remote = request.from;
        one.peer = Some(from);
        // Until it is accepted with others.
        one.params = request.params;
        set_addrs(one.raw, one.local, one.remote);
    }
    match from {
        Peer::Here(id) => set_peer(world, id, Peer::Here(new)),
        Peer::There(link) => links::assign(world, link, new),
    }
    world.ids.report(CmEvent {
        id: new,
        listener: Some(listener),
        kind: cm_event::RDMA_CM_EVENT_CONNECT_REQUEST,
        status: 0,
        private_data: request.private_data,
        params: request.params,
    });
}

/// Nobody listens where a request arrived.
fn refuse(world: &mut World, from: Peer, iwarp: bool) {
    let status = if iwarp {
        -libc::ECONNREFUSED
    } else {
        REASON_NO_SERVICE
    };
    let private_data = Vec::new();
    let message = CmMessage::Reject {
        status,
        private_data,
    };
    say(world, from, message);
}

/// The status of a rejection by the peer's program.
fn rejected(iwarp: bool) -> i32 {
    if iwarp {
        -libc::ECONNRESET
    } else {
        REASON_CONSUMER
    }
}

fn set_peer(world: &mut World, id: usize, peer: Peer) {
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.peer = Some(peer);
    }
}

/// Parameters as the other side sees them.
fn of_peer(params: Params) -> Params {
    Params {
        reads_in: params.reads_out,
        reads_out: params.reads_in,
        rnr_retry: params.rnr_retry,
    }
}

/// An id has no peer any more.
fn over(world: &mut World, id: usize) {
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.peer = None;
        // It has to see first that it was accepted.
        if !one.ended {
            one.state = IdState::Over;
        }
    }
}

/// The queue pair of a peer.
fn qp_of(world: &World, peer: Peer) -> Option<PeerQp> {
    match peer {
        Peer::Here(id) => {
            let key = world.ids.ids.get(&id)?.qp?;
            Some(PeerQp::Here(key, world.qps.get(key)?.number))
        }
        Peer::There(link) => Some(PeerQp::There(link)),
    }
}

/// Makes the queue pair of an id ready.
fn make_ready(world: &mut World, id: usize, peer: Option<Peer>) {
    let other = peer.and_then(|peer| qp_of(world, peer));
    let Some(one) = world.ids.ids.get(&id) else {
        return;
    };
    let (params, Some(key)) = (one.params, one.qp) else {
        return;
    };
    let Some(qp) = world.qps.get_mut(key) else {
        return;
    };
    qp.peer = qp.peer.or(other);
    qp.reads_in = u32::from(params.reads_in);
    qp.reads_out = u32::from(params.reads_out);
    qp.rnr_retry = params.rnr_retry;
    if qp.state == State::Init {
        qp.state = State::Ready;
    }
    transfer::run(world, key);
    transfer::run_peer(world, key);
}

/// What an id offers whose owner passes no parameters: what the peer wants, or as much as the
/// device can do (`rdma_accept(3)`, `rdma_connect(3)`).
pub(crate) fn default_offer(world: &World, id: usize) -> Offer {
    let Some(one) = world.ids.ids.get(&id) else {
        return Offer::default();
    };
    let device = one.device.and_then(|device| world.devices.get(device));
    let most = device.map_or(0, |device| device.profile.max_reads);
    let most = u8::try_from(most).unwrap_or(u8::MAX);
    let params = if one.state == IdState::Requested {
        one.params
    } else {
        Params {
            reads_in: most,
            reads_out: most,
            rnr_retry: 7,
        }
    };
    Offer {
        private_data: Vec::new(),
        params,
    }
}

/// Accepts a request.
pub(crate) fn accept(world: &mut World, id: usize, offer: &Offer) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    if one.qp.is_none() {
        return Err(libc::EINVAL);
    }
    let iwarp = is_iwarp(world, one.device);
    let gone = if iwarp {
        libc::ECONNRESET
    } else {
        libc::EINVAL
    };
    let (IdState::Requested, Some(peer)) = (one.state, one.peer) else {
        return Err(gone);
    };
    let private_data = padded(world, one.device, 1, &offer.private_data)?;
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.state = IdState::Accepted;
        one.params = offer.params;
    }
    make_ready(world, id, Some(peer));
    let reply = CmMessage::Reply {
        params: of_peer(offer.params),
        private_data,
    };
    say(world, peer, reply);
    Ok(())
}

/// An event is taken: the library acts on some before its caller sees them.
pub(crate) fn taken(world: &mut World, event: &CmEvent) {
    let Some(one) = world.ids.ids.get_mut(&event.id) else {
        return;
    };
    if event.kind != cm_event::RDMA_CM_EVENT_ESTABLISHED || one.state != IdState::Connecting {
        return;
    }
    // What both sides agreed on.
    one.params.reads_in = event.params.reads_in;
    one.params.reads_out = event.params.reads_out;
    let ended = std::mem::take(&mut one.ended);
    one.state = if ended {
        IdState::Over
    } else {
        IdState::Connected
    };
    let peer = one.peer;
    let (qp, device) = (one.qp, one.device);
    make_ready(world, event.id, peer);
    let stopped = qp.and_then(|qp| world.qps.get(qp));
    let stopped = stopped.is_some_and(|qp| qp.state == State::Error);
    if stopped && is_iwarp(world, device) {
        world.broken.extend(qp);
    }
    if let Some(peer) = peer {
        say(world, peer, CmMessage::ReadyToUse);
    }
}

/// The last message of the set-up arrived at the accepting side.
fn establish(world: &mut World, id: usize) {
    let Some(one) = world.ids.ids.get_mut(&id) else {
        return;
    };
    if one.state == IdState::Accepted {
        one.state = IdState::Connected;
        let kind = cm_event::RDMA_CM_EVENT_ESTABLISHED;
        world.ids.tell(id, kind, 0);
    }
}

/// The first message of the peer arrived, as the caller says.
pub(crate) fn notify(world: &mut World, id: usize) -> Result<(), Errno> {
    let known = world.ids.ids.contains_key(&id);
    establish(world, id);
    if known { Ok(()) } else { Err(libc::EINVAL) }
}

/// Rejects a request.
pub(crate) fn reject(world: &mut World, id: usize, data: &[u8]) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    let IdState::Requested = one.state else {
        return Err(libc::EINVAL);
    };
    let device = one.device;
    let peer = one.peer;
    let private_data = padded(world, device, 2, data)?;
    over(world, id);
    if let Some(peer) = peer {
        let status = rejected(is_iwarp(world, device));
        let message = CmMessage::Reject {
            status,
            private_data,
        };
        say(world, peer, message);
    }
    Ok(())
}

/// Ends a connection, or confirms its end.
pub(crate) fn disconnect(world: &mut World, id: usize) -> Result<(), Errno> {
    let one = world.ids.ids.get(&id).ok_or(libc::EINVAL)?;
    let (state, qp, device) = (one.state, one.qp, one.device);
    let removed = device.and_then(|device| world.devices.get(device));
    if removed.is_some_and(|device| device.removed) {
        return Err(libc::EIO);
    }
    if !matches!(
        state,
        IdState::Accepted | IdState::Connected | IdState::Over
    ) {
        return Err(libc::EINVAL);
    }
    if let Some(qp) = qp {
        transfer::stop(world, qp);
    }
    settle(world);
    say_good_bye(world, id);
    Ok(())
}

/// Notifies the peer of an id of the end of their connection.
fn say_good_bye(world: &mut World, id: usize) {
    let Some(one) = world.ids.ids.get_mut(&id) else {
        return;
    };
    let Some(peer) = one.peer else { return };
    match one.state {
        IdState::Accepted | IdState::Connected => {
            one.state = IdState::Leaving;
            say(world, peer, CmMessage::DisconnectRequest);
        }
        // The peer left first, and waits for this answer.
        IdState::Over => {
            say(world, peer, CmMessage::DisconnectReply);
            part(world, id);
        }
        _ => {}
    }
}

/// The peer of an id disconnects.
fn hear_good_bye(world: &mut World, id: usize) {
    let Some(one) = world.ids.ids.get_mut(&id) else {
        return;
    };
    match one.state {
        // The messages of both sides cross.
        IdState::Leaving => part(world, id),
        state => {
            one.ended = state == IdState::Connecting;
            if !one.ended {
                one.state = IdState::Over;
            }
            let gone = cm_event::RDMA_CM_EVENT_DISCONNECTED;
            world.ids.tell(id, gone, 0);
        }
    }
}

/// Both sides know that their connection ended.
fn part(world: &mut World, id: usize) {
    let left = |id: &Id| id.state == IdState::Leaving;
    if world.ids.ids.get(&id).is_some_and(left) {
        let gone = cm_event::RDMA_CM_EVENT_DISCONNECTED;
        world.ids.tell(id, gone, 0);
    }
    over(world, id);
    let kind = cm_event::RDMA_CM_EVENT_TIMEWAIT_EXIT;
    world.ids.tell(id, kind, 0);
}

/// An id is destroyed: its peer is notified.
pub(crate) fn leave(world: &mut World, id: usize) {
    let Some(one) = world.ids.ids.get(&id) else {
        return;
    };
    let (state, peer, device) = (one.state, one.peer, one.device);
    let removed = device.and_then(|device| world.devices.get(device));
    let removed = removed.is_some_and(|device| device.removed);
    match (state, peer) {
        (IdState::Listening, _) => {
            for event in world.ids.take_events(id) {
                // Requests that nobody has seen.
                let _ = reject(world, event.id, &[]);
                destroy(world, event.id);
            }
        }
        (IdState::Requested, _) => {
            let _ = reject(world, id, &[]);
        }
        (IdState::Connecting, Some(peer)) => say(world, peer, CmMessage::Cancel),
        (IdState::Accepted | IdState::Connected | IdState::Over, Some(_)) if !removed => {
            say_good_bye(world, id);
        }
        _ => {}
    }
    match world.ids.ids.get(&id).and_then(|one| one.peer) {
        // No message leaves a removed device.
        Some(peer) if removed => forget(world, peer),
        Some(peer) => say(world, peer, CmMessage::DisconnectReply),
        None => {}
    }
    links::leave(world, id, removed);
    destroy(world, id);
}

/// A peer is gone without a word. One of another process sees that it gets no answers.
fn forget(world: &mut World, peer: Peer) {
    let Peer::Here(id) = peer else { return };
    if let Some(one) = world.ids.ids.get_mut(&id) {
        one.peer = None;
    }
}

/// The peer of an id gives up its request.
fn cancel(world: &mut World, id: usize, iwarp: bool) {
    let Some(one) = world.ids.ids.get(&id) else {
        return;
    };
    let (accepted, qp) = (one.state == IdState::Accepted, one.qp);
    if !accepted && one.state != IdState::Requested {
        return;
    }
    over(world, id);
    if !iwarp {
        let kind = cm_event::RDMA_CM_EVENT_REJECTED;
        world.ids.tell(id, kind, REASON_TIMEOUT);
    } else if accepted {
        // Otherwise the end of the stream is detected by the answer.
        let kind = cm_event::RDMA_CM_EVENT_DISCONNECTED;
        world.ids.tell(id, kind, 0);
        if let Some(qp) = qp {
            transfer::stop(world, qp);
        }
    }
}

/// Removes an id from the table, with its events.
fn destroy(world: &mut World, id: usize) {
    world.ids.take_events(id);
    if let Some(one) = world.ids.ids.remove(&id) {
        // SAFETY: it was in the table, so it was not freed; the caller gave it up.
        unsafe { one.raw.free() };
    }
}

/// Removes a device: everything on it ends, and its ids are notified.
pub(crate) fn remove_device(world: &mut World, device: usize) {
    let Some(one) = world.devices.get_mut(device).filter(|one| !one.removed) else {
        return;
    };
    one.removed = true;
    one.report(Element::Device, event::DEVICE_FATAL);
    let on_it = world.qps.iter().filter(|(_, qp)| qp.device == device);
    let on_it: Vec<usize> = on_it.map(|(key, _)| key).collect();
    for qp in on_it {
        transfer::stop(world, qp);
    }
    let ids = world.ids.ids.iter();
    let bound = ids.filter(|(_, id)| id.device == Some(device));
    let bound: Vec<usize> = bound.map(|(key, _)| *key).collect();
    for id in bound {
        let kind = cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL;
        world.ids.tell(id, kind, 0);
    }
}
