//! A target with many reactors: the messages between them, and the queue pairs that they poll,
//! for one event.

use std::time::Duration;

use nvmeof_initiator::polled::{Call, Done};
use nvmeof_initiator_core::{Blocks, Operation, admin};
use nvmeof_memory::{ClassSpec, Pages};
use nvmeof_rdma::Address;
use nvmeof_rdma_layers::{Dice, Faults};
use nvmeof_rdma_sim::{SimConfig, SimNet};
use nvmeof_target_core::{Limits, Model, Target};
use nvmeof_target_engine::{Mail, ReactorConfig};
use nvmeof_wire::registers::{Property, PropertyValue};

use crate::disk::Disks;
use crate::host::Host;
use crate::medium::Medium;
use crate::plain::{self, BLOCK, PORT, TARGET};
use crate::plan::HostShape;
use crate::world::Reactors;

/// What an event costs, over all reactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Messages that wake a reactor: one system call each.
    pub wakeups: u64,
    /// Polls of queue pairs because of the event.
    pub polls: u64,
}

/// A target, and hosts with an admin queue and one I/O queue each. Connections are spread
/// over the reactors round robin.
pub struct Scale {
    net: SimNet,
    medium: Medium,
    disks: Disks,
    target: Target,
    /// Changes of the model so far.
    revision: u32,
    reactors: Reactors,
    hosts: Vec<Host>,
    done: Vec<Done>,
}

const BLOCKS: u64 = 16;
/// Keep Alive Timeout of the hosts.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Time in which all effects of an event have occurred.
const QUIET: Duration = Duration::from_millis(20);
/// Time by which an event has ended.
const LATEST: Duration = Duration::from_secs(1);

impl Scale {
    /// Starts a target with so many reactors, and connects so many hosts.
    ///
    /// # Errors
    /// When a host cannot connect.
    pub fn start(reactors: usize, hosts: usize) -> Result<Self, String> {
        let mut dice = Dice::new(1);
        let net = SimNet::new(dice.roll(), SimConfig::default());
        let medium = Medium::Net {
            net: net.clone(),
            crc: false,
        };
        let (shape, temper) = plain::disk(BLOCKS, Duration::from_micros(100), 64);
        let disks = Disks::new(net.clone(), dice.roll(), &[shape], temper);
        let target = Target::new(model(0));
        let config = ReactorConfig {
            shared_receives: 0,
            capsules: 512,
            data: vec![ClassSpec {
                len: 128 << 10,
                count: 2,
            }],
            pages: Pages::Normal,
            stall: Duration::from_secs(3),
            drain: Duration::from_secs(2),
        };
        let providers = medium.providers(TARGET, reactors);
        let addresses = [Address::from((TARGET, PORT))];
        let now = net.now();
        let reactors = Reactors::start(&config, &target, &disks, providers, &addresses, now);
        let mut scale = Self {
            net,
            medium,
            disks,
            target,
            revision: 0,
            reactors,
            hosts: Vec::new(),
            done: Vec::new(),
        };
        for _ in 0..hosts {
            scale.connect()?;
        }
        Ok(scale)
    }

    /// One more host connects.
    ///
    /// # Errors
    /// When it cannot.
    pub fn connect(&mut self) -> Result<Cost, String> {
        let at = self.hosts.len();
        let address = Address::from((TARGET, PORT));
        let host = Host::new(at, host_shape(), &self.medium, address, 1);
        self.hosts.push(host);
        self.cost(|scale| scale.hosts[at].is_up())
    }

    /// The last host disconnects.
    ///
    /// # Errors
    /// When it cannot.
    pub fn disconnect(&mut self) -> Result<Cost, String> {
        let now = self.net.now();
        let last = self.hosts.len() - 1;
        self.hosts[last].leave(now);
        // It would connect again.
        self.cost(|scale| {
            let host = &mut scale.hosts[last];
            if !host.is_closing() {
                host.leave(now);
            }
            host.has_left()
        })
    }

    /// Queue pairs of all reactors.
    #[must_use]
    pub fn queue_pairs(&self) -> u64 {
        self.reactors.queue_pairs() as u64
    }

    /// The first host compares and writes one block: a fused pair.
    ///
    /// # Errors
    /// When that fails.
    pub fn compare_and_write(&mut self) -> Result<Cost, String> {
        let before = self.reactors.messages();
        self.submit(Operation::CompareWrite, 2 * BLOCK)?;
        self.cost_since(before, Self::take_done)
    }

    /// The first host reads one block after the other for a second.
    ///
    /// # Errors
    /// When a read fails.
    pub fn read_for_a_second(&mut self) -> Result<Cost, String> {
        let before = self.reactors.messages();
        let end = self.net.now() + Duration::from_secs(1);
        while self.net.now() < end {
            self.submit(Operation::Read, BLOCK)?;
            while !self.take_done() {
                self.step()?;
            }
        }
        self.cost_since(before, |_| true)
    }

