//! What is said of names that do not have the form which the specification asks for.

use std::collections::BTreeSet;

use nvmeof_wire::Nqn;

/// Names that a remark lists; of more only their number is.
const LISTED: usize = 5;

/// A remark on names that are served although they are unusual; none without any.
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
    fn unusual_names_are_listed_escaped_and_not_all_of_many() {
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
