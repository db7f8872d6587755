//! Calls in flight: lending their memory, cutting them into commands, putting
//! the answers together.

use std::collections::VecDeque;
use std::time::Duration;

use nvmeof_initiator_core::{Cid, CommandCompletion, CommandError, Direction, IoLimits, Payload};
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    ExposeError, Inline, PostError, Posted, Provider, Refused, RemoteKey, RemoteSlice, Rights, Tag,
};
use nvmeof_wire::{Sqe, Status};
use slab::Slab;

use super::call::{Call, CallTimeout, Done, SubmitError, Work};
use super::connection::{Connection, SendContext};
use super::pools::Pools;
use crate::Error;
use crate::error::MachineError;

/// A command in flight.
#[derive(Debug)]
pub(super) struct InFlightCommand {
    /// The call it belongs to.
    pub(super) transfer: usize,
    /// The key that the controller was requested to invalidate.
    pub(super) key: Option<RemoteKey>,
    /// Whether the send of the capsule has completed.
    pub(super) sent: bool,
    /// The response, once received.
    pub(super) completion: Option<CommandCompletion>,
    /// First block and number of blocks of this part of a split call.
    part: (u64, u64),
}

/// All calls of a connection that have not ended.
#[derive(Debug)]
pub(super) struct Transfers {
    calls: Slab<Transfer>,
    /// Calls with commands that are not sent yet, oldest first.
    unfinished: VecDeque<usize>,
    /// Calls that wait for their withdrawn buffers, oldest first, with the keys.
    returning: VecDeque<(RemoteKey, usize)>,
    capacity: usize,
    /// Calls that the controller refused until the queue is authenticated again, oldest first.
    refused: VecDeque<RefusedCall>,
    /// Number of them, the oldest, that can be sent again.
    released: usize,
    /// Whether such calls are kept. They end with the status otherwise.
    keeps_refused: bool,
    /// Whether the queue pair is not closed: a trusted target can access all buffers.
    is_open: bool,
    /// Buffers of ended calls, which the target may still access until the queue pair is closed.
    kept: Vec<Buf>,
}

/// A call that the controller refused with Authentication Required. Other commands of a split call
/// may have been executed.
#[derive(Debug)]
struct RefusedCall {
    call: Call,
    history: History,
    error: Error,
}

/// What became of the commands of a call, the earlier attempts included.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// How often the controller refused the call with Authentication Required.
    refusals: u8,
    /// Whether a command of it may have been executed.
    may_have_executed: bool,
}

/// A call that is not sent again, because its caller waits no more.
#[cfg(feature = "async")]
#[derive(Debug)]
pub(crate) struct Withdrawn {
    pub(crate) call: Call,
    /// Whether a command of it may have been executed.
    pub(crate) may_have_executed: bool,
}

/// A call is sent again this often after Authentication Required, as Linux does after any status
/// (`nvme_core.max_retries`).
const MAX_REFUSALS: u8 = 5;
/// The count of a call that is not sent again.
const NOT_AGAIN: u8 = u8::MAX;

#[derive(Debug)]
struct Transfer {
    work: Work,
    user: u64,
    timeout: CallTimeout,
    memory: Memory,
    /// Blocks for which commands were sent.
    next: u64,
    /// Most blocks of one command.
    step: u64,
    /// Commands in flight.
    outstanding: u32,
    history: History,
    result: Result<u64, Error>,
}

/// State of the payload buffer.
#[derive(Debug)]
enum Memory {
    /// There is none, or it is part of a send.
    None,
    /// Not in use.
    Home(Buf),
    /// Exposed to the controller.
    Lent {
        slice: RemoteSlice,
        /// Whether the controller may invalidate the key.
        may_invalidate: bool,
    },
    /// Withdrawn from the controller. A device still has to end the access.
    Returning(RemoteKey),
    /// In a region that the controller, which is trusted, can access at any time. It accesses
    /// the buffer until its last command completes, or the queue pair is closed.
    Open(Buf),
}

