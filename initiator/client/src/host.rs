//! A host: its identity, its memory, and the way to targets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_initiator_core::{DiscoveryReader, Names, QueueShape, SetupConfig};
use nvmeof_memory::{Buf, ClassSpec, Classes, Pages};
use nvmeof_rdma::Address;
use nvmeof_wire::Nqn;
use nvmeof_wire::log::DiscoveryEntry;

use crate::controller::Controller;
use crate::drive::Shared;
use crate::error::{Error, MachineError, UsageError};
use crate::identity::Identity;
use crate::polled::{AdminConfig, AdminQueue};
use crate::transport::{Route, RouteOptions, Transport};

/// What a host is and has.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Who it is.
    pub identity: Identity,
    /// How it reaches targets.
    pub transport: Transport,
    /// What some transports want to know.
    pub route_options: RouteOptions,
    /// Its buffers: how long and how many. Each queue has all of them registered.
    /// Software providers take memory from the system when it is first used; RDMA
    /// devices lock it for each queue, which counts towards `ulimit -l`.
    pub buffers: Vec<ClassSpec>,
    /// Which pages they lie in.
    pub pages: Pages,
}

impl HostConfig {
    /// This machine's identity and a set of buffers for most uses: 256 of 4 KiB,
    /// 32 of 64 KiB and 4 of 1 MiB, 7 MiB in all.
    ///
    /// # Errors
    /// When the machine's identity cannot be found out.
    pub fn of_this_machine() -> Result<Self, Error> {
        Ok(Self::new(Identity::of_this_machine()?))
    }

    /// The same for another identity.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        let buffers = [(4 << 10, 256), (64 << 10, 32), (1 << 20, 4)]
            .map(|(len, count)| ClassSpec { len, count });
        Self {
            identity,
            transport: Transport::Auto,
            route_options: RouteOptions::default(),
            buffers: buffers.to_vec(),
            pages: Pages::Shareable,
        }
    }

    /// The same with buffers for `calls` calls at a time of up to `longest` bytes
    /// each. As long as no more buffers are out, there is one for every call,
    /// however long the others are: [`Host::buffer`] does not fail.
    #[must_use]
    pub fn with_buffers_for(self, calls: usize, longest: usize) -> Self {
        // One kind alone: short calls that took the place of long ones would
        // break the promise, and of a buffer only what is used costs memory.
        let buffers = ClassSpec {
            len: longest,
            count: calls,
        };
        Self {
            buffers: vec![buffers],
            ..self
        }
    }

    /// Finds out how the target at `addr` is reached. May block for a short
    /// time.
    ///
    /// # Errors
    /// When this machine does not have what was asked for.
    pub fn route(&self, addr: Address) -> Result<Route, Error> {
        self.transport.route(addr, &self.route_options)
    }
}

/// What to connect to and how.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The target's address.
    pub addr: Address,
    /// Name of the subsystem.
    pub subnqn: Nqn,
    /// I/O queues wanted; the controller may grant fewer. 0 for admin commands
    /// alone.
    pub io_queues: u16,
    /// Entries of each I/O queue; one less is the most commands in flight.
    pub queue_size: u16,
    /// Keep-alive time-out: how long the controller waits for a sign of life.
    /// Zero turns it off.
    pub keep_alive: Duration,
    /// How long a command may take before its queue is given up.
    pub command_timeout: Duration,
    /// How long a connection may take to stand.
    pub connect_timeout: Duration,
    /// Most bytes that a write puts into its capsule, if the controller takes
    /// as many.
    pub in_capsule: u32,
    /// How long the task that drives a queue looks for answers at most before it
    /// sleeps while calls are in flight: waking up takes longer than most
    /// commands. Where looking does not pay it learns to look for less. Zero
    /// sleeps at once. The polled interface does not look at this.
    pub spin: Duration,
}

impl ConnectOptions {
    /// One I/O queue of 128 entries, keep-alive of 5 s, commands may take 30 s,
    /// connections 10 s, writes of up to 4 KiB go with their command, drivers
    /// look for answers for 100 µs.
    #[must_use]
    pub fn new(addr: Address, subnqn: Nqn) -> Self {
        Self {
            addr,
            subnqn,
            io_queues: 1,
            queue_size: 128,
            keep_alive: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            in_capsule: 4096,
            spin: Duration::from_micros(100),
        }
    }

    /// What an admin queue is set up with for these options.
    #[must_use]
    pub fn admin_config(&self, identity: &Identity) -> AdminConfig {
        let names = Names {
            hostid: identity.hostid,
            hostnqn: identity.hostnqn,
            subnqn: self.subnqn,
        };
        AdminConfig {
            setup: SetupConfig {
                names,
                queue: QueueShape {
                    qid: 0,
                    size: ADMIN_SIZE,
                    flow_control: true,
                },
                keep_alive: self.keep_alive,
                io_queues: self.io_queues,
                in_capsule: self.in_capsule,
            },
            command_timeout: self.command_timeout,
            connect_timeout: self.connect_timeout,
        }
    }
}

