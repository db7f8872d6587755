//! Ending the process without the destructors of the libraries.
//!
//! librados has static objects that its threads use. At a normal exit (exit(3)), their destructors
//! run while these threads still run, if a connection is open: the process then sometimes ends by
//! a signal instead of its exit status.

use libc::{c_int, c_void};

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn on_exit(function: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// Ends the process with its exit status, before destructors that were registered earlier run.
unsafe extern "C" fn end(status: c_int, _: *mut c_void) {
    // SAFETY: fflush(3) of all streams may be called at exit.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    // SAFETY: it has no requirements.
    unsafe { libc::_exit(status) };
}

/// To be called after the libraries were loaded: functions that are registered for the exit of the
/// process run in reverse order, and the destructors of the libraries are among them.
pub(super) fn skip_destructors() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function has the type that on_exit(3) requires, and is never unloaded.
    let refused = unsafe { on_exit(end, std::ptr::null_mut()) };
    #[cfg(not(target_env = "gnu"))]
    let refused = {
        let _ = end;
        1
    };
    if refused != 0 {
        tracing::warn!("Ceph: cannot register for the exit of the process; it may end by a signal");
    }
}
