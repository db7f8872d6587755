//! The backing stores of namespaces, and their changes: which stay, which are added, which are
//! retired.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use nvmeof_backend::{Claim, Geometry, Numbers, Spec, StorageId, WeakClaim};
use nvmeof_target_config::{Config, ConfigError, ConfiguredStore};
use nvmeof_target_core::NamespaceState;

use super::reactors::Closing;
use super::remembered::Remembered;
use crate::held::{HeldGroups, Standby, Taken};
use crate::host_settings::{Admission, Records};
use crate::open::{Served, open_error, take, unreadable};
use crate::waits::WaitReason;

/// Backing stores in the order of the namespaces, and those that are being closed.
pub(crate) struct Pool {
    records: Arc<Records>,
    numbers: Numbers,
    held: HeldGroups,
    stores: Vec<NamespaceStore>,
    retired: Vec<RetiredStore>,
}

/// The backing store of one namespace.
#[derive(Clone)]
pub(crate) struct NamespaceStore {
    pub(super) number: u32,
    pub(super) state: StoreState,
    /// The configured backing store and its namespace.
    pub(super) configured: ConfiguredStore,
}

/// State of a backing store.
#[derive(Clone)]
pub(crate) enum StoreState {
    /// It is open on every reactor.
    Open(Claim),
    /// Another gateway serves its group, or none does.
    Standby(Standby),
    /// It failed, and is closed.
    Faulted(FaultedStore),
    /// It was not available at the start.
    Waiting(WaitingStore),
}

/// A backing store that could not be opened at the start.
#[derive(Clone)]
pub(crate) struct WaitingStore {
    /// Its geometry when it was last served, or a placeholder.
    pub(super) geometry: Geometry,
    /// Whether it was served before, by this target or one before it.
    pub(super) is_known: bool,
    pub(super) waits: WaitReason,
}

/// A backing store that failed.
#[derive(Clone)]
pub(crate) struct FaultedStore {
    /// Its last geometry.
    pub(super) geometry: Geometry,
    /// Identity of the file or device.
    pub(super) storage: Option<StorageId>,
    /// The cause.
    pub(super) why: String,
    pub(super) since: SystemTime,
}

/// A retired backing store, which reactors close when no command uses it. It keeps its number
/// and its lock until then.
struct RetiredStore {
    number: u32,
    claim: WeakClaim,
    /// Identity of the claim, which is known even after the claim was dropped.
    identity: u64,
    configured: ConfiguredStore,
    closing: Closing,
    /// Whether it failed: then it must not be used again.
    lost: bool,
}

/// The backing stores of the next configuration.
pub(super) struct Prepared {
    /// Those of all namespaces, in order.
    pub(super) next: Vec<NamespaceStore>,
    /// Those to open.
    pub(super) fresh: Vec<(u32, Claim)>,
    /// Numbers of those on standby that are new.
    pub(super) standby: Vec<u32>,
    /// The index of the namespace of each one to open.
    pub(super) places: BTreeMap<u32, usize>,
    /// Those that no namespace uses any more.
    pub(super) gone: Vec<(u32, Claim)>,
    /// What hosts set of namespaces that are to be served.
    pub(super) admissions: Vec<Admission>,
    /// Remarks for the administrator.
    pub(super) remarks: Vec<String>,
}

impl From<Taken> for StoreState {
    fn from(taken: Taken) -> Self {
        match taken {
            Taken::Open(claim) => Self::Open(claim),
            Taken::Standby(standby) => Self::Standby(standby),
        }
    }
}

impl NamespaceStore {
    /// Its claim, if it is open.
    pub(super) fn claim(&self) -> Option<&Claim> {
        match &self.state {
            StoreState::Open(claim) => Some(claim),
            StoreState::Standby(_) | StoreState::Faulted(_) | StoreState::Waiting(_) => None,
        }
    }

    /// The failure, if it failed.
    pub(super) fn failure(&self) -> Option<&FaultedStore> {
        match &self.state {
            StoreState::Faulted(lost) => Some(lost),
            _ => None,
        }
    }

