//! `[[port.ana_group]]`: asymmetric namespace access (ANA).

use nvmeof_target_core::AnaGroup;
use nvmeof_wire::log::ana::AnaState;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

/// ANA state of an ANA group on this port. Groups that are not listed are optimized.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawAnaGroup {
    /// ANA group: 1 to 128.
    id: Spanned<u32>,
    /// ANA state: `"optimized"`, `"non-optimized"`, `"inaccessible"`, `"persistent-loss"` or
    /// `"change"`.
    state: RawState,
}

/// The value of the key `state`.
#[derive(Clone, Copy, Debug)]
struct RawState(AnaState);

impl RawAnaGroup {
    pub(crate) fn group(&self) -> AnaGroup {
        AnaGroup {
            id: *self.id.get_ref(),
            state: self.state.0,
        }
    }

    /// Position in the text of the `id` of the last of `groups` with that ID.
    pub(crate) fn location(groups: &[Self], id: &str) -> Option<usize> {
        let mut groups = groups.iter().rev();
        let group = groups.find(|group| group.id.get_ref().to_string() == id)?;
        Some(group.id.span().start)
    }
}

impl<'de> Deserialize<'de> for RawState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        AnaState::from_name(&name).map(Self).ok_or_else(|| {
            D::Error::custom(format!(
                "unknown state {name:?}, expected \"optimized\", \"non-optimized\", \
                 \"inaccessible\", \"persistent-loss\" or \"change\""
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "tests"
    )]

    use nvmeof_target_core::Model;

    use super::*;
    use crate::tests::{model_of, parse};
    use crate::without_carriers;

    const GOOD: &str = r#"[[port]]
traddr = "127.0.0.1"
id = 7
[[port.ana_group]]
id = 3
state = "inaccessible"
[[port.ana_group]]
id = 2
state = "non-optimized"
[[port]]
traddr = "::1"
[[subsystem]]
nqn = "nqn.2026-11.org.example:disk"
allow_any_host = true
[[subsystem.namespace]]
nsid = 1
path = "ram:1M"
ana_group = 3
hosts = ["nqn.2026-11.org.example:host"]
[[subsystem.namespace]]
nsid = 2
path = "ram:1M"
"#;

    fn model(text: &str) -> Model {
        let config = parse(text).unwrap();
        let addresses = config.addresses().into_iter();
        let ports: Vec<_> = addresses.map(without_carriers).collect();
        model_of(&config, &ports)
    }

    #[test]
    fn ana_keys_of_ports_and_namespaces_are_in_the_model() {
        let model = model(GOOD);
        let ids: Vec<_> = model.ports().iter().map(|port| port.id).collect();
        assert_eq!(ids, [7, 2]);
        let states = |port: usize| [1, 2, 3].map(|group| model.ports()[port].ana_state(group));
        use AnaState as State;
        assert_eq!(
            states(0),
            [State::OPTIMIZED, State::NON_OPTIMIZED, State::INACCESSIBLE]
        );
        assert_eq!(states(1), [State::OPTIMIZED; 3]);
        let [one, two] = model.subsystems()[0].namespaces() else {
            panic!("two namespaces");
        };
        assert_eq!((one.ana_group, two.ana_group), (3, 1));
        assert_eq!(two.hosts, None);
        let hosts = one.hosts.as_deref().unwrap_or_default();
        let names: Vec<_> = hosts.iter().map(nvmeof_wire::Nqn::as_str).collect();
        assert_eq!(names, ["nqn.2026-11.org.example:host"]);
    }

    #[test]
    fn groups_of_other_gateways_are_inaccessible_on_every_port() {
        let config = parse(GOOD).unwrap();
        let addresses = config.addresses().into_iter();
        let ports: Vec<_> = addresses.map(without_carriers).collect();
        let sized = |spec: &mut nvmeof_target_core::NamespaceSpec| spec.blocks = 8;
        let keys = config.authentication().unwrap();
        let model = config.model_of(sized, &ports, &[2], keys).unwrap();
        use AnaState as State;
        for port in model.ports() {
            assert_eq!(port.ana_state(2), State::INACCESSIBLE);
            assert_eq!(port.ana_state(1), State::OPTIMIZED);
        }
        assert_eq!(model.ports()[0].ana_state(3), State::INACCESSIBLE);
        assert_eq!(model.ports()[1].ana_state(3), State::OPTIMIZED);
    }

    #[test]
    fn invalid_ana_keys_are_reported_with_their_line() {
        for (from, to, line, word) in [
            ("id = 7", "id = 2", 11, "id"),
            ("id = 7", "id = 0", 3, "id"),
            ("id = 7", "id = 70000", 3, "id"),
            ("id = 3", "id = 129", 5, "ana_group"),
            ("id = 3", "id = 0", 5, "ana_group"),
            ("id = 3", "id = 2", 8, "ana_group"),
            (
                "\"inaccessible\"",
                "\"optimised\"",
                6,
                "must be \"optimized\"",
            ),
            ("ana_group = 3", "ana_group = 200", 18, "ana_group"),
            ("[\"nqn.2026-11.org.example:host\"]", "[]", 19, "hosts"),
            ("[\"nqn.2026-11.org.example:host\"]", "[\"\"]", 19, "hosts"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            let location = format!("target.toml:{line}: ");
            assert!(
                error.starts_with(&location) && error.contains(word),
                "{to}: {error}"
            );
        }
    }
}
