//! The keeper of the settings of hosts, in virtual time: each save takes a random time and may
//! fail. What it saved survives a crash of the target.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nvmeof_rdma_layers::{Dice, OneIn};
use nvmeof_target_core::{SavedSettings, SettingsKeeper, SettingsSave, Target};
use nvmeof_wire::Nqn;

use crate::host::SUBNQN;
use crate::plan::ReservationPlan;

#[derive(Debug)]
pub(super) struct Keeper {
    wakeup: Arc<Wakeup>,
    dice: Dice,
    slowest: Duration,
    fails: OneIn,
    in_progress: Option<InProgress>,
    /// What was saved last.
    saved: SavedSettings,
}

/// Whether the target has woken the keeper. Otherwise it does not look for changes.
#[derive(Debug, Default)]
struct Wakeup(AtomicBool);

impl SettingsKeeper for Wakeup {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct InProgress {
    ends: Duration,
    save: SettingsSave,
    fails: bool,
}

/// A save that ended. Pass it to [`finish`](Self::finish).
pub(super) struct Ended {
    save: SettingsSave,
    /// What it saved, unless it failed.
    pub(super) saved: Option<SavedSettings>,
}

impl Ended {
    /// Reports it to the target.
    pub(super) fn finish(self) {
        self.save.end(match self.saved {
            Some(_) => Ok(()),
            None => Err(io::Error::other("simulated")),
        });
    }
}

impl Keeper {
    pub(super) fn new(plan: &ReservationPlan, seed: u64) -> Self {
        Self {
            wakeup: Arc::default(),
            dice: Dice::new(seed),
            slowest: plan.slowest,
            fails: plan.fails,
            in_progress: None,
            saved: SavedSettings::default(),
        }
    }

    /// A target starts: restores its settings.
    pub(super) fn serve(&mut self, target: &Target) {
        self.wakeup = Arc::default();
        target.set_settings_keeper(Arc::clone(&self.wakeup) as Arc<dyn SettingsKeeper>);
        target.restore(&subsystem(), self.saved.clone());
    }

    /// Begins a save if the target asked for one. Returns whether it did.
    pub(super) fn begin(&mut self, target: &Target, now: Duration) -> bool {
        if self.in_progress.is_some() || !self.wakeup.0.swap(false, Ordering::Relaxed) {
            return false;
        }
        let Some(save) = target.next_save() else {
            return false;
        };
        let steps = usize::try_from(self.slowest.as_micros()).unwrap();
        let takes = self.dice.below(steps + 1);
        let takes = match self.dice.below(4) {
            0 => takes,
            _ => takes / 16,
        };
        self.in_progress = Some(InProgress {
            ends: now + Duration::from_micros(u64::try_from(takes).unwrap()),
            save,
            fails: self.dice.happens(self.fails),
        });
        true
    }

    /// The save that ends now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Ended> {
        let due = self.in_progress.take_if(|one| one.ends <= now)?;
        let mut ended = Ended {
            save: due.save,
            saved: None,
        };
        if !due.fails {
            ended.saved = Some(self.take(&ended.save));
        }
        Some(ended)
    }

    /// The target crashes. A save in progress has written the records of some of the namespaces:
    /// returns what it was to save, and the namespaces.
    pub(super) fn crash(&mut self) -> Option<(SavedSettings, BTreeSet<u32>)> {
        let lost = self.in_progress.take().filter(|one| !one.fails)?;
        let old = self.saved.reservations.clone();
        let new = self.take(&lost.save);
        let nsids = old.iter().chain(&new.reservations).map(|one| one.nsid);
        let mut written: BTreeSet<u32> = nsids.collect();
        written.retain(|_| self.dice.happens(OneIn(2)));
        self.saved
            .reservations
            .retain(|one| written.contains(&one.nsid));
        let kept = old.into_iter().filter(|one| !written.contains(&one.nsid));
        self.saved.reservations.extend(kept);
        Some((new, written))
    }

    fn take(&mut self, save: &SettingsSave) -> SavedSettings {
        let mut changes = save.changes().iter();
        if let Some((_, settings)) = changes.find(|(name, _)| *name == subsystem()) {
            self.saved = settings.clone();
        }
        self.saved.clone()
    }

    /// Saves do not fail from now on.
    pub(super) fn behave(&mut self) {
        self.fails = OneIn(0);
    }

    /// Whether no save is in progress or requested.
    pub(super) fn is_idle(&self) -> bool {
        self.in_progress.is_none() && !self.wakeup.0.load(Ordering::Relaxed)
    }

    /// When the save in progress ends.
    pub(super) fn next_at(&self) -> Option<Duration> {
        self.in_progress.as_ref().map(|one| one.ends)
    }
}

/// The subsystem of all hosts.
pub(super) fn subsystem() -> Nqn {
    Nqn::new(SUBNQN).unwrap()
}
