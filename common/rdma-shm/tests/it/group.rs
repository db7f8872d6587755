//! Providers of one process that share their addresses, and the local address of accepted
//! connections.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::time::{Duration, Instant};

use nvmeof_rdma::{Address, Event, ListenError, PrivateData, Provider, QpConfig, QpId, Steering};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use tempfile::TempDir;

const CONFIG: QpConfig = QpConfig {
    recvs: 1,
    sends: 1,
    reads_out: 1,
    reads_in: 1,
    exposes: 0,
    trusts_peer: false,
};

struct Host {
    folder: TempDir,
    members: Vec<Shm>,
    /// Requests reported to each member.
    asked: Vec<Vec<QpId>>,
}

impl Host {
    fn new(n: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let members = Shm::group(&config(&folder), &Steering::new(n)).unwrap();
        let asked = vec![Vec::new(); n];
        Self {
            folder,
            members,
            asked,
        }
    }

    /// Connects `times` times.
    fn call(&self, addr: Address, times: usize) -> Shm {
        let mut caller = Shm::new(config(&self.folder)).unwrap();
        for _ in 0..times {
            let data = PrivateData::empty();
            caller
                .connect(addr, &CONFIG, &data, Duration::ZERO)
                .unwrap();
        }
        caller
    }

    /// Polls all until `count` requests are reported.
    fn poll_until(&mut self, count: usize) {
        let start = Instant::now();
        while self.asked.iter().map(Vec::len).sum::<usize>() < count {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "{:?}",
                self.asked
            );
            for (member, asked) in self.members.iter_mut().zip(&mut self.asked) {
                let mut events = Vec::new();
                member.poll(Duration::ZERO, &mut events);
                for event in events {
                    let Event::ConnectRequest(request) = event else {
                        panic!("{event:?}");
                    };
                    asked.push(request.qp);
                }
            }
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.asked.iter().map(Vec::len).collect()
    }
}

fn config(folder: &TempDir) -> ShmConfig {
    ShmConfig {
        folder: folder.path().to_owned(),
        ..ShmConfig::default()
    }
}

#[test]
fn connections_are_spread_over_listening_members() {
    let mut host = Host::new(3);
    let mut addr = "127.0.0.1:0".parse().unwrap();
    let mut listeners = Vec::new();
    for member in &mut host.members {
        let (listener, bound) = member.listen(addr).unwrap();
        addr = bound;
        listeners.push(listener);
    }
    let _callers = host.call(addr, 9);
    host.poll_until(9);
    assert_eq!(host.counts(), [3, 3, 3]);
    host.members.get_mut(1).unwrap().unlisten(listeners[1]);
    let _more = host.call(addr, 8);
    host.poll_until(17);
    assert_eq!(host.counts(), [7, 3, 7]);
    // A dropped member gets none either.
    host.members.truncate(2);
    let _last = host.call(addr, 2);
    host.members.remove(1);
    host.poll_until(19);
    assert_eq!(host.counts(), [9, 3, 7]);
    host.members.clear();
    let again = Shm::new(config(&host.folder)).unwrap().listen(addr);
    assert!(again.is_ok(), "the address is free again: {again:?}");
}

#[test]
fn second_listener_on_address_is_refused() {
    let mut host = Host::new(2);
    let addr = "127.0.0.1:1".parse().unwrap();
    for member in &mut host.members {
        member.listen(addr).unwrap();
    }
    let twice = host.members[0].listen(addr);
    assert!(matches!(twice, Err(ListenError::InUse { .. })), "{twice:?}");
    let other = Shm::new(config(&host.folder)).unwrap().listen(addr);
    assert!(matches!(other, Err(ListenError::InUse { .. })), "{other:?}");
}

#[test]
fn local_address_of_connection_is_known() {
    for (listens, sought, expected) in [
        ("127.0.0.1:7", "127.0.0.1:7", "127.0.0.1:7"),
        ("0.0.0.0:7", "127.0.0.3:7", "127.0.0.3:7"),
        ("[::]:7", "[::1]:7", "[::1]:7"),
    ] {
        let mut host = Host::new(1);
        host.members[0].listen(listens.parse().unwrap()).unwrap();
        let _caller = host.call(sought.parse().unwrap(), 1);
        host.poll_until(1);
        let reached = host.members[0].local_addr(host.asked[0][0]);
        assert_eq!(
            reached,
            Some(expected.parse().unwrap()),
            "{listens} {sought}"
        );
    }
}
