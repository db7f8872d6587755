//! Decisions of machines that share a record: takeovers, moves, refusals and failures.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nvmeof_target_ha::{
    Action, Config, ControllerIds, Facts, Failback, GroupConfig, Incarnation, LostController,
    LostState, Machine, OrderError, Phase, Record, Refusal, Standing, Time, Timing, WishReason,
    Written,
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn config(name: &str, at: u16) -> Config {
    let first = 1000 * at + 1;
    let group = |id, order: [&str; 2]| GroupConfig {
        id,
        gateways: order.map(str::to_owned).to_vec(),
    };
    Config {
        name: name.to_owned(),
        facts: Facts {
            controller_ids: ControllerIds {
                first,
                last: first + 999,
            },
            shared: BTreeMap::from([("serial".to_owned(), "S1".to_owned())]),
            has_others: false,
        },
        groups: vec![group(1, ["a", "b"]), group(2, ["b", "a"])],
        timing: Timing::default(),
        failback: Failback::Never,
    }
}

/// A gateway whose cluster answers immediately.
struct Gateway {
    machine: Machine,
    serving: BTreeSet<u32>,
    /// Actions on images, without reads and writes.
    actions: Vec<String>,
    is_suspended: bool,
    fails_open: bool,
    fails_fence: bool,
    fails_close: bool,
    /// Replies of writes are lost, although the writes take effect.
    loses_replies: bool,
    /// `Disconnect` does not end.
    keeps_hosts: bool,
    /// The number of the last one.
    disconnecting: u64,
}

struct World {
    now: Duration,
    version: Option<u64>,
    bytes: Vec<u8>,
    clients: u64,
    gateways: BTreeMap<&'static str, Gateway>,
}

