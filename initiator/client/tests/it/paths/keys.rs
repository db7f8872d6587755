//! The keys of all paths change while they are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nvmeof_initiator::Error;

use super::{DOWN, Endpoints, Host, Operation, PathChange, PathState, S, Wakers, World};
use crate::fake::{Requirement, keys};

impl World {
    /// Targets that require one of these keys, and a host with the first one and two I/O queues on
    /// each path.
    fn with_keys(required: &[u8]) -> Self {
        let mut world = Self::new(1);
        for target in &mut world.targets {
            target.manners.authentication = Some(Requirement::of(required));
        }
        for path in &mut world.config.paths {
            path.admin.setup.names.keys = Some(keys(required[0], None));
            path.admin.setup.io_queues = 2;
        }
        world
    }

    fn require(&mut self, target: usize, required: &[u8]) {
        let requirement = Requirement::of(required);
        let target = &mut self.targets[target];
        target.authentications.change(&requirement);
        target.manners.authentication = Some(requirement);
    }

    /// The index of the key that each queue proved to a target.
    fn proved(&self, target: usize) -> Vec<Option<usize>> {
        self.targets[target].authentications.proved()
    }

    /// Runs until the change of keys has ended.
    fn reauthenticated(&mut self, host: &mut Host<Endpoints>) -> Result<(), Error> {
        for _ in 0..100_000 {
            if let Some(result) = host.admin.take_reauthentication() {
                return result;
            }
            self.step(host);
        }
        panic!("not ended: {host:?}");
    }

    fn read(&mut self, host: &mut Host<Endpoints>) {
        self.submit(host, Operation::Read, 1);
        let done = self.ended(host, 1).pop().unwrap();
        assert!(done.result.is_ok(), "{done:?}");
    }

    /// Ends all connections of a target, and runs until its path is connected again.
    fn lose(&mut self, host: &mut Host<Endpoints>, target: usize) {
        self.targets[target].hang_up();
        self.until(host, |host| {
            host.io.paths()[target].state != PathState::Live
        });
        self.until_live(host, target);
    }

    /// Runs until a target has this many messages of authentications.
    fn until_messages(&mut self, host: &mut Host<Endpoints>, target: usize, count: usize) {
        for _ in 0..10_000 {
            if self.targets[target].authentications.messages >= count {
                return;
            }
            self.step(host);
        }
        panic!("no messages: {host:?}");
    }

    fn until_live(&mut self, host: &mut Host<Endpoints>, path: usize) {
        self.until(host, |host| host.io.paths()[path].state == PathState::Live);
    }
}

fn lost(host: &Host<Endpoints>) -> usize {
    let is_lost = |change: &PathChange| matches!(change, PathChange::Lost(_));
    host.events
        .iter()
        .filter(|event| is_lost(&event.change))
        .count()
}

#[test]
fn keys_of_all_paths_change_while_calls_go_on() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    for target in [0, 1] {
        world.require(target, &[1, 2]);
    }
    host.admin.reauthenticate(keys(2, None));
    let mut reads = 0;
    let result = loop {
        if let Some(result) = host.admin.take_reauthentication() {
            break result;
        }
        world.read(&mut host);
        reads += 1;
        assert!(reads < 10_000, "the change does not end");
    };
    result.unwrap();
    assert!(reads > 2, "calls waited for the change");
    for target in [0, 1] {
        assert_eq!(world.proved(target), [Some(1); 3]);
        // The former key is of no use any more.
        world.require(target, &[2]);
    }
    assert!(host.admin.take_reauthentication().is_none());
    assert_eq!(lost(&host), 0);
    world.lose(&mut host, 0);
    world.read(&mut host);
    assert_eq!(lost(&host), 1);
}

#[test]
fn path_that_refuses_the_keys_stays_connected_and_keeps_the_former_ones() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    world.require(0, &[1, 2]);
    host.admin.reauthenticate(keys(2, None));
    let error = world.reauthenticated(&mut host).unwrap_err().to_string();
    assert!(error.contains("10.0.0.2"), "the second one: {error}");
    assert_eq!(world.proved(0), [Some(1); 3]);
    assert_eq!(lost(&host), 0);
    // Each is connected again with the keys that it took.
    world.require(0, &[2]);
    world.lose(&mut host, 0);
    world.lose(&mut host, 1);
    // It is repeated.
    world.require(1, &[1, 2]);
    host.admin.reauthenticate(keys(2, None));
    world.reauthenticated(&mut host).unwrap();
    assert_eq!(world.proved(1), [Some(1); 3]);
}

