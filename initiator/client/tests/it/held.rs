//! A target on the same machine that keeps a buffer in use: the calls of a lost queue end
//! nevertheless, in virtual time.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::fake::{Fake, SUBNQN};
use nvmeof_initiator::polled::{AdminQueue, Done, IoConfig, IoQueue};
use nvmeof_initiator::{
    Address, Blocks, ConnectOptions, Identity, Nqn, Operation, Pages, Pool, PoolLayout, QueueShape,
};
use nvmeof_memory::{Buf, Region};
use nvmeof_rdma::{
    Event, ExposeError, Provider, QpId, Refused, RegionExposure, RemoteKey, RemoteSlice, Rights,
};
use nvmeof_rdma_shm::{Shm, ShmConfig};

const COMMAND_TIMEOUT: Duration = Duration::from_secs(3);
/// A step of time.
const STEP: Duration = Duration::from_millis(20);

/// A target, a host with one I/O queue, and their time.
pub(crate) struct Scene {
    pub(crate) target: Fake<Shm>,
    admin: AdminQueue,
    pub(crate) io: IoQueue,
    pub(crate) pool: Pool,
    pub(crate) now: Duration,
    pub(crate) done: Vec<Done>,
    /// Whether the last poll of the I/O queue made progress.
    progress: bool,
    /// The folder of their sockets.
    _folder: tempfile::TempDir,
}

/// A provider that exposes whole regions. It never reports that a queue pair is closed.
struct Standing {
    inner: Shm,
}

impl Provider for Standing {
    nvmeof_rdma_layers::forward!(inner: limits name register listen unlisten connect set_owner
        local_addr peer_may_invalidate peer_works_in_place map_remote prepare accept reject
        post_recv share_receives post_shared_recv post withdraw disconnect abort progress submit
        wait_fd next_deadline rest);

    fn expose(
        &mut self,
        qp: QpId,
        buf: Buf,
        rights: Rights,
    ) -> Result<RemoteSlice, Refused<Buf, ExposeError>> {
        self.inner.expose(qp, buf, rights)
    }

    fn expose_region(
        &mut self,
        _qp: QpId,
        region: &Region,
    ) -> Result<Option<RegionExposure>, std::io::Error> {
        self.inner.register(region)?;
        // No target gets that far.
        let key = RemoteKey(u32::MAX);
        Ok(Some(RegionExposure { key, addr: 0 }))
    }

    fn poll(&mut self, now: Duration, events: &mut Vec<Event>) -> bool {
        let progress = self.inner.poll(now, events);
        events.retain(|event| !matches!(event, Event::Closed { .. }));
        progress
    }
}

impl Scene {
    fn new() -> Self {
        Self::with(false, |shm| Box::new(shm))
    }

    /// The same with an I/O queue over `provider`.
    pub(crate) fn with(
        trusts_target: bool,
        provider: impl FnOnce(Shm) -> Box<dyn Provider>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shm = || {
            Shm::new(ShmConfig {
                folder: folder.path().to_owned(),
                spin: Duration::ZERO,
                ..ShmConfig::default()
            })
            .unwrap()
        };
        let addr = Address::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 4420)));
        let (mut target, addr) = Fake::listen(shm(), addr);
        let options = ConnectOptions::new(addr, Nqn::new(SUBNQN).unwrap());
        let identity = Identity::of_name(Nqn::new("nqn.2026-11.org.example:host").unwrap());
        let config = options.admin_config(&identity);
        let names = config.setup.names.clone();
        let (mut now, mut done) = (Duration::ZERO, Vec::new());
        let mut admin = AdminQueue::connect(Box::new(shm()), addr, config, now).unwrap();
        while admin.info().is_none() {
            assert!(!admin.is_closed(), "{:?}", admin.error());
            now += STEP;
            admin.poll(now, &mut done);
            target.poll(now);
        }
        let config = IoConfig {
            names,
            queue: QueueShape {
                qid: 1,
                size: 8,
                flow_control: true,
            },
            command_timeout: COMMAND_TIMEOUT,
            connect_timeout: Duration::from_secs(10),
            trusts_target,
        };
        let layout = PoolLayout {
            count: 4,
            stride: 8192,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Shareable).unwrap();
        let info = Arc::clone(admin.info().unwrap());
        let mut io = IoQueue::connect(provider(shm()), addr, &info, config, now).unwrap();
        io.register(pool.region()).unwrap();
        let mut scene = Self {
            target,
            admin,
            io,
            pool,
            now,
            done,
            progress: false,
            _folder: folder,
        };
        while !scene.io.is_ready() {
            assert!(!scene.io.is_closed(), "{:?}", scene.io.error());
            scene.poll_once();
        }
        // The target maps the host's memory meanwhile.
        for _ in 0..50 {
            scene.poll_once();
        }
        scene
    }

    pub(crate) fn poll_once(&mut self) {
        self.now += STEP;
        self.target.poll(self.now);
        self.admin.poll(self.now, &mut self.done);
        self.progress = self.io.poll(self.now, &mut self.done);
    }

    fn read(&mut self, user: u64) {
        let blocks = Blocks {
            operation: Operation::Read,
            nsid: 1,
            block_shift: 9,
            slba: 0,
            count: 16,
            fua: false,
        };
        let buf = self.pool.take();
        self.io.submit(blocks, buf, user, self.now).unwrap();
    }
}

