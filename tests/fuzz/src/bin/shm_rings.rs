//! A hostile peer of the shared memory provider: any first message, any message
//! on the socket, any word anywhere in the memory, mixed with records that are
//! almost right, while we work on the connection.
//!
//! Every work request comes back once, a peer changes exposed memory only where
//! it may write, and the connection ends when the peer is gone.
#![no_main]

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nvmeof_fuzz::Script;
use nvmeof_memory::{Pages, Pool, PoolLayout, Shared};
use nvmeof_rdma::{
    Address, Event, Inline, PrivateData, Provider, QpConfig, QpId, RemoteKey, RemoteSlice, Rights,
    Tag, Work,
};
use nvmeof_rdma_shm::{Shm, ShmConfig};
use socket2::{Domain, SockAddr, Socket, Type};

const CONFIG: QpConfig = QpConfig {
    recvs: 4,
    sends: 8,
    reads_out: 2,
    reads_in: 2,
    exposes: 16,
};
const RING: usize = 64 << 10;
/// Two rings behind a page of words.
const TOTAL: usize = 4096 + 2 * RING;
const BUF: usize = 20_000;
const BUFFERS: usize = 16;
/// What lies in memory that a peer may not write to.
const FILL: u8 = 0xa5;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let flags = script.byte();
    let mut side = Side::new();
    if flags & 1 != 0 {
        side.say(script.short(), flags & 2 != 0);
        side.poll();
    } else {
        side.ask();
        side.accept(Rights::from_bits_truncate(flags >> 1));
    }
    for _ in 0..64 {
        if script.is_over() {
            break;
        }
        side.turn(&mut script);
    }
    side.finish();
    drop(side);
    let _ = std::fs::remove_dir_all(folder());
});

thread_local! {
    /// Memory for all inputs: to have it made anew takes longer than most.
    static POOL: Pool = {
        let layout = PoolLayout {
            count: BUFFERS,
            stride: BUF,
            lead: 0,
        };
        Pool::new(layout, Pages::Normal).expect("memory")
    };
}

/// Where provider and peer meet: one folder for the life of the process.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("nvmeof-fuzz-{}", std::process::id()))
}

fn connect(folder: &Path) -> Socket {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).expect("a socket");
    let path = SockAddr::unix(folder.join("127.0.0.1-4420.sock")).expect("a short path");
    socket.connect(&path).expect("a listener");
    socket
}

struct Side {
    shm: Shm,
    pool: Pool,
    now: Duration,
    peer: Option<Socket>,
    memory: Shared,
    fd: std::os::fd::OwnedFd,
    /// How far the peer says that it is in its ring.
    head: u64,
    qp: Option<QpId>,
    /// Tags of work that is out.
    out: BTreeSet<u64>,
    next_tag: u64,
    window: Option<(RemoteSlice, Rights)>,
    closed: bool,
}

impl Side {
    fn new() -> Self {
        let pool = POOL.with(Clone::clone);
        let config = ShmConfig {
            folder: folder(),
            ring: RING,
            spin: Duration::ZERO,
            ..ShmConfig::default()
        };
        let mut shm = Shm::new(config).expect("a provider");
        shm.register(pool.region()).expect("a region");
        let addr = Address::from(([127, 0, 0, 1], 4420));
        shm.listen(addr).expect("a listener");
        let (memory, fd) = Shared::create(TOTAL).expect("memory");
        Self {
            peer: Some(connect(&folder())),
            shm,
            pool,
            now: Duration::ZERO,
            memory,
            fd,
            head: 0,
            qp: None,
            out: BTreeSet::new(),
            next_tag: 0,
            window: None,
            closed: false,
        }
    }

