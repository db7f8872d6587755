//! Blocking calls on polled queues.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmeof_initiator_core::{Command, ControllerInfo, admin};
use nvmeof_rdma::{Address, Provider};
use nvmeof_wire::admin::Cns;
use nvmeof_wire::identify::{IdentifyNamespace, NamespaceList};
use zerocopy::FromBytes;

use crate::error::{Error, MachineError, UsageError};
use crate::geometry::Geometry;
use crate::pollable::Pollable;
use crate::polled::{AdminConfig, AdminQueue, Association, Call, IoQueue};

/// An admin queue with its clock. The controller is ready when [`connect`](Self::connect)
/// returns. Between calls, the owner must call [`poll`](Self::poll) by
/// [`next_deadline`](Self::next_deadline).
#[derive(Debug)]
pub struct BlockingAdmin {
    queue: AdminQueue,
    info: Arc<ControllerInfo>,
    start: Instant,
}

/// Time-out of a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(2);
/// Longest sleep if the provider has no descriptor to wait on.
const PAUSE: Duration = Duration::from_micros(200);

impl BlockingAdmin {
    /// Connects and initializes the controller. `start` is the time 0 of all its queues.
    ///
    /// # Errors
    /// The connection or the set-up failed.
    pub fn connect(
        provider: Box<dyn Provider>,
        addr: Address,
        config: AdminConfig,
        start: Instant,
    ) -> Result<Self, Error> {
        let mut queue = AdminQueue::connect(provider, addr, config, start.elapsed())?;
        until(&mut queue, start, |queue| queue.info().is_some())?;
        let info = queue.info().map(Arc::clone);
        let info = info.ok_or_else(|| MachineError::internal("a controller without a set-up"))?;
        Ok(Self { queue, info, start })
    }

    /// The controller.
    #[must_use]
    pub fn info(&self) -> &Arc<ControllerInfo> {
        &self.info
    }

    /// The blocks of a namespace.
    ///
    /// # Errors
    /// When the namespace does not exist, its format is not supported, or the command fails.
    pub fn namespace(&mut self, nsid: u32) -> Result<Geometry, Error> {
        let (_, page) = self.call(admin::identify(Cns::NAMESPACE, nsid), &[])?;
        let identify = IdentifyNamespace::read_from_bytes(&page)
            .map_err(|_| MachineError::internal("an Identify page of another length"))?;
        // Identify of an inactive namespace returns zeroes (NVMe Base 2.0, section 5.17.2.1).
        if identify.nsze.get() == 0 {
            let (_, page) = self.call(admin::identify(Cns::ACTIVE_NAMESPACES, 0), &[])?;
            let list = NamespaceList::read_from_bytes(&page)
                .map_err(|_| MachineError::internal("an Identify page of another length"))?;
            let active: Vec<u32> = list.iter().collect();
            return Err(UsageError::no_namespace(nsid, &active).into());
        }
        Ok(Geometry::of(nsid, &identify)?)
    }

    /// Polls the queue until there is no progress. The caller may sleep after this.
    pub fn poll(&mut self) {
        let mut done = Vec::new();
        while self.queue.poll(self.start.elapsed(), &mut done) {}
        self.queue.rest();
    }

