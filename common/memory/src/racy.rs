//! Copies from or to memory that another process, or another owner of the same bytes, may
//! change at the same time.
//!
//! A plain copy of such bytes is a data race, and a slice of them is undefined behaviour in
//! itself: the compiler may read a byte twice and rely on equal results. Here the bytes are
//! copied by code that is opaque to the compiler. Each byte has the value that is in memory
//! at some moment of the call, so racing copies result in mixed bytes and nothing worse.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod opaque {
    use std::arch::asm;

    /// # Safety
    /// As [`super::copy`].
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: memcpy(3) reads and writes what the caller promised, and
        // returns. Moves of any width are atomic for each byte.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "call {memcpy}",
                memcpy = sym libc::memcpy,
                in("rdi") to,
                in("rsi") from,
                in("rdx") len,
                clobber_abi("C"),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "bl {memcpy}",
                memcpy = sym libc::memcpy,
                in("x0") to,
                in("x1") from,
                in("x2") len,
                clobber_abi("C"),
            );
        }
    }

    /// # Safety
    /// As [`super::fill`].
    #[inline]
    pub(super) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        // SAFETY: as in `copy`, for memset(3).
        #[cfg(target_arch = "x86_64")]
        unsafe {
            asm!(
                "call {memset}",
                memset = sym libc::memset,
                in("rdi") to,
                in("esi") u32::from(byte),
                in("rdx") len,
                clobber_abi("C"),
            );
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            asm!(
                "bl {memset}",
                memset = sym libc::memset,
                in("x0") to,
                in("x1") u64::from(byte),
                in("x2") len,
                clobber_abi("C"),
            );
        }
    }
}

/// For CPUs without assembly code above, and for Miri.
#[cfg(any(test, miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod bytewise {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// # Safety
    /// As [`super::copy`].
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: inside of what the caller promised.
            let from = unsafe { from.add(at) }.cast_mut();
            // SAFETY: as above.
            let to = unsafe { to.add(at) };
            // SAFETY: a byte is always aligned, and is only read here.
            let byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// As [`super::fill`].
    pub(super) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
        for at in 0..len {
            // SAFETY: inside of what the caller promised.
            let to = unsafe { to.add(at) };
            // SAFETY: a byte is always aligned.
            unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
use bytewise as moving;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use opaque as moving;

/// Copies `len` bytes.
///
/// # Safety
/// The bytes at `from` may be read and those at `to` written, for the whole
/// call; they do not overlap. No reference of this process covers bytes of
/// either that others may change.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { moving::copy(from, to, len) }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// As for [`copy`].
#[inline]
pub(crate) unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { moving::fill(to, byte, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_affect_exactly_the_range() {
        let from: Vec<u8> = (0..=255).cycle().take(5000).collect();
        for (start, len) in [(0, 0), (1, 1), (7, 64), (3, 4096), (0, 5000)] {
            let mut all = [vec![0xee; 5002], vec![0xee; 5002]];
            let [one, two] = &mut all;
            let from = from[start..].as_ptr();
            let len = len.min(5000 - start);
            // SAFETY: inside of the vectors.
            unsafe { copy(from, one[1..].as_mut_ptr(), len) };
            // SAFETY: as above.
            unsafe { bytewise::copy(from, two[1..].as_mut_ptr(), len) };
            let expected = (0..=255).cycle().skip(start).take(len);
            assert!(one[1..=len].iter().copied().eq(expected));
            assert_eq!((one[0], one[len + 1]), (0xee, 0xee));
            assert_eq!(one, two);
            // SAFETY: as above.
            unsafe { fill(one[1..].as_mut_ptr(), 7, len) };
            // SAFETY: as above.
            unsafe { bytewise::fill(two[1..].as_mut_ptr(), 7, len) };
            assert!(one[1..=len].iter().all(|byte| *byte == 7));
            assert_eq!(one, two);
        }
    }
}