#[test]
fn calls_complete_without_memory_that_the_target_keeps() {
    let mut scene = Scene::new();
    scene.target.manners.keeps = true;
    let asked = scene.now;
    scene.read(0);
    while scene.target.kept.is_empty() {
        scene.poll_once();
    }
    scene.target.manners.keeps = false;
    scene.target.manners.silent = true;
    scene.read(1);
    while !scene.io.is_closed() {
        scene.poll_once();
        let waited = scene.now - asked;
        assert!(waited < Duration::from_secs(20), "it waits for ever");
        // Memory that the target still writes to is not reused; other calls get their buffers
        // back.
        assert_eq!(scene.pool.available(), 2);
    }
    assert!(scene.now - asked >= COMMAND_TIMEOUT + Duration::from_secs(10));
    scene.done.sort_by_key(|call| call.user);
    let back: Vec<_> = scene
        .done
        .drain(..)
        .map(|call| (call.user, call.result.is_err(), call.buf.is_some()))
        .collect();
    assert_eq!(back, [(0, true, false), (1, true, true)]);
    // Late writes of the target have no effect.
    let Scene {
        mut target,
        io,
        pool,
        ..
    } = scene;
    drop(io);
    assert_eq!(pool.available(), 3);
    for buf in &mut target.kept {
        buf.fill(0xee);
    }
    let others: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert!(
        others
            .iter()
            .flat_map(|buf| buf.iter())
            .all(|byte| *byte == 0)
    );
}

/// A trusted target may access each buffer as long as the queue pair is not closed, so that a call
/// that ends before does not return its buffer.
#[test]
fn calls_end_without_memory_that_a_trusted_target_can_access() {
    let mut scene = Scene::with(true, |inner| Box::new(Standing { inner }));
    scene.target.manners.silent = true;
    let asked = scene.now;
    scene.read(0);
    while !scene.io.is_closed() {
        scene.poll_once();
        assert!(
            scene.now - asked < Duration::from_secs(20),
            "it waits for ever"
        );
        assert_eq!(scene.pool.available(), 3);
    }
    assert!(scene.now - asked >= COMMAND_TIMEOUT + Duration::from_secs(10));
    assert!(scene.progress, "the last poll ended a call");
    let call = scene.done.pop().unwrap();
    assert!(call.result.is_err() && call.buf.is_none());
    assert_eq!(scene.pool.available(), 3, "the queue pair is not closed");
    drop(scene.io);
    assert_eq!(scene.pool.available(), 4);
}

#[test]
fn calls_return_memory_that_the_target_releases_in_time() {
    let mut scene = Scene::new();
    scene.target.manners.keeps = true;
    scene.read(0);
    let asked = scene.now;
    while scene.now - asked < COMMAND_TIMEOUT + Duration::from_secs(5) {
        scene.poll_once();
    }
    assert!(scene.done.is_empty(), "the target may still write there");
    scene.target.kept.clear();
    while scene.done.is_empty() {
        scene.poll_once();
        assert!(scene.now - asked < Duration::from_secs(20));
    }
    let call = scene.done.pop().unwrap();
    assert!(call.result.is_err() && call.buf.is_some());
}
