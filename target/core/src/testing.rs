//! A host for tests: builds commands, acts as the engine, records the results.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod authentication;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvmeof_wire::admin::{Cns, Identify};
use nvmeof_wire::cm::Request as CmRequest;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::log::ana::AnaState;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe, Status};
use zerocopy::IntoBytes;

use crate::Source;
use crate::metrics::ReactorMetrics;
use crate::{
    Action, AnaGroup, Applied, Event, Executed, Fabric, IoOp, Limits, Model, NamespaceSpec, Order,
    PortAddress, PortSpec, Queue, Request, SavedProtection, SettingsKeeper, SubsystemSpec, Target,
    Traddr,
};

pub(crate) use authentication::{
    Numbers, apply_keys, host_keys, keyed_target, nqn, only_host, policy,
};

pub(crate) const SUBNQN: &str = "nqn.2026-11.org.example:disk";
pub(crate) const CLOSED: &str = "nqn.2026-11.org.example:closed";
pub(crate) const HOST: &str = "nqn.2026-11.org.example:host";
pub(crate) const HOST_ID: [u8; 16] = [7; 16];
pub(crate) const NOW: Duration = Duration::from_secs(1000);

pub(crate) fn port() -> PortSpec {
    let traddr = Traddr::Ip(Ipv4Addr::LOCALHOST.into());
    PortSpec::new(traddr, 4420, vec![Fabric::Iwarp.into()])
}

/// Port `number`, with group 2 in this state.
pub(crate) fn port_in(number: u16, state: AnaState) -> PortSpec {
    PortSpec {
        trsvcid: 4419 + number,
        ana_groups: vec![AnaGroup { id: 2, state }],
        ..port()
    }
}

pub(crate) fn namespace(nsid: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid,
        blocks: 1000,
        store: nsid * 10,
        deallocate: true,
        volatile_cache: true,
        ..NamespaceSpec::default()
    }
}

pub(crate) fn subsystem() -> SubsystemSpec {
    let readonly = NamespaceSpec {
        readonly: true,
        block_size: 4096,
        ..namespace(3)
    };
    SubsystemSpec {
        nqn: SUBNQN.into(),
        allow_any_host: true,
        namespaces: vec![namespace(1), readonly],
        ..SubsystemSpec::default()
    }
}

pub(crate) fn closed() -> SubsystemSpec {
    SubsystemSpec {
        nqn: CLOSED.into(),
        allowed_hosts: vec!["nqn.2026-11.org.example:friend".into()],
        namespaces: vec![namespace(1)],
        ..SubsystemSpec::default()
    }
}

pub(crate) fn target_with(limits: Limits) -> Target {
    let target = without_keeper(limits);
    target.set_settings_keeper(Arc::new(KeptBook::default()));
    target
}

/// A target without a keeper, and so without write protection.
pub(crate) fn without_keeper(limits: Limits) -> Target {
    Target::new(Model::build(limits, &[port()], &[subsystem(), closed()]).unwrap())
}

/// A keeper of write protection.
#[derive(Debug, Default)]
pub(crate) struct KeptBook {
    /// The last saved state of each subsystem, and the number of saves.
    pub(crate) kept: Mutex<(usize, BTreeMap<Nqn, Vec<SavedProtection>>)>,
    /// Whether saves fail.
    pub(crate) full: AtomicBool,
}

impl SettingsKeeper for KeptBook {
    // Tests call `write`.
    fn wake(&self) {}
}

impl KeptBook {
    /// Saves all pending changes.
    pub(crate) fn write(&self, target: &Target) {
        while let Some(to_keep) = target.next_save() {
            if self.full.load(Ordering::Relaxed) {
                to_keep.end(&Err(std::io::ErrorKind::StorageFull.into()));
                continue;
            }
            let mut kept = self.kept.lock().unwrap();
            kept.0 += 1;
            let its = kept.1.entry(*to_keep.subsystem()).or_default();
            its.retain(|one| one.nsid != to_keep.nsid());
            its.extend(&to_keep.settings().protected);
            drop(kept);
            to_keep.end(&Ok(()));
        }
    }
}

/// Serves other subsystems from now on. Returns the result.
pub(crate) fn apply(target: &Target, subsystems: &[SubsystemSpec]) -> Applied {
    apply_with(target, &[port()], subsystems)
}

