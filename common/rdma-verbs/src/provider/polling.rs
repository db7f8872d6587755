//! Polling of completions and of file descriptors.
//!
//! A poll makes no system call except for an occasional check of the descriptors. Before its
//! caller sleeps, every completion queue is armed and polled once more, so that it misses
//! nothing. A caller that polls all the time never arms: each arm costs a write to a register of
//! the device, and an interrupt.

use std::time::Duration;

use nix::sys::epoll::{EpollEvent, EpollTimeout};
use nvmeof_memory::Buf;
use nvmeof_rdma::{
    CloseReason, Completion, Event, Fault, Outcome, QpId, Received, RemoteKey, Tag, explain,
};

use super::closing::{received, watched};
use super::exposing::{window_closed, window_opened};
use super::{Verbs, watch};
use crate::adapter::AdapterId;
use crate::conn::{Conn, Phase};
use crate::outstanding::{RecvItem, SendItem, failed};
use crate::sys::{Batch, ContextKey, CqKey, DeviceEvent, WorkCompletion, event, status};
use crate::words::{
    event_reason, not_closed, queue_failed, recv_reason, send_reason, stopped_by_request,
};
use crate::work_id::WorkId;

/// Intervals of checks of the descriptors, while there are completions and while there are
/// none.
const LOOK_BUSY: Duration = Duration::from_micros(500);
const LOOK_IDLE: Duration = Duration::from_micros(20);

/// Maximum descriptors per check.
const READY: usize = 16;

/// Maximum completions from one queue in one poll, in batches.
const BATCHES: usize = 8;
/// Maximum events of connection management in one poll.
const CM_EVENTS: usize = 64;
/// Time for a device that stopped an iWARP queue pair to report the reason.
const EXPLAIN: Duration = Duration::from_secs(1);

impl Verbs {
    pub(super) fn poll_once(&mut self, events: &mut Vec<Event>) -> bool {
        let before = events.len();
        events.append(&mut self.later);
        self.post_listed();
        let mut worked = self.reap(events);
        let pause = if worked { LOOK_BUSY } else { LOOK_IDLE };
        let due = |looked: Duration| self.now.saturating_sub(looked) >= pause;
        if self.looked.is_none_or(due) {
            worked |= self.check_descriptors(events);
        }
        self.is_behind = false;
        if !self.touched.is_empty() {
            self.return_touched(events);
        }
        worked |= self.expire(events);
        worked |= self.end_some(events);
        worked || events.len() > before
    }

    /// Takes completions, up to a limit. Returns whether there were any.
    pub(super) fn reap(&mut self, events: &mut Vec<Event>) -> bool {
        // A call from within finds a batch without room, and takes none.
        let mut batch = std::mem::take(&mut self.batch);
        let mut any = false;
        for adapter in (0..).map(AdapterId).take(self.adapters.len()) {
            let queues = self.adapter(adapter).map_or(0, |it| it.queues.len());
            for queue in 0..queues {
                for _ in 0..BATCHES {
                    if !self.take_completions(adapter, queue, &mut batch) {
                        break;
                    }
                    any = true;
                    for one in batch.iter() {
                        self.on_completion(adapter, one, events);
                    }
                    if !batch.was_full() {
                        break;
                    }
                }
            }
        }
        self.batch = batch;
        any
    }

    /// Takes completions of one queue. Returns whether there were any.
    fn take_completions(&mut self, id: AdapterId, number: usize, batch: &mut Batch) -> bool {
        let Some(adapter) = self.adapter(id) else {
            return false;
        };
        let rxe = adapter.is_rxe();
        let queue = adapter.queues.get_mut(number);
        let Some(queue) = queue.filter(|queue| !queue.failed) else {
            return false;
        };
        let any = queue.cq.poll(batch, rxe);
        if any {
            queue.arming.used();
        }
        any
    }

    /// The caller is going to sleep: arms every queue for its next completion, and takes
    /// completions that arrived before that. While a queue cannot be armed, the caller polls:
    /// nothing would wake it.
    pub(super) fn arm(&mut self) {
        self.post_listed();
        let mut any = false;
        for adapter in self.adapters.iter_mut().flatten() {
            for queue in &mut adapter.queues {
                if queue.failed || !queue.arming.arm() {
                    continue;
                }
                any = true;
                let (device, armed) = (&adapter.name, queue.cq.arm());
                let was_refused = std::mem::replace(&mut queue.arm_fails, armed.is_err());
                if let Err(error) = &armed {
                    queue.arming.used();
                    self.is_behind = true;
                    if !was_refused && let Some(left_out) = self.log.ask(self.now) {
                        let error = explain(error);
                        tracing::warn!(
                            device,
                            left_out,
                            "a completion queue cannot be armed, polling it: {error}"
                        );
                    }
                }
            }
        }
        if any {
            let mut events = std::mem::take(&mut self.later);
            self.is_behind |= self.reap(&mut events);
            events.append(&mut self.later);
            self.later = events;
        }
    }

