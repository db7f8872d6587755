//! Work requests: checked, recorded, chained, posted.

use std::io;

use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    CloseReason, Inline, PostError, Posted, QpId, Refused, RemoteKey, RemoteSlice, Rights, Tag,
    Work, WorkKind, WriteAndSend, explain,
};

use super::Verbs;
use crate::adapter::Adapter;
use crate::conn::{Conn, Phase, log_peer};
use crate::domain::Domain;
use crate::link::Link;
use crate::outstanding::{Kept, RecvItem, SendItem};
use crate::siw;
use crate::sys::{INLINE, MemoryRegion, Payload, Piece, Segment, SendOp, SendRequest};

/// The domain that a queue pair's memory is registered in.
pub(super) fn domain_of<'a>(adapters: &'a [Option<Adapter>], link: &'a Link) -> Option<&'a Domain> {
    let adapter = || adapters.get(link.room.adapter.0 as usize)?.as_ref();
    link.domain.as_ref().or_else(|| adapter()?.shared.as_ref())
}

impl Verbs {
    pub(super) fn queue_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        let Some(conn) = self.conns.get_mut(qp) else {
            let why = PostError::Closed;
            return Err(Refused { why, back: buf });
        };
        let place = match check_recv(&self.adapters, &self.regions, conn, &buf) {
            Ok(place) => place,
            Err(why) => return Err(Refused { why, back: buf }),
        };
        let item = RecvItem {
            tag,
            buf,
            len: 0,
            invalidated: None,
        };
        let id = conn.recvs.push(item, true);
        if let (Some(link), Some(place)) = (&mut conn.link, place) {
            chain_recv(link, id, place);
            // Together with requests that wait, and before them. Without any, it is posted at
            // once, because a message for it may be in flight already.
            if link.recv_chain.is_full() || !conn.listed {
                self.post_receives(qp);
            }
        }
        Ok(())
    }

    pub(super) fn queue_work(
        &mut self,
        qp: QpId,
        tag: Tag,
        work: Work,
    ) -> Result<(), Refused<Work>> {
        self.make_room(qp, 1);
        let Some(conn) = self.conns.get_mut(qp) else {
            let why = PostError::Closed;
            return Err(Refused { why, back: work });
        };
        let segment = match check_work(&self.adapters, conn, &work) {
            Ok(segment) => segment,
            Err(why) => return Err(Refused { why, back: work }),
        };
        match chain_work(&self.adapters, conn, tag, work, segment) {
            Ok(()) => {
                conn.work += 1;
                list(&mut self.listed, conn);
                Ok(())
            }
            Err(back) => {
                let why = PostError::NotRegistered;
                Err(Refused { why, back })
            }
        }
    }

    /// Queues a Send without a body.
    pub(super) fn queue_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let mut conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        if lacks_room(conn, 1) {
            self.post_chain(qp);
            conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        }
        check_entries(conn, 1)?;
        let link = conn.link.as_ref().ok_or(PostError::Closed)?;
        let (kind, body) = (WorkKind::Send, None);
        if !sends_inline(link, head.len(), invalidate) {
            let (head, solicited) = (*head, false);
            let work = Work::Send {
                head,
                body,
                invalidate,
                solicited,
            };
            let posted = self.queue_work(qp, tag, work).map(|()| Posted::Pending);
            return posted.map_err(|refused| refused.why);
        }
        check_length(head.len(), link.max_message)?;
        let op = SendOp::Send {
            payload: inline(head),
            invalidate: invalidate.map(|key| key.0),
            solicited: false,
        };
        chain(conn, caller_item(tag, kind, body), op, false);
        conn.work += 1;
        list(&mut self.listed, conn);
        Ok(Posted::Pending)
    }

    /// Queues an RDMA Write and its Send as one entry with one completion, that of the Send.
    pub(super) fn queue_response(
        &mut self,
        qp: QpId,
        tag: Tag,
        answer: WriteAndSend,
    ) -> Result<(), PostError> {
        let mut conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        if lacks_room(conn, 2) {
            self.post_chain(qp);
            conn = self.conns.get_mut(qp).ok_or(PostError::Closed)?;
        }
        check_entries(conn, 2)?;
        let link = conn.link.as_mut().ok_or(PostError::Closed)?;
        // On iWARP both may be signaled (see `chain`), and the head is not inline.
        if link.iwarp || answer.head.len() > link.inline {
            return self.queue_separately(qp, tag, answer);
        }
        let (local, remote) = (answer.local, answer.remote);
        let segment = local_segment(&self.adapters, link, &local)?;
        check_length(local.len(), link.max_message.min(remote.len))?;
        let item = SendItem::Work {
            tag,
            kind: WorkKind::Send,
            buf: Some(local),
            entries: 2,
            keeps: false,
        };
        let id = conn.sends.push(item, false);
        // The Write is never the last of a chain, so it completes only if it fails.
        link.send_chain.push(SendRequest {
            id,
            signalled: false,
            op: SendOp::Write {
                payload: Payload::Memory([segment, None]),
                addr: remote.addr,
                key: remote.key.0,
            },
        });
        link.send_chain.push(SendRequest {
            id,
            signalled: false,
            op: SendOp::Send {
                payload: Payload::Entry(&answer.head),
                invalidate: answer.invalidate.map(|key| key.0),
                solicited: false,
            },
        });
        conn.work += 2;
        list(&mut self.listed, conn);
        Ok(())
    }

    #[cold]
    fn queue_separately(
        &mut self,
        qp: QpId,
        tag: Tag,
        answer: WriteAndSend,
    ) -> Result<(), PostError> {
        for work in answer.into_works() {
            self.queue_work(qp, tag, work)
                .map_err(|refused| refused.why)?;
        }
        Ok(())
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

    /// Makes room for `count` more requests in the chain.
    #[inline]
    pub(super) fn make_room(&mut self, qp: QpId, count: usize) {
        if self
            .conns
            .get(qp)
            .is_some_and(|conn| lacks_room(conn, count))
        {
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

/// Whether its chain has no room for `count` more requests.
#[inline]
fn lacks_room(conn: &Conn, count: usize) -> bool {
    let full = |link: &Link| link.send_chain.is_full_for(count);
    conn.link.as_ref().is_some_and(full)
}

/// Adds a queue pair to those whose chains the next submit or poll posts.
#[inline]
pub(super) fn list(listed: &mut Vec<QpId>, conn: &mut Conn) {
    if !conn.listed {
        conn.listed = true;
        listed.push(conn.id);
    }
}

/// Returns the view of `buf` for the device if the queue pair exists already.
fn check_recv(
    adapters: &[Option<Adapter>],
    regions: &[Region],
    conn: &Conn,
    buf: &Buf,
) -> Result<Option<Segment>, PostError> {
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
    let Some(link) = &conn.link else {
        let region = buf.region();
        let is_registered = regions.iter().any(|one| one.id() == region);
        return match is_registered {
            true => Ok(None),
            false => Err(PostError::NotRegistered),
        };
    };
    let place = domain_of(adapters, link).and_then(|domain| domain.room(buf));
    place.map(Some).ok_or(PostError::NotRegistered)
}

/// Returns the local view for the device; `None` if it is empty.
fn check_work(
    adapters: &[Option<Adapter>],
    conn: &Conn,
    work: &Work,
) -> Result<Option<Segment>, PostError> {
    check_entries(conn, 1)?;
    // The negotiated number of Reads is 0: this one would wait for ever.
    if work.kind() == WorkKind::Read && conn.reads_out == 0 {
        return Err(PostError::QueueFull { depth: 0 });
    }
    let link = conn.link.as_ref().ok_or(PostError::Closed)?;
    let segment = match work.buf() {
        Some(buf) => local_segment(adapters, link, buf)?,
        None => None,
    };
    let max = match work {
        Work::Send { .. } => link.max_message,
        Work::Write { remote, .. } | Work::Read { remote, .. } => link.max_message.min(remote.len),
    };
    check_length(work.len(), max)?;
    Ok(segment)
}

/// Checks that the queue pair takes work, and has `count` entries for it.
fn check_entries(conn: &Conn, count: u32) -> Result<(), PostError> {
    if conn.phase != Phase::Running {
        return Err(conn.phase.refusal());
    }
    let depth = conn.config.sends;
    match conn.work + count > depth {
        true => Err(PostError::QueueFull { depth }),
        false => Ok(()),
    }
}

fn check_length(len: usize, max: u32) -> Result<(), PostError> {
    let max = max as usize;
    match len > max {
        true => Err(PostError::TooLong { len, max }),
        false => Ok(()),
    }
}

/// The view of `buf` for a work request; `None` if it is empty.
fn local_segment(
    adapters: &[Option<Adapter>],
    link: &Link,
    buf: &Buf,
) -> Result<Option<Segment>, PostError> {
    let segment = domain_of(adapters, link).and_then(|domain| domain.room(buf));
    let segment = segment.ok_or(PostError::NotRegistered)?;
    Ok(Some(segment).filter(|segment| segment.len > 0))
}

fn chain_recv(link: &mut Link, id: u64, place: Segment) {
    // InfiniBand hardware interprets a length of 0 as 2 GiB.
    let place = Some(place).filter(|place| link.iwarp || place.len > 0);
    link.recv_chain.push(id, place);
}

/// Posts the receives that were queued before the queue pair was created.
pub(super) fn post_early_recvs(adapters: &[Option<Adapter>], conn: &mut Conn) -> io::Result<()> {
    let Some(link) = &conn.link else {
        return Ok(());
    };
    let domain = domain_of(adapters, link);
    let places = conn.recvs.iter().map(|(id, item)| {
        let place = domain.and_then(|domain| domain.room(&item.buf));
        Some((id, place?))
    });
    let places: Option<Vec<(u64, Segment)>> = places.collect();
    for (id, place) in places.ok_or(io::ErrorKind::NotFound)? {
        if let Some(link) = &mut conn.link {
            chain_recv(link, id, place);
        }
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
    // SAFETY: each request names buffers that `conn.sends` or `conn.kept` keeps until it
    // completed or the queue pair is gone (`chain`); what a bind opens is a buffer that the
    // provider keeps until it is withdrawn. Windows are those of this provider, which is
    // used by one thread. The domain of regions that are not kept is that of the adapter, which
    // exists as long as a queue pair uses it.
    unsafe {
        link.send_chain.post(&conn.cm)
    }
}

/// Whether a Send of `len` bytes has them in its work request. Linux siw supports no inline data
/// in a Send with Invalidate.
#[inline]
fn sends_inline(link: &Link, len: usize, invalidate: Option<RemoteKey>) -> bool {
    len <= link.inline && !(link.iwarp && invalidate.is_some())
}

/// Records the caller's work, whose local view is `segment`, and chains it.
fn chain_work(
    adapters: &[Option<Adapter>],
    conn: &mut Conn,
    tag: Tag,
    work: Work,
    segment: Option<Segment>,
) -> Result<(), Work> {
    let (kind, link) = (work.kind(), conn.link.as_ref());
    match work {
        Work::Send {
            head,
            body,
            invalidate,
            solicited,
        } => {
            let op = |payload| SendOp::Send {
                payload,
                invalidate: invalidate.map(|key| key.0),
                solicited,
            };
            let total = head.len() + body.as_ref().map_or(0, |body| body.len());
            if link.is_some_and(|link| sends_inline(link, total, invalidate)) {
                let bytes = body.as_ref().map(|body| joined(&head, body));
                let bytes = bytes.as_ref().unwrap_or(head.array());
                let len = u32::try_from(total).unwrap_or(0);
                let op = op(Payload::Inline { bytes, len });
                chain(conn, caller_item(tag, kind, body), op, false);
                return Ok(());
            }
            let Some(first) = keep_head(conn, &head) else {
                return Err(Work::Send {
                    head,
                    body,
                    invalidate,
                    solicited,
                });
            };
            let op = op(Payload::Memory([first, segment]));
            let mut item = caller_item(tag, kind, body);
            if let SendItem::Work { keeps, .. } = &mut item {
                *keeps = first.is_some();
            }
            chain(conn, item, op, false);
        }
        Work::Write { local, remote } => {
            let short = link.is_some_and(|link| local.len() <= link.inline);
            let bytes = short.then(|| joined(&local, &[]));
            let len = u32::try_from(local.len()).unwrap_or(0);
            let payload = match &bytes {
                Some(bytes) => Payload::Inline { bytes, len },
                None => Payload::Memory([segment, None]),
            };
            let op = SendOp::Write {
                payload,
                addr: remote.addr,
                key: remote.key.0,
            };
            chain(conn, caller_item(tag, kind, Some(local)), op, false);
        }
        Work::Read { local, remote } => {
            return chain_read(adapters, conn, tag, local, remote, segment);
        }
    }
    Ok(())
}

/// An item with one entry and no further memory.
fn caller_item(tag: Tag, kind: WorkKind, buf: Option<Buf>) -> SendItem {
    SendItem::Work {
        tag,
        kind,
        buf,
        entries: 1,
        keeps: false,
    }
}

/// A registered copy of a head, which the next item keeps. The outer `None`: there is no memory
/// for it.
fn keep_head(conn: &mut Conn, head: &[u8]) -> Option<Option<Segment>> {
    if head.is_empty() {
        return Some(None);
    }
    let link = conn.link.as_ref()?;
    let copied = link.heads.copy(head)?;
    let segment = link.heads.segment(&copied)?;
    conn.kept.push_back(Kept::Head(copied));
    Some(Some(segment))
}

fn chain_read(
    adapters: &[Option<Adapter>],
    conn: &mut Conn,
    tag: Tag,
    local: Buf,
    remote: RemoteSlice,
    segment: Option<Segment>,
) -> Result<(), Work> {
    let (addr, key) = (remote.addr, remote.key.0);
    let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
    let mut item = caller_item(tag, WorkKind::Read, None);
    let (op, signalled) = match segment {
        Some(_) if iwarp => match open_sink(adapters, conn, &local) {
            Ok(sink) => {
                if let SendItem::Work { keeps, .. } = &mut item {
                    *keeps = true;
                }
                let local = Some(sink);
                (SendOp::Read { local, addr, key }, true)
            }
            Err(error) => {
                let error = explain(&error);
                log_peer!(
                    warn,
                    conn,
                    "memory for an RDMA Read cannot be registered: {error}"
                );
                return Err(Work::Read { local, remote });
            }
        },
        // iWARP needs memory for each Read (RFC 5040, section 4.4): one of no bytes is replaced
        // by an empty Write, which exposes nothing.
        None if iwarp => {
            let payload = Payload::NOTHING;
            (SendOp::Write { payload, addr, key }, false)
        }
        local => (SendOp::Read { local, addr, key }, true),
    };
    if let SendItem::Work { buf, .. } = &mut item {
        *buf = Some(local);
    }
    chain(conn, item, op, signalled);
    Ok(())
}

/// `head` and `body` of a short message.
fn joined(head: &[u8], body: &[u8]) -> [u8; INLINE] {
    let mut bytes = [0; INLINE];
    for (place, byte) in bytes.iter_mut().zip(head.iter().chain(body)) {
        *place = *byte;
    }
    bytes
}

/// A head as inline data.
fn inline(head: &Inline) -> Payload<'_> {
    let len = u32::try_from(head.len()).unwrap_or(0);
    Payload::Inline {
        bytes: head.array(),
        len,
    }
}

/// Records a request and adds it to the chain, which must have room. `signalled` reads are
/// completed only by their own completion. Inlined, because callers know the operation.
#[inline(always)]
pub(super) fn chain(conn: &mut Conn, item: SendItem, mut op: SendOp<'_>, signalled: bool) {
    let alone = signalled && matches!(op, SendOp::Read { .. });
    let id = conn.sends.push(item, alone);
    if let Some(link) = &mut conn.link {
        // Linux siw passes pages of unsignaled work to TCP without a copy, where they stay
        // until the peer acknowledges them: long after a later completion reports that the
        // work is complete. Pages of signaled work are copied.
        let copied = link.iwarp && op.sends_memory();
        if link.siw {
            siw::in_two(&mut op);
        }
        link.send_chain.push(SendRequest {
            id,
            signalled: signalled || copied,
            op,
        });
    }
}

/// On iWARP a peer responds to an RDMA Read by writing to a key, so exactly the destination
/// is exposed to it for the duration of the Read (RFC 5040, section 4.4). That costs two
/// system calls per Read, but exposes nothing else. The next item keeps the registration.
fn open_sink(adapters: &[Option<Adapter>], conn: &mut Conn, local: &Buf) -> io::Result<Segment> {
    let unknown = || io::Error::from(io::ErrorKind::NotFound);
    let link = conn.link.as_ref().ok_or_else(unknown)?;
    let domain = domain_of(adapters, link).ok_or_else(unknown)?;
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
    // SAFETY: the caller keeps `local`, whose view this is, with the registration, and closes
    // that first.
    let opened = unsafe { MemoryRegion::remote(domain.pd(), region.region(), piece, rights) }?;
    let segment = Segment {
        addr: opened.name_of(local.region_offset()),
        len: u32::try_from(local.len()).map_err(|_| unknown())?,
        key: opened.local_key(),
    };
    conn.kept.push_back(Kept::Sink(opened));
    Ok(segment)
}
