//! A subsystem across model changes: the state that lives as long as its NQN is
//! served, and the snapshots that queues hold of it.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_target_reservations::{self as reservations, Change, HostId, Reservations};
use nvmeof_wire::Nqn;
use nvmeof_wire::features::WriteProtection;

use crate::Namespace;
use crate::health::Health;
use crate::host_settings::{CannotReplace, Forgotten, HostSettings, Kept, SavedSettings};
use crate::namespace_view::{NamespaceView, Present, Viewer};
use crate::persist::PendingSave;
use crate::protection::{ProtectionRequest, Refused, Settled, Step};
use crate::reservations::{
    CannotImport, Granted, ReservationNotice, ReservationState, ReservationTable,
};
use crate::save_queue::{Place, SaveQueue, SaveQueueGuard};

/// A subsystem across all models that have its NQN. Its controllers hold this, so
/// that they survive a change of the subsystem.
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
    /// As in the model.
    configured: Present,
    /// What hosts set.
    set: HostSettings,
    /// The result of both.
    current: Present,
    /// Whether it is no longer served. What hosts set has moved elsewhere then.
    retired: bool,
}

/// The result of [`Live::protect`] and [`Live::protected`].
#[derive(Clone, Debug)]
pub(crate) struct Protecting {
    /// The previous state of the subsystem, if it changed.
    pub(crate) before: Option<Present>,
    /// The next step of the request.
    pub(crate) next: ProtectionStep,
}

/// The next step of a request.
#[derive(Clone, Debug)]
pub(crate) enum ProtectionStep {
    /// The requested state is in force.
    Granted,
    /// Make earlier writes stable.
    Settle(ProtectionRequest),
    /// Wait until it is saved.
    Keep(PendingSave),
    /// The request failed.
    Refused,
}

/// Why nothing can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotChanged {
    /// There is no such namespace any more.
    Gone,
    /// It waits for its backing store or for its record: what is saved may be unknown.
    NotReady,
    /// Nothing can be saved.
    NoKeeper,
}

impl From<NotChanged> for NotReserved {
    fn from(why: NotChanged) -> Self {
        Self::Now(why)
    }
}

impl From<NotChanged> for CannotImport {
    fn from(why: NotChanged) -> Self {
        match why {
            NotChanged::Gone => Self::NoNamespace,
            NotChanged::NotReady => Self::NotReady,
            NotChanged::NoKeeper => Self::NoKeeper,
        }
    }
}

/// Why reservations were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotReserved {
    /// It cannot be changed now.
    Now(NotChanged),
    /// The specification refuses it.
    Refused(reservations::Refused),
}

impl ProtectionStep {
    /// Queues the state of a namespace to be saved, if there is a keeper.
    fn enqueue(save_queue: &mut SaveQueueGuard<'_>, place: Place) -> Self {
        save_queue.enqueue(place).map_or(Self::Refused, Self::Keep)
    }
}

/// The present view of one queue or controller. Checking whether it is current costs a
/// load of a word that is rarely written.
#[derive(Debug)]
pub(crate) struct View {
    live: Arc<Live>,
    seen: u64,
    namespace_view: Arc<NamespaceView>,
    viewer: Arc<Viewer>,
}

impl Live {
    pub(crate) fn new(present: Present, set: HostSettings) -> Self {
        Self {
            nqn: present.subsystem.nqn,
            health: Arc::default(),
            generation: AtomicU64::new(0),
            state: Mutex::new(State {
                current: current_of(&present, &set),
                configured: present,
                set,
                retired: false,
            }),
        }
    }

    /// Its present state.
    pub(crate) fn current(&self) -> Present {
        self.lock().current.clone()
    }

    /// Replaces the configured state. Returns the previous state.
    pub(crate) fn replace(&self, present: Present) -> Present {
        let mut state = self.lock();
        state.configured = present;
        self.renew(&mut state)
    }

    /// It is no longer served. Returns what hosts set, which no longer changes here. Hosts
    /// with pending requests lose their controllers.
    pub(crate) fn retire(&self) -> HostSettings {
        let mut state = self.lock();
        state.retired = true;
        state.set.retire()
    }

