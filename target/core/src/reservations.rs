//! The reservations of the namespaces of a subsystem (Base 2.1, 8.1.22), from the request of a host
//! until they are saved.
//!
//! ```text
//!   request ──► asked ──► in progress ──► kept, in force
//!     ▲ computed from the newest       │
//!     └── all of them end, if the save fails
//! ```
//! A change is in force once it has been saved, so that a registration that was answered is there
//! after a loss of power, and a failed save changes nothing. Each request is computed from the
//! newest state, saved or not; if a save fails, so do the requests that depend on it.
//!
//! The state belongs to a namespace by NSID and UUID, as write protection does. A file or device is
//! served writable once, so that no other subsystem can go around it; if that ever changes, the
//! state has to belong to the backing store.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use nvmeof_target_reservations::{Access, Accesses, Change, HostId, Refused, Reservations};
use nvmeof_wire::Nqn;
use nvmeof_wire::reservation::NoticeType;

use crate::Namespace;
use crate::persist::PendingSave;
use crate::settings_key::{SettingsKey, keys_with, settings_key};

/// Registrants of one NQN, at most. A host has one host identifier, and another one after a new
/// installation: its former registration remains until it is preempted. Without this limit, one
/// host could take all of `limits.registrants`.
const MOST_OF_NQN: usize = 16;

/// The reservations of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedReservations {
    /// Its NSID.
    pub nsid: u32,
    /// Its UUID: another namespace with the same NSID has none of them.
    pub uuid: [u8; 16],
    /// They.
    pub state: ReservationState,
}

/// The reservations of a namespace, and what an administrator wants to know of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationState {
    /// What commands and accesses depend on.
    pub reservations: Reservations,
    /// The NQN with which each registrant registered last.
    pub names: BTreeMap<HostId, Nqn>,
    /// The last preemption.
    pub preemption: Option<Preemption>,
}

/// A host removed the registrations of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// The generation that it began.
    pub generation: u32,
    /// The host.
    pub by: Registrant,
    /// The others.
    pub preempted: Vec<Registrant>,
}

/// Why reservations were not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotImport {
    /// No such namespace is served.
    #[error("no such namespace is served; `nvmeof-target ctl namespace list` names them")]
    NoNamespace,
    /// It waits.
    #[error(
        "the namespace waits for its backing store or for its record; `nvmeof-target ctl status` \
         says why"
    )]
    NotReady,
    /// Nothing is saved.
    #[error("the target has no state file (control.state), so that it keeps no reservations")]
    NoKeeper,
    /// It has registrants.
    #[error(
        "hosts are registered already; `nvmeof-target ctl reservations clear` removes them first"
    )]
    Registered,
}

/// A host with a registration, or that had one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Its identifier.
    pub host: HostId,
    /// Its NQN, if it is known.
    pub nqn: Option<Nqn>,
}

/// The reservations that are in force, of namespaces that have registrants. They may be of
/// namespaces that are not served at present.
#[derive(Clone, Debug, Default)]
pub(crate) struct InForce {
    namespaces: BTreeMap<SettingsKey, Arc<ReservationState>>,
}

/// The reservations of all namespaces of a subsystem, and their changes.
#[derive(Debug, Default)]
pub(crate) struct ReservationTable {
    in_force: Arc<InForce>,
    /// For the next save, by NSID.
    asked: BTreeMap<u32, Changes>,
    /// Being saved, of one NSID.
    in_progress: Option<Changes>,
}

/// Changes that are saved together.
#[derive(Debug, Default)]
struct Changes {
    states: BTreeMap<SettingsKey, ReservationState>,
    /// Notifications once they are in force.
    notices: Vec<ReservationNotice>,
    /// What the requests wait for.
    pending: PendingSave,
}

/// What a save led to.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) notices: Vec<ReservationNotice>,
    /// Requests to be answered once the views of all hosts are renewed.
    answers: Vec<PendingSave>,
}

