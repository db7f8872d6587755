//! One controller: the association of an admin queue with a subsystem, and its I/O
//! queues.

pub(crate) mod aborts;
pub(crate) mod access;
mod disconnected;
pub(crate) mod errors;
mod features;
mod hot;
pub(crate) mod in_flight;
pub(crate) mod instance;
pub(crate) mod lifecycle;
pub(crate) mod lost_hosts;
pub(crate) mod notices;
mod reservation_notices;
pub(crate) mod resets;
pub(crate) mod warnings;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_dhchap::Proof;
use nvmeof_wire::admin::LogId;
use nvmeof_wire::log::smart::CriticalWarning;
use nvmeof_wire::reservation::NoticeType;
use nvmeof_wire::{Nqn, Status};

pub use disconnected::{DisconnectReason, Disconnected};
pub(crate) use features::{
    Features, HostClock, KEEP_ALIVE_GRANULARITY_MS, rounded as rounded_kato,
};
pub(crate) use hot::HotState;

use crate::live::{Live, View};
use crate::model::PortAddress;
use crate::namespace_view::{NamespaceView, Present, Viewer};
use crate::protection::ProtectionRequest;
use crate::{Call, Limits, Source, Subsystem};
use aborts::{AbortOutcome, Aborts};
use access::AccessCounts;
use errors::{ErrorEntry, ErrorRing};
use in_flight::InFlightCount;
use instance::{Identity, Incarnations, Instances};
use lifecycle::Registers;
use lost_hosts::LostHosts;
use notices::{
    ANA_CHANGED, ChangedList, DISCOVERY_CHANGED, INTERNAL_ERROR, LOST_HOST_COMMUNICATION,
    NAMESPACE_CHANGED, Notice, Notices, RESERVATION,
};
use reservation_notices::ReservationNotices;
use resets::CrossResets;

/// One controller, shared by its queues, which may be on different reactors.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) cntlid: u16,
    pub(crate) hostnqn: Nqn,
    pub(crate) hostid: [u8; 16],
    /// Entries of its longest submission queue, by the port of its host. It does not
    /// change, because a host reads it once.
    pub(crate) queue_depth: u16,
    /// The reactor of the admin queue.
    pub(crate) home: u16,
    /// The peer of the admin queue, in words: see [`Queue::set_peer`](crate::Queue).
    pub(crate) peer: Arc<str>,
    /// Where that comes from.
    pub(crate) source: Option<Source>,
    /// The host and its port, which determine the view of the subsystem.
    pub(crate) viewer: Arc<Viewer>,
    /// The view as of the last admin command.
    view: Option<Mutex<View>>,
    pub(crate) kind: ControllerKind,
    pub(crate) hot: HotState,
    /// What its queues have in flight.
    pub(crate) in_flight: Arc<InFlightCount>,
    cold: Mutex<ColdState>,
}

/// The purpose of a controller.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// A discovery controller.
    Discovery,
    /// The namespaces of a subsystem.
    Nvm(Arc<Live>),
}

/// State that only admin commands and failures access.
#[derive(Debug)]
pub(crate) struct ColdState {
    pub(crate) registers: Registers,
    pub(crate) features: Features,
    pub(crate) errors: ErrorRing,
    pub(crate) notices: Notices,
    pub(crate) aborts: Aborts,
    /// Namespaces that changed since the host last read the log page.
    pub(crate) changed: ChangedList,
    /// Changes of asymmetric namespace access since the last reset.
    pub(crate) access: AccessCounts,
    /// Requests to write protect a namespace, by NSID, for which earlier writes are being
    /// made stable.
    pub(crate) protecting: Vec<(u32, ProtectionRequest)>,
    /// Which incarnation of it this is.
    pub(crate) instances: Instances,
    /// Cross-Controller Resets of others that it was asked for.
    pub(crate) resets: CrossResets,
    /// Others of its host and subsystem that lost communication with the host.
    pub(crate) lost_hosts: LostHosts,
    /// Reservation notifications that the host has not read.
    pub(crate) reservation_notices: ReservationNotices,
    /// What its host proved on the admin queue at the last time, if it did.
    pub(crate) proof: Option<Proof>,
    /// Connected I/O queues, and the reactor of each.
    pub(crate) queues: BTreeMap<u16, u16>,
}

/// Discovery controllers with Keep Alive disabled expire after this idle time, because
/// hosts read them once and may not disconnect.
const IDLE_DISCOVERY: Duration = Duration::from_secs(120);
const MILLISECOND: Duration = Duration::from_millis(1);

