//! The state that all reactors share: what is served, and what hosts have of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Nqn;

use crate::generations::Generations;
use crate::live::Live;
use crate::namespace_view::Present;
use crate::protection::{Desk, Protections};
use crate::quota::Quota;
use crate::registry::Registry;
use crate::{LimitCounters, Limits, Locks, Model, Writers};

/// What all reactors have of one target.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The same in every model.
    pub(crate) limits: Limits,
    served: Mutex<Served>,
    pub(crate) registry: Registry,
    pub(crate) locks: Locks,
    pub(crate) writers: Writers,
    pub(crate) limit_counters: LimitCounters,
    /// I/O queues of hosts, by their names; what they weigh are commands.
    pub(crate) hosts: Quota,
    /// Connections, by the port that they came by.
    pub(crate) ports: Quota,
    /// I/O queues by port; what they weigh are commands.
    pub(crate) port_queues: Quota,
    /// Where what hosts write protect waits to be kept.
    pub(crate) desk: Desk,
}

/// What is served at this moment.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Arc<Model>,
    /// One for each subsystem of the model.
    pub(crate) live: Vec<Arc<Live>>,
    /// Counts what the discovery log of each host has been.
    pub(crate) generations: Generations,
    /// What hosts set of subsystems that are not there at present.
    pub(crate) waiting: BTreeMap<Nqn, Protections>,
}

impl Served {
    /// The subsystem of that name.
    pub(crate) fn live(&self, nqn: &Nqn) -> Option<&Arc<Live>> {
        self.live.iter().find(|live| live.nqn == *nqn)
    }

    /// That is what hosts set of a subsystem that is not there.
    pub(crate) fn wait_for(&mut self, subsystem: Nqn, protections: Protections) {
        self.waiting.remove(&subsystem);
        if !protections.is_empty() {
            self.waiting.insert(subsystem, protections);
        }
    }
}

impl Shared {
    /// Serves `model`.
    pub(crate) fn new(model: Model) -> Self {
        let live =
            presents(&model).map(|present| Arc::new(Live::new(present, Protections::default())));
        let served = Served {
            live: live.collect(),
            generations: Generations::new(),
            waiting: BTreeMap::new(),
            model: Arc::new(model),
        };
        let limits = served.model.limits().clone();
        Self {
            registry: Registry::new(&limits),
            locks: Locks::default(),
            writers: Writers::default(),
            limit_counters: LimitCounters::default(),
            hosts: Quota::default(),
            ports: Quota::default(),
            port_queues: Quota::default(),
            desk: Desk::default(),
            served: Mutex::new(served),
            limits,
        }
    }

    /// What is served. Locked for as long as the caller has it: commands that
    /// read and write do not come here.
    pub(crate) fn served(&self) -> MutexGuard<'_, Served> {
        // Nothing is left half done when a holder panics.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ports that are served, which share what there may be of queues and commands.
    pub(crate) fn port_count(&self) -> usize {
        self.served().model.ports().len()
    }

    /// NSATTR of Identify Namespace changed: whoever has a controller of the
    /// subsystem may want to know.
    pub(crate) fn tell_all(&self, subsystem: &Nqn, before: &Present) {
        for controller in self.registry.all() {
            if controller.subnqn() == *subsystem {
                controller.becomes_from(before);
            }
        }
    }
}

/// The subsystems of a model, in order.
pub(crate) fn presents(model: &Model) -> impl Iterator<Item = Present> {
    let subsystems = model.subsystems().iter();
    subsystems.map(|subsystem| Present {
        subsystem: Arc::clone(subsystem),
        ports: model.shared_ports(),
    })
}
