//! What a queue counts, and where.

use std::time::Duration;

use super::{Queue, Request, Role};
use crate::Response;
use crate::metrics::Book;

impl Queue {
    /// Counts its commands in the book of its reactor. Call it before the first
    /// one.
    pub fn count_in(&mut self, book: &Book) {
        self.meter.count_in(book);
    }

    /// Counts a command that was answered, so long after it came.
    #[inline]
    pub fn count(&mut self, request: &Request, response: &Response, took: Duration) {
        let status = response.cqe.status();
        match &self.role {
            Role::Io(joined) => {
                let has = |nsid| joined.namespace(nsid).is_ok();
                self.meter.io(request, status, took, has);
            }
            _ => self.meter.admin(request, status),
        }
    }
}
