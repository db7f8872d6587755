//! A hostile peer of the shared memory provider, which connected or accepted: any message on
//! the socket, any word anywhere in the memory, mixed with almost valid records, while this
//! side uses the connection. This side maps memory that the peer grants. The peer marks
//! memory that this side grants as in use.
//!
//! Invariants: see `nvmeof_fuzz::shm`.
#![no_main]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_fuzz::shm::{CONFIG, Ours, RING, folder, say, socket};
use nvmeof_memory::{Shared, receive_passed};
use nvmeof_rdma::{Address, PrivateData, Provider, RemoteKey, RemoteSlice, Rights};
use nvmeof_rdma_shm::ShareMemory;
use socket2::Socket;

const PORT: u16 = 4420;
/// Maximum grants of a connection, if any.
const GRANTS: u32 = 2048;
/// Two rings after a page of words, and two words for each grant.
const TOTAL: usize = 4096 + 2 * RING + 16 * GRANTS as usize;
/// Without grants.
const RINGS: usize = 4096 + 2 * RING;
/// Reads that the peer serves, and requests in flight.
const READS: [u8; 8] = [4, 0, 0, 0, 4, 0, 0, 0];
/// Bytes of the memory that the peer shares.
const SHARED: usize = 64 << 10;
/// Address of the first byte of granted memory.
const FIRST: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let flags = script.byte();
    let rights = Rights::from_bits_truncate(flags >> 1);
    let grants = flags & 1 != 0;
    let mut side = match flags & 0x80 != 0 {
        true => Side::that_asks(grants, rights),
        false => Side::that_is_asked(grants, rights),
    };
    assert!(side.ours.window.is_some(), "it was accepted");
    for _ in 0..64 {
        if script.is_empty() {
            break;
        }
        side.step(&mut script);
    }
    side.peer = None;
    side.ours.finish();
});

struct Side {
    ours: Ours,
    peer: Option<Socket>,
    /// The shared memory, and its descriptor.
    memory: Shared,
    fd: OwnedFd,
    /// The ring that the peer fills: 0 if it connected, 1 if this side did.
    ring: usize,
    /// Memory that the peer shares, and how often it did.
    shared: OwnedFd,
    regions: u32,
    /// The head of the peer's ring.
    head: u64,
}

fn total(grants: bool) -> usize {
    if grants { TOTAL } else { RINGS }
}

impl Side {
    fn new(ours: Ours, peer: Socket, (memory, fd): (Shared, OwnedFd), ring: usize) -> Self {
        let (_, shared) = Shared::create(SHARED).expect("memory");
        Self {
            ours,
            peer: Some(peer),
            memory,
            fd,
            ring,
            shared,
            regions: 0,
            head: 0,
        }
    }

    /// A peer that completed its half of the set-up, and was accepted.
    fn that_asks(grants: bool, rights: Rights) -> Self {
        let mut ours = Ours::new();
        let addr = Address::from(([127, 0, 0, 1], PORT));
        ours.shm.listen(addr).expect("a listener");
        let (peer, addr) = socket(PORT);
        peer.connect(&addr).expect("a listener");
        let memory = Shared::create(total(grants)).expect("memory");
        let mut side = Self::new(ours, peer, memory, 0);
        let mut request = b"\x01nvmshm2".to_vec();
        request.extend((RING as u64).to_le_bytes());
        request.extend((if grants { GRANTS } else { 0 }).to_le_bytes());
        request.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        request.extend(READS);
        side.say(&request, Some(&side.fd));
        side.settle();
        assert!(side.ours.qp.is_some(), "the right request is one");
        side.ours.accept(rights);
        side
    }

    /// A peer that this side connected to, and that accepted.
    fn that_is_asked(grants: bool, rights: Rights) -> Self {
        let _ = std::fs::create_dir(folder());
        let (listener, at) = socket(PORT);
        listener.bind(&at).expect("a free place");
        listener.listen(1).expect("a listener");
        let mut ours = Ours::with_sharing(if grants {
            ShareMemory::SameUser
        } else {
            ShareMemory::Never
        });
        let addr = Address::from(([127, 0, 0, 1], PORT));
        let nothing = PrivateData::empty();
        let qp = ours.shm.connect(addr, &CONFIG, &nothing, ours.now);
        ours.qp = Some(qp.expect("a connection"));
        ours.receive();
        let (peer, _) = listener.accept().expect("a connection");
        let mut room = [0; 256];
        let (_, fd) = receive_passed(peer.as_fd(), &mut room).expect("a request");
        let fd = fd.expect("memory comes with it");
        let memory = Shared::open(fd.as_fd(), total(grants)).expect("as much as there has to be");
        let mut side = Self::new(ours, peer, (memory, fd), 1);
        let regions = u32::from(grants) * 16;
        side.say(&[&[2], &regions.to_le_bytes()[..], &READS].concat(), None);
        side.settle();
        assert!(side.ours.established, "the right answer is one");
        side.ours.work(rights);
        side
    }

