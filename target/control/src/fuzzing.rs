//! Entry points for fuzz targets: parsers of untrusted bytes that are private otherwise. Not a
//! public interface.

use nvmeof_wire::Nqn;

use crate::changes;
use nvmeof_target_api::{DocumentIn, EditsIn, ForgetIn, HostIn, Resize};

/// Parses a body as each kind of request of the control socket, and returns how many accept it.
/// Nothing is executed.
#[must_use]
pub fn control_body(body: &[u8]) -> usize {
    let host = serde_json::from_slice::<HostIn>(body).is_ok_and(|it| Nqn::new(&it.host).is_ok());
    let document = serde_json::from_slice::<DocumentIn>(body).is_ok();
    let edits = serde_json::from_slice::<EditsIn>(body).is_ok();
    let forget = serde_json::from_slice::<ForgetIn>(body).is_ok();
    let resize = serde_json::from_slice::<Resize>(body).is_ok();
    [host, document, edits, forget, resize]
        .into_iter()
        .map(usize::from)
        .sum()
}

/// Applies the edits of a request body (`POST /v1/edits`) to a document. Returns the resulting
/// document; `None` if something is refused.
///
/// # Panics
/// If accepted edits cannot be written, read again and served.
#[must_use]
pub fn edits(document: &str, body: &[u8]) -> Option<String> {
    changes::fuzzing::edits(document, body)
}

/// Parses bytes as a state file (`control.state`) on top of a document. Returns how many changes
/// are in effect; `None` if nothing can be served.
///
/// # Panics
/// If a change prevents serving what could be served without it.
#[must_use]
pub fn state(document: &str, bytes: &[u8]) -> Option<usize> {
    changes::fuzzing::state(document, bytes)
}

#[cfg(test)]
mod tests {
    const DOCUMENT: &str = "[[port]]\ntraddr = \"127.0.0.1\"\n[[subsystem]]\n\
        nqn = \"nqn.2026-11.org.example:disk\"\nallow_any_host = true\n";

    #[test]
    fn valid_inputs_are_accepted_and_invalid_ones_refused() {
        let add = br#"{"edits": [{"edit": "namespace_add", "path": "ram:1M"}]}"#;
        assert_eq!(super::control_body(add), 2);
        let text = super::edits(DOCUMENT, add);
        assert!(text.is_some_and(|text| text.contains("ram:1M")));
        assert_eq!(super::edits(DOCUMENT, b"{\"edits\": 1}"), None);
        let state = br#"{"version": 1, "edits": [{"edit": "port_remove", "address": "1.2.3.4:5"},
            {"edit": "host_deny", "host": "any", "subsystem": "nqn.2026-11.org.example:disk"}]}"#;
        assert_eq!(super::state(DOCUMENT, state), Some(1));
    }
}
