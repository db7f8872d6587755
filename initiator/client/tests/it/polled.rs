//! The polled queues with a minimal target, in virtual time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod association;
mod authentication;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::fake::{BLOCK, BLOCKS, Fake, Manners, SUBNQN};
use nvmeof_initiator::polled::{AdminQueue, Call, Done, IoConfig, IoQueue, SubmitError, Work};
use nvmeof_initiator::{
    Address, Blocks, Buf, ConnectOptions, Error, Identity, LostCause, Nqn, Operation, QueueShape,
    Status,
};
use nvmeof_initiator_core::blocks::flush;
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Provider;
use nvmeof_rdma_layers::{Faults, Faulty, Injected};
use nvmeof_rdma_sim::{Sim, SimConfig, SimNet};
use nvmeof_rdma_soft::SoftConfig;
use nvmeof_wire::opcode::io as opcode;

const TARGET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

struct World {
    net: SimNet,
    target: Fake<Sim>,
    addr: Address,
    options: ConnectOptions,
    pool: Pool,
    alive: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let net = SimNet::new(seed, SimConfig::default());
        let provider = net.endpoint(TARGET, SoftConfig::default());
        let (target, addr) = Fake::listen(provider, SocketAddr::new(TARGET, 4420).into());
        let layout = PoolLayout {
            count: 64,
            stride: 512 << 10,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        Self {
            net,
            target,
            addr,
            options: ConnectOptions::new(addr, Nqn::new(SUBNQN).unwrap()),
            pool,
            alive: true,
        }
    }

    fn provider(&self) -> Box<Sim> {
        Box::new(self.net.endpoint(HOST, SoftConfig::default()))
    }

    fn identity() -> Identity {
        Identity::of_name(Nqn::new("nqn.2026-11.org.example:host").unwrap())
    }

    fn admin(&self) -> AdminQueue {
        let config = self.options.admin_config(&Self::identity());
        AdminQueue::connect(self.provider(), self.addr, config, self.net.now()).unwrap()
    }

    fn poll_once(&mut self, until: Option<Duration>) {
        let mut busy = true;
        while busy && self.alive {
            busy = self.target.poll(self.net.now());
        }
        let step = self.net.now() + Duration::from_millis(1);
        let until = until.map_or(step, |until| until.max(self.net.now()).min(step));
        self.net.advance_to_next(Some(until));
    }

    fn ready_admin(&mut self) -> AdminQueue {
        let mut admin = self.admin();
        let mut done = Vec::new();
        while admin.info().is_none() {
            assert!(!admin.is_closed(), "{:?}", admin.error());
            while admin.poll(self.net.now(), &mut done) {}
            self.poll_once(admin.next_deadline());
        }
        admin
    }

    fn ready_io(&mut self, admin: &AdminQueue, size: u16) -> IoQueue {
        let provider = self.provider();
        self.try_io(provider, admin, size).unwrap()
    }

    /// An I/O queue over `provider`, `None` when it cannot be set up.
    fn try_io(
        &mut self,
        provider: Box<dyn Provider>,
        admin: &AdminQueue,
        size: u16,
    ) -> Option<IoQueue> {
        let info = Arc::clone(admin.info().unwrap());
        let config = IoConfig {
            names: self.options.admin_config(&Self::identity()).setup.names,
            queue: QueueShape {
                qid: 1,
                size,
                flow_control: true,
            },
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            trusts_target: false,
        };
        let now = self.net.now();
        let mut io = IoQueue::connect(provider, self.addr, &info, config, now).ok()?;
        io.register(self.pool.region()).ok()?;
        let mut done = Vec::new();
        while !io.is_ready() {
            if io.is_closed() {
                return None;
            }
            while io.poll(self.net.now(), &mut done) {}
            self.poll_once(io.next_deadline());
        }
        Some(io)
    }

