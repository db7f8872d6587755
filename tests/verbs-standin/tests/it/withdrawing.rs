//! Withdrawn buffers whose window a device still has to invalidate: nothing blocks, and each
//! buffer returns once, whatever happens to its connection meanwhile.

use std::time::{Duration, Instant};

use nvmeof_rdma::{ExposeError, Inline, QpConfig, RemoteKey, Rights, Work};
use nvmeof_rdma_conformance::Endpoint::{A, B};
use nvmeof_rdma_conformance::{Link, Rig, check_pattern};
use nvmeof_verbs_standin::{Counters, counters};

use super::fabric::Device;

const LEN: usize = 3000;
/// The time in which an invalidation has to complete, with the time-out of the kernel: 4.096 µs
/// times 2 to the power of 19, and half of it.
const BOUND: Duration = Duration::from_micros((4 << 19) + (2 << 19));
/// Polls that no invalidation takes.
const NEVER: &str = "local_delay=4000000000";

/// Runs a case with a device for each side; it gets that of side A.
fn run(case: impl Fn(&mut Rig<'_>, &Device)) {
    let [host, mut target] = Device::two("profile=roce");
    let mut rig = Rig::new(&mut target);
    case(&mut rig, &host);
    rig.finish();
}

/// Exposes buffers of A: the content of each is the pattern of its index.
fn expose(rig: &mut Rig<'_>, link: Link, count: u64) -> Vec<RemoteKey> {
    let mut expose = |seed| {
        let buf = rig[A].filled(LEN, seed);
        rig[A].expose(link.a, buf, Rights::all()).key
    };
    (0..count).map(&mut expose).collect()
}

/// A connection whose send queue at A has fewer entries than there are keys: 100.
fn more_keys_than_entries(rig: &mut Rig<'_>) -> (Link, Vec<RemoteKey>) {
    let config = QpConfig {
        exposes: 1,
        ..rig.config()
    };
    let link = rig.link_with(&config, &config);
    (link, expose(rig, link, 100))
}

/// Withdraws keys of A, whose buffers return later.
fn withdraw(rig: &mut Rig<'_>, keys: &[RemoteKey]) {
    for key in keys {
        let withdrawn = rig[A].start_withdrawing(*key).expect("it is exposed");
        assert!(withdrawn.is_none(), "{key:?}");
    }
}

/// Checks that all buffers returned to A.
fn assert_returned(rig: &mut Rig<'_>, keys: &[RemoteKey]) {
    for (seed, key) in (0..).zip(keys) {
        check_pattern(&rig[A].take_returned(*key).expect("it returned"), seed);
        assert!(rig[A].take_returned(*key).is_none(), "returned twice");
    }
}

fn since(host: &Device, before: &Counters) -> Counters {
    counters(&host.name).unwrap().since(before)
}

#[test]
fn withdraw_makes_no_call_of_device() {
    run(|rig, host| {
        let link = rig.link();
        let keys = expose(rig, link, 1);
        host.set("local_delay=100");
        let before = counters(&host.name).unwrap();
        withdraw(rig, &keys);
        let again = rig[A].start_withdrawing(keys[0]).map(|_| ());
        assert_eq!(again, Err(ExposeError::UnknownKey));
        assert_eq!(since(host, &before), Counters::default(), "nothing waits");
        let now = rig.now();
        rig[A].provider().submit(now);
        let submitted = since(host, &before);
        let calls = (submitted.post_send, submitted.local_invalidates);
        let polls = submitted.polls + submitted.empty_polls;
        assert_eq!((calls, polls), ((1, 1), 0));
        for _ in 0..50 {
            rig.poll_at(A);
            assert!(
                rig[A].take_returned(keys[0]).is_none(),
                "it is not complete"
            );
        }
        check_pattern(&rig[A].returned(keys[0]), 0);
        assert_eq!(since(host, &before).local_invalidates, 1);
        rig.assert_alive(link);
    });
}

/// The send queue has fewer entries than keys are withdrawn: some requests wait for an entry.
#[test]
fn withdrawals_wait_for_entries_of_send_queue() {
    run(|rig, host| {
        let (link, keys) = more_keys_than_entries(rig);
        host.set("local_delay=20");
        let before = counters(&host.name).unwrap();
        withdraw(rig, &keys);
        rig.poll_at(A);
        let first = since(host, &before).local_invalidates;
        assert!(first > 0 && first < 100, "{first} entries");
        rig.wait("all have returned", |_| {
            let all = since(host, &before).local_invalidates == 100;
            all.then_some(())
        });
        rig.settle();
        assert_returned(rig, &keys);
        rig.assert_alive(link);
    });
}

/// The invalidation never completes: the owner may sleep until the bound, then the connection
/// ends, and the buffer returns. [`Watched`](super::watched::Watched) checks that the peer cannot
/// write to it any more.
#[test]
fn invalidation_that_never_completes_ends_connection() {
    run(|rig, host| {
        let (link, other) = (rig.link(), rig.link());
        let keys = expose(rig, link, 3);
        host.set(NEVER);
        let start = rig.now();
        withdraw(rig, &keys);
        let due = rig[A].provider().next_deadline();
        assert!(due.is_some_and(|due| due <= rig.now()), "{due:?}");
        rig.goes_to_sleep(A);
        let until = rig[A].provider().next_deadline().expect("it is woken");
        assert!(until <= rig.now() + BOUND, "it sleeps until {until:?}");
        while !rig[A].is_closed(link.a) {
            let key = keys[0];
            assert!(rig[A].take_returned(key).is_none(), "it is not complete");
            assert!(rig.now() < start + 2 * BOUND, "it does not end");
            rig.step();
        }
        let waited = rig.now() - start;
        assert!(waited >= BOUND, "{waited:?}");
        assert!(waited < BOUND + Duration::from_secs(1), "{waited:?}");
        let text = rig.closed(A, link.a).to_string();
        assert!(text.contains("does not acknowledge"), "{text}");
        assert_returned(rig, &keys);
        rig.closed(B, link.b);
        rig.assert_alive(other);
    });
}

/// The time of a withdrawal counts from the next poll: an owner that slept does not lose its
/// connection.
#[test]
fn withdrawal_after_long_sleep_has_its_time() {
    run(|rig, host| {
        let link = rig.link();
        let keys = expose(rig, link, 1);
        host.set("local_delay=100");
        withdraw(rig, &keys);
        let late = rig.now() + Duration::from_secs(3600);
        let mut events = Vec::new();
        let provider = rig[A].provider();
        for _ in 0..10 {
            provider.poll(late, &mut events);
        }
        assert!(events.is_empty(), "{events:?}");
        assert!(provider.next_deadline().is_some_and(|until| until > late));
        check_pattern(&rig[A].returned(keys[0]), 0);
        rig.assert_alive(link);
    });
}

/// An owner that pauses for longer than the bound between polls, while requests wait for entries:
/// the device has completed all that it has, and the connection stays.
#[test]
fn pauses_of_owner_do_not_end_connection() {
    run(|rig, _| {
        let (link, keys) = more_keys_than_entries(rig);
        withdraw(rig, &keys);
        let mut now = rig.now();
        for _ in 0..20 {
            now += 2 * BOUND;
            rig[A].poll_late(now);
        }
        assert_returned(rig, &keys);
        rig.assert_alive(link);
    });
}

/// Whatever ends the connection meanwhile, its buffers return once, before the last event.
#[test]
fn failed_connection_returns_withdrawn_buffers_once() {
    let faults = [
        "removal:1",
        "cq-error:1",
        "qp-fatal:1",
        "post-send:1",
        "send:1:12",
        "send:2:12",
        "send:5:4",
    ];
    for fault in faults {
        for delay in ["local_delay=0", "local_delay=30"] {
            println!("{fault} {delay}");
            run(|rig, host| {
                let link = rig.link();
                let keys = expose(rig, link, 5);
                host.set(&format!("{delay} fault={fault}"));
                withdraw(rig, &keys);
                rig.closed(A, link.a);
                let back = keys
                    .iter()
                    .filter(|key| rig[A].take_returned(**key).is_some());
                assert_eq!(back.count(), keys.len());
                rig[B].disconnect(link.b);
                rig.closed(B, link.b);
            });
        }
    }
}

/// A device that is removed, and a peer that disconnects, while the request is executed.
#[test]
fn end_of_connection_returns_withdrawn_buffers_once() {
    for end in ["local", "peer", "removal"] {
        println!("{end}");
        run(|rig, host| {
            let link = rig.link();
            let keys = expose(rig, link, 5);
            host.set(NEVER);
            withdraw(rig, &keys);
            rig.poll_at(A);
            match end {
                "local" => rig[A].disconnect(link.a),
                "peer" => rig[B].disconnect(link.b),
                _ => host.set("remove"),
            }
            let start = Instant::now();
            rig.closed(A, link.a);
            // The end does not wait for the bound.
            assert!(start.elapsed() < BOUND);
            assert_returned(rig, &keys);
            rig[B].disconnect(link.b);
            rig.closed(B, link.b);
        });
    }
}

/// The peer invalidates the key while the local request is executed: the buffer does not wait for
/// that. The window is bound again later, and the connection stays.
#[test]
fn invalidation_by_peer_returns_withdrawn_buffer() {
    run(|rig, host| {
        let link = rig.link();
        let keys = expose(rig, link, 1);
        rig[A].recv(link.a, 1, 64);
        host.set("local_delay=1000");
        withdraw(rig, &keys);
        let before = counters(&host.name).unwrap();
        rig.poll_at(A);
        let work = Work::Send {
            head: Inline::new(b"done").unwrap(),
            body: None,
            invalidate: Some(keys[0]),
            solicited: false,
        };
        rig[B].post(link.b, 2, work);
        let received = rig.received(A, link.a);
        assert_eq!(received.invalidated, Some(keys[0]));
        check_pattern(&rig[A].returned(keys[0]), 0);
        let polled = since(host, &before);
        assert!(polled.polls + polled.empty_polls < 500, "{polled:?}");
        rig.success(B, link.b, 2);
        host.set("local_delay=0");
        // More windows than are free.
        let keys = expose(rig, link, 100);
        withdraw(rig, &keys);
        rig.settle();
        assert_returned(rig, &keys);
        assert_eq!(since(host, &before).local_invalidates, 101);
        rig.assert_alive(link);
    });
}

/// Withdrawn buffers return to their pool with the provider.
#[test]
fn dropped_provider_frees_withdrawn_buffers() {
    run(|rig, host| {
        let link = rig.link();
        let keys = expose(rig, link, 5);
        host.set(NEVER);
        withdraw(rig, &keys);
        rig.poll_at(A);
        rig[A].vanish();
        rig[A].assert_all_back();
        rig.closed(B, link.b);
    });
}