impl Controller {
    pub(crate) fn new(
        cntlid: u16,
        hostnqn: Nqn,
        hostid: [u8; 16],
        port: Option<PortAddress>,
        kind: ControllerKind,
        features: Features,
    ) -> Self {
        let viewer = Arc::new(Viewer::new(hostnqn, hostid, port));
        let view = match &kind {
            ControllerKind::Discovery => None,
            ControllerKind::Nvm(live) => Some(Mutex::new(live.view(Arc::clone(&viewer)))),
        };
        Self {
            cntlid,
            hostnqn,
            hostid,
            queue_depth: Limits::ADMIN_DEPTH,
            home: 0,
            peer: Arc::default(),
            source: None,
            viewer,
            view,
            kind,
            hot: HotState::default(),
            in_flight: Arc::default(),
            cold: Mutex::new(ColdState {
                registers: Registers::default(),
                features,
                errors: ErrorRing::default(),
                notices: Notices::default(),
                aborts: Aborts::default(),
                changed: ChangedList::default(),
                access: AccessCounts::default(),
                protecting: Vec::new(),
                instances: Instances::default(),
                resets: CrossResets::default(),
                lost_hosts: LostHosts::default(),
                reservation_notices: ReservationNotices::default(),
                proof: None,
                queues: BTreeMap::new(),
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ColdState> {
        // A panic leaves no change half done.
        self.cold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present view of its host; `None` for a discovery controller.
    pub(crate) fn namespace_view(&self) -> Option<Arc<NamespaceView>> {
        // A panic leaves no change half done.
        let mut view = self
            .view
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        view.refresh();
        Some(Arc::clone(view.namespace_view()))
    }

    pub(crate) fn is_discovery(&self) -> bool {
        matches!(self.kind, ControllerKind::Discovery)
    }

    /// NQN of the subsystem.
    pub(crate) fn subnqn(&self) -> Nqn {
        match &self.kind {
            ControllerKind::Discovery => Nqn::discovery(),
            ControllerKind::Nvm(live) => live.nqn,
        }
    }

    /// The present state of the subsystem; `None` for a discovery controller.
    pub(crate) fn subsystem(&self) -> Option<Arc<Subsystem>> {
        match &self.kind {
            ControllerKind::Discovery => None,
            ControllerKind::Nvm(live) => Some(live.current().subsystem),
        }
    }

    /// I/O queues the host may be granted.
    pub(crate) fn most_io_queues(&self) -> u16 {
        self.subsystem().map_or(0, |it| it.io_queues)
    }

    /// The Keep Alive Timeout; `None` if the timer is disabled.
    ///
    /// RDMA 1.0, 3.4: "the RDMA Transport requires the use of the Keep Alive Feature",
    /// so every controller supports it. Base 2.1, 5.1.25.1.8: with KATO "cleared to
    /// 0h ... the Keep Alive Timer is disabled". The target permits this. It could refuse 0h
    /// with Keep Alive Timeout Invalid, but Linux hosts connect with it (`nvme discover`,
    /// `nvme connect --keep-alive-tmo=0`), and Linux' target accepts it. Such an I/O
    /// controller lasts as long as its connection; a discovery controller expires after
    /// two minutes without a command.
    pub(crate) fn keep_alive_timeout(&self) -> Option<Duration> {
        let kato_ms = self.lock().features.kato_ms;
        match (kato_ms, &self.kind) {
            (0, ControllerKind::Discovery) => Some(IDLE_DISCOVERY),
            (0, ControllerKind::Nvm(_)) => None,
            (kato_ms, _) => Some(Duration::from_millis(kato_ms.into())),
        }
    }

    /// When the Keep Alive Timer expires without a command until then. `None` if it is
    /// disabled.
    pub(crate) fn expires(&self, by_traffic: bool) -> Option<Duration> {
        let from = if by_traffic {
            self.hot.armed()
        } else {
            self.hot.last_active()
        };
        Some(from + self.keep_alive_timeout()? + MILLISECOND)
    }

    /// Whether the Keep Alive Timer has expired. If any command proves that the host is
    /// alive, it expires after a whole interval without a command (Base 2.1, 3.9.4), so
    /// that the Keep Alive of each interval need not be punctual.
    pub(crate) fn has_expired(&self, now: Duration, by_traffic: bool) -> bool {
        if self.expires(by_traffic).is_none_or(|at| now < at) {
            return false;
        }
        let was_active = by_traffic && self.hot.last_active() > self.hot.armed();
        if was_active {
            self.hot.rearm(now);
        }
        !was_active
    }

    /// Adds a failed command to the error log. Returns whether this raised a new event.
    pub(crate) fn note(&self, entry: ErrorEntry) -> bool {
        let mut cold = self.lock();
        cold.errors.push(entry);
        // "A transient error occurred that is specific to a particular set of commands":
        // it tells the host that the command is not the cause.
        let internal = entry.status.is(Status::INTERNAL_ERROR);
        let follow_ups = internal && self.raise(&mut cold, INTERNAL_ERROR);
        drop(cold);
        if let ControllerKind::Nvm(live) = &self.kind {
            live.health.error_entry();
        }
        follow_ups
    }

    /// The subsystem changed since `before`: raises events for changes that the host can
    /// see.
    pub(crate) fn subsystem_changed(&self, before: &Present) {
        let ControllerKind::Nvm(live) = &self.kind else {
            return;
        };
        let now = live.current();
        if now.is_same_view(before) {
            return;
        }
        let (before, now) = (
            before.namespace_view(&self.viewer),
            now.namespace_view(&self.viewer),
        );
        let changes = now.since(&before);
        let mut cold = self.lock();
        let [was, is] = [&before, &now]
            .map(|namespace_view| warnings::critical(namespace_view, &cold.features));
        self.warn(&mut cold, is - was);
        let values = &mut cold.features.error_recovery;
        let stays = |nsid: &u32| now.get(*nsid).is_some_and(|one| before.has(&one.namespace));
        values.retain(|nsid, _| stays(nsid));
        cold.features.notice_masks.retain(|nsid, _| stays(nsid));
        cold.access.changed(&changes.groups);
        if !changes.namespaces.is_empty() {
            cold.changed.add(&changes.namespaces);
            self.raise(&mut cold, NAMESPACE_CHANGED);
        }
        if changes.access {
            self.raise(&mut cold, ANA_CHANGED);
        }
    }

    /// The discovery log changed.
    pub(crate) fn discovery_changed(&self) {
        self.raise(&mut self.lock(), DISCOVERY_CHANGED);
    }

    /// The reported ANA state of these groups changed. Returns whether the host is to be
    /// notified.
    pub(crate) fn access_changed(&self, groups: &[u32]) -> bool {
        let mut cold = self.lock();
        cold.access.changed(groups);
        self.raise(&mut cold, ANA_CHANGED)
    }

    /// Another controller of the same host and subsystem lost communication with the host.
    pub(crate) fn host_lost(&self, cntlid: u16, ciu: u8) {
        let mut cold = self.lock();
        cold.lost_hosts.add(cntlid, ciu);
        self.raise(&mut cold, LOST_HOST_COMMUNICATION);
    }

    /// The reservation of a namespace, or its registration, ended. Returns whether the host is to
    /// be notified.
    pub(crate) fn reservation_changed(&self, nsid: u32, notice: NoticeType) -> bool {
        let is_attached = self
            .namespace_view()
            .is_some_and(|view| view.get(nsid).is_some());
        let mut cold = self.lock();
        if !is_attached || cold.features.notice_mask_of(nsid).masks(notice) {
            return false;
        }
        cold.reservation_notices.add(nsid, notice);
        self.raise(&mut cold, RESERVATION)
    }

    /// Raises an event, if the host has enabled it. Returns whether it is a new one.
    pub(crate) fn raise(&self, cold: &mut ColdState, notice: Notice) -> bool {
        let enabled = cold.features.async_events;
        let follow_ups = cold.notices.raise(notice, enabled);
        self.hot.set_event(cold.notices.is_ready());
        follow_ups
    }

    /// Raises the events of critical warnings that are new, or newly enabled.
    pub(crate) fn warn(&self, cold: &mut ColdState, warnings: CriticalWarning) {
        for notice in warnings::events(warnings) {
            self.raise(cold, notice);
        }
    }

    /// The next event that completes a request.
    pub(crate) fn next_event(&self, now: Duration) -> Option<Notice> {
        if !self.hot.has_event() {
            return None;
        }
        let mut cold = self.lock();
        let next = cold.notices.next(now);
        self.hot.set_event(cold.notices.is_ready());
        next
    }

    /// When the next event is due, if one is pending.
    pub(crate) fn event_due(&self) -> Option<Duration> {
        if !self.hot.has_event() {
            return None;
        }
        self.lock().notices.due()
    }

    /// The call to the reactor of the admin queue.
    pub(crate) fn home_call(&self) -> Call {
        self.call(self.home)
    }

    fn call(&self, reactor: u16) -> Call {
        let cntlid = self.cntlid;
        Call { reactor, cntlid }
    }

    /// The calls to the reactors of the I/O queues. After the controller is [lost](HotState::lose)
    /// no queue joins any more.
    pub(crate) fn io_calls(&self) -> Vec<Call> {
        let cold = self.lock();
        cold.queues.values().map(|at| self.call(*at)).collect()
    }

    /// Abort command `by` names command `cid` of queue `sqid`.
    pub(crate) fn ask_abort(&self, by: u16, sqid: u16, cid: u16) -> AbortOutcome {
        let mut cold = self.lock();
        // Under the lock with which queues leave: a queue that is found reports the
        // outcome, at the latest when it leaves.
        let at = match sqid {
            0 => Some(self.home),
            _ => cold.queues.get(&sqid).copied(),
        };
        let Some(at) = at else {
            return AbortOutcome::NoQueue;
        };
        if !cold.aborts.ask(by, sqid, cid) {
            return AbortOutcome::TooMany;
        }
        self.hot.set_aborts(true);
        AbortOutcome::Waits { at }
    }

    /// The next command that queue `sqid` has to abort.
    pub(crate) fn next_abort(&self, sqid: u16) -> Option<u16> {
        if !self.hot.has_aborts() {
            return None;
        }
        self.lock().aborts.next_of(sqid)
    }

    /// An Abort command that can complete, and whether it aborted a command.
    pub(crate) fn completed_abort(&self) -> Option<(u16, bool)> {
        if !self.hot.has_aborts() {
            return None;
        }
        let mut cold = self.lock();
        let known = cold.aborts.take_known();
        self.hot.set_aborts(!cold.aborts.is_empty());
        known
    }

    /// Namespaces that changed since the host last read the log page. The list is cleared
    /// unless `retain` is set.
    pub(crate) fn changed(&self, retain: bool) -> ChangedList {
        let mut cold = self.lock();
        if retain {
            cold.changed.clone()
        } else {
            std::mem::take(&mut cold.changed)
        }
    }

    /// The host reads a log page, which clears its events.
    pub(crate) fn page_read(&self, page: LogId) {
        let mut cold = self.lock();
        cold.notices.page_read(page);
        self.hot.set_event(cold.notices.is_ready());
    }

    /// Its identity, with another CIU.
    pub(crate) fn identity<'a>(&'a self, subnqn: &'a Nqn, ciu: u8) -> Identity<'a> {
        Identity {
            cntlid: self.cntlid,
            ciu,
            hostnqn: &self.hostnqn,
            hostid: &self.hostid,
            subnqn,
        }
    }

    /// Writes CC. After a reset, returns the calls to the reactors of the I/O queues, which are to
    /// be closed.
    pub(crate) fn write_cc(&self, cc: u32, incarnations: &Incarnations) -> Option<Vec<Call>> {
        let mut cold = self.lock();
        let was_enabled = cold.registers.is_enabled();
        let was_serving = cold.registers.is_serving();
        cold.registers.write_cc(cc, self.is_discovery());
        let reset = was_enabled && !cold.registers.is_enabled();
        let mut calls = Vec::new();
        if reset {
            // Base 2.1, 3.7.2: a Controller Level Reset aborts commands,
            // deletes I/O queues and resets features to their defaults, but
            // not the Keep Alive Timeout, which Connect set for the
            // association.
            let queues = std::mem::take(&mut cold.queues);
            calls = queues.into_values().map(|at| self.call(at)).collect();
            cold.notices.clear();
            cold.aborts.clear();
            cold.access = AccessCounts::default();
            cold.resets = CrossResets::default();
            cold.lost_hosts = LostHosts::default();
            cold.reservation_notices = ReservationNotices::default();
            let kato_ms = cold.features.kato_ms;
            cold.features = Features::new(kato_ms);
            self.hot.set_write_through(false);
            self.hot.set_event(false);
            self.hot.set_aborts(false);
            self.hot.set_resets(false);
            self.hot.next_epoch();
        }
        // NVMe Base 2.3, figure 328: CIU and CIRN change when CSTS.RDY is set.
        if cold.registers.is_serving() && !was_serving {
            let subnqn = self.subnqn();
            cold.instances
                .begin(incarnations, self.identity(&subnqn, 0));
        }
        self.hot.set_ready(cold.registers.is_serving());
        reset.then_some(calls)
    }
}
