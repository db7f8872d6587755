//! Each limit that a host reaches is counted in the metrics.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

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

/// Limits so low that a few connections reach them.
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

/// The counter of each limit in `/metrics`.
fn hits(setup: &Setup) -> BTreeMap<String, u64> {
    let (_, text) = over_socket(setup, "/metrics");
    let each = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("nvmeof_target_limit_hits_total{limit=\"")?;
        let (key, value) = rest.split_once("\"} ")?;
        Some((key.to_owned(), value.parse::<u64>().ok()?))
    });
    each.collect()
}

/// A queue of that many entries requests a controller.
fn ask(
    target: &Target,
    host: &str,
    subsystem: &str,
    place: (u16, u16),
    size: u16,
) -> (Peer, Status, u16) {
    ask_at(target.address(), host, subsystem, place, size)
}

/// The same by another port.
fn ask_at(
    address: SocketAddr,
    host: &str,
    subsystem: &str,
    place: (u16, u16),
    size: u16,
) -> (Peer, Status, u16) {
    let (qid, cntlid) = place;
    let nqn = |name| Nqn::new(name).unwrap();
    let data = ConnectData::new([7; 16], cntlid, &nqn(subsystem), &nqn(host));
    let mut peer = Peer::queue_sized(address, qid, size);
    peer.capsule(&connect_capsule(&(Connect::new(qid, size, 0), data)));
    let response = peer.response();
    let [low, high, ..] = response.result.get().to_le_bytes();
    (peer, response.status(), u16::from_le_bytes([low, high]))
}

/// A controller of that host, enabled.
fn controller(target: &Target, host: &str) -> (Peer, u16) {
    controller_at(target.address(), host)
}

fn controller_at(address: SocketAddr, host: &str) -> (Peer, u16) {
    let (mut peer, status, cntlid) = ask_at(address, host, NQN, (0, 0xffff), 32);
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
    // Each is open before the next one connects.
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
    target.assert_healthy();
    drop(kept);
    target.stop();
}

/// Limits of a port, and of all connections together.
#[test]
fn connections_beyond_the_limit_are_counted() {
    let little = "[limits]\nport_connections = 4\n";
    let setup = limited(little);
    let mut target = setup.start();
    let _peers: Vec<_> = (0..4).map(|_| Peer::queue(target.address(), 0)).collect();
    let mut more = Peer::connect(target.address());
    more.say(&request(Request::new(0, 32).as_bytes()));
    let _ = more.receive_all();
    let counted = || (hits(&setup)["limits.port_connections"] == 1).then_some(());
    assert!(eventually(counted).is_some(), "{:?}", hits(&setup));
    target.assert_healthy();
    target.stop();
}

/// Those that are not 0.
fn hit(setup: &Setup) -> BTreeMap<String, u64> {
    let all = hits(setup).into_iter();
    all.filter(|(_, count)| *count > 0).collect()
}

fn only(key: &str, count: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([(key.to_owned(), count)])
}

/// A queue of `host` is refused, which is counted for `key` alone.
fn is_refused(setup: &Setup, address: SocketAddr, host: &str, place: (u16, u16), key: &str) {
    let (_peer, status, _) = ask_at(address, host, NQN, place, 32);
    assert_eq!(status, Status::CONNECT_CONTROLLER_BUSY, "{key}");
    assert_eq!(hit(setup), only(key, 1));
}

#[test]
fn exhausted_controller_identifiers_are_counted() {
    let keys = "allow_any_host = true\ncntlid_min = 1\ncntlid_max = 2\n";
    let setup = limited("").access(keys);
    let mut target = setup.start();
    let _two = [HOST, OTHER].map(|host| controller(&target, host));
    let key = "subsystem.cntlid_max";
    is_refused(&setup, target.address(), OTHER, (0, 0xffff), key);
    target.assert_healthy();
    target.stop();
}

/// The guaranteed resources of each host: a controller and its first I/O queue.
fn one_queue(target: &Target) -> (Peer, Peer, u16) {
    let (admin, cntlid) = controller(target, HOST);
    let (first, status, _) = ask(target, HOST, NQN, (1, cntlid), 32);
    assert!(status.is_success(), "{status}");
    (admin, first, cntlid)
}

/// A host beside others requests more buffers of a reactor than its share.
#[test]
fn buffers_denied_to_a_host_are_counted() {
    let setup = limited("[limits]\nhost_memory = 1\n");
    let mut target = setup.start();
    let (_other, _) = controller(&target, OTHER);
    let (_admin, _first, cntlid) = one_queue(&target);
    let key = "limits.host_memory";
    is_refused(&setup, target.address(), HOST, (2, cntlid), key);
    target.assert_healthy();
    target.stop();
}

/// A port before the default one, and the address of that one.
fn two_ports(limits: &str) -> (Setup, SocketAddr) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = free.local_addr().unwrap();
    let port = "[[port]]\ntraddr = \"127.0.0.2\"\ntrsvcid = 0\nprovider = \"iwarp\"\n";
    let setup = limited(&format!("[limits]\n{limits}{port}"));
    (setup.port(other.port()), other)
}

#[test]
fn resources_denied_to_a_port_are_counted() {
    let (setup, _) = two_ports("port_controllers = 1\n");
    let mut target = setup.start();
    let _first = controller(&target, HOST);
    let key = "limits.port_controllers";
    is_refused(&setup, target.address(), OTHER, (0, 0xffff), key);
    target.assert_healthy();
    target.stop();

    let (setup, other) = two_ports("port_memory = 1\n");
    let mut target = setup.start();
    let (_admin_there, its) = controller_at(other, OTHER);
    let (_its, status, _) = ask_at(other, OTHER, NQN, (1, its), 32);
    assert!(status.is_success(), "{status}");
    let (_admin, _first, cntlid) = one_queue(&target);
    let key = "limits.port_memory";
    is_refused(&setup, target.address(), HOST, (2, cntlid), key);
    target.assert_healthy();
    target.stop();
}

/// Connections of I/O queues without a Connect, which leave some for admin queues.
#[test]
fn connections_without_a_buffer_for_a_capsule_are_counted() {
    let limits = "[limits]\nunconnected = 4096\n[reactor]\nbuffer_memory = \"8M\"\n";
    let setup = limited(limits);
    let mut target = setup.start();
    let mut peers = Vec::new();
    let full = only("reactor.buffer_memory", 1);
    while hit(&setup).is_empty() && peers.len() < 1024 {
        let mut peer = Peer::connect(target.address());
        peer.say(&request(Request::new(1, 32).as_bytes()));
        // The fixed part of the reply.
        let _ = peer.receive(20);
        peers.push(peer);
    }
    assert_eq!(hit(&setup), full, "{} connections", peers.len());
    let _admin = controller(&target, HOST);
    target.assert_healthy();
    target.stop();
}

/// Limits that derive from other keys are shown before the target serves.
#[test]
fn unassigned_shares_are_reported() {
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
