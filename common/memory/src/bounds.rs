//! The error of a range that is not inside a buffer or shared memory.

/// A view was asked for that is not inside the buffer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {start}..{end} are not inside a buffer of {capacity} bytes")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub start: usize,
    /// One past the last byte asked for.
    pub end: usize,
    /// Bytes the buffer has.
    pub capacity: usize,
}
