//! A subsystem from one model to the next: what stays as long as its name is
//! served, and what queues keep of its present state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;
use nvmeof_wire::features::WriteProtection;

use crate::Subsystem;
use crate::health::Health;
use crate::protection::{Fixed, Protections};

/// A subsystem over all models that have its name. Its controllers hold this,
/// so that they outlive a change of it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) nqn: Nqn,
    pub(crate) health: Arc<Health>,
    /// Counts the changes of `state.current`.
    generation: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// As the model has it.
    configured: Arc<Subsystem>,
    /// What hosts set.
    protections: Protections,
    /// What follows from both.
    current: Arc<Subsystem>,
}

/// One queue's copy of the present state. Looking whether it is still that
/// costs a load of a word that is hardly ever written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    subsystem: Arc<Subsystem>,
}

impl Live {
    pub(crate) fn new(subsystem: Arc<Subsystem>) -> Self {
        Self {
            nqn: subsystem.nqn,
            health: Arc::default(),
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                configured: Arc::clone(&subsystem),
                protections: Protections::default(),
                current: subsystem,
            }),
        }
    }

    /// What it is now.
    pub(crate) fn current(&self) -> Arc<Subsystem> {
        Arc::clone(&self.lock().current)
    }

    /// It is `subsystem` from now on.
    pub(crate) fn replace(&self, subsystem: Arc<Subsystem>) {
        let mut state = self.lock();
        state.protections.keep_those_of(&subsystem);
        state.configured = subsystem;
        self.renew(&mut state);
    }

    /// The state of write protection of an active namespace; `None` when it is
    /// not there.
    pub(crate) fn protection(&self, nsid: u32) -> Option<WriteProtection> {
        let state = self.lock();
        let namespace = state.configured.namespace(nsid)?;
        Some(state.protections.of(namespace))
    }

    /// A host wants that state for a namespace. Says what it was before;
    /// `None` when the namespace is not there.
    pub(crate) fn protect(
        &self,
        nsid: u32,
        to: WriteProtection,
    ) -> Option<Result<WriteProtection, Fixed>> {
        let mut state = self.lock();
        let State {
            configured,
            protections,
            ..
        } = &mut *state;
        let before = protections.set(configured.namespace(nsid)?, to);
        if before.is_ok_and(|before| before != to) {
            self.renew(&mut state);
        }
        Some(before)
    }

    /// Takes back what [`protect`](Self::protect) did: it did not come about.
    pub(crate) fn unprotect(&self, nsid: u32, before: WriteProtection) {
        let mut state = self.lock();
        let State {
            configured,
            protections,
            ..
        } = &mut *state;
        if let Some(namespace) = configured.namespace(nsid) {
            protections.put(namespace, before);
        }
        self.renew(&mut state);
    }

    /// Makes what follows from the model and from what hosts set.
    fn renew(&self, state: &mut State) {
        state.current = state.protections.over(&state.configured);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// For a queue.
    pub(crate) fn view(self: &Arc<Self>) -> View {
        let state = self.lock();
        View {
            seen: self.generation.load(Ordering::Acquire),
            subsystem: Arc::clone(&state.current),
            live: Arc::clone(self),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// Becomes what the subsystem is now. Call it for each command.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.live.generation.load(Ordering::Acquire) != self.seen {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        *self = self.live.view();
    }

    /// The subsystem as it was at the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }
}
