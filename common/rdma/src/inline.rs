//! Short byte strings that travel by value.

use std::fmt;
use std::ops::Deref;

/// Up to `N` bytes by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

/// The head of a [`Send`](crate::Work::Send): up to 64 bytes, as much as a
/// submission queue entry.
pub type Inline = Bytes<64>;

/// Private data of a connect, accept or reject, as the user of the connection
/// sees it: without the IRD and ORD that iWARP puts before it. RFC 5044 allows
/// 512 bytes; 196 is what RDMA CM gives its users at most.
pub type PrivateData = Bytes<196>;

/// The bytes do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes do not fit where at most {capacity} can go")]
pub struct TooLong {
    /// Bytes given.
    pub len: usize,
    /// Bytes that fit.
    pub capacity: usize,
}

impl<const N: usize> Bytes<N> {
    const LENGTH_FITS: () = assert!(N <= u8::MAX as usize, "the length is kept in a byte");

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        let () = Self::LENGTH_FITS;
        Self {
            len: 0,
            bytes: [0; N],
        }
    }

    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] when there are more than `N`.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let too_long = TooLong {
            len: bytes.len(),
            capacity: N,
        };
        let mut copy = Self::empty();
        let room = copy.bytes.get_mut(..bytes.len()).ok_or(too_long)?;
        room.copy_from_slice(bytes);
        copy.len = u8::try_from(bytes.len()).map_err(|_| too_long)?;
        Ok(copy)
    }
}

impl<const N: usize> Deref for Bytes<N> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl<const N: usize> Default for Bytes<N> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_as_fits_is_taken() {
        assert_eq!(&*Inline::new(&[7; 64]).unwrap(), &[7; 64]);
        assert_eq!(
            Inline::new(&[7; 65]),
            Err(TooLong {
                len: 65,
                capacity: 64
            })
        );
        assert!(Inline::empty().is_empty());
    }
}