    fn settle(&mut self) {
        for _ in 0..3 {
            self.ours.poll();
        }
    }

    fn say(&self, bytes: &[u8], memory: Option<&OwnedFd>) {
        if let Some(peer) = &self.peer {
            say(peer, bytes, memory.map(AsFd::as_fd));
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        match script.byte() % 20 {
            0 => {
                let memory = (script.byte() & 1 != 0).then_some(&self.fd);
                self.say(script.short(), memory);
            }
            1..=4 => self.put(script),
            5 => {
                let at = usize::from(script.u16()) * 8 % self.memory.len();
                let word = [script.u64()];
                self.memory.store(at, word).expect("a place");
            }
            6 => {
                // Indices and requests: mostly plausible values.
                let at = script.index(6) * 128;
                let word = self.memory.word(at).expect("a word");
                let step = u64::from(script.byte()) * 64;
                word.store(
                    word.load(Ordering::Relaxed).wrapping_add(step),
                    Ordering::Relaxed,
                );
            }
            7 => self.ours.now += Duration::from_millis(script.u16().into()),
            8 => self.ours.accept(Rights::all()),
            9 => self.ours.post_recv(),
            10 => self.ours.post(script.byte()),
            11 if script.byte() & 7 == 0 => {
                if let Some(qp) = self.ours.qp {
                    self.ours.shm.disconnect(qp);
                }
            }
            12 => self.peer = self.peer.take().filter(|_| script.byte() & 15 != 0),
            13 => self.share(script),
            14 | 15 if self.ring == 0 => self.grant(script),
            14 | 15 => self.mark(script),
            16 => self.ours.unmap(),
            _ => self.ours.poll(),
        }
    }

    /// The peer shares its memory: mostly correctly.
    fn share(&mut self, script: &mut Script<'_>) {
        let odd = script.byte();
        let number = self.regions ^ u32::from(odd & 1);
        let len = SHARED as u64 + u64::from(odd >> 1 & 1);
        let message = [&[8], &number.to_le_bytes()[..], &len.to_le_bytes()].concat();
        self.say(&message, Some(&self.shared).filter(|_| odd & 4 == 0));
        self.regions += 1;
        self.ours.poll();
    }

    /// The peer grants some of it, and this side maps the grant, or almost the grant.
    fn grant(&mut self, script: &mut Script<'_>) {
        let key = u32::from(script.byte()) << 8;
        let (start, len) = (script.u16(), u32::from(script.u16()));
        let region = u64::from(script.byte() % 3);
        let rights = script.byte();
        let packed = u64::from(start) | region << 48 | u64::from(rights) << 56;
        self.record([5, u64::from(key) | u64::from(len) << 32, packed], 0);
        self.ours.poll();
        let remote = RemoteSlice {
            key: RemoteKey(key),
            addr: FIRST.wrapping_add(script.byte().into()).wrapping_sub(1),
            len: len.saturating_sub(script.byte().into()),
        };
        self.ours.map(remote, Rights::from_bits_truncate(rights));
    }

    /// The peer marks memory of this side as in use or not, and another key as revoked.
    fn mark(&mut self, script: &mut Script<'_>) {
        let key = self.ours.window.map_or(0, |(slice, _)| slice.key.0);
        let place = (key >> 8) as usize % GRANTS as usize;
        let odd = script.byte();
        let at = RINGS + 8 * (place + usize::from(odd >> 1 & 1) * GRANTS as usize);
        if at < self.memory.len() {
            let word = [u64::from(odd & 1) << 32 | u64::from(odd >> 2)];
            self.memory.store(at, word).expect("a place");
        }
        self.ours.poll();
    }

    /// An almost valid record, and the head after it.
    fn put(&mut self, script: &mut Script<'_>) {
        let (key, start) = match self.ours.window {
            Some((slice, _)) => (u64::from(slice.key.0), slice.addr),
            None => (0, 0),
        };
        let first = u64::from(script.byte() % 6) | u64::from(script.byte() & 15) << 8;
        let (len, rest) = (u64::from(script.u16()), u64::from(script.u16()));
        let addr = start.wrapping_add(script.u16().into()).wrapping_sub(16);
        self.record([first | len << 32, key | rest << 32, addr], len);
    }

    fn record(&mut self, words: [u64; 3], len: u64) {
        let at = usize::try_from(self.head).expect("64 bits") % RING;
        let data = 4096 + self.ring * RING;
        self.memory.store(data + at, words).expect("a place");
        self.head += (32 + len).next_multiple_of(64);
        let head = self.memory.word(self.ring * 256).expect("a word");
        head.store(self.head, Ordering::Release);
        self.say(&[4], None);
    }
}
