//! A slow query whose result is shared by all callers that ask while it runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The last result of a query. Safe to call from several threads.
#[derive(Debug)]
pub(super) struct Joined<T> {
    /// The result and when its query began.
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
    /// A result of `query` that began after this call.
    ///
    /// A query in progress is not used: it may have begun before. Callers that wait for it
    /// share the next one.
    pub(super) fn get(&self, query: impl FnOnce() -> T) -> Arc<T> {
        let asked = Instant::now();
        // A query that panicked left the previous result.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((began, result)) = &*last
            && *began >= asked
        {
            return Arc::clone(result);
        }
        let began = Instant::now();
        let result = Arc::new(query());
        *last = Some((began, Arc::clone(&result)));
        result
    }
}
