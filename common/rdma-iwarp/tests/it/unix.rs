//! Tests of Unix sockets: files, other users, listeners that are shared or full.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::unistd::{Pid, geteuid};
use nvmeof_rdma::{
    Address, CloseReason, ConnectRequest, Event, Inline, ListenError, Peer, PrivateData, Provider,
    QpConfig, Steering, Tag, UnixPath, Work,
};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};
use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

const CONFIG: QpConfig = QpConfig {
    recvs: 1,
    sends: 1,
    reads_out: 1,
    reads_in: 1,
    exposes: 0,
    trusts_peer: false,
};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn at(path: &Path) -> Address {
    UnixPath::new(path).unwrap().into()
}

fn provider() -> Iwarp {
    nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap()
}

/// Providers that share listeners.
fn group(members: usize) -> Vec<Iwarp> {
    nvmeof_rdma_iwarp::group(&IwarpConfig::default(), &Steering::new(members)).unwrap()
}

struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now(&self) -> Duration {
        let now = self.0.elapsed();
        assert!(now < Duration::from_secs(60), "it takes too long");
        now
    }
}

/// The next event of `active`, while the others are polled as well.
fn event_of(active: &mut Iwarp, passive: &mut [Iwarp], clock: &Clock) -> Event {
    let mut events = Vec::new();
    loop {
        active.poll(clock.now(), &mut events);
        if !events.is_empty() {
            return events.remove(0);
        }
        for one in &mut *passive {
            one.poll(clock.now(), &mut Vec::new());
        }
    }
}

