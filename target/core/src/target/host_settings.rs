//! Saving and restoring the write protection and reservations that hosts set.

use std::io;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::Target;
use crate::host_settings::{HostSettings, SavedSettings};
use crate::persist::PendingSave;
use crate::reservations::{CannotImport, ReservationState};
use crate::save_queue::SettingsKeeper;
use crate::shared::Shared;

impl Target {
    /// Saves write protection with `keeper` from now on. Call it before hosts connect,
    /// because Identify Controller reports whether it is supported (NWPC).
    pub fn set_settings_keeper(&self, keeper: Arc<dyn SettingsKeeper>) {
        self.shared.save_queue.set_keeper(keeper);
    }

    /// All changes that are to be saved; `None` if there are none, or while a save is in
    /// progress. For the keeper; see [`SettingsKeeper::wake`].
    #[must_use]
    pub fn next_save(&self) -> Option<SettingsSave> {
        SettingsSave::take(&self.shared)
    }

    /// Restores what hosts set of namespaces of a subsystem. Call it before they are served.
    pub fn restore(&self, subsystem: &Nqn, saved: SavedSettings) {
        let mut served = self.shared.served();
        match served.live(subsystem) {
            Some(live) => live.restore(saved),
            None => served.waiting.entry(*subsystem).or_default().restore(saved),
        }
    }

    /// Removes the reservations and registrations of a namespace, as an administrator does. They
    /// end when that has been saved; if it fails, nothing changes. `None` if there are none.
    #[must_use]
    pub fn clear_reservations(&self, subsystem: &Nqn, nsid: u32) -> Option<PendingSave> {
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        let pending = match served.live(subsystem) {
            Some(live) => live.clear_reservations(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting.and_then(|waiting| waiting.reservations.clear(nsid))
            }
        };
        drop(served);
        let pending = pending?;
        save_queue.enqueue(subsystem)?;
        Some(pending)
    }

    /// Gives a namespace without registrants these reservations. They are in force when that has
    /// been saved; commands that are executed meanwhile are not awaited.
    ///
    /// # Errors
    /// [`CannotImport`]; nothing changes.
    pub fn import_reservations(
        &self,
        subsystem: &Nqn,
        nsid: u32,
        imported: ReservationState,
    ) -> Result<PendingSave, CannotImport> {
        let live = self.shared.served().live(subsystem).map(Arc::clone);
        let live = live.ok_or(CannotImport::NoNamespace)?;
        live.import_reservations(&self.shared.save_queue, nsid, imported)
    }

    /// Forgets what hosts set of namespace `nsid`, or of all namespaces of the subsystem, because
    /// an administrator removed it: a later namespace has none of it. It takes effect when it has
    /// been saved; if a save fails, nothing changes. Returns the saves: none if there is nothing to
    /// forget.
    #[must_use]
    pub fn forget_settings(&self, subsystem: &Nqn, nsid: Option<u32>) -> Vec<PendingSave> {
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        let (protections, reservations) = match served.live(subsystem) {
            Some(live) => live.forget(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting
                    .map(|waiting| waiting.forget(nsid))
                    .unwrap_or_default()
            }
        };
        drop(served);
        if !protections && reservations.is_none() {
            return Vec::new();
        }
        let save = save_queue.enqueue(subsystem);
        save.into_iter().chain(reservations).collect()
    }
}

/// Changes to be saved at once. Dropping it without [`end`](Self::end) is a failure.
#[derive(Debug)]
#[must_use]
pub struct SettingsSave {
    shared: Arc<Shared>,
    changes: Vec<(Nqn, SavedSettings)>,
    /// The pending save, until it ends.
    keeping: Option<PendingSave>,
}

impl SettingsSave {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut save_queue = shared.save_queue.lock();
        let (changed, keeping) = save_queue.begin_write()?;
        let mut served = shared.served();
        let changes = changed.into_iter().map(|subsystem| {
            let all = match served.live(&subsystem) {
                Some(live) => live.begin_write(),
                None => {
                    let waiting = served.waiting.get_mut(&subsystem);
                    waiting.map(HostSettings::begin_write).unwrap_or_default()
                }
            };
            (subsystem, all)
        });
        let changes = changes.collect();
        drop(served);
        Some(Self {
            shared: Arc::clone(shared),
            changes,
            keeping: Some(keeping),
        })
    }

    /// The changed subsystems, each with all that hosts set.
    #[must_use]
    pub fn changes(&self) -> &[(Nqn, SavedSettings)] {
        &self.changes
    }

    /// The save succeeded or failed. Afterwards every reactor has to poll its queues,
    /// because commands wait for it and hosts are notified.
    pub fn end(mut self, result: io::Result<()>) {
        self.ended(result);
    }

    fn ended(&mut self, result: io::Result<()>) {
        let Some(keeping) = self.keeping.take() else {
            return;
        };
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        for (subsystem, _) in &self.changes {
            if let Some(live) = served.live(subsystem) {
                let (before, notices) = live.kept(&result);
                if let Some(before) = before {
                    self.shared.notify_all(subsystem, &before);
                }
                self.shared.notify_reservations(subsystem, &notices);
            } else if let Some(mut waiting) = served.waiting.remove(subsystem) {
                let kept = waiting.kept(&result);
                served.wait_for(*subsystem, waiting);
                kept.ended.answer();
            }
        }
        save_queue.end_write();
        keeping.end(result);
    }
}

impl Drop for SettingsSave {
    fn drop(&mut self) {
        self.ended(Err(io::Error::other(
            "the thread that saves what hosts set has ended",
        )));
    }
}
