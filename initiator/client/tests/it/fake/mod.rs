//! A minimal target for tests: one controller, one namespace in memory, over any provider.
//! It is correct unless [`Manners`] has faults.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "shared test code"
)]

mod authentication;

use std::collections::HashMap;
use std::time::Duration;

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, Event, Inline, Provider, QpConfig, QpId, RemoteKey, RemoteSlice, Rights, Tag, Work,
};
use nvmeof_wire::admin::{
    Cns, CrossControllerReset, GetFeatures, GetLogPage, Identify, LogId, SetFeatures,
};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::fabrics::{Connect, ConnectResult, FcType, InvalidParameter, PropertyAccess};
use nvmeof_wire::features::FeatureId;
use nvmeof_wire::identify::{
    ControllerType, IdentifyController, IdentifyNamespace, NamespaceIdentifiers, NamespaceList,
    Oaes, Sgls,
};
use nvmeof_wire::log::ana::{AnaGroup, AnaHeader, AnaState};
use nvmeof_wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvmeof_wire::nvm::{DatasetManagement, Io};
use nvmeof_wire::opcode::{self, admin, io};
use nvmeof_wire::registers::{Cap, Cc, Csts, Property, Shutdown, Vs};
use nvmeof_wire::reservation::{
    EXTENDED_HEADER_LEN, ExtendedRegistrant, ReportHeader, ReservationType,
};
use nvmeof_wire::sqe::Fuse;
use nvmeof_wire::{Cqe, Sgl, Sqe, Status, cm};
use zerocopy::IntoBytes;

pub(crate) const BLOCK: usize = 512;
pub(crate) const BLOCKS: usize = 8192;
pub(crate) const SUBNQN: &str = "nqn.2026-11.org.example:disk";

/// Faults of the target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manners {
    /// Refuses the RDMA connection of this queue.
    pub(crate) reject: Option<(u16, cm::RejectStatus)>,
    /// Completes Connect with this status and result.
    pub(crate) connect: Option<(Status, u64)>,
    /// Completes Connect with a Keep Alive Timeout with this status and result.
    pub(crate) keep_alive: Option<(Status, u64)>,
    /// Never completes I/O commands.
    pub(crate) silent: bool,
    /// Closes all connections, once, instead of executing the I/O command with this number, from 0
    /// on.
    pub(crate) hangs_up_at: Option<usize>,
    /// Maps the memory of a read, if possible, keeps it, and does not complete the read.
    pub(crate) keeps: bool,
    /// Keeps I/O commands until [`Fake::release`].
    pub(crate) holds: bool,
    /// Completes I/O commands whose first block is this one with this status.
    pub(crate) fails_at: Option<(u64, Status)>,
    /// Completes I/O commands with this status.
    pub(crate) status: Option<Status>,
    /// Never completes Keep Alive.
    pub(crate) deaf: bool,
    /// Keeps messages of authentications until [`Fake::release`].
    pub(crate) stalls_messages: bool,
    /// Maximum I/O queues to grant.
    pub(crate) queues: Option<u16>,
    /// Finds a difference in each fused Compare and Write, and completes the second command
    /// first.
    pub(crate) differs: bool,
    /// Completes I/O commands with this command identifier.
    pub(crate) wrong_cid: Option<u16>,
    /// The ANA log page for the Get Log Page command with this number, from 0 on.
    pub(crate) ana: Option<fn(usize) -> Vec<u8>>,
    /// Completes Get Features and Set Features, except Number of Queues, with this status
    /// and result. The controller never transfers their data.
    pub(crate) features: Option<(Status, u32)>,
    /// Completes Identify of this structure and namespace with this status.
    pub(crate) identify: Option<(Cns, u32, Status)>,
    /// Requires authentication of queues that connect.
    pub(crate) authentication: Option<Requirement>,
    /// Sends DH-HMAC-CHAP_Success1 without a response of its own (RVALID is 0).
    pub(crate) omits_response: bool,
}

