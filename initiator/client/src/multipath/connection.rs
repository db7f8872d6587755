//! One incarnation of a path: a controller from its connection to its loss.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::{AnaGroups, check_subsystem};
use nvmeof_wire::identify::Cmic;
use nvmeof_wire::log::ana::AnaState;
use tokio::sync::{Notify, watch};

use super::status::Counters;
use crate::controller::Controller;
use crate::error::Error;
use crate::namespace::Namespace;

/// The number of a connection: differs from that of every other one of the same
/// [`Multipath`](super::Multipath).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionId(pub(super) u64);

// What a call or a fence remembers of a connection does not keep it: it has the memory of a lost
// target, for example.
const _: () = assert!(!std::mem::needs_drop::<ConnectionId>());

/// A controller of a path.
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Index of the path.
    pub(super) path: usize,
    pub(super) controller: Controller,
    /// NUMA distance of its device.
    pub(super) distance: u32,
    /// Of its path.
    pub(super) counters: Arc<Counters>,
    is_lost: AtomicBool,
    /// The ANA states may have changed since they were read.
    is_outdated: AtomicBool,
    /// A reset that this controller executes has completed.
    has_reset: AtomicBool,
    groups: Mutex<AnaGroups>,
    has_ana: bool,
    checked: Mutex<Checked>,
    /// A namespace is to be checked.
    is_unchecked: AtomicBool,
    /// One of them was opened since the last check.
    has_opened: AtomicBool,
    /// Something is to be read or checked now.
    pub(super) wake: Notify,
    /// Bytes of calls in flight.
    pub(super) outstanding: AtomicU64,
    latency: Mutex<Option<Latency>>,
    /// Commands for fences that it did not complete in time since the last one that it completed.
    pub(super) unanswered: AtomicU32,
    /// It refused Cross-Controller Reset as a command that it does not have.
    pub(super) is_incapable: AtomicBool,
    /// How it was fenced, once it is.
    pub(super) fenced: Arc<watch::Sender<Option<FenceMethod>>>,
}

/// Namespaces by the number of their head.
#[derive(Default)]
struct Checked {
    namespaces: BTreeMap<u64, Known>,
    /// Changes when earlier results become invalid.
    generation: u64,
}

/// The result of a check.
struct Known {
    /// The namespace, or why it is not used.
    result: Result<Arc<Namespace>, Error>,
    /// Whether nothing has happened since that requires another check.
    is_current: bool,
}

#[derive(Clone, Copy)]
struct Latency {
    mean: Duration,
    at: Duration,
}

/// A latency that was measured longer ago says nothing about the present.
const LATENCY_LASTS: Duration = Duration::from_secs(5);

