//! Fences lost controllers: carries out what their [`Fence`]s request.
//!
//! Commands to different siblings are outstanding at the same time, so that an unresponsive one
//! delays no fence that has another one. Each sibling has one command at a time: the log page of
//! completed resets, which a read empties, has one reader.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_initiator_core::fence::{ResetRefusal, Sibling, choose_sibling};
use nvmeof_initiator_core::{Fence, FenceMethod, FenceStep, LostController, admin};
use nvmeof_rdma::Address;
use nvmeof_wire::Status;
use nvmeof_wire::admin::CrossControllerReset;
use nvmeof_wire::log::controllers::CONTROLLER_ENTRY_LEN;
use nvmeof_wire::log::{CrossResetEntry, EntryCount};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::task::JoinSet;
use zerocopy::FromBytes;

use super::Inner;
use super::connection::{Connection, ConnectionId};
use super::events::PathEvent;
use crate::error::Error;

/// A lost controller that is being fenced. It keeps nothing of the connection.
pub(super) struct Fencing {
    path: usize,
    addr: Address,
    cntlid: u16,
    fence: Fence,
    /// The sibling that executes the reset.
    via: Option<Arc<Connection>>,
    /// Live siblings that do not reset it.
    refused: Vec<ConnectionId>,
    /// Notifies calls that it is fenced.
    fenced: Arc<watch::Sender<Option<FenceMethod>>>,
    /// Its last reset was requested then: siblings that are lost by each reset get no more of them
    /// without a pause.
    reset_at: Option<Duration>,
}

/// All lost controllers, and the commands to their siblings.
struct Fences {
    all: Vec<Fencing>,
    /// One for each busy sibling.
    outstanding: JoinSet<Answer>,
    /// The siblings with an outstanding command.
    busy: Vec<Arc<Connection>>,
}

/// What became of a command to a sibling.
struct Answer {
    via: Arc<Connection>,
    result: AnswerResult,
}

enum AnswerResult {
    /// Of the reset of that controller: status, and dword 0 of the completion.
    Reset(CrossControllerReset, Option<(Status, u32)>),
    /// The entries of the log page.
    Log(Option<Vec<CrossResetEntry>>),
}

/// The Cross-Controller Reset log page: its longest form is 511 entries and their count.
const LOG_LEN: u32 = 4096;

/// The shortest time between two resets of one controller.
const PAUSE: Duration = Duration::from_millis(100);

/// A sibling that takes longer for one command counts as lost.
const LONGEST_STEP: Duration = Duration::from_secs(5);

/// How long the task sleeps at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Fences the connections that arrive, until there is no [`Inner`] any more.
pub(super) async fn run(inner: Weak<Inner>, mut lost: UnboundedReceiver<Fencing>) {
    let Some(mut changes) = inner.upgrade().map(|inner| inner.changes.subscribe()) else {
        return;
    };
    let mut fences = Fences {
        all: Vec::new(),
        outstanding: JoinSet::new(),
        busy: Vec::new(),
    };
    loop {
        changes.borrow_and_update();
        let Some(this) = inner.upgrade() else { return };
        while let Ok(one) = lost.try_recv() {
            fences.all.push(one);
        }
        let next = fences.pass(&this);
        let now = this.now();
        drop(this);
        let wait = next.map_or(LONGEST_WAIT, |next| next.saturating_sub(now));
        let answer = tokio::select! {
            arrived = lost.recv() => {
                let Some(one) = arrived else { return };
                fences.all.push(one);
                None
            }
            Some(answer) = fences.outstanding.join_next() => answer.ok(),
            _ = changes.changed() => None,
            () = tokio::time::sleep(wait.min(LONGEST_WAIT)) => None,
        };
        if let Some(answer) = answer {
            let Some(this) = inner.upgrade() else { return };
            fences.take(&answer, this.now());
        }
    }
}

