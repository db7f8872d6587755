//! A namespace of another size: that of its file is changed, or looked at again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::{Document, Misfit, misfit};
use super::{ChangeError, Edit};
use crate::manage::{Manager, NewSize, NotResized, Report};

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

/// Makes a namespace of the document `text`, and its file, as large as is wanted.
///
/// # Errors
/// [`ChangeError`]; then what is served is as it was.
pub(super) fn make(manager: &Manager, text: &str, resize: &Resize) -> Result<Report, ChangeError> {
    let refused = |misfit| ChangeError::Misfit {
        edit: format!("namespace resize {}", resize.nsid),
        misfit,
    };
    let document = Document::parse(text).or_else(|what| misfit("document", what));
    let nqn = document.and_then(|document| resize.subsystem(&document));
    let nqn = nqn.map_err(refused)?;
    let size = resize
        .size
        .filter(|size| *size == 0 || !size.is_multiple_of(UNIT));
    if let Some(size) = size {
        let what = format!("{size}: must be a multiple of {UNIT} bytes");
        return misfit("size", what).map_err(refused);
    }
    let done = manager.resize_one(NewSize {
        nqn: &nqn,
        nsid: resize.nsid,
        size: resize.size,
        shrink: resize.shrink,
    });
    done.map_err(|error| match error {
        NotResized::Apply(error) => error.into(),
        NotResized::Unfit(key, what) => refused(Misfit { key, what }),
    })
}

impl Resize {
    /// The subsystem that has the namespace.
    fn subsystem(&self, document: &Document) -> Result<String, Misfit> {
        let mut named = Edit::NamespaceRemove {
            subsystem: self.subsystem.clone(),
            nsid: self.nsid,
        };
        document.settle(&mut named, &[])?;
        document.path_of(&named)?;
        let nqn = named.subsystem_mut().and_then(Option::take);
        Ok(nqn.unwrap_or_default())
    }
}
