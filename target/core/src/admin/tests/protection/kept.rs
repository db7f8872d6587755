//! What outlives the namespace that is served, and the target.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::SubsystemSpec;

/// What was kept last, and how often it was; it may be refused.
#[derive(Debug, Default)]
struct Book {
    kept: Mutex<(usize, Vec<KeptProtection>)>,
    full: AtomicBool,
}

impl KeepProtections for Book {
    fn keep(&self, subsystem: &Nqn, namespaces: &[KeptProtection]) -> std::io::Result<()> {
        assert_eq!(subsystem.as_str(), crate::testing::DISK);
        if self.full.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let mut kept = self.kept.lock().unwrap();
        *kept = (kept.0 + 1, namespaces.to_vec());
        Ok(())
    }
}

impl Book {
    /// How often something was kept, and the namespaces of the last time.
    fn numbers(&self) -> (usize, Vec<u32>) {
        let kept = self.kept.lock().unwrap();
        (kept.0, kept.1.iter().map(|one| one.nsid).collect())
    }
}

/// Base 2.1, 8.1.16.1, figure 621: of the states that there are, Write Protect is
/// persistent across power cycles.
#[test]
fn what_is_protected_for_good_is_kept_before_it_is_answered() {
    let target = target();
    let book = Arc::new(Book::default());
    target.keep_protections_in(Arc::clone(&book) as Arc<dyn KeepProtections>);
    let (mut admin, _) = Host::admin(&target);
    let numbers = || book.numbers();
    let (request, _) = begin_set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(numbers(), (0, vec![]), "it may still fail");
    assert!(end(&mut admin, request, Executed::Ok).is_success());
    assert_eq!(numbers(), (1, vec![1]));
    let kept = book.kept.lock().unwrap().1[0];
    // Started again.
    let again = crate::testing::target();
    let nqn = Nqn::new(crate::testing::DISK).unwrap();
    assert!(again.restore_protection(&nqn, kept));
    assert!(!again.restore_protection(&nqn, KeptProtection { nsid: 2, ..kept }));
    let (mut after, mut queue) = Host::ready(&again);
    assert_eq!(state(&mut after, 1), WriteProtection::PROTECTED);
    assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    set(&mut after, 1, WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
    // The states that are not.
    set(&mut admin, 1, WriteProtection::UNTIL_POWER_CYCLE);
    assert_eq!(numbers(), (2, vec![]));
    // And what cannot be kept is not granted.
    book.full.store(true, Ordering::Relaxed);
    let mut spec = subsystem();
    spec.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(&target, &[spec, closed()]);
    let answer = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(answer.cqe.status(), Status::INTERNAL_ERROR);
    book.full.store(false, Ordering::Relaxed);
    let answer = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(answer.status(), Status::SUCCESS);
    assert_eq!(numbers(), (3, vec![1]));
}

/// A document without it, a file that is missing: nobody said that hosts may write
/// there again.
#[test]
fn what_is_protected_is_so_again_when_it_comes_back() {
    let target = target();
    let book = Arc::new(Book::default());
    target.keep_protections_in(Arc::clone(&book) as Arc<dyn KeepProtections>);
    let nqn = Nqn::new(crate::testing::DISK).unwrap();
    let again = |without: &[SubsystemSpec]| {
        let _ = apply(&target, without);
        let _ = apply(&target, &[subsystem(), closed()]);
        let (mut admin, mut queue) = Host::ready(&target);
        (state(&mut admin, 1), write(&mut queue))
    };
    let protected = (
        WriteProtection::PROTECTED,
        Status::NAMESPACE_WRITE_PROTECTED,
    );
    let (mut admin, _) = Host::admin(&target);
    set(&mut admin, 1, WriteProtection::PROTECTED);
    let mut spec = subsystem();
    spec.namespaces.remove(0);
    assert_eq!(again(&[spec.clone(), closed()]), protected);
    assert_eq!(again(&[closed()]), protected);
    // What hosts set of others meanwhile takes nothing from it.
    let _ = apply(&target, &[closed()]);
    let mut other = spec.clone();
    other.namespaces[0].readonly = false;
    let _ = apply(&target, &[other.clone(), closed()]);
    let (mut admin, _) = Host::admin(&target);
    let nsid = other.namespaces[0].nsid;
    set(&mut admin, nsid, WriteProtection::PROTECTED);
    assert_eq!(book.numbers().1, [1, nsid]);
    set(&mut admin, nsid, WriteProtection::NONE);
    assert_eq!(book.numbers().1, [1]);
    // Nor is another one protected that has its number.
    let mut another = subsystem();
    another.namespaces[0].uuid = Some([9; 16]);
    let _ = apply(&target, &[another, closed()]);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(again(&[closed()]), protected);
    // Unless an administrator says that it is no more.
    for (without, nsid) in [([spec, closed()].to_vec(), Some(1)), (vec![closed()], None)] {
        let _ = apply(&target, &without);
        target.forget_protection(&nqn, Some(2)).unwrap();
        assert_eq!(book.numbers().1, [1]);
        book.full.store(true, Ordering::Relaxed);
        assert!(target.forget_protection(&nqn, nsid).is_err());
        assert_eq!(again(&without), protected, "it is kept still");
        let _ = apply(&target, &without);
        book.full.store(false, Ordering::Relaxed);
        target.forget_protection(&nqn, nsid).unwrap();
        assert_eq!(book.numbers().1, []);
        assert_eq!(again(&without), (WriteProtection::NONE, Status::SUCCESS));
        let (mut admin, _) = Host::admin(&target);
        set(&mut admin, 1, WriteProtection::PROTECTED);
    }
}

/// Put aside at the start, for a file that is missing: it is protected when it comes.
#[test]
fn what_was_protected_before_the_start_waits_for_its_namespace() {
    let uuid = target().model().subsystems()[0].namespace(1).unwrap().uuid;
    let nqn = Nqn::new(crate::testing::DISK).unwrap();
    let mut without = subsystem();
    without.namespaces.remove(0);
    for before in [vec![closed()], vec![without, closed()]] {
        let target = target();
        let _ = apply(&target, &before);
        assert!(!target.restore_protection(&nqn, KeptProtection { nsid: 1, uuid }));
        let _ = apply(&target, &[subsystem(), closed()]);
        let (mut admin, mut queue) = Host::ready(&target);
        assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
        // One that is there again when it is forgotten is as new.
        let enable = SetFeatures::new(FeatureId::ASYNC_EVENT_CONFIG, AsyncEventConfig::NSAN.bits());
        admin.plain(enable.to_sqe());
        let request = nvmeof_wire::admin::bare(nvmeof_wire::opcode::admin::ASYNC_EVENT_REQUEST);
        admin.run(request, &[], &[]);
        target.forget_protection(&nqn, Some(1)).unwrap();
        assert!(admin.queue.poll(admin.now).is_some(), "hosts are told");
        assert_eq!(write(&mut queue), Status::SUCCESS);
    }
}

/// The host hears that nothing came of it.
#[test]
fn what_cannot_be_kept_is_as_it_was() {
    let target = target();
    let book = Arc::new(Book::default());
    target.keep_protections_in(Arc::clone(&book) as Arc<dyn KeepProtections>);
    let (mut admin, mut queue) = Host::ready(&target);
    let full = |full| book.full.store(full, Ordering::Relaxed);
    full(true);
    let answer = set(&mut admin, 1, WriteProtection::PROTECTED);
    assert_eq!(answer.cqe.status(), Status::INTERNAL_ERROR);
    assert_eq!(state(&mut admin, 1), WriteProtection::NONE);
    assert_eq!(write(&mut queue), Status::SUCCESS);
    full(false);
    set(&mut admin, 1, WriteProtection::PROTECTED);
    full(true);
    for to in [WriteProtection::NONE, WriteProtection::UNTIL_POWER_CYCLE] {
        let answer = set(&mut admin, 1, to);
        assert_eq!(answer.cqe.status(), Status::INTERNAL_ERROR);
        assert_eq!(state(&mut admin, 1), WriteProtection::PROTECTED);
        assert_eq!(write(&mut queue), Status::NAMESPACE_WRITE_PROTECTED);
    }
    full(false);
    let answer = set(&mut admin, 1, WriteProtection::NONE);
    assert_eq!(answer.status(), Status::SUCCESS);
    assert_eq!(write(&mut queue), Status::SUCCESS);
}
