//! The messages of the yardstick `tcp`: heads, and what follows them.

use std::io;

use super::{Shape, broken};

/// Bytes of a command, an SQE's.
const COMMAND: usize = 64;
/// Bytes of a response, a CQE's.
const RESPONSE: usize = 16;
/// Bytes that a payload has in front of it, whatever the protocol.
const PAYLOAD_HEAD: usize = 8;
/// Bytes of the longest head.
pub(super) const HEAD_MAX: usize = COMMAND + PAYLOAD_HEAD;
/// Bytes of the first message of a connection.
pub(crate) const HELLO: usize = 16;
/// What that begins with.
const MAGIC: u32 = 0x7063_7459;

/// Direction of the payload of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the initiator side.
    Read,
    /// To the target side.
    Write,
}

/// One kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Bytes of the head, at most [`HEAD_MAX`].
    pub(super) head: usize,
    /// Bytes of the payload behind it.
    pub(super) payload: usize,
}

impl Shape {
    fn kind(&self, head: usize, with: Direction) -> Kind {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        if self.direction == with {
            let head = head + PAYLOAD_HEAD;
            return Kind {
                head,
                payload: bytes,
            };
        }
        Kind { head, payload: 0 }
    }

    /// A command.
    pub(super) fn request(&self) -> Kind {
        self.kind(COMMAND, Direction::Write)
    }

    /// A response.
    pub(super) fn reply(&self) -> Kind {
        self.kind(RESPONSE, Direction::Read)
    }

    /// The first message of a connection.
    pub(crate) fn to_hello(self) -> [u8; HELLO] {
        let mut hello = [0; HELLO];
        let write = u8::from(self.direction == Direction::Write);
        let parts: [&[u8]; 6] = [
            &MAGIC.to_le_bytes(),
            &self.bytes.to_le_bytes(),
            &self.depth.to_le_bytes(),
            &[write],
            &[u8::from(self.block)],
            &[u8::from(self.zerocopy)],
        ];
        for (byte, value) in hello.iter_mut().zip(parts.concat()) {
            *byte = value;
        }
        hello
    }

    /// Reads the first message of a connection.
    pub(crate) fn of_hello(hello: [u8; HELLO]) -> io::Result<Self> {
        let [a, b, c, d, e, f, g, h, i, j, write, block, zerocopy, ..] = hello;
        if u32::from_le_bytes([a, b, c, d]) != MAGIC {
            return Err(broken("the peer is not a yardstick"));
        }
        Ok(Self {
            bytes: u32::from_le_bytes([e, f, g, h]),
            depth: u16::from_le_bytes([i, j]),
            direction: if write == 0 {
                Direction::Read
            } else {
                Direction::Write
            },
            block: block != 0,
            zerocopy: zerocopy != 0,
        })
    }
}

/// The head of a message about operation `slot`.
pub(super) fn head(slot: u16) -> [u8; HEAD_MAX] {
    let mut head = [0; HEAD_MAX];
    for (byte, value) in head.iter_mut().zip(slot.to_le_bytes()) {
        *byte = value;
    }
    head
}

/// The operation that a head is about.
pub(super) fn slot(head: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(*head.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        direction: Direction::Write,
        bytes: 131_072,
        depth: 300,
        block: true,
        zerocopy: true,
    };

    #[test]
    fn sizes_are_those_of_nvme() {
        let (head, payload) = (72, 131_072);
        assert_eq!(SHAPE.request(), Kind { head, payload });
        let (head, payload) = (16, 0);
        assert_eq!(SHAPE.reply(), Kind { head, payload });
        let read = Shape {
            direction: Direction::Read,
            ..SHAPE
        };
        let (head, payload) = (64, 0);
        assert_eq!(read.request(), Kind { head, payload });
        let (head, payload) = (24, 131_072);
        assert_eq!(read.reply(), Kind { head, payload });
    }

    #[test]
    fn first_message_has_the_shape() {
        assert_eq!(Shape::of_hello(SHAPE.to_hello()).unwrap(), SHAPE);
        assert!(Shape::of_hello(*b"GET / HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn heads_name_operations() {
        assert_eq!(slot(&head(513)), Some(513));
        assert_eq!(slot(&[1]), None);
    }
}
