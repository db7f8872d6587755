//! Reservation commands over several paths, and conflicts.

use super::*;
use crate::fake::reservation_report;
use nvmeof_initiator::{
    Awaited, Error, ErrorKind, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationType, Status, WriteOptions,
};

const KIND: ReservationType = ReservationType::EXCLUSIVE_ACCESS;
/// The time limit of calls that are meant to reach it.
const LIMIT: Duration = Duration::from_millis(300);

/// I/O commands that the targets have served.
fn served(targets: &[Target]) -> usize {
    let each = targets.iter();
    each.map(|target| target.change(|fake| fake.served.len()))
        .sum()
}

/// The target that has served a command, when it has.
async fn first_used(targets: &[Target]) -> usize {
    let has_served = |target: &Target| target.change(|fake| !fake.served.is_empty());
    let used = async {
        loop {
            if let Some(at) = targets.iter().position(has_served) {
                return at;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, used).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reservation_commands_use_any_path() {
    let targets = targets(2);
    for target in &targets {
        target.change(|fake| fake.report = reservation_report(KIND, 100));
    }
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let limited = scene.disk.with_timeout(TIMEOUT);
    for disk in [&scene.disk, &limited] {
        let register = ReservationRegister::register(7);
        disk.reservation_register(register).await.unwrap();
        let acquire = ReservationAcquire::acquire(KIND, 7);
        disk.reservation_acquire(acquire).await.unwrap();
        let release = ReservationRelease::release(KIND, 7);
        disk.reservation_release(release).await.unwrap();
        let report = disk.reservation_report().await.unwrap();
        assert_eq!((report.registered, report.registrants.len()), (100, 100));
    }
    let changes = |target: &Target| target.change(|fake| fake.reservations.len());
    assert_eq!(targets.iter().map(changes).sum::<usize>(), 6);
    // The namespace may still have to be checked on the second path.
    let both = async {
        while targets.iter().any(|target| changes(target) == 0) {
            let register = ReservationRegister::register(7);
            scene.disk.reservation_register(register).await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, both).await.unwrap();
}

/// Of each call, one command is sent, whatever other paths there are, and with or without Do Not
/// Retry.
#[tokio::test(flavor = "multi_thread")]
async fn conflict_is_not_retried_on_any_path() {
    let targets = targets(2);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let disk = &scene.disk;
    let conflict = Status::RESERVATION_CONFLICT;
    for (at, status) in [conflict, conflict.with_dnr()].into_iter().enumerate() {
        for target in &targets {
            target.change(move |fake| fake.manners.status = Some(status));
        }
        let buf = scene.host.buffer(LEN).unwrap();
        let write = disk.write(0, buf, WriteOptions::default()).await;
        let errors = [
            Error::from(write.unwrap_err()),
            scene.read(0).await.unwrap_err(),
            disk.reservation_register(ReservationRegister::unregister(7))
                .await
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::ReservationConflict, "{error}");
        }
        assert_eq!(served(&targets), 3 * (at + 1));
    }
    for path in scene.multipath.paths() {
        assert_eq!((path.retries.other_status, path.losses), (0, 0));
    }
}

/// The other path could execute it. But another host may have preempted this one since.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_reservations_whose_path_is_lost_has_an_unknown_outcome() {
    let targets = targets(2);
    let options = MultipathOptions {
        quiesce: Some(LIMIT),
        ..MultipathOptions::default()
    };
    let scene = Scene::connected(&targets, options).await;
    for target in &targets {
        target.change(|fake| fake.manners.silent = true);
    }
    let register = scene
        .disk
        .reservation_register(ReservationRegister::register(7));
    let lost = async {
        let used = first_used(&targets).await;
        targets[used].change(lose);
        targets[1 - used].change(|fake| fake.manners.silent = false);
        used
    };
    let (result, used) = tokio::join!(register, lost);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::UnknownOutcome(_)), "{error}");
    assert!(error.outcome_is_unknown());
    // The report shows whether it was executed.
    let report = scene.disk.reservation_report().await.unwrap();
    assert_eq!(report.registered, 0);
    let other = targets[1 - used].change(|fake| (fake.reservations.len(), fake.served.len()));
    assert_eq!(other, (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn report_whose_path_is_lost_is_read_over_another_one() {
    let targets = targets(2);
    for target in &targets {
        target.change(|fake| {
            fake.report = reservation_report(KIND, 2);
            fake.manners.silent = true;
        });
    }
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let report = scene.disk.reservation_report();
    let lost = async {
        let used = first_used(&targets).await;
        targets[1 - used].change(|fake| fake.manners.silent = false);
        targets[used].change(lose);
    };
    let (report, ()) = tokio::join!(report, lost);
    assert_eq!(report.unwrap().registrants.len(), 2);
}

/// Nothing was executed.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_reservations_that_ana_refuses_is_sent_over_another_path() {
    let targets = targets(2);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(|fake| fake.manners.status = Some(Status::ANA_INACCESSIBLE));
    for _ in 0..2 {
        let release = ReservationRelease::clear(7);
        scene.disk.reservation_release(release).await.unwrap();
    }
    let executed = |target: &Target| target.change(|fake| fake.reservations.len());
    assert_eq!([executed(&targets[0]), executed(&targets[1])], [0, 2]);
    // Another error does not say how far it got.
    for target in &targets {
        target.change(|fake| fake.manners.status = Some(Status::COMMAND_INTERRUPTED));
    }
    let before = served(&targets);
    let preempt = ReservationAcquire::preempt_and_abort(KIND, 7, 8);
    let error = scene.disk.reservation_acquire(preempt).await.unwrap_err();
    assert!(
        error.to_string().contains("before it is sent again"),
        "{error}"
    );
    assert_eq!(served(&targets), before + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn time_limit_covers_reservation_commands() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(|fake| fake.manners.silent = true);
    let disk = scene.disk.with_timeout(LIMIT);
    let register = disk.reservation_register(ReservationRegister::register(7));
    let changed = register.await.unwrap_err();
    let read = disk.reservation_report().await.unwrap_err();
    for (error, command, may_have_executed) in [
        (changed, "Reservation Register", true),
        (read, "Reservation Report", false),
    ] {
        let Error::TimedOut(timed_out) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(timed_out.waiting_for, Awaited::Completion(command));
        assert_eq!(timed_out.may_have_executed, may_have_executed);
    }
}
