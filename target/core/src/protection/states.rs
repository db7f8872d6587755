//! Write protection states that hosts set, from the request until they are saved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvmeof_wire::features::WriteProtection;

use super::SavedProtection;
use crate::Namespace;
use crate::namespace_view::Present;
use crate::settings_key::{SettingsKey, keys_with, settings_key};

/// The states that hosts set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protections {
    /// Protected namespaces, also those that are not served at present.
    states: BTreeMap<SettingsKey, Protected>,
    /// Counts requests.
    asked: u64,
}

/// A namespace that is protected, or whose protection is requested.
///
/// ```text
///  requested ──► stable ──► next ──► in progress ──► kept
///                        unprotected ──────┘ ╰──► removed
/// ```
#[derive(Clone, Copy, Debug)]
struct Protected {
    /// The state that was requested last, which is in force.
    state: WriteProtection,
    /// The request since which it is protected.
    since: u64,
    /// The last request for a protected state.
    last: u64,
    /// Requests that wait for earlier writes to become stable.
    open: u64,
    /// Whether all writes before the protection are stable.
    stable: bool,
    /// The request of the next save, of the save in progress, and of the last save. A
    /// request for no protection is saved as well.
    next: Option<ProtectionRequest>,
    in_progress: Option<ProtectionRequest>,
    kept: Option<ProtectionRequest>,
    /// Whether `kept` is certain: a failed save of another state may have replaced it.
    sure: bool,
}

/// A request. One for a protected state is granted when earlier writes are stable and
/// the state has been saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtectionRequest {
    since: u64,
    own: u64,
    pub(crate) to: WriteProtection,
}

/// What has to be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing: the state is in force and saved.
    Done,
    /// Make earlier writes stable, then call [`Protections::settle`].
    Settle(ProtectionRequest),
    /// Wait for the next save.
    Keep,
}

/// The result of [`Protections::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Whether the namespace is in another state than before.
    pub(crate) changed: bool,
    /// Whether the next save has to complete before the request is granted.
    pub(crate) keep: bool,
}

/// The state of the namespace cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed;

