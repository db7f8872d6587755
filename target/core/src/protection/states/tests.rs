//! Requests, and in whichever order they are settled and kept.
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

/// The states over one namespace, and that.
fn one() -> (Protections, Namespace) {
    let target = crate::testing::target();
    let model = target.model();
    let namespace = model.subsystems()[0].namespace(1).unwrap().clone();
    (Protections::default(), namespace)
}

/// A request for which something has to be made stable.
fn ask(all: &mut Protections, namespace: &Namespace, to: WriteProtection) -> Asked {
    match all.set(namespace, to) {
        Ok(Step::Settle(asked)) => asked,
        other => panic!("{other:?}"),
    }
}

/// It is settled and, if it is to be, kept. Says whether the state is another.
fn grant(all: &mut Protections, asked: Asked) -> bool {
    let settled = all.settle(1, asked, true);
    settled.changed | (settled.keep && write(all, true).1)
}

/// What is to be kept is written or not. Says how many are in it, and whether a
/// state is another.
fn write(all: &mut Protections, written: bool) -> (usize, bool) {
    let kept = all.begin_write().len();
    (kept, all.kept(written))
}

/// A namespace that is protected and kept so.
fn protected() -> (Protections, Namespace) {
    let (mut all, namespace) = one();
    let asked = ask(&mut all, &namespace, PROTECTED);
    grant(&mut all, asked);
    (all, namespace)
}

fn fails(all: &mut Protections, asked: Asked) -> bool {
    let settled = all.settle(1, asked, false);
    assert!(!settled.keep);
    settled.changed
}

#[test]
fn a_request_that_fails_undoes_what_it_did_and_nothing_else() {
    let (mut all, namespace) = one();
    let first = ask(&mut all, &namespace, PROTECTED);
    // Another host wants the same meanwhile.
    let second = ask(&mut all, &namespace, PROTECTED);
    assert!(!fails(&mut all, first));
    assert_eq!(all.of(&namespace), PROTECTED, "the second may be granted");
    assert!(fails(&mut all, second));
    assert_eq!(all.of(&namespace), NONE);
}

/// In whichever order they end: what is answered is so.
#[test]
fn a_request_that_is_granted_is_in_force() {
    let (mut all, namespace) = one();
    let first = ask(&mut all, &namespace, PROTECTED);
    let second = ask(&mut all, &namespace, PROTECTED);
    assert!(!fails(&mut all, second), "the first may be granted");
    assert!(!grant(&mut all, first));
    assert_eq!(all.of(&namespace), PROTECTED);
    assert_eq!(write(&mut all, true), (1, false));
}

#[test]
fn what_was_granted_stays_when_more_than_that_is_not() {
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
    // The later one was granted: the one before it has no say.
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
    assert!(!all.forget(Some(2)) && all.forget(Some(1)));
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
fn a_request_has_no_say_in_what_began_after_it() {
    let (mut all, namespace) = one();
    let early = ask(&mut all, &namespace, PROTECTED);
    assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
    assert_eq!(write(&mut all, true), (0, true));
    assert!(!grant(&mut all, early));
    assert_eq!(all.of(&namespace), NONE);
    // In between there may have been writes.
    let late = ask(&mut all, &namespace, PROTECTED);
    assert!(!grant(&mut all, early) && !fails(&mut all, early));
    assert_eq!(all.of(&namespace), PROTECTED);
    ask(&mut all, &namespace, PROTECTED);
    assert!(!grant(&mut all, late));
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
    assert!(!all.settle(2, late, false).changed, "of another namespace");
}

/// Writes are permitted when it is kept that they are, and not before.
#[test]
fn it_is_protected_until_it_is_kept_that_it_is_not() {
    for written in [true, false] {
        let (mut all, namespace) = protected();
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.begin_write(), []);
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.kept(written), written);
        assert_eq!(all.of(&namespace) == NONE, written);
        assert_eq!(write(&mut all, true).0, usize::from(!written));
    }
}

/// The last one counts, whether what came before is being written or not.
#[test]
fn who_protects_while_a_removal_waits_comes_after_it() {
    for in_work in [true, false] {
        for written in [[true, true], [true, false], [false, true], [false, false]] {
            let (mut all, namespace) = protected();
            assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
            if in_work {
                assert_eq!(all.begin_write(), []);
            }
            // Nothing was written since it was protected.
            assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
            let [first, second] = written;
            if in_work {
                assert!(!all.kept(first));
                assert_eq!(all.of(&namespace), PROTECTED);
            }
            assert_eq!(all.begin_write().len(), 1);
            all.kept(second);
            // What both were told is so: the removal was granted, or it was not.
            let expected = match (in_work && first, second) {
                (true, false) => NONE,
                _ => PROTECTED,
            };
            assert_eq!(all.of(&namespace), expected, "{in_work} {written:?}");
        }
    }
}

/// It was protected by one that is not granted yet, so that nothing is stable.
#[test]
fn a_removal_that_is_kept_takes_nothing_from_who_asked_after_it() {
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

/// It is granted if the removal is not, and otherwise it came before it.
#[test]
fn a_request_that_is_stable_while_a_later_removal_is_written_depends_on_that() {
    for removed in [true, false] {
        let (mut all, namespace) = one();
        let early = ask(&mut all, &namespace, PROTECTED);
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.begin_write(), []);
        assert!(all.settle(1, early, true).keep);
        assert_eq!(all.kept(removed), removed);
        assert_eq!(write(&mut all, true).0, usize::from(!removed));
        assert_eq!(all.of(&namespace) == NONE, removed);
    }
    // Not written yet, they share what becomes of it.
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
fn what_cannot_be_kept_is_as_it_was_before() {
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
    // Nor does an administrator's word count that is not kept.
    assert!(all.forget(None));
    assert_eq!(write(&mut all, false), (0, false));
    assert_eq!(all.of(&namespace), PROTECTED);
}

/// However many come: there is one state of each namespace.
#[test]
fn requests_that_pile_up_take_no_room() {
    let (mut all, namespace) = protected();
    all.begin_write();
    for _ in 0..1000 {
        assert_eq!(all.set(&namespace, NONE), Ok(Step::Keep));
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
    }
    assert_eq!(all.states.len(), 1);
    assert!(!all.kept(true));
    assert_eq!(write(&mut all, true), (1, false));
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
}

/// What could not be written may be in the file all the same: what is answered next is
/// written again, though it is what was kept before.
#[test]
fn what_may_be_kept_no_more_is_kept_again() {
    for other in [NONE, UNTIL] {
        let (mut all, namespace) = protected();
        assert_eq!(all.set(&namespace, other), Ok(Step::Keep));
        write(&mut all, false);
        assert_eq!(all.of(&namespace), PROTECTED);
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep), "{other:?}");
        assert_eq!(write(&mut all, true), (1, false));
        assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
    }
    // One of the same is in either file.
    let (mut all, namespace) = protected();
    all.set(&namespace, NONE).unwrap();
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Keep));
    write(&mut all, false);
    assert_eq!(all.set(&namespace, PROTECTED), Ok(Step::Done));
}
