//! The path of a command from its capsule to its response, in the order of execution. A
//! read gets a buffer, fills it from its backing store and writes it to the host. A write
//! gets a buffer, reads its data from the host and passes it to its backing store.
//! Between these steps the core decides; each decision is an [`Action`].
//!
//! Rare cases are elsewhere: lists of ranges of host memory (`transfer`), fused pairs
//! (`fused`), Connect (`room`), authentication (`messages`, `computing`), Abort (`abort`), memory
//! that is shared with the host (`in_place`).

use std::time::Duration;

use nvmeof_backend::{Done, RefusalReason, Request as StoreRequest, Submitted};
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    Inline, Outcome, PostError, Posted, Provider, RemoteKey, RemoteSlice, Tag as RdmaTag, Work,
    WorkKind, WriteAndSend,
};
use nvmeof_target_core::{Action, Data, Event, Executed, IoKind, IoOp, Remote, Response};

use super::account::{Provided, provide};
use super::backing_store::{bytes_of, data_of, difference, lend};
use super::slots::{Command, Lent, MissingBuffers};
use super::{Capsule, Io, QueuePair, RECEIVE, SharedQueues, State, in_place};
use crate::tag::{SlotId, Tag};

impl QueuePair {
    /// A receive completed.
    #[inline]
    pub(crate) fn received(&mut self, buf: Buf, len: usize, outcome: &Outcome, io: &mut Io<'_>) {
        // After a failure the provider reports that the queue pair is closed.
        if !outcome.is_success() || self.state == State::Closing {
            return self.received_nothing(buf, io);
        }
        let arrived = io.now;
        let capsule = Capsule { buf, len, arrived };
        if let Err(why) = self.receives.draw(&mut io.resources.shared) {
            self.arrivals.waiting.push_back(capsule);
            return self.abandon(&why, io);
        }
        // Fast path: no command waits.
        if self.state == State::Open && self.is_next_to_start() && !self.must_queue(io) {
            self.begin(capsule, io);
        } else {
            self.defer(capsule, io);
        }
        self.settle(io);
    }

    /// Whether a command that arrives now has to wait for the fair queue. Commands before
    /// a Connect do not: there are few such connections, each with one command. All
    /// others do, also those that enable a controller: admin queues can carry a flood
    /// like any other.
    #[inline]
    pub(super) fn must_queue(&self, io: &mut Io<'_>) -> bool {
        if self.account.is_none() {
            return false;
        }
        let over_budget = io.resources.start_budget == 0;
        io.resources.start_budget = io.resources.start_budget.saturating_sub(1);
        over_budget
    }

    /// Whether a command that arrives now is the next to start.
    pub(super) fn is_next_to_start(&self) -> bool {
        self.arrivals.waiting.is_empty()
            && self.arrivals.responses.is_empty()
            && !self.slots.is_full()
    }

    pub(super) fn begin(&mut self, capsule: Capsule, io: &mut Io<'_>) {
        let Capsule { buf, len, .. } = capsule;
        let room = self.make_room(io);
        let Some((slot, command)) = self.slots.take() else {
            return self.bug("a command was started without a slot", io);
        };
        let bytes = buf.get(..len).unwrap_or_default();
        command.began = io.now;
        let action = self.core.begin(io.now, bytes, &mut command.request);
        if let (Action::Execute(op), Data::Capsule(range)) = (&action, command.request.data()) {
            let alignment = io.stores.buffer_alignment(op.store);
            let start = buf.addr().wrapping_add(range.start as u64);
            command.misaligned = !in_place::is_aligned(start, alignment);
        }
        let fusing = command.request.is_fusing();
        command.capsule = Some(buf);
        self.take_room(room, io);
        if fusing || !self.cold.pairs.is_empty() {
            self.begin_beside_pairs(slot, fusing, io);
        }
        self.perform(slot, action, io);
    }