impl Connection {
    /// Accepts a call. The next [`submit_now`](Connection::submit_now) or
    /// [`poll`](Connection::poll) sends its commands.
    ///
    /// # Errors
    /// [`SubmitError`] with the call, unchanged. A call whose first command is refused while a
    /// device may still access its buffer is accepted, and ends with an error when the buffer has
    /// returned.
    pub fn submit(
        &mut self,
        call: Call,
        limits: &IoLimits,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        if !self.is_up() {
            let why = SubmitError::NotConnected(self.not_ready());
            return Err(Refused { why, back: call });
        }
        self.parts().submit(call, History::default(), limits, now)
    }

    /// Accepts a call of the queue itself, which ends with any status. Otherwise as
    /// [`submit`](Self::submit).
    pub(super) fn submit_own(
        &mut self,
        call: Call,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        let history = History {
            refusals: NOT_AGAIN,
            may_have_executed: false,
        };
        // In-capsule data are used for I/O commands only.
        self.parts()
            .submit(call, history, &IoLimits::default(), now)
    }

    /// The caller of the call `user` waits no more: it is not sent again. Otherwise it could be
    /// executed after later calls, and undo them. Returns it if it waits for that; if commands of
    /// it are in flight, it ends with them.
    #[cfg(feature = "async")]
    pub(super) fn withdraw(&mut self, user: u64) -> Option<Withdrawn> {
        self.parts().transfers.withdraw(user)
    }

    /// Keeps calls that the controller refuses with Authentication Required from now on.
    pub(super) fn keep_refused(&mut self) {
        self.parts().transfers.keeps_refused = true;
    }

    /// The queue is authenticated: the refused calls can be sent again.
    pub(super) fn release_refused(&mut self) {
        let transfers = self.parts().transfers;
        transfers.released = transfers.refused.len();
    }

    /// Sends released calls again, as many as there is room for.
    pub(super) fn send_released(&mut self, limits: &IoLimits, now: Duration, done: &mut Vec<Done>) {
        let mut parts = self.parts();
        while parts.transfers.released > 0
            && let Some(refused) = parts.transfers.refused.pop_front()
        {
            let RefusedCall {
                call,
                history,
                error,
            } = refused;
            match parts.submit(call, history, limits, now) {
                Ok(()) => {}
                // They wait for room. If the queue pair is closing, they end with it, and have the
                // reason.
                Err(Refused { why, back: call })
                    if matches!(why, SubmitError::Full) || is_closing(&why) =>
                {
                    parts.transfers.refused.push_front(RefusedCall {
                        call,
                        history,
                        error,
                    });
                    return;
                }
                Err(Refused { back, .. }) => done.push(failed(back, error)),
            }
            parts.transfers.released -= 1;
        }
    }

    /// The queue could not be authenticated: the refused calls end with the status.
    pub(super) fn end_refused(&mut self, done: &mut Vec<Done>) {
        let transfers = self.parts().transfers;
        let unreleased = transfers.refused.drain(transfers.released..);
        done.extend(unreleased.map(|refused| failed(refused.call, refused.error)));
    }

    /// Sends the next commands of split calls.
    pub(super) fn continue_transfers(&mut self, now: Duration) {
        if self.is_up() {
            self.parts().continue_transfers(now);
        }
    }
}

