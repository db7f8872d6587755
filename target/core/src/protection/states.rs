//! The states of namespaces that hosts set, from the request until it is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvmeof_wire::features::WriteProtection;

use super::KeptProtection;
use crate::Namespace;
use crate::namespace_view::Present;

/// The states that hosts set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protections {
    /// Of namespaces that are protected, also while they are not there.
    states: BTreeMap<Key, Protected>,
    /// Counts requests.
    asked: u64,
}

/// The number of a namespace and its identifier: another one with that number is not
/// protected.
type Key = (u32, [u8; 16]);

/// A namespace that is protected, or that somebody wants to be.
///
/// ```text
///  asked for ──► stable ──► next ──► in work ──► kept
///                  no protection any more ──┘ ╰──► gone
/// ```
#[derive(Clone, Copy, Debug)]
struct Protected {
    /// What was asked for last, which is in force.
    state: WriteProtection,
    /// The request since which it is protected.
    since: u64,
    /// The last request for a protected state.
    last: u64,
    /// Requests for which what was written before has to become stable.
    open: u64,
    /// Whether what was written before it was protected is stable.
    stable: bool,
    /// Of what is to be kept: what the next write has, what the one has that is in
    /// work, and what is kept. No protection at all is to be kept as well.
    next: Option<Asked>,
    in_work: Option<Asked>,
    kept: Option<Asked>,
    /// Whether that is so: a write of something else that failed may have taken its
    /// place all the same.
    sure: bool,
}

/// A request. One for a protected state is granted when what was written before is
/// stable and the state is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    since: u64,
    own: u64,
    pub(crate) to: WriteProtection,
}

/// What has to be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: it is so, and kept.
    Done,
    /// What was written before is made stable, then [`Protections::settle`].
    Settle(Asked),
    /// It is kept, by the next write.
    Keep,
}

/// What came of [`Protections::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Whether the namespace is in another state than before.
    pub(crate) changed: bool,
    /// Whether the next write has to end before the request is granted.
    pub(crate) keep: bool,
}

/// The state of the namespace cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed;

impl Protections {
    /// The state of a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> WriteProtection {
        match self.states.get(&(namespace.nsid, namespace.uuid)) {
            _ if namespace.readonly => WriteProtection::PROTECTED,
            Some(set) => set.state,
            None => WriteProtection::NONE,
        }
    }

    /// Whether the state of `namespace` may be set so.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub(crate) fn check(&self, namespace: &Namespace, to: WriteProtection) -> Result<(), Fixed> {
        let before = self.of(namespace);
        let fixed = namespace.readonly || before == WriteProtection::UNTIL_POWER_CYCLE;
        if fixed && before != to {
            return Err(Fixed);
        }
        Ok(())
    }

    /// A host sets the state of `namespace`, which is as the model has it, and is
    /// protected at once if it is to be. Says what is to be done before the request
    /// is granted. Something is to be made stable also when another host's is on its
    /// way, which may fail, or of which nobody may ever hear.
    ///
    /// # Errors
    /// [`Fixed`]: "the controller shall abort the command with ... Feature Not
    /// Changeable", Base 2.1, 5.1.25.1.31, of a namespace in the state Write
    /// Protect Until Power Cycle; likewise of what an administrator decided.
    pub(crate) fn set(
        &mut self,
        namespace: &Namespace,
        to: WriteProtection,
    ) -> Result<Step, Fixed> {
        self.check(namespace, to)?;
        if namespace.readonly {
            return Ok(Step::Done);
        }
        self.asked += 1;
        let own = self.asked;
        let key = (namespace.nsid, namespace.uuid);
        let set = self.states.get_mut(&key);
        if to == WriteProtection::NONE {
            if let Some(set) = set {
                set.next = Some(set.asks(own, to));
            }
            // Also of one that is not protected: it may have been impossible to say
            // whether one is kept of which a host was told that it is not.
            return Ok(Step::Keep);
        }
        match set {
            Some(set) => Ok(set.protect(own, to)),
            None => {
                let set = Protected::new(own, to);
                self.states.insert(key, set);
                Ok(Step::Settle(set.asks(own, to)))
            }
        }
    }

    /// What was written before `asked` is `stable` now, or cannot be made so: call
    /// it once for each.
    ///
    /// Only the last request since the namespace is protected undoes anything: as
    /// long as there is another, that one may be granted, and what it was answered
    /// has to be so. A namespace is then as the last one wanted that was not undone.
    pub(crate) fn settle(&mut self, nsid: u32, asked: Asked, stable: bool) -> Settled {
        let mut states = self.states.iter_mut();
        let found = states.find(|(key, set)| key.0 == nsid && set.since == asked.since);
        let Some((key, set)) = found else {
            // Another request took the protection back meanwhile.
            return Settled {
                changed: false,
                keep: false,
            };
        };
        let key = *key;
        set.open = set.open.saturating_sub(1);
        let mut keep = false;
        if stable {
            set.stable = true;
            keep = !is_newer(set.kept, asked);
            if keep && !is_newer(set.next, asked) {
                set.next = Some(asked);
            }
        }
        let changed = self.renew(key);
        Settled { changed, keep }
    }

    /// What is left when nothing comes of requests for which something has to become
    /// stable.
    pub(crate) fn without_open(mut self) -> Self {
        self.states.retain(|_, set| {
            set.open = 0;
            let state = set.in_force();
            set.state = state.unwrap_or(set.state);
            state.is_some()
        });
        self
    }

    /// What is to be written now of what outlives the target. Call
    /// [`kept`](Self::kept) when it was.
    pub(crate) fn begin_write(&mut self) -> Vec<KeptProtection> {
        let kept = self.states.iter_mut().filter_map(|((nsid, uuid), set)| {
            set.in_work = set.next.take();
            let asked = set.in_work.or(set.kept)?;
            // Another one that is asked for may not be granted.
            (asked.to == WriteProtection::PROTECTED).then_some(KeptProtection {
                nsid: *nsid,
                uuid: *uuid,
            })
        });
        kept.collect()
    }

    /// It was written, or could not be. Says whether a namespace is in another state
    /// than before.
    pub(crate) fn kept(&mut self, written: bool) -> bool {
        let in_work = self.states.iter_mut().filter_map(|(key, set)| {
            let asked = set.in_work.take()?;
            if written {
                set.is_kept(asked);
            } else if set.kept.is_some_and(|kept| kept.to != asked.to) {
                set.sure = false;
            }
            Some(*key)
        });
        let keys: Vec<Key> = in_work.collect();
        let changed = keys.into_iter().map(|key| self.renew(key));
        // All of them.
        changed.fold(false, |any, changed| any | changed)
    }

    /// The namespace is in the state that follows from what there is of it. Says
    /// whether that is another than before.
    fn renew(&mut self, key: Key) -> bool {
        let Some(set) = self.states.get_mut(&key) else {
            return false;
        };
        match set.in_force() {
            Some(state) => std::mem::replace(&mut set.state, state) != state,
            None => self.states.remove(&key).is_some(),
        }
    }

    /// One of them is there again.
    pub(crate) fn restore(&mut self, kept: KeptProtection) {
        self.asked += 1;
        let (own, to) = (self.asked, WriteProtection::PROTECTED);
        let mut set = Protected::new(own, to);
        set.is_stable_and_kept();
        self.states.insert((kept.nsid, kept.uuid), set);
    }

    /// The states of the namespace with that number, or of all, are to be forgotten
    /// when that is kept. Says whether there are any.
    pub(crate) fn forget(&mut self, nsid: Option<u32>) -> bool {
        let mut any = false;
        for ((of, _), set) in &mut self.states {
            if nsid.is_none_or(|nsid| nsid == *of) {
                self.asked += 1;
                set.next = Some(set.asks(self.asked, WriteProtection::NONE));
                any = true;
            }
        }
        any
    }

    /// Whether no namespace is protected, there or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
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

