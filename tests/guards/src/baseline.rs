//! The recorded counts: `tests/guards/instructions.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Instructions of one operation on the hot paths. `cargo xtask test instructions`
# fails if a count is more than 3 % above or below. To accept new counts of the
# named cases:
#     cargo run --release -p nvmeof-guards -- check --accept \"WHY\" CASE...
#     cargo xtask docs
# The reason is recorded in this file, and belongs in the commit as well.
";
const COMPILER: &str = "compiler";

/// The accepted counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Baseline {
    compiler: String,
    /// By case: count and reason.
    counts: BTreeMap<String, (u64, String)>,
}

/// The result of a comparison.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) table: String,
    /// Empty on success; otherwise the failures with their remedy.
    pub(crate) failures: String,
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt")
}

impl Baseline {
    /// Reads the file; a missing one has no counts.
    pub(crate) fn read() -> Result<Self, String> {
        match std::fs::read_to_string(path()) {
            Ok(text) => Self::parse(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path().display())),
        }
    }

    pub(crate) fn write(&self) -> Result<(), String> {
        std::fs::write(path(), self.text()).map_err(|e| format!("{}: {e}", path().display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut baseline = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let wrong = || format!("{}: invalid line: {line}", path().display());
            let (name, rest) = line.split_once(' ').ok_or_else(wrong)?;
            let rest = rest.trim();
            if name == COMPILER {
                rest.clone_into(&mut baseline.compiler);
                continue;
            }
            let (count, reason) = rest.split_once(' ').ok_or_else(wrong)?;
            let count = count.parse().map_err(|_| wrong())?;
            let entry = (count, reason.trim().to_owned());
            baseline.counts.insert(name.to_owned(), entry);
        }
        Ok(baseline)
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}{COMPILER} {}\n", self.compiler);
        for (name, (count, reason)) in &self.counts {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:22} {count:>7}  {reason}");
        }
        text
    }

    /// Accepts those of `counts` that differ.
    ///
    /// # Errors
    /// The other counts are of another compiler, and must not be mixed with these.
    pub(crate) fn accept(
        &mut self,
        counts: &BTreeMap<String, u64>,
        compiler: &str,
        reason: &str,
    ) -> Result<(), String> {
        let others = self.counts.keys().any(|name| !counts.contains_key(name));
        if others && self.compiler != compiler {
            return Err(format!(
                "the baseline is of {}, not {compiler}: accept all cases, without naming any",
                self.compiler
            ));
        }
        compiler.clone_into(&mut self.compiler);
        for (name, count) in counts {
            if self.counts.get(name).map(|(old, _)| old) != Some(count) {
                let entry = (*count, reason.to_owned());
                self.counts.insert(name.clone(), entry);
            }
        }
        Ok(())
    }

    /// Compares; `tolerance` is in percent.
    pub(crate) fn compare(
        &self,
        counts: &BTreeMap<String, u64>,
        compiler: &str,
        tolerance: u64,
    ) -> Verdict {
        let mut table = format!("{:22} {:>8} {:>8}\n", "case", "baseline", "now");
        let mut failed = Vec::new();
        for (name, count) in counts {
            let Some((old, _)) = self.counts.get(name) else {
                let _ = writeln!(table, "{name:22} {:>8} {count:>8}  no baseline", "");
                failed.push(format!("{name} has no baseline"));
                continue;
            };
            let word = if count * 100 > old * (100 + tolerance) {
                failed.push(format!("{name}: {count} instructions, baseline {old}"));
                "MORE"
            } else if count * 100 < old * (100 - tolerance) {
                // Otherwise a later change could use up the saving unnoticed.
                let text = "accept the new count, to keep the saving";
                failed.push(format!(
                    "{name}: only {count} instructions, baseline {old}: {text}"
                ));
                "less"
            } else {
                ""
            };
            let line = format!("{name:22} {old:>8} {count:>8}  {word}");
            let _ = writeln!(table, "{}", line.trim_end());
        }
        let mut failures = failed.join("\n");
        if !failed.is_empty() {
            failures.push_str(
                "\nTo profile a case:\n    \
                 cargo run --release -p nvmeof-guards -- check --profile CASE\n\
                 To accept correct counts:\n    \
                 cargo run --release -p nvmeof-guards -- check --accept \"WHY\" CASE...",
            );
            if self.compiler != compiler {
                let _ = write!(
                    failures,
                    "\nThe baseline is of another compiler, which may be the cause: {}, not \
                     {compiler}",
                    self.compiler
                );
            }
        }
        Verdict { table, failures }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    fn baseline() -> Baseline {
        let mut baseline = Baseline::default();
        let all = counts(&[("one", 1000), ("two", 2000)]);
        baseline.accept(&all, "rustc 1", "first count").unwrap();
        baseline
    }

    #[test]
    fn written_file_is_read_back() {
        let baseline = baseline();
        assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline));
        assert!(Baseline::parse("nonsense\n").is_err());
        assert!(Baseline::parse("one many why\n").is_err());
    }

    #[test]
    fn counts_beyond_three_percent_fail() {
        let verdict = |count| baseline().compare(&counts(&[("one", count)]), "rustc 1", 3);
        for count in [970, 1000, 1030] {
            assert_eq!(verdict(count).failures, "", "{count}");
        }
        let failures = verdict(1031).failures;
        assert!(
            failures.contains("one: 1031 instructions, baseline 1000"),
            "{failures}"
        );
        assert!(failures.contains("--accept \"WHY\" CASE"), "{failures}");
        assert!(!failures.contains("compiler"), "{failures}");
        let failures = verdict(969).failures;
        let words = "one: only 969 instructions, baseline 1000: accept the new count";
        assert!(failures.contains(words), "{failures}");
    }

    #[test]
    fn another_compiler_is_reported() {
        let verdict = baseline().compare(&counts(&[("one", 9000)]), "rustc 2", 3);
        assert!(verdict.failures.contains("rustc 2"), "{}", verdict.failures);
    }

    #[test]
    fn case_without_baseline_fails() {
        let verdict = baseline().compare(&counts(&[("new", 1)]), "rustc 1", 3);
        assert!(
            verdict.failures.contains("new has no baseline"),
            "{}",
            verdict.failures
        );
    }

    #[test]
    fn only_changed_counts_get_a_new_reason() {
        let mut baseline = baseline();
        let both = counts(&[("one", 1000), ("two", 2100)]);
        baseline.accept(&both, "rustc 1", "checks more").unwrap();
        assert_eq!(baseline.counts["one"], (1000, "first count".to_owned()));
        assert_eq!(baseline.counts["two"], (2100, "checks more".to_owned()));
    }

    #[test]
    fn unnamed_cases_are_unchanged() {
        let mut baseline = baseline();
        let one = counts(&[("one", 700)]);
        baseline.accept(&one, "rustc 1", "asks less").unwrap();
        assert_eq!(baseline.counts["one"], (700, "asks less".to_owned()));
        assert_eq!(baseline.counts["two"], (2000, "first count".to_owned()));
        let before = baseline.clone();
        let refused = baseline.accept(&counts(&[("one", 1)]), "rustc 2", "why");
        assert!(refused.unwrap_err().contains("accept all cases"));
        assert_eq!(baseline, before);
        let both = counts(&[("one", 1), ("two", 1)]);
        baseline
            .accept(&both, "rustc 2", "another compiler")
            .unwrap();
        assert_eq!(baseline.compiler, "rustc 2");
    }

    #[test]
    fn every_case_is_in_the_file() {
        let baseline = Baseline::read().unwrap();
        assert!(std::fs::read_to_string(path()).unwrap().starts_with(HEAD));
        for case in crate::case::all().filter(|case| case.has_baseline()) {
            let name = case.name();
            assert!(
                baseline.counts.contains_key(&name),
                "{name} has no baseline"
            );
        }
    }
}
