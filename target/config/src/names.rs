//! The warning about NQNs that do not have the form that the specification requires.

use std::collections::BTreeSet;

use nvmeof_wire::Nqn;

/// Most names that a warning lists; of further names it has the number.
const LISTED: usize = 5;

/// A warning about unusual NQNs, which are served anyway; `None` if there are no such names.
pub fn on_unusual_names(names: &BTreeSet<Nqn>) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let listed: Vec<_> = names.iter().take(LISTED).map(Nqn::to_string).collect();
    let more = match names.len().saturating_sub(LISTED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "not of the form nqn.yyyy-mm.reversed.domain:name (NVMe Base 2.1, 4.7): {}{more}; served \
         as they are, but a strict host refuses such names",
        listed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_names_are_escaped_and_limited_in_number() {
        let remark = |names: &[&str]| {
            let names = names.iter().map(|name| Nqn::new(name).unwrap());
            on_unusual_names(&names.collect())
        };
        assert_eq!(remark(&[]), None);
        let few = remark(&["testnqn", "a\u{202e}b"]).unwrap();
        assert!(few.contains(": a\\u202Eb, testnqn; served"), "{few}");
        let many = remark(&["a", "b", "c", "d", "e", "f", "g"]).unwrap();
        assert!(many.contains(": a, b, c, d, e and 2 more; "), "{many}");
    }
}
