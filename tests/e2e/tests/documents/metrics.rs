//! The metrics that documents name, in their tables and in PromQL.

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_e2e::{managed, over_socket};

use crate::{all_documents, read};

/// Prefix of all names of metrics.
const PREFIX: &str = "nvmeof_target_";

/// The names of the metrics at `/metrics`, with those of the samples that
/// the format makes of them (OpenMetrics 1.0, "Counter" and "Histogram": the one
/// ends in `_total`, the other has `_bucket`, `_count` and `_sum`).
fn served() -> BTreeSet<String> {
    let setup = managed().file(1 << 20);
    let target = setup.start();
    let (_, response) = over_socket(&setup, "/metrics");
    target.stop();
    let families = response.lines().filter_map(|line| {
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
fn documented_metrics_exist() {
    let served = served();
    let mut total = 0;
    for document in all_documents() {
        let named = named(&read(&document));
        let unknown: Vec<_> = named.difference(&served).collect();
        assert!(
            unknown.is_empty(),
            "{document} names {unknown:?}: no target has such"
        );
        total += named.len();
    }
    assert!(total > 0, "no document names a metric");
}

/// The labels of each metric, by the table of `docs/monitoring.md`, which a test of the
/// target compares with its metrics.
fn labels() -> BTreeMap<String, BTreeSet<String>> {
    let document = read("docs/monitoring.md");
    let rows = document.lines().filter_map(|line| {
        let row = line.strip_prefix("| `")?;
        let mut cells = row.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        let labels = cells
            .nth(1)?
            .split(',')
            .map(|label| label.trim().to_owned());
        Some((name.to_owned(), labels.collect()))
    });
    rows.filter(|(name, _)| name.starts_with(PREFIX)).collect()
}

/// The words in the brackets after each `before` in an expression; of a matcher the label.
fn in_brackets(expression: &str, before: &str, close: char) -> Vec<String> {
    let after = expression.split(before).skip(1);
    let inside = after.filter_map(|rest| rest.split(close).next());
    let words = inside.flat_map(|inside| inside.split(','));
    let of_label = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let labels = words.map(|word| word.trim().split(|letter| !of_label(letter)).next());
    labels.flatten().map(str::to_owned).collect()
}

#[test]
fn labels_in_expressions_exist() {
    let labels = labels();
    assert!(labels.len() > 30, "{} metrics have labels", labels.len());
    let mut checked = 0;
    for document in all_documents() {
        let text = read(&document).replace("\\|", "|");
        for expression in text.split('`').skip(1).step_by(2) {
            let names = named(expression);
            let mut known = BTreeSet::new();
            for name in &names {
                let family = name.strip_suffix("_bucket").unwrap_or(name);
                known.extend(labels.get(family).into_iter().flatten().cloned());
                known.extend((family != name).then(|| "le".to_owned()));
            }
            let by = ["by (", "ignoring(", "on("];
            let by = by
                .iter()
                .flat_map(|word| in_brackets(expression, word, ')'));
            let used: Vec<_> = by.chain(in_brackets(expression, "{", '}')).collect();
            if names.is_empty() || used.is_empty() {
                continue;
            }
            for label in used {
                assert!(
                    known.contains(&label),
                    "{document}: {label} in {expression}"
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 5, "only {checked} labels are in expressions");
}
