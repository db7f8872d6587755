//! The backing stores of namespaces, and their changes: which stay, which are added, which are
//! retired.

use std::collections::BTreeMap;
use std::time::SystemTime;

use nvmeof_backend::{Claim, Geometry, Numbers, Spec, StorageId, WeakClaim};
use nvmeof_target_config::{Config, ConfigError, ConfiguredStore};
use nvmeof_target_core::NamespaceState;

use super::reactors::Closing;
use super::remembered::Remembered;
use crate::open::{Served, open_error, take};
use crate::waits::Waits;

/// Backing stores in the order of the namespaces, and those that are being closed.
pub(crate) struct Pool {
    numbers: Numbers,
    disks: Vec<Disk>,
    leaving: Vec<Leaving>,
}

/// The backing store of one namespace.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(super) number: u32,
    pub(super) held: Held,
    /// The configured backing store and its namespace.
    pub(super) wanted: ConfiguredStore,
}

/// State of a backing store.
#[derive(Clone)]
pub(crate) enum Held {
    /// It is open on every reactor.
    Open(Claim),
    /// It failed, and is closed.
    Lost(Lost),
    /// It was not available at the start.
    Waiting(Awaited),
}

/// A backing store that could not be opened at the start.
#[derive(Clone)]
pub(crate) struct Awaited {
    /// Its geometry when it was last served, or a placeholder.
    pub(super) geometry: Geometry,
    /// Whether it was served before, by this target or one before it.
    pub(super) is_known: bool,
    pub(super) waits: Waits,
}

/// A backing store that failed.
#[derive(Clone)]
pub(crate) struct Lost {
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
struct Leaving {
    number: u32,
    claim: WeakClaim,
    /// Identity of the claim, which is known even after the claim was dropped.
    identity: u64,
    wanted: ConfiguredStore,
    closing: Closing,
    /// Whether it failed: then it must not be used again.
    lost: bool,
}

/// The backing stores of the next configuration.
pub(super) struct Prepared {
    /// Those of all namespaces, in order.
    pub(super) next: Vec<Disk>,
    /// Those to open.
    pub(super) fresh: Vec<(u32, Claim)>,
    /// The index of the namespace of each one to open.
    pub(super) places: BTreeMap<u32, usize>,
    /// Those that no namespace uses any more.
    pub(super) gone: Vec<(u32, Claim)>,
    /// Remarks for the administrator.
    pub(super) remarks: Vec<String>,
}

impl Disk {
    /// Its claim, if it is open.
    pub(super) fn claim(&self) -> Option<&Claim> {
        match &self.held {
            Held::Open(claim) => Some(claim),
            Held::Lost(_) | Held::Waiting(_) => None,
        }
    }

    /// The failure, if it failed.
    pub(super) fn lost(&self) -> Option<&Lost> {
        match &self.held {
            Held::Open(_) | Held::Waiting(_) => None,
            Held::Lost(lost) => Some(lost),
        }
    }

    /// The reason and the last geometry, if it is not available yet.
    pub(super) fn awaited(&self) -> Option<&Awaited> {
        match &self.held {
            Held::Open(_) | Held::Lost(_) => None,
            Held::Waiting(awaited) => Some(awaited),
        }
    }

    /// Its properties for the model.
    pub(super) fn served(&self) -> Served<'_> {
        Served {
            number: self.number,
            geometry: match &self.held {
                Held::Open(claim) => claim.geometry(),
                Held::Lost(lost) => &lost.geometry,
                Held::Waiting(awaited) => &awaited.geometry,
            },
            state: match &self.held {
                Held::Open(_) => NamespaceState::Ready,
                Held::Lost(_) => NamespaceState::Faulted,
                Held::Waiting(awaited) if awaited.is_known => NamespaceState::Absent,
                Held::Waiting(_) => NamespaceState::Awaited,
            },
        }
    }

    /// Whether it belongs to that namespace.
    pub(super) fn is_of(&self, nqn: &str, nsid: u32) -> bool {
        self.wanted.nqn == nqn && self.wanted.nsid == nsid
    }

    /// Whether the claim is of the backing store that failed or was not available.
    fn was(&self, claim: &Claim) -> bool {
        match &self.held {
            Held::Open(_) => false,
            Held::Lost(lost) => {
                let block_size = claim.geometry().block_size;
                lost.storage == claim.storage() && lost.geometry.block_size == block_size
            }
            Held::Waiting(awaited) => awaited.check(claim).is_ok(),
        }
    }

    /// State of its namespace while it is not available, for messages.
    fn state_name(&self) -> &'static str {
        match self.held {
            Held::Waiting(_) => "waiting",
            Held::Open(_) | Held::Lost(_) => "faulted",
        }
    }

    fn number_and_claim(&self) -> Option<(u32, Claim)> {
        Some((self.number, self.claim()?.clone()))
    }
}

