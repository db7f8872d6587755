//! Registration under a low limit on locked memory. In a file of its own, because the
//! limit applies to the whole process.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmeof_memory::{Foreign, Lender, Pages, Pool, PoolLayout, Shared};
use nvmeof_uring::{NotRegistered, Ring, RingConfig, WriteMode};

const LIMIT: u64 = 1 << 20;

fn pool(bytes: usize) -> Pool {
    let layout = PoolLayout {
        count: bytes / 4096,
        stride: 4096,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
}

#[test]
fn memory_beyond_memlock_limit_is_used_unregistered() {
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT.min(hard), hard).unwrap();
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    let pools = [pool(64 << 10), pool(16 << 20), pool(64 << 10)];
    let outcome = ring.register_regions(pools.iter().map(Pool::region));

    assert_eq!(
        outcome.registered + outcome.left_out,
        (16 << 20) + (128 << 10)
    );
    assert_eq!(outcome.why.is_some(), outcome.left_out > 0);
    let root = nix::unistd::geteuid().is_root();
    assert!(
        root || outcome.why.is_some(),
        "an ordinary user has the limit"
    );
    if let Some(why) = outcome.why {
        let NotRegistered::Limit(limit) = why else {
            unreachable!("{why:?}");
        };
        assert!(limit <= LIMIT);
        assert!(outcome.left_out >= 16 << 20, "{outcome}");
        for words in [&limit.to_string(), "RLIMIT_MEMLOCK", "ulimit -l"] {
            assert!(outcome.to_string().contains(words), "{outcome}");
        }
    } else {
        // A privileged process has no limit, so all memory is registered.
        assert!(outcome.to_string().contains("registered"), "{outcome}");
    }

    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    for (tag, pool) in (0..).zip(&pools) {
        let buf = pool.take().unwrap();
        ring.write(tag, file, 0, buf, WriteMode::Normal).unwrap();
    }
    let mut done = Vec::new();
    while done.len() < pools.len() {
        ring.submit().unwrap();
        ring.reap(&mut done).unwrap();
    }
    assert!(done.iter().all(|done| done.result == Ok(4096)), "{done:?}");

    // Lent memory is not registered where not all own memory could be.
    let shareable = PoolLayout {
        count: 1,
        stride: 4096,
        lead: 0,
    };
    let peer = Pool::new(shareable, Pages::Shareable).unwrap();
    let region = Foreign::default().map(peer.region().file().unwrap(), 4096, 4096);
    let (marks, _) = Shared::create(4096).unwrap();
    let lender = Lender::new(region.unwrap().unwrap(), Arc::new(marks), 0, Arc::new(()));
    let buf = lender.lend(0, 0, 4096).unwrap();
    ring.write(9, file, 0, buf, WriteMode::Normal).unwrap();
    let fixed = usize::from(outcome.left_out == 0);
    assert_eq!((ring.lent_pieces(), ring.lent_left_out()), (fixed, None));
}
