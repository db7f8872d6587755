//! Namespaces that are removed from the target while hosts work, and added
//! again, or that a port does not reach for a while: their calls may fail for
//! that time, and no others.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_target_engine::Mail;

use super::{Undo, World, model};
use crate::oracle::Wrong;
use crate::plan::Removal;
use crate::workload::{Met, Presence};

#[derive(Debug, Default)]
pub(super) struct Away {
    /// How many removals were made.
    pub(super) next: usize,
    spells: BTreeMap<What, Spell>,
}

/// A namespace by its disk, where `None` is the one that hosts do not use, and
/// the port that does not reach it; `None`: it is gone.
pub(super) type What = (Option<usize>, Option<u16>);

/// The last time that a namespace was away.
#[derive(Clone, Copy, Debug)]
struct Spell {
    since: Duration,
    /// `None`: it still is.
    until: Option<Duration>,
}

impl Away {
    pub(super) fn is_away(&self, what: What) -> bool {
        let spell = self.spells.get(&what);
        spell.is_some_and(|spell| spell.until.is_none())
    }

    /// How a namespace was found through `port` from `since` until now.
    pub(super) fn met(&self, ns: usize, port: u16, since: Duration) -> Met {
        Met {
            there: self.presence((Some(ns), None), since),
            reached: self.presence((Some(ns), Some(port)), since),
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
    /// Removes the namespaces that are due. Says whether there was one.
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

    /// The target serves what is there. One that does not run will when it
    /// starts.
    fn apply(&mut self) -> Result<(), Wrong> {
        if !self.reactors.run() {
            return Ok(());
        }
        self.reactors.send(Mail::POLL);
        let applied = self.target.apply(model(&self.plan, &self.away));
        let applied = applied.map_err(|error| Wrong(error.to_string()))?;
        if applied.changes.len() != 1 || !applied.disconnected.is_empty() {
            return Err(Wrong(format!("one thing changed, and {applied:?}")));
        }
        Ok(())
    }
}