impl Awaited {
    /// Checks that the claim has the block size that hosts know, which cannot change for them.
    ///
    /// # Errors
    /// The difference, with a remedy.
    pub(super) fn check(&self, claim: &Claim) -> Result<(), String> {
        let (was, is) = (self.geometry.block_size, claim.geometry().block_size);
        if !self.is_known || was == is {
            return Ok(());
        }
        Err(format!(
            "{} has a block size of {} bytes, and the namespace had {} when it was last served; \
             restore the former backing store, or remove the namespace and add it again",
            claim.name(),
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
    /// `known` has the sizes of those that were served before.
    pub(crate) fn new(
        config: &Config,
        present: Vec<Result<Claim, ConfigError>>,
        known: &Remembered,
    ) -> Result<Self, ConfigError> {
        let mut numbers = Numbers::default();
        let wanted = config.wanted()?.into_iter().zip(present);
        let disks = wanted.filter_map(|(wanted, claim)| {
            let held = match claim {
                Ok(claim) => Held::Open(claim),
                Err(error) => Held::Waiting(known.awaited(&wanted, Waits::of(&error))),
            };
            Some(Disk {
                number: numbers.take()?,
                held,
                wanted,
            })
        });
        Ok(Self {
            disks: disks.collect(),
            numbers,
            leaving: Vec::new(),
        })
    }

    /// The backing stores, in the order of the namespaces.
    pub(super) fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// The open ones, with their numbers.
    pub(crate) fn claims(&self) -> Vec<(u32, Claim)> {
        let all = self.disks.iter();
        all.filter_map(Disk::number_and_claim).collect()
    }

    /// Their properties for the model, in order.
    pub(crate) fn served(&self) -> impl Iterator<Item = Served<'_>> {
        self.disks.iter().map(Disk::served)
    }

    /// A number for one more backing store.
    pub(super) fn number(&mut self) -> Option<u32> {
        self.numbers.take()
    }

    /// Whether a failed backing store is being closed.
    pub(super) fn is_losing(&self) -> bool {
        self.leaving.iter().any(|one| one.lost)
    }

    /// Whether a backing store of that claim is being closed, with any size.
    pub(super) fn is_closing(&self, identity: u64) -> bool {
        self.leaving.iter().any(|one| one.identity == identity)
    }

    /// Number of backing stores that are being closed.
    #[cfg(test)]
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Releases backing stores that every reactor has closed by now.
    pub(super) fn collect(&mut self) {
        let numbers = &mut self.numbers;
        self.leaving.retain_mut(|one| {
            let closed = one.closing.is_over();
            if closed {
                numbers.free(one.number);
            }
            !closed
        });
    }

    /// Selects a backing store for each namespace of `config`: the one it has, or an open one for
    /// the same file; otherwise it is opened and locked.
    pub(super) fn prepare(&mut self, config: &Config) -> Result<Prepared, ConfigError> {
        let wanted = config.wanted()?;
        let mut kept = self.kept(&wanted);
        let mut prepared = Prepared {
            next: Vec::new(),
            fresh: Vec::new(),
            places: BTreeMap::new(),
            gone: Vec::new(),
            remarks: Vec::new(),
        };
        for (at, wanted) in wanted.iter().enumerate() {
            let kept = kept.get_mut(at).and_then(Option::take);
            match self.find(config, at, wanted, kept, &mut prepared) {
                Ok(disk) => prepared.next.push(disk),
                Err(error) => {
                    self.release(&prepared.fresh);
                    return Err(error);
                }
            }
        }
        let stays = |disk: &&Disk| !prepared.next.iter().any(|one| one.number == disk.number);
        let gone = self.disks.iter().filter(stays);
        prepared.gone = gone.filter_map(Disk::number_and_claim).collect();
        Ok(prepared)
    }

    /// The backing store of the namespace at index `at`, which may have `kept` open.
    fn find(
        &mut self,
        config: &Config,
        at: usize,
        wanted: &ConfiguredStore,
        kept: Option<Disk>,
        prepared: &mut Prepared,
    ) -> Result<Disk, ConfigError> {
        let (claim, spec) = match kept {
            // A size that cannot be served does not prevent other changes.
            Some(Disk {
                number,
                held: Held::Open(claim),
                wanted: was,
            }) => match claim.resized() {
                Ok(Some(resized)) => (resized, was.spec),
                same => {
                    prepared.remarks.extend(same.err().map(|error| {
                        let ConfiguredStore { nqn, nsid, .. } = wanted;
                        format!("{nqn}: namespace {nsid} keeps its size: {error}")
                    }));
                    return Ok(Disk {
                        number,
                        held: Held::Open(claim),
                        wanted: wanted.with(was.spec),
                    });
                }
            },
            _ => match (
                self.take(config, at, wanted, &prepared.next),
                self.lost(wanted),
            ) {
                (Ok(taken), None) => taken,
                (Ok(taken), Some(lost)) if lost.was(&taken.0) => taken,
                // A backing store that is faulted already does not prevent other changes.
                (broken, Some(lost)) => {
                    let ConfiguredStore { nqn, nsid, .. } = wanted;
                    let why = match (broken, lost.awaited()) {
                        (Err(error), _) => error.to_string(),
                        (Ok((claim, _)), Some(awaited)) => {
                            awaited.check(&claim).err().unwrap_or_default()
                        }
                        (Ok(_), None) => replaced_error(),
                    };
                    let word = lost.state_name();
                    let remark = format!("{nqn}: namespace {nsid} is still {word}: {why}");
                    prepared.remarks.push(remark);
                    let wanted = wanted.clone();
                    return Ok(Disk {
                        wanted,
                        ..lost.clone()
                    });
                }
                (Err(error), None) => return Err(error),
            },
        };
        let number = self.numbers.take();
        let too_many = || config.path_error(at, "too many backing stores are open");
        let number = number.ok_or_else(too_many)?;
        prepared.fresh.push((number, claim.clone()));
        prepared.places.insert(number, at);
        Ok(Disk {
            number,
            held: Held::Open(claim),
            wanted: wanted.with(spec),
        })
    }

    /// The backing store of that namespace, if its path is the same and it is not available.
    fn lost(&self, wanted: &ConfiguredStore) -> Option<&Disk> {
        let mut lost = self.disks.iter().filter(|disk| disk.claim().is_none());
        lost.find(|disk| disk.is_of(&wanted.nqn, wanted.nsid) && disk.wanted.names(wanted))
    }

    /// The backing store of each namespace that is open already. First those that a namespace
    /// has, then files that change their namespace.
    fn kept(&self, wanted: &[ConfiguredStore]) -> Vec<Option<Disk>> {
        let open = self.disks.iter().filter(|disk| disk.claim().is_some());
        let mut there: Vec<_> = open.map(Some).collect();
        let mut kept = vec![None; wanted.len()];
        for in_place in [true, false] {
            for (wanted, kept) in wanted.iter().zip(&mut kept) {
                let suits = |disk: &Disk| {
                    let same = (&disk.wanted.nqn, disk.wanted.nsid) == (&wanted.nqn, wanted.nsid);
                    disk.wanted.serves(wanted) && (same || (!in_place && is_file(&wanted.spec)))
                };
                if kept.is_none()
                    && let Some(found) = there.iter_mut().find(|disk| disk.is_some_and(suits))
                {
                    *kept = found.take().cloned();
                }
            }
        }
        kept
    }

    /// Opens and locks the backing store of the namespace at index `at`; `others` are those of
    /// the namespaces before it. Also returns the specification that was opened.
    fn take(
        &self,
        config: &Config,
        at: usize,
        wanted: &ConfiguredStore,
        others: &[Disk],
    ) -> Result<(Claim, Spec), ConfigError> {
        let spec = &wanted.spec;
        let names =
            |disk: &&Disk| is_file(spec) && disk.claim().is_some() && disk.wanted.names(wanted);
        let served = self.disks.iter().find(names);
        if served.is_some_and(|disk| !disk.wanted.serves(wanted)) {
            let what = "it is served with another readonly, block_size or iopoll, which cannot \
                        change while it is served; remove the namespace, then add it again";
            return Err(config.path_error(at, what));
        }
        if is_file(spec) && served.or(others.iter().find(names)).is_none() {
            let leaving = self.leaving.iter().filter(|one| !one.lost);
            let mut leaving = leaving.filter(|one| one.wanted.serves(wanted));
            let found = leaving.find_map(|one| Some((one.claim.upgrade()?, &one.wanted.spec)));
            if let Some((claim, spec)) = found {
                // It holds the file lock.
                let claim = resized(config, at, &claim)?.unwrap_or(claim);
                return Ok((claim, spec.clone()));
            }
        }
        let claim = take(wanted);
        let claim = claim.map_err(|error| open_error(config, at, &error))?;
        Ok((claim, spec.clone()))
    }

    /// Releases numbers that no reactor uses.
    pub(super) fn release(&mut self, fresh: &[(u32, Claim)]) {
        for (number, _) in fresh {
            self.numbers.free(*number);
        }
    }

    /// Serves namespaces from `next` from now on, and retires the others.
    pub(super) fn commit(&mut self, next: Vec<Disk>, closing: BTreeMap<u32, Closing>) {
        let old = std::mem::replace(&mut self.disks, next);
        // Reactors never had those that were not available.
        for disk in old.iter().filter(|disk| disk.awaited().is_some()) {
            if !self.disks.iter().any(|one| one.number == disk.number) {
                self.numbers.free(disk.number);
            }
        }
        self.retire(&old, closing);
    }

    /// Keeps number and lock of those of `disks` that are being closed until they are closed.
    pub(super) fn retire(&mut self, disks: &[Disk], closing: BTreeMap<u32, Closing>) {
        for (number, closing) in closing {
            let its = |disk: &&Disk| disk.number == number;
            let claim = disks.iter().find(its).and_then(|disk| {
                let claim = disk.claim()?;
                Some((claim.downgrade(), claim.identity(), disk.wanted.clone()))
            });
            if let Some((claim, identity, wanted)) = claim {
                let lost = self
                    .disks
                    .iter()
                    .filter(its)
                    .any(|disk| disk.lost().is_some());
                self.leaving.push(Leaving {
                    number,
                    claim,
                    identity,
                    wanted,
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

fn is_file(spec: &Spec) -> bool {
    matches!(spec, Spec::File { .. })
}