    /// The write protection state of a namespace; `None` if it does not exist.
    pub(crate) fn protection(&self, nsid: u32) -> Option<WriteProtection> {
        let state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid)?;
        Some(state.set.protections.of(namespace))
    }

    /// Whether the state of a namespace may be set to `to`.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) fn check_protection(&self, nsid: u32, to: WriteProtection) -> Result<(), Refused> {
        let state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid);
        state
            .set
            .protections
            .check(namespace.ok_or(Refused::Gone)?, to)?;
        Ok(())
    }

    /// A host requests the state `to` for a namespace. Protection is in force
    /// immediately. If it has to be saved first, it is added to `save_queue`.
    ///
    /// # Errors
    /// [`Refused`]; nothing changed.
    pub(crate) fn protect(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        to: WriteProtection,
    ) -> Result<Protecting, Refused> {
        let mut save_queue = save_queue.lock();
        let mut state = self.lock();
        if state.retired {
            return Err(Refused::Gone);
        }
        let State {
            configured, set, ..
        } = &mut *state;
        let protections = &mut set.protections;
        let namespace = configured.subsystem.namespace(nsid).ok_or(Refused::Gone)?;
        let was = protections.of(namespace);
        let step = protections.set(namespace, to)?;
        let changed = protections.of(namespace) != was;
        let next = match step {
            Step::Done => ProtectionStep::Granted,
            Step::Settle(asked) => ProtectionStep::Settle(asked),
            Step::Keep => ProtectionStep::enqueue(&mut save_queue, (self.nqn, nsid)),
        };
        let before = changed.then(|| self.renew(&mut state));
        Ok(Protecting { before, next })
    }

    /// Earlier writes are `stable`, or cannot be made so.
    pub(crate) fn protected(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        asked: ProtectionRequest,
        stable: bool,
    ) -> Protecting {
        let mut save_queue = save_queue.lock();
        let mut state = self.lock();
        if state.retired {
            let (before, next) = (None, ProtectionStep::Refused);
            return Protecting { before, next };
        }
        let Settled { changed, keep } = state.set.protections.settle(nsid, asked, stable);
        let next = match stable {
            true if keep => ProtectionStep::enqueue(&mut save_queue, (self.nqn, nsid)),
            true => ProtectionStep::Granted,
            false => ProtectionStep::Refused,
        };
        let before = changed.then(|| self.renew(&mut state));
        Protecting { before, next }
    }

    /// A host changes the reservations of a namespace with the next save.
    ///
    /// # Errors
    /// [`NotReserved`]; nothing changes.
    pub(crate) fn reserve(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        host: (HostId, Nqn),
        change: impl FnOnce(&Reservations) -> Result<Change, reservations::Refused>,
    ) -> Result<Granted, NotReserved> {
        self.change_reservations(save_queue, nsid, |table, namespace| {
            let granted = table.change(namespace, host, change);
            granted.map_err(NotReserved::Refused)
        })
    }

    /// Changes the reservations of a namespace with its next save.
    fn change_reservations<E: From<NotChanged>>(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        change: impl FnOnce(&mut ReservationTable, &Namespace) -> Result<Granted, E>,
    ) -> Result<Granted, E> {
        let mut save_queue = save_queue.lock();
        let mut state = self.lock();
        let State {
            configured,
            set,
            retired,
            ..
        } = &mut *state;
        let namespace = configured.subsystem.namespace(nsid);
        let namespace = namespace.filter(|_| !*retired).ok_or(NotChanged::Gone)?;
        if !namespace.is_ready() {
            return Err(NotChanged::NotReady.into());
        }
        if !save_queue.has_keeper() {
            return Err(NotChanged::NoKeeper.into());
        }
        let granted = change(&mut set.reservations, namespace)?;
        if !granted.pending.is_none() {
            save_queue.enqueue((self.nqn, nsid));
        }
        Ok(granted)
    }

    /// Whether the reservations of a namespace persist through power loss.
    pub(crate) fn persists(&self, namespace: &Namespace) -> bool {
        self.lock().set.reservations.persists(namespace)
    }

    /// Sets with the next save whether reservations of a namespace persist through power loss.
    ///
    /// # Errors
    /// [`NotReserved`]; nothing changes.
    pub(crate) fn set_persistence(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        persists: bool,
    ) -> Result<PendingSave, NotReserved> {
        let granted = self.change_reservations(save_queue, nsid, |table, namespace| {
            let granted = table.set_persistence(namespace, persists);
            granted.map_err(NotReserved::Refused)
        });
        Ok(granted?.pending)
    }

    /// Removes the reservations of namespace `nsid`. `None` if it has no registrants.
    pub(crate) fn clear_reservations(&self, nsid: u32) -> Option<PendingSave> {
        self.lock().set.reservations.clear(nsid)
    }

    /// Gives a namespace reservations with the next save.
    ///
    /// # Errors
    /// [`CannotImport`].
    pub(crate) fn import_reservations(
        &self,
        save_queue: &SaveQueue,
        nsid: u32,
        imported: ReservationState,
    ) -> Result<PendingSave, CannotImport> {
        let granted = self.change_reservations(save_queue, nsid, |table, namespace| {
            let granted = table.import(namespace, imported);
            granted.ok_or(CannotImport::Registered)
        });
        Ok(granted?.pending)
    }

    /// As [`HostSettings::forget`].
    pub(crate) fn forget(&self, nsid: Option<u32>) -> Forgotten {
        self.lock().set.forget(nsid)
    }

    /// As [`HostSettings::begin_write`].
    pub(crate) fn begin_write(&self, nsid: u32) -> SavedSettings {
        self.lock().set.begin_write(nsid)
    }

    /// The save of the namespaces with that NSID ended. Returns the previous state of the subsystem
    /// if the write protection of a namespace changed, and the notifications about reservations.
    pub(crate) fn kept(
        &self,
        nsid: u32,
        result: &io::Result<()>,
    ) -> (Option<Present>, Vec<ReservationNotice>) {
        let mut state = self.lock();
        let Kept {
            protections,
            reservations,
            mut ended,
        } = state.set.kept(nsid, result);
        let before = (protections || reservations).then(|| self.renew(&mut state));
        let notices = std::mem::take(&mut ended.notices);
        // Not before: a command that was answered must be in force for commands that begin now.
        ended.answer(result);
        (before.filter(|_| protections), notices)
    }

    /// Restores what hosts set.
    pub(crate) fn restore(&self, saved: SavedSettings) {
        let mut state = self.lock();
        state.set.restore(saved);
        self.renew(&mut state);
    }

    /// Replaces what hosts set of the namespaces with that NSID. Requests that are not saved yet
    /// get `outcome`. Returns the previous state of the subsystem.
    ///
    /// # Errors
    /// [`CannotReplace::Served`].
    pub(crate) fn replace_settings(
        &self,
        nsid: u32,
        saved: SavedSettings,
        outcome: &io::Result<()>,
    ) -> Result<Present, CannotReplace> {
        let mut state = self.lock();
        let namespace = state.configured.subsystem.namespace(nsid);
        if namespace.is_some_and(Namespace::is_ready) {
            return Err(CannotReplace::Served);
        }
        let ended = state.set.replace(nsid, saved);
        let before = self.renew(&mut state);
        ended.answer(outcome);
        Ok(before)
    }

    /// Derives the current state from the model and the protections. Returns the
    /// previous one.
    fn renew(&self, state: &mut State) -> Present {
        let present = current_of(&state.configured, &state.set);
        let before = std::mem::replace(&mut state.current, present);
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// The view of a queue.
    pub(crate) fn view(self: &Arc<Self>, viewer: Arc<Viewer>) -> View {
        let (seen, namespace_view) = self.current_view(&viewer);
        View {
            live: Arc::clone(self),
            seen,
            namespace_view,
            viewer,
        }
    }

    /// The present view, and its generation.
    fn current_view(&self, viewer: &Viewer) -> (u64, Arc<NamespaceView>) {
        let state = self.lock();
        let generation = self.generation.load(Ordering::Acquire);
        (generation, viewer.current_view(generation, &state.current))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done when a holder panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that is served.
fn current_of(configured: &Present, set: &HostSettings) -> Present {
    Present {
        reservations: Arc::clone(set.reservations.in_force()),
        ..set.protections.over(configured)
    }
}

impl View {
    /// Updates the view if the subsystem changed. Call it for each command.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.live.generation.load(Ordering::Acquire) != self.seen {
            self.renew();
        }
    }

    #[cold]
    fn renew(&mut self) {
        (self.seen, self.namespace_view) = self.live.current_view(&self.viewer);
    }

    /// The subsystem.
    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// The view as of the last [`refresh`](Self::refresh).
    #[inline]
    pub(crate) fn namespace_view(&self) -> &Arc<NamespaceView> {
        &self.namespace_view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{apply, change_a_namespace, closed, subsystem, target};

    /// A queue has no view of its own, because each namespace takes memory in it.
    #[test]
    fn queues_of_a_controller_share_their_view() {
        let target = target();
        let nqn = Nqn::new(&subsystem().nqn).unwrap();
        let live = Arc::clone(target.shared.served().live(&nqn).unwrap());
        let viewer = |name| Arc::new(Viewer::new(Nqn::new(name).unwrap(), [1; 16], None));
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