    /// The reason and the last geometry, if it is not available yet.
    pub(super) fn waiting(&self) -> Option<&WaitingStore> {
        match &self.state {
            StoreState::Waiting(awaited) => Some(awaited),
            _ => None,
        }
    }

    /// Its properties for the model.
    pub(super) fn served(&self) -> Served<'_> {
        Served {
            number: self.number,
            geometry: match &self.state {
                StoreState::Open(claim) => claim.geometry(),
                StoreState::Standby(standby) => &standby.geometry,
                StoreState::Faulted(lost) => &lost.geometry,
                StoreState::Waiting(awaited) => &awaited.geometry,
            },
            state: match &self.state {
                StoreState::Open(_) => NamespaceState::Ready,
                StoreState::Standby(_) => NamespaceState::Standby,
                StoreState::Faulted(_) => NamespaceState::Faulted,
                StoreState::Waiting(awaited) if awaited.is_known => NamespaceState::Absent,
                StoreState::Waiting(_) => NamespaceState::Awaited,
            },
        }
    }

    /// Whether this gateway does not serve its group.
    fn is_standby(&self) -> bool {
        matches!(self.state, StoreState::Standby(_))
    }

    /// Whether it belongs to that namespace.
    pub(super) fn is_of(&self, nqn: &str, nsid: u32) -> bool {
        self.configured.nqn == nqn && self.configured.nsid == nsid
    }

    /// Whether that is the backing store that failed or was not available.
    fn was(&self, taken: &Taken) -> bool {
        let storage = match taken {
            Taken::Open(claim) => claim.storage(),
            Taken::Standby(_) => None,
        };
        let block_size = taken.geometry().block_size;
        match &self.state {
            StoreState::Open(_) | StoreState::Standby(_) => false,
            StoreState::Faulted(lost) => {
                lost.storage == storage && lost.geometry.block_size == block_size
            }
            StoreState::Waiting(awaited) => {
                awaited.check(&self.configured, taken.geometry()).is_ok()
            }
        }
    }

    /// Its geometry, or the last one that is known.
    pub(super) fn geometry(&self) -> &Geometry {
        self.served().geometry
    }

    /// A remark why it is still not available.
    fn still(&self, configured: &ConfiguredStore, broken: Result<Taken, ConfigError>) -> String {
        let why = match (broken, self.waiting()) {
            (Err(error), _) => error.to_string(),
            (Ok(taken), Some(awaited)) => {
                let checked = awaited.check(configured, taken.geometry());
                checked.err().unwrap_or_default()
            }
            (Ok(_), None) => replaced_error(),
        };
        let (ConfiguredStore { nqn, nsid, .. }, word) = (configured, self.state_name());
        format!("{nqn}: namespace {nsid} is still {word}: {why}")
    }

    /// State of its namespace while it is not available, for messages.
    fn state_name(&self) -> &'static str {
        match self.state {
            StoreState::Waiting(_) => "waiting",
            StoreState::Open(_) | StoreState::Standby(_) | StoreState::Faulted(_) => "faulted",
        }
    }

    pub(super) fn number_and_claim(&self) -> Option<(u32, Claim)> {
        Some((self.number, self.claim()?.clone()))
    }
}

impl WaitingStore {
    /// Checks that the block size is the one that hosts know, which cannot change for them.
    ///
    /// # Errors
    /// The difference, with a remedy.
    pub(super) fn check(
        &self,
        configured: &ConfiguredStore,
        geometry: &Geometry,
    ) -> Result<(), String> {
        let (was, is) = (self.geometry.block_size, geometry.block_size);
        if !self.is_known || was == is {
            return Ok(());
        }
        Err(format!(
            "{} has a block size of {} bytes, and the namespace had {} when it was last served; \
             restore the former backing store, or remove the namespace and add it again",
            configured.spec,
            is.bytes(),
            was.bytes()
        ))
    }
}

/// The error if the path names another file now. An unrelated change must not replace the data
/// of a namespace.
fn replaced_error() -> String {
    "another file or device has this name now; to serve that one, use `nvmeof-target ctl \
     namespace enable`"
        .to_owned()
}

