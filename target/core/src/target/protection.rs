//! Saving and restoring the write protection that hosts set.

use std::io;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::Target;
use crate::persist::PendingSave;
use crate::protection::{ProtectionKeeper, Protections, SavedProtection};
use crate::shared::Shared;

impl Target {
    /// Saves write protection with `keeper` from now on. Call it before hosts connect,
    /// because Identify Controller reports whether it is supported (NWPC).
    pub fn set_protection_keeper(&self, keeper: Arc<dyn ProtectionKeeper>) {
        self.shared.save_queue.set_keeper(keeper);
    }

    /// All changes that are to be saved; `None` if there are none, or while a save is in
    /// progress. For the keeper; see [`ProtectionKeeper::wake`].
    #[must_use]
    pub fn next_save(&self) -> Option<ProtectionSave> {
        ProtectionSave::take(&self.shared)
    }

    /// Restores a saved protection. Call it before hosts connect. Returns false if there is
    /// no such namespace at present: it is protected when it is added.
    #[must_use]
    pub fn restore_protection(&self, subsystem: &Nqn, kept: SavedProtection) -> bool {
        let mut served = self.shared.served();
        if let Some(live) = served.live(subsystem) {
            return live.restore_protection(kept);
        }
        served.waiting.entry(*subsystem).or_default().restore(kept);
        false
    }

    /// Forgets the protection of namespace `nsid`, or of all namespaces of the subsystem,
    /// because an administrator removed it: a later namespace is not protected. It takes
    /// effect when it has been saved; if the save fails, nothing changes. `None` if there
    /// is nothing to forget.
    #[must_use]
    pub fn forget_protection(&self, subsystem: &Nqn, nsid: Option<u32>) -> Option<PendingSave> {
        let mut save_queue = self.shared.save_queue.lock();
        let mut served = self.shared.served();
        let any = match served.live(subsystem) {
            Some(live) => live.forget_protection(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting.is_some_and(|waiting| waiting.forget(nsid))
            }
        };
        drop(served);
        any.then(|| save_queue.enqueue(subsystem)).flatten()
    }
}

/// Changes to be saved at once. Dropping it without [`end`](Self::end) is a failure.
#[derive(Debug)]
#[must_use]
pub struct ProtectionSave {
    shared: Arc<Shared>,
    changes: Vec<(Nqn, Vec<SavedProtection>)>,
    /// The pending save, until it ends.
    keeping: Option<PendingSave>,
}

impl ProtectionSave {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut save_queue = shared.save_queue.lock();
        let (changed, keeping) = save_queue.begin_write()?;
        let mut served = shared.served();
        let changes = changed.into_iter().map(|subsystem| {
            let all = match served.live(&subsystem) {
                Some(live) => live.begin_write(),
                None => {
                    let waiting = served.waiting.get_mut(&subsystem);
                    waiting.map(Protections::begin_write).unwrap_or_default()
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

    /// The changed subsystems, each with all its namespaces in the state Write Protect.
    #[must_use]
    pub fn changes(&self) -> &[(Nqn, Vec<SavedProtection>)] {
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
                if let Some(before) = live.kept(result.is_ok()) {
                    self.shared.notify_all(subsystem, &before);
                }
            } else if let Some(mut waiting) = served.waiting.remove(subsystem) {
                let _ = waiting.kept(result.is_ok());
                served.wait_for(*subsystem, waiting);
            }
        }
        save_queue.end_write();
        keeping.end(result);
    }
}

impl Drop for ProtectionSave {
    fn drop(&mut self) {
        self.ended(Err(io::Error::other(
            "the thread that saves write protection has ended",
        )));
    }
}
