//! The contract itself.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nvmeof_memory::{Buf, Region};

use crate::{
    Address, Answer, ConnectError, Event, ExposeError, Limits, ListenError, ListenerId, PostError,
    PrivateData, QpConfig, QpId, Refused, RemoteKey, RemoteSlice, Rights, SharedReceives, SrqId,
    Tag, Whose, Work,
};

/// While commands of others are served, at most one connection is accepted in this time. To
/// set one up and to take it down costs as much as some hundred commands: without a pace,
/// peers that connect again and again leave the others next to nothing.
///
/// The owner of a provider paces the answers to [`Event::ConnectRequest`]. A provider paces
/// what it does before that where it is much: software iWARP accepts TCP connections.
pub const ACCEPT_PACE: Duration = Duration::from_millis(1);

/// How far data of a queue pair have got. Both numbers only grow; what they begin
/// with means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Of what RDMA Reads bring: at least as many bytes more arrived.
    pub pulled: u64,
    /// Bytes that left, whatever of.
    pub sent: u64,
}

/// One RDMA provider, driven by one thread.
///
/// # The life of a queue pair
///
/// ```text
///  active side                        passive side
///  connect() ── QpId                  Event::ConnectRequest { qp }
///     │ post_recv() at once              │ prepare(), post_recv()
///     ▼                                  ▼
///  Connecting ─► Event::Rejected      accept() or reject()
///     │               │                  │          │
///     ▼               │                  ▼          │
///  Event::Established │               Event::Established
///     │               │                  │          │
///     ▼               ▼                  ▼          ▼
///  disconnect(), the peer's, or a fault: Event::Ending if that takes a
///  while and we did not ask for it, every work request comes back, then
///  Event::Closed, the last event of a queue pair, always and once.
/// ```
///
/// # Promises of every provider
/// * Every accepted work request comes back exactly once: sends, writes and
///   reads as [`Event::Completion`] in the order they were posted, receives as
///   [`Event::Received`] in the order they were posted. Shared receives come
///   back in any order; messages of one queue pair stay in theirs.
/// * When a queue pair fails or closes, what is outstanding comes back
///   [`Outcome::Flushed`](crate::Outcome::Flushed) before [`Event::Closed`].
/// * A refused call changes nothing and gives back what it was given.
/// * A peer reaches exactly the bytes exposed on its own queue pair, with the
///   rights given, until the key is withdrawn or invalidated, or the queue
///   pair is closed.
/// * Work submitted on one queue pair takes effect in order: a Send posted
///   after a Write reaches the peer after the written data is in place.
/// * Memory and descriptors held for peers that are not accepted yet are
///   bounded by [`Limits::max_pending`].
pub trait Provider: Send {
    /// What this provider can do. Fixed for its life.
    fn limits(&self) -> &Limits;

    /// A short name for logs and messages: `iwarp`, `verbs`, `sim`.
    fn name(&self) -> &'static str;

    /// Makes the buffers of `region` usable for work on this provider.
    ///
    /// # Errors
    /// When the machine does not let the region be registered.
    fn register(&mut self, region: &Region) -> Result<(), std::io::Error>;

    /// Listens on `addr`; port 0 takes a free one. Returns the address in use.
    ///
    /// # Errors
    /// [`ListenError`] names address, cause and remedy. A provider that does not
    /// serve this kind of address says [`ListenError::Kind`].
    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError>;

    /// Stops listening. Requests that were reported already stay; unknown
    /// listeners are ignored.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts to connect. Receives may be posted at once, other work after
    /// [`Event::Established`]. The outcome is an event: `Established`, or
    /// `Rejected` and `Closed`, or `Closed`.
    ///
    /// # Errors
    /// [`ConnectError`] when it cannot even be tried.
    fn connect(
        &mut self,
        addr: Address,
        config: &QpConfig,
        private_data: &PrivateData,
        now: Duration,
    ) -> Result<QpId, ConnectError>;

    /// Tells whose the queue pair is, as soon as its owner knows and whenever it knows
    /// more. From then on each line of the log about its peer says so.
    fn set_whose(&mut self, _qp: QpId, _whose: Whose) {}

