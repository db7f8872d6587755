//! Abort (Base 2.1, 5.1.1): commands that have not started are aborted.
//!
//! The admin queue holds the Abort command and wakes the reactor of the queue that it
//! names. That queue looks for the command and reports the outcome, which wakes the
//! reactor of the admin queue to complete the Abort. Other reactors are not involved, so
//! that a host may abort often.

use std::time::Duration;

use nvmeof_wire::admin::Abort;
use nvmeof_wire::{Sqe, Status};

use super::{FollowUps, Queue, Role};
use crate::admin::cancel_requests;
use crate::controller::Controller;
use crate::controller::aborts::AbortOutcome;
use crate::request::{Failure, Next, Request, Stage};
use crate::{Action, Call, Order, Response};

/// The reactor of a queue, and the calls that it has to deliver.
#[derive(Debug, Default)]
pub(super) struct Home {
    pub(super) reactor: u16,
    calls: Vec<Call>,
}

/// The response to a command that was held.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldAnswer {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
}

/// Base 2.1, 5.1.1, dword 0 of the completion: bit 0 "cleared to 0: the command was
/// aborted", "set to 1: was not".
fn result(aborted: bool) -> u64 {
    u64::from(!aborted)
}

impl Queue {
    /// An Abort command on the admin queue.
    pub(super) fn begin_abort(&mut self, request: &Request, sqe: &Sqe) -> Result<Next, Failure> {
        let Role::Admin(controller) = &self.role else {
            return Err(Status::INTERNAL_ERROR.into());
        };
        let Abort { sqid, cid } = Abort::parse(sqe);
        // Event requests are pending only on the admin queue.
        let event_request = self.event_requests.iter().position(|one| *one == cid);
        if let (0, Some(at)) = (sqid, event_request) {
            self.event_requests.remove(at);
            self.completions.push_back(HeldAnswer {
                cid,
                status: Status::ABORT_REQUESTED,
                result: 0,
            });
            self.completions.push_back(HeldAnswer {
                cid: request.cid,
                status: Status::SUCCESS,
                result: result(true),
            });
            self.follow_ups |= FollowUps::POLL;
            return Ok(Next::Hold);
        }
        match controller.ask_abort(request.cid, sqid, cid) {
            AbortOutcome::NoQueue => Ok(Next::Done(result(false))),
            AbortOutcome::TooMany => Err(Failure::transient(Status::ABORT_LIMIT_EXCEEDED)),
            AbortOutcome::Waits { at } => {
                let cntlid = controller.cntlid;
                let call = Call {
                    reactor: at,
                    cntlid,
                };
                self.call(sqid, call);
                Ok(Next::Hold)
            }
        }
    }

    /// The next command of this queue that is to be aborted.
    pub(super) fn next_abort(&self, controller: &Controller) -> Option<Order> {
        let cid = controller.next_abort(self.qid)?;
        Some(Order::Abort { cid })
    }

    /// The next response to a command that was held, if there is one.
    pub(super) fn next_answer(&mut self, controller: &Controller) -> Option<Order> {
        let known = || {
            let (cid, aborted) = controller.completed_abort()?;
            Some(HeldAnswer {
                cid,
                status: Status::SUCCESS,
                result: result(aborted),
            })
        };
        let completion = self.completions.pop_front().or_else(known)?;
        let cqe = self.completion(completion.cid, completion.status, completion.result);
        Some(Order::Respond(Response {
            push: None,
            cqe,
            invalidate: None,
        }))
    }

    /// Completes a command that has begun, but has no effect yet, with Command Abort
    /// Requested.
    pub fn abort(&mut self, request: &mut Request) -> Action {
        if let (Stage::Protect { asked, .. }, Role::Admin(controller)) = (request.stage, &self.role)
            && cancel_requests(&self.shared, controller, |one| one == asked)
        {
            self.follow_ups |= FollowUps::POLL_ALL;
        }
        self.respond(request, None, Status::ABORT_REQUESTED, 0)
    }

    /// Completes a command that waits for a resource of the target, if its host can no
    /// longer access the namespace: with the status of a new command (Base 2.1, 3.2.1).
    pub fn end_removed(&mut self, request: &mut Request) -> Option<Action> {
        let Role::Io(joined) = &mut self.role else {
            return None;
        };
        let failure = joined.removed(request.nsid)?;
        Some(self.act(request, Err(failure)))
    }

    /// Completes a command that has not begun, with Command Abort Requested.
    pub fn abort_unseen(&mut self, capsule: &[u8]) -> Option<Response> {
        let sqe = Sqe::in_capsule(capsule)?;
        let mut request = Request::default();
        request.start(sqe, capsule, self.bounds);
        match self.abort(&mut request) {
            Action::Respond(response) => {
                self.count(&request, &response, Duration::ZERO);
                Some(response)
            }
            _ => None,
        }
    }

    /// Reports the outcome of an [`Order::Abort`].
    pub fn aborted(&mut self, cid: u16, aborted: bool) {
        let qid = self.qid;
        if let Some(controller) = self.controller() {
            controller.lock().aborts.report(qid, cid, aborted);
            let call = controller.home_call();
            self.call(0, call);
        }
    }

    /// Requests a poll of queue `qid` of the controller of `call`.
    fn call(&mut self, qid: u16, call: Call) {
        if qid == self.qid {
            self.follow_ups |= FollowUps::POLL;
        } else {
            self.request_calls([call]);
        }
    }

    /// Requests that the engine delivers `calls`.
    pub(super) fn request_calls(&mut self, calls: impl IntoIterator<Item = Call>) {
        self.home.calls.extend(calls);
        if !self.home.calls.is_empty() {
            self.follow_ups |= FollowUps::CALL;
        }
    }

    /// Sets the reactor of this queue, by its index among those that share the target. Call
    /// it before the queue is connected.
    pub fn set_home(&mut self, reactor: u16) {
        self.home.reactor = reactor;
    }

    /// Takes the calls to deliver.
    pub fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.home.calls)
    }
}

impl Request {
    /// Whether the last requested operation of the backing store is its only one: until
    /// the store has it, the command has no effect.
    #[must_use]
    pub fn is_one_operation(&self) -> bool {
        matches!(self.stage, Stage::Executing(_))
    }
}
