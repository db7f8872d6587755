//! The C interface for `engine/engine.c`: the functions of `engine/nvmeof_fio.h`,
//! which has the same declarations in C.
//!
//! A job is passed to C as a pointer from a `Box`, and one thread at a time uses it.
//! Panics are caught here: C code cannot be unwound.
#![allow(unsafe_code, reason = "C passes pointers, and finds functions by name")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::IsTerminal;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use nix::errno::Errno;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::job::{self, Job, OperationResult, SubmitResult};
use crate::options::{Options, RawOptions};
use crate::request::{Kind, Request};

/// `struct nvmeof_target`.
#[derive(Debug)]
#[repr(C)]
pub struct CTarget {
    address: *const c_char,
    subsystem: *const c_char,
    provider: *const c_char,
    hostnqn: *const c_char,
    shm_folder: *const c_char,
    path_policy: *const c_char,
    dhchap_secret: *const c_char,
    dhchap_ctrl_secret: *const c_char,
    job: *const c_char,
    nsid: u32,
    queues: u32,
    shm_copy: u32,
    crc: u32,
    reconnect_delay: u32,
    ctrl_loss_tmo: i32,
    fast_io_fail_tmo: i32,
    keep_alive_tmo: u32,
    stall_ms: u32,
}

/// `struct nvmeof_size`.
#[derive(Debug)]
#[repr(C)]
pub struct CSize {
    bytes: u64,
    block: u64,
}

/// `struct nvmeof_request`; `kind` is one of `enum nvmeof_kind`.
#[derive(Debug)]
#[repr(C)]
pub struct CRequest {
    user: u64,
    kind: u64,
    offset: u64,
    len: u64,
    addr: u64,
}

/// `struct nvmeof_ended`.
#[derive(Debug)]
#[repr(C)]
pub struct CEnded {
    user: u64,
    error: i64,
}

const _: () = {
    assert!(size_of::<CTarget>() == 112);
    assert!(size_of::<CSize>() == 16);
    assert!(size_of::<CRequest>() == 40);
    assert!(size_of::<CEnded>() == 16);
};

/// `NVMEOF_BUSY`.
const BUSY: c_int = -1;

/// Reads the size of a namespace. Leaves no thread, and no descriptors except those of
/// RDMA devices, which their libraries keep open.
///
/// # Safety
/// `target` points to a target whose strings are null or NUL-terminated; `size` is
/// valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_look(target: *const CTarget, size: *mut CSize) -> c_int {
    contained(|| {
        // SAFETY: guaranteed by the caller.
        let options = unsafe { options_of(target) }?;
        let geometry = job::look(&options)?;
        let bytes = geometry.len().ok_or_else(|| {
            let text = format!(
                "namespace {} exceeds the sizes that fio supports (2^64 - 1 bytes)",
                options.nsid
            );
            Failure::new(text, Errno::EFBIG)
        })?;
        let block = geometry.block_size().into();
        // SAFETY: guaranteed by the caller.
        unsafe { size.write(CSize { bytes, block }) };
        Ok(())
    })
}

/// Connects a job; `job` is set on success.
///
/// # Safety
/// As for [`nvmeof_fio_look`]; `job` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_open(
    target: *const CTarget,
    depth: u32,
    job: *mut *mut Job,
) -> c_int {
    contained(|| {
        // SAFETY: guaranteed by the caller.
        let options = unsafe { options_of(target) }?;
        let opened = Box::new(Job::open(&options, depth)?);
        // SAFETY: guaranteed by the caller.
        unsafe { job.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// Allocates memory for `count` operations of `len` bytes each; null on failure.
///
/// # Safety
/// `job` is from [`nvmeof_fio_open`] and not used concurrently.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_allocate(job: *mut Job, count: u64, len: u64) -> *mut c_void {
    let mut addr = 0;
    contained(|| {
        // SAFETY: guaranteed by the caller.
        let job = unsafe { &mut *job };
        let number = |number| usize::try_from(number).unwrap_or(usize::MAX);
        addr = job.allocate(number(count), number(len))?;
        Ok(())
    });
    // The address of each buffer was exposed; 0 is null.
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or_default())
}

/// Frees the memory.
///
/// # Safety
/// As for [`nvmeof_fio_allocate`]; fio does not access the memory after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_free(job: *mut Job) {
    contained(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *job }.free();
        Ok(())
    });
}

