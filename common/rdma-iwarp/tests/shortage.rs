//! Tests with too few file descriptors. A file of its own, because the limit applies to the
//! whole process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::TcpStream;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmeof_rdma::{Event, Provider};
use nvmeof_rdma_iwarp::IwarpConfig;

const REQUEST: &[u8] = b"MPA ID Req Frame\x00\x01\x00\x00";

#[test]
fn accepting_pauses_and_resumes() {
    let mut provider = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
    let (_, addr) = provider.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut peers: Vec<TcpStream> = (0..12)
        .map(|_| TcpStream::connect(addr.socket_addr().unwrap()).unwrap())
        .collect();
    for peer in &mut peers {
        std::io::Write::write_all(peer, REQUEST).unwrap();
    }
    // Four more than the open descriptors.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, open + 3, hard).unwrap();
    let (start, mut events) = (Instant::now(), Vec::new());
    while events.len() < 3 {
        provider.poll(start.elapsed(), &mut events);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    // It sets a deadline instead of polling busily.
    let now = start.elapsed();
    while provider.poll(now, &mut events) {}
    let due = provider.next_deadline().unwrap();
    assert!(events.len() < peers.len() && due > now, "{due:?}, {now:?}");
    assert!(!provider.poll(now, &mut events));

    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    while events.len() < peers.len() {
        provider.poll(start.elapsed(), &mut events);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    let requests = |event: &Event| matches!(event, Event::ConnectRequest(_));
    assert!(events.iter().all(requests));
}
