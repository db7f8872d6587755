//! Outstanding work of each queue pair, and checks of the general promises.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nvmeof_memory::Buf;

use nvmeof_rdma::{
    Completion, Event, Outcome, QpId, Received, RemoteKey, SrqId, Tag, Work, WorkKind, WriteAndSend,
};

/// Outstanding work of one provider.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    qps: BTreeMap<QpId, Account>,
    /// Outstanding shared receives, by tag and address.
    shared: BTreeSet<(SrqId, Tag, (u64, usize))>,
}

#[derive(Debug, Default)]
struct Account {
    recvs: VecDeque<Posted>,
    work: VecDeque<Posted>,
    /// Withdrawn keys whose buffers have not returned.
    withdrawn: BTreeSet<RemoteKey>,
    /// The shared receive queue that it uses, if any.
    draws: Option<SrqId>,
    established: bool,
    /// A request returned undone: from then on none succeeds.
    recvs_ended: bool,
    work_ended: bool,
    ending: bool,
    closed: bool,
}

/// A work request, and the address of its buffer.
#[derive(Debug)]
struct Posted {
    tag: Tag,
    kind: Option<WorkKind>,
    place: Option<(u64, usize)>,
    /// The Write of a response, of which only the message may return.
    of_answer: bool,
}

fn place(buf: &Buf) -> (u64, usize) {
    (buf.addr(), buf.len())
}

impl Outstanding {
    /// Adds a new queue pair.
    pub(super) fn open(&mut self, qp: QpId) {
        let known = self.qps.insert(qp, Account::default());
        assert!(known.is_none(), "the identifier {qp:?} was used twice");
    }

    pub(super) fn posted_recv(&mut self, qp: QpId, tag: Tag, place: (u64, usize)) {
        let posted = Posted {
            tag,
            kind: None,
            place: Some(place),
            of_answer: false,
        };
        self.account(qp).recvs.push_back(posted);
    }

    /// A queue pair uses `srq` from now on.
    pub(super) fn draws(&mut self, qp: QpId, srq: SrqId) {
        self.account(qp).draws = Some(srq);
    }

    pub(super) fn posted_shared(&mut self, srq: SrqId, tag: Tag, place: (u64, usize)) {
        let new = self.shared.insert((srq, tag, place));
        assert!(new, "{tag:?} posted twice: cases use each tag once");
    }

    /// Outstanding shared receives.
    pub(super) fn shared(&self, srq: SrqId) -> usize {
        let of = self.shared.iter().filter(|(one, ..)| *one == srq);
        of.count()
    }

    fn came_back(&mut self, received: &Received) {
        if let Some(srq) = self.account(received.qp).draws {
            let name = (srq, received.tag, place(&received.buf));
            assert!(self.shared.remove(&name), "not outstanding: {received:?}");
        } else {
            self.account(received.qp).took(received);
        }
    }

    pub(super) fn posted_work(&mut self, qp: QpId, tag: Tag, sign: &WorkSign) {
        let posted = Posted {
            tag,
            kind: Some(sign.kind),
            place: sign.place,
            of_answer: false,
        };
        self.account(qp).work.push_back(posted);
    }

    pub(super) fn posted_answer(&mut self, qp: QpId, tag: Tag, data: &WorkSign) {
        self.posted_work(qp, tag, data);
        if let Some(write) = self.account(qp).work.back_mut() {
            write.of_answer = true;
        }
        let (kind, place) = (WorkKind::Send, None);
        self.posted_work(qp, tag, &WorkSign { kind, place });
    }

    /// The buffer of a key returns later.
    pub(super) fn withdrawn(&mut self, qp: QpId, key: RemoteKey) {
        let account = self.account(qp);
        assert!(!account.closed, "its buffer would return after Closed");
        account.withdrawn.insert(key);
    }

    /// Queue pairs that are not closed.
    pub(super) fn open_qps(&self) -> Vec<QpId> {
        let open = self.qps.iter().filter(|(_, account)| !account.closed);
        open.map(|(qp, _)| *qp).collect()
    }

    pub(super) fn is_closed(&self, qp: QpId) -> bool {
        self.qps.get(&qp).is_some_and(|account| account.closed)
    }