pub(crate) use authentication::{Requirement, key, keys};

/// What the target reports about itself.
#[derive(Clone, Debug)]
pub(crate) struct Persona {
    pub(crate) cntlid: u16,
    /// SUBNQN of Identify Controller; `None`: empty.
    pub(crate) subnqn: Option<nvmeof_wire::Nqn>,
    /// Whether it reports CIU 1 and CIRN 2, with which a sibling can reset it.
    pub(crate) has_instance: bool,
    pub(crate) uuid: [u8; 16],
    /// Its number of namespaces, all on the same disk.
    pub(crate) namespaces: u32,
    pub(crate) blocks: u64,
    pub(crate) block_shift: u8,
    pub(crate) anagrpid: u32,
    /// Its ANA groups; `None`: no ANA.
    pub(crate) groups: Option<Vec<(u32, AnaState)>>,
    /// How it completes Cross-Controller Reset.
    pub(crate) resets: Resets,
    /// CRDT1, in units of 100 ms.
    pub(crate) crdt1: u16,
}

/// How a target completes Cross-Controller Reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resets {
    /// With Invalid Command Opcode.
    Unsupported,
    /// With Invalid Field in Command, as for a controller that it does not know.
    Refused,
    /// With Immediate Reset Successful.
    Immediate,
    /// Not at all.
    Silent,
}

/// The discovery log page.
#[derive(Clone, Debug)]
pub(crate) struct DiscoveryLog {
    pub(crate) generation: u64,
    pub(crate) entries: Vec<DiscoveryEntry>,
    /// The generation changes with each command that reads the page.
    pub(crate) is_restless: bool,
    /// Whether changes are reported (OAES).
    pub(crate) notifies: bool,
    pub(crate) cntrltype: ControllerType,
    /// Commands that read the page.
    pub(crate) reads: usize,
}

impl Default for DiscoveryLog {
    fn default() -> Self {
        let entry = |port: u16| {
            let mut entry = DiscoveryEntry::zeroed();
            entry.portid = port.into();
            entry.trsvcid = nvmeof_wire::Ascii::new(&port.to_string());
            entry
        };
        Self {
            generation: 4,
            entries: (0..5).map(entry).collect(),
            is_restless: false,
            notifies: false,
            cntrltype: ControllerType::NOT_REPORTED,
            reads: 0,
        }
    }
}

