//! Cases: a random mix of everything, checked against a model.

use std::collections::VecDeque;

use crate::Deviations;
use crate::Endpoint::{self, A, B};
use crate::pattern::check;
use crate::rig::{Link, Rig};
use nvmeof_rdma::{
    CloseReason, Completion, Event, QpConfig, Received, RemoteKey, RemoteSlice, WorkKind,
};
use nvmeof_rdma_layers::Dice;

/// Connections at once.
const LINKS: usize = 3;
const STEPS: usize = 1500;
/// Longest message, write or read.
pub(super) const LONGEST: usize = 30_000;
/// Length of the windows that are written and read.
pub(super) const WINDOW: usize = 60_000;
/// Entries of each queue.
pub(super) const DEPTH: usize = 16;

/// Random work on permanent connections.
pub fn random_work_agrees_with_model(rig: &mut Rig<'_>) {
    let mut soak = Soak::new(rig, false);
    for _ in 0..STEPS {
        soak.step(rig);
    }
    soak.finish(rig);
}

/// Random work on connections that either side ends at random.
pub fn random_work_survives_random_ends(rig: &mut Rig<'_>) {
    let mut soak = Soak::new(rig, true);
    for _ in 0..STEPS {
        soak.step(rig);
    }
    soak.finish(rig);
}

/// The model of all connections.
pub(super) struct Soak {
    pub(super) dice: Dice,
    conns: Vec<Conn>,
    ends: bool,
    pub(super) next_tag: u64,
}

/// The model of one connection.
pub(super) struct Conn {
    pub(super) link: Link,
    /// Traffic from A to B, and from B to A.
    pub(super) directions: [Direction; 2],
    /// A side disconnected: work may return undone.
    ending: bool,
}

/// Traffic of one direction.
pub(super) struct Direction {
    pub(super) from: Endpoint,
    /// Lengths of unused receives.
    pub(super) room: VecDeque<usize>,
    /// Messages in flight.
    pub(super) messages: VecDeque<Message>,
    /// Memory of the other side that is written.
    pub(super) sink: Option<Sink>,
    /// Memory of the other side that is read.
    pub(super) source: Option<Source>,
    /// Reads in flight: their offset in the source, and their length.
    pub(super) reads: VecDeque<(usize, usize)>,
}

pub(super) struct Message {
    pub(super) seed: u64,
    pub(super) len: usize,
    pub(super) invalidate: Option<RemoteKey>,
    /// This message ends the use of the sink.
    pub(super) retires: bool,
}

pub(super) struct Sink {
    pub(super) slice: RemoteSlice,
    pub(super) model: Vec<u8>,
    pub(super) retiring: bool,
}

pub(super) struct Source {
    pub(super) slice: RemoteSlice,
    pub(super) content: Vec<u8>,
}

impl Conn {
    fn new(rig: &mut Rig<'_>) -> Self {
        let depth = u32::try_from(DEPTH).unwrap();
        let config = QpConfig {
            recvs: depth,
            sends: depth,
            ..rig.config()
        };
        let link = rig.link_with(&config, &config);
        // The active side starts, so that the passive side may send.
        rig.assert_alive(link);
        let direction = |from| Direction {
            from,
            room: VecDeque::new(),
            messages: VecDeque::new(),
            sink: None,
            source: None,
            reads: VecDeque::new(),
        };
        Self {
            link,
            directions: [direction(A), direction(B)],
            ending: false,
        }
    }

    fn direction_from(&mut self, end: Endpoint) -> &mut Direction {
        match end {
            A => &mut self.directions[0],
            B => &mut self.directions[1],
        }
    }
}

impl Soak {
    fn new(rig: &mut Rig<'_>, ends: bool) -> Self {
        Self {
            dice: Dice::new(rig.seed()),
            conns: (0..LINKS).map(|_| Conn::new(rig)).collect(),
            ends,
            next_tag: 1,
        }
    }

    /// One random action, then a random number of polls.
    fn step(&mut self, rig: &mut Rig<'_>) {
        let number = self.dice.below(LINKS);
        if self.ends && self.dice.below(60) == 0 {
            self.end(rig, number);
        } else {
            let mut conn = self.take(number);
            if !conn.ending {
                self.act(rig, &mut conn);
            }
            self.conns.insert(number, conn);
        }
        for _ in 0..self.dice.below(3) {
            rig.step();
            self.look(rig);
        }
    }

    fn take(&mut self, number: usize) -> Conn {
        self.conns.remove(number)
    }