#[test]
fn path_that_is_being_connected_gets_the_new_keys() {
    let mut world = World::with_keys(&[1]);
    for target in [0, 1] {
        world.require(target, &[1, 2]);
    }
    world.targets[1].manners.stalls_messages = true;
    let mut host = world.host();
    world.until_live(&mut host, 0);
    for _ in 0..100 {
        world.step(&mut host);
    }
    assert_eq!(world.targets[1].stalled(), 1);
    host.admin.reauthenticate(keys(2, None));
    world.reauthenticated(&mut host).unwrap();
    assert_eq!(world.proved(0), [Some(1); 3]);
    world.targets[1].release();
    world.until_live(&mut host, 1);
    for _ in 0..1000 {
        world.step(&mut host);
    }
    assert_eq!(world.proved(1), [Some(1); 3]);
}

/// A path that comes back while others are authenticated is part of the change.
#[test]
fn path_that_comes_back_meanwhile_is_part_of_the_change() {
    let mut world = World::with_keys(&[1]);
    world.targets[1].manners.reject = DOWN;
    let mut host = world.host();
    world.until_live(&mut host, 0);
    world.require(0, &[1, 2]);
    world.targets[0].manners.stalls_messages = true;
    host.admin.reauthenticate(keys(2, None));
    world.targets[1].manners.reject = None;
    world.until_live(&mut host, 1);
    world.targets[0].release();
    // The second one does not have the key.
    let error = world.reauthenticated(&mut host).unwrap_err().to_string();
    assert!(error.contains("10.0.0.2"), "{error}");
    assert_eq!(lost(&host), 0);
}

#[test]
fn loss_of_a_path_ends_the_change_with_its_reason() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    for target in [0, 1] {
        world.require(target, &[1, 2]);
    }
    // On its admin queue, and on its I/O queues: the admin queue sends two messages.
    for sent in [0, 2] {
        let before = world.targets[0].authentications.messages;
        let stalled = world.targets[0].stalled();
        host.admin.reauthenticate(keys(2, None));
        world.until_messages(&mut host, 0, before + sent);
        world.targets[0].manners.stalls_messages = true;
        for _ in 0..100 {
            world.step(&mut host);
        }
        assert!(world.targets[0].stalled() > stalled, "{sent}");
        world.targets[0].hang_up();
        let error = world.reauthenticated(&mut host).unwrap_err();
        assert!(error.to_string().contains("closed"), "{error}");
        world.targets[0].manners.stalls_messages = false;
        world.until_live(&mut host, 0);
        // The lost one has the former keys, the other one the new ones.
        assert_eq!(world.proved(0), [Some(0); 3]);
        assert_eq!(world.proved(1), [Some(1); 3]);
    }
}

/// As SPDK's target does. The refusal is the reason, and the path returns with the former keys.
#[test]
fn target_may_close_the_connection_after_a_refusal() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    for target in [0, 1] {
        world.require(target, &[1, 2]);
    }
    let before = world.targets[0].authentications.messages;
    host.admin.reauthenticate(keys(2, None));
    // The admin queue, then both I/O queues, which are refused.
    world.until_messages(&mut host, 0, before + 2);
    world.require(0, &[1]);
    world.until_messages(&mut host, 0, before + 3);
    world.until_without_admin(&mut host, |world, _| {
        world.targets[0].authentications.messages == before + 6
    });
    // The admin half sees the refusal and the loss at once.
    let end = world.net.now() + S(1);
    world.until_without_admin(&mut host, |world, _| world.net.now() >= end);
    world.targets[0].hang_up();
    let end = world.net.now() + S(1);
    world.until_without_admin(&mut host, |world, _| world.net.now() >= end);
    let error = world.reauthenticated(&mut host).unwrap_err().to_string();
    assert!(error.contains("authentication failed"), "{error}");
    world.until(&mut host, |host| lost(host) == 1);
    world.until_live(&mut host, 0);
    assert_eq!(world.proved(0), [Some(0); 3]);
    world.read(&mut host);
}

#[test]
fn change_without_a_connected_path_ends_at_once() {
    let mut world = World::with_keys(&[1]);
    for target in &mut world.targets {
        target.manners.reject = DOWN;
    }
    let mut host = world.host();
    for _ in 0..200 {
        world.step(&mut host);
    }
    host.admin.reauthenticate(keys(2, None));
    assert_eq!(host.admin.next_deadline(), Some(std::time::Duration::ZERO));
    host.admin.poll(world.net.now());
    host.admin.take_reauthentication().unwrap().unwrap();
    for target in [0, 1] {
        world.require(target, &[2]);
        world.targets[target].manners.reject = None;
    }
    world.until_live(&mut host, 0);
    world.until_live(&mut host, 1);

    host.admin.shutdown(world.net.now(), S(1));
    host.admin.reauthenticate(keys(1, None));
    world.reauthenticated(&mut host).unwrap_err();
}