    /// The first host resets its controller (CC.EN = 0), which ends its I/O queue.
    ///
    /// # Errors
    /// When that fails.
    pub fn reset_controller(&mut self) -> Result<Cost, String> {
        let (now, before) = (self.net.now(), self.queue_pairs());
        let disabled = admin::property_set(Property::CC, PropertyValue::Dword(0));
        let admin = self.hosts[0].admin().ok_or("the host is not connected")?;
        let sent = admin.submit(Call::new(disabled.into(), None, 0), now);
        sent.map_err(|refused| refused.why.to_string())?;
        let cost = self.cost(|scale| scale.queue_pairs() < before)?;
        self.done.clear();
        Ok(cost)
    }

    /// Nothing happens for so long, except that each host sends Keep Alive.
    ///
    /// # Errors
    /// When a host loses its controller.
    pub fn keep_alive_for(&mut self, time: Duration) -> Result<Cost, String> {
        let before = self.reactors.messages();
        let end = self.net.now() + time;
        while self.net.now() < end {
            self.step()?;
        }
        if !self.hosts.iter().all(Host::is_up) {
            return Err("a host lost its controller".to_owned());
        }
        self.cost_since(before, |_| true)
    }

    /// Whether the call of the first host has completed.
    fn take_done(&mut self) -> bool {
        let done = self.done.pop();
        let buf = done.map(|done| done.result.map(|_| done.buf).unwrap());
        buf.is_some()
    }

    fn submit(&mut self, operation: Operation, len: u32) -> Result<(), String> {
        let len = len as usize;
        let mut buf = self.hosts[0].buffers.take(len).ok_or("no buffer")?;
        buf.fill(0);
        buf.set_len(len).map_err(|error| error.to_string())?;
        let work = Blocks {
            operation,
            nsid: 1,
            block_shift: u8::try_from(BLOCK.trailing_zeros()).unwrap(),
            slba: 0,
            count: 1,
            fua: false,
        };
        let now = self.net.now();
        let sent = self.hosts[0].submit(0, work.into(), Some(buf), 0, now);
        sent.map_err(|refused| refused.why.to_string())
    }

    /// The model changes: the namespace becomes read-only, or writable again. As the service does,
    /// this wakes each reactor once. All other wake-ups are those of the reactors.
    ///
    /// # Errors
    /// When the simulation is stuck.
    pub fn change_namespace(&mut self) -> Result<Cost, String> {
        self.revision += 1;
        let changes = self.target.apply(model(self.revision));
        drop(changes);
        let before = self.reactors.messages();
        self.reactors.send(Mail::POLL);
        self.cost_since(before, |_| true)
    }

    /// The cost of all that happens until `ended`, and some more time.
    fn cost(&mut self, ended: impl FnMut(&mut Self) -> bool) -> Result<Cost, String> {
        let before = self.reactors.messages();
        self.cost_since(before, ended)
    }

    fn cost_since(
        &mut self,
        before: (u64, u64),
        mut ended: impl FnMut(&mut Self) -> bool,
    ) -> Result<Cost, String> {
        let latest = self.net.now() + LATEST;
        let mut until = None;
        while until.is_none_or(|until| self.net.now() < until) {
            self.step()?;
            if self.net.now() > latest {
                return Err("the event has not ended".to_owned());
            }
            if until.is_none() && ended(self) {
                until = Some(self.net.now() + QUIET);
            }
        }
        let after = self.reactors.messages();
        Ok(Cost {
            wakeups: after.0 - before.0,
            polls: after.1 - before.1,
        })
    }

    fn step(&mut self) -> Result<(), String> {
        let now = self.net.now();
        self.disks.advance();
        let polled = self.reactors.poll_once(now, &self.disks);
        let mut progress = polled.map_err(|wrong| wrong.0)?.worked;
        for host in &mut self.hosts {
            progress |= host.poll(now, &mut self.done)?;
        }
        if progress {
            return Ok(());
        }
        let hosts = self.hosts.iter().filter_map(|host| host.next_deadline(now));
        let next = hosts
            .chain(self.disks.next_at())
            .chain(self.reactors.next_at(now))
            .chain([now + QUIET]);
        match self.net.advance_to_next(next.min()) {
            true => Ok(()),
            false => Err("deadlock: no event and no deadline is pending".to_owned()),
        }
    }
}

fn model(revision: u32) -> Model {
    let limits = Limits {
        max_transfer: 128 << 10,
        controllers: 256,
        ..Limits::default()
    };
    plain::model(limits, BLOCKS, revision % 2 == 1)
}

fn host_shape() -> HostShape {
    HostShape {
        queues: vec![8],
        flow_control: true,
        in_capsule: 4096,
        keep_alive: KEEP_ALIVE,
        command_timeout: Duration::from_secs(60),
        calls: 0,
        at_once: 1,
        faults: Faults::default(),
    }
}
