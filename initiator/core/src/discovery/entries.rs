//! The entries of discovery log pages by identity, and what changed between two reads.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nvmeof_wire::log::DiscoveryEntry;
use nvmeof_wire::log::discovery::TransportType;

/// What identifies an entry. Entries with the same identity are the same path to the same
/// subsystem, even if several discovery services report them. The port identifier is not part
/// of it: services number the ports of a subsystem differently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId {
    /// Without the padding.
    subnqn: Vec<u8>,
    subtype: u8,
    trtype: u8,
    traddr: Traddr,
    trsvcid: String,
    /// The RDMA provider type: each provider of an address has an entry. 0 for other transports.
    provider: u8,
}

/// An IP address has several text forms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Traddr {
    Ip(IpAddr),
    Other(String),
}

impl EntryId {
    /// The identity of `entry`.
    #[must_use]
    pub fn of(entry: &DiscoveryEntry) -> Self {
        let traddr = entry.traddr.to_string();
        let end = entry.subnqn.iter().position(|byte| *byte == 0);
        let end = end.unwrap_or(entry.subnqn.len());
        Self {
            subnqn: entry.subnqn.iter().copied().take(end).collect(),
            subtype: entry.subtype.0,
            trtype: entry.trtype.0,
            traddr: traddr.parse().map_or(Traddr::Other(traddr), Traddr::Ip),
            trsvcid: entry.trsvcid.to_string(),
            provider: match entry.trtype {
                TransportType::RDMA => entry.tsas.prtype.0,
                _ => 0,
            },
        }
    }
}

/// A change of the known entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// A new entry.
    Added(Box<DiscoveryEntry>),
    /// An entry that no service reports any more.
    Removed(Box<DiscoveryEntry>),
    /// An entry with the same [`EntryId`] as before and other fields.
    Changed(Box<DiscoveryEntry>),
}

/// Entries in the order of their identities: those of a subsystem are consecutive.
#[derive(Clone, Debug, Default)]
pub(super) struct EntrySet(BTreeMap<EntryId, DiscoveryEntry>);

impl EntrySet {
    /// Adds an entry, unless it has one with the same identity.
    pub(super) fn insert(&mut self, entry: &DiscoveryEntry) {
        self.0.entry(EntryId::of(entry)).or_insert(*entry);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DiscoveryEntry> {
        self.0.values()
    }

    /// What to change in this set to get `new`: removed entries first.
    pub(super) fn changes_to(&self, new: &Self) -> Vec<EntryChange> {
        let gone = self.0.iter().filter(|(id, _)| !new.0.contains_key(id));
        let mut changes: Vec<_> = gone
            .map(|(_, entry)| EntryChange::Removed(Box::new(*entry)))
            .collect();
        changes.extend(new.0.iter().filter_map(|(id, entry)| match self.0.get(id) {
            None => Some(EntryChange::Added(Box::new(*entry))),
            Some(old) if old != entry => Some(EntryChange::Changed(Box::new(*entry))),
            Some(_) => None,
        }));
        changes
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_wire::Ascii;
    use nvmeof_wire::log::discovery::{RdmaProviderType, RdmaTsas, SubsystemType};

    use super::*;

    fn entry(traddr: &str) -> DiscoveryEntry {
        let mut entry = DiscoveryEntry::zeroed();
        entry.trtype = TransportType::RDMA;
        entry.subtype = SubsystemType::NVM;
        entry.traddr = Ascii::new(traddr);
        entry.tsas = RdmaTsas::connected(RdmaProviderType::IWARP);
        entry
    }

    #[test]
    fn identity_ignores_the_form_of_addresses_and_the_port_identifier() {
        let mut other = entry("0:0:0::1");
        other.portid = 7.into();
        other.treq = 4;
        assert_eq!(EntryId::of(&other), EntryId::of(&entry("::1")));
        let mut provider = entry("::1");
        provider.tsas = RdmaTsas::connected(RdmaProviderType::ROCE_V2);
        let mut service = entry("::1");
        service.trsvcid = Ascii::new("4421");
        let mut named = entry("::1");
        named.subnqn[0] = b'n';
        for other in [entry("::2"), provider, service, named] {
            assert_ne!(EntryId::of(&other), EntryId::of(&entry("::1")));
        }
    }

    #[test]
    fn changes_name_removed_added_and_changed_entries() {
        let set = |entries: &[DiscoveryEntry]| {
            let mut set = EntrySet::default();
            entries.iter().for_each(|entry| set.insert(entry));
            set
        };
        let mut changed = entry("::2");
        changed.portid = 9.into();
        // The second one is a duplicate.
        let old = set(&[entry("::1"), entry("0::1"), entry("::2")]);
        let new = set(&[changed, entry("::3")]);
        assert_eq!(
            old.changes_to(&new),
            [
                EntryChange::Removed(Box::new(entry("::1"))),
                EntryChange::Changed(Box::new(changed)),
                EntryChange::Added(Box::new(entry("::3"))),
            ]
        );
        assert_eq!(old.changes_to(&old), []);
        assert_eq!(old.iter().count(), 2);
    }
}
