//! A record in an object of a pool that several gateways change.

use nvmeof_backend_spec::CephAccess;
use nvmeof_ceph::{Cluster, Pool, Swapped};

use super::opening::{not_connected, pool_of};
use crate::RbdRefusal;

/// The key in the omap of the object.
const KEY: &str = "record";

/// A record that changes only if it is the expected one. It is the value of a key in the omap of an
/// object. Calls wait for the cluster, without a limit in time.
pub struct SharedRecord {
    access: CephAccess,
    pool: String,
    namespace: Option<String>,
    object: String,
    /// Made by the first call, and again after the client was blocklisted.
    connected: Option<Pool>,
    /// The last value that was read or written, and its number.
    known: Option<Vec<u8>>,
    version: u64,
}

impl SharedRecord {
    /// The record in `object`. Does not connect.
    #[must_use]
    pub fn new(access: &CephAccess, pool: &str, namespace: Option<&str>, object: &str) -> Self {
        Self {
            access: access.clone(),
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            object: object.to_owned(),
            connected: None,
            known: None,
            version: 0,
        }
    }

    /// The version and the contents; `None` if there is no record. Equal contents that follow each
    /// other have the same version.
    ///
    /// # Errors
    /// [`RbdRefusal`].
    pub fn read(&mut self) -> Result<Option<(u64, Vec<u8>)>, RbdRefusal> {
        let value = self.call(|pool, object| Ok(pool.get(object, KEY)?))?;
        if value != self.known {
            self.know(value.clone());
        }
        Ok(value.map(|value| (self.version, value)))
    }

    /// Replaces the contents, if their version is `expected`; `None`: if there is no record.
    /// Returns the new version; `None`: there are other contents, and nothing changed.
    ///
    /// # Errors
    /// [`RbdRefusal`]. The write may have taken effect, or take effect later.
    pub fn write(
        &mut self,
        expected: Option<u64>,
        contents: &[u8],
    ) -> Result<Option<u64>, RbdRefusal> {
        let is_known = match expected {
            Some(version) => self.known.is_some() && version == self.version,
            None => self.known.is_none(),
        };
        if !is_known {
            return Ok(None);
        }
        let known = self.known.take();
        let swapped = self
            .call(|pool, object| Ok(pool.swap(object, KEY, known.as_deref(), Some(contents))?));
        self.known = known;
        match swapped? {
            Swapped::Yes => {
                self.know(Some(contents.to_vec()));
                Ok(Some(self.version))
            }
            Swapped::Changed => Ok(None),
        }
    }

    fn know(&mut self, value: Option<Vec<u8>>) {
        self.known = value;
        self.version = self.version.wrapping_add(1);
    }

    fn call<T>(
        &mut self,
        call: impl FnOnce(&Pool, &str) -> Result<T, RbdRefusal>,
    ) -> Result<T, RbdRefusal> {
        let pool = match self.connected.take() {
            Some(pool) => pool,
            None => self.connect()?,
        };
        let result = call(&pool, &self.object);
        // A client that is blocklisted is so for good.
        if !matches!(result, Err(RbdRefusal::Blocklisted)) {
            self.connected = Some(pool);
        }
        result
    }

    fn connect(&self) -> Result<Pool, RbdRefusal> {
        // A client of its own: that of an image may be blocklisted by another gateway.
        let cluster = Cluster::connect(&self.access);
        let cluster = cluster.map_err(|error| not_connected(&self.access, error))?;
        pool_of(&cluster, &self.pool, self.namespace.as_deref())
    }
}
