//! A layer that makes requests fail and transfers end early.

use std::collections::VecDeque;
use std::sync::Arc;

use nix::errno::Errno;
use nvmeof_backend::{Backend, Done, Geometry, Io, IoError, IoErrorKind, Refused, Request};
use nvmeof_uring as uring;
use nvmeof_uring::Ring;

use crate::dice::Dice;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It fails with this error and nothing is done.
    Error(Errno),
    /// The kernel answers its next operation with this error.
    Kernel(Errno),
    /// The next transfer that ends moved only half of it, in whole blocks.
    /// (Disks without transfers, RAM and null, cannot do that.)
    Short,
}

/// Which faults happen.
#[derive(Clone, Debug)]
pub enum Plan {
    /// These, one for each request, then none.
    Script(VecDeque<Fault>),
    /// One request of so many fails with an error of these, one of so many is
    /// cut short; the same for the same seed.
    Seeded {
        /// Where the dice start.
        seed: u64,
        /// One of how many fails; 0 for none.
        error_one_in: u32,
        /// One of how many is cut short; 0 for none.
        short_one_in: u32,
        /// The error they fail with.
        errno: Errno,
    },
}

/// Makes requests fail by a plan.
pub struct Faulty {
    inner: Box<dyn Backend>,
    path: Arc<str>,
    plan: Plan,
    dice: Dice,
    /// Transfers to cut short.
    short: u32,
    /// What the kernel answers next.
    kernel: VecDeque<Errno>,
}

impl Faulty {
    /// Puts the layer on `inner`.
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
        request: Request,
        io: &mut Io<'_>,
    ) -> Result<Option<Done>, Refused<Request>> {
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
                let Request { tag, op } = request;
                let (buf, result) = (op.into_buf(), Err(error));
                return Ok(Some(Done { tag, buf, result }));
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

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn close(&mut self, ring: &mut Ring) -> Result<(), uring::RingError> {
        self.inner.close(ring)
    }
}
