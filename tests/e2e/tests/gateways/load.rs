//! Verified I/O over all paths: no call fails, and acknowledged writes stay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvmeof_e2e::{HOST, NQN, TIMEOUT, eventually};
use nvmeof_initiator::{
    Buf, ConnectOptions, Host, HostConfig, Identity, Multipath, MultipathNamespace,
    MultipathOptions, Namespace, Nqn, Transport, WriteOptions,
};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::fleet::{Fleet, GROUPS};

pub(crate) const LEN: usize = 4096;
/// Blocks of 512 bytes in a piece.
const BLOCKS: u64 = 8;
/// Pieces of each writer.
const PIECES: u64 = 16;
const WRITERS: u64 = 4;
/// Pause after each write. Latency matters here, and not throughput.
const PAUSE: Duration = Duration::from_millis(2);

/// A host with its runtime.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    pub(crate) host: Host,
}

/// The last acknowledged value of a piece.
pub(crate) struct Written {
    nsid: u32,
    lba: u64,
    value: u64,
}

#[derive(Default)]
struct Counters {
    is_over: AtomicBool,
    writes: AtomicU64,
    /// The longest call, by namespace.
    longest: [Mutex<Duration>; 2],
}

/// Writers to both namespaces.
pub(crate) struct Load {
    client: Client,
    multipath: Multipath,
    counters: Arc<Counters>,
    writers: Vec<JoinHandle<Vec<Written>>>,
}

/// The results.
pub(crate) struct Ended {
    pub(crate) client: Client,
    pub(crate) written: Vec<Written>,
    pub(crate) writes: u64,
    /// The longest call, by namespace.
    pub(crate) longest: [Duration; 2],
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::named(HOST)
    }

    /// Another host.
    pub(crate) fn named(nqn: &str) -> Self {
        let mut config = HostConfig::new(Identity::of_name(Nqn::new(nqn).unwrap()));
        config.transport = Transport::Iwarp;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.enable_all().worker_threads(2).build().unwrap();
        let host = Host::new(config).unwrap();
        Self { runtime, host }
    }

    /// Runs to the end, within the time limit.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let limited = async { tokio::time::timeout(TIMEOUT, future).await };
        self.runtime.block_on(limited).unwrap()
    }

    /// A namespace over one gateway only.
    pub(crate) fn pinned(&self, fleet: &Fleet, at: usize, nsid: u32) -> Namespace {
        let mut path = path(fleet, at);
        // It outlives a suspended gateway.
        path.keep_alive = TIMEOUT;
        self.wait(async {
            let controller = self.host.connect(path).await.unwrap();
            controller.namespace(nsid).await.unwrap()
        })
    }

    pub(crate) fn buffer(&self, value: u64) -> Buf {
        filled(self.host.buffer(LEN).unwrap(), value)
    }

    /// Moves all groups to each gateway, and reads everything there.
    pub(crate) fn verify(&self, fleet: &Fleet, written: &[Written]) {
        for at in [1, 0] {
            for group in GROUPS {
                fleet.move_to(at, group);
                self.verify_at(fleet, at, group, written);
            }
        }
    }

    /// Reads everything that was written to a namespace over one gateway.
    pub(crate) fn verify_at(&self, fleet: &Fleet, at: usize, nsid: u32, written: &[Written]) {
        let namespace = self.pinned(fleet, at, nsid);
        self.wait(async {
            for one in written.iter().filter(|one| one.nsid == nsid) {
                let buf = self.host.buffer(LEN).unwrap();
                let buf = namespace.read(one.lba, buf).await.unwrap();
                check(&buf, nsid, one.lba, one.value);
            }
            namespace.controller().clone().disconnect().await;
        });
    }
}

/// The path to a gateway.
pub(crate) fn path(fleet: &Fleet, at: usize) -> ConnectOptions {
    let addr = fleet.gateways[at].address.into();
    let mut path = ConnectOptions::new(addr, Nqn::new(NQN).unwrap());
    path.keep_alive = Duration::from_secs(2);
    path.connect_timeout = Duration::from_secs(2);
    path
}

pub(crate) fn filled(mut buf: Buf, value: u64) -> Buf {
    for word in buf.chunks_exact_mut(8) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    buf
}

#[track_caller]
pub(crate) fn check(buf: &[u8], nsid: u32, lba: u64, value: u64) {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let other = buf.chunks_exact(8).map(word).find(|it| *it != value);
    assert_eq!(other, None, "namespace {nsid}, block {lba}: not {value}");
}

