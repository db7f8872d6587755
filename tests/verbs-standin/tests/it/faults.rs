//! Faults of devices under load: every buffer returns, nothing hangs, the end of a connection
//! has a reason, and the next connection works.

use std::time::Duration;

use nvmeof_rdma::{CloseReason, Event, ExposeError, PrivateData, Rights, Work};
use nvmeof_rdma_conformance::Endpoint::{A, B};
use nvmeof_rdma_conformance::{Endpoint, Fabric, Link, Rig};

use super::fabric::Device;

/// At which passages of a place a fault happens.
const WHEN: std::ops::RangeInclusive<u32> = 1..=6;
/// Rounds of load, longer than any fault needs.
const ROUNDS: u64 = 12;
const LEN: usize = 3000;

/// Runs a case with a device for each side; it gets that of side A.
fn run(settings: &'static str, case: impl Fn(&mut Rig<'_>, &Device)) {
    let [host, mut target] = Device::two(settings);
    println!("on {}", target.describe());
    let mut rig = Rig::new(&mut target);
    case(&mut rig, &host);
    rig.finish();
}

/// Both sides send, write, read, expose and withdraw, until a call is refused or a connection
/// ends. Returns whether all of it was done.
fn load(rig: &mut Rig<'_>, link: Link) -> bool {
    for round in 0..ROUNDS {
        let ended = [A, B]
            .into_iter()
            .any(|end| !step(rig, link, end, round) || rig[end].is_closed(link.at(end)));
        if ended {
            return false;
        }
        for _ in 0..4 {
            rig.step();
        }
    }
    true
}

/// One side's part of a round. Returns whether every call was accepted.
fn step(rig: &mut Rig<'_>, link: Link, end: Endpoint, round: u64) -> bool {
    let (own, other) = (link.at(end), end.other());
    let room = rig[other].buf(256);
    if rig[other].try_recv(link.at(other), round, room).is_err() {
        return false;
    }
    let memory = rig[other].filled(LEN, round);
    let slice = match rig[other].try_expose(link.at(other), memory, Rights::all()) {
        Ok(slice) => slice,
        Err(refused) => {
            return matches!(refused.why, ExposeError::Full { .. } | ExposeError::Device);
        }
    };
    // A window opens when its work request is executed.
    for _ in 0..6 {
        rig.step();
    }
    // What is refused or fails returns, which the rig checks.
    let local = rig[end].filled(LEN, round);
    let remote = slice;
    let written = rig[end].try_post(own, round, Work::Write { local, remote });
    let local = rig[end].buf(LEN);
    let read = rig[end].try_post(own, round, Work::Read { local, remote });
    let message = rig[end].message(round, 200);
    let sent = rig[end].try_post(own, round, message);
    for _ in 0..6 {
        rig.step();
    }
    // A key is withdrawn, whatever its connection does.
    rig[other].withdraw(slice.key);
    written.is_ok() && read.is_ok() && sent.is_ok()
}

/// The reason for the end of a connection at `end`.
fn reason(rig: &mut Rig<'_>, link: Link, end: Endpoint) -> CloseReason {
    rig.closed(end, link.at(end))
}

/// Loads a connection on whose `end` a fault happens, at each of its first passages. Each
/// must end the connection, with a reason that contains `words` at that end.
fn ends(settings: &'static str, end: Endpoint, fault: &str, words: &[&str]) {
    for number in WHEN {
        let [host, mut target] = Device::two(settings);
        println!("on {}: {fault} {number} at {end:?}", target.describe());
        let plan = match fault.split_once('=') {
            Some((place, value)) => format!("fault={place}:{number}:{value}"),
            None => format!("fault={fault}:{number}"),
        };
        let name = if end == A { &host } else { &target }.name.clone();
        let mut rig = Rig::new(&mut target);
        let link = rig.link();
        nvmeof_verbs_standin::configure(&format!("{name} {plan}")).unwrap();
        assert!(!load(&mut rig, link), "{plan} has no effect");
        let text = reason(&mut rig, link, end).to_string();
        assert!(words.iter().any(|words| text.contains(words)), "{text}");
        rig[end.other()].disconnect(link.at(end.other()));
        reason(&mut rig, link, end.other());
        for end in [A, B] {
            while rig.take_event(end).is_some() {}
        }
        if !fault.starts_with("removal") {
            let next = rig.link();
            rig.assert_alive(next);
        }
        rig.finish();
    }
}