impl SendContext<'_> {
    fn submit(
        &mut self,
        mut call: Call,
        history: History,
        limits: &IoLimits,
        now: Duration,
    ) -> Result<(), Refused<Call, SubmitError>> {
        let refuse = |why, back| Err(Refused { why, back });
        let expected = call.work.bytes();
        let got = call.buf.as_ref().map_or(0, |buf| buf.len() as u64);
        if got != expected {
            return refuse(SubmitError::Length { expected, got }, call);
        }
        if !self.transfers.has_room() || self.queue.room() == 0 {
            return refuse(SubmitError::Full, call);
        }
        let (direction, step, total) = match &call.work {
            Work::Single(command) => (command.direction(), 1, 1),
            Work::Blocks(blocks) => (blocks.direction(), blocks.step(limits), blocks.units()),
        };
        if total == 0 {
            return refuse(SubmitError::Empty, call);
        }
        if let Some(why) = self.no_room_together(&call.work) {
            return refuse(why, call);
        }
        let in_capsule = step >= total
            && direction == Direction::ToController
            && expected <= u64::from(limits.in_capsule);
        let memory = match self.place(call.buf.take(), direction, in_capsule) {
            Ok(memory) => memory,
            Err((why, back)) => {
                call.buf = Some(back);
                return refuse(SubmitError::Buffer(why), call);
            }
        };
        let index = self.transfers.calls.insert(Transfer {
            work: call.work,
            user: call.user,
            timeout: call.timeout,
            memory,
            next: 0,
            step,
            outstanding: 0,
            history,
            result: Ok(0),
        });
        let sent = match step >= total {
            true => self.send_part(index, now),
            false => self.send_parts(index, now),
        };
        match sent {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.transfers.unfinished.push_back(index);
                Ok(())
            }
            // Commands in flight cannot be cancelled: the call is accepted. The rest is retried
            // later, or ends with the queue pair.
            Err(_) if self.transfers.has_outstanding(index) => {
                self.transfers.unfinished.push_back(index);
                Ok(())
            }
            Err(why) => self.undo(index, why),
        }
    }

    /// Why the commands of a fused operation cannot be sent now: they must be adjacent, and
    /// the first does not complete before the second arrives.
    #[inline]
    fn no_room_together(&self, work: &Work) -> Option<SubmitError> {
        let together = work.together();
        if together == 1 || together <= self.queue.room() {
            return None;
        }
        let narrow = together >= usize::from(self.queue.size());
        Some(if narrow {
            SubmitError::Narrow
        } else {
            SubmitError::Full
        })
    }

    /// Exposes the payload of a call to the controller with the least rights, unless it is
    /// in-capsule data.
    #[inline]
    fn place(
        &mut self,
        buf: Option<Buf>,
        direction: Direction,
        in_capsule: bool,
    ) -> Result<Memory, (ExposeError, Buf)> {
        let Some(buf) = buf else {
            return Ok(Memory::None);
        };
        if in_capsule && !self.provider.peer_works_in_place(self.qp, &buf) {
            return Ok(Memory::Home(buf));
        }
        if self.pools.slice_of(&buf).is_some() {
            return Ok(Memory::Open(buf));
        }
        let rights = match direction {
            Direction::ToHost | Direction::Both => Rights::REMOTE_WRITE,
            Direction::ToController | Direction::None => Rights::REMOTE_READ,
        };
        let exposed = self.provider.expose(self.qp, buf, rights);
        let slice = exposed.map_err(|Refused { why, back }| (why, back))?;
        let may_invalidate = self.provider.peer_may_invalidate(self.qp);
        Ok(Memory::Lent {
            slice,
            may_invalidate,
        })
    }

    /// The first command of a call was refused: returns the call unchanged. If its buffer returns
    /// later, the call is accepted, and ends then.
    #[cold]
    fn undo(&mut self, index: usize, why: PostError) -> Result<(), Refused<Call, SubmitError>> {
        let why = match why {
            PostError::NotRegistered => SubmitError::Buffer(ExposeError::NotRegistered),
            why => SubmitError::Refused(why),
        };
        let Some(transfer) = self.transfers.calls.get_mut(index) else {
            return Ok(());
        };
        let buf = transfer.memory.take_back(self.provider).unwrap_or_default();
        if let Memory::Returning(key) = transfer.memory {
            // If the queue pair is closing, its last event ends the call.
            if !is_closing(&why) {
                transfer.result = Err(MachineError::Internal(why.to_string()).into());
            }
            self.transfers.returning.push_back((key, index));
            *self.posted = true;
            return Ok(());
        }
        let transfer = self.transfers.calls.remove(index);
        let back = Call {
            buf,
            work: transfer.work,
            user: transfer.user,
            timeout: transfer.timeout,
        };
        Err(Refused { why, back })
    }

    fn continue_transfers(&mut self, now: Duration) {
        while let Some(index) = self.transfers.unfinished.front().copied() {
            // A refusal means that the queue pair is closing: its last event ends the call.
            if !self.send_parts(index, now).unwrap_or_default() {
                return;
            }
            self.transfers.unfinished.pop_front();
        }
    }

    /// Sends as many commands of a call as there is room for. Returns whether all are sent.
    #[cold]
    fn send_parts(&mut self, index: usize, now: Duration) -> Result<bool, PostError> {
        loop {
            let transfer = self.transfers.calls.get(index);
            if transfer.is_none_or(Transfer::is_all_sent) {
                return Ok(true);
            }
            if !self.send_part(index, now)? {
                return Ok(false);
            }
        }
    }

    /// Sends the next command of a call. Returns whether there was room for it.
    fn send_part(&mut self, index: usize, now: Duration) -> Result<bool, PostError> {
        let Some(transfer) = self.transfers.calls.get_mut(index) else {
            return Ok(true);
        };
        let deadline = match transfer.timeout {
            CallTimeout::Default => Some(now + self.command_timeout),
            CallTimeout::After(time) => Some(now + time),
            CallTimeout::Never => None,
        };
        let part = transfer.next_part();
        let (payload, key) = transfer.payload(part, self.pools);
        let flight = InFlightCommand {
            transfer: index,
            key,
            sent: false,
            completion: None,
            part,
        };
        let Ok(cid) = self.queue.begin(flight, deadline) else {
            return Ok(false);
        };
        let tag = Tag(u64::from(cid.0));
        let head = Inline::full(payload.capsule(transfer.sqe(part), cid));
        // A buffer that is not exposed is in-capsule data.
        let posted = match transfer.memory.take_home() {
            None => self.provider.post_message(self.qp, tag, &head, None),
            body => {
                let work = nvmeof_rdma::Work::Send {
                    head,
                    body,
                    invalidate: None,
                    solicited: false,
                };
                let posted = self.provider.post(self.qp, tag, work);
                posted.map(|()| Posted::Pending).map_err(|refused| {
                    transfer.memory = refused.back.into_buf().map_or(Memory::None, Memory::Home);
                    refused.why
                })
            }
        };
        match posted {
            Ok(Posted::Pending) => {}
            Ok(Posted::Done) => {
                if let Ok(flight) = self.queue.get_mut(cid) {
                    flight.sent = true;
                }
            }
            Err(why) => return Err(self.not_sent(cid, why)),
        }
        *self.posted = true;
        transfer.outstanding += 1;
        transfer.next = part.0 + part.1;
        Ok(true)
    }

    /// The provider refused a command: it is cancelled.
    #[cold]
    fn not_sent(&mut self, cid: Cid, why: PostError) -> PostError {
        let cancelled = self.queue.cancel(cid);
        debug_assert!(cancelled.is_ok(), "the command is the last one");
        why
    }
}

