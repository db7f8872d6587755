//! Hosts with keys: authentication of their queues, and peers that never finish it.

mod peers;
mod worker;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmeof_dhchap::{HostAuth, HostKeys, HostStep, Key, Policy, Random, RandomError, Refusal};
use nvmeof_rdma::{Provider, QpId};
use nvmeof_target_core::{AuthenticationSpec, Limits};
use nvmeof_wire::auth::{AuthCommand, GroupId, HashId};
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectResult};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io as op;
use nvmeof_wire::{Nqn, Status};

use super::host::{Host, Sent, connect, enable, establish, run, try_connect};
use super::{Bench, NQN, few_buffers, limits};
use crate::{ComputeJob, ComputeWorkers, ReactorConfig};

/// Numbers of hosts that have a key: the first ones.
const HOSTS: u8 = 40;
/// Longest message that a host accepts.
const AL: usize = 4096;

/// Random numbers that count.
#[derive(Default)]
struct Numbers(u8);

impl Random for Numbers {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomError> {
        for byte in bytes {
            self.0 = self.0.wrapping_add(1);
            *byte = self.0;
        }
        Ok(())
    }
}

/// Runs each job at once.
struct Inline;

impl ComputeWorkers for Inline {
    fn submit(&self, job: ComputeJob) {
        job.run(&mut Numbers::default());
    }
}

/// Keeps jobs until the test runs them.
#[derive(Default)]
struct Held(Mutex<Vec<ComputeJob>>);

impl ComputeWorkers for Held {
    fn submit(&self, job: ComputeJob) {
        self.0.lock().unwrap().push(job);
    }
}

impl Held {
    fn take(&self) -> Vec<ComputeJob> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn run_all(&self) {
        for job in self.take() {
            job.run(&mut Numbers::default());
        }
    }
}

fn nqn_of(number: u8) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.org.example:host{number}")).unwrap()
}

/// The key with that number.
fn key(number: u8) -> Arc<Key> {
    let secret = nvmeof_dhchap::Secret::take(&mut [number; 32]).unwrap();
    Arc::new(Key::of(secret, None).unwrap())
}

/// The key of the controller.
fn controller_key() -> Arc<Key> {
    key(200)
}

/// Each of the first hosts has the key with its number.
fn keys() -> AuthenticationSpec {
    let policy = |number| Policy {
        first_is_old: false,
        unknown: Default::default(),
        keys: vec![key(number)],
        controller_key: Some(controller_key()),
        hashes: vec![HashId::SHA256],
        groups: vec![GroupId::NULL],
    };
    AuthenticationSpec {
        hosts: (0..HOSTS)
            .map(|number| (nqn_of(number), Arc::new(policy(number))))
            .collect(),
        ..AuthenticationSpec::default()
    }
}

fn bench_with(seed: u64, config: ReactorConfig, limits: Limits) -> Bench {
    Bench::authenticating(seed, config, limits, keys(), |sim| Box::new(sim))
}

/// A target whose workers run jobs at once.
fn inline(seed: u64, limits: Limits) -> Bench {
    let mut bench = bench_with(seed, few_buffers(), limits);
    bench.reactor.set_workers(Arc::new(Inline));
    bench
}

/// A target whose jobs the test runs.
fn held(seed: u64, limits: Limits) -> (Bench, Arc<Held>) {
    let mut bench = bench_with(seed, few_buffers(), limits);
    let workers = Arc::new(Held::default());
    bench.reactor.set_workers(workers.clone());
    (bench, workers)
}

/// The right keys of a host.
fn right(host: &Host, two_way: bool) -> HostKeys {
    HostKeys::new(key(host.id[0]), two_way.then(controller_key))
}

fn start(host: &Host, keys: HostKeys) -> (HostAuth, HostStep) {
    HostAuth::start(nqn_of(host.id[0]), Nqn::new(NQN).unwrap(), keys, 1)
}

