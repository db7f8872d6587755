//! Facts: what must agree between the gateways of a record, and their controller IDs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use nvmeof_target_core::{Namespace, Subsystem};
use nvmeof_wire::Nqn;
use sha2::{Digest, Sha256};

use super::{Config, HaConfig};

/// The record has no longer texts.
const MAX_TEXT: usize = 256;

impl Config {
    /// What must agree between the gateways, by name: at most 8 texts of at most 256 bytes. Empty
    /// without `[ha]`.
    ///
    /// Gateways compare these texts, also with other versions of the program: a change of the
    /// digests is a change of the format of the record.
    #[must_use]
    pub fn ha_facts(&self) -> BTreeMap<String, String> {
        let Some(ha) = self.ha() else {
            return BTreeMap::new();
        };
        let mut facts = BTreeMap::from([
            ("groups", groups(ha)),
            ("lease_ms", ha.lease.as_millis().to_string()),
        ]);
        self.with_ha_subsystems(|subsystems| {
            facts.insert("namespaces", namespaces(subsystems));
            // The digest has these as well; they tell an administrator more.
            if let [(subsystem, _)] = subsystems {
                let texts = [
                    ("serial", subsystem.serial.to_string()),
                    ("subsystem", subsystem.nqn.to_string()),
                ];
                facts.extend(texts.into_iter().filter(|(_, text)| is_text(text)));
            }
        });
        let facts = facts.into_iter();
        facts.map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// The lowest and the highest controller ID of the subsystems with a namespace in an HA group.
    /// `None`: there is no such subsystem.
    #[must_use]
    pub fn ha_controller_ids(&self) -> Option<(u16, u16)> {
        self.with_ha_subsystems(|subsystems| {
            let ids = || subsystems.iter().map(|(one, _)| one.controller_ids);
            let lowest = ids().map(|ids| ids.min()).min();
            let highest = ids().map(|ids| ids.max()).max();
            lowest.zip(highest)
        })
    }

    /// The subsystems with a namespace in an HA group.
    #[must_use]
    pub fn ha_subsystems(&self) -> BTreeSet<Nqn> {
        self.with_ha_subsystems(|subsystems| subsystems.iter().map(|(one, _)| one.nqn).collect())
    }

    /// Whether one of these also has a namespace in no HA group.
    #[must_use]
    pub fn has_other_namespaces(&self) -> bool {
        self.with_ha_subsystems(|subsystems| {
            let count = |one: &Subsystem| one.namespaces().len() + one.disabled().len();
            subsystems
                .iter()
                .any(|(one, grouped)| count(one) > grouped.len())
        })
    }

    /// The result of `of` for the subsystems with a namespace in an HA group, each with these
    /// namespaces: also the disabled ones.
    fn with_ha_subsystems<T>(&self, of: impl FnOnce(&[(&Subsystem, Vec<&Namespace>)]) -> T) -> T {
        // It was built when the configuration was checked.
        let model = self.checked_model().ok();
        let subsystems = model.iter().flat_map(|model| model.subsystems());
        let is_grouped = |one: &&Namespace| self.ha().is_some_and(|ha| ha.has_group(one.ana_group));
        let each = subsystems.map(|subsystem| {
            let all = subsystem.namespaces().iter().chain(subsystem.disabled());
            (&**subsystem, all.filter(is_grouped).collect::<Vec<_>>())
        });
        let with: Vec<_> = each.filter(|(_, grouped)| !grouped.is_empty()).collect();
        of(&with)
    }
}

/// The gateways of each group, such as `1: gw1 gw2; 2: gw2 gw1`, or a digest of that.
fn groups(ha: &HaConfig) -> String {
    let by_id = ha.groups.iter().map(|one| (one.id, one.gateways.join(" ")));
    let by_id: BTreeMap<_, _> = by_id.collect();
    let texts = by_id.iter().map(|(id, names)| format!("{id}: {names}"));
    let text = texts.collect::<Vec<_>>().join("; ");
    match is_text(&text) {
        true => text,
        false => hex(&Sha256::digest(text.as_bytes())),
    }
}

/// A digest of the namespaces, as hosts see them, and of their images.
fn namespaces(subsystems: &[(&Subsystem, Vec<&Namespace>)]) -> String {
    let mut sorted = BTreeMap::new();
    for (subsystem, namespaces) in subsystems {
        for namespace in namespaces {
            let key = (subsystem.nqn.as_str(), namespace.nsid);
            sorted.insert(key, (*subsystem, *namespace));
        }
    }
    let mut digest = Sha256::new();
    let mut add = |bytes: &[u8]| {
        digest.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        digest.update(bytes);
    };
    for ((nqn, nsid), (subsystem, namespace)) in sorted {
        add(nqn.as_bytes());
        add(subsystem.serial.to_string().as_bytes());
        add(subsystem.model_number.to_string().as_bytes());
        add(&nsid.to_le_bytes());
        add(namespace.storage.as_bytes());
        add(&namespace.block_size().to_le_bytes());
        add(&namespace.uuid);
        add(&namespace.nguid);
        add(namespace.eui64.as_ref().map_or(&[], <[u8; 8]>::as_slice));
        add(&namespace.ana_group.to_le_bytes());
    }
    hex(&digest.finalize())
}

/// Whether the record may contain `text`.
fn is_text(text: &str) -> bool {
    text.len() <= MAX_TEXT && !text.chars().any(|c| c.is_control() || "\"\\".contains(c))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
