//! Which streams a poll tries: those that had bytes recently, and after a sleep those with an
//! event.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::{IoSliceMut, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_rdma_iwarp::{SocketStreams, ZeroCopy};
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};

/// Local streams with their peers.
struct Stage {
    streams: SocketStreams,
    now: Duration,
}

impl Stage {
    /// Polls, with `pause` in between, until there are events.
    fn until_something(&mut self, pause: Duration) -> (Vec<StreamEvent>, u32) {
        let mut events = Vec::new();
        for polls in 1..1000 {
            self.now += pause;
            self.streams.poll(self.now, &mut events);
            if !events.is_empty() {
                return (events, polls);
            }
            self.wait();
        }
        panic!("nothing happens");
    }

    fn wait(&self) {
        let fd = PollFd::new(self.streams.wait_fd().unwrap(), PollFlags::POLLIN);
        poll(&mut [fd], PollTimeout::from(100u8)).unwrap();
    }

    fn receive(&mut self, stream: StreamId) -> Option<usize> {
        let mut buf = [0; 16];
        self.streams
            .recv(stream, &mut [IoSliceMut::new(&mut buf)])
            .ok()
    }
}

/// Both ends of two connections. The first is hot.
fn two() -> (Stage, [StreamId; 2], [TcpStream; 2]) {
    let mut streams = SocketStreams::new(None, 0o600, ZeroCopy::Never).unwrap();
    let (_, addr) = streams.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let now = Duration::ZERO;
    let mut stage = Stage { streams, now };
    let mut one = || {
        let peer = TcpStream::connect(addr.socket_addr().unwrap()).unwrap();
        loop {
            let (events, _) = stage.until_something(Duration::from_millis(1));
            let incoming = events.iter().find_map(|event| match event {
                StreamEvent::Incoming { stream, .. } => Some(*stream),
                _ => None,
            });
            if let Some(stream) = incoming {
                return (stream, peer);
            }
        }
    };
    let ((hot, mut busy), (cold, quiet)) = (one(), one());
    busy.write_all(b"hot").unwrap();
    while stage.receive(hot).is_none() {
        stage.wait();
    }
    (stage, [hot, cold], [busy, quiet])
}

fn says_ready(events: &[StreamEvent], stream: StreamId) -> bool {
    let ready = |event: &StreamEvent| matches!(event, StreamEvent::Ready(id) if *id == stream);
    events.iter().any(ready)
}

#[test]
fn stream_with_event_is_served_first_after_sleep() {
    let (mut stage, [hot, cold], [_busy, mut quiet]) = two();
    quiet.write_all(b"cold").unwrap();
    stage.wait();
    let (events, polls) = stage.until_something(Duration::from_millis(1));
    assert!(says_ready(&events, cold), "{events:?}");
    assert_eq!(polls, 1);
    // The other is tried once more, because events of it were ignored while it was hot, and
    // then no longer.
    assert!(says_ready(&events, hot), "{events:?}");
    assert_eq!(stage.receive(hot), None);
    assert_eq!(stage.receive(cold), Some(4));
    let mut events = Vec::new();
    stage.now += Duration::from_micros(1);
    stage.streams.poll(stage.now, &mut events);
    assert!(!says_ready(&events, hot), "{events:?}");
}

#[test]
fn hot_stream_is_tried_between_polls_of_kernel() {
    let (mut stage, [hot, cold], [mut busy, mut quiet]) = two();
    quiet.write_all(b"cold").unwrap();
    stage.wait();
    let mut polls = 0;
    let mut events = Vec::new();
    while !says_ready(&events, cold) {
        busy.write_all(b"hot").unwrap();
        stage.now += Duration::from_micros(1);
        stage.streams.poll(stage.now, &mut events);
        assert!(says_ready(&events, hot), "{events:?}");
        while stage.receive(hot).is_none() {}
        polls += 1;
        assert!(polls <= 32, "the quiet one is never tried");
    }
    assert!(polls > 1, "each poll asks the kernel");
}

#[test]
fn connections_are_accepted_at_pace_while_one_is_busy() {
    const WAITING: usize = 4;
    let mut streams = SocketStreams::new(None, 0o600, ZeroCopy::Never).unwrap();
    let (_, addr) = streams.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = addr.socket_addr().unwrap();
    let now = Duration::ZERO;
    let mut stage = Stage { streams, now };
    let mut busy = TcpStream::connect(addr).unwrap();
    let (events, _) = stage.until_something(Duration::from_millis(1));
    let [StreamEvent::Incoming { stream: hot, .. }] = events[..] else {
        panic!("{events:?}");
    };
    let _others = [(); WAITING].map(|()| TcpStream::connect(addr).unwrap());
    let mut accepted = Vec::new();
    // Ten milliseconds.
    for _ in 0..1000 {
        busy.write_all(b"hot").unwrap();
        while stage.receive(hot).is_none() {}
        stage.now += Duration::from_micros(10);
        let mut events = Vec::new();
        stage.streams.poll(stage.now, &mut events);
        let incoming = |event: &&StreamEvent| matches!(event, StreamEvent::Incoming { .. });
        let count = events.iter().filter(incoming).count();
        accepted.extend((0..count).map(|_| stage.now));
    }
    assert_eq!(accepted.len(), WAITING);
    let pauses = accepted.windows(2).map(|pair| pair[1] - pair[0]);
    for pause in pauses {
        assert!(pause >= Duration::from_millis(1), "{accepted:?}");
    }
}
