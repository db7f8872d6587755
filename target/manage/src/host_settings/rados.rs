//! Records in RADOS, beside the image of the namespace: the next gateway that opens the image finds
//! them.
//!
//! Whoever has the exclusive lock of the image reads and changes its records, through the client
//! that has the lock. A client that is fenced can change neither the image nor its records.
//!
//! Each operation runs in a thread of its own, and its caller waits for [`LIMIT`]. An operation
//! that ends later does no harm:
//! - it replaces the value that this process knew, and no other one. While it is overdue, no other
//!   operation is started, thus it does not meet a later change of this process;
//! - it holds the image open, thus the lock: another gateway gets the lock when the operation has
//!   ended, or by fencing this client, after which the cluster refuses the operation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use nvmeof_backend::{RecordsError, SharedRecords};
use nvmeof_backend_spec::within;

use super::encoding::{Record, decode, encode};
use super::store::{StateError, StateStore};

/// How long an operation may take.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// Attempts to overwrite a value that changes meanwhile.
const ATTEMPTS: u32 = 3;

/// Values that gateways share. A call may block.
pub(super) trait Values: Send + Sync + 'static {
    /// The value of `key`, if there is one.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, RecordsError>;

    /// Replaces the value of `key` by `new`, if it is `expected`. Returns whether it was.
    fn swap(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, RecordsError>;

    /// The keys of all values.
    fn keys(&self) -> Result<Vec<String>, RecordsError>;

    /// Where they are.
    fn place(&self) -> String;

    /// The client whose calls they are.
    fn client(&self) -> String;

    /// A command that removes the value of `key`.
    fn removal(&self, key: &str) -> String;
}

/// Records in RADOS, for one image.
pub(super) struct Rados {
    values: Arc<dyn Values>,
    limit: Duration,
    overdue: Arc<Overdue>,
    /// Values as they were read or written last.
    known: BTreeMap<String, Vec<u8>>,
}

/// The number of operations that did not end in time, and are still in progress. Images with the
/// same client and object share it: each of them would wait for the same OSD.
#[derive(Debug, Default)]
pub(super) struct Overdue(AtomicUsize);

impl Rados {
    pub(super) fn of(values: Arc<dyn Values>, limit: Duration, overdue: Arc<Overdue>) -> Self {
        Self {
            values,
            limit,
            overdue,
            known: BTreeMap::new(),
        }
    }

    /// The result of `ask`, if it ends in time.
    fn ask<T: Send + 'static>(
        &self,
        key: &str,
        ask: impl FnOnce(&dyn Values) -> Result<T, RecordsError> + Send + 'static,
    ) -> Result<T, StateError> {
        let place = || self.place(key);
        let unresponsive = || StateError::Cluster {
            place: place(),
            why: format!(
                "no response from the Ceph cluster within {} s; see `ceph -s` (blocked requests, \
                 OSDs or placement groups that are down)",
                self.limit.as_secs()
            ),
        };
        if self.overdue.0.load(Ordering::Acquire) > 0 {
            return Err(unresponsive());
        }
        let operation = Operation::begin(&self.overdue);
        let ending = Ending(Arc::clone(&operation));
        let values = Arc::clone(&self.values);
        let result = within(self.limit, move || {
            let _ending = ending;
            ask(&*values)
        });
        let result = result.ok_or_else(|| {
            operation.exceeds();
            unresponsive()
        })?;
        result.map_err(|error| {
            let (place, why) = (place(), error.to_string());
            match error.is_lost() {
                true => StateError::Lost {
                    why: format!(
                        "{why}; the record stays; to remove that of a removed namespace, use `{}`",
                        self.values.removal(key)
                    ),
                    place,
                },
                false => StateError::Cluster { place, why },
            }
        })
    }

    /// The value of `key` as it is stored.
    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, StateError> {
        let named = key.to_owned();
        let value = self.ask(key, move |values| values.get(&named))?;
        self.knows(key, value.clone());
        Ok(value)
    }

    fn knows(&mut self, key: &str, value: Option<Vec<u8>>) {
        match value {
            Some(value) => drop(self.known.insert(key.to_owned(), value)),
            None => drop(self.known.remove(key)),
        }
    }

    /// Replaces `expected`, which has version `before`, by a record with `bytes`. Returns its
    /// version, or `None` if another value is stored.
    fn swap(
        &mut self,
        key: &str,
        expected: Option<Vec<u8>>,
        before: u64,
        bytes: &[u8],
    ) -> Result<Option<u64>, StateError> {
        let (version, new) = match bytes {
            [] => (0, None),
            bytes => {
                let (version, new) = encode(before, bytes)?;
                (version, Some(new))
            }
        };
        let (named, stored) = (key.to_owned(), new.clone());
        let swapped = self.ask(key, move |values| {
            values.swap(&named, expected.as_deref(), new.as_deref())
        })?;
        if swapped {
            self.knows(key, stored);
        }
        Ok(swapped.then_some(version))
    }

    fn decoded(&self, key: &str, value: Option<&[u8]>) -> Result<Record, StateError> {
        let Some(value) = value else {
            return Ok(Record::default());
        };
        decode(value).map_err(|why| StateError::Damaged {
            place: self.place(key),
            why: why.to_owned(),
        })
    }

    fn changed(&self, key: &str, expected: u64, found: u64) -> StateError {
        StateError::Changed {
            place: self.place(key),
            expected,
            found,
        }
    }
}

