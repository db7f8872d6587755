//! A peer that sends any bytes. It encodes frames itself, so that it does not share errors of
//! the engine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_wire::registers::{Cc, Property, PropertyValue};
use nvmeof_wire::{Cqe, Nqn, Sgl};
use zerocopy::IntoBytes;

use crate::timeout::TIMEOUT;
use crate::{HOST, NQN};

/// A connection to a target.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
    /// Number of Send messages.
    sent: u32,
}

/// An MPA request of revision 2 without CRC (RFC 6581): IRD and ORD are 16, and
/// `private_data` follows.
#[must_use]
pub fn request(private_data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private_data.len() + 4).unwrap();
    let mut frame = b"MPA ID Req Frame\x10\x02".to_vec();
    frame.extend(len.to_be_bytes());
    frame.extend([0, 16, 0, 16]);
    frame.extend(private_data);
    frame
}

/// Default number of entries of a queue.
const SIZE: u16 = 32;

/// A valid Connect command of queue `qid`, and its data.
#[must_use]
pub fn connect(qid: u16, cntlid: u16) -> (Connect, ConnectData) {
    connect_sized(qid, SIZE, cntlid)
}

fn connect_sized(qid: u16, size: u16, cntlid: u16) -> (Connect, ConnectData) {
    let nqn = |name| Nqn::new(name).unwrap();
    let data = ConnectData::new([7; 16], cntlid, &nqn(NQN), &nqn(HOST));
    (Connect::new(qid, size, 0), data)
}

/// The capsule of a Connect command, with its data inside.
#[must_use]
pub fn connect_capsule((connect, data): &(Connect, ConnectData)) -> Vec<u8> {
    let mut sqe = connect.to_sqe();
    let len = u32::try_from(data.as_bytes().len()).unwrap();
    sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
    [&sqe.to_bytes()[..], data.as_bytes()].concat()
}

impl Peer {
    /// Accepts a connection.
    #[must_use]
    pub fn accept(listener: &TcpListener) -> Self {
        Self::of_stream(listener.accept().unwrap().0).unwrap()
    }

    /// Connects without sending anything.
    #[must_use]
    pub fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap()
    }

    /// Connects.
    ///
    /// # Errors
    /// When the target refuses the connection.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        Self::of_stream(TcpStream::connect_timeout(&address, TIMEOUT)?)
    }

    fn of_stream(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, sent: 0 })
    }

    /// Connects and requests queue `qid` as NVMe hosts do.
    #[must_use]
    pub fn queue(address: SocketAddr, qid: u16) -> Self {
        Self::queue_sized(address, qid, SIZE)
    }

    /// The same with `size` entries.
    #[must_use]
    pub fn queue_sized(address: SocketAddr, qid: u16, size: u16) -> Self {
        let peer = Self::try_queue_sized(address, qid, size);
        peer.expect("the connection is rejected")
    }

    /// The same, if the target does not reject the connection.
    #[must_use]
    pub fn try_queue_sized(address: SocketAddr, qid: u16, size: u16) -> Option<Self> {
        let mut peer = Self::connect(address);
        peer.say(&request(Request::new(qid, size).as_bytes()));
        let reply = peer.receive(20);
        assert_eq!(reply[..16], *b"MPA ID Rep Frame");
        let private = u16::from_be_bytes([reply[18], reply[19]]);
        let _ = peer.receive(private.into());
        (reply[16] & 0x20 == 0).then_some(peer)
    }

    /// Connects queue `qid` of controller `cntlid`, 0xffff for a new one; returns the
    /// controller ID.
    #[track_caller]
    #[must_use]
    pub fn connected(address: SocketAddr, qid: u16, cntlid: u16) -> (Self, u16) {
        Self::connected_sized(address, qid, SIZE, cntlid)
    }

    /// The same with `size` entries.
    #[track_caller]
    #[must_use]
    pub fn connected_sized(address: SocketAddr, qid: u16, size: u16, cntlid: u16) -> (Self, u16) {
        let mut peer = Self::queue_sized(address, qid, size);
        peer.capsule(&connect_capsule(&connect_sized(qid, size, cntlid)));
        let answer = peer.response();
        assert!(answer.status().is_success(), "{answer:?}");
        let [low, high, ..] = answer.result.get().to_le_bytes();
        (peer, u16::from_le_bytes([low, high]))
    }

    /// Enables the controller of this admin queue.
    #[track_caller]
    pub fn enable(&mut self) {
        let enable = PropertyAccess::set(Property::CC, PropertyValue::Dword(Cc::ENABLE.0));
        self.capsule(&enable.to_bytes());
        assert!(self.response().status().is_success());
    }

    /// The local address.
    #[must_use]
    pub fn own_address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    /// Sends bytes; a closed connection is not an error.
    pub fn say(&mut self, bytes: &[u8]) {
        match self.stream.write_all(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("the target does not receive: {error}")
            }
            _ => {}
        }
    }

    /// Receives exactly `len` bytes.
    #[track_caller]
    #[must_use]
    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Closes the sending half of the stream.
    pub fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Receives until the target closes the connection, which it must.
    #[track_caller]
    pub fn receive_all(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return bytes,
                Ok(count) => bytes.extend(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    panic!("the target neither sends nor closes the connection")
                }
                Err(_reset) => return bytes,
            }
        }
    }

    /// Sends a capsule as a Send message of one segment.
    pub fn capsule(&mut self, capsule: &[u8]) {
        self.sent += 1;
        let frame = segment(0x43, 0, self.sent, capsule);
        self.say(&frame);
    }

    /// Receives the next response capsule.
    #[track_caller]
    #[must_use]
    pub fn response(&mut self) -> Cqe {
        let head = self.receive(2);
        let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        let body = self.receive((2 + len).next_multiple_of(4) - 2 + 4);
        assert_eq!((body[0], len), (0x41, 18 + 16), "no response: {body:02x?}");
        Cqe::from_capsule(&body[18..34]).unwrap()
    }
}

/// MPA length, DDP and RDMAP header, payload, padding and an unused CRC.
fn segment(control: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(18 + payload.len()).unwrap();
    let mut frame = len.to_be_bytes().to_vec();
    // Untagged, last, DDP version 1.
    frame.extend([0x41, control, 0, 0, 0, 0]);
    frame.extend(queue.to_be_bytes());
    frame.extend(msn.to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(payload);
    frame.resize(frame.len().next_multiple_of(4) + 4, 0);
    frame
}