    /// Executes actions of the core until the command has to wait.
    #[inline(always)]
    pub(super) fn perform(&mut self, slot: SlotId, action: Action, io: &mut Io<'_>) {
        // Fast path: an operation, after which the command is complete or waits.
        let Action::Execute(mut op) = action else {
            return self.perform_all(slot, action, io);
        };
        match self.execute_with_buffers(slot, &mut op, io) {
            Some(Action::Respond(response)) => self.respond(slot, &response, io),
            Some(next) => self.perform_all(slot, next, io),
            None => {}
        }
    }

    /// As [`perform`](Self::perform), for any action.
    fn perform_all(&mut self, slot: SlotId, mut action: Action, io: &mut Io<'_>) {
        loop {
            action = match action {
                Action::Respond(response) => return self.respond(slot, &response, io),
                Action::Execute(mut op) => match self.execute_with_buffers(slot, &mut op, io) {
                    Some(next) => next,
                    None => return,
                },
                Action::Pull { remote, .. } if !self.core.is_connected() => {
                    return self.pull_unconnected(slot, remote, io);
                }
                Action::Pull { remote, .. } => {
                    if let Some(next) = self.write_in_place(slot, io) {
                        next
                    // A buffer that waits for its read would be idle: first the read,
                    // then the buffer.
                    } else if self.has_read(slot) && self.has_buffers(slot, &action, io) {
                        return self.pull(slot, remote, io);
                    } else {
                        return self.wait(slot, action);
                    }
                }
                Action::PullBehind { remote } if self.has_read(slot) => {
                    return self.pull_behind(slot, remote, io);
                }
                Action::PullBehind { .. } => return self.wait(slot, action),
                Action::Fuse => match self.fuse(slot, io) {
                    Some(next) => next,
                    None => return,
                },
                Action::Produce { len } => {
                    let has = match self.core.is_connected() {
                        true => self.has_buffers(slot, &action, io),
                        false => self.take_message(slot, len, io),
                    };
                    if !has {
                        return self.wait(slot, action);
                    }
                    match self.produce(slot, io) {
                        Some(next) => next,
                        None => return,
                    }
                }
                Action::AwaitSave(keeping) => return self.await_save(slot, keeping, io),
                Action::Compute(work) => match self.compute(slot, work, io) {
                    Some(next) => next,
                    None => return,
                },
                Action::Hold => return self.hold(slot, io),
                Action::Close(cause) => return self.close(&cause, io),
            };
        }
    }

    /// Lets the core write the data of a command to its buffer.
    fn produce(&mut self, slot: SlotId, io: &mut Io<'_>) -> Option<Action> {
        let room = self.make_room(io);
        let command = self.slots.get(slot)?;
        let Some(data) = command.data.get_mut() else {
            self.bug("no buffer to produce into", io);
            return None;
        };
        let event = Event::Buffer(data);
        let action = self.core.step(io.now, &mut command.request, event);
        // The host may accept more than there is.
        if let Action::Respond(Response {
            push: Some(remote), ..
        }) = &action
            && let Ok(len) = usize::try_from(remote.len)
            && len < data.len()
            && data.set_len(len).is_err()
        {
            self.bug("a response is longer than its buffer", io);
            return None;
        }
        self.take_room(room, io);
        Some(action)
    }

