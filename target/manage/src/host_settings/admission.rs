//! How a namespace gets the settings of its record, in two steps:
//!
//! ```text
//!   read ── changes nothing ──► Admission ── adopt ──► in force ── served ──► remove_former
//! ```
//! A plan, a check of a configuration, a change that fails and an attempt that comes too late only
//! read. A change adopts under its lock, immediately before it serves the namespace: the namespace
//! is not served then, so that no command depends on what is replaced.
//!
//! The record of a namespace belongs in one place. If another place has one, or what is in force
//! was read in another one:
//!
//! | in its place | in the other | result |
//! | --- | --- | --- |
//! | nothing | a record | it is copied |
//! | a record | the same | it stays |
//! | a record | another one | the namespace waits: neither is known to be the newer one |
//!
//! One in the folder is removed once the namespace is served from an image. A read-only image has
//! no lock, so that its record is neither copied nor changed.

use std::sync::{Arc, PoisonError, Weak};
use std::time::SystemTime;

use nvmeof_backend::{Claim, ImageRecords, RecordsError};
use nvmeof_target_config::ConfiguredStore;
use nvmeof_target_core::SavedSettings;
use nvmeof_wire::Nqn;

use super::overdue::Overdue;
use super::rados::{LIMIT, Rados, Values};
use super::record::NamespaceRecord;
use super::store::{StateError, StateStore};
use super::{
    At, Differs, Home, Parsed, Place, Records, Stored, Unreadable, home, is_image, locked, name_of,
    place,
};

/// What is to be in force of a namespace, and where its record is.
#[must_use]
pub(crate) struct Admission {
    place: Place,
    at: At,
    /// What was in force when it was read.
    before: Option<Arc<Stored>>,
    /// With version 0 if it is not stored there.
    parsed: Parsed,
    /// The other place, if it is stored only there.
    copied_from: Option<At>,
    /// Whether the folder has it as well.
    is_in_folder: bool,
    /// Whether another gateway may have served the namespace until now: then what does not persist
    /// through a loss of power is in force. Otherwise it has ended with the start of this process.
    pub(super) is_takeover: bool,
}

/// Namespaces whose former records in the folder are to be removed once they are served.
#[derive(Default)]
#[must_use]
pub(crate) struct Former(Vec<Place>);

impl Former {
    pub(crate) fn append(&mut self, Self(mut more): Self) {
        self.0.append(&mut more);
    }
}

impl Records {
    /// Reads the record of a namespace that is about to be served. `claim` is of its backing store,
    /// if that is open. `None` if the record is in force already, if there is no place for it, or
    /// if it is that of an image that is not open. Changes neither what is in force nor what is
    /// stored.
    ///
    /// # Errors
    /// [`Unreadable`]: then the namespace must not be served.
    pub(crate) fn read(
        &self,
        configured: &ConfiguredStore,
        claim: Option<&Claim>,
    ) -> Result<Option<Admission>, Unreadable> {
        let ConfiguredStore {
            nqn, nsid, spec, ..
        } = configured;
        let Some(place) = place(nqn, *nsid) else {
            return Ok(None);
        };
        let image = claim.and_then(|claim| Some((claim.identity(), claim.records()?)));
        let mut read = match image {
            Some((identity, values)) => self.read_image(place, identity, Arc::new(values))?,
            None if is_image(spec) => None,
            None => self.read_folder(place)?,
        };
        if let Some(admission) = &mut read {
            admission.is_takeover = configured.group.is_some();
        }
        Ok(read)
    }

