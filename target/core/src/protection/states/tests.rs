//! Requests, settled and saved in any order.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;

const NONE: WriteProtection = WriteProtection::NONE;
const PROTECTED: WriteProtection = WriteProtection::PROTECTED;
const UNTIL: WriteProtection = WriteProtection::UNTIL_POWER_CYCLE;

/// The states of one namespace, and the namespace.
fn one() -> (Protections, Namespace) {
    let target = crate::testing::target();
    let model = target.model();
    let namespace = model.subsystems()[0].namespace(1).unwrap().clone();
    (Protections::default(), namespace)
}

/// A request that waits for earlier writes to become stable.
fn ask(all: &mut Protections, namespace: &Namespace, to: WriteProtection) -> ProtectionRequest {
    match all.set(namespace, to) {
        Ok(Step::Settle(asked)) => asked,
        other => panic!("{other:?}"),
    }
}

/// Settles it and, if required, saves it. Returns whether the state changed.
fn grant(all: &mut Protections, asked: ProtectionRequest) -> bool {
    let settled = all.settle(1, asked, true);
    settled.changed | (settled.keep && write(all, true).1)
}

/// Runs a save, which succeeds or fails. Returns the number of states, and whether a
/// state changed.
fn write(all: &mut Protections, written: bool) -> (usize, bool) {
    let kept = all.begin_write(1).len();
    (kept, all.kept(written))
}

/// A namespace whose protection is saved.
fn protected() -> (Protections, Namespace) {
    let (mut all, namespace) = one();
    let asked = ask(&mut all, &namespace, PROTECTED);
    grant(&mut all, asked);
    (all, namespace)
}

fn fails(all: &mut Protections, asked: ProtectionRequest) -> bool {
    let settled = all.settle(1, asked, false);
    assert!(!settled.keep);
    settled.changed
}

#[test]
fn failed_request_undoes_only_itself() {
    let (mut all, namespace) = one();
    let first = ask(&mut all, &namespace, PROTECTED);
    // Another host requests the same meanwhile.
    let second = ask(&mut all, &namespace, PROTECTED);
    assert!(!fails(&mut all, first));
    assert_eq!(all.of(&namespace), PROTECTED, "the second may be granted");
    assert!(fails(&mut all, second));
    assert_eq!(all.of(&namespace), NONE);
}

/// In any order of completion, an acknowledged state is in force.
#[test]
fn granted_request_is_in_force() {
    let (mut all, namespace) = one();
    let first = ask(&mut all, &namespace, PROTECTED);
    let second = ask(&mut all, &namespace, PROTECTED);
    assert!(!fails(&mut all, second), "the first may be granted");
    assert!(!grant(&mut all, first));
    assert_eq!(all.of(&namespace), PROTECTED);
    assert_eq!(write(&mut all, true), (1, false));
}

#[test]
fn granted_state_remains_when_a_further_request_fails() {
    for first_ends_first in [true, false] {
        let (mut all, namespace) = one();
        let first = ask(&mut all, &namespace, PROTECTED);
        let second = ask(&mut all, &namespace, UNTIL);
        if first_ends_first {
            assert!(!grant(&mut all, first));
            assert_eq!(all.of(&namespace), UNTIL);
            assert_eq!(write(&mut all, true).0, 1, "it may be all that there is");
            assert!(fails(&mut all, second), "another state");
        } else {
            assert!(!fails(&mut all, second));
            assert!(grant(&mut all, first), "another state");
        }
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(write(&mut all, true).0, 1);
        assert_eq!(
            all.set(&namespace, UNTIL),
            Ok(Step::Keep),
            "all of it is stable"
        );
        assert_eq!(all.of(&namespace), UNTIL);
        assert_eq!(write(&mut all, true), (0, false));
    }
    // The later one was granted: the earlier one does not matter.
    let (mut all, namespace) = one();
    let first = ask(&mut all, &namespace, PROTECTED);
    let second = ask(&mut all, &namespace, UNTIL);
    assert!(!grant(&mut all, second) && !grant(&mut all, first));
    assert_eq!(all.of(&namespace), UNTIL);
    assert_eq!(write(&mut all, true), (0, false));
}

