//! How other threads reach the driver.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_target_config::Config;
use nvmeof_target_core::{OtherGateways, RemoteReset};
use nvmeof_target_ha::{ControllerIds, Facts, Number, Written};
use nvmeof_wire::Nqn;

use super::status::{HaOrder, HaOrderError, HaStanding, HaStatus, ORDER_TIMEOUT};

/// What the driver is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// By an administrator; the result.
    Order(HaOrder, SyncSender<Result<(), HaOrderError>>),
    /// A read of the record has ended: its version and contents.
    Read(Number, Result<Option<(u64, Vec<u8>)>, String>),
    /// A write of the record has ended.
    Written(Number, Written),
    /// The former clients of a group are fenced: addresses of the new ones.
    Fenced(u32, Number, Result<Vec<String>, String>),
    /// The images of a group are open.
    Opened(u32, Number, Result<(), String>),
    /// A group is not served, although it shall be.
    NotServed(u32, u64, String),
    /// The images of a group are closed.
    Closed(u32, Number, Result<(), String>),
    /// The clients of a group that is served in that epoch can no longer be used.
    Lost(u32, u64, String),
    /// The configuration has changed.
    Facts(Facts),
    /// A host lost that controller of another gateway.
    Reset(u16, Arc<RemoteReset>),
    /// All hosts were disconnected.
    Disconnected(Number),
    /// The target stops.
    Stop,
}

/// State and orders of high availability. Clones are the same one.
#[derive(Clone, Debug)]
pub struct HaControl {
    status: Arc<Mutex<HaStatus>>,
    /// Those with a namespace in a group.
    subsystems: Arc<Mutex<BTreeSet<Nqn>>>,
    /// Those who send wait for the result, or send rarely, so that this does not grow.
    events: Sender<Event>,
}

impl HaControl {
    pub(crate) fn new(config: &Config, status: HaStatus) -> (Self, Receiver<Event>) {
        let (events, receiver) = channel();
        let this = Self {
            status: Arc::new(Mutex::new(status)),
            subsystems: Arc::new(Mutex::new(config.ha_subsystems())),
            events,
        };
        (this, receiver)
    }

    /// The state at present. Never waits for the cluster.
    #[must_use]
    pub fn status(&self) -> HaStatus {
        // A panic of a holder leaves nothing inconsistent.
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    pub(crate) fn set_status(&self, status: HaStatus) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Orders a change. It is done when the record shows it: see [`status`](Self::status).
    ///
    /// # Errors
    /// [`HaOrderError`].
    pub fn order(&self, order: HaOrder) -> Result<(), HaOrderError> {
        let (reply, receiver) = sync_channel(1);
        let sent = self.events.send(Event::Order(order, reply));
        sent.map_err(|_| HaOrderError::NoResponse)?;
        let result = receiver.recv_timeout(ORDER_TIMEOUT);
        result.unwrap_or(Err(HaOrderError::NoResponse))
    }

    /// Whether this gateway serves a group.
    #[must_use]
    pub fn serves_any(&self) -> bool {
        self.status()
            .groups
            .iter()
            .any(|group| group.is_served_here)
    }

    /// Hands all groups over and leaves the record: see [`has_stopped`](Self::has_stopped).
    pub fn stop(&self) {
        // Nobody receives it if it has stopped already.
        let _ = self.events.send(Event::Stop);
    }

    /// Whether it has stopped.
    #[must_use]
    pub fn has_stopped(&self) -> bool {
        self.status().standing == HaStanding::Stopped
    }

    /// The cluster has blocklisted the clients of a group that is served in that epoch.
    pub(crate) fn lost(&self, group: u32, epoch: u64, why: String) {
        let _ = self.events.send(Event::Lost(group, epoch, why));
    }

    /// The configuration has changed.
    pub(crate) fn set_config(&self, config: &Config) {
        *self.subsystems() = config.ha_subsystems();
        let _ = self.events.send(Event::Facts(facts(config)));
    }

    /// The subsystems with a namespace in a group.
    pub(crate) fn subsystems(&self) -> MutexGuard<'_, BTreeSet<Nqn>> {
        // A panic of a holder leaves nothing inconsistent.
        self.subsystems
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// To tell the driver of results.
    pub(crate) fn events(&self) -> Sender<Event> {
        self.events.clone()
    }
}

impl OtherGateways for HaControl {
    fn reset(&self, subsystem: &Nqn, cntlid: u16) -> Option<Arc<RemoteReset>> {
        if !self.subsystems().contains(subsystem) {
            return None;
        }
        let status = self.status();
        let mut others = status
            .gateways
            .iter()
            .filter(|it| it.name != status.gateway);
        others.find(|it| (it.controller_ids.0..=it.controller_ids.1).contains(&cntlid))?;
        let reset = Arc::<RemoteReset>::default();
        let event = Event::Reset(cntlid, Arc::clone(&reset));
        self.events.send(event).ok().map(|()| reset)
    }
}

/// How long the hand-over of all groups may take when the target stops or is drained.
pub const HAND_OVER: Duration = Duration::from_secs(10);

/// What must agree between the gateways.
pub(crate) fn facts(config: &Config) -> Facts {
    // Without a namespace in a group, it assigns none.
    let (first, last) = config.ha_controller_ids().unwrap_or((0, 0));
    Facts {
        controller_ids: ControllerIds { first, last },
        shared: config.ha_facts(),
        has_others: config.has_other_namespaces(),
    }
}
