//! Drains with a slow or unresponsive reactor.

use std::sync::mpsc::channel;

use super::puppet::{LONG, Puppet, SHORT, manager};
use super::*;
use nvmeof_target_engine::Order;

/// A configuration whose drain takes as long as the reactor is unresponsive.
fn one() -> String {
    let good = text(&[(1, "ram:1M")]).replace("[reactor]", "[reactor]\ndrain_s = 0");
    with_one_reactor(&good)
}

#[test]
fn drain_does_not_block_queries() {
    let config = parse(&one());
    let (manager, mailbox) = manager(&one(), LONG);
    let (sender, ordered) = channel();
    let _puppet = Puppet::new(mailbox, move |order| {
        if let Order::Detach { reply } = order {
            sender.send(reply).unwrap();
        }
    });
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| manager.drain(&config));
        let reply = ordered.recv().unwrap();
        // The drain waits for the reactor, and queries do not wait for the drain.
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
        reply.send(()).unwrap();
        assert_eq!(draining.join().unwrap().unwrap(), []);
    });
    assert_eq!(manager.drained(), Drained::Done);
    assert!(manager.status().ends_with(", drained"));
}

#[test]
fn stalled_drain_fails_and_can_be_retried() {
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
    // The target does not count as drained.
    let status = manager.status();
    assert!(
        status.contains(", not drained (reactor 0 did not"),
        "{status}"
    );
    assert!(manager.drained().failure().is_some());
    let error = manager.apply(&config).unwrap_err().to_string();
    assert!(error.contains("tries again"), "{error}");
    // The reactor recovered, and gets both orders.
    let _puppet = Puppet::new(mailbox, |order| {
        if let Order::Detach { reply } = order {
            let _ = reply.send(());
        }
    });
    assert_eq!(manager.drain(&config).unwrap(), []);
    assert_eq!(manager.drained(), Drained::Done);
}
