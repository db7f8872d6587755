//! Namespaces that are removed from the target while hosts work, and added
//! again: their calls may fail for that time, and no others.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target::{Mail, Reactor};

use super::{Undo, World, model};
use crate::oracle::Wrong;
use crate::workload::Presence;

/// Namespaces by their disk; `None` is the one that hosts do not use.
#[derive(Debug, Default)]
pub(super) struct Away {
    /// How many removals were made.
    pub(super) next: usize,
    spells: BTreeMap<Option<usize>, Spell>,
}

/// The last time that a namespace was away.
#[derive(Clone, Copy, Debug)]
struct Spell {
    since: Duration,
    /// `None`: it still is.
    until: Option<Duration>,
}

impl Away {
    pub(super) fn is_away(&self, ns: Option<usize>) -> bool {
        let spell = self.spells.get(&ns);
        spell.is_some_and(|spell| spell.until.is_none())
    }

    /// Whether the namespace was there from `since` until now.
    pub(super) fn presence(&self, ns: usize, since: Duration) -> Presence {
        match self.spells.get(&Some(ns)) {
            Some(Spell {
                since: from,
                until: None,
            }) if since > *from => Presence::Never,
            Some(Spell { until, .. }) if until.is_none_or(|until| since <= until) => {
                Presence::Sometimes
            }
            _ => Presence::Always,
        }
    }
}

impl World {
    /// Removes the namespaces that are due. Says whether there was one.
    pub(super) fn remove_namespaces(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some((after, removal)) = self.plan.removals.get(self.away.next).copied()
            && self.ended >= after
        {
            self.away.next += 1;
            any = true;
            if self.away.is_away(removal.ns) {
                continue;
            }
            self.say(format_args!("{removal:?}"));
            let spell = Spell {
                since: now,
                until: None,
            };
            self.away.spells.insert(removal.ns, spell);
            self.at(now + removal.for_how_long, Undo::AddNamespace(removal.ns));
            self.apply(now)?;
        }
        Ok(any)
    }

    pub(super) fn add_namespace(&mut self, ns: Option<usize>, now: Duration) -> Result<(), Wrong> {
        if let Some(spell) = self.away.spells.get_mut(&ns) {
            spell.until = Some(now);
        }
        self.apply(now)
    }

    /// The target serves what is there. One that does not run will when it
    /// starts.
    fn apply(&mut self, now: Duration) -> Result<(), Wrong> {
        let Some(mailbox) = self.reactor.as_ref().map(Reactor::mailbox) else {
            return Ok(());
        };
        mailbox.send(Mail::POLL);
        self.target_deadline = Some(now);
        let applied = self.target.apply(model(&self.plan, &self.away));
        let applied = applied.map_err(|error| Wrong(error.to_string()))?;
        if applied.changes.len() != 1 || !applied.disconnected.is_empty() {
            return Err(Wrong(format!("one namespace changed, and {applied:?}")));
        }
        Ok(())
    }
}
