//! Hosts run into one limit after the other, and each is counted where operators look.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;

use nvmeof_e2e::{
    HOST, NQN, Peer, Run, Setup, Target, connect_capsule, eventually, over_socket, request,
    target_command,
};
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Nqn, Status};
use serde_json::Value;
use zerocopy::IntoBytes;

const MIB: usize = 1 << 20;
/// What a host made up.
const OTHER: &str = "nqn.2026-11.org.example:other";

/// So little of everything that a few connections are too many.
const LITTLE: &str = "[limits]
queue_depth = 32
io_queues = 4
controllers = 3
host_controllers = 2
host_queues = 2
host_commands = 48
discovery_controllers = 2
unconnected = 8
port_commands = 64
";

fn limited(limits: &str) -> Setup {
    let setup = Setup::new();
    let socket = setup.path("control.sock");
    let control = format!("[control]\nsocket = '{}'\nstate = \"\"\n", socket.display());
    setup.head(&format!("{limits}{control}")).file(MIB)
}

/// How often each limit was hit, as `/metrics` tells it.
fn hits(setup: &Setup) -> BTreeMap<String, u64> {
    let (_, text) = over_socket(setup, "/metrics");
    let each = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("nvmeof_target_limit_hits_total{limit=\"")?;
        let (key, value) = rest.split_once("\"} ")?;
        Some((key.to_owned(), value.parse::<u64>().ok()?))
    });
    each.collect()
}

/// A queue of that many entries asks for a controller.
fn ask(
    target: &Target,
    host: &str,
    subsystem: &str,
    place: (u16, u16),
    size: u16,
) -> (Peer, Status, u16) {
    let (qid, cntlid) = place;
    let nqn = |name| Nqn::new(name).unwrap();
    let data = ConnectData::new([7; 16], cntlid, &nqn(subsystem), &nqn(host));
    let mut peer = Peer::queue_sized(target.address(), qid, size);
    peer.capsule(&connect_capsule(&(Connect::new(qid, size, 0), data)));
    let answer = peer.response();
    let [low, high, ..] = answer.result.get().to_le_bytes();
    (peer, answer.status(), u16::from_le_bytes([low, high]))
}

/// A controller of that host, enabled.
fn controller(target: &Target, host: &str) -> (Peer, u16) {
    let (mut peer, status, cntlid) = ask(target, host, NQN, (0, 0xffff), 32);
    assert!(status.is_success(), "{status}");
    let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
    peer.capsule(&enable.to_bytes());
    assert!(peer.response().status().is_success());
    (peer, cntlid)
}

#[test]
fn each_limit_that_is_hit_is_counted() {
    let setup = limited(LITTLE);
    let mut target = setup.start();
    assert!(hits(&setup).values().all(|count| *count == 0));
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    let mut kept = Vec::new();
    let busy = |host, place, size| {
        let (_, status, _) = ask(&target, host, NQN, place, size);
        assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY);
    };
    let (first, cntlid) = controller(&target, HOST);
    let (second, its) = controller(&target, HOST);
    busy(HOST, (0, 0xffff), 32);
    *expected.entry("limits.host_controllers").or_default() += 1;
    let (third, others) = controller(&target, OTHER);
    busy(OTHER, (0, 0xffff), 32);
    *expected.entry("limits.controllers").or_default() += 1;
    kept.extend([first, second, third]);
    let mut joins = |host, place, size| {
        let (peer, status, _) = ask(&target, host, NQN, place, size);
        assert!(status.is_success(), "{status}");
        kept.push(peer);
    };
    joins(HOST, (1, cntlid), 32);
    busy(HOST, (1, its), 32);
    *expected.entry("limits.host_commands").or_default() += 1;
    joins(HOST, (1, its), 16);
    busy(HOST, (2, its), 2);
    *expected.entry("limits.host_queues").or_default() += 1;
    busy(OTHER, (1, others), 32);
    *expected.entry("limits.port_commands").or_default() += 1;
    joins(OTHER, (1, others), 16);
    for _ in 0..5 {
        let discovery = Nqn::discovery();
        let (peer, status, _) = ask(&target, OTHER, discovery.as_str(), (0, 0xffff), 32);
        assert!(status.is_success(), "{status}");
        kept.push(peer);
    }
    *expected.entry("limits.discovery_controllers").or_default() += 3;
    // Each is open before the next comes.
    for _ in 0..9 {
        kept.push(Peer::queue(target.address(), 0));
    }
    *expected.entry("limits.unconnected").or_default() += 1;
    let all = || {
        let there: BTreeMap<_, _> = hits(&setup);
        let there: BTreeMap<&str, u64> = there
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(key, count)| (key.as_str(), *count))
            .collect();
        (there == expected).then_some(())
    };
    assert!(
        eventually(all).is_some(),
        "{:?}, expected {expected:?}:\n{}",
        hits(&setup),
        target.log()
    );
    target.must_be_well();
    drop(kept);
    target.stop();
}

/// What one port may have, and what all connections together have room for.
#[test]
fn connections_that_find_no_room_are_counted() {
    let little = "[limits]\nport_connections = 4\n";
    let setup = limited(little);
    let mut target = setup.start();
    let _peers: Vec<_> = (0..4).map(|_| Peer::queue(target.address(), 0)).collect();
    let mut more = Peer::connect(target.address());
    more.say(&request(Request::new(0, 32).as_bytes()));
    let _ = more.hear_out();
    let counted = || (hits(&setup)["limits.port_connections"] == 1).then_some(());
    assert!(eventually(counted).is_some(), "{:?}", hits(&setup));
    target.must_be_well();
    target.stop();
}

/// What follows from other keys is shown before anything is served.
#[test]
fn parts_that_nobody_gave_are_shown() {
    let setup = limited("[limits]\ncontrollers = 8\nio_queues = 2\nqueue_depth = 32\n");
    let check = || {
        let mut command = target_command();
        command.arg("check-config").arg(setup.config());
        Run::new(command)
    };
    let text = check().ok().text();
    for line in ["limits.host_queues = 12", "limits.port_controllers = 8"] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    let json: Value = check().json();
    assert_eq!(json["limits"]["host_commands"], 384, "{json}");
}
