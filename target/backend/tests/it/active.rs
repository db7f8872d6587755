//! Only backing stores with requests in flight are polled, each of them in each iteration.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests index what they made"
)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use nvmeof_backend::{
    Backend, BackingStores as _, Claim, Geometry, Io, Op, RefusalReason, Request, Submitted,
    UringStores,
};
use nvmeof_uring::{self as uring, Ring, RingConfig};

/// What the test knows of one backing store.
#[derive(Default)]
struct State {
    requests: RefCell<VecDeque<Request>>,
    /// Requests that the next poll may complete.
    released: Cell<usize>,
    polls: Cell<usize>,
}

/// Keeps requests until the test releases them.
struct Keeps {
    backend: Box<dyn Backend>,
    state: Rc<State>,
}

impl Backend for Keeps {
    fn geometry(&self) -> &Geometry {
        self.backend.geometry()
    }

    fn name(&self) -> &str {
        self.backend.name()
    }

    fn submit(
        &mut self,
        request: &mut Request,
        _io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        let (tag, op) = (request.tag, request.op.take());
        let taken = Request { tag, op };
        self.state.requests.borrow_mut().push_back(taken);
        Ok(Submitted::Pending)
    }

    fn complete(&mut self, _done: uring::Done, _io: &mut Io<'_>) {}

    fn poll(&mut self, io: &mut Io<'_>) {
        self.state.polls.set(self.state.polls.get() + 1);
        for _ in 0..self.state.released.take() {
            let request = self.state.requests.borrow_mut().pop_front().unwrap();
            io.done(request.tag, request.op.into_buf(), Ok(()));
        }
    }

    fn waiting(&self) -> bool {
        self.state.released.get() > 0
    }

    fn in_flight(&self) -> usize {
        self.state.requests.borrow().len()
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        self.backend.close(ring)
    }
}

struct Rig {
    stores: UringStores,
    states: Vec<Rc<State>>,
}

impl Rig {
    fn new(count: u32) -> Self {
        let stores = UringStores::new(RingConfig::default()).unwrap();
        let states = Vec::new();
        let mut rig = Self { stores, states };
        for number in 0..count {
            rig.open(number);
        }
        rig
    }

    fn open(&mut self, number: u32) {
        let claim = Claim::take(&"null:1G".parse().unwrap(), None).unwrap();
        let state = Rc::new(State::default());
        self.states.push(Rc::clone(&state));
        let wrap = |backend| Box::new(Keeps { backend, state }) as Box<dyn Backend>;
        self.stores.open_wrapped(number, &claim, wrap).unwrap();
    }

    fn flush(&mut self, number: u32) {
        let (tag, op) = (u64::from(number), Op::Flush);
        let submitted = self.stores.submit(number, &mut Request { tag, op });
        assert!(matches!(submitted, Ok(Submitted::Pending)));
    }

    /// The next poll completes one request of each of them.
    fn release(&self, numbers: &[usize]) {
        for number in numbers {
            self.states[*number].released.set(1);
        }
    }

    /// Polls once. Returns the tags of completed requests, and the stores that were polled.
    fn poll(&mut self) -> (Vec<u64>, Vec<usize>) {
        let mut done = Vec::new();
        let any = self.stores.poll(&mut done).unwrap();
        assert_eq!(any, !done.is_empty());
        let mut tags: Vec<_> = done.iter().map(|done| done.tag).collect();
        tags.sort_unstable();
        let polls = self.states.iter().map(|state| state.polls.take());
        let polled = (0..).zip(polls).filter(|(_, polls)| *polls > 0);
        let polled = polled.inspect(|(number, polls)| assert_eq!(*polls, 1, "store {number}"));
        (tags, polled.map(|(number, _)| number).collect())
    }
}

#[test]
fn only_stores_with_requests_are_polled() {
    let mut rig = Rig::new(5);
    assert_eq!(rig.poll(), (vec![], vec![]));
    for number in [1, 2, 4, 2] {
        rig.flush(number);
    }
    assert_eq!(rig.poll(), (vec![], vec![1, 2, 4]));
    // One that completes does not make the poll omit another one, wherever it is in the list.
    for (released, tags, next) in [
        (vec![1], vec![1], vec![2, 4]),
        (vec![2], vec![2], vec![2, 4]),
        (vec![4, 2], vec![2, 4], vec![]),
    ] {
        let before = rig.poll().1;
        rig.release(&released);
        assert_eq!(rig.poll(), (tags, before));
        assert_eq!(rig.poll(), (vec![], next));
    }
    // It is polled again after another request.
    rig.flush(1);
    rig.release(&[1]);
    assert_eq!(rig.poll(), (vec![1], vec![1]));
    assert_eq!(rig.poll(), (vec![], vec![]));
}

#[test]
fn store_with_work_prevents_sleep() {
    let mut rig = Rig::new(3);
    rig.flush(2);
    assert!(rig.stores.may_sleep().unwrap());
    rig.release(&[2]);
    assert!(!rig.stores.may_sleep().unwrap());
    assert_eq!(rig.poll(), (vec![2], vec![2]));
    assert!(rig.stores.may_sleep().unwrap());
}

#[test]
fn closed_store_is_not_polled() {
    let mut rig = Rig::new(2);
    rig.flush(0);
    rig.flush(1);
    assert!(rig.stores.close(0).is_err(), "it has a request");
    rig.release(&[0]);
    assert_eq!(rig.poll(), (vec![0], vec![0, 1]));
    // The next one is closed before a poll notices that it has nothing to do.
    rig.flush(0);
    rig.states[0].requests.borrow_mut().clear();
    rig.stores.close(0).unwrap();
    // Another one takes its place.
    rig.open(0);
    assert_eq!(rig.poll(), (vec![], vec![1]));
    rig.flush(0);
    assert_eq!(rig.poll(), (vec![], vec![1, 2]));
}
