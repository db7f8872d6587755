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
//! Base 2.1, 8.1.16.1, figure 621: Write Protect is persistent across power cycles,
//! so whoever starts the target keeps it ([`KeepProtections`]) and brings it back
//! ([`Target::restore_protection`]).
//!
//! What a host set belongs to the namespace, by subsystem, number and identifier,
//! whether that is served at present or not: a file may be missing for a while, or a
//! document leave it out. It ends when a host takes it back, or when an administrator
//! says that the namespace is no more ([`Target::forget_protection`]).
//!
//! A namespace that is read only by configuration is in the state Write Protect
//! and stays there. Permanent Write Protect is not supported: nothing here could
//! keep an administrator from undoing it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use nvmeof_wire::Nqn;
use nvmeof_wire::features::WriteProtection;

use crate::sight::Present;
use crate::{Namespace, Target};

/// Keeps which namespaces hosts write protected, for when the target is started
/// again.
pub trait KeepProtections: fmt::Debug + Send + Sync {
    /// Of that subsystem these namespaces are in the state Write Protect, and no
    /// others. Called by a reactor, which waits, before the host is answered that
    /// asked for it: rarely, but for no longer than a small file takes to be
    /// written.
    ///
    /// # Errors
    /// When it cannot be kept. The host is told that its command failed.
    fn keep(&self, subsystem: &Nqn, namespaces: &[KeptProtection]) -> io::Result<()>;
}

/// A namespace that a host write protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptProtection {
    /// Its number.
    pub nsid: u32,
    /// Its identifier: another namespace with that number is not protected.
    pub uuid: [u8; 16],
}

/// Where that is kept, if anywhere.
#[derive(Debug, Default)]
pub(crate) struct Keeper(Mutex<Option<Arc<dyn KeepProtections>>>);

/// The book, in which nobody else writes meanwhile. Whoever changes what hosts set
/// has it open from before it looks at that until it is done: what is newer is kept
/// later, and what cannot be kept is not so.
pub(crate) struct Book<'a>(MutexGuard<'a, Option<Arc<dyn KeepProtections>>>);

impl Keeper {
    /// Waits for whoever has it open.
    pub(crate) fn open(&self) -> Book<'_> {
        // Nothing is left half done when a holder panics.
        Book(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Book<'_> {
    /// Keeps what hosts set of that subsystem.
    pub(crate) fn keep(&self, subsystem: &Nqn, all: &Protections) -> io::Result<()> {
        match &*self.0 {
            Some(keeper) => keeper.keep(subsystem, &all.kept()),
            None => Ok(()),
        }
    }
}

impl Target {
    /// Keeps there what hosts write protect from now on.
    pub fn keep_protections_in(&self, keeper: Arc<dyn KeepProtections>) {
        *self.shared.keeper.open().0 = Some(keeper);
    }

    /// What was kept is so again: call it before hosts connect. False when there
    /// is no such namespace at present: it is protected when it comes.
    #[must_use]
    pub fn restore_protection(&self, subsystem: &Nqn, kept: KeptProtection) -> bool {
        let _book = self.shared.keeper.open();
        let mut served = self.shared.served();
        if let Some(live) = served.live(subsystem) {
            return live.restore_protection(kept);
        }
        served.waiting.entry(*subsystem).or_default().restore(kept);
        false
    }

    /// What hosts set of the namespace with that number, or of all of the subsystem,
    /// is forgotten: an administrator removed it, and one that comes later is not
    /// protected. Afterwards every reactor has to poll its queues, as after
    /// [`apply`](Self::apply): one may be there again already, and hosts are told.
    ///
    /// # Errors
    /// When that cannot be kept; then nothing changed.
    pub fn forget_protection(&self, subsystem: &Nqn, nsid: Option<u32>) -> io::Result<()> {
        let book = self.shared.keeper.open();
        let mut served = self.shared.served();
        let live = served.live(subsystem).map(Arc::clone);
        let waiting = served.waiting.get(subsystem).cloned();
        let set = live.as_ref().and_then(|live| live.protections());
        let Some(mut all) = set.map(|(_, all)| all).or(waiting) else {
            return Ok(());
        };
        if !all.forget(nsid) {
            return Ok(());
        }
        book.keep(subsystem, &all)?;
        let Some(live) = live else {
            served.wait_for(*subsystem, all);
            return Ok(());
        };
        if let Some(before) = live.set(all, true) {
            self.shared.tell_all(&live.nqn, &before);
        }
        Ok(())
    }
}

/// The states that hosts set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protections {
    /// Of namespaces that are protected, also while they are not there.
    states: BTreeMap<Key, Protected>,
    /// Counts requests for a protected state.
    asked: u64,
}

/// The number of a namespace and its identifier: another one with that number is not
/// protected.
type Key = (u32, [u8; 16]);