/// Sends the next command of an authentication.
fn send_step(host: &mut Host, qp: QpId, step: &HostStep) -> Sent {
    match step {
        HostStep::Send(bytes) => {
            let len = u32::try_from(bytes.len()).unwrap();
            host.send_with(qp, AuthCommand::send(len).to_sqe(), bytes)
        }
        HostStep::Receive => {
            let len = u32::try_from(AL).unwrap();
            host.send_with(qp, AuthCommand::receive(len).to_sqe(), &[0; AL])
        }
        step => panic!("no command: {step:?}"),
    }
}

/// The step after the response to a command.
fn next(auth: &mut HostAuth, step: &HostStep, data: &[u8]) -> HostStep {
    let step = match step {
        HostStep::Send(_) => auth.sent(),
        _ => auth.received(data),
    };
    match step {
        HostStep::Run(work) => auth.finished(work.run(&mut Numbers(100))),
        step => step,
    }
}

/// How an authentication failed: by a command, or by a message.
#[derive(Debug, PartialEq)]
enum Failed {
    Command(Status),
    Refused(Refusal),
}

/// Authenticates a queue.
fn authenticate(
    bench: &mut Bench,
    host: &mut Host,
    qp: QpId,
    keys: HostKeys,
) -> Result<(), Failed> {
    let (mut auth, mut step) = start(host, keys);
    loop {
        match step {
            HostStep::Done => return Ok(()),
            HostStep::Refused(refusal) => return Err(Failed::Refused(refusal)),
            _ => {
                let sent = send_step(host, qp, &step);
                let (cqe, data) = run(bench, host, sent);
                if !cqe.status().is_success() {
                    return Err(Failed::Command(cqe.status().kind()));
                }
                step = next(&mut auth, &step, &data);
            }
        }
    }
}

/// A queue whose Connect requires authentication, and the controller identifier.
fn unproven(bench: &mut Bench, host: &mut Host, connect: &Connect, cntlid: u16) -> (QpId, u16) {
    let request = Request::new(connect.qid.get(), connect.entries().unwrap());
    let qp = establish(bench, host, &request);
    let cqe = try_connect(bench, host, qp, connect, cntlid);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    let result = ConnectResult::from_result(cqe.result.get());
    assert!(result.requires_authentication());
    (qp, result.cntlid)
}

/// An enabled controller and I/O queue 1 of a host with its key.
fn ready(bench: &mut Bench, host: &mut Host, two_way: bool) -> (QpId, QpId) {
    let (admin, cntlid) = unproven(bench, host, &Connect::new(0, 32, 0), 0xffff);
    let keys = right(host, two_way);
    assert_eq!(authenticate(bench, host, admin, keys), Ok(()));
    enable(bench, host, admin);
    let (io, _) = unproven(bench, host, &Connect::new(1, 128, 0), cntlid);
    let keys = right(host, two_way);
    assert_eq!(authenticate(bench, host, io, keys), Ok(()));
    (admin, io)
}

/// Reads a block.
fn read(bench: &mut Bench, host: &mut Host, io: QpId) -> Status {
    let sent = host.send_with(io, Io::new(1, 0, 1).to_sqe(op::READ), &[0; 512]);
    run(bench, host, sent).0.status()
}

/// Whether all message buffers are free.
fn has_all_messages(bench: &Bench) -> bool {
    let (free, all) = bench.reactor.resources.messages.counts();
    free == all
}

#[test]
fn host_with_its_key_gets_its_queues() {
    for two_way in [false, true] {
        let mut bench = inline(1, limits());
        let mut host = bench.host();
        let (_, io) = ready(&mut bench, &mut host, two_way);
        assert!(read(&mut bench, &mut host, io).is_success());
        assert_eq!(bench.reactor.target.connected().len(), 1);
        bench.run_for(&mut [&mut host], Duration::from_secs(1));
        assert!(has_all_messages(&bench));
    }
}