impl World {
    fn new(configs: impl IntoIterator<Item = (&'static str, Config)>) -> Self {
        let mut world = Self {
            now: MS(1000),
            version: None,
            bytes: Vec::new(),
            clients: 0,
            gateways: BTreeMap::new(),
        };
        for (at, (name, config)) in (1..).zip(configs) {
            world.start(name, config, at);
        }
        world
    }

    fn pair() -> Self {
        let mut world = Self::new([("a", config("a", 0)), ("b", config("b", 1))]);
        world.run(1000);
        assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
        world
    }

    fn start(&mut self, name: &'static str, config: Config, incarnation: u128) {
        let machine = Machine::new(config, Incarnation(incarnation), self.time()).unwrap();
        let gateway = Gateway {
            machine,
            serving: BTreeSet::new(),
            actions: Vec::new(),
            is_suspended: false,
            fails_open: false,
            fails_fence: false,
            fails_close: false,
            loses_replies: false,
            keeps_hosts: false,
            disconnecting: 0,
        };
        self.gateways.insert(name, gateway);
    }

    fn time(&self) -> Time {
        Time {
            monotonic: self.now,
            unix_s: self.now.as_secs(),
        }
    }

    fn at(&mut self, name: &str) -> &mut Gateway {
        self.gateways.get_mut(name).unwrap()
    }

    fn record(&self) -> Record {
        Record::parse(&self.bytes).unwrap()
    }

    fn serving(&self) -> Vec<(&str, u32)> {
        let all = self.gateways.iter().filter(|(_, it)| !it.is_suspended);
        all.flat_map(|(name, it)| it.serving.iter().map(|group| (*name, *group)))
            .collect()
    }

    /// Runs for a time in steps of 50 ms.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms / 50 {
            let names: Vec<_> = self.gateways.keys().copied().collect();
            for name in names {
                let mut steps = 0;
                while !self.at(name).is_suspended && self.step(name) {
                    steps += 1;
                    assert!(steps < 1000, "{name} acts without end");
                }
            }
            self.now += MS(50);
        }
    }

    fn step(&mut self, name: &'static str) -> bool {
        let now = self.time();
        let Some(action) = self.at(name).machine.poll(now) else {
            return false;
        };
        match action {
            Action::Read { number } => {
                let read = self.version.map(|version| (version, self.bytes.clone()));
                self.at(name).machine.handle_record(now, number, Ok(read));
            }
            Action::Write {
                number,
                expected,
                bytes,
            } => {
                let mut result = Written::Conflict;
                if expected == self.version {
                    let version = self.version.unwrap_or(0) + 1;
                    (self.version, self.bytes) = (Some(version), bytes);
                    result = match self.at(name).loses_replies {
                        true => Written::Unknown("lost".to_owned()),
                        false => Written::Done(version),
                    };
                }
                self.at(name).machine.handle_written(now, number, result);
            }
            other => self.act(name, now, &other),
        }
        true
    }

    fn act(&mut self, name: &'static str, now: Time, action: &Action) {
        self.clients += 1;
        let client = format!("c{}", self.clients);
        let record = Record::parse(&self.bytes).unwrap_or_default();
        let gateway = self.gateways.get_mut(name).unwrap();
        gateway.actions.push(match action {
            Action::Fence { group, clients, .. } => format!("Fence {group} {clients:?}"),
            Action::Open { group, .. } => format!("Open {group}"),
            Action::Close {
                group,
                is_planned: false,
                ..
            } => format!("Close {group}"),
            Action::Close { group, .. } => format!("Close {group} (planned)"),
            Action::Serve { group, .. } => format!("Serve {group}"),
            Action::StopServing { group } => format!("StopServing {group}"),
            Action::Disconnect { .. } => "Disconnect".to_owned(),
            other => panic!("{other:?}"),
        });
        let failed = |fails: bool| match fails {
            true => Err("no such pool".to_owned()),
            false => Ok(()),
        };
        match *action {
            Action::Fence { group, number, .. } => {
                let result = failed(gateway.fails_fence).map(|()| vec![client]);
                gateway.machine.handle_fenced(now, group, number, result);
            }
            Action::Open { group, number } => {
                let clients = &record.groups[&group].clients;
                assert!(
                    !clients.is_empty(),
                    "clients are recorded before they are used"
                );
                let result = failed(gateway.fails_open);
                gateway.machine.handle_opened(now, group, number, result);
            }
            Action::Close { group, number, .. } => {
                let result = failed(gateway.fails_close);
                gateway.machine.handle_closed(group, number, &result);
            }
            Action::Disconnect { number } => {
                gateway.disconnecting = number;
                if !gateway.keeps_hosts {
                    gateway.machine.handle_disconnected(number);
                }
            }
            Action::Serve { group, .. } => drop(gateway.serving.insert(group)),
            Action::StopServing { group } => drop(gateway.serving.remove(&group)),
            _ => {}
        }
    }

    fn fences(&self) -> Vec<&str> {
        let all = self.gateways.values().flat_map(|it| &it.actions);
        all.map(String::as_str)
            .filter(|it| it.contains('"'))
            .collect()
    }
}

#[test]
fn groups_spread_over_their_preferred_gateways() {
    let world = World::pair();
    assert_eq!(world.record().groups[&1].epoch, 1);
    assert!(world.fences().is_empty());
}

#[test]
fn single_gateway_takes_all_groups_after_a_lease() {
    let mut world = World::new([("a", config("a", 0))]);
    world.run(2500);
    assert_eq!(world.serving(), [("a", 1)]);
    world.run(1500);
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
}

