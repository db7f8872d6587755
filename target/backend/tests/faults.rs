//! Errors of files and devices: their class, path and offset, and the losses they count.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_backend::{Backend, Claim, IoErrorKind, Op, Spec};
use nvmeof_backend_conformance::{Bench, Keeps, Wrap};
use nvmeof_backend_layers::{Fault, Faulty, Plan};
use tempfile::NamedTempFile;

fn file_in(dir: &str) -> (NamedTempFile, Claim) {
    let file = NamedTempFile::new_in(dir).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = file.path().to_owned();
    let readonly = false;
    let claim = Claim::take(&Spec::File { path, readonly }, None).unwrap();
    (file, claim)
}

fn read(bench: &Bench, offset: u64, len: usize) -> Op {
    let buf = bench.buf(len, 0);
    Op::Read { offset, buf }
}

#[test]
fn read_of_truncated_file_fails_at_its_end() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (file, claim) = file_in(dir);
        let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        // In the middle of a block: the kernel returns partial blocks.
        file.as_file().set_len(8192 + 100).unwrap();
        for (offset, cut) in [(4096, 8192), (8192, 8192), (65536, 65536)] {
            let error = bench.err(read(&bench, offset, 16384));
            assert_eq!(error.kind, IoErrorKind::Removed);
            assert_eq!((error.verb, error.offset), ("read", cut));
            let message = error.to_string();
            let path = file.path().to_str().unwrap();
            assert!(message.contains(path), "{message}");
            assert!(message.contains(&cut.to_string()), "{message}");
        }
        bench.ok(read(&bench, 0, 8192));
        assert_eq!(bench.pool.available(), bench.pool.count());
    }
}

fn losetup(arguments: &[&str]) -> Option<String> {
    let run = Command::new("losetup").args(arguments).output().ok()?;
    let output = String::from_utf8(run.stdout).ok()?;
    run.status.success().then(|| output.trim().to_owned())
}

/// Requires permission to create a loop device.
#[test]
fn access_beyond_the_end_of_a_block_device_means_gone() {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let Some(device) = losetup(&["--find", "--show", file.path().to_str().unwrap()]) else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: cannot create a loop device; run as root"
        );
        return;
    };
    let kinds = std::panic::catch_unwind(|| {
        let claim = Claim::take(&device.parse().unwrap(), None).unwrap();
        let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        file.as_file().set_len(65536).unwrap();
        losetup(&["--set-capacity", &device]).unwrap();
        let (offset, fua) = (131_072, false);
        let written = Op::Write {
            offset,
            buf: bench.buf(4096, 1),
            fua,
        };
        let read = read(&bench, offset, 4096);
        [written, read].map(|op| bench.err(op).kind)
    });
    losetup(&["--detach", &device]).unwrap();
    assert_eq!(kinds.unwrap(), [IoErrorKind::Removed; 2]);
}

#[test]
fn errno_is_mapped_to_error_kind() {
    let kinds = [
        (Errno::EIO, IoErrorKind::Media),
        (Errno::ENODATA, IoErrorKind::Media),
        (Errno::ENOSPC, IoErrorKind::NoSpace),
        (Errno::EDQUOT, IoErrorKind::NoSpace),
        (Errno::ENODEV, IoErrorKind::Removed),
        (Errno::EROFS, IoErrorKind::ReadOnly),
        (Errno::EFBIG, IoErrorKind::Limits),
        (Errno::ENOMEM, IoErrorKind::Other),
    ];
    let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
    let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| {
        let all = [
            Errno::EIO,
            Errno::ENODATA,
            Errno::ENOSPC,
            Errno::EDQUOT,
            Errno::ENODEV,
            Errno::EROFS,
            Errno::EFBIG,
            Errno::ENOMEM,
        ];
        let script = all.into_iter().map(Fault::Error).collect();
        Box::new(Faulty::new(backend, Plan::Script(script)))
    });
    for (errno, kind) in kinds {
        let (offset, fua) = (4096, false);
        let buf = bench.buf(512, 9);
        let done = bench.run(Op::Write { offset, buf, fua });
        let error = done.result.unwrap_err();
        assert_eq!((error.kind, error.errno), (kind, errno));
        assert_eq!((error.offset, &*error.path), (4096, claim.name()));
        assert_eq!(done.buf.unwrap()[0], 9);
    }
    bench.fill(4096, 512, 8, false);
    assert_eq!(bench.read(4096, 512), vec![8; 512]);
}