impl Ended {
    /// Answers the requests with the result of the save. The views of all hosts must have been
    /// renewed.
    pub(crate) fn answer(self, result: &io::Result<()>) {
        for pending in self.answers {
            pending.end(result);
        }
    }
}

/// A request that was granted, if the save succeeds.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) pending: PendingSave,
    /// Accesses that must have ended before the command completes.
    pub(crate) ends: Accesses,
}

/// A notification for the controllers of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationNotice {
    pub(crate) nsid: u32,
    pub(crate) host: HostId,
    pub(crate) notice: NoticeType,
}

impl InForce {
    /// The reservations of a namespace, if it has registrants.
    pub(crate) fn of(&self, namespace: &Namespace) -> Option<&Reservations> {
        let its = self.namespaces.get(&settings_key(namespace))?;
        Some(&its.reservations)
    }

    /// Whether one of them denies `host` anything.
    pub(crate) fn restrict(&self, host: &HostId) -> bool {
        let mut all = self.namespaces.values();
        all.any(|its| its.reservations.accesses(host) != Accesses::ALL)
    }

    /// Whether all namespaces with this NSID permit `host` this access.
    pub(crate) fn permit(&self, nsid: u32, host: &HostId, access: Access) -> bool {
        let its = self.namespaces.range(keys_with(nsid));
        let mut its = its.map(|(_, its)| its.reservations.accesses(host));
        its.all(|accesses| accesses.has(access))
    }

    /// What `host` may do with `namespace`.
    pub(crate) fn accesses(&self, namespace: &Namespace, host: &HostId) -> Accesses {
        self.of(namespace)
            .map_or(Accesses::ALL, |its| its.accesses(host))
    }
}

impl ReservationTable {
    /// Those that are in force.
    pub(crate) fn in_force(&self) -> &Arc<InForce> {
        &self.in_force
    }

