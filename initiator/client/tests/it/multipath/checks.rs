//! Checks of what targets report: namespaces, controllers, ANA states and sizes.

use super::*;
use crate::fake::BLOCKS;
use nvmeof_initiator::{Error, Nqn, UsageError};
use nvmeof_wire::Status;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::log::ana::AnaState;
use std::time::{Duration, Instant};

/// Connects the second path with `change`, loses the first one, and returns the error of reads.
async fn refusal_of(change: impl FnOnce(&mut Fake<Iwarp>) + Send + 'static) -> String {
    let targets = targets(2);
    targets[1].change(change);
    let scene = Scene::connected(&targets, impatient()).await;
    scene.read(0).await.unwrap();
    targets[0].change(lose);
    let error = scene.error_of_reads().await;
    assert!(targets[1].change(|fake| fake.served.is_empty()), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn other_namespace_is_not_used() {
    let error = refusal_of(|fake| fake.persona.uuid = [0x22; 16]).await;
    assert!(error.contains("other identifiers"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn smaller_namespace_is_not_used() {
    let error = refusal_of(|fake| fake.persona.blocks = 8000).await;
    assert!(
        error.contains("8000 blocks, fewer than the 8192"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_with_another_block_size_is_not_used() {
    let error = refusal_of(|fake| {
        fake.persona.block_shift = 12;
        fake.persona.blocks *= 8;
    })
    .await;
    assert!(error.contains("blocks of 4096 bytes"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_that_shrinks_is_not_used_any_more() {
    let targets = targets(1);
    let scene = Scene::connected(&targets, impatient()).await;
    scene.read(0).await.unwrap();
    targets[0].change(|fake| fake.persona.blocks = 100);
    notify(&targets[0], AsyncEvent::NAMESPACE_CHANGED).await;
    let error = scene.error_of_reads().await;
    assert!(error.contains("100 blocks, fewer than the 8192"), "{error}");
    // Grown again, it is the same one.
    targets[0].change(|fake| fake.persona.blocks = BLOCKS as u64);
    notify(&targets[0], AsyncEvent::NAMESPACE_CHANGED).await;
    while scene.read(0).await.is_err() {}
    assert_eq!(scene.disk.blocks(), BLOCKS as u64);
}

/// Connects the second path with `change`; returns why the attempt failed.
async fn failed_attempt(change: impl FnOnce(&mut Fake<Iwarp>) + Send + 'static) -> String {
    let targets = targets(2);
    targets[1].change(|fake| {
        change(fake);
        // The first path is connected first.
        refuse(fake);
    });
    let mut scene = Scene::new(&targets, MultipathOptions::default()).await;
    targets[1].change(|fake| fake.manners.reject = None);
    loop {
        let error = scene.event(|event| match event {
            PathEvent::AttemptFailed { path: 1, error, .. } => Some(error.to_string()),
            PathEvent::Connected { path: 1, .. } => panic!("connected"),
            _ => None,
        });
        let error = error.await;
        // Earlier attempts were refused until the namespace was open.
        if !error.contains("rejected") {
            assert_eq!(
                scene.multipath.paths()[1].reason,
                error.split("; please").next().unwrap()
            );
            return error;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn second_controller_with_the_same_identifier_is_refused() {
    let error = failed_attempt(|fake| fake.persona.cntlid = 1).await;
    assert!(error.contains("controller 1 is connected over"), "{error}");
}

/// The target was restarted: the first path does not notice that its controller is gone.
#[tokio::test(flavor = "multi_thread")]
async fn controller_with_the_identifier_of_a_dead_one_replaces_it() {
    let targets = targets(2);
    targets[1].change(|fake| {
        fake.persona.cntlid = 1;
        refuse(fake);
    });
    let paths: Vec<_> = paths(&targets)
        .into_iter()
        .map(|mut path| {
            path.keep_alive = 2 * TIMEOUT;
            path
        })
        .collect();
    let multipath = Multipath::connect(&host(), &paths, MultipathOptions::default())
        .await
        .unwrap();
    let mut events = multipath.changes();
    targets[0].change(|fake| fake.manners.deaf = true);
    targets[1].change(|fake| fake.manners.reject = None);
    let mut seen = Vec::new();
    let wait = async {
        while seen.len() < 2 {
            match events.next().await.unwrap() {
                PathEvent::Connected { path: 1, .. } => seen.push("connected".to_owned()),
                PathEvent::Lost { path: 0, error, .. } => seen.push(error.to_string()),
                PathEvent::AttemptFailed { path: 1, error, .. } => {
                    assert!(error.to_string().contains("rejected"), "{error}");
                }
                _ => {}
            }
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.unwrap();
    seen.sort();
    assert_eq!(seen[0], "connected");
    assert!(
        seen[1].contains("did not complete Keep Alive within 1 s"),
        "{seen:?}"
    );
}

/// Like controllers before NVMe 1.3.
#[tokio::test(flavor = "multi_thread")]
async fn namespace_of_controllers_without_descriptors_is_used() {
    let targets = targets(2);
    for target in &targets {
        let refusal = (Cns::DESCRIPTORS, 1, Status::INVALID_FIELD.with_dnr());
        target.change(move |fake| fake.manners.identify = Some(refusal));
    }
    let scene = Scene::connected(&targets, impatient()).await;
    scene.read(0).await.unwrap();
    targets[0].change(lose);
    scene.read(0).await.unwrap();
    while targets[1].change(|fake| fake.served.is_empty()) {
        scene.read(0).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_that_cannot_be_checked_prevents_no_other_check() {
    let targets = targets(2);
    for target in &targets {
        target.change(|fake| fake.persona.namespaces = 2);
    }
    let failure = (Cns::NAMESPACE, 1, Status::INTERNAL_ERROR);
    targets[1].change(move |fake| fake.manners.identify = Some(failure));
    let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
    scene.disk = {
        let first = std::mem::replace(&mut scene.disk, scene.multipath.namespace(2).await.unwrap());
        targets[0].change(lose);
        scene.read(0).await.unwrap();
        first
    };
    // It is used as soon as it can be checked.
    targets[1].change(|fake| fake.manners.identify = None);
    scene.read(0).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn target_that_sends_notices_without_a_pause_is_read_at_a_pace() {
    let targets = targets(1);
    targets[0].change(|fake| fake.persona.groups = Some(vec![(1, AnaState::OPTIMIZED)]));
    targets[0].change(|fake| fake.persona.anagrpid = 1);
    let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
    scene.read(0).await.unwrap();
    // Those of the connection have ended.
    let mut before = 0;
    while before != targets[0].change(|fake| fake.ana_reads) {
        before = targets[0].change(|fake| fake.ana_reads);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let start = Instant::now();
    for _ in 0..200 {
        notify(&targets[0], AsyncEvent::ANA_CHANGED).await;
    }
    let groups = vec![(1, AnaState::NON_OPTIMIZED)];
    targets[0].change(|fake| fake.persona.groups = Some(groups));
    notify(&targets[0], AsyncEvent::ANA_CHANGED).await;
    let changed = scene.event(|event| match event {
        PathEvent::AnaChanged { state, .. } => Some(*state),
        _ => None,
    });
    assert_eq!(changed.await, AnaState::NON_OPTIMIZED);
    let reads = targets[0].change(|fake| fake.ana_reads) - before;
    // The first at once. Each reads the page, then its header again.
    let most = 2 * (start.elapsed().as_millis() / 100 + 1);
    assert!(reads as u128 <= most, "{reads} reads, at most {most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_of_another_subsystem_is_refused() {
    let other = Nqn::new("nqn.2026-11.org.example:other").unwrap();
    let error = failed_attempt(move |fake| fake.persona.subnqn = Some(other)).await;
    assert!(error.contains("org.example:other"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn controller_of_its_subsystem_is_accepted() {
    let targets = targets(1);
    let subnqn = targets[0].options().subnqn;
    targets[0].change(move |fake| fake.persona.subnqn = Some(subnqn));
    let scene = Scene::connected(&targets, MultipathOptions::default()).await;
    scene.read(0).await.unwrap();
}

/// The namespace moves to another group, which Identify reports and the ANA page does not.
#[tokio::test(flavor = "multi_thread")]
async fn change_of_the_ana_group_is_detected_with_an_ana_notice() {
    let targets = targets(2);
    for target in &targets {
        target.change(|fake| {
            fake.persona.anagrpid = 1;
            let groups = [(1, AnaState::OPTIMIZED), (2, AnaState::INACCESSIBLE)];
            fake.persona.groups = Some(groups.to_vec());
        });
    }
    let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
    while targets[0].change(|fake| fake.served.is_empty()) {
        scene.read(0).await.unwrap();
    }
    targets[0].change(|fake| fake.persona.anagrpid = 2);
    notify(&targets[0], AsyncEvent::ANA_CHANGED).await;
    let changed = scene.event(|event| match event {
        PathEvent::AnaChanged {
            path,
            nsid,
            group,
            state,
            ..
        } => Some((*path, *nsid, *group, *state)),
        _ => None,
    });
    assert_eq!(changed.await, (0, 1, 2, AnaState::INACCESSIBLE));
    let before = targets[0].change(|fake| fake.served.len());
    for _ in 0..4 {
        scene.read(0).await.unwrap();
    }
    assert_eq!(targets[0].change(|fake| fake.served.len()), before);
    assert_eq!(scene.multipath.paths()[0].losses, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_grows_when_all_paths_report_it() {
    let targets = targets(2);
    for target in &targets {
        target.change(|fake| fake.persona.blocks = 4096);
    }
    let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
    let grow = |target: &Target| target.change(|fake| fake.persona.blocks = 8192);
    grow(&targets[1]);
    notify(&targets[1], AsyncEvent::NAMESPACE_CHANGED).await;
    // The other path would fail: no path is used beyond the common size.
    for _ in 0..20 {
        let error = scene.read(4096).await.unwrap_err();
        let Error::Usage(usage) = &error else {
            panic!("{error}");
        };
        assert!(matches!(
            **usage,
            UsageError::OutOfRange { blocks: 4096, .. }
        ));
    }
    assert_eq!(scene.disk.blocks(), 4096);
    grow(&targets[0]);
    notify(&targets[0], AsyncEvent::NAMESPACE_CHANGED).await;
    let size = scene.event(|event| match event {
        PathEvent::SizeChanged { nsid, blocks } => Some((*nsid, *blocks)),
        _ => None,
    });
    assert_eq!(size.await, (1, 8192));
    assert_eq!(scene.disk.blocks(), 8192);
    for _ in 0..4 {
        scene.read(8184).await.unwrap();
    }
}
