//! Byte streams inside one thread, instead of sockets.

use std::hint::black_box;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvmeof_rdma::{Address, ConnectError, ListenError, ListenerId};
use nvmeof_rdma_soft::{StreamEvent, StreamId, Streams};

use crate::carry::{Call, Net};

/// Pipes between endpoints of one process. They do not allocate after a connection is
/// established.
#[derive(Clone, Debug, Default)]
pub struct Pipes {
    net: Arc<Mutex<Net>>,
}

/// The side of an endpoint. Calls of each side are separate functions, so that their cost
/// can be excluded from the cost of the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that listens.
    Target,
    /// The side that connects.
    Initiator,
}

/// One endpoint.
#[derive(Debug)]
pub struct PipeStreams {
    net: Arc<Mutex<Net>>,
    endpoint: usize,
    side: Side,
}

impl Pipes {
    /// A new endpoint.
    #[must_use]
    pub fn endpoint(&self, side: Side) -> PipeStreams {
        let net = Arc::clone(&self.net);
        let endpoint = lock(&net).endpoint();
        PipeStreams {
            net,
            endpoint,
            side,
        }
    }
}

fn lock(net: &Mutex<Net>) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the target's system calls: not counted.
#[inline(never)]
fn carry_for_target(net: &Mutex<Net>, call: Call<'_, '_>) -> io::Result<usize> {
    // The compiler must not merge this function with the next.
    black_box(Side::Target);
    lock(net).call(call)
}

/// Replaces the initiator's system calls: not counted.
#[inline(never)]
fn carry_for_initiator(net: &Mutex<Net>, call: Call<'_, '_>) -> io::Result<usize> {
    black_box(Side::Initiator);
    lock(net).call(call)
}

impl PipeStreams {
    fn carry(&self, call: Call<'_, '_>) -> io::Result<usize> {
        match self.side {
            Side::Target => carry_for_target(&self.net, call),
            Side::Initiator => carry_for_initiator(&self.net, call),
        }
    }
}

impl Streams for PipeStreams {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn listen(&mut self, addr: Address) -> Result<(ListenerId, Address), ListenError> {
        Ok((lock(&self.net).listen(self.endpoint, addr), addr))
    }

    fn unlisten(&mut self, _listener: ListenerId) {}

    fn connect(&mut self, addr: Address) -> Result<StreamId, ConnectError> {
        let failed = |source| ConnectError::Io { addr, source };
        lock(&self.net).connect(self.endpoint, addr).map_err(failed)
    }

    fn poll(&mut self, _now: Duration, events: &mut Vec<StreamEvent>) {
        // Polling transfers no bytes, so it cannot fail.
        let _ = self.carry(Call::Poll(self.endpoint, events));
    }

    fn recv(&mut self, stream: StreamId, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.carry(Call::Recv(stream, bufs))
    }

    fn send(&mut self, stream: StreamId, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.carry(Call::Send(stream, bufs))
    }

    fn want_send(&mut self, stream: StreamId, want: bool) -> io::Result<()> {
        lock(&self.net).want_send(stream, want);
        Ok(())
    }

    fn shutdown_send(&mut self, stream: StreamId) {
        lock(&self.net).shut(stream);
    }

    fn close(&mut self, stream: StreamId) {
        lock(&self.net).close(stream);
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }
}