/// Nobody polls the I/O half any more.
#[test]
fn change_ends_if_the_io_half_is_gone() {
    for is_dropped in [true, false] {
        let mut world = World::with_keys(&[1]);
        let host = world.connected();
        let Host {
            mut admin, mut io, ..
        } = host;
        admin.reauthenticate(keys(1, None));
        match is_dropped {
            true => drop(io),
            false => io.close(),
        }
        let result = (0..1000).find_map(|_| {
            let now = world.net.now();
            for target in &mut world.targets {
                while target.poll(now) {}
            }
            while admin.poll(now) {}
            let next = now + std::time::Duration::from_millis(1);
            world.net.advance_to_next(Some(next));
            admin.take_reauthentication()
        });
        let error = result.unwrap().unwrap_err().to_string();
        assert!(error.contains("closed"), "{error}");
    }
}

/// Two threads that sleep drive the halves.
#[test]
fn each_half_wakes_the_other_one() {
    let mut world = World::with_keys(&[1]);
    let woken = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let waker = |at: usize| {
        let woken = Arc::clone(&woken);
        let wake = move || {
            woken[at].fetch_add(1, Ordering::Relaxed);
        };
        Some(Arc::new(wake) as Arc<dyn Fn() + Send + Sync>)
    };
    let wakers = Wakers {
        admin: waker(0),
        io: waker(1),
    };
    let mut host = world.host_with(wakers);
    world.until_live(&mut host, 0);
    world.until_live(&mut host, 1);
    let counts = || [0, 1].map(|at: usize| woken[at].load(Ordering::Relaxed));
    let before = counts();
    host.admin.reauthenticate(keys(1, None));
    world.reauthenticated(&mut host).unwrap();
    // A request and an answer for each path.
    let after = counts();
    assert_eq!(after[0], before[0] + 2);
    assert!(after[1] > before[1]);
}

#[test]
fn request_is_replaced_by_the_next_one() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    for target in [0, 1] {
        world.require(target, &[1, 2, 3]);
    }
    host.admin.reauthenticate(keys(9, None));
    host.admin.reauthenticate(keys(2, None));
    world.reauthenticated(&mut host).unwrap();
    assert_eq!(world.proved(0), [Some(1); 3]);
    // While the first one is in progress, at any point of it.
    for steps in 0..40 {
        host.admin.reauthenticate(keys(9, None));
        for _ in 0..steps {
            world.step(&mut host);
        }
        host.admin.reauthenticate(keys(3, None));
        world.reauthenticated(&mut host).unwrap();
        assert_eq!(world.proved(1), [Some(2); 3], "{steps}");
        host.admin.reauthenticate(keys(2, None));
        for _ in 0..steps {
            world.step(&mut host);
        }
        host.admin.reauthenticate(keys(3, None));
        world.reauthenticated(&mut host).unwrap();
        assert_eq!(world.proved(0), [Some(2); 3], "{steps}");
    }
    assert_eq!(lost(&host), 0);
}

/// The target does not answer on an I/O queue.
#[test]
fn change_of_queues_that_are_closed_has_failed() {
    let mut world = World::with_keys(&[1]);
    let mut host = world.connected();
    for closes_io in [true, false] {
        let before = world.targets[0].authentications.messages;
        host.admin.reauthenticate(keys(1, None));
        // The admin queue sends two messages.
        world.until_messages(&mut host, 0, before + 2);
        world.targets[0].manners.stalls_messages = true;
        for _ in 0..100 {
            world.step(&mut host);
        }
        assert_eq!(world.targets[0].stalled(), 2);
        assert!(host.admin.take_reauthentication().is_none());
        match closes_io {
            true => host.io.close(),
            false => host.admin.shutdown(world.net.now(), S(1)),
        }
        let error = world.reauthenticated(&mut host).unwrap_err().to_string();
        assert!(
            error.contains("closed") || error.contains("shut down"),
            "{error}"
        );
        world.targets[0].manners.stalls_messages = false;
        world = World::with_keys(&[1]);
        host = world.connected();
    }
}

#[test]
fn change_ends_when_either_half_is_closed() {
    for closes_io in [true, false] {
        for steps in 0..30 {
            let mut world = World::with_keys(&[1]);
            let mut host = world.connected();
            // The transaction ends with an error otherwise.
            for target in [0, 1] {
                world.require(target, &[1, 2]);
            }
            host.admin.reauthenticate(keys(2, None));
            for _ in 0..steps {
                world.step(&mut host);
            }
            let ended = host.admin.take_reauthentication();
            match closes_io {
                true => host.io.close(),
                false => host.admin.shutdown(world.net.now(), S(1)),
            }
            match ended {
                Some(result) => result.unwrap(),
                None => {
                    let result = world.reauthenticated(&mut host);
                    // The I/O queues may have been authenticated before.
                    assert!(result.is_err() || closes_io, "{steps}");
                }
            }
        }
    }
}
