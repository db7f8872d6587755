//! Names of RBD images, and access to a Ceph cluster.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An RBD image. Parses from `POOL/IMAGE`, `POOL/NAMESPACE/IMAGE`, each with `@SNAPSHOT` or not, as
/// rbd(8) has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdName {
    /// The pool.
    pub pool: String,
    /// The namespace in the pool.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The snapshot of the image.
    pub snapshot: Option<String>,
}

/// An invalid name of an RBD image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "rbd: {0:?} is not an image; write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE, each \
         with @SNAPSHOT or not"
)]
pub struct RbdNameError(String);

impl FromStr for RbdName {
    type Err = RbdNameError;

    fn from_str(text: &str) -> Result<Self, RbdNameError> {
        let wrong = || RbdNameError(text.to_owned());
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<_> = image.split('/').collect();
        let (pool, namespace, image) = match *parts {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(wrong()),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '@', '\0']);
        let names = [Some(pool), namespace, Some(image), snapshot];
        if !names.into_iter().flatten().all(is_name) {
            return Err(wrong());
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        })
    }
}

impl fmt::Display for RbdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

/// How a Ceph cluster is reached. It names files, and has no key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CephAccess {
    /// The configuration file of the cluster; `None`: [`CephAccess::CONF`].
    pub conf: Option<PathBuf>,
    /// The user without `client.`; `None`: [`CephAccess::USER`].
    pub user: Option<String>,
    /// The file with the key of the user; `None`: where the configuration file says.
    pub keyring: Option<PathBuf>,
}

impl CephAccess {
    /// The default configuration file.
    pub const CONF: &str = "/etc/ceph/ceph.conf";
    /// The default user.
    pub const USER: &str = "admin";

    /// The configuration file.
    #[must_use]
    pub fn conf(&self) -> &Path {
        self.conf.as_deref().unwrap_or(Path::new(Self::CONF))
    }

    /// The user, without `client.`.
    #[must_use]
    pub fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(Self::USER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_is_formatted_parses_to_the_same() {
        for text in ["p/i", "p/n/i", "p/i@s", "p/n/i@s", "a.b/c d@e:f"] {
            let name: RbdName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn incomplete_names_are_refused() {
        for text in [
            "", "i", "/i", "p/", "p//i", "p/n/", "p/a/b/c", "p/i@", "p/i@a@b", "p/i@a/b",
        ] {
            let error = text.parse::<RbdName>().unwrap_err().to_string();
            assert!(error.contains("rbd:POOL/IMAGE"), "{error}");
        }
    }
}
