//! Secrets: bytes that are not printed, do not reach a core dump, and are erased after use.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

use crate::region::MemoryError;

/// A key or another secret. It has pages of its own, which core dumps omit, which are not
/// swapped out if the limit of locked memory permits it, and which are erased when it is dropped.
pub struct Secret {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a secret is plain memory with one owner, not tied to the thread that made it.
unsafe impl Send for Secret {}
// SAFETY: its bytes change through `&mut` only.
unsafe impl Sync for Secret {}

impl Secret {
    /// A secret of `len` zero bytes.
    ///
    /// # Errors
    /// [`MemoryError`] when `len` is 0 or cannot be allocated, or when the kernel does not omit it
    /// from core dumps.
    pub fn zeroed(len: usize) -> Result<Self, MemoryError> {
        let length = NonZeroUsize::new(len).ok_or(MemoryError::Empty)?;
        let refused = |source| MemoryError::Refused { len, source };
        let (protection, flags) = (
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE,
        );
        // SAFETY: a new mapping at an address that the kernel chooses affects no other memory.
        let base = unsafe { mmap_anonymous(None, length, protection, flags) }.map_err(refused)?;
        let secret = Self {
            base: base.cast(),
            len,
        };
        // SAFETY: advice about the pages of this mapping, which changes no byte.
        unsafe { madvise(base, len, MmapAdvise::MADV_DONTDUMP) }.map_err(refused)?;
        // Without the right to lock memory, the system may swap it out.
        // SAFETY: the range is this mapping; locking changes no byte.
        let _ = unsafe { mlock(base, length.get()) };
        Ok(secret)
    }

    /// Moves `bytes` to a secret: they are erased, also after an error.
    ///
    /// # Errors
    /// As [`zeroed`](Self::zeroed).
    pub fn take(bytes: &mut [u8]) -> Result<Self, MemoryError> {
        let secret = Self::zeroed(bytes.len()).map(|mut secret| {
            secret.expose_mut().copy_from_slice(bytes);
            secret
        });
        bytes.zeroize();
        secret
    }

    /// Reads `from` to its end, or its first `most` bytes, without a copy elsewhere. `None`: it is
    /// empty.
    ///
    /// # Errors
    /// That of `from`, or as [`zeroed`](Self::zeroed).
    pub fn read(mut from: impl io::Read, most: usize) -> io::Result<Option<Self>> {
        let mut all = Self::zeroed(most).map_err(io::Error::other)?;
        let mut len = 0;
        while let Some(rest) = all.expose_mut().get_mut(len..).filter(|it| !it.is_empty()) {
            match from.read(rest) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let read = all.expose_mut().get_mut(..len).unwrap_or_default();
        match read.is_empty() {
            true => Ok(None),
            false => Self::take(read).map(Some).map_err(io::Error::other),
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a secret has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes. Do not copy them to memory that is not erased.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        // SAFETY: the mapping has at least `len` initialized bytes, is not unmapped before this
        // value is dropped, and only `expose_mut` writes to it, which borrows it mutably.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// The bytes, to be set.
    #[must_use]
    pub fn expose_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `expose`; the mutable borrow of this value makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.expose_mut().zeroize();
        // SAFETY: no reference to the mapping outlives this value.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_bytes_are_erased_and_not_printed() {
        let mut bytes = *b"0123456789abcdef";
        let secret = Secret::take(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
        assert_eq!(secret.expose(), b"0123456789abcdef");
        assert_eq!(format!("{secret:?}"), "Secret(16 bytes)");
        assert!(matches!(Secret::take(&mut []), Err(MemoryError::Empty)));
    }

    #[test]
    fn bytes_are_read_to_the_end_or_to_the_limit() {
        /// One byte at a time, with interruptions.
        struct Slow<'a>(&'a [u8], bool);
        impl io::Read for Slow<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.1 = !self.1;
                if self.1 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let len = buf.len().min(1);
                io::Read::read(&mut self.0, &mut buf[..len])
            }
        }
        let read = |most| Secret::read(Slow(b"secret", false), most).unwrap().unwrap();
        assert_eq!(read(100).expose(), b"secret");
        assert_eq!(read(3).expose(), b"sec");
        assert!(Secret::read(Slow(b"", false), 9).unwrap().is_none());
        let failing = std::fs::File::open("/").unwrap();
        assert!(Secret::read(failing, 9).is_err());
    }

    /// The kernel says of each mapping whether core dumps omit it: `dd` in VmFlags.
    #[cfg(not(miri))]
    #[test]
    fn core_dumps_omit_the_pages() {
        let secret = Secret::zeroed(100).unwrap();
        let address = secret.base.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut flags = None;
        let mut is_here = false;
        for line in maps.lines() {
            if let Some(words) = line.strip_prefix("VmFlags:") {
                if is_here {
                    flags = Some(words.to_owned());
                }
            } else if let Some((range, _)) = line.split_once(' ')
                && let Some((from, to)) = range.split_once('-')
                && let (Ok(from), Ok(to)) = (
                    usize::from_str_radix(from, 16),
                    usize::from_str_radix(to, 16),
                )
            {
                is_here = (from..to).contains(&address);
            }
        }
        let flags = flags.expect("the mapping is listed");
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }
}
