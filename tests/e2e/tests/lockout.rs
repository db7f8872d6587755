//! With the default configuration, a host with all of its I/O queues blocks neither another
//! host nor discovery.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use nvmeof_e2e::{NQN, Peer, Setup, Target, connect_capsule, pattern, same_bytes};
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::registers::Property;
use nvmeof_wire::{Nqn, Status};

const MIB: usize = 1 << 20;
/// The resources that the greedy host requests.
const CONTROLLERS: usize = 16;
const QUEUES: u16 = 14;
const ENTRIES: u16 = 256;

/// A queue of the greedy host, and its controller; `None` if it is refused.
fn queue(target: &Target, qid: u16, entries: u16, cntlid: u16) -> Option<(Peer, u16)> {
    let mut peer = Peer::try_queue_sized(target.address(), qid, entries)?;
    let nqn = |name| Nqn::new(name).unwrap();
    let name = nqn("nqn.2026-11.org.example:greedy");
    let data = ConnectData::new([9; 16], cntlid, &nqn(NQN), &name);
    let connect = Connect::new(qid, entries, 0);
    peer.capsule(&connect_capsule(&(connect, data)));
    let response = peer.response();
    if !response.status().is_success() {
        assert_eq!(response.status(), Status::CONNECT_CONTROLLER_BUSY);
        return None;
    }
    let [low, high, ..] = response.result.get().to_le_bytes();
    Some((peer, u16::from_le_bytes([low, high])))
}

/// Connects controllers, and I/O queues of each until one is refused.
fn greedy(target: &Target) -> Vec<Peer> {
    let (mut peers, mut refused) = (Vec::new(), false);
    for _ in 0..CONTROLLERS {
        let (mut admin, cntlid) = queue(target, 0, 32, 0xffff).unwrap();
        admin.enable();
        peers.push(admin);
        for qid in 1..=QUEUES {
            let Some((queue, _)) = queue(target, qid, ENTRIES, cntlid) else {
                refused = true;
                break;
            };
            peers.push(queue);
        }
    }
    assert!(refused, "the target has room for all of them");
    peers
}

#[test]
fn host_with_all_queues_blocks_no_other_host() {
    let setup = Setup::new().file(4 * MIB);
    let mut target = setup.start();
    let mut peers = greedy(&target);
    assert!(peers.len() > CONTROLLERS, "it has no I/O queue");

    let found = target.fabrics("discover").ok().text();
    assert!(found.contains(NQN), "{found}");
    let data = pattern(2, MIB);
    target.write(1, 0, &data);
    let blocks = u64::try_from(MIB / 512).unwrap();
    same_bytes(&target.read(1, 0, Some(blocks)), &data);

    // The greedy host is still connected.
    let get = PropertyAccess::get(Property::CSTS, false);
    peers[0].capsule(&get.to_bytes());
    assert!(peers[0].response().status().is_success());
    target.assert_healthy();
    target.stop();
}