    /// The address of ours that the peer of `qp` reached. `None` where that is
    /// not known, and for a queue pair that is gone.
    fn local_addr(&self, _qp: QpId) -> Option<Address> {
        None
    }

    /// Whether the peer of `qp` may be told to invalidate keys with its
    /// messages. On InfiniBand and RoCE a peer can invalidate memory windows
    /// and not plain registrations: a device without windows takes it for a
    /// fault, and keys there are withdrawn only.
    fn peer_may_invalidate(&self, _qp: QpId) -> bool {
        true
    }

    /// Whether the peer of `qp` reaches `buf` as its own memory once it is
    /// exposed, so that data cost least that way, even those that would fit a
    /// message.
    fn peer_works_in_place(&self, _qp: QpId, _buf: &Buf) -> bool {
        false
    }

    /// The memory that `remote` names, as a buffer: where the peer shares it,
    /// instead of an RDMA Read or Write of it. Its bytes *are* the peer's, who
    /// may change them at any time: hand them to a device, fill them or copy
    /// them, and decide nothing by them.
    ///
    /// `rights` says what will be done: to look is
    /// [`Rights::REMOTE_READ`], to change is [`Rights::REMOTE_WRITE`]. The peer
    /// cannot withdraw the key before the buffer is dropped, and a Send that
    /// invalidates the key is refused before that. The buffer may outlive the
    /// queue pair and the peer.
    ///
    /// `None` wherever this is not possible, for any reason: then a Read or
    /// Write does it, or says why not.
    fn map_remote(&mut self, _qp: QpId, _remote: RemoteSlice, _rights: Rights) -> Option<Buf> {
        None
    }

    /// Gives the queue pair of a [`Event::ConnectRequest`] its sizes, after
    /// which receives can be posted and [`accept`](Self::accept) be called.
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is gone or not in that state, or the
    /// sizes are above [`Limits`].
    fn prepare(&mut self, qp: QpId, config: &QpConfig) -> Result<(), PostError>;