#[test]
fn misaligned_buffer_is_refused_with_direct_io() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (_file, claim) = file_in(dir);
        let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        let mut buf = bench.buf(1024, 1);
        let start = buf.view().start + 1;
        buf.set_view(start..start + 512).unwrap();
        let result = bench.run(Op::Read { offset: 0, buf }).result;
        let expected = if claim.geometry().direct {
            Err(IoErrorKind::Limits)
        } else {
            Ok(())
        };
        assert_eq!(result.map_err(|error| error.kind), expected);
    }
}

#[test]
fn claim_answers_while_any_block_is_readable() {
    let (file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
    assert!(claim.is_readable());
    file.as_file().set_len(4096).unwrap();
    assert!(claim.is_readable(), "its start is readable");
    let smaller = claim.resized().unwrap().unwrap();
    assert_eq!(smaller.identity(), claim.identity());
    file.as_file().set_len(0).unwrap();
    assert!(!claim.is_readable());
    let other = Claim::take(&"ram:1M".parse().unwrap(), None).unwrap();
    assert!(other.is_readable());
    assert_ne!(other.identity(), claim.identity());
}

/// The kernel reports a failed writeback once, to one caller of fsync(2).
#[test]
fn failed_flush_counts_a_loss_for_every_user_of_the_file() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (file, claim) = file_in(dir);
        let zeroes = |fua| Op::WriteZeroes {
            offset: 0,
            len: 4096,
            may_deallocate: false,
            fua,
        };
        let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| {
            let script = [Errno::EIO; 7].into_iter();
            let script = script.chain([Errno::ENODEV, Errno::ENODEV, Errno::ENOSPC]);
            let script = script.map(Fault::Kernel).collect();
            Box::new(Faulty::new(backend, Plan::Script(script)))
        });
        let write = |bench: &Bench, fua| {
            let (offset, buf) = (4096, bench.buf(512, 9));
            Op::Write { offset, buf, fua }
        };
        let mut count = 0;
        let mut fails = |bench: &mut Bench, op, loses| {
            let before = format!("{op:?}");
            let error = bench.err(op);
            count += u64::from(loses);
            assert_eq!(
                claim.losses().now().count,
                count,
                "{dir}: {error}: {before}"
            );
        };
        fails(&mut bench, Op::Flush, true);
        let op = write(&bench, false);
        fails(&mut bench, op, false);
        // A buffered write is written before it is made durable.
        let direct = claim.geometry().direct;
        let op = write(&bench, true);
        fails(&mut bench, op, direct);
        let op = read(&bench, 0, 512);
        fails(&mut bench, op, false);
        fails(&mut bench, zeroes(false), false);
        fails(&mut bench, zeroes(true), direct);
        fails(&mut bench, Op::Flush, true);
        // The write cache of the device is lost with it.
        let op = read(&bench, 0, 512);
        fails(&mut bench, op, true);
        let op = write(&bench, false);
        fails(&mut bench, op, true);
        let op = write(&bench, true);
        fails(&mut bench, op, false);
        bench.ok(Op::Flush);
        // With another size, and opened again.
        let lost = claim.losses().now();
        assert_eq!(claim.with_size(8192).unwrap().losses().now(), lost);
        drop((bench, claim));
        let (path, readonly) = (file.path().to_owned(), false);
        let again = Claim::take(&Spec::File { path, readonly }, None).unwrap();
        assert_eq!(again.losses().now(), lost);
        let (_file, other) = file_in(dir);
        assert_eq!(other.losses().now().count, 0);
        assert_ne!(other.losses().now().storage, lost.storage);
    }
}

fn with_errnos(backend: Box<dyn Backend>, errnos: &[Errno]) -> Box<dyn Backend> {
    let script = errnos.iter().copied().map(Fault::Kernel).collect();
    Box::new(Faulty::new(backend, Plan::Script(script)))
}

fn failing_once(backend: Box<dyn Backend>) -> Box<dyn Backend> {
    with_errnos(backend, &[Errno::EIO])
}

fn flush(bench: &mut Bench) {
    bench.submit(Op::Flush, &mut Vec::new());
    bench.stores.kick().unwrap();
}

/// The results of the next `count` completions.
fn done(bench: &mut Bench, count: usize) -> Vec<Result<(), IoErrorKind>> {
    let mut done = Vec::new();
    while done.len() < count {
        bench.poll_once(&mut done);
    }
    let results = done.into_iter().map(|done| done.result);
    results.map(|it| it.map_err(|error| error.kind)).collect()
}

