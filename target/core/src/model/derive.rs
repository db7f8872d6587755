//! Derived identifiers, for those that are not configured. They are the same after every
//! restart, because a Linux host rejects a namespace whose identifiers changed.

use uuid::Uuid;

/// Names derived by this program are version 5 UUIDs (RFC 9562, section 5.5)
/// under this name space.
const NAME_SPACE: Uuid = Uuid::from_bytes([
    0x9c, 0x5d, 0x0f, 0x6e, 0x61, 0x0b, 0x4a, 0x51, 0x8b, 0x37, 0x2f, 0x0e, 0x64, 0xf1, 0x25, 0xd3,
]);

/// A UUID for namespace `nsid` of the subsystem `nqn`.
#[must_use]
pub(super) fn uuid(nqn: &str, nsid: u32) -> [u8; 16] {
    derived(&format!("uuid {nsid} {nqn}"))
}

/// A namespace globally unique identifier. It is not assigned by the IEEE, so the locally
/// administered bit of its OUI is set.
#[must_use]
pub(super) fn nguid(nqn: &str, nsid: u32) -> [u8; 16] {
    let mut nguid = derived(&format!("nguid {nsid} {nqn}"));
    // NVM command set, NGUID: bytes 10:08 hold the OUI, most significant
    // byte first.
    if let Some(oui) = nguid.get_mut(8) {
        *oui = (*oui | 0b10) & !0b01;
    }
    nguid
}

/// A serial number: 20 characters of ASCII.
#[must_use]
pub(super) fn serial(nqn: &str) -> String {
    let digest = derived(&format!("serial {nqn}"));
    digest
        .iter()
        .take(10)
        .map(|byte| format!("{byte:02X}"))
        .collect()
}

/// A UUID for `name`, the same at every call.
#[must_use]
pub fn derived(name: &str) -> [u8; 16] {
    Uuid::new_v5(&NAME_SPACE, name.as_bytes()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_identifiers_never_change() {
        let nqn = "nqn.2026-11.org.example:disk";
        assert_eq!(
            Uuid::from_bytes(uuid(nqn, 1)).to_string(),
            "701ad4c2-0738-5a40-8436-c19a64a38b19"
        );
        assert_eq!(serial(nqn), "B3F63B63C63D58D0B5F7");
    }

    #[test]
    fn different_namespaces_differ() {
        let all = [
            uuid("a", 1),
            uuid("a", 2),
            uuid("b", 1),
            nguid("a", 1),
            nguid("b", 1),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one));
        }
        assert_eq!(nguid("a", 1)[8] & 3, 2);
    }
}
