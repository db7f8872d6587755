//! A subsystem from one model to the next: what stays as long as its name is
//! served, and what queues keep of its present state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;
use nvmeof_wire::features::WriteProtection;

use crate::health::Health;
use crate::namespace_view::{NamespaceView, Present, Viewer};
use crate::persist::Keeping;
use crate::protection::{Asked, Desk, KeptProtection, Open, Protections, Refused, Settled, Step};

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
    configured: Present,
    /// What hosts set.
    protections: Protections,
    /// What follows from both.
    current: Present,
    /// Whether it is not served any more. What hosts set is elsewhere then.
    retired: bool,
}

/// What came of [`Live::protect`] and [`Live::protected`].
#[derive(Clone, Debug)]
pub(crate) struct Protecting {
    /// What the subsystem was, if it is another now.
    pub(crate) before: Option<Present>,
    /// What becomes of the request.
    pub(crate) next: Granting,
}

/// How far a request is.
#[derive(Clone, Debug)]
pub(crate) enum Granting {
    /// It is as asked for.
    Granted,
    /// What was written before is to be made stable.
    Settle(Asked),
    /// It is to be kept.
    Keep(Keeping),
    /// Nothing comes of it.
    Refused,
}

impl Granting {
    /// It has its place at that desk, if there is anybody.
    fn at(desk: &mut Open<'_>, subsystem: &Nqn) -> Self {
        desk.keep(subsystem).map_or(Self::Refused, Self::Keep)
    }
}

/// What one queue or controller sees at present. Looking whether it is still that costs a
/// load of a word that is hardly ever written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    namespace_view: Arc<NamespaceView>,
    viewer: Arc<Viewer>,
}

