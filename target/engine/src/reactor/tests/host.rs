//! A host with just enough of NVMe over RDMA for tests.

use std::collections::HashMap;
use std::time::Duration;

use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, PrivateData, Provider, QpConfig, QpId, RemoteKey,
    RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_sim::Sim;
use nvmeof_wire::cm::Request as CmRequest;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::nvm::Io;
use nvmeof_wire::opcode::io;
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Nqn, Sgl, Sqe};
use zerocopy::IntoBytes;

use super::{Bench, NQN};

/// One host: any number of queue pairs.
pub(in super::super) struct Host {
    pub(in super::super) provider: Sim,
    /// Its Host Identifier.
    pub(in super::super) id: [u8; 16],
    /// The number in its name, if it differs from the first byte of its identifier.
    pub(in super::super) name: Option<u8>,
    target: Address,
    pool: Pool,
    long: Pool,
    next_cid: u16,
    pub(in super::super) established: Vec<QpId>,
    pub(in super::super) rejected: Vec<(QpId, PrivateData)>,
    pub(in super::super) closed: Vec<(QpId, CloseReason)>,
    pub(in super::super) replies: HashMap<(QpId, u16), Cqe>,
    exposed: HashMap<(QpId, u16), RemoteKey>,
    /// Receives of each queue pair: entries of its longest queue.
    pub(in super::super) depth: u16,
    /// RDMA Reads that it serves at once.
    pub(in super::super) reads_in: u32,
    pub(in super::super) wake_at: Option<Duration>,
}

/// A command that was sent.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Sent {
    pub(in super::super) qp: QpId,
    pub(in super::super) cid: u16,
}

