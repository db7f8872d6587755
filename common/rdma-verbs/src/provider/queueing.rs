//! Work requests: checked, recorded, chained, posted.

use std::io;

use nvmeof_memory::Buf;
use nvmeof_rdma::{
    CloseReason, PostError, QpId, Refused, RemoteSlice, Rights, Tag, Work, WorkKind, explain,
};

use super::Verbs;
use crate::adapter::Adapter;
use crate::conn::{Conn, Phase, WorkId, log_peer};
use crate::domain::Domain;
use crate::link::Link;
use crate::outstanding::{RecvItem, SendItem};
use crate::siw;
use crate::sys::{INLINE, MemoryRegion, Payload, Piece, Segment, SendOp, SendRequest};

/// The domain that a queue pair's memory is registered in.
pub(super) fn domain_of<'a>(adapters: &'a [Option<Adapter>], link: &'a Link) -> Option<&'a Domain> {
    let adapter = || adapters.get(link.room.adapter.0 as usize)?.as_ref();
    link.domain.as_ref().or_else(|| adapter()?.shared.as_ref())
}

impl Verbs {
    pub(super) fn queue_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        if let Err(why) = self.check_recv(qp, &buf) {
            return Err(Refused { why, back: buf });
        }
        let Some(conn) = self.conns.get_mut(qp) else {
            let why = PostError::Closed;
            return Err(Refused { why, back: buf });
        };
        let item = RecvItem {
            tag,
            buf,
            len: 0,
            invalidated: None,
        };
        let number = conn.recvs.push(item, true);
        // Together with requests that wait, and before them. Without any, it is posted at once,
        // because a message for it may be in flight already.
        if chain_recv(&self.adapters, conn, number) {
            let is_full = conn.link.as_ref().is_some_and(|it| it.recv_chain.is_full());
            if is_full || !conn.listed {
                self.post_receives(qp);
            }
        }
        Ok(())
    }

    fn check_recv(&self, qp: QpId, buf: &Buf) -> Result<(), PostError> {
        let conn = self.conns.get(qp).ok_or(PostError::Closed)?;
        match conn.phase {
            Phase::Draining | Phase::Ending | Phase::Requested => {
                return Err(conn.phase.refusal());
            }
            _ if conn.draws.is_some() => {
                let state = "using a shared receive queue";
                return Err(PostError::WrongState { state });
            }
            _ => {}
        }
        let depth = conn.config.recvs;
        if conn.recvs.len() >= depth as usize {
            return Err(PostError::QueueFull { depth });
        }
        if !self.is_registered(buf) {
            return Err(PostError::NotRegistered);
        }
        Ok(())
    }

    pub(super) fn queue_work(
        &mut self,
        qp: QpId,
        tag: Tag,
        work: Work,
    ) -> Result<(), Refused<Work>> {
        if let Err(why) = self.check_work(qp, &work) {
            return Err(Refused { why, back: work });
        }
        self.make_room(qp);
        let Some(conn) = self.conns.get_mut(qp) else {
            let why = PostError::Closed;
            return Err(Refused { why, back: work });
        };
        match chain_work(&self.adapters, conn, tag, work) {
            Ok(()) => {
                conn.work += 1;
                self.list(qp);
                Ok(())
            }
            Err(back) => {
                let why = PostError::NotRegistered;
                Err(Refused { why, back })
            }
        }
    }

    fn check_work(&self, qp: QpId, work: &Work) -> Result<(), PostError> {
        let conn = self.conns.get(qp).ok_or(PostError::Closed)?;
        if conn.phase != Phase::Running {
            return Err(conn.phase.refusal());
        }
        let depth = conn.config.sends;
        if conn.work >= depth {
            return Err(PostError::QueueFull { depth });
        }
        // The negotiated number of Reads is 0: this one would wait for ever.
        if work.kind() == WorkKind::Read && conn.reads_out == 0 {
            return Err(PostError::QueueFull { depth: 0 });
        }
        let registered = match work {
            Work::Send { body: None, .. } => true,
            Work::Send {
                body: Some(buf), ..
            }
            | Work::Write { local: buf, .. }
            | Work::Read { local: buf, .. } => self.is_registered(buf),
        };
        if !registered {
            return Err(PostError::NotRegistered);
        }
        let most = conn.link.as_ref().map_or(0, |link| link.max_message);
        let max = self.config.limits.max_message.min(most) as usize;
        let max = match work {
            Work::Send { .. } => max,
            Work::Write { remote, .. } | Work::Read { remote, .. } => max.min(remote.len as usize),
        };
        let len = work.len();
        if len > max {
            return Err(PostError::TooLong { len, max });
        }
        Ok(())
    }

    /// Adds the queue pair to those whose chain the next submit or poll posts.
    pub(super) fn list(&mut self, qp: QpId) {
        if let Some(conn) = self.conns.get_mut(qp)
            && !conn.listed
        {
            conn.listed = true;
            self.listed.push(qp);
        }
    }

    /// Posts all chains that are not empty.
    pub(super) fn post_listed(&mut self) {
        self.post_all_shared();
        if self.listed.is_empty() {
            return;
        }
        let mut listed = std::mem::take(&mut self.listed);
        for qp in listed.drain(..) {
            if let Some(conn) = self.conns.get_mut(qp) {
                conn.listed = false;
            }
            self.post_chain(qp);
        }
        // Queue pairs that were added meanwhile wait for the next call.
        listed.append(&mut self.listed);
        self.listed = listed;
    }

    /// Makes room for one more request in the chain.
    pub(super) fn make_room(&mut self, qp: QpId) {
        let full = |link: &Link| link.send_chain.is_full();
        let conn = self.conns.get(qp);
        if conn.and_then(|conn| conn.link.as_ref()).is_some_and(full) {
            self.post_chain(qp);
        }
    }

    /// Posts the receives of one queue pair.
    fn post_receives(&mut self, qp: QpId) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if let Err(error) = post_recvs(conn) {
            self.fail(qp, CloseReason::failed("posting a receive", &error));
        }
    }

    /// Posts the chains of one queue pair. Receives come first: a request may permit the peer to
    /// send a message.
    pub(super) fn post_chain(&mut self, qp: QpId) {
        self.post_all_shared();
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        let has_receives = |link: &Link| !link.recv_chain.is_empty();
        let received = match conn.link.as_ref().is_some_and(has_receives) {
            true => post_recvs(conn),
            false => Ok(()),
        };
        if let Err(error) = received.and_then(|()| post_sends(conn)) {
            self.fail(qp, CloseReason::failed("posting work requests", &error));
        }
    }
}