impl Protections {
    /// The state of a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> WriteProtection {
        match self.states.get(&settings_key(namespace)) {
            _ if namespace.readonly => WriteProtection::PROTECTED,
            Some(set) => set.state,
            None => WriteProtection::NONE,
        }
    }

    /// Whether the state of `namespace` may be set to `to`.
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

    /// A host sets the state of `namespace`, which is as in the model. Protection is in
    /// force immediately. Returns what is to be done before the request is granted.
    /// Earlier writes are made stable even if a request of another host does that
    /// already, because that one may fail or be lost.
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
        let key = settings_key(namespace);
        let set = self.states.get_mut(&key);
        if to == WriteProtection::NONE {
            if let Some(set) = set {
                set.next = Some(set.asks(own, to));
            }
            // Also if it is not protected: after a failed save, a state may be saved
            // although the host got an error.
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

    /// Writes before the request `asked` are `stable` now, or cannot be made so. Call it
    /// once for each request.
    ///
    /// Only the last pending request undoes the protection: while there is another, it
    /// may be granted, and its response must be true. The namespace then has the state
    /// of the last request that was not undone.
    pub(crate) fn settle(&mut self, nsid: u32, asked: ProtectionRequest, stable: bool) -> Settled {
        let mut states = self.states.iter_mut();
        let found = states.find(|(key, set)| key.0 == nsid && set.since == asked.since);
        let Some((key, set)) = found else {
            // Another request removed the protection meanwhile.
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

    /// The states without the requests that wait for writes to become stable.
    pub(crate) fn without_open(mut self) -> Self {
        self.states.retain(|_, set| {
            set.open = 0;
            let state = set.in_force();
            set.state = state.unwrap_or(set.state);
            state.is_some()
        });
        self
    }

    /// Returns the states to be saved now, of the namespaces with that NSID. Call
    /// [`kept`](Self::kept) afterwards.
    pub(crate) fn begin_write(&mut self, nsid: u32) -> Vec<SavedProtection> {
        let its = self.states.range_mut(keys_with(nsid));
        let kept = its.filter_map(|((nsid, uuid), set)| {
            set.in_progress = set.next.take();
            let asked = set.in_progress.or(set.kept)?;
            // Another pending request may not be granted.
            (asked.to == WriteProtection::PROTECTED).then_some(SavedProtection {
                nsid: *nsid,
                uuid: *uuid,
            })
        });
        kept.collect()
    }

    /// The save completed or failed. Returns whether the state of a namespace changed.
    pub(crate) fn kept(&mut self, written: bool) -> bool {
        let in_progress = self.states.iter_mut().filter_map(|(key, set)| {
            let asked = set.in_progress.take()?;
            if written {
                set.is_kept(asked);
            } else if set.kept.is_some_and(|kept| kept.to != asked.to) {
                set.sure = false;
            }
            Some(*key)
        });
        let keys: Vec<SettingsKey> = in_progress.collect();
        let changed = keys.into_iter().map(|key| self.renew(key));
        // All of them.
        changed.fold(false, |any, changed| any | changed)
    }

    /// Derives the state of the namespace from its requests. Returns whether it changed.
    fn renew(&mut self, key: SettingsKey) -> bool {
        let Some(set) = self.states.get_mut(&key) else {
            return false;
        };
        match set.in_force() {
            Some(state) => std::mem::replace(&mut set.state, state) != state,
            None => self.states.remove(&key).is_some(),
        }
    }

    /// Restores a saved state.
    pub(crate) fn restore(&mut self, kept: SavedProtection) {
        self.asked += 1;
        let (own, to) = (self.asked, WriteProtection::PROTECTED);
        let mut set = Protected::new(own, to);
        set.is_stable_and_kept();
        self.states.insert((kept.nsid, kept.uuid), set);
    }

    /// Replaces the saved states of the namespaces with that NSID, which are not being saved. A
    /// request that waits for earlier writes remains: it is granted if they become stable. So does
    /// a state that ends with the target.
    pub(crate) fn replace(&mut self, nsid: u32, kept: Vec<SavedProtection>) {
        let is_volatile = |set: &Protected| {
            set.kept
                .is_some_and(|it| it.to == WriteProtection::UNTIL_POWER_CYCLE)
        };
        self.states
            .retain(|key, set| key.0 != nsid || set.open > 0 || is_volatile(set));
        let left = self.states.range_mut(keys_with(nsid));
        for (_, set) in left.filter(|(_, set)| !is_volatile(set)) {
            (set.next, set.kept, set.sure) = (None, None, true);
        }
        for one in kept {
            match self.states.get_mut(&(one.nsid, one.uuid)) {
                Some(set) if is_volatile(set) => {}
                Some(set) => {
                    set.kept = Some(set.asks(set.since, WriteProtection::PROTECTED));
                }
                None => self.restore(one),
            }
        }
    }

    /// Forgets the state of namespace `nsid`, or of all, with the next save of each. Returns the
    /// NSIDs of those that have one.
    pub(crate) fn forget(&mut self, nsid: Option<u32>) -> BTreeSet<u32> {
        let mut nsids = BTreeSet::new();
        for ((of, _), set) in &mut self.states {
            if nsid.is_none_or(|nsid| nsid == *of) {
                self.asked += 1;
                set.next = Some(set.asks(self.asked, WriteProtection::NONE));
                nsids.insert(*of);
            }
        }
        nsids
    }

    /// Whether no namespace is protected, served or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// `present`, with the namespaces that hosts protected read-only.
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
            reservations: Arc::clone(&present.reservations),
        }
    }
}

/// Whether `one` came after `asked`.
fn is_newer(one: Option<ProtectionRequest>, asked: ProtectionRequest) -> bool {
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
            in_progress: None,
            kept: None,
            sure: true,
        }
    }

    fn asks(&self, own: u64, to: WriteProtection) -> ProtectionRequest {
        let since = self.since;
        ProtectionRequest { since, own, to }
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
        let is_pending = self.next.is_some() || self.in_progress.is_some();
        if self.sure && !is_pending && self.kept.is_some_and(|kept| kept.to == to) {
            self.kept = Some(asked);
            return Step::Done;
        }
        self.next = Some(asked);
        Step::Keep
    }

    /// The save of `asked` succeeded.
    fn is_kept(&mut self, asked: ProtectionRequest) {
        let protects = asked.to != WriteProtection::NONE;
        self.kept = protects.then_some(asked);
        self.sure = true;
        // Earlier requests no longer count.
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

    /// The state in force, if it is protected. A removal counts once it has been saved.
    fn in_force(&self) -> Option<WriteProtection> {
        if self.open > 0 {
            return Some(self.state);
        }
        let all = [self.next, self.in_progress, self.kept]
            .into_iter()
            .flatten();
        let mut protecting = all.filter(|asked| asked.to != WriteProtection::NONE);
        protecting.next().map(|asked| asked.to)
    }
}

#[cfg(test)]
mod tests;
