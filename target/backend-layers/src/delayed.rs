//! A wrapper that delays completions, so that they are out of order.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_backend::{Backend, Done, Geometry, Io, RefusalReason, Request, Submitted};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::dice::Dice;

/// Delays each completion by 0 to `polls` polls, at random, the same for the same seed.
pub struct Delayed {
    inner: Box<dyn Backend>,
    dice: Dice,
    polls: u32,
    held: VecDeque<(u32, Done)>,
    fresh: Vec<Done>,
}

impl Delayed {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Backend>, seed: u64, polls: u32) -> Self {
        Self {
            inner,
            dice: Dice::new(seed),
            polls,
            held: VecDeque::new(),
            fresh: Vec::new(),
        }
    }

    fn hold(&mut self) {
        for done in self.fresh.drain(..) {
            let polls = self.dice.below(self.polls.saturating_add(1));
            self.held.push_back((polls, done));
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
        request: &mut Request,
        io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        let taken = (self.inner).submit(request, &mut io.with_done(&mut self.fresh))?;
        if let Submitted::Done(result) = taken {
            let (tag, buf) = (request.tag, request.op.take().into_buf());
            self.fresh.push(Done { tag, buf, result });
        }
        self.hold();
        Ok(Submitted::Pending)
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
                Some((polls, done)) => self.held.push_back((polls - 1, done)),
                None => return,
            }
        }
    }

    fn waiting(&self) -> bool {
        !self.held.is_empty() || self.inner.waiting()
    }

    fn completes_in_batches(&self) -> bool {
        self.inner.completes_in_batches()
    }

    fn longest_sleep(&self) -> Option<Duration> {
        self.inner.longest_sleep()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.inner.in_flight()
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        self.inner.close(ring)
    }
}
