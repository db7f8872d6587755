//! The polled interface over several paths, in virtual time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod keys;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::fake::{BLOCK, Fake, Resets, SUBNQN, reservation_report};
use nvmeof_initiator::polled::{
    Call, CallTimeout, Done, MultipathAdmin, MultipathConfig, MultipathIo, PathChange, PathConfig,
    PathEvent, Providers, SubmitError, Wakers, Work, connect_paths,
};
use nvmeof_initiator::{
    Address, Blocks, Buf, ConnectOptions, Error, ErrorKind, Identity, Nqn, Operation,
    ReservationRegister, ReservationReport, ReservationType, Status,
};
use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::blocks::flush;
use nvmeof_initiator_core::multipath::{PathPolicy, PathState, ReconnectOptions};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Provider;
use nvmeof_rdma_sim::{Sim, SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::cm::RejectStatus;
use nvmeof_wire::log::ana::AnaState;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const S: fn(u64) -> Duration = Duration::from_secs;
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const BUFFERS: usize = 32;

/// Refuses the admin queue, like a target that restarts.
const DOWN: Option<(u16, RejectStatus)> = Some((0, RejectStatus::NO_RESOURCES));

/// Two targets with a path to each.
struct World {
    net: SimNet,
    targets: Vec<Fake<Sim>>,
    config: MultipathConfig,
    pool: Pool,
}

/// The host of a [`World`].
struct Host<P> {
    admin: MultipathAdmin<P>,
    io: MultipathIo,
    done: Vec<Done>,
    events: Vec<PathEvent>,
}

/// The providers of a host.
struct Endpoints(SimNet);

impl Providers for Endpoints {
    fn provider(&mut self, _path: usize) -> Result<Box<dyn Provider>, Error> {
        Ok(Box::new(self.0.endpoint(HOST, SoftConfig::default())))
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let net = SimNet::new(seed, SimConfig::default());
        let listen = |number: u8| {
            let ip = IpAddr::V4(Ipv4Addr::new(10, 0, 0, number));
            let provider = net.endpoint(ip, SoftConfig::default());
            let (mut target, addr) = Fake::listen(provider, SocketAddr::new(ip, 4420).into());
            target.persona.cntlid = number.into();
            (target, addr)
        };
        let (targets, addrs): (Vec<_>, Vec<_>) = [1, 2].map(listen).into_iter().unzip();
        let layout = PoolLayout {
            count: BUFFERS,
            stride: 4096,
            lead: 0,
        };
        Self {
            net,
            targets,
            config: config(&addrs, seed),
            pool: Pool::new(layout, Pages::Normal).unwrap(),
        }
    }

    fn host(&self) -> Host<Endpoints> {
        self.host_with(Wakers::default())
    }

    fn host_with(&self, wakers: Wakers) -> Host<Endpoints> {
        let endpoints = Endpoints(self.net.clone());
        let (config, now) = (self.config.clone(), self.net.now());
        let (admin, io) = connect_paths(config, endpoints, wakers, now).unwrap();
        let mut host = Host {
            admin,
            io,
            done: Vec::new(),
            events: Vec::new(),
        };
        host.io.register(self.pool.region(), now).unwrap();
        host
    }

    /// A host with both paths connected.
    fn connected(&mut self) -> Host<Endpoints> {
        let mut host = self.host();
        self.until(&mut host, |host| {
            let paths = host.io.paths();
            paths.iter().all(|path| path.state == PathState::Live)
        });
        host
    }

    fn step(&mut self, host: &mut Host<Endpoints>) {
        let now = self.net.now();
        for target in &mut self.targets {
            while target.poll(now) {}
        }
        while host.admin.poll(now) {}
        while host.io.poll(now, &mut host.done) {}
        host.events
            .extend(std::iter::from_fn(|| host.io.take_event()));
        let deadlines = [host.admin.next_deadline(), host.io.next_deadline(now)];
        let step = now + Duration::from_millis(20);
        let until = deadlines.into_iter().flatten().min().unwrap_or(step);
        self.net.advance_to_next(Some(until.clamp(now, step)));
    }

    /// Runs until `reached`.
    fn until(&mut self, host: &mut Host<Endpoints>, reached: impl Fn(&Host<Endpoints>) -> bool) {
        let start = self.net.now();
        for _ in 0..2_000_000 {
            if reached(host) {
                return;
            }
            self.step(host);
            assert!(self.net.now() < start + S(100), "not reached: {host:?}");
        }
        panic!("busy at {:?}: {host:?}", self.net.now());
    }

    /// Drives the targets and the I/O half until `reached`, not the admin half.
    fn until_without_admin(
        &mut self,
        host: &mut Host<Endpoints>,
        reached: impl Fn(&Self, &Host<Endpoints>) -> bool,
    ) {
        for _ in 0..100_000 {
            if reached(self, host) {
                return;
            }
            let now = self.net.now();
            for target in &mut self.targets {
                while target.poll(now) {}
            }
            while host.io.poll(now, &mut host.done) {}
            self.net
                .advance_to_next(Some(now + Duration::from_millis(20)));
        }
        panic!("not reached: {host:?}");
    }

    /// Runs for `time`.
    fn run(&mut self, host: &mut Host<Endpoints>, time: Duration) {
        let end = self.net.now() + time;
        for _ in 0..2_000_000 {
            if self.net.now() >= end {
                return;
            }
            self.step(host);
        }
        panic!("busy at {:?}: {host:?}", self.net.now());
    }

    /// Runs until `count` calls have ended; takes them, by user.
    fn ended(&mut self, host: &mut Host<Endpoints>, count: usize) -> Vec<Done> {
        self.until(host, |host| host.done.len() >= count);
        let mut done = std::mem::take(&mut host.done);
        done.sort_by_key(|call| call.user);
        done
    }

    fn buf(&self) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.set_len(BLOCK).unwrap();
        buf
    }

    fn call(&self, operation: Operation, user: u64) -> Call {
        let blocks = Blocks {
            operation,
            nsid: 1,
            block_shift: 9,
            slba: user,
            count: 1,
            fua: false,
        };
        let mut buf = self.buf();
        buf.fill(0x77);
        Call::new(blocks.into(), Some(buf), user)
    }

    /// Submits a read or a write of one block at `user`.
    fn submit(&self, host: &mut Host<Endpoints>, operation: Operation, user: u64) {
        let call = self.call(operation, user);
        host.io.submit_call(call, self.net.now()).unwrap();
        host.io.submit_now(self.net.now());
    }

    /// Submits a read 1 and a write 2, which target 0 does not complete before it ends all
    /// connections.
    fn lose_both(&mut self, host: &mut Host<Endpoints>) -> Duration {
        self.targets[0].manners.silent = true;
        self.submit(host, Operation::Read, 1);
        self.submit(host, Operation::Write, 2);
        let served = self.targets[0].served.len();
        let start = self.net.now();
        while self.targets[0].served.len() < served + 2 {
            self.step(host);
            assert!(
                self.net.now() < start + S(2),
                "target 0 is not used: {host:?}"
            );
        }
        self.targets[0].manners.silent = false;
        self.targets[0].hang_up();
        self.net.now()
    }

    /// The number of targets that have the data of a write.
    fn written(&self, user: usize) -> Vec<bool> {
        let block = |target: &Fake<Sim>| target.disk[user * BLOCK..][..BLOCK] == [0x77; BLOCK];
        self.targets.iter().map(block).collect()
    }
}

