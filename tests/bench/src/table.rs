//! The result as a table: for a terminal, and for a document.

use std::fmt::Write as _;

use crate::contestant::{Contestant, Sample};
use crate::results::{Results, Row};
use crate::work::{Metric, Work};

/// Sizes from which on bytes a second say more than operations.
const LARGE: u32 = 64 << 10;

/// For a terminal of 80 columns.
pub(crate) fn text(results: &Results) -> String {
    let mut text = format!(
        "{}\nmedians of {} rounds of {} s; ratio to the yardstick within a round\n\n",
        results.machine.line(),
        results.rounds,
        results.seconds
    );
    line(
        &mut text,
        ["work", "yardstick", "ours", "ratio", "min-max", "goal"],
    );
    for cells in results.rows.iter().flat_map(rows) {
        line(&mut text, cells.each_ref().map(String::as_str));
    }
    let disturbed = results.disturbed();
    if !disturbed.is_empty() {
        let _ = writeln!(text, "\n{disturbed}");
    }
    text
}

fn line(text: &mut String, [work, yardstick, ours, ratio, spread, goal]: [&str; 6]) {
    let line = format!("{work:29} {yardstick:>9} {ours:>9} {ratio:>5} {spread:>11} {goal}");
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", line.trim_end());
}

/// For a document.
pub(crate) fn markdown(results: &Results) -> String {
    let mut text = String::from(
        "| work | yardstick | ours | ratio | min-max | goal |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for cells in results.rows.iter().flat_map(rows) {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let disturbed = results.disturbed();
    if !disturbed.is_empty() {
        let _ = writeln!(text, "\n{disturbed}");
    }
    text
}

/// A line for each contestant but the yardstick; ours has the work's name.
fn rows(row: &Row) -> Vec<[String; 6]> {
    let yardstick = row.median(row.yardstick());
    let cells = |contestant: Contestant| {
        let ratio = row.ratio(contestant);
        let goal = match row.work.is_met(ratio.median) {
            Some(true) => format!("{} met", row.work.goal_text()),
            Some(false) => format!("{} not", row.work.goal_text()),
            None => String::new(),
        };
        let name = match contestant {
            Contestant::Peer => "  peer".to_owned(),
            _ => row.work.name(),
        };
        [
            name,
            figure(&row.work, &yardstick),
            figure(&row.work, &row.median(contestant)),
            format!("{:.2}", ratio.median),
            format!("{:.2}-{:.2}", ratio.min, ratio.max),
            goal,
        ]
    };
    row.others().map(cells).collect()
}

fn figure(work: &Work, sample: &Sample) -> String {
    match work.metric() {
        Metric::Latency => format!("{:.1} us", sample.p50_us),
        Metric::Rate if work.bytes >= LARGE => format!("{:.2} GB/s", sample.bytes_per_s / 1e9),
        Metric::Rate => format!("{:.0} k/s", sample.iops / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::{results, work};

    fn all() -> Results {
        Results {
            machine: Machine {
                cpu: "AMD EPYC".to_owned(),
                cores: 2,
                kernel: "6.18.0".to_owned(),
                system: "Debian".to_owned(),
                date: "2026-11-20".to_owned(),
            },
            rounds: 3,
            seconds: 2,
            rows: work::all().into_iter().map(results::example).collect(),
        }
    }

    #[test]
    fn it_fits_eighty_columns() {
        let text = text(&all());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let line = text.lines().find(|line| line.contains("4k-qd16 "));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        let expected = "null-randread-4k-qd16 100 k/s 88 k/s 0.80 0.70-0.90 ≥0.85 not";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn every_work_is_a_row_of_the_document() {
        let text = markdown(&all());
        assert_eq!(text.lines().count(), 2 + work::all().len());
        assert!(
            text.lines().all(|line| line.matches('|').count() == 7),
            "{text}"
        );
        assert!(text.contains("GB/s"), "{text}");
    }
}