    /// Accepts the connection. Reads asked for in [`QpConfig`] are lowered to
    /// what both sides can do. [`Event::Established`] follows, or `Closed`.
    /// What the accepting side posts may be held until the peer's first
    /// message is there: iWARP demands it (RFC 5044, 7.1.2).
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is gone or was not prepared.
    fn accept(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError>;

    /// Refuses the connection; [`Event::Closed`] follows.
    ///
    /// # Errors
    /// [`PostError`] when the queue pair is gone or not a pending request.
    fn reject(&mut self, qp: QpId, private_data: &PrivateData) -> Result<(), PostError>;

    /// Posts a receive: the next message that arrives is put into what `buf`
    /// has in view, from its start.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be posted.
    fn post_recv(&mut self, qp: QpId, tag: Tag, buf: Buf) -> Result<(), Refused<Buf>>;

    /// Has the queue pair of a [`Event::ConnectRequest`] draw its receives from
    /// the shared receive queue of its device (InfiniBand Architecture, volume
    /// 1, section 10.2.9), which is made with room for about `entries`
    /// receives if there is none. `recvs` says how many messages its peer may
    /// have sent before one is answered. To be called before
    /// [`prepare`](Self::prepare); nothing can be posted to the queue pair's
    /// own receive queue then.
    ///
    /// A message that finds the queue empty waits at its sender. `None`, and
    /// nothing is changed, for a queue pair that is not in that state, where
    /// there are no such queues, and where devices do not wait as they should
    /// while the queue has no room for `recvs` more. iWARP has none: a message without a
    /// receive ends the connection there, and if it did wait, what comes behind
    /// it in the same stream would have to wait as well.
    ///
    /// The queue is there until the last queue pair that draws from it is
    /// closed. What is posted then is dropped, so that its buffers go back to
    /// their pools, and the name is not used again.
    fn share_receives(&mut self, _qp: QpId, _recvs: u32, _entries: u32) -> Option<SharedReceives> {
        None
    }

    /// Posts a receive for a message to any of the queue pairs that draw from
    /// `srq`. It comes back as [`Event::Received`] of the queue pair that took
    /// it, flushed if that failed, or is dropped with the queue.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be posted.
    fn post_shared_recv(&mut self, _srq: SrqId, _tag: Tag, buf: Buf) -> Result<(), Refused<Buf>> {
        Err(Refused {
            why: PostError::Closed,
            back: buf,
        })
    }

    /// Queues a send, write or read. It goes out with the next
    /// [`submit`](Self::submit) or [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`Refused`] with the work when it cannot be posted.
    fn post(&mut self, qp: QpId, tag: Tag, work: Work) -> Result<(), Refused<Work>>;

    /// Queues an RDMA Write and a Send of a few bytes behind it, both under `tag`:
    /// what answers a command that asked for data. It takes two places of the send
    /// queue. Both come back, as from [`post`](Self::post), or only the Send, which
    /// has the buffer then.
    ///
    /// # Errors
    /// Why one of them cannot be posted. The Write may be queued nevertheless, and
    /// comes back if it is: nothing is left but to [`disconnect`](Self::disconnect).
    fn post_answer(&mut self, qp: QpId, tag: Tag, answer: Answer) -> Result<(), PostError> {
        for work in answer.into_works() {
            self.post(qp, tag, work).map_err(|refused| refused.why)?;
        }
        Ok(())
    }

    /// Lets the peer of `qp` reach what `buf` has in view, with `rights`, by
    /// the key in the answer. Keys are not reused soon.
    ///
    /// # Errors
    /// [`Refused`] with the buffer when it cannot be exposed.
    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>>;

    /// Takes a buffer out of the peer's reach and hands it back, view as it
    /// was exposed. Works whether the peer invalidated the key or not, and
    /// after the queue pair is closed. When this returns, the peer cannot
    /// touch the bytes any more.
    ///
    /// # Errors
    /// [`ExposeError::UnknownKey`] when nothing is exposed by that key.
    /// [`ExposeError::Busy`] while the peer's read of it is being answered:
    /// only a peer that broke its protocol does that; disconnect first.
    fn withdraw(&mut self, key: RemoteKey) -> Result<Buf, ExposeError>;

    /// Closes the queue pair: what was submitted is still tried for a bounded
    /// time, everything comes back, [`Event::Closed`] follows. Ignored for a
    /// queue pair that is gone.
    fn disconnect(&mut self, qp: QpId);

    /// Closes the queue pair as [`disconnect`](Self::disconnect) does, but tries
    /// nothing any more: for a peer that takes nothing, whose buffers others wait for.
    fn abort(&mut self, qp: QpId) {
        self.disconnect(qp);
    }

    /// How far data of `qp` have got, to detect a peer that stalled. `None` where
    /// that is only seen by completions, and for a queue pair that is gone.
    fn progress(&self, _qp: QpId) -> Option<Progress> {
        None
    }

    /// Sends off what was posted since the last time, as many work requests
    /// per system call or doorbell as there are.
    fn submit(&mut self, now: Duration);

    /// Makes progress and appends what happened to `events`. Returns whether
    /// anything did. Never waits. One call does a bounded amount of work, so
    /// that other sources get their turn.
    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool;

    /// A descriptor that is readable as long as [`poll`](Self::poll) has
    /// something to do: wait for the level, not for an edge, since a poll in
    /// which nothing happened may have left something unseen. Before sleeping
    /// on it the caller calls [`submit`](Self::submit) and polls until nothing
    /// happens.
    /// `None` where nobody ever sleeps, as in a test that polls.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;

    /// When [`poll`](Self::poll) has to be called at the latest, even if
    /// [`wait_fd`](Self::wait_fd) stays silent: a time-out of a handshake, or now, where
    /// polls look at something that does not wake anybody.
    fn next_deadline(&self) -> Option<Duration>;

    /// Whoever polls is going to sleep: what polls looked at by themselves makes
    /// [`wait_fd`](Self::wait_fd) readable from now on, until it is polled again. If
    /// [`next_deadline`](Self::next_deadline) is not later than now after this, there is
    /// something to do already.
    fn rest(&mut self) {}
}