    /// Checks the descriptors. Returns whether there was any event.
    fn check_descriptors(&mut self, events: &mut Vec<Event>) -> bool {
        self.looked = Some(self.now);
        let mut ready = [EpollEvent::empty(); READY];
        let Ok(count) = self.epoll.wait(&mut ready, EpollTimeout::ZERO) else {
            return false;
        };
        if count == 0 {
            return false;
        }
        let mut tokens = [0; READY];
        for (token, event) in tokens.iter_mut().zip(ready.iter().take(count)) {
            *token = event.data();
        }
        let ready = tokens.get(..count).unwrap_or_default();
        let mut any = false;
        if ready.contains(&watch::MAILBOX) {
            any |= self.take_messages(events);
        }
        // An asynchronous event of a queue pair explains later events.
        for (kind, id) in ready.iter().filter_map(|token| watched(*token)) {
            if kind == watch::ASYNC {
                any |= self.take_device_events(id, events);
            } else {
                self.take_wake_ups(id);
            }
        }
        if ready.contains(&watch::CHANNEL) {
            any |= self.take_cm_events(events);
        }
        if ready.contains(&watch::GROUP) && self.group.hand_out() {
            any = true;
            self.take_messages(events);
        }
        self.reap(events) || any
    }

    fn take_cm_events(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        for _ in 0..CM_EVENTS {
            #[allow(unsafe_code, reason = "the channel's events are taken here alone")]
            // SAFETY: ids and queue pairs of this channel are destroyed by this provider,
            // which is borrowed.
            let taken = unsafe { self.channel.take() };
            match taken {
                Ok(Some(event)) => {
                    any = true;
                    self.on_cm_event(&event, events);
                }
                Ok(None) => break,
                Err(error) => {
                    let error = explain(&error);
                    tracing::warn!("cannot read a connection manager event: {error}");
                    break;
                }
            }
        }
        any
    }

    /// Takes the events of completion queues.
    fn take_wake_ups(&mut self, id: AdapterId) {
        let Some(adapter) = self.adapter(id) else {
            return;
        };
        while let Some(number) = adapter.channel.take() {
            if let Some(queue) = adapter.queues.get_mut(number) {
                queue.cq.event_taken();
                queue.arming.used();
            }
        }
    }

    /// Takes the asynchronous events of the device of `qp`.
    pub(super) fn look_at_device(&mut self, qp: QpId, events: &mut Vec<Event>) {
        let link = self.conns.get(qp).and_then(|conn| conn.link.as_ref());
        if let Some(id) = link.map(|link| link.room.adapter) {
            self.take_device_events(id, events);
        }
    }

    fn take_device_events(&mut self, id: AdapterId, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        loop {
            let Some(adapter) = self.adapter(id) else {
                return any;
            };
            let key = adapter.key();
            let Some(event) = adapter.context.take_async_event() else {
                return any;
            };
            any = true;
            crate::mailbox::forward_to_others(&self.mailbox, key, event);
            self.on_device_event(key, event, events);
        }
    }

    /// Handles an asynchronous event of a device.
    pub(super) fn on_device_event(
        &mut self,
        device: ContextKey,
        event: DeviceEvent,
        events: &mut Vec<Event>,
    ) {
        let of = |one: &&Option<crate::adapter::Adapter>| {
            one.as_ref().is_some_and(|one| one.key() == device)
        };
        let Some((index, name)) = self.adapters.iter().enumerate().find_map(|(index, one)| {
            let adapter = Some(one).filter(of)?.as_ref()?;
            Some((u32::try_from(index).ok()?, adapter.name.clone()))
        }) else {
            return;
        };
        match event.event {
            event::DEVICE_FATAL => {
                self.lose_adapter(AdapterId(index));
                return;
            }
            event::SRQ_ERR => self.srq_failed(AdapterId(index), event.srq),
            event::PORT_ACTIVE => tracing::info!(device = name, port = event.port, "port is up"),
            event::PORT_ERR => tracing::warn!(device = name, port = event.port, "port is down"),
            _ => {}
        }
        if let Some(key) = event.cq {
            self.lose_queue(AdapterId(index), key);
        }
        let Some(number) = event.qp else { return };
        let of = |conn: &&mut Conn| {
            let link = conn.link.as_ref();
            link.is_some_and(|link| link.room.adapter.0 == index && link.qp_number == number)
        };
        let Some(qp) = self.conns.iter_mut().find(of).map(|conn| conn.id) else {
            return;
        };
        if event.event == event::COMM_EST {
            self.establish_by_message(qp, events);
        } else if event.event == event::LAST_WQE {
            self.on_last_receive(qp);
        } else if let Some(reason) = event_reason(event.event) {
            self.fail_own(qp, reason);
        }
    }

