//! Rings in each mode that this kernel supports.

use std::io::Write;
use std::time::Duration;

use io_uring::opcode;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Pages, Pool, PoolLayout};

use super::*;
use crate::KernelThread;

fn pool() -> Pool {
    let layout = PoolLayout {
        count: 2,
        stride: 4096,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
}

fn thread(idle_ms: u64) -> KernelThread {
    KernelThread {
        idle: Duration::from_millis(idle_ms),
        cpu: None,
    }
}

/// Waits for one completion, sleeping.
fn wait(ring: &mut Ring) -> Done {
    let mut done = Vec::new();
    loop {
        ring.submit().unwrap();
        ring.reap(&mut done).unwrap();
        if let Some(done) = done.pop() {
            return done;
        }
        if ring.arm() {
            let mut fds = [PollFd::new(ring.wait_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => panic!("{errno}"),
            }
        }
    }
}

#[test]
fn each_mode_completes_wakes_and_drains() {
    let threads = [1, 600_000].map(|ms| (Mode::Thread, Some(thread(ms))));
    for (mode, thread) in MODES.map(|mode| (mode, None)).into_iter().chain(threads) {
        let config = RingConfig {
            thread,
            ..RingConfig::default()
        };
        let Ok(mut ring) = Ring::in_one_of(&[mode], config) else {
            continue;
        };
        assert_eq!(ring.mode(), mode);
        let pool = pool();
        let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
        for round in 0..100 {
            let buf = pool.take().unwrap();
            let mode = WriteMode::Dsync;
            ring.write(round, file, 0, buf, mode).unwrap();
            let done = wait(&mut ring);
            assert_eq!((done.tag, done.result), (round, Ok(4096)));
        }
        let (read, write) = nix::unistd::pipe().unwrap();
        let (pipe, mut write) = (ring.add_file(read.into()).unwrap(), File::from(write));
        ring.read(1, pipe, 0, pool.take().unwrap()).unwrap();
        ring.submit().unwrap();
        // The kernel's thread may not have taken it yet.
        while !ring.arm() {
            std::thread::yield_now();
        }
        let writer = std::thread::spawn(move || {
            write.write_all(b"x").unwrap();
            write
        });
        assert_eq!(wait(&mut ring).result, Ok(1), "{mode:?}");
        let _write = writer.join().unwrap();

        ring.read(2, pipe, 0, pool.take().unwrap()).unwrap();
        ring.submit().unwrap();
        drop(ring);
        assert_eq!(pool.available(), 2, "{mode:?}");
    }
}

#[test]
fn waker_ends_one_sleep() {
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    let readable = |ring: &Ring, timeout| {
        let mut fds = [PollFd::new(ring.wait_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout) == Ok(1)
    };
    // Woken before the sleep or during it.
    for sleeps in [false, true] {
        assert!(!sleeps || ring.arm());
        let waker = ring.waker();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        assert!(ring.arm());
        assert!(readable(&ring, PollTimeout::NONE));
        ring.submit().unwrap();
        assert!(ring.arm());
        assert!(!readable(&ring, PollTimeout::ZERO), "once");
        ring.submit().unwrap();
    }
}

#[test]
fn stray_completion_is_error_after_others() {
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    let foreign = opcode::Nop::new().build().user_data(7 << 32 | 3);
    // SAFETY: doing nothing names no memory.
    unsafe { ring.first.ring.submission().push(&foreign) }.unwrap();
    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    ring.fsync(1, file, true).unwrap();
    let mut done = Vec::new();
    let mut stray = None;
    while done.is_empty() || stray.is_none() {
        ring.submit().unwrap();
        if let Err(error) = ring.reap(&mut done) {
            stray = Some(error.user_data);
        }
    }
    assert_eq!((done[0].tag, stray), (1, Some(7 << 32 | 3)));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn batch_takes_few_system_calls_with_fixed_buffers() {
    let layout = PoolLayout {
        count: 64,
        stride: 4096,
        lead: 0,
    };
    let pool = Pool::new(layout, Pages::Normal).unwrap();
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    ring.register_regions([pool.region()]);
    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    let mut done = Vec::new();
    for round in 0..4 {
        let before = ring.counts();
        for tag in 0..63 {
            let buf = pool.take().unwrap();
            let mode = WriteMode::Normal;
            ring.write(tag, file, tag * 4096, buf, mode).unwrap();
        }
        let after = ring.counts();
        assert_eq!((after.operations, after.not_fixed), ((round + 1) * 63, 0));
        // Seven batches of eight while they are started, and the last seven operations.
        assert_eq!(after.enters, before.enters + 7);
        ring.submit().unwrap();
        assert_eq!(ring.counts().enters, before.enters + 8);
        while ring.in_flight() > 0 {
            ring.submit().unwrap();
            ring.reap(&mut done).unwrap();
        }
        done.clear();
        // Without operations there is no system call.
        let before = ring.counts();
        ring.submit().unwrap();
        assert_eq!(ring.counts(), before);
    }
    let other = self::pool();
    ring.write(0, file, 0, other.take().unwrap(), WriteMode::Normal)
        .unwrap();
    assert_eq!(ring.counts().not_fixed, 1);
}

#[test]
fn submit_to_awake_sqpoll_thread_takes_no_system_call() {
    let config = RingConfig {
        thread: Some(thread(600_000)),
        ..RingConfig::default()
    };
    let mut ring = Ring::new(config).unwrap();
    let pool = pool();
    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    let mut done = Vec::new();
    let mut woken = 0;
    for tag in 0..100 {
        let buf = pool.take().unwrap();
        ring.write(tag, file, 0, buf, WriteMode::Normal).unwrap();
        while ring.in_flight() > 0 {
            ring.submit().unwrap();
            ring.reap(&mut done).unwrap();
        }
        done.clear();
        // The thread sleeps at first.
        woken = if tag == 0 {
            ring.counts().enters
        } else {
            woken
        };
    }
    assert_eq!(ring.counts().operations, 100);
    assert_eq!(ring.counts().enters, woken);
    let removed = ring.remove_file(file).unwrap();
    assert!(removed.is_some());
}

/// Where the device cannot be polled, reads fail with `EOPNOTSUPP`, and all other operations
/// on such a file work.
#[test]
fn polled_file_without_poll_queues_fails_reads_only() {
    let pool = pool();
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    ring.register_regions([pool.region()]);
    let polled = ring.add_polled_file(tempfile::tempfile().unwrap()).unwrap();
    let usual = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    for round in 0..3 {
        ring.read(1, polled, 0, pool.take().unwrap()).unwrap();
        assert!(!ring.arm(), "a polling thread cannot sleep");
        let done = wait(&mut ring);
        // The file has no direct I/O and its device no poll queues.
        assert_eq!(
            (done.tag, done.result),
            (1, Err(Errno::EOPNOTSUPP)),
            "{round}"
        );
        assert!(done.buf.is_some());
        drop(done);
        ring.fsync(2, polled, true).unwrap();
        assert_eq!(wait(&mut ring).result, Ok(0));
        let durable = WriteMode::Dsync;
        ring.write(3, polled, 0, pool.take().unwrap(), durable)
            .unwrap();
        assert_eq!(wait(&mut ring).result, Ok(4096));
        let normal = WriteMode::Normal;
        ring.write(4, usual, 0, pool.take().unwrap(), normal)
            .unwrap();
        assert_eq!(wait(&mut ring).result, Ok(4096));
        assert_eq!((ring.in_flight(), ring.counts().not_fixed), (0, 0));
    }
    assert!(ring.remove_file(polled).unwrap().is_some());
    let refused = ring.read(1, polled, 0, pool.take().unwrap()).unwrap_err();
    assert_eq!(refused.why, crate::RefusalReason::UnknownFile);
    drop(refused);
    let again = ring.add_polled_file(tempfile::tempfile().unwrap()).unwrap();
    ring.read(5, again, 0, pool.take().unwrap()).unwrap();
    drop(ring);
    assert_eq!(pool.available(), 2);
}