/// Entries of an admin queue: what every controller has (NVMe Base 2.0, section
/// 5.16.1.23, ASQSZ).
const ADMIN_SIZE: u16 = 32;

/// What a discovery controller knows.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// Generation counter: changes when anything does.
    pub generation: u64,
    /// Ways to subsystems.
    pub entries: Vec<DiscoveryEntry>,
}

/// A host. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: HostConfig,
    buffers: Classes,
}

impl Host {
    /// Makes a host and its buffers.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(config: HostConfig) -> Result<Self, Error> {
        let buffers = Classes::new(&config.buffers, config.pages).map_err(MachineError::pool)?;
        Ok(Self {
            inner: Arc::new(Inner { config, buffers }),
        })
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.inner.config
    }

    /// A buffer with `len` bytes in view, which hold whatever was in them last.
    /// It returns to the host when it is dropped.
    ///
    /// # Errors
    /// [`UsageError`] when none is free or none is as long.
    pub fn buffer(&self, len: usize) -> Result<Buf, Error> {
        let buffers = &self.inner.buffers;
        let longest = buffers.longest();
        if len > longest {
            return Err(UsageError::BufferTooLong { len, longest }.into());
        }
        Ok(buffers.take(len).ok_or(UsageError::NoBuffer { len })?)
    }

    /// The buffers, for registering them with queues of one's own.
    #[must_use]
    pub fn buffers(&self) -> &Classes {
        &self.inner.buffers
    }

    /// Asks the discovery controller at `addr` for subsystems.
    ///
    /// # Errors
    /// Connection, refusal, or an answer that makes no sense.
    pub async fn discover(&self, addr: Address) -> Result<Discovery, Error> {
        let mut options = ConnectOptions::new(addr, Nqn::discovery());
        options.io_queues = 0;
        // The connection lasts for a few commands.
        options.keep_alive = Duration::ZERO;
        let controller = self.connect(options).await?;
        let mut reader = DiscoveryReader::new();
        while let Some(command) = reader.poll_command() {
            let wrong = |error| Error::setup(addr, 0, error);
            match controller.admin_read(command).await {
                Ok(data) => reader.handle_data(&data).map_err(wrong)?,
                Err(Error::Command(failed))
                    if reader.handle_failure(failed.status).map_err(wrong)? => {}
                Err(error) => return Err(error),
            }
        }
        controller.disconnect().await;
        Ok(Discovery {
            generation: reader.generation(),
            entries: reader.entries().to_vec(),
        })
    }

    /// Connects to a subsystem: sets a controller up and connects its I/O
    /// queues. Must be called inside a tokio runtime, which drives the queues: when
    /// it ends, they are closed, and calls on them end with an error that says so.
    ///
    /// # Errors
    /// Connection or refusal; the message says what to do about it.
    pub async fn connect(&self, options: ConnectOptions) -> Result<Controller, Error> {
        let start = Instant::now();
        let config = options.admin_config(&self.inner.config.identity);
        let (host, addr) = (self.clone(), options.addr);
        let route = tokio::task::spawn_blocking(move || host.inner.config.route(addr));
        let route = route.await.map_err(MachineError::internal)??;
        let admin = AdminQueue::connect(route.provider()?, addr, config, Duration::ZERO)?;
        let admin = Shared::start(admin, start, Duration::ZERO)?;
        Controller::set_up(self.clone(), options, &route, admin, start).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> HostConfig {
        HostConfig::new(Identity::of_name(Nqn::discovery()))
    }

    fn registered(config: &HostConfig) -> usize {
        let host = Host::new(config.clone()).unwrap();
        host.buffers()
            .regions()
            .map(nvmeof_memory::Region::len)
            .sum()
    }

    #[test]
    fn what_each_queue_registers_fits_the_usual_limit() {
        // `ulimit -l` of ordinary users is 8 MiB on most systems.
        assert!(registered(&config()) <= 7 << 20);
        let small = config().with_buffers_for(4, 128 << 10);
        assert_eq!(registered(&small), 512 << 10);
    }

    #[test]
    fn the_longest_call_has_a_buffer_at_any_time() {
        let (calls, longest) = (16, 256 << 10);
        let host = Host::new(config().with_buffers_for(calls, longest)).unwrap();
        for short in [512, 4096, longest] {
            let held: Vec<Buf> = (1..calls).map(|_| host.buffer(short).unwrap()).collect();
            assert_eq!(host.buffer(longest).unwrap().len(), longest, "{short}");
            drop(held);
        }
        assert!(host.buffer(longest + 1).is_err());
    }
}
