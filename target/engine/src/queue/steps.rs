//! The steps of one command at the edge: pull, produce, push and answer.

use nvmeof_memory::Buf;
use nvmeof_rdma::{Answer, Inline, PostError, RemoteKey, RemoteSlice, Work};
use nvmeof_target_core::{Action, Event, Remote, Response};
use nvmeof_wire::sqe::SQE_LEN;

use super::account::{Provided, provide};
use super::slots::{Lacks, Lent};
use super::{Edge, Io};
use crate::tag::Place;

impl Edge {
    /// Does what the core says, until something has to be waited for.
    pub(super) fn perform(&mut self, slot: Place, mut action: Action, io: &mut Io<'_>) {
        loop {
            action = match action {
                Action::Respond(response) => return self.respond(slot, &response, io),
                Action::Execute(mut op) => {
                    let has = self.read_in_place(slot, &op, io);
                    if !has && !self.has_buffers(slot, &action, io) {
                        return self.wait(slot, action);
                    }
                    match self.execute(slot, &mut op, io) {
                        Some(next) => next,
                        None => return,
                    }
                }
                Action::Pull { remote, .. } if !self.core.is_connected() => {
                    return self.pull_connect(slot, remote, io);
                }
                Action::Pull { remote, .. } => {
                    if let Some(next) = self.write_in_place(slot, io) {
                        next
                    // A buffer that waits for its read is of no use to anybody:
                    // first the read, then the buffer.
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
                Action::Produce { .. } => {
                    if !self.has_buffers(slot, &action, io) {
                        return self.wait(slot, action);
                    }
                    let Some(job) = self.slots.get(slot) else {
                        return;
                    };
                    let Some(data) = job.data.get_mut() else {
                        return self.bug("no buffer to produce into", io);
                    };
                    self.core.step(io.now, &mut job.request, Event::Room(data))
                }
                Action::Keep(keeping) => return self.keep(slot, keeping, io),
                Action::Hold => return self.hold(slot, io),
                Action::Close(cause) => return self.close(&cause, io),
            };
        }
    }

    /// `action` has to wait for what it has no part of yet.
    #[cold]
    fn wait(&mut self, slot: Place, action: Action) {
        if let Some(job) = self.slots.get(slot) {
            job.hungry = Some(action);
        }
    }

    /// Whether there is an RDMA Read that the command may begin; if not, it is its
    /// turn when there is one.
    fn has_read(&mut self, slot: Place) -> bool {
        let Some(job) = self.slots.get(slot) else {
            return true;
        };
        if !job.reads {
            let Some(left) = self.reads_left.checked_sub(1) else {
                self.pulls.push_back(slot);
                return false;
            };
            self.reads_left = left;
            job.reads = true;
        }
        true
    }

    /// Whether there are the buffers that `action` needs; if not, it is its turn when
    /// there are.
    #[inline]
    fn has_buffers(&mut self, slot: Place, action: &Action, io: &mut Io<'_>) -> bool {
        let Some(job) = self.slots.get(slot) else {
            return true;
        };
        let lacks = job.lacks(action);
        if lacks == Lacks::NOTHING {
            return true;
        }
        if lacks.data.is_none()
            && let Some(len) = job.lacks_second(lacks)
        {
            return self.has_second(slot, len, io);
        }
        // Whoever came first gets the next buffer.
        let first = !io.hungry.has_queues() && self.hungry.is_empty();
        let provided = match first {
            true => provide(job, lacks, self.account.as_ref(), io),
            false => Provided::NotNow,
        };
        if provided == Provided::Yes {
            return true;
        }
        // A Copy between two pieces holds the buffer with its list of sources. Those
        // before it may wait for one of that kind, so it goes before them.
        let holds_one = lacks.spare.is_some() && !job.data.is_none();
        self.note_full(provided, io);
        match holds_one {
            true => self.hungry.push_front(slot),
            false => self.hungry.push_back(slot),
        }
        self.list(io);
        false
    }

    pub(super) fn pull(&mut self, slot: Place, remote: Remote, io: &mut Io<'_>) {
        let local = self.slots.get(slot).and_then(|job| {
            job.on_wire = Some(io.now);
            Some((job.data.lend()?, job.pieces()))
        });
        let Some((local, pieces)) = local else {
            return self.bug("no buffer to pull into", io);
        };
        self.post_read(slot, local, remote, pieces, io);
    }

    /// The data of a Connect go where its capsule was, which is parsed
    /// already: nobody but the host itself lacks a buffer by that.
    fn pull_connect(&mut self, slot: Place, remote: Remote, io: &mut Io<'_>) {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let capsule = self.slots.get(slot).and_then(|job| {
            let mut capsule = job.capsule.take()?;
            job.lent = Lent::Capsule;
            job.on_wire = Some(io.now);
            capsule.set_len(len).ok()?;
            Some(capsule)
        });
        let Some(local) = capsule else {
            return self.bug("the data of a Connect do not fit its capsule", io);
        };
        let remote = slice(remote);
        self.post(slot, Work::Read { local, remote }, io);
    }

