//! Records of images: read each time an image is opened, because another gateway may have served
//! it, and moved from the folder of a target that kept all records there.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_backend::Claim;
use nvmeof_target_core::SavedSettings;

use super::rados::{LIMIT, Overdue, Rados, Values};
use super::store::StateError;
use super::{Home, Place, Records, Stored, Unreadable, home, locked, name_of, place};

/// How long a save of the namespace is waited for: it has a limit itself.
const SAVING: Duration = Duration::from_secs(12);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl Records {
    /// Reads the record of a namespace whose backing store is open with `claim`, and restores its
    /// settings. They replace what was restored before, if another gateway has changed them. Does
    /// nothing if this claim was admitted already, or if the record is not in RADOS: see
    /// [`admit`](Self::admit).
    ///
    /// # Errors
    /// [`Unreadable`]: then the namespace must not be served.
    pub(crate) fn admit_claimed(
        &self,
        subsystem: &str,
        nsid: u32,
        claim: &Claim,
    ) -> Result<(), Unreadable> {
        let (Some(place), Some(values)) = (place(subsystem, nsid), claim.records()) else {
            return Ok(());
        };
        self.admit_image(place, claim.identity(), Arc::new(values), LIMIT)
    }

    /// The same for the image whose claim has that identity.
    pub(super) fn admit_image(
        &self,
        place: Place,
        identity: u64,
        values: Arc<dyn Values>,
        limit: Duration,
    ) -> Result<(), Unreadable> {
        let is_read = |stored: &Arc<Stored>| stored.image == Some(identity);
        if self.known().records.get(&place).is_some_and(is_read) {
            return Ok(());
        }
        let overdue = self.overdue_of(&*values);
        let home = home(Rados::of(values, limit, overdue));
        let read = self.read_image(&home, identity, &place);
        self.adopt(place, read)
    }

    /// What images with the same client and object share.
    fn overdue_of(&self, values: &dyn Values) -> Arc<Overdue> {
        let mut all = self.overdue.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, overdue| overdue.strong_count() > 0);
        let key = format!("{} {}", values.client(), values.place());
        if let Some(found) = all.get(&key).and_then(std::sync::Weak::upgrade) {
            return found;
        }
        let made = Arc::default();
        all.insert(key, Arc::downgrade(&made));
        made
    }

    /// Reads the record of an image. Moves it from the folder if RADOS has none.
    fn read_image(
        &self,
        home: &Home,
        identity: u64,
        place: &Place,
    ) -> Result<(Stored, SavedSettings), Unreadable> {
        let read = Stored::read(home, Some(identity), place)?;
        let Some(folder) = &self.folder else {
            return Ok(read);
        };
        if read.0.version != 0 {
            self.remove_former(folder, home, place)?;
            return Ok(read);
        }
        let (former, settings) = Stored::read(folder, None, place)?;
        if former.version == 0 {
            return Ok(read);
        }
        if self.is_readonly {
            return Ok((former, settings));
        }
        let name = name_of(&place.0, place.1);
        let mut store = locked(home);
        let moved = store.replace(&name, 0, &former.bytes);
        moved.map_err(|error| Unreadable::of(error, &*store, &name))?;
        drop(store);
        self.remove_former(folder, home, place)?;
        Stored::read(home, Some(identity), place)
    }

    /// Removes the record in the folder of a namespace whose record is in RADOS. Otherwise it would
    /// be in force again when the one in RADOS is removed.
    fn remove_former(&self, folder: &Home, home: &Home, place: &Place) -> Result<(), Unreadable> {
        if self.is_readonly {
            return Ok(());
        }
        let (subsystem, nsid) = place;
        let name = name_of(subsystem, *nsid);
        let mut store = locked(folder);
        let removed = match store.read(&name) {
            Ok(record) if record.version == 0 => return Ok(()),
            Ok(_) | Err(StateError::Damaged { .. }) => store.overwrite(&name, b""),
            Err(error) => Err(error),
        };
        removed.map_err(|error| Unreadable::of(error, &*store, &name))?;
        let from = store.place(&name);
        drop(store);
        let to = locked(home).place(&name);
        tracing::info!(%subsystem, nsid, "record moved from {from} to {to}");
        Ok(())
    }

    /// Knows a record that was read, and restores its settings.
    pub(super) fn adopt(
        &self,
        place: Place,
        read: Result<(Stored, SavedSettings), Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut known = self.known();
        known.unreadable.remove(&place);
        if let Err(error) = &read {
            known.unreadable.insert(place, error.to_string());
        }
        let (stored, settings) = read?;
        drop(known);
        let until = Instant::now() + SAVING;
        while !self.is_adopted(place, &stored, &settings) {
            if Instant::now() >= until {
                let (place, why) = (
                    locked(&stored.home).place(&name_of(&place.0, place.1)),
                    "an earlier change is still being saved; it is retried".to_owned(),
                );
                let (error, remedy) = (StateError::Cluster { place, why }, String::new());
                return Err(Unreadable { error, remedy });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// False while a save of the namespace is in progress, which depends on what is known.
    fn is_adopted(&self, place: Place, stored: &Stored, settings: &SavedSettings) -> bool {
        let (subsystem, nsid) = place;
        let mut known = self.known();
        let before = known.records.get(&place).cloned();
        match &before {
            // Two threads have read it in the folder.
            Some(before) if before.image == stored.image => return true,
            // Nobody has changed it since. What does not persist through a loss of power is still
            // in force: to lose it would permit hosts that are fenced.
            Some(before) if before.is_stored_as(stored) => {
                let same = Stored {
                    differs: before.differs.clone(),
                    record: before.record.clone(),
                    ..stored.clone()
                };
                known.records.insert(place, Arc::new(same));
                return true;
            }
            _ => {}
        }
        match (&known.target, &before) {
            (Some(target), Some(_)) => {
                // No save begins before the record is known, because it needs that lock.
                if !target.replace_settings(&subsystem, nsid, settings.clone()) {
                    return false;
                }
                tracing::info!(
                    %subsystem, nsid,
                    "record read again: another target changed it, or it is another one"
                );
                stored.record.log_restored();
            }
            (Some(target), None) => {
                stored.record.log_restored();
                target.restore(&subsystem, settings.clone());
            }
            (None, _) => drop(known.unrestored.insert(place, settings.clone())),
        }
        known.records.insert(place, Arc::new(stored.clone()));
        true
    }
}

impl Stored {
    /// Whether `read`, which was read later in another place of the same kind, is the same record.
    fn is_stored_as(&self, read: &Self) -> bool {
        let is_sure = matches!(self.differs, None | Some(super::Differs::Restarted));
        let is_shared = self.image.is_some() && read.image.is_some();
        let same = (self.version, &self.bytes) == (read.version, &read.bytes);
        is_shared && is_sure && same
    }
}
