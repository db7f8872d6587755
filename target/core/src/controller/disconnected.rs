//! Controllers that their hosts lost.

use std::fmt;
use std::sync::Arc;

use nvmeof_wire::Nqn;

use super::Controller;

/// A controller that a change took away from its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// Its identifier.
    pub cntlid: u16,
    /// The host.
    pub hostnqn: Nqn,
    /// The subsystem.
    pub subnqn: Nqn,
    /// The peer of its admin queue, in words, as the engine set it.
    pub peer: Arc<str>,
    /// Why the host lost it.
    pub reason: DisconnectReason,
}

/// Why a host lost its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The subsystem is gone.
    SubsystemRemoved,
    /// The host is no longer allowed to connect.
    HostDenied,
    /// The port that the host used was removed. The engine detects this.
    PortRemoved,
    /// The port that the host used no longer offers the subsystem.
    SubsystemNotOffered,
    /// An administrator disconnected the host.
    Asked,
    /// The target disconnects all hosts. The engine detects this.
    Drained,
}

impl Disconnected {
    /// Describes `controller`, which its host lost for `reason`.
    pub(crate) fn of(controller: &Controller, reason: DisconnectReason) -> Self {
        Self {
            cntlid: controller.cntlid,
            hostnqn: controller.hostnqn,
            subnqn: controller.subnqn(),
            peer: Arc::clone(&controller.peer),
            reason,
        }
    }
}

impl fmt::Display for Disconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cntlid,
            hostnqn,
            subnqn,
            peer: _,
            reason,
        } = self;
        write!(
            f,
            "controller {cntlid} of {subnqn}, host {hostnqn}: {reason}"
        )
    }
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SubsystemRemoved => "the subsystem was removed",
            Self::HostDenied => "the host is no longer allowed to connect",
            Self::PortRemoved => "the port was removed",
            Self::SubsystemNotOffered => "the port no longer offers the subsystem",
            Self::Asked => "an administrator disconnected the host",
            Self::Drained => "the target was drained",
        })
    }
}