impl Transfers {
    /// Room for as many calls as a queue of `size` entries can carry.
    pub(super) fn new(size: usize) -> Self {
        Self {
            calls: Slab::with_capacity(size),
            unfinished: VecDeque::with_capacity(size),
            returning: VecDeque::new(),
            capacity: size,
            refused: VecDeque::new(),
            released: 0,
            keeps_refused: false,
            is_open: true,
            kept: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len() + self.refused.len()
    }

    /// Whether calls wait to be sent again.
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether calls wait for an authentication.
    pub(super) fn requires_authentication(&self) -> bool {
        self.refused.len() > self.released
    }

    /// Calls are sent in order: none is accepted while an earlier one waits for room.
    fn has_room(&self) -> bool {
        self.unfinished.is_empty() && self.calls.len() < self.capacity
    }

    /// Whether commands of a call are in flight.
    fn has_outstanding(&self, index: usize) -> bool {
        self.calls
            .get(index)
            .is_some_and(|call| call.outstanding > 0)
    }

    /// Returns a buffer of in-capsule data.
    pub(super) fn give_back(&mut self, index: usize, buf: Buf) {
        if let Some(transfer) = self.calls.get_mut(index) {
            transfer.memory = Memory::Home(buf);
        }
    }

    /// The name of a command in flight.
    pub(super) fn name(&self, flight: &InFlightCommand) -> &'static str {
        let transfer = self.calls.get(flight.transfer);
        transfer.map_or("a command", |transfer| transfer.name(flight.part))
    }

