//! Signals that are read from a signalfd instead of ending the process.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Blocks the signals of a serving target and returns their signalfd.
pub(crate) fn block_all() -> Result<SignalFd, Errno> {
    block(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
}

/// The same for SIGHUP alone: before the target serves, the other two end the process.
pub(crate) fn block_hangups() -> Result<SignalFd, Errno> {
    block(&[Signal::SIGHUP])
}

fn block(signals: &[Signal]) -> Result<SignalFd, Errno> {
    let mut set = SigSet::empty();
    signals.iter().for_each(|signal| set.add(*signal));
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}