    /// Whether no namespace has registrants, nor will have.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_force.namespaces.is_empty() && self.asked.is_empty() && self.in_progress.is_none()
    }

    /// Whether changes are being saved.
    pub(crate) fn is_saving(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Takes the table, with the changes that are not saved yet. What is in force remains, so that
    /// nobody gets more than before.
    pub(crate) fn retire(&mut self) -> Self {
        let in_force = Arc::clone(&self.in_force);
        std::mem::replace(
            self,
            Self {
                in_force,
                ..Self::default()
            },
        )
    }

    /// Forgets the reservations of namespace `nsid`, or all, with the next save of each. Returns
    /// what to wait for, by NSID.
    pub(crate) fn forget(&mut self, nsid: Option<u32>) -> BTreeMap<u32, PendingSave> {
        self.clear_all(self.keys_of(nsid), |its| Change {
            next: Reservations::default(),
            ..its.clear()
        })
    }

    fn clear_all(
        &mut self,
        keys: BTreeSet<SettingsKey>,
        clear: impl Fn(&Reservations) -> Change,
    ) -> BTreeMap<u32, PendingSave> {
        let mut all = BTreeMap::new();
        for key in keys {
            // Those with one NSID are in the same save.
            if let Ok(granted) = self.change_of(key, None, |its| Ok(clear(its))) {
                all.insert(key.0, granted.pending);
            }
        }
        all
    }

    /// `host` changes the reservations of `namespace` with the next save. It may register
    /// [`MOST_OF_NQN`] host identifiers.
    ///
    /// # Errors
    /// [`Refused`]; nothing changes.
    pub(crate) fn change(
        &mut self,
        namespace: &Namespace,
        host: (HostId, Nqn),
        change: impl FnOnce(&Reservations) -> Result<Change, Refused>,
    ) -> Result<Granted, Refused> {
        self.change_of(settings_key(namespace), Some(host), change)
    }

    /// Removes all reservations of namespace `nsid` with the next save, as an administrator does.
    /// `None` if it has no registrants.
    pub(crate) fn clear(&mut self, nsid: u32) -> Option<PendingSave> {
        let mut keys = self.keys_of(Some(nsid));
        keys.retain(|key| {
            let newest = self.newest(key);
            newest.is_some_and(|its| its.reservations.registrants().len() > 0)
        });
        self.clear_all(keys, Reservations::clear).remove(&nsid)
    }

    /// The namespaces with that NSID, or all, that have or will have reservations.
    fn keys_of(&self, nsid: Option<u32>) -> BTreeSet<SettingsKey> {
        let changes = self.asked.values().chain(&self.in_progress);
        let changed = changes.flat_map(|changes| changes.states.keys());
        let keys = self.in_force.namespaces.keys().chain(changed);
        let concerned = |key: &&SettingsKey| nsid.is_none_or(|nsid| nsid == key.0);
        keys.filter(concerned).copied().collect()
    }

    /// Gives `namespace` these reservations with the next save. `None` if it has registrants.
    pub(crate) fn import(
        &mut self,
        namespace: &Namespace,
        state: ReservationState,
    ) -> Option<Granted> {
        let key = settings_key(namespace);
        let newest = self.newest(&key);
        if newest.is_some_and(|its| its.reservations.registrants().len() > 0) {
            return None;
        }
        let asked = self.asked.entry(key.0).or_default();
        asked.states.insert(key, state);
        let pending = asked.pending.clone();
        // Hosts are not connected.
        let ends = Accesses::default();
        Some(Granted { pending, ends })
    }

    /// Whether those of `namespace` persist through power loss.
    pub(crate) fn persists(&self, namespace: &Namespace) -> bool {
        let its = self.in_force.of(namespace);
        its.is_some_and(Reservations::persists)
    }

    /// Sets with the next save whether those of `namespace` persist through power loss.
    pub(crate) fn set_persistence(
        &mut self,
        namespace: &Namespace,
        persists: bool,
    ) -> Result<Granted, Refused> {
        self.change_of(settings_key(namespace), None, |its| {
            Ok(its.with_persistence(persists))
        })
    }

    /// The newest state of a namespace, saved or not.
    fn newest(&self, key: &SettingsKey) -> Option<&ReservationState> {
        let mut changes = self.asked.get(&key.0).into_iter().chain(&self.in_progress);
        let changed = changes.find_map(|changes| changes.states.get(key));
        changed.or_else(|| self.in_force.namespaces.get(key).map(|its| &**its))
    }

    /// Whether a state of a namespace is not saved yet.
    fn is_changing(&self, key: &SettingsKey) -> bool {
        let mut changes = self.asked.get(&key.0).into_iter().chain(&self.in_progress);
        changes.any(|changes| changes.states.contains_key(key))
    }

    /// `host` changes them; `None`: an administrator does. A change that changes nothing is granted
    /// at once, unless it depends on one that is not saved yet.
    fn change_of(
        &mut self,
        key: SettingsKey,
        host: Option<(HostId, Nqn)>,
        change: impl FnOnce(&Reservations) -> Result<Change, Refused>,
    ) -> Result<Granted, Refused> {
        let none = ReservationState::default();
        let newest = self.newest(&key).unwrap_or(&none);
        let Change {
            next,
            notices,
            ends,
        } = change(&newest.reservations)?;
        // Also of a registrant that takes another name.
        if let Some((id, nqn)) = &host
            && newest.names.get(id) != Some(nqn)
            && next.is_registrant(id)
            && newest.registrants_of(nqn) >= MOST_OF_NQN
        {
            return Err(Refused::Full);
        }
        let state = newest.after(&next, host);
        if state == *newest && notices.is_empty() && !self.is_changing(&key) {
            let pending = PendingSave::none();
            return Ok(Granted { pending, ends });
        }
        let asked = self.asked.entry(key.0).or_default();
        asked.states.insert(key, state);
        let notices = notices.into_iter().map(|(host, notice)| {
            let nsid = key.0;
            ReservationNotice { nsid, host, notice }
        });
        asked.notices.extend(notices);
        let pending = asked.pending.clone();
        Ok(Granted { pending, ends })
    }

    /// The reservations that are to be saved now, of the namespaces with that NSID. Call
    /// [`kept`](Self::kept) afterwards.
    pub(crate) fn begin_write(&mut self, nsid: u32) -> Vec<SavedReservations> {
        let its = self.in_force.namespaces.range(keys_with(nsid));
        let mut all: BTreeMap<_, _> = its.map(|(key, its)| (*key, Arc::clone(its))).collect();
        self.in_progress = self.asked.remove(&nsid);
        let changes = self.in_progress.iter();
        for (key, state) in changes.flat_map(|changes| &changes.states) {
            all.insert(*key, Arc::new(state.clone()));
        }
        let saved = all
            .into_iter()
            .filter(|(_, its)| !its.reservations.is_new());
        let saved = saved.map(|((nsid, uuid), its)| SavedReservations {
            nsid,
            uuid,
            state: Arc::unwrap_or_clone(its),
        });
        saved.collect()
    }

    /// The save of the namespaces with that NSID ended. Changes that were saved are in force; if it
    /// failed, none of those that were requested since is.
    pub(crate) fn kept(&mut self, nsid: u32, result: &io::Result<()>) -> Ended {
        let mut ended = Ended::default();
        let Some(changes) = self.in_progress.take() else {
            return ended;
        };
        match result {
            Ok(()) => {
                let in_force = &mut Arc::make_mut(&mut self.in_force).namespaces;
                for (key, state) in changes.states {
                    match state.reservations.is_new() {
                        true => drop(in_force.remove(&key)),
                        false => drop(in_force.insert(key, Arc::new(state))),
                    }
                }
                ended.notices = changes.notices;
                ended.answers.push(changes.pending);
            }
            Err(_) => {
                // The next ones were computed from these.
                let next = self.asked.remove(&nsid).map(|next| next.pending);
                ended
                    .answers
                    .extend([Some(changes.pending), next].into_iter().flatten());
            }
        }
        ended
    }

    /// Replaces the reservations of the namespaces with that NSID, which are not being saved, also
    /// by those that do not persist through a loss of power. Requests that are not saved yet end.
    pub(crate) fn replace(&mut self, nsid: u32, saved: Vec<SavedReservations>) -> Ended {
        let in_force = &mut Arc::make_mut(&mut self.in_force).namespaces;
        in_force.retain(|key, _| key.0 != nsid);
        let saved = saved.into_iter();
        in_force.extend(saved.map(|one| ((one.nsid, one.uuid), Arc::new(one.state))));
        let asked = self.asked.remove(&nsid);
        Ended {
            notices: Vec::new(),
            answers: asked.map(|changes| changes.pending).into_iter().collect(),
        }
    }

    /// Restores what was saved, after a loss of power.
    pub(crate) fn restore(&mut self, saved: SavedReservations) {
        let key = (saved.nsid, saved.uuid);
        if saved.state.reservations.persists() {
            Arc::make_mut(&mut self.in_force)
                .namespaces
                .insert(key, Arc::new(saved.state));
        }
    }
}

