//! Several paths to minimal targets, over loopback TCP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

mod calls;
mod checks;
mod fences;
mod reservations;

use std::time::Duration;

use crate::fake::Fake;
use crate::host::{Target, host};
use nvmeof_initiator::multipath::{
    Multipath, MultipathNamespace, MultipathOptions, PathChanges, PathEvent, ReconnectOptions,
};
use nvmeof_initiator::{ConnectOptions, Host, MachineError};
use nvmeof_rdma_iwarp::Iwarp;
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::cm::RejectStatus;

const SECOND: Duration = Duration::from_secs(1);
/// No test takes longer.
const TIMEOUT: Duration = Duration::from_secs(60);
const LEN: usize = 4096;

/// Targets of one subsystem, with controller identifiers from 1 on.
fn targets(count: u16) -> Vec<Target> {
    let start = |cntlid| {
        let target = Target::start();
        target.change(move |fake| fake.persona.cntlid = cntlid);
        target
    };
    (1..=count).map(start).collect()
}

fn paths(targets: &[Target]) -> Vec<ConnectOptions> {
    targets.iter().map(Target::options).collect()
}

/// Options with which a lost path is given up after a moment.
fn impatient() -> MultipathOptions {
    MultipathOptions {
        reconnect: ReconnectOptions {
            ctrl_loss: Some(2 * SECOND),
            ..ReconnectOptions::default()
        },
        ..MultipathOptions::default()
    }
}

/// A namespace over several paths.
struct Scene {
    host: Host,
    multipath: Multipath,
    disk: MultipathNamespace,
    events: PathChanges,
}

impl Scene {
    /// Opens the namespace over the first target.
    async fn new(targets: &[Target], options: MultipathOptions) -> Self {
        let host = host();
        let multipath = Multipath::connect(&host, &paths(targets), options)
            .await
            .unwrap();
        let mut events = multipath.changes();
        live(&multipath, &mut events, 1).await;
        let disk = multipath.namespace(1).await.unwrap();
        Self {
            host,
            multipath,
            disk,
            events,
        }
    }

    /// The same, when all paths are connected.
    async fn connected(targets: &[Target], options: MultipathOptions) -> Self {
        let mut scene = Self::new(targets, options).await;
        live(&scene.multipath, &mut scene.events, targets.len()).await;
        scene
    }

    /// The first event that `is_it` accepts.
    async fn event<T>(&mut self, is_it: impl Fn(&PathEvent) -> Option<T>) -> T {
        let wait = async {
            loop {
                let event = self.events.next().await.unwrap();
                if let Some(found) = is_it(&event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, wait).await.unwrap()
    }

    async fn read(&self, lba: u64) -> Result<(), nvmeof_initiator::Error> {
        let buf = self.host.buffer(LEN)?;
        let read = tokio::time::timeout(TIMEOUT, self.disk.read(lba, buf)).await;
        let read = read.map_err(|_| MachineError::Internal("a read did not end".to_owned()))?;
        Ok(read.map(drop)?)
    }

    /// Reads until that fails, and returns the error.
    async fn error_of_reads(&self) -> String {
        let failed = async {
            loop {
                if let Err(error) = self.read(0).await {
                    return error.to_string();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, failed).await.unwrap()
    }
}

/// Waits until the first `count` paths are connected.
async fn live(multipath: &Multipath, events: &mut PathChanges, count: usize) {
    let wait = async {
        while !multipath.paths()[..count].iter().all(|path| path.is_live) {
            assert!(events.changed().await);
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
}

/// The target refuses new connections.
fn refuse(fake: &mut Fake<Iwarp>) {
    fake.manners.reject = Some((0, RejectStatus::NO_RESOURCES));
}

/// The target loses its connections and refuses new ones.
fn lose(fake: &mut Fake<Iwarp>) {
    refuse(fake);
    fake.hang_up();
}

/// Sends an event when the host has requested one.
async fn notify(target: &Target, event: AsyncEvent) {
    while !target.change(move |fake| fake.notify(event)) {
        tokio::task::yield_now().await;
    }
}
