//! Providers that share listeners.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nvmeof_rdma::{Address, Event, ListenerId, Provider, Steering};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig, group};

const REQUEST: &[u8] = b"MPA ID Req Frame\x00\x01\x00\x00";

/// The providers of several threads, polled by one.
struct Threads {
    providers: Vec<Iwarp>,
    listeners: Vec<ListenerId>,
    addr: SocketAddr,
    steering: Steering,
    start: Instant,
    /// For each provider.
    requests: Vec<usize>,
    closed: usize,
}

impl Threads {
    fn listening(count: usize) -> Self {
        let steering = Steering::new(count);
        let mut config = IwarpConfig::default();
        config.limits.max_pending = 64;
        let mut providers = group(&config, &steering).unwrap();
        let mut addr = "127.0.0.1:0".parse::<Address>().unwrap();
        let mut listeners = Vec::new();
        for provider in &mut providers {
            let (listener, bound) = provider.listen(addr).unwrap();
            listeners.push(listener);
            addr = bound;
        }
        Self {
            providers,
            listeners,
            addr: addr.socket_addr().unwrap(),
            steering,
            start: Instant::now(),
            requests: vec![0; count],
            closed: 0,
        }
    }

    fn poll_once(&mut self) {
        // Nothing here depends on time.
        let now = Duration::ZERO;
        for (provider, requests) in self.providers.iter_mut().zip(&mut self.requests) {
            let mut events = Vec::new();
            provider.poll(now, &mut events);
            for event in events {
                match event {
                    Event::ConnectRequest(_) => *requests += 1,
                    Event::Closed { .. } => self.closed += 1,
                    other => panic!("{other:?}"),
                }
            }
            provider.submit(now);
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) {
            self.poll_once();
            assert!(self.start.elapsed() < Duration::from_secs(60), "no {what}");
        }
    }

    /// Connects one after the other, as a host does.
    fn connect(&mut self, count: usize) -> Vec<TcpStream> {
        let before: usize = self.requests.iter().sum();
        let mut peers = Vec::new();
        for number in 1..=count {
            let mut peer = TcpStream::connect(self.addr).unwrap();
            peer.write_all(REQUEST).unwrap();
            peers.push(peer);
            self.until("request", |it| {
                it.requests.iter().sum::<usize>() == before + number
            });
        }
        peers
    }

    fn loads(&self) -> Vec<i64> {
        let members = 0..self.steering.members();
        members
            .map(|member| self.steering.load(member) / Steering::FULL)
            .collect()
    }
}

#[test]
fn connections_are_spread_evenly_after_some_ended() {
    let mut threads = Threads::listening(4);
    let peers = threads.connect(64);
    assert_eq!(threads.requests, [16; 4]);
    assert_eq!(threads.loads(), [16; 4]);
    // Close every fourth, all of one thread, and one more.
    let mut left: Vec<_> = peers
        .into_iter()
        .enumerate()
        .filter(|(at, _)| at % 4 != 0)
        .collect();
    left.pop();
    threads.until("end", |it| it.closed == 17);
    assert_eq!(threads.loads().iter().sum::<i64>(), 47);
    let _more = threads.connect(17);
    assert_eq!(threads.loads(), [16; 4]);
}

#[test]
fn thread_that_stops_listening_gets_no_connection() {
    let mut threads = Threads::listening(4);
    let listener = threads.listeners[1];
    threads.providers[1].unlisten(listener);
    let _peers = threads.connect(30);
    assert_eq!(threads.requests, [10, 0, 10, 10]);
    // Nor a dropped one.
    drop(threads.providers.remove(0));
    threads.requests.remove(0);
    assert_eq!(threads.loads(), [0, 0, 10, 10]);
    let _more = threads.connect(10);
    assert_eq!(threads.loads(), [0, 0, 15, 15]);
}

#[test]
fn connection_for_thread_that_stops_listening_is_closed() {
    let mut threads = Threads::listening(2);
    let _first = threads.connect(1);
    let second = TcpStream::connect(threads.addr).unwrap();
    // The first thread accepts it for the other, which stops listening at that moment.
    while threads.loads()[1] == 0 {
        threads.providers[0].poll(Duration::ZERO, &mut Vec::new());
    }
    let listener = threads.listeners[1];
    threads.providers[1].unlisten(listener);
    threads.until("end", |it| it.loads()[1] == 0);
    assert_eq!(threads.requests, [1, 0]);
    drop(second);
}

#[test]
fn address_is_free_after_last_listener() {
    let mut threads = Threads::listening(2);
    for at in 0..2 {
        let mut other = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
        assert!(other.listen(threads.addr.into()).is_err(), "{at} of 2 left");
        let listener = threads.listeners[at];
        threads.providers[at].unlisten(listener);
    }
    let mut other = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
    other.listen(threads.addr.into()).unwrap();
}
