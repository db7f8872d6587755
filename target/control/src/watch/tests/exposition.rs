//! A strict parser of OpenMetrics text.

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

/// OpenMetrics 1.0: each family once, its description before its samples, and `# EOF` at the end.
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
                assert!(
                    family.kind.is_empty() && family.samples.is_empty(),
                    "{line}"
                );
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                kind.clone_into(&mut family.kind);
            }
            ["#", "UNIT", name, unit] => {
                let family = families.last().unwrap();
                assert_eq!(family.name, name);
                assert!(
                    !family.kind.is_empty() && family.samples.is_empty(),
                    "{line}"
                );
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
                    "histogram" => &["_bucket", "_count", "_sum"],
                    kind => panic!("{kind}: {line}"),
                };
                assert!(allowed.contains(&suffix), "{line}");
                let counts = family.kind != "gauge";
                assert!(
                    !counts || sample.value.is_finite() && sample.value >= 0.0,
                    "{line}"
                );
                let once = (sample.name.clone(), sample.labels.clone());
                assert!(seen.insert(once), "twice: {line}");
                family.samples.push(sample);
            }
        }
    }
    families.iter().for_each(check);
    families
}

/// Checks the samples of a family together.
fn check(family: &Family) {
    if family.kind != "histogram" {
        return;
    }
    let mut left = &family.samples[..];
    let mut seen = BTreeSet::new();
    while let Some(first) = left.first() {
        let its = |sample: &Sample| {
            let mut labels = sample.labels.clone();
            labels.remove("le");
            labels
        };
        // "MetricPoints ... MUST NOT be interleaved": those of one set of labels
        // follow each other.
        let labels = its(first);
        let len = left.iter().take_while(|one| its(one) == labels).count();
        let (point, rest) = left.split_at(len);
        assert!(seen.insert(labels), "interleaved: {first:?}");
        check_histogram(&family.name, point);
        left = rest;
    }
}

/// Cumulative buckets in ascending order, the last with the bound infinity and the value of the
/// count.
fn check_histogram(name: &str, point: &[Sample]) {
    let of = |suffix: &str| {
        let named = point
            .iter()
            .filter(|one| one.name == format!("{name}{suffix}"));
        named.collect::<Vec<_>>()
    };
    let (buckets, counts, sums) = (of("_bucket"), of("_count"), of("_sum"));
    let bounds: Vec<f64> = buckets
        .iter()
        .map(|one| one.labels["le"].parse().unwrap())
        .collect();
    assert!(bounds.is_sorted_by(|one, other| one < other), "{bounds:?}");
    assert_eq!(bounds.last(), Some(&f64::INFINITY));
    assert_eq!(buckets.last().unwrap().labels["le"], "+Inf");
    assert!(
        buckets.is_sorted_by(|one, other| one.value <= other.value),
        "{buckets:?}"
    );
    assert_eq!((counts.len(), sums.len()), (1, 1));
    assert!((counts[0].value - buckets.last().unwrap().value).abs() < 0.5);
    for one in counts.iter().chain(&sums) {
        assert!(!one.labels.contains_key("le"), "{one:?}");
    }
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
            assert!(is_name(key) && !key.starts_with("__"), "{line}");
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

/// The text up to the closing quote, and the rest.
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

#[test]
fn invalid_expositions_are_rejected() {
    let good = "# HELP a A.\n# TYPE a counter\na_total{b=\"c\"} 1\n\
                # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"1.0\"} 1\n\
                h_bucket{le=\"+Inf\"} 2\nh_count 2\nh_sum 7.5\n# EOF\n";
    assert_eq!(parse(good).len(), 2);
    for (from, to) in [
        ("# EOF\n", ""),
        ("# TYPE a counter\n", ""),
        ("# HELP h", "# HELP a"),
        ("a_total", "a"),
        ("} 1\n", "} -1\n"),
        ("} 1\n", "} NaN\n"),
        ("} 1\n", "} 1\na_total{b=\"c\"} 1\n"),
        ("b=\"c\"", "b=\"\\c\""),
        ("b=\"c\"", "__b=\"c\""),
        ("h_bucket{le=\"+Inf\"} 2\n", ""),
        ("h_bucket{le=\"+Inf\"} 2", "h_bucket{le=\"+Inf\"} 0"),
        ("h_count 2", "h_count 3"),
        ("h_sum 7.5\n", ""),
        ("le=\"1.0\"", "le=\"1.0\",x=\"y\""),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        let found = std::panic::catch_unwind(|| parse(&bad).len());
        assert!(found.is_err(), "{bad}");
    }
}
