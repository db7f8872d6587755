//! Fences of lost controllers.

use super::*;
use crate::fake::Resets;
use nvmeof_initiator::multipath::{FenceMethod, PathState};

fn fenced(event: &PathEvent) -> Option<(usize, FenceMethod)> {
    match event {
        PathEvent::Fenced { path, method, .. } => Some((*path, *method)),
        _ => None,
    }
}

const BY_RESET: FenceMethod = FenceMethod::CrossControllerReset;

/// Waits until the target was requested to reset `count` controllers.
async fn resets(target: &Target, count: usize) -> Vec<u16> {
    loop {
        let resets = target.change(|fake| fake.resets.clone());
        if resets.len() >= count {
            return resets;
        }
        tokio::task::yield_now().await;
    }
}

/// The first sibling of the first path does not complete the reset. A second lost controller is
/// reset by the last sibling meanwhile, and the first one after the step of 5 s.
#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_sibling_delays_no_other_fence() {
    let targets = targets(4);
    for target in &targets {
        target.change(|fake| {
            fake.persona.has_instance = true;
            fake.persona.resets = Resets::Immediate;
        });
    }
    targets[1].change(|fake| fake.persona.resets = Resets::Silent);
    let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
    targets[0].change(lose);
    assert_eq!(resets(&targets[1], 1).await, [1]);
    targets[2].change(lose);
    // The first one is still waiting for its sibling.
    assert_eq!(scene.event(fenced).await, (2, BY_RESET));
    assert_eq!(resets(&targets[3], 1).await, [3]);
    // An unresponsive sibling is not requested again.
    assert_eq!(scene.event(fenced).await, (0, BY_RESET));
    assert_eq!(resets(&targets[3], 2).await, [3, 1]);
    assert_eq!(targets[1].change(|fake| fake.resets.clone()), [1]);
    let status = scene.multipath.paths();
    assert_eq!(status[0].fenced, [(BY_RESET, 1)]);
    assert!(matches!(
        status[0].state,
        PathState::Backoff | PathState::Connecting
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_reset_is_replaced_by_time() {
    let targets = targets(2);
    targets[0].change(|fake| fake.persona.has_instance = true);
    let options = MultipathOptions {
        quiesce: Some(SECOND / 10),
        ..MultipathOptions::default()
    };
    let mut scene = Scene::connected(&targets, options).await;
    targets[0].change(lose);
    let method = FenceMethod::AssumedQuiesceTime;
    assert_eq!(scene.event(fenced).await, (0, method));
    assert_eq!(targets[1].change(|fake| fake.resets.clone()), [1]);
}

/// A refusal concerns one sibling, and one lost controller unless the sibling has no such command.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_by_one_sibling_leaves_resets_to_the_others() {
    for (answer, requested) in [
        (Resets::Refused, &[1, 4][..]),
        (Resets::Unsupported, &[1][..]),
    ] {
        let targets = targets(4);
        for target in &targets {
            target.change(|fake| {
                fake.persona.has_instance = true;
                fake.persona.resets = Resets::Immediate;
            });
        }
        targets[1].change(move |fake| fake.persona.resets = answer);
        let mut scene = Scene::connected(&targets, MultipathOptions::default()).await;
        for lost in [0, 3] {
            targets[lost].change(lose);
            assert_eq!(scene.event(fenced).await, (lost, BY_RESET), "{answer:?}");
        }
        let resets = targets[2].change(|fake| fake.resets.clone());
        assert_eq!(resets, [1, 4], "{answer:?}");
        let resets = targets[1].change(|fake| fake.resets.clone());
        assert_eq!(resets, requested, "{answer:?}");
    }
}
