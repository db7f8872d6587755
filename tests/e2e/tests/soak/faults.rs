//! Faults of paths and of the target: how to begin and how to heal them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nvmeof_e2e::{Proxy, Setup, Target, Traffic, ctl, free_port, managed};

use super::Random;

/// Number of paths: a port of the target and a proxy each.
pub(crate) const PATHS: usize = 2;

/// Keep Alive Timeout of the load.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Time until the host notices a silent path: Keep Alive is sent after half the timeout, and fails
/// after a whole one.
const DETECTION: Duration = Duration::from_secs(3);
/// Command Quiesce Time of the target.
const QUIESCE: Duration = Duration::from_secs(2);
/// Delay of each piece on a slow path.
const DELAY: Duration = Duration::from_millis(15);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    PathReset,
    PathSilent,
    PathSilentToTarget,
    PathSilentToHost,
    PathHalfOpen,
    PathSlow,
    PortRemoved,
    AnaInaccessible,
    AnaNonOptimized,
    AnaChange,
    TargetKilled,
    TargetDrained,
    TargetStopped,
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) path: usize,
    pub(crate) began: Instant,
    pub(crate) heal_at: Instant,
    pub(crate) healed: Option<Instant>,
}

impl Fault {
    pub(crate) fn is_active(&self) -> bool {
        self.healed.is_none()
    }
}

impl Kind {
    pub(crate) const ALL: [Self; 13] = [
        Self::PathReset,
        Self::PathSilent,
        Self::PathSilentToTarget,
        Self::PathSilentToHost,
        Self::PathHalfOpen,
        Self::PathSlow,
        Self::PortRemoved,
        Self::AnaInaccessible,
        Self::AnaNonOptimized,
        Self::AnaChange,
        Self::TargetKilled,
        Self::TargetDrained,
        Self::TargetStopped,
    ];

    /// How long such a fault lasts. Some silent paths recover before their loss is detected.
    pub(crate) fn lasts(self, random: &mut Random) -> Duration {
        match self {
            Self::TargetKilled | Self::TargetDrained => random.ms(50, 2000),
            Self::PathReset | Self::PortRemoved => random.ms(50, 3000),
            _ => random.ms(200, 5500),
        }
    }

    /// The longest stall of a read and of a write that it may cause while it lasts `time`, on an
    /// idle machine.
    pub(crate) fn bounds(self, time: Duration) -> [Duration; 2] {
        let fence = KEEP_ALIVE + QUIESCE;
        match self {
            Self::AnaInaccessible | Self::AnaNonOptimized | Self::AnaChange => [DELAY; 2],
            Self::PathSlow => [20 * DELAY; 2],
            Self::PathReset | Self::PortRemoved => [DELAY, fence],
            Self::PathSilent
            | Self::PathSilentToTarget
            | Self::PathSilentToHost
            | Self::PathHalfOpen => [DETECTION, DETECTION + fence],
            // Without any path, attempts to connect follow the end of the fault.
            Self::TargetKilled | Self::TargetDrained | Self::TargetStopped => {
                [DETECTION + 2 * time, DETECTION + 2 * time + fence]
            }
        }
    }

    /// Whether it cannot begin on `path` while `other` is active.
    pub(crate) fn excludes(self, path: usize, other: &Fault) -> bool {
        let both_on_path = path == other.path && !self.is_of_target() && !other.kind.is_of_target();
        let both_of_process = self.needs_process() && other.kind.needs_process();
        let is_stopped = self.is_of_target() || other.kind.is_of_target();
        // A target refuses the removal of its last port.
        let both_ports = self == Self::PortRemoved && other.kind == Self::PortRemoved;
        both_on_path || both_ports || (both_of_process && is_stopped)
    }

    pub(crate) fn is_of_target(self) -> bool {
        matches!(
            self,
            Self::TargetKilled | Self::TargetDrained | Self::TargetStopped
        )
    }

    /// Whether it changes the target process or needs its response.
    fn needs_process(self) -> bool {
        self.is_of_target()
            || matches!(
                self,
                Self::PortRemoved | Self::AnaInaccessible | Self::AnaNonOptimized | Self::AnaChange
            )
    }

    /// What the proxy of the path does.
    fn traffic(self) -> Option<Traffic> {
        let silent = |to_target, to_host| Traffic::Silent { to_target, to_host };
        match self {
            Self::PathReset => Some(Traffic::Reset),
            Self::PathSilent => Some(silent(true, true)),
            Self::PathSilentToTarget => Some(silent(true, false)),
            Self::PathSilentToHost => Some(silent(false, true)),
            Self::PathHalfOpen => Some(Traffic::HalfOpen),
            Self::PathSlow => Some(Traffic::Delay(DELAY)),
            _ => None,
        }
    }