impl StateStore for Rados {
    fn read(&mut self, name: &str) -> Result<Record, StateError> {
        let value = self.get(name)?;
        self.decoded(name, value.as_deref())
    }

    fn replace(&mut self, name: &str, expected: u64, bytes: &[u8]) -> Result<u64, StateError> {
        // The whole value is compared, not the version alone: two gateways count alike.
        let known = self.known.get(name).cloned();
        let version = self.decoded(name, known.as_deref())?.version;
        if version != expected {
            return Err(self.changed(name, expected, version));
        }
        match self.swap(name, known, version, bytes)? {
            Some(version) => Ok(version),
            None => {
                let (place, named) = (self.place(name), name.to_owned());
                // What is known stays: the caller has to read it.
                let found = self.ask(name, move |values| values.get(&named))?;
                let found = found.map_or(Ok(Record::default()), |value| decode(&value));
                let found = found.map_or(0, |record| record.version);
                Err(StateError::Changed {
                    place,
                    expected,
                    found,
                })
            }
        }
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> Result<u64, StateError> {
        let mut found = 0;
        for _ in 0..ATTEMPTS {
            let value = self.get(name)?;
            found = match self.decoded(name, value.as_deref()) {
                // Its version is unknown.
                Err(StateError::Damaged { .. }) => 0,
                record => record?.version,
            };
            if let Some(version) = self.swap(name, value, found, bytes)? {
                return Ok(version);
            }
        }
        Err(self.changed(name, found, found))
    }

    fn names(&mut self) -> Result<Vec<String>, StateError> {
        self.ask("", |values| values.keys())
    }

    fn place(&self, name: &str) -> String {
        format!("{}:{name}", self.values.place())
    }

    fn removal(&self, name: &str) -> String {
        format!("remove it with `{}`", self.values.removal(name))
    }
}

impl Values for SharedRecords {
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

    fn keys(&self) -> Result<Vec<String>, RecordsError> {
        Self::keys(self)
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
}

/// An operation, which its thread and its caller share.
struct Operation {
    overdue: Arc<Overdue>,
    /// [`STARTED`], [`EXCEEDED`] or [`ENDED`].
    phase: AtomicU8,
}

const STARTED: u8 = 0;
/// The caller has given up.
const EXCEEDED: u8 = 1;
const ENDED: u8 = 2;

/// Ends the operation when it is dropped, also if its thread did not start.
struct Ending(Arc<Operation>);

impl Operation {
    fn begin(overdue: &Arc<Overdue>) -> Arc<Self> {
        Arc::new(Self {
            overdue: Arc::clone(overdue),
            phase: AtomicU8::new(STARTED),
        })
    }

    /// Its time is over.
    fn exceeds(&self) {
        self.overdue.0.fetch_add(1, Ordering::AcqRel);
        if self.phase.swap(EXCEEDED, Ordering::AcqRel) == ENDED {
            self.overdue.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Operation { overdue, phase } = &*self.0;
        if phase.swap(ENDED, Ordering::AcqRel) == EXCEEDED {
            overdue.0.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