#[derive(Clone, Copy, Debug)]
struct Protected {
    /// What was asked for last, which is in force.
    state: WriteProtection,
    /// The request since which it is protected.
    since: u64,
    /// Requests for that or for more that nothing came of yet.
    open: u64,
    /// The last one of those that were granted. If there is one, what was written
    /// before the namespace was protected is stable.
    granted: Option<Asked>,
}

/// A request for a protected state. It is granted when what was written before is
/// stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    since: u64,
    own: u64,
    to: WriteProtection,
}

/// The state of the namespace cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed;

/// Why nothing came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such namespace.
    Gone,
    /// The state cannot be changed.
    Fixed,
    /// It could not be kept.
    NotKept,
}

impl From<Fixed> for Refused {
    fn from(_: Fixed) -> Self {
        Self::Fixed
    }
}

impl Protections {
    /// The state of a namespace.
    pub(crate) fn of(&self, namespace: &Namespace) -> WriteProtection {
        match self.states.get(&(namespace.nsid, namespace.uuid)) {
            _ if namespace.readonly => WriteProtection::PROTECTED,
            Some(set) => set.state,
            None => WriteProtection::NONE,
        }
    }

    /// A host sets the state of `namespace`, which is as the model has it, and is
    /// in that state at once. Returns the request if something is to be made
    /// stable before it is granted: also when another host's is on its way, which
    /// may fail, or of which nobody may ever hear.
    ///
    /// # Errors
    /// [`Fixed`]: "the controller shall abort the command with ... Feature Not
    /// Changeable", Base 2.1, 5.1.25.1.31, of a namespace in the state Write
    /// Protect Until Power Cycle; likewise of what an administrator decided.
    pub(crate) fn set(
        &mut self,
        namespace: &Namespace,
        to: WriteProtection,
    ) -> Result<Option<Asked>, Fixed> {
        let before = self.of(namespace);
        let fixed = namespace.readonly || before == WriteProtection::UNTIL_POWER_CYCLE;
        if fixed && before != to {
            return Err(Fixed);
        }
        if namespace.readonly {
            return Ok(None);
        }
        let key = (namespace.nsid, namespace.uuid);
        if to == WriteProtection::NONE {
            self.states.remove(&key);
            return Ok(None);
        }
        self.asked += 1;
        let own = self.asked;
        let mut set = match self.states.get(&key) {
            Some(before) => *before,
            None => Protected {
                state: to,
                since: own,
                open: 0,
                granted: None,
            },
        };
        let since = set.since;
        let asked = Asked { since, own, to };
        set.state = to;
        let granted = set.granted.is_some();
        if granted {
            set.granted = Some(asked);
        } else {
            set.open += 1;
        }
        self.states.insert(key, set);
        Ok((!granted).then_some(asked))
    }

    /// What was written before `asked` is `stable` now, or cannot be made so: call
    /// it once for each. Says whether the namespace is in another state than before.
    ///
    /// Only the last request since the namespace is protected undoes anything: as
    /// long as there is another, that one may be granted, and what it was answered
    /// has to be so. A namespace is then as the last one that was granted wanted.
    pub(crate) fn settle(&mut self, nsid: u32, asked: Asked, stable: bool) -> bool {
        let mut states = self.states.iter_mut();
        let found = states.find(|(key, set)| key.0 == nsid && set.since == asked.since);
        let Some((key, set)) = found else {
            return false;
        };
        let key = *key;
        set.open = set.open.saturating_sub(1);
        if stable && set.granted.is_none_or(|granted| granted.own < asked.own) {
            set.granted = Some(asked);
        }
        if set.open > 0 {
            return false;
        }
        let before = set.state;
        match set.granted {
            Some(granted) => {
                set.state = granted.to;
                set.state != before
            }
            None => {
                self.states.remove(&key);
                true
            }
        }
    }

    /// Those that outlive the target.
    pub(crate) fn kept(&self) -> Vec<KeptProtection> {
        let all = self.states.iter();
        let kept = all.filter(|(_, set)| {
            // Another one that is asked for may not be granted.
            set.granted
                .is_some_and(|granted| granted.to == WriteProtection::PROTECTED)
        });
        kept.map(|((nsid, uuid), _)| KeptProtection {
            nsid: *nsid,
            uuid: *uuid,
        })
        .collect()
    }

    /// One of them is there again.
    pub(crate) fn restore(&mut self, kept: KeptProtection) {
        self.asked += 1;
        let (own, to) = (self.asked, WriteProtection::PROTECTED);
        let set = Protected {
            state: to,
            since: own,
            open: 0,
            granted: Some(Asked {
                since: own,
                own,
                to,
            }),
        };
        self.states.insert((kept.nsid, kept.uuid), set);
    }

