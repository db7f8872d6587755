//! Fixed-length ASCII fields, padded with spaces (NVMe Base 2.0, 1.4.2).

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `N` bytes of ASCII, left justified and padded with spaces.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    /// The first `N` bytes of `text`, padded with spaces. Bytes outside 20h to 7Eh, which
    /// the specification does not allow, become `?`.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut field = [b' '; N];
        for (to, from) in field.iter_mut().zip(text.bytes()) {
            *to = if matches!(from, 0x20..=0x7e) {
                from
            } else {
                b'?'
            };
        }
        Self(field)
    }

    /// The bytes as on the wire.
    #[must_use]
    pub const fn as_array(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for Ascii<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

/// Without padding; non-printable bytes of a peer become `?`.
impl<const N: usize> fmt::Display for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        let padding = |byte: &u8| matches!(byte, b' ' | 0);
        let end = self
            .0
            .iter()
            .rposition(|byte| !padding(byte))
            .map_or(0, |last| last + 1);
        for byte in self.0.iter().take(end) {
            f.write_char(if matches!(byte, 0x20..=0x7e) {
                char::from(*byte)
            } else {
                '?'
            })?;
        }
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn padded_with_spaces_and_displayed_trimmed() {
        let field = Ascii::<8>::new("abc");
        assert_eq!(field.as_array(), b"abc     ");
        assert_eq!(field.to_string(), "abc");
        assert_eq!(Ascii::<4>::new("a\n\u{e4}").as_array(), b"a???");
        assert_eq!(Ascii::<2>::new("abc").to_string(), "ab");
    }

    #[test]
    fn display_of_peer_bytes_is_printable() {
        let field = Ascii::<4>::read_from_bytes(&[b'a', 0x1b, b'b', 0]).unwrap();
        assert_eq!(field.to_string(), "a?b");
    }
}