impl Connection {
    /// Checks that it is a controller of the subsystem, and reads its ANA states.
    pub(super) async fn new(
        (id, path): (ConnectionId, usize),
        controller: Controller,
        distance: u32,
        counters: Arc<Counters>,
    ) -> Result<Self, Error> {
        let options = controller.options();
        check_subsystem(&options.subnqn, controller.identify())
            .map_err(|error| Error::setup(options.addr, 0, error))?;
        let has_ana = controller.identify().cmic().contains(Cmic::ANARS);
        let this = Self {
            id,
            path,
            controller,
            distance,
            counters,
            is_lost: AtomicBool::new(false),
            is_outdated: AtomicBool::new(false),
            has_reset: AtomicBool::new(false),
            groups: Mutex::new(AnaGroups::default()),
            has_ana,
            checked: Mutex::new(Checked::default()),
            is_unchecked: AtomicBool::new(true),
            has_opened: AtomicBool::new(false),
            wake: Notify::new(),
            outstanding: AtomicU64::new(0),
            latency: Mutex::new(None),
            unanswered: AtomicU32::new(0),
            is_incapable: AtomicBool::new(false),
            fenced: Arc::new(watch::channel(None).0),
        };
        this.read_ana().await?;
        Ok(this)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    pub(super) fn outdate(&self) {
        self.is_outdated.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// It refused a command because of the ANA state of `group`, which is read again. A controller
    /// without ANA reporting has no states to read, which would end the state Change.
    pub(super) fn refuses(&self, group: u32) {
        if !self.has_ana {
            return;
        }
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.refused(group);
        drop(groups);
        self.outdate();
        self.doubt();
    }

    pub(super) fn take_outdated(&self) -> bool {
        self.is_outdated.swap(false, Ordering::AcqRel)
    }

    /// Whether its ANA states or a namespace are to be checked.
    pub(super) fn needs_check(&self) -> bool {
        self.is_outdated.load(Ordering::Acquire) || self.is_unchecked.load(Ordering::Acquire)
    }

    /// Bytes of calls in flight.
    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn notify_reset(&self) {
        self.has_reset.store(true, Ordering::Release);
    }

    pub(super) fn take_reset(&self) -> bool {
        self.has_reset.swap(false, Ordering::AcqRel)
    }

    /// Reads the ANA log page, if the controller has one.
    pub(super) async fn read_ana(&self) -> Result<(), Error> {
        if let Some(log) = self.controller.ana_log(true).await? {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            *groups = AnaGroups::of(&log);
        }
        Ok(())
    }

    /// The ANA state of namespaces in `group`.
    pub(super) fn state(&self, group: u32) -> AnaState {
        match self.has_ana {
            true => self
                .groups
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .state(group),
            false => AnaState::OPTIMIZED,
        }
    }

    /// Whether no group is in a state that ends by itself.
    pub(super) fn is_all_accessible(&self) -> bool {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.is_all_accessible()
    }

    /// The mean latency of its calls, if it was measured lately.
    pub(super) fn latency(&self, now: Duration) -> Option<Duration> {
        let latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = latency.filter(|one| now.saturating_sub(one.at) < LATENCY_LASTS);
        fresh.map(|one| one.mean)
    }

    /// A call took `time`.
    pub(super) fn measured(&self, now: Duration, time: Duration) {
        let mut latency = self.latency.lock().unwrap_or_else(PoisonError::into_inner);
        let mean = match *latency {
            // An eighth of it: single slow calls change little.
            Some(last) => (last.mean * 7 + time) / 8,
            None => time,
        };
        *latency = Some(Latency { mean, at: now });
    }

    /// The namespace of head `head`, or why it is not used, once it was checked.
    pub(super) fn known(&self, head: u64) -> Option<Result<Arc<Namespace>, Error>> {
        let checked = self.checked();
        Some(checked.namespaces.get(&head)?.result.clone())
    }

    /// The same, if nothing has happened since that requires another check.
    pub(super) fn current(&self, head: u64) -> Option<Result<Arc<Namespace>, Error>> {
        let checked = self.checked();
        let known = checked.namespaces.get(&head)?;
        known.is_current.then(|| known.result.clone())
    }

    /// The present generation of results, before a check begins.
    pub(super) fn generation(&self) -> u64 {
        self.checked().generation
    }

    /// Stores the result of a check. Returns false if the namespaces changed meanwhile.
    pub(super) fn remember(
        &self,
        head: u64,
        result: Result<Arc<Namespace>, Error>,
        generation: u64,
    ) -> bool {
        let mut checked = self.checked();
        let is_valid = checked.generation == generation;
        if is_valid {
            let is_current = true;
            checked
                .namespaces
                .insert(head, Known { result, is_current });
        }
        is_valid
    }

    /// Keeps results of these heads only.
    pub(super) fn retain(&self, heads: &[u64]) {
        let is_kept = |head: &u64| heads.contains(head);
        self.checked().namespaces.retain(|head, _| is_kept(head));
        self.counters.retain(heads);
    }

    /// These namespaces may be other ones, or all if there are none: they are not used before they
    /// are checked.
    pub(super) fn forget(&self, nsids: &[u32]) {
        {
            let mut checked = self.checked();
            let is_kept = |known: &Known| match &known.result {
                Ok(namespace) => !nsids.is_empty() && !nsids.contains(&namespace.nsid()),
                Err(_) => false,
            };
            checked.namespaces.retain(|_, known| is_kept(known));
            checked.generation = checked.generation.wrapping_add(1);
        }
        self.check_again();
    }

    /// The data structures of namespaces may have changed, such as their ANA groups, but not the
    /// namespaces: they are checked, and used meanwhile.
    pub(super) fn doubt(&self) {
        {
            let mut checked = self.checked();
            for known in checked.namespaces.values_mut() {
                known.is_current = false;
            }
            checked.generation = checked.generation.wrapping_add(1);
        }
        self.check_again();
    }

    pub(super) fn check_again(&self) {
        self.is_unchecked.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// A namespace was opened: its check does not wait for the pause after the last one, which is
    /// for checks that the target causes.
    pub(super) fn check_opened(&self) {
        self.has_opened.store(true, Ordering::Release);
        self.check_again();
    }

    pub(super) fn has_opened(&self) -> bool {
        self.has_opened.load(Ordering::Acquire)
    }

    pub(super) fn take_unchecked(&self) -> bool {
        self.has_opened.store(false, Ordering::Release);
        self.is_unchecked.swap(false, Ordering::AcqRel)
    }

    fn checked(&self) -> MutexGuard<'_, Checked> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is lost because of `why`: it takes no more commands, and all of its queues end.
    pub(super) fn abandon(&self, why: &Error) {
        self.lose();
        self.controller.abandon(why);
    }
}
