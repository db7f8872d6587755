//! Controllers that their hosts lost.

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
    /// Why.
    pub why: Why,
}

/// Why a host lost its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
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
    /// That controller, lost for that reason.
    pub(crate) fn of(controller: &Controller, why: Why) -> Self {
        Self {
            cntlid: controller.cntlid,
            hostnqn: controller.hostnqn,
            subnqn: controller.subnqn(),
            peer: Arc::clone(&controller.peer),
            why,
        }
    }
}
