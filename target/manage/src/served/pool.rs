//! The disks that namespaces are served from: which stay, which come, which go.

use std::collections::BTreeMap;
use std::time::SystemTime;

use nvmeof_backend::{Claim, Geometry, Numbers, Spec, StorageId, WeakClaim};
use nvmeof_target_config::{Config, ConfigError, Wanted};
use nvmeof_target_core::NamespaceState;

use super::reactors::Closing;
use super::remembered::Remembered;
use crate::open::{Served, disk_error, take};
use crate::waits::Waits;

/// Disks by the order of the namespaces, and those that are being closed.
pub(crate) struct Pool {
    numbers: Numbers,
    disks: Vec<Disk>,
    leaving: Vec<Leaving>,
}

/// The disk of one namespace.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(super) number: u32,
    pub(super) held: Held,
    /// What it is, and the namespace that has it.
    pub(super) wanted: Wanted,
}

/// What there is of a disk.
#[derive(Clone)]
pub(crate) enum Held {
    /// It is open on every reactor.
    Open(Claim),
    /// Its storage is gone, and it is closed.
    Lost(Lost),
    /// Its storage was not there at the start, and is waited for.
    Waiting(Awaited),
}

/// A disk that could not be opened at the start.
#[derive(Clone)]
pub(crate) struct Awaited {
    /// As it was when it was last served, or a placeholder.
    pub(super) geometry: Geometry,
    /// Whether it was served before, by this target or one before it.
    pub(super) is_known: bool,
    pub(super) waits: Waits,
}

/// What is known of a disk that is gone.
#[derive(Clone)]
pub(crate) struct Lost {
    /// As it was.
    pub(super) geometry: Geometry,
    /// Which file or device it was.
    pub(super) storage: Option<StorageId>,
    /// What happened last.
    pub(super) why: String,
    pub(super) since: SystemTime,
}

/// A disk that reactors close when they are done with it. It is theirs until
/// then.
struct Leaving {
    number: u32,
    claim: WeakClaim,
    /// The claim's, which is known when it has ended, too.
    identity: u64,
    wanted: Wanted,
    closing: Closing,
    /// Whether its storage is gone: nobody is to have it again.
    lost: bool,
}

/// The disks of the next configuration.
pub(super) struct Prepared {
    /// Of each namespace, in order.
    pub(super) next: Vec<Disk>,
    /// Those of them that are to be opened.
    pub(super) fresh: Vec<(u32, Claim)>,
    /// The place of the namespace, of each that is to be opened.
    pub(super) places: BTreeMap<u32, usize>,
    /// Those that nobody is served from any more.
    pub(super) gone: Vec<(u32, Claim)>,
    /// What an administrator should know of it besides.
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

    /// What is known of its end, if it is gone.
    pub(super) fn lost(&self) -> Option<&Lost> {
        match &self.held {
            Held::Open(_) | Held::Waiting(_) => None,
            Held::Lost(lost) => Some(lost),
        }
    }

    /// Why it is not open yet, if it is waited for.
    pub(super) fn awaited(&self) -> Option<&Awaited> {
        match &self.held {
            Held::Open(_) | Held::Lost(_) => None,
            Held::Waiting(awaited) => Some(awaited),
        }
    }

    /// What the model has to know of it.
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

    /// Whether it is that of the namespace.
    pub(super) fn is_of(&self, nqn: &str, nsid: u32) -> bool {
        self.wanted.nqn == nqn && self.wanted.nsid == nsid
    }

    /// Whether its storage that is gone, or is waited for, is the claimed one.
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

    /// As an error of the configuration has it, while it is gone or waited for.
    fn word(&self) -> &'static str {
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
    /// Whether the claim is of what hosts know: they cannot follow another block size.
    ///
    /// # Errors
    /// What differs, and what to do.
    pub(super) fn check(&self, claim: &Claim) -> Result<(), String> {
        let (was, is) = (self.geometry.block_size, claim.geometry().block_size);
        if !self.is_known || was == is {
            return Ok(());
        }
        Err(format!(
            "{} has blocks of {} bytes, and the namespace had {} when it was last served; bring \
             that one back, or remove the namespace and add it again",
            claim.name(),
            is.bytes(),
            was.bytes()
        ))
    }
}

/// Hosts must not find the data of one disk in the place of another's because
/// something else was changed.
fn another() -> String {
    "another file or device has its name now; if hosts are to have that one, say so with \
     `nvmeof-target ctl namespace enable`"
        .to_owned()
}

impl Pool {
    /// What was opened at the start for the namespaces of `config`, and what is waited
    /// for, in order. `known` has those that were served before.
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

    /// The disks, in the order of the namespaces.
    pub(super) fn disks(&self) -> &[Disk] {
        &self.disks
    }

    /// Those that are open, with their numbers.
    pub(crate) fn claims(&self) -> Vec<(u32, Claim)> {
        let all = self.disks.iter();
        all.filter_map(Disk::number_and_claim).collect()
    }