/// Chains a receive if the queue pair exists already. Returns whether it does.
fn chain_recv(adapters: &[Option<Adapter>], conn: &mut Conn, number: u64) -> bool {
    let (Some(link), Some(item)) = (&mut conn.link, conn.recvs.get(number)) else {
        return false;
    };
    let room = domain_of(adapters, link).and_then(|domain| domain.room(&item.buf));
    // InfiniBand hardware interprets a length of 0 as 2 GiB.
    let room = room.filter(|room| link.iwarp || room.len > 0);
    let id = WorkId::of(conn.id, true, number);
    link.recv_chain.push(id, room);
    true
}

/// Posts the receives that were queued before the queue pair was created.
pub(super) fn post_early_recvs(adapters: &[Option<Adapter>], conn: &mut Conn) -> io::Result<()> {
    let numbers: Vec<u64> = conn.recvs.iter().map(|(number, _)| number).collect();
    for number in numbers {
        chain_recv(adapters, conn, number);
        let full = |link: &Link| link.recv_chain.is_full();
        if conn.link.as_ref().is_some_and(full) {
            post_recvs(conn)?;
        }
    }
    post_recvs(conn)
}

pub(super) fn post_recvs(conn: &mut Conn) -> io::Result<()> {
    let Some(link) = &mut conn.link else {
        return Ok(());
    };
    #[allow(
        unsafe_code,
        reason = "the buffers are the provider's until they complete"
    )]
    // SAFETY: each receive names the buffer that `conn.recvs` keeps under its number. It is
    // given back when it completed, or the queue pair is gone.
    unsafe {
        link.recv_chain.post(&conn.cm)
    }
}

