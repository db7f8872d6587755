//! Replacing the model while hosts are connected.
//!
//! Hosts get asynchronous events for changes that concern them: a changed namespace,
//! another ANA state, and a change of their own discovery log. Removing what is in use
//! disconnects it: controllers of a removed subsystem, of a host that is no longer
//! allowed, and of a port that no longer offers the subsystem are lost as if their
//! connection had broken.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use crate::controller::{Controller, ControllerKind};
use crate::live::Live;
use crate::namespace_view::Present;
use crate::shared::{Served, presents};
use crate::{Change, DisconnectReason, Disconnected, Model, Target};

#[cfg(test)]
mod faults;
#[cfg(test)]
mod tests;

/// The result of [`Target::apply`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Applied {
    /// The differences between the two models.
    pub changes: Vec<Change>,
    /// Controllers that were disconnected.
    pub disconnected: Vec<Disconnected>,
}

/// The limits of the model differ from those of the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limits cannot change at run time; restart the target")]
pub struct LimitsChanged;

impl Target {
    /// Serves `model` from now on. Afterwards every reactor has to poll its queues: some
    /// may have events to send, or are to be closed.
    ///
    /// Commands in flight complete on the backing store for which they began.
    ///
    /// # Errors
    /// [`LimitsChanged`]; nothing changed.
    pub fn apply(&self, model: Model) -> Result<Applied, LimitsChanged> {
        if model.limits() != self.limits() {
            return Err(LimitsChanged);
        }
        // Held until the end: a concurrent Connect either sees the old model, and its
        // controller is found below, or sees the new one.
        let mut served = self.shared.served();
        let changes = served.model.difference(&model);
        if changes.is_empty() && !differs(&served.model, &model) {
            return Ok(Applied::default());
        }
        let mut before: BTreeMap<Nqn, Present> = BTreeMap::new();
        let mut waiting = std::mem::take(&mut served.waiting);
        let live: Vec<Arc<Live>> = presents(&model)
            .map(|present| match served.live(&present.subsystem.nqn) {
                Some(live) => {
                    before.insert(live.nqn, live.replace(present));
                    Arc::clone(live)
                }
                None => {
                    let set = waiting.remove(&present.subsystem.nqn);
                    Arc::new(Live::new(present, set.unwrap_or_default()))
                }
            })
            .collect();
        let gone = served.live.iter();
        let gone: Vec<_> = gone
            .filter(|live| !before.contains_key(&live.nqn))
            .map(|live| (live.nqn, live.retire()))
            .collect();
        let generations = served.generations.after(&served.model, &model);
        let next = Served {
            model: Arc::new(model),
            live,
            generations,
            waiting,
        };
        let old = std::mem::replace(&mut *served, next).generations;
        let hosts = &served.model.authentication().hosts;
        let authentications = &self.shared.authentications;
        authentications.retain(|host| hosts.contains_key(host));
        for (subsystem, set) in gone {
            served.wait_for(subsystem, set);
        }
        let mut disconnected = Vec::new();
        for controller in self.shared.registry.all() {
            if let Some(why) = lost(&served, &controller) {
                self.shared.registry.remove(&controller);
                controller.hot.lose();
                disconnected.push(Disconnected::of(&controller, why));
            } else if let Some(before) = before.get(&controller.subnqn()) {
                controller.subsystem_changed(before);
            } else if controller.is_discovery() {
                let host = &controller.hostnqn;
                if old.of(host) != served.generations.of(host) {
                    controller.discovery_changed();
                }
            }
        }
        Ok(Applied {
            changes,
            disconnected,
        })
    }
}

/// Whether models without differences for hosts differ in ports or order.
fn differs(old: &Model, new: &Model) -> bool {
    let order = |model: &Model| -> Vec<Nqn> {
        let all = model.subsystems().iter();
        all.map(|subsystem| subsystem.nqn).collect()
    };
    old.ports() != new.ports() || order(old) != order(new)
}

/// Why the controller must be disconnected, if it must.
fn lost(served: &Served, controller: &Controller) -> Option<DisconnectReason> {
    let ControllerKind::Nvm(live) = &controller.kind else {
        return None;
    };
    let there = served.live.iter().any(|one| Arc::ptr_eq(one, live));
    if !there {
        return Some(DisconnectReason::SubsystemRemoved);
    }
    let port = controller.viewer.port.as_ref();
    let port = port.and_then(|at| served.model.port(at));
    if port.is_some_and(|port| !port.offers(&live.nqn)) {
        return Some(DisconnectReason::SubsystemNotOffered);
    }
    let allowed = live.current().subsystem.allows(&controller.hostnqn);
    (!allowed).then_some(DisconnectReason::HostDenied)
}