impl DiscoveryLog {
    fn page(&mut self) -> Vec<u8> {
        self.reads += 1;
        self.generation += u64::from(self.is_restless);
        let header = DiscoveryHeader::new(self.generation, self.entries.len() as u64);
        let mut page = header.as_bytes().to_vec();
        for entry in &self.entries {
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }
}

impl Default for Persona {
    fn default() -> Self {
        Self {
            cntlid: 1,
            subnqn: None,
            has_instance: false,
            uuid: [0x11; 16],
            namespaces: 1,
            blocks: BLOCKS as u64,
            block_shift: 9,
            anagrpid: 0,
            groups: None,
            resets: Resets::Unsupported,
            crdt1: 0,
        }
    }
}

pub(crate) struct Fake<P> {
    pub(crate) provider: P,
    pub(crate) manners: Manners,
    pub(crate) persona: Persona,
    pub(crate) discovery: DiscoveryLog,
    /// Controllers that it was requested to reset.
    pub(crate) resets: Vec<u16>,
    /// Outstanding Asynchronous Event Requests.
    event_requests: Vec<(QpId, Sqe)>,
    pub(crate) disk: Vec<u8>,
    /// I/O commands that were served, as opcodes.
    pub(crate) served: Vec<u8>,
    /// Commands that change reservations, with their keys. They change nothing.
    pub(crate) reservations: Vec<(Sqe, Vec<u8>)>,
    /// The Reservation Report.
    pub(crate) report: Vec<u8>,
    /// Writes with in-capsule data.
    pub(crate) in_capsule: usize,
    pub(crate) mdts: u8,
    pub(crate) shut_down: bool,
    /// Get Log Page commands for the ANA log page.
    pub(crate) ana_reads: usize,
    /// Mapped memory of hosts.
    pub(crate) kept: Vec<Buf>,
    first_half: Option<Sqe>,
    /// Commands that are held, with their in-capsule data.
    held: Vec<(QpId, Sqe, Vec<u8>)>,
    /// Messages that are kept.
    stalled: Vec<(QpId, Sqe, Vec<u8>)>,
    queues: HashMap<QpId, QueueState>,
    pub(crate) authentications: authentication::Authentications,
    jobs: HashMap<u64, Job>,
    next_job: u64,
    capsules: Pool,
    data: Pool,
    cc: Cc,
    now: Duration,
}

struct QueueState {
    qid: u16,
    size: u16,
    sqhd: u16,
}

/// What follows a transfer.
enum Job {
    Connect(QpId, Sqe),
    Write(QpId, Sqe),
    Authenticate(QpId, Sqe),
    /// Nothing: a send or the write before it.
    None,
}

const DEPTH: usize = 256;

impl<P: Provider> Fake<P> {
    pub(crate) fn listen(mut provider: P, addr: Address) -> (Self, Address) {
        let pool = |count, stride| {
            let layout = PoolLayout {
                count,
                stride,
                lead: 0,
            };
            Pool::new(layout, Pages::Normal).unwrap()
        };
        let capsules = pool(DEPTH * 8, 64 + 4096);
        let data = pool(DEPTH * 8, 128 << 10);
        provider.register(capsules.region()).unwrap();
        provider.register(data.region()).unwrap();
        let (_, addr) = provider.listen(addr).unwrap();
        let fake = Self {
            provider,
            manners: Manners::default(),
            persona: Persona::default(),
            discovery: DiscoveryLog::default(),
            resets: Vec::new(),
            event_requests: Vec::new(),
            disk: vec![0; BLOCK * BLOCKS],
            served: Vec::new(),
            reservations: Vec::new(),
            report: vec![0; 64],
            in_capsule: 0,
            mdts: 5,
            shut_down: false,
            ana_reads: 0,
            kept: Vec::new(),
            first_half: None,
            held: Vec::new(),
            stalled: Vec::new(),
            queues: HashMap::new(),
            authentications: authentication::Authentications::default(),
            jobs: HashMap::new(),
            next_job: 1,
            capsules,
            data,
            cc: Cc(0),
            now: Duration::ZERO,
        };
        (fake, addr)
    }