fn post_sends(conn: &mut Conn) -> io::Result<()> {
    let Some(link) = &mut conn.link else {
        return Ok(());
    };
    // One completion for the chain; reads and requests that are waited for have their own.
    // Every chain has one, so a queue never fills up with unsignaled work.
    link.send_chain.signal_last();
    #[allow(
        unsafe_code,
        reason = "the buffers are the provider's until they complete"
    )]
    // SAFETY: each request names buffers that `conn.sends` keeps under its number until it
    // completed or the queue pair is gone (`chain`); what a bind opens is a buffer that the
    // provider keeps until it is withdrawn. Windows are those of this provider, which is
    // used by one thread.
    unsafe {
        link.send_chain.post(&conn.cm)
    }
}

/// Records the caller's work and chains it.
fn chain_work(
    adapters: &[Option<Adapter>],
    conn: &mut Conn,
    tag: Tag,
    work: Work,
) -> Result<(), Work> {
    let kind = work.kind();
    match work {
        Work::Send { .. } => return chain_send(adapters, conn, tag, work),
        Work::Write { local, remote } => {
            let link = conn.link.as_ref();
            let short = link.is_some_and(|link| local.len() <= link.inline);
            let mut bytes = [0; INLINE];
            let payload = if short {
                let bytes = bytes.get_mut(..local.len()).unwrap_or_default();
                bytes.copy_from_slice(&local);
                Payload::Inline(bytes)
            } else {
                let domain = link.and_then(|link| domain_of(adapters, link));
                let Some(segment) = domain.and_then(|domain| domain.segment(&local)) else {
                    return Err(Work::Write { local, remote });
                };
                Payload::Memory([segment, None])
            };
            let op = SendOp::Write {
                payload,
                addr: remote.addr,
                key: remote.key.0,
            };
            let item = SendItem::Work {
                tag,
                kind,
                sink: None,
                buf: Some(local),
                _head: None,
            };
            chain(conn, item, op, false);
        }
        Work::Read { local, remote } => return chain_read(adapters, conn, tag, local, remote),
    }
    Ok(())
}

fn chain_read(
    adapters: &[Option<Adapter>],
    conn: &mut Conn,
    tag: Tag,
    local: Buf,
    remote: RemoteSlice,
) -> Result<(), Work> {
    let link = conn.link.as_ref();
    let sink = link.ok_or_else(|| io::ErrorKind::NotConnected.into());
    let sink = sink.and_then(|link| read_sink(adapters, link, &local));
    let Sink {
        opened,
        segment,
        iwarp,
    } = match sink {
        Ok(sink) => sink,
        Err(error) => {
            let error = explain(&error);
            log_peer!(
                warn,
                conn,
                "memory for an RDMA Read cannot be registered: {error}"
            );
            return Err(Work::Read { local, remote });
        }
    };
    let (addr, key) = (remote.addr, remote.key.0);
    // iWARP needs memory for each Read (RFC 5040, section 4.4): one of no bytes is replaced
    // by an empty Write, which exposes nothing.
    let nothing = iwarp && segment.is_none();
    let op = if nothing {
        SendOp::Write {
            payload: Payload::Inline(&[]),
            addr,
            key,
        }
    } else {
        SendOp::Read {
            local: segment,
            addr,
            key,
        }
    };
    let item = SendItem::Work {
        tag,
        kind: WorkKind::Read,
        sink: opened,
        buf: Some(local),
        _head: None,
    };
    chain(conn, item, op, !nothing);
    Ok(())
}