    fn buf(&self, len: usize) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.set_len(len).unwrap();
        buf
    }

    /// Runs until `count` calls have ended, by user.
    fn ended(&mut self, io: &mut IoQueue, count: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while done.len() < count {
            while io.poll(self.net.now(), &mut done) {}
            if done.len() < count {
                self.poll_once(io.next_deadline());
            }
        }
        done.sort_by_key(|call| call.user);
        done
    }
}

fn run(operation: Operation, slba: u64, count: u64) -> Blocks {
    Blocks {
        operation,
        nsid: 1,
        block_shift: 9,
        slba,
        count,
        fua: false,
    }
}

fn cause(result: &Result<u64, Error>) -> &LostCause {
    match result {
        Err(Error::Lost(lost)) => &lost.cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn written_data_are_read_back() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let admin = world.ready_admin();
        let mut io = world.ready_io(&admin, 128);
        assert_eq!(admin.info().unwrap().limits.max_transfer, 128 << 10);
        // In-capsule, keyed, and split into three commands.
        for (user, len) in [(0, 4096), (1, 8192), (2, 300 << 10)] {
            let mut buf = world.buf(len);
            for (n, byte) in buf.iter_mut().enumerate() {
                *byte = u8::try_from((n / 7 + len) % 251).unwrap();
            }
            let expected = buf.to_vec();
            let (now, count) = (world.net.now(), (len / BLOCK) as u64);
            let write = run(Operation::Write, 16, count);
            io.submit(write, Some(buf), user, now).unwrap();
            let done = world.ended(&mut io, 1).pop().unwrap();
            assert_eq!(done.user, user);
            assert!(done.result.is_ok(), "{:?}", done.result);
            assert_eq!(world.target.disk[16 * BLOCK..][..len], expected);
            let mut buf = done.buf.unwrap();
            buf.fill(0);
            let read = run(Operation::Read, 16, count);
            io.submit(read, Some(buf), user, world.net.now()).unwrap();
            let done = world.ended(&mut io, 1).pop().unwrap();
            assert!(done.result.is_ok(), "{:?}", done.result);
            assert_eq!(*done.buf.unwrap(), *expected);
        }
        assert_eq!(world.target.in_capsule, 1);
        assert_eq!(world.target.served.len(), 2 + 2 + 2 * 3);
        assert_eq!(world.pool.available(), 64, "every buffer came back");
    }
}

#[test]
fn full_queue_returns_the_call() {
    let mut world = World::new(1);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 5);
    assert_eq!(io.depth(), 4);
    let now = world.net.now();
    for user in 0..4 {
        let buf = world.buf(4096);
        io.submit(run(Operation::Read, user, 8), Some(buf), user, now)
            .unwrap();
    }
    let buf = world.buf(4096);
    let refused = io.submit(run(Operation::Read, 0, 8), Some(buf), 4, now);
    let refused = refused.unwrap_err();
    assert!(matches!(refused.why, SubmitError::Full));
    assert_eq!(
        (refused.back.user, refused.back.buf.unwrap().len()),
        (4, 4096)
    );
    assert_eq!(world.ended(&mut io, 4).len(), 4);
    io.submit(flush(1), None, 9, world.net.now()).unwrap();
    assert_eq!(world.ended(&mut io, 1)[0].user, 9);
}

