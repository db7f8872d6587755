//! Resizing a namespace: its file is resized, or its present size is adopted.

use super::document::{Document, EditError, refusal};
use nvmeof_target_api::{Edit, Resize};

use super::ChangeError;
use nvmeof_target_manage::{Manager, Report, ResizeNamespaceError, ResizeRequest};

/// Every block size divides this.
const UNIT: u64 = 4096;

/// Resizes a namespace of the document `text`, and its file.
///
/// # Errors
/// [`ChangeError`]; the namespace did not change.
pub(super) fn make(manager: &Manager, text: &str, resize: &Resize) -> Result<Report, ChangeError> {
    let refused = |refusal| ChangeError::Edit {
        edit: format!("namespace resize {}", resize.nsid),
        refusal,
    };
    let document = Document::parse(text).or_else(|what| refusal("document", what));
    let nqn = document.and_then(|document| subsystem(resize, &document));
    let nqn = nqn.map_err(refused)?;
    let size = resize
        .size
        .filter(|size| *size == 0 || !size.is_multiple_of(UNIT));
    if let Some(size) = size {
        let what = format!("{size}: must be a multiple of {UNIT} bytes");
        return refusal("size", what).map_err(refused);
    }
    let done = manager.resize_namespace(ResizeRequest {
        nqn: &nqn,
        nsid: resize.nsid,
        size: resize.size,
        shrink: resize.shrink,
    });
    done.map_err(|error| match error {
        ResizeNamespaceError::Apply(error) => error.into(),
        ResizeNamespaceError::Invalid(key, what) => refused(EditError { key, what }),
    })
}

/// The subsystem that has the namespace.
fn subsystem(resize: &Resize, document: &Document) -> Result<String, EditError> {
    let mut named = Edit::NamespaceRemove {
        subsystem: resize.subsystem.clone(),
        nsid: resize.nsid,
    };
    document.settle(&mut named, &[])?;
    document.path_of(&named)?;
    let nqn = named.subsystem_mut().and_then(Option::take);
    Ok(nqn.unwrap_or_default())
}
