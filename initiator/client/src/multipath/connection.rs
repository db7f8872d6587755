//! One incarnation of a path: a controller from its connection to its loss.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_initiator_core::multipath::AnaGroups;
use nvmeof_initiator_core::{FenceMethod, SetupError, admin};
use nvmeof_wire::identify::Cmic;
use nvmeof_wire::log::ana::AnaState;
use tokio::sync::{Notify, watch};

use crate::controller::Controller;
use crate::error::Error;
use crate::namespace::Namespace;

/// A controller of a path.
pub(super) struct Connection {
    /// Index of the path.
    pub(super) path: usize,
    pub(super) controller: Controller,
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
    /// Something is to be read or checked now.
    pub(super) wake: Notify,
    /// Bytes of calls in flight.
    pub(super) outstanding: AtomicU64,
    latency: Mutex<Option<Latency>>,
    /// How it was fenced, once it is.
    pub(super) fenced: Arc<watch::Sender<Option<FenceMethod>>>,
}

/// Namespaces by the number of their head.
#[derive(Default)]
struct Checked {
    /// Those that were checked, or why they are not used.
    namespaces: BTreeMap<u64, Result<Arc<Namespace>, Error>>,
    /// Changes when earlier results become invalid.
    generation: u64,
}

#[derive(Clone, Copy)]
struct Latency {
    mean: Duration,
    at: Duration,
}

/// A latency that was measured longer ago says nothing about the present.
const LATENCY_LASTS: Duration = Duration::from_secs(5);

/// Most bytes of one log page command.
const PAGE: usize = 4096;

/// How often a page that changes while it is read is read again.
const ATTEMPTS: usize = 4;

impl Connection {
    /// Reads its ANA states.
    pub(super) async fn new(path: usize, controller: Controller) -> Result<Self, Error> {
        let has_ana = controller.identify().cmic().contains(Cmic::ANARS);
        let this = Self {
            path,
            controller,
            is_lost: AtomicBool::new(false),
            is_outdated: AtomicBool::new(false),
            has_reset: AtomicBool::new(false),
            groups: Mutex::new(AnaGroups::default()),
            has_ana,
            checked: Mutex::new(Checked::default()),
            is_unchecked: AtomicBool::new(true),
            wake: Notify::new(),
            outstanding: AtomicU64::new(0),
            latency: Mutex::new(None),
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

    /// It refused a command because of the ANA state of `group`, which is read again.
    pub(super) fn refuses(&self, group: u32) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.refused(group);
        drop(groups);
        self.outdate();
    }

    pub(super) fn take_outdated(&self) -> bool {
        self.is_outdated.swap(false, Ordering::AcqRel)
    }

    pub(super) fn notify_reset(&self) {
        self.has_reset.store(true, Ordering::Release);
    }

    pub(super) fn take_reset(&self) -> bool {
        self.has_reset.swap(false, Ordering::AcqRel)
    }

    /// Reads the ANA log page, until it does not change while it is read.
    pub(super) async fn read_ana(&self) -> Result<(), Error> {
        if !self.has_ana {
            return Ok(());
        }
        let invalid = |text: String| {
            let addr = self.controller.options().addr;
            Error::setup(addr, 0, SetupError::InvalidResponse(text))
        };
        let mut len = PAGE;
        for _ in 0..ATTEMPTS {
            let piece = u32::try_from(len.min(PAGE)).unwrap_or(u32::MAX);
            let mut page = self.controller.admin_read(admin::ana_groups(piece)).await?;
            let (groups, changes) = AnaGroups::header(&page).unwrap_or_default();
            len = AnaGroups::page_len(groups);
            while page.len() < len {
                let offset = u64::try_from(page.len()).unwrap_or(u64::MAX);
                let piece = (len - page.len()).min(PAGE);
                let piece = u32::try_from(piece).unwrap_or(u32::MAX);
                let command = admin::ana_log(true, offset, piece);
                page.extend_from_slice(&self.controller.admin_read(command).await?);
            }
            if page.len() > PAGE {
                // It may have changed between two pieces.
                let again = self.controller.admin_read(admin::ana_groups(16)).await?;
                if AnaGroups::header(&again).unwrap_or_default() != (groups, changes) {
                    continue;
                }
            }
            let read = AnaGroups::parse(&page).map_err(|error| invalid(error.to_string()))?;
            *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = read;
            return Ok(());
        }
        Err(invalid(
            "the ANA log page changes whenever it is read".to_owned(),
        ))
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
        self.checked().namespaces.get(&head).cloned()
    }

    /// The present generation of results, before a check begins.
    pub(super) fn generation(&self) -> u64 {
        self.checked().generation
    }

    /// Stores the result of a check. Returns false if the namespaces changed meanwhile.
    pub(super) fn remember(
        &self,
        head: u64,
        namespace: Result<Arc<Namespace>, Error>,
        generation: u64,
    ) -> bool {
        let mut checked = self.checked();
        let is_valid = checked.generation == generation;
        if is_valid {
            checked.namespaces.insert(head, namespace);
        }
        is_valid
    }

    /// Keeps results of these heads only.
    pub(super) fn retain(&self, heads: &[u64]) {
        let is_kept = |head: &u64| heads.contains(head);
        self.checked().namespaces.retain(|head, _| is_kept(head));
    }

    /// Its namespaces may have changed: none is used before it is checked.
    pub(super) fn forget(&self) {
        {
            let mut checked = self.checked();
            checked.namespaces.clear();
            checked.generation = checked.generation.wrapping_add(1);
        }
        self.check_again();
    }

    pub(super) fn check_again(&self) {
        self.is_unchecked.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(super) fn take_unchecked(&self) -> bool {
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
