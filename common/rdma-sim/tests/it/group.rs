//! Providers that share listeners.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use nvmeof_rdma::{Address, Event, ListenError, PrivateData, Provider, QpConfig};
use nvmeof_rdma_sim::{Sim, SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const TARGET: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const CONFIG: QpConfig = QpConfig {
    recvs: 1,
    sends: 1,
    reads_out: 1,
    reads_in: 1,
    exposes: 0,
    trusts_peer: false,
};

/// Number of requests that each member gets, of `count` by a host.
fn shares(net: &SimNet, members: &mut [Sim], addr: Address, count: usize) -> Vec<usize> {
    let mut host = net.endpoint(HOST, SoftConfig::default());
    for _ in 0..count {
        let nothing = PrivateData::empty();
        host.connect(addr, &CONFIG, &nothing, net.now()).unwrap();
    }
    let mut shares = vec![0; members.len()];
    while shares.iter().sum::<usize>() < count {
        host.submit(net.now());
        host.poll(net.now(), &mut Vec::new());
        for (member, share) in members.iter_mut().zip(&mut shares) {
            let mut events = Vec::new();
            member.poll(net.now(), &mut events);
            let asked = |event: &&Event| matches!(event, Event::ConnectRequest(_));
            *share += events.iter().filter(asked).count();
        }
        assert!(
            net.advance_to_next(None),
            "some requests are lost: {shares:?}"
        );
    }
    shares
}

#[test]
fn connections_go_round_robin_to_listening_members() {
    let net = SimNet::new(0, SimConfig::default());
    let mut members = net.group(TARGET, &SoftConfig::default(), 3);
    let addr = Address::from(SocketAddr::new(TARGET, 4420));
    let listening: Vec<_> = members.iter_mut().map(|one| one.listen(addr)).collect();
    let listening: Result<Vec<_>, _> = listening.into_iter().collect();
    let listeners = listening.unwrap();
    assert_eq!(shares(&net, &mut members, addr, 6), [2, 2, 2]);

    members[1].unlisten(listeners[1].0);
    assert_eq!(shares(&net, &mut members, addr, 6), [3, 0, 3]);
    drop(members.remove(0));
    assert_eq!(shares(&net, &mut members, addr, 2), [0, 2]);
}

#[test]
fn second_listener_on_address_is_refused() {
    let net = SimNet::new(0, SimConfig::default());
    let mut members = net.group(TARGET, &SoftConfig::default(), 2);
    let addr = Address::from(SocketAddr::new(TARGET, 4420));
    members[0].listen(addr).unwrap();
    let mut others = net.group(TARGET, &SoftConfig::default(), 1);
    others.push(net.endpoint(TARGET, SoftConfig::default()));
    for other in others.iter_mut().chain(&mut members[..1]) {
        let refused = other.listen(addr);
        assert!(matches!(refused, Err(ListenError::InUse { .. })));
    }
    members[1].listen(addr).unwrap();
}
