//! The disks that namespaces are served from: which stay, which come, which go.

use std::collections::BTreeMap;

use nvmeof_backend::{Claim, Spec, WeakClaim};

use super::reactors::Closing;
use crate::config::{Config, ConfigError, Wanted};
use crate::numbers::Numbers;

/// Disks by the order of the namespaces, and those that are being closed.
pub(crate) struct Pool {
    numbers: Numbers,
    disks: Vec<Disk>,
    leaving: Vec<Leaving>,
}

/// A disk that is open on every reactor.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(super) number: u32,
    pub(super) claim: Claim,
    /// What it is, and the namespace that has it.
    wanted: Wanted,
}

/// A disk that reactors close when they are done with it. It is theirs until
/// then.
struct Leaving {
    number: u32,
    claim: WeakClaim,
    wanted: Wanted,
    closing: Closing,
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
}

impl Pool {
    /// What reactors opened at the start, under the numbers 0, 1, 2 and so on.
    pub(crate) fn new(config: &Config, claims: &[Claim]) -> Result<Self, ConfigError> {
        let mut numbers = Numbers::default();
        let wanted = config.wanted()?.into_iter().zip(claims);
        let disks = wanted.filter_map(|(wanted, claim)| {
            Some(Disk {
                number: numbers.take()?,
                claim: claim.clone(),
                wanted,
            })
        });
        Ok(Self {
            disks: disks.collect(),
            numbers,
            leaving: Vec::new(),
        })
    }

    /// Namespaces served.
    pub(crate) fn len(&self) -> usize {
        self.disks.len()
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
        prepared.gone = gone.map(|disk| (disk.number, disk.claim.clone())).collect();
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
            None => self.take(config, at, wanted, &prepared.next)?,
            Some(Disk {
                number,
                claim,
                wanted: was,
            }) => match resized(config, at, &claim)? {
                Some(resized) => (resized, was.spec),
                None => {
                    return Ok(Disk {
                        number,
                        claim,
                        wanted: wanted.with(was.spec),
                    });
                }
            },
        };
        let number = self.numbers.take();
        let number = number.ok_or_else(|| config.path_error(at, "there are too many disks"))?;
        prepared.fresh.push((number, claim.clone()));
        prepared.places.insert(number, at);
        Ok(Disk {
            number,
            claim,
            wanted: wanted.with(spec),
        })
    }

    /// The disk of each namespace that is open already. First those that a
    /// namespace has, then files that change their namespace.
    fn kept(&self, wanted: &[Wanted]) -> Vec<Option<Disk>> {
        let mut there: Vec<_> = self.disks.iter().map(Some).collect();
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
        let names = |disk: &&Disk| is_file(spec) && disk.wanted.names(wanted);
        let served = self.disks.iter().find(names);
        if served.is_some_and(|disk| !disk.wanted.serves(wanted)) {
            let what = "it is served with another readonly, block_size or iopoll, which cannot \
                        change while it is; remove the namespace, then add it again";
            return Err(config.path_error(at, what));
        }
        if is_file(spec) && served.or(others.iter().find(names)).is_none() {
            let mut leaving = self.leaving.iter().filter(|one| one.wanted.serves(wanted));
            let found = leaving.find_map(|one| Some((one.claim.upgrade()?, &one.wanted.spec)));
            if let Some((claim, spec)) = found {
                // It has the lock.
                let claim = resized(config, at, &claim)?.unwrap_or(claim);
                return Ok((claim, spec.clone()));
            }
        }
        let claim = wanted.take();
        let claim = claim.map_err(|error| config.disk_error(at, &error))?;
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
        self.leave(&old, closing);
    }

    /// Those of `disks` that are being closed keep number and lock until they
    /// are.
    pub(super) fn leave(&mut self, disks: &[Disk], closing: BTreeMap<u32, Closing>) {
        for (number, closing) in closing {
            if let Some(disk) = disks.iter().find(|disk| disk.number == number) {
                self.leaving.push(Leaving {
                    number,
                    claim: disk.claim.downgrade(),
                    wanted: disk.wanted.clone(),
                    closing,
                });
            }
        }
    }
}

/// The claim at the size that it has now, if that is another.
fn resized(config: &Config, at: usize, claim: &Claim) -> Result<Option<Claim>, ConfigError> {
    let resized = claim.resized();
    resized.map_err(|error| config.disk_error(at, &error))
}

impl Wanted {
    /// The same namespace on a disk of that specification.
    fn with(&self, spec: Spec) -> Self {
        Self {
            spec,
            ..self.clone()
        }
    }

    /// Whether both are the same file, or memory of the same size.
    fn names(&self, wanted: &Self) -> bool {
        self.spec.clone().with_readonly(true) == wanted.spec.clone().with_readonly(true)
    }

    /// Whether a disk of this is what `wanted` says as well: one that can be
    /// written serves a namespace that cannot.
    fn serves(&self, wanted: &Self) -> bool {
        let like = |one: &Self| (one.block_size, one.polled);
        self.names(wanted)
            && like(self) == like(wanted)
            && (wanted.spec.readonly() || !self.spec.readonly())
    }
}

fn is_file(spec: &Spec) -> bool {
    matches!(spec, Spec::File { .. })
}
