//! Signals that wait to be read instead of ending the process.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Takes those of a target that serves.
pub(crate) fn take_all() -> Result<SignalFd, Errno> {
    take(&[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP])
}

/// Takes SIGHUP alone: before anything is served the other two end the process.
pub(crate) fn take_hangups() -> Result<SignalFd, Errno> {
    take(&[Signal::SIGHUP])
}

fn take(signals: &[Signal]) -> Result<SignalFd, Errno> {
    let mut set = SigSet::empty();
    signals.iter().for_each(|signal| set.add(*signal));
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}
