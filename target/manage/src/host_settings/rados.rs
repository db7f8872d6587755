//! Records in RADOS, beside the image of the namespace: the next gateway that opens the image finds
//! them.
//!
//! Whoever has the exclusive lock of the image reads and changes its records, through the client
//! that has the lock. A client that is fenced can change neither the image nor its records.
//!
//! Each operation runs in a thread of its own, and its caller waits until a time limit. An
//! operation that ends later does no harm:
//! - it replaces the value that this process knew, and no other one. While it is overdue, no other
//!   operation is started, thus it does not meet a later change of this process;
//! - it holds the image open, thus the lock: another gateway gets the lock when the operation has
//!   ended, or by fencing this client, after which the cluster refuses the operation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_backend::RecordsError;

use super::encoding::{Record, decode, encode};
use super::overdue::Overdue;
use super::store::{StateError, StateStore};

/// How long a change, or reading a record, may take.
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

    /// Where they are.
    fn place(&self) -> String;

    /// The client whose calls they are.
    fn client(&self) -> String;

    /// A command that removes the value of `key`.
    fn removal(&self, key: &str) -> String;

    /// Whether this process may not change them.
    fn is_readonly(&self) -> bool;
}

/// Records in RADOS, for one image.
pub(super) struct Rados {
    values: Arc<dyn Values>,
    limit: Duration,
    /// The end of the time limit.
    until: Instant,
    /// Images with the same client and object share it: each of them would wait for the same OSD.
    overdue: Arc<Overdue>,
    known: BTreeMap<String, Known>,
}

/// A value as far as it is known; `None` is no value.
#[derive(Default)]
struct Known {
    /// As it was read or written last.
    value: Option<Vec<u8>>,
    /// What may have replaced it since.
    attempted: Vec<Option<Vec<u8>>>,
}

impl Rados {
    pub(super) fn of(values: Arc<dyn Values>, limit: Duration, overdue: Arc<Overdue>) -> Self {
        Self {
            values,
            limit,
            until: Instant::now() + limit,
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
        let place = self.place(key);
        let left = self.until.saturating_duration_since(Instant::now());
        let values = Arc::clone(&self.values);
        let Some(result) = self.overdue.ask(left, move || ask(&*values)) else {
            let limit = self.limit.as_secs();
            let why = format!(
                "no response from the Ceph cluster within {limit} s; see `ceph -s` (blocked \
                 requests, OSDs or placement groups that are down)"
            );
            return Err(StateError::Waiting { place, why });
        };
        result.map_err(|error| match error.is_lost() {
            true => StateError::Lost {
                place,
                why: format!(
                    "{error}; the record stays; to remove that of a removed namespace, use `{}`",
                    self.values.removal(key)
                ),
            },
            false => StateError::Waiting {
                place,
                why: error.to_string(),
            },
        })
    }

    /// The value of `key` as it is stored.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StateError> {
        let key_of = key.to_owned();
        self.ask(key, move |values| values.get(&key_of))
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
        let attempted = &mut self.known.entry(key.to_owned()).or_default().attempted;
        if !attempted.contains(&new) {
            attempted.push(new.clone());
        }
        let (key_of, value) = (key.to_owned(), new.clone());
        let swapped = self.ask(key, move |values| {
            values.swap(&key_of, expected.as_deref(), value.as_deref())
        })?;
        if swapped {
            let attempted = Vec::new();
            let known = Known {
                value: new,
                attempted,
            };
            self.known.insert(key.to_owned(), known);
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

    /// The value that this process read or wrote last.
    fn last(&self, key: &str) -> Option<Vec<u8>> {
        self.known.get(key).and_then(|known| known.value.clone())
    }
}

impl StateStore for Rados {
    fn begin(&mut self) {
        self.until = Instant::now() + self.limit;
    }

    fn read(&mut self, name: &str) -> Result<Record, StateError> {
        let value = self.get(name)?;
        let record = self.decoded(name, value.as_deref());
        let attempted = Vec::new();
        self.known
            .insert(name.to_owned(), Known { value, attempted });
        record
    }

    fn replace(&mut self, name: &str, expected: u64, bytes: &[u8]) -> Result<u64, StateError> {
        // The whole value is compared, not the version alone: two gateways count alike.
        let known = self.last(name);
        let version = self.decoded(name, known.as_deref())?.version;
        if version != expected {
            return Err(self.changed(name, expected, version));
        }
        if let Some(version) = self.swap(name, known, version, bytes)? {
            return Ok(version);
        }
        // What is known stays: the caller has to read it.
        let found = self.get(name)?;
        let found = found.map_or(Ok(Record::default()), |value| decode(&value));
        Err(self.changed(name, expected, found.map_or(0, |record| record.version)))
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> Result<u64, StateError> {
        let last = self.last(name);
        let expected = decode(last.as_deref().unwrap_or_default());
        let expected = expected.map_or(0, |record| record.version);
        let mut found = expected;
        for _ in 0..ATTEMPTS {
            let value = self.get(name)?;
            let known = self.known.get(name);
            let is_own = value == last || known.is_some_and(|it| it.attempted.contains(&value));
            let record = self.decoded(name, value.as_deref());
            // The version of a damaged one is unknown.
            found = record.as_ref().map_or(0, |record| record.version);
            if !is_own && record.is_ok() {
                break;
            }
            if let Some(version) = self.swap(name, value, found, bytes)? {
                return Ok(version);
            }
        }
        Err(self.changed(name, expected, found))
    }

    fn place(&self, name: &str) -> String {
        format!("{}:{name}", self.values.place())
    }

    fn removal(&self, name: &str) -> String {
        format!("remove it with `{}`", self.values.removal(name))
    }
}
