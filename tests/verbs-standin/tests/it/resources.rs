//! What the provider asks devices for: registrations and completion vectors.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{Event, PrivateData, Provider, QpConfig, Steering};
use nvmeof_verbs_standin::counters;

use super::fabric::Device;

/// Lets all providers of `group` connect to `addr` through a listener of their own.
fn connect_each(group: &mut [impl Provider], addr: SocketAddr) {
    let mut target = Device::provider();
    let (_, addr) = target.listen(addr.into()).unwrap();
    let start = Instant::now();
    let config = QpConfig {
        recvs: 4,
        sends: 4,
        ..QpConfig::default()
    };
    for member in &mut *group {
        let connected = member.connect(addr, &config, &PrivateData::empty(), start.elapsed());
        connected.unwrap();
    }
    let (mut events, mut established) = (Vec::new(), 0);
    while established < group.len() {
        assert!(start.elapsed() < Duration::from_secs(10), "{established}");
        target.poll(start.elapsed(), &mut events);
        for event in events.drain(..) {
            if let Event::ConnectRequest(request) = event {
                target.prepare(request.qp, &config).unwrap();
                target.accept(request.qp, &PrivateData::empty()).unwrap();
            }
        }
        for member in &mut *group {
            member.poll(start.elapsed(), &mut events);
        }
        let is_established = |event: &Event| matches!(event, Event::Established { .. });
        established += events.drain(..).filter(is_established).count();
    }
}

/// Providers of a group, vectors of the device, and how many of them they use.
#[test]
fn providers_of_group_use_different_completion_vectors() {
    let cases = [
        ("profile=roce vectors=4", 3, 3),
        ("profile=roce vectors=2", 3, 2),
        ("profile=iwarp vectors=1", 2, 1),
    ];
    for (settings, members, vectors) in cases {
        let [host, target] = Device::two(settings);
        let steering = Steering::new(members);
        let mut group = nvmeof_rdma_verbs::group(Device::config(), &steering).unwrap();
        connect_each(&mut group, SocketAddr::new(target.addr, 0));
        let counted = counters(&host.name).unwrap();
        assert_eq!(counted.vectors.count_ones(), vectors, "{settings}");
    }
}

/// Accesses to all memory may be reordered: of pools, of exposed buffers, of heads.
#[test]
fn registrations_permit_relaxed_ordering() {
    for settings in ["profile=roce", "profile=no-windows", "profile=iwarp"] {
        let [host, target] = Device::two(settings);
        let mut provider = Device::provider();
        let layout = PoolLayout {
            count: 4,
            stride: 4096,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        provider.register(pool.region()).unwrap();
        let mut group = [provider];
        connect_each(&mut group, SocketAddr::new(target.addr, 0));
        let counted = counters(&host.name).unwrap();
        assert!(counted.registrations >= 2, "{settings}");
        assert_eq!(counted.relaxed, counted.registrations, "{settings}");
    }
}
