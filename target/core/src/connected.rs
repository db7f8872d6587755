//! Connected controllers, and disconnecting a host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvmeof_target_reservations::HostId;
use nvmeof_wire::Nqn;

use crate::controller::Controller;
use crate::{
    Authenticated, AuthenticationReport, DisconnectReason, Disconnected, Model, Source, Target,
};

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
    /// How the host proved who it is; `None` if it did not have to.
    pub authentication: Option<Authenticated>,
}

impl Connected {
    /// Describes `controller`; what its key is now follows from `model`.
    fn of(controller: &Controller, model: &Model) -> Self {
        let (hostnqn, subnqn) = (controller.hostnqn, controller.subnqn());
        let policy = model.policy(&hostnqn, &subnqn);
        let cold = controller.lock();
        let proof = cold.proof.as_ref();
        Self {
            cntlid: controller.cntlid,
            hostnqn,
            subnqn,
            peer: Arc::clone(&controller.peer),
            io_queues: cold.queues.len(),
            authentication: proof.map(|proof| Authenticated::of(proof, policy.as_deref())),
        }
    }
}

impl Target {
    /// The connected controllers, ordered by identifier.
    #[must_use]
    pub fn connected(&self) -> Vec<Connected> {
        let model = self.model();
        let all = self.shared.registry.all().into_iter();
        all.map(|controller| Connected::of(&controller, &model))
            .collect()
    }

    /// Host identifiers that several connected hosts have, with the NQNs of these.
    #[must_use]
    pub fn shared_host_ids(&self) -> Vec<(HostId, Vec<Nqn>)> {
        let mut hosts = BTreeMap::<HostId, BTreeSet<Nqn>>::new();
        let all = self.shared.registry.all();
        for one in all.iter().filter(|one| !one.is_discovery()) {
            hosts.entry(one.hostid).or_default().insert(one.hostnqn);
        }
        hosts.retain(|_, nqns| nqns.len() > 1);
        let hosts = hosts.into_iter();
        hosts
            .map(|(id, nqns)| (id, nqns.into_iter().collect()))
            .collect()
    }

    /// How many I/O queues of controllers are not connected of those that hosts requested by Set
    /// Features, by the source of their admin queues. The next connections of these sources are
    /// expected.
    #[must_use]
    pub fn awaited_queues(&self) -> BTreeMap<Source, usize> {
        let mut awaited = BTreeMap::new();
        for controller in self.shared.registry.all() {
            let Some(source) = controller.source.filter(|_| !controller.is_discovery()) else {
                continue;
            };
            let cold = controller.lock();
            let granted = usize::from(cold.features.io_queues.unwrap_or_default());
            let missing = granted.saturating_sub(cold.queues.len());
            drop(cold);
            if missing > 0 {
                *awaited.entry(source).or_default() += missing;
            }
        }
        awaited
    }

    /// The authentications since the target started: of all hosts, and of each host that has a
    /// key now, since it has one.
    #[must_use]
    pub fn authentication_report(&self) -> AuthenticationReport {
        let served = self.shared.served();
        let hosts = served.model.authentication().hosts.keys();
        self.shared.authentications.report(hosts)
    }

    /// Disconnects the controllers of `host`, of one subsystem or of all, discovery
    /// controllers included. The host may connect again. Afterwards every reactor has to
    /// poll its queues.
    #[must_use]
    pub fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        self.disconnect_if(|one| {
            one.hostnqn == *host && subsystem.is_none_or(|name| *name == one.subnqn)
        })
    }

    /// As [`disconnect`](Self::disconnect), but the controllers that are `wanted`.
    #[must_use]
    pub fn disconnect_if(&self, wanted: impl Fn(&Connected) -> bool) -> Vec<Disconnected> {
        let mut lost = Vec::new();
        // Excludes a concurrent Connect, which holds this until it is registered.
        let served = self.shared.served();
        for controller in self.shared.registry.all() {
            if !wanted(&Connected::of(&controller, &served.model)) {
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
