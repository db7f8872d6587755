//! Saving and restoring the write protection and reservations that hosts set.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::Target;
use crate::host_settings::{CannotReplace, Forgotten, SavedSettings};
use crate::persist::PendingSave;
use crate::reservations::{CannotImport, ReservationState};
use crate::save_queue::SettingsKeeper;
use crate::shared::Shared;

impl Target {
    /// Saves write protection and reservations with `keeper` from now on. Call it before hosts
    /// connect, because Identify Controller reports whether they are supported (NWPC, ONCS).
    pub fn set_settings_keeper(&self, keeper: Arc<dyn SettingsKeeper>) {
        self.shared.save_queue.set_keeper(keeper);
    }

    /// The changes of a namespace that are to be saved; `None` if there are none, or while a save
    /// is in progress. For the keeper; see [`SettingsKeeper::wake`].
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

    /// Replaces what hosts set of the namespaces with that NSID by what is stored of them. Requests
    /// that are not saved yet fail. Then poll all reactors.
    ///
    /// # Errors
    /// [`CannotReplace`]; nothing changes.
    pub fn replace_settings(
        &self,
        subsystem: &Nqn,
        nsid: u32,
        saved: SavedSettings,
    ) -> Result<(), CannotReplace> {
        let place = (*subsystem, nsid);
        let mut save_queue = self.shared.save_queue.lock();
        if save_queue.is_saving(&place) {
            return Err(CannotReplace::Saving);
        }
        let failed = Err(io::Error::other(
            "the settings of the namespace were read again meanwhile",
        ));
        let mut served = self.shared.served();
        if let Some(live) = served.live(subsystem) {
            let before = live.replace_settings(nsid, saved, &failed)?;
            self.shared.notify_all(subsystem, &before);
        } else {
            let mut waiting = served.waiting.remove(subsystem).unwrap_or_default();
            let ended = waiting.replace(nsid, saved);
            served.wait_for(*subsystem, waiting);
            ended.answer(&failed);
        }
        save_queue.cancel(&place, &failed);
        Ok(())
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
        save_queue.enqueue((*subsystem, nsid))?;
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
    /// been saved; a namespace whose save fails keeps it. Nothing is to be saved if there is
    /// nothing to forget.
    #[must_use]
    pub fn forget_settings(&self, subsystem: &Nqn, nsid: Option<u32>) -> PendingSave {
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        let Forgotten {
            protections,
            reservations,
        } = match served.live(subsystem) {
            Some(live) => live.forget(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting
                    .map(|waiting| waiting.forget(nsid))
                    .unwrap_or_default()
            }
        };
        drop(served);
        let nsids: BTreeSet<_> = protections.iter().chain(reservations.keys()).collect();
        let saves = nsids.into_iter().filter_map(|nsid| {
            let place = (*subsystem, *nsid);
            save_queue.enqueue(place)
        });
        let saves: Vec<_> = saves.collect();
        PendingSave::all(saves.into_iter().chain(reservations.into_values()))
    }
}

/// Changes of a namespace, to be saved. Dropping it without [`end`](Self::end) is a failure.
#[derive(Debug)]
#[must_use]
pub struct SettingsSave {
    shared: Arc<Shared>,
    subsystem: Nqn,
    nsid: u32,
    settings: SavedSettings,
    /// The pending save, until it ends.
    keeping: Option<PendingSave>,
}

impl SettingsSave {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut save_queue = shared.save_queue.lock();
        let ((subsystem, nsid), keeping) = save_queue.begin_write()?;
        let mut served = shared.served();
        let settings = match served.live(&subsystem) {
            Some(live) => live.begin_write(nsid),
            None => {
                let waiting = served.waiting.get_mut(&subsystem);
                waiting.map(|it| it.begin_write(nsid)).unwrap_or_default()
            }
        };
        drop(served);
        Some(Self {
            shared: Arc::clone(shared),
            subsystem,
            nsid,
            settings,
            keeping: Some(keeping),
        })
    }

    /// NQN of the subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &Nqn {
        &self.subsystem
    }

    /// NSID of the namespace.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// All that hosts set of the namespaces that have or had this NSID.
    #[must_use]
    pub fn settings(&self) -> &SavedSettings {
        &self.settings
    }

    /// The save succeeded or failed. Afterwards every reactor has to poll its queues,
    /// because commands wait for it and hosts are notified.
    pub fn end(mut self, result: &io::Result<()>) {
        self.ended(result);
    }

    fn ended(&mut self, result: &io::Result<()>) {
        let Some(keeping) = self.keeping.take() else {
            return;
        };
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        let subsystem = &self.subsystem;
        if let Some(live) = served.live(subsystem) {
            let (before, notices) = live.kept(self.nsid, result);
            if let Some(before) = before {
                self.shared.notify_all(subsystem, &before);
            }
            self.shared.notify_reservations(subsystem, &notices);
        } else if let Some(mut waiting) = served.waiting.remove(subsystem) {
            let kept = waiting.kept(self.nsid, result);
            served.wait_for(*subsystem, waiting);
            kept.ended.answer(result);
        }
        save_queue.end_write();
        keeping.end(result);
    }
}

impl Drop for SettingsSave {
    fn drop(&mut self) {
        self.ended(&Err(io::Error::other(
            "the thread that saves what hosts set has ended",
        )));
    }
}
