//! The contract of providers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_memory::{Buf, Region};

use crate::{
    Address, ConnectError, Event, ExposeError, Inline, Limits, ListenError, ListenerId, PostError,
    Posted, PrivateData, QpConfig, QpId, QpOwner, Refused, RegionExposure, RemoteKey, RemoteSlice,
    Rights, SharedReceives, SrqId, Tag, Work, WriteAndSend,
};

/// Minimum interval between accepted connections while commands of other hosts are served.
/// Setting up and closing a connection costs as much as some hundred commands. Without this
/// pace, peers that reconnect continuously leave the others next to nothing.
///
/// The owner of a provider paces its responses to [`Event::ConnectRequest`]. A provider paces
/// expensive work before that event: software iWARP accepts TCP connections.
pub const ACCEPT_PACE: Duration = Duration::from_millis(1);

/// How far data of a queue pair have moved. Both numbers only grow; their initial values have
/// no meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Grows at least by the number of bytes that arrived for RDMA Reads.
    pub pulled: u64,
    /// Bytes sent, of any work: handed to the transport.
    pub sent: u64,
}

/// One RDMA provider, driven by one thread.
///
/// # Life cycle of a queue pair
///
/// ```text
///  active side                        passive side
///  connect() ── QpId                  Event::ConnectRequest { qp }
///     │ post_recv()                      │ prepare(), post_recv()
///     ▼                                  ▼
///  Connecting ─► Event::Rejected      accept() or reject()
///     │               │                  │          │
///     ▼               │                  ▼          │
///  Event::Established │               Event::Established
///     │               │                  │          │
///     ▼               ▼                  ▼          ▼
///  disconnect(), the peer's, or a fault: Event::Ending if that takes a while
///  and this side did not call disconnect(), every work request returns, then
///  Event::Closed, the last event of a queue pair, always and exactly once.
/// ```
///
/// # Promises of every provider
/// * Every accepted work request returns exactly once, except a message that
///   [`post_message`](Self::post_message) reports as done: sends, writes and reads as
///   [`Event::Completion`] in the order they were posted, receives as [`Event::Received`] in
///   the order they were posted. Shared receives return in any order; messages of one queue
///   pair stay in order.
/// * When a queue pair fails or closes, outstanding work returns as
///   [`Outcome::Flushed`](crate::Outcome::Flushed) before [`Event::Closed`].
/// * A withdrawn buffer returns exactly once: from [`withdraw`](Self::withdraw) or as
///   [`Event::Withdrawn`], before [`Event::Closed`].
/// * A refused call changes nothing and returns its argument.
/// * A peer accesses exactly the bytes exposed on its own queue pair, with the granted
///   rights, until the key is withdrawn or invalidated, or the queue pair is closed. A peer
///   that its owner trusts also accesses the regions of [`expose_region`](Self::expose_region).
/// * Work submitted on one queue pair takes effect in order: a Send posted
///   after a Write reaches the peer after the written data is in place.
/// * Memory and descriptors held for peers that are not accepted yet are
///   bounded by [`Limits::max_pending`].
pub trait Provider: Send {
    /// Limits of this provider. They never change.
    fn limits(&self) -> &Limits;

    /// A short name for logs and messages: `iwarp`, `verbs`, `sim`.
    fn name(&self) -> &'static str;

    /// Registers `region`, so that its buffers can be used for work on this provider.
    ///
    /// # Errors
    /// When the region cannot be registered.
    fn register(&mut self, region: &Region) -> Result<(), std::io::Error>;

    /// Listens on `addr`; port 0 selects a free one. Returns the address in use.
    ///
    /// # Errors
    /// [`ListenError`] names address, cause and remedy. A provider that does not support this
    /// kind of address returns [`ListenError::Kind`].
    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Stops listening. Requests already reported stay valid; unknown listeners are ignored.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect. Receives may be posted immediately, other work after
    /// [`Event::Established`]. The outcome is an event: `Established`, or `Rejected` and
    /// `Closed`, or `Closed`.
    ///
    /// # Errors
    /// [`ConnectError`] when it cannot be attempted.
    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError>;

    /// Sets the host, subsystem and queue of the queue pair. The owner calls it when it knows
    /// them, and again when it knows more. Each later log line about the peer names them.
    fn set_owner(&mut self, _qp: QpId, _owner: QpOwner) {}

    /// The local address that the peer of `qp` connected to. `None` if it is unknown, and for
    /// a closed queue pair.
    fn local_addr(&self, _qp: QpId) -> Option<Address> {
        None
    }

