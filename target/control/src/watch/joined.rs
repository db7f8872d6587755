//! Something that takes a while to find out, found out once for all who ask
//! meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// What was found out the last time. Asking from several threads is fine.
#[derive(Debug)]
pub(super) struct Joined<T> {
    /// With when finding it out began.
    last: Mutex<Option<(Instant, Arc<T>)>>,
}

impl<T> Default for Joined<T> {
    fn default() -> Self {
        Self {
            last: Mutex::new(None),
        }
    }
}

impl<T> Joined<T> {
    /// What `find` finds, not before this was called.
    ///
    /// Who asks while somebody else is finding out gets what is found next,
    /// together with all others who asked meanwhile.
    pub(super) fn get(&self, find: impl FnOnce() -> T) -> Arc<T> {
        let asked = Instant::now();
        // Who panicked left what was there before.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((begun, found)) = &*last
            && *begun >= asked
        {
            return Arc::clone(found);
        }
        let begun = Instant::now();
        let found = Arc::new(find());
        *last = Some((begun, Arc::clone(&found)));
        found
    }
}