    /// The same as [`read`](Self::read) for an image whose claim has that identity.
    pub(super) fn read_image(
        &self,
        place: Place,
        identity: u64,
        values: Arc<dyn Values>,
    ) -> Result<Option<Admission>, Unreadable> {
        let before = self.known().records.get(&place).cloned();
        let is_read = |it: &Arc<Stored>| it.at.image == Some(identity);
        if before.as_ref().is_some_and(is_read) {
            return Ok(None);
        }
        let is_readonly = values.is_readonly();
        let overdue = self.overdue_of(&*values);
        let home = home(Rados::of(values, self.limit, overdue));
        let read = self.read_at(&home, place).and_then(|(mut at, parsed)| {
            (at.image, at.is_readonly) = (Some(identity), is_readonly);
            let mut admission = Admission::of(place, at, parsed, before);
            if let Some(folder) = &self.folder {
                let (former, found) = self.read_at(folder, place)?;
                admission.is_in_folder = found.version != 0;
                admission.compare(&former, &found.bytes, &found.bytes)?;
            }
            admission.compare_in_force()?;
            Ok(admission)
        });
        self.noted(place, read)
    }

    /// The same for a namespace whose record is in the folder.
    pub(super) fn read_folder(&self, place: Place) -> Result<Option<Admission>, Unreadable> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let before = self.known().records.get(&place).cloned();
        if before.as_ref().is_some_and(|it| it.at.image.is_none()) {
            return Ok(None);
        }
        let read = self.read_at(folder, place).and_then(|(at, parsed)| {
            let mut admission = Admission::of(place, at, parsed, before);
            admission.compare_in_force()?;
            Ok(admission)
        });
        self.noted(place, read)
    }

    /// Notes for [`unknown`](Self::unknown) whether the record can be read.
    fn noted(
        &self,
        place: Place,
        read: Result<Admission, Unreadable>,
    ) -> Result<Option<Admission>, Unreadable> {
        let mut known = self.known();
        match &read {
            Ok(_) => drop(known.unreadable.remove(&place)),
            Err(error) => drop(known.unreadable.insert(place, error.to_string())),
        }
        read.map(Some)
    }

    /// Reads the record of a namespace in `home`.
    fn read_at(&self, home: &Home, place: Place) -> Result<(At, Parsed), Unreadable> {
        let name = name_of(&place.0, place.1);
        let of = Arc::clone(home);
        self.within_limit(home, move |store| {
            let parsed = Parsed::read(store, &place);
            let parsed = parsed.map_err(|error| Unreadable::of(error, store, &name))?;
            let at = At {
                home: of,
                place: store.place(&name),
                removal: store.removal(&name),
                image: None,
                is_readonly: false,
            };
            Ok((at, parsed))
        })
    }

    /// The result of `act` with `home`. Nobody waits for an unresponsive folder; operations in
    /// RADOS have a limit themselves.
    fn within_limit<T: Send + 'static>(
        &self,
        home: &Home,
        act: impl FnOnce(&mut dyn StateStore) -> Result<T, Unreadable> + Send + 'static,
    ) -> Result<T, Unreadable> {
        let of = Arc::clone(home);
        let act = move || {
            let mut store = locked(&of);
            store.begin();
            act(&mut *store)
        };
        if !self.folder.as_ref().is_some_and(|it| Arc::ptr_eq(it, home)) {
            return act();
        }
        self.folder_overdue.ask(LIMIT, act).unwrap_or_else(|| {
            let limit = LIMIT.as_secs();
            let why = format!("no response from its file system within {limit} s; it is retried");
            Err(Unreadable::waiting(self.folder_name.clone(), why))
        })
    }

    /// What images with the same client and object share.
    fn overdue_of(&self, values: &dyn Values) -> Arc<Overdue> {
        let mut all = self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, overdue| overdue.strong_count() > 0);
        let key = format!("{} {}", values.client(), values.place());
        if let Some(found) = all.get(&key).and_then(Weak::upgrade) {
            return found;
        }
        let made = Arc::default();
        all.insert(key, Arc::downgrade(&made));
        made
    }

    /// Puts in force what was read of namespaces that are not served now, and copies their
    /// records to their places. What was read replaces what this process knew: another gateway may
    /// have served an image meanwhile. Call it under the lock of the change that serves them,
    /// before that; then poll all reactors.
    ///
    /// # Errors
    /// [`Unreadable`]: then none of them must be served. It may be retried, after they are read
    /// again.
    pub(crate) fn adopt(
        &self,
        admissions: impl IntoIterator<Item = Admission>,
    ) -> Result<Former, Unreadable> {
        let mut admissions: Vec<_> = admissions.into_iter().collect();
        for admission in &mut admissions {
            self.copy(admission)?;
        }
        let mut former = Former(Vec::new());
        for admission in admissions {
            let is_moved = admission.is_in_folder && !admission.at.is_readonly;
            former.0.extend(is_moved.then_some(admission.place));
            self.put_in_force(admission)?;
        }
        Ok(former)
    }

    /// Stores a record in its place if it is only in another one.
    fn copy(&self, admission: &mut Admission) -> Result<(), Unreadable> {
        let Admission {
            place: (subsystem, nsid),
            at,
            parsed,
            copied_from: Some(from),
            ..
        } = admission
        else {
            return Ok(());
        };
        if at.is_readonly {
            return Ok(());
        }
        let (name, bytes) = (name_of(subsystem, *nsid), parsed.bytes.clone());
        parsed.version = self.within_limit(&at.home, move |store| {
            let copied = store.replace(&name, 0, &bytes).and_then(|version| {
                // Before the former one is removed.
                match store.read(&name)? {
                    read if (read.version, &read.bytes) == (version, &bytes) => Ok(version),
                    _ => Err(StateError::Damaged {
                        place: store.place(&name),
                        why: "it is not as it was written".to_owned(),
                    }),
                }
            });
            copied.map_err(|error| Unreadable::of(error, store, &name))
        })?;
        let to = &at.place;
        tracing::info!(%subsystem, nsid, "record copied from {} to {to}", from.place);
        Ok(())
    }

    /// Removes the records in the folder whose namespaces are served from elsewhere now. A record
    /// that cannot be removed makes its namespace wait if it differs the next time.
    pub(crate) fn remove_former(&self, Former(places): Former) {
        let Some(folder) = self.folder.as_ref().filter(|_| !places.is_empty()) else {
            return;
        };
        for (subsystem, nsid) in places {
            let name = name_of(&subsystem, nsid);
            let removed = self.within_limit(folder, move |store| {
                let removed = store.overwrite(&name, b"");
                removed.map_err(|error| Unreadable::of(error, store, &name))?;
                Ok(store.place(&name))
            });
            match removed {
                Ok(from) => tracing::info!(%subsystem, nsid, "{from}: moved to the cluster"),
                Err(error) => tracing::warn!(
                    %subsystem, nsid,
                    "record not removed after it was copied to the cluster: {error}"
                ),
            }
        }
    }

    fn put_in_force(&self, admission: Admission) -> Result<(), Unreadable> {
        let mut known = self.known();
        let current = known.records.get(&admission.place);
        let same = match (current, &admission.before) {
            (None, None) => true,
            (Some(current), Some(before)) => Arc::ptr_eq(current, before),
            _ => false,
        };
        if !same {
            return Err(admission.at.waiting("it has changed while it was read"));
        }
        let Admission {
            place: (subsystem, nsid),
            at,
            before,
            parsed,
            is_takeover,
            ..
        } = admission;
        // Nobody has changed it since. What does not persist through a loss of power is still in
        // force: to lose it would permit hosts that are fenced.
        if let Some(before) = before.as_ref().filter(|it| it.is_stored_as(&at, &parsed)) {
            let stored = Stored {
                at,
                ..Stored::clone(before)
            };
            known.records.insert((subsystem, nsid), Arc::new(stored));
            return Ok(());
        }
        let is_start = before.is_none() && !is_takeover;
        let (stored, settings) = Stored::of(at, parsed, (&subsystem, nsid), is_start);
        match &known.target {
            None => drop(known.unrestored.insert((subsystem, nsid), settings)),
            Some(target) => {
                let replaced = target.replace_settings(&subsystem, nsid, settings);
                replaced.map_err(|why| stored.at.waiting(&why.to_string()))?;
                stored.record.log_restored();
            }
        }
        known.records.insert((subsystem, nsid), Arc::new(stored));
        Ok(())
    }
}