    /// Whether the peer of `qp` may invalidate keys with its messages. On InfiniBand and RoCE
    /// a peer can invalidate memory windows but not plain registrations: a device without
    /// windows treats that as a fault, and its keys are only withdrawn.
    fn peer_may_invalidate(&self, _qp: QpId) -> bool {
        true
    }

    /// Whether the peer of `qp` accesses `buf` directly once it is exposed. Data then cost
    /// least that way, even data that would fit a message.
    fn peer_works_in_place(&self, _qp: QpId, _buf: &Buf) -> bool {
        false
    }

    /// The memory of `remote` as a buffer, where the peer shares it, instead of an RDMA Read
    /// or Write. Its bytes *are* those of the peer, which may change them at any time: hand
    /// them to a device, fill them or copy them, and base no decision on them.
    ///
    /// `rights` names the intended access: reading is [`Rights::REMOTE_READ`], changing is
    /// [`Rights::REMOTE_WRITE`]. The peer cannot withdraw the key before the buffer is
    /// dropped, and a Send that invalidates the key is refused until then. The buffer may
    /// outlive the queue pair and the peer.
    ///
    /// `None` if this is not possible, for any reason: then use a Read or Write, which
    /// reports the cause if it fails.
    fn map_remote(&mut self, _qp: QpId, _remote: RemoteSlice, _rights: Rights) -> Option<Buf> {
        None
    }

    /// Sets the sizes of the queue pair of an [`Event::ConnectRequest`]. After that receives
    /// can be posted and [`accept`](Self::accept) be called.
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is closed or not in that state, or the sizes are
    /// above [`Limits`].
    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError>;

    /// Accepts the connection. The numbers of RDMA Reads in [`QpConfig`] are lowered to what
    /// both sides support. [`Event::Established`] or `Closed` follows. The provider may hold
    /// back what the accepting side posts until the first message of the peer arrives, as
    /// iWARP requires (RFC 5044, 7.1.2).
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is closed or was not prepared.
    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError>;

    /// Rejects the connection; [`Event::Closed`] follows.
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is closed or not a pending request.
    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError>;

    /// Posts a receive: the next message is placed into the view of `buf`, from its start. If
    /// requests wait for [`submit`](Self::submit), it may be posted together with them.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be posted.
    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>>;

    /// Lets the queue pair of an [`Event::ConnectRequest`] take its receives from the shared
    /// receive queue of its device (InfiniBand Architecture, volume 1, section 10.2.9). The
    /// queue is created with about `entries` entries if it does not exist. `recvs` is the
    /// number of messages that the peer may have sent before the first one gets its response.
    /// To be called before [`prepare`](Self::prepare); after that nothing can be posted to
    /// the queue pair's own receive queue.
    ///
    /// A message that finds the queue empty waits at its sender. Returns `None`, and changes
    /// nothing, for a queue pair that is not in that state, where there are no such queues,
    /// and where messages do not wait reliably and the queue has no room for `recvs` more.
    /// iWARP has none: there a message without a receive ends the connection, and if it did
    /// wait, everything behind it in the same stream would have to wait as well.
    ///
    /// The queue exists until the last queue pair that uses it is closed. Receives that are
    /// posted then are dropped, so that their buffers return to their pools, and the
    /// identifier is not reused.
    fn share_receives(&mut self, _qp: QpId, _recvs: u32, _entries: u32) -> Option<SharedReceives> {
        None
    }

    /// Posts a receive for a message to any of the queue pairs that use `srq`. It returns as
    /// [`Event::Received`] of the queue pair that took it, flushed if that failed, or is
    /// dropped with the queue.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be posted.
    fn post_shared_recv(&mut self, _srq: SrqId, _tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        Err(Refused {
            why: PostError::Closed,
            back: buf,
        })
    }

