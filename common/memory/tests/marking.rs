//! The protocol of `marking` in every order of execution by two processes, including those of
//! weak memory models (loom).

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;
use nvmeof_memory::marking::{self, Word};

/// Which memory ordering of the protocol to weaken: the test must fail then.
trait Weakness: 'static {
    const NO_FENCE: bool = false;
    const NO_SEQ_CST: bool = false;
    const NO_RELEASE: bool = false;
}

struct Nothing;
struct Fence;
struct SeqCst;
struct Release;

impl Weakness for Nothing {}
impl Weakness for Fence {
    const NO_FENCE: bool = true;
}
impl Weakness for SeqCst {
    const NO_SEQ_CST: bool = true;
}
impl Weakness for Release {
    const NO_RELEASE: bool = true;
}

struct Watched<W>(AtomicU64, PhantomData<W>);

impl<W: Weakness> Watched<W> {
    fn new() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }

    /// loom knows an order among `SeqCst` fences, and none among `SeqCst`
    /// accesses: a fence beside the access stands for it.
    fn seq_cst(order: Ordering) {
        if order == Ordering::SeqCst && !W::NO_SEQ_CST {
            fence(Ordering::SeqCst);
        }
    }
}

impl<W: Weakness> Word for Watched<W> {
    fn load(&self, order: Ordering) -> u64 {
        Self::seq_cst(order);
        match order {
            Ordering::SeqCst => self.0.load(Ordering::Acquire),
            order => self.0.load(order),
        }
    }

    fn store(&self, value: u64, order: Ordering) {
        match order {
            Ordering::Release if W::NO_RELEASE => self.0.store(value, Ordering::Relaxed),
            order => self.0.store(value, order),
        }
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        let before = match order {
            Ordering::SeqCst => self.0.swap(value, Ordering::AcqRel),
            order => self.0.swap(value, order),
        };
        Self::seq_cst(order);
        before
    }

    fn fence(order: Ordering) {
        if !W::NO_FENCE {
            fence(order);
        }
    }
}

const KEY: u64 = 1 << 32 | 7;

/// A user that uses the memory if it may, and an owner that takes it back and
/// uses it then. loom fails when both do at once, or when one does not see what
/// the other did.
fn run<W: Weakness>() {
    loom::model(|| {
        let words = Arc::new((Watched::<W>::new(), Watched::<W>::new()));
        let memory = Arc::new(UnsafeCell::new(0));
        let user = {
            let (words, memory) = (Arc::clone(&words), Arc::clone(&memory));
            thread::spawn(move || {
                let (mark, revoked) = &*words;
                assert!(marking::mark(mark), "nobody else marks");
                if !marking::is_revoked(revoked, KEY) {
                    memory.with_mut(|_| ());
                }
                marking::unmark(mark);
            })
        };
        let (mark, revoked) = &*words;
        if !marking::revoke(revoked, KEY, mark) {
            while marking::is_marked(mark) {
                thread::yield_now();
            }
        }
        memory.with_mut(|_| ());
        user.join().ok();
    });
}

#[test]
fn memory_is_never_used_by_both() {
    run::<Nothing>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_fence_of_owner_both_use_memory() {
    run::<Fence>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_seqcst_of_user_both_use_memory() {
    run::<SeqCst>();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_owner_misses_accesses() {
    run::<Release>();
}