impl Admission {
    fn of(place: Place, at: At, parsed: Parsed, before: Option<Arc<Stored>>) -> Self {
        Self {
            place,
            at,
            before,
            parsed,
            copied_from: None,
            is_in_folder: false,
            is_takeover: false,
        }
    }

    /// Compares it with a record elsewhere, whose bytes are `stored`, and of which `in_force` is in
    /// force.
    fn compare(&mut self, other: &At, stored: &[u8], in_force: &[u8]) -> Result<(), Unreadable> {
        let own = self.parsed.bytes.as_slice();
        if in_force.is_empty() || [stored, in_force].contains(&own) {
            return Ok(());
        }
        if !own.is_empty() {
            let own = self.copied_from.as_ref().unwrap_or(&self.at);
            let error = StateError::Differs {
                place: own.place.clone(),
                other: other.place.clone(),
            };
            let remedy = format!(
                "; remove the older one of them: for the first, {}; for the second, {}",
                own.removal, other.removal
            );
            return Err(Unreadable { error, remedy });
        }
        let copied = Parsed::of(0, in_force.to_vec(), &self.place, &other.place);
        self.parsed = copied.map_err(|error| {
            let remedy = String::new();
            Unreadable { error, remedy }
        })?;
        self.copied_from = Some(other.clone());
        Ok(())
    }

