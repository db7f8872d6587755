//! The stop of a target, as hosts see it before their connections end.

use std::sync::atomic::Ordering;

use super::Target;
use crate::controller::notices::Kinds;

impl Target {
    /// The target stops soon: reports every ANA group in state Change and notifies hosts, so
    /// that those with another path use that one. Commands are still executed: a host without
    /// another path, or without multipath, sees no error. Returns whether a host was notified;
    /// then every reactor has to poll its queues.
    #[must_use]
    pub fn announce_stop(&self) -> bool {
        self.set_stops(true)
    }

    /// The target does not stop after all: reports the configured ANA states again and notifies
    /// the hosts that are still connected. Returns like [`announce_stop`](Self::announce_stop).
    #[must_use]
    pub fn withdraw_stop(&self) -> bool {
        self.set_stops(false)
    }

    fn set_stops(&self, stops: bool) -> bool {
        self.shared.stops.store(stops, Ordering::Release);
        let mut notified = false;
        for controller in self.shared.registry.all() {
            if let Some(namespace_view) = controller.namespace_view() {
                let groups: Vec<_> = namespace_view.groups().map(|(group, _)| group).collect();
                notified |= controller.access_changed(&groups);
            }
        }
        notified
    }

    /// Whether every host that was notified has read the ANA log page.
    #[must_use]
    pub fn is_stop_known(&self) -> bool {
        let mut all = self.shared.registry.all().into_iter();
        all.all(|controller| !controller.lock().notices.is_unread(Kinds::ANA))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use nvmeof_wire::aer::AsyncEvent;
    use nvmeof_wire::features::AsyncEventConfig;
    use nvmeof_wire::log::ana::AnaState;
    use nvmeof_wire::nvm::Io;
    use nvmeof_wire::opcode::io;

    use crate::admin::tests::access::page;
    use crate::admin::tests::events::{enable, event, hold};
    use crate::testing::{Host, target};

    #[test]
    fn stop_is_announced_while_commands_are_still_executed() {
        let target = target();
        let (mut admin, mut host) = Host::ready(&target);
        enable(&mut admin, AsyncEventConfig::ANACN);
        hold(&mut admin);
        assert!(target.is_stop_known());
        assert!(target.announce_stop() && !target.is_stop_known());
        assert_eq!(event(&mut admin), Some(AsyncEvent::ANA_CHANGED));
        assert!(!target.is_stop_known());
        let write = host.write(Io::new(1, 0, 1).to_sqe(io::WRITE), &[1; 512]);
        assert!(write.status().is_success(), "{:?}", write.status());
        let (count, groups) = page(&mut admin);
        assert_eq!(count, 1);
        assert!(!groups.is_empty());
        assert!(groups.iter().all(|group| group.1 == AnaState::CHANGE));
        assert!(target.is_stop_known());
        hold(&mut admin);
        assert!(target.withdraw_stop());
        assert_eq!(event(&mut admin), Some(AsyncEvent::ANA_CHANGED));
        let (_, groups) = page(&mut admin);
        assert!(groups.iter().all(|group| group.1 == AnaState::OPTIMIZED));
    }

    /// A host that did not enable the notices is not waited for.
    #[test]
    fn stop_without_ana_notices_notifies_no_host() {
        let target = target();
        let (_admin, _) = Host::admin(&target);
        assert!(!target.announce_stop() && target.is_stop_known());
    }
}