const KINDS: [&str; 3] = ["profile=roce", "profile=no-windows", "profile=iwarp"];

#[test]
fn refused_post_ends_connection() {
    for kind in KINDS {
        for end in [A, B] {
            ends(kind, end, "post-send", &["posting work requests"]);
            ends(kind, end, "post-recv", &["posting a receive"]);
        }
    }
}

#[test]
fn failed_work_ends_connection_with_its_status() {
    for (status, words) in [
        (4, "memory of this side does not allow"),
        (10, "its memory does not allow"),
        (12, "does not acknowledge"),
        (19, "the device failed"),
        (21, "unspecified error"),
    ] {
        for end in [A, B] {
            let fault = format!("send={status}");
            ends("profile=roce", end, &fault, &[words]);
            ends("profile=roce delay=2 read_delay=2", end, &fault, &[words]);
        }
    }
}

#[test]
fn failed_receive_ends_connection_with_its_status() {
    for end in [A, B] {
        ends(
            "profile=roce",
            end,
            "receive=1",
            &["longer than the memory"],
        );
        ends(
            "profile=no-windows",
            end,
            "receive=19",
            &["the device failed"],
        );
    }
}

#[test]
fn fatal_event_of_queue_pair_ends_connection() {
    for kind in KINDS {
        for end in [A, B] {
            ends(kind, end, "qp-fatal", &["stopped the queue pair"]);
        }
    }
}

#[test]
fn failed_completion_queue_ends_connections() {
    for kind in KINDS {
        for end in [A, B] {
            ends(kind, end, "cq-error", &["the completion queue"]);
        }
    }
}

#[test]
fn removed_device_ends_connections() {
    for kind in KINDS {
        for end in [A, B] {
            ends(kind, end, "removal", &["is gone"]);
        }
    }
}

/// A refused registration or window refuses one exposure and nothing else.
#[test]
fn refused_registration_refuses_exposure() {
    for (settings, fault) in [
        ("profile=roce", "alloc-window:1"),
        ("profile=no-windows", "register:1"),
        ("profile=iwarp", "register:1"),
    ] {
        run(settings, |rig, host| {
            let link = rig.link();
            rig.assert_alive(link);
            host.set(&format!("fault={fault}"));
            let buf = rig[A].filled(LEN, 7);
            let refused = rig[A].provider().expose(link.a, buf, Rights::all());
            let refused = refused.expect_err("it cannot be exposed");
            assert_eq!(refused.why, ExposeError::Device);
            nvmeof_rdma_conformance::check_pattern(&refused.back, 7);
            let slice = rig[A].expose(link.a, refused.back, Rights::all());
            drop(rig[A].withdraw(slice.key));
            assert!(load(rig, link));
        });
    }
}

/// Memory that the device does not deregister ends the connection: its peer may still access
/// it. The buffer returns once the queue pair is gone.
#[test]
fn refused_deregistration_ends_connection() {
    run("profile=no-windows", |rig, host| {
        let link = rig.link();
        rig.assert_alive(link);
        let buf = rig[A].filled(LEN, 7);
        let slice = rig[A].expose(link.a, buf, Rights::all());
        host.set("fault=deregister:1");
        let buf = rig[A].withdraw(slice.key);
        nvmeof_rdma_conformance::check_pattern(&buf, 7);
        let text = reason(rig, link, A).to_string();
        assert!(text.contains("cannot invalidate the key"), "{text}");
    });
}

