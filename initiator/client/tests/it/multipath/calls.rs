//! Calls: time limits, retries, unknown outcomes, and calls that are dropped.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::*;
use crate::fake::BLOCK;
use nvmeof_initiator::multipath::Retries;
use nvmeof_initiator::{
    Awaited, Error, Failed, Range, Status, TimedOut, WriteOptions, ZeroOptions,
};

/// The time limit of calls that are meant to reach it.
const LIMIT: Duration = Duration::from_millis(300);

fn timed_out(error: &Error) -> TimedOut {
    match error {
        Error::TimedOut(timed_out) => **timed_out,
        other => panic!("{other:?}"),
    }
}

/// Waits until the target has executed or ignored `count` commands.
async fn served(target: &Target, count: usize) {
    while target.change(|fake| fake.served.len()) < count {
        tokio::task::yield_now().await;
    }
}

async fn write(scene: &Scene, limit: Option<Duration>) -> Failed {
    let disk = match limit {
        Some(limit) => scene.disk.with_timeout(limit),
        None => scene.disk.clone(),
    };
    let buf = scene.host.buffer(LEN).unwrap();
    disk.write(0, buf, WriteOptions::default())
        .await
        .unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_operations_work_over_several_paths() {
    let targets = targets(2);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let (disk, options) = (&scene.disk, WriteOptions::default());
    let mut buf = scene.host.buffer(2 * BLOCK).unwrap();
    let (old, new) = buf.split_at_mut(BLOCK);
    old.fill(0);
    new.fill(7);
    let limited = disk.with_timeout(TIMEOUT);
    for disk in [disk, &limited] {
        let data = scene.host.buffer(LEN).unwrap();
        let zero = ZeroOptions::default();
        disk.write_zeroes(0, 8192, zero).await.unwrap();
        disk.verify(0, 100).await.unwrap();
        disk.flush().await.unwrap();
        disk.deallocate(&[Range { slba: 0, count: 8 }])
            .await
            .unwrap();
        disk.copy(&[Range { slba: 0, count: 8 }], 8, options)
            .await
            .unwrap();
        let _ = disk.write(0, data, options).await.unwrap();
    }
    // Each target has its own blocks: from here on, one is used.
    targets[1].change(lose);
    while scene.multipath.paths()[1].is_live {
        tokio::task::yield_now().await;
    }
    disk.write_zeroes(0, 8192, ZeroOptions::default())
        .await
        .unwrap();
    let buf = disk.compare_and_write(64, buf, options).await.unwrap();
    let failed = disk.compare_and_write(64, buf, options).await.unwrap_err();
    let Error::Command(error) = &failed.error else {
        panic!("{failed}");
    };
    assert!(error.status.is(Status::COMPARE_FAILURE), "{failed}");
    assert!(failed.buf.is_some());
    let retries = scene.multipath.paths()[0].retries;
    assert_eq!(retries.other_status, 0, "a difference is not retried");
    let status = &scene.multipath.paths()[0];
    assert!(status.commands > 4 && status.bytes > 0, "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn call_without_a_path_ends_at_its_limit_with_its_buffer() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(lose);
    while scene.multipath.paths()[0].is_live {
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    let mut call = pin!(write(&scene, Some(LIMIT)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    // The limit counts from the submission, the time without a path from its wait for one: on a
    // busy machine they are apart.
    let parked_by = start.elapsed() + Duration::from_micros(1);
    let failed = call.await;
    assert!(failed.buf.is_some());
    let error = timed_out(&failed.error);
    assert_eq!((error.limit, error.waiting_for), (LIMIT, Awaited::Path));
    assert!(!error.may_have_executed);
    assert!(scene.multipath.parked() + parked_by >= LIMIT);
    let status = &scene.multipath.paths()[0];
    assert!(!status.reason.is_empty() && status.retries.lost == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn write_that_waits_for_its_fence_ends_at_its_limit_with_its_buffer() {
    let targets = targets(2);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    for target in &targets {
        target.change(|fake| fake.manners.silent = true);
    }
    let write = write(&scene, Some(2 * SECOND));
    let lose = async {
        while targets
            .iter()
            .all(|target| target.change(|fake| fake.served.is_empty()))
        {
            tokio::task::yield_now().await;
        }
        for target in &targets {
            target.change(|fake| {
                fake.manners.silent = false;
                if !fake.served.is_empty() {
                    lose(fake);
                }
            });
        }
    };
    let (failed, ()) = tokio::join!(write, lose);
    assert!(failed.buf.is_some());
    let error = timed_out(&failed.error);
    assert_eq!(error.waiting_for, Awaited::Fence);
    assert!(error.may_have_executed && failed.error.outcome_is_unknown());
    let waits = scene.multipath.paths().into_iter();
    assert!(waits.map(|path| path.fence_wait).sum::<Duration>() > Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn command_without_a_response_ends_at_its_limit_without_its_buffer() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(|fake| fake.manners.silent = true);
    let failed = write(&scene, Some(LIMIT)).await;
    assert!(failed.buf.is_none(), "the target may still read it");
    let error = timed_out(&failed.error);
    assert_eq!(error.limit, LIMIT);
    assert!(matches!(error.waiting_for, Awaited::Completion(_)));
    assert!(error.may_have_executed);
    // The path is still used.
    targets[0].change(|fake| fake.manners.silent = false);
    scene.read(0).await.unwrap();
    assert_eq!(scene.multipath.paths()[0].losses, 0);
    assert_eq!(scene.multipath.paths()[0].outstanding, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requested_retry_delay_ends_at_the_limit_with_the_buffer() {
    let targets = targets(1);
    targets[0].change(|fake| fake.persona.crdt1 = 600);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let busy = Status::NAMESPACE_NOT_READY.with_retry_delay(1);
    targets[0].change(move |fake| fake.manners.status = Some(busy));
    let failed = write(&scene, Some(LIMIT)).await;
    assert!(failed.buf.is_some());
    let error = timed_out(&failed.error);
    assert_eq!(error.waiting_for, Awaited::RetryDelay);
    assert!(!error.may_have_executed, "the controller refused it");
}

#[tokio::test(flavor = "multi_thread")]
async fn call_that_was_executed_in_part_says_so_at_its_limit() {
    let targets = targets(1);
    targets[0].change(|fake| fake.persona.crdt1 = 600);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    // Of two commands, the second one is refused.
    let refusal = Status::NAMESPACE_NOT_READY.with_retry_delay(1);
    targets[0].change(move |fake| fake.manners.fails_at = Some((1128, refusal)));
    let disk = scene.disk.with_timeout(LIMIT);
    let from = [Range {
        slba: 0,
        count: 256,
    }];
    let copied = disk.copy(&from, 1000, WriteOptions::default()).await;
    let error = timed_out(&copied.unwrap_err());
    assert_eq!(error.waiting_for, Awaited::RetryDelay);
    assert!(error.may_have_executed, "the first command succeeded");
    // One command, which is not said to be without effect.
    let failure = Status::INTERNAL_ERROR.with_retry_delay(1);
    targets[0].change(move |fake| fake.manners.status = Some(failure));
    let failed = write(&scene, Some(LIMIT)).await;
    let error = timed_out(&failed.error);
    assert_eq!(error.waiting_for, Awaited::RetryDelay);
    assert!(error.may_have_executed);
}

#[tokio::test(flavor = "multi_thread")]
async fn limit_that_passed_before_the_call_names_its_submission() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    // The call would wait for a path otherwise.
    scene.disk.ready().await.unwrap();
    let failed = write(&scene, Some(Duration::ZERO)).await;
    assert_eq!(timed_out(&failed.error).waiting_for, Awaited::Submission);
    assert!(failed.buf.is_some() && !failed.error.outcome_is_unknown());
    let disk = scene.disk.with_timeout(Duration::ZERO);
    let calls = [
        disk.flush().await,
        disk.verify(0, 1).await,
        disk.write_zeroes(0, 1, ZeroOptions::default()).await,
    ];
    for error in calls.map(Result::unwrap_err) {
        assert_eq!(timed_out(&error).waiting_for, Awaited::Submission);
    }
    assert!(targets[0].change(|fake| fake.served.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_counted_by_cause() {
    let targets = targets(2);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(|fake| fake.manners.status = Some(Status::INTERNAL_PATH_ERROR));
    while scene.multipath.paths()[0].retries.path_status == 0 {
        scene.read(0).await.unwrap();
    }
    assert_eq!(scene.multipath.paths()[0].retries.lost, 0);
    targets[0].change(|fake| {
        fake.manners.status = None;
        fake.manners.silent = true;
    });
    let before = targets[0].change(|fake| fake.served.len());
    let reads = async {
        for _ in 0..4 {
            scene.read(0).await.unwrap();
        }
    };
    let lost = async {
        served(&targets[0], before + 1).await;
        targets[0].change(lose);
    };
    tokio::join!(reads, lost);
    assert_eq!(scene.multipath.paths()[0].retries.lost, 1);
    assert_eq!(scene.multipath.paths()[1].retries, Retries::default());
}

/// The Compare and Write is lost with its path. Another path is there, but a second comparison
/// could fail because of the first write.
#[tokio::test(flavor = "multi_thread")]
async fn lost_compare_and_write_has_an_unknown_outcome_once_fenced() {
    let targets = targets(2);
    let options = MultipathOptions {
        quiesce: Some(LIMIT),
        ..MultipathOptions::default()
    };
    let mut scene = Scene::connected(&targets, options).await;
    for target in &targets {
        target.change(|fake| fake.manners.silent = true);
    }
    let buf = scene.host.buffer(2 * BLOCK).unwrap();
    let disk = scene.disk.clone();
    let call = tokio::spawn(async move {
        disk.compare_and_write(0, buf, WriteOptions::default())
            .await
    });
    let used = loop {
        let mut each = targets.iter();
        if let Some(at) = each.position(|target| target.change(|fake| fake.served.len()) == 2) {
            break at;
        }
        tokio::task::yield_now().await;
    };
    targets[used].change(lose);
    let fenced = scene.event(|event| match event {
        PathEvent::Fenced { path, .. } => Some(*path),
        _ => None,
    });
    assert_eq!(fenced.await, used);
    let failed = call.await.unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::UnknownOutcome(_)), "{failed}");
    assert!(failed.buf.is_some());
    assert!(targets[1 - used].change(|fake| fake.served.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn write_in_progress_at_disconnect_has_an_unknown_outcome() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(|fake| fake.manners.silent = true);
    let (write, read) = (write(&scene, None), scene.read(8));
    let end = async {
        served(&targets[0], 2).await;
        scene.multipath.clone().disconnect().await;
    };
    let (failed, read, ()) = tokio::join!(write, read, end);
    assert!(matches!(failed.error, Error::UnknownOutcome(_)), "{failed}");
    let read = read.unwrap_err();
    assert!(matches!(read, Error::Lost(_)), "{read}");
}

/// The future of a call is dropped after each number of polls, while its target loses commands,
/// refuses them and disconnects: nothing of the call is left.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_calls_leave_nothing_behind() {
    let targets = targets(2);
    let options = MultipathOptions {
        quiesce: Some(Duration::from_millis(20)),
        ..MultipathOptions::default()
    };
    let scene = Scene::connected(&targets, options).await;
    let free = count_buffers(&scene.host);
    for polls in 0..60 {
        targets[0].change(move |fake| {
            fake.manners.reject = None;
            fake.manners.silent = polls % 3 == 1;
            let transition = Status::ANA_TRANSITION;
            fake.manners.status = (polls % 3 == 2).then_some(transition);
        });
        let disk = match polls % 2 {
            0 => scene.disk.clone(),
            _ => scene.disk.with_timeout(LIMIT),
        };
        let buf = scene.host.buffer(LEN).unwrap();
        let options = WriteOptions::default();
        {
            let mut call = pin!(disk.write(0, buf, options));
            let mut context = Context::from_waker(Waker::noop());
            for at in 0..polls {
                if let Poll::Ready(_ended) = call.as_mut().poll(&mut context) {
                    break;
                }
                if at == 5 {
                    targets[0].change(|fake| fake.hang_up());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    targets[0].change(|fake| {
        (fake.manners.silent, fake.manners.status) = (false, None);
        fake.hang_up();
    });
    let all_back = async {
        while count_buffers(&scene.host) < free {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, all_back).await.unwrap();
    let outstanding: u64 = scene.multipath.paths().iter().map(|p| p.outstanding).sum();
    assert_eq!(outstanding, 0);
    scene.read(0).await.unwrap();
}

/// The number of free buffers.
fn count_buffers(host: &Host) -> usize {
    let all: Vec<_> = std::iter::from_fn(|| host.buffer(LEN).ok()).collect();
    all.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn life_of_a_path_is_reported() {
    let targets = targets(2);
    let mut scene = Scene::connected(&targets, impatient()).await;
    targets[1].change(lose);
    let mut seen = Vec::new();
    while seen.last() != Some(&"given up") {
        let next = scene.event(|event| match event {
            PathEvent::Lost { path: 1, .. } => Some("lost"),
            PathEvent::AttemptFailed { path: 1, .. } => Some("failed"),
            PathEvent::GivenUp { path: 1, error, .. } => {
                assert!(error.is_some());
                Some("given up")
            }
            PathEvent::Connected { path: 1, .. } if !seen.is_empty() => Some("connected"),
            _ => None,
        });
        let next = next.await;
        seen.push(next);
    }
    seen.dedup();
    assert_eq!(seen, ["lost", "failed", "given up"]);
    let status = &scene.multipath.paths()[1];
    assert_eq!(status.state.name(), "given-up");
    assert!(
        status.is_given_up && status.reason.contains("rejected"),
        "{status:?}"
    );
    let mut events = scene.multipath.changes();
    drop(scene);
    while events.next().await.is_some() {}
}

/// The check of the path ends while the call looks at it.
#[tokio::test(flavor = "multi_thread")]
async fn namespace_is_ready_whenever_its_check_ends() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    for _ in 0..1000 {
        let disk = scene.multipath.namespace(1).await.unwrap();
        let calls = (0..16).map(|_| {
            let disk = disk.clone();
            tokio::spawn(async move { disk.ready().await })
        });
        for call in calls.collect::<Vec<_>>() {
            let ready = tokio::time::timeout(TIMEOUT, call).await.unwrap();
            ready.unwrap().unwrap();
        }
    }
}
