//! The local side of a connection through shared memory, and a peer with its own messages.
//!
//! Whatever the peer does, each work request completes once, exposed memory changes only
//! where the peer has write permission, the connection ends when the peer is gone, and its
//! end is the last event.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Event, Inline, PrivateData, Provider, QpConfig, QpId, RemoteKey, RemoteSlice, Rights, Tag, Work,
};
use nvmeof_rdma_shm::{ShareMemory, Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};

/// Bytes of each ring.
pub const RING: usize = 64 << 10;
/// Sizes of the queue pair.
pub const CONFIG: QpConfig = QpConfig {
    recvs: 4,
    sends: 8,
    reads_out: 2,
    reads_in: 2,
    exposes: 16,
    trusts_peer: false,
};
const BUF: usize = 20_000;
const BUFFERS: usize = 16;
/// Contents of memory that a peer may not write to.
const FILL: u8 = 0xa5;

thread_local! {
    /// Memory for all inputs: an allocation takes longer than most inputs.
    static POOL: Pool = {
        let layout = PoolLayout {
            count: BUFFERS,
            stride: BUF,
            lead: 0,
        };
        Pool::new(layout, Pages::Shareable).expect("memory")
    };
}

/// The folder of sockets, one for the life of the process.
#[must_use]
pub fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("nvmeof-fuzz-{}", std::process::id()))
}

/// Configuration of the local side.
#[must_use]
pub fn config() -> ShmConfig {
    ShmConfig {
        folder: folder(),
        ring: RING,
        spin: Duration::ZERO,
        ..ShmConfig::default()
    }
}

/// A socket for messages (SEQPACKET), and the address of `port`.
///
/// # Panics
/// When the system has none.
#[must_use]
pub fn socket(port: u16) -> (Socket, SockAddr) {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).expect("a socket");
    let path = folder().join(format!("127.0.0.1-{port}.sock"));
    (socket, SockAddr::unix(path).expect("a short path"))
}

/// Sends a message of the peer; errors are ignored.
pub fn say(peer: &Socket, bytes: &[u8], memory: Option<BorrowedFd<'_>>) {
    let numbers = memory.map(|fd| [fd.as_raw_fd()]);
    let control = numbers
        .as_ref()
        .map(|numbers| ControlMessage::ScmRights(numbers));
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let pieces = [IoSlice::new(bytes)];
    let _ = sendmsg::<()>(peer.as_raw_fd(), &pieces, control.as_slice(), flags, None);
}

/// The local side of one connection.
#[derive(Debug)]
pub struct Ours {
    /// The provider.
    pub shm: Shm,
    /// The current time.
    pub now: Duration,
    /// The connection, once there is one.
    pub qp: Option<QpId>,
    /// Exposed memory, and its rights.
    pub window: Option<(RemoteSlice, Rights)>,
    /// Whether it was established.
    pub established: bool,
    /// Whether it ended.
    pub closed: bool,
    pool: Pool,
    /// Tags of outstanding work requests.
    out: BTreeSet<u64>,
    next_tag: u64,
    /// Mapped memory of the peer.
    mapped: Vec<Buf>,
}

impl Ours {
    /// A provider without connections.
    ///
    /// # Panics
    /// When the system has no room for it.
    #[must_use]
    pub fn new() -> Self {
        Self::with_sharing(config().share_memory)
    }

    /// A provider that permits, or not, that peers access its memory in place.
    ///
    /// # Panics
    /// When the system has no room for it.
    #[must_use]
    pub fn with_sharing(share_memory: ShareMemory) -> Self {
        let pool = POOL.with(Clone::clone);
        let config = ShmConfig {
            share_memory,
            ..config()
        };
        let mut shm = Shm::new(config).expect("a provider");
        shm.register(pool.region()).expect("a region");
        Self {
            shm,
            now: Duration::ZERO,
            qp: None,
            window: None,
            established: false,
            closed: false,
            pool,
            out: BTreeSet::new(),
            next_tag: 0,
            mapped: Vec::new(),
        }
    }

    /// Accepts a request, if there is one, and posts work of all kinds.
    pub fn accept(&mut self, rights: Rights) {
        let Some(qp) = self.qp else { return };
        if self.shm.prepare(qp, &CONFIG).is_err() {
            return;
        }
        self.receive();
        let _ = self.shm.accept(qp, &PrivateData::empty());
        self.work(rights);
    }

    /// Posts three receives.
    pub fn receive(&mut self) {
        for _ in 0..3 {
            self.post_recv();
        }
    }

