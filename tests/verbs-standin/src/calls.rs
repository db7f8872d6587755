//! Results of calls, as C expects them.

use libc::c_int;

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: always valid in the calling thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.write(number) };
}

/// -1, with `errno`.
pub(crate) fn failed(number: c_int) -> c_int {
    set_errno(number);
    -1
}

/// Null, with `errno`.
pub(crate) fn none<T>(number: c_int) -> *mut T {
    set_errno(number);
    std::ptr::null_mut()
}

/// 0, or -1 with `errno`.
pub(crate) fn result(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(number) => failed(number),
    }
}

/// The number of an object in its structure.
pub(crate) fn handle(number: u32) -> usize {
    number as usize
}

/// A number for a structure.
pub(crate) fn number(key: usize) -> u32 {
    u32::try_from(key).unwrap_or(u32::MAX)
}

/// A count or limit for a structure.
pub(crate) fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// A count from C. Negative ones count as 0.
pub(crate) fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
