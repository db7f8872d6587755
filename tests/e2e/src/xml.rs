//! A reader of XML documents without declarations, for tests of pictures; fails if a document is
//! not well-formed (XML 1.0, section 2.1).

use std::collections::BTreeMap;

/// An element.
#[derive(Debug, Default)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// The values of its attributes.
    pub attributes: BTreeMap<String, String>,
    /// The characters directly in it.
    pub text: String,
}

/// The elements of a document, in the order of their ends.
#[track_caller]
pub fn elements(document: &str) -> Vec<Element> {
    let (mut open, mut done): (Vec<Element>, Vec<Element>) = (Vec::new(), Vec::new());
    let mut rest = document;
    while let Some((text, tail)) = rest.split_once('<') {
        match open.last_mut() {
            Some(element) => element.text.push_str(&characters(text)),
            None => assert_eq!(text.trim(), "", "characters outside of the root"),
        }
        let (tag, tail) = tail.split_once('>').expect("a tag ends");
        rest = tail;
        if let Some(name) = tag.strip_prefix('/') {
            let element = open.pop().expect("an element to end");
            assert_eq!(element.name, name);
            done.push(element);
            continue;
        }
        assert!(!open.is_empty() || done.is_empty(), "one root: <{tag}>");
        let empty = tag.strip_suffix('/');
        let element = begin(empty.unwrap_or(tag));
        let list = if empty.is_some() {
            &mut done
        } else {
            &mut open
        };
        list.push(element);
    }
    assert_eq!(rest.trim(), "", "characters outside of the root");
    assert!(open.is_empty() && !done.is_empty(), "without end: {open:?}");
    done
}

/// A start tag: a name, and attributes with unique names.
#[track_caller]
fn begin(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(is_name(name), "<{tag}>");
    let mut element = Element {
        name: name.to_owned(),
        ..Element::default()
    };
    while !rest.trim().is_empty() {
        let (name, tail) = rest.split_once("=\"").expect("a quoted attribute");
        let (value, tail) = tail.split_once('"').expect("a quote that ends");
        assert!(is_name(name.trim()), "<{tag}>");
        let name = name.trim().to_owned();
        let before = element.attributes.insert(name, characters(value));
        assert_eq!(before, None, "<{tag}>");
        assert!(tail.is_empty() || tail.starts_with(' '), "<{tag}>");
        rest = tail;
    }
    element
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .chars()
            .all(|one| one.is_ascii_alphanumeric() || "-_:".contains(one))
}

/// Characters without their references.
#[track_caller]
fn characters(text: &str) -> String {
    let forbidden = |one: char| one < ' ' && one != '\n' && one != '\t';
    assert!(!text.contains(forbidden), "{text:?}");
    assert!(!text.contains(['\u{fffe}', '\u{ffff}']), "{text:?}");
    let mut parts = text.split('&');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, tail) = part.split_once(';').expect("a reference that ends");
        plain.push(match name {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" | "#39" => '\'',
            _ => panic!("unknown reference &{name};"),
        });
        plain.push_str(tail);
    }
    plain
}