#[test]
fn another_namespace_of_the_same_number_is_not_protected() {
    let (mut all, namespace) = one();
    let other = Namespace {
        uuid: [9; 16],
        ..namespace.clone()
    };
    let first = ask(&mut all, &namespace, PROTECTED);
    assert_eq!(write(&mut all, true).0, 0, "it is not granted yet");
    grant(&mut all, first);
    assert_eq!(write(&mut all, true).0, 1);
    assert_eq!(all.of(&other), NONE);
    ask(&mut all, &other, PROTECTED);
    assert_eq!(all.of(&namespace), PROTECTED, "which may come back");
    assert_eq!(write(&mut all, true).0, 1);
    assert!(all.forget(Some(2)).is_empty() && !all.forget(Some(1)).is_empty());
    for one in [&namespace, &other] {
        assert_eq!(all.of(one), PROTECTED, "until that is kept");
    }
    assert_eq!(write(&mut all, true), (0, true));
    for one in [&namespace, &other] {
        assert_eq!(all.of(one), NONE);
    }
    assert!(all.is_empty());
    let fixed = Namespace {
        readonly: true,
        ..namespace
    };
    assert_eq!(
        all.set(&fixed, PROTECTED),
        Ok(Step::Done),
        "nothing to make stable"
    );
}

#[test]
fn late_settle_does_not_affect_a_newer_protection() {
    let (mut all, namespace) = one();
    let early = ask(&mut all, &namespace, PROTECTED);
    assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
    assert_eq!(write(&mut all, true), (0, true));
    assert!(!grant(&mut all, early));
    assert_eq!(all.of(&namespace), NONE);
    // There may have been writes in between.
    let late = ask(&mut all, &namespace, PROTECTED);
    assert!(!grant(&mut all, early) && !fails(&mut all, early));
    assert_eq!(all.of(&namespace), PROTECTED);
    ask(&mut all, &namespace, PROTECTED);
    assert!(!grant(&mut all, late));
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
    assert!(!all.settle(2, late, false).changed, "of another namespace");
}

/// Writes are permitted after the removal has been saved, and not before.
#[test]
fn protection_lasts_until_its_removal_is_saved() {
    for written in [true, false] {
        let (mut all, namespace) = protected();
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.begin_write(1), []);
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.kept(written), written);
        assert_eq!(all.of(&namespace) == NONE, written);
        assert_eq!(write(&mut all, true).0, usize::from(!written));
    }
}

/// The last one counts, whether the earlier one is being saved or not.
#[test]
fn request_during_a_pending_removal_follows_it() {
    for in_progress in [true, false] {
        for written in [[true, true], [true, false], [false, true], [false, false]] {
            let (mut all, namespace) = protected();
            assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
            if in_progress {
                assert_eq!(all.begin_write(1), []);
            }
            // There were no writes since it was protected.
            assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
            let [first, second] = written;
            if in_progress {
                assert!(!all.kept(first));
                assert_eq!(all.of(&namespace), PROTECTED);
            }
            assert_eq!(all.begin_write(1).len(), 1);
            all.kept(second);
            // Both responses are true: the removal was granted, or it was not.
            let expected = match (in_progress && first, second) {
                (true, false) => NONE,
                _ => PROTECTED,
            };
            assert_eq!(all.of(&namespace), expected, "{in_progress} {written:?}");
        }
    }
}

/// Its protection is not granted yet, so earlier writes are not stable.
#[test]
fn saved_removal_keeps_later_requests() {
    let (mut all, namespace) = one();
    let early = ask(&mut all, &namespace, PROTECTED);
    assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
    let late = ask(&mut all, &namespace, PROTECTED);
    assert_eq!(write(&mut all, true), (0, false));
    assert_eq!(all.of(&namespace), PROTECTED);
    assert!(!grant(&mut all, late) && !fails(&mut all, early));
    assert_eq!(all.of(&namespace), PROTECTED);
    assert_eq!(write(&mut all, true), (1, false));
}

