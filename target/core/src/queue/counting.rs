//! Counters and error log of a queue.

use std::sync::Arc;
use std::time::Duration;

use nvmeof_wire::Status;

use super::{Queue, Role};
use crate::Response;
use crate::controller::errors::ErrorEntry;
use crate::metrics::ReactorMetrics;
use crate::request::{Failure, Request, Stage};

impl Queue {
    /// Counts its commands in the metrics of its reactor. Call it before the first command.
    pub fn count_in(&mut self, reactor_metrics: &ReactorMetrics) {
        self.meter.count_in(reactor_metrics);
    }

    /// Counts, for the host, that the connection ended with an error of RDMA or of the
    /// network.
    pub fn count_connection_error(&mut self) {
        self.lost_host = true;
        self.meter.count_connection_error();
    }

    /// Counts a completed command, which took `took` from its arrival.
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

    /// A command completes.
    #[inline]
    pub(super) fn ended(&mut self, request: &mut Request) {
        if std::mem::take(&mut request.is_outstanding)
            && let Role::Io(joined) = &mut self.role
        {
            joined.counting.ended();
        }
    }

    /// The operation failed at `byte`, or a compare found a difference there. Call it before
    /// [`step`](Self::step). NVM 1.0, 4.1.4.1, LBA of the
    /// Error Information log: "the first LBA that experienced the error condition, if applicable".
    #[cold]
    pub fn failed_at(&self, request: &mut Request, byte: u64) {
        let shift = match request.stage {
            Stage::Executing(op) | Stage::Pieces(op) if op.bytes().contains(&byte) => {
                let Role::Io(joined) = &self.role else {
                    return;
                };
                // By the block size of the namespace when the command began.
                let namespace = joined.namespace(request.nsid).ok();
                namespace.and_then(|it| (it.store == op.store).then_some(it.block_shift))
            }
            Stage::Trim { extent, .. } => Some(extent.block_shift),
            Stage::Copy(copying) => Some(copying.block_shift()),
            _ => None,
        };
        if let Some(shift) = shift {
            request.lba = byte >> shift;
        }
    }

    /// As [`failed_at`](Self::failed_at), `bytes` after the first byte of the operation.
    #[cold]
    pub fn failed_after(&self, request: &mut Request, bytes: u64) {
        if let Stage::Executing(op) = request.stage {
            self.failed_at(request, op.offset.saturating_add(bytes));
        }
    }

    /// Adds a failure to the error log of the controller, if there is one. Returns the
    /// status of the completion. Base 2.1, 4.2.3, More: "there is more status information
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
        // The admin queue has a new event. Not for each failure: a backing store may fail often.
        if tells {
            self.request_calls([controller.home_call()]);
        }
        status
    }
}
