//! Every mode, on any kernel that has the best one.

use std::io::Write;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Pages, Pool, PoolLayout};

use super::*;

fn pool() -> Pool {
    let layout = PoolLayout {
        count: 2,
        stride: 4096,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
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
fn every_mode_works_wakes_and_drains() {
    for mode in MODES {
        let Ok(mut ring) = Ring::in_one_of(&[mode], RingConfig::default()) else {
            continue;
        };
        let pool = pool();
        let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
        for round in 0..100 {
            let buf = pool.take().unwrap();
            let mode = crate::WriteMode::Dsync;
            ring.write(round, file, 0, buf, mode).unwrap();
            let done = wait(&mut ring);
            assert_eq!((done.tag, done.result), (round, Ok(4096)));
        }
        let (read, write) = nix::unistd::pipe().unwrap();
        let (pipe, mut write) = (ring.add_file(read.into()).unwrap(), File::from(write));
        ring.read(1, pipe, 0, pool.take().unwrap()).unwrap();
        ring.submit().unwrap();
        assert!(ring.arm());
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
fn a_completion_of_nothing_is_an_error_after_the_others() {
    let mut ring = Ring::new(RingConfig::default()).unwrap();
    let foreign = opcode::Nop::new().build().user_data(7 << 32 | 3);
    // SAFETY: doing nothing names no memory.
    unsafe { ring.ring.submission().push(&foreign) }.unwrap();
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