pub(crate) fn apply_with(
    target: &Target,
    ports: &[PortSpec],
    subsystems: &[SubsystemSpec],
) -> Applied {
    let model = Model::build(target.limits().clone(), ports, subsystems).unwrap();
    target.apply(model).unwrap()
}

/// Changes the size of namespace 1 of the first subsystem.
pub(crate) fn change_a_namespace(target: &Target) {
    let nqn = Nqn::new(SUBNQN).unwrap();
    let model = target.model();
    let now = model.subsystem(&nqn).unwrap().namespace(1).unwrap().blocks;
    let mut spec = subsystem();
    spec.namespaces[0].blocks = now + 1;
    assert!(!apply(target, &[spec, closed()]).changes.is_empty());
}

/// One subsystem with only this namespace.
pub(crate) fn target_of(namespace: NamespaceSpec) -> Target {
    let spec = SubsystemSpec {
        namespaces: vec![namespace],
        ..subsystem()
    };
    Target::new(Model::build(Limits::default(), &[port()], &[spec]).unwrap())
}

pub(crate) fn target() -> Target {
    target_with(Limits {
        queue_depth: 128,
        io_queues: 4,
        controllers: 3,
        // Less than each namespace.
        max_transfer: 256 << 10,
        ..Limits::default()
    })
}

/// One queue pair and its engine.
pub(crate) struct Host {
    pub(crate) queue: Queue,
    pub(crate) now: Duration,
    /// Duration of each operation of a backing store.
    pub(crate) slow: Duration,
    next_cid: u16,
    /// Outcomes of the next operations; success if empty.
    pub(crate) outcomes: Vec<Executed>,
    /// Requested operations.
    pub(crate) ops: Vec<IoOp>,
    target: Target,
    /// The keeper of its protections.
    pub(crate) reactor_metrics: Arc<KeptBook>,
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) cqe: Cqe,
    /// Pushed data.
    pub(crate) data: Vec<u8>,
    pub(crate) invalidate: Option<u32>,
}

impl Completion {
    pub(crate) fn status(&self) -> Status {
        self.cqe.status().kind()
    }

    pub(crate) fn result(&self) -> u64 {
        self.cqe.result.get()
    }
}

/// The outcome of a command, if it has one.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered(Completion),
    Held,
    Closed(crate::CloseCause),
}

pub(crate) fn keyed(len: usize) -> Sgl {
    Sgl::keyed(0x1000, u32::try_from(len).unwrap(), 0xabcd)
}

pub(crate) fn connect_data(cntlid: u16) -> ConnectData {
    connect_data_of(HOST, cntlid)
}

pub(crate) fn connect_data_of(host: &str, cntlid: u16) -> ConnectData {
    let nqn = |text| Nqn::new(text).unwrap();
    ConnectData::new(HOST_ID, cntlid, &nqn(SUBNQN), &nqn(host))
}

/// The peer of hosts.
pub(crate) const PEER: &str = "192.0.2.7:40001";

impl Host {
    /// A queue pair that is not connected to a controller.
    pub(crate) fn open(target: &Target, qid: u16, entries: u16) -> Self {
        let request = CmRequest::new(qid, entries);
        let (mut queue, accept) = target.queue(request.as_bytes(), NOW).unwrap();
        assert_eq!(accept.crqsize.get(), entries);
        queue.set_peer(PEER, Source::Ip([192, 0, 2, 7].into()));
        Self {
            queue,
            now: NOW,
            slow: Duration::ZERO,
            next_cid: 1,
            outcomes: Vec::new(),
            ops: Vec::new(),
            target: target.clone(),
            reactor_metrics: Arc::default(),
        }
    }

    /// An admin queue whose controller is ready.
    pub(crate) fn admin(target: &Target) -> (Self, u16) {
        Self::admin_with(target, 0, &connect_data(0xffff))
    }

    pub(crate) fn admin_with(target: &Target, kato: u32, data: &ConnectData) -> (Self, u16) {
        Self::open(target, 0, 32).into_admin(kato, data)
    }

