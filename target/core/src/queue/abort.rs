//! Abort (Base 2.1, 5.1.1): what was not begun is not done.
//!
//! The admin queue holds the command and has the reactor of the queue that it names
//! look after its queues. That queue looks for the command and says what became of
//! it; the reactor of the admin queue is told, and that answers. No other reactor has
//! to look: a host may abort as often as it likes.

use std::time::Duration;

use nvmeof_wire::admin::Abort;
use nvmeof_wire::{Sqe, Status};

use super::{FollowUps, Queue, Role};
use crate::admin::give_up;
use crate::controller::Controller;
use crate::controller::aborts::Asked;
use crate::request::{Failure, Next, Request, Stage};
use crate::{Action, Order, Response};

/// Where a queue is, and where others are that have something to do.
#[derive(Debug, Default)]
pub(super) struct Home {
    pub(super) reactor: u16,
    calls: Vec<u16>,
}

/// What a command that was held is answered with.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldAnswer {
    pub(super) cid: u16,
    pub(super) status: Status,
    pub(super) result: u64,
}

/// Base 2.1, 5.1.1, dword 0 of the answer: bit 0 "cleared to 0: the command was
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
        // Event requests wait here and nowhere else.
        let event_request = self.event_requests.iter().position(|one| *one == cid);
        if let (0, Some(at)) = (sqid, event_request) {
            self.event_requests.remove(at);
            self.answers.push_back(HeldAnswer {
                cid,
                status: Status::ABORT_REQUESTED,
                result: 0,
            });
            self.answers.push_back(HeldAnswer {
                cid: request.cid,
                status: Status::SUCCESS,
                result: result(true),
            });
            self.follow_ups |= FollowUps::POLL;
            return Ok(Next::Hold);
        }
        match controller.ask_abort(request.cid, sqid, cid) {
            Asked::NoQueue => Ok(Next::Done(result(false))),
            Asked::TooMany => Err(Failure::transient(Status::ABORT_LIMIT_EXCEEDED)),
            Asked::Waits { at } => {
                self.call(sqid, at);
                Ok(Next::Hold)
            }
        }
    }

    /// The next command of this queue that is to be aborted.
    pub(super) fn next_abort(&self, controller: &Controller) -> Option<Order> {
        let cid = controller.next_abort(self.qid)?;
        Some(Order::Abort { cid })
    }

    /// The next answer to a command that was held, if there is one.
    pub(super) fn next_answer(&mut self, controller: &Controller) -> Option<Order> {
        let known = || {
            let (cid, aborted) = controller.known_abort()?;
            Some(HeldAnswer {
                cid,
                status: Status::SUCCESS,
                result: result(aborted),
            })
        };
        let answer = self.answers.pop_front().or_else(known)?;
        let cqe = self.completion(answer.cid, answer.status, answer.result);
        Some(Order::Respond(Response {
            push: None,
            cqe,
            invalidate: None,
        }))
    }

    /// Answers a command for which nothing was done but that it was begun, with
    /// Command Abort Requested.
    pub fn abort(&mut self, request: &mut Request) -> Action {
        if let (Stage::Protect { asked, .. }, Role::Admin(controller)) = (request.stage, &self.role)
            && give_up(&self.shared, controller, |one| one == asked)
        {
            self.follow_ups |= FollowUps::POLL_ALL;
        }
        self.answer(request, None, Status::ABORT_REQUESTED, 0)
    }

    /// Answers a command that waits for something of ours, if its namespace is not
    /// there for its host any more: as one that comes now, Base 2.1, 3.2.1.
    pub fn end_removed(&mut self, request: &mut Request) -> Option<Action> {
        let Role::Io(joined) = &mut self.role else {
            return None;
        };
        let failure = joined.removed(request.nsid)?;
        Some(self.act(request, Err(failure)))
    }

    /// The answer to a command that was not begun: Command Abort Requested.
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

    /// Says what became of an [`Order::Abort`].
    pub fn aborted(&mut self, cid: u16, aborted: bool) {
        let qid = self.qid;
        if let Some(controller) = self.controller() {
            controller.lock().aborts.tell(qid, cid, aborted);
            let at = controller.home;
            self.call(0, at);
        }
    }

    /// Has queue `qid` of the controller polled, which the reactor `at` has.
    fn call(&mut self, qid: u16, at: u16) {
        if qid == self.qid {
            self.follow_ups |= FollowUps::POLL;
        } else {
            self.call_reactor(at);
        }
    }

    /// Has a reactor poll all its queues.
    pub(super) fn call_reactor(&mut self, at: u16) {
        self.home.calls.push(at);
        self.follow_ups |= FollowUps::CALL;
    }

    /// Which reactor has this queue, by its place among those that share the target.
    /// Call it before the queue is connected.
    pub fn set_home(&mut self, reactor: u16) {
        self.home.reactor = reactor;
    }

    /// Reactors that are to poll their queues.
    pub fn take_calls(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.home.calls)
    }
}

impl Request {
    /// Whether its only disk operation is the one that was asked for last: as
    /// long as the disk does not have that, nothing was done.
    #[must_use]
    pub fn is_one_operation(&self) -> bool {
        matches!(self.stage, Stage::Disk(_))
    }
}