    /// A command of a call has been sent and has completed. The call ends with its last
    /// command.
    pub(super) fn part_done(
        &mut self,
        flight: &InFlightCommand,
        provider: &mut dyn Provider,
        done: &mut Vec<Done>,
    ) -> Result<(), &'static str> {
        let Some(transfer) = self.calls.get_mut(flight.transfer) else {
            return Ok(());
        };
        transfer.outstanding -= 1;
        if let Some(completion) = flight.completion {
            transfer.note(flight.part, completion);
        }
        if transfer.outstanding > 0 || !transfer.is_all_sent() {
            return Ok(());
        }
        let buf = transfer.memory.take_back(provider).map_err(|_busy| BUSY)?;
        if buf.is_none()
            && let Memory::Returning(key) = transfer.memory
        {
            self.returning.push_back((key, flight.transfer));
        } else {
            self.end(flight.transfer, buf, done);
        }
        Ok(())
    }

    /// The buffer of a call returned after the call was over.
    #[cold]
    pub(super) fn buffer_returned(&mut self, key: RemoteKey, buf: Buf, done: &mut Vec<Done>) {
        // Others ended without their buffers, because the connection took too long to close.
        let waiting = self.returning.iter().position(|(of, _)| *of == key);
        let Some((_, index)) = waiting.and_then(|at| self.returning.remove(at)) else {
            return;
        };
        let Some(transfer) = self.calls.get_mut(index) else {
            return;
        };
        if transfer.next == 0 && transfer.result.is_ok() {
            // No command of it was sent, because the queue pair is closing.
            transfer.memory = Memory::Home(buf);
        } else {
            self.end(index, Some(buf), done);
        }
    }

    /// Ends a call that is over.
    #[inline(always)]
    fn end(&mut self, index: usize, buf: Option<Buf>, done: &mut Vec<Done>) {
        let Some(transfer) = self.calls.get_mut(index) else {
            return;
        };
        match std::mem::replace(&mut transfer.result, Ok(0)) {
            Err(error) => self.not_succeeded(index, buf, error, done),
            result => {
                // Destructured, so that the other fields are not moved.
                let Transfer { user, .. } = self.calls.remove(index);
                done.push(Done {
                    user,
                    buf,
                    result,
                    work: None,
                });
            }
        }
        if !self.unfinished.is_empty() {
            self.unfinished.retain(|other| *other != index);
        }
    }

    /// A call failed. It is kept if the controller wants the queue to authenticate first.
    #[cold]
    fn not_succeeded(
        &mut self,
        index: usize,
        buf: Option<Buf>,
        error: Error,
        done: &mut Vec<Done>,
    ) {
        let Transfer {
            user,
            work,
            timeout,
            history,
            ..
        } = self.calls.remove(index);
        let is_refused = matches!(&error, Error::Command(failed)
            if failed.status.is(Status::AUTHENTICATION_REQUIRED) && !failed.status.dnr());
        let call = Call {
            work,
            buf,
            user,
            timeout,
        };
        if !is_refused || !self.keeps_refused || history.refusals >= MAX_REFUSALS {
            return done.push(failed(call, error));
        }
        self.refused.push_back(RefusedCall {
            call,
            history: History {
                refusals: history.refusals + 1,
                ..history
            },
            error,
        });
    }

    #[cfg(feature = "async")]
    fn withdraw(&mut self, user: u64) -> Option<Withdrawn> {
        let at = self.refused.iter().position(|it| it.call.user == user);
        let Some(at) = at else {
            let mut calls = self.calls.iter_mut();
            if let Some((_, call)) = calls.find(|(_, call)| call.user == user) {
                call.history.refusals = NOT_AGAIN;
            }
            return None;
        };
        let RefusedCall { call, history, .. } = self.refused.remove(at)?;
        if at < self.released {
            self.released -= 1;
        }
        Some(Withdrawn {
            call,
            may_have_executed: history.may_have_executed,
        })
    }

    /// The queue pair is closed: a trusted controller accesses nothing any more.
    pub(super) fn queue_pair_closed(&mut self) {
        self.is_open = false;
        self.kept.clear();
    }

    /// The connection is closed, or takes too long to close: takes back the memory that the
    /// controller does not access, and ends all calls.
    pub(super) fn end_all(
        &mut self,
        provider: &mut dyn Provider,
        why: &Error,
        done: &mut Vec<Done>,
    ) {
        self.unfinished.clear();
        self.returning.clear();
        self.released = 0;
        let refused = self.refused.drain(..);
        done.extend(refused.map(|refused| failed(refused.call, why.clone())));
        for mut transfer in self.calls.drain() {
            let is_accessed = self.is_open && matches!(transfer.memory, Memory::Open(_));
            let mut buf = transfer.memory.take_back(provider).unwrap_or_default();
            if is_accessed {
                self.kept.extend(buf.take());
            }
            done.push(Done {
                user: transfer.user,
                buf,
                result: Err(why.clone()),
                work: Some(Box::new(transfer.work)),
            });
        }
    }
}