/// Whether there is one that came after `asked`.
fn is_newer(one: Option<Asked>, asked: Asked) -> bool {
    one.is_some_and(|one| one.own > asked.own)
}

impl Protected {
    /// By the first request.
    fn new(own: u64, to: WriteProtection) -> Self {
        Self {
            state: to,
            since: own,
            last: own,
            open: 1,
            stable: false,
            next: None,
            in_work: None,
            kept: None,
            sure: true,
        }
    }

    fn asks(&self, own: u64, to: WriteProtection) -> Asked {
        let since = self.since;
        Asked { since, own, to }
    }

    /// One more request for a protected state.
    fn protect(&mut self, own: u64, to: WriteProtection) -> Step {
        let asked = self.asks(own, to);
        self.state = to;
        self.last = own;
        if !self.stable {
            self.open += 1;
            return Step::Settle(asked);
        }
        let on_its_way = self.next.is_some() || self.in_work.is_some();
        if self.sure && !on_its_way && self.kept.is_some_and(|kept| kept.to == to) {
            self.kept = Some(asked);
            return Step::Done;
        }
        self.next = Some(asked);
        Step::Keep
    }

    /// That was written.
    fn is_kept(&mut self, asked: Asked) {
        let protects = asked.to != WriteProtection::NONE;
        self.kept = protects.then_some(asked);
        self.sure = true;
        // What came before has no say any more.
        self.next = self.next.filter(|next| next.own > asked.own);
        if !protects && self.last < asked.own {
            self.open = 0;
        }
    }

    fn is_stable_and_kept(&mut self) {
        self.open = 0;
        self.stable = true;
        self.kept = Some(self.asks(self.since, self.state));
    }

    /// What is in force, if it is protected at all: also as long as it is not kept
    /// that it is not any more.
    fn in_force(&self) -> Option<WriteProtection> {
        if self.open > 0 {
            return Some(self.state);
        }
        let all = [self.next, self.in_work, self.kept].into_iter().flatten();
        let mut protecting = all.filter(|asked| asked.to != WriteProtection::NONE);
        protecting.next().map(|asked| asked.to)
    }
}

#[cfg(test)]
mod tests;
