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
    /// Who has the other end of its admin queue, in words, as the edge told.
    pub peer: Arc<str>,
    /// Why the host lost it.
    pub reason: DisconnectReason,
}

/// Why a host lost its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The subsystem is gone.
    SubsystemRemoved,
    /// The host may not connect any more.
    HostDenied,
    /// The port that it came by is gone. The edge finds those.
    PortRemoved,
    /// The port that it came by does not lead to the subsystem any more.
    PortLeadsElsewhere,
    /// The administrator wanted it.
    Asked,
    /// The target lets go of all hosts. The edge finds those.
    Drained,
}

impl Disconnected {
    /// Describes `controller`, which its host lost for that reason.
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
            Self::HostDenied => "the host may not connect any more",
            Self::PortRemoved => "the port was removed",
            Self::PortLeadsElsewhere => "the port does not lead to the subsystem any more",
            Self::Asked => "the administrator wanted it",
            Self::Drained => "the target was drained",
        })
    }
}
