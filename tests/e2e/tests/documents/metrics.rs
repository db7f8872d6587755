//! The metrics that documents name, in their tables and in PromQL.

use std::collections::BTreeSet;

use nvmeof_e2e::{managed, over_socket};

use crate::{all_documents, read};

/// What all names of metrics begin with.
const PREFIX: &str = "nvmeof_target_";

/// The names that a target tells at `/metrics`, with those of the samples that
/// the format makes of them (OpenMetrics 1.0, "Counter" and "Histogram": the one
/// ends in `_total`, the other has `_bucket`, `_count` and `_sum`).
fn told() -> BTreeSet<String> {
    let setup = managed().file(1 << 20);
    let target = setup.start();
    let (_, answer) = over_socket(&setup, "/metrics");
    target.stop();
    let families = answer.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let suffixes: &[&str] = match kind.trim_end() {
            "counter" => &["_total"],
            "histogram" => &["", "_bucket", "_count", "_sum"],
            _ => &[""],
        };
        Some(suffixes.iter().map(move |suffix| format!("{name}{suffix}")))
    });
    families.flatten().collect()
}

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !of_name(letter));
    let names = words.filter(|word| word.starts_with(PREFIX));
    names.map(str::to_owned).collect()
}

#[test]
fn the_metrics_in_documents_are_told() {
    let told = told();
    let mut total = 0;
    for document in all_documents() {
        let named = named(&read(&document));
        let unknown: Vec<_> = named.difference(&told).collect();
        assert!(
            unknown.is_empty(),
            "{document} names {unknown:?}: no target has such"
        );
        total += named.len();
    }
    assert!(total > 0, "no document names a metric");
}