#[test]
fn commands_of_a_fused_operation_are_adjacent() {
    let mut world = World::new(1);
    let admin = world.ready_admin();
    let exchange = |world: &World, expected: u8| {
        let mut buf = world.buf(2 * 1024);
        buf[..1024].fill(expected);
        buf[1024..].fill(7);
        (run(Operation::CompareWrite, 4, 2), Some(buf))
    };
    let mut narrow = world.ready_io(&admin, 2);
    let (work, buf) = exchange(&world, 0);
    let refused = narrow.submit(work, buf, 1, world.net.now()).unwrap_err();
    assert!(matches!(refused.why, SubmitError::Narrow));
    narrow.close();

    let mut io = world.ready_io(&admin, 4);
    let expected = world.target.disk[4 * BLOCK];
    let served = world.target.served.len();
    for user in 0..2 {
        let now = world.net.now();
        io.submit(flush(1), None, user, now).unwrap();
    }
    let (work, buf) = exchange(&world, expected);
    let refused = io.submit(work, buf, 2, world.net.now()).unwrap_err();
    assert!(
        matches!(refused.why, SubmitError::Full),
        "one place is left"
    );
    assert_eq!(world.ended(&mut io, 2).len(), 2);
    let buf = refused.back.buf;
    io.submit(work, buf, 2, world.net.now()).unwrap();
    let done = world.ended(&mut io, 1).pop().unwrap();
    assert!(done.result.is_ok(), "{:?}", done.result);
    assert_eq!(done.buf.unwrap().len(), 2048);
    assert_eq!(world.target.disk[4 * BLOCK..][..1024], [7; 1024]);
    let fused = [opcode::COMPARE.0, opcode::WRITE.0];
    assert_eq!(world.target.served[served + 2..], fused);

    // The error of the first command counts, not the abort of the second.
    world.target.manners.differs = true;
    let (work, buf) = exchange(&world, 0);
    io.submit(work, buf, 3, world.net.now()).unwrap();
    let done = world.ended(&mut io, 1).pop().unwrap();
    let Err(Error::Command(error)) = done.result else {
        panic!("{:?}", done.result);
    };
    assert_eq!(
        (error.status.kind(), error.command),
        (Status::COMPARE_FAILURE, "Compare")
    );
    assert!(done.buf.is_some());
}

#[test]
fn batch_is_submitted_until_the_queue_is_full() {
    let mut world = World::new(1);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 5);
    let read = |world: &World, user| {
        let work = Work::Blocks(run(Operation::Read, user, 8));
        Call::new(work, Some(world.buf(4096)), user)
    };
    let mut calls: VecDeque<Call> = (0..6).map(|user| read(&world, user)).collect();
    assert_eq!(io.submit_batch(&mut calls, world.net.now()).unwrap(), 4);
    let left: Vec<u64> = calls.iter().map(|call| call.user).collect();
    assert_eq!(left, [4, 5], "in their order");
    // They are sent without a poll.
    while world.target.served.len() < 4 {
        world.poll_once(None);
    }
    assert_eq!(io.submit_batch(&mut calls, world.net.now()).unwrap(), 0);
    world.ended(&mut io, 4);
    assert_eq!(io.submit_batch(&mut calls, world.net.now()).unwrap(), 2);
    assert!(calls.is_empty());
    assert_eq!(world.ended(&mut io, 2)[0].user, 4);

    // A refused call stays, and those after it.
    let mut wrong = read(&world, 8);
    wrong.buf = None;
    calls.extend([read(&world, 7), wrong, read(&world, 9)]);
    let why = io.submit_batch(&mut calls, world.net.now()).unwrap_err();
    assert!(matches!(why, SubmitError::Length { got: 0, .. }), "{why}");
    let left: Vec<u64> = calls.iter().map(|call| call.user).collect();
    assert_eq!(left, [8, 9]);
    assert_eq!(world.ended(&mut io, 1)[0].user, 7);
}

#[test]
fn call_longer_than_the_queue_is_split() {
    let mut world = World::new(2);
    world.target.mdts = 1;
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 4);
    let len = 256 << 10;
    let count = (len / BLOCK) as u64;
    let mut buf = world.buf(len);
    buf.fill(7);
    let now = world.net.now();
    io.submit(run(Operation::Write, 0, count), Some(buf), 1, now)
        .unwrap();
    let done = world.ended(&mut io, 1);
    assert!(done[0].result.is_ok());
    assert_eq!(world.target.served.len(), 32);
    assert!(world.target.disk[..len].iter().all(|byte| *byte == 7));
}

