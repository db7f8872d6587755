//! Results of a run, as data (`-o json`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::figures::{self, Comparison};

/// A whole run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    /// The guest's kernel and tools, by name.
    pub(crate) versions: BTreeMap<String, String>,
    /// In the order of the scenarios' names.
    pub(crate) cases: Vec<Finding>,
}

/// One scenario over one provider.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) scenario: String,
    pub(crate) about: String,
    pub(crate) provider: &'static str,
    pub(crate) passed: bool,
    /// Without cleaning up.
    pub(crate) milliseconds: u64,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Why the first attempt failed, in another guest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_time: Option<String>,
    /// Its figures.
    pub(crate) figures: BTreeMap<String, String>,
    /// Its commands, each line once.
    pub(crate) commands: Vec<String>,
    /// Logs and console, if they were kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<PathBuf>,
    /// The same for a failed first attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_kept: Option<PathBuf>,
}

impl Results {
    pub(crate) fn failed(&self) -> usize {
        self.cases.iter().filter(|case| !case.passed).count()
    }

    /// Whether the folder of the run contains logs to keep.
    pub(crate) fn keeps_logs(&self) -> bool {
        let keeps = |case: &Finding| case.kept.is_some() || case.first_kept.is_some();
        self.cases.iter().any(keeps)
    }

    /// Comparisons with a yardstick, in the order of the cases.
    pub(crate) fn comparisons(&self) -> Vec<Comparison> {
        let passed = self.cases.iter().filter(|case| case.passed);
        passed.flat_map(figures::of).collect()
    }

    /// `Linux 6.12, fio 3.39-1`.
    pub(crate) fn versions_line(&self) -> String {
        let versions = self.versions.iter();
        let words: Vec<_> = versions
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        words.join(", ")
    }
}

impl Finding {
    /// The head of the table.
    pub(crate) fn head() -> String {
        row("scenario", "provider", "", "seconds", "")
    }

    /// Its figures, as lines below one with its name: a figure `ROW, COLUMN` in a table, others
    /// on a line each. Comparisons have a table of their own.
    pub(crate) fn figure_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut cells: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (key, value) in &self.figures {
            match key.rsplit_once(", ") {
                _ if figures::is_comparison(key) => {}
                Some(place) => drop(cells.insert(place, value)),
                None => lines.push(format!("  {key}: {value}")),
            }
        }
        let rows: BTreeSet<&str> = cells.keys().map(|(row, _)| *row).collect();
        let columns: BTreeSet<&str> = cells.keys().map(|(_, column)| *column).collect();
        let widest = rows.iter().map(|row| row.chars().count()).max();
        let width = widest.unwrap_or_default().max(24);
        let line = |row: &str, cell: &dyn Fn(&str) -> String| {
            let cells: String = columns.iter().map(|column| cell(column)).collect();
            format!("  {row:width$}{cells}").trim_end().to_owned()
        };
        if !rows.is_empty() {
            lines.push(line("", &|column| format!("{column:>18}")));
        }
        for row in rows {
            let value = |column: &str| cells.get(&(row, column)).copied().unwrap_or("-");
            lines.push(line(row, &|column| format!("{:>18}", value(column))));
        }
        if !lines.is_empty() {
            lines.insert(0, format!("\n{}@{}:", self.scenario, self.provider));
        }
        lines
    }

    /// For each failed attempt a heading and the folder of its logs.
    pub(crate) fn failures(&self) -> impl Iterator<Item = (String, &Path)> {
        let name = format!("{}@{}", self.scenario, self.provider);
        let times = [
            (", first attempt", &self.first_time, &self.first_kept),
            ("", &self.reason, &self.kept),
        ];
        times.into_iter().filter_map(move |(when, reason, kept)| {
            let (reason, kept) = (reason.as_ref()?, kept.as_ref()?);
            Some((format!("{name}{when}: {reason}"), kept.as_path()))
        })
    }

    /// Its row in the table.
    pub(crate) fn row(&self) -> String {
        let word = match (self.passed, &self.first_time) {
            (true, None) => "ok",
            (true, Some(_)) => "2nd ok",
            (false, _) => "FAILED",
        };
        let tenths = self.milliseconds / 100;
        let seconds = format!("{}.{}", tenths / 10, tenths % 10);
        let reason = self.reason.as_deref().or(self.first_time.as_deref());
        let reason = reason.unwrap_or_default();
        row(&self.scenario, self.provider, word, &seconds, reason)
    }
}

