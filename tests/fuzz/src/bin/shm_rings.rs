//! A hostile peer of the shared memory provider: any message on the socket, any
//! word anywhere in the memory, mixed with records that are almost right, while
//! we work on the connection. Where it grants us memory of its own, we use it.
//!
//! What must hold all the same: see `nvmeof_fuzz::shm`.
#![no_main]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use nvmeof_fuzz::Script;
use nvmeof_fuzz::shm::{Ours, RING, say, socket};
use nvmeof_memory::Shared;
use nvmeof_rdma::{Address, Provider, RemoteKey, RemoteSlice, Rights};
use socket2::Socket;

const PORT: u16 = 4420;
/// Grants that a connection has room for, if any.
const GRANTS: u32 = 2048;
/// Two rings behind a page of words, and two words for each grant.
const TOTAL: usize = 4096 + 2 * RING + 16 * GRANTS as usize;
/// Without grants.
const RINGS: usize = 4096 + 2 * RING;
/// Bytes of the memory that the peer shares.
const SHARED: usize = 64 << 10;
/// What the first byte of granted memory is called.
const FIRST: u64 = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let mut script = Script::new(input);
    let flags = script.byte();
    let mut side = Side::new(flags & 1 != 0);
    side.ask();
    assert!(side.ours.qp.is_some(), "the right request is one");
    side.ours.accept(Rights::from_bits_truncate(flags >> 1));
    assert!(side.ours.window.is_some(), "it was accepted");
    for _ in 0..64 {
        if script.is_over() {
            break;
        }
        side.turn(&mut script);
    }
    side.peer = None;
    side.ours.finish();
});

struct Side {
    ours: Ours,
    peer: Option<Socket>,
    memory: Shared,
    fd: OwnedFd,
    grants: u32,
    /// What the peer shares, and how often it did.
    shared: OwnedFd,
    regions: u32,
    /// How far the peer says that it is in its ring.
    head: u64,
}

impl Side {
    fn new(grants: bool) -> Self {
        let mut ours = Ours::new();
        let addr = Address::from(([127, 0, 0, 1], PORT));
        ours.shm.listen(addr).expect("a listener");
        let (peer, addr) = socket(PORT);
        peer.connect(&addr).expect("a listener");
        let (memory, fd) = Shared::create(if grants { TOTAL } else { RINGS }).expect("memory");
        let (_, shared) = Shared::create(SHARED).expect("memory");
        Self {
            ours,
            peer: Some(peer),
            memory,
            fd,
            grants: if grants { GRANTS } else { 0 },
            shared,
            regions: 0,
            head: 0,
        }
    }

    fn say(&self, bytes: &[u8], memory: Option<&OwnedFd>) {
        if let Some(peer) = &self.peer {
            say(peer, bytes, memory.map(AsFd::as_fd));
        }
    }

    /// The peer's half of the set-up as it should be.
    fn ask(&mut self) {
        let mut request = b"\x01nvmshm2".to_vec();
        request.extend((RING as u64).to_le_bytes());
        request.extend(self.grants.to_le_bytes());
        request.extend(std::net::Ipv6Addr::LOCALHOST.octets());
        request.extend([4, 0, 0, 0, 4, 0, 0, 0]);
        self.say(&request, Some(&self.fd));
        for _ in 0..3 {
            self.ours.poll();
        }
    }

    fn turn(&mut self, script: &mut Script<'_>) {
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
                // Indices and wishes: mostly what could be.
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
            14 | 15 => self.grant(script),
            16 => self.ours.unmap(),
            _ => self.ours.poll(),
        }
    }

    /// The peer passes memory of its own: mostly as it has to.
    fn share(&mut self, script: &mut Script<'_>) {
        let odd = script.byte();
        let number = self.regions ^ u32::from(odd & 1);
        let len = SHARED as u64 + u64::from(odd >> 1 & 1);
        let message = [&[8], &number.to_le_bytes()[..], &len.to_le_bytes()].concat();
        self.say(&message, Some(&self.shared).filter(|_| odd & 4 == 0));
        self.regions += 1;
        self.ours.poll();
    }

    /// The peer grants some of it, and we use what was granted, or nearly that.
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

    /// A record that is almost right, and the head behind it.
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
        self.memory.store(4096 + at, words).expect("a place");
        self.head += (32 + len).next_multiple_of(64);
        let head = self.memory.word(0).expect("a word");
        head.store(self.head, Ordering::Release);
        self.say(&[4], None);
    }
}