    /// The data of a command are here.
    pub(super) fn pulled(&mut self, slot: Place, buf: Option<Buf>, io: &mut Io<'_>) {
        self.go_on_pulled(slot, buf, io);
        self.pull_more(io);
    }

    fn go_on_pulled(&mut self, slot: Place, buf: Option<Buf>, io: &mut Io<'_>) {
        let room = self.make_room(io);
        let Some(job) = self.slots.get(slot) else {
            return;
        };
        job.on_wire = None;
        if std::mem::take(&mut job.reads) {
            self.reads_left += 1;
        }
        let place = match std::mem::take(&mut job.lent) {
            Lent::Capsule => {
                job.capsule = buf;
                job.capsule.as_mut()
            }
            _ => {
                job.data.arrived(self.account.as_ref());
                job.data.restore(buf)
            }
        };
        let Some(data) = place else {
            return self.bug("pulled without a buffer", io);
        };
        if job.request.is_fusing() {
            data.reset_view();
        }
        let action = self
            .core
            .step(io.now, &mut job.request, Event::Pulled(data));
        self.take_room(room, io);
        self.perform(slot, action, io);
    }

    /// A read ended: the next one may begin.
    pub(super) fn pull_more(&mut self, io: &mut Io<'_>) {
        while self.reads_left > 0
            && !self.is_closing()
            && let Some(slot) = self.pulls.pop_front()
        {
            if let Some(action) = self.slots.get(slot).and_then(|job| job.hungry.take()) {
                self.perform(slot, action, io);
            }
        }
    }

