//! Condenses a list of public items: one line for all traits that a type implements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// An item of a crate.
#[derive(Debug)]
pub(crate) struct Item<Id> {
    pub(crate) id: Id,
    /// The implementation or type that it belongs to.
    pub(crate) parent: Option<Id>,
    /// Its declaration without a body.
    pub(crate) text: String,
}

/// Traits that are internal to the compiler, or that no caller of this project uses.
const IGNORED: &[&str] = &[
    "Freeze",
    "RefUnwindSafe",
    "StructuralPartialEq",
    "UnsafeUnpin",
    "UnwindSafe",
];

/// A type with the generic parameters of its implementations.
type Implementor<'a> = (&'a str, &'a str);

/// The lines of the list. Items of trait implementations are omitted, because the trait defines
/// them; only associated types remain, which the implementation chooses.
pub(crate) fn lines<Id: Ord>(items: &[Item<Id>]) -> String {
    let mut implementations = BTreeSet::new();
    let mut traits: BTreeMap<Implementor<'_>, BTreeSet<String>> = BTreeMap::new();
    for item in items {
        if let Some((implementor, name)) = implementation(&item.text) {
            implementations.insert(&item.id);
            let name = without_path(name);
            let names = traits.entry(implementor).or_default();
            if !IGNORED.contains(&name.trim_start_matches('!')) {
                names.insert(name);
            }
        }
    }
    let mut text = String::new();
    for item in items {
        if let Some((implementor, _)) = implementation(&item.text) {
            // All of them are at the place of the first one.
            let names = traits.remove(&implementor).unwrap_or_default();
            if !names.is_empty() {
                let names = Vec::from_iter(names).join(", ");
                let (generics, name) = implementor;
                line(&mut text, &format!("impl{generics} {names} for {name}"));
            }
            continue;
        }
        let of_trait = item.parent.as_ref();
        let of_trait = of_trait.is_some_and(|parent| implementations.contains(parent));
        if !of_trait || is_chosen(&item.text) {
            line(&mut text, &item.text);
        }
    }
    text
}

fn line(text: &mut String, added: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{added}");
}

/// Whether it is an associated type that a person chose; zerocopy derives the others.
fn is_chosen(text: &str) -> bool {
    text.starts_with("pub type ") && !text.contains("::PointerMetadata = ")
}

/// The implementor and the trait of `impl<GENERICS> TRAIT for TYPE where BOUNDS`.
fn implementation(text: &str) -> Option<(Implementor<'_>, &str)> {
    let rest = text.strip_prefix("impl")?;
    let (generics, rest) = rest.split_at(end_of_generics(rest));
    let (name, rest) = rest.trim_start().split_once(" for ")?;
    let implementor = rest.split_once(" where ").map_or(rest, |(name, _)| name);
    Some(((generics, implementor), name))
}

/// The length of `<...>` at the start of a text; 0 without.
fn end_of_generics(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if c == '>' { at + 1 } else { 0 };
        }
        before = c;
    }
    0
}

/// `core::convert::From<a::B>` as `From<a::B>`.
fn without_path(name: &str) -> String {
    let not = if name.starts_with('!') { "!" } else { "" };
    let end = name.find('<').unwrap_or(name.len());
    let (path, generics) = name.split_at(end);
    let last = path.rsplit("::").next().unwrap_or(path);
    format!("{not}{}{generics}", last.trim_start_matches('!'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condensed(items: &[(u8, Option<u8>, &str)]) -> String {
        let items: Vec<_> = items
            .iter()
            .map(|&(id, parent, text)| Item {
                id,
                parent,
                text: text.to_owned(),
            })
            .collect();
        lines(&items)
    }

    #[test]
    fn traits_of_a_type_are_one_line_at_the_first() {
        let text = condensed(&[
            (0, None, "pub struct a::A"),
            (1, None, "impl a::A"),
            (2, Some(1), "pub fn a::A::new() -> Self"),
            (3, None, "impl core::convert::From<a::B> for a::A"),
            (4, Some(3), "pub fn a::A::from(a::B) -> Self"),
            (
                5,
                None,
                "impl core::clone::Clone for a::A where u8: core::clone::Clone",
            ),
            (6, None, "impl !core::marker::Sync for a::A"),
            (7, None, "impl core::marker::Freeze for a::A"),
            (8, None, "pub struct a::B"),
            (9, None, "impl core::marker::Freeze for a::B"),
        ]);
        let expected = "pub struct a::A\nimpl a::A\npub fn a::A::new() -> Self\n\
                        impl !Sync, Clone, From<a::B> for a::A\npub struct a::B\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn associated_types_remain() {
        let text = condensed(&[
            (0, None, "impl core::str::FromStr for a::A"),
            (1, Some(0), "pub type a::A::Err = a::E"),
            (2, Some(0), "pub fn a::A::from_str(&str) -> Self"),
            (3, None, "impl zerocopy::KnownLayout for a::A"),
            (4, Some(3), "pub type a::A::PointerMetadata = ()"),
        ]);
        assert_eq!(
            text,
            "impl FromStr, KnownLayout for a::A\npub type a::A::Err = a::E\n"
        );
    }

    #[test]
    fn generic_parameters_belong_to_the_implementor() {
        let text = condensed(&[
            (0, None, "impl<F: Fn() -> a::C> a::Do for a::A<F>"),
            (1, None, "impl<'a> core::clone::Clone for a::A<&'a u8>"),
        ]);
        let expected = "impl<F: Fn() -> a::C> Do for a::A<F>\nimpl<'a> Clone for a::A<&'a u8>\n";
        assert_eq!(text, expected);
    }
}
