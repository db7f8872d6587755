//! What settings of hosts belong to.

use std::ops::RangeInclusive;

use crate::Namespace;

/// NSID and UUID: another namespace with the same NSID has settings of its own.
pub(crate) type SettingsKey = (u32, [u8; 16]);

/// That of `namespace`.
pub(crate) fn settings_key(namespace: &Namespace) -> SettingsKey {
    (namespace.nsid, namespace.uuid)
}

/// All keys with this NSID.
pub(crate) fn keys_with(nsid: u32) -> RangeInclusive<SettingsKey> {
    (nsid, [0; 16])..=(nsid, [0xff; 16])
}
