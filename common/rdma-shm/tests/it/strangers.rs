//! Peers that are not providers: their first message, the memory that they pass, and one that
//! writes into the rings while they are read.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stranger::*;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;
use nvmeof_memory::{Pages, Pool, PoolLayout, Shared};
use nvmeof_rdma::{
    CloseReason, Event, Inline, Provider, RemoteKey, RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_layers::Dice;
use socket2::Socket;

#[test]
fn invalid_request_is_refused_with_reason() {
    let mut host = Host::new();
    let (_memory, good) = Shared::create(TOTAL).unwrap();
    let (_memory, small) = Shared::create(TOTAL - 4096).unwrap();
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let loose = memfd_create("loose", flags).unwrap();
    ftruncate(&loose, i64::try_from(TOTAL).unwrap()).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let right = request(RING);
    let mut other_version = right.clone();
    other_version[7] = b'1';
    let no_request = "not a request";
    let long = [&right[..], &[0; 300]].concat();
    let cases: [(&[u8], &[&OwnedFd], &str); 15] = [
        (b"GET / HTTP/1.1", &[], no_request),
        (&[0], &[&good], no_request),
        (&right[..right.len() - 1], &[&good], no_request),
        (&other_version, &[&good], no_request),
        (&right, &[], "passed no memory"),
        (&right, &[&null], "not sealed"),
        (&right, &[&loose], "not sealed"),
        (&right, &[&small], "bytes of memory"),
        (&request(2 * RING), &[&good], "bytes of memory"),
        (&request_with(RING, 2048), &[&good], "bytes of memory"),
        (&request_with(RING, 7), &[&good], "must be 0 or 2048"),
        (&request(0), &[&good], "power of two"),
        (&request(usize::MAX), &[&good], "power of two"),
        // These violate the rules of the socket.
        (&right, &[&good, &good, &good], ""),
        (&long, &[&good], ""),
    ];
    let passed = [&good, &small, &loose];
    let open = open_of(&passed);
    for (bytes, fds, reason) in cases {
        let stranger = host.stranger();
        send(&stranger, bytes, fds);
        let text = last_words(&mut host, &stranger);
        assert!(text.contains(reason), "{bytes:02x?}: {text:?}");
        assert_eq!(text.is_empty(), reason.is_empty(), "{text:?}");
    }
    assert_eq!(open_of(&passed), open);
    host.assert_open();
}

#[test]
fn oldest_silent_connection_is_closed() {
    let mut host = Host::new();
    let silent: Vec<Socket> = (0..20).map(|_| host.stranger()).collect();
    for _ in 0..20 {
        assert!(host.poll().is_empty());
    }
    host.assert_open();
    // And silent ones time out.
    for stranger in &silent {
        last_words(&mut host, stranger);
    }
    while host.provider.next_deadline().is_some() {
        host.poll();
    }
}

#[test]
fn unexpected_message_ends_connection() {
    for message in [&[2; 9][..], &[3], &[7], &[4, 4], &[5, 0], &[0; 400]] {
        let mut host = Host::new();
        let (stranger, _memory, _) = intruder(&mut host);
        send(&stranger, message, &[]);
        let Event::Closed { reason, .. } = host.event() else {
            panic!("the end")
        };
        assert!(matches!(reason, CloseReason::PeerFault(_)), "{reason}");
        host.assert_open();
    }
}

#[test]
fn spurious_wake_ups_are_harmless_and_descriptors_closed() {
    let mut host = Host::new();
    let (stranger, _memory, qp) = intruder(&mut host);
    let (_other, fd) = Shared::create(4096).unwrap();
    let open = open_of(&[&fd]);
    for round in 0..1000 {
        let fds = [&fd];
        send(&stranger, &[4], fds.get(round % 2..).unwrap());
        assert!(host.poll().is_empty());
    }
    assert_eq!(open_of(&[&fd]), open);
    host.provider.disconnect(qp);
    assert!(matches!(host.event(), Event::Closed { .. }));
    host.assert_open();
}

#[test]
fn invalid_record_is_reported_with_its_code() {
    const LEN: usize = 4096;
    const LAST: u64 = 1 << 8;
    const INVALIDATES: u64 = 1 << 10;
    // State of the owner: a receive of 64 bytes, a read of 100 bytes in flight, and an
    // exposed window, whose key and start are filled in.
    type Make = fn(RemoteSlice) -> Vec<Record>;
    fn record(kind: u64, len: u64, rest: u64, window: RemoteSlice) -> Record {
        let (key, addr) = (window.key.0, window.addr);
        Record {
            kind,
            len,
            key,
            rest,
            addr,
        }
    }
    let cases: [(u16, Make); 14] = [
        (0x02, |w| vec![record(0, 0, 0, w)]),
        (0x02, |w| vec![record(6, 0, 0, w)]),
        (0x02, |w| vec![record(2, 101, 100, w)]),
        (0x20, |w| vec![record(1 | LAST, 8, 0, w); 2]),
        (0x21, |w| vec![record(1 | LAST, 65, 0, w)]),
        (0x21, |w| vec![record(1, 40, 0, w); 2]),
        (0x10, |w| {
            let send = record(1 | LAST | INVALIDATES, 0, 0, w);
            vec![Record {
                key: !w.key.0,
                ..send
            }]
        }),
        (0x13, |w| vec![record(2, 8, 4097, w)]),
        (0x13, |w| vec![record(3, 0, 4097, w)]),
        (0x22, |w| vec![record(3, 0, 100, w); 5]),
        (0x23, |w| vec![record(4, 99, 99, w)]),
        (0x23, |w| vec![record(4, 101, 101, w)]),
        (0x23, |w| vec![record(4, 0, 100, w)]),
        (0x23, |w| vec![record(4, 100, 100, w); 2]),
    ];
    let mut host = Host::new();
    let layout = PoolLayout {
        count: 3,
        stride: LEN,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    host.provider.register(pool.region()).unwrap();
    for (number, (code, make)) in cases.into_iter().enumerate() {
        let (stranger, memory, qp) = intruder(&mut host);
        let window = pool.take().unwrap();
        let window = host.provider.expose(qp, window, Rights::all()).unwrap();
        let mut buf = pool.take().unwrap();
        buf.set_len(64).unwrap();
        host.provider.post_recv(qp, Tag(0), buf).unwrap();
        let mut local = pool.take().unwrap();
        local.set_len(100).unwrap();
        let remote = RemoteSlice { len: 100, ..window };
        let read = Work::Read { local, remote };
        host.provider.post(qp, Tag(0), read).unwrap();
        assert!(host.poll().is_empty());
        put(&memory, &make(window));
        send(&stranger, &[4], &[]);
        let reason = loop {
            if let Some(Event::Closed { reason, .. }) = host.poll().pop() {
                break reason;
            }
        };
        let CloseReason::PeerFault(fault) = reason else {
            panic!("case {number}: {reason}")
        };
        assert_eq!(fault.code, code, "case {number}: {fault}");
        host.provider.withdraw(window.key).unwrap().unwrap();
        assert_eq!(pool.available(), 3);
    }
    host.assert_open();
}

/// Writes garbage into the memory until `stop` is set: plausible indices, plausible records,
/// and anything else.
fn scribble(memory: &Shared, seed: u64, stop: &AtomicBool, window: RemoteSlice) {
    let mut dice = Dice::new(seed);
    while !stop.load(Ordering::Relaxed) {
        let data = 4096 + dice.below(16) * 64;
        let kind = 1 + dice.roll() % 4;
        let len = dice.roll() % 9000;
        let key = u64::from(window.key.0);
        let addr = window.addr + dice.roll() % 9000;
        let words = [
            kind | (dice.roll() % 8) << 8 | len << 32,
            key | len << 32,
            addr,
        ];
        memory.store(data, words).unwrap();
        let at = [0, 128, 256, 384, 512, 640, data][dice.below(7)];
        let value = if dice.below(50) == 0 {
            dice.roll()
        } else {
            dice.roll() % (RING as u64 / 64) * 64
        };
        // Larger values advance, smaller ones are a fault immediately: mostly only one line
        // further.
        let word = memory.word(at).unwrap();
        let next = word.load(Ordering::Relaxed).wrapping_add(64);
        let value = if dice.below(8) == 0 { value } else { next };
        word.store(value, Ordering::Relaxed);
    }
}

#[test]
fn concurrent_writer_changes_no_other_memory() {
    const LEN: usize = 32 << 10;
    const WINDOW: std::ops::Range<usize> = 8192..16_384;
    let mut host = Host::new();
    let layout = PoolLayout {
        count: 64,
        stride: LEN,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    host.provider.register(pool.region()).unwrap();
    let take = || {
        let mut buf = pool.take().unwrap();
        buf.fill(0xEE);
        buf
    };
    for seed in 0..100 {
        let (_stranger, memory, qp) = intruder(&mut host);
        let mut window = take();
        window.set_view(WINDOW).unwrap();
        let slice = host.provider.expose(qp, window, Rights::all()).unwrap();
        let mut posted = Vec::new();
        for tag in (0..8).map(Tag) {
            let mut buf = take();
            buf.set_view(WINDOW).unwrap();
            host.provider.post_recv(qp, tag, buf).unwrap();
            let mut local = take();
            local.set_view(WINDOW).unwrap();
            let remote = RemoteSlice {
                key: RemoteKey(7),
                addr: 0,
                len: 8192,
            };
            let work = match tag.0 % 3 {
                0 => Work::Read { local, remote },
                1 => Work::Write { local, remote },
                _ => Work::Send {
                    head: Inline::empty(),
                    body: Some(local),
                    invalidate: None,
                    solicited: false,
                },
            };
            host.provider.post(qp, tag, work).unwrap();
            posted.push(tag);
        }
        let stop = AtomicBool::new(false);
        let (mut recvs, mut works, mut polls) = (Vec::new(), Vec::new(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&memory, seed, &stop, slice));
            'open: loop {
                polls += 1;
                if polls == 20_000 {
                    host.provider.disconnect(qp);
                }
                for event in host.poll() {
                    let buf = match event {
                        Event::Received(one) => {
                            recvs.push(one.tag);
                            Some(one.buf)
                        }
                        Event::Completion(one) => {
                            works.push(one.tag);
                            one.buf
                        }
                        Event::Closed { .. } => break 'open,
                        other => panic!("{other:?}"),
                    };
                    assert_beside(buf.unwrap(), WINDOW);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!((&recvs, &works), (&posted, &posted), "seed {seed}");
        assert_beside(host.provider.withdraw(slice.key).unwrap().unwrap(), WINDOW);
        assert_eq!(pool.available(), 64);
    }
    host.assert_open();
}

/// Nothing beside `window` changed.
fn assert_beside(mut buf: nvmeof_memory::Buf, window: std::ops::Range<usize>) {
    buf.reset_view();
    let mut beside = buf[..window.start].iter().chain(&buf[window.end..]);
    assert!(beside.all(|byte| *byte == 0xEE));
}
