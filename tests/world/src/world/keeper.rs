//! The keeper of the settings of hosts, in virtual time: each save takes a random time and may
//! fail. What it saved survives a crash of the target.

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
    pub(super) save: SettingsSave,
    /// Whether it succeeded.
    pub(super) is_saved: bool,
}

impl Ended {
    /// Reports it to the target.
    pub(super) fn finish(self) {
        self.save.end(&match self.is_saved {
            true => Ok(()),
            false => Err(io::Error::other("simulated")),
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

    /// Begins a save if the target asked for one. Returns the namespace.
    pub(super) fn begin(&mut self, target: &Target, now: Duration) -> Option<u32> {
        if self.in_progress.is_some() || !self.wakeup.0.swap(false, Ordering::Relaxed) {
            return None;
        }
        let save = target.next_save()?;
        let nsid = save.nsid();
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
        Some(nsid)
    }

    /// The save that ends now.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<Ended> {
        let due = self.in_progress.take_if(|one| one.ends <= now)?;
        if !due.fails {
            self.keep(&due.save);
        }
        Some(Ended {
            save: due.save,
            is_saved: !due.fails,
        })
    }

    /// The target crashes. Returns the save in progress, if it was written before.
    pub(super) fn crash(&mut self) -> Option<SettingsSave> {
        let lost = self.in_progress.take().filter(|one| !one.fails)?;
        if !self.dice.happens(OneIn(2)) {
            return None;
        }
        self.keep(&lost.save);
        Some(lost.save)
    }

    fn keep(&mut self, save: &SettingsSave) {
        assert_eq!(*save.subsystem(), subsystem());
        let (nsid, all) = (save.nsid(), &mut self.saved);
        all.protected.retain(|one| one.nsid != nsid);
        all.protected.extend(&save.settings().protected);
        all.reservations.retain(|one| one.nsid != nsid);
        all.reservations
            .extend_from_slice(&save.settings().reservations);
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
