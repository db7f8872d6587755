//! The `path` of a namespace: the backing store that it names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{CephAccess, RbdName, RbdNameError, SizeError, parse_size};

/// A backing store. Parses from `/srv/disk.img`, `ram:1G`, `null:16G` or `rbd:POOL/IMAGE`; a file
/// whose name starts like one of the latter is written `./ram:1G`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A regular file or block device.
    File {
        /// Path of the file or device.
        path: PathBuf,
        /// Whether it is read-only.
        readonly: bool,
    },
    /// Memory: zeroes at first, allocated when it is written, lost when the target ends.
    Ram {
        /// Size in bytes.
        len: u64,
        /// Whether it is read-only.
        readonly: bool,
    },
    /// Writes are discarded and reads return zeroes.
    Null {
        /// Size in bytes.
        len: u64,
        /// Whether it is read-only.
        readonly: bool,
    },
    /// An RBD image of a Ceph cluster.
    Rbd {
        /// The image.
        image: RbdName,
        /// How the cluster is reached.
        access: CephAccess,
        /// Whether it is read-only.
        readonly: bool,
    },
}

/// An invalid `path`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Empty text.
    #[error(
        "empty path; name a file, a block device, rbd:POOL/IMAGE, ram:SIZE or \
         null:SIZE"
    )]
    Empty,
    /// An invalid size.
    #[error("{kind}: {source}")]
    Size {
        /// `ram` or `null`.
        kind: &'static str,
        /// The error in the size.
        source: SizeError,
    },
    /// An invalid name of an RBD image.
    #[error(transparent)]
    Rbd(#[from] RbdNameError),
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let sized =
            |kind, size| parse_size(size).map_err(|source| SpecError::Size { kind, source });
        let readonly = false;
        if text.is_empty() {
            Err(SpecError::Empty)
        } else if let Some(size) = text.strip_prefix("ram:") {
            let len = sized("ram", size)?;
            Ok(Self::Ram { len, readonly })
        } else if let Some(size) = text.strip_prefix("null:") {
            let len = sized("null", size)?;
            Ok(Self::Null { len, readonly })
        } else if let Some(name) = text.strip_prefix("rbd:") {
            let image: RbdName = name.parse()?;
            let readonly = image.snapshot.is_some();
            Ok(Self::Rbd {
                image,
                access: CephAccess::default(),
                readonly,
            })
        } else {
            let path = PathBuf::from(text);
            Ok(Self::File { path, readonly })
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => write!(f, "{}", path.display()),
            Self::Ram { len, .. } => write!(f, "ram:{len}"),
            Self::Null { len, .. } => write!(f, "null:{len}"),
            Self::Rbd { image, .. } => write!(f, "rbd:{image}"),
        }
    }
}

impl Spec {
    /// The same, read-only or not.
    #[must_use]
    pub fn with_readonly(mut self, wanted: bool) -> Self {
        match &mut self {
            Self::File { readonly, .. }
            | Self::Ram { readonly, .. }
            | Self::Null { readonly, .. } => *readonly = wanted,
            // A snapshot never changes.
            Self::Rbd {
                readonly, image, ..
            } => *readonly = wanted || image.snapshot.is_some(),
        }
        self
    }

    /// The same, in the cluster that is reached that way. Others than RBD images do not change.
    #[must_use]
    pub fn with_ceph(mut self, to: &CephAccess) -> Self {
        if let Self::Rbd { access, .. } = &mut self {
            access.clone_from(to);
        }
        self
    }

    /// Whether it is memory of the target, which ends with it.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self, Self::Ram { .. } | Self::Null { .. })
    }

    /// Whether it is read-only.
    #[must_use]
    pub fn readonly(&self) -> bool {
        match self {
            Self::File { readonly, .. }
            | Self::Ram { readonly, .. }
            | Self::Null { readonly, .. }
            | Self::Rbd { readonly, .. } => *readonly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spec_that_is_formatted_parses_to_the_same() {
        let (len, readonly) = (1 << 30, false);
        assert_eq!("ram:1G".parse(), Ok(Spec::Ram { len, readonly }));
        assert_eq!("null:1024M".parse(), Ok(Spec::Null { len, readonly }));
        let file: Spec = "/srv/ram:1G".parse().unwrap();
        assert_eq!(file.to_string(), "/srv/ram:1G");
        assert!(!file.readonly() && file.with_readonly(true).readonly());
        assert_eq!(
            Spec::Ram { len, readonly }.to_string().parse(),
            Ok(Spec::Ram { len, readonly })
        );
    }

    #[test]
    fn snapshot_is_always_read_only() {
        let image: Spec = "rbd:pool/ns/disk@daily".parse().unwrap();
        assert!(image.readonly() && image.clone().with_readonly(false).readonly());
        assert_eq!(image.to_string(), "rbd:pool/ns/disk@daily");
        let image: Spec = "rbd:pool/disk".parse().unwrap();
        assert!(!image.readonly() && image.clone().with_readonly(true).readonly());
        let user = Some("backup".to_owned());
        let access = CephAccess {
            user,
            ..CephAccess::default()
        };
        assert_ne!(image.clone().with_ceph(&access), image);
        assert!(matches!("rbd:disk".parse::<Spec>(), Err(SpecError::Rbd(_))));
    }

    #[test]
    fn errors_name_kind_and_remedy() {
        let message = "ram:1X".parse::<Spec>().unwrap_err().to_string();
        assert!(
            message.starts_with("ram: ") && message.contains("512M"),
            "{message}"
        );
        assert_eq!("".parse::<Spec>(), Err(SpecError::Empty));
        assert!(matches!(
            "null:".parse::<Spec>(),
            Err(SpecError::Size { kind: "null", .. })
        ));
    }
}
