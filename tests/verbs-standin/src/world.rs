//! Everything that exists, behind one lock.

use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slab::Slab;

use crate::completion::{Added, Channel, Completion, Cq, Frees};
use crate::device::{Device, Element};
use crate::ids::Ids;
use crate::links::Links;
use crate::memory::Memory;
use crate::queue::{PeerQp, Qp, Srq};
use crate::raw::event;

/// Everything that exists.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// Devices are never forgotten, only removed.
    pub(crate) devices: Vec<Device>,
    pub(crate) memory: Memory,
    pub(crate) channels: Slab<Channel>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) qps: Slab<Qp>,
    pub(crate) last_qp_number: u32,
    pub(crate) ids: Ids,
    pub(crate) links: Links,
    /// Queue pairs whose stream broke: connection management has to end their connections.
    pub(crate) broken: Vec<usize>,
    /// Devices that a fault removes.
    pub(crate) removals: Vec<usize>,
    /// Misuse of the libraries, in words.
    pub(crate) violations: Vec<String>,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);
/// Signalled when an event is acknowledged.
static ACKNOWLEDGED: Condvar = Condvar::new();

/// Time to wait for the acknowledgement of events before that counts as misuse.
const PATIENCE: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// Locks the world.
pub(crate) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Announces that events were acknowledged.
pub(crate) fn acknowledged() {
    ACKNOWLEDGED.notify_all();
}

/// Waits until `count` is 0: destroying an object waits until its events are acknowledged.
/// Where the libraries would wait for ever, that is recorded as misuse.
pub(crate) fn wait_for_acknowledgements<'a>(
    mut world: MutexGuard<'a, World>,
    what: &str,
    count: impl Fn(&World) -> u32,
) -> MutexGuard<'a, World> {
    let end = Instant::now() + PATIENCE;
    loop {
        let open = count(&world);
        if open == 0 {
            return world;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            world.violation(format!(
                "{what} destroyed with {open} unacknowledged events"
            ));
            return world;
        }
        let waited = ACKNOWLEDGED.wait_timeout(world, left);
        (world, _) = waited.unwrap_or_else(PoisonError::into_inner);
    }
}

impl World {
    /// Records misuse.
    pub(crate) fn violation(&mut self, text: String) {
        eprintln!("verbs stand-in: {text}");
        self.violations.push(text);
    }

    pub(crate) fn device_mut(&mut self, device: usize) -> Option<&mut Device> {
        self.devices.get_mut(device)
    }

    /// The device of this name that was added last and not removed.
    pub(crate) fn device_named(&self, name: &str) -> Option<usize> {
        let mut devices = self.devices.iter();
        devices.rposition(|device| device.name == name && !device.removed)
    }

    /// The queue pair of a peer in this process, unless it was destroyed.
    pub(crate) fn peer_of(&self, qp: &Qp) -> Option<usize> {
        let PeerQp::Here(peer, number) = qp.peer? else {
            return None;
        };
        let same = |peer: &Qp| peer.number == number;
        self.qps.get(peer).is_some_and(same).then_some(peer)
    }

    /// Adds a completion to a queue.
    pub(crate) fn complete(&mut self, cq: usize, completion: Completion) {
        let Some(queue) = self.cqs.get_mut(cq) else {
            return;
        };
        let device = queue.device;
        match queue.add(completion) {
            Added::Quietly | Added::Lost => {}
            Added::WithEvent => self.raise(cq),
            Added::Overrun => {
                if let Some(device) = self.devices.get_mut(device) {
                    device.report(Element::Cq(cq), event::CQ_ERR);
                }
            }
        }
    }

    /// Adds an event of a completion queue to its channel.
    fn raise(&mut self, cq: usize) {
        let Some(queue) = self.cqs.get(cq) else {
            return;
        };
        if let Some(device) = self.devices.get_mut(queue.device) {
            device.counters.events += 1;
        }
        let channel = queue.channel;
        if let Some(channel) = channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.events.push_back(cq);
            channel.signal.raise();
        }
    }

    /// Takes a completion, and frees the entries that it stands for.
    pub(crate) fn take_completion(&mut self, cq: usize) -> Option<Completion> {
        let one = self.cqs.get_mut(cq)?.entries.pop_front()?;
        let qp = self.qps.get_mut(one.qp);
        let qp = qp.filter(|qp| qp.number == one.number);
        match (one.frees, qp) {
            (Frees::Sends(count), Some(qp)) => qp.sends_used -= count,
            (Frees::Receive, Some(qp)) => qp.receives_used -= 1,
            (Frees::Shared(srq), _) => {
                if let Some(srq) = self.srqs.get_mut(srq) {
                    srq.used -= 1;
                }
            }
            _ => {}
        }
        Some(one)
    }
}
