//! A host: one controller with one I/O queue, and its calls.

use std::collections::BTreeMap;
use std::time::Duration;

use nvmeof_guards::Served;
use nvmeof_initiator::polled::{AdminConfig, AdminQueue, Done, IoConfig, IoQueue};
use nvmeof_initiator::{Blocks, Names, Nqn, Operation, QueueShape, SetupConfig};
use nvmeof_memory::{Pages, Pool, PoolLayout};
use nvmeof_rdma::Provider;
use nvmeof_verbs_standin::writer_of;

use crate::STEP;
use crate::blocks::{BLOCKS, Ledger, fill};

/// Rounds of a load.
pub(crate) const ROUNDS: u64 = 60;
/// Calls in flight.
const DEPTH: usize = 8;
const TIMEOUT: Duration = Duration::from_secs(2);
/// Steps until a call must have completed, and a queue must have closed: far more than the
/// time-outs of the host need.
pub(crate) const STEPS: u32 = 400_000;

/// A connection that ended.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) reason: String,
}

/// What a call does.
#[derive(Clone, Copy, Debug)]
enum Access {
    Read(u64),
    /// A block, and the number of the write.
    Write(u64, u64),
}

pub(crate) struct Host {
    admin: AdminQueue,
    queue: Option<IoQueue>,
    pool: Pool,
    open: BTreeMap<u64, Access>,
    done: Vec<Done>,
    next: u64,
    now: Duration,
}

fn names() -> Names {
    Names {
        hostid: [7; 16],
        hostnqn: Nqn::new("nqn.2026-11.org.example:host").unwrap(),
        subnqn: Nqn::new(Served::NQN).unwrap(),
        keys: None,
    }
}

fn shape(qid: u16) -> QueueShape {
    QueueShape {
        qid,
        size: 32,
        flow_control: true,
    }
}

/// A device that refuses something is not a bug of the host.
fn lost(error: &nvmeof_initiator::Error) -> Lost {
    let reason = error.to_string();
    assert!(!reason.contains("internal error"), "{reason}");
    Lost { reason }
}

impl Host {
    /// Connects to a target, each queue with a provider of its own. If the host `trusts` the
    /// target, capsules contain no data.
    pub(crate) fn connect(
        provider: fn() -> Box<dyn Provider>,
        served: &mut Served,
        trusts: bool,
    ) -> Result<Self, Lost> {
        let config = AdminConfig {
            setup: SetupConfig {
                names: names(),
                queue: shape(0),
                keep_alive: Duration::ZERO,
                io_queues: 1,
                in_capsule: if trusts { 0 } else { 4096 },
            },
            command_timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
        };
        let mut now = Duration::ZERO;
        let admin = AdminQueue::connect(provider(), served.address(), config, now);
        let mut admin = admin.map_err(|error| lost(&error))?;
        let mut done = Vec::new();
        let info = (0..STEPS).find_map(|_| {
            step(served, &mut now);
            admin.poll(now, &mut done);
            let failed = admin.is_closed().then_some(None);
            admin.info().cloned().map(Some).or(failed)
        });
        let Some(info) = info.expect("connecting ends") else {
            return Err(admin
                .error()
                .map(lost)
                .expect("a closed queue has an error"));
        };
        let config = IoConfig {
            names: names(),
            queue: shape(1),
            command_timeout: TIMEOUT,
            connect_timeout: TIMEOUT,
            trusts_target: trusts,
        };
        let queue = IoQueue::connect(provider(), served.address(), &info, config, now);
        let mut queue = queue.map_err(|error| lost(&error))?;
        let ready = (0..STEPS).find_map(|_| {
            step(served, &mut now);
            queue.poll(now, &mut done);
            admin.poll(now, &mut done);
            (queue.is_ready() || queue.is_closed()).then(|| queue.is_ready())
        });
        if !ready.expect("connecting ends") {
            return Err(queue
                .error()
                .map(lost)
                .expect("a closed queue has an error"));
        }
        let layout = PoolLayout {
            count: DEPTH,
            stride: Served::BLOCK,
            lead: 0,
        };
        let pool = Pool::new(layout, Pages::Normal).unwrap();
        queue
            .register(pool.region())
            .map_err(|error| lost(&error))?;
        Ok(Self {
            admin,
            queue: Some(queue),
            pool,
            open: BTreeMap::new(),
            done,
            next: 0,
            now,
        })
    }

    /// Reads and writes for some rounds. Ends with the connection.
    pub(crate) fn run(
        &mut self,
        served: &mut Served,
        ledger: &mut Ledger,
        rounds: u64,
    ) -> Result<(), Lost> {
        for round in 0..rounds {
            // Each block of a round has one call at a time.
            for number in 0..DEPTH as u64 {
                let block = (round * 5 + number * 3) % BLOCKS;
                let writes = (round + number) % 2 == 0;
                if !self.submit(ledger, block, writes) {
                    break;
                }
            }
            self.complete(served, ledger);
            let queue = self.queue.as_ref().unwrap();
            if let Some(error) = queue.error() {
                return Err(lost(error));
            }
        }
        Ok(())
    }

