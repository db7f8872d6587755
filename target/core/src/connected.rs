//! Connected controllers, and disconnecting a host.

use std::sync::Arc;

use nvmeof_wire::Nqn;

use crate::{DisconnectReason, Disconnected, Target};

/// A controller that a host has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Its identifier.
    pub cntlid: u16,
    /// The host.
    pub hostnqn: Nqn,
    /// The subsystem; the discovery subsystem for a discovery controller.
    pub subnqn: Nqn,
    /// The peer of its admin queue, in words, as the engine set it.
    pub peer: Arc<str>,
    /// I/O queues that are connected.
    pub io_queues: usize,
}

impl Target {
    /// The connected controllers, ordered by identifier.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        let all = self.shared.registry.all().into_iter();
        all.map(|controller| Connected {
            cntlid: controller.cntlid,
            hostnqn: controller.hostnqn,
            subnqn: controller.subnqn(),
            peer: Arc::clone(&controller.peer),
            io_queues: controller.lock().queues.len(),
        })
        .collect()
    }

    /// Disconnects the controllers of `host`, of one subsystem or of all, discovery
    /// controllers included. The host may connect again. Afterwards every reactor has to
    /// poll its queues.
    #[must_use]
    pub fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        let mut lost = Vec::new();
        // Excludes a concurrent Connect, which holds this until it is registered.
        let _served = self.shared.served();
        for controller in self.shared.registry.all() {
            let wanted = subsystem.is_none_or(|name| *name == controller.subnqn());
            if controller.hostnqn != *host || !wanted {
                continue;
            }
            self.shared.registry.remove(&controller);
            controller.hot.lose();
            lost.push(Disconnected::of(&controller, DisconnectReason::Asked));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use crate::testing::{HOST, Host, SUBNQN, target};

    fn nqn(text: &str) -> Nqn {
        Nqn::new(text).unwrap()
    }

    #[test]
    fn a_host_loses_its_controllers_and_others_do_not() {
        let target = target();
        let (mut admin, mut io) = Host::ready(&target);
        let other = nqn("nqn.2026-11.org.example:other");
        let data = nvmeof_wire::fabrics::ConnectData::new([8; 16], 0xffff, &nqn(SUBNQN), &other);
        let (mut second, _) = Host::admin_with(&target, 0, &data);
        let there = target.connected();
        assert_eq!(there.len(), 2);
        assert_eq!((there[0].hostnqn, there[0].io_queues), (nqn(HOST), 1));
        assert_eq!((there[1].hostnqn, there[1].subnqn), (other, nqn(SUBNQN)));
        let elsewhere = nqn("nqn.2026-11.org.example:elsewhere");
        assert_eq!(target.disconnect(&nqn(HOST), Some(&elsewhere)), []);
        assert_eq!(target.disconnect(&elsewhere, None), []);
        let lost = target.disconnect(&nqn(HOST), Some(&nqn(SUBNQN)));
        assert_eq!((lost.len(), lost[0].reason), (1, DisconnectReason::Asked));
        assert!(admin.close_cause().is_some() && io.close_cause().is_some());
        assert_eq!(second.close_cause(), None);
        assert_eq!(target.connected().len(), 1);
        // It may connect again.
        let _queues = Host::ready(&target);
        assert_eq!(target.connected().len(), 2);
    }
}