impl Fencing {
    /// `connection` was lost now.
    pub(super) fn new(inner: &Inner, connection: &Connection) -> Self {
        let controller = &connection.controller;
        let known = LostController::of(controller.info(), controller.options().keep_alive);
        Self {
            path: connection.path,
            addr: controller.options().addr,
            cntlid: controller.info().cntlid,
            fence: Fence::new(&known, inner.options.quiesce, inner.now()),
            via: None,
            refused: Vec::new(),
            fenced: Arc::clone(&connection.fenced),
            reset_at: None,
        }
    }

    fn is_via(&self, sibling: &Arc<Connection>) -> bool {
        self.via
            .as_ref()
            .is_some_and(|via| Arc::ptr_eq(via, sibling))
    }

    /// Whether `sibling` does not reset it, or resets none.
    fn is_refused_by(&self, sibling: &Connection) -> bool {
        self.refused.contains(&sibling.id) || sibling.is_incapable.load(Ordering::Relaxed)
    }

    /// Its reset by `via` completed.
    fn reset_completed(
        &mut self,
        via: &Connection,
        (status, result): (Status, u32),
        now: Duration,
    ) {
        let refusal = self.fence.reset_completed(now, status, result);
        self.refused_by(via, refusal);
    }

    fn refused_by(&mut self, via: &Connection, refusal: Option<ResetRefusal>) {
        match refusal {
            Some(ResetRefusal::ThisController) => self.refused.push(via.id),
            Some(ResetRefusal::AnyController) => via.is_incapable.store(true, Ordering::Relaxed),
            None => {}
        }
    }

    fn lose_sibling(&mut self, now: Duration) {
        self.via = None;
        self.fence.sibling_lost(now);
    }

    /// The end: calls may send its commands again.
    fn end(&self, inner: &Inner, method: FenceMethod) {
        let (path, addr, cntlid) = (self.path, self.addr, self.cntlid);
        tracing::info!(%addr, cntlid, ?method, "lost controller fenced");
        if let Some(slot) = inner.lock().get_mut(path) {
            slot.fenced(method);
        }
        self.fenced.send_replace(Some(method));
        inner.report(PathEvent::Fenced { path, addr, method });
    }
}

impl Fences {
    /// Steps of all fences. Returns when the next one is due.
    fn pass(&mut self, inner: &Inner) -> Option<Duration> {
        let now = inner.now();
        let notified: Vec<_> = {
            let siblings = self.all.iter().filter_map(|one| one.via.clone());
            siblings.filter(|sibling| sibling.take_reset()).collect()
        };
        for one in &mut self.all {
            if one.via.as_ref().is_some_and(|via| via.is_lost()) {
                one.lose_sibling(now);
            }
            if notified.iter().any(|sibling| one.is_via(sibling)) {
                one.fence.notified(now);
            }
        }
        let connections = inner.connections().into_iter();
        let siblings: Vec<_> = connections.map(|(live, _)| live).collect();
        let mut next = None;
        let mut all = std::mem::take(&mut self.all);
        all.retain_mut(|one| match self.step(one, &siblings, now) {
            Ok(due) => {
                next = next.into_iter().chain(due).min();
                true
            }
            Err(method) => {
                one.end(inner, method);
                false
            }
        });
        self.all = all;
        next
    }

    /// One step of a fence. Returns when it is due again.
    ///
    /// # Errors
    /// The controller is fenced, by this method.
    fn step(
        &mut self,
        one: &mut Fencing,
        siblings: &[Arc<Connection>],
        now: Duration,
    ) -> Result<Option<Duration>, FenceMethod> {
        one.refused
            .retain(|id| siblings.iter().any(|sibling| sibling.id == *id));
        let described: Vec<_> = siblings
            .iter()
            .map(|sibling| Sibling {
                is_same_path: sibling.path == one.path,
                has_refused: one.is_refused_by(sibling),
                is_busy: self.is_busy(sibling),
                unanswered: sibling.unanswered.load(Ordering::Relaxed),
            })
            .collect();
        let chosen = choose_sibling(&described).and_then(|at| siblings.get(at));
        let pause = one.reset_at.map(|at| at + PAUSE).filter(|end| now < *end);
        let sibling = chosen.filter(|_| pause.is_none());
        match one.fence.poll(now, sibling.is_some()) {
            FenceStep::Fenced(method) => return Err(method),
            FenceStep::Wait => {}
            FenceStep::Reset(reset) => {
                if let Some(via) = sibling {
                    one.fence.sent();
                    one.reset_at = Some(now);
                    one.via = Some(Arc::clone(via));
                    self.send_reset(via, reset);
                }
            }
            FenceStep::ReadLog => match one.via.clone() {
                Some(via) if self.is_busy(&via) => return Ok(None),
                Some(via) => {
                    one.fence.sent();
                    self.read_log(&via);
                }
                None => one.fence.sibling_lost(now),
            },
        }
        Ok(one.fence.next_deadline().into_iter().chain(pause).min())
    }

