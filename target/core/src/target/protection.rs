//! What hosts write protect, for whoever keeps it across restarts.

use std::io;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::Target;
use crate::persist::Keeping;
use crate::protection::{KeepProtections, KeptProtection, Protections};
use crate::shared::Shared;

impl Target {
    /// `keeper` has kept what hosts write protect from now on. Call it before hosts
    /// connect: they are told whether they may protect namespaces (NWPC).
    pub fn keep_protections_in(&self, keeper: Arc<dyn KeepProtections>) {
        self.shared.desk.is_kept_by(keeper);
    }

    /// What is to be kept, all of it, if there is anything that is not being written
    /// already. For the keeper; see [`KeepProtections::wake`].
    #[must_use]
    pub fn to_keep(&self) -> Option<ToKeep> {
        ToKeep::take(&self.shared)
    }

    /// What was kept is so again: call it before hosts connect. False when there
    /// is no such namespace at present: it is protected when it comes.
    #[must_use]
    pub fn restore_protection(&self, subsystem: &Nqn, kept: KeptProtection) -> bool {
        let mut served = self.shared.served();
        if let Some(live) = served.live(subsystem) {
            return live.restore_protection(kept);
        }
        served.waiting.entry(*subsystem).or_default().restore(kept);
        false
    }

    /// What hosts set of the namespace with that number, or of all of the subsystem,
    /// is to be forgotten: an administrator removed it, and one that comes later is not
    /// protected. It is so when that is kept; when it cannot be, nothing changed.
    /// `None` when there is nothing to be forgotten.
    #[must_use]
    pub fn forget_protection(&self, subsystem: &Nqn, nsid: Option<u32>) -> Option<Keeping> {
        let mut desk = self.shared.desk.open();
        let mut served = self.shared.served();
        let any = match served.live(subsystem) {
            Some(live) => live.forget_protection(nsid),
            None => {
                let waiting = served.waiting.get_mut(subsystem);
                waiting.is_some_and(|waiting| waiting.forget(nsid))
            }
        };
        drop(served);
        any.then(|| desk.keep(subsystem)).flatten()
    }
}

/// What is to be written at once. Whoever is dropped with it did not write it.
#[derive(Debug)]
#[must_use]
pub struct ToKeep {
    shared: Arc<Shared>,
    changes: Vec<(Nqn, Vec<KeptProtection>)>,
    /// Until it ended.
    keeping: Option<Keeping>,
}

impl ToKeep {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut desk = shared.desk.open();
        let (changed, keeping) = desk.begin_write()?;
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

    /// Of each of these subsystems those namespaces are in the state Write Protect,
    /// and no others.
    #[must_use]
    pub fn changes(&self) -> &[(Nqn, Vec<KeptProtection>)] {
        &self.changes
    }

    /// It is kept, or cannot be. Afterwards every reactor has to poll its queues:
    /// commands wait for it, and hosts are told.
    pub fn end(mut self, result: io::Result<()>) {
        self.ended(result);
    }

    fn ended(&mut self, result: io::Result<()>) {
        let Some(keeping) = self.keeping.take() else {
            return;
        };
        let mut desk = self.shared.desk.open();
        let mut served = self.shared.served();
        for (subsystem, _) in &self.changes {
            if let Some(live) = served.live(subsystem) {
                if let Some(before) = live.kept(result.is_ok()) {
                    self.shared.tell_all(subsystem, &before);
                }
            } else if let Some(mut waiting) = served.waiting.remove(subsystem) {
                let _ = waiting.kept(result.is_ok());
                served.wait_for(*subsystem, waiting);
            }
        }
        desk.end_write();
        keeping.end(result);
    }
}

impl Drop for ToKeep {
    fn drop(&mut self) {
        self.ended(Err(io::Error::other("the writer ended")));
    }
}
