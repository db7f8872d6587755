//! The async interface with a minimal target, over loopback TCP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::fake::{BLOCK, BLOCKS, Fake, Manners, SUBNQN};
use nvmeof_initiator::blocking::{self, BlockingAdmin};
use nvmeof_initiator::polled::{IoConfig, IoQueue};
use nvmeof_initiator::{
    Address, Buf, ConnectOptions, Controller, Error, Failed, Host, HostConfig, Identity, LostCause,
    Nqn, QueueShape, Range, Status, Transport, UsageError, WriteOptions, ZeroOptions,
};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};

type Change = Box<dyn FnOnce(&mut Fake<Iwarp>) + Send>;

/// A target on a thread of its own, whose behaviour can be changed.
pub(crate) struct Target {
    pub(crate) addr: Address,
    changes: Option<mpsc::Sender<Change>>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    pub(crate) fn start() -> Self {
        let provider = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
        let (mut fake, addr) = Fake::listen(provider, "127.0.0.1:0".parse().unwrap());
        let (changes, receiver) = mpsc::channel::<Change>();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            loop {
                match receiver.try_recv() {
                    Ok(change) => change(&mut fake),
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
                if !fake.poll(start.elapsed()) {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Self {
            addr,
            changes: Some(changes),
            thread: Some(thread),
        }
    }

    /// Changes the target and waits until that is done.
    pub(crate) fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Fake<Iwarp>) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = mpsc::channel();
        let change: Change = Box::new(move |fake| sender.send(change(fake)).unwrap());
        self.changes.as_ref().unwrap().send(change).unwrap();
        receiver.recv().unwrap()
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(self.addr, Nqn::new(SUBNQN).unwrap())
    }

    async fn connect(&self) -> Controller {
        host().connect(self.options()).await.unwrap()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.changes.take());
        let _ = self.thread.take().unwrap().join();
    }
}

pub(crate) fn identity() -> Identity {
    Identity::of_name(Nqn::new("nqn.2026-11.org.example:host").unwrap())
}

pub(crate) fn host() -> Host {
    Host::new(HostConfig::new(identity())).unwrap()
}

