//! What hosts set of namespaces, across restarts: write protection and reservations. An
//! administrator changes the state file, and hosts change the records.
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
//!
//! | backing store | place of the record | it is read |
//! | --- | --- | --- |
//! | RBD image | RADOS, in the pool of the image | when the image is open, each time |
//! | any other | the folder beside the state file | once |
//!
//! An image may be served by another gateway in between, which changes its record. What is read
//! then replaces what this target knew. Each place has a lock of its own, so that an unresponsive
//! cluster delays no record of the folder.

mod admission;
mod encoding;
mod keeper;
mod legacy;
mod overdue;
mod rados;
mod record;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use nvmeof_atomic_file::with_ending;
use nvmeof_backend::Spec;
use nvmeof_target_core::{ReservationState, SavedSettings, Target};
use nvmeof_wire::Nqn;

pub(crate) use admission::{Admission, Former};
use encoding::Record;
pub(crate) use keeper::{Keeper, KeeperHandle};
use keeper::{Retried, Write};
use overdue::Overdue;
use rados::LIMIT;
use record::NamespaceRecord;
use store::{Folder, StateError, StateStore};

/// The records of all namespaces.
pub(crate) struct Records {
    /// The folder beside the state file; `None` without one.
    folder: Option<Home>,
    folder_name: String,
    folder_overdue: Arc<Overdue>,
    /// How long an operation in RADOS may take.
    limit: Duration,
    /// Locked briefly. It ranks after the lock of a home, and before those of the target.
    known: Mutex<Known>,
    /// Of each client and object. Locked briefly.
    overdue: Mutex<BTreeMap<String, Weak<Overdue>>>,
}

/// A place with records, locked while one of them is read or written.
type Home = Arc<Mutex<dyn StateStore>>;

#[derive(Default)]
struct Known {
    /// As they are stored, of namespaces that were opened.
    records: BTreeMap<Place, Arc<Stored>>,
    /// Why others could not be read at the last attempt.
    unreadable: BTreeMap<Place, String>,
    /// Restored in the target as soon as there is one.
    unrestored: BTreeMap<Place, SavedSettings>,
    /// The one that was written again last.
    retried: Option<Place>,
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
    at: At,
    version: u64,
    /// As they were read or written last.
    bytes: Vec<u8>,
    /// What is in force.
    record: NamespaceRecord,
    /// Why another one may be stored.
    differs: Option<Differs>,
}

