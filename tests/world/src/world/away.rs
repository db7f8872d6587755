//! Namespaces that are removed while hosts use them, and added again, or that are
//! inaccessible on a port for a time. Only their calls may fail, and only for that time.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target_engine::Mail;

use super::{Undo, World, model};
use crate::oracle::Wrong;
use crate::plan::Removal;
use crate::reservations::Rights;
use crate::workload::{Met, Presence};

#[derive(Debug, Default)]
pub(super) struct Away {
    /// Number of removals.
    pub(super) next: usize,
    spells: BTreeMap<What, Spell>,
}

/// A namespace by its disk (`None`: the one that hosts do not use), and the port on which it
/// is inaccessible (`None`: it is removed).
pub(super) type What = (Option<usize>, Option<u16>);

/// The last removal of a namespace.
#[derive(Clone, Copy, Debug)]
struct Spell {
    since: Duration,
    /// `None`: it is still removed.
    until: Option<Duration>,
}

impl Away {
    pub(super) fn is_away(&self, what: What) -> bool {
        let spell = self.spells.get(&what);
        spell.is_some_and(|spell| spell.until.is_none())
    }

    /// Whether a namespace was accessible through `port` from `since` until now.
    pub(super) fn met(&self, ns: usize, port: u16, since: Duration) -> Met {
        Met {
            there: self.presence((Some(ns), None), since),
            reached: self.presence((Some(ns), Some(port)), since),
            rights: Rights::ALL,
        }
    }

    fn presence(&self, what: What, since: Duration) -> Presence {
        match self.spells.get(&what) {
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
    /// Removes the namespaces that are due. Returns whether there was one.
    pub(super) fn remove_namespaces(&mut self, now: Duration) -> Result<bool, Wrong> {
        let mut any = false;
        while let Some((after, removal)) = self.plan.removals.get(self.away.next).copied()
            && self.ended >= after
        {
            self.away.next += 1;
            any = true;
            let Removal { ns, through, .. } = removal;
            let what = (ns, through);
            if self.away.is_away(what) {
                continue;
            }
            self.say(format_args!("{removal:?}"));
            let spell = Spell {
                since: now,
                until: None,
            };
            self.away.spells.insert(what, spell);
            self.at(now + removal.for_how_long, Undo::AddNamespace(what));
            self.apply()?;
        }
        Ok(any)
    }

    pub(super) fn add_namespace(&mut self, what: What, now: Duration) -> Result<(), Wrong> {
        if let Some(spell) = self.away.spells.get_mut(&what) {
            spell.until = Some(now);
        }
        self.apply()
    }

    /// Applies the model to the target. A stopped target applies it when it starts.
    fn apply(&mut self) -> Result<(), Wrong> {
        if !self.reactors.run() {
            return Ok(());
        }
        self.reactors.send(Mail::POLL);
        let applied = self
            .target
            .apply(model(&self.plan, &self.away, self.keys.as_ref()));
        let applied = applied.map_err(|error| Wrong(error.to_string()))?;
        if applied.changes.len() != 1 || !applied.disconnected.is_empty() {
            return Err(Wrong(format!(
                "one namespace changed, but the plan is {applied:?}"
            )));
        }
        Ok(())
    }
}
