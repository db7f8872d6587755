//! A layer that holds results back for some turns, so that they come out of
//! order.

use std::collections::VecDeque;

use nvmeof_backend::{Backend, Done, Geometry, Io, Refused, Request};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::dice::Dice;

/// Holds each result back for 0 to `turns` polls, differently for each, the
/// same for the same seed.
pub struct Delayed {
    inner: Box<dyn Backend>,
    dice: Dice,
    turns: u32,
    held: VecDeque<(u32, Done)>,
    fresh: Vec<Done>,
}

impl Delayed {
    /// Puts the layer on `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Backend>, seed: u64, turns: u32) -> Self {
        Self {
            inner,
            dice: Dice::new(seed),
            turns,
            held: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    fn hold(&mut self) {
        for done in self.fresh.drain(..) {
            let turns = self.dice.below(self.turns.saturating_add(1));
            self.held.push_back((turns, done));
        }
    }
}

impl Backend for Delayed {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn submit(
        &mut self,
        request: Request,
        io: &mut Io<'_>,
    ) -> Result<Option<Done>, Refused<Request>> {
        let taken = self
            .inner
            .submit(request, &mut io.with_done(&mut self.fresh));
        let taken = taken.map(|done| self.fresh.extend(done));
        self.hold();
        taken.map(|()| None)
    }

    fn complete(&mut self, done: uring::Done, io: &mut Io<'_>) {
        self.inner
            .complete(done, &mut io.with_done(&mut self.fresh));
        self.hold();
    }

    fn poll(&mut self, io: &mut Io<'_>) {
        self.inner.poll(&mut io.with_done(&mut self.fresh));
        self.hold();
        for _ in 0..self.held.len() {
            match self.held.pop_front() {
                Some((0, Done { tag, buf, result })) => io.done(tag, buf, result),
                Some((turns, done)) => self.held.push_back((turns - 1, done)),
                None => return,
            }
        }
    }

    fn waiting(&self) -> bool {
        !self.held.is_empty() || self.inner.waiting()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        self.inner.close(ring)
    }
}
