//! Calls of the async interface with a minimal target: several buffers, time limits, waiting for
//! buffers, events.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::future::Future;
use std::time::{Duration, Instant};

use crate::fake::{BLOCK, BLOCKS};
use crate::host::{Target, host, identity};
use nvmeof_initiator::blocking::{self, BlockingAdmin};
use nvmeof_initiator::polled::{IoConfig, IoQueue, Work};
use nvmeof_initiator::protocol::admin;
use nvmeof_initiator::wire::admin::{GetFeatures, Select, SetFeatures};
use nvmeof_initiator::wire::features::FeatureId;
use nvmeof_initiator::{
    Awaited, Buf, ClassSpec, Classes, Cns, Controller, ControllerEvent, Error, ErrorKind, Failed,
    FailedVectored, Host, HostConfig, Namespace, Operation, Pages, QueueShape, Range, Status,
    TimedOut, Transport, UsageError, WriteOptions, ZeroOptions,
};
use nvmeof_wire::aer::AsyncEvent;
use nvmeof_wire::opcode::io;

/// A time limit that passes in a test.
const SHORT: Duration = Duration::from_millis(50);
/// No wait takes longer.
const LONG: Duration = Duration::from_secs(60);
/// A write without in-capsule data.
const LEN: usize = 8192;

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.unwrap()
}

/// Waits until `is_so`, which other threads cause.
async fn until(is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(wait).await;
}

struct Scene {
    target: Target,
    host: Host,
    controller: Controller,
    disk: Namespace,
    /// Free buffers when no call is in progress.
    free: usize,
}

impl Scene {
    /// With at most `depth` commands in flight.
    async fn new(depth: u16) -> Self {
        let target = Target::start();
        let host = host();
        let mut options = target.options();
        options.queue_size = depth + 1;
        let controller = host.connect(options).await.unwrap();
        let disk = controller.namespace(1).await.unwrap();
        let free = host.buffers().available();
        Self {
            target,
            host,
            controller,
            disk,
            free,
        }
    }

    fn filled(&self, len: usize, byte: u8) -> Buf {
        let mut buf = self.host.buffer(len).unwrap();
        buf.fill(byte);
        buf
    }

    fn served(&self) -> usize {
        self.target.change(|fake| fake.served.len())
    }

    fn hold(&self) {
        self.target.change(|fake| fake.manners.holds = true);
    }

    /// Completes what the target held, and waits until all buffers are back.
    async fn release(&self) {
        self.target.change(|fake| fake.release());
        until(|| self.host.buffers().available() == self.free).await;
    }

    /// Sends an event as soon as a request is outstanding.
    async fn notify(&self, event: AsyncEvent) {
        until(|| self.target.change(move |fake| fake.notify(event))).await;
    }

    async fn end(self) {
        self.controller.disconnect().await;
        assert_eq!(self.host.buffers().available(), self.free);
    }
}