    /// Exposes memory, if the connection is established, and posts work of each kind.
    ///
    /// # Panics
    /// When buffers are lost.
    pub fn work(&mut self, rights: Rights) {
        let Some(qp) = self.qp else { return };
        if self.window.is_none() {
            let mut buf = self.pool.take().expect("a buffer");
            buf.fill(FILL);
            buf.set_view(64..BUF - 64).expect("inside the buffer");
            if let Ok(slice) = self.shm.expose(qp, buf, rights) {
                self.window = Some((slice, rights));
            }
        }
        for kind in 0..3 {
            self.post(kind);
        }
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    /// Posts a receive if there is a buffer.
    pub fn post_recv(&mut self) {
        let tag = self.tag();
        if let Some(qp) = self.qp
            && let Some(buf) = self.pool.take()
            && self.shm.post_recv(qp, tag, buf).is_ok()
        {
            self.out.insert(tag.0);
        }
    }

    /// Posts a read, a write or a message if there is a buffer.
    ///
    /// # Panics
    /// Never: 16 bytes are not many.
    pub fn post(&mut self, kind: u8) {
        let Some(qp) = self.qp else { return };
        let Some(local) = self.pool.take() else {
            return;
        };
        let remote = RemoteSlice {
            key: RemoteKey(7),
            addr: 7,
            len: u32::MAX,
        };
        let window = self.window.map(|(slice, _)| slice.key);
        let work = match kind % 3 {
            0 => Work::Read { local, remote },
            1 => Work::Write { local, remote },
            _ => Work::Send {
                head: Inline::new(&[1; 16]).expect("16 bytes"),
                body: Some(local),
                // Some name the key that grants go by.
                invalidate: window.filter(|_| kind & 0x80 != 0),
                solicited: false,
            },
        };
        let tag = self.tag();
        if self.shm.post(qp, tag, work).is_ok() {
            self.out.insert(tag.0);
        }
    }

    /// Maps memory of the peer, if it granted that.
    pub fn map(&mut self, remote: RemoteSlice, rights: Rights) {
        if let Some(qp) = self.qp
            && let Some(mut buf) = self.shm.map_remote(qp, remote, rights)
        {
            assert_eq!(buf.len(), remote.len as usize, "the requested length");
            if rights.contains(Rights::REMOTE_WRITE) {
                buf.fill(1);
            }
            self.mapped.push(buf);
        }
    }

    /// Unmaps the peer's memory.
    pub fn unmap(&mut self) {
        self.mapped.clear();
    }

    /// Polls the provider, and checks its events.
    ///
    /// # Panics
    /// When an event is invalid.
    pub fn poll(&mut self) {
        let mut events = Vec::new();
        self.shm.submit(self.now);
        self.shm.poll(self.now, &mut events);
        for event in events {
            assert!(!self.closed, "{event:?} after the last event");
            match event {
                Event::ConnectRequest(request) => {
                    assert!(self.qp.is_none(), "a second connection request");
                    self.qp = Some(request.qp);
                }
                Event::Received(one) => assert!(self.out.remove(&one.tag.0), "{one:?} twice"),
                Event::Completion(one) => assert!(self.out.remove(&one.tag.0), "{one:?} twice"),
                Event::Closed { reason, .. } => {
                    let words = reason.to_string();
                    assert!(!words.is_empty());
                    assert!(
                        !words.contains(char::is_control),
                        "{words:?} contains control characters"
                    );
                    assert!(
                        self.out.is_empty(),
                        "work requests are lost: {:?}",
                        self.out
                    );
                    self.closed = true;
                }
                Event::Established { .. } => {
                    assert!(!self.established, "established twice");
                    self.established = true;
                }
                Event::Rejected { .. } => assert!(!self.established, "rejected when established"),
                Event::Withdrawn { .. } => panic!("memory returns at once"),
                Event::Ending { .. } => assert!(self.established, "never established"),
            }
        }
    }

    /// The peer is gone: the connection must end, and all memory must be returned.
    ///
    /// # Panics
    /// Otherwise.
    pub fn finish(mut self) {
        self.unmap();
        for _ in 0..64 {
            self.poll();
            self.now += Duration::from_secs(1);
            if self.closed {
                break;
            }
        }
        assert!(
            self.qp.is_none() || self.closed,
            "the connection does not end"
        );
        if let Some((slice, rights)) = self.window.take() {
            let buf = self.shm.withdraw(slice.key).expect("memory");
            let mut buf = buf.expect("memory returns at once");
            if !rights.contains(Rights::REMOTE_WRITE) {
                assert!(
                    buf.iter().all(|byte| *byte == FILL),
                    "written without permission"
                );
            }
            buf.reset_view();
            let mut edges = buf[..64].iter().chain(&buf[BUF - 64..]);
            assert!(edges.all(|byte| *byte == FILL), "written out of bounds");
        }
        assert_eq!(self.pool.available(), BUFFERS, "buffers are lost");
        drop(self.shm);
        let _ = std::fs::remove_dir_all(folder());
    }
}

impl Default for Ours {
    fn default() -> Self {
        Self::new()
    }
}