impl Live {
    pub(crate) fn new(present: Present, protections: Protections) -> Self {
        Self {
            nqn: present.subsystem.nqn,
            health: Arc::default(),
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                current: protections.over(&present),
                configured: present,
                protections,
                retired: false,
            }),
        }
    }

    /// What it is now.
    pub(crate) fn current(&self) -> Present {
        self.lock().current.clone()
    }

    /// It is `present` from now on. Returns what it was.
    pub(crate) fn replace(&self, present: Present) -> Present {
        let mut state = self.lock();
        state.configured = present;
        self.renew(&mut state)
    }

    /// It is not served any more. Returns what hosts set, which nobody changes here
    /// from now on. Those whose requests are not stable yet lose their controllers.
    pub(crate) fn retire(&self) -> Protections {
        let mut state = self.lock();
        state.retired = true;
        state.protections.clone().without_open()
    }

    /// The state of write protection of a namespace; `None` when it is not there.
    pub(crate) fn protection(&self, nsid: u32) -> Option<WriteProtection> {
        let state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid)?;
        Some(state.protections.of(namespace))
    }

    /// Whether the state of a namespace may be set so.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn check_protection(&self, nsid: u32, to: WriteProtection) -> Result<(), Refused> {
        let state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid);
        state
            .protections
            .check(namespace.ok_or(Refused::Gone)?, to)?;
        Ok(())
    }

    /// A host wants that state for a namespace, which is protected from here on if it
    /// is to be. What has to be kept before that is granted has its place at `desk`.
    ///
    /// # Errors
    /// [`Refused`]; then nothing changed.
    pub(crate) fn protect(
        &self,
        desk: &Desk,
        nsid: u32,
        to: WriteProtection,
    ) -> Result<Protecting, Refused> {
        let mut desk = desk.open();
        let mut state = self.lock();
        if state.retired {
            return Err(Refused::Gone);
        }
        let State {
            configured,
            protections,
            ..
        } = &mut *state;
        let namespace = configured.subsystem.namespace(nsid).ok_or(Refused::Gone)?;
        let was = protections.of(namespace);
        let step = protections.set(namespace, to)?;
        let changed = protections.of(namespace) != was;
        let next = match step {
            Step::Done => Granting::Granted,
            Step::Settle(asked) => Granting::Settle(asked),
            Step::Keep => Granting::at(&mut desk, &self.nqn),
        };
        let before = changed.then(|| self.renew(&mut state));
        Ok(Protecting { before, next })
    }

    /// What was written before is `stable`, or cannot be made so.
    pub(crate) fn protected(
        &self,
        desk: &Desk,
        nsid: u32,
        asked: Asked,
        stable: bool,
    ) -> Protecting {
        let mut desk = desk.open();
        let mut state = self.lock();
        if state.retired {
            let (before, next) = (None, Granting::Refused);
            return Protecting { before, next };
        }
        let Settled { changed, keep } = state.protections.settle(nsid, asked, stable);
        let next = match stable {
            true if keep => Granting::at(&mut desk, &self.nqn),
            true => Granting::Granted,
            false => Granting::Refused,
        };
        let before = changed.then(|| self.renew(&mut state));
        Protecting { before, next }
    }

    /// As [`Protections::forget`].
    pub(crate) fn forget_protection(&self, nsid: Option<u32>) -> bool {
        self.lock().protections.forget(nsid)
    }

    /// As [`Protections::begin_write`].
    pub(crate) fn begin_write(&self) -> Vec<KeptProtection> {
        self.lock().protections.begin_write()
    }

    /// That was `written`, or could not be. Returns what the subsystem was if a
    /// namespace of it is in another state now.
    pub(crate) fn kept(&self, written: bool) -> Option<Present> {
        let mut state = self.lock();
        let changed = state.protections.kept(written);
        changed.then(|| self.renew(&mut state))
    }

    /// A namespace is write protected as it was before, when it is there. Returns
    /// whether it is.
    pub(crate) fn restore_protection(&self, kept: KeptProtection) -> bool {
        let mut state = self.lock();
        state.protections.restore(kept);
        self.renew(&mut state);
        let namespace = state.configured.subsystem.namespace(kept.nsid);
        namespace.is_some_and(|namespace| namespace.uuid == kept.uuid)
    }

    /// Makes what follows from the model and from what hosts set. Returns what
    /// it was.
    fn renew(&self, state: &mut State) -> Present {
        let present = state.protections.over(&state.configured);
        let before = std::mem::replace(&mut state.current, present);
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// For a queue.
    pub(crate) fn view(self: &Arc<Self>, viewer: Arc<Viewer>) -> View {
        let (seen, namespace_view) = self.look(&viewer);
        View {
            live: Arc::clone(self),
            seen,
            namespace_view,
            viewer,
        }
    }

    /// What is seen, and its generation.
    fn look(&self, viewer: &Viewer) -> (u64, Arc<NamespaceView>) {
        let state = self.lock();
        let generation = self.generation.load(Ordering::Acquire);
        (generation, viewer.look(generation, &state.current))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    /// Becomes what is seen now. Call it for each command.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.live.generation.load(Ordering::Acquire) != self.seen {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        (self.seen, self.namespace_view) = self.live.look(&self.viewer);
    }

    /// What was seen at the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn namespace_view(&self) -> &Arc<NamespaceView> {
        &self.namespace_view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, change_a_namespace, closed, subsystem, target};

    /// A queue has no view of its own: each namespace takes room in it.
    #[test]
    fn all_queues_of_a_controller_have_the_same_sight() {
        let target = target();
        let nqn = Nqn::new(&subsystem().nqn).unwrap();
        let live = Arc::clone(target.shared.served().live(&nqn).unwrap());
        let viewer = |name| Arc::new(Viewer::new(Nqn::new(name).unwrap(), None));
        let (host, other) = (
            viewer("nqn.2026-11.org.example:a"),
            viewer("nqn.2026-11.org.example:b"),
        );
        let [mut one, mut two] = [(); 2].map(|()| live.view(Arc::clone(&host)));
        assert!(Arc::ptr_eq(one.namespace_view(), two.namespace_view()));
        let third = live.view(other);
        assert!(
            !Arc::ptr_eq(one.namespace_view(), third.namespace_view()),
            "of another host"
        );
        let before = Arc::clone(one.namespace_view());
        one.refresh();
        assert!(
            Arc::ptr_eq(one.namespace_view(), &before),
            "nothing changed"
        );
        change_a_namespace(&target);
        one.refresh();
        let blocks = |view: &View| view.namespace_view().get(1).unwrap().namespace.blocks;
        assert_eq!((blocks(&one), blocks(&two)), (1001, 1000));
        two.refresh();
        assert!(Arc::ptr_eq(one.namespace_view(), two.namespace_view()));
        let _ = apply(&target, &[subsystem(), closed()]);
        one.refresh();
        assert_eq!((blocks(&one), blocks(&two)), (1000, 1001));
    }
}
