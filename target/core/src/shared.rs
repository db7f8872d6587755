//! The state that all reactors share: the model, and the resources that hosts use.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvmeof_wire::Nqn;

use crate::authentication::Authentications;
use crate::controller::Controller;
use crate::controller::instance::{Incarnations, Instance};
use crate::generations::Generations;
use crate::host_settings::HostSettings;
use crate::live::Live;
use crate::namespace_view::Present;
use crate::quota::Quota;
use crate::registry::Registry;
use crate::reservations::ReservationNotice;
use crate::save_queue::SaveQueue;
use crate::{Call, LimitCounters, Limits, Locks, Model, OtherGateways, Writers};

/// State of one target that all reactors share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The same in every model.
    pub(crate) limits: Limits,
    /// Whether the target stops soon, which the ANA log page reports.
    pub(crate) stops: AtomicBool,
    served: Mutex<Served>,
    pub(crate) registry: Registry,
    pub(crate) incarnations: Incarnations,
    /// Set at most once, before hosts connect.
    pub(crate) other_gateways: OnceLock<Arc<dyn OtherGateways>>,
    pub(crate) locks: Locks,
    pub(crate) writers: Writers,
    pub(crate) limit_counters: LimitCounters,
    pub(crate) authentications: Authentications,
    /// I/O queues by host NQN; their weight is their commands.
    pub(crate) hosts: Quota,
    /// Connections by port.
    pub(crate) ports: Quota,
    /// I/O queues by port; their weight is their commands.
    pub(crate) port_queues: Quota,
    /// Changes of write protection that are to be saved.
    pub(crate) save_queue: SaveQueue,
}

/// What is served at this moment.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Arc<Model>,
    /// One for each subsystem of the model.
    pub(crate) live: Vec<Arc<Live>>,
    /// Generations of the discovery log of each host.
    pub(crate) generations: Generations,
    /// What hosts set of subsystems that are not served at present.
    pub(crate) waiting: BTreeMap<Nqn, HostSettings>,
}

impl Served {
    /// The subsystem with this NQN.
    pub(crate) fn live(&self, nqn: &Nqn) -> Option<&Arc<Live>> {
        self.live.iter().find(|live| live.nqn == *nqn)
    }

    /// Keeps what hosts set of a subsystem that is not served.
    pub(crate) fn wait_for(&mut self, subsystem: Nqn, set: HostSettings) {
        self.waiting.remove(&subsystem);
        if !set.is_empty() {
            self.waiting.insert(subsystem, set);
        }
    }
}

impl Shared {
    /// Serves `model`.
    pub(crate) fn new(model: Model, incarnations: Incarnations) -> Self {
        let live =
            presents(&model).map(|present| Arc::new(Live::new(present, HostSettings::default())));
        let served = Served {
            live: live.collect(),
            generations: Generations::new(),
            waiting: BTreeMap::new(),
            model: Arc::new(model),
        };
        let limits = served.model.limits().clone();
        Self {
            stops: AtomicBool::new(false),
            registry: Registry::new(&limits),
            incarnations,
            other_gateways: OnceLock::new(),
            locks: Locks::default(),
            writers: Writers::default(),
            limit_counters: LimitCounters::default(),
            authentications: Authentications::default(),
            hosts: Quota::default(),
            ports: Quota::default(),
            port_queues: Quota::default(),
            save_queue: SaveQueue::default(),
            served: Mutex::new(served),
            limits,
        }
    }

    /// What is served, locked. Read and Write commands do not use this.
    pub(crate) fn served(&self) -> MutexGuard<'_, Served> {
        // A panic leaves no change half done.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of served ports, which share queues and commands.
    pub(crate) fn port_count(&self) -> usize {
        self.served().model.ports().len()
    }

    /// `lost` lost communication with its host: other controllers of that host and subsystem
    /// report it. Returns the calls to their admin queues.
    pub(crate) fn host_lost(&self, lost: &Controller) -> Vec<Call> {
        let Some(Instance { ciu, .. }) = lost.lock().instances.current() else {
            return Vec::new();
        };
        let subnqn = lost.subnqn();
        let mut calls = Vec::new();
        for controller in self.registry.all() {
            if controller.hostnqn == lost.hostnqn
                && controller.subnqn() == subnqn
                && !controller.is_discovery()
            {
                controller.host_lost(lost.cntlid, ciu);
                calls.push(controller.home_call());
            }
        }
        calls
    }

    /// NSATTR of Identify Namespace changed: notifies the controllers of the subsystem.
    pub(crate) fn notify_all(&self, subsystem: &Nqn, before: &Present) {
        for controller in self.registry.all() {
            if controller.subnqn() == *subsystem {
                controller.subsystem_changed(before);
            }
        }
    }

    /// Reservations of namespaces of the subsystem changed: notifies the controllers of hosts
    /// that are concerned.
    pub(crate) fn notify_reservations(&self, subsystem: &Nqn, notices: &[ReservationNotice]) {
        if notices.is_empty() {
            return;
        }
        for controller in self.registry.all() {
            if controller.subnqn() != *subsystem {
                continue;
            }
            let its = notices.iter().filter(|one| one.host == controller.hostid);
            for one in its {
                controller.reservation_changed(one.nsid, one.notice);
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
        reservations: Arc::default(),
    })
}