impl<P> std::fmt::Debug for Host<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths = self.io.paths();
        write!(f, "{paths:?} {:?} {:?}", self.events, self.done)
    }
}

/// Policy `Numa`: the first path if it can be used.
fn config(addrs: &[Address], seed: u64) -> MultipathConfig {
    let host = Identity::of_name(Nqn::new("nqn.2026-11.org.example:host").unwrap());
    let path = |addr: &Address| {
        let mut options = ConnectOptions::new(*addr, Nqn::new(SUBNQN).unwrap());
        options.keep_alive = KEEP_ALIVE;
        PathConfig {
            addr: *addr,
            admin: options.admin_config(&host),
            trusts_target: false,
        }
    };
    MultipathConfig {
        paths: addrs.iter().map(path).collect(),
        nsid: 1,
        queue_size: 32,
        waiting_calls: 16,
        policy: PathPolicy::Numa,
        reconnect: ReconnectOptions::default(),
        quiesce: None,
        seed,
    }
}

fn no_path(error: &Error) -> String {
    match error {
        Error::NoPath(no_path) => no_path.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lost_read_is_sent_over_the_other_path_and_a_write_waits_for_the_fence() {
    let mut world = World::new(1);
    let mut host = world.connected();
    let lost_at = world.lose_both(&mut host);
    let read = world.ended(&mut host, 1).pop().unwrap();
    assert_eq!((read.user, read.result.is_ok()), (1, true), "{read:?}");
    assert!(world.net.now() < lost_at + S(1), "{:?}", world.net.now());
    assert_eq!(host.io.awaiting_fence(), 1);
    // Other calls go on meanwhile.
    world.submit(&mut host, Operation::Write, 3);
    assert_eq!(world.ended(&mut host, 1)[0].user, 3);
    assert_eq!(world.written(2), [false, false]);

    // The target has no Cross-Controller Reset and no CQT: three keep-alive time-outs.
    let write = world.ended(&mut host, 1).pop().unwrap();
    assert_eq!((write.user, write.result.is_ok()), (2, true), "{write:?}");
    let waited = world.net.now() - lost_at;
    assert!(
        waited >= 3 * KEEP_ALIVE && waited < 3 * KEEP_ALIVE + S(1),
        "{waited:?}"
    );
    assert_eq!(world.written(2).iter().filter(|it| **it).count(), 1);
    world.run(&mut host, S(5));
    assert!(host.done.is_empty(), "each call ends once: {host:?}");
    drop((read, write));
    let changes: Vec<_> = host
        .events
        .iter()
        .map(|event| (event.path, &event.change))
        .collect();
    let is_lost =
        |(path, change): &(usize, &PathChange)| *path == 0 && matches!(change, PathChange::Lost(_));
    assert_eq!(
        changes.iter().filter(|it| is_lost(it)).count(),
        1,
        "{changes:?}"
    );
    let assumed = FenceMethod::AssumedQuiesceTime;
    let last = changes.last().unwrap();
    assert!(
        matches!(last, (0, PathChange::Fenced(method)) if *method == assumed),
        "{last:?}"
    );
    // It is connected again, and preferred again.
    assert!(host.io.paths().iter().all(|path| path.is_accessible));
    let served = world.targets[0].served.len();
    world.submit(&mut host, Operation::Read, 4);
    assert!(world.ended(&mut host, 1)[0].result.is_ok());
    assert_eq!(world.targets[0].served.len(), served + 1);
    assert_eq!(world.pool.available(), BUFFERS, "every buffer came back");
}

#[test]
fn write_is_sent_again_when_a_sibling_has_reset_the_lost_controller() {
    for (resets, method, longest) in [
        (Resets::Immediate, FenceMethod::CrossControllerReset, S(1)),
        // A sibling that does not complete the reset does not delay the fence for ever.
        (Resets::Silent, FenceMethod::AssumedQuiesceTime, S(25)),
        (Resets::Unsupported, FenceMethod::AssumedQuiesceTime, S(16)),
    ] {
        let mut world = World::new(2);
        world.targets[0].persona.has_instance = true;
        for target in &mut world.targets {
            target.persona.resets = resets;
        }
        let mut host = world.connected();
        let lost_at = world.lose_both(&mut host);
        let calls = world.ended(&mut host, 2);
        assert!(calls.iter().all(|call| call.result.is_ok()), "{calls:?}");
        let waited = world.net.now() - lost_at;
        assert!(waited < longest, "{resets:?}: {waited:?}");
        let is_by =
            |event: &PathEvent| matches!(event.change, PathChange::Fenced(by) if by == method);
        assert!(host.events.iter().any(is_by), "{resets:?}: {host:?}");
        assert!(world.targets[1].resets.contains(&1), "{resets:?}");
    }
}

#[test]
fn calls_follow_the_ana_state_of_each_path() {
    let mut world = World::new(3);
    let states = [AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED];
    for (target, state) in world.targets.iter_mut().zip(states) {
        target.persona.groups = Some(vec![(1, state)]);
        target.persona.anagrpid = 1;
    }
    world.config.policy = PathPolicy::RoundRobin;
    let mut host = world.connected();
    let reads = |world: &mut World, host: &mut Host<Endpoints>| {
        let before = [0, 1].map(|at: usize| world.targets[at].served.len());
        for user in 0..4 {
            world.submit(host, Operation::Read, user);
        }
        let calls = world.ended(host, 4);
        assert!(calls.iter().all(|call| call.result.is_ok()), "{calls:?}");
        [0, 1].map(|at: usize| world.targets[at].served.len() - before[at])
    };
    let change = |world: &mut World, at: usize, state| {
        world.targets[at].persona.groups = Some(vec![(1, state)]);
        assert!(world.targets[at].notify(AsyncEvent::ANA_CHANGED));
    };
    assert_eq!(
        reads(&mut world, &mut host),
        [4, 0],
        "optimized comes first"
    );
    change(&mut world, 0, AnaState::INACCESSIBLE);
    let changed = world.net.now();
    world.until(&mut host, |host| !host.io.paths()[0].is_accessible);
    assert!(world.net.now() < changed + S(1), "the event counts");
    assert_eq!(reads(&mut world, &mut host), [0, 4]);

    // The event of this one is still on its way: the status of the command counts.
    change(&mut world, 0, AnaState::OPTIMIZED);
    world.until(&mut host, |host| host.io.paths()[0].is_accessible);
    world.targets[0].manners.status = Some(Status::ANA_INACCESSIBLE);
    world.targets[0].persona.groups = Some(vec![(1, AnaState::INACCESSIBLE)]);
    let [refused, done] = reads(&mut world, &mut host);
    assert!(refused > 0 && done == 4, "{refused} {done}");
    world.targets[0].manners.status = None;

    // None is accessible: calls wait.
    change(&mut world, 1, AnaState::INACCESSIBLE);
    world.until(&mut host, |host| !host.io.paths()[1].is_accessible);
    world.submit(&mut host, Operation::Read, 7);
    world.run(&mut host, S(30));
    assert!(host.done.is_empty());
    change(&mut world, 1, AnaState::NON_OPTIMIZED);
    assert!(world.ended(&mut host, 1)[0].result.is_ok());
    // None will be.
    for at in 0..2 {
        change(&mut world, at, AnaState::PERSISTENT_LOSS);
    }
    world.until(&mut host, |host| {
        host.io.paths().iter().all(|path| !path.is_accessible)
    });
    let call = world.call(Operation::Read, 8);
    let refused = host.io.submit_call(call, world.net.now()).unwrap_err();
    assert!(matches!(
        refused.why,
        SubmitError::NotConnected(Error::NoPath(_))
    ));
    assert!(
        host.events
            .iter()
            .all(|event| !matches!(event.change, PathChange::Lost(_)))
    );
}

#[test]
fn calls_wait_while_all_paths_are_lost_and_end_when_one_is_back() {
    let mut world = World::new(4);
    let mut host = world.connected();
    for target in &mut world.targets {
        target.manners.reject = DOWN;
        target.hang_up();
    }
    world.until(&mut host, |host| {
        host.io.paths().iter().all(|path| !path.is_accessible)
    });
    for user in 0..16 {
        world.submit(&mut host, Operation::Read, user);
    }
    let call = world.call(Operation::Read, 16);
    let refused = host.io.submit_call(call, world.net.now()).unwrap_err();
    assert!(
        matches!(refused.why, SubmitError::Full),
        "the number is limited"
    );
    world.run(&mut host, S(20));
    assert!(host.done.is_empty());
    world.targets[1].manners.reject = None;
    let back = world.net.now();
    let calls = world.ended(&mut host, 16);
    assert!(calls.iter().all(|call| call.result.is_ok()));
    assert!(
        world.net.now() < back + S(2),
        "attempts are at most one second apart"
    );
    assert_eq!(host.io.paths()[0].state, PathState::Backoff);
}

#[test]
fn calls_end_with_the_cause_when_each_path_is_given_up() {
    let mut world = World::new(5);
    world.config.reconnect.ctrl_loss = Some(S(1));
    let mut host = world.connected();
    for target in &mut world.targets {
        target.manners.reject = DOWN;
    }
    world.targets[1].hang_up();
    let lost_at = world.lose_both(&mut host);
    let mut calls = world.ended(&mut host, 2);
    assert!(world.net.now() >= lost_at + S(1));
    let write = calls.pop().unwrap();
    let read = calls.pop().unwrap();
    let text = no_path(read.result.as_ref().unwrap_err());
    assert!(
        text.contains("10.0.0.1:4420") && text.contains("10.0.0.2:4420"),
        "{text}"
    );
    assert!(text.contains("rejected"), "{text}");
    // The write may have been executed.
    let error = write.result.as_ref().unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
    assert!(read.buf.is_some() && write.buf.is_some());
    let refused = host
        .io
        .submit_call(world.call(Operation::Read, 3), world.net.now());
    let refused = refused.unwrap_err();
    assert!(matches!(
        refused.why,
        SubmitError::NotConnected(Error::NoPath(_))
    ));
    assert!(refused.back.buf.is_some());
    let given_up = |event: &&PathEvent| matches!(event.change, PathChange::GivenUp);
    assert_eq!(host.events.iter().filter(given_up).count(), 2);
}

#[test]
fn lost_path_is_not_connected_again_without_a_loss_time() {
    let mut world = World::new(6);
    world.config.reconnect.ctrl_loss = Some(Duration::ZERO);
    world.config.paths.truncate(1);
    let mut host = world.connected();
    world.run(&mut host, S(30));
    world.lose_both(&mut host);
    let connections = world.targets[0].connections();
    let calls = world.ended(&mut host, 2);
    assert!(no_path(calls[0].result.as_ref().unwrap_err()).contains("is lost"));
    assert!(matches!(calls[1].result, Err(Error::UnknownOutcome(_))));
    world.run(&mut host, S(30));
    assert!(world.targets[0].connections() <= connections);
    assert_eq!(host.io.paths()[0].state, PathState::GivenUp);
}

#[test]
fn calls_fail_fast_while_a_path_is_still_being_connected() {
    let mut world = World::new(7);
    world.config.reconnect.fast_io_fail = Some(S(2));
    world.config.paths.truncate(1);
    let mut host = world.connected();
    world.targets[0].manners.reject = DOWN;
    let lost_at = world.lose_both(&mut host);
    let calls = world.ended(&mut host, 2);
    assert!(
        calls
            .iter()
            .all(|call| call.result.is_err() && call.buf.is_some())
    );
    let waited = world.net.now() - lost_at;
    assert!(waited >= S(2) && waited < S(3), "{waited:?}");
    world.targets[0].manners.reject = None;
    world.until(&mut host, |host| host.io.paths()[0].is_accessible);
    world.submit(&mut host, Operation::Read, 3);
    assert!(world.ended(&mut host, 1)[0].result.is_ok());
}

#[test]
fn silent_target_is_detected_by_keep_alive_and_its_calls_use_the_other_path() {
    let mut world = World::new(8);
    let mut host = world.connected();
    let start = world.net.now();
    world.targets[0].manners.silent = true;
    world.targets[0].manners.deaf = true;
    world.submit(&mut host, Operation::Read, 1);
    let read = world.ended(&mut host, 1).pop().unwrap();
    assert!(read.result.is_ok(), "{read:?}");
    let waited = world.net.now() - start;
    assert!(waited < 2 * KEEP_ALIVE, "{waited:?}");
    let lost = |event: &&PathEvent| {
        matches!(&event.change, PathChange::Lost(error)
        if error.to_string().contains("Keep Alive"))
    };
    assert_eq!(host.events.iter().filter(lost).count(), 1, "{host:?}");
}

#[test]
fn path_to_another_namespace_is_not_used() {
    let mut world = World::new(9);
    world.targets[1].persona.uuid = [0x22; 16];
    world.config.policy = PathPolicy::RoundRobin;
    let mut host = world.host();
    // The first one that is connected decides.
    world.targets[1].manners.reject = DOWN;
    world.until(&mut host, |host| host.io.paths()[0].is_accessible);
    assert_eq!(host.admin.geometry().unwrap().blocks, 8192);
    world.targets[1].manners.reject = None;
    world.until(&mut host, |host| {
        host.io.paths()[1].state == PathState::Live
    });
    let refused = &host.io.paths()[1];
    assert!(!refused.is_accessible);
    let text = refused.last_error.as_ref().unwrap().to_string();
    assert!(text.contains("identifiers"), "{text}");
    for user in 0..4 {
        world.submit(&mut host, Operation::Write, user);
    }
    assert!(
        world
            .ended(&mut host, 4)
            .iter()
            .all(|call| call.result.is_ok())
    );
    assert_eq!(world.targets[1].served.len(), 0);
    // It is the right one again.
    world.targets[1].persona.uuid = [0x11; 16];
    assert!(world.targets[1].notify(AsyncEvent::NAMESPACE_CHANGED));
    world.until(&mut host, |host| host.io.paths()[1].is_accessible);
}

#[test]
fn host_without_a_connected_path_has_the_error_of_the_first() {
    let mut world = World::new(10);
    for target in &mut world.targets {
        target.manners.reject = DOWN;
    }
    let mut host = world.host();
    world.until(&mut host, |host| host.admin.error().is_some());
    let text = host.admin.error().unwrap().to_string();
    assert!(text.contains("10.0.0.1:4420"), "{text}");
    assert!(host.admin.geometry().is_none());
    // It connects nevertheless as soon as it can.
    world.targets[1].manners.reject = None;
    world.until(&mut host, |host| host.io.paths()[1].is_accessible);
    assert!(host.admin.error().is_none());
}

#[test]
fn paths_share_the_load_by_policy() {
    for policy in [PathPolicy::RoundRobin, PathPolicy::QueueDepth] {
        let mut world = World::new(11);
        world.config.policy = policy;
        let mut host = world.connected();
        let before = [0, 1].map(|at: usize| world.targets[at].served.len());
        for user in 0..20 {
            world.submit(&mut host, Operation::Read, user);
        }
        world.ended(&mut host, 20);
        let served = [0, 1].map(|at: usize| world.targets[at].served.len() - before[at]);
        assert_eq!(served, [10, 10], "{policy:?}");
    }
    let mut world = World::new(12);
    world.config.policy = PathPolicy::Latency;
    let mut host = world.connected();
    for user in 0..20 {
        world.submit(&mut host, Operation::Read, user);
        world.ended(&mut host, 1);
    }
    assert!(
        world.targets.iter().all(|target| !target.served.is_empty()),
        "both are measured"
    );
}

#[test]
fn closed_host_returns_each_call_and_ends_its_controllers() {
    let mut world = World::new(13);
    let mut host = world.connected();
    for target in &mut world.targets {
        target.manners.silent = true;
    }
    for user in 0..4 {
        world.submit(&mut host, Operation::Write, user);
    }
    let now = world.net.now();
    host.io
        .submit_call(Call::new(Work::from(flush(1)), None, 4), now)
        .unwrap();
    host.io.close();
    world.until(&mut host, |host| host.io.is_closed());
    let calls = world.ended(&mut host, 5);
    assert_eq!(calls.len(), 5);
    assert!(calls.iter().all(|call| call.result.is_err()));
    assert!(calls.iter().all(|call| call.work.is_some()), "{calls:?}");
    drop(calls);
    assert_eq!(world.pool.available(), BUFFERS);
    host.admin.shutdown(world.net.now(), S(2));
    world.until(&mut host, |host| host.admin.is_closed());
    world.run(&mut host, S(5));
    assert!(
        world
            .targets
            .iter()
            .all(|target| target.shut_down && target.connections() == 0)
    );
}

#[test]
fn waiting_calls_are_sent_although_one_finds_no_room() {
    let mut world = World::new(14);
    world.config.paths.truncate(1);
    world.config.queue_size = 4;
    let mut host = world.connected();
    world.targets[0].manners.reject = DOWN;
    world.targets[0].hang_up();
    world.until(&mut host, |host| !host.io.paths()[0].is_accessible);
    for user in 0..8 {
        world.submit(&mut host, Operation::Read, user);
    }
    world.targets[0].manners.reject = None;
    while host.admin.controllers().next().is_none() {
        let now = world.net.now();
        while world.targets[0].poll(now) {}
        while host.admin.poll(now) {}
        world.net.advance_to_next(Some(now + S(1)));
    }
    // The caller sleeps when there is no more progress.
    let now = world.net.now();
    while host.io.poll(now, &mut host.done) {}
    for _ in 0..100 {
        let now = world.net.now();
        while world.targets[0].poll(now) {}
        let next = now + Duration::from_millis(1);
        world.net.advance_to_next(Some(next));
    }
    assert_eq!(world.targets[0].served.len(), 3, "the room of the queue");
    assert!(
        world
            .ended(&mut host, 8)
            .iter()
            .all(|call| call.result.is_ok())
    );
}

#[test]
fn write_that_fails_after_a_loss_has_an_unknown_outcome() {
    let mut world = World::new(15);
    let mut host = world.connected();
    world.lose_both(&mut host);
    for target in &mut world.targets {
        target.manners.status = Some(Status::INVALID_FIELD.with_dnr());
    }
    let calls = world.ended(&mut host, 2);
    let [read, write] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert!(matches!(read.result, Err(Error::Command(_))), "{read:?}");
    let is_unknown = matches!(write.result, Err(Error::UnknownOutcome(_)));
    assert!(is_unknown, "{write:?}");
    assert!(write.work.is_some() && write.buf.is_some(), "{write:?}");
}

/// A report is sent over the other path at once. A change of reservations is not, and its outcome
/// is unknown when the lost controller is fenced.
#[test]
fn lost_reservation_commands_are_sent_again_only_if_they_change_nothing() {
    let mut world = World::new(17);
    let mut host = world.connected();
    for target in &mut world.targets {
        target.report = reservation_report(ReservationType::EXCLUSIVE_ACCESS, 2);
    }
    world.targets[0].manners.silent = true;
    let (mut keys, mut report) = (world.pool.take().unwrap(), world.pool.take().unwrap());
    let register = ReservationRegister::register(7).into();
    let register = Work::reservation(1, &register, &mut keys).unwrap();
    report.set_len(1).unwrap();
    assert!(Work::reservation_report(1, &mut report).is_none());
    report.set_len(4096).unwrap();
    let read = Work::reservation_report(1, &mut report).unwrap();
    let now = world.net.now();
    for (work, buf, user) in [(register, keys, 1), (read, report, 2)] {
        let call = Call::new(work, Some(buf), user);
        host.io.submit_call(call, now).unwrap();
    }
    host.io.submit_now(now);
    let both = |world: &World, _: &Host<Endpoints>| world.targets[0].served.len() == 2;
    world.until_without_admin(&mut host, both);
    world.targets[0].hang_up();
    let calls = world.ended(&mut host, 2);
    let [register, report] = &calls[..] else {
        panic!("{calls:?}");
    };
    let is_unknown = matches!(register.result, Err(Error::UnknownOutcome(_)));
    assert!(is_unknown && register.buf.is_some(), "{register:?}");
    assert!(world.targets.iter().all(|one| one.reservations.is_empty()));
    let report = report.buf.as_deref().and_then(ReservationReport::parse);
    assert_eq!(report.unwrap().registrants.len(), 2);
}

#[test]
fn conflict_is_not_retried() {
    let mut world = World::new(18);
    let mut host = world.connected();
    for target in &mut world.targets {
        target.manners.status = Some(Status::RESERVATION_CONFLICT);
    }
    world.submit(&mut host, Operation::Read, 1);
    world.submit(&mut host, Operation::Write, 2);
    for call in world.ended(&mut host, 2) {
        let error = call.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
    }
    let served = world.targets.iter().map(|one| one.served.len());
    assert_eq!(served.sum::<usize>(), 2);
}

#[test]
fn call_that_is_sent_again_keeps_its_timeout() {
    let mut world = World::new(16);
    let mut host = world.connected();
    for target in &mut world.targets {
        target.manners.silent = true;
    }
    let mut call = world.call(Operation::Read, 1);
    call.timeout = CallTimeout::After(S(1));
    host.io.submit_call(call, world.net.now()).unwrap();
    let is_sent = |world: &World, _: &Host<Endpoints>| !world.targets[0].served.is_empty();
    world.until_without_admin(&mut host, is_sent);
    world.targets[0].hang_up();
    let start = world.net.now();
    let is_late = |event: &PathEvent| {
        let late = |error: &Error| error.to_string().contains("did not complete");
        matches!(&event.change, PathChange::Lost(error) if event.path == 1 && late(error))
    };
    world.until(&mut host, |host| host.events.iter().any(is_late));
    let waited = world.net.now() - start;
    assert!(waited >= S(1) && waited < S(2), "{waited:?}");
    world.targets[1].manners.silent = false;
    world.targets[0].manners.silent = false;
    let read = world.ended(&mut host, 1).pop().unwrap();
    assert_eq!((read.user, read.result.is_ok()), (1, true), "{read:?}");
}

#[test]
fn path_is_not_used_from_a_namespace_event_to_the_next_check() {
    let mut world = World::new(17);
    let mut host = world.connected();
    assert!(world.targets[0].notify(AsyncEvent::NAMESPACE_CHANGED));
    world.until(&mut host, |host| !host.io.paths()[0].is_accessible);
    world.until(&mut host, |host| host.io.paths()[0].is_accessible);
    // Calls wait meanwhile, also if there is no other path.
    world.targets[1].manners.reject = DOWN;
    world.targets[1].hang_up();
    assert!(world.targets[0].notify(AsyncEvent::NAMESPACE_CHANGED));
    world.until(&mut host, |host| !host.io.paths()[0].is_accessible);
    world.submit(&mut host, Operation::Read, 1);
    assert!(world.ended(&mut host, 1)[0].result.is_ok());
}

#[test]
fn controller_of_another_subsystem_or_with_a_used_identifier_is_refused() {
    for (subnqn, cntlid, text) in [
        (
            Some(Nqn::new("nqn.2026-11.org.example:other").unwrap()),
            2,
            "of subsystem nqn",
        ),
        (
            None,
            1,
            "controller 1 is connected over 10.0.0.1:4420 already",
        ),
    ] {
        let mut world = World::new(18);
        world.targets[1].persona.subnqn = subnqn;
        world.targets[1].persona.cntlid = cntlid;
        world.targets[1].manners.reject = DOWN;
        let mut host = world.host();
        world.until(&mut host, |host| host.io.paths()[0].is_accessible);
        world.targets[1].manners.reject = None;
        let is_refused = |event: &PathEvent| match &event.change {
            PathChange::Failed(error) => error.to_string().contains(text),
            _ => false,
        };
        world.until(&mut host, |host| host.events.iter().any(is_refused));
        assert_ne!(host.io.paths()[1].state, PathState::Live, "{host:?}");
        // It is tried again.
        world.targets[1].persona.subnqn = None;
        world.targets[1].persona.cntlid = 2;
        world.until(&mut host, |host| host.io.paths()[1].is_accessible);
    }
}

#[test]
fn namespace_that_is_missing_at_first_is_used_when_it_exists() {
    let mut world = World::new(19);
    for target in &mut world.targets {
        target.persona.blocks = 0;
    }
    let mut host = world.host();
    world.until(&mut host, |host| host.admin.error().is_some());
    let text = host.admin.error().unwrap().to_string();
    assert!(text.contains("no namespace 1"), "{text}");
    world.run(&mut host, S(5));
    for target in &mut world.targets {
        target.persona.blocks = 8192;
    }
    world.until(&mut host, |host| {
        host.io.paths().iter().all(|path| path.is_accessible)
    });
}

#[test]
fn refused_path_is_not_used_before_the_admin_half_knows_it() {
    let mut world = World::new(20);
    for target in &mut world.targets {
        target.persona.groups = Some(vec![(1, AnaState::OPTIMIZED)]);
        target.persona.anagrpid = 1;
    }
    let mut host = world.connected();
    world.targets[0].manners.status = Some(Status::ANA_INACCESSIBLE);
    world.submit(&mut host, Operation::Read, 1);
    world.until_without_admin(&mut host, |_, host| host.done.len() == 1);
    assert_eq!(world.targets[0].served.len(), 1);
    // The I/O half takes over the states, which are those from before.
    let layout = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    host.io.register(pool.region(), world.net.now()).unwrap();
    world.submit(&mut host, Operation::Read, 2);
    world.until_without_admin(&mut host, |_, host| host.done.len() == 2);
    assert_eq!(world.targets[0].served.len(), 1);
    assert!(host.done.iter().all(|call| call.result.is_ok()));
    // It is used again when the states are known.
    world.targets[0].manners.status = None;
    world.run(&mut host, S(3));
    world.submit(&mut host, Operation::Read, 3);
    world.ended(&mut host, 3);
    assert_eq!(world.targets[0].served.len(), 2);
}

/// Faults at random: each call ends exactly once, and its buffer comes back.
#[test]
fn each_call_ends_once_whatever_happens_to_the_paths() {
    for seed in 0..25 {
        let mut world = World::new(seed);
        world.config.policy = PathPolicy::RoundRobin;
        for target in &mut world.targets {
            target.persona.has_instance = true;
            target.persona.resets = Resets::Immediate;
        }
        let mut host = world.connected();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut submitted, mut ended) = (0, Vec::new());
        while submitted < 300 {
            let at = usize::try_from(draw(2)).unwrap();
            let target = &mut world.targets[at];
            match draw(40) {
                0 => target.hang_up(),
                1 => target.manners.silent = !target.manners.silent,
                2 => target.manners.reject = target.manners.reject.xor(DOWN),
                3 => target.manners.status = Some(Status::ANA_TRANSITION),
                4 => target.manners.status = Some(Status::NAMESPACE_NOT_READY),
                5..10 => {
                    target.manners.status = None;
                    target.manners.silent = false;
                }
                _ if world.pool.available() > 0 => {
                    let operation = [Operation::Read, Operation::Write];
                    let operation = operation[usize::try_from(draw(2)).unwrap()];
                    let call = world.call(operation, submitted);
                    if host.io.submit_call(call, world.net.now()).is_ok() {
                        submitted += 1;
                    }
                }
                _ => {}
            }
            world.run(&mut host, Duration::from_millis(draw(100)));
            ended.extend(
                host.done
                    .drain(..)
                    .map(|call| (call.user, call.buf.is_some())),
            );
        }
        for target in &mut world.targets {
            target.manners.status = None;
            target.manners.silent = false;
            target.manners.reject = None;
            // What was not completed never is.
            target.hang_up();
        }
        while ended.len() < 300 {
            let rest = world.ended(&mut host, 1);
            ended.extend(rest.iter().map(|call| (call.user, call.buf.is_some())));
        }
        world.run(&mut host, S(1));
        assert!(host.done.is_empty(), "seed {seed}");
        ended.sort_unstable();
        let expected: Vec<_> = (0..300).map(|user| (user, true)).collect();
        assert_eq!(ended, expected, "seed {seed}");
        assert_eq!(world.pool.available(), BUFFERS, "seed {seed}");
    }
}