/// It is granted if the removal fails; otherwise it precedes the removal.
#[test]
fn request_settled_during_a_removal_depends_on_its_save() {
    for removed in [true, false] {
        let (mut all, namespace) = one();
        let early = ask(&mut all, &namespace, PROTECTED);
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.begin_write(1), []);
        assert!(all.settle(1, early, true).keep);
        assert_eq!(all.kept(removed), removed);
        assert_eq!(write(&mut all, true).0, usize::from(!removed));
        assert_eq!(all.of(&namespace) == NONE, removed);
    }
    // Until the save ends, they share its outcome.
    for written in [true, false] {
        let (mut all, namespace) = one();
        let early = ask(&mut all, &namespace, PROTECTED);
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        let both = Settled {
            changed: true,
            keep: true,
        };
        assert_eq!(all.settle(1, early, true), both);
        assert_eq!(all.of(&namespace), NONE, "nothing was granted yet");
        assert_eq!(write(&mut all, written), (0, false));
        assert_eq!(all.of(&namespace), NONE);
        assert!(all.is_empty());
    }
}

#[test]
fn state_is_unchanged_when_the_save_fails() {
    let (mut all, namespace) = one();
    let asked = ask(&mut all, &namespace, PROTECTED);
    assert!(all.settle(1, asked, true).keep);
    assert_eq!(write(&mut all, false), (1, true));
    assert_eq!(all.of(&namespace), NONE);
    let (mut all, namespace) = protected();
    assert_eq!(all.set(&namespace, UNTIL), Ok(Step::Keep));
    assert_eq!(all.set(&namespace, NONE), Err(Fixed));
    assert_eq!(write(&mut all, false), (0, true));
    assert_eq!(all.of(&namespace), PROTECTED);
    // Nor does a removal by an administrator count that is not saved.
    assert!(!all.forget(None).is_empty());
    assert_eq!(write(&mut all, false), (0, false));
    assert_eq!(all.of(&namespace), PROTECTED);
}

/// There is one state per namespace, for any number of requests.
#[test]
fn pending_requests_use_no_memory() {
    let (mut all, namespace) = protected();
    all.begin_write(1);
    for _ in 0..1000 {
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
    }
    assert_eq!(all.states.len(), 1);
    assert!(!all.kept(true));
    assert_eq!(write(&mut all, true), (1, false));
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
}

/// After a failed save, the file may have either state: the next request is saved
/// again, although its state was the last saved one.
#[test]
fn uncertain_state_is_saved_again() {
    for other in [NONE, UNTIL] {
        let (mut all, namespace) = protected();
        assert_eq!(all.set(&namespace, other), Ok(Step::Keep));
        write(&mut all, false);
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep), "{other:?}");
        assert_eq!(write(&mut all, true), (1, false));
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
    }
    // A request for the same state is in either file.
    let (mut all, namespace) = protected();
    all.set(&namespace, NONE).unwrap();
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
    write(&mut all, false);
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
}

/// Earlier writes are being made stable while another target's record replaces what is in force: a
/// request that is granted afterwards has to protect the namespace.
#[test]
fn replaced_states_keep_a_request_that_is_not_granted() {
    for stored in [vec![], vec![saved_protection()]] {
        let (mut all, namespace) = one();
        let asked = ask(&mut all, &namespace, PROTECTED);
        all.replace(1, stored.clone());
        assert_eq!(all.of(&namespace), PROTECTED);
        assert!(all.settle(1, asked, true).keep, "it is saved");
        assert_eq!(write(&mut all, true).0, 1);
        assert_eq!(all.of(&namespace), PROTECTED);
        // A flush that fails leaves what is stored.
        let (mut all, namespace) = one();
        let asked = ask(&mut all, &namespace, PROTECTED);
        all.replace(1, stored.clone());
        let changed = fails(&mut all, asked);
        assert_eq!(changed, stored.is_empty());
        assert_eq!(all.of(&namespace) == PROTECTED, !stored.is_empty());
    }
}

fn saved_protection() -> SavedProtection {
    let (_, namespace) = one();
    let (nsid, uuid) = settings_key(&namespace);
    SavedProtection { nsid, uuid }
}