    pub(crate) fn connections(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn poll(&mut self, now: Duration) -> bool {
        self.now = now;
        let mut events = Vec::new();
        let progress = self.provider.poll(now, &mut events);
        for event in events {
            self.handle(event);
        }
        self.provider.submit(now);
        progress
    }

    /// Sends an asynchronous event. Returns false if no request is outstanding.
    pub(crate) fn notify(&mut self, event: AsyncEvent) -> bool {
        let Some((qp, sqe)) = self.event_requests.pop() else {
            return false;
        };
        self.respond(qp, &sqe, Status::SUCCESS, event.to_dword().into());
        true
    }

    /// Executes the commands that were held, and handles the messages that were kept; holds and
    /// keeps no more.
    pub(crate) fn release(&mut self) {
        self.manners.holds = false;
        for (qp, sqe, in_capsule) in std::mem::take(&mut self.held) {
            self.execute(qp, &sqe, &in_capsule);
        }
        self.manners.stalls_messages = false;
        for (qp, sqe, message) in std::mem::take(&mut self.stalled) {
            self.authenticate(qp, &sqe, &message);
        }
        self.provider.submit(self.now);
    }

    /// Closes all connections, like a target that is killed.
    pub(crate) fn hang_up(&mut self) {
        for qp in self.queues.keys().copied().collect::<Vec<_>>() {
            self.provider.disconnect(qp);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ConnectRequest(request) => {
                let parsed = cm::Request::parse(&request.private_data).unwrap();
                let qid = parsed.qid.get();
                if let Some((refused, status)) = self.manners.reject
                    && refused == qid
                {
                    let reject = cm::Reject::new(status);
                    let private_data = nvmeof_rdma::PrivateData::new(reject.as_bytes()).unwrap();
                    self.provider.reject(request.qp, &private_data).unwrap();
                    return;
                }
                let size = parsed.hsqsize.get() + 1;
                let config = QpConfig {
                    recvs: u32::from(size),
                    sends: DEPTH as u32 * 4,
                    reads_out: 16,
                    reads_in: 0,
                    exposes: 0,
                    trusts_peer: false,
                };
                self.provider.prepare(request.qp, &config).unwrap();
                for _ in 0..size {
                    let buf = self.capsules.take().unwrap();
                    self.provider.post_recv(request.qp, Tag(0), buf).unwrap();
                }
                let accept = cm::Accept::new(size);
                let private_data = nvmeof_rdma::PrivateData::new(accept.as_bytes()).unwrap();
                self.provider.accept(request.qp, &private_data).unwrap();
                let sqhd = 0;
                self.queues
                    .insert(request.qp, QueueState { qid, size, sqhd });
            }
            Event::Received(received) if received.outcome.is_success() => {
                let capsule = received.buf[..received.len].to_vec();
                let _ = self.provider.post_recv(received.qp, Tag(0), received.buf);
                self.on_capsule(received.qp, &capsule);
            }
            Event::Completion(completion) => {
                let job = self.jobs.remove(&completion.tag.0);
                if !completion.outcome.is_success() {
                    return;
                }
                match job {
                    Some(Job::Connect(qp, sqe)) => self.connect(qp, &sqe),
                    Some(Job::Write(qp, sqe)) => {
                        let buf = completion.buf.unwrap();
                        self.finish_write(qp, &sqe, &buf);
                    }
                    Some(Job::Authenticate(qp, sqe)) => {
                        let message = completion.buf.unwrap();
                        match self.manners.stalls_messages {
                            true => self.stalled.push((qp, sqe, message.to_vec())),
                            false => self.authenticate(qp, &sqe, &message),
                        }
                    }
                    Some(Job::None) | None => {}
                }
            }
            Event::Closed { qp, .. } => {
                self.queues.remove(&qp);
                self.authentications.remove(qp);
                self.event_requests.retain(|(of, _)| *of != qp);
            }
            _ => {}
        }
    }

    fn authenticate(&mut self, qp: QpId, sqe: &Sqe, message: &[u8]) {
        let status = self.authentications.sent(qp, message, self.now);
        self.respond(qp, sqe, status, 0);
    }

    /// Messages that are kept.
    pub(crate) fn stalled(&self) -> usize {
        self.stalled.len()
    }

    fn on_capsule(&mut self, qp: QpId, capsule: &[u8]) {
        let sqe = Sqe::from_capsule(capsule).unwrap();
        assert!(sqe.uses_sgl());
        let Some(queue) = self.queues.get_mut(&qp) else {
            return;
        };
        queue.sqhd = (queue.sqhd + 1) % queue.size;
        let qid = queue.qid;
        if sqe.opcode == opcode::FABRICS {
            self.fabrics(qp, &sqe);
        } else if self.authentications.refuses(qp, qid) {
            self.respond(qp, &sqe, Status::AUTHENTICATION_REQUIRED, 0);
        } else if qid == 0 {
            self.admin(qp, &sqe);
        } else {
            self.io(qp, &sqe, &capsule[64..]);
        }
    }

    fn fabrics(&mut self, qp: QpId, sqe: &Sqe) {
        match FcType::of(sqe) {
            FcType::CONNECT => self.pull(qp, sqe, Job::Connect(qp, *sqe)),
            FcType::AUTH_SEND => self.pull(qp, sqe, Job::Authenticate(qp, *sqe)),
            FcType::AUTH_RECEIVE => {
                let mut message = self.authentications.receive(qp, self.now);
                if self.manners.omits_response && message[..2] == [1, 3] {
                    message[8] = 0;
                }
                self.push(qp, sqe, &message);
            }
            FcType::PROPERTY_GET => {
                let value = match PropertyAccess::parse(sqe).property {
                    Property::CAP => Cap::new(128, 500, Cap::CSS_NVM).0,
                    Property::VS => Vs::V2_0.0.into(),
                    Property::CSTS if self.shut_down => {
                        (Csts::RDY | Csts::SHST_COMPLETE).bits().into()
                    }
                    Property::CSTS => u64::from(self.cc.enabled()),
                    other => panic!("{other:?}"),
                };
                self.respond(qp, sqe, Status::SUCCESS, value);
            }
            FcType::PROPERTY_SET => {
                self.cc = Cc(PropertyAccess::parse(sqe).value as u32);
                self.shut_down = self.cc.shutdown() == Shutdown::Normal;
                self.respond(qp, sqe, Status::SUCCESS, 0);
            }
            other => panic!("{other:?}"),
        }
    }

    fn connect(&mut self, qp: QpId, sqe: &Sqe) {
        let connect = Connect::parse(sqe);
        assert_eq!(connect.qid.get(), self.queues[&qp].qid);
        assert_eq!(connect.sqsize.get() + 1, self.queues[&qp].size);
        let of_keep_alive = self.manners.keep_alive.filter(|_| connect.kato.get() > 0);
        let refusal = self.manners.connect.or(of_keep_alive);
        let (status, result) = refusal.unwrap_or_else(|| {
            let required = self.manners.authentication.as_ref();
            let result = ConnectResult::new(self.persona.cntlid, required.is_some());
            if let Some(requirement) = required {
                self.authentications.require(qp, requirement, self.now);
            }
            (Status::SUCCESS, result.to_result())
        });
        if status.is_success() && connect.qid.get() == 0 {
            self.shut_down = false;
        }
        self.respond(qp, sqe, status, result);
    }

    fn admin(&mut self, qp: QpId, sqe: &Sqe) {
        match sqe.opcode {
            admin::IDENTIFY => {
                let identify = Identify::parse(sqe);
                if let Some((cns, nsid, status)) = self.manners.identify
                    && (cns, nsid) == (identify.cns, identify.nsid)
                {
                    return self.respond(qp, sqe, status, 0);
                }
                let page = match identify.cns {
                    Cns::CONTROLLER => self.controller().as_bytes().to_vec(),
                    // Inactive: all zeroes.
                    Cns::NAMESPACE if identify.nsid > self.persona.namespaces => vec![0; 4096],
                    Cns::NAMESPACE => self.namespace().as_bytes().to_vec(),
                    Cns::ACTIVE_NAMESPACES => {
                        let all = 1..=self.persona.namespaces;
                        NamespaceList::after(identify.nsid, all).as_bytes().to_vec()
                    }
                    Cns::DESCRIPTORS => NamespaceIdentifiers {
                        uuid: Some(self.persona.uuid),
                        ..NamespaceIdentifiers::default()
                    }
                    .to_list()
                    .as_bytes()
                    .to_vec(),
                    _ => return self.respond(qp, sqe, Status::INVALID_FIELD, 0),
                };
                self.push(qp, sqe, &page);
            }
            admin::GET_LOG_PAGE => {
                let get = GetLogPage::parse(sqe);
                let mut page = vec![0x11; 16384];
                if get.lid == LogId::DISCOVERY {
                    page = self.discovery.page();
                }
                if get.lid == LogId::CHANGED_NAMESPACES {
                    page = vec![0; 4096];
                    page[0] = 1;
                }
                if let (LogId::ANA, Some(groups)) = (get.lid, &self.persona.groups) {
                    self.ana_reads += 1;
                    page = AnaHeader::new(1, groups.len() as u16).as_bytes().to_vec();
                    for (group, state) in groups {
                        let group = AnaGroup::new(*group, 0, 1, *state);
                        page.extend_from_slice(group.as_bytes());
                    }
                }
                if let (LogId::ANA, Some(ana)) = (get.lid, self.manners.ana) {
                    page = ana(self.ana_reads);
                    self.ana_reads += 1;
                }
                let mut piece = page.split_off(page.len().min(get.offset as usize));
                piece.resize(get.len as usize, 0);
                self.push(qp, sqe, &piece);
            }
            admin::SET_FEATURES => {
                let set = SetFeatures::parse(sqe);
                let result = match set.fid {
                    FeatureId::NUMBER_OF_QUEUES => {
                        let most = self.manners.queues.map_or(u32::MAX, |most| {
                            let most = u32::from(most) - 1;
                            most << 16 | most
                        });
                        set.cdw11.min(most).into()
                    }
                    _ => return self.feature(qp, sqe),
                };
                self.respond(qp, sqe, Status::SUCCESS, result);
            }
            admin::GET_FEATURES => match GetFeatures::parse(sqe).fid {
                FeatureId(0xc0..) => self.respond(qp, sqe, Status::INVALID_FIELD, 0),
                _ => self.feature(qp, sqe),
            },
            admin::KEEP_ALIVE if self.manners.deaf => {}
            admin::KEEP_ALIVE => self.respond(qp, sqe, Status::SUCCESS, 0),
            admin::ASYNC_EVENT_REQUEST => self.event_requests.push((qp, *sqe)),
            admin::CROSS_CONTROLLER_RESET => {
                self.resets.push(CrossControllerReset::parse(sqe).icid);
                let (status, result) = match self.persona.resets {
                    Resets::Unsupported => (Status::INVALID_OPCODE.with_dnr(), 0),
                    Resets::Refused => (Status::INVALID_FIELD.with_dnr(), 0),
                    Resets::Immediate => (Status::SUCCESS, CrossControllerReset::IMMEDIATE),
                    Resets::Silent => return,
                };
                self.respond(qp, sqe, status, result.into());
            }
            other => panic!("{other:?}"),
        }
    }

    fn feature(&mut self, qp: QpId, sqe: &Sqe) {
        let (status, result) = self.manners.features.unwrap_or((Status::SUCCESS, 0));
        self.respond(qp, sqe, status, result.into());
    }

    fn namespace(&self) -> IdentifyNamespace {
        let persona = &self.persona;
        let mut id = IdentifyNamespace::with_format(persona.blocks, persona.block_shift);
        id.anagrpid = persona.anagrpid.into();
        (id.mssrl, id.mcl, id.msrc) = (128.into(), 128.into(), 7);
        id
    }

    fn controller(&self) -> IdentifyController {
        let mut id = IdentifyController::zeroed();
        id.cntlid = self.persona.cntlid.into();
        id.crdt1 = self.persona.crdt1.into();
        if self.persona.has_instance {
            (id.ciu, id.cirn) = (1, 2.into());
        }
        if let Some(subnqn) = &self.persona.subnqn {
            id.subnqn = subnqn.to_field();
        }
        id.kas = 10.into();
        id.sgls = (Sgls::SUPPORTED | Sgls::KSDBDS | Sgls::OFFSET)
            .bits()
            .into();
        id.cntrltype = self.discovery.cntrltype;
        if self.discovery.notifies {
            id.oaes = Oaes::DLPCN.bits().into();
        }
        id.mdts = self.mdts;
        id.ioccsz = ((64 + 4096) / 16).into();
        id.iorcsz = 1.into();
        id.nn = 1.into();
        if self.manners.ana.is_some() || self.persona.groups.is_some() {
            id.cmic = 1 << 3;
            id.nanagrpid = 1024.into();
            id.anagrpmax = 2000.into();
            id.nn = 4096.into();
        }
        id
    }

    fn io(&mut self, qp: QpId, sqe: &Sqe, in_capsule: &[u8]) {
        if self.manners.hangs_up_at == Some(self.served.len()) {
            self.manners.hangs_up_at = None;
            return self.hang_up();
        }
        self.served.push(sqe.opcode.0);
        match self.manners.holds {
            true => self.held.push((qp, *sqe, in_capsule.to_vec())),
            false => self.execute(qp, sqe, in_capsule),
        }
    }

    fn execute(&mut self, qp: QpId, sqe: &Sqe, in_capsule: &[u8]) {
        if self.manners.silent {
            return;
        }
        if self.manners.keeps && sqe.opcode == io::READ {
            let (remote, _) = Self::keyed(sqe);
            let rights = Rights::REMOTE_WRITE;
            self.kept
                .extend(self.provider.map_remote(qp, remote, rights));
            return;
        }
        if let Some((slba, status)) = self.manners.fails_at
            && Io::parse(sqe).slba == slba
        {
            return self.respond(qp, sqe, status, 0);
        }
        if let Some(status) = self.manners.status {
            return self.respond(qp, sqe, status, 0);
        }
        if self.manners.differs && sqe.is_fused() {
            match sqe.fuse() {
                Fuse::First => self.first_half = Some(*sqe),
                _ => {
                    self.respond(qp, sqe, Status::ABORTED_FAILED_FUSED, 0);
                    let first = self.first_half.take().unwrap();
                    self.respond(qp, &first, Status::COMPARE_FAILURE, 0);
                }
            }
            return;
        }
        match sqe.opcode {
            io::READ => {
                let range = self.range(sqe);
                let data = self.disk[range].to_vec();
                self.push(qp, sqe, &data);
            }
            io::RESERVATION_REPORT => {
                let (remote, _) = Self::keyed(sqe);
                let mut report = self.report.clone();
                report.resize(remote.len as usize, 0);
                self.push(qp, sqe, &report);
            }
            io::WRITE
            | io::COMPARE
            | io::DATASET_MANAGEMENT
            | io::COPY
            | io::RESERVATION_REGISTER
            | io::RESERVATION_ACQUIRE
            | io::RESERVATION_RELEASE => match Sgl::parse(&sqe.dptr).unwrap() {
                Sgl::InCapsule { offset: 0, len } => {
                    assert_eq!(len as usize, in_capsule.len());
                    self.in_capsule += 1;
                    self.finish_write(qp, sqe, in_capsule);
                }
                _ => self.pull(qp, sqe, Job::Write(qp, *sqe)),
            },
            io::WRITE_ZEROES => {
                let range = self.range(sqe);
                self.disk[range].fill(0);
                self.respond(qp, sqe, Status::SUCCESS, 0);
            }
            io::FLUSH | io::VERIFY => self.respond(qp, sqe, Status::SUCCESS, 0),
            other => panic!("{other:?}"),
        }
    }

    fn finish_write(&mut self, qp: QpId, sqe: &Sqe, data: &[u8]) {
        let status = match sqe.opcode {
            io::DATASET_MANAGEMENT => {
                assert_eq!(data.len() as u32, DatasetManagement::parse(sqe).data_len());
                Status::SUCCESS
            }
            // It copies nothing.
            io::COPY => Status::SUCCESS,
            io::RESERVATION_REGISTER | io::RESERVATION_ACQUIRE | io::RESERVATION_RELEASE => {
                self.reservations.push((*sqe, data.to_vec()));
                Status::SUCCESS
            }
            io::COMPARE => match self.disk[self.range(sqe)] == *data {
                true => Status::SUCCESS,
                false => Status::COMPARE_FAILURE,
            },
            _ => {
                let range = self.range(sqe);
                self.disk[range].copy_from_slice(data);
                Status::SUCCESS
            }
        };
        self.respond(qp, sqe, status, 0);
    }

    fn range(&self, sqe: &Sqe) -> std::ops::Range<usize> {
        let io = Io::parse(sqe);
        let start = io.slba as usize * BLOCK;
        start..start + io.blocks as usize * BLOCK
    }

    fn keyed(sqe: &Sqe) -> (RemoteSlice, bool) {
        match Sgl::parse(&sqe.dptr).unwrap() {
            Sgl::Keyed {
                addr,
                len,
                key,
                invalidate,
            } => {
                let key = RemoteKey(key);
                (RemoteSlice { key, addr, len }, invalidate)
            }
            other => panic!("{other:?}"),
        }
    }

    fn tag(&mut self, job: Job) -> Tag {
        self.next_job += 1;
        self.jobs.insert(self.next_job, job);
        Tag(self.next_job)
    }

    fn buffer(&self, len: usize) -> Buf {
        let mut buf = self.data.take().unwrap();
        buf.set_len(len).unwrap();
        buf
    }

    fn pull(&mut self, qp: QpId, sqe: &Sqe, job: Job) {
        let (remote, _) = Self::keyed(sqe);
        let local = self.buffer(remote.len as usize);
        let tag = self.tag(job);
        let _ = self.provider.post(qp, tag, Work::Read { local, remote });
    }

    fn push(&mut self, qp: QpId, sqe: &Sqe, data: &[u8]) {
        let (remote, _) = Self::keyed(sqe);
        assert_eq!(remote.len as usize, data.len());
        let mut local = self.buffer(data.len());
        local.copy_from_slice(data);
        let tag = self.tag(Job::None);
        let _ = self.provider.post(qp, tag, Work::Write { local, remote });
        self.respond(qp, sqe, Status::SUCCESS, 0);
    }

    fn respond(&mut self, qp: QpId, sqe: &Sqe, status: Status, result: u64) {
        let Some(queue) = self.queues.get(&qp) else {
            return;
        };
        let cid = match self.manners.wrong_cid {
            Some(cid) if queue.qid > 0 && sqe.opcode != opcode::FABRICS => cid,
            _ => sqe.cid.get(),
        };
        // Like controllers with an error log.
        let status = match status.is_success() {
            true => status,
            false => status.with_more(),
        };
        let cqe = Cqe::new(cid, queue.sqhd, status, result);
        let invalidate = match Sgl::parse(&sqe.dptr) {
            Ok(Sgl::Keyed {
                key,
                invalidate: true,
                ..
            }) => Some(RemoteKey(key)),
            _ => None,
        };
        let work = Work::Send {
            head: Inline::new(&cqe.to_bytes()).unwrap(),
            body: None,
            invalidate,
            solicited: true,
        };
        let tag = self.tag(Job::None);
        let _ = self.provider.post(qp, tag, work);
    }
}

/// An extended Reservation Report with `registrants` hosts, of which the first one holds the
/// reservation. Their keys are 100h and following.
pub(crate) fn reservation_report(kind: ReservationType, registrants: u16) -> Vec<u8> {
    let header = ReportHeader::new(7, kind, registrants, true);
    let mut report = header.as_bytes().to_vec();
    report.resize(EXTENDED_HEADER_LEN, 0);
    for at in 0..registrants {
        let mut hostid = [1; 16];
        hostid[..2].copy_from_slice(&(at + 1).to_be_bytes());
        let entry = ExtendedRegistrant::new(hostid, 0x100 + u64::from(at), at == 0);
        report.extend_from_slice(entry.as_bytes());
    }
    report
}

/// A Connect refused because of its parameters.
pub(crate) fn refused(at: InvalidParameter) -> Option<(Status, u64)> {
    Some((Status::CONNECT_INVALID_PARAMETERS, at.to_result()))
}