    pub(super) fn recvs(&self, qp: QpId) -> usize {
        self.qps.get(&qp).map_or(0, |account| account.recvs.len())
    }

    pub(super) fn work(&self, qp: QpId) -> usize {
        self.qps.get(&qp).map_or(0, |account| account.work.len())
    }

    fn account(&mut self, qp: QpId) -> &mut Account {
        let account = self.qps.get_mut(&qp);
        account.unwrap_or_else(|| panic!("the identifier {qp:?} is unknown"))
    }

    /// Records an event and checks it against what was posted.
    pub(super) fn event(&mut self, event: &Event) {
        if let Event::ConnectRequest(request) = event {
            self.open(request.qp);
            return;
        }
        if let Event::Received(received) = event {
            self.came_back(received);
        }
        let account = self.account(event.qp());
        assert!(!account.closed, "an event after Closed: {event:?}");
        match event {
            Event::ConnectRequest(_) => {}
            Event::Established { .. } => {
                assert!(!account.established, "established twice: {event:?}");
                account.established = true;
            }
            Event::Rejected { .. } => {
                assert!(!account.established, "rejected after all: {event:?}");
            }
            Event::Received(received) => account.received(received),
            Event::Completion(completion) => account.completed(completion),
            Event::Withdrawn { key, .. } => {
                let is_awaited = account.withdrawn.remove(key);
                assert!(is_awaited, "not withdrawn, or returned before: {event:?}");
            }
            Event::Ending { .. } => {
                assert!(account.established, "it was not established: {event:?}");
                assert!(!account.ending, "reported twice: {event:?}");
                account.ending = true;
            }
            Event::Closed { .. } => {
                assert!(
                    account.recvs.is_empty()
                        && account.work.is_empty()
                        && account.withdrawn.is_empty(),
                    "Closed before these returned: {:?} {:?} {:?}",
                    account.recvs,
                    account.work,
                    account.withdrawn
                );
                account.closed = true;
            }
        }
    }
}

impl Account {
    /// Checks that it was the oldest of its own receives.
    fn took(&mut self, received: &Received) {
        let Some(posted) = self.recvs.pop_front() else {
            panic!("no receive was outstanding: {received:?}");
        };
        assert_eq!(posted.tag, received.tag, "receives return in order");
        assert_eq!(posted.place, Some(place(&received.buf)), "buffer and view");
    }

    fn received(&mut self, received: &Received) {
        assert!(received.len <= received.buf.len(), "{received:?}");
        if received.outcome.is_success() {
            assert!(!self.recvs_ended, "success after failure: {received:?}");
            assert!(self.established, "before the connection: {received:?}");
        } else {
            self.recvs_ended = true;
            let nothing = received.len == 0 && received.invalidated.is_none();
            assert!(nothing, "a failed receive has length 0: {received:?}");
        }
    }

    fn completed(&mut self, completion: &Completion) {
        let Some(mut posted) = self.work.pop_front() else {
            panic!("no work was outstanding: {completion:?}");
        };
        if posted.of_answer && completion.kind == WorkKind::Send {
            let place = posted.place;
            posted = self.work.pop_front().expect("its message");
            posted.place = place;
        }
        assert_eq!(posted.tag, completion.tag, "completions come in order");
        assert_eq!(posted.kind, Some(completion.kind), "{completion:?}");
        let came_back = completion.buf.as_ref().map(place);
        assert_eq!(posted.place, came_back, "buffer and view");
        if completion.outcome == Outcome::Success {
            assert!(!self.work_ended, "success after failure: {completion:?}");
        } else {
            self.work_ended = true;
        }
    }
}

/// Properties that identify a work request when it returns.
#[derive(Debug)]
pub(super) struct WorkSign {
    kind: WorkKind,
    place: Option<(u64, usize)>,
}

impl WorkSign {
    pub(super) fn of_answer(reply: &WriteAndSend) -> Self {
        Self {
            kind: WorkKind::Write,
            place: Some(place(&reply.local)),
        }
    }

    pub(super) fn of(work: &Work) -> Self {
        let buf = match work {
            Work::Send { body, .. } => body.as_ref(),
            Work::Write { local, .. } | Work::Read { local, .. } => Some(local),
        };
        Self {
            kind: work.kind(),
            place: buf.map(place),
        }
    }
}