    /// Whether the command has an RDMA Read slot; if not, the command is queued for one.
    fn has_read(&mut self, slot: SlotId) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return true;
        };
        if !command.reads {
            let Some(left) = self.reads.left.checked_sub(1) else {
                self.reads.waiting.push_back(slot);
                return false;
            };
            self.reads.left = left;
            command.reads = true;
        }
        true
    }

    /// Whether the command has the buffers that `action` needs; if not, the command is
    /// queued for them.
    #[inline(always)]
    fn has_buffers(&mut self, slot: SlotId, action: &Action, io: &mut Io<'_>) -> bool {
        let Some(command) = self.slots.get(slot) else {
            return true;
        };
        let missing = command.missing(action);
        if missing == MissingBuffers::NOTHING {
            return true;
        }
        if missing.data.is_none()
            && let Some(len) = command.missing_second(missing)
        {
            return self.has_second(slot, len, io);
        }
        // First come, first served.
        let first = !io.resources.awaiting.has_queues() && self.awaiting.commands.is_empty();
        let provided = match first {
            true => provide(command, missing, self.account.as_ref(), io),
            false => Provided::NotNow,
        };
        if provided == Provided::Yes {
            return true;
        }
        // Between two pieces, a Copy holds the buffer with its list of sources. Commands
        // before it may wait for a buffer of that kind, so it goes first.
        let holds_one = missing.spare.is_some() && !command.data.is_none();
        self.note_full(provided, io);
        match holds_one {
            true => self.awaiting.commands.push_front(slot),
            false => self.awaiting.commands.push_back(slot),
        }
        self.list(io);
        false
    }

    /// Defers `action` until its resource is available.
    #[cold]
    fn wait(&mut self, slot: SlotId, action: Action) {
        if let Some(command) = self.slots.get(slot) {
            command.deferred = Some(action);
        }
    }

    pub(super) fn pull(&mut self, slot: SlotId, remote: Remote, io: &mut Io<'_>) {
        let local = self.slots.get(slot).and_then(|command| {
            command.on_wire = Some(io.now);
            Some((command.data.lend()?, command.pieces()))
        });
        let Some((local, pieces)) = local else {
            return self.bug("no buffer to pull into", io);
        };
        self.post_read(slot, local, remote, pieces, io);
    }

    /// A send, write or read completed.
    #[inline]
    pub(crate) fn completed(
        &mut self,
        slot: SlotId,
        kind: WorkKind,
        buf: Option<Buf>,
        outcome: &Outcome,
        io: &mut Io<'_>,
    ) {
        if !outcome.is_success() || self.state == State::Closing {
            return self.returned(slot, buf.is_some());
        }
        match kind {
            WorkKind::Send => {
                self.response_sent(slot, buf.is_some(), io);
                io.resources.buffers.put_back(buf);
            }
            WorkKind::Write if self.cold.transfers.is_empty() => self.pushed(slot, buf, io),
            WorkKind::Write => self.written(slot, buf, io),
            WorkKind::Read if self.cold.transfers.is_empty() => self.pulled(slot, buf, io),
            WorkKind::Read => self.read(slot, buf, io),
        }
        self.settle(io);
    }

    /// The data of a command have arrived.
    pub(super) fn pulled(&mut self, slot: SlotId, buf: Option<Buf>, io: &mut Io<'_>) {
        self.resume_pulled(slot, buf, io);
        self.pull_more(io);
    }

    fn resume_pulled(&mut self, slot: SlotId, buf: Option<Buf>, io: &mut Io<'_>) {
        let room = self.make_room(io);
        let Some(command) = self.slots.get(slot) else {
            return;
        };
        command.on_wire = None;
        if std::mem::take(&mut command.reads) {
            self.reads.left += 1;
        }
        let data = match std::mem::take(&mut command.lent) {
            Lent::Capsule => {
                command.capsule = buf;
                command.capsule.as_mut()
            }
            _ => {
                command.data.arrived(self.account.as_ref());
                command.data.restore(buf)
            }
        };
        let Some(data) = data else {
            return self.bug("pulled without a buffer", io);
        };
        if command.request.is_fusing() {
            data.reset_view();
        }
        let action = self
            .core
            .step(io.now, &mut command.request, Event::Pulled(data));
        self.take_room(room, io);
        self.perform(slot, action, io);
    }

    /// A read completed: starts the next one.
    pub(super) fn pull_more(&mut self, io: &mut Io<'_>) {
        while self.reads.left > 0
            && !self.is_closing()
            && let Some(slot) = self.reads.waiting.pop_front()
        {
            if let Some(action) = self
                .slots
                .get(slot)
                .and_then(|command| command.deferred.take())
            {
                self.perform(slot, action, io);
            }
        }
    }

    /// Executes `op` when the command has the buffers for it. Returns the next action if it
    /// completed at once.
    fn execute_with_buffers(
        &mut self,
        slot: SlotId,
        op: &mut IoOp,
        io: &mut Io<'_>,
    ) -> Option<Action> {
        if !self.read_in_place(slot, op, io) && !self.has_buffers(slot, &Action::Execute(*op), io) {
            self.wait(slot, Action::Execute(*op));
            return None;
        }
        self.execute(slot, op, io)
    }

    /// Executes `op` on its backing store. Returns the next action if it completed at
    /// once.
    #[inline]
    fn execute(&mut self, slot: SlotId, op: &mut IoOp, io: &mut Io<'_>) -> Option<Action> {
        if op.kind == IoKind::Flush {
            self.flush_started(slot);
        }
        let risk = self.risk_of(op, io);
        // Fast path: nothing is locked.
        if op.kind != IoKind::Read
            && !(io.resources.locked.member.is_idle() && self.cold.pairs.is_empty())
            && self.is_locked_out(slot, op, io)
        {
            return None;
        }
        if matches!(op.kind, IoKind::Settle | IoKind::Await { .. }) {
            self.quiesce(slot, op, io);
            return None;
        }
        if op.kind == IoKind::FlushOwn && !self.is_unflushed(op.store, io) {
            return self.step_executed(slot, Executed::Ok, None, io);
        }
        let queue = self.id;
        let tag = Tag { queue, slot }.to_bits();
        let command = self.slots.get(slot)?;
        command.risk = risk;
        let Some(lent) = lend(command, op) else {
            self.bug("a disk operation without its buffer", io);
            return None;
        };
        let mut request = StoreRequest { tag, op: lent };
        // Pending operations go first.
        if io.resources.backlog.waits_for(op.store) {
            self.store_ops += 1;
            io.resources.backlog.push(self.host(), op.store, request);
            return None;
        }
        match io.stores.submit(op.store, &mut request) {
            Ok(Submitted::Done(result)) => {
                let outcome = match result {
                    Ok(()) => Executed::Ok,
                    Err(error) => self.failure_of(&error, Some(op.store), slot, io),
                };
                self.step_executed(slot, outcome, request.op.into_buf(), io)
            }
            Ok(Submitted::Pending) => {
                self.store_ops += 1;
                None
            }
            Err(RefusalReason::Full) => {
                self.store_ops += 1;
                io.resources.backlog.push(self.host(), op.store, request);
                None
            }
            Err(RefusalReason::NotOpen) => {
                self.report_not_open(op.store, io);
                self.step_executed(slot, Executed::Failed, request.op.into_buf(), io)
            }
        }
    }

    /// An operation of a backing store completed.
    pub(crate) fn executed(&mut self, slot: SlotId, done: Done, io: &mut Io<'_>) {
        self.store_ops = self.store_ops.saturating_sub(1);
        self.cold.lingering.complete(slot);
        let outcome = match &done.result {
            Ok(()) => Executed::Ok,
            Err(error) => {
                let command = self.slots.get(slot);
                let store = command.and_then(|command| command.request.store());
                self.failure_of(error, store, slot, io)
            }
        };
        if self.state == State::Closing {
            // The backing store no longer uses its buffers.
            self.free(slot);
            self.check_quiesced(io);
            return;
        }
        if let Some(action) = self.step_executed(slot, outcome, done.buf, io) {
            self.perform(slot, action, io);
        }
        self.settle(io);
    }

    #[inline(always)]
    pub(super) fn step_executed(
        &mut self,
        slot: SlotId,
        mut outcome: Executed,
        buf: Option<Buf>,
        io: &mut Io<'_>,
    ) -> Option<Action> {
        if buf.is_none() {
            outcome = self.flushed(slot, outcome, io);
        }
        let mut command = self.slots.get(slot)?;
        if outcome == Executed::Ok
            && let Some(risk) = command.risk.take()
        {
            self.record_risky_write(risk, io);
            command = self.slots.get(slot)?;
        }
        let account = self.account.as_ref();
        let lent = command.lent;
        if let Some(store_ops) = command.take_back(buf, account)
            && outcome == Executed::Ok
            && let Some(differs) = difference(data_of(command), &store_ops)
        {
            outcome = Executed::Miscompare;
            self.core.failed_after(&mut command.request, differs);
        }
        let Command {
            request,
            capsule,
            data,
            ..
        } = &mut *command;
        let data = match lent {
            // The core does not examine data that the backing store read or wrote as a
            // whole.
            Lent::Data | Lent::Capsule => &[],
            _ => bytes_of(request.data(), capsule.as_deref(), data.get()),
        };
        // The core borrows the request and the data beside it.
        let event = Event::Executed { outcome, data };
        let others_wait =
            || !(io.resources.awaiting.is_empty() && self.awaiting.commands.is_empty());
        if lent == Lent::Piece && others_wait() {
            let action = self.core.step(io.now, request, event);
            command.pause(&action, account);
            return Some(action);
        }
        Some(self.core.step(io.now, request, event))
    }

    /// Sends the response to a command.
    pub(super) fn respond(&mut self, slot: SlotId, response: &Response, io: &mut Io<'_>) {
        self.send_response(slot, response, true, io);
    }

    /// Sends a response; `counted` is false for a held command. The receive is posted
    /// again before the response is sent, because the host may send its next command once
    /// it has the response.
    pub(super) fn send_response(
        &mut self,
        slot: SlotId,
        response: &Response,
        counted: bool,
        io: &mut Io<'_>,
    ) {
        let account = self.account.as_ref();
        let Some(command) = self.slots.get(slot) else {
            return;
        };
        if counted {
            // Most commands end in the iteration in which they begin.
            let took = match command.began == io.now {
                true => Duration::ZERO,
                false => io.now.saturating_sub(command.began),
            };
            self.core.count(&command.request, response, took);
        }
        command.spare.discard(account);
        command.on_wire = Some(io.now);
        let pieces = command.pieces();
        let capsule = command.capsule.take();
        // Data for the host are charged until it has them.
        let data = match response.push {
            Some(_) => {
                command.lent = Lent::Data;
                command.data.lend()
            }
            None => command.data.end(account),
        };
        self.receive_again(capsule, io);
        // Mapped memory of the host holds its data already. It is unmapped before the
        // response, and also if the command failed.
        let data = data.filter(|data| !data.is_lent());
        match (response.push, data) {
            (Some(_), Some(local)) if !pieces.is_empty() => {
                self.push_pieces(slot, local, pieces, response.clone(), io);
            }
            (Some(remote), Some(local)) => {
                let work = WriteAndSend {
                    local,
                    remote: slice(remote),
                    head: response.cqe.to_bytes(),
                    invalidate: response.invalidate.map(RemoteKey),
                };
                let tag = self.tag(slot);
                let posted = io.provider.post_response(self.link.qp, tag, work);
                self.sent(slot, response, posted, io);
            }
            (_, data) => {
                io.resources.buffers.put_back(data);
                self.send(slot, response, io);
            }
        }
    }

    /// Sends the response: its data are in flight.
    #[inline(always)]
    pub(super) fn send(&mut self, slot: SlotId, response: &Response, io: &mut Io<'_>) {
        let head = head_of(response);
        let invalidate = response.invalidate.map(RemoteKey);
        let (qp, tag) = (self.link.qp, self.tag(slot));
        let posted = io.provider.post_message(qp, tag, &head, invalidate);
        let is_done = posted == Ok(Posted::Done);
        self.sent(slot, response, posted.map(drop), io);
        if is_done {
            self.response_sent(slot, false, io);
        }
    }

    /// The response to the command in `slot` was sent, `with_data` or without. The caller
    /// [settles](Self::settle) the queue.
    #[inline]
    fn response_sent(&mut self, slot: SlotId, with_data: bool, io: &mut Io<'_>) {
        self.answered(slot, io);
        self.slots.answered(slot, self.account.as_ref(), with_data);
    }

    fn sent(
        &mut self,
        slot: SlotId,
        response: &Response,
        posted: Result<(), PostError>,
        io: &mut Io<'_>,
    ) {
        if let Err(why) = posted
            && why != PostError::Closed
        {
            self.refused(&why, io);
        }
        if !self.cold.pairs.is_empty() {
            self.half_completed(slot, response.cqe.status().is_success(), io);
        }
    }

    #[inline(always)]
    pub(super) fn receive_again(&mut self, capsule: Option<Buf>, io: &mut Io<'_>) {
        if let Some(buf) = capsule {
            self.receives.give_back(&mut io.resources.shared);
            self.post_again(buf, io);
        }
    }

    /// Posts the buffer of a receive again.
    #[inline(always)]
    pub(super) fn post_again(&mut self, buf: Buf, io: &mut Io<'_>) {
        if let Err(why) = self.post_recv(buf, io.provider, &mut io.resources.shared)
            && why != PostError::Closed
        {
            self.refused(&why, io);
        }
    }

    /// Posts a buffer for the next command.
    // Short, because it runs with each response.
    #[inline(always)]
    pub(crate) fn post_recv(
        &mut self,
        mut buf: Buf,
        provider: &mut dyn Provider,
        shared: &mut SharedQueues,
    ) -> Result<(), PostError> {
        if buf.set_len(self.link.capsule_len).is_err() {
            return Err(PostError::TooLong {
                len: self.link.capsule_len,
                max: buf.capacity(),
            });
        }
        let own = (self.link.qp, self.tag(RECEIVE));
        self.receives.post(own, buf, provider, shared)
    }

    /// The host has the data of the command in `slot`.
    pub(super) fn pushed(&mut self, slot: SlotId, buf: Option<Buf>, io: &mut Io<'_>) {
        io.resources.buffers.put_back(buf);
        if let Some(command) = self.slots.get(slot) {
            command.data.sent(self.account.as_ref());
        }
    }

    /// Starts commands that wait for a slot, and handles further requests of the core.
    #[inline]
    pub(super) fn settle(&mut self, io: &mut Io<'_>) {
        let nothing = self.state == State::Open
            && self.arrivals.waiting.is_empty()
            && self.arrivals.responses.is_empty()
            && !self.core.has_follow_ups();
        if !nothing {
            self.settle_all(io);
        }
    }

    fn settle_all(&mut self, io: &mut Io<'_>) {
        while self.state != State::Closing && !self.slots.is_full() {
            if let Some(response) = self.arrivals.responses.pop_front() {
                self.respond_held(&response, io);
            } else if self.state == State::Open
                && !self.wait_for_fair_queue(io)
                && let Some(capsule) = self.arrivals.waiting.pop_front()
            {
                self.begin(capsule, io);
            } else {
                break;
            }
        }
        let follow_ups = self.core.take_follow_ups();
        if !follow_ups.is_empty() {
            self.handle_follow_ups(follow_ups, io);
        }
        if self.state == State::Draining && self.slots.in_use() == 0 && !self.core.is_needed() {
            self.shut(io);
        }
    }

    pub(super) fn post(&mut self, slot: SlotId, work: Work, io: &mut Io<'_>) {
        let tag = self.tag(slot);
        if let Err(refused) = io.provider.post(self.link.qp, tag, work)
            && refused.why != PostError::Closed
        {
            self.refused(&refused.why, io);
        }
    }

    pub(super) fn tag(&self, slot: SlotId) -> RdmaTag {
        let queue = self.id;
        RdmaTag(Tag { queue, slot }.to_bits())
    }
}

/// The message of a response.
fn head_of(response: &Response) -> Inline {
    Inline::of(response.cqe.to_bytes())
}

pub(super) fn slice(remote: Remote) -> RemoteSlice {
    RemoteSlice {
        key: RemoteKey(remote.key),
        addr: remote.addr,
        len: remote.len,
    }
}
