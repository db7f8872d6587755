//! Fences lost controllers: carries out what their [`Fence`]s request.

use std::sync::{Arc, Weak};
use std::time::Duration;

use nvmeof_initiator_core::{Fence, FenceMethod, FenceStep, LostController, admin};
use nvmeof_rdma::Address;
use nvmeof_wire::Status;
use nvmeof_wire::admin::CrossControllerReset;
use nvmeof_wire::log::controllers::CONTROLLER_ENTRY_LEN;
use nvmeof_wire::log::{CrossResetEntry, EntryCount};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use zerocopy::FromBytes;

use super::Inner;
use super::connection::Connection;
use crate::error::Error;

/// A lost controller that is being fenced. It keeps nothing of the connection.
pub(super) struct Fencing {
    path: usize,
    addr: Address,
    cntlid: u16,
    fence: Fence,
    /// The sibling that executes the reset.
    via: Option<Arc<Connection>>,
    /// Tells calls that it is fenced.
    fenced: Arc<watch::Sender<Option<FenceMethod>>>,
    method: Option<FenceMethod>,
}

/// The Cross-Controller Reset log page: its longest form is 511 entries and their count.
const LOG_LEN: u32 = 4096;

/// A sibling that requests steps without an end gets one after this time only.
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
    let mut all: Vec<Fencing> = Vec::new();
    loop {
        changes.borrow_and_update();
        let Some(this) = inner.upgrade() else { return };
        while let Ok(one) = lost.try_recv() {
            all.push(one);
        }
        let next = pass(&this, &mut all).await;
        let now = this.now();
        drop(this);
        let wait = next.map_or(LONGEST_WAIT, |next| next.saturating_sub(now));
        tokio::select! {
            arrived = lost.recv() => match arrived {
                Some(one) => all.push(one),
                None => return,
            },
            _ = changes.changed() => {}
            () = tokio::time::sleep(wait.min(LONGEST_WAIT)) => {}
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
            fenced: Arc::clone(&connection.fenced),
            method: None,
        }
    }
}

/// Steps of all fences. Returns when the next one is due.
async fn pass(inner: &Inner, all: &mut Vec<Fencing>) -> Option<Duration> {
    let now = inner.now();
    let notified: Vec<_> = {
        let siblings = all.iter().filter_map(|one| one.via.clone());
        siblings.filter(|sibling| sibling.take_reset()).collect()
    };
    for one in all.iter_mut() {
        if one.via.as_ref().is_some_and(|via| via.is_lost()) {
            one.lose_sibling(now);
        }
        if let Some(via) = &one.via
            && notified.iter().any(|sibling| Arc::ptr_eq(sibling, via))
        {
            one.fence.notified(now);
        }
    }
    let mut next = None;
    for at in 0..all.len() {
        let due = step(inner, all, at).await;
        next = next.into_iter().chain(due).min();
    }
    for one in all.iter() {
        let Some(method) = one.method else { continue };
        let (addr, cntlid) = (one.addr, one.cntlid);
        tracing::info!(%addr, cntlid, ?method, "lost controller fenced");
        if let Some(path) = inner.lock().get_mut(one.path) {
            path.fenced(method);
        }
        one.fenced.send_replace(Some(method));
    }
    all.retain(|one| one.method.is_none());
    next
}

/// One step of the fence at index `at`. Returns when it is due again.
async fn step(inner: &Inner, all: &mut [Fencing], at: usize) -> Option<Duration> {
    let connections = inner.connections().into_iter();
    let siblings: Vec<_> = connections.map(|(live, _)| live).collect();
    let one = all.get_mut(at)?;
    match one.fence.poll(inner.now(), !siblings.is_empty()) {
        FenceStep::Fenced(method) => {
            one.method = Some(method);
            return None;
        }
        FenceStep::Wait => return one.fence.next_deadline(),
        FenceStep::Reset(reset) => {
            // Another path first: the target behind the lost one may be gone.
            let other = siblings.iter().find(|sibling| sibling.path != one.path);
            let via = Arc::clone(other.or(siblings.first())?);
            one.reset(inner, reset, via).await;
        }
        FenceStep::ReadLog => match one.via.clone() {
            Some(via) => {
                one.fence.sent();
                read_log(inner, all, &via).await;
            }
            None => one.fence.sibling_lost(inner.now()),
        },
    }
    Some(inner.now() + PAUSE)
}

impl Fencing {
    /// Has `via` reset the controller.
    async fn reset(&mut self, inner: &Inner, reset: CrossControllerReset, via: Arc<Connection>) {
        self.fence.sent();
        self.via = Some(Arc::clone(&via));
        let command = admin::cross_controller_reset(reset);
        let call = via.controller.admin_call(command, &[]);
        let ended = tokio::time::timeout(LONGEST_STEP, call).await;
        let now = inner.now();
        match ended {
            Ok(Ok((result, _))) => {
                let [a, b, c, d, ..] = result.to_le_bytes();
                let result = u32::from_le_bytes([a, b, c, d]);
                self.fence.reset_completed(now, Status::SUCCESS, result);
            }
            Ok(Err(Error::Command(error))) => {
                tracing::debug!(%error, "Cross-Controller Reset refused");
                self.fence.reset_completed(now, error.status, 0);
            }
            Ok(Err(_)) | Err(_) => self.lose_sibling(now),
        }
    }

    fn lose_sibling(&mut self, now: Duration) {
        self.via = None;
        self.fence.sibling_lost(now);
    }
}

/// Reads the log page of `via` for all controllers that it resets: entries of those that are
/// quiet are not in it a second time.
async fn read_log(inner: &Inner, all: &mut [Fencing], via: &Arc<Connection>) {
    let read = via.controller.admin_read(admin::cross_resets(LOG_LEN));
    let page = tokio::time::timeout(LONGEST_STEP, read).await;
    let now = inner.now();
    let its = |one: &&mut Fencing| one.via.as_ref().is_some_and(|its| Arc::ptr_eq(its, via));
    let page = page.ok().and_then(Result::ok);
    let entries = page.map(|page| entries(&page));
    for one in all.iter_mut().filter(its) {
        match &entries {
            Some(entries) => one.fence.log_read(now, entries),
            None => one.lose_sibling(now),
        }
    }
}

/// The entries of a page; those beyond its end are omitted.
fn entries(page: &[u8]) -> Vec<CrossResetEntry> {
    let count = EntryCount::read_from_prefix(page).map_or(0, |(count, _)| count.ne.get());
    let all = page.chunks_exact(CONTROLLER_ENTRY_LEN).skip(1);
    all.take(count.into())
        .filter_map(|entry| CrossResetEntry::read_from_bytes(entry).ok())
        .collect()
}