#[test]
fn wrong_length_or_buffer_is_refused() {
    let mut world = World::new(3);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 16);
    let now = world.net.now();
    let refused = io.submit(run(Operation::Read, 0, 8), Some(world.buf(512)), 0, now);
    assert!(matches!(
        refused.unwrap_err().why,
        SubmitError::Length { .. }
    ));
    // A call without blocks is refused: it would never complete.
    let none = io.submit(run(Operation::Write, 0, 0), None, 0, now);
    assert!(matches!(none.unwrap_err().why, SubmitError::Empty));
    let layout = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    let foreign = Pool::new(layout, Pages::Normal).unwrap();
    // Keyed and in-capsule.
    for operation in [Operation::Read, Operation::Write] {
        let buf = foreign.take();
        let refused = io.submit(run(operation, 0, 8), buf, 0, now).unwrap_err();
        assert!(
            matches!(refused.why, SubmitError::Buffer(_)),
            "{}",
            refused.why
        );
        assert!(refused.back.buf.is_some());
    }
    // None of that affected the queue.
    for user in 0..15 {
        let call = Call::new(flush(1).into(), None, user);
        io.submit_call(call, now).unwrap();
    }
    assert_eq!(world.ended(&mut io, 15).len(), 15);
}

#[test]
fn failed_command_names_its_blocks_and_keeps_the_queue() {
    let mut world = World::new(4);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 16);
    world.target.manners.status = Some(Status::LBA_OUT_OF_RANGE);
    let buf = world.buf(300 << 10);
    let now = world.net.now();
    io.submit(run(Operation::Write, 100, 600), Some(buf), 0, now)
        .unwrap();
    let done = world.ended(&mut io, 1).pop().unwrap();
    let Err(Error::Command(error)) = &done.result else {
        panic!("{:?}", done.result);
    };
    assert!(error.status.is(Status::LBA_OUT_OF_RANGE));
    assert_eq!(error.place.unwrap().slba, 100, "the first that failed");
    assert!(done.buf.is_some());
    world.target.manners.status = None;
    io.submit(flush(1), None, 1, world.net.now()).unwrap();
    assert!(world.ended(&mut io, 1)[0].result.is_ok());
}

#[test]
fn silence_ends_every_call_after_the_time_out() {
    let mut world = World::new(5);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 16);
    world.target.manners.silent = true;
    let start = world.net.now();
    for user in 0..3 {
        let buf = world.buf(4096 << user);
        let blocks = 8 << user;
        io.submit(run(Operation::Write, 0, blocks), Some(buf), user, start)
            .unwrap();
    }
    let done = world.ended(&mut io, 3);
    for call in &done {
        assert!(matches!(
            cause(&call.result),
            LostCause::Timeout { what: "Write" }
        ));
        assert!(call.buf.is_some());
    }
    let took = world.net.now() - start;
    assert!(
        took >= Duration::from_secs(30) && took < Duration::from_secs(33),
        "{took:?}"
    );
    assert!(io.is_closed());
    let refused = io.submit(flush(1), None, 0, world.net.now()).unwrap_err();
    assert!(matches!(refused.why, SubmitError::NotConnected(_)));
}

#[test]
fn crash_of_target_ends_all_calls() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        let admin = world.ready_admin();
        let mut io = world.ready_io(&admin, 16);
        world.target.manners.silent = true;
        let start = world.net.now();
        for user in 0..8 {
            let buf = world.buf(64 << 10);
            io.submit(run(Operation::Read, 0, 128), Some(buf), user, start)
                .unwrap();
        }
        io.submit_now(start);
        for _ in 0..seed {
            world.poll_once(None);
        }
        world.target.hang_up();
        let done = world.ended(&mut io, 8);
        for call in &done {
            assert!(matches!(cause(&call.result), LostCause::Network(_)));
            assert!(call.buf.is_some());
        }
        assert!(world.net.now() - start < Duration::from_secs(5));
    }
}