/// Asserts that nothing completes for a while.
fn assert_waits(bench: &mut Bench) {
    let mut done = Vec::new();
    for _ in 0..20 {
        assert!(!bench.stores.poll(&mut done).unwrap(), "{done:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of two concurrent flushes the kernel reports a loss to one, which may be either.
#[test]
fn flush_completes_after_concurrent_flushes_and_fails_with_them() {
    let wraps: [(Wrap, _, _); 2] = [
        (|backend| backend, Ok(()), 0),
        (failing_once, Err(IoErrorKind::Media), 1),
    ];
    for (wrap, expected, lost) in wraps {
        let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
        let mut first = Bench::new(&claim, Keeps::Bytes, wrap);
        let mut other = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        flush(&mut first);
        flush(&mut other);
        assert_waits(&mut other);
        assert!(other.stores.may_sleep().unwrap());
        assert_eq!(done(&mut first, 1), [expected]);
        let mut fds = [PollFd::new(other.stores.wait_fd(), PollFlags::POLLIN)];
        assert_eq!(
            poll(&mut fds, PollTimeout::ZERO),
            Ok(1),
            "its thread is woken"
        );
        assert_eq!(done(&mut other, 1), [expected]);
        assert_eq!(claim.losses().now().count, lost, "once");
        other.ok(Op::Flush);
        first.ok(Op::Flush);
    }
}

/// A durable buffered write can get the error of a concurrent flush, since it is flushed as
/// well.
#[test]
fn durable_buffered_write_completes_after_concurrent_flush() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (_file, claim) = file_in(dir);
        let mut first = Bench::new(&claim, Keeps::Bytes, failing_once);
        let mut other = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        flush(&mut first);
        let (offset, fua, buf) = (4096, true, other.buf(512, 9));
        other.submit(Op::Write { offset, buf, fua }, &mut Vec::new());
        if claim.geometry().direct {
            assert_eq!(done(&mut other, 1), [Ok(())], "it fails by itself");
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
        } else {
            assert_waits(&mut other);
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(done(&mut other, 1), [Err(IoErrorKind::Media)]);
        }
        assert_eq!(claim.losses().now().count, 1);
        assert_eq!(other.pool.available(), other.pool.count());
    }
}

#[test]
fn flush_waits_for_concurrent_fua_writes() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (_file, claim) = file_in(dir);
        let mut first = Bench::new(&claim, Keeps::Bytes, failing_once);
        let mut other = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        let (offset, fua, buf) = (4096, true, first.buf(512, 9));
        first.submit(Op::Write { offset, buf, fua }, &mut Vec::new());
        first.stores.kick().unwrap();
        flush(&mut other);
        if claim.geometry().direct {
            assert_waits(&mut other);
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(done(&mut other, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(claim.losses().now().count, 1);
        } else {
            // A failed buffered write is not a loss of other writes.
            assert_eq!(done(&mut other, 1), [Ok(())]);
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(claim.losses().now().count, 0);
            // A written one is flushed, and other flushes wait for that.
            let (fua, buf) = (true, first.buf(512, 9));
            let mut ended = Vec::new();
            first.submit(Op::Write { offset, buf, fua }, &mut ended);
            while first.stores.ring().counts().operations < 3 {
                first.stores.poll(&mut ended).unwrap();
            }
            flush(&mut other);
            assert_waits(&mut other);
            assert_eq!(done(&mut first, 1), [Ok(())]);
            assert_eq!(done(&mut other, 1), [Ok(())]);
        }
        // A dropped reactor does not delay others.
        flush(&mut first);
        flush(&mut other);
        assert_waits(&mut other);
        drop(first);
        assert_eq!(done(&mut other, 1), [Ok(())]);
    }
}

#[test]
fn flushes_during_a_flush_share_the_next_one() {
    // The wrapper, the number of ten that succeed, operations, and losses.
    let wraps: [(Wrap, _, _, _); 4] = [
        (|backend| backend, 10, 2, 0),
        (failing_once, 9, 2, 1),
        (|backend| with_errnos(backend, &[Errno::EINTR]), 10, 3, 0),
        // All but the first one fail, together.
        (
            |backend| with_errnos(backend, &[Errno::EINTR, Errno::EIO]),
            1,
            3,
            1,
        ),
    ];
    for (wrap, succeeded, operations, lost) in wraps {
        let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
        let mut bench = Bench::new(&claim, Keeps::Bytes, wrap);
        for _ in 0..10 {
            flush(&mut bench);
        }
        assert_eq!(bench.stores.in_flight(), 10);
        let done = done(&mut bench, 10);
        assert_eq!(done.iter().filter(|it| it.is_ok()).count(), succeeded);
        assert_eq!(bench.stores.ring().counts().operations, operations);
        assert_eq!(claim.losses().now().count, lost);
    }
}
