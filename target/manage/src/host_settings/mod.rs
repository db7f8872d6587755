//! What hosts set of namespaces, across restarts: write protection and reservations. An
//! administrator changes the state file, and hosts change the records beside it.
//!
//! ```text
//!   a namespace is opened ──► its record is read ──► restored ──► served
//!                                  └─ unreadable ──► it waits, and is retried
//!   a host changes something ──► its record is replaced ──► the host has its response
//! ```
//! There is one record for each namespace of a subsystem, so that a damaged one makes this
//! namespace wait, and no other. It decides also for a namespace that was not served for a while,
//! for example because its backing store was missing. It is removed when nothing is set any more,
//! or when an administrator removes the namespace or its subsystem by name. A configuration
//! without the namespace does not remove it.

mod keeper;
mod legacy;
mod record;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use nvmeof_atomic_file::with_ending;
use nvmeof_target_core::{ReservationState, SavedSettings, Target};
use nvmeof_wire::Nqn;

use keeper::Write;
pub(crate) use keeper::{Keeper, KeeperHandle};
use record::NamespaceRecord;
use store::{Folder, StateError, StateStore};

/// The records of all namespaces, or of none without a state file.
#[derive(Default)]
pub(crate) struct Records {
    /// Locked while a record is read or written.
    store: Mutex<Option<Box<dyn StateStore>>>,
    /// Locked briefly.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// As they are stored, of namespaces that were opened.
    records: BTreeMap<Place, Arc<Stored>>,
    /// Why others could not be read at the last attempt.
    unreadable: BTreeMap<Place, String>,
    /// Restored in the target as soon as there is one.
    unrestored: Vec<(Nqn, SavedSettings)>,
    target: Option<Target>,
}

/// The reservations of a namespace, as they are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceReservations {
    /// NQN of the subsystem.
    pub subsystem: Nqn,
    /// NSID of the namespace.
    pub nsid: u32,
    /// Its UUID: another namespace with the same NSID has reservations of its own.
    pub uuid: [u8; 16],
    /// Registrants and reservation.
    pub state: ReservationState,
    /// Since when the holder has the reservation.
    pub held_since: Option<SystemTime>,
    /// When the last preemption was.
    pub preempted_at: Option<SystemTime>,
}

/// The namespace of a record: NQN of its subsystem, and NSID.
type Place = (Nqn, u32);

/// A record as it is stored.
#[derive(Clone)]
struct Stored {
    version: u64,
    record: NamespaceRecord,
    /// Why another one may be stored.
    differs: Option<Differs>,
}

/// Why another record may be stored than the one that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Differs {
    /// What does not persist ended with a restart. The next change writes it.
    Restarted,
    /// It is being replaced. If that does not end, it is as with a failed write.
    Writing,
    /// A write failed, and so did writing the former one again. That is retried.
    WriteFailed(String),
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "its write protection and reservations are unknown: {0}; move this file away, which removes \
     all write protection and reservations of the namespace, or repair it (an older copy may \
     permit hosts that were fenced since)"
)]
pub(crate) struct Unreadable(#[from] StateError);

/// A namespace whose record cannot be read, or could not be restored after a failed write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownRecord {
    /// NQN of the subsystem.
    pub subsystem: Nqn,
    /// NSID of the namespace.
    pub nsid: u32,
    /// The cause and the remedy.
    pub why: String,
}

fn unsettled(why: &str) -> String {
    format!(
        "a change could not be saved, nor its record restored: {why}; a restart of the target may \
         take this change, although its host was told that it failed; make the folder writable, \
         it is retried"
    )
}

/// The folder of records beside the state file.
#[must_use]
pub fn path_beside(state: &Path) -> PathBuf {
    with_ending(state, ".namespaces")
}

/// Name of a record: readable, and another one for each namespace.
fn name_of(subsystem: &Nqn, nsid: u32) -> String {
    format!("{}{nsid}", prefix_of(subsystem))
}

/// What the names of the records of a subsystem begin with.
fn prefix_of(subsystem: &Nqn) -> String {
    /// The longest NQN and the rest are less than the 255 bytes that file systems permit.
    const MOST: usize = 150;
    let text = subsystem.as_str();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let plain = text.chars().map(|c| if is_plain(c) { c } else { '_' });
    let plain: String = plain.take(MOST).collect();
    format!("{plain}-{:08x}.", crc32c::crc32c(text.as_bytes()))
}

