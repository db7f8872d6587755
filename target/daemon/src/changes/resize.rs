//! A namespace of another size: that of its file is changed, or looked at again.

use std::fs::{File, OpenOptions};
use std::path::Path;

use nvmeof_backend::Spec;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::{Document, Misfit, misfit};
use super::{ChangeError, Edit};
use crate::config::{Config, ConfigError};

/// What size a namespace is to have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resize {
    /// Its subsystem; it may be left out where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subsystem: Option<String>,
    /// Its number.
    pub(crate) nsid: u32,
    /// Bytes that its file is to have; none leaves the file as it is and looks
    /// how large it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Whether the end of the file may be cut off.
    #[serde(default)]
    pub(crate) shrink: bool,
}

/// Every block size divides this.
const UNIT: u64 = 4096;

/// Makes the file of a namespace of `text` as large as is wanted.
///
/// # Errors
/// [`ChangeError`]; then the file is as it was.
pub(super) fn make(config: &Config, text: &str, resize: &Resize) -> Result<(), ChangeError> {
    let refused = |misfit| ChangeError::Misfit {
        edit: format!("namespace resize {}", resize.nsid),
        misfit,
    };
    let plain = |what| ConfigError::plain(config.path().unwrap_or(Path::new("")), what);
    let document = Document::parse(text).map_err(plain)?;
    let mut named = Edit::NamespaceRemove {
        subsystem: resize.subsystem.clone(),
        nsid: resize.nsid,
    };
    document.settle(&mut named).map_err(refused)?;
    let path = document.path_of(&named).map_err(refused)?;
    match resize.size {
        None => Ok(()),
        Some(size) => set(&path, size, resize.shrink).map_err(refused),
    }
}

fn set(path: &str, size: u64, shrink: bool) -> Result<(), Misfit> {
    let Ok(Spec::File { path, .. }) = path.parse::<Spec>() else {
        let what = "memory cannot change its size without losing what is in it; remove the \
                    namespace and add another";
        return misfit("path", what);
    };
    if size == 0 || !size.is_multiple_of(UNIT) {
        return misfit(
            "size",
            format!("{size}: must be a multiple of {UNIT} bytes"),
        );
    }
    let about = |error: std::io::Error| Misfit {
        key: "path",
        what: format!("{}: {error}", path.display()),
    };
    let file = OpenOptions::new().write(true).open(&path).map_err(about)?;
    let metadata = file.metadata().map_err(about)?;
    if !metadata.is_file() {
        let what = "is no regular file: it has the size it has; resize without a size looks at it \
                    again";
        return misfit("path", format!("{}: {what}", path.display()));
    }
    let before = metadata.len();
    if size < before && !shrink {
        let what = format!(
            "{size} is less than the {before} bytes it has, whose end would be lost; say shrink \
             if that is meant"
        );
        return misfit("size", what);
    }
    set_len(&file, size).map_err(about)
}

fn set_len(file: &File, size: u64) -> std::io::Result<()> {
    file.set_len(size)?;
    file.sync_all()
}
