//! Tests with too few file descriptors. A file of its own, because the limit applies to the
//! whole process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmeof_rdma::{Event, PrivateData, Provider, QpConfig};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};

#[test]
fn accepting_pauses_and_resumes() {
    let folder = tempfile::tempdir().unwrap();
    let config = || ShmConfig {
        folder: folder.path().to_owned(),
        ..ShmConfig::default()
    };
    let mut provider = Shm::new(config()).unwrap();
    let addr = "127.0.0.1:1".parse().unwrap();
    provider.listen(addr).unwrap();
    let path = SockAddr::unix(folder.path().join("127.0.0.1-1.sock")).unwrap();
    let strangers: Vec<Socket> = (0..12)
        .map(|_| {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
            socket.connect(&path).unwrap();
            socket
        })
        .collect();
    let mut honest = Shm::new(config()).unwrap();
    let (data, now) = (PrivateData::empty(), Duration::ZERO);
    let sizes = QpConfig {
        recvs: 1,
        sends: 1,
        reads_out: 0,
        reads_in: 0,
        exposes: 64,
        trusts_peer: false,
    };
    honest.connect(addr, &sizes, &data, now).unwrap();
    // Three more than the open descriptors.
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, open + 2, hard).unwrap();
    let (start, mut events) = (Instant::now(), Vec::new());
    while provider.poll(now, &mut events) {}
    // It sets a deadline instead of polling busily.
    let due = provider.next_deadline().unwrap();
    assert!(due > now && due < Duration::from_secs(1), "{due:?}");
    assert!(!provider.poll(now, &mut events));
    assert!(events.is_empty());
    let fd = PollFd::new(provider.wait_fd().unwrap(), PollFlags::POLLIN);
    assert_eq!(poll(&mut [fd], PollTimeout::ZERO), Ok(0));

    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    // The request of the last connection.
    while events.is_empty() {
        provider.poll(start.elapsed(), &mut events);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert!(matches!(events[..], [Event::ConnectRequest(_)]));
    drop(strangers);
}
