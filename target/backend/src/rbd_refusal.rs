//! Why an RBD image is not served, with the remedy.

use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nvmeof_ceph::{CephError, Missing};

/// An RBD image cannot be served. Displays as cause and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RbdRefusal {
    /// The libraries are not installed.
    #[error("{0}; install the package librbd1, and restart the target")]
    NotInstalled(Missing),
    /// The libraries are too old.
    #[error("{0}; install librbd1 of Ceph 16.2 (Pacific) or later, and restart the target")]
    TooOld(Missing),
    /// The configuration file of the cluster cannot be read.
    #[error(
        "{}: cannot be read: {errno}; copy ceph.conf of the cluster to this path, or set conf in \
         [ceph]", path.display()
    )]
    Conf {
        /// The file.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
    /// There is no key.
    #[error(
        "no key for client.{user}; save the output of `ceph auth get client.{user}` in {}, \
         readable by the target",
        keyring.as_ref().map_or_else(
            || format!("/etc/ceph/ceph.client.{user}.keyring, or set keyring in [ceph]"),
            |path| path.display().to_string(),
        )
    )]
    NoKey {
        /// The user.
        user: String,
        /// The configured file.
        keyring: Option<PathBuf>,
    },
    /// The cluster does not accept the user or its key.
    #[error(
        "the cluster refuses client.{user}: there is no such user, or it has another key; compare \
         `ceph auth get client.{user}` with the keyring, or set user in [ceph]"
    )]
    Denied {
        /// The user.
        user: String,
    },
    /// No monitor responds.
    #[error(
        "no monitor of the Ceph cluster responds; check mon_host in {}, and that the monitors run \
         and are reachable", conf.display()
    )]
    NoMonitor {
        /// The configuration file.
        conf: PathBuf,
    },
    /// There is no such pool.
    #[error("the cluster has no pool {0:?}; `ceph osd pool ls` lists the pools")]
    NoPool(String),
    /// There is no such image.
    #[error(
        "pool {place} has no image {image:?}; create one with `rbd create --size 10G \
         {place}/{image}`, or correct the name (`rbd ls {place}`)"
    )]
    NoImage {
        /// The pool, with the namespace.
        place: String,
        /// The image.
        image: String,
    },
    /// There is no such snapshot.
    #[error("the image has no snapshot {snapshot:?}; `rbd snap ls {image}` lists them")]
    NoSnapshot {
        /// The image, with its pool.
        image: String,
        /// The snapshot.
        snapshot: String,
    },
    /// The user may not use the image.
    #[error(
        "client.{user} is not permitted to use the image; it needs `ceph auth caps client.{user} \
         mon 'profile rbd' osd 'profile rbd pool={pool}'`, which replaces its capabilities: name \
         every pool that it uses, also a separate data pool"
    )]
    NotPermitted {
        /// The user.
        user: String,
        /// The pool.
        pool: String,
    },
    /// Another client has the exclusive lock.
    #[error(
        "is in use by the client at {owner}, which has the exclusive lock; stop that client, or \
         serve a snapshot; the lock of a client that has crashed ends after 30 s"
    )]
    InUse {
        /// The address of the client.
        owner: String,
    },
    /// It has no exclusive lock.
    #[error(
        "has no exclusive lock, so that a second client could write to it; enable it with `rbd \
         feature enable {0} exclusive-lock`, or serve it read-only"
    )]
    NoLock(String),
    /// It is journaled.
    #[error(
        "is journaled: each write is written twice; disable that with `rbd feature disable {0} \
         journaling`"
    )]
    Journaled(String),
    /// It is a clone.
    #[error(
        "is a clone, whose first write to each object copies it from its parent; detach it with \
         `rbd flatten {0}`"
    )]
    Clone(String),
    /// It is encrypted by librbd, as a clone of an encrypted image.
    #[error(
        "is encrypted by librbd, which the target does not decrypt; let hosts encrypt (dm-crypt)"
    )]
    Encrypted,
    /// It is being migrated.
    #[error("is being migrated; finish that with `rbd migration commit {0}`")]
    Migrating(String),
    /// It is a mirror.
    #[error(
        "is the copy of an image of another cluster, and not writable; promote it with `rbd \
         mirror image promote {0}`, or serve it read-only"
    )]
    NotPrimary(String),
    /// A persistent cache has writes of it.
    #[error(
        "has unwritten data in the persistent cache of another client; write it with that client \
         (`rbd persistent-cache flush {0}`)"
    )]
    DirtyCache(String),
    /// A configuration that is not safe.
    #[error(
        "has {option} = {value} in its configuration: {why}; remove it with `rbd config image rm \
         {image} {option}`, or for the pool or the client where it is set"
    )]
    Option {
        /// The image.
        image: String,
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The reason.
        why: &'static str,
    },
    /// The cluster does not respond in time.
    #[error(
        "no response from the Ceph cluster within {} s; see `ceph -s` (blocked requests, OSDs or \
         placement groups that are down)", .0.as_secs()
    )]
    Unresponsive(Duration),
    /// The cluster has blocklisted this client.
    #[error("the cluster has blocklisted this client: another client has taken over the image")]
    Blocklisted,
    /// Anything else.
    #[error(transparent)]
    Failed(CephError),
}

impl From<CephError> for RbdRefusal {
    fn from(error: CephError) -> Self {
        match error {
            CephError::Missing(why @ Missing::Library { .. }) => Self::NotInstalled(why),
            CephError::Missing(why @ Missing::Symbol { .. }) => Self::TooOld(why),
            // EBLOCKLISTED of Ceph.
            CephError::Call {
                errno: Errno::ESHUTDOWN,
                ..
            } => Self::Blocklisted,
            other => Self::Failed(other),
        }
    }
}

impl RbdRefusal {
    /// The key of the table `[ceph]` that it is about; `None`: the name of the image.
    #[must_use]
    pub fn key(&self) -> Option<&'static str> {
        match self {
            Self::Conf { .. } | Self::NoMonitor { .. } => Some("conf"),
            Self::NoKey { .. } => Some("keyring"),
            Self::Denied { .. } | Self::NotPermitted { .. } => Some("user"),
            _ => None,
        }
    }

    /// Whether the image may be served later with the same configuration, without a change of its
    /// properties.
    #[must_use]
    pub fn may_succeed_later(&self) -> bool {
        match self {
            Self::Conf { .. }
            | Self::NoKey { .. }
            | Self::Denied { .. }
            | Self::NoMonitor { .. }
            | Self::NoPool(_)
            | Self::NoImage { .. }
            | Self::NoSnapshot { .. }
            | Self::NotPermitted { .. }
            | Self::InUse { .. }
            | Self::Migrating(_)
            | Self::NotPrimary(_)
            | Self::DirtyCache(_)
            | Self::Unresponsive(_)
            | Self::Blocklisted
            | Self::Failed(_) => true,
            Self::NotInstalled(_)
            | Self::TooOld(_)
            | Self::NoLock(_)
            | Self::Journaled(_)
            | Self::Clone(_)
            | Self::Encrypted
            | Self::Option { .. } => false,
        }
    }

    /// Whether its cause passes without a change of the image.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unresponsive(_) | Self::NoMonitor { .. } => true,
            Self::Failed(error) => !matches!(error.errno(), Some(Errno::ENOENT)),
            _ => false,
        }
    }
}
