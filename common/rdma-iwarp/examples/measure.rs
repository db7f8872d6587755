//! Rough figures over loopback, with one thread as server and one as client. A request is a
//! 64-byte Send; the response is an RDMA Write and a 16-byte Send, as for an NVMe read. Run
//! it in release mode.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a measurement stops where it fails"
)]

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nvmeof_memory::{Buf, Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, Event, Inline, PrivateData, Provider, QpConfig, QpId, RemoteKey, RemoteSlice, Rights,
    Tag, Work,
};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};

const RECVS: u32 = 256;
const SECONDS: f64 = 2.0;
const CONFIG: QpConfig = QpConfig {
    recvs: RECVS,
    sends: 1024,
    reads_out: 16,
    reads_in: 16,
    exposes: 256,
    trusts_peer: false,
};

struct Endpoint {
    provider: Iwarp,
    start: Instant,
    small: Pool,
    large: Pool,
    events: Vec<Event>,
}

impl Endpoint {
    fn new(crc: bool) -> Self {
        let config = IwarpConfig {
            crc,
            ..IwarpConfig::default()
        };
        let mut provider = nvmeof_rdma_iwarp::new(config).unwrap();
        let pool = |stride| {
            let layout = PoolLayout {
                count: 512,
                stride,
                lead: 0,
            };
            Pool::new(layout, Pages::Normal).unwrap()
        };
        let (small, large) = (pool(64), pool(131_072));
        provider.register(small.region()).unwrap();
        provider.register(large.region()).unwrap();
        Self {
            provider,
            start: Instant::now(),
            small,
            large,
            events: Vec::new(),
        }
    }

    fn poll_once(&mut self) {
        let now = self.start.elapsed();
        self.provider.submit(now);
        self.provider.poll(now, &mut self.events);
    }

    fn post_recvs(&mut self, qp: QpId) {
        for tag in 0..RECVS {
            let buf = self.small.take().unwrap();
            let tag = Tag(u64::from(tag));
            self.provider.post_recv(qp, tag, buf).unwrap();
        }
    }

    fn send(&mut self, qp: QpId, head: &[u8]) {
        let work = Work::Send {
            head: Inline::new(head).unwrap(),
            body: None,
            invalidate: None,
            solicited: false,
        };
        self.provider.post(qp, Tag(0), work).unwrap();
    }
}

fn serve(crc: bool, ready: &mpsc::Sender<Address>) {
    let mut end = Endpoint::new(crc);
    let listened = end.provider.listen("127.0.0.1:0".parse().unwrap());
    ready.send(listened.unwrap().1).unwrap();
    let mut events = Vec::new();
    loop {
        end.poll_once();
        std::mem::swap(&mut end.events, &mut events);
        for event in events.drain(..) {
            match event {
                Event::ConnectRequest(request) => {
                    end.provider.prepare(request.qp, &CONFIG).unwrap();
                    end.post_recvs(request.qp);
                    let nothing = PrivateData::empty();
                    end.provider.accept(request.qp, &nothing).unwrap();
                }
                Event::Received(received) if received.outcome.is_success() => {
                    let buf = received.buf;
                    let word = |at: usize| u32::from_le_bytes(*buf[at..].first_chunk().unwrap());
                    let slice = RemoteSlice {
                        key: RemoteKey(word(0)),
                        len: word(4),
                        addr: u64::from_le_bytes(*buf[8..].first_chunk().unwrap()),
                    };
                    if slice.len > 0 {
                        let mut local = end.large.take().unwrap();
                        local.set_len(slice.len as usize).unwrap();
                        let write = Work::Write {
                            local,
                            remote: slice,
                        };
                        end.provider.post(received.qp, Tag(0), write).unwrap();
                    }
                    let tag = buf[16..32].to_vec();
                    end.send(received.qp, &tag);
                    end.provider
                        .post_recv(received.qp, received.tag, buf)
                        .unwrap();
                }
                Event::Closed { .. } => return,
                _ => {}
            }
        }
    }
}

fn ask(crc: bool, len: usize, depth: usize) {
    let (ready, addr) = mpsc::channel();
    let server = thread::spawn(move || serve(crc, &ready));
    let mut end = Endpoint::new(crc);
    let now = end.start.elapsed();
    let nothing = PrivateData::empty();
    let qp = end
        .provider
        .connect(addr.recv().unwrap(), &CONFIG, &nothing, now)
        .unwrap();
    end.post_recvs(qp);
    while !end
        .events
        .iter()
        .any(|event| matches!(event, Event::Established { .. }))
    {
        end.poll_once();
    }
    end.events.clear();
    let expose = |end: &mut Endpoint, mut buf: Buf| {
        buf.set_len(len).unwrap();
        end.provider.expose(qp, buf, Rights::REMOTE_WRITE).unwrap()
    };
    let request = |slice: &RemoteSlice, slot: usize| {
        let mut head = [0; 64];
        head[..4].copy_from_slice(&slice.key.0.to_le_bytes());
        head[4..8].copy_from_slice(&slice.len.to_le_bytes());
        head[8..16].copy_from_slice(&slice.addr.to_le_bytes());
        head[16..24].copy_from_slice(&slot.to_le_bytes());
        head
    };
    let mut slices = Vec::new();
    for slot in 0..depth {
        let buf = end.large.take().unwrap();
        let slice = expose(&mut end, buf);
        end.send(qp, &request(&slice, slot));
        slices.push(slice);
    }
    let (start, mut done, mut events) = (Instant::now(), 0u64, Vec::new());
    while start.elapsed() < Duration::from_secs_f64(SECONDS) {
        end.poll_once();
        std::mem::swap(&mut end.events, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Received(received) => {
                    assert!(received.outcome.is_success());
                    let slot = usize::from_le_bytes(*received.buf.first_chunk().unwrap());
                    end.provider
                        .post_recv(qp, received.tag, received.buf)
                        .unwrap();
                    // A new key for each request, as in an initiator.
                    let buf = end.provider.withdraw(slices[slot].key).unwrap().unwrap();
                    slices[slot] = expose(&mut end, buf);
                    end.send(qp, &request(&slices[slot], slot));
                    done += 1;
                }
                Event::Completion(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    #[allow(clippy::cast_precision_loss, reason = "a printed figure")]
    let rate = done as f64 / start.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss, reason = "a printed figure")]
    let bytes = rate * len as f64;
    println!(
        "{len:>7} bytes, depth {depth:>3}, crc {crc}: {rate:>9.0} /s, {:>7.2} us each, \
            {:>6.2} GB/s",
        1e6 * f64::from(u32::try_from(depth).unwrap()) / rate,
        bytes / 1e9,
    );
    end.provider.disconnect(qp);
    while !matches!(end.events.last(), Some(Event::Closed { .. })) {
        end.poll_once();
    }
    server.join().unwrap();
}

fn main() {
    for (crc, len, depth) in [
        (false, 0, 1),
        (false, 4096, 1),
        (false, 4096, 16),
        (false, 4096, 128),
        (true, 4096, 128),
        (false, 131_072, 1),
        (false, 131_072, 32),
    ] {
        ask(crc, len, depth);
    }
}
