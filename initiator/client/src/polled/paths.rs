//! A namespace over several paths, for callers that poll: connects lost paths again, and sends
//! commands of a lost path over another one.
//!
//! [`connect`] returns two halves. They share state, not queues, and may be driven by two threads:
//!
//! * [`MultipathAdmin`] owns the admin queues. It connects controllers with their I/O queues, keeps
//!   them alive, checks the namespace, reads ANA log pages, fences lost controllers, and connects
//!   lost paths again. Everything that may block, such as creating a provider and registering
//!   memory, is done here.
//! * [`MultipathIo`] owns the connected I/O queues. It takes calls, chooses their paths, and
//!   decides about the calls that fail.
//!
//! ```text
//!  MultipathAdmin                                            MultipathIo
//!  Backoff ─► Setup ─► Checks ─► Queues ─► Live ──queues──►  Usable ─► Closing ─► gone
//!     ▲         │ failed │         │         │ ◄──lost, refused── │         │
//!     └─────────┴────────┴─────────┴─────────┴──► Fence ──fenced──────────► calls sent again
//! ```
//!
//! Contract:
//!
//! * Each accepted call ends exactly once, in [`MultipathIo::poll`], with its buffer. The exception
//!   is [`Done::buf`](super::Done::buf) of a queue that the target still uses.
//! * Calls that change nothing are sent over another path when their path is lost. Calls that write
//!   are sent again when the lost controller is fenced, not before: a late execution could undo
//!   newer writes. [`RetryPolicy`](nvmeof_initiator_core::multipath::RetryPolicy) has the rules.
//! * A call without a path waits while one may become available. It ends with
//!   [`Error::NoPath`](crate::Error::NoPath) when none may, or with
//!   [`Error::UnknownOutcome`](crate::Error::UnknownOutcome) if it may have been executed.
//! * Calls on the queues of one path complete in any order, as on an
//!   [`IoQueue`](super::IoQueue). No order is kept between calls.
//! * [`MultipathAdmin::reauthenticate`] changes the keys of all paths while calls go on. Both
//!   halves are to be polled until [`MultipathAdmin::take_reauthentication`] has the result.
//! * Time is an argument, the same clock for both halves. Neither half blocks, except in the
//!   [`Providers`] of the caller.
//!
//! Limit: NUMA distances are not determined, so policy `Numa` uses the first usable path.

mod control;
mod controller;
mod fencing;
mod io;
mod keys;
mod retries;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::{PathPolicy, PathState, ReconnectOptions};
use nvmeof_rdma::{Address, Provider};

use super::admin::AdminConfig;
use crate::error::{Error, UsageError};

pub use control::MultipathAdmin;
pub use io::MultipathIo;
use shared::Shared;
pub use shared::Wakers;

/// One path: the address of a target, and how to set up a controller there.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// The target's address.
    pub addr: Address,
    /// The admin queue; also the names, the time-outs and the number of the I/O queues. The
    /// keep-alive time-out is not zero.
    pub admin: AdminConfig,
    /// Whether the target is trusted with all registered buffers: see
    /// [`ConnectOptions::trusts_target`](crate::ConnectOptions::trusts_target).
    pub trusts_target: bool,
}

/// The paths of one namespace.
#[derive(Clone, Debug)]
pub struct MultipathConfig {
    /// The paths, all of the same subsystem.
    pub paths: Vec<PathConfig>,
    /// The namespace.
    pub nsid: u32,
    /// Entries of each I/O queue, reduced to the limits of controller and provider.
    pub queue_size: u16,
    /// Maximum calls that wait for a path, for a fence or for room.
    pub waiting_calls: usize,
    /// How to choose the path of a command.
    pub policy: PathPolicy,
    /// When to connect lost paths again, and when to give them up.
    pub reconnect: ReconnectOptions,
    /// Time after which a lost controller counts as fenced, if it reports no Command Quiesce
    /// Time (CQT) and no other controller can reset it. `None`: three Keep Alive Timeouts.
    pub quiesce: Option<Duration>,
    /// Decides the random part of reconnect delays. Hosts must differ.
    pub seed: u64,
}

/// Creates the providers of a path, one for each queue. May block; only
/// [`MultipathAdmin::poll`] calls it.
pub trait Providers {
    /// A provider for a queue of path `path`, an index of [`MultipathConfig::paths`].
    ///
    /// # Errors
    /// When this machine has no such provider: the attempt to connect fails.
    fn provider(&mut self, path: usize) -> Result<Box<dyn Provider>, Error>;
}

impl<F: FnMut(usize) -> Result<Box<dyn Provider>, Error>> Providers for F {
    fn provider(&mut self, path: usize) -> Result<Box<dyn Provider>, Error> {
        self(path)
    }
}

/// The status of a path.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathStatus {
    /// The target's address.
    pub addr: Address,
    /// Its state.
    pub state: PathState,
    /// Whether commands can be sent over it: it is connected, and its ANA state permits them.
    pub is_accessible: bool,
    /// Why it was lost, or why the last attempt to connect it failed; also why it is not used for
    /// the namespace. `None` when it is usable.
    pub last_error: Option<Error>,
}

/// A change of a path.
#[derive(Clone, Debug)]
pub struct PathEvent {
    /// When it was detected.
    pub at: Duration,
    /// Index of the path in [`MultipathConfig::paths`].
    pub path: usize,
    /// The target's address.
    pub addr: Address,
    /// What changed.
    pub change: PathChange,
}

/// What changed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PathChange {
    /// It is connected.
    Connected,
    /// It is lost, and will be connected again unless the options say otherwise.
    Lost(Error),
    /// An attempt to connect it failed.
    Failed(Error),
    /// It is given up and not connected again.
    GivenUp,
    /// Its lost controller is fenced: the calls that wait for this are sent again.
    Fenced(FenceMethod),
}

/// Begins to connect the paths of `config`. `wakers` wake the threads of the two halves.
///
/// # Errors
/// [`UsageError`]: no path, paths of two subsystems, or a path without keep-alive time-out.
pub fn connect<P: Providers>(
    config: MultipathConfig,
    providers: P,
    wakers: Wakers,
    now: Duration,
) -> Result<(MultipathAdmin<P>, MultipathIo), Error> {
    check(&config)?;
    let subnqn = config
        .paths
        .first()
        .map(|path| path.admin.setup.names.subnqn);
    let subnqn = subnqn.ok_or_else(|| UsageError::Other(NO_PATH.to_owned()))?;
    let addrs = config.paths.iter().map(|path| path.addr);
    let shared = Arc::new(Shared::new(subnqn, addrs, wakers));
    let io = MultipathIo::new(Arc::clone(&shared), config.policy, config.waiting_calls);
    let admin = MultipathAdmin::new(config, providers, shared, now);
    Ok((admin, io))
}

const NO_PATH: &str = "no path is given; give the address of a target";

fn check(config: &MultipathConfig) -> Result<(), Error> {
    let Some(first) = config.paths.first() else {
        return Err(UsageError::Other(NO_PATH.to_owned()).into());
    };
    let subnqn = first.admin.setup.names.subnqn;
    for path in &config.paths {
        let setup = &path.admin.setup;
        if setup.names.subnqn != subnqn {
            let text = format!(
                "paths of two subsystems, {subnqn} and {}; give those of one",
                setup.names.subnqn
            );
            return Err(UsageError::Other(text).into());
        }
        if setup.keep_alive.as_millis() == 0 {
            let text = format!(
                "the path to {} has no keep-alive time-out, so neither side would detect its \
                 loss; set one",
                path.addr
            );
            return Err(UsageError::Other(text).into());
        }
    }
    Ok(())
}