/// Accepts an operation: returns 0, `NVMEOF_BUSY`, or an error number.
///
/// # Safety
/// As for [`nvmeof_fio_allocate`]; `request` is valid for reads, and fio does
/// not access the memory that it names until it completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_queue(job: *mut Job, request: *const CRequest) -> c_int {
    let mut taken = SubmitResult::Busy;
    let error = contained(|| {
        // SAFETY: guaranteed by the caller.
        let job = unsafe { &mut *job };
        // SAFETY: guaranteed by the caller.
        let request = unsafe { &*request };
        taken = job.queue(&Request {
            user: request.user,
            kind: kind_of(request.kind)?,
            offset: request.offset,
            len: request.len,
            addr: request.addr,
        });
        Ok(())
    });
    match taken {
        _ if error != 0 => error,
        SubmitResult::Queued => 0,
        SubmitResult::Busy => BUSY,
        SubmitResult::Failed(errno) => errno as c_int,
    }
}

/// Sends the accepted operations; all of them immediately if `now` is not 0.
///
/// # Safety
/// As for [`nvmeof_fio_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_commit(job: *mut Job, now: c_int) -> c_int {
    contained(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { &mut *job }.commit(now != 0);
        Ok(())
    })
}

/// Waits until `least` operations have completed, at most `timeout_ns` if that is not
/// negative, and writes up to `most` results to `ended`. Returns their number, or a
/// negative error number.
///
/// # Safety
/// As for [`nvmeof_fio_allocate`]; `ended` has room for `most`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_reap(
    job: *mut Job,
    least: u32,
    most: u32,
    timeout_ns: i64,
    ended: *mut CEnded,
) -> i64 {
    let mut count = 0_u32;
    let error = contained(|| {
        // SAFETY: guaranteed by the caller.
        let job = unsafe { &mut *job };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // SAFETY: guaranteed by the caller; the slice is only written.
        let slots: &mut [MaybeUninit<CEnded>] =
            unsafe { std::slice::from_raw_parts_mut(ended.cast(), most) };
        let mut slots = slots.iter_mut();
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        let least = usize::try_from(least).unwrap_or(usize::MAX);
        job.reap(least, most, timeout, |OperationResult { user, error }| {
            let error = error.map_or(0, |errno| errno as i64);
            if let Some(slot) = slots.next() {
                slot.write(CEnded { user, error });
                count += 1;
            }
        });
        Ok(())
    });
    match error {
        0 => count.into(),
        error => i64::from(error).wrapping_neg(),
    }
}

/// Closes a job.
///
/// # Safety
/// As for [`nvmeof_fio_allocate`]; the pointer is invalid afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmeof_fio_close(job: *mut Job) {
    contained(|| {
        // SAFETY: guaranteed by the caller: it is from `Box::into_raw`, without aliases.
        unsafe { Box::from_raw(job) }.close();
        Ok(())
    });
}

/// # Safety
/// `target` points to a target whose strings are null or NUL-terminated.
unsafe fn options_of(target: *const CTarget) -> Result<Options, Failure> {
    log_to_stderr();
    // SAFETY: guaranteed by the caller.
    let target = unsafe { &*target };
    let given = |text: *const c_char| -> Result<Option<&str>, Failure> {
        if text.is_null() {
            return Ok(None);
        }
        // SAFETY: guaranteed by the caller.
        let text = unsafe { CStr::from_ptr(text) }.to_str();
        let text = text.map_err(|error| {
            Failure::new(
                format!("an option of the job is not UTF-8: {error}"),
                Errno::EINVAL,
            )
        })?;
        Ok(Some(text))
    };
    let word = |text| -> Result<Option<&str>, Failure> {
        Ok(given(text)?.filter(|text| !text.is_empty()))
    };
    Options::parse(&RawOptions {
        address: word(target.address)?,
        subsystem: word(target.subsystem)?,
        provider: word(target.provider)?,
        hostnqn: word(target.hostnqn)?,
        shm_folder: word(target.shm_folder)?,
        nsid: target.nsid,
        queues: target.queues,
        shm_copy: target.shm_copy != 0,
        crc: target.crc != 0,
        path_policy: word(target.path_policy)?,
        reconnect_delay: target.reconnect_delay,
        ctrl_loss_tmo: target.ctrl_loss_tmo,
        fast_io_fail_tmo: target.fast_io_fail_tmo,
        keep_alive_tmo: target.keep_alive_tmo,
        stall_ms: target.stall_ms,
        dhchap_secret: given(target.dhchap_secret)?,
        dhchap_ctrl_secret: given(target.dhchap_ctrl_secret)?,
        job: word(target.job)?,
    })
}