    /// A completion queue failed: its completions are lost, so its queue pairs end.
    fn lose_queue(&mut self, id: AdapterId, key: CqKey) {
        let Some(adapter) = self.adapter(id) else {
            return;
        };
        let mut queues = adapter.queues.iter_mut().enumerate();
        // It may belong to another provider.
        let Some((number, queue)) = queues.find(|(_, queue)| queue.cq.key() == key) else {
            return;
        };
        queue.failed = true;
        let receives = adapter.receives.as_ref();
        let shared = receives.is_some_and(|receives| receives.queue == number);
        let reason = queue_failed(&adapter.name);
        tracing::error!(device = adapter.name, "{reason}");
        let on_it = self.conns.iter_mut().filter(|conn| {
            let room = conn.link.as_ref().map(|link| link.room);
            let sends = room.is_some_and(|room| (room.adapter, room.queue) == (id, number));
            sends || (shared && conn.draws.is_some_and(|draw| draw.of == id))
        });
        let on_it: Vec<QpId> = on_it.map(|conn| conn.id).collect();
        for qp in on_it {
            self.fail_own(qp, reason.clone());
        }
    }

    #[inline]
    fn on_completion(&mut self, of: AdapterId, wc: WorkCompletion<'_>, events: &mut Vec<Event>) {
        if let Some(number) = WorkId::shared(wc.id()) {
            return self.on_shared(of, number, wc, events);
        }
        let id = WorkId::parse(wc.id());
        let Some(conn) = self.conns.of_work(id) else {
            // Completion of a destroyed queue pair.
            return;
        };
        let qp = conn.id;
        if !id.recv {
            return self.on_sent(qp, id.number, wc, events);
        }
        // Fast path: nothing failed, and the connection is established.
        if wc.status() == status::SUCCESS
            && conn.phase == Phase::Running
            && let Some(RecvItem { tag, buf, .. }) = conn.recvs.take_oldest(id.number)
        {
            if wc.invalidated().is_some() {
                return self.received_invalidation(qp, tag, buf, wc, events);
            }
            events.push(Event::Received(Received {
                qp,
                tag,
                len: wc.len().min(buf.len()),
                buf,
                invalidated: None,
                solicited: false,
                outcome: Outcome::Success,
            }));
        } else {
            self.on_received(qp, id.number, wc, events);
        }
    }

    /// A receive completed whose message invalidated a key.
    #[inline(never)]
    fn received_invalidation(
        &mut self,
        qp: QpId,
        tag: Tag,
        buf: Buf,
        wc: WorkCompletion<'_>,
        events: &mut Vec<Event>,
    ) {
        let outcome = self.after_invalidation(qp, wc);
        let (len, invalidated) = (wc.len(), wc.invalidated().map(RemoteKey));
        let item = RecvItem {
            tag,
            buf,
            len,
            invalidated,
        };
        events.push(Event::Received(received(qp, item, outcome)));
    }

    /// The outcome for the completion of a receive.
    #[inline]
    pub(super) fn recv_outcome(
        &mut self,
        qp: QpId,
        wc: WorkCompletion<'_>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        let outcome = self.outcome(qp, wc, recv_reason, events);
        if outcome.is_success() {
            self.establish_by_message(qp, events);
            return self.after_invalidation(qp, wc);
        }
        outcome
    }

    /// The outcome of a successful receive, whose message may have invalidated a key.
    #[inline]
    fn after_invalidation(&mut self, qp: QpId, wc: WorkCompletion<'_>) -> Outcome {
        match wc.invalidated() {
            Some(key) if !self.invalidated_by_peer(qp, RemoteKey(key)) => {
                self.refuse_invalidation(qp, key)
            }
            _ => Outcome::Success,
        }
    }

    #[cold]
    fn on_received(
        &mut self,
        qp: QpId,
        number: u64,
        wc: WorkCompletion<'_>,
        events: &mut Vec<Event>,
    ) {
        let outcome = self.recv_outcome(qp, wc, events);
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if let Some(item) = conn.recvs.get_mut(number) {
            item.len = wc.len();
            item.invalidated = wc.invalidated().map(RemoteKey);
        }
        conn.recvs.complete(number, outcome);
        while let Some((item, outcome)) = conn.recvs.pop() {
            events.push(Event::Received(received(qp, item, outcome)));
        }
    }

