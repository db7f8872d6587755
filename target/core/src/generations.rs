//! The generation of the discovery log of each host.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_wire::Nqn;

use crate::{Model, Subsystem};

/// Generations of the discovery log (Discovery Log Page, GENCTR). The generation of a host
/// is incremented when its own log changes, on any port, and only then: it reveals nothing
/// about the logs of other hosts. It depends on the ports and subsystems, not on which
/// addresses are reported to a local or remote host.
#[derive(Clone, Debug)]
pub(crate) struct Generations {
    /// Generation of hosts without one of their own.
    others: u64,
    /// Hosts that a subsystem names in `allowed_hosts`, and those named earlier whose
    /// generation differs from `others`.
    named: BTreeMap<Nqn, u64>,
}

impl Generations {
    /// The first generation.
    pub(crate) fn new() -> Self {
        Self {
            others: 1,
            named: BTreeMap::new(),
        }
    }

    /// The generation of the log of this host.
    pub(crate) fn of(&self, hostnqn: &Nqn) -> u64 {
        self.named.get(hostnqn).copied().unwrap_or(self.others)
    }

    /// The generations after `new` has replaced `old`.
    pub(crate) fn after(&self, old: &Model, new: &Model) -> Self {
        let mut numbers = Numbers::default();
        let (old, new) = (Logs::of(old, &mut numbers), Logs::of(new, &mut numbers));
        let next = |generation: u64, host: Option<&Nqn>| {
            // "If the value of this field is FFFFFFFF_FFFFFFFFh, then the field
            // shall be cleared to 0h when incremented".
            generation.wrapping_add(u64::from(old.entries(host) != new.entries(host)))
        };
        let others = next(self.others, None);
        let known = self.named.keys();
        let names: BTreeSet<&Nqn> = known.chain(old.names()).chain(new.names()).collect();
        let named = names.into_iter().filter_map(|name| {
            let generation = next(self.of(name), Some(name));
            let own = new.named.contains_key(name) || generation != others;
            own.then_some((*name, generation))
        });
        Self {
            others,
            named: named.collect(),
        }
    }
}

/// Assigns a number to each distinct text.
#[derive(Default)]
struct Numbers(BTreeMap<String, usize>);

/// The logs of all hosts of one model, with entries represented by numbers.
struct Logs<'a> {
    /// Entries of every host: position in the log, and number.
    common: Vec<(usize, usize)>,
    /// Further entries of the hosts that subsystems name.
    named: BTreeMap<&'a Nqn, Vec<(usize, usize)>>,
}

impl Numbers {
    fn of(&mut self, text: String) -> usize {
        let next = self.0.len();
        *self.0.entry(text).or_insert(next)
    }
}

impl<'a> Logs<'a> {
    fn of(model: &'a Model, numbers: &mut Numbers) -> Self {
        let discovery = model.discovery();
        let mut own = format!("{:?}", discovery.referrals());
        if let Some(nqn) = discovery.nqn() {
            own += &routes(model, nqn, |_| true);
        }
        let mut logs = Self {
            common: vec![(0, numbers.of(own))],
            named: BTreeMap::new(),
        };
        for (at, subsystem) in model.subsystems().iter().enumerate() {
            let routes = routes(model, &subsystem.nqn, |port| port.offers(&subsystem.nqn));
            if !routes.is_empty() {
                logs.add(subsystem, (at + 1, numbers.of(routes)));
            }
        }
        logs
    }

    fn add(&mut self, subsystem: &'a Subsystem, entry: (usize, usize)) {
        let Some(hosts) = &subsystem.allowed_hosts else {
            return self.common.push(entry);
        };
        for host in hosts {
            let log = self.named.entry(host).or_default();
            if log.last() != Some(&entry) {
                log.push(entry);
            }
        }
    }

    fn names(&self) -> impl Iterator<Item = &'a Nqn> {
        self.named.keys().copied()
    }

    /// The entries of a host, in order; `None` stands for hosts without a name.
    fn entries(&self, host: Option<&Nqn>) -> Vec<usize> {
        let own = host.and_then(|host| self.named.get(host));
        let mut all = self.common.clone();
        all.extend(own.into_iter().flatten());
        all.sort_unstable();
        all.into_iter().map(|(_, number)| number).collect()
    }
}

