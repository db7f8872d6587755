//! A host: its identity, its memory, and the transports it uses.

use std::sync::Arc;

use nvmeof_memory::{Buf, ClassSpec, Classes, Pages};
use nvmeof_rdma::Address;

use crate::error::{Error, MachineError, UsageError};
use crate::identity::Identity;
use crate::transport::{Route, RouteOptions, Transport};

/// Configuration of a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// NQN and host identifier.
    pub identity: Identity,
    /// The RDMA transport.
    pub transport: Transport,
    /// Options of the transports.
    pub route_options: RouteOptions,
    /// Its buffers: lengths and numbers. Each queue registers all of them. Software providers
    /// allocate memory at its first use; RDMA devices lock it for each queue, which counts
    /// towards `ulimit -l`.
    pub buffers: Vec<ClassSpec>,
    /// The kind of pages of the buffers.
    pub pages: Pages,
}

impl HostConfig {
    /// This machine's identity and a set of buffers for most uses: 256 of 4 KiB,
    /// 32 of 64 KiB and 4 of 1 MiB, 7 MiB in all.
    ///
    /// # Errors
    /// When the identity of the machine cannot be determined.
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

    /// The same with buffers for `calls` concurrent calls of up to `longest` bytes each. With
    /// no more buffers in use, [`Host::buffer`] does not fail.
    #[must_use]
    pub fn with_buffers_for(self, calls: usize, longest: usize) -> Self {
        // One class only: short calls could otherwise use the buffers of long ones. Unused
        // parts of a buffer take no memory.
        let buffers = ClassSpec {
            len: longest,
            count: calls,
        };
        Self {
            buffers: vec![buffers],
            ..self
        }
    }

    /// Determines the route to the target at `addr`. May block briefly.
    ///
    /// # Errors
    /// When this machine does not have the requested transport.
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
    /// Creates a host and its buffers.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(config: HostConfig) -> Result<Self, Error> {
        let buffers = Classes::new(&config.buffers, config.pages).map_err(MachineError::pool)?;
        Ok(Self {
            inner: Arc::new(Inner { config, buffers }),
        })
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.inner.config
    }

    /// A buffer with `len` bytes in view, with undefined contents. It returns to the host
    /// when it is dropped. [`wait_for_buffer`](Self::wait_for_buffer) waits for a free one.
    ///
    /// # Errors
    /// [`UsageError`] when none is free, or `len` exceeds all.
    pub fn buffer(&self, len: usize) -> Result<Buf, Error> {
        let buffers = &self.inner.buffers;
        let longest = buffers.longest();
        if len > longest {
            return Err(UsageError::BufferTooLong { len, longest }.into());
        }
        Ok(buffers.take(len).ok_or(UsageError::NoBuffer { len })?)
    }

    /// The same, but waits while none is free. Tasks that wait for buffers of the same length get
    /// them in order of arrival, before later callers of [`buffer`](Self::buffer). A task that
    /// holds buffers while it waits for more may wait forever, if others do so as well. If the
    /// future is dropped, the next task gets its buffer.
    ///
    /// # Errors
    /// [`UsageError`] when `len` exceeds all.
    pub async fn wait_for_buffer(&self, len: usize) -> Result<Buf, Error> {
        let longest = self.inner.buffers.longest();
        let buf = self.inner.buffers.wait(len).await;
        Ok(buf.ok_or(UsageError::BufferTooLong { len, longest })?)
    }

    /// The buffers, to register them with queues of the caller.
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
    fn registered_memory_of_a_queue_fits_the_default_limit() {
        // `ulimit -l` of ordinary users is 8 MiB on most systems.
        assert!(registered(&config()) <= 7 << 20);
        let small = config().with_buffers_for(4, 128 << 10);
        assert_eq!(registered(&small), 512 << 10);
    }

    #[test]
    fn longest_call_always_gets_a_buffer() {
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