fn pool(len: usize, count: usize) -> Pool {
    let layout = PoolLayout {
        count,
        stride: len,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
}

impl Host {
    pub(in super::super) fn new(mut provider: Sim, target: Address) -> Self {
        let (pool, long) = (pool(8192, 4096), pool(256 << 10, 16));
        provider.register(pool.region()).unwrap();
        provider.register(long.region()).unwrap();
        Self {
            provider,
            id: [7; 16],
            name: None,
            target,
            pool,
            long,
            next_cid: 0,
            established: Vec::new(),
            rejected: Vec::new(),
            closed: Vec::new(),
            replies: HashMap::new(),
            exposed: HashMap::new(),
            depth: 128,
            reads_in: 32,
            wake_at: None,
        }
    }

    pub(in super::super) fn next_deadline(&self) -> Option<Duration> {
        self.provider
            .next_deadline()
            .into_iter()
            .chain(self.wake_at)
            .min()
    }

    pub(in super::super) fn poll_once(&mut self, now: Duration) -> bool {
        let mut events = Vec::new();
        let busy = self.provider.poll(now, &mut events);
        for event in events {
            match event {
                Event::Established { qp, .. } => self.established.push(qp),
                Event::Rejected { qp, private_data } => self.rejected.push((qp, private_data)),
                Event::Closed { qp, reason } => self.closed.push((qp, reason)),
                Event::Received(received) if received.outcome.is_success() => {
                    let cqe = Cqe::from_capsule(&received.buf[..received.len]).unwrap();
                    let key = (received.qp, cqe.cid.get());
                    let twice = self.replies.insert(key, cqe);
                    assert!(twice.is_none(), "{key:?} was answered twice");
                    let _ = self.provider.post_recv(received.qp, Tag(0), received.buf);
                }
                _ => {}
            }
        }
        self.provider.submit(now);
        busy
    }

    pub(in super::super) fn open(&mut self, now: Duration, request: &CmRequest) -> QpId {
        self.open_raw(now, request.as_bytes())
    }

    pub(in super::super) fn open_raw(&mut self, now: Duration, private_data: &[u8]) -> QpId {
        let config = QpConfig {
            recvs: self.depth.into(),
            sends: u32::from(self.depth) * 2,
            reads_out: 1,
            reads_in: self.reads_in,
            exposes: (self.depth / 2).into(),
            trusts_peer: false,
        };
        let private_data = PrivateData::new(private_data).unwrap();
        let qp = self
            .provider
            .connect(self.target, &config, &private_data, now)
            .unwrap();
        for _ in 0..self.depth {
            let mut buf = self.pool.take().unwrap();
            buf.set_len(64).unwrap();
            self.provider.post_recv(qp, Tag(0), buf).unwrap();
        }
        qp
    }

    /// Sends a command, followed by in-capsule data.
    pub(in super::super) fn send(&mut self, qp: QpId, mut sqe: Sqe, in_capsule: &[u8]) -> Sent {
        self.next_cid += 1;
        let cid = self.next_cid;
        sqe.cid = cid.into();
        let body = (!in_capsule.is_empty()).then(|| {
            let mut buf = self.pool.take().unwrap();
            buf.set_len(in_capsule.len()).unwrap();
            buf.copy_from_slice(in_capsule);
            buf
        });
        let work = Work::Send {
            head: Inline::new(&sqe.to_bytes()).unwrap(),
            body,
            invalidate: None,
            solicited: false,
        };
        self.provider.post(qp, Tag(0), work).unwrap();
        Sent { qp, cid }
    }

    /// Registers memory of the host with `data` in it.
    pub(in super::super) fn expose(&mut self, qp: QpId, data: &[u8]) -> RemoteSlice {
        let mut buf = self.pool.take().unwrap();
        buf.set_len(data.len()).unwrap();
        buf.copy_from_slice(data);
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        self.provider.expose(qp, buf, rights).unwrap()
    }

    /// Sends a command whose data are in memory of the host, initially `data`.
    pub(in super::super) fn send_with(&mut self, qp: QpId, mut sqe: Sqe, data: &[u8]) -> Sent {
        let pool = if data.len() > 8192 {
            &self.long
        } else {
            &self.pool
        };
        let mut buf = pool.take().unwrap();
        buf.set_len(data.len()).unwrap();
        buf.copy_from_slice(data);
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE;
        let slice = self.provider.expose(qp, buf, rights).unwrap();
        let sgl = Sgl::Keyed {
            addr: slice.addr,
            len: slice.len,
            key: slice.key.0,
            invalidate: true,
        };
        sqe.dptr = sgl.to_descriptor();
        let sent = self.send(qp, sqe, &[]);
        self.exposed.insert((sent.qp, sent.cid), slice.key);
        sent
    }

    /// The response to a command, and the present content of its memory.
    pub(in super::super) fn take(&mut self, sent: Sent) -> Option<(Cqe, Vec<u8>)> {
        let key = (sent.qp, sent.cid);
        let cqe = self.replies.remove(&key)?;
        let exposed = self.exposed.remove(&key);
        let data = exposed.map(|key| self.provider.withdraw(key).unwrap().unwrap().to_vec());
        Some((cqe, data.unwrap_or_default()))
    }
}

/// Runs one command to completion.
pub(in super::super) fn run(bench: &mut Bench, host: &mut Host, sent: Sent) -> (Cqe, Vec<u8>) {
    let mut reply = None;
    bench.until(&mut [host], |_, hosts| {
        reply = hosts[0].take(sent);
        reply.is_some()
    });
    reply.unwrap()
}

pub(in super::super) fn establish(bench: &mut Bench, host: &mut Host, request: &CmRequest) -> QpId {
    let qp = host.open(bench.net.now(), request);
    bench.until(&mut [host], |_, hosts| hosts[0].established.contains(&qp));
    qp
}

pub(in super::super) fn connect(
    bench: &mut Bench,
    host: &mut Host,
    connect: &Connect,
    cntlid: u16,
) -> (QpId, u16) {
    let entries = connect.entries().unwrap();
    let qp = establish(bench, host, &CmRequest::new(connect.qid.get(), entries));
    let cqe = try_connect(bench, host, qp, connect, cntlid);
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    (qp, u16::try_from(cqe.dw0() & 0xffff).unwrap())
}

/// The response to a Connect.
pub(in super::super) fn try_connect(
    bench: &mut Bench,
    host: &mut Host,
    qp: QpId,
    connect: &Connect,
    cntlid: u16,
) -> Cqe {
    let name = |text: &str| Nqn::new(text).unwrap();
    let number = host.name.unwrap_or(host.id[0]);
    let hostnqn = name(&format!("nqn.2026-11.org.example:host{number}"));
    let data = ConnectData::new(host.id, cntlid, &name(NQN), &hostnqn);
    let sent = host.send_with(qp, connect.to_sqe(), data.as_bytes());
    run(bench, host, sent).0
}

/// A controller that is enabled: its admin queue and its identifier.
pub(in super::super) fn admin(bench: &mut Bench, host: &mut Host, kato: u32) -> (QpId, u16) {
    let (qp, cntlid) = connect(bench, host, &Connect::new(0, 32, kato), 0xffff);
    enable(bench, host, qp);
    (qp, cntlid)
}

/// Enables the controller of that admin queue.
pub(in super::super) fn enable(bench: &mut Bench, host: &mut Host, qp: QpId) {
    let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
    let sent = host.send(qp, enable, &[]);
    let (cqe, _) = run(bench, host, sent);
    assert!(cqe.status().is_success());
}

/// A controller and I/O queue 1.
pub(in super::super) fn ready(bench: &mut Bench, host: &mut Host) -> (QpId, QpId) {
    let (admin, cntlid) = admin(bench, host, 0);
    let (io, _) = connect(bench, host, &Connect::new(1, 128, 0), cntlid);
    (admin, io)
}

/// A controller and I/O queue 1 of that many entries.
pub(in super::super) fn ready_with(
    bench: &mut Bench,
    host: &mut Host,
    entries: u16,
) -> (QpId, QpId) {
    let (first, cntlid) = admin(bench, host, 0);
    (
        first,
        connect(bench, host, &Connect::new(1, entries, 0), cntlid).0,
    )
}

/// Makes a host that is not alone move data of every length: until then it has one buffer
/// of each kind for transfers.
pub(in super::super) fn show(bench: &mut Bench, host: &mut Host, qp: QpId) {
    for blocks in [8, 512].repeat(6) {
        let data = vec![0; blocks as usize * 512];
        let sent = host.send_with(qp, Io::new(1, 0, blocks).to_sqe(io::READ), &data);
        assert!(run(bench, host, sent).0.status().is_success());
    }
}
