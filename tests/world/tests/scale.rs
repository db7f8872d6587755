//! Costs of single events with 2, 8 and 64 reactors: how many reactors an event wakes, and how
//! many queue pairs they poll.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nvmeof_world::scale::{Cost, KEEP_ALIVE, Scale};

const REACTORS: [usize; 3] = [2, 8, 64];

/// Targets with one host, and with many.
fn scales() -> impl Iterator<Item = (u64, Scale)> {
    let of = |(reactors, hosts)| (reactors as u64, Scale::start(reactors, hosts).unwrap());
    let sizes = REACTORS.map(|reactors| [(reactors, 1), (reactors, 12)]);
    sizes.into_iter().flatten().map(of)
}

/// All other reactors have to report before the pair begins. The last one wakes its reactor.
#[test]
fn fused_pair_wakes_each_reactor_once() {
    for (reactors, mut scale) in scales() {
        for _ in 0..2 {
            let cost = scale.compare_and_write().unwrap();
            let (wakeups, polls) = (reactors, 0);
            assert_eq!(cost, Cost { wakeups, polls }, "{reactors} reactors");
        }
    }
}

/// Only the two reactors of its queues are concerned: connections are spread round robin, so they
/// are different ones.
#[test]
fn connect_and_disconnect_concern_the_reactors_of_the_host() {
    for (reactors, mut scale) in scales() {
        let Cost { wakeups, polls } = scale.connect().unwrap();
        assert_eq!((wakeups, polls), (0, 0), "{reactors} reactors");
        let Cost { wakeups, polls } = scale.disconnect().unwrap();
        assert_eq!((wakeups, polls), (1, 1), "{reactors} reactors");
    }
}

/// The reactor of the admin queue tells the one of the I/O queue.
#[test]
fn controller_reset_wakes_the_reactor_of_the_io_queue() {
    for (reactors, mut scale) in scales() {
        let Cost { wakeups, polls } = scale.reset_controller().unwrap();
        assert_eq!((wakeups, polls), (1, 1), "{reactors} reactors");
    }
}

/// Each reactor looks at each of its queue pairs once.
#[test]
fn namespace_change_wakes_each_reactor_once() {
    for (reactors, mut scale) in scales() {
        let queue_pairs = scale.queue_pairs();
        for _ in 0..2 {
            let Cost { wakeups, polls } = scale.change_namespace().unwrap();
            assert_eq!(wakeups, reactors);
            assert_eq!(polls, queue_pairs, "{reactors} reactors");
        }
    }
}

/// A tick of the controller busy time, and of keep-alive activity, while a host reads.
#[test]
fn tick_wakes_no_reactor() {
    for (reactors, mut scale) in scales() {
        let Cost { wakeups, .. } = scale.read_for_a_second().unwrap();
        assert_eq!(wakeups, 0, "{reactors} reactors");
    }
}

/// Without Keep Alive the target would end the controllers.
#[test]
fn keep_alive_wakes_no_reactor() {
    for (reactors, mut scale) in scales() {
        let Cost { wakeups, polls } = scale.keep_alive_for(3 * KEEP_ALIVE).unwrap();
        assert_eq!((wakeups, polls), (0, 0), "{reactors} reactors");
    }
}
