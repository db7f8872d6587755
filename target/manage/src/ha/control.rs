//! How other threads reach the driver.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvmeof_target_config::Config;
use nvmeof_target_ha::{ControllerIds, Facts, Number, Written};

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
    /// The target stops.
    Stop,
}

/// State and orders of high availability. Clones are the same one.
#[derive(Clone, Debug)]
pub struct HaControl {
    status: Arc<Mutex<HaStatus>>,
    /// Those who send wait for the result, or send rarely, so that this does not grow.
    events: Sender<Event>,
}

impl HaControl {
    pub(crate) fn new(status: HaStatus) -> (Self, Receiver<Event>) {
        let (events, receiver) = channel();
        let status = Arc::new(Mutex::new(status));
        (Self { status, events }, receiver)
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
    pub(crate) fn set_facts(&self, facts: Facts) {
        let _ = self.events.send(Event::Facts(facts));
    }

    /// To tell the driver of results.
    pub(crate) fn events(&self) -> Sender<Event> {
        self.events.clone()
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
    }
}
