//! A subsystem from one model to the next: what stays as long as its name is
//! served, and what queues keep of its present state.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;
use nvmeof_wire::features::WriteProtection;

use crate::Subsystem;
use crate::health::Health;
use crate::protection::{Asked, Keeper, KeptProtection, Protections, Refused};
use crate::sight::{Present, Sight, Viewer};

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

/// What came of [`Live::protect`].
#[derive(Clone, Debug)]
pub(crate) struct Protecting {
    /// What the subsystem was, if it is another now.
    pub(crate) before: Option<Present>,
    /// The request, if it is not granted yet.
    pub(crate) asked: Option<Asked>,
}

/// What one queue or controller sees at present. Looking whether it is still that costs a
/// load of a word that is hardly ever written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    sight: Arc<Sight>,
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
    /// from now on.
    pub(crate) fn retire(&self) -> Protections {
        let mut state = self.lock();
        state.retired = true;
        state.protections.clone()
    }

    /// The state of write protection of a namespace; `None` when it is not there.
    pub(crate) fn protection(&self, nsid: u32) -> Option<WriteProtection> {
        let state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid)?;
        Some(state.protections.of(namespace))
    }

    /// A host wants that state for a namespace, which has it from here on. What
    /// needs nothing to be made stable is in the book of `keeper` before it is so.
    ///
    /// # Errors
    /// [`Refused`]; then nothing changed.
    pub(crate) fn protect(
        &self,
        keeper: &Keeper,
        nsid: u32,
        to: WriteProtection,
    ) -> Result<Protecting, Refused> {
        let book = keeper.open();
        let (subsystem, mut next) = self.protections().ok_or(Refused::Gone)?;
        let namespace = subsystem.namespace(nsid).ok_or(Refused::Gone)?;
        let was = next.of(namespace);
        let asked = next.set(namespace, to)?;
        if asked.is_none() {
            book.keep(&self.nqn, &next).map_err(|_| Refused::NotKept)?;
        }
        let before = self.set(next, was != to);
        Ok(Protecting { before, asked })
    }

    /// What was written before is `stable`, or cannot be made so. Returns what
    /// the subsystem was if a namespace of it is in another state now, and whether
    /// the request is granted: not when the book of `keeper` cannot be written.
    pub(crate) fn protected(
        &self,
        keeper: &Keeper,
        nsid: u32,
        asked: Asked,
        stable: bool,
    ) -> (Option<Present>, bool) {
        let book = keeper.open();
        let Some((_, was)) = self.protections() else {
            return (None, false);
        };
        let mut next = was.clone();
        let mut undone = next.settle(nsid, asked, stable);
        let granted = stable && book.keep(&self.nqn, &next).is_ok();
        if stable && !granted {
            next = was;
            undone = next.settle(nsid, asked, false);
        }
        (self.set(next, undone), granted)
    }

    /// What hosts set, and of what; `None` when it is not served any more. Only who
    /// has the book open may change it.
    pub(crate) fn protections(&self) -> Option<(Arc<Subsystem>, Protections)> {
        let state = self.lock();
        let subsystem = || Arc::clone(&state.configured.subsystem);
        (!state.retired).then(|| (subsystem(), state.protections.clone()))
    }

    /// Hosts set that. Returns what it was if namespaces are in `other` states now.
    /// Only for who has the book open.
    pub(crate) fn set(&self, protections: Protections, other: bool) -> Option<Present> {
        let mut state = self.lock();
        state.protections = protections;
        other.then(|| self.renew(&mut state))
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
        let (seen, sight) = self.look(&viewer);
        View {
            live: Arc::clone(self),
            seen,
            sight,
            viewer,
        }
    }

    /// What is seen, and its generation.
    fn look(&self, viewer: &Viewer) -> (u64, Arc<Sight>) {
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
        (self.seen, self.sight) = self.live.look(&self.viewer);
    }

    /// What was seen at the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn sight(&self) -> &Arc<Sight> {
        &self.sight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, change_a_namespace, closed, subsystem, target};

    /// A queue has no sight of its own: each namespace takes room in it.
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
        assert!(Arc::ptr_eq(one.sight(), two.sight()));
        let third = live.view(other);
        assert!(!Arc::ptr_eq(one.sight(), third.sight()), "of another host");
        let before = Arc::clone(one.sight());
        one.refresh();
        assert!(Arc::ptr_eq(one.sight(), &before), "nothing changed");
        change_a_namespace(&target);
        one.refresh();
        let blocks = |view: &View| view.sight().get(1).unwrap().namespace.blocks;
        assert_eq!((blocks(&one), blocks(&two)), (1001, 1000));
        two.refresh();
        assert!(Arc::ptr_eq(one.sight(), two.sight()));
        let _ = apply(&target, &[subsystem(), closed()]);
        one.refresh();
        assert_eq!((blocks(&one), blocks(&two)), (1000, 1001));
    }
}
