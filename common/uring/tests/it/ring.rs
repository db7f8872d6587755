//! Rings on real files and pipes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::fcntl::FallocateFlags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_uring::{Done, FileId, Mode, RefusalReason, Ring, RingConfig, WriteMode};

const STRIDE: usize = 4096;

fn pool(count: usize) -> Pool {
    let layout = PoolLayout {
        count,
        stride: STRIDE,
        lead: 0,
    };
    Pool::new(layout, Pages::Normal).unwrap()
}

fn small_ring() -> Ring {
    let config = RingConfig {
        entries: 4,
        in_flight: 16,
        files: 4,
        thread: None,
        ..RingConfig::default()
    };
    Ring::new(config).unwrap()
}

/// Waits for `count` completions, sleeping on the ring's descriptor.
fn wait(ring: &mut Ring, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    loop {
        ring.submit().unwrap();
        ring.reap(&mut done).unwrap();
        if done.len() >= count {
            return done;
        }
        sleep(ring);
    }
}

fn sleep(ring: &mut Ring) {
    if ring.arm() {
        let mut fds = [PollFd::new(ring.wait_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).unwrap();
    }
}

fn readable(ring: &Ring) -> bool {
    let mut fds = [PollFd::new(ring.wait_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

fn one(ring: &mut Ring) -> Done {
    wait(ring, 1).pop().unwrap()
}

fn filled(pool: &Pool, byte: u8) -> Buf {
    let mut buf = pool.take().unwrap();
    buf.fill(byte);
    buf
}

/// A pipe whose read end is in the ring.
fn pipe(ring: &mut Ring) -> (FileId, File) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let id = ring.add_file(File::from(read)).unwrap();
    (id, File::from(write))
}

#[test]
fn bytes_written_are_read_with_and_without_registration() {
    for register in [false, true] {
        let (pool, mut ring) = (pool(2), small_ring());
        if register {
            let registered = ring.register_regions([pool.region()]);
            assert_eq!((registered.left_out, registered.why), (0, None));
        }
        let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
        let mut buf = filled(&pool, 7);
        buf.set_view(512..1536).unwrap();
        ring.write(1, file, 4096, buf, WriteMode::Dsync).unwrap();
        let Done { tag, result, buf } = one(&mut ring);
        assert_eq!((tag, result), (1, Ok(1024)));
        assert_eq!(buf.unwrap().view(), 512..1536);

        ring.read(2, file, 4096 - 8, filled(&pool, 9)).unwrap();
        let Done { tag, result, buf } = one(&mut ring);
        assert_eq!((tag, result), (2, Ok(8 + 1024)), "short at the end");
        let buf = buf.unwrap();
        assert_eq!((buf.len(), &buf[..8]), (STRIDE, &[0; 8][..]));
        assert!(buf[8..1032].iter().all(|byte| *byte == 7));
        assert!(buf[1032..].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn operations_beyond_ring_size_are_refused() {
    let (pool, mut ring) = (pool(17), small_ring());
    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    for n in 0..16u8 {
        let (at, buf) = (u64::from(n) * 4096, filled(&pool, n));
        ring.write(n.into(), file, at, buf, WriteMode::Normal)
            .unwrap();
    }
    assert_eq!((ring.in_flight(), ring.room()), (16, 0));
    let refused = ring
        .write(99, file, 0, filled(&pool, 99), WriteMode::Normal)
        .unwrap_err();
    assert_eq!((refused.why, refused.back[0]), (RefusalReason::Full, 99));
    assert_eq!(
        ring.fsync(98, file, true).unwrap_err().why,
        RefusalReason::Full
    );

    let mut done = wait(&mut ring, 16);
    done.sort_by_key(|done| done.tag);
    for (n, done) in (0u8..).zip(done) {
        assert_eq!((done.tag, done.result), (n.into(), Ok(4096)));
        assert_eq!(done.buf.unwrap()[0], n);
    }
    assert_eq!((ring.in_flight(), ring.room()), (0, 16));
}

#[test]
fn failed_operation_returns_errno_and_buffer() {
    let (pool, mut ring) = (pool(1), small_ring());
    let reading = File::open("/proc/self/exe").unwrap();
    let file = ring.add_file(reading).unwrap();
    ring.write(5, file, 0, filled(&pool, 1), WriteMode::Normal)
        .unwrap();
    let done = one(&mut ring);
    assert_eq!((done.tag, done.result), (5, Err(Errno::EBADF)));
    assert_eq!(done.buf.unwrap()[0], 1);
}

#[test]
fn holes_and_synchronisation() {
    let (pool, mut ring) = (pool(1), small_ring());
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let file = ring.add_file(file).unwrap();
    ring.write(1, file, 0, filled(&pool, 1), WriteMode::Normal)
        .unwrap();
    one(&mut ring);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    ring.fallocate(2, file, punch, 0, 2048).unwrap();
    assert_eq!(one(&mut ring).result, Ok(0));
    ring.fsync(3, file, true).unwrap();
    assert_eq!(one(&mut ring).result, Ok(0));
    ring.read(4, file, 0, filled(&pool, 9)).unwrap();
    let buf = one(&mut ring).buf.unwrap();
    assert!(buf[..2048].iter().all(|byte| *byte == 0));
    assert!(buf[2048..].iter().all(|byte| *byte == 1));
}

#[test]
fn completion_wakes_sleeping_thread() {
    let (pool, mut ring) = (pool(1), small_ring());
    let (id, mut write) = pipe(&mut ring);
    ring.read(1, id, 0, pool.take().unwrap()).unwrap();
    ring.submit().unwrap();
    assert!(ring.arm() && !readable(&ring), "nothing is done");
    let writer = std::thread::spawn(move || {
        write.write_all(b"wake up").unwrap();
        write
    });
    sleep(&mut ring);
    let done = one(&mut ring);
    assert_eq!(done.result, Ok(7));
    assert_eq!(&done.buf.unwrap()[..7], b"wake up");
    assert!(ring.arm() && !readable(&ring), "all of it was taken");
    drop(writer.join().unwrap());
}

#[test]
fn completion_wakes_epoll() {
    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
    let (pool, mut ring) = (pool(1), small_ring());
    let (id, mut write) = pipe(&mut ring);
    let epoll = Epoll::new(EpollCreateFlags::empty()).unwrap();
    epoll
        .add(ring.wait_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 77))
        .unwrap();
    let mut events = [EpollEvent::empty(); 2];
    for round in 0..3u8 {
        ring.read(round.into(), id, 0, pool.take().unwrap())
            .unwrap();
        assert!(!ring.arm(), "something is to be submitted");
        ring.submit().unwrap();
        assert!(ring.arm());
        assert_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(0));
        write.write_all(&[round]).unwrap();
        assert_eq!(epoll.wait(&mut events, EpollTimeout::NONE), Ok(1));
        assert_eq!(events[0].data(), 77);
        assert!(!ring.arm(), "something is to be reaped");
        assert_eq!(one(&mut ring).buf.unwrap()[0], round);
    }
}

#[test]
fn drop_of_ring_waits_for_kernel() {
    for register in [false, true] {
        let (pool, mut ring) = (pool(3), small_ring());
        if register {
            ring.register_regions([pool.region()]);
        }
        let (id, mut write) = pipe(&mut ring);
        // One in flight, one not submitted, one that can complete.
        ring.read(1, id, 0, filled(&pool, 1)).unwrap();
        ring.submit().unwrap();
        ring.read(2, id, 0, filled(&pool, 2)).unwrap();
        let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
        ring.write(3, file, 0, filled(&pool, 3), WriteMode::Dsync)
            .unwrap();
        assert_eq!((pool.available(), ring.in_flight()), (0, 3));
        drop(ring);
        assert_eq!(pool.available(), 3, "all buffers came back");
        // With no reader left the kernel has nowhere to put this.
        assert_eq!(
            write.write_all(b"too late").unwrap_err().kind(),
            std::io::ErrorKind::BrokenPipe
        );
    }
}

#[test]
fn removed_file_is_unknown_and_its_operations_complete() {
    let (pool, mut ring) = (pool(2), small_ring());
    let (id, mut write) = pipe(&mut ring);
    ring.read(1, id, 0, pool.take().unwrap()).unwrap();
    drop(ring.remove_file(id).unwrap().unwrap());
    assert!(ring.remove_file(id).unwrap().is_none());
    let (other, _other_write) = pipe(&mut ring);
    assert_ne!(other, id, "the place is used again, the id is not");
    let refused = ring.read(2, id, 0, filled(&pool, 5)).unwrap_err();
    assert_eq!(
        (refused.why, refused.back[0]),
        (RefusalReason::UnknownFile, 5)
    );
    write.write_all(b"x").unwrap();
    let done = one(&mut ring);
    assert_eq!((done.tag, done.result), (1, Ok(1)));
}

#[test]
fn full_file_table_refuses_another_file() {
    let mut ring = small_ring();
    let mut ids: Vec<_> = (0..4).map(|_| pipe(&mut ring)).collect();
    let file = tempfile::tempfile().unwrap();
    let full = ring.add_file(file.try_clone().unwrap()).unwrap_err();
    assert!(full.to_string().contains("all 4 slots"), "{full}");
    ring.remove_file(ids.pop().unwrap().0).unwrap();
    ring.add_file(file).unwrap();
}

/// The kernel decodes the entries of the submission queue in the fdinfo of the descriptor.
#[test]
fn submission_entries_have_requested_opcodes_and_flags() {
    let (pool, mut ring) = (pool(4), small_ring());
    let listed = ring.register_regions([pool.region()]).registered > 0;
    let file = ring.add_file(tempfile::tempfile().unwrap()).unwrap();
    ring.write(1, file, 0, filled(&pool, 0), WriteMode::Normal)
        .unwrap();
    ring.write(2, file, 0, filled(&pool, 0), WriteMode::Dsync)
        .unwrap();
    ring.fsync(3, file, true).unwrap();
    ring.fsync(4, file, false).unwrap();
    let path = format!("/proc/self/fdinfo/{}", ring.as_fd().as_raw_fd());
    let info = std::fs::read_to_string(path).unwrap();
    let asked: Vec<&str> = info.lines().filter(|it| it.contains("opcode:")).collect();
    if asked.is_empty() {
        // Before Linux 6.0 only counters are printed.
        return;
    }
    let write = if listed { "WRITE_FIXED" } else { "WRITE" };
    for (line, opcode, flags) in [
        (asked[0], write, "rw_flags:0x0"),
        (asked[1], write, "rw_flags:0x2"),   // RWF_DSYNC
        (asked[2], "FSYNC", "rw_flags:0x1"), // IORING_FSYNC_DATASYNC
        (asked[3], "FSYNC", "rw_flags:0x0"),
    ] {
        assert!(line.contains(&format!("opcode:{opcode},")), "{line}");
        assert!(line.contains(&format!("{flags},")), "{line}");
    }
    wait(&mut ring, 4);
}

#[test]
fn ring_uses_best_supported_mode() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    if (number(), number()) >= (6, 1) {
        assert_eq!(small_ring().mode(), Mode::Deferred);
    }
}