/// A device that creates no queue refuses one connection.
#[test]
fn refused_queues_refuse_one_connection() {
    for fault in ["create-qp:1", "create-cq:1"] {
        run("profile=roce", |rig, host| {
            let addr = rig.listening();
            let config = rig.config();
            // The first connection of a device creates its completion queue. A queue pair is
            // tried again with smaller sizes.
            let times = if fault.starts_with("create-qp") { 8 } else { 1 };
            for number in 1..=times {
                let (place, _) = fault.split_once(':').unwrap();
                host.set(&format!("fault={place}:{number}"));
            }
            let a = rig.connect(A, addr, &config, "");
            let text = rig.closed(A, a).to_string();
            assert!(text.contains("creat"), "{text}");
            // What is left of the plan.
            for _ in 0..8 {
                let a = rig.connect(A, addr, &config, "");
                for _ in 0..20 {
                    rig.step();
                }
                rig[A].disconnect(a);
                rig.closed(A, a);
            }
            rig.settle();
            for end in [A, B] {
                while let Some(event) = rig.take_event(end) {
                    if let Event::ConnectRequest(request) = event {
                        rig[end].disconnect(request.qp);
                    }
                }
            }
            let link = rig.link();
            rig.assert_alive(link);
        });
    }
}

/// A peer that never responds: its connection ends after the time-out.
#[test]
fn connection_without_response_times_out() {
    for kind in KINDS {
        run(kind, |rig, host| {
            let link = rig.link();
            host.set("fault=connect:1");
            let (addr, config) = (rig.listening(), rig.config());
            let a = rig.connect(A, addr, &config, "");
            rig[A].recv(a, 1, 64);
            while !rig[A].is_closed(a) {
                rig.assert_alive(link);
            }
            let reason = rig.closed(A, a);
            assert!(matches!(reason, CloseReason::Timeout { .. }), "{reason}");
        });
    }
}

/// The last message of the set-up is lost: the first message of the peer stands for it.
#[test]
fn first_message_establishes_connection() {
    let [_host, mut target] = Device::two("profile=roce");
    target.set("fault=establish:1");
    let mut rig = Rig::new(&mut target);
    let config = rig.config();
    let a = rig.call();
    let b = rig.request(B).qp;
    rig[B].prepare(b, &config);
    rig[B].recv(b, 1, 64);
    let accepted = rig[B].provider().accept(b, &PrivateData::empty());
    accepted.expect("a request is accepted");
    rig.established(A, a);
    rig.settle();
    rig[A].send(a, 1, 64);
    rig.established(B, b);
    rig.message(B, b, 1, 64);
    rig.finish();
}

/// A connection whose queue pair at B has receives of a shared receive queue. When it is
/// stopped, the device never reports that it takes no more of them.
fn without_last_receive(rig: &mut Rig<'_>, name: &str) -> Link {
    let config = rig.config();
    let a = rig.call();
    let b = rig.request(B).qp;
    let shared = rig[B].share(b, 16).expect("a shared receive queue");
    rig.accept(B, b, &config, "");
    rig.established(A, a);
    rig.established(B, b);
    for tag in 0..8 {
        rig[B].shared(shared.srq, tag, 64);
    }
    nvmeof_verbs_standin::configure(&format!("{name} fault=last-receive:1")).unwrap();
    Link { a, b }
}

#[test]
fn missing_last_receive_delays_close_only() {
    let [_host, mut target] = Device::two("profile=roce");
    let name = target.name.clone();
    let mut rig = Rig::new(&mut target);
    let Link { a, b } = without_last_receive(&mut rig, &name);
    rig[A].send(a, 1, 64);
    rig.message(B, b, 1, 64);
    rig[B].disconnect(b);
    assert_eq!(rig.closed(B, b), CloseReason::Local);
    rig.closed(A, a);
    rig.finish();
}

/// A peer that does not acknowledge any more: the owner of the work sleeps until the device
/// gives up.
#[test]
fn sleeping_owner_of_unacknowledged_work_is_woken() {
    let [host, mut target] = Device::two("profile=roce");
    host.set("retry_polls=50");
    let name = target.name.clone();
    let mut rig = Rig::new(&mut target);
    let link = rig.link();
    rig.assert_alive(link);
    // Its device is gone without a word to the peer.
    nvmeof_verbs_standin::configure(&format!("{name} remove")).unwrap();
    rig[A].send(link.a, 1, 64);
    rig.goes_to_sleep(A);
    assert!(rig.wakes(A), "for the failed message");
    let text = reason(&mut rig, link, A).to_string();
    assert!(text.contains("does not acknowledge"), "{text}");
    rig.finish();
}