fn why_not(addr: Address) -> CloseReason {
    let (mut active, clock) = (provider(), Clock::start());
    let nothing = PrivateData::empty();
    active
        .connect(addr, &CONFIG, &nothing, clock.now())
        .unwrap();
    match event_of(&mut active, &mut [], &clock) {
        Event::Closed { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

fn request(passive: &mut Iwarp, clock: &Clock) -> ConnectRequest {
    match event_of(passive, &mut [], clock) {
        Event::ConnectRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn peer_is_identified_by_process_and_user() {
    let (folder, clock) = (folder(), Clock::start());
    let addr = at(&folder.path().join("a.sock"));
    let (mut passive, mut active) = (provider(), provider());
    let (_, used) = passive.listen(addr).unwrap();
    assert_eq!(used, addr);
    let nothing = PrivateData::empty();
    active
        .connect(addr, &CONFIG, &nothing, clock.now())
        .unwrap();
    // The request is sent when the connection is established.
    active.poll(clock.now(), &mut Vec::new());
    let request = request(&mut passive, &clock);
    let expected = Peer::Process {
        pid: Pid::this().as_raw(),
        uid: geteuid().as_raw(),
    };
    assert_eq!(request.peer, expected);
    assert_eq!(passive.local_addr(request.qp), Some(addr));
}

#[test]
fn socket_file_has_mode_and_is_removed_with_listener() {
    let folder = folder();
    let path = folder.path().join("a.sock");
    let mut passive = nvmeof_rdma_iwarp::new(IwarpConfig {
        socket_mode: 0o640,
        ..IwarpConfig::default()
    })
    .unwrap();
    let (listener, _) = passive.listen(at(&path)).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    passive.unlisten(listener);
    assert!(!path.exists());
    let (_, _) = passive.listen(at(&path)).unwrap();
    drop(passive);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn failed_listen_reports_reason() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "data").unwrap();
    let missing = folder.path().join("missing/a.sock");
    for (path, word) in [(&file, "not a socket"), (&missing, "No such file")] {
        let refused = provider().listen(at(path)).unwrap_err();
        assert!(matches!(refused, ListenError::Io { .. }), "{refused:?}");
        assert!(refused.to_string().contains(word), "{refused}");
    }
    let taken = folder.path().join("taken");
    let _other = UnixListener::bind(&taken).unwrap();
    let refused = provider().listen(at(&taken)).unwrap_err();
    assert!(matches!(refused, ListenError::InUse { .. }), "{refused:?}");
    assert!(refused.to_string().contains("ss -lxp"), "{refused}");
}

#[test]
fn failed_connect_reports_reason() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("file"), "").unwrap();
    let _other = UnixDatagram::bind(path("datagram")).unwrap();
    drop(UnixListener::bind(path("left over")).unwrap());
    for (name, kind, word) in [
        ("nothing", io::ErrorKind::ConnectionRefused, "no file"),
        ("left over", io::ErrorKind::ConnectionRefused, "refused"),
        ("file", io::ErrorKind::InvalidInput, "not a socket"),
        ("datagram", io::ErrorKind::InvalidInput, "another type"),
    ] {
        match why_not(at(&path(name))) {
            CloseReason::Network {
                kind: found, text, ..
            } => {
                assert_eq!(found, kind, "{name}: {text}");
                assert!(text.contains(word), "{name}: {text}");
            }
            other => panic!("{name}: {other}"),
        }
    }
}

/// Root bypasses permissions, so the test needs another user.
#[test]
fn user_without_write_permission_is_refused() {
    if geteuid().is_root() {
        return;
    }
    let folder = folder();
    let path = folder.path().join("a.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
    let refused = why_not(at(&path));
    let denied = |kind| kind == io::ErrorKind::PermissionDenied;
    assert!(
        matches!(refused, CloseReason::Network { kind, .. } if denied(kind)),
        "{refused}"
    );
}

#[test]
fn connect_to_full_listener_is_retried() {
    let (folder, clock) = (folder(), Clock::start());
    let path = folder.path().join("a.sock");
    let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    listener.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    listener.listen(0).unwrap();
    // A listener with backlog 0 has room for one.
    let first = UnixStream::connect(&path).unwrap();
    let mut active = provider();
    let nothing = PrivateData::empty();
    active
        .connect(at(&path), &CONFIG, &nothing, clock.now())
        .unwrap();
    let mut events = Vec::new();
    // It is retried, and fails again.
    let mut now = clock.now();
    for _ in 0..5 {
        active.poll(now, &mut events);
        let next = active.next_deadline().unwrap();
        assert!(next <= now + Duration::from_millis(10), "{next:?}");
        now = now.max(next);
    }
    assert!(events.is_empty(), "{events:?}");
    listener.accept().unwrap();
    drop(first);
    // Now it is accepted and sends its request.
    let (second, _) = loop {
        active.poll(clock.now(), &mut events);
        listener.set_nonblocking(true).unwrap();
        if let Ok(accepted) = listener.accept() {
            break accepted;
        }
    };
    second.set_nonblocking(false).unwrap();
    active.poll(clock.now(), &mut events);
    active.submit(clock.now());
    let mut received = [std::mem::MaybeUninit::uninit(); 64];
    let len = second.recv(&mut received).unwrap();
    assert!(len >= 20, "{len} bytes are not an MPA request");
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn group_members_share_path_and_connections() {
    let (folder, clock) = (folder(), Clock::start());
    let path = folder.path().join("a.sock");
    let mut members = group(3);
    let mut listeners = Vec::new();
    for member in &mut members {
        let (listener, addr) = member.listen(at(&path)).unwrap();
        assert_eq!(addr, at(&path));
        listeners.push(listener);
    }
    let again = members[0].listen(at(&path));
    assert!(matches!(again, Err(ListenError::InUse { .. })), "{again:?}");
    let stranger = provider().listen(at(&path));
    assert!(
        matches!(stranger, Err(ListenError::InUse { .. })),
        "{stranger:?}"
    );

    let mut callers = Vec::new();
    for _ in 0..30 {
        let mut caller = UnixStream::connect(&path).unwrap();
        caller
            .write_all(b"MPA ID Req Frame\x00\x01\x00\x00")
            .unwrap();
        callers.push(caller);
    }
    let mut got: Vec<Vec<Event>> = members.iter().map(|_| Vec::new()).collect();
    while got.iter().map(Vec::len).sum::<usize>() < callers.len() {
        for (member, got) in members.iter_mut().zip(&mut got) {
            member.poll(clock.now(), got);
        }
    }
    // All that poll get the same number.
    let shares: Vec<_> = got.iter().map(Vec::len).collect();
    assert_eq!(shares, [10, 10, 10]);

    // The file stays until the last one stops listening.
    members[0].unlisten(listeners[0]);
    drop(members.remove(1));
    assert!(UnixStream::connect(&path).is_ok());
    members.clear();
    assert!(!path.exists());
}

/// The kernel resets a Unix socket whose peer closed it, or died, with unread bytes, and ends
/// it otherwise: the provider treats both the same.
#[test]
fn peer_that_closes_with_unread_bytes_is_closed_normally() {
    let (folder, clock) = (folder(), Clock::start());
    let addr = at(&folder.path().join("a.sock"));
    let (mut passive, mut active) = (provider(), provider());
    passive.listen(addr).unwrap();
    let nothing = PrivateData::empty();
    let qp = active.connect(addr, &CONFIG, &nothing, clock.now());
    let qp = qp.unwrap();
    active.poll(clock.now(), &mut Vec::new());
    let asked = request(&mut passive, &clock).qp;
    passive.prepare(asked, &CONFIG).unwrap();
    passive.accept(asked, &nothing).unwrap();
    passive.submit(clock.now());
    let established = event_of(&mut active, std::slice::from_mut(&mut passive), &clock);
    assert!(
        matches!(established, Event::Established { .. }),
        "{established:?}"
    );
    let send = Work::Send {
        head: Inline::new(&[7; 16]).unwrap(),
        body: None,
        invalidate: None,
        solicited: false,
    };
    active.post(qp, Tag(1), send).unwrap();
    active.submit(clock.now());
    drop(passive);
    let mut events = Vec::new();
    while !matches!(events.last(), Some(Event::Closed { .. })) {
        active.poll(clock.now(), &mut events);
    }
    let Some(Event::Closed { reason, .. }) = events.pop() else {
        panic!("{events:?}");
    };
    assert_eq!(reason, CloseReason::Peer);
}