    /// The data of half of a fused operation go behind the command in its
    /// capsule, where there is room for as much as they may be.
    fn pull_behind(&mut self, slot: Place, remote: Remote, io: &mut Io<'_>) {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let capsule = self.slots.get(slot).and_then(|job| {
            let pieces = job.pieces();
            let mut capsule = job.capsule.take()?;
            job.lent = Lent::Capsule;
            job.on_wire = Some(io.now);
            capsule.set_view(SQE_LEN..SQE_LEN + len).ok()?;
            Some((capsule, pieces))
        });
        let Some((local, pieces)) = capsule else {
            return self.bug("the data of a fused command do not fit its capsule", io);
        };
        self.post_read(slot, local, remote, pieces, io);
    }

    /// Answers a command.
    pub(super) fn respond(&mut self, slot: Place, response: &Response, io: &mut Io<'_>) {
        self.give(slot, response, true, io);
    }

    /// Sends an answer; `counted` is not one to a command that was held. The
    /// receive is posted again before it goes out, since with the answer the
    /// host may send its next command.
    pub(super) fn give(
        &mut self,
        slot: Place,
        response: &Response,
        counted: bool,
        io: &mut Io<'_>,
    ) {
        let account = self.account.as_ref();
        let Some(job) = self.slots.get(slot) else {
            return;
        };
        if counted {
            let took = io.now.saturating_sub(job.began);
            self.core.count(&job.request, response, took);
        }
        drop(job.spare.end(account));
        job.on_wire = Some(io.now);
        let pieces = job.pieces();
        let capsule = job.capsule.take();
        // Data that go to the host count until it has them.
        let data = match response.push {
            Some(_) => {
                job.lent = Lent::Data;
                job.data.lend()
            }
            None => job.data.end(account),
        };
        self.receive_again(capsule, io);
        // The host's own memory holds its data already; before the answer it is
        // let go, and so it is when nothing came of the command.
        let data = data.filter(|data| !data.is_lent());
        match (response.push, data) {
            (Some(_), Some(local)) if !pieces.is_empty() => {
                self.push_pieces(slot, local, pieces, *response, io);
            }
            (Some(remote), Some(local)) => {
                let answer = Answer {
                    local,
                    remote: slice(remote),
                    head: head_of(response),
                    invalidate: response.invalidate.map(RemoteKey),
                };
                let tag = self.tag(slot);
                let posted = io.provider.post_answer(self.qp, tag, answer);
                self.sent(slot, response, posted, io);
            }
            (_, data) => {
                io.buffers.put_back(data);
                self.send(slot, response, io);
            }
        }
    }

    /// The host has the data of the command in `slot`.
    pub(super) fn pushed(&mut self, slot: Place, buf: Option<Buf>, io: &mut Io<'_>) {
        io.buffers.put_back(buf);
        if let Some(job) = self.slots.get(slot) {
            job.data.sent(self.account.as_ref());
        }
    }

    /// Nothing comes of work on a queue that closes. The buffer that the provider had,
    /// if it had one, is back.
    #[cold]
    pub(super) fn returned(&mut self, slot: Place, had_buffer: bool) {
        if had_buffer
            && let Some(job) = self.slots.get(slot)
            && job.lent != Lent::Capsule
        {
            job.data.end(self.account.as_ref());
        }
    }

    /// Sends the answer: its data are on their way.
    pub(super) fn send(&mut self, slot: Place, response: &Response, io: &mut Io<'_>) {
        let send = Work::Send {
            head: head_of(response),
            body: None,
            invalidate: response.invalidate.map(RemoteKey),
            solicited: false,
        };
        let posted = io.provider.post(self.qp, self.tag(slot), send);
        self.sent(slot, response, posted.map_err(|refused| refused.why), io);
    }

    fn sent(
        &mut self,
        slot: Place,
        response: &Response,
        posted: Result<(), PostError>,
        io: &mut Io<'_>,
    ) {
        if let Err(why) = posted
            && why != PostError::Closed
        {
            self.refused(&why, io);
        }
        if !self.pairs.is_empty() {
            self.half_answered(slot, response.cqe.status().is_success(), io);
        }
    }

    /// The command is answered later, by an order: nothing is kept for it.
    pub(super) fn hold(&mut self, slot: Place, io: &mut Io<'_>) {
        let capsule = self.slots.get(slot).and_then(|job| job.capsule.take());
        self.free(slot);
        self.receive_again(capsule, io);
    }

    pub(super) fn receive_again(&mut self, capsule: Option<Buf>, io: &mut Io<'_>) {
        if let Some(buf) = capsule {
            self.receives.give_back(io.shared);
            self.post_again(buf, io);
        }
    }

    /// Posts a buffer that a receive had.
    #[inline]
    pub(super) fn post_again(&mut self, buf: Buf, io: &mut Io<'_>) {
        if let Err(why) = self.post_recv(buf, io.provider, io.shared)
            && why != PostError::Closed
        {
            self.refused(&why, io);
        }
    }

    pub(super) fn post(&mut self, slot: Place, work: Work, io: &mut Io<'_>) {
        let tag = self.tag(slot);
        if let Err(refused) = io.provider.post(self.qp, tag, work)
            && refused.why != PostError::Closed
        {
            self.refused(&refused.why, io);
        }
    }
}

/// The message that an answer is.
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