    /// The peer says something. What does not go out any more is not said.
    fn say(&mut self, bytes: &[u8], with_memory: bool) {
        let Some(peer) = &self.peer else { return };
        let numbers = [self.fd.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&numbers)];
        let control = if with_memory { &control[..] } else { &[] };
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let pieces = [IoSlice::new(bytes)];
        let _ = sendmsg::<()>(peer.as_raw_fd(), &pieces, control, flags, None);
    }

    /// The peer's half of the set-up as it should be.
    fn ask(&mut self) {
        let mut request = b"\x01nvmshm1".to_vec();
        request.extend((RING as u64).to_le_bytes());
        request.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        request.extend([4, 0, 0, 0, 4, 0, 0, 0]);
        self.say(&request, true);
        for _ in 0..3 {
            self.poll();
        }
    }

    /// Accepts, if there is a request, and has something of everything.
    fn accept(&mut self, rights: Rights) {
        let Some(qp) = self.qp else { return };
        if self.shm.prepare(qp, &CONFIG).is_err() {
            return;
        }
        for _ in 0..3 {
            self.post_recv(qp);
        }
        let _ = self.shm.accept(qp, &PrivateData::empty());
        let mut buf = self.pool.take().expect("a buffer");
        buf.fill(FILL);
        buf.set_view(64..BUF - 64).expect("inside the buffer");
        if let Ok(slice) = self.shm.expose(qp, buf, rights) {
            self.window = Some((slice, rights));
        }
        for kind in 0..3 {
            self.post(qp, kind);
        }
    }

    fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    fn post_recv(&mut self, qp: QpId) {
        let tag = self.tag();
        if let Some(buf) = self.pool.take()
            && self.shm.post_recv(qp, tag, buf).is_ok()
        {
            self.out.insert(tag.0);
        }
    }

    fn post(&mut self, qp: QpId, kind: u8) {
        let Some(local) = self.pool.take() else {
            return;
        };
        let remote = RemoteSlice {
            key: RemoteKey(7),
            addr: 7,
            len: u32::MAX,
        };
        let work = match kind % 3 {
            0 => Work::Read { local, remote },
            1 => Work::Write { local, remote },
            _ => Work::Send {
                head: Inline::new(&[1; 16]).expect("16 bytes"),
                body: Some(local),
                invalidate: None,
                solicited: false,
            },
        };
        let tag = self.tag();
        if self.shm.post(qp, tag, work).is_ok() {
            self.out.insert(tag.0);
        }
    }

    fn turn(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 => {
                let with_memory = script.byte() & 1 != 0;
                self.say(script.short(), with_memory);
            }
            1..=4 => self.put(script),
            5 => {
                let at = usize::from(script.u16()) * 8 % TOTAL;
                self.memory.store(at, [script.u64()]).expect("a place");
            }
            6 => {
                // Indices and wishes: mostly what could be.
                let at = script.index(6) * 128;
                let word = self.memory.word(at).expect("a word");
                let step = u64::from(script.byte()) * 64;
                word.store(
                    word.load(Ordering::Relaxed).wrapping_add(step),
                    Ordering::Relaxed,
                );
            }
            7 => self.now += Duration::from_millis(script.u16().into()),
            8 => self.accept(Rights::all()),
            9 => {
                if let Some(qp) = self.qp {
                    self.post_recv(qp);
                }
            }
            10 => {
                if let Some(qp) = self.qp {
                    self.post(qp, script.byte());
                }
            }
            11 if script.byte() & 7 == 0 => self.qp.into_iter().for_each(|qp| {
                self.shm.disconnect(qp);
            }),
            12 => self.peer = self.peer.take().filter(|_| script.byte() & 15 != 0),
            _ => self.poll(),
        }
    }

    /// A record that is almost right, and the head behind it.
    fn put(&mut self, script: &mut Script<'_>) {
        let (key, start) = match self.window {
            Some((slice, _)) => (u64::from(slice.key.0), slice.addr),
            None => (0, 0),
        };
        let first = u64::from(script.byte() % 5) | u64::from(script.byte() & 7) << 8;
        let (len, rest) = (u64::from(script.u16()), u64::from(script.u16()));
        let addr = start.wrapping_add(script.u16().into()).wrapping_sub(16);
        let at = usize::try_from(self.head).expect("64 bits") % RING;
        let words = [first | len << 32, key | rest << 32, addr];
        self.memory.store(4096 + at, words).expect("a place");
        self.head += (32 + len).next_multiple_of(64);
        self.memory
            .word(0)
            .expect("a word")
            .store(self.head, Ordering::Release);
        self.say(&[4], false);
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.shm.submit(self.now);
        self.shm.poll(self.now, &mut events);
        for event in events {
            assert!(!self.closed, "{event:?} after the last event");
            match event {
                Event::ConnectRequest(request) => self.qp = Some(request.qp),
                Event::Received(one) => assert!(self.out.remove(&one.tag.0), "{one:?} twice"),
                Event::Completion(one) => assert!(self.out.remove(&one.tag.0), "{one:?} twice"),
                Event::Closed { reason, .. } => {
                    assert!(!reason.to_string().is_empty());
                    assert!(self.out.is_empty(), "work is lost: {:?}", self.out);
                    self.closed = true;
                }
                Event::Established { .. } | Event::Rejected { .. } => {}
            }
        }
    }

    /// The peer is gone; so must the connection be, and all memory comes back.
    fn finish(&mut self) {
        self.peer = None;
        for _ in 0..64 {
            self.poll();
            self.now += Duration::from_secs(1);
            if self.closed {
                break;
            }
        }
        assert!(self.qp.is_none() || self.closed, "it does not end");
        if let Some((slice, rights)) = self.window.take() {
            let mut buf = self.shm.withdraw(slice.key).expect("memory");
            if !rights.contains(Rights::REMOTE_WRITE) {
                assert!(buf.iter().all(|byte| *byte == FILL), "without the right to");
            }
            buf.reset_view();
            let mut edges = buf[..64].iter().chain(&buf[BUF - 64..]);
            assert!(edges.all(|byte| *byte == FILL), "written out of bounds");
        }
        assert_eq!(self.pool.available(), BUFFERS, "buffers are lost");
    }
}
