//! Edits and states from untrusted bytes, for fuzz targets: they are refused with an error, or
//! give a valid configuration.

use std::path::Path;
use std::sync::Arc;

use super::effective::{AdminFile, Base, Effective};
use super::keeper::ServedState;
use super::state::State;
use nvmeof_target_api::EditsIn;

/// Applies the edits of a request body to a document. Returns the resulting document; `None` if
/// something is refused.
///
/// # Panics
/// If accepted edits cannot be written, read again and served.
pub(crate) fn edits(document: &str, body: &[u8]) -> Option<String> {
    let EditsIn { edits, .. } = serde_json::from_slice(body).ok()?;
    let base = Base::of(&State::new(), file(document)).ok()?;
    let kept = ServedState::of(base.clone(), State::new()).ok()?;
    let state = kept.edited(edits).ok()?.state;
    let effective = Effective::of(&base, &state.edits, &[]);
    let effective = effective.unwrap_or_else(|error| unreachable!("the base is good: {error}"));
    assert!(effective.deferred.is_empty(), "{:?}", effective.deferred);
    let written = serde_json::to_vec(&state).unwrap_or_default();
    assert_eq!(State::parse(&base.name, &written), Ok(state));
    Some(effective.text)
}

/// Parses bytes as a state file on top of a document. Returns how many changes are in effect;
/// `None` if the file is refused or nothing can be served.
///
/// # Panics
/// If a change prevents serving what could be served without it.
pub(crate) fn state(document: &str, bytes: &[u8]) -> Option<usize> {
    let state = State::parse(Path::new("state.json"), bytes).ok()?;
    let base = Base::of(&state, file(document)).ok()?;
    let alone = Effective::of(&base, &[], &[]);
    let kept = ServedState::of(base, state);
    assert_eq!(
        kept.is_ok(),
        alone.is_ok(),
        "edits do not decide whether the base is valid"
    );
    let kept = kept.ok()?;
    let (all, deferred) = (kept.state.edits.len(), kept.effective.deferred.len());
    all.checked_sub(deferred)
}

fn file(document: &str) -> Arc<AdminFile> {
    Arc::new(AdminFile {
        path: "target.toml".into(),
        text: document.to_owned(),
    })
}
