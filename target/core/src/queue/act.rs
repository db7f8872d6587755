//! Converts the next step of a request into an action of the engine or its response.

use nvmeof_wire::{Cqe, Status};

use super::{FollowUps, Queue};
use crate::request::{Failure, Next, Request, Stage};
use crate::{Action, CloseCause, Data, IoKind, Remote, Response};

impl Queue {
    /// Converts the next step into an action; a finished request gets its response.
    // Inlined into callers that know most of the arguments.
    #[inline(always)]
    pub(super) fn act(&mut self, request: &mut Request, next: Result<Next, Failure>) -> Action {
        match next {
            Ok(Next::Execute(op)) => Action::Execute(op),
            Ok(Next::Done(result)) => self.done(request, result),
            Ok(Next::Fuse) => Action::Fuse,
            Ok(Next::Produce(len)) => Action::Produce { len },
            Ok(Next::Keep) => self.keep(request),
            Ok(Next::Compute) => self.compute(request),
            Ok(Next::Hold) => {
                request.stage = Stage::Over;
                Action::Hold
            }
            Ok(Next::Data) => self.unexpected_event(request),
            Ok(Next::DoneAndClose) => self.done_and_close(request),
            Err(failure) => self.failed(request, failure),
        }
    }

    #[inline]
    fn done(&mut self, request: &mut Request, result: u64) -> Action {
        let gives = match request.stage {
            Stage::Executing(op) => op.kind == IoKind::Read,
            Stage::Produce { .. } | Stage::Report { .. } => true,
            _ => false,
        };
        let push = match &request.data {
            Data::Remote(remote) if gives => Some(*remote),
            Data::List { .. } if gives => Some(request.whole()),
            _ => None,
        };
        self.respond(request, push, Status::SUCCESS, result)
    }

    #[cold]
    fn keep(&mut self, request: &mut Request) -> Action {
        match self.keeping.take() {
            Some(keeping) => Action::AwaitSave(keeping),
            None => self.unexpected_event(request),
        }
    }

    #[cold]
    fn compute(&mut self, request: &mut Request) -> Action {
        let authentication = self.authentication.as_mut();
        match authentication.and_then(|authentication| authentication.take_work()) {
            Some(work) => Action::Compute(work),
            None => self.unexpected_event(request),
        }
    }

    #[cold]
    fn done_and_close(&mut self, request: &mut Request) -> Action {
        self.closing = Some(CloseCause::Disconnected);
        self.follow_ups |= FollowUps::POLL;
        self.respond(request, None, Status::SUCCESS, 0)
    }

    #[cold]
    pub(super) fn failed(&mut self, request: &mut Request, failure: Failure) -> Action {
        let status = self.note(request, failure);
        self.respond(request, None, status, failure.result)
    }

    #[inline]
    pub(super) fn respond(
        &mut self,
        request: &mut Request,
        push: Option<Remote>,
        status: Status,
        result: u64,
    ) -> Action {
        request.stage = Stage::Over;
        self.ended(request);
        Action::Respond(Response {
            push,
            cqe: self.completion(request.cid, status, result),
            invalidate: request.invalidate.take(),
        })
    }

    #[inline]
    pub(super) fn completion(&mut self, cid: u16, status: Status, result: u64) -> Cqe {
        Cqe::new(cid, self.sq.advance(), status, result)
    }
}