    /// The same for a host on this port.
    pub(crate) fn admin_at(target: &Target, port: &PortSpec, data: &ConnectData) -> (Self, u16) {
        let mut host = Self::open(target, 0, 32);
        host.queue.set_port(PortAddress {
            traddr: port.traddr.clone(),
            trsvcid: port.trsvcid,
        });
        host.into_admin(0, data)
    }

    pub(crate) fn into_admin(self, kato: u32, data: &ConnectData) -> (Self, u16) {
        let mut host = self;
        let completion = host.connect(&Connect::new(0, 32, kato), data);
        assert_eq!(completion.status(), Status::SUCCESS, "{completion:?}");
        let cntlid = u16::try_from(completion.result()).unwrap();
        assert_eq!(host.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
        (host, cntlid)
    }

    /// An admin queue and I/O queue 1.
    pub(crate) fn ready(target: &Target) -> (Self, Self) {
        let (admin, cntlid) = Self::admin(target);
        (admin, Self::io(target, 1, cntlid))
    }

    /// A queue that counts in these metrics, and its controller, which is ready.
    pub(crate) fn counted(
        target: &Target,
        reactor_metrics: &ReactorMetrics,
        qid: u16,
        cntlid: u16,
    ) -> (Self, u16) {
        let mut host = Self::open(target, qid, 32);
        host.queue.count_in(reactor_metrics);
        let completion = host.connect(&Connect::new(qid, 32, 0), &connect_data(cntlid));
        assert_eq!(completion.status(), Status::SUCCESS);
        let cntlid = u16::try_from(completion.result()).unwrap();
        if qid == 0 {
            assert_eq!(host.set_cc(Cc::ENABLE.0).status(), Status::SUCCESS);
        }
        (host, cntlid)
    }

    /// The same for a host with this NQN on this port.
    pub(crate) fn ready_at(target: &Target, port: &PortSpec, host: &str) -> (Self, Self) {
        let (admin, cntlid) = Self::admin_at(target, port, &connect_data_of(host, 0xffff));
        (
            admin,
            Self::io_with(target, 1, &connect_data_of(host, cntlid)),
        )
    }

    pub(crate) fn io(target: &Target, qid: u16, cntlid: u16) -> Self {
        Self::io_with(target, qid, &connect_data(cntlid))
    }

    fn io_with(target: &Target, qid: u16, data: &ConnectData) -> Self {
        let mut host = Self::open(target, qid, 128);
        let completion = host.connect(&Connect::new(qid, 128, 0), data);
        assert_eq!(completion.status(), Status::SUCCESS, "{completion:?}");
        host
    }

    pub(crate) fn connect(&mut self, connect: &Connect, data: &ConnectData) -> Completion {
        self.write(connect.to_sqe(), data.as_bytes())
    }

    pub(crate) fn set_cc(&mut self, cc: u32) -> Completion {
        self.plain(PropertyAccess::set(Property::CC, PropertyValue::Dword(cc)))
    }

    pub(crate) fn csts(&mut self) -> u64 {
        self.plain(PropertyAccess::get(Property::CSTS, false))
            .result()
    }

    pub(crate) fn identify(&mut self, cns: Cns, nsid: u32) -> Completion {
        self.read(Identify::new(cns, nsid).to_sqe(), 4096)
    }

    /// A command without data.
    pub(crate) fn plain(&mut self, sqe: Sqe) -> Completion {
        answered(self.run(sqe, &[], &[]))
    }

    /// A command whose data are pulled by RDMA Read.
    pub(crate) fn write(&mut self, mut sqe: Sqe, data: &[u8]) -> Completion {
        sqe.dptr = keyed(data.len()).to_descriptor();
        answered(self.run(sqe, data, &[]))
    }

    /// A command whose data are in its capsule.
    pub(crate) fn write_in_capsule(&mut self, mut sqe: Sqe, data: &[u8]) -> Completion {
        let len = u32::try_from(data.len()).unwrap();
        sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
        answered(self.run(sqe, &[], data))
    }

    /// A command that returns `len` bytes.
    pub(crate) fn read(&mut self, mut sqe: Sqe, len: usize) -> Completion {
        sqe.dptr = keyed(len).to_descriptor();
        answered(self.run(sqe, &[], &[]))
    }

    /// Runs a command to its completion, acting as the engine.
    pub(crate) fn run(&mut self, mut sqe: Sqe, remote: &[u8], in_capsule: &[u8]) -> Outcome {
        let cid = self.next_cid;
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe.cid = cid.into();
        let mut capsule = sqe.to_bytes().to_vec();
        capsule.extend_from_slice(in_capsule);
        let mut request = Request::default();
        let action = self.queue.begin(self.now, &capsule, &mut request);
        self.finish(cid, request, action, remote, in_capsule)
    }

    /// Runs a command to its completion that has begun.
    pub(crate) fn end(&mut self, request: Request, action: Action) -> Completion {
        answered(self.finish(request.cid(), request, action, &[], &[]))
    }

    fn finish(
        &mut self,
        cid: u16,
        mut request: Request,
        mut action: Action,
        remote: &[u8],
        in_capsule: &[u8],
    ) -> Outcome {
        let mut buffer = Vec::new();
        let began = self.now;
        loop {
            action = match action {
                Action::Pull { remote: wanted, .. } => {
                    buffer = remote[..usize::try_from(wanted.len).unwrap()].to_vec();
                    self.queue
                        .step(self.now, &mut request, Event::Pulled(&buffer))
                }
                Action::Execute(op) => {
                    if op.kind == crate::IoKind::Read {
                        buffer = vec![0xda; usize::try_from(op.len).unwrap()];
                    }
                    // Range locks wait for exactly the commands that write there.
                    let bytes = op.bytes();
                    let its = |store| store == op.store;
                    assert_eq!(request.may_write(its, &bytes), op.changes(), "{op:?}");
                    assert!(!request.may_write(|store| !its(store), &bytes), "{op:?}");
                    assert!(!op.changes() || request.will_write(its), "{op:?}");
                    assert!(!request.will_write(|store| !its(store)), "{op:?}");
                    self.ops.push(op);
                    self.now += self.slow;
                    let outcome = if self.outcomes.is_empty() {
                        Executed::Ok
                    } else {
                        self.outcomes.remove(0)
                    };
                    let data = if buffer.is_empty() {
                        in_capsule
                    } else {
                        &buffer
                    };
                    let event = Event::Executed { outcome, data };
                    self.queue.step(self.now, &mut request, event)
                }
                Action::Produce { len } => {
                    buffer = vec![0xee; usize::try_from(len).unwrap()];
                    self.queue
                        .step(self.now, &mut request, Event::Buffer(&mut buffer))
                }
                Action::Respond(response) => {
                    assert_eq!(response.cqe.cid.get(), cid);
                    self.queue.count(&request, &response, self.now - began);
                    let pushes = response.push.is_some();
                    if let Some(remote) = response.push {
                        let len = usize::try_from(remote.len).unwrap();
                        let is_message = request.opcode() == nvmeof_wire::opcode::FABRICS;
                        assert!(len == buffer.len() || (is_message && len < buffer.len()));
                        buffer.truncate(len);
                    }
                    return Outcome::Answered(Completion {
                        cqe: response.cqe,
                        data: if pushes { buffer } else { Vec::new() },
                        invalidate: response.invalidate,
                    });
                }
                Action::AwaitSave(keeping) => {
                    assert!(keeping.outcome().is_none());
                    self.reactor_metrics.write(&self.target);
                    let kept = keeping.outcome().unwrap().is_ok();
                    self.queue
                        .step(self.now, &mut request, Event::Saved { saved: kept })
                }
                Action::Compute(work) => {
                    let result = work.run(&mut Numbers(u64::from(cid)));
                    self.queue
                        .step(self.now, &mut request, Event::Computed(result))
                }
                Action::PullBehind { .. } | Action::Fuse => {
                    panic!("half of a fused operation")
                }
                Action::Hold => return Outcome::Held,
                Action::Close(cause) => return Outcome::Closed(cause),
            };
        }
    }

    /// The cause for which the queue is to be closed.
    pub(crate) fn close_cause(&mut self) -> Option<crate::CloseCause> {
        match self.queue.poll(self.now) {
            Some(Order::Close(cause)) => Some(cause),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }
}

fn answered(outcome: Outcome) -> Completion {
    match outcome {
        Outcome::Answered(completion) => completion,
        other => panic!("expected an answer, got {other:?}"),
    }
}
