//! Receives: many heads in one call, payloads in place.

use std::io::{self, IoSliceMut, Read as _};

use socket2::Socket;

use super::frame::{self, Kind};
use super::{BULK, COPIED_MAX, broken, polled};

/// The incoming half of a connection.
#[derive(Debug)]
pub(super) struct Inbox {
    kind: Kind,
    /// Its first `left` bytes are received and not processed yet.
    bulk: Vec<u8>,
    left: usize,
    /// The operation whose payload is being received, and the bytes received. `bulk` is
    /// empty then.
    current: Option<(u16, usize)>,
    /// Operations whose message is complete.
    pub(super) whole: Vec<u16>,
}

impl Inbox {
    pub(super) fn new(kind: Kind, depth: u16) -> Self {
        // After a payload that is received in place, only the next head is received: a
        // following payload would have to be copied.
        let len = if kind.payload > COPIED_MAX {
            kind.head
        } else {
            BULK
        };
        Self {
            kind,
            bulk: vec![0; len],
            left: 0,
            current: None,
            whole: Vec::with_capacity(usize::from(depth)),
        }
    }

    /// Receives once. Returns whether data arrived; `false` also at the end of the
    /// connection, which sets `ended`.
    pub(super) fn fill(
        &mut self,
        stream: &Socket,
        places: &mut [Vec<u8>],
        ended: &mut bool,
    ) -> io::Result<bool> {
        let rest = match self.current {
            Some((slot, have)) => rest(places, slot, have)?,
            None => &mut [],
        };
        let wanted = rest.len();
        let bulk = self.bulk.get_mut(self.left..).unwrap_or_default();
        let mut stream = stream;
        let received = if wanted == 0 {
            stream.read(bulk)
        } else {
            stream.read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(bulk)])
        };
        let Some(count) = polled(received)? else {
            return Ok(false);
        };
        if count == 0 {
            *ended = true;
            return Ok(false);
        }
        if let Some((slot, have)) = self.current {
            if count < wanted {
                self.current = Some((slot, have + count));
                return Ok(true);
            }
            self.current = None;
            self.whole.push(slot);
        }
        self.left += count - wanted;
        self.parse(places)?;
        Ok(true)
    }

    fn parse(&mut self, places: &mut [Vec<u8>]) -> io::Result<()> {
        let mut bytes = self.bulk.get(..self.left).unwrap_or_default();
        while let Some((head, behind)) = bytes.split_at_checked(self.kind.head) {
            let slot = frame::slot(head).ok_or_else(|| broken("a message without a slot"))?;
            let place = rest(places, slot, 0)?;
            let there = behind.len().min(self.kind.payload);
            let (payload, behind) = behind.split_at_checked(there).unwrap_or_default();
            let place = place.get_mut(..there);
            place
                .ok_or_else(|| broken("a payload that is too long"))?
                .copy_from_slice(payload);
            bytes = behind;
            if there < self.kind.payload {
                self.current = Some((slot, there));
                break;
            }
            self.whole.push(slot);
        }
        let left = bytes.len();
        self.bulk.copy_within(self.left - left..self.left, 0);
        self.left = left;
        Ok(())
    }
}

/// The rest of the buffer for the payload of an operation.
fn rest(places: &mut [Vec<u8>], slot: u16, have: usize) -> io::Result<&mut [u8]> {
    let place = places.get_mut(usize::from(slot));
    let place = place.and_then(|place| place.get_mut(have..));
    place.ok_or_else(|| broken("an operation that is not in flight"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Gives the bytes of three messages in pieces of `step` bytes.
    fn received(kind: Kind, step: usize) -> (Vec<u16>, Vec<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.set_nodelay(true).unwrap();
        let receiver = Socket::from(listener.accept().unwrap().0);
        let mut bytes = Vec::new();
        for slot in [2, 0, 1] {
            bytes.extend(&frame::head(slot)[..kind.head]);
            bytes.extend(vec![u8::try_from(slot).unwrap() + 1; kind.payload]);
        }
        let mut places = vec![vec![0; kind.payload]; 3];
        let mut inbox = Inbox::new(kind, 3);
        let mut ended = false;
        for piece in bytes.chunks(step) {
            sender.write_all(piece).unwrap();
            assert!(inbox.fill(&receiver, &mut places, &mut ended).unwrap());
        }
        drop(sender);
        while !ended {
            inbox.fill(&receiver, &mut places, &mut ended).unwrap();
        }
        (inbox.whole, places)
    }

    #[test]
    fn messages_are_reassembled_from_any_split() {
        for payload in [0, 100, COPIED_MAX + 1] {
            let kind = Kind { head: 24, payload };
            for step in [
                1 + payload / 7,
                24 + payload,
                10 + payload,
                200 + 3 * payload,
            ] {
                let (whole, places) = received(kind, step);
                assert_eq!(whole, [2, 0, 1], "{payload} {step}");
                for (place, value) in places.iter().zip(1..) {
                    assert!(place.iter().all(|byte| *byte == value), "{payload} {step}");
                }
            }
        }
    }
}