    /// Disconnects on one side, waits for the end, and creates a new connection.
    fn end(&mut self, rig: &mut Rig<'_>, number: usize) {
        let end = if self.dice.below(2) == 0 { A } else { B };
        let link = self.conns[number].link;
        self.conns[number].ending = true;
        rig[end].disconnect(link.at(end));
        for _ in 0..self.dice.below(20) {
            rig.step();
            self.look(rig);
        }
        rig.wait("both sides are closed", |rig| {
            self.look(rig);
            let closed = [A, B].map(|end| rig[end].is_closed(link.at(end)));
            (closed == [true, true]).then_some(())
        });
        let conn = self.take(number);
        for direction in conn.directions {
            let owner = direction.from.other();
            if let Some(sink) = direction.sink {
                rig[owner].withdraw(sink.slice.key);
            }
            if let Some(source) = direction.source {
                let buf = rig[owner].withdraw(source.slice.key);
                assert!(
                    buf[..] == source.content[..],
                    "what is read does not change"
                );
            }
        }
        let conn = Conn::new(rig);
        self.conns.insert(number, conn);
        self.look(rig);
    }

    /// Checks received data against the model.
    fn look(&mut self, rig: &mut Rig<'_>) {
        for end in [A, B] {
            while let Some(event) = rig[end].inbox.pop_front() {
                let of = event.qp();
                let conn = self.conns.iter_mut().find(|conn| conn.link.at(end) == of);
                match (event, conn) {
                    (Event::Received(received), Some(conn)) => {
                        Self::received(rig, conn, end, &received);
                    }
                    (Event::Completion(completion), Some(conn)) => {
                        Self::completed(conn, end, completion, &rig.deviations());
                    }
                    (Event::Ending { .. }, Some(conn)) => assert!(conn.ending, "at {end:?}"),
                    (Event::Closed { reason, .. }, Some(conn)) => {
                        let good = matches!(reason, CloseReason::Local | CloseReason::Peer);
                        assert!(conn.ending && good, "closed at {end:?}: {reason}");
                    }
                    (event, _) => panic!("unexpected at {end:?}: {event:?}"),
                }
            }
        }
    }

    fn received(rig: &mut Rig<'_>, conn: &mut Conn, end: Endpoint, received: &Received) {
        if !received.outcome.is_success() {
            assert!(conn.ending, "{received:?}");
            return;
        }
        let direction = conn.direction_from(end.other());
        let message = direction.messages.pop_front().expect("a message was sent");
        assert_eq!(received.len, message.len);
        check(&received.buf[..received.len], message.seed);
        let named = rig.deviations().named(message.invalidate);
        assert_eq!(received.invalidated, named);
        if message.retires {
            let sink = direction.sink.take().expect("there is a sink");
            let buf = rig[end].withdraw(sink.slice.key);
            assert!(buf[..] == sink.model[..], "the writes before are in place");
        }
    }

    fn completed(conn: &mut Conn, end: Endpoint, completion: Completion, deviations: &Deviations) {
        // Its source may be withdrawn already.
        let late = deviations.answers_after_withdraw && conn.ending;
        let success = completion.outcome.is_success();
        assert!(success || conn.ending, "{completion:?}");
        if completion.kind != WorkKind::Read {
            return;
        }
        let direction = conn.direction_from(end);
        let (start, len) = direction.reads.pop_front().expect("a read was posted");
        let source = direction.source.as_ref().expect("there is a source");
        let torn = deviations.tears_read(source.slice.addr + start as u64, len);
        if success && !late && !torn {
            let read = completion.buf.expect("a read has a buffer");
            assert!(read[..] == source.content[start..start + len], "read data");
        }
    }

    /// Waits for everything, then compares all windows.
    fn finish(&mut self, rig: &mut Rig<'_>) {
        self.quiet(rig);
        for number in 0..LINKS {
            for side in 0..2 {
                let mut conn = self.take(number);
                self.retire(rig, &mut conn, side);
                self.conns.insert(number, conn);
                self.quiet(rig);
            }
        }
        for conn in &self.conns {
            for direction in &conn.directions {
                assert!(direction.sink.is_none() && direction.messages.is_empty());
            }
        }
    }

    fn quiet(&mut self, rig: &mut Rig<'_>) {
        rig.wait("all work is done", |rig| {
            self.look(rig);
            let done = self.conns.iter().all(|conn| {
                let sides = [A, B].map(|end| rig[end].outstanding_work(conn.link.at(end)));
                sides == [0, 0]
                    && conn
                        .directions
                        .iter()
                        .all(|direction| direction.messages.is_empty())
            });
            done.then_some(())
        });
    }
}