impl Load {
    /// Starts the writers, and waits until each namespace is written.
    pub(crate) fn start(fleet: &Fleet) -> Self {
        let client = Client::new();
        let counters = Arc::<Counters>::default();
        let paths = (0..fleet.gateways.len()).map(|at| path(fleet, at));
        let paths: Vec<_> = paths.collect();
        let (multipath, disks) = client.wait(async {
            let options = MultipathOptions::default();
            let multipath = Multipath::connect(&client.host, &paths, options)
                .await
                .unwrap();
            let first = multipath.namespace(1).await.unwrap();
            let second = multipath.namespace(2).await.unwrap();
            (multipath, [first, second])
        });
        let writers = disks.iter().flat_map(|disk| {
            let start = |own| {
                let (host, disk) = (client.host.clone(), disk.clone());
                let counters = Arc::clone(&counters);
                client.runtime.spawn(write(host, disk, own, counters))
            };
            (0..WRITERS).map(start)
        });
        let writers = writers.collect();
        let load = Self {
            client,
            multipath,
            counters,
            writers,
        };
        load.wait_for_writes(100);
        load
    }

    /// Waits for more writes. Panics if a writer has failed.
    pub(crate) fn wait_for_writes(&self, count: u64) {
        let writes = || self.counters.writes.load(Ordering::Relaxed);
        let until = writes() + count;
        let start = Instant::now();
        while writes() < until {
            assert!(start.elapsed() < TIMEOUT, "{:?}", self.multipath.paths());
            self.assert_runs();
            std::thread::sleep(PAUSE);
        }
    }

    /// Asserts that no call has failed.
    pub(crate) fn assert_runs(&self) {
        let ended = self.writers.iter().any(JoinHandle::is_finished);
        assert!(!ended, "a call has failed: {:?}", self.multipath.paths());
    }

    /// A namespace over all paths.
    pub(crate) fn disk(&self, nsid: u32) -> MultipathNamespace {
        self.client.wait(self.multipath.namespace(nsid)).unwrap()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The longest call so far, by namespace. Starts anew.
    pub(crate) fn longest(&self) -> [Duration; 2] {
        let longest = self.counters.longest.each_ref();
        longest.map(|it| std::mem::take(&mut *it.lock().unwrap()))
    }

    /// Waits until a call of that namespace has taken so long.
    pub(crate) fn wait_for_longest(&self, at: usize, least: Duration) {
        let longest = || *self.counters.longest[at].lock().unwrap() >= least;
        let found = eventually(|| longest().then_some(()));
        assert!(found.is_some(), "{:?}", self.multipath.paths());
    }

    /// Ends the writers.
    pub(crate) fn end(self) -> Ended {
        self.wait_for_writes(100);
        self.counters.is_over.store(true, Ordering::Relaxed);
        let mut written = Vec::new();
        for writer in self.writers {
            written.extend(self.client.wait(writer).unwrap());
        }
        self.client.wait(self.multipath.disconnect());
        let longest = self.counters.longest.each_ref();
        Ended {
            writes: self.counters.writes.load(Ordering::Relaxed),
            longest: longest.map(|it| *it.lock().unwrap()),
            client: self.client,
            written,
        }
    }
}

/// Writes other values each time and reads them back, at pieces of its own.
async fn write(
    host: Host,
    disk: MultipathNamespace,
    own: u64,
    counters: Arc<Counters>,
) -> Vec<Written> {
    let nsid = disk.nsid();
    let longest = &counters.longest[nsid as usize - 1];
    let mut values = vec![0; usize::try_from(PIECES).unwrap()];
    let lba_of = |piece: u64| (own * PIECES + piece) * BLOCKS;
    for number in 1.. {
        if counters.is_over.load(Ordering::Relaxed) {
            break;
        }
        let piece = number % PIECES;
        let (lba, value) = (lba_of(piece), number << 8 | own);
        let start = Instant::now();
        let buf = filled(host.buffer(LEN).unwrap(), value);
        let written = disk.write(lba, buf, WriteOptions::default()).await;
        let buf = written.unwrap_or_else(|error| panic!("write at {lba}: {error}"));
        values[usize::try_from(piece).unwrap()] = value;
        let took = start.elapsed();
        let start = Instant::now();
        let buf = disk.read(lba, filled(buf, !value)).await;
        let buf = buf.unwrap_or_else(|error| panic!("read at {lba}: {error}"));
        check(&buf, nsid, lba, value);
        drop(buf);
        let took = took.max(start.elapsed());
        {
            let mut longest = longest.lock().unwrap();
            *longest = took.max(*longest);
        }
        counters.writes.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    let values = (0..).zip(values).filter(|(_, value)| *value != 0);
    let written = values.map(|(piece, value)| Written {
        nsid,
        lba: lba_of(piece),
        value,
    });
    written.collect()
}