    /// Forgets the states of the namespace with that number, or of all. Says whether
    /// there were any.
    fn forget(&mut self, nsid: Option<u32>) -> bool {
        let before = self.states.len();
        self.states
            .retain(|(of, _), _| nsid.is_some_and(|nsid| nsid != *of));
        self.states.len() != before
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

#[cfg(test)]
mod tests {
    use super::*;

    const PROTECTED: WriteProtection = WriteProtection::PROTECTED;

    /// The states over one namespace, and that.
    fn one() -> (Protections, Namespace) {
        let target = crate::testing::target();
        let model = target.model();
        let namespace = model.subsystems()[0].namespace(1).unwrap().clone();
        (Protections::default(), namespace)
    }

    #[test]
    fn a_request_that_fails_undoes_what_it_did_and_nothing_else() {
        let (mut all, namespace) = one();
        let first = all.set(&namespace, PROTECTED).unwrap().unwrap();
        // Another host wants the same meanwhile.
        let second = all.set(&namespace, PROTECTED).unwrap().unwrap();
        assert!(!all.settle(1, first, false));
        assert_eq!(all.of(&namespace), PROTECTED, "the second may be granted");
        assert!(all.settle(1, second, false));
        assert_eq!(all.of(&namespace), WriteProtection::NONE);
    }

    /// In whichever order they end: what is answered is so.
    #[test]
    fn a_request_that_is_granted_is_in_force() {
        let (mut all, namespace) = one();
        let first = all.set(&namespace, PROTECTED).unwrap().unwrap();
        let second = all.set(&namespace, PROTECTED).unwrap().unwrap();
        assert!(!all.settle(1, second, false), "the first may be granted");
        assert!(!all.settle(1, first, true));
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.kept().len(), 1);
    }

    #[test]
    fn what_was_granted_stays_when_more_than_that_is_not() {
        let until = WriteProtection::UNTIL_POWER_CYCLE;
        for first_ends_first in [true, false] {
            let (mut all, namespace) = one();
            let first = all.set(&namespace, PROTECTED).unwrap().unwrap();
            let second = all.set(&namespace, until).unwrap().unwrap();
            if first_ends_first {
                assert!(!all.settle(1, first, true));
                assert_eq!(all.of(&namespace), until);
                assert_eq!(all.kept().len(), 1, "it may be all that there is");
                assert!(all.settle(1, second, false), "another state");
            } else {
                assert!(!all.settle(1, second, false));
                assert!(all.settle(1, first, true), "another state");
            }
            assert_eq!(all.of(&namespace), PROTECTED);
            assert_eq!(all.kept().len(), 1);
            assert_eq!(all.set(&namespace, until), Ok(None), "all of it is stable");
            assert_eq!(all.of(&namespace), until);
            assert_eq!(all.kept(), []);
        }
        // The later one was granted: the one before it has no say.
        let (mut all, namespace) = one();
        let first = all.set(&namespace, PROTECTED).unwrap().unwrap();
        let second = all.set(&namespace, until).unwrap().unwrap();
        assert!(!all.settle(1, second, true) && !all.settle(1, first, true));
        assert_eq!(all.of(&namespace), until);
    }

    #[test]
    fn another_namespace_of_the_same_number_is_not_protected() {
        let (mut all, namespace) = one();
        let other = Namespace {
            uuid: [9; 16],
            ..namespace.clone()
        };
        let first = all.set(&namespace, PROTECTED).unwrap().unwrap();
        assert_eq!(all.kept(), [], "it is not granted yet");
        all.settle(1, first, true);
        assert_eq!(all.kept().len(), 1);
        assert_eq!(all.of(&other), WriteProtection::NONE);
        assert!(all.set(&other, PROTECTED).unwrap().is_some());
        assert_eq!(all.of(&namespace), PROTECTED, "which may come back");
        assert_eq!(all.kept().len(), 1);
        assert!(!all.forget(Some(2)) && all.forget(Some(1)));
        for one in [&namespace, &other] {
            assert_eq!(all.of(one), WriteProtection::NONE);
        }
        let fixed = Namespace {
            readonly: true,
            ..namespace
        };
        assert_eq!(
            all.set(&fixed, PROTECTED),
            Ok(None),
            "nothing to make stable"
        );
    }

    #[test]
    fn a_request_has_no_say_in_what_began_after_it() {
        let (mut all, namespace) = one();
        let early = all.set(&namespace, PROTECTED).unwrap().unwrap();
        assert_eq!(all.set(&namespace, WriteProtection::NONE), Ok(None));
        assert!(!all.settle(1, early, true));
        assert_eq!(all.of(&namespace), WriteProtection::NONE);
        // In between there may have been writes.
        let late = all.set(&namespace, PROTECTED).unwrap().unwrap();
        assert!(!all.settle(1, early, true) && !all.settle(1, early, false));
        assert_eq!(all.of(&namespace), PROTECTED);
        assert!(all.set(&namespace, PROTECTED).unwrap().is_some());
        assert!(!all.settle(1, late, true));
        assert_eq!(all.set(&namespace, PROTECTED), Ok(None));
        assert!(!all.settle(2, late, false), "of another namespace");
    }
}