/// Whether a call was not sent because the queue pair is closing.
fn is_closing(why: &SubmitError) -> bool {
    matches!(
        why,
        SubmitError::Refused(PostError::Closed | PostError::WrongState { .. })
            | SubmitError::Buffer(ExposeError::Closed)
    )
}

fn failed(call: Call, error: Error) -> Done {
    Done {
        user: call.user,
        buf: call.buf,
        result: Err(error),
        work: Some(Box::new(call.work)),
    }
}

const BUSY: &str = "the controller completed a command while it still reads its memory";

impl Transfer {
    /// Whether no more commands are to be sent. After the first failed command, the others
    /// are not sent.
    fn is_all_sent(&self) -> bool {
        match &self.work {
            Work::Single(_) => self.next > 0,
            Work::Blocks(blocks) => {
                self.next >= blocks.units() || (self.result.is_err() && self.next > 0)
            }
        }
    }

    /// The blocks of the next command: first block and number.
    fn next_part(&self) -> (u64, u64) {
        match &self.work {
            Work::Single(_) => (0, 1),
            Work::Blocks(blocks) => (self.next, self.step.min(blocks.units() - self.next)),
        }
    }

    /// The command of a part, without identifier and payload.
    fn sqe(&self, (first, count): (u64, u64)) -> Sqe {
        match &self.work {
            Work::Single(command) => command.sqe(),
            Work::Blocks(blocks) => blocks.sqe(first, count),
        }
    }

