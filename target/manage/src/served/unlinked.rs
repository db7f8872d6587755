//! Files that are served but were deleted, renamed or replaced: their data are lost when the
//! target ends.

use std::collections::BTreeMap;
use std::io;
use std::sync::{MutexGuard, PoisonError};

use nvmeof_backend::Spec;

use super::Manager;
use super::pool::NamespaceStore;

type Unlinked = BTreeMap<u32, String>;

impl Manager {
    /// Checks that the path of each served file still names that file, and warns once for each
    /// that it does not. Returns whether anything changed.
    pub(super) fn check_names(&self) -> bool {
        let stores = self.snapshot().stores;
        let mut changed = false;
        for store in &stores {
            let why = unlinked(store);
            let mut known = self.known_unlinked();
            match (why, known.contains_key(&store.number)) {
                (Some(why), false) => {
                    let (subsystem, nsid) = (&store.configured.nqn, store.configured.nsid);
                    tracing::warn!(%subsystem, nsid, "namespace {nsid} of {subsystem}: {why}");
                    known.insert(store.number, why);
                    changed = true;
                }
                (None, true) => {
                    known.remove(&store.number);
                    changed = true;
                }
                _ => {}
            }
        }
        let is_there = |number: &u32| stores.iter().any(|store| store.number == *number);
        self.known_unlinked().retain(|number, _| is_there(number));
        changed
    }

    /// The warnings about files that lost their names, by subsystem NQN and NSID.
    pub fn unlinked(&self) -> BTreeMap<(String, u32), String> {
        let (snapshot, known) = (self.snapshot(), self.known_unlinked());
        let named = |store: &NamespaceStore| {
            let what = known.get(&store.number)?.clone();
            Some(((store.configured.nqn.clone(), store.configured.nsid), what))
        };
        snapshot.stores.iter().filter_map(named).collect()
    }

    fn known_unlinked(&self) -> MutexGuard<'_, Unlinked> {
        // A panic of a holder leaves nothing inconsistent.
        self.unlinked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The warning about a file that lost its name.
fn unlinked(store: &NamespaceStore) -> Option<String> {
    let (claim, Spec::File { path, .. }) = (store.claim()?, &store.configured.spec) else {
        return None;
    };
    let what = match claim.is_at(path) {
        Ok(false) => "another file has this name now",
        Err(error) if error.kind() == io::ErrorKind::NotFound => "the file was deleted or renamed",
        // No warning, or the state is unknown.
        Ok(true) | Err(_) => return None,
    };
    let open = claim.open_path().unwrap_or_default();
    Some(format!(
        "{}: {what}; the old file is still served, and is lost when the target ends or closes \
         it; rename it back, or save it with `nvmeof-target ctl drain` and `cp {} COPY`",
        path.display(),
        open.display()
    ))
}
