//! Two software providers on pipes: Sends of 64 bytes, a frame each.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{Address, Event, Inline, PrivateData, Provider as _, QpConfig, QpId, Tag, Work};
use nvmeof_rdma_soft::{SoftConfig, SoftRdma};

use crate::{PipeStreams, Pipes, Side};

const CONFIG: QpConfig = QpConfig {
    recvs: 256,
    sends: 256,
    reads_out: 16,
    reads_in: 16,
    exposes: 16,
    trusts_peer: false,
};
/// Bytes of each message: a command's.
pub(crate) const BYTES: usize = 64;
const NOW: Duration = Duration::ZERO;

/// A sender and a receiver, connected.
pub struct Engine {
    sender: Endpoint,
    receiver: Endpoint,
}

/// One side of a connection.
pub(crate) struct Endpoint {
    pub(crate) provider: SoftRdma<PipeStreams>,
    pub(crate) qp: QpId,
    pub(crate) events: Vec<Event>,
}

impl Engine {
    /// Both ends; with a CRC32c on every frame or without.
    #[must_use]
    pub fn new(crc: bool) -> Self {
        let (sender, mut receiver) = connected(crc);
        receiver.post_recvs();
        Self { sender, receiver }
    }

    /// Sends `count` messages at once and receives them.
    pub fn round(&mut self, count: usize) {
        sender_iteration(&mut self.sender, count);
        let mut received = 0;
        while received < count {
            received += receiver_iteration(&mut self.receiver);
        }
        sender_iteration(&mut self.sender, 0);
    }
}

/// The side that connected, and the side that listened.
pub(crate) fn connected(crc: bool) -> (Endpoint, Endpoint) {
    let pipes = Pipes::default();
    let config = SoftConfig {
        crc,
        ..SoftConfig::default()
    };
    let provider = |side| SoftRdma::new(pipes.endpoint(side), config.clone());
    let (mut to, mut from) = (provider(Side::Target), provider(Side::Initiator));
    let addr = Address::from((Ipv4Addr::LOCALHOST, 1));
    to.listen(addr).unwrap();
    let nothing = PrivateData::empty();
    let qp = from.connect(addr, &CONFIG, &nothing, NOW).unwrap();
    let mut events = Vec::with_capacity(512);
    let mut accepted = None;
    let mut stands = false;
    while !stands {
        for event in polled(&mut to, &mut events) {
            if let Event::ConnectRequest(request) = event {
                to.prepare(request.qp, &CONFIG).unwrap();
                to.accept(request.qp, &nothing).unwrap();
                accepted = Some(request.qp);
            }
        }
        let established = |event: &Event| matches!(event, Event::Established { .. });
        stands = polled(&mut from, &mut events).any(|event| established(&event));
    }
    let receiver = Endpoint {
        provider: to,
        qp: accepted.unwrap(),
        events: Vec::with_capacity(512),
    };
    let sender = Endpoint {
        provider: from,
        qp,
        events,
    };
    (sender, receiver)
}

fn polled<'a>(
    provider: &mut SoftRdma<PipeStreams>,
    events: &'a mut Vec<Event>,
) -> std::vec::Drain<'a, Event> {
    provider.submit(NOW);
    provider.poll(NOW, events);
    events.drain(..)
}

impl Endpoint {
    pub(crate) fn post_recvs(&mut self) {
        let layout = PoolLayout {
            count: 256,
            stride: BYTES,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        self.provider.register(pool.region()).unwrap();
        while let Some(buf) = pool.take() {
            self.provider.post_recv(self.qp, Tag(0), buf).unwrap();
        }
    }

    pub(crate) fn poll_once(&mut self) {
        self.provider.submit(NOW);
        self.provider.poll(NOW, &mut self.events);
    }

    /// An iteration, in which used receive buffers are posted again.
    #[inline]
    pub(crate) fn receive(&mut self) -> usize {
        self.poll_once();
        let mut count = 0;
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Received(received) if received.outcome.is_success() => {
                    count += 1;
                    let posted = self.provider.post_recv(self.qp, Tag(0), received.buf);
                    posted.unwrap();
                }
                Event::Established { .. } | Event::Completion(_) => {}
                other => panic!("{other:?}"),
            }
        }
        self.events = events;
        black_box(count)
    }
}

/// Posts `count` Sends, sends them, takes completions.
#[inline(never)]
fn sender_iteration(end: &mut Endpoint, count: usize) {
    for _ in 0..count {
        let work = Work::Send {
            head: Inline::new(&[7; BYTES]).unwrap(),
            body: None,
            invalidate: None,
            solicited: false,
        };
        end.provider.post(end.qp, Tag(0), work).unwrap();
    }
    end.poll_once();
    end.events.clear();
}

/// Receives, and posts the buffers again. Returns the number of messages.
#[inline(never)]
fn receiver_iteration(end: &mut Endpoint) -> usize {
    end.receive()
}
