//! Exercises the RDMA devices of this machine with this provider: lists them, transfers
//! messages, makes and ends connections.
//!
//! ```text
//! verbs devices                    list the devices, or what is missing
//! verbs local ADDR                 show the device of an address of this machine
//! verbs towards ADDR:PORT          show the device on the route to an address
//! verbs cycles ADDR COUNT          make and end connections to itself
//! verbs group ADDR MEMBERS COUNT   show which member gets a connection
//! verbs traffic ADDR SECONDS       send messages to itself until a connection ends
//! verbs watch ADDR SECONDS         listen, and log when the device is removed
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "an example"
)]

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::process::exit;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, PrivateData, Provider, QpConfig, QpId, Steering, Tag, Work,
};
use nvmeof_rdma_verbs::{
    Verbs, VerbsConfig, device_for_local, device_towards, devices, group, new,
};

const CONFIG: QpConfig = QpConfig {
    recvs: 32,
    sends: 32,
    reads_out: 4,
    reads_in: 4,
    exposes: 64,
    trusts_peer: false,
};

fn main() {
    tracing_subscriber::fmt()
        .with_env_filter("info")
        .with_writer(std::io::stderr)
        .init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["devices"] => show(devices().map(|all| format!("{all:#?}"))),
        ["local", addr] => {
            show(
                device_for_local(SocketAddr::new(addr.parse().unwrap(), 0))
                    .map(|it| format!("{it:?}")),
            );
        }
        ["towards", addr] => {
            show(device_towards(addr.parse().unwrap()).map(|it| format!("{it:?}")));
        }
        ["cycles", addr, count] => cycles(addr.parse().unwrap(), count.parse().unwrap()),
        ["group", addr, members, count] => {
            round_robin(
                addr.parse().unwrap(),
                members.parse().unwrap(),
                count.parse().unwrap(),
            );
        }
        ["traffic", addr, seconds] => traffic(addr.parse().unwrap(), seconds.parse().unwrap()),
        ["watch", addr, seconds] => watch(addr.parse().unwrap(), seconds.parse().unwrap()),
        _ => {
            eprintln!("usage: see the comment at the start of this example's source");
            exit(2);
        }
    }
}

fn show<E: Display>(result: Result<String, E>) {
    println!("{}", or_exit(result));
}

fn or_exit<T, E: Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        exit(2)
    })
}

/// A provider and its events.
struct Side {
    verbs: Verbs,
    pool: Pool,
    events: Vec<Event>,
}

impl Side {
    fn new(mut verbs: Verbs) -> Self {
        let layout = PoolLayout {
            count: 256,
            stride: 4096,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        verbs.register(pool.region()).unwrap();
        Self {
            verbs,
            pool,
            events: Vec::new(),
        }
    }

    fn recv(&mut self, qp: QpId) {
        let buf = self.pool.take().unwrap();
        // A queue pair that closes meanwhile returns it.
        let _ = self.verbs.post_recv(qp, Tag(0), buf);
    }

    fn send(&mut self, qp: QpId) {
        let work = Work::Send {
            head: Inline::new(b"hello").unwrap(),
            body: self.pool.take(),
            invalidate: None,
            solicited: false,
        };
        let _ = self.verbs.post(qp, Tag(0), work);
    }
}

/// Polls all sides once, and waits briefly if there is no progress.
fn poll_once(sides: &mut [Side], start: Instant) {
    let mut any = false;
    for side in sides.iter_mut() {
        let now = start.elapsed();
        side.verbs.submit(now);
        any |= side.verbs.poll(now, &mut side.events);
    }
    if !any {
        for side in sides.iter_mut() {
            side.verbs.rest();
            let deadline = side.verbs.next_deadline();
            if deadline.is_some_and(|at| at <= start.elapsed()) {
                return;
            }
        }
        let fds: Vec<BorrowedFd<'_>> = sides.iter().filter_map(|one| one.verbs.wait_fd()).collect();
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::from(50u8)).unwrap();
    }
}

/// Waits until `pick` finds something among the events of a side; drops other events.
fn wait<T>(sides: &mut [Side], at: usize, start: Instant, pick: impl Fn(&Event) -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        poll_once(sides, start);
        for event in std::mem::take(&mut sides[at].events) {
            if let Some(found) = pick(&event) {
                return found;
            }
        }
        assert!(Instant::now() < end, "it takes too long");
    }
}

fn is_request(event: &Event) -> Option<QpId> {
    match event {
        Event::ConnectRequest(request) => Some(request.qp),
        _ => None,
    }
}

fn is_established(event: &Event) -> Option<()> {
    matches!(event, Event::Established { .. }).then_some(())
}

