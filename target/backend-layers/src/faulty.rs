//! A wrapper that makes requests fail and transfers short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_backend::{
    Backend, Geometry, Io, IoError, IoErrorKind, RefusalReason, Request, Submitted,
};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::dice::Dice;

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// It fails with this error and is not executed.
    Error(Errno),
    /// The next operation in the kernel fails with this error.
    Kernel(Errno),
    /// The next transfer is short: half of it, in whole blocks. (Not for RAM and null,
    /// which have no transfers.)
    Short,
}

/// Which faults are injected.
#[derive(Clone, Debug)]
pub enum Plan {
    /// These, one for each request, and then none.
    Script(VecDeque<Fault>),
    /// Random failures and short transfers, the same for the same seed.
    Seeded {
        /// Seed of the random numbers.
        seed: u64,
        /// One in this number of requests fails; 0 for none.
        error_one_in: u32,
        /// One in this number of transfers is short; 0 for none.
        short_one_in: u32,
        /// The error of failures.
        errno: Errno,
    },
}

/// Makes requests fail by a plan.
pub struct Faulty {
    inner: Box<dyn Backend>,
    path: Arc<str>,
    plan: Plan,
    dice: Dice,
    /// Number of transfers to shorten.
    short: u32,
    /// Errors of the next operations in the kernel.
    kernel: VecDeque<Errno>,
}

impl Faulty {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Box<dyn Backend>, plan: Plan) -> Self {
        let seed = match &plan {
            Plan::Script(_) => 0,
            Plan::Seeded { seed, .. } => *seed,
        };
        Self {
            path: inner.name().into(),
            inner,
            plan,
            dice: Dice::new(seed),
            short: 0,
            kernel: VecDeque::new(),
        }
    }

    fn next(&mut self) -> Fault {
        match &mut self.plan {
            Plan::Script(faults) => faults.pop_front().unwrap_or(Fault::None),
            Plan::Seeded {
                error_one_in,
                short_one_in,
                errno,
                ..
            } => {
                if self.dice.one_in(*error_one_in) {
                    Fault::Error(*errno)
                } else if self.dice.one_in(*short_one_in) {
                    Fault::Short
                } else {
                    Fault::None
                }
            }
        }
    }
}

impl Backend for Faulty {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn name(&self) -> &str {
        &self.path
    }

    fn submit(
        &mut self,
        request: &mut Request,
        io: &mut Io<'_>,
    ) -> Result<Submitted, RefusalReason> {
        match self.next() {
            Fault::None => {}
            Fault::Short => self.short += 1,
            Fault::Kernel(errno) => self.kernel.push_back(errno),
            Fault::Error(errno) => {
                let (offset, _) = request.op.range();
                let error = IoError {
                    kind: IoErrorKind::of(errno),
                    errno,
                    verb: request.op.verb(),
                    path: Arc::clone(&self.path),
                    offset,
                };
                return Ok(Submitted::Done(Err(error)));
            }
        }
        self.inner.submit(request, io)
    }

    fn complete(&mut self, mut done: uring::Done, io: &mut Io<'_>) {
        if let Some(errno) = self.kernel.pop_front() {
            done.result = Err(errno);
        }
        let block = self.geometry().block_size.bytes();
        if let Ok(bytes) = &mut done.result
            && self.short > 0
            && *bytes >= 2 * block
        {
            *bytes = *bytes / 2 / block * block;
            self.short -= 1;
        }
        self.inner.complete(done, io);
    }

    fn poll(&mut self, io: &mut Io<'_>) {
        self.inner.poll(io);
    }

    fn waiting(&self) -> bool {
        self.inner.waiting()
    }

    fn completes_in_batches(&self) -> bool {
        self.inner.completes_in_batches()
    }

    fn longest_sleep(&self) -> Option<Duration> {
        self.inner.longest_sleep()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn abandon(&mut self) {
        self.inner.abandon();
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        self.inner.close(ring)
    }
}