/// Where a record is.
#[derive(Clone)]
struct At {
    home: Home,
    /// For messages, and to compare.
    place: String,
    /// What an administrator does to remove it.
    removal: String,
    /// Identity of the claim of the image; `None` if it is in the folder.
    image: Option<u64>,
    /// Whether it cannot be changed: the image is read-only, thus it has no lock.
    is_readonly: bool,
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

/// A record that cannot be read. Displays as cause and remedy.
#[derive(Debug, thiserror::Error)]
#[error("its write protection and reservations are unknown: {error}{remedy}")]
pub(crate) struct Unreadable {
    #[source]
    error: StateError,
    remedy: String,
}

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

fn unsettled(why: &str, is_in_folder: bool) -> String {
    let remedy = match is_in_folder {
        true => "make the folder writable, it is retried",
        false => "it is retried",
    };
    format!(
        "a change could not be saved, nor its record restored: {why}; a restart of the target may \
         take this change, although its host was told that it failed; {remedy}"
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

/// Whether the record of a namespace on this backing store is in RADOS.
fn is_image(spec: &Spec) -> bool {
    matches!(spec, Spec::Rbd { .. })
}

/// Locks a home.
fn locked(home: &Home) -> MutexGuard<'_, dyn StateStore + 'static> {
    // A panic of a holder leaves nothing inconsistent.
    home.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Unreadable {
    fn of(error: StateError, store: &dyn StateStore, name: &str) -> Self {
        let remedy = match &error {
            // They have their remedy, or the target retries.
            StateError::Waiting { .. } | StateError::Lost { .. } | StateError::Differs { .. } => {
                String::new()
            }
            StateError::Changed { .. } | StateError::Damaged { .. } | StateError::System(_) => {
                format!(
                    "; {}, which removes all write protection and reservations of the namespace, \
                     or repair it (an older copy may permit hosts that were fenced since)",
                    store.removal(name)
                )
            }
        };
        Self { error, remedy }
    }

    fn waiting(place: String, why: String) -> Self {
        let (error, remedy) = (StateError::Waiting { place, why }, String::new());
        Self { error, remedy }
    }
}

impl Default for Records {
    /// Without a folder.
    fn default() -> Self {
        Self::of(None)
    }
}

impl Records {
    /// The records of namespaces. Those of files are beside the state file. The caller has locked
    /// it, or only reads.
    pub(crate) fn beside(state: Option<&Path>) -> Self {
        Self::of(state.map(|state| home(Folder::at(path_beside(state)))))
    }

    fn of(folder: Option<Home>) -> Self {
        let folder_name = folder.as_ref().map(|it| locked(it).place(""));
        Self {
            folder,
            folder_name: folder_name.unwrap_or_default(),
            folder_overdue: Arc::default(),
            limit: LIMIT,
            known: Mutex::default(),
            overdue: Mutex::default(),
        }
    }

    /// Removes the records of namespace `nsid`, or of all namespaces of the subsystem, which were
    /// not served since the start. The save of the others removes theirs.
    ///
    /// A record in RADOS of an image that is not open stays: its place is not known.
    ///
    /// # Errors
    /// [`Unreadable`]: one cannot be read or removed.
    pub(crate) fn remove_unread(
        &self,
        subsystem: &Nqn,
        nsid: Option<u32>,
    ) -> Result<(), Unreadable> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let mut store = locked(folder);
        let prefix = prefix_of(subsystem);
        let names = store.names();
        for name in names.map_err(|error| Unreadable::of(error, &*store, ""))? {
            let of = name
                .strip_prefix(&prefix)
                .and_then(|rest| rest.parse().ok());
            let Some(of) = of.filter(|of| nsid.is_none_or(|nsid| nsid == *of)) else {
                continue;
            };
            let known = self.known().records.get(&(*subsystem, of)).cloned();
            if known.is_none_or(|stored| stored.at.image.is_some()) {
                let parsed = Parsed::read(&mut *store, &(*subsystem, of));
                let removed = parsed.and_then(|it| store.replace(&name, it.version, b""));
                removed.map_err(|error| Unreadable::of(error, &*store, &name))?;
            }
        }
        Ok(())
    }

    /// Restores in `target` what was read so far, and what is read from now on.
    pub(crate) fn restore_in(&self, target: &Target) {
        let mut known = self.known();
        for ((subsystem, _), settings) in std::mem::take(&mut known.unrestored) {
            target.restore(&subsystem, settings);
        }
        known
            .records
            .values()
            .for_each(|stored| stored.record.log_restored());
        known.target = Some(target.clone());
    }

    /// Lets hosts change what is kept here. `None` if nothing is kept: there is neither a state
    /// file nor a writable image among `specs`.
    pub(crate) fn keeper<'a>(
        self: &Arc<Self>,
        target: &Target,
        mut specs: impl Iterator<Item = &'a Spec>,
    ) -> Option<Keeper<Arc<Self>>> {
        let is_kept = |spec: &Spec| is_image(spec) && !spec.readonly();
        let keeps = self.folder.is_some() || specs.any(is_kept);
        keeps.then(|| Keeper::of(Arc::clone(self), target))
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
            Some((place, unsettled(why, stored.at.image.is_none())))
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

impl Known {
    /// Replaces what is known of a record, unless its namespace was opened from another place
    /// meanwhile.
    fn update(&mut self, place: Place, stored: Stored) {
        if let Some(known) = self.records.get_mut(&place)
            && Arc::ptr_eq(&known.at.home, &stored.at.home)
        {
            *known = Arc::new(stored);
        }
    }

    /// A record that could not be restored: another one each time.
    fn next_unsure(&mut self) -> Option<(Place, Arc<Stored>)> {
        let is_unsure = |stored: &Stored| {
            matches!(
                stored.differs,
                Some(Differs::Writing | Differs::WriteFailed(_))
            )
        };
        let mut unsure = self.records.iter().filter(|(_, stored)| is_unsure(stored));
        let first = unsure.clone().next();
        let next = unsure.find(|(place, _)| self.retried.is_none_or(|last| **place > last));
        let (place, stored) = next
            .or(first)
            .map(|(place, stored)| (*place, Arc::clone(stored)))?;
        self.retried = Some(place);
        Some((place, stored))
    }
}

impl Write for Arc<Records> {
    fn write(&mut self, subsystem: &Nqn, nsid: u32, settings: &SavedSettings) -> io::Result<()> {
        let place = (*subsystem, nsid);
        // Hosts change namespaces that were opened.
        let before = self.known().records.get(&place).cloned();
        let before = before.ok_or_else(|| match &self.folder {
            Some(_) => io::Error::other("the record was not read"),
            None => io::Error::other(
                "nothing is saved of this namespace without a state file: set control.state",
            ),
        })?;
        if before.at.is_readonly {
            return Err(io::Error::other(
                "the image is served read-only, so that its record cannot be changed; serve it \
                 writable (readonly = false)",
            ));
        }
        let mut store = locked(&before.at.home);
        store.begin();
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
        let differed = before.differs.replace(Differs::Writing);
        self.known().update(place, before.clone());
        let put = stored.put(&mut *store, &place);
        let stored = match &put {
            Ok(()) => {
                stored.record.log_changes(&before.record);
                stored
            }
            Err(error) => {
                tracing::error!(%subsystem, nsid, "cannot save what a host set: {error}");
                // Hosts learn that nothing changed. The new record may be in place all the same.
                before.revert(&mut *store, &place, error, differed);
                before
            }
        };
        self.known().update(place, stored);
        put.map_err(io::Error::other)
    }

    fn retry(&mut self) -> Retried {
        let Some((place, stored)) = self.known().next_unsure() else {
            return Retried::All;
        };
        let mut stored = Stored::clone(&stored);
        let home = Arc::clone(&stored.at.home);
        let mut store = locked(&home);
        store.begin();
        let put = stored.put(&mut *store, &place);
        drop(store);
        let (subsystem, nsid) = place;
        let retried = match put {
            Ok(()) => {
                tracing::info!(%subsystem, nsid, "wrote the record that could not be restored");
                Retried::One
            }
            // It is read when the image is opened again.
            Err(error) if stored.is_of_another_writer(&error) => {
                stored.differs = None;
                Retried::One
            }
            Err(error) => {
                stored.differs = Some(Differs::WriteFailed(error.to_string()));
                Retried::Failed
            }
        };
        self.known().update(place, stored);
        retried
    }
}

/// A record as it was read.
struct Parsed {
    version: u64,
    bytes: Vec<u8>,
    record: NamespaceRecord,
    settings: SavedSettings,
}

impl Parsed {
    fn read(store: &mut dyn StateStore, place: &Place) -> Result<Self, StateError> {
        let name = name_of(&place.0, place.1);
        let Record { version, bytes } = store.read(&name)?;
        Self::of(version, bytes, place, &store.place(&name))
    }

    /// The record that is stored `at` a place as these bytes; none if there are none.
    fn of(
        version: u64,
        bytes: Vec<u8>,
        (subsystem, nsid): &Place,
        at: &str,
    ) -> Result<Self, StateError> {
        let (record, settings) = match bytes.as_slice() {
            [] => {
                let settings = SavedSettings::default();
                let now = SystemTime::UNIX_EPOCH;
                let record = NamespaceRecord::of((subsystem, *nsid), &settings, None, now);
                (record, settings)
            }
            bytes => {
                let parsed = NamespaceRecord::parse(bytes, subsystem, *nsid);
                parsed.map_err(|why| StateError::Damaged {
                    place: at.to_owned(),
                    why,
                })?
            }
        };
        Ok(Self {
            version,
            bytes,
            record,
            settings,
        })
    }
}

impl Stored {
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
        (self.bytes, self.differs) = (bytes, None);
        Ok(())
    }

    /// Stores it again, after another one was not written because of `error`. Before that, it
    /// `differed`.
    fn revert(
        &mut self,
        store: &mut dyn StateStore,
        place: &Place,
        error: &StateError,
        differed: Option<Differs>,
    ) {
        match error {
            // It is read when the image is opened again.
            error if self.is_of_another_writer(error) => self.differs = differed,
            _ => {
                let put = self.put(store, place);
                match put {
                    Err(error) if self.is_of_another_writer(&error) => self.differs = differed,
                    Err(error) => self.differs = Some(Differs::WriteFailed(error.to_string())),
                    Ok(()) => {}
                }
            }
        }
    }

    /// Whether what is stored after this error is of another writer.
    fn is_of_another_writer(&self, error: &StateError) -> bool {
        match error {
            StateError::Lost { .. } => true,
            StateError::Changed { .. } => self.at.image.is_some(),
            _ => false,
        }
    }
}

/// The namespace of a record; `None` if it is never served.
fn place(subsystem: &str, nsid: u32) -> Option<Place> {
    Some((Nqn::new(subsystem).ok()?, nsid))
}

fn home(store: impl StateStore + 'static) -> Home {
    Arc::new(Mutex::new(store))
}

#[cfg(test)]
mod tests;
