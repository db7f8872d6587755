//! `nvmeof-guards-awaited`: runs the cases of the async interface, over one path and several.
//!
//! The target is a task of the same runtime, so that one thread runs both sides in the same order
//! each time. A separate program, as `nvmeof-guards-sockets`.
#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use nvmeof_guards::{Medium, Served, Stage};
use nvmeof_initiator::multipath::{Multipath, MultipathOptions, PathPolicy};
use nvmeof_initiator::{
    Buf, ConnectOptions, Controller, Host, HostConfig, Identity, MultipathNamespace, Namespace,
    Nqn, Transport, WriteOptions,
};
use nvmeof_rdma::Address;
use tokio::runtime::Runtime;

/// Run one case under callgrind
#[derive(Debug, Parser)]
struct Arguments {
    interface: Interface,
    kind: Kind,
    /// Concurrent tasks
    depth: u64,
    /// Operations of each task
    rounds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Interface {
    /// `Namespace` with one I/O queue
    Direct,
    /// `Namespace` of two controllers with one I/O queue each, in turn
    TwoQueues,
    /// `MultipathNamespace` with one path
    OnePath,
    /// The same with two paths in turn
    TwoPaths,
    /// The same with two paths, of which it uses one
    Standby,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Read,
    Write,
}

/// A namespace through one of the interfaces.
#[derive(Clone)]
enum Disk {
    Direct(Namespace),
    Multipath(MultipathNamespace),
}

/// What keeps the paths connected.
enum Connected {
    Direct(Vec<Controller>),
    Multipath(Multipath),
}

thread_local! {
    /// Number of the next operation.
    static TURN: Cell<usize> = const { Cell::new(0) };
    /// The target. A task of the runtime must be `Send`, and a reactor is not.
    static TARGET: RefCell<Option<Served>> = const { RefCell::new(None) };
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let target = Served::on(&Medium::tcp(), &Stage::null());
    let address = target.address();
    TARGET.set(Some(target));
    runtime.spawn(async {
        loop {
            TARGET.with_borrow_mut(|target| target.as_mut().map(Served::iterate));
            yield_to_ready_tasks().await;
        }
    });
    let nqn = Nqn::new("nqn.2026-11.org.example:host0")?;
    let mut config = HostConfig::new(Identity::of_name(nqn));
    config.transport = Transport::Iwarp;
    let host = Host::new(config)?;
    let (connected, disks) = runtime.block_on(connect(&host, address, arguments.interface))?;
    TARGET.with_borrow_mut(|target| target.as_mut().map(Served::connected));
    initiator_rounds(&runtime, &host, &disks, &arguments)?;
    runtime.block_on(async {
        match connected {
            Connected::Direct(controllers) => {
                for controller in controllers {
                    controller.disconnect().await;
                }
            }
            Connected::Multipath(paths) => paths.disconnect().await,
        }
    });
    Ok(())
}

async fn connect(
    host: &Host,
    address: Address,
    interface: Interface,
) -> Outcome<(Connected, Vec<Disk>)> {
    let mut options = ConnectOptions::new(address, Nqn::new(Served::NQN)?);
    // Sleeps would depend on the speed of the machine.
    options.spin = Duration::from_secs(3600);
    options.keep_alive = Duration::from_secs(3600);
    let (count, policy) = match interface {
        Interface::Direct | Interface::TwoQueues => {
            let count = match interface {
                Interface::Direct => 1,
                _ => 2,
            };
            let (mut controllers, mut disks) = (Vec::new(), Vec::new());
            for options in vec![options; count] {
                let controller = host.connect(options).await?;
                disks.push(Disk::Direct(controller.namespace(1).await?));
                controllers.push(controller);
            }
            return Ok((Connected::Direct(controllers), disks));
        }
        Interface::OnePath => (1, PathPolicy::RoundRobin),
        Interface::TwoPaths => (2, PathPolicy::RoundRobin),
        Interface::Standby => (2, PathPolicy::Numa),
    };
    let multipath = MultipathOptions {
        policy,
        ..MultipathOptions::default()
    };
    let paths = Multipath::connect(host, &vec![options; count], multipath).await?;
    let mut changes = paths.changes();
    while !paths.paths().iter().all(|path| path.is_live) {
        changes.changed().await;
    }
    let disk = paths.namespace(1).await?;
    // The first command waits until a path has checked the namespace.
    drop(disk.read(0, host.buffer(Served::BLOCK)?).await?);
    Ok((Connected::Multipath(paths), vec![Disk::Multipath(disk)]))
}

/// Everything that the initiator does for the operations, and the runtime for both sides.
#[inline(never)]
fn initiator_rounds(
    runtime: &Runtime,
    host: &Host,
    disks: &[Disk],
    arguments: &Arguments,
) -> Outcome<()> {
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..arguments.depth {
            let buf = host.buffer(Served::BLOCK)?;
            tasks.push(tokio::spawn(work(
                disks.to_vec(),
                arguments.kind,
                arguments.rounds,
                buf,
            )));
        }
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

/// Operations one after the other, each on the next of `disks`.
async fn work(disks: Vec<Disk>, kind: Kind, rounds: u64, mut buf: Buf) -> Outcome<()> {
    let options = WriteOptions::default();
    for lba in 0..rounds {
        let turn = TURN.replace(TURN.get().wrapping_add(1));
        let Some(disk) = disks.get(turn % disks.len().max(1)) else {
            break;
        };
        buf = match (disk, kind) {
            (Disk::Direct(disk), Kind::Read) => disk.read(lba, buf).await?,
            (Disk::Direct(disk), Kind::Write) => disk.write(lba, buf, options).await?,
            (Disk::Multipath(disk), Kind::Read) => disk.read(lba, buf).await?,
            (Disk::Multipath(disk), Kind::Write) => disk.write(lba, buf, options).await?,
        };
    }
    Ok(())
}

/// Lets other tasks run. The runtime polls the kernel at intervals only.
async fn yield_to_ready_tasks() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
