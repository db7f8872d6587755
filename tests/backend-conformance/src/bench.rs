//! One backing store of one reactor, with calls that wait for completion.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_backend::{
    BackingStores as _, Claim, Done, IoError, Op, RefusalReason, Request, Submitted, UringStores,
};
use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_uring::RingConfig;

use crate::Wrap;

/// Whether a backing store keeps written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// It returns them.
    Bytes,
    /// It discards them: reads return zeroes.
    Nothing,
}

/// A backing store under test.
pub struct Bench {
    /// The backing stores of the reactor.
    pub stores: UringStores,
    /// The number of the one under test.
    pub store: u32,
    /// Whether it keeps written data.
    pub keeps: Keeps,
    /// Bytes of a block.
    pub block: usize,
    /// Size of the backing store in bytes.
    pub size: u64,
    /// The pool of buffers, 64 KiB each.
    pub pool: Pool,
    next_tag: u64,
}

/// Number of buffers.
pub(crate) const BUFFERS: usize = 48;
/// Bytes of each.
pub(crate) const BUFFER: usize = 64 << 10;
/// Maximum number of requests in flight: half of the size of the ring.
pub(crate) const IN_FLIGHT: u32 = 32;

impl Bench {
    /// Opens `claim` for a reactor of its own.
    #[must_use]
    pub fn new(claim: &Claim, keeps: Keeps, wrap: Wrap) -> Self {
        Self::over(claim, keeps, wrap, RingConfig::default())
    }

    /// The same over a ring with this configuration, except for its sizes.
    #[must_use]
    pub fn over(claim: &Claim, keeps: Keeps, wrap: Wrap, ring: RingConfig) -> Self {
        let config = RingConfig {
            entries: 8,
            in_flight: 2 * IN_FLIGHT,
            files: 4,
            ..ring
        };
        let mut stores = UringStores::new(config).unwrap();
        let layout = PoolLayout {
            count: BUFFERS,
            stride: BUFFER,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        stores.register_regions([pool.region()]);
        let store = 0;
        stores.open_wrapped(store, claim, wrap).unwrap();
        let geometry = stores.geometry(store).unwrap();
        assert_eq!(geometry, claim.geometry());
        Self {
            keeps,
            block: geometry.block_size.bytes() as usize,
            size: geometry.size,
            stores,
            store,
            pool,
            next_tag: 0,
        }
    }

    /// A buffer with `len` bytes in view, all of them `byte`. The bytes around
    /// the view are 0xEE.
    #[must_use]
    pub fn buf(&self, len: usize, byte: u8) -> Buf {
        let mut buf = self.pool.take().unwrap();
        buf.fill(0xEE);
        let start = if len + 4096 <= BUFFER { 4096 } else { 0 };
        buf.set_view(start..start + len).unwrap();
        buf.fill(byte);
        buf
    }

    /// Submits `request`. Returns its completion if it completed immediately.
    ///
    /// # Errors
    /// Those of [`BackingStores::submit`](nvmeof_backend::BackingStores::submit).
    pub fn try_submit(&mut self, request: &mut Request) -> Result<Option<Done>, RefusalReason> {
        match self.stores.submit(self.store, request)? {
            Submitted::Done(result) => {
                let (tag, op) = (request.tag, std::mem::replace(&mut request.op, Op::Flush));
                let buf = op.into_buf();
                Ok(Some(Done { tag, buf, result }))
            }
            Submitted::Pending => Ok(None),
        }
    }

    /// Submits `op` and returns its tag. Polls while the ring is full.
    pub fn submit(&mut self, op: Op, done: &mut Vec<Done>) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        let mut request = Request { tag, op };
        loop {
            match self.try_submit(&mut request) {
                Ok(at_once) => {
                    done.extend(at_once);
                    return tag;
                }
                Err(why) => assert_eq!(why, RefusalReason::Full),
            }
            self.poll_once(done);
        }
    }

    /// Polls once, and sleeps if there were no completions.
    pub fn poll_once(&mut self, done: &mut Vec<Done>) {
        if self.stores.poll(done).unwrap() {
            return;
        }
        if self.stores.in_flight() > 0 && self.stores.may_sleep().unwrap() {
            let mut fds = [PollFd::new(self.stores.wait_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => panic!("poll: {errno}"),
            }
        }
    }

    /// Executes `op` and waits for its completion.
    pub fn run(&mut self, op: Op) -> Done {
        let mut done = Vec::new();
        let tag = self.submit(op, &mut done);
        while done.is_empty() {
            self.poll_once(&mut done);
        }
        assert_eq!((done.len(), done[0].tag), (1, tag));
        assert_eq!(self.stores.in_flight(), 0);
        done.remove(0)
    }

    /// Executes `op`, which must succeed, and returns its buffer.
    pub fn ok(&mut self, op: Op) -> Option<Buf> {
        let Done { result, buf, .. } = self.run(op);
        assert_eq!(result, Ok(()));
        buf
    }

    /// Executes `op`, which must fail.
    pub fn err(&mut self, op: Op) -> IoError {
        self.run(op).result.unwrap_err()
    }

    /// Writes `len` bytes from `offset` on, all of them `byte`.
    pub fn fill(&mut self, offset: u64, len: usize, byte: u8, fua: bool) {
        let buf = self.buf(len, byte);
        let view = buf.view();
        let op = Op::Write { offset, buf, fua };
        let mut buf = self.ok(op).unwrap();
        assert_eq!(buf.view(), view, "the view is unchanged");
        assert!(buf.iter().all(|it| *it == byte), "the bytes are unchanged");
        buf.reset_view();
        assert_eq!(count(&buf, 0xEE), BUFFER - len);
    }

    /// Reads `len` bytes from `offset` on.
    #[must_use]
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let buf = self.buf(len, 0xDD);
        let view = buf.view();
        let mut buf = self.ok(Op::Read { offset, buf }).unwrap();
        assert_eq!(buf.view(), view, "the view is unchanged");
        let bytes = buf.to_vec();
        buf.fill(0xEE);
        buf.reset_view();
        assert_eq!(
            count(&buf, 0xEE),
            BUFFER,
            "bytes outside of the view are unchanged"
        );
        bytes
    }

    /// The byte that is read where `byte` was written.
    pub(crate) fn kept(&self, byte: u8) -> u8 {
        match self.keeps {
            Keeps::Bytes => byte,
            Keeps::Nothing => 0,
        }
    }

    /// Asserts that `len` bytes from `offset` on are those after writing `byte`.
    pub(crate) fn expect(&mut self, offset: u64, len: usize, byte: u8) {
        let kept = self.kept(byte);
        let bytes = self.read(offset, len);
        let wrong = bytes.iter().position(|it| *it != kept);
        assert_eq!(wrong, None, "byte {offset} + ... is not {kept}");
    }
}

fn count(bytes: &[u8], byte: u8) -> usize {
    bytes.iter().filter(|it| **it == byte).count()
}
