//! The error of a range that is not inside a buffer or shared memory.

/// A range is not inside the buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} are outside of a buffer of {capacity} bytes")]
pub struct OutOfBounds {
    /// First byte of the range.
    pub start: usize,
    /// One past the last byte of the range.
    pub end: usize,
    /// Length of the buffer in bytes.
    pub capacity: usize,
}
