//! Several reactors of one target, each on its own thread, which run in turn: what one of them
//! writes and another one uses is on the path of both.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use nvmeof_backend::{Claim, Spec};
use nvmeof_initiator::Operation;
use nvmeof_target_core::Target;
use nvmeof_target_engine::Mailbox;

use crate::stage::{reactor_of, target};
use crate::{Medium, Pipes, Stage};

/// One target with several reactors.
#[derive(Clone)]
pub struct Reactors {
    target: Target,
    peers: Arc<[Mailbox]>,
}

/// A word that is stored to say whose turn it is.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Mark(AtomicU64);

/// The marks: for neither of two reactors, and for each of them.
pub static MARKS: [Mark; 3] = [const { Mark(AtomicU64::new(0)) }; 3];

/// Says whose turn it is, to a tracer of memory accesses.
#[inline(never)]
pub fn mark(whose: usize) {
    if let Some(mark) = MARKS.get(whose) {
        mark.0.store(1, Ordering::SeqCst);
    }
}

/// Whose turn it is. Nobody's at first.
struct Turns {
    of: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    /// Waits for the turn of `member`.
    fn take(&self, member: usize) {
        let of = self.of.lock().unwrap();
        self.wait(of, member);
    }

    /// Ends a turn, and waits for the next one of `member`.
    fn pass(&self, to: usize, member: usize) {
        let mut of = self.of.lock().unwrap();
        *of = to;
        self.changed.notify_all();
        self.wait(of, member);
    }

    /// Ends the last turn of the second one.
    fn end(&self) {
        *self.of.lock().unwrap() = 0;
        self.changed.notify_all();
    }

    fn wait(&self, of: MutexGuard<'_, usize>, member: usize) {
        drop(self.changed.wait_while(of, |of| *of != member).unwrap());
        // The other thread is about to sleep. A trace does not say which thread runs.
        thread::sleep(Duration::from_millis(1));
    }
}

/// Rounds before the first marked one: caches are filled and memory is mapped.
const WARM_UP: u32 = 20;

impl Reactors {
    /// A target for so many reactors.
    #[must_use]
    pub fn new(reactors: usize) -> Self {
        let peers: Vec<_> = (0..reactors).map(|_| Mailbox::new().unwrap()).collect();
        let target = target(&Medium::Pipes(Pipes::default()));
        let peers = peers.into();
        Self { target, peers }
    }

    /// Reactor `number` with these stores, and without a host. Call it on the thread that runs
    /// the reactor.
    #[must_use]
    pub fn stage(&self, number: usize, medium: &Medium, stores: &[Spec]) -> Stage {
        let claims = stores.iter().map(|store| Claim::take(store, None).unwrap());
        self.stage_with(number, medium, claims.collect())
    }

    fn stage_with(&self, number: usize, medium: &Medium, stores: Vec<Claim>) -> Stage {
        let (target, peers) = (self.target.clone(), Arc::clone(&self.peers));
        let mailbox = self.peers.get(number).unwrap().clone();
        Stage::of(medium, reactor_of(medium, stores, target, mailbox, peers))
    }

    /// Runs reads or writes of `store` on two reactors in turn, for two queues of one controller,
    /// with that time between the operations of a queue. While it is the turn of a reactor, it is
    /// [marked](MARKS); iterations of the host are not.
    pub fn in_turn(
        store: &Spec,
        work: (Operation, u32),
        between: Duration,
        on_iteration: fn(usize),
    ) {
        let reactors = Self::new(2);
        let claim = Claim::take(store, None).unwrap();
        let claims = [claim.clone(), claim];
        let turns = Arc::new(Turns {
            of: Mutex::new(usize::MAX),
            changed: Condvar::new(),
        });
        let (sender, receiver) = channel();
        let [first, second] = claims;
        let first = (reactors.clone(), Arc::clone(&turns), first);
        let first = thread::spawn(move || {
            let (reactors, turns, claim) = first;
            let medium = Medium::Pipes(Pipes::default());
            let stage = reactors.stage_with(0, &medium, vec![claim]);
            let stage = stage.and_another();
            sender.send(stage.controller().unwrap()).unwrap();
            run(stage, (&turns, 0), work, between, on_iteration);
        });
        let second = thread::spawn(move || {
            let medium = Medium::Pipes(Pipes::default());
            let stage = reactors.stage_with(1, &medium, vec![second]);
            let info = receiver.recv().unwrap();
            let stage = stage.and_queue(2, &info);
            turns.pass(0, 1);
            run(stage, (&turns, 1), work, between, on_iteration);
        });
        first.join().unwrap();
        second.join().unwrap();
    }
}

fn run(
    mut stage: Stage,
    (turns, member): (&Turns, usize),
    (operation, rounds): (Operation, u32),
    between: Duration,
    on_iteration: fn(usize),
) {
    if member == 0 {
        turns.take(member);
    }
    for round in 0..WARM_UP + rounds {
        stage.advance(between);
        let marked = |step: &mut dyn FnMut()| {
            if round < WARM_UP {
                return step();
            }
            mark(1 + member);
            on_iteration(member);
            step();
            mark(0);
        };
        stage.round(operation, 1, marked, |step| step());
        // The last turn of the first one is only for its end: it has the controller of both.
        match (member, round + 1 == WARM_UP + rounds) {
            (1, true) => turns.end(),
            _ => turns.pass(1 - member, member),
        }
    }
}
