//! Short byte strings: heads of messages by value, private data by reference.

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

/// Private data of a connect, accept or reject, as the user of the connection sees them:
/// without the IRD and ORD that iWARP puts before it. RFC 5044 allows 512 bytes; 196 is what
/// RDMA CM gives its users at most.
///
/// On the heap, because they are part of events, most of which have none.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PrivateData(Box<[u8]>);

/// The bytes do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are more than the maximum of {capacity}")]
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

    /// As many bytes as fit.
    #[allow(clippy::cast_possible_truncation, reason = "the length fits")]
    #[inline]
    #[must_use]
    pub const fn full(bytes: [u8; N]) -> Self {
        let () = Self::LENGTH_FITS;
        Self {
            len: N as u8,
            bytes,
        }
    }

    /// These bytes, whose length is checked at compile time.
    #[allow(clippy::cast_possible_truncation, reason = "the length fits")]
    #[inline]
    #[must_use]
    pub fn of<const M: usize>(bytes: [u8; M]) -> Self {
        const { assert!(M <= N && N <= u8::MAX as usize) }
        let mut all = Self::empty();
        if let Some(room) = all.bytes.first_chunk_mut() {
            *room = bytes;
        }
        all.len = M as u8;
        all
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

    /// The bytes and zeros behind them: a copy of fixed size is cheap.
    #[must_use]
    pub const fn array(&self) -> &[u8; N] {
        &self.bytes
    }
}

impl PrivateData {
    /// Bytes that fit.
    pub const CAPACITY: usize = 196;

    /// No bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// Copies `bytes`.
    ///
    /// # Errors
    /// [`TooLong`] when there are more than [`CAPACITY`](Self::CAPACITY).
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        if bytes.len() > Self::CAPACITY {
            return Err(TooLong {
                len: bytes.len(),
                capacity: Self::CAPACITY,
            });
        }
        Ok(Self(bytes.into()))
    }
}

impl Deref for PrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", &**self)
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
    fn bytes_up_to_capacity_are_accepted() {
        assert_eq!(&*Inline::new(&[7; 64]).unwrap(), &[7; 64]);
        assert_eq!(Inline::new(&[7; 16]), Ok(Inline::of([7; 16])));
        let two = Bytes::<4>::new(&[7; 2]).unwrap();
        assert_eq!((&*two, two.array()), (&[7, 7][..], &[7, 7, 0, 0]));
        assert_eq!(
            Inline::new(&[7; 65]),
            Err(TooLong {
                len: 65,
                capacity: 64
            })
        );
        assert_eq!(Inline::new(&[7; 64]), Ok(Inline::full([7; 64])));
        assert!(Inline::empty().is_empty());
        assert_eq!(&*PrivateData::new(&[7; 196]).unwrap(), &[7; 196]);
        let too_long = PrivateData::new(&[7; 197]).unwrap_err();
        assert_eq!((too_long.len, too_long.capacity), (197, 196));
        assert!(PrivateData::empty().is_empty());
    }
}