fn chain_send(
    adapters: &[Option<Adapter>],
    conn: &mut Conn,
    tag: Tag,
    work: Work,
) -> Result<(), Work> {
    let Work::Send {
        head,
        body,
        invalidate,
        solicited,
    } = work
    else {
        return Err(work);
    };
    let total = head.len() + body.as_ref().map_or(0, |body| body.len());
    let link = conn.link.as_ref();
    // Linux siw supports no inline data in a Send with Invalidate.
    let inline =
        link.is_some_and(|link| total <= link.inline && !(link.iwarp && invalidate.is_some()));
    let placed = link.and_then(|link| {
        if inline {
            return Some((None, [None; 2]));
        }
        let copied = if head.is_empty() {
            None
        } else {
            Some(link.heads.copy(&head)?)
        };
        let domain = domain_of(adapters, link)?;
        let body = body.as_ref().and_then(|body| domain.segment(body));
        let first = copied
            .as_ref()
            .and_then(|copied| link.heads.segment(copied));
        Some((copied, [first, body.flatten()]))
    });
    let Some((copied, parts)) = placed else {
        return Err(Work::Send {
            head,
            body,
            invalidate,
            solicited,
        });
    };
    let mut bytes = [0; INLINE];
    let payload = if inline {
        Payload::Inline(copy_inline(
            &head,
            body.as_deref().unwrap_or_default(),
            &mut bytes,
        ))
    } else {
        Payload::Memory(parts)
    };
    let op = SendOp::Send {
        payload,
        invalidate: invalidate.map(|key| key.0),
        solicited,
    };
    let item = SendItem::Work {
        tag,
        kind: WorkKind::Send,
        sink: None,
        buf: body,
        _head: copied,
    };
    chain(conn, item, op, false);
    Ok(())
}

/// The inline data of a message: `head` and `body`, copied to `bytes`.
fn copy_inline<'a>(head: &[u8], body: &[u8], bytes: &'a mut [u8; INLINE]) -> &'a [u8] {
    let mut len = 0;
    for (place, byte) in bytes.iter_mut().zip(head.iter().chain(body)) {
        *place = *byte;
        len += 1;
    }
    bytes.get(..len).unwrap_or_default()
}

/// Records a request and adds it to the chain, which must have room. `signalled` reads are
/// completed only by their own completion.
pub(super) fn chain(conn: &mut Conn, item: SendItem, mut op: SendOp<'_>, signalled: bool) {
    let alone = signalled && matches!(op, SendOp::Read { .. });
    let number = conn.sends.push(item, alone);
    if let Some(link) = &mut conn.link {
        // Linux siw passes pages of unsignaled work to TCP without a copy, where they stay
        // until the peer acknowledges them: long after a later completion reports that the
        // work is complete. Pages of signaled work are copied.
        let copied = link.iwarp && op.sends_memory();
        if link.siw {
            siw::in_two(&mut op);
        }
        link.send_chain.push(SendRequest {
            id: WorkId::of(conn.id, false, number),
            signalled: signalled || copied,
            op,
        });
    }
}

/// Destination of an RDMA Read.
struct Sink {
    opened: Option<MemoryRegion>,
    segment: Option<Segment>,
    iwarp: bool,
}

/// On iWARP a peer responds to an RDMA Read by writing to a key, so exactly the destination
/// is exposed to it for the duration of the Read (RFC 5040, section 4.4). That costs two
/// system calls per Read, but exposes nothing else. Other devices need nothing.
fn read_sink(adapters: &[Option<Adapter>], link: &Link, local: &Buf) -> io::Result<Sink> {
    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let domain = domain_of(adapters, link).ok_or_else(unknown)?;
    let iwarp = link.iwarp;
    if !iwarp || local.is_empty() {
        return Ok(Sink {
            opened: None,
            segment: domain.segment(local).ok_or_else(unknown)?,
            iwarp,
        });
    }
    let region = domain.region_of(local).ok_or_else(unknown)?;
    let piece = Piece {
        offset: local.region_offset(),
        len: local.len(),
        named: None,
    };
    let rights = Rights::REMOTE_WRITE;
    #[allow(
        unsafe_code,
        reason = "the buffer is the provider's until it is closed"
    )]
    // SAFETY: the caller keeps `local`, whose view this is, with the returned value, and
    // closes that first.
    let opened = unsafe { MemoryRegion::remote(domain.pd(), region.region(), piece, rights) }?;
    let segment = Segment {
        addr: opened.name_of(local.region_offset()),
        len: u32::try_from(local.len()).map_err(|_| unknown())?,
        key: opened.local_key(),
    };
    Ok(Sink {
        opened: Some(opened),
        segment: Some(segment),
        iwarp,
    })
}