impl Pool {
    /// The backing stores of the namespaces of `config` at the start, in order: open, or waiting.
    /// `known` has the sizes of those that were served before, and `records` what hosts set.
    pub(crate) fn new(
        config: &Config,
        present: Vec<Result<Taken, ConfigError>>,
        known: &Remembered,
        records: Arc<Records>,
    ) -> Result<Self, ConfigError> {
        let mut numbers = Numbers::default();
        let configured = config.configured_stores()?.into_iter().zip(present);
        let stores = configured.filter_map(|(configured, taken)| {
            let state = match taken {
                Ok(taken) => taken.into(),
                Err(error) => {
                    StoreState::Waiting(known.awaited(&configured, WaitReason::of(&error)))
                }
            };
            Some(NamespaceStore {
                number: numbers.take()?,
                state,
                configured,
            })
        });
        Ok(Self {
            records,
            stores: stores.collect(),
            held: HeldGroups::default(),
            numbers,
            retired: Vec::new(),
        })
    }

    /// The records of what hosts set.
    pub(super) fn records(&self) -> &Arc<Records> {
        &self.records
    }

    /// The groups of `[[ha.group]]` that this gateway holds.
    pub(crate) fn held(&self) -> &HeldGroups {
        &self.held
    }

    /// The same, to change it.
    pub(super) fn held_mut(&mut self) -> &mut HeldGroups {
        &mut self.held
    }

    /// The numbers of backing stores of that group that are being closed.
    pub(super) fn closing_in(&self, group: u32) -> Vec<u32> {
        let retired = self.retired.iter();
        let its = retired.filter(|one| one.configured.group == Some(group));
        its.map(|one| one.number).collect()
    }

    /// The backing stores, in the order of the namespaces.
    pub(super) fn stores(&self) -> &[NamespaceStore] {
        &self.stores
    }

