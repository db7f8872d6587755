//! A host: its identity, its memory, and the transports it uses.

use std::sync::Arc;

use nvmeof_memory::{Buf, ClassSpec, Classes, Pages};
use nvmeof_rdma::Address;

use crate::error::{Error, MachineError, UsageError};
use crate::identity::Identity;
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
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Nqn;

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
