//! Bounds of a case relative to another one of the same run, whatever the compiler.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::baseline::Verdict;
use crate::case::Case;

/// Compares each of `cases` that has a bound with the case that bounds it.
pub(crate) fn compare(cases: &[Case], counts: &BTreeMap<String, u64>) -> Verdict {
    let (mut table, mut failures) = (String::new(), Vec::new());
    for case in cases {
        let Some(bound) = case.bound() else { continue };
        let (name, other) = (case.name(), bound.than.name());
        let (Some(&count), Some(&than)) = (counts.get(&name), counts.get(&other)) else {
            continue;
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "{name:28} {count:>8}  {}, {other} has {than}",
            relative(count, than)
        );
        if count.saturating_mul(100) > than.saturating_mul(100 + bound.percent) {
            failures.push(format!(
                "{name}: {count} instructions, {} than {other} ({than}); at most {} % are allowed",
                relative(count, than),
                bound.percent
            ));
        }
    }
    Verdict {
        table,
        failures: failures.join("\n"),
    }
}

/// How many more `count` are than `than`, with a decimal place.
fn relative(count: u64, than: u64) -> String {
    let thousandths = |part: u64| part.saturating_mul(1000) / than.max(1);
    let (sign, difference) = match count.checked_sub(than) {
        Some(more) => ("+", thousandths(more)),
        None => ("-", thousandths(than - count)),
    };
    format!("{sign}{}.{} %", difference / 10, difference % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: &str = "awaited-two-paths-read-qd16";
    const QUEUES: &str = "awaited-two-queues-read-qd16";

    fn verdict(paths: u64, queues: u64) -> Verdict {
        let cases = [PATHS, QUEUES].map(|name| Case::find(name).unwrap());
        let counts = [(PATHS, paths), (QUEUES, queues)];
        let counts = counts.map(|(name, count)| (name.to_owned(), count));
        compare(&cases, &counts.into())
    }

    #[test]
    fn case_above_its_bound_fails() {
        for paths in [10, 1000, 1030] {
            assert_eq!(verdict(paths, 1000).failures, "", "{paths}");
        }
        let failed = verdict(1031, 1000);
        let words = "awaited-two-paths-read-qd16: 1031 instructions, +3.1 % than";
        assert!(failed.failures.starts_with(words), "{}", failed.failures);
        assert!(failed.table.contains("+3.1 %"), "{}", failed.table);
        assert!(verdict(969, 1000).table.contains("-3.1 %"));
    }
}
