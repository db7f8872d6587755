//! Records in the pool of an image, for the clients that serve the image one after the other.
//!
//! They are values in the omap of one object for each pool, or namespace in a pool. Each call goes
//! through the client that has the lock of the image: when that client is blocklisted, the cluster
//! refuses its changes of records together with its writes to the image. A call holds the lock
//! until it has ended, so that the next owner of the image finds every change that was begun.

use std::fmt;
use std::sync::{Arc, Weak};

use nix::errno::Errno;
use nvmeof_backend_spec::RbdName;
use nvmeof_ceph::{CephError, Pool, Swapped};

use super::RbdStore;
use crate::RbdRefusal;

/// The object.
const OBJECT: &str = "nvmeof.namespaces";

/// Records in the pool of an image, while this process has the image open, and its lock unless it
/// is read-only. It does not keep the image open.
#[derive(Clone)]
pub struct ImageRecords {
    store: Weak<RbdStore>,
    image: RbdName,
    /// For the administrator.
    user: String,
    /// The address of the client.
    client: String,
    is_readonly: bool,
}

/// A record was not read or replaced. Displays as cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordsError {
    /// The image is closed, or its lock released.
    #[error("the image is closed, and its lock may have another owner")]
    Closed,
    /// The image is read-only.
    #[error("the image is open read-only, thus without its lock")]
    ReadOnly,
    /// There is no room.
    #[error("the pool is full: add OSDs, delete data, or raise its quota (`ceph df`)")]
    Full,
    /// Anything else.
    #[error(transparent)]
    Refused(#[from] RbdRefusal),
}

impl RecordsError {
    /// Whether this process has lost the image, so that the next owner of the lock decides what is
    /// stored.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Closed | Self::Refused(RbdRefusal::Blocklisted) => true,
            Self::ReadOnly | Self::Full | Self::Refused(_) => false,
        }
    }
}

impl ImageRecords {
    pub(super) fn of(store: &Arc<RbdStore>, is_readonly: bool) -> Self {
        let cluster = store.image.cluster();
        let client = cluster.map(|cluster| cluster.address().to_owned());
        Self {
            store: Arc::downgrade(store),
            image: store.named.clone(),
            user: store.access.user().to_owned(),
            client: client.unwrap_or_default(),
            is_readonly,
        }
    }

    /// The record `key`, if there is one. May block for as long as the cluster does not respond.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, RecordsError> {
        self.ask(|pool| pool.get(OBJECT, key))
    }

    /// Replaces the record `key` by `new`, if it is `expected`. For both, `None` is no record.
    /// Returns whether it was. May block as [`get`](Self::get).
    ///
    /// # Errors
    /// [`RecordsError`]: the old or the new record is stored.
    pub fn swap(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, RecordsError> {
        if self.is_readonly {
            return Err(RecordsError::ReadOnly);
        }
        let swapped = self.ask(|pool| pool.swap(OBJECT, key, expected, new))?;
        Ok(swapped == Swapped::Yes)
    }

    /// Whether the image is read-only. Then it has no lock, and its records are only read.
    #[must_use]
    pub fn is_readonly(&self) -> bool {
        self.is_readonly
    }

    /// The address of the client whose calls they are.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// A command that removes the record `key`.
    #[must_use]
    pub fn removal(&self, key: &str) -> String {
        let RbdName {
            pool, namespace, ..
        } = &self.image;
        let namespace = namespace
            .as_ref()
            .map(|name| format!(" --namespace {name}"));
        let namespace = namespace.unwrap_or_default();
        format!("rados --pool {pool}{namespace} rmomapkey {OBJECT} {key}")
    }

    fn ask<T>(&self, ask: impl FnOnce(&Pool) -> Result<T, CephError>) -> Result<T, RecordsError> {
        let store = self.store.upgrade().ok_or(RecordsError::Closed)?;
        let lock = store.usable().ok_or(RecordsError::Closed)?;
        let pool = store.image.pool().ok_or(RecordsError::Closed)?;
        let result = ask(pool).map_err(|error| match error.errno() {
            Some(Errno::ENOSPC | Errno::EDQUOT) => RecordsError::Full,
            Some(Errno::EPERM | Errno::EACCES) => {
                let (user, pool) = (self.user.clone(), self.image.pool.clone());
                RbdRefusal::NotPermitted { user, pool }.into()
            }
            _ => store.refusal(error).into(),
        });
        drop(lock);
        result
    }
}

impl fmt::Display for ImageRecords {
    /// Where they are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rados:{}", self.image.pool)?;
        if let Some(namespace) = &self.image.namespace {
            write!(f, "/{namespace}")?;
        }
        write!(f, "/{OBJECT}")
    }
}

impl fmt::Debug for ImageRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImageRecords")
            .field(&self.to_string())
            .finish()
    }
}