    /// The error that ended the connection, if any.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        self.queue.error()
    }

    /// The association for the I/O queues to [join](IoQueue::join).
    #[must_use]
    pub fn association(&self) -> &Association {
        self.queue.association()
    }

    /// A descriptor that becomes readable when [`poll`](Self::poll) has
    /// something to do.
    #[must_use]
    pub fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.queue.wait_fd()
    }

    /// Time until [`poll`](Self::poll) must be called, if there is a deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let deadline = self.queue.next_deadline()?;
        Some(deadline.saturating_sub(self.start.elapsed()))
    }

    /// Shuts the controller down and closes the queue. Close the I/O queues before.
    pub fn shutdown(mut self) {
        self.queue.shutdown(self.start.elapsed(), SHUTDOWN);
        // The result does not matter.
        let _ = until(&mut self.queue, self.start, AdminQueue::is_closed);
    }

    /// Sends an admin command of [`admin`], and waits for its completion. Its data of up to 4096
    /// bytes begin with `data`, the rest is zero. Returns dwords 0 and 1 of the completion, and
    /// the data.
    ///
    /// # Errors
    /// The command fails, has more data, or cannot be submitted.
    pub fn call(&mut self, command: Command, data: &[u8]) -> Result<(u64, Vec<u8>), Error> {
        let len = usize::try_from(command.len()).unwrap_or(usize::MAX);
        let page = match len {
            0 => None,
            len => {
                let mut page = self.queue.page(len).ok_or(UsageError::NoBuffer { len })?;
                // The buffer had data of other commands, which a target may leave there.
                page.fill(0);
                for (to, from) in page.iter_mut().zip(data) {
                    *to = *from;
                }
                Some(page)
            }
        };
        let call = Call::new(command.into(), page, 0);
        if let Err(refused) = self.queue.submit(call, self.start.elapsed()) {
            return Err(UsageError::Other(refused.why.to_string()).into());
        }
        let mut done = Vec::new();
        while done.is_empty() {
            if !self.queue.poll(self.start.elapsed(), &mut done) {
                rest(&mut self.queue, self.start);
            }
        }
        let call = done.pop();
        let call = call.ok_or_else(|| MachineError::internal("a call without a result"))?;
        let data = call.buf.map(|buf| buf.to_vec()).unwrap_or_default();
        Ok((call.result?, data))
    }
}

/// Polls a queue until it accepts calls. `start` is its time 0.
///
/// # Errors
/// The connection failed.
pub fn ready(queue: &mut IoQueue, start: Instant) -> Result<(), Error> {
    until(queue, start, IoQueue::is_ready)
}

/// Closes a queue. Calls in flight end, and their buffers return to their pools.
pub fn close(queue: &mut IoQueue, start: Instant) {
    queue.close();
    // Ends with the error that the queue is closed.
    let _ = until(queue, start, IoQueue::is_closed);
}

/// Sleeps until one of the descriptors is readable, at most for `timeout`. With a queue
/// without a descriptor, only briefly.
pub fn sleep<'fd>(
    fds: impl IntoIterator<Item = Option<BorrowedFd<'fd>>>,
    timeout: Option<Duration>,
) {
    let mut timeout = timeout;
    let mut wanted = Vec::new();
    for fd in fds {
        match fd {
            Some(fd) => wanted.push(PollFd::new(fd, PollFlags::POLLIN)),
            None => timeout = Some(timeout.map_or(PAUSE, |timeout| timeout.min(PAUSE))),
        }
    }
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        // Rounded up: otherwise it would busy-wait in the last millisecond.
        let millis = timeout.as_nanos().div_ceil(1_000_000);
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
    });
    // A signal wakes as well: the caller polls again.
    let _ = poll(&mut wanted, timeout);
}

/// Polls until `reached`, or until the queue is closed.
fn until<Q: Pollable>(
    queue: &mut Q,
    start: Instant,
    reached: impl Fn(&Q) -> bool,
) -> Result<(), Error> {
    let mut done = Vec::new();
    while !reached(queue) {
        if let Some(error) = queue.error()
            && queue.is_closed()
        {
            return Err(error.clone());
        }
        if !queue.poll(start.elapsed(), &mut done) {
            rest(queue, start);
        }
    }
    Ok(())
}

/// Sleeps until the queue has something to do.
fn rest(queue: &mut impl Pollable, start: Instant) {
    queue.rest();
    let deadline = queue.next_deadline();
    let timeout = deadline.map(|deadline| deadline.saturating_sub(start.elapsed()));
    sleep([queue.wait_fd()], timeout);
}