    /// Their specifications, in this order.
    pub(crate) fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.stores.iter().map(|store| &store.configured.spec)
    }

    /// The open ones, with their numbers.
    pub(crate) fn claims(&self) -> Vec<(u32, Claim)> {
        let all = self.stores.iter();
        all.filter_map(NamespaceStore::number_and_claim).collect()
    }

    /// Their properties for the model, in order.
    pub(crate) fn served(&self) -> impl Iterator<Item = Served<'_>> {
        self.stores.iter().map(NamespaceStore::served)
    }

    /// A number for one more backing store.
    pub(super) fn number(&mut self) -> Option<u32> {
        self.numbers.take()
    }

    /// Sets the state of a backing store that is not open on reactors any more. They may still
    /// use its number, which is released when they do not.
    pub(super) fn set_closed(&mut self, store: &mut NamespaceStore, state: StoreState) {
        if let StoreState::Open(_) | StoreState::Faulted(_) = store.state {
            // If there is none, hosts get the same refusal.
            store.number = self.numbers.take().unwrap_or(u32::MAX);
        }
        store.state = state;
    }

    /// Whether a failed backing store is being closed.
    pub(super) fn is_closing_failed(&self) -> bool {
        self.retired.iter().any(|one| one.lost)
    }

    /// Whether a backing store of that claim is being closed, with any size.
    pub(super) fn is_closing(&self, identity: u64) -> bool {
        self.retired.iter().any(|one| one.identity == identity)
    }

    /// Number of backing stores that are being closed.
    #[cfg(test)]
    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Releases backing stores that every reactor has closed by now.
    pub(super) fn collect(&mut self) {
        let numbers = &mut self.numbers;
        self.retired.retain_mut(|one| {
            let closed = one.closing.is_complete();
            if closed {
                numbers.free(one.number);
            }
            !closed
        });
    }

    /// Selects a backing store for each namespace of `config`: the one it has, or an open one for
    /// the same file; otherwise it is opened and locked.
    pub(super) fn prepare(&mut self, config: &Config) -> Result<Prepared, ConfigError> {
        let configured = config.configured_stores()?;
        let mut kept = self.kept(&configured);
        let mut prepared = Prepared {
            next: Vec::new(),
            fresh: Vec::new(),
            standby: Vec::new(),
            places: BTreeMap::new(),
            gone: Vec::new(),
            admissions: Vec::new(),
            remarks: Vec::new(),
        };
        for (at, configured) in configured.iter().enumerate() {
            let kept = kept.get_mut(at).and_then(Option::take);
            match self.find(config, at, configured, kept, &mut prepared) {
                Ok(store) => prepared.next.push(store),
                Err(error) => {
                    self.release(&prepared);
                    return Err(error);
                }
            }
        }
        let stays =
            |store: &&NamespaceStore| !prepared.next.iter().any(|one| one.number == store.number);
        let gone = self.stores.iter().filter(stays);
        prepared.gone = gone.filter_map(NamespaceStore::number_and_claim).collect();
        Ok(prepared)
    }

    /// The backing store of the namespace at index `at`, which may have `kept` open.
    fn find(
        &mut self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
        kept: Option<NamespaceStore>,
        prepared: &mut Prepared,
    ) -> Result<NamespaceStore, ConfigError> {
        self.check_path(config, at, configured)?;
        self.check_group(config, at, configured)?;
        if let Some(closed) = self.closed_in_group(configured) {
            let configured = configured.clone();
            return Ok(NamespaceStore {
                configured,
                ..closed.clone()
            });
        }
        let (taken, spec, admission) = match kept {
            // A size that cannot be served does not prevent other changes.
            Some(NamespaceStore {
                number,
                state: StoreState::Open(claim),
                configured: was,
            }) => {
                let admission = self.read(config, at, configured, Some(&claim))?;
                match claim.resized() {
                    Ok(Some(resized)) => (Taken::Open(resized), was.spec, admission),
                    same => {
                        prepared.remarks.extend(same.err().map(|error| {
                            let ConfiguredStore { nqn, nsid, .. } = configured;
                            format!("{nqn}: namespace {nsid} keeps its size: {error}")
                        }));
                        prepared.admissions.extend(admission);
                        return Ok(NamespaceStore {
                            number,
                            state: StoreState::Open(claim),
                            configured: configured.with(was.spec),
                        });
                    }
                }
            }
            _ => match (
                self.take_and_read(config, at, configured, &prepared.next),
                self.lost(configured),
            ) {
                (Ok(taken), None) => taken,
                (Ok(taken), Some(lost)) if lost.was(&taken.0) => taken,
                // A backing store that is faulted already does not prevent other changes.
                (broken, Some(lost)) => {
                    let broken = broken.map(|(taken, ..)| taken);
                    prepared.remarks.push(lost.still(configured, broken));
                    let configured = configured.clone();
                    return Ok(NamespaceStore {
                        configured,
                        ..lost.clone()
                    });
                }
                (Err(error), None) => return Err(error),
            },
        };
        prepared.admissions.extend(admission);
        self.fresh(config, at, taken, configured.with(spec), prepared)
    }

    /// A backing store that was just opened, of the namespace at index `at`.
    fn fresh(
        &mut self,
        config: &Config,
        at: usize,
        taken: Taken,
        configured: ConfiguredStore,
        prepared: &mut Prepared,
    ) -> Result<NamespaceStore, ConfigError> {
        let number = self.numbers.take();
        let too_many = || config.path_error(at, "too many backing stores are open");
        let number = number.ok_or_else(too_many)?;
        match &taken {
            Taken::Open(claim) => {
                prepared.fresh.push((number, claim.clone()));
                prepared.places.insert(number, at);
            }
            Taken::Standby(_) => prepared.standby.push(number),
        }
        Ok(NamespaceStore {
            number,
            state: taken.into(),
            configured,
        })
    }

    /// Refuses to change the path of a namespace that is served to or from an image: its record
    /// would move while hosts change it.
    fn check_path(
        &self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
    ) -> Result<(), ConfigError> {
        let mut stores = self.stores.iter();
        let served = stores.find(|it| it.is_of(&configured.nqn, configured.nsid));
        let is_image = |it: &ConfiguredStore| matches!(it.spec, Spec::Rbd { .. });
        let moves = |it: &&NamespaceStore| {
            it.claim().is_some()
                && !it.configured.names(configured)
                && (is_image(&it.configured) || is_image(configured))
        };
        let Some(served) = served.filter(moves) else {
            return Ok(());
        };
        let what = format!(
            "{}: the namespace is served from {}, and its reservations and write protection \
             cannot move while it is served; remove the namespace, then add it again",
            configured.spec, served.configured.spec
        );
        Err(config.path_error(at, &what))
    }

    /// Refuses to change whether gateways take over a namespace, and with which others: its image
    /// is open through the clients of its group, or another gateway has it open.
    fn check_group(
        &self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
    ) -> Result<(), ConfigError> {
        let changes = |it: &NamespaceStore| {
            it.configured.names(configured) && it.configured.group != configured.group
        };
        let is_used = |it: &NamespaceStore| it.claim().is_some() || it.is_standby();
        let mut stores = self.stores.iter();
        match stores.find(|it| is_used(it) && changes(it)) {
            None => Ok(()),
            Some(used) => {
                let (nqn, nsid) = (&used.configured.nqn, used.configured.nsid);
                let what = format!(
                    "{}: namespace {nsid} of {nqn} has it in another ANA group, and a change into, \
                     out of or between the groups of [[ha.group]] is not possible while it is \
                     served; remove the namespace on all gateways, then add it again",
                    configured.spec
                );
                Err(config.path_error(at, &what))
            }
        }
    }

    /// The backing store of that namespace, if it is the same, and on standby or waiting in a group
    /// of `[[ha.group]]`. The retry thread opens it, without keeping the state for as long as a
    /// cluster may take.
    fn closed_in_group(&self, configured: &ConfiguredStore) -> Option<&NamespaceStore> {
        self.stores.iter().find(|store| {
            let is_waiting = store.waiting().is_some() && configured.group.is_some();
            (store.is_standby() || is_waiting)
                && store.is_of(&configured.nqn, configured.nsid)
                && store.configured.serves(configured)
        })
    }

    /// The backing store of that namespace, if its path is the same and it is not available.
    fn lost(&self, configured: &ConfiguredStore) -> Option<&NamespaceStore> {
        let is_lost = |store: &&NamespaceStore| {
            matches!(store.state, StoreState::Faulted(_) | StoreState::Waiting(_))
        };
        let mut lost = self.stores.iter().filter(is_lost);
        lost.find(|store| {
            store.is_of(&configured.nqn, configured.nsid) && store.configured.names(configured)
        })
    }

    /// The backing store of each namespace that is open already. First those that a namespace
    /// has, then files that change their namespace.
    fn kept(&self, configured: &[ConfiguredStore]) -> Vec<Option<NamespaceStore>> {
        let open = self.stores.iter().filter(|store| store.claim().is_some());
        let mut there: Vec<_> = open.map(Some).collect();
        let mut kept = vec![None; configured.len()];
        for in_place in [true, false] {
            for (configured, kept) in configured.iter().zip(&mut kept) {
                let suits = |store: &NamespaceStore| {
                    let same = (&store.configured.nqn, store.configured.nsid)
                        == (&configured.nqn, configured.nsid);
                    store.configured.serves(configured)
                        && (same || (!in_place && !configured.spec.is_memory()))
                };
                if kept.is_none()
                    && let Some(found) = there.iter_mut().find(|store| store.is_some_and(suits))
                {
                    *kept = found.take().cloned();
                }
            }
        }
        kept
    }

    /// [`take`](Self::take), and reads the record of the namespace.
    fn take_and_read(
        &self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
        others: &[NamespaceStore],
    ) -> Result<(Taken, Spec, Option<Admission>), ConfigError> {
        let (taken, spec) = self.take(config, at, configured, others)?;
        let admission = self.read(config, at, configured, taken.claim())?;
        Ok((taken, spec, admission))
    }

    /// Reads the record of the namespace at index `at`.
    fn read(
        &self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
        claim: Option<&Claim>,
    ) -> Result<Option<Admission>, ConfigError> {
        let read = self.records.read(configured, claim);
        read.map_err(|error| unreadable(config, at, &error))
    }

    /// Opens and locks the backing store of the namespace at index `at`; `others` are those of
    /// the namespaces before it. Also returns the specification that was opened.
    fn take(
        &self,
        config: &Config,
        at: usize,
        configured: &ConfiguredStore,
        others: &[NamespaceStore],
    ) -> Result<(Taken, Spec), ConfigError> {
        let spec = &configured.spec;
        let names = |store: &&NamespaceStore| {
            !spec.is_memory() && store.claim().is_some() && store.configured.names(configured)
        };
        let served = self.stores.iter().find(names);
        if served.is_some_and(|store| !store.configured.serves(configured)) {
            let what = "it is served with another readonly, block_size or iopoll, which cannot \
                        change while it is served; remove the namespace, then add it again";
            return Err(config.path_error(at, what));
        }
        if !spec.is_memory() && served.or(others.iter().find(names)).is_none() {
            let retired = self.retired.iter().filter(|one| !one.lost);
            // Clients of a group may have been fenced since.
            let retired = retired.filter(|one| one.configured.group.is_none());
            let mut retired = retired.filter(|one| one.configured.serves(configured));
            let found = retired.find_map(|one| Some((one.claim.upgrade()?, &one.configured.spec)));
            if let Some((claim, spec)) = found {
                // It holds the lock.
                let claim = resized(config, at, &claim)?.unwrap_or(claim);
                return Ok((Taken::Open(claim), spec.clone()));
            }
        }
        let taken = take(configured, &self.held);
        let taken = taken.map_err(|error| open_error(config, at, &error))?;
        Ok((taken, spec.clone()))
    }

    /// Releases numbers that no reactor uses.
    pub(super) fn free(&mut self, fresh: &[(u32, Claim)]) {
        for (number, _) in fresh {
            self.numbers.free(*number);
        }
    }

    /// Releases the numbers of those of `next` that are on standby, and were not before.
    pub(super) fn free_standby(&mut self, next: &[NamespaceStore]) {
        let known = |number| self.stores.iter().any(|it| it.number == number);
        let standby = next.iter().filter(|it| it.is_standby());
        let fresh: Vec<_> = standby
            .map(|it| it.number)
            .filter(|it| !known(*it))
            .collect();
        fresh
            .into_iter()
            .for_each(|number| self.numbers.free(number));
    }

    /// Releases the numbers of a change that is not made. No reactor uses them.
    pub(super) fn release(&mut self, prepared: &Prepared) {
        self.free(&prepared.fresh);
        self.release_standby(prepared);
    }

    /// The same, if reactors may use those of backing stores that are open.
    pub(super) fn release_standby(&mut self, prepared: &Prepared) {
        for number in &prepared.standby {
            self.numbers.free(*number);
        }
    }

    /// Serves namespaces from `next` from now on, and retires the others.
    pub(super) fn commit(&mut self, next: Vec<NamespaceStore>, closing: BTreeMap<u32, Closing>) {
        let old = std::mem::replace(&mut self.stores, next);
        // Reactors never had those that were not available.
        let is_unused = |store: &&NamespaceStore| {
            matches!(store.state, StoreState::Waiting(_) | StoreState::Standby(_))
        };
        for store in old.iter().filter(is_unused) {
            if !self.stores.iter().any(|one| one.number == store.number) {
                self.numbers.free(store.number);
            }
        }
        self.retire(&old, closing);
    }

    /// Keeps number and lock of those of `stores` that are being closed until they are closed.
    pub(super) fn retire(&mut self, stores: &[NamespaceStore], closing: BTreeMap<u32, Closing>) {
        for (number, closing) in closing {
            let its = |store: &&NamespaceStore| store.number == number;
            let claim = stores.iter().find(its).and_then(|store| {
                let claim = store.claim()?;
                Some((
                    claim.downgrade(),
                    claim.identity(),
                    store.configured.clone(),
                ))
            });
            if let Some((claim, identity, configured)) = claim {
                let lost = self
                    .stores
                    .iter()
                    .filter(its)
                    .any(|store| store.failure().is_some());
                self.retired.push(RetiredStore {
                    number,
                    claim,
                    identity,
                    configured,
                    closing,
                    lost,
                });
            }
        }
    }
}

/// The claim with its current size, if that has changed.
fn resized(config: &Config, at: usize, claim: &Claim) -> Result<Option<Claim>, ConfigError> {
    let resized = claim.resized();
    resized.map_err(|error| open_error(config, at, &error))
}
