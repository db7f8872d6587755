//! Queues that the caller polls: no thread, no runtime, no clock.
//!
//! Each queue owns a provider and one queue pair, so that threads can drive
//! queues without locks. Time is an argument: the time since any fixed moment.
//! Nothing goes out before [`IoQueue::submit_now`] or [`IoQueue::poll`], which
//! sends all that was submitted at once.
//!
//! An [`AdminQueue`] sets the controller up and keeps it alive; it must be
//! polled as long as its I/O queues are in use. Then
//! [`ControllerInfo`](nvmeof_initiator_core::ControllerInfo) is what each
//! [`IoQueue`] is connected with.
//!
//! Calls are made one by one ([`IoQueue::submit`]) or many at once
//! ([`IoQueue::submit_batch`]), and come back from [`IoQueue::poll`] with their
//! buffers, in whatever order they end:
//!
//! ```no_run
//! use std::collections::VecDeque;
//! use std::time::{Duration, Instant};
//!
//! use nvmeof_initiator::polled::{AdminQueue, Call, IoConfig, IoQueue};
//! use nvmeof_initiator::{
//!     Blocks, Buf, ClassSpec, Classes, ConnectOptions, Identity, Nqn, Operation, Pages,
//!     QueueShape, Transport,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let start = Instant::now();
//! let subnqn = Nqn::new("nqn.2026-11.org.example:disk")?;
//! let options = ConnectOptions::new("127.0.0.1:4420".parse()?, subnqn);
//! let config = options.admin_config(&Identity::of_this_machine()?);
//! let names = config.setup.names.clone();
//! let mut done = Vec::new();
//!
//! // The admin queue, which has to be polled now and then from here on.
//! let provider = Transport::Auto.provider(options.addr)?;
//! let mut admin = AdminQueue::connect(provider, options.addr, config, start.elapsed())?;
//! while admin.info().is_none() {
//!     admin.poll(start.elapsed(), &mut done);
//!     if let (Some(error), true) = (admin.error(), admin.is_closed()) {
//!         return Err(error.clone().into());
//!     }
//! }
//! let info = admin.info().cloned().ok_or("polled until it is there")?;
//!
//! // An I/O queue with a provider of its own, as each thread may have.
//! let io = IoConfig {
//!     names,
//!     queue: QueueShape { qid: 1, size: 128, flow_control: true },
//!     command_timeout: options.command_timeout,
//!     connect_timeout: options.connect_timeout,
//! };
//! let provider = Transport::Auto.provider(options.addr)?;
//! let mut queue = IoQueue::connect(provider, options.addr, &info, io, start.elapsed())?;
//! let buffers = Classes::new(&[ClassSpec { len: 4096, count: 64 }], Pages::Normal)?;
//! for region in buffers.regions() {
//!     queue.register(region)?;
//! }
//! while !queue.is_ready() {
//!     queue.poll(start.elapsed(), &mut done);
//!     if let (Some(error), true) = (queue.error(), queue.is_closed()) {
//!         return Err(error.clone().into());
//!     }
//! }
//!
//! // The first 64 blocks of 4 KiB of namespace 1, all at once.
//! let read = |slba, buf: Buf| {
//!     let blocks = Blocks {
//!         operation: Operation::Read,
//!         nsid: 1,
//!         block_shift: 12,
//!         slba,
//!         count: 1,
//!         fua: false,
//!     };
//!     Call::new(blocks.into(), Some(buf), slba)
//! };
//! let free = std::iter::from_fn(|| buffers.take(4096));
//! let mut calls: VecDeque<Call> = (0..).zip(free).map(|(slba, buf)| read(slba, buf)).collect();
//! let mut left = calls.len();
//! while left > 0 {
//!     queue.submit_batch(&mut calls, start.elapsed())?;
//!     queue.poll(start.elapsed(), &mut done);
//!     for call in done.drain(..) {
//!         call.result?;
//!         println!("block {}: {:02x?}", call.user, call.buf.as_deref().unwrap_or_default());
//!         left -= 1;
//!     }
//! }
//!
//! queue.close();
//! admin.shutdown(start.elapsed(), Duration::from_secs(2));
//! while !admin.is_closed() {
//!     queue.poll(start.elapsed(), &mut done);
//!     admin.poll(start.elapsed(), &mut done);
//! }
//! # Ok(())
//! # }
//! ```

mod admin;
mod association;
mod call;
mod connection;
mod io;
mod transfer;

pub use admin::{AdminConfig, AdminQueue};
pub use association::Association;
pub use call::{Call, Done, Patience, SubmitError, Work};
pub use connection::{Connection, ConnectionConfig};
pub use io::{IoConfig, IoQueue};