impl Records {
    /// The records beside the state file. The caller has locked it, or only reads.
    pub(crate) fn beside(state: Option<&Path>) -> Self {
        let folder = state.map(|state| Folder::at(path_beside(state)));
        Self::of(folder.map(|folder| Box::new(folder) as Box<dyn StateStore>))
    }

    fn of(store: Option<Box<dyn StateStore>>) -> Self {
        Self {
            store: Mutex::new(store),
            known: Mutex::default(),
        }
    }

    /// Reads the record of a namespace that is about to be served, and restores its settings.
    ///
    /// # Errors
    /// [`Unreadable`]: then the namespace must not be served.
    pub(crate) fn admit(&self, subsystem: &str, nsid: u32) -> Result<(), Unreadable> {
        // Otherwise it is never served.
        let Ok(subsystem) = Nqn::new(subsystem) else {
            return Ok(());
        };
        if self.known().records.contains_key(&(subsystem, nsid)) {
            return Ok(());
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = store.as_mut() else {
            return Ok(());
        };
        let read = Stored::read(&mut **store, &subsystem, nsid).map_err(Unreadable);
        let mut known = self.known();
        known.unreadable.remove(&(subsystem, nsid));
        if let Err(error) = &read {
            known
                .unreadable
                .insert((subsystem, nsid), error.to_string());
        }
        let (stored, settings) = read?;
        if known.records.contains_key(&(subsystem, nsid)) {
            return Ok(());
        }
        if known.target.is_some() {
            stored.record.log_restored();
        }
        known.records.insert((subsystem, nsid), Arc::new(stored));
        match &known.target {
            Some(target) => target.restore(&subsystem, settings),
            None => known.unrestored.push((subsystem, settings)),
        }
        Ok(())
    }

    /// Removes the records of namespace `nsid`, or of all namespaces of the subsystem, which were
    /// not served since the start. The save of the others removes theirs.
    ///
    /// # Errors
    /// [`Unreadable`]: one cannot be read or removed.
    pub(crate) fn remove_unread(
        &self,
        subsystem: &Nqn,
        nsid: Option<u32>,
    ) -> Result<(), Unreadable> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = store.as_mut() else {
            return Ok(());
        };
        let prefix = prefix_of(subsystem);
        for name in store.names().map_err(Unreadable)? {
            let of = name
                .strip_prefix(&prefix)
                .and_then(|rest| rest.parse().ok());
            let Some(of) = of.filter(|of| nsid.is_none_or(|nsid| nsid == *of)) else {
                continue;
            };
            if !self.known().records.contains_key(&(*subsystem, of)) {
                let (stored, _) = Stored::read(&mut **store, subsystem, of).map_err(Unreadable)?;
                let removed = store.replace(&name, stored.version, b"");
                removed.map_err(Unreadable)?;
            }
        }
        Ok(())
    }

    /// Restores in `target` what was read so far, and what is read from now on.
    pub(crate) fn restore_in(&self, target: &Target) {
        let mut known = self.known();
        for (subsystem, settings) in std::mem::take(&mut known.unrestored) {
            target.restore(&subsystem, settings);
        }
        known
            .records
            .values()
            .for_each(|stored| stored.record.log_restored());
        known.target = Some(target.clone());
    }

