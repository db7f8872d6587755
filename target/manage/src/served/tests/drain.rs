//! Letting go of hosts with a reactor that takes its time, or hangs.

use std::sync::mpsc::channel;

use super::puppet::{LONG, Puppet, SHORT, manager};
use super::*;
use nvmeof_target_engine::Order;

/// A configuration of which a drain takes as long as a reactor hangs.
fn one() -> String {
    let good = text(&[(1, "ram:1M")]).replace("[reactor]", "[reactor]\ndrain_s = 0");
    with_one_reactor(&good)
}

#[test]
fn a_drain_keeps_nobody_from_asking() {
    let config = parse(&one());
    let (manager, mailbox) = manager(&one(), LONG);
    let (told, ordered) = channel();
    let _puppet = Puppet::new(mailbox, move |order| {
        if let Order::Detach { answer } = order {
            told.send(answer).unwrap();
        }
    });
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| manager.drain(&config));
        let answer = ordered.recv().unwrap();
        // It waits for the reactor, and nobody waits for it.
        let status = manager.status();
        assert!(status.ends_with(", being drained"), "{status}");
        for refused in [
            manager.apply(&config).map(drop),
            manager.drain(&config).map(drop),
            manager.resume(&config),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("is being drained"), "{error}");
        }
        assert!(!draining.is_finished());
        answer.send(()).unwrap();
        assert_eq!(draining.join().unwrap().unwrap(), []);
    });
    assert_eq!(manager.drained(), Drained::Done);
    assert!(manager.status().ends_with(", drained"));
}

#[test]
fn a_drain_that_hangs_is_told_as_failed_and_can_be_tried_again() {
    let config = parse(&one());
    let (manager, mailbox) = manager(&one(), SHORT);
    let error = manager.drain(&config).unwrap_err().to_string();
    for word in [
        "reactor 0 did not disconnect its hosts",
        "ctl drain",
        "ctl resume",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // It is not taken for done.
    let status = manager.status();
    assert!(
        status.contains(", not drained (reactor 0 did not"),
        "{status}"
    );
    assert!(manager.drained().failure().is_some());
    let error = manager.apply(&config).unwrap_err().to_string();
    assert!(error.contains("tries again"), "{error}");
    // The reactor is back, and told of both.
    let _puppet = Puppet::new(mailbox, |order| {
        if let Order::Detach { answer } = order {
            let _ = answer.send(());
        }
    });
    assert_eq!(manager.drain(&config).unwrap(), []);
    assert_eq!(manager.drained(), Drained::Done);
}