    /// Ends a queue pair whose peer invalidated a key that it does not have.
    #[cold]
    fn refuse_invalidation(&mut self, qp: QpId, key: u32) -> Outcome {
        let reason = CloseReason::PeerFault(Fault {
            layer: "transport",
            code: u16::try_from(status::REM_INV_REQ).unwrap_or(u16::MAX),
            text: format!(
                "a message invalidates key {key:#010x}, which is not exposed to its sender"
            ),
        });
        let outcome = failed(&reason);
        if let Some(conn) = self.conns.get_mut(qp) {
            conn.recvs.end();
        }
        self.fail_own(qp, reason);
        outcome
    }

    #[inline]
    fn on_sent(&mut self, qp: QpId, number: u64, wc: WorkCompletion<'_>, events: &mut Vec<Event>) {
        let outcome = self.outcome(qp, wc, send_reason, events);
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        conn.sends.complete(number, outcome);
        if conn.stuck.is_some() {
            return self.drained(qp);
        }
        while let Some((item, outcome)) = conn.sends.pop() {
            match item {
                SendItem::Work {
                    tag,
                    kind,
                    buf,
                    entries,
                    keeps,
                } => {
                    if keeps && let Err(error) = conn.close_kept() {
                        let item = SendItem::Work {
                            tag,
                            kind,
                            buf,
                            entries,
                            keeps,
                        };
                        conn.stuck = Some((item, outcome));
                        self.fail_own(qp, not_closed(&error));
                        return self.drained(qp);
                    }
                    conn.work = conn.work.saturating_sub(entries);
                    events.push(Event::Completion(Completion {
                        qp,
                        tag,
                        kind,
                        buf,
                        outcome,
                    }));
                }
                SendItem::Bind(key) => {
                    conn.internal = conn.internal.saturating_sub(1);
                    if outcome.is_success() {
                        self.touched
                            .extend(window_opened(&mut self.exposed, qp, key));
                    }
                }
                SendItem::Invalidate(key) => {
                    conn.internal = conn.internal.saturating_sub(1);
                    if outcome.is_success() {
                        self.touched
                            .extend(window_closed(&mut self.exposed, qp, key));
                    }
                }
                SendItem::Internal => conn.internal = conn.internal.saturating_sub(1),
            }
        }
        self.drained(qp);
    }

    /// The outcome of a completion for its work, and for its queue pair if it failed.
    #[inline]
    fn outcome(
        &mut self,
        qp: QpId,
        wc: WorkCompletion<'_>,
        reason_of: impl FnOnce(u32, u32) -> Option<CloseReason>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        if wc.status() == status::SUCCESS {
            return Outcome::Success;
        }
        self.unsuccessful(qp, reason_of(wc.status(), wc.vendor_error()), events)
    }

    #[cold]
    fn unsuccessful(
        &mut self,
        qp: QpId,
        reason: Option<CloseReason>,
        events: &mut Vec<Event>,
    ) -> Outcome {
        match reason {
            Some(reason) => {
                let outcome = failed(&reason);
                self.fail_own(qp, reason);
                outcome
            }
            None => {
                self.flushed(qp, events);
                Outcome::Flushed
            }
        }
    }

    /// Fails a queue pair with a reason from its own device, which overrides the peer's
    /// disconnect.
    pub(super) fn fail_own(&mut self, qp: QpId, reason: CloseReason) {
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if !conn.reason_is_own && conn.reason != Some(CloseReason::Local) {
            conn.reason_is_own = true;
            conn.reason = Some(reason.clone());
        }
        self.fail(qp, reason);
    }

    /// Handles flushed work: usually the queue pair ends, otherwise its device stopped it.
    fn flushed(&mut self, qp: QpId, events: &mut Vec<Event>) {
        let unexplained = |conn: &&mut Conn| {
            matches!(conn.phase, Phase::Accepting | Phase::Running) && !conn.unexplained
        };
        let Some(conn) = self.conns.get_mut(qp).filter(unexplained) else {
            return;
        };
        conn.unexplained = true;
        // The device may have reported the reason already: its own failure, for example.
        self.look_at_device(qp, events);
        let Some(conn) = self.conns.get_mut(qp) else {
            return;
        };
        if !matches!(conn.phase, Phase::Accepting | Phase::Running) {
            return;
        }
        Self::note_leaving(&mut self.leaving, conn);
        let iwarp = conn.link.as_ref().is_some_and(|link| link.iwarp);
        if iwarp {
            // The end of the stream flushes too. Connection management will report the
            // reason.
            let deadline = self.now + EXPLAIN;
            Self::set_deadline(&mut self.deadlines, conn, Some(deadline));
            return;
        }
        // A completion with the reason may be behind this one.
        self.fail(qp, stopped_by_request());
    }
}
