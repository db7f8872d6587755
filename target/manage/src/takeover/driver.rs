//! The thread of high availability: executes what the machine decides.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::Builder;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use nvmeof_backend::{CephAccess, SharedRecord};
use nvmeof_target_config::{Config, HaConfig};
use nvmeof_target_ha::{
    self as ha, Action, Facts, Incarnation, Machine, Number, OrderError, Time, Timing,
};

use super::group::GroupDriver;
use super::latest::Latest;
use super::record::RecordDriver;
use super::report::status;
use super::resets::Resets;
use crate::ha::{
    Event, HaControl, HaGatewayState, HaOrder, HaOrderError, HaStanding, HaStatus, facts,
};
use crate::served::Manager;

/// How often images on standby are examined, one at a time.
const EXAMINE: Duration = Duration::from_secs(5);

/// What the thread starts with.
pub(crate) struct HaStart {
    config: HaConfig,
    access: CephAccess,
    facts: Facts,
    control: HaControl,
    events: Receiver<Event>,
}

struct Driver {
    machine: Machine,
    record: RecordDriver,
    groups: BTreeMap<u32, GroupDriver>,
    control: HaControl,
    /// Disconnects hosts.
    hosts: Latest<Number>,
    manager: Arc<Manager>,
    resets: Resets,
    /// Examines images on standby.
    standby: Latest<()>,
    next_examination: Duration,
}

impl HaStart {
    /// Of a configuration with `[ha]`; `None` without.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let ha = config.ha()?.clone();
        let status = HaStatus {
            gateway: ha.gateway.clone(),
            record: place(&ha),
            ..HaStatus::default()
        };
        let (control, events) = HaControl::new(config, status);
        Some(Self {
            facts: facts(config),
            access: config.ceph().clone(),
            config: ha,
            control,
            events,
        })
    }

    pub(crate) fn control(&self) -> &HaControl {
        &self.control
    }

    /// Starts the thread. It ends after [`HaControl::stop`], or with the process.
    ///
    /// # Errors
    /// A thread cannot be started, or the configuration is refused.
    pub(crate) fn start(self, manager: &Arc<Manager>) -> io::Result<()> {
        let Self {
            config,
            access,
            facts,
            control,
            events,
        } = self;
        let sender = control.events();
        let incarnation = Incarnation(uuid::Uuid::new_v4().as_u128());
        let config_of_machine = machine_config(&config, facts);
        let machine = Machine::new(config_of_machine, incarnation, now());
        let machine = machine.map_err(|error| io::Error::other(error.to_string()))?;
        let (pool, namespace) = (&config.pool, config.namespace.as_deref());
        let record = SharedRecord::new(&access, pool, namespace, &config.object);
        let group = |group: &nvmeof_target_config::HaGroupConfig| {
            let started = GroupDriver::start(group.id, &access, manager, sender.clone());
            started.map(|started| (group.id, started))
        };
        let driver = Driver {
            machine,
            record: RecordDriver::start(record, sender.clone())?,
            groups: config.groups.iter().map(group).collect::<io::Result<_>>()?,
            hosts: disconnecter(Arc::clone(manager), sender.clone())?,
            manager: Arc::clone(manager),
            resets: Resets::default(),
            control,
            standby: examiner(Arc::clone(manager))?,
            next_examination: now().monotonic + EXAMINE,
        };
        let thread = Builder::new().name("ha".to_owned());
        thread.spawn(move || driver.run(&events)).map(drop)
    }
}

/// The thread that examines images on standby.
fn examiner(manager: Arc<Manager>) -> io::Result<Latest<()>> {
    let mut last = None;
    Latest::start("ha-standby", move |()| {
        last = manager.examine_standby(last.as_ref());
    })
}

/// The thread that disconnects hosts.
fn disconnecter(manager: Arc<Manager>, events: Sender<Event>) -> io::Result<Latest<Number>> {
    Latest::start("ha-hosts", move |number| {
        manager.disconnect_from_groups();
        // The driver has ended: the target has stopped.
        let _ = events.send(Event::Disconnected(number));
    })
}

fn machine_config(config: &HaConfig, facts: Facts) -> ha::Config {
    let groups = config.groups.iter().map(|group| ha::GroupConfig {
        id: group.id,
        gateways: group.gateways.clone(),
    });
    let lease = config.lease;
    ha::Config {
        name: config.gateway.clone(),
        facts,
        groups: groups.collect(),
        timing: Timing {
            lease,
            renew: lease / 6,
            margin: lease / 3,
            record_timeout: lease / 3,
            ..Timing::default()
        },
        failback: match config.failback {
            Some(hold) => ha::Failback::After(hold),
            None => ha::Failback::Never,
        },
    }
}

fn place(config: &HaConfig) -> String {
    let HaConfig {
        pool,
        namespace,
        object,
        ..
    } = config;
    match namespace {
        Some(namespace) => format!("{pool}/{namespace}/{object}"),
        None => format!("{pool}/{object}"),
    }
}

fn now() -> Time {
    // It includes the time while the machine sleeps. It fails only if the kernel has no such clock.
    let monotonic = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    Time {
        monotonic: monotonic.unwrap_or_default(),
        unix_s: unix.unwrap_or_default().as_secs(),
    }
}

