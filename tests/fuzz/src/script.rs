//! An input as a script: numbers and bytes, from first to last. Missing bytes at the end read
//! as zero, so that every input is a complete script.

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// A script from its start.
    #[must_use]
    pub fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    /// Whether all of it was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// At most `len` bytes, fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// A number of bytes that the next byte gives.
    pub fn short(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.bytes(len.into())
    }

    /// The remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// An index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    /// Exactly `len` bytes, repeated if the script has fewer.
    pub fn filled(&mut self, len: usize) -> Vec<u8> {
        let seed = self.bytes(len.min(64));
        let pattern = if seed.is_empty() { &[0] } else { seed };
        pattern.iter().copied().cycle().take(len).collect()
    }
}