fn is_closed(event: &Event) -> Option<CloseReason> {
    match event {
        Event::Closed { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}

/// Connects side 0 to side `to`.
fn connect(sides: &mut [Side], to: usize, at: Address, start: Instant) -> (QpId, QpId) {
    let none = PrivateData::empty();
    let active = sides[0].verbs.connect(at, &CONFIG, &none, start.elapsed());
    let active = or_exit(active);
    let passive = wait(sides, to, start, is_request);
    sides[to].verbs.prepare(passive, &CONFIG).unwrap();
    sides[to].verbs.accept(passive, &none).unwrap();
    wait(sides, 0, start, is_established);
    (active, passive)
}

fn pair(addr: IpAddr) -> (Vec<Side>, Address, Instant) {
    let mut sides: Vec<Side> = (0..2)
        .map(|_| Side::new(or_exit(new(VerbsConfig::default()))))
        .collect();
    let at = SocketAddr::new(addr, 0).into();
    let (_, at) = or_exit(sides[1].verbs.listen(at));
    (sides, at, Instant::now())
}

fn cycles(addr: IpAddr, count: u32) {
    let (mut sides, at, start) = pair(addr);
    for number in 0..count {
        let (active, passive) = connect(&mut sides, 1, at, start);
        let (end, other) = if number % 2 == 0 { (0, 1) } else { (1, 0) };
        sides[end]
            .verbs
            .disconnect(if end == 0 { active } else { passive });
        for side in [end, other] {
            wait(&mut sides, side, start, is_closed);
        }
    }
    println!("{count} connections were made and ended");
    // Connections that wait for their peer have time to end.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        poll_once(&mut sides, start);
    }
    println!("at rest");
    // The caller checks now what is left.
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
}

fn round_robin(addr: IpAddr, members: usize, count: usize) {
    let mut sides = vec![Side::new(or_exit(new(VerbsConfig::default())))];
    sides.extend(
        or_exit(group(VerbsConfig::default(), &Steering::new(members)))
            .into_iter()
            .map(Side::new),
    );
    let mut at = SocketAddr::new(addr, 0).into();
    for side in &mut sides[1..] {
        at = or_exit(side.verbs.listen(at)).1;
    }
    let start = Instant::now();
    let none = PrivateData::empty();
    for _ in 0..count {
        or_exit(sides[0].verbs.connect(at, &CONFIG, &none, start.elapsed()));
    }
    let mut got = vec![0usize; members];
    let mut stand = 0;
    let end = Instant::now() + Duration::from_secs(20);
    while (got.iter().sum::<usize>(), stand) != (count, count) {
        poll_once(&mut sides, start);
        for (side, got) in sides[1..].iter_mut().zip(&mut got) {
            for event in std::mem::take(&mut side.events) {
                if let Some(qp) = is_request(&event) {
                    side.verbs.prepare(qp, &CONFIG).unwrap();
                    side.verbs.accept(qp, &none).unwrap();
                    *got += 1;
                }
            }
        }
        let events = std::mem::take(&mut sides[0].events);
        stand += events.iter().filter_map(is_established).count();
        assert!(Instant::now() < end, "{stand} stand, requests: {got:?}");
    }
    println!("{count} connections, by member: {got:?}");
}

fn traffic(addr: IpAddr, seconds: u64) {
    let (mut sides, at, start) = pair(addr);
    let (active, passive) = connect(&mut sides, 1, at, start);
    for _ in 0..32 {
        sides[1].recv(passive);
    }
    for _ in 0..8 {
        sides[0].send(active);
    }
    println!("traffic");
    let (mut messages, mut closed) = (0u64, 0);
    while closed < 2 && start.elapsed() < Duration::from_secs(seconds) {
        poll_once(&mut sides, start);
        for end in [0, 1] {
            for event in std::mem::take(&mut sides[end].events) {
                match event {
                    Event::Received(one) if one.outcome.is_success() => {
                        messages += 1;
                        sides[1].recv(passive);
                    }
                    Event::Completion(one) if one.outcome.is_success() => sides[0].send(active),
                    Event::Closed { reason, .. } => {
                        println!("closed at {}: {reason}", ["A", "B"][end]);
                        closed += 1;
                    }
                    _ => {}
                }
            }
        }
    }
    let rest: usize = sides.iter().map(|side| side.pool.available()).sum();
    println!("{messages} messages; {rest} of 512 buffers are free");
    if closed == 2 {
        // A new connection as soon as the device is back.
        while start.elapsed() < Duration::from_secs(seconds) {
            poll_once(&mut sides, start);
            for side in &mut sides {
                side.events.clear();
            }
            if device_for_local(SocketAddr::new(addr, 0)).is_ok_and(|device| device.is_some()) {
                std::thread::sleep(Duration::from_secs(2));
                poll_once(&mut sides, start);
                connect(&mut sides, 1, at, start);
                println!("connected again");
                return;
            }
        }
        println!("the device did not come back");
    }
}

fn watch(addr: IpAddr, seconds: u64) {
    let mut sides = vec![Side::new(or_exit(new(VerbsConfig::default())))];
    let at = SocketAddr::new(addr, 0).into();
    let (_, at) = or_exit(sides[0].verbs.listen(at));
    println!("listening on {at}");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        poll_once(&mut sides, start);
    }
}