    /// What the model has to know of the disks, in order.
    pub(crate) fn served(&self) -> impl Iterator<Item = Served<'_>> {
        self.disks.iter().map(Disk::served)
    }

    /// A number for one more disk.
    pub(super) fn number(&mut self) -> Option<u32> {
        self.numbers.take()
    }

    /// Whether a disk whose storage is gone is being closed.
    pub(super) fn is_losing(&self) -> bool {
        self.leaving.iter().any(|one| one.lost)
    }

    /// Whether a disk of that claim is being closed, whatever size it had.
    pub(super) fn is_closing(&self, identity: u64) -> bool {
        self.leaving.iter().any(|one| one.identity == identity)
    }

    /// Disks that are being closed.
    #[cfg(test)]
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Lets go of disks that every reactor has closed by now.
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

    /// Finds a disk for each namespace of `config`: the one it has, or another
    /// that is open and the same; else it is opened and locked.
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
                    self.given_up(&prepared.fresh);
                    return Err(error);
                }
            }
        }
        let stays = |disk: &&Disk| !prepared.next.iter().any(|one| one.number == disk.number);
        let gone = self.disks.iter().filter(stays);
        prepared.gone = gone.filter_map(Disk::number_and_claim).collect();
        Ok(prepared)
    }

    /// The disk of namespace number `at`, which may have `kept` open.
    fn find(
        &mut self,
        config: &Config,
        at: usize,
        wanted: &Wanted,
        kept: Option<Disk>,
        prepared: &mut Prepared,
    ) -> Result<Disk, ConfigError> {
        let (claim, spec) = match kept {
            // A size that cannot be served does not keep anything else from being
            // changed.
            Some(Disk {
                number,
                held: Held::Open(claim),
                wanted: was,
            }) => match claim.resized() {
                Ok(Some(resized)) => (resized, was.spec),
                same => {
                    prepared.remarks.extend(same.err().map(|error| {
                        let Wanted { nqn, nsid, .. } = wanted;
                        format!("{nqn}: namespace {nsid} keeps the size it has: {error}")
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
                // What is broken already does not keep anything else from being
                // changed.
                (broken, Some(lost)) => {
                    let Wanted { nqn, nsid, .. } = wanted;
                    let why = match (broken, lost.awaited()) {
                        (Err(error), _) => error.to_string(),
                        (Ok((claim, _)), Some(awaited)) => {
                            awaited.check(&claim).err().unwrap_or_default()
                        }
                        (Ok(_), None) => another(),
                    };
                    let word = lost.word();
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
        let number = number.ok_or_else(|| config.path_error(at, "there are too many disks"))?;
        prepared.fresh.push((number, claim.clone()));
        prepared.places.insert(number, at);
        Ok(Disk {
            number,
            held: Held::Open(claim),
            wanted: wanted.with(spec),
        })
    }

    /// The disk of that namespace, if it was the same and its storage is gone or waited
    /// for.
    fn lost(&self, wanted: &Wanted) -> Option<&Disk> {
        let mut lost = self.disks.iter().filter(|disk| disk.claim().is_none());
        lost.find(|disk| disk.is_of(&wanted.nqn, wanted.nsid) && disk.wanted.names(wanted))
    }

    /// The disk of each namespace that is open already. First those that a
    /// namespace has, then files that change their namespace.
    fn kept(&self, wanted: &[Wanted]) -> Vec<Option<Disk>> {
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

    /// Opens and locks what namespace number `at` wants, of which `others` have
    /// their disks. Returns what was opened, too.
    fn take(
        &self,
        config: &Config,
        at: usize,
        wanted: &Wanted,
        others: &[Disk],
    ) -> Result<(Claim, Spec), ConfigError> {
        let spec = &wanted.spec;
        let names =
            |disk: &&Disk| is_file(spec) && disk.claim().is_some() && disk.wanted.names(wanted);
        let served = self.disks.iter().find(names);
        if served.is_some_and(|disk| !disk.wanted.serves(wanted)) {
            let what = "it is served with another readonly, block_size or iopoll, which cannot \
                        change while it is; remove the namespace, then add it again";
            return Err(config.path_error(at, what));
        }
        if is_file(spec) && served.or(others.iter().find(names)).is_none() {
            let leaving = self.leaving.iter().filter(|one| !one.lost);
            let mut leaving = leaving.filter(|one| one.wanted.serves(wanted));
            let found = leaving.find_map(|one| Some((one.claim.upgrade()?, &one.wanted.spec)));
            if let Some((claim, spec)) = found {
                // It has the lock.
                let claim = resized(config, at, &claim)?.unwrap_or(claim);
                return Ok((claim, spec.clone()));
            }
        }
        let claim = take(wanted);
        let claim = claim.map_err(|error| disk_error(config, at, &error))?;
        Ok((claim, spec.clone()))
    }

    /// Numbers that were taken for nothing, and that no reactor heard of.
    pub(super) fn given_up(&mut self, fresh: &[(u32, Claim)]) {
        for (number, _) in fresh {
            self.numbers.free(*number);
        }
    }

    /// Namespaces are served from these from now on.
    pub(super) fn becomes(&mut self, next: Vec<Disk>, closing: BTreeMap<u32, Closing>) {
        let old = std::mem::replace(&mut self.disks, next);
        // No reactor ever had those that were waited for.
        for disk in old.iter().filter(|disk| disk.awaited().is_some()) {
            if !self.disks.iter().any(|one| one.number == disk.number) {
                self.numbers.free(disk.number);
            }
        }
        self.leave(&old, closing);
    }

    /// Those of `disks` that are being closed keep number and lock until they
    /// are.
    pub(super) fn leave(&mut self, disks: &[Disk], closing: BTreeMap<u32, Closing>) {
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

/// The claim at the size that it has now, if that is another.
fn resized(config: &Config, at: usize, claim: &Claim) -> Result<Option<Claim>, ConfigError> {
    let resized = claim.resized();
    resized.map_err(|error| disk_error(config, at, &error))
}

fn is_file(spec: &Spec) -> bool {
    matches!(spec, Spec::File { .. })
}