#[test]
fn failed_gateway_is_fenced_and_replaced_within_lease_and_two_renewals() {
    let mut world = World::pair();
    let clients = world.record().groups[&1].clients.clone();
    world.at("a").is_suspended = true;
    world.run(2400);
    assert_eq!(world.serving(), [("b", 2)]);
    world.run(1600);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(world.fences(), [format!("Fence 1 {clients:?}")]);
    let group = world.record().groups[&1].clone();
    assert_eq!(group.epoch, 2);
    assert_eq!(group.to_fence, [""; 0]);
    let last = group.last.unwrap();
    assert_eq!((last.from.as_deref(), &last.fenced), (Some("a"), &clients));
    assert!(
        last.why.contains("gateway a: no renewal for 3."),
        "{}",
        last.why
    );
    let why = world.gateways["b"].machine.why(world.time(), 1).unwrap();
    let text = why.to_string();
    assert!(text.contains("a: no candidate: no renewal for"), "{text}");
    // It continues, stops at once, and leaves the group where it is.
    world.at("a").is_suspended = false;
    world.run(50);
    assert!(world.at("a").serving.is_empty());
    world.run(20_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    let actions = &world.at("a").actions;
    assert!(actions.ends_with(&["Close 1".to_owned(), "Disconnect".to_owned()]));
}

#[test]
fn owner_that_was_replaced_closes_its_images_although_its_lease_is_valid() {
    let mut world = World::pair();
    let mut record = world.record();
    let b = record.groups[&2].owner.clone();
    let group = record.groups.get_mut(&1).unwrap();
    (group.owner, group.epoch) = (b, 2);
    world.bytes = record.to_bytes().unwrap();
    world.version = world.version.map(|version| version + 1);
    world.run(600);
    assert!(world.at("a").serving.is_empty());
    assert_eq!(world.at("a").actions.last().unwrap(), "Close 1");
}

#[test]
fn first_candidate_takes_a_group_although_another_one_polls_first() {
    let mut configs = [
        ("a", config("a", 0)),
        ("b", config("b", 1)),
        ("c", config("c", 2)),
    ];
    for (_, config) in &mut configs {
        config.groups[0].gateways = ["a", "c", "b"].map(str::to_owned).to_vec();
    }
    let mut world = World::new(configs);
    world.run(1000);
    world.at("a").is_suspended = true;
    world.run(5000);
    assert_eq!(world.serving(), [("b", 2), ("c", 1)]);
}

#[test]
fn suspended_gateway_declares_no_other_gateway_failed() {
    let mut world = World::pair();
    for name in ["a", "b"] {
        world.at(name).is_suspended = true;
    }
    world.run(10_000);
    // The second one continues later than the first one.
    world.at("b").is_suspended = false;
    world.run(2500);
    assert_eq!(world.serving(), [("b", 2)]);
    world.at("a").is_suspended = false;
    world.run(2000);
    assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
    assert!(world.fences().is_empty());
}

#[test]
fn owner_without_renewal_stops_serving_before_its_lease_expires() {
    let mut world = World::pair();
    world.at("a").loses_replies = true;
    world.run(2600);
    assert_eq!(world.serving(), [("b", 2)]);
    world.at("a").loses_replies = false;
    world.run(1500);
    // Its writes took effect all the same, so that it remains the owner.
    assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
    assert_eq!(world.record().groups[&1].epoch, 1);
}

#[test]
fn moved_group_is_not_fenced_and_fail_back_leaves_it() {
    let mut configs = [("a", config("a", 0)), ("b", config("b", 1))];
    for (_, config) in &mut configs {
        config.failback = Failback::After(MS(2000));
    }
    let mut world = World::new(configs);
    world.run(5000);
    let now = world.time();
    world.at("a").machine.move_group(now, 1, "b").unwrap();
    world.run(1500);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    world.run(10_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert!(world.fences().is_empty());
    let last = world.record().groups[&1].last.clone().unwrap();
    assert!(last.why.contains("moved by an administrator"), "{last:?}");
}

#[test]
fn group_fails_back_when_its_preferred_gateway_was_alive_for_the_hold_time() {
    let mut configs = [("a", config("a", 0)), ("b", config("b", 1))];
    for (_, config) in &mut configs {
        config.failback = Failback::After(MS(5000));
    }
    let mut world = World::new(configs);
    world.run(2000);
    world.at("a").is_suspended = true;
    world.run(6000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    world.at("a").is_suspended = false;
    world.run(4500);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    world.run(2500);
    assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
}

#[test]
fn drained_gateway_serves_nothing_until_it_is_resumed() {
    let mut world = World::pair();
    world.at("b").machine.drain("a").unwrap();
    world.run(2000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    let now = world.time();
    let refused = world.at("b").machine.move_group(now, 1, "a").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "group 1: gateway a cannot take it: drained"
    );
    // It takes nothing even if it is the only one.
    world.at("b").is_suspended = true;
    world.run(8000);
    assert!(world.serving().is_empty());
    world.at("a").machine.resume("a").unwrap();
    world.run(2000);
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
}

#[test]
fn drained_gateway_keeps_its_groups_without_another_candidate() {
    let mut world = World::new([("a", config("a", 0))]);
    world.run(5000);
    world.at("a").machine.drain("a").unwrap();
    world.run(5000);
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
}

#[test]
fn stopped_gateway_hands_over_without_a_fence_and_leaves() {
    let mut world = World::pair();
    let now = world.time();
    world.at("a").machine.stop(now);
    world.run(2000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(*world.at("a").machine.standing(), Standing::Stopped);
    assert_eq!(world.at("a").machine.next_wakeup(), None);
    assert!(world.record().gateways["a"].stopped);
    assert!(world.fences().is_empty());
    let now = world.time();
    world.at("b").machine.stop(now);
    world.run(2000);
    assert_eq!(*world.at("b").machine.standing(), Standing::Stopped);
    assert_eq!(world.record().groups[&1].phase, Phase::Free);
}

/// It reads and writes nothing, as if the cluster did not respond.
fn cut(world: &mut World, name: &'static str, ms: u64) {
    for _ in 0..ms / 50 {
        world.run(50);
        let now = world.time();
        let gateway = world.at(name);
        while let Some(action) = gateway.machine.poll(now) {
            match action {
                Action::Read { .. } | Action::Write { .. } => {}
                Action::Close {
                    group,
                    number,
                    is_planned,
                } => {
                    assert!(!is_planned);
                    gateway.actions.push(format!("Close {group}"));
                    let error = Err("commands of hosts did not end".to_owned());
                    gateway.machine.handle_closed(group, number, &error);
                }
                Action::StopServing { group } => drop(gateway.serving.remove(&group)),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn owner_that_cannot_renew_for_another_lease_closes_its_images() {
    let mut world = World::pair();
    let clients = world.record().groups[&1].clients.clone();
    world.at("b").is_suspended = true;
    world.at("a").is_suspended = true;
    cut(&mut world, "a", 4300);
    assert!(world.at("a").serving.is_empty());
    assert_ne!(world.at("a").actions.last().unwrap(), "Close 1");
    cut(&mut world, "a", 1200);
    assert_eq!(world.at("a").actions.last().unwrap(), "Close 1");
    // When it can, it takes the group again, and fences its own clients.
    world.at("a").is_suspended = false;
    world.run(3000);
    assert_eq!(world.serving(), [("a", 1)]);
    assert_eq!(world.fences(), [format!("Fence 1 {clients:?}")]);
    assert_eq!(world.record().groups[&1].epoch, 2);
}

#[test]
fn gateway_that_cannot_renew_stops_without_the_record() {
    let mut world = World::pair();
    let now = world.time();
    world.at("a").is_suspended = true;
    world.at("a").machine.stop(now);
    cut(&mut world, "a", 1000);
    assert_ne!(*world.at("a").machine.standing(), Standing::Stopped);
    cut(&mut world, "a", 1500);
    assert_eq!(*world.at("a").machine.standing(), Standing::Stopped);
    assert_eq!(world.at("a").actions.last().unwrap(), "Close 1");
    world.run(4000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(world.fences().len(), 1);
}

/// What gateway `b` knows of it.
fn judge(world: &World, lost: &mut LostController) -> LostState {
    let now = world.time();
    world.gateways["b"].machine.judge_lost(now, lost)
}

fn ask(world: &World, cntlid: u16) -> Option<LostController> {
    let now = world.time();
    world.gateways["b"].machine.ask_lost(now, cntlid)
}

/// The first controller of gateway `a`.
fn lost_controller(world: &World) -> LostController {
    let ids = world.record().gateways["a"].facts.controller_ids;
    ask(world, ids.first).unwrap()
}

#[test]
fn controller_of_a_failed_gateway_has_ended_when_all_its_clients_are_fenced() {
    let mut world = World::pair();
    world.at("a").is_suspended = true;
    let mut lost = lost_controller(&world);
    world.at("b").fails_fence = true;
    world.run(6000);
    assert!(world.record().gateways["a"].expired);
    assert_eq!(judge(&world, &mut lost), LostState::Pending);
    world.at("b").fails_fence = false;
    world.run(10_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(judge(&world, &mut lost), LostState::Ended);
    // It continues, and disconnects its hosts before it can serve.
    world.at("a").is_suspended = false;
    world.run(1000);
    assert!(!world.record().gateways["a"].expired);
    assert_eq!(disconnects_of(&mut world, "a"), 1);
    let now = world.time();
    world.at("b").machine.move_group(now, 1, "a").unwrap();
    world.run(2000);
    assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
    // It is alive again: nothing is known of controllers that were connected since.
    let mut later = lost_controller(&world);
    world.run(1000);
    assert_eq!(judge(&world, &mut later), LostState::Pending);
    world.run(1500);
    assert_eq!(judge(&world, &mut later), LostState::Unknown);
    assert_eq!(disconnects_of(&mut world, "a"), 1);
}

fn disconnects_of(world: &mut World, name: &str) -> usize {
    let actions = world.at(name).actions.iter();
    actions.filter(|it| *it == "Disconnect").count()
}

#[test]
fn error_is_shown_until_the_group_is_served() {
    let mut world = World::pair();
    let error = |world: &World| {
        let why = world.gateways["b"].machine.why(world.time(), 1);
        why.unwrap().last_error
    };
    world.at("a").is_suspended = true;
    world.at("b").fails_fence = true;
    world.run(6000);
    assert_eq!(error(&world).as_deref(), Some("fence: no such pool"));
    world.at("b").fails_fence = false;
    world.run(10_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(error(&world), None);
}

#[test]
fn gateway_serves_nothing_until_its_hosts_are_disconnected() {
    let mut world = World::new([("a", config("a", 0))]);
    world.run(5000);
    assert_eq!(disconnects_of(&mut world, "a"), 0);
    world.at("a").keeps_hosts = true;
    let mut record = world.record();
    record.gateways.get_mut("a").unwrap().expired = true;
    world.bytes = record.to_bytes().unwrap();
    world.version = world.version.map(|version| version + 1);
    world.run(3000);
    assert!(!world.record().gateways["a"].expired);
    assert_eq!(disconnects_of(&mut world, "a"), 1);
    assert!(world.serving().is_empty());
    let number = world.at("a").disconnecting;
    world.at("a").machine.handle_disconnected(number - 1);
    world.run(1000);
    assert!(world.serving().is_empty());
    world.at("a").machine.handle_disconnected(number);
    world.run(1000);
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
}

#[test]
fn process_that_replaces_another_one_disconnects_its_hosts() {
    let mut world = World::pair();
    world.gateways.remove("a");
    let mut lost = lost_controller(&world);
    world.run(1000);
    assert_eq!(judge(&world, &mut lost), LostState::Pending);
    world.start("a", config("a", 0), 99);
    world.run(8000);
    assert_eq!(world.record().gateways["a"].incarnation, Incarnation(99));
    assert_eq!(disconnects_of(&mut world, "a"), 1);
    assert_eq!(judge(&world, &mut lost), LostState::Ended);
}

#[test]
fn nothing_is_known_of_controllers_of_a_gateway_with_other_namespaces() {
    let mut world = World::pair();
    assert!(ask(&world, 0).is_none() && ask(&world, u16::MAX).is_none());
    let own = world.record().gateways["b"].facts.controller_ids;
    assert!(ask(&world, own.first).is_none());
    let mut facts = config("a", 0).facts;
    facts.has_others = true;
    world.at("a").machine.set_facts(facts).unwrap();
    world.run(1000);
    world.at("a").is_suspended = true;
    let mut lost = lost_controller(&world);
    world.run(6000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(judge(&world, &mut lost), LostState::Unknown);
}

#[test]
fn failed_close_is_fenced_by_the_next_owner() {
    let mut world = World::pair();
    let clients = world.record().groups[&1].clients.clone();
    world.at("a").fails_close = true;
    let now = world.time();
    world.at("b").machine.move_group(now, 1, "b").unwrap();
    world.run(2000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    assert_eq!(world.fences(), [format!("Fence 1 {clients:?}")]);
}

#[test]
fn lost_images_are_fenced_and_opened_in_the_next_epoch() {
    let mut world = World::pair();
    let now = world.time();
    world.at("a").fails_close = true;
    world
        .at("a")
        .machine
        .handle_lost(now, 1, 9, "of another epoch");
    world.run(200);
    assert_eq!(world.record().groups[&1].epoch, 1);
    let now = world.time();
    world.at("a").machine.handle_lost(now, 1, 1, "blocklisted");
    world.run(2000);
    assert_eq!(world.serving(), [("a", 1), ("b", 2)]);
    assert_eq!(world.record().groups[&1].epoch, 2);
    assert_eq!(world.fences().len(), 1);
}

#[test]
fn group_that_cannot_be_opened_is_given_up_once_to_another_gateway() {
    let mut world = World::new([("a", config("a", 0)), ("b", config("b", 1))]);
    world.at("a").fails_open = true;
    world.run(15_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
    let group = world.record().groups[&1].clone();
    assert_eq!(group.failures["a"].times, 1);
    assert_eq!(group.failures["a"].reason, "open: no such pool");
    let epoch = group.epoch;
    world.run(60_000);
    assert_eq!(world.record().groups[&1].epoch, epoch);
}

#[test]
fn group_that_no_gateway_can_open_alternates_less_and_less() {
    let mut world = World::new([("a", config("a", 0)), ("b", config("b", 1))]);
    for name in ["a", "b"] {
        world.at(name).fails_open = true;
    }
    let changes = |world: &World| {
        let failures = &world.record().groups[&1].failures;
        failures.values().map(|it| it.times).sum::<u32>()
    };
    world.run(300_000);
    let early = changes(&world);
    assert!((2..10).contains(&early), "{early}");
    for name in ["a", "b"] {
        world.at(name).fails_open = false;
    }
    world.run(10_000);
    assert_eq!(world.serving().len(), 2);
}

#[test]
fn fence_that_fails_prevents_opening() {
    let mut world = World::pair();
    world.at("b").fails_fence = true;
    world.at("a").is_suspended = true;
    world.run(10_000);
    assert_eq!(world.serving(), [("b", 2)]);
    assert!(!world.at("b").actions.contains(&"Open 1".to_owned()));
    assert_eq!(world.record().groups[&1].to_fence.len(), 1);
    world.at("b").fails_fence = false;
    world.run(9000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
}

#[test]
fn second_process_with_the_same_name_is_refused_while_the_first_is_alive() {
    let mut world = World::pair();
    let second = config("a", 2);
    world.start("a2", second, 77);
    world.run(3000);
    let refusal = world.at("a2").machine.standing().clone();
    let name = "a".to_owned();
    let other = Incarnation(1);
    assert_eq!(refusal, Standing::Refused(Refusal::Name { name, other }));
    // The first one dies; the second one may replace it, and the first one never returns.
    world.at("a").is_suspended = true;
    world.run(8000);
    assert_eq!(*world.at("a2").machine.standing(), Standing::Member);
    world.at("a").is_suspended = false;
    world.run(10_000);
    let standing = world.at("a").machine.standing().clone();
    assert!(matches!(
        standing,
        Standing::Refused(Refusal::Replaced { .. })
    ));
    assert!(world.at("a").serving.is_empty());
}

#[test]
fn conflicting_facts_are_refused_with_both_gateways_and_values() {
    let mut other = config("b", 0);
    let mut world = World::new([("a", config("a", 0)), ("b", other.clone())]);
    world.run(2000);
    let text = match world.at("b").machine.standing() {
        Standing::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        text,
        "gateway b: controller identifiers 1-1000 overlap with 1-1000 of gateway a; ranges must \
         be disjoint; change the range of one of them"
    );
    other.facts.controller_ids = config("b", 1).facts.controller_ids;
    other
        .facts
        .shared
        .insert("serial".to_owned(), "S2".to_owned());
    world.start("b", other, 3);
    world.run(2000);
    let text = match world.at("b").machine.standing() {
        Standing::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(text.starts_with("gateway b: serial \"S2\" differs from \"S1\" of gateway a"));
    // The other gateway is gone: nothing is in conflict any more.
    world.at("a").is_suspended = true;
    world.run(12_000);
    assert_eq!(world.serving(), [("b", 1), ("b", 2)]);
}

/// A gateway without a namespace in a group assigns no controller identifiers.
#[test]
fn gateways_without_controller_identifiers_do_not_conflict() {
    let none = |name, number| {
        let mut config = config(name, number);
        let (first, last) = (0, 0);
        config.facts.controller_ids = ControllerIds { first, last };
        config
    };
    let mut world = World::new([("a", none("a", 0)), ("b", none("b", 1))]);
    world.run(6000);
    assert_eq!(world.serving().len(), 2);
}

#[test]
fn unreadable_or_removed_record_stops_the_gateway() {
    let mut world = World::pair();
    world.bytes = b"{\"format\":7}".to_vec();
    world.run(1000);
    assert!(world.serving().is_empty());
    let standing = world.at("a").machine.standing().clone();
    assert!(matches!(standing, Standing::Refused(Refusal::Record(_))));
    let mut world = World::pair();
    world.version = None;
    world.run(1000);
    assert!(world.serving().is_empty());
    assert_eq!(world.version, None);
    let standing = world.at("a").machine.standing().clone();
    assert_eq!(standing, Standing::Refused(Refusal::Removed));
}

#[test]
fn orders_are_checked_and_bounded() {
    let mut world = World::pair();
    let now = world.time();
    let machine = &mut world.at("a").machine;
    assert_eq!(machine.move_group(now, 9, "b"), Err(OrderError::Group(9)));
    assert!(machine.move_group(now, 1, "c").is_err());
    assert!(matches!(machine.drain("c"), Err(OrderError::Gateway(_))));
    for _ in 0..16 {
        machine.resume("b").unwrap();
    }
    assert_eq!(machine.resume("b"), Err(OrderError::Busy));
    world.run(1000);
    world.at("a").machine.resume("b").unwrap();
}

#[test]
fn wish_for_a_gateway_that_dies_is_dropped_with_a_reason() {
    let mut world = World::pair();
    world.at("b").is_suspended = true;
    let now = world.time();
    world.at("a").machine.move_group(now, 1, "b").unwrap();
    world.run(12_000);
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
    let group = world.record().groups[&1].clone();
    assert_eq!(group.wish, None);
    let note = group.note.unwrap();
    assert!(
        note.starts_with("move to gateway b was dropped: no renewal"),
        "{note}"
    );
    assert_ne!(WishReason::Move, WishReason::Drain);
}

#[test]
fn result_with_an_earlier_number_is_ignored() {
    let now = Time::default();
    let mut machine = Machine::new(config("a", 0), Incarnation(1), now).unwrap();
    let Some(Action::Read { number }) = machine.poll(now) else {
        panic!("no read");
    };
    assert_eq!(machine.poll(now), None, "one operation at a time");
    let later = Time {
        monotonic: MS(1500),
        unix_s: 1,
    };
    assert_eq!(machine.poll(later), None);
    let retry = Time {
        monotonic: machine.next_wakeup().unwrap(),
        unix_s: 1,
    };
    assert!(matches!(machine.poll(retry), Some(Action::Read { .. })));
    machine.handle_record(retry, number, Ok(None));
    assert_eq!(machine.poll(retry), None, "the second read has no result");
}

/// The record as `a` has written it first, and the time.
fn joined() -> (Machine, Vec<u8>) {
    let now = Time::default();
    let mut machine = Machine::new(config("a", 0), Incarnation(1), now).unwrap();
    let Some(Action::Read { number }) = machine.poll(now) else {
        panic!("no read");
    };
    machine.handle_record(now, number, Ok(None));
    let Some(Action::Write {
        number,
        expected: None,
        bytes,
    }) = machine.poll(now)
    else {
        panic!("no write");
    };
    machine.handle_written(now, number, Written::Done(1));
    (machine, bytes)
}

fn after(ms: u64) -> Time {
    Time {
        monotonic: MS(ms),
        unix_s: 0,
    }
}

#[test]
fn renewal_counts_from_the_start_of_its_write() {
    let (mut machine, _) = joined();
    // It takes group 1; the write takes 900 ms.
    let Some(Action::Write { number, .. }) = machine.poll(after(0)) else {
        panic!("no takeover");
    };
    machine.handle_written(after(900), number, Written::Done(2));
    for (ms, lapsed) in [(1950, false), (2050, true)] {
        let why = machine.why(after(ms), 1).unwrap();
        assert_eq!(why.candidates[0].rank.is_none(), lapsed, "{why}");
    }
}

#[test]
fn late_results_of_actions_are_ignored() {
    let (mut machine, _) = joined();
    let Some(Action::Write { number, .. }) = machine.poll(after(0)) else {
        panic!("no takeover");
    };
    machine.handle_written(after(0), number, Written::Done(2));
    let Some(Action::Fence { number, .. }) = machine.poll(after(0)) else {
        panic!("no fence");
    };
    machine.handle_fenced(after(0), 1, number + 1, Ok(vec!["c".to_owned()]));
    machine.handle_opened(after(0), 1, number, Ok(()));
    machine.handle_closed(1, number, &Ok(()));
    assert_eq!(machine.poll(after(0)), None, "the fence has no result");
    machine.handle_fenced(after(0), 1, number, Ok(vec!["c".to_owned()]));
    let action = machine.poll(after(0));
    assert!(matches!(action, Some(Action::Write { .. })), "{action:?}");
}

#[test]
fn gateway_is_removed_from_the_record_only_after_its_lease() {
    let mut world = World::pair();
    world.at("a").machine.remove("b").unwrap();
    world.run(1000);
    assert!(world.record().gateways.contains_key("b"));
    world.at("b").is_suspended = true;
    world.run(6000);
    world.at("a").machine.remove("b").unwrap();
    world.run(1000);
    assert!(!world.record().gateways.contains_key("b"));
    assert_eq!(world.serving(), [("a", 1), ("a", 2)]);
}

#[test]
fn configurations_outside_of_limits_are_refused() {
    let check = |change: fn(&mut Config)| {
        let mut config = config("a", 0);
        change(&mut config);
        assert!(config.check().is_err(), "{config:?}");
    };
    check(|config| config.name = "a b".to_owned());
    check(|config| config.groups.clear());
    check(|config| config.groups[0].gateways.clear());
    check(|config| config.groups[0].gateways.push("a".to_owned()));
    check(|config| config.timing.margin = config.timing.lease);
    check(|config| config.facts.controller_ids.last = 0);
}
