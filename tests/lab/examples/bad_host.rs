//! A host over an RDMA device that sends an invalid remote key: `bad_host ADDR:PORT`. Succeeds
//! when the target closes the queue.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::{
    Address, CloseReason, Event, Inline, PrivateData, Provider, QpConfig, QpId, Tag, Work,
};
use nvmeof_rdma_verbs::{Verbs, VerbsConfig};
use nvmeof_wire::Sgl;
use nvmeof_wire::cm::Request;
use nvmeof_wire::fabrics::Connect;
use zerocopy::IntoBytes;

/// Time limit of each step.
const TIMEOUT: Duration = Duration::from_secs(10);
const RECEIVES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let target: Address = match std::env::args().nth(1) {
        Some(target) => target.parse()?,
        None => return Err("usage: bad_host ADDR:PORT".into()),
    };
    let mut host = Host::new()?;
    let qp = host.connect(target)?;
    host.send(qp)?;
    let reason = host.closed(qp)?;
    println!("the queue pair closed: {reason}");
    Ok(())
}

struct Host {
    provider: Verbs,
    pool: Pool,
    start: Instant,
}

impl Host {
    fn new() -> Result<Self, Box<dyn Error>> {
        let layout = PoolLayout {
            count: RECEIVES,
            stride: 4096,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal)?;
        let mut provider = nvmeof_rdma_verbs::new(VerbsConfig::default())?;
        provider.register(pool.region())?;
        Ok(Self {
            provider,
            pool,
            start: Instant::now(),
        })
    }

    /// Connects an admin queue.
    fn connect(&mut self, target: Address) -> Result<QpId, Box<dyn Error>> {
        let config = QpConfig {
            recvs: 4,
            sends: 4,
            reads_out: 1,
            reads_in: 1,
            exposes: 1,
            trusts_peer: false,
        };
        let private_data = PrivateData::new(Request::new(0, 32).as_bytes())?;
        let now = self.start.elapsed();
        let qp = self.provider.connect(target, &config, &private_data, now)?;
        while let Some(buf) = self.pool.take() {
            self.provider.post_recv(qp, Tag(0), buf)?;
        }
        self.until("the connection is established", |event| {
            matches!(event, Event::Established { .. }).then_some(())
        })?;
        Ok(qp)
    }

    /// Sends a Connect command whose data have an invalid key.
    fn send(&mut self, qp: QpId) -> Result<(), Box<dyn Error>> {
        let mut sqe = Connect::new(0, 32, 0).to_sqe();
        sqe.dptr = Sgl::keyed(0x1000, 1024, 0x5bad_c0de).to_descriptor();
        let work = Work::Send {
            head: Inline::new(&sqe.to_bytes())?,
            body: None,
            invalidate: None,
            solicited: false,
        };
        self.provider.post(qp, Tag(1), work)?;
        Ok(())
    }

    fn closed(&mut self, qp: QpId) -> Result<CloseReason, Box<dyn Error>> {
        self.until("the target closes the queue", |event| match event {
            Event::Closed { qp: of, reason } if *of == qp => Some(reason.clone()),
            _ => None,
        })
    }

    fn until<T>(
        &mut self,
        what: &str,
        wanted: impl Fn(&Event) -> Option<T>,
    ) -> Result<T, Box<dyn Error>> {
        let end = self.start.elapsed() + TIMEOUT;
        let mut events = Vec::new();
        while self.start.elapsed() < end {
            let now = self.start.elapsed();
            self.provider.submit(now);
            if !self.provider.poll(now, &mut events) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if let Some(found) = events.iter().find_map(&wanted) {
                return Ok(found);
            }
            events.clear();
        }
        Err(format!("timeout: waited until {what}").into())
    }
}
