//! What a queue counts, and where.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::Status;

use super::{Failure, News, Queue, Request, Role};
use crate::Response;
use crate::controller::errors::ErrorEntry;
use crate::metrics::Book;

impl Queue {
    /// Counts its commands in the book of its reactor. Call it before the first
    /// one.
    pub fn count_in(&mut self, book: &Book) {
        self.meter.count_in(book);
    }

    /// Its connection ended with an error of RDMA or of the network, which is counted for
    /// the host.
    pub fn broke(&self) {
        self.meter.broke();
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

    /// A command is answered.
    #[inline]
    pub(super) fn ended(&mut self, request: &mut Request) {
        if std::mem::take(&mut request.is_outstanding)
            && let Role::Io(joined) = &mut self.role
        {
            joined.counting.ended();
        }
    }

    /// Puts a failure in the controller's error log, if there is a controller. Gives
    /// the status to answer with. Base 2.1, 4.2.3, More: "there is more status information
    /// for this command as part of the Error Information log page".
    pub(super) fn note(&mut self, request: &Request, failure: Failure) -> Status {
        let Some(controller) = self.controller() else {
            return failure.status;
        };
        let status = failure.status.with_more();
        let controller = Arc::clone(controller);
        let tells = controller.note(ErrorEntry {
            count: 0,
            sqid: self.qid,
            cid: request.cid,
            status,
            location: failure.location,
            lba: request.lba,
            nsid: request.nsid,
        });
        // The admin queue has an event to tell. Not each time: a host that has
        // commands of a disk fail would have every reactor look after all queues.
        if tells {
            self.news |= News::POLL_ALL;
        }
        status
    }
}