/// `enum nvmeof_kind`.
fn kind_of(number: u64) -> Result<Kind, Failure> {
    Ok(match number {
        0 => Kind::Read,
        1 => Kind::Write { fua: false },
        2 => Kind::Write { fua: true },
        3 => Kind::Trim,
        4 => Kind::Flush,
        _ => return Err(Failure::new("unknown kind of operation", Errno::EINVAL)),
    })
}

/// Logs warnings of the initiator to standard error, as its failures.
fn log_to_stderr() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = nvmeof_logging::filter_of("NVMEOF_LOG", "warn").unwrap_or_else(|error| {
            eprintln!("nvmeof: NVMEOF_LOG: {error}; logging warnings");
            EnvFilter::new("warn")
        });
        // Fails if the process has a subscriber already, which is kept.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(nvmeof_logging::may_color() && std::io::stderr().is_terminal())
            .with_writer(std::io::stderr)
            .try_init();
    });
}

/// Runs `work`; returns 0 or an error number. Catches panics.
fn contained(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => {
            eprintln!("nvmeof: {failure}");
            failure.errno() as c_int
        }
        Err(_panic) => {
            eprintln!("nvmeof: internal error, please report it with the lines above");
            Errno::EIO as c_int
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::*;

    fn target(address: *const c_char) -> CTarget {
        CTarget {
            address,
            subsystem: c"nqn.2026-11.org.example:disk".as_ptr(),
            provider: c"iwarp".as_ptr(),
            hostnqn: null(),
            shm_folder: null(),
            path_policy: null(),
            dhchap_secret: null(),
            dhchap_ctrl_secret: null(),
            job: null(),
            nsid: 1,
            queues: 1,
            shm_copy: 0,
            crc: 0,
            reconnect_delay: 1,
            ctrl_loss_tmo: 600,
            fast_io_fail_tmo: -1,
            keep_alive_tmo: 5,
            stall_ms: 1000,
        }
    }

    #[test]
    fn failure_is_an_error_number() {
        let mut size = CSize { bytes: 7, block: 7 };
        let without_address = target(null());
        // SAFETY: pointers to values on the stack.
        let error = unsafe { nvmeof_fio_look(&raw const without_address, &raw mut size) };
        assert_eq!(error, Errno::EINVAL as c_int);
        let mut job = null_mut();
        let unreachable = target(c"127.0.0.1:1".as_ptr());
        // SAFETY: as above.
        let error = unsafe { nvmeof_fio_open(&raw const unreachable, 1, &raw mut job) };
        assert_eq!(error, Errno::ECONNREFUSED as c_int);
        assert!(job.is_null());
        assert_eq!((size.bytes, size.block), (7, 7));
    }

    #[test]
    fn panic_is_caught() {
        assert_eq!(contained(|| panic!("on purpose")), Errno::EIO as c_int);
        assert_eq!(contained(|| Ok(())), 0);
    }

    #[test]
    fn kinds_have_the_numbers_of_the_header() {
        let header = include_str!("../engine/nvmeof_fio.h");
        for (word, kind) in [
            ("NVMEOF_READ = 0,", Kind::Read),
            ("NVMEOF_WRITE = 1,", Kind::Write { fua: false }),
            ("NVMEOF_WRITE_FUA = 2,", Kind::Write { fua: true }),
            ("NVMEOF_TRIM = 3,", Kind::Trim),
            ("NVMEOF_FLUSH = 4,", Kind::Flush),
        ] {
            assert!(header.contains(word), "{word}");
            let number = word.trim_end_matches(',').split(' ').next_back().unwrap();
            assert_eq!(kind_of(number.parse().unwrap()).unwrap(), kind);
        }
        assert!(kind_of(5).is_err());
        assert!(header.contains(&format!("NVMEOF_BUSY ({BUSY})")));
    }
}