impl ReservationState {
    /// The number of registrants with that NQN.
    fn registrants_of(&self, nqn: &Nqn) -> usize {
        self.names.values().filter(|name| *name == nqn).count()
    }

    /// The state after `host` has changed the reservations to `next`.
    fn after(&self, next: &Reservations, host: Option<(HostId, Nqn)>) -> Self {
        let mut names = self.names.clone();
        names.extend(host);
        let registrant = |host: HostId| Registrant {
            host,
            nqn: names.get(&host).copied(),
        };
        let is_gone = |host: &HostId| !next.is_registrant(host);
        let gone = self.reservations.registrants().map(|(host, _)| *host);
        let gone = gone.filter(|one| is_gone(one) && Some(*one) != host.map(|(id, _)| id));
        let preempted: Vec<_> = gone.map(registrant).collect();
        let preemption = match host {
            Some((by, _)) if !preempted.is_empty() => Some(Preemption {
                generation: next.generation(),
                by: registrant(by),
                preempted,
            }),
            _ => self.preemption.clone(),
        };
        names.retain(|host, _| next.is_registrant(host));
        Self {
            reservations: next.clone(),
            names,
            preemption,
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_target_reservations::Rules;
    use nvmeof_wire::reservation::{PersistChange, Register, RegisterAction};

    use super::*;

    const HOST: HostId = [1; 16];
    const OTHER: HostId = [2; 16];

    fn namespace(nsid: u32) -> Namespace {
        let model = crate::testing::target().model();
        let mut namespace = model.subsystems()[0].namespaces()[0].clone();
        namespace.nsid = nsid;
        namespace
    }

    fn command() -> Register {
        Register {
            nsid: 1,
            action: RegisterAction::REGISTER,
            ignores_key: false,
            persist: PersistChange::SET,
        }
    }

    fn register(table: &mut ReservationTable, host: HostId, key: u64) -> Result<Granted, Refused> {
        let command = command();
        let rules = Rules::default();
        let nqn = Nqn::new("nqn.2026-11.org.example:host").unwrap();
        table.change(&namespace(1), (host, nqn), |its| {
            its.register(host, &command, (0, key), &rules)
        })
    }

    fn registrants(table: &ReservationTable) -> Vec<HostId> {
        let its = table.in_force().of(&namespace(1));
        let all = its
            .into_iter()
            .flat_map(|its| its.registrants().map(|(host, _)| *host));
        all.collect()
    }

    fn end(table: &mut ReservationTable, result: &io::Result<()>) {
        table.kept(1, result).answer(result);
    }

    fn failed() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn change_is_in_force_when_it_has_been_saved() {
        let mut table = ReservationTable::default();
        let granted = register(&mut table, HOST, 1).unwrap();
        assert!(registrants(&table).is_empty());
        let saved = table.begin_write(1);
        assert_eq!((saved.len(), saved[0].nsid), (1, 1));
        assert!(!granted.pending.is_complete());
        let ended = table.kept(1, &Ok(()));
        // The views of hosts are renewed in between.
        assert_eq!(registrants(&table), [HOST]);
        assert!(!granted.pending.is_complete());
        ended.answer(&Ok(()));
        assert!(granted.pending.outcome().unwrap().is_ok());
        let mut restored = ReservationTable::default();
        for one in saved {
            restored.restore(one);
        }
        assert_eq!(registrants(&restored), [HOST]);
    }

    /// The later one is computed from the earlier one, which was not saved.
    #[test]
    fn failed_save_fails_the_requests_that_depend_on_it() {
        let mut table = ReservationTable::default();
        let first = register(&mut table, HOST, 1).unwrap();
        let _ = table.begin_write(1);
        let second = register(&mut table, OTHER, 2).unwrap();
        let conflict = register(&mut table, HOST, 3);
        assert_eq!(conflict.unwrap_err(), Refused::Conflict);
        end(&mut table, &failed());
        for granted in [first, second] {
            assert!(granted.pending.outcome().unwrap().is_err());
        }
        assert!(registrants(&table).is_empty());
        assert_eq!(table.begin_write(1), []);
        // Another key: nothing is left of the former one.
        let third = register(&mut table, HOST, 3).unwrap();
        let _ = table.begin_write(1);
        end(&mut table, &Ok(()));
        assert!(third.pending.outcome().unwrap().is_ok());
        assert_eq!(registrants(&table), [HOST]);
    }

    /// Also those of an administrator, and of features.
    #[test]
    fn failed_save_fails_all_changes_of_the_next_one() {
        let mut table = ReservationTable::default();
        let first = register(&mut table, HOST, 1).unwrap();
        let _ = table.begin_write(1);
        let cleared = table.clear(1).unwrap();
        let persists = table.set_persistence(&namespace(1), true).unwrap();
        let other = table.set_persistence(&namespace(2), true).unwrap();
        end(&mut table, &failed());
        for pending in [first.pending, cleared, persists.pending] {
            assert!(pending.outcome().unwrap().is_err());
        }
        assert_eq!(table.begin_write(1), []);
        end(&mut table, &Ok(()));
        // Those of another namespace do not depend on it.
        assert!(!other.pending.is_complete());
        assert_eq!(table.begin_write(2).len(), 1);
        table.kept(2, &Ok(())).answer(&Ok(()));
        assert!(other.pending.outcome().unwrap().is_ok());
        assert!(table.in_force().of(&namespace(2)).unwrap().persists());
    }

    /// One host must not take all of `limits.registrants`.
    #[test]
    fn nqn_has_a_limited_number_of_registrants() {
        let mut table = ReservationTable::default();
        for host in 1..=u8::try_from(MOST_OF_NQN).unwrap() {
            register(&mut table, [host; 16], 1).unwrap();
        }
        let refused = register(&mut table, [99; 16], 1).unwrap_err();
        assert_eq!(refused, Refused::Full);
        // Those that it has may be registered again, and another NQN has its own.
        register(&mut table, HOST, 1).unwrap();
        let other = Nqn::new("nqn.2026-11.org.example:other").unwrap();
        let command = command();
        let granted = table.change(&namespace(1), ([99; 16], other), |its| {
            its.register([99; 16], &command, (0, 1), &Rules::default())
        });
        granted.unwrap();
        // It does not free those of the first one by using their identifiers.
        for host in 1..MOST_OF_NQN {
            let host = [u8::try_from(host).unwrap(); 16];
            let again = table.change(&namespace(1), (host, other), |its| {
                its.register(host, &command, (0, 1), &Rules::default())
            });
            again.unwrap();
        }
        let last = [u8::try_from(MOST_OF_NQN).unwrap(); 16];
        let refused = table.change(&namespace(1), (last, other), |its| {
            its.register(last, &command, (0, 1), &Rules::default())
        });
        assert_eq!(refused.unwrap_err(), Refused::Full);
    }

    /// The subsystem is removed meanwhile: what was reported must not be another thing than what
    /// is saved.
    #[test]
    fn requests_of_a_retired_table_end_with_their_saves() {
        let mut table = ReservationTable::default();
        let _ = register(&mut table, HOST, 1).unwrap();
        let _ = table.begin_write(1);
        end(&mut table, &Ok(()));
        let cleared = table.clear(1).unwrap();
        let _ = table.begin_write(1);
        let registered = register(&mut table, OTHER, 2).unwrap();
        let mut waiting = table.retire();
        assert!(!cleared.is_complete() && !registered.pending.is_complete());
        end(&mut waiting, &Ok(()));
        assert!(cleared.outcome().unwrap().is_ok() && registrants(&waiting).is_empty());
        assert_eq!(waiting.begin_write(1).len(), 1);
        end(&mut waiting, &failed());
        assert!(registered.pending.outcome().unwrap().is_err());
        // Controllers that are still there.
        assert_eq!(registrants(&table), [HOST]);
    }

    #[test]
    fn change_of_nothing_needs_no_save() {
        let mut table = ReservationTable::default();
        let same = table.set_persistence(&namespace(1), false).unwrap();
        assert!(same.pending.outcome().unwrap().is_ok());
        let first = table.set_persistence(&namespace(1), true).unwrap();
        let again = table.set_persistence(&namespace(1), true).unwrap();
        assert!(!first.pending.is_complete() && !again.pending.is_complete());
    }

    #[test]
    fn requests_during_a_save_belong_to_the_next_one() {
        let mut table = ReservationTable::default();
        let first = register(&mut table, HOST, 1).unwrap();
        let _ = table.begin_write(1);
        let second = register(&mut table, OTHER, 2).unwrap();
        end(&mut table, &Ok(()));
        assert!(first.pending.is_complete() && !second.pending.is_complete());
        assert_eq!(registrants(&table), [HOST]);
        assert_eq!(
            table.begin_write(1)[0]
                .state
                .reservations
                .registrants()
                .len(),
            2
        );
        end(&mut table, &failed());
        assert!(second.pending.outcome().unwrap().is_err());
        assert_eq!(registrants(&table), [HOST]);
    }
}