    /// Queues a send, write or read. It is sent with the next [`submit`](Self::submit) or
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Refused`] with the work when it cannot be posted.
    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>>;

    /// Queues a [`Work::Send`] without a body, like [`post`](Self::post). A provider that has
    /// passed it on already may report that at once, if all work before it is complete.
    ///
    /// # Errors
    /// [`PostError`] when it cannot be posted.
    fn post_message(
        &mut self,
        qp: QpId,
        tag: Tag,
        head: &Inline,
        invalidate: Option<RemoteKey>,
    ) -> Result<Posted, PostError> {
        let work = Work::Send {
            head: *head,
            body: None,
            invalidate,
            solicited: false,
        };
        let posted = self.post(qp, tag, work).map(|()| Posted::Pending);
        posted.map_err(|refused| refused.why)
    }

    /// Queues an RDMA Write and a Send of a few bytes behind it, both under `tag`: the
    /// response to a command that reads data. It takes two entries of the send queue. Both
    /// return, as from [`post`](Self::post), or only the Send, which then has the buffer.
    ///
    /// # Errors
    /// [`PostError`] when one of them cannot be posted. The Write may be queued nevertheless
    /// and then returns: the only remedy is to [`disconnect`](Self::disconnect).
    fn post_response(&mut self, qp: QpId, tag: Tag, answer: WriteAndSend) -> Result<(), PostError> {
        for work in answer.into_works() {
            self.post(qp, tag, work).map_err(|refused| refused.why)?;
        }
        Ok(())
    }

    /// Lets the peer of `qp` access the view of `buf` with `rights`, by the returned key.
    /// Keys are not reused soon.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be exposed.
    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>>;

    /// Withdraws a buffer from the peer and returns it, with the view it was exposed with.
    /// Works whether or not the peer invalidated the key, and after the queue pair is closed.
    /// When the buffer returns, the peer cannot access its bytes any more.
    ///
    /// `None` if a device has to end the access first: the buffer returns with
    /// [`Event::Withdrawn`], before [`Event::Closed`]. The next [`submit`](Self::submit) or
    /// [`poll`](Self::poll) sends the request, and a queue pair on which it takes too long is
    /// closed. This never waits.
    ///
    /// # Errors
    /// [`ExposeError::UnknownKey`] when no memory is exposed by this key, or it is withdrawn.
    /// [`ExposeError::Busy`] while an RDMA Read of it by the peer is in progress: only a peer
    /// that violates its protocol does that; disconnect first.
    fn withdraw(&mut self, key: RemoteKey) -> Result<Option<Buf>, ExposeError>;

    /// Registers `region` for `qp` alone, and exposes all of it to the peer, which is trusted
    /// ([`QpConfig::trusts_peer`]): until [`Event::Closed`], the peer may read and write each
    /// buffer of the region, in use or not. Peers of other queue pairs may not. This is for
    /// devices where exposing each buffer costs time. The queue pair must be established.
    ///
    /// Only the end of the queue pair ends this access. The owner must not reuse a buffer whose
    /// address it has sent to the peer before the response, or before [`Event::Closed`]. Nothing
    /// detects a peer that accesses other buffers: the owner accepts that their bytes may change
    /// at any time.
    ///
    /// Returns `None`, and changes nothing, if the queue pair is not in that state or its peer
    /// is not trusted, and where [`expose`](Self::expose) costs little.
    ///
    /// # Errors
    /// When the region cannot be registered.
    fn expose_region(
        &mut self,
        _qp: QpId,
        _region: &Region,
    ) -> Result<Option<RegionExposure>, std::io::Error> {
        Ok(None)
    }

    /// Closes the queue pair. Submitted work is still attempted for a bounded time,
    /// everything returns, and [`Event::Closed`] follows. Ignored for a closed queue pair.
    fn disconnect(&mut self, qp: QpId);

    /// Closes the queue pair as [`disconnect`](Self::disconnect) does, but attempts no more
    /// work: for a peer that receives nothing and whose buffers others wait for.
    fn abort(&mut self, qp: QpId) {
        self.disconnect(qp);
    }

    /// How far data of `qp` have moved, to detect a stalled peer. `None` where only
    /// completions show that, and for a closed queue pair.
    fn progress(&self, _qp: QpId) -> Option<Progress> {
        None
    }

    /// Sends what was posted since the last call, with as many work requests per system call
    /// or doorbell as possible.
    fn submit(&mut self, now: Duration);

    /// Makes progress and appends new events to `events`. Returns whether there was any
    /// progress. Never blocks. One call does a bounded amount of work, so that other sources
    /// are served as well.
    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool;

    /// A descriptor that is readable as long as [`poll`](Self::poll) has something to do.
    /// Wait for the level, not for an edge, because a poll without events may leave something
    /// unseen. Before sleeping on it the caller calls [`submit`](Self::submit), polls until there
    /// is no progress, and calls [`rest`](Self::rest). `None` if the provider can only be polled,
    /// as in some tests.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// The latest time of the next [`poll`](Self::poll), even if [`wait_fd`](Self::wait_fd)
    /// is not readable: a time-out of a handshake, or now, if polling is the only way to
    /// detect something.
    fn next_deadline(&self) -> Option<Duration>;

    /// Announces that the caller is going to sleep: from now on, until the next poll,
    /// everything that the provider otherwise only polls makes [`wait_fd`](Self::wait_fd)
    /// readable. If [`next_deadline`](Self::next_deadline) is not in the future after this,
    /// there is something to do already.
    fn rest(&mut self) {}
}