#[test]
fn queue_takes_nothing_before_it_is_authenticated() {
    let mut bench = inline(2, limits());
    let mut host = bench.host();
    let free = bench.reactor.free_buffers();
    let (admin, _) = unproven(&mut bench, &mut host, &Connect::new(0, 32, 0), 0xffff);
    let (_, mut step) = start(&host, right(&host, false));
    let sent = send_step(&mut host, admin, &step);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    step = HostStep::Receive;
    let sent = send_step(&mut host, admin, &step);
    assert!(run(&mut bench, &mut host, sent).0.status().is_success());
    let (data, capsules) = bench.reactor.free_buffers();
    assert_eq!((data, capsules), (free.0, free.1 - 2), "two receives");
    assert!(bench.reactor.target.connected().is_empty());
}

#[test]
fn wrong_key_closes_that_queue_alone() {
    let mut bench = inline(3, limits());
    let mut host = bench.host();
    let (admin, io) = ready(&mut bench, &mut host, false);
    let mut stranger = bench.host();
    // It knows the name of the host.
    stranger.id = host.id;
    let (qp, _) = unproven(&mut bench, &mut stranger, &Connect::new(0, 32, 0), 0xffff);
    let wrong = HostKeys::new(key(99), None);
    let failed = authenticate(&mut bench, &mut stranger, qp, wrong);
    assert!(
        matches!(failed, Err(Failed::Refused(Refusal::ByController(_)))),
        "{failed:?}"
    );
    bench.until(&mut [&mut host, &mut stranger], |_, hosts| {
        !hosts[1].closed.is_empty()
    });
    assert!(read(&mut bench, &mut host, io).is_success());
    assert!(host.closed.iter().all(|(qp, _)| ![admin, io].contains(qp)));
    assert!(has_all_messages(&bench));
}

#[test]
fn reactor_without_workers_refuses_every_host() {
    let mut bench = bench_with(4, few_buffers(), limits());
    let mut host = bench.host();
    let (admin, _) = unproven(&mut bench, &mut host, &Connect::new(0, 32, 0), 0xffff);
    let keys = right(&host, false);
    let failed = authenticate(&mut bench, &mut host, admin, keys);
    assert!(
        matches!(failed, Err(Failed::Refused(Refusal::ByController(_)))),
        "{failed:?}"
    );
    assert!(bench.reactor.target.connected().is_empty());
}

/// There were enough capsule buffers at its Connect, but not when it had proved its key.
#[test]
fn queue_without_capsules_at_the_end_of_its_authentication_may_be_retried() {
    let config = ReactorConfig {
        capsules: 160,
        ..few_buffers()
    };
    let mut bench = bench_with(5, config, limits());
    bench.reactor.set_workers(Arc::new(Inline));
    let mut host = bench.host();
    let (admin, cntlid) = unproven(&mut bench, &mut host, &Connect::new(0, 32, 0), 0xffff);
    let keys = right(&host, false);
    assert_eq!(authenticate(&mut bench, &mut host, admin, keys), Ok(()));
    enable(&mut bench, &mut host, admin);
    let all = bench.reactor.free_buffers().1;
    let late = unproven(&mut bench, &mut host, &Connect::new(1, 128, 0), cntlid).0;
    let (first, _) = unproven(&mut bench, &mut host, &Connect::new(2, 128, 0), cntlid);
    let keys = right(&host, false);
    assert_eq!(
        authenticate(&mut bench, &mut host, first, keys.clone()),
        Ok(())
    );
    let failed = authenticate(&mut bench, &mut host, late, keys);
    assert_eq!(
        failed,
        Err(Failed::Command(Status::CONNECT_CONTROLLER_BUSY))
    );
    bench.until(&mut [&mut host], |bench, _| {
        bench.reactor.free_buffers().1 == all - 128
    });
    assert!(read(&mut bench, &mut host, first).is_success());
}

/// A host that does not have to authenticate connects as before, beside those that have to.
#[test]
fn host_without_a_key_is_not_authenticated() {
    let mut bench = inline(6, limits());
    let mut host = bench.host();
    host.name = Some(HOSTS + 1);
    let (admin, _) = connect(&mut bench, &mut host, &Connect::new(0, 32, 0), 0xffff);
    enable(&mut bench, &mut host, admin);
    assert_eq!(bench.reactor.target.connected().len(), 1);
}