#[test]
fn unexpected_response_breaks_the_queue() {
    let mut world = World::new(6);
    let admin = world.ready_admin();
    let mut io = world.ready_io(&admin, 16);
    world.target.manners.wrong_cid = Some(0x1235);
    let buf = world.buf(4096);
    let now = world.net.now();
    io.submit(run(Operation::Read, 0, 8), Some(buf), 0, now)
        .unwrap();
    let done = world.ended(&mut io, 1);
    assert!(matches!(cause(&done[0].result), LostCause::Protocol(text) if text.contains("0x1235")));
}

#[test]
fn refusals_reach_the_caller_in_words() {
    for (manners, message) in [
        (
            Manners {
                connect: crate::fake::refused(nvmeof_wire::fabrics::InvalidParameter::InData(256)),
                ..Manners::default()
            },
            "from the target's discovery log",
        ),
        (
            Manners {
                connect: Some((Status::CONNECT_INVALID_HOST, 0)),
                ..Manners::default()
            },
            "\"nqn.2026-11.org.example:host\" to `allowed_hosts`",
        ),
        (
            Manners {
                reject: Some((0, nvmeof_wire::cm::RejectStatus::NO_RESOURCES)),
                ..Manners::default()
            },
            "no resources for another queue",
        ),
    ] {
        let mut world = World::new(7);
        world.target.manners = manners;
        let mut admin = world.admin();
        let mut done = Vec::new();
        while !admin.is_closed() {
            while admin.poll(world.net.now(), &mut done) {}
            world.poll_once(admin.next_deadline());
        }
        let error = admin.error().unwrap().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn refused_connection_is_reported() {
    let mut world = World::new(8);
    world.addr = SocketAddr::new(TARGET, 4421).into();
    let mut admin = world.admin();
    let mut done = Vec::new();
    while !admin.is_closed() {
        while admin.poll(world.net.now(), &mut done) {}
        world.poll_once(admin.next_deadline());
    }
    let error = admin.error().unwrap().to_string();
    assert!(
        error.contains("nothing listens on 10.0.0.1:4421"),
        "{error}"
    );
    assert!(
        error.contains("check that nvmeof-target is running"),
        "{error}"
    );
}

#[test]
fn shutdown_is_requested_and_awaited() {
    let mut world = World::new(10);
    let mut admin = world.ready_admin();
    let mut done = Vec::new();
    admin.shutdown(world.net.now(), Duration::from_secs(5));
    while !admin.is_closed() {
        while admin.poll(world.net.now(), &mut done) {}
        world.poll_once(admin.next_deadline());
    }
    assert!(world.target.shut_down);
    assert!(done.is_empty());
    assert_eq!(world.target.disk.len(), BLOCKS * BLOCK);
}

/// For any refusal of the provider, at any time: a call is either returned before a part of
/// it was sent, or it is accepted and completes once.
#[test]
fn partially_refused_call_is_accepted() {
    let len = 300 << 10;
    let mut sent = 0;
    for place in 0..64 {
        let mut world = World::new(place);
        let admin = world.ready_admin();
        let faults = Faults {
            script: vec![(place, Injected::Refuse)],
            ..Faults::default()
        };
        let provider = Box::new(Faulty::new(*world.provider(), faults));
        let Some(mut io) = world.try_io(provider, &admin, 8) else {
            continue;
        };
        let mut buf = world.buf(len);
        buf.fill(0x5a);
        let write = run(Operation::Write, 0, (len / BLOCK) as u64);
        let before = world.target.served.len();
        while let Err(refused) = io.submit(write, Some(buf), 7, world.net.now()) {
            buf = refused.back.buf.unwrap();
        }
        let done = world.ended(&mut io, 1).pop().unwrap();
        assert_eq!((done.user, done.buf.unwrap().len()), (7, len));
        if done.result.is_err() {
            // A receive was refused: the response had none.
            let cause = cause(&done.result);
            assert!(matches!(cause, LostCause::Timeout { .. }), "{cause:?}");
            continue;
        }
        sent += 1;
        assert_eq!(world.target.served.len() - before, 3, "each part once");
        assert!(world.target.disk[..len].iter().all(|byte| *byte == 0x5a));
    }
    assert!(sent > 20, "{sent} were sent");
}
