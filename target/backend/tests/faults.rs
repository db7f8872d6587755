//! What goes wrong underneath comes out as an error that names the place.
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
fn a_file_cut_short_underneath_is_an_error_at_the_cut() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (file, claim) = file_in(dir);
        let mut bench = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        // In the middle of a block: the kernel's answers are no whole blocks.
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
    let told = String::from_utf8(run.stdout).ok()?;
    run.status.success().then(|| told.trim().to_owned())
}

/// Where we may make a block device.
#[test]
fn behind_the_end_of_a_block_device_it_is_gone_whether_it_is_read_or_written() {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let Some(device) = losetup(&["--find", "--show", file.path().to_str().unwrap()]) else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no loop device, which root can make"
        );
        return;
    };
    let told = std::panic::catch_unwind(|| {
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
    assert_eq!(told.unwrap(), [IoErrorKind::Removed; 2]);
}

#[test]
fn errors_of_the_kernel_keep_their_meaning() {
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
fn a_buffer_direct_io_cannot_use_is_refused() {
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
fn a_disk_answers_as_long_as_anything_of_it_can_be_read() {
    let (file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
    assert!(claim.answers());
    file.as_file().set_len(4096).unwrap();
    assert!(claim.answers(), "its start is there");
    let smaller = claim.resized().unwrap().unwrap();
    assert_eq!(smaller.identity(), claim.identity());
    file.as_file().set_len(0).unwrap();
    assert!(!claim.answers());
    let other = Claim::take(&"ram:1M".parse().unwrap(), None).unwrap();
    assert!(other.answers());
    assert_ne!(other.identity(), claim.identity());
}

/// The kernel says once that what was written cannot be made stable, to one who asks.
#[test]
fn what_a_failed_flush_lost_is_counted_for_all_who_have_the_file() {
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
        // Through the page cache it is written before it is made durable.
        let direct = claim.geometry().direct;
        let op = write(&bench, true);
        fails(&mut bench, op, direct);
        let op = read(&bench, 0, 512);
        fails(&mut bench, op, false);
        fails(&mut bench, zeroes(false), false);
        fails(&mut bench, zeroes(true), direct);
        fails(&mut bench, Op::Flush, true);
        // What it had in its cache went with it.
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

fn answered(backend: Box<dyn Backend>, errnos: &[Errno]) -> Box<dyn Backend> {
    let script = errnos.iter().copied().map(Fault::Kernel).collect();
    Box::new(Faulty::new(backend, Plan::Script(script)))
}

fn failing_once(backend: Box<dyn Backend>) -> Box<dyn Backend> {
    answered(backend, &[Errno::EIO])
}

fn flush(bench: &mut Bench) {
    bench.submit(Op::Flush, &mut Vec::new());
    bench.disks.kick().unwrap();
}

/// What the next `count` come to.
fn done(bench: &mut Bench, count: usize) -> Vec<Result<(), IoErrorKind>> {
    let mut done = Vec::new();
    while done.len() < count {
        bench.turn(&mut done);
    }
    let results = done.into_iter().map(|done| done.result);
    results.map(|it| it.map_err(|error| error.kind)).collect()
}

/// Looks in vain for what is done, for as long as the kernel needs for it.
fn assert_waits(bench: &mut Bench) {
    let mut done = Vec::new();
    for _ in 0..20 {
        assert!(!bench.disks.poll(&mut done).unwrap(), "{done:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Of two that flush at the same time one is told, and that may be the one who lost nothing.
#[test]
fn a_flush_is_answered_after_those_beside_it_and_fails_with_them() {
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
        assert!(other.disks.may_sleep().unwrap());
        assert_eq!(done(&mut first, 1), [expected]);
        let mut fds = [PollFd::new(other.disks.wait_fd(), PollFlags::POLLIN)];
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

/// In the page cache a durable write can take the error of a flush, since it is flushed
/// itself.
#[test]
fn a_durable_write_is_answered_after_a_flush_beside_it() {
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
fn a_flush_waits_for_durable_writes_beside_it() {
    for dir in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let (_file, claim) = file_in(dir);
        let mut first = Bench::new(&claim, Keeps::Bytes, failing_once);
        let mut other = Bench::new(&claim, Keeps::Bytes, |backend| backend);
        let (offset, fua, buf) = (4096, true, first.buf(512, 9));
        first.submit(Op::Write { offset, buf, fua }, &mut Vec::new());
        first.disks.kick().unwrap();
        flush(&mut other);
        if claim.geometry().direct {
            assert_waits(&mut other);
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(done(&mut other, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(claim.losses().now().count, 1);
        } else {
            // Through the page cache it was to be written, and takes nobody's error.
            assert_eq!(done(&mut other, 1), [Ok(())]);
            assert_eq!(done(&mut first, 1), [Err(IoErrorKind::Media)]);
            assert_eq!(claim.losses().now().count, 0);
            // Once written it is flushed, for which others wait.
            let (fua, buf) = (true, first.buf(512, 9));
            let mut ended = Vec::new();
            first.submit(Op::Write { offset, buf, fua }, &mut ended);
            while first.disks.ring().counts().operations < 3 {
                first.disks.poll(&mut ended).unwrap();
            }
            flush(&mut other);
            assert_waits(&mut other);
            assert_eq!(done(&mut first, 1), [Ok(())]);
            assert_eq!(done(&mut other, 1), [Ok(())]);
        }
        // A reactor that is gone keeps nobody waiting.
        flush(&mut first);
        flush(&mut other);
        assert_waits(&mut other);
        drop(first);
        assert_eq!(done(&mut other, 1), [Ok(())]);
    }
}

#[test]
fn those_who_flush_while_one_does_share_the_next() {
    // What it works with, how many of ten are well, operations, and what is lost.
    let wraps: [(Wrap, _, _, _); 4] = [
        (|backend| backend, 10, 2, 0),
        (failing_once, 9, 2, 1),
        (|backend| answered(backend, &[Errno::EINTR]), 10, 3, 0),
        // All but the first one fail, together.
        (
            |backend| answered(backend, &[Errno::EINTR, Errno::EIO]),
            1,
            3,
            1,
        ),
    ];
    for (wrap, well, operations, lost) in wraps {
        let (_file, claim) = file_in(env!("CARGO_TARGET_TMPDIR"));
        let mut bench = Bench::new(&claim, Keeps::Bytes, wrap);
        for _ in 0..10 {
            flush(&mut bench);
        }
        assert_eq!(bench.disks.in_flight(), 10);
        let done = done(&mut bench, 10);
        assert_eq!(done.iter().filter(|it| it.is_ok()).count(), well);
        assert_eq!(bench.disks.ring().counts().operations, operations);
        assert_eq!(claim.losses().now().count, lost);
    }
}
