//! A reader of OpenMetrics text that takes nothing the specification forbids.

use std::collections::{BTreeMap, BTreeSet};

/// One family with its samples.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) help: String,
    pub(super) samples: Vec<Sample>,
}

/// One line.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// OpenMetrics 1.0: families one after the other, each with what describes it
/// before its samples, none twice, and `# EOF` at the end.
pub(super) fn parse(text: &str) -> Vec<Family> {
    let body = text
        .strip_suffix("# EOF\n")
        .unwrap_or_else(|| panic!("no end: {text}"));
    let mut families: Vec<Family> = Vec::new();
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(families.iter().all(|one| one.name != name), "twice: {name}");
                assert!(is_name(name), "{name}");
                families.push(Family {
                    name: name.to_owned(),
                    kind: String::new(),
                    help: help.to_owned(),
                    samples: Vec::new(),
                });
            }
            ["#", "TYPE", name, kind] => {
                let family = families.last_mut().unwrap();
                assert_eq!(family.name, name);
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                kind.clone_into(&mut family.kind);
            }
            ["#", "UNIT", name, unit] => {
                assert_eq!(families.last().unwrap().name, name);
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
            }
            _ => {
                let sample = sample(line);
                let family = families.last_mut().unwrap();
                let suffix = sample
                    .name
                    .strip_prefix(&family.name)
                    .unwrap_or_else(|| panic!("{line}"));
                let allowed: &[&str] = match family.kind.as_str() {
                    "counter" => &["_total"],
                    "gauge" => &[""],
                    _ => &["_bucket", "_count", "_sum"],
                };
                assert!(allowed.contains(&suffix), "{line}");
                let once = (sample.name.clone(), sample.labels.clone());
                assert!(seen.insert(once), "twice: {line}");
                family.samples.push(sample);
            }
        }
    }
    families
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(key), "{line}");
            let (value, after) = quoted(after).unwrap_or_else(|| panic!("{line}"));
            assert!(labels.insert(key.to_owned(), value).is_none(), "{line}");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    Sample {
        name: name.to_owned(),
        labels,
        value: value
            .parse()
            .unwrap_or_else(|error| panic!("{error}: {line}")),
    }
}

/// Up to the quote that ends it, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}