    /// Compares it with what is in force, if that was read elsewhere.
    fn compare_in_force(&mut self) -> Result<(), Unreadable> {
        let elsewhere = |it: &Arc<Stored>| it.at.place != self.at.place;
        let Some(before) = self.before.clone().filter(elsewhere) else {
            return Ok(());
        };
        if let Some(Differs::Writing | Differs::WriteFailed(_)) = before.differs {
            return Err(before.at.waiting("a change of it is not saved yet"));
        }
        // The folder was compared.
        if before.at.image.is_none() && self.is_in_folder {
            return Ok(());
        }
        let in_force = before.record.bytes();
        let in_force = in_force.map_err(|error| before.at.waiting(&error.to_string()))?;
        let mut other = before.at.clone();
        other.removal += " and restart the target";
        self.compare(&other, &before.bytes, &in_force)
    }
}

impl At {
    fn waiting(&self, why: &str) -> Unreadable {
        Unreadable::waiting(self.place.clone(), format!("{why}; it is retried"))
    }
}

impl Stored {
    /// The record that was read, and what is to be in force.
    fn of(
        at: At,
        parsed: Parsed,
        (subsystem, nsid): (&Nqn, u32),
        is_start: bool,
    ) -> (Self, SavedSettings) {
        let Parsed {
            version,
            bytes,
            record,
            mut settings,
        } = parsed;
        if is_start {
            let all = &mut settings.reservations;
            all.retain(|one| one.state.reservations.persists());
        }
        let now = SystemTime::now();
        let restored = NamespaceRecord::of((subsystem, nsid), &settings, Some(&record), now);
        let stored = Self {
            at,
            version,
            bytes,
            differs: (restored != record).then_some(Differs::Restarted),
            record: restored,
        };
        (stored, settings)
    }

    /// Whether what was read later in the same place is the same record.
    fn is_stored_as(&self, at: &At, read: &Parsed) -> bool {
        let is_sure = matches!(self.differs, None | Some(Differs::Restarted));
        let same = (self.version, &self.bytes) == (read.version, &read.bytes);
        self.at.place == at.place && is_sure && same
    }
}

/// The records of an image, through the client that has it open.
impl Values for ImageRecords {
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, RecordsError> {
        Self::get(self, key)
    }

    fn swap(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, RecordsError> {
        Self::swap(self, key, expected, new)
    }

    fn place(&self) -> String {
        self.to_string()
    }

    fn client(&self) -> String {
        Self::client(self).to_owned()
    }

    fn removal(&self, key: &str) -> String {
        Self::removal(self, key)
    }

    fn is_readonly(&self) -> bool {
        Self::is_readonly(self)
    }
}
