//! The admin queue of a benchmark, driven by hand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvmeof_initiator::polled::{AdminConfig, AdminQueue, Call};
use nvmeof_initiator::{ControllerInfo, Error};
use nvmeof_initiator_core::{Command, admin};
use nvmeof_rdma::Provider;
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::IdentifyNamespace;
use zerocopy::FromBytes;

use crate::failure::Failure;

/// An admin queue with its clock.
pub(super) struct Admin {
    queue: AdminQueue,
    start: Instant,
}

/// How long to sleep between polls when a step takes long.
const PAUSE: Duration = Duration::from_micros(200);
/// How long a shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(2);

impl Admin {
    /// Connects and sets the controller up.
    pub(super) fn connect(
        provider: Box<dyn Provider>,
        addr: SocketAddr,
        config: AdminConfig,
        start: Instant,
    ) -> Result<Self, Failure> {
        let queue = AdminQueue::connect(provider, addr, config, start.elapsed())?;
        let mut admin = Self { queue, start };
        admin.until(|queue| queue.info().is_some())?;
        Ok(admin)
    }

    /// The controller.
    pub(super) fn info(&self) -> Result<&Arc<ControllerInfo>, Failure> {
        let info = self.queue.info();
        info.ok_or_else(|| Failure::new("the controller is not set up"))
    }

    /// Identify of a namespace; refuses one that is not there.
    pub(super) fn namespace(&mut self, nsid: u32) -> Result<IdentifyNamespace, Failure> {
        let page = self.read(admin::identify(Cns::NAMESPACE, nsid))?;
        let identify = IdentifyNamespace::read_from_bytes(&page)
            .map_err(|_| Failure::new("Identify gave another length than asked for"))?;
        // An inactive namespace is answered with zeroes (NVMe Base 2.0, section
        // 5.17.2.1).
        if identify.nsze.get() == 0 {
            return Err(
                Failure::new(format!("the subsystem has no namespace {nsid}"))
                    .with_remedy("`nvmeof list-ns` shows those there are"),
            );
        }
        Ok(identify)
    }

    fn read(&mut self, command: Command) -> Result<Vec<u8>, Failure> {
        let len = usize::try_from(command.len()).unwrap_or_default();
        let call = Call::new(command.into(), self.queue.page(len), 0);
        let now = self.start.elapsed();
        if let Err(refused) = self.queue.submit(call, now) {
            return Err(Failure::new(refused.why.to_string()));
        }
        let mut done = Vec::new();
        while done.is_empty() {
            if !self.queue.poll(self.start.elapsed(), &mut done) {
                std::thread::sleep(PAUSE);
            }
        }
        match done.pop() {
            Some(call) => {
                call.result?;
                Ok(call.buf.map(|buf| buf.to_vec()).unwrap_or_default())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Looks after the queue once.
    pub(super) fn turn(&mut self) {
        let mut done = Vec::new();
        while self.queue.poll(self.start.elapsed(), &mut done) {}
    }

    /// Shuts the controller down.
    pub(super) fn shutdown(&mut self) {
        self.queue.shutdown(self.start.elapsed(), SHUTDOWN);
        // How it ends does not matter any more.
        let _ = self.until(AdminQueue::is_closed);
    }

    /// Polls until `reached`, or until the queue is closed.
    fn until(&mut self, reached: impl Fn(&AdminQueue) -> bool) -> Result<(), Error> {
        let mut done = Vec::new();
        while !reached(&self.queue) {
            if let Some(error) = self.queue.error()
                && self.queue.is_closed()
            {
                return Err(error.clone());
            }
            if !self.queue.poll(self.start.elapsed(), &mut done) {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}