    /// Lets hosts change what is kept here. `None` if nothing is kept.
    pub(crate) fn keeper(self: &Arc<Self>, target: &Target) -> Option<Keeper<Arc<Self>>> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store
            .is_some()
            .then(|| Keeper::of(Arc::clone(self), target))
    }

    /// All reservations that are saved, by subsystem and NSID.
    pub(crate) fn reservations(&self) -> Vec<NamespaceReservations> {
        let records: Vec<_> = self.known().records.clone().into_iter().collect();
        let all = records
            .iter()
            .flat_map(|((subsystem, nsid), stored)| stored.record.reservations(*subsystem, *nsid));
        all.collect()
    }

    /// Records that cannot be read, of namespaces that wait for them, and records that could not
    /// be restored after a failed write.
    pub(crate) fn unknown(&self) -> Vec<UnknownRecord> {
        let known = self.known();
        let unreadable = known.unreadable.iter();
        let unreadable = unreadable.map(|(place, why)| (place, why.clone()));
        let unsettled = known.records.iter().filter_map(|(place, stored)| {
            let Some(Differs::WriteFailed(why)) = &stored.differs else {
                return None;
            };
            Some((place, unsettled(why)))
        });
        let all = unreadable.chain(unsettled);
        let all = all.map(|((subsystem, nsid), why)| UnknownRecord {
            subsystem: *subsystem,
            nsid: *nsid,
            why,
        });
        all.collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic of a holder leaves nothing inconsistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Arc<Records> {
    fn write(&mut self, subsystem: &Nqn, nsid: u32, settings: &SavedSettings) -> io::Result<()> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = store.as_mut() else {
            return Ok(());
        };
        let place = (*subsystem, nsid);
        // Hosts change namespaces that were opened.
        let before = self.known().records.get(&place).cloned();
        let before = before.ok_or_else(|| io::Error::other("the record was not read"))?;
        let (was, now) = (Some(&before.record), SystemTime::now());
        let record = NamespaceRecord::of((subsystem, nsid), settings, was, now);
        if record == before.record && before.differs.is_none() {
            return Ok(());
        }
        let mut stored = Stored {
            record,
            ..Stored::clone(&before)
        };
        // Unless this write ends.
        let mut before = Stored::clone(&before);
        before.differs = Some(Differs::Writing);
        self.known().records.insert(place, Arc::new(before.clone()));
        let put = stored.put(&mut **store, &place);
        let stored = match &put {
            Ok(()) => {
                stored.record.log_changes(&before.record);
                stored
            }
            Err(error) => {
                tracing::error!(%subsystem, nsid, "cannot save what a host set: {error}");
                // Hosts learn that nothing changed. The new record may be in place all the same.
                if let Err(error) = before.put(&mut **store, &place) {
                    before.differs = Some(Differs::WriteFailed(error.to_string()));
                }
                before
            }
        };
        self.known().records.insert(place, Arc::new(stored));
        put.map_err(io::Error::other)
    }

    fn retry(&mut self) -> bool {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(store) = store.as_mut() else {
            return false;
        };
        let mut records = self.known().records.clone();
        let is_unsure = |differs: &Differs| !matches!(differs, Differs::Restarted);
        records.retain(|_, stored| stored.differs.as_ref().is_some_and(is_unsure));
        let mut is_left = false;
        for (place, stored) in records {
            let mut stored = Stored::clone(&stored);
            match stored.put(&mut **store, &place) {
                Ok(()) => {
                    let (subsystem, nsid) = place;
                    tracing::info!(%subsystem, nsid, "wrote the record that could not be restored");
                }
                Err(error) => {
                    stored.differs = Some(Differs::WriteFailed(error.to_string()));
                    is_left = true;
                }
            }
            self.known().records.insert(place, Arc::new(stored));
        }
        is_left
    }
}

impl Stored {
    fn read(
        store: &mut dyn StateStore,
        subsystem: &Nqn,
        nsid: u32,
    ) -> Result<(Self, SavedSettings), StateError> {
        let name = name_of(subsystem, nsid);
        let found = store.read(&name)?;
        let (record, settings) = match found.version {
            0 => {
                let settings = SavedSettings::default();
                let now = SystemTime::UNIX_EPOCH;
                let record = NamespaceRecord::of((subsystem, nsid), &settings, None, now);
                (record, settings)
            }
            _ => {
                let parsed = NamespaceRecord::parse(&found.bytes, subsystem, nsid);
                let (record, mut settings) = parsed.map_err(|why| {
                    let place = store.place(&name);
                    StateError::Damaged { place, why }
                })?;
                // Others end with the loss of power that a restart is.
                let all = &mut settings.reservations;
                all.retain(|one| one.state.reservations.persists());
                (record, settings)
            }
        };
        let now = SystemTime::now();
        let restored = NamespaceRecord::of((subsystem, nsid), &settings, Some(&record), now);
        let stored = Self {
            version: found.version,
            differs: (restored != record).then_some(Differs::Restarted),
            record: restored,
        };
        Ok((stored, settings))
    }

    /// Stores it in the place of another one.
    fn put(
        &mut self,
        store: &mut dyn StateStore,
        (subsystem, nsid): &Place,
    ) -> Result<(), StateError> {
        let name = name_of(subsystem, *nsid);
        let bytes = self.record.bytes().map_err(io::Error::from)?;
        self.version = match &self.differs {
            Some(Differs::Writing | Differs::WriteFailed(_)) => store.overwrite(&name, &bytes)?,
            Some(Differs::Restarted) | None => store.replace(&name, self.version, &bytes)?,
        };
        self.differs = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