    fn ana_state(self) -> Option<&'static str> {
        match self {
            Self::AnaInaccessible => Some("inaccessible"),
            Self::AnaNonOptimized => Some("non-optimized"),
            Self::AnaChange => Some("change"),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PathReset => "path reset",
            Self::PathSilent => "path silent",
            Self::PathSilentToTarget => "path silent to the target",
            Self::PathSilentToHost => "path silent to the host",
            Self::PathHalfOpen => "path half open",
            Self::PathSlow => "path slow",
            Self::PortRemoved => "port removed",
            Self::AnaInaccessible => "ANA inaccessible",
            Self::AnaNonOptimized => "ANA non-optimized",
            Self::AnaChange => "ANA change",
            Self::TargetKilled => "target killed",
            Self::TargetDrained => "target drained",
            Self::TargetStopped => "target stopped (SIGSTOP)",
        })
    }
}

/// A target with two ports, and a proxy before each.
pub(crate) struct Scene {
    setup: Setup,
    target: Option<Target>,
    ports: [u16; PATHS],
    proxies: Vec<Proxy>,
}

/// The ID of the port of a path.
fn port_id(path: usize) -> usize {
    path + 1
}

impl Scene {
    pub(crate) fn start() -> Self {
        let ports = [free_port(), free_port()];
        let head = format!(
            "[limits]\nquiesce_time_s = {}\n\
             [[port]]\nid = {}\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\nprovider = \"iwarp\"\n",
            QUIESCE.as_secs(),
            port_id(0),
            ports[0]
        );
        // Without an ID of its own, the second port would take ID 1 when the first one is removed.
        let setup = managed().head(&head).port(ports[1]).port_id(port_id(1));
        let setup = setup.file(16 << 20);
        let target = Some(setup.start());
        let proxies = ports
            .iter()
            .map(|port| Proxy::start((Ipv4Addr::LOCALHOST, *port).into()));
        Self {
            proxies: proxies.collect(),
            setup,
            target,
            ports,
        }
    }

    /// Where the load connects.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(Proxy::address).collect()
    }

    pub(crate) fn begin(&mut self, kind: Kind, path: usize, lasts: Duration) -> Fault {
        let began = Instant::now();
        if let Some(traffic) = kind.traffic() {
            self.proxies[path].set(traffic);
        }
        if let Some(state) = kind.ana_state() {
            self.set_ana(path, state);
        }
        match kind {
            Kind::PortRemoved => {
                let port = self.ports[path];
                ctl(&self.setup, &format!("port remove 127.0.0.1:{port}")).ok();
            }
            Kind::TargetKilled => {
                let mut target = self.target.take().unwrap();
                target.assert_healthy();
                target.kill();
            }
            Kind::TargetDrained => {
                let mut target = self.target.take().unwrap();
                target.assert_healthy();
                target.stop();
            }
            Kind::TargetStopped => self.target.as_ref().unwrap().signal(Signal::SIGSTOP),
            _ => {}
        }
        Fault {
            kind,
            path,
            began,
            heal_at: Instant::now() + lasts,
            healed: None,
        }
    }

    pub(crate) fn heal(&mut self, fault: &mut Fault) {
        let path = fault.path;
        if fault.kind.traffic().is_some() {
            self.proxies[path].set(Traffic::Forward);
        }
        if fault.kind.ana_state().is_some() {
            self.set_ana(path, "optimized");
        }
        match fault.kind {
            Kind::PortRemoved => {
                let (port, id) = (self.ports[path], port_id(path));
                let add = format!("port add 127.0.0.1:{port} --id {id} --provider iwarp");
                ctl(&self.setup, &add).ok();
            }
            Kind::TargetKilled | Kind::TargetDrained => self.target = Some(self.setup.start()),
            Kind::TargetStopped => self.target.as_ref().unwrap().signal(Signal::SIGCONT),
            _ => {}
        }
        fault.healed = Some(Instant::now());
    }

    fn set_ana(&self, path: usize, state: &str) {
        let id = port_id(path);
        ctl(&self.setup, &format!("ana set 1 {state} --port {id}")).ok();
    }

    pub(crate) fn stop(mut self) {
        let mut target = self.target.take().unwrap();
        target.assert_healthy();
        target.stop();
    }
}