/// The device ignores that a queue is armed: its owner sleeps, and a message does not wake it.
/// Were the arm not necessary, this would not be so.
#[test]
fn owner_of_unarmed_queue_sleeps_through_message() {
    let lost: Vec<String> = (1..=8)
        .map(|number| format!("fault=arm:{number}"))
        .collect();
    for (plan, wakes) in [(String::new(), true), (lost.join(" "), false)] {
        let [host, mut target] = Device::two("profile=roce");
        let mut rig = Rig::new(&mut target);
        let link = rig.link();
        rig.assert_alive(link);
        rig[A].recv(link.a, 1, 64);
        host.set(&plan);
        rig.goes_to_sleep(A);
        rig[B].send(link.b, 1, 64);
        rig[B].provider().submit(Duration::ZERO);
        assert_eq!(!rig.rests(A), wakes, "{plan}");
        rig.finish();
    }
}

/// The device refuses to arm a queue: its owner polls instead of sleeping, and arms it as soon as
/// that succeeds.
#[test]
fn owner_of_queue_that_cannot_be_armed_polls() {
    let [host, mut target] = Device::two("profile=roce");
    let mut rig = Rig::new(&mut target);
    let link = rig.link();
    rig.assert_alive(link);
    rig[A].recv(link.a, 1, 64);
    let refused: Vec<String> = (1..=8)
        .map(|number| format!("fault=arm:{number}:{}", libc::ENOMEM))
        .collect();
    host.set(&refused.join(" "));
    rig.goes_to_sleep(A);
    assert_eq!(nvmeof_verbs_standin::planned(&host.name), 0, "attempts");
    rig[B].send(link.b, 1, 64);
    rig[B].provider().submit(Duration::ZERO);
    assert!(rig.wakes(A), "the queue is armed");
    rig.finish();
}

/// A key whose invalidation waits behind a message that the peer does not acknowledge: the
/// buffer returns and the connection ends.
#[test]
fn key_that_cannot_be_invalidated_ends_connection() {
    let [_host, mut target] = Device::two("profile=roce");
    let name = target.name.clone();
    let mut rig = Rig::new(&mut target);
    let link = rig.link();
    rig.assert_alive(link);
    // Its device is gone without a word to the peer.
    nvmeof_verbs_standin::configure(&format!("{name} remove")).unwrap();
    rig[A].send(link.a, 1, 64);
    let buf = rig[A].filled(100, 3);
    let slice = rig[A].try_expose(link.a, buf, Rights::REMOTE_READ);
    let slice = slice.expect("a buffer is exposed");
    nvmeof_rdma_conformance::check_pattern(&rig[A].withdraw(slice.key), 3);
    let text = reason(&mut rig, link, A).to_string();
    assert!(text.contains("does not acknowledge"), "{text}");
    rig.finish();
}

/// The same with a queue pair that waits for the device's last word before it is destroyed. A
/// device may still be at work in the error state: the queue pair is gone when the buffer returns.
#[test]
fn queue_pair_is_destroyed_before_buffer_of_valid_key_returns() {
    let [_host, mut target] = Device::two("profile=roce");
    let name = target.name.clone();
    let mut rig = Rig::new(&mut target);
    let link = without_last_receive(&mut rig, &name);
    rig[A].vanish();
    rig[B].send(link.b, 1, 64);
    let buf = rig[B].filled(100, 3);
    let slice = rig[B].try_expose(link.b, buf, Rights::REMOTE_READ);
    let slice = slice.expect("a buffer is exposed");
    assert_eq!(nvmeof_verbs_standin::queue_pairs(&name), 1);
    let buf = rig[B].withdraw(slice.key);
    assert_eq!(nvmeof_verbs_standin::queue_pairs(&name), 0);
    nvmeof_rdma_conformance::check_pattern(&buf, 3);
    drop(buf);
    // The peer's machine still reports that it disconnects.
    assert_eq!(reason(&mut rig, link, B), CloseReason::Peer);
    rig.finish();
}
