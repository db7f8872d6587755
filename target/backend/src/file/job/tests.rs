//! Requests in progress, without a kernel.

use super::*;

fn zero_job(may_deallocate: bool, fua: bool) -> Job {
    let op = Op::WriteZeroes {
        offset: 4096,
        len: 8192,
        may_deallocate,
        fua,
    };
    Job::new(&op, BlockSize::B512, true)
}

fn deallocate_job(fua: bool) -> Job {
    let (offset, len) = (4096, 8192);
    let op = Op::Deallocate { offset, len, fua };
    Job::new(&op, BlockSize::B512, true)
}

/// Runs the job over `results` and returns its steps.
fn run(job: &mut Job, zeroes: &mut Zeroes, results: &[Result<u32, Errno>]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (n, result) in results.iter().enumerate() {
        steps.push(job.step(zeroes));
        match job.advance(*result, zeroes, "test") {
            Next::Done(done) => {
                assert_eq!((done, n + 1), (Ok(()), results.len()));
            }
            Next::Step | Next::Later => assert!(n + 1 < results.len()),
        }
    }
    steps
}

#[test]
fn write_zeroes_falls_back_and_remembers_unsupported_operations() {
    let no = Err(Errno::EOPNOTSUPP);
    let mut zeroes = Zeroes::default();
    let steps = run(
        &mut zero_job(true, true),
        &mut zeroes,
        &[no, no, Ok(4096), Err(Errno::EINTR), Ok(700), Ok(4096)],
    );
    let len = 8192;
    let expected = [
        Step::Punch { len },
        Step::ZeroRange { len },
        Step::WriteZeroes { len },
        Step::WriteZeroes { len: 4096 },
        Step::WriteZeroes { len: 4096 },
        Step::WriteZeroes { len: 4096 - 512 },
    ];
    assert_eq!(steps, expected);
    assert_eq!(
        run(&mut zero_job(true, false), &mut zeroes, &[Ok(8192)]),
        [Step::WriteZeroes { len }]
    );
}

#[test]
fn failed_fua_write_loses_no_earlier_writes() {
    for fua in [false, true] {
        let job = zero_job(false, fua);
        for kind in [IoErrorKind::Media, IoErrorKind::Other] {
            assert_eq!(job.loses_earlier(kind, false), fua, "{kind:?}");
            assert!(!job.loses_earlier(kind, true), "{kind:?}");
        }
        assert!(!job.loses_earlier(IoErrorKind::NoSpace, false));
        assert!(job.loses_earlier(IoErrorKind::Removed, true));
    }
}

/// The operation that fails shows whether the write failed, or making it and other writes
/// durable.
#[test]
fn buffered_fua_write_is_followed_by_fdatasync() {
    let mut zeroes = Zeroes::default();
    for (kind, first) in [
        (Kind::Write(0..8192), Step::Write),
        (
            Kind::WriteZeroes(ZeroMethod::Write),
            Step::WriteZeroes { len: 8192 },
        ),
    ] {
        let mut job = zero_job(false, true);
        (job.kind, job.direct) = (kind, false);
        assert!(!job.writes_through());
        assert_eq!(job.step(&zeroes), first);
        assert!(!job.loses_earlier(IoErrorKind::Media, false), "not written");
        assert_eq!(job.advance(Ok(4096), &mut zeroes, ""), Next::Step);
        assert_ne!(job.step(&zeroes), Step::Sync, "a half of it");
        assert_eq!(job.advance(Ok(4096), &mut zeroes, ""), Next::Step);
        assert_eq!(job.step(&zeroes), Step::Sync);
        assert!(job.loses_earlier(IoErrorKind::Media, false), "not durable");
        let busy = Err(Errno::EINTR);
        assert_eq!(job.advance(busy, &mut zeroes, ""), Next::Later);
        assert_eq!(job.step(&zeroes), Step::Sync);
        assert_eq!(job.advance(Ok(0), &mut zeroes, ""), Next::Done(Ok(())));
    }
    // A write that bypasses the page cache is one operation.
    let mut job = zero_job(false, true);
    job.kind = Kind::Write(0..8192);
    assert!(job.writes_through());
    assert_eq!(job.advance(Ok(8192), &mut zeroes, ""), Next::Done(Ok(())));
}

#[test]
fn durable_write_zeroes_is_followed_by_sync() {
    let len = 8192;
    for (may_deallocate, first) in [
        (true, Step::Punch { len }),
        (false, Step::ZeroRange { len }),
    ] {
        let mut job = zero_job(may_deallocate, true);
        let steps = run(&mut job, &mut Zeroes::default(), &[Ok(0), Ok(0)]);
        assert_eq!(steps, [first, Step::Sync]);
    }
}

#[test]
fn transfer_without_progress_fails() {
    let mut job = zero_job(false, false);
    job.kind = Kind::Read(0..8192);
    let zeroes = &mut Zeroes::default();
    assert_eq!(job.advance(Ok(1024), zeroes, ""), Next::Step);
    assert_eq!(job.position(), 4096 + 1024);
    assert_eq!(job.advance(Ok(100), zeroes, ""), Next::Step);
    assert_eq!(job.advance(Ok(100), zeroes, ""), Next::Step);
    let short = Next::Done(Err((IoErrorKind::Removed, Errno::ENXIO)));
    assert_eq!(job.advance(Ok(100), zeroes, ""), short);
    assert_eq!(job.position(), 4096 + 1024);
    assert_eq!(job.advance(Ok(0), zeroes, ""), short);
}

#[test]
fn deallocation_with_fua_is_durable() {
    let zeroes = &mut Zeroes::default();
    let punch = Step::Punch { len: 8192 };
    let steps = run(&mut deallocate_job(false), zeroes, &[Ok(0)]);
    assert_eq!(steps, [punch]);
    let steps = run(&mut deallocate_job(true), zeroes, &[Ok(0), Ok(0)]);
    assert_eq!(steps, [punch, Step::Sync]);
    // The flush may fail, and other writes are lost with it.
    let mut job = deallocate_job(true);
    assert_eq!(job.advance(Ok(0), zeroes, ""), Next::Step);
    let failed = Next::Done(Err((IoErrorKind::Media, Errno::EIO)));
    assert_eq!(job.advance(Err(Errno::EIO), zeroes, ""), failed);
    assert!(job.loses_earlier(IoErrorKind::Media, true));
}

#[test]
fn unsupported_deallocate_succeeds() {
    let zeroes = &mut Zeroes::default();
    let mut job = deallocate_job(true);
    let no = Err(Errno::EOPNOTSUPP);
    assert_eq!(job.advance(no, zeroes, ""), Next::Done(Ok(())));
    let full = Err(Errno::ENOSPC);
    let expected = Next::Done(Err((IoErrorKind::NoSpace, Errno::ENOSPC)));
    assert_eq!(job.advance(full, zeroes, ""), expected);
}

#[test]
fn endless_retries_fail() {
    let mut job = zero_job(false, false);
    let zeroes = &mut Zeroes::default();
    for _ in 0..RETRIES {
        assert_eq!(job.advance(Err(Errno::EAGAIN), zeroes, ""), Next::Later);
    }
    let expected = Next::Done(Err((IoErrorKind::Other, Errno::EAGAIN)));
    assert_eq!(job.advance(Err(Errno::EAGAIN), zeroes, ""), expected);
}
