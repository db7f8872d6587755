//! NQNs in warnings, and the warning about those that do not have the form that the specification
//! requires.

use std::collections::BTreeSet;

use nvmeof_wire::Nqn;
use nvmeof_wire::text::Escaped;

/// Most names that a warning lists; of further names it has the number.
const LISTED: usize = 5;

/// A warning about unusual NQNs, which are served anyway; `None` if there are no such names.
pub fn on_unusual_names(names: &BTreeSet<Nqn>) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let listed = listed(names.iter().map(Nqn::as_str));
    Some(format!(
        "not of the form nqn.yyyy-mm.reversed.domain:name (NVMe Base 2.1, 4.7): {listed}; served \
         as they are, but a strict host refuses such names"
    ))
}

/// The first names, and the number of further ones.
pub(crate) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let first = names.by_ref().take(LISTED);
    let first: Vec<_> = first.map(|name| Escaped(name).to_string()).collect();
    let more = match names.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    first.join(", ") + &more
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
