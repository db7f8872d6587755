//! What to serve, as an administrator writes it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::{SizeError, parse_size};

/// What to serve. Parses from `/srv/disk.img`, `ram:1G` or `null:16G`; a file
/// whose name begins like the latter two is written `./ram:1G`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// A regular file or block device.
    File {
        /// Where it is.
        path: PathBuf,
        /// Nothing may change it.
        readonly: bool,
    },
    /// Memory: empty at first, gone at the end, taken as it is written.
    Ram {
        /// Size in bytes.
        len: u64,
        /// Nothing may change it.
        readonly: bool,
    },
    /// Writes go nowhere and reads give zeroes.
    Null {
        /// Size in bytes.
        len: u64,
        /// Nothing may change it.
        readonly: bool,
    },
}

/// A specification that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing.
    #[error("an empty path; name a file, a block device, ram:SIZE or null:SIZE")]
    Empty,
    /// The size.
    #[error("{kind}: {source}")]
    Size {
        /// `ram` or `null`.
        kind: &'static str,
        /// What is wrong with it.
        source: SizeError,
    },
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
        }
        self
    }

    /// Whether nothing may change it.
    #[must_use]
    pub fn readonly(&self) -> bool {
        match self {
            Self::File { readonly, .. }
            | Self::Ram { readonly, .. }
            | Self::Null { readonly, .. } => *readonly,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
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
    fn errors_name_the_part_and_a_remedy() {
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