fn timed_out(error: &Error) -> TimedOut {
    match error {
        Error::TimedOut(timed_out) => **timed_out,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vectored_calls_cover_consecutive_blocks() {
    let scene = Scene::new(8).await;
    // One is longer than a command may be: MDTS is 128 KiB.
    let lens = [BLOCK, 256 << 10, 4096];
    let bufs: Vec<Buf> = (1u8..)
        .zip(lens)
        .map(|(byte, len)| scene.filled(len, byte))
        .collect();
    let options = WriteOptions { fua: true };
    let mut bufs = scene.disk.write_vectored(8, bufs, options).await.unwrap();
    assert_eq!(scene.served(), 4);
    let total: usize = lens.iter().sum();
    let disk = scene.target.change(|fake| fake.disk.clone());
    let written = &disk[8 * BLOCK..][..total];
    let expected: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
    assert!(*written == *expected);
    assert_eq!(disk[8 * BLOCK + total], 0);
    bufs.iter_mut().for_each(|buf| buf.fill(0));
    let bufs = scene.disk.read_vectored(8, bufs).await.unwrap();
    let read: Vec<u8> = bufs.iter().flat_map(|buf| buf.to_vec()).collect();
    assert!(read == expected);
    drop(bufs);
    assert!(
        scene
            .disk
            .read_vectored(0, Vec::new())
            .await
            .unwrap()
            .is_empty()
    );
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vectored_call_returns_each_result() {
    let scene = Scene::new(8).await;
    scene
        .target
        .change(|fake| fake.manners.fails_at = Some((16, Status::WRITE_FAULT)));
    let bufs = (1u8..=3).map(|byte| scene.filled(LEN, byte)).collect();
    let options = WriteOptions::default();
    let failed = scene.disk.write_vectored(0, bufs, options).await;
    let FailedVectored { error, results } = failed.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Media);
    let [Ok(first), Err(second), Ok(third)] = results.as_slice() else {
        panic!("{results:?}");
    };
    assert_eq!((first[0], third[0]), (1, 3));
    assert!(second.buf.is_some() && second.error.kind() == ErrorKind::Media);
    drop(results);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_vectored_call_sends_nothing_and_returns_all_buffers() {
    let scene = Scene::new(8).await;
    let last = BLOCKS as u64 - 1;
    for (lba, lens) in [(0, [512, 100]), (0, [512, 0]), (last, [512, 512])] {
        let bufs = lens.map(|len| scene.filled(len, 1)).into();
        let failed = scene.disk.read_vectored(lba, bufs).await.unwrap_err();
        assert!(matches!(failed.error, Error::Usage(_)), "{failed:?}");
        for (result, len) in failed.results.into_iter().zip(lens) {
            assert_eq!(result.unwrap_err().buf.unwrap().len(), len);
        }
    }
    assert_eq!(scene.served(), 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_call_keeps_its_buffer_until_the_command_ends() {
    let scene = Scene::new(8).await;
    scene.hold();
    let impatient = scene.disk.with_timeout(SHORT);
    let write = impatient.write(0, scene.filled(LEN, 1), WriteOptions::default());
    let Failed { error, buf } = soon(write).await.unwrap_err();
    let expected = TimedOut {
        limit: SHORT,
        waiting_for: Awaited::Completion("Write"),
        may_have_executed: true,
    };
    assert_eq!(timed_out(&error), expected);
    assert!(buf.is_none() && error.outcome_is_unknown());
    let Failed { error, buf } = soon(impatient.read(0, scene.filled(LEN, 0)))
        .await
        .unwrap_err();
    assert_eq!(timed_out(&error).waiting_for, Awaited::Completion("Read"));
    assert!(buf.is_none() && !error.outcome_is_unknown());
    let zeroes = impatient.write_zeroes(100, 1, ZeroOptions::default());
    let error = soon(zeroes).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.outcome_is_unknown());
    let error = soon(impatient.flush()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(scene.host.buffers().available(), scene.free - 2);
    scene.release().await;
    // The connection is not affected.
    let buf = soon(scene.disk.read(0, scene.filled(LEN, 0)))
        .await
        .unwrap();
    assert!(buf.iter().all(|byte| *byte == 1));
    drop(buf);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_waits_for_room_is_withdrawn_with_its_buffer() {
    let depth = 4;
    let scene = Scene::new(depth).await;
    scene.hold();
    let reads: Vec<_> = (0..depth)
        .map(|_| {
            let (disk, buf) = (scene.disk.clone(), scene.filled(LEN, 0));
            tokio::spawn(async move { disk.read(0, buf).await })
        })
        .collect();
    until(|| scene.served() == usize::from(depth)).await;
    let impatient = scene.disk.with_timeout(SHORT);
    let write = impatient.write(0, scene.filled(LEN, 1), WriteOptions::default());
    let Failed { error, buf } = soon(write).await.unwrap_err();
    assert_eq!(timed_out(&error).waiting_for, Awaited::Room);
    assert!(!error.outcome_is_unknown());
    assert_eq!(buf.unwrap()[0], 1);
    // The same for a call whose future is dropped.
    let write = scene
        .disk
        .write(0, scene.filled(LEN, 1), WriteOptions::default());
    assert!(tokio::time::timeout(SHORT, write).await.is_err());
    assert_eq!(scene.host.buffers().available(), scene.free - reads.len());
    scene.target.change(|fake| fake.release());
    for read in reads {
        soon(read).await.unwrap().unwrap();
    }
    scene.disk.flush().await.unwrap();
    let served = scene.target.change(|fake| fake.served.clone());
    assert!(!served.contains(&io::WRITE.0), "{served:?}");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vectored_call_at_its_time_limit_returns_what_was_not_sent() {
    let scene = Scene::new(4).await;
    scene.hold();
    let impatient = scene.disk.with_timeout(SHORT);
    let bufs = (0..6).map(|byte| scene.filled(LEN, byte)).collect();
    let write = impatient.write_vectored(0, bufs, WriteOptions::default());
    let failed = soon(write).await.unwrap_err();
    assert!(failed.error.outcome_is_unknown());
    let awaited: Vec<_> = failed
        .results
        .iter()
        .map(|result| {
            let failed = result.as_ref().unwrap_err();
            (timed_out(&failed.error).waiting_for, failed.buf.is_some())
        })
        .collect();
    let sent = (Awaited::Completion("Write"), false);
    let not_sent = (Awaited::Room, true);
    assert_eq!(awaited, [sent, sent, sent, sent, not_sent, not_sent]);
    drop(failed);
    scene.release().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn call_within_its_time_limit_succeeds() {
    let scene = Scene::new(8).await;
    let patient = scene.disk.with_timeout(LONG);
    let bufs = vec![scene.filled(LEN, 1), scene.filled(LEN, 2)];
    let bufs = patient
        .write_vectored(0, bufs, WriteOptions::default())
        .await;
    let [first, _] = <[Buf; 2]>::try_from(bufs.unwrap()).unwrap();
    let first = patient.read(16, first).await.unwrap();
    assert_eq!(first[0], 2);
    drop(first);
    // The limit is already over when the call starts.
    let none = scene.disk.with_timeout(Duration::ZERO);
    let Failed { error, buf } = none.read(0, scene.filled(LEN, 0)).await.unwrap_err();
    assert_eq!(timed_out(&error).waiting_for, Awaited::Submission);
    assert!(buf.is_some());
    drop(buf);
    let zeroes = none.write_zeroes(0, 1, ZeroOptions::default());
    let error = zeroes.await.unwrap_err();
    assert_eq!(timed_out(&error).waiting_for, Awaited::Submission);
    assert!(!error.outcome_is_unknown());
    scene.end().await;
}

#[tokio::test]
async fn tasks_wait_for_buffers_in_order() {
    let config = HostConfig::new(identity()).with_buffers_for(1, 4096);
    let host = Host::new(config).unwrap();
    let held = host.buffer(100).unwrap();
    let mut waits: Vec<_> = [1, 2].map(|len| Box::pin(host.wait_for_buffer(len))).into();
    for wait in &mut waits {
        assert!(tokio::time::timeout(Duration::ZERO, wait).await.is_err());
    }
    drop(held);
    assert!(host.buffer(1).is_err(), "it is the first task's");
    for (wait, len) in waits.into_iter().zip([1, 2]) {
        assert_eq!(soon(wait).await.unwrap().len(), len);
    }
    let error = host.wait_for_buffer(4097).await.unwrap_err();
    let Error::Usage(error) = error else {
        panic!("{error:?}");
    };
    let (len, longest) = (4097, 4096);
    assert_eq!(*error, UsageError::BufferTooLong { len, longest });
}

#[tokio::test(flavor = "multi_thread")]
async fn event_wakes_the_task_that_waits() {
    let scene = Scene::new(8).await;
    // A wait that is dropped loses no event.
    let wait = scene.controller.event();
    assert!(tokio::time::timeout(SHORT, wait).await.is_err());
    let controller = scene.controller.clone();
    let wait = tokio::spawn(async move { controller.event().await });
    scene.notify(AsyncEvent::NAMESPACE_CHANGED).await;
    let event = soon(wait).await.unwrap().unwrap();
    assert_eq!(event, ControllerEvent::NamespacesChanged(vec![1]));
    scene.notify(AsyncEvent::ANA_CHANGED).await;
    scene.notify(AsyncEvent::DISCOVERY_CHANGED).await;
    for expected in [
        ControllerEvent::AnaChanged,
        ControllerEvent::DiscoveryChanged,
    ] {
        assert_eq!(soon(scene.controller.event()).await.unwrap(), expected);
    }
    let controller = scene.controller.clone();
    let wait = tokio::spawn(async move { controller.event().await });
    scene.target.change(|fake| fake.hang_up());
    let error = soon(wait).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refresh_follows_the_size_and_refuses_another_format() {
    let scene = Scene::new(8).await;
    let mut disk = scene.disk.clone();
    assert!(!disk.refresh().await.unwrap());
    let smaller = BLOCKS as u64 / 2;
    scene
        .target
        .change(move |fake| fake.persona.blocks = smaller);
    assert!(disk.refresh().await.unwrap());
    assert_eq!(
        (disk.blocks(), scene.disk.blocks()),
        (smaller, BLOCKS as u64)
    );
    let failed = disk
        .read(smaller, scene.filled(BLOCK, 0))
        .await
        .unwrap_err();
    assert_eq!(failed.error.kind(), ErrorKind::OutOfRange);
    drop(failed);
    scene.target.change(|fake| fake.persona.block_shift = 12);
    let error = disk.refresh().await.unwrap_err();
    assert!(error.to_string().contains("open it again"), "{error}");
    assert_eq!((disk.blocks(), disk.block_size()), (smaller, 512));
    scene.end().await;
}

/// Of the other crates, only what this crate exports is used.
#[test]
fn polled_interface_has_all_commands() {
    let target = Target::start();
    let (options, start) = (target.options(), Instant::now());
    let provider = || Transport::Iwarp.provider(target.addr).unwrap();
    let config = options.admin_config(&identity());
    let names = config.setup.names.clone();
    let mut queue = BlockingAdmin::connect(provider(), target.addr, config, start).unwrap();
    let disk = queue.namespace(1).unwrap();
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
    let mut io = IoQueue::connect(provider(), target.addr, queue.info(), config, now).unwrap();
    let spec = ClassSpec { len: LEN, count: 3 };
    let buffers = Classes::new(&[spec], Pages::Normal).unwrap();
    io.register(buffers.regions().next().unwrap()).unwrap();
    blocking::ready(&mut io, start).unwrap();

    let mut make = |work: Work, buf| {
        io.submit(work, buf, 0, start.elapsed()).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            io.poll(start.elapsed(), &mut done);
        }
        done.pop().unwrap()
    };
    let run = |operation, slba| Work::from(disk.run(operation, slba, 16).unwrap());
    let mut buf = buffers.take(LEN).unwrap();
    buf.fill(7);
    let buf = make(run(Operation::Write, 0), Some(buf)).buf;
    let zeroes = Operation::WriteZeroes { deallocate: true };
    make(run(zeroes, 16), None).result.unwrap();
    make(Work::flush(1), None).result.unwrap();
    let compared = make(run(Operation::Compare, 0), buf);
    compared.result.unwrap();
    let error = make(run(Operation::Compare, 16), compared.buf)
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Different);
    let mut ranges = buffers.take(LEN).unwrap();
    let range = Range { slba: 0, count: 8 };
    assert!(Work::deallocate(1, &[], &mut ranges).is_none());
    let deallocate = Work::deallocate(1, &[range; 2], &mut ranges).unwrap();
    make(deallocate, Some(ranges)).result.unwrap();
    blocking::close(&mut io, start);

    let set = SetFeatures::new(FeatureId::TIMESTAMP, 0);
    queue.call(admin::set_feature(set, 8), &[1; 8]).unwrap();
    let get = GetFeatures {
        fid: FeatureId::TIMESTAMP,
        select: Select::Current,
        cdw11: 0,
        nsid: 0,
    };
    let (_, data) = queue.call(admin::get_feature(get, 8), &[]).unwrap();
    assert_eq!(data.len(), 8);
    let (_, page) = queue
        .call(admin::identify(Cns::CONTROLLER, 0), &[])
        .unwrap();
    assert_eq!(page.len(), 4096);
    queue.shutdown();
}