    fn is_busy(&self, sibling: &Arc<Connection>) -> bool {
        self.busy.iter().any(|busy| Arc::ptr_eq(busy, sibling))
    }

    /// Has `via` reset a controller.
    fn send_reset(&mut self, via: &Arc<Connection>, reset: CrossControllerReset) {
        self.busy.push(Arc::clone(via));
        let via = Arc::clone(via);
        self.outstanding.spawn(async move {
            let command = admin::cross_controller_reset(reset);
            let call = via.controller.admin_call(command, &[]);
            let completed = match within(call).await {
                Some(Ok((result, _))) => {
                    let [a, b, c, d, ..] = result.to_le_bytes();
                    Some((Status::SUCCESS, u32::from_le_bytes([a, b, c, d])))
                }
                Some(Err(Error::Command(error))) => {
                    tracing::debug!(%error, "Cross-Controller Reset refused");
                    Some((error.status, 0))
                }
                Some(Err(_)) | None => None,
            };
            let result = AnswerResult::Reset(reset, completed);
            Answer { via, result }
        });
    }

    /// Reads the log page of `via`.
    fn read_log(&mut self, via: &Arc<Connection>) {
        self.busy.push(Arc::clone(via));
        let via = Arc::clone(via);
        self.outstanding.spawn(async move {
            let read = via.controller.admin_read(admin::cross_resets(LOG_LEN));
            let page = within(read).await.and_then(Result::ok);
            let result = AnswerResult::Log(page.map(|page| entries(&page)));
            Answer { via, result }
        });
    }

    /// A command to a sibling ended.
    fn take(&mut self, answer: &Answer, now: Duration) {
        let via = &answer.via;
        self.busy.retain(|busy| !Arc::ptr_eq(busy, via));
        let is_answered = match &answer.result {
            AnswerResult::Reset(_, completed) => completed.is_some(),
            AnswerResult::Log(entries) => entries.is_some(),
        };
        match is_answered {
            true => via.unanswered.store(0, Ordering::Relaxed),
            false => {
                via.unanswered.fetch_add(1, Ordering::Relaxed);
            }
        }
        let its = self.all.iter_mut().filter(|one| one.is_via(via));
        match &answer.result {
            AnswerResult::Reset(reset, completed) => {
                // The others that it resets wait for the log page.
                for one in its.filter(|one| one.fence.is_resetting(*reset)) {
                    match completed {
                        Some(completed) => one.reset_completed(via, *completed, now),
                        None => one.lose_sibling(now),
                    }
                }
            }
            // For all controllers that it resets: entries of those that are quiet are not in it a
            // second time.
            AnswerResult::Log(entries) => {
                for one in its {
                    match entries {
                        Some(entries) => {
                            let refusal = one.fence.log_read(now, entries);
                            one.refused_by(via, refusal);
                        }
                        None => one.lose_sibling(now),
                    }
                }
            }
        }
    }
}

/// The result of a command to a sibling, unless that takes too long.
async fn within<T>(command: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(LONGEST_STEP, command).await.ok()
}

/// The entries of a page; those beyond its end are omitted.
fn entries(page: &[u8]) -> Vec<CrossResetEntry> {
    let count = EntryCount::read_from_prefix(page).map_or(0, |(count, _)| count.ne.get());
    let all = page.chunks_exact(CONTROLLER_ENTRY_LEN).skip(1);
    all.take(count.into())
        .filter_map(|entry| CrossResetEntry::read_from_bytes(entry).ok())
        .collect()
}