fn lost(error: &Error) -> &LostCause {
    match error {
        Error::Lost(lost) => &lost.cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_operations_of_a_namespace() {
    let target = Target::start();
    let controller = target.connect().await;
    assert_eq!(controller.namespaces().await.unwrap(), [1]);
    let namespace = controller.namespace(1).await.unwrap();
    assert_eq!(
        (namespace.blocks(), namespace.block_size()),
        (BLOCKS as u64, 512)
    );

    let mut buf = controller.alloc(1 << 20).unwrap();
    for (n, byte) in buf.iter_mut().enumerate() {
        *byte = u8::try_from(n % 253).unwrap();
    }
    let expected = buf.to_vec();
    let options = WriteOptions { fua: true };
    let buf = namespace.write(8, buf, options).await.unwrap();
    namespace.flush().await.unwrap();
    let mut buf = namespace.compare(8, buf).await.unwrap();
    buf.fill(0);
    let buf = namespace.read(8, buf).await.unwrap();
    assert!(*buf == *expected);

    let failed = namespace.compare(9, buf).await.unwrap_err();
    assert!(failed.buf.is_some());
    let Error::Command(error) = failed.into() else {
        panic!("a difference is the controller's answer");
    };
    assert!(error.status.is(Status::COMPARE_FAILURE));

    namespace
        .write_zeroes(8, 1000, ZeroOptions::default())
        .await
        .unwrap();
    let ranges = [Range { slba: 0, count: 8 }; 300];
    namespace.deallocate(&ranges).await.unwrap();
    let disk = target.change(|fake| fake.disk.clone());
    assert!(disk[8 * BLOCK..1008 * BLOCK].iter().all(|byte| *byte == 0));
    assert_eq!(
        disk[1008 * BLOCK..][..BLOCK],
        expected[1000 * BLOCK..][..BLOCK]
    );
    controller.disconnect().await;
    assert!(target.change(|fake| fake.shut_down));
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_reads_all_entries() {
    let target = Target::start();
    let discovery = host().discover(target.addr).await.unwrap();
    assert_eq!((discovery.generation, discovery.entries.len()), (4, 5));
    assert_eq!(discovery.entries[4].portid.get(), 4);
}

#[tokio::test]
async fn many_tasks_share_several_queues() {
    let target = Target::start();
    let mut options = target.options();
    options.io_queues = 3;
    options.queue_size = 8;
    let controller = host().connect(options).await.unwrap();
    let namespace = controller.namespace(1).await.unwrap();
    // More calls than entries in the queues.
    let tasks: Vec<_> = (0..200u64)
        .map(|n| {
            let namespace = namespace.clone();
            tokio::spawn(async move {
                let mut buf = namespace.controller().alloc(4096).unwrap();
                buf.fill(u8::try_from(n).unwrap());
                let options = WriteOptions::default();
                let buf = namespace.write(n * 8, buf, options).await.unwrap();
                let buf = namespace.read(n * 8, buf).await.unwrap();
                assert!(buf.iter().all(|byte| u64::from(*byte) == n));
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    controller.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_call_returns_the_buffer() {
    let target = Target::start();
    let controller = target.connect().await;
    let namespace = controller.namespace(1).await.unwrap();
    let usage = |result: Result<Buf, Failed>| match result {
        Err(Failed {
            error: Error::Usage(error),
            buf: Some(buf),
        }) => (error, buf),
        other => panic!("{other:?}"),
    };
    let buf = controller.alloc(100).unwrap();
    let (error, mut buf) = usage(namespace.read(0, buf).await);
    assert!(matches!(*error, UsageError::NotBlocks { len: 100, .. }));
    buf.set_len(1024).unwrap();
    let (error, buf) = usage(namespace.read(BLOCKS as u64 - 1, buf).await);
    assert!(matches!(*error, UsageError::OutOfRange { count: 2, .. }));
    drop(buf);
    let foreign = host().buffer(512).unwrap();
    let (error, _foreign) = usage(namespace.read(0, foreign).await);
    assert!(matches!(*error, UsageError::ForeignBuffer));
    let Err(error) = controller.namespace(2).await else {
        panic!("there is no namespace 2");
    };
    assert!(error.to_string().contains("it has 1"), "{error}");
    controller.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_future_returns_its_buffer_later() {
    let target = Target::start();
    let host = host();
    let controller = host.connect(target.options()).await.unwrap();
    let namespace = controller.namespace(1).await.unwrap();
    target.change(|fake| fake.manners.silent = true);
    let before = host.buffers().available();
    let buf = controller.alloc(4096).unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(50), namespace.read(0, buf)).await;
    assert!(waited.is_err());
    assert_eq!(host.buffers().available(), before - 1, "still lent");
    controller.disconnect().await;
    assert_eq!(host.buffers().available(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_fails_calls_after_the_time_out() {
    let target = Target::start();
    let mut options = target.options();
    options.command_timeout = Duration::from_millis(500);
    // A busy machine may need longer to complete a command.
    let begin = Instant::now();
    let (controller, namespace) = loop {
        if let Ok(controller) = host().connect(options.clone()).await
            && let Ok(namespace) = controller.namespace(1).await
        {
            break (controller, namespace);
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    };
    target.change(|fake| fake.manners.silent = true);
    let buf = controller.alloc(8192).unwrap();
    let options = WriteOptions::default();
    let failed = namespace.write(0, buf, options).await.unwrap_err();
    let buf = failed.buf.unwrap();
    assert!(matches!(
        lost(&failed.error),
        LostCause::Timeout { what: "Write" }
    ));
    let failed = namespace.read(0, buf).await.unwrap_err();
    assert!(
        matches!(lost(&failed.error), LostCause::Timeout { .. }),
        "the reason stays"
    );
    controller.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keep_alive_time_out_of_stalled_target_fails_all_calls() {
    let target = Target::start();
    let mut options = target.options();
    options.io_queues = 2;
    options.keep_alive = Duration::from_secs(1);
    let controller = host().connect(options).await.unwrap();
    let namespace = controller.namespace(1).await.unwrap();
    // Until all calls have failed, before the time-out of a command.
    let (resume, stalled) = mpsc::channel::<()>();
    let stall: Change = Box::new(move |_| {
        let _ = stalled.recv();
    });
    target.changes.as_ref().unwrap().send(stall).unwrap();
    let calls = (0..4).map(|_| {
        let (namespace, buf) = (namespace.clone(), controller.alloc(4096).unwrap());
        tokio::spawn(async move { namespace.read(0, buf).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let Failed { error, buf } = call.await.unwrap().unwrap_err();
        assert!(
            matches!(lost(&error), LostCause::KeepAlive { .. }),
            "{error:?}"
        );
        assert!(
            error
                .to_string()
                .contains("did not complete Keep Alive within 1 s")
        );
        assert!(buf.is_some());
    }
    drop((resume, controller));
}

#[test]
fn calls_end_with_the_runtime_that_connected() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    let target = Target::start();
    let (first, second) = (runtime(), runtime());
    let controller = first.block_on(target.connect());
    let namespace = first.block_on(controller.namespace(1)).unwrap();
    target.change(|fake| fake.manners.silent = true);
    let before = target.change(|fake| fake.served.len());
    let call = || {
        let (namespace, buf) = (namespace.clone(), controller.alloc(4096).unwrap());
        let call = async move { namespace.read(0, buf).await };
        second.spawn(async { tokio::time::timeout(Duration::from_secs(10), call).await })
    };
    let outstanding = call();
    while target.change(|fake| fake.served.len()) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(first);
    for call in [outstanding, call()] {
        let ended = second.block_on(call).unwrap().expect("it ends");
        let Failed { error, buf } = ended.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("the runtime that connected it has ended")
        );
        assert!(buf.is_some());
    }
    let error = second.block_on(controller.namespaces()).unwrap_err();
    assert!(matches!(lost(&error), LostCause::RuntimeEnded), "{error:?}");
    second.block_on(controller.disconnect());
}

#[tokio::test(flavor = "multi_thread")]
async fn crash_of_target_fails_all_calls() {
    let target = Target::start();
    let mut options = target.options();
    options.io_queues = 2;
    // More calls than entries in two queues.
    let calls = 300;
    let config = HostConfig::new(identity()).with_buffers_for(calls, 4096);
    let host = Host::new(config).unwrap();
    let controller = host.connect(options).await.unwrap();
    let namespace = controller.namespace(1).await.unwrap();
    target.change(|fake| fake.manners.silent = true);
    let tasks: Vec<_> = (0..calls)
        .map(|_| {
            let namespace = namespace.clone();
            tokio::spawn(async move {
                let buf = namespace.controller().alloc(4096).unwrap();
                namespace.read(0, buf).await
            })
        })
        .collect();
    while target.change(|fake| fake.served.len()) < 250 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(target);
    for task in tasks {
        let Failed { error, buf } = task.await.unwrap().unwrap_err();
        assert!(matches!(lost(&error), LostCause::Network(_)), "{error:?}");
        assert!(buf.is_some());
    }
    assert!(controller.namespaces().await.is_err());
    assert!(controller.error().is_some());
    controller.disconnect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_controller_is_shut_down() {
    let target = Target::start();
    drop(target.connect().await);
    while target.change(|fake| fake.connections()) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(target.change(|fake| fake.shut_down));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_io_queue_ends_the_connection() {
    let target = Target::start();
    target.change(|fake| {
        fake.manners = Manners {
            reject: Some((1, nvmeof_wire::cm::RejectStatus::NO_RESOURCES)),
            ..Manners::default()
        };
    });
    let error = host().connect(target.options()).await.unwrap_err();
    assert!(error.to_string().contains("rejected queue 1"), "{error}");
}

#[tokio::test]
async fn refused_connection_names_the_address() {
    let gone = Target::start().addr;
    let options = ConnectOptions::new(gone, Nqn::new(SUBNQN).unwrap());
    let error = host().connect(options).await.unwrap_err();
    assert!(error.to_string().contains("nothing listens"), "{error}");
}

#[test]
fn caller_without_a_runtime_blocks() {
    let target = Target::start();
    let (options, start) = (target.options(), Instant::now());
    let provider = || Transport::Iwarp.provider(target.addr).unwrap();
    let config = options.admin_config(&identity());
    let names = config.setup.names.clone();
    let mut admin = BlockingAdmin::connect(provider(), target.addr, config, start).unwrap();
    let geometry = admin.namespace(1).unwrap();
    assert_eq!((geometry.nsid, geometry.blocks), (1, BLOCKS as u64));
    assert_eq!(geometry.block_size() as usize, BLOCK);
    let config = IoConfig {
        names,
        queue: QueueShape {
            qid: 1,
            size: 32,
            flow_control: true,
        },
        command_timeout: options.command_timeout,
        connect_timeout: options.connect_timeout,
        trusts_target: false,
    };
    let now = start.elapsed();
    let mut io = IoQueue::connect(provider(), target.addr, admin.info(), config, now).unwrap();
    blocking::ready(&mut io, start).unwrap();
    assert!(io.is_ready());
    blocking::close(&mut io, start);
    assert!(io.is_closed());
    assert!(blocking::ready(&mut io, start).is_err(), "closed for good");
    assert!(admin.error().is_none() && admin.next_deadline().is_some());
    admin.shutdown();

    let unreachable = "127.0.0.1:1".parse().unwrap();
    let config = options.admin_config(&identity());
    let error = BlockingAdmin::connect(provider(), unreachable, config, start).unwrap_err();
    assert!(matches!(error, Error::Lost(_)), "{error}");
}