/// At most 80 columns; the complete reason follows the table.
fn row(scenario: &str, provider: &str, word: &str, seconds: &str, reason: &str) -> String {
    let line = format!("{scenario:24} {provider:10} {word:6} {seconds:>7}  {reason}");
    let line: String = line.chars().take(80).collect();
    line.trim_end().to_owned()
}

/// A case for tests.
#[cfg(test)]
pub(crate) fn example(passed: bool) -> Finding {
    Finding {
        scenario: "smoke".to_owned(),
        about: "it works".to_owned(),
        provider: "iwarp",
        passed,
        milliseconds: 3456,
        reason: (!passed).then(|| "line 3: false ".repeat(9)),
        first_time: None,
        figures: BTreeMap::new(),
        commands: vec!["nvme list".to_owned()],
        kept: None,
        first_kept: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_a_terminal() {
        assert_eq!(
            example(true).row(),
            "smoke                    iwarp      ok         3.4"
        );
        let row = example(false).row();
        assert!(row.contains("FAILED") && row.contains("line 3"), "{row}");
        assert!(row.chars().count() <= 80, "{row}");
        assert!(Finding::head().starts_with("scenario"));
        let second = Finding {
            first_time: Some("the guest does not respond".to_owned()),
            ..example(true)
        };
        assert!(second.row().contains("2nd ok"), "{}", second.row());
        assert!(second.row().ends_with("the guest does not respond"));
    }

    #[test]
    fn each_failure_has_its_logs() {
        let (first, second) = (PathBuf::from("/first"), PathBuf::from("/second"));
        let finding = Finding {
            first_time: Some("the guest does not respond".to_owned()),
            first_kept: Some(first.clone()),
            kept: Some(second.clone()),
            ..example(false)
        };
        let failures: Vec<_> = finding.failures().collect();
        let [(heading, folder), (again, other)] = failures.as_slice() else {
            panic!("{failures:?}");
        };
        assert_eq!(
            heading,
            "smoke@iwarp, first attempt: the guest does not respond"
        );
        assert!(again.starts_with("smoke@iwarp: line 3"), "{again}");
        assert_eq!((*folder, *other), (first.as_path(), second.as_path()));
        assert_eq!(example(true).failures().count(), 0);
    }

    #[test]
    fn figures_stand_below_the_name() {
        assert!(example(true).figure_lines().is_empty());
        let figures = [
            ("iops", "5"),
            ("compare x 1", "5 5"),
            ("write, device", "7"),
            ("read, device", "8"),
            ("read, engine", "9"),
            ("authentication, sha256, ffdhe2048, device", "ok"),
        ];
        let figures = figures.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let finding = Finding {
            figures: BTreeMap::from(figures),
            ..example(true)
        };
        let lines = finding.figure_lines();
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            lines.iter().map(words).collect::<Vec<_>>(),
            [
                "smoke@iwarp:",
                "iops: 5",
                "device engine",
                "authentication, sha256, ffdhe2048 ok -",
                "read 8 9",
                "write 7 -"
            ]
        );
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn json_has_everything() {
        let results = Results {
            versions: BTreeMap::from([("kernel".to_owned(), "6.12".to_owned())]),
            cases: vec![example(true), example(false)],
        };
        assert_eq!(results.failed(), 1);
        assert!(!results.keeps_logs());
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["versions"]["kernel"], "6.12");
        assert_eq!(json["cases"][0]["commands"][0], "nvme list");
        assert_eq!(json["cases"][0].get("reason"), None);
        assert!(json["cases"][1]["reason"].is_string());
    }
}