/// The routes to `nqn`, as text; empty if there are none.
fn routes(model: &Model, nqn: &Nqn, leads: impl Fn(&crate::Port) -> bool) -> String {
    let ports = model.ports().iter().filter(|port| leads(port));
    let routes = ports.map(|port| {
        let (id, at, carriers) = (port.id, port.address(), &port.carriers);
        format!("{nqn} {id} {at:?} {carriers:?}\n")
    });
    routes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmeof_wire::log::ana::AnaState;

    use crate::testing::{closed, port, port_in, subsystem};
    use crate::{Limits, PortSpec, SubsystemSpec};

    const FRIEND: &str = "nqn.2026-11.org.example:friend";
    const STRANGER: &str = "nqn.2026-11.org.example:stranger";

    fn model(ports: &[PortSpec], subsystems: &[SubsystemSpec]) -> Model {
        Model::build(Limits::default(), ports, subsystems).unwrap()
    }

    fn of(generations: &Generations) -> [u64; 2] {
        [STRANGER, FRIEND].map(|host| generations.of(&Nqn::new(host).unwrap()))
    }

    #[test]
    fn generation_changes_with_the_log_of_the_host() {
        let second = PortSpec {
            trsvcid: 4421,
            ..port()
        };
        let twice = SubsystemSpec {
            allowed_hosts: vec![FRIEND.into(), FRIEND.into()],
            ..closed()
        };
        let for_no_host = SubsystemSpec {
            allowed_hosts: vec![],
            ..closed()
        };
        let elsewhere = PortSpec {
            subsystems: Some(vec![closed().nqn]),
            ..second.clone()
        };
        // The discovery log does not report it.
        let state = port_in(1, AnaState::INACCESSIBLE);
        let open = model(&[port()], &[subsystem()]);
        // Each row: the next model, and the generations from then on.
        let rows = [
            (model(&[port()], &[subsystem(), closed()]), [1, 2]),
            (model(&[port()], &[closed(), subsystem()]), [1, 3]),
            (model(&[port(), second], &[closed(), subsystem()]), [2, 4]),
            // A port with a subsystem that only one host may connect to.
            (
                model(&[port(), elsewhere], &[subsystem(), closed()]),
                [3, 5],
            ),
            (model(&[port()], &[subsystem(), closed()]), [3, 6]),
            (model(&[state], &[subsystem(), closed()]), [3, 6]),
            (model(&[port()], &[subsystem(), twice]), [3, 6]),
            (model(&[port()], &[subsystem(), for_no_host]), [3, 7]),
            (model(&[port()], &[subsystem()]), [3, 7]),
            (model(&[port()], &[]), [4, 8]),
        ];
        let (mut before, mut generations) = (open, Generations::new());
        for (at, (now, expected)) in rows.into_iter().enumerate() {
            generations = generations.after(&before, &now);
            assert_eq!(of(&generations), expected, "row {at}");
            before = now;
        }
    }

    #[test]
    fn hosts_with_the_common_generation_are_forgotten() {
        let (open, shut) = (
            model(&[port()], &[subsystem()]),
            model(&[port()], &[subsystem(), closed()]),
        );
        let first = Generations::new();
        let named = first.after(&open, &shut);
        assert_eq!(named.named.len(), 1);
        // Its generation differs from the common one.
        assert_eq!(named.after(&shut, &open).named.len(), 1);
        let same = first.after(&shut, &shut);
        assert_eq!(same.named.len(), 1);
        let same = Generations {
            others: 8,
            named: [(Nqn::new(FRIEND).unwrap(), 7)].into(),
        };
        assert_eq!(same.after(&shut, &open).named.len(), 0);
    }

    #[test]
    fn referrals_and_discovery_nqn_are_reported_to_every_host() {
        let referral = crate::ReferralSpec {
            traddr: "192.0.2.1".parse().unwrap(),
            trsvcid: 8009,
            port_id: None,
            nqn: None,
        };
        let spec = crate::DiscoverySpec {
            nqn: Some("nqn.2026-11.org.example:finder".into()),
            referrals: vec![referral],
        };
        let with = |ports: &[PortSpec]| model(ports, &[]).with_discovery(&spec).unwrap();
        let plain = model(&[port()], &[]);
        let generations = Generations::new().after(&plain, &with(&[port()]));
        assert_eq!(of(&generations), [2, 2]);
        let moved = PortSpec {
            trsvcid: 4421,
            ..port()
        };
        let generations = generations.after(&with(&[port()]), &with(&[moved]));
        assert_eq!(of(&generations), [3, 3]);
    }
}
