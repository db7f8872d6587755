//! Comparisons with a yardstick: ratios, their table, and the part of
//! `docs/performance.md` that shows it.
//!
//! A scenario calls `compare WORK ROUND MEASURE THEIRS OURS` (tests/lab/guest/lib.sh):
//! operations per second of both, one directly after the other in one guest, in alternating
//! order. Each ratio is that of one round.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::Trouble;
use crate::results::{Finding, Results};

const BEGIN: &str = "<!-- made by cargo xtask lab --figures: begin -->\n";
const END: &str = "<!-- made by cargo xtask lab --figures: end -->\n";

/// Prefix of the names of compared figures.
const COMPARE: &str = "compare ";

/// The minimum ratio to reach.
const GOAL: f64 = 1.0;

/// One work over one provider, medians over its rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Comparison {
    pub(crate) work: String,
    pub(crate) provider: &'static str,
    pub(crate) rounds: usize,
    /// Operations a second of the yardstick.
    pub(crate) theirs: f64,
    /// Operations a second of ours.
    pub(crate) ours: f64,
    /// Ours to theirs.
    pub(crate) ratio: f64,
    pub(crate) least: f64,
    pub(crate) greatest: f64,
}

/// The comparisons of one case.
pub(crate) fn of(finding: &Finding) -> Vec<Comparison> {
    let mut works: BTreeMap<&str, Vec<[f64; 2]>> = BTreeMap::new();
    for (key, value) in &finding.figures {
        if let Some((work, pair)) = round(key, value) {
            works.entry(work).or_default().push(pair);
        }
    }
    let comparisons = works.into_iter().filter_map(|(work, rounds)| {
        let sorted = |figure: fn(&[f64; 2]) -> f64| {
            let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            figures
        };
        let ratios = sorted(|[theirs, ours]| ours / theirs);
        Some(Comparison {
            work: work.to_owned(),
            provider: finding.provider,
            rounds: rounds.len(),
            theirs: median(&sorted(|[theirs, _]| *theirs))?,
            ours: median(&sorted(|[_, ours]| *ours))?,
            ratio: median(&ratios)?,
            least: *ratios.first()?,
            greatest: *ratios.last()?,
        })
    });
    comparisons.collect()
}

/// Whether the figure is a comparison, by its name.
pub(crate) fn is_comparison(key: &str) -> bool {
    key.starts_with(COMPARE)
}

/// The work and both figures of `compare WORK ROUND` and `THEIRS OURS`.
fn round<'a>(key: &'a str, value: &str) -> Option<(&'a str, [f64; 2])> {
    let (work, _round) = key.strip_prefix(COMPARE)?.rsplit_once(' ')?;
    let (theirs, ours) = value.split_once(' ')?;
    let pair = [theirs.parse().ok()?, ours.parse().ok()?];
    // A yardstick without operations cannot be compared.
    let sound = |figure: &f64| figure.is_finite() && *figure > 0.0;
    pair.iter().all(sound).then_some((work, pair))
}

fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The table for a terminal, at most 80 columns; empty without comparisons.
pub(crate) fn text(comparisons: &[Comparison]) -> String {
    let mut text = String::new();
    if comparisons.is_empty() {
        return text;
    }
    let mut line = |[work, over, theirs, ours, ratio, spread, goal]: [&str; 7]| {
        let line =
            format!("{work:20} {over:10} {theirs:>9} {ours:>9} {ratio:>5} {spread:>11} {goal}");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", line.trim_end());
    };
    line([
        "work", "over", "kernel's", "ours", "ratio", "min-max", "goal",
    ]);
    for comparison in comparisons {
        line(cells(comparison).each_ref().map(String::as_str));
    }
    text
}

fn cells(one: &Comparison) -> [String; 7] {
    let word = if one.ratio >= GOAL { "met" } else { "not" };
    [
        one.work.clone(),
        one.provider.to_owned(),
        format!("{:.0} /s", one.theirs),
        format!("{:.0} /s", one.ours),
        format!("{:.2}", one.ratio),
        format!("{:.2}-{:.2}", one.least, one.greatest),
        format!("≥{GOAL:.2} {word}"),
    ]
}

/// Writes the table into the document.
pub(crate) fn refresh(results: &Results, document: &Path) -> Result<(), Trouble> {
    let old =
        fs::read_to_string(document).map_err(|error| Trouble::file("read", document, &error))?;
    let new = replaced(&old, &part(results)).ok_or_else(|| {
        Trouble::SetUp(format!(
            "{} lacks the lines that enclose the figures; restore them:\n{BEGIN}{END}",
            document.display()
        ))
    })?;
    fs::write(document, new).map_err(|error| Trouble::file("write", document, &error))
}

fn replaced(document: &str, part: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{part}{END}{after}"))
}