    /// The name of the command of a part.
    #[cold]
    fn name(&self, (first, _): (u64, u64)) -> &'static str {
        match &self.work {
            Work::Single(command) => command.name(),
            Work::Blocks(blocks) => blocks.name(first),
        }
    }

    /// The payload of a part, and the key that the controller is requested to invalidate.
    fn payload(&self, (first, count): (u64, u64), pools: &Pools) -> (Payload, Option<RemoteKey>) {
        let (offset, len, only) = match &self.work {
            Work::Single(command) => (0, command.len(), true),
            Work::Blocks(blocks) => {
                // A part is never longer than MAX_TRANSFER.
                let len = u32::try_from(blocks.bytes_of(count)).unwrap_or(u32::MAX);
                (blocks.offset_of(first), len, count == blocks.units())
            }
        };
        match &self.memory {
            Memory::None | Memory::Returning(_) => (Payload::None, None),
            Memory::Home(_) => (Payload::InCapsule { len }, None),
            // All commands of a split call use one key, so none of them may invalidate it.
            Memory::Lent {
                slice,
                may_invalidate,
            } => {
                let invalidate = only && *may_invalidate;
                let payload = keyed(*slice, offset, len, invalidate);
                (payload, invalidate.then_some(slice.key))
            }
            // The key stays valid for other commands. A region stays exposed, so there is a slice.
            Memory::Open(buf) => {
                let slice = pools.slice_of(buf);
                let payload = slice.map(|slice| keyed(slice, offset, len, false));
                (payload.unwrap_or(Payload::None), None)
            }
        }
    }

    /// Records the completion of the command of a part.
    fn note(&mut self, part: (u64, u64), completion: CommandCompletion) {
        if !completion.status.is_success() {
            return self.note_failure(part, completion);
        }
        self.history.may_have_executed = true;
        if let (Work::Single(_), Ok(result)) = (&self.work, &mut self.result) {
            *result = completion.result;
        }
    }

    /// Of several failures, the one with the lowest block is kept.
    #[cold]
    fn note_failure(&mut self, part: (u64, u64), completion: CommandCompletion) {
        // The other command of a fused operation was not executed either.
        let unexecuted = [
            Status::AUTHENTICATION_REQUIRED,
            Status::ABORTED_FAILED_FUSED,
        ];
        if !unexecuted.iter().any(|it| completion.status.is(*it)) {
            self.history.may_have_executed = true;
        }
        let place = match &self.work {
            Work::Single(command) => command.place(),
            Work::Blocks(blocks) => Some(blocks.place(part.0, part.1)),
        };
        let error = CommandError {
            command: self.name(part),
            status: completion.status,
            result: completion.result,
            place,
        };
        let earlier = match &self.result {
            // It only means that the other half failed, which has the cause.
            Err(Error::Command(first)) if first.status.is(Status::ABORTED_FAILED_FUSED) => false,
            Err(Error::Command(first)) => first.place <= error.place,
            _ => false,
        };
        if !earlier {
            self.result = Err(error.into());
        }
    }
}

/// A part of exposed memory.
#[inline]
fn keyed(slice: RemoteSlice, offset: u64, len: u32, invalidate: bool) -> Payload {
    Payload::Keyed {
        addr: slice.addr + offset,
        len,
        key: slice.key.0,
        invalidate,
    }
}

impl Memory {
    /// The buffer, if it is not exposed.
    #[inline]
    fn take_home(&mut self) -> Option<Buf> {
        match self {
            Self::Home(_) => self.take(),
            _ => None,
        }
    }

    /// The buffer, with its key invalidated if it has one of its own. If that takes a while, the
    /// buffer is returning. Does nothing on an error.
    #[inline]
    fn take_back(&mut self, provider: &mut dyn Provider) -> Result<Option<Buf>, ExposeError> {
        let Self::Lent { slice, .. } = self else {
            return Ok(self.take());
        };
        let key = slice.key;
        let buf = provider.withdraw(key)?;
        if buf.is_none() {
            *self = Self::Returning(key);
        }
        Ok(buf)
    }

    /// The buffer, if the provider does not have it.
    #[inline]
    fn take(&mut self) -> Option<Buf> {
        match std::mem::replace(self, Self::None) {
            Self::Home(buf) | Self::Open(buf) => Some(buf),
            Self::None | Self::Lent { .. } | Self::Returning(_) => None,
        }
    }
}