impl Driver {
    fn run(mut self, events: &Receiver<Event>) {
        loop {
            while let Some(action) = self.machine.poll(now()) {
                self.execute(action);
            }
            let now = now();
            if self.resets.judge(&self.machine, now) {
                self.manager.report_resets();
            }
            self.report(now);
            if *self.machine.standing() == ha::Standing::Stopped {
                return;
            }
            if now.monotonic >= self.next_examination {
                self.next_examination = now.monotonic + EXAMINE;
                self.standby.submit(());
            }
            let wakeup = self.machine.next_wakeup().unwrap_or(Duration::MAX);
            let wait = wakeup
                .min(self.next_examination)
                .saturating_sub(now.monotonic);
            // This thread has a sender itself, so that it is never disconnected.
            if let Ok(event) = events.recv_timeout(wait) {
                self.handle(event);
            }
        }
    }

    fn execute(&mut self, action: Action) {
        let group = match &action {
            Action::Read { number } => return self.record.read(*number),
            Action::Disconnect { number } => return self.hosts.submit(*number),
            Action::Write { .. } => None,
            Action::Fence { group, .. }
            | Action::Open { group, .. }
            | Action::Serve { group, .. }
            | Action::StopServing { group }
            | Action::Close { group, .. } => self.groups.get_mut(group),
        };
        match (action, group) {
            (
                Action::Write {
                    number,
                    expected,
                    bytes,
                },
                _,
            ) => self.record.write(number, expected, bytes),
            (
                Action::Fence {
                    number, clients, ..
                },
                Some(group),
            ) => group.fence(number, clients),
            (Action::Open { number, .. }, Some(group)) => group.open(number),
            (Action::Serve { epoch, .. }, Some(group)) => group.serve(epoch),
            (Action::StopServing { .. }, Some(group)) => group.suspend(),
            (
                Action::Close {
                    number, is_planned, ..
                },
                Some(group),
            ) => group.close(number, is_planned),
            _ => {}
        }
    }

    fn handle(&mut self, event: Event) {
        let now = now();
        let machine = &mut self.machine;
        match event {
            Event::Order(order, reply) => {
                // The one who ordered may have given up.
                let _ = reply.send(self.order(now, &order));
            }
            Event::Read(number, result) => machine.handle_record(now, number, result),
            Event::Written(number, written) => machine.handle_written(now, number, written),
            Event::Fenced(group, number, result) => {
                log_failure(group, "fencing its former owner", result.as_ref().err());
                machine.handle_fenced(now, group, number, result);
            }
            Event::Opened(group, number, result) => {
                log_failure(group, "opening its images", result.as_ref().err());
                machine.handle_opened(now, group, number, result);
            }
            Event::Closed(group, number, result) => {
                machine.handle_closed(group, number, &result);
            }
            Event::NotServed(group, epoch, why) => {
                log_failure(group, "serving its images", Some(&why));
                machine.handle_lost(now, group, epoch, &why);
            }
            Event::Lost(group, epoch, why) => {
                log_failure(group, "using its images", Some(&why));
                machine.handle_lost(now, group, epoch, &why);
            }
            Event::Facts(facts) => {
                if let Err(error) = machine.set_facts(facts) {
                    tracing::error!("high availability: {error}");
                }
            }
            Event::Reset(cntlid, reset) => self.resets.begin(machine, now, cntlid, reset),
            Event::Disconnected(number) => machine.handle_disconnected(number),
            Event::Stop => machine.stop(now),
        }
    }

    fn order(&mut self, now: Time, order: &HaOrder) -> Result<(), HaOrderError> {
        let machine = &mut self.machine;
        let ordered = match order {
            HaOrder::Move { group, gateway } => machine.move_group(now, *group, gateway),
            HaOrder::Drain { gateway } => machine.drain(gateway),
            HaOrder::Resume { gateway } => machine.resume(gateway),
            HaOrder::Forget { gateway } => machine.remove(gateway),
        };
        ordered.map_err(|error| match error {
            OrderError::Busy => HaOrderError::Busy,
            error => HaOrderError::Refused(error.to_string()),
        })
    }

    /// Updates the status, and logs what has changed.
    fn report(&self, now: Time) {
        let before = self.control.status();
        let status = status(&self.machine, now, &before.record);
        if before == status {
            return;
        }
        if before.standing != status.standing || before.error != status.error {
            match (status.standing, &status.error) {
                (HaStanding::Refused, Some(why)) => tracing::error!("high availability: {why}"),
                (_, Some(why)) => {
                    tracing::warn!("high availability: record {}: {why}", status.record);
                }
                (standing, None) => {
                    tracing::info!("high availability: {standing}");
                }
            }
        }
        if is_drained(&status) && !is_drained(&before) {
            tracing::warn!(
                "high availability: this gateway is drained: it takes no groups until \
                 `nvmeof-target ctl ha resume`"
            );
        }
        for group in &status.groups {
            let owner = |status: &HaStatus| {
                let mut groups = status.groups.iter();
                let same = groups.find(|it| it.id == group.id);
                same.and_then(|it| it.owner.clone())
            };
            if owner(&before) != group.owner {
                let (id, why) = (group.id, group.last.as_ref().map_or("", |last| &last.why));
                match &group.owner {
                    Some(name) => tracing::info!("ANA group {id}: gateway {name} takes it: {why}"),
                    None => tracing::info!("ANA group {id}: released by its owner"),
                }
            }
        }
        self.control.set_status(status);
    }
}

/// Whether this gateway is drained.
fn is_drained(status: &HaStatus) -> bool {
    let mut gateways = status.gateways.iter();
    let own = gateways.find(|it| it.name == status.gateway);
    own.is_some_and(|own| own.state == HaGatewayState::Drained)
}

fn log_failure(group: u32, what: &str, error: Option<&String>) {
    if let Some(error) = error {
        tracing::error!(group, "ANA group {group}: {what} failed: {error}");
    }
}