fn part(results: &Results) -> String {
    let comparisons = results.comparisons();
    let date = Command::new("date").args(["-u", "+%Y-%m-%d"]).output();
    let date = date.map(|output| output.stdout).unwrap_or_default();
    let rounds = comparisons.iter().map(|one| one.rounds).min();
    let mut part = format!(
        "\nMeasured with {}, {}; medians of {} rounds.\n\n\
         | work | over | kernel's target | ours | ratio | min-max | goal |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
        results.versions_line(),
        String::from_utf8_lossy(&date).trim(),
        rounds.unwrap_or_default()
    );
    for comparison in &comparisons {
        let _ = writeln!(part, "| {} |", cells(comparison).join(" | "));
    }
    part.push('\n');
    part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    /// A case that measured these rounds of one work.
    fn measured(rounds: &[(&str, &str)]) -> Finding {
        let figures = rounds.iter().map(|&(round, pair)| {
            let key = format!("compare randread-4k-qd16 {round}");
            (key, pair.to_owned())
        });
        Finding {
            figures: figures.collect(),
            ..example(true)
        }
    }

    #[test]
    fn a_ratio_is_taken_within_a_round() {
        // Of the medians alone it would be 1.
        let finding = measured(&[("1", "100 50"), ("2", "200 300"), ("3", "400 200.0")]);
        let [one] = of(&finding).try_into().unwrap();
        assert_eq!((one.work.as_str(), one.rounds), ("randread-4k-qd16", 3));
        assert_eq!((one.theirs, one.ours), (200.0, 200.0));
        assert_eq!((one.least, one.ratio, one.greatest), (0.5, 0.5, 1.5));
        let [even] = of(&measured(&[("1", "1 1"), ("2", "1 2")]))
            .try_into()
            .unwrap();
        assert_eq!(even.ratio, 1.5);
    }

    /// The function of guests, with replacements for fio and the records.
    #[test]
    fn ours_is_first_in_every_second_round() {
        let script = r#"
            set -euo pipefail
            source "$1"
            record() { echo "$1=$2"; }
            measure() { echo "$1 $2" >&2; [ "$1" = theirs ] && echo 200 || echo 300; }
            for round in 1 2 3; do compare randread-4k-qd16 $round measure theirs ours; done
        "#;
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/lib.sh");
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", script, "bash"]).arg(library).output();
        let output = output.unwrap();
        let order = String::from_utf8(output.stderr).unwrap();
        let first: Vec<_> = order
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        let turns = ["theirs", "ours", "ours", "theirs", "theirs", "ours"];
        assert_eq!(first, turns, "{order}");
        assert!(
            order
                .lines()
                .all(|line| line.ends_with(" randread-4k-qd16"))
        );
        // Records can be parsed.
        let records = String::from_utf8(output.stdout).unwrap();
        let pairs: Vec<_> = records
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter_map(|(key, value)| round(key, value))
            .collect();
        assert_eq!(pairs, [("randread-4k-qd16", [200.0, 300.0]); 3]);
    }

    #[test]
    fn other_figures_compare_nothing() {
        let mut finding = measured(&[("1", "0 5"), ("2", "x 5"), ("3", "5")]);
        finding.figures.insert("iops".to_owned(), "5 5".to_owned());
        finding
            .figures
            .insert("compare".to_owned(), "5 5".to_owned());
        assert_eq!(of(&finding), []);
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn the_table_says_what_is_reached_and_what_is_not() {
        let met = of(&measured(&[("1", "8700 8700.4")]));
        let not = of(&measured(&[("1", "123456 1")]));
        let lines = text(&[met, not].concat());
        for line in lines.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let words = |number: usize| {
            let line = lines.lines().nth(number).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            words(1),
            "randread-4k-qd16 iwarp 8700 /s 8700 /s 1.00 1.00-1.00 ≥1.00 met"
        );
        assert!(words(2).ends_with("not"), "{lines}");
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("performance.md");
        let results = Results {
            versions: BTreeMap::from([("fio".to_owned(), "3.39-1".to_owned())]),
            cases: vec![measured(&[("1", "100 150")])],
        };
        fs::write(&document, format!("before\n{BEGIN}old\n{END}after\n")).unwrap();
        refresh(&results, &document).unwrap();
        let text = fs::read_to_string(&document).unwrap();
        assert!(text.starts_with(&format!("before\n{BEGIN}\nMeasured with fio 3.39-1, 2")));
        let row = "| randread-4k-qd16 | iwarp | 100 /s | 150 /s | 1.50 | 1.50-1.50 | ≥1.00 met |";
        assert!(text.ends_with(&format!("{row}\n\n{END}after\n")), "{text}");
        fs::write(&document, BEGIN).unwrap();
        let trouble = refresh(&results, &document).unwrap_err().to_string();
        assert!(trouble.contains(END), "{trouble}");
    }

    #[test]
    fn the_document_has_the_marks() {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance.md");
        assert!(replaced(&fs::read_to_string(document).unwrap(), "").is_some());
    }
}
