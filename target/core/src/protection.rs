//! Write protection of namespaces that hosts set, over all controllers of a
//! subsystem (Base 2.1, 8.1.16).
//!
//! ```text
//!   No Write Protect ◄──► Write Protect        by Set Features
//!         │                     │
//!         └─────────┬───────────┘ by Set Features
//!                   ▼
//!       Until Power Cycle ──► No Write Protect, when the target is started again
//! ```
//! A namespace that is read only by configuration is in the state Write Protect
//! and stays there. Permanent Write Protect is not supported: nothing here could
//! keep an administrator from undoing it.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_wire::features::WriteProtection;

use crate::sight::Present;
use crate::{Namespace, Subsystem};

/// The states that hosts set, by number of the namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protections(BTreeMap<u32, Protected>);

#[derive(Clone, Copy, Debug)]
struct Protected {
    /// Of the namespace: another one with its number is not protected.
    uuid: [u8; 16],
    state: WriteProtection,
}

/// The state of the namespace cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed;

impl Protections {
    /// The state of a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> WriteProtection {
        match self.0.get(&namespace.nsid) {
            _ if namespace.readonly => WriteProtection::PROTECTED,
            Some(set) if set.uuid == namespace.uuid => set.state,
            _ => WriteProtection::NONE,
        }
    }

    /// A host sets the state of `namespace`, which is as the model has it.
    /// Returns what it was.
    ///
    /// # Errors
    /// [`Fixed`]: "the controller shall abort the command with ... Feature Not
    /// Changeable", Base 2.1, 5.1.25.1.31, of a namespace in the state Write
    /// Protect Until Power Cycle; likewise of what an administrator decided.
    pub(crate) fn set(
        &mut self,
        namespace: &Namespace,
        to: WriteProtection,
    ) -> Result<WriteProtection, Fixed> {
        let before = self.of(namespace);
        if before == to {
            return Ok(before);
        }
        if namespace.readonly || before == WriteProtection::UNTIL_POWER_CYCLE {
            return Err(Fixed);
        }
        self.put(namespace, to);
        Ok(before)
    }

    /// The state is `to`, whatever it was.
    pub(crate) fn put(&mut self, namespace: &Namespace, to: WriteProtection) {
        let protected = Protected {
            uuid: namespace.uuid,
            state: to,
        };
        self.0.insert(namespace.nsid, protected);
    }

    /// Forgets the states of namespaces that are not there any more.
    pub(crate) fn keep_those_of(&mut self, subsystem: &Subsystem) {
        self.0.retain(|nsid, set| {
            // One that is switched off may be switched on again.
            let mut disabled = subsystem.disabled().iter();
            let off = || disabled.find(|one| one.nsid == *nsid);
            let there = subsystem.namespace(*nsid).or_else(off);
            there.is_some_and(|namespace| namespace.uuid == set.uuid)
        });
    }

    /// What is served with those namespaces read only that hosts protected.
    pub(crate) fn over(&self, present: &Present) -> Present {
        let subsystem = &present.subsystem;
        let protected = |namespace: &Namespace| self.of(namespace) != WriteProtection::NONE;
        let same = subsystem
            .namespaces()
            .iter()
            .all(|namespace| protected(namespace) == namespace.readonly);
        if same {
            return present.clone();
        }
        Present {
            subsystem: Arc::new(subsystem.with_readonly(protected)),
            ports: Arc::clone(&present.ports),
        }
    }
}