    /// Submits a call. Returns whether the queue took it.
    fn submit(&mut self, ledger: &mut Ledger, block: u64, writes: bool) -> bool {
        let Some(mut buf) = self.pool.take() else {
            // The device kept it when the connection was lost.
            return false;
        };
        let (operation, access) = if writes {
            let write = ledger.write(block);
            fill(block, write, &mut buf);
            (Operation::Write, Access::Write(block, write))
        } else {
            buf.fill(0xEE);
            (Operation::Read, Access::Read(block))
        };
        let blocks = Blocks {
            operation,
            nsid: 1,
            block_shift: 12,
            slba: block,
            count: 1,
            fua: false,
        };
        self.next += 1;
        let queue = self.queue.as_mut().unwrap();
        let taken = queue.submit(blocks, Some(buf), self.next, self.now);
        if taken.is_ok() {
            self.open.insert(self.next, access);
        }
        taken.is_ok()
    }

    /// Waits until each call has completed, once.
    fn complete(&mut self, served: &mut Served, ledger: &mut Ledger) {
        for _ in 0..STEPS {
            if self.open.is_empty() {
                break;
            }
            step(served, &mut self.now);
            self.admin.poll(self.now, &mut self.done);
            let queue = self.queue.as_mut().unwrap();
            queue.poll(self.now, &mut self.done);
            for done in self.done.drain(..) {
                let access = self.open.remove(&done.user);
                let access = access.expect("a call completes once");
                match (access, &done.result) {
                    (Access::Write(block, write), Ok(_)) => ledger.acknowledged(block, write),
                    (Access::Read(block), Ok(_)) => {
                        let buf = done.buf.as_ref().expect("a read returns its buffer");
                        ledger.check(block, buf);
                    }
                    // Buffers of a trusted target are open until the queue pair is closed.
                    (_, Err(_)) => {
                        let buf = done.buf.as_ref();
                        let writer = buf.and_then(|buf| writer_of(buf.addr(), buf.len()));
                        assert_eq!(writer, None, "a call ended too early");
                    }
                }
            }
        }
        assert!(self.open.is_empty(), "calls hang: {:?}", self.open);
    }

    /// Makes calls that the target does not respond to, until they end. It may write to their
    /// buffers until then.
    pub(crate) fn run_without_response(&mut self, ledger: &mut Ledger) -> Lost {
        for block in 0..DEPTH as u64 {
            assert!(self.submit(ledger, block, false), "the queue takes calls");
        }
        let queue = self.queue.as_mut().unwrap();
        for _ in 0..STEPS {
            self.now += TIMEOUT / 100;
            queue.poll(self.now, &mut self.done);
            let buffers = self.done.iter().map(|done| done.buf.as_ref().unwrap());
            for buf in buffers {
                assert_eq!(writer_of(buf.addr(), buf.len()), None, "it ended too early");
            }
            if self.done.len() == DEPTH {
                break;
            }
        }
        assert_eq!(self.done.len(), DEPTH, "calls hang");
        for done in self.done.drain(..) {
            assert!(done.result.is_err());
            self.open.remove(&done.user);
        }
        lost(queue.error().unwrap())
    }

    /// Reads all blocks.
    pub(crate) fn verify(&mut self, served: &mut Served, ledger: &mut Ledger) {
        for block in 0..BLOCKS {
            assert!(self.submit(ledger, block, false), "the queue takes calls");
            self.complete(served, ledger);
        }
    }

    /// Closes the queues. All buffers are back.
    pub(crate) fn finish(mut self, served: &mut Served) {
        let mut queue = self.queue.take().unwrap();
        queue.close();
        self.admin.close();
        for _ in 0..STEPS {
            if queue.is_closed() && self.admin.is_closed() {
                break;
            }
            step(served, &mut self.now);
            queue.poll(self.now, &mut self.done);
            self.admin.poll(self.now, &mut self.done);
        }
        assert!(queue.is_closed() && self.admin.is_closed(), "queues hang");
        assert!(self.done.is_empty(), "calls complete twice");
        drop(queue);
        assert_eq!(self.pool.available(), DEPTH, "buffers are lost");
        // The target ends its side.
        for _ in 0..200 {
            step(served, &mut self.now);
        }
    }
}

/// One turn of the target, and time for both.
pub(crate) fn step(served: &mut Served, now: &mut Duration) {
    *now += STEP;
    served.advance(STEP);
    served.iterate();
}
