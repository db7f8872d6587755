//! The result as a table, for a terminal and for a document.

use std::fmt::Write as _;

use crate::attack;
use crate::contestant::Contestant;
use crate::profile::{PARTS, Profile};
use crate::results::{Results, Row, Spread};
use crate::sample::Sample;
use crate::work::{Metric, Work};

/// From this size on, tables show bytes per second instead of IOPS.
const LARGE: u32 = 64 << 10;

/// For a terminal of 80 columns.
pub(crate) fn text(results: &Results) -> String {
    let mut text = format!(
        "{}\nmedians of {} rounds of {} s; ratio to the yardstick within a round\n\n",
        results.machine.line(),
        results.rounds,
        results.seconds
    );
    let lines: Vec<[String; 6]> = results.rows.iter().flat_map(rows).collect();
    if !lines.is_empty() {
        let head = ["work", "yardstick", "ours", "ratio", "min-max", "goal"];
        line(&mut text, head);
    }
    for cells in &lines {
        line(&mut text, cells.each_ref().map(String::as_str));
    }
    let disturbed = results.disturbed(false);
    if !disturbed.is_empty() {
        let _ = writeln!(text, "\n{disturbed}");
    }
    let hostile = attack::lines(results);
    if !hostile.is_empty() {
        text.push_str("\nAn honest host beside hostile peers:\n\n");
        hostile_text(&mut text, attack::HEAD);
        for cells in &hostile {
            hostile_text(&mut text, cells.each_ref().map(String::as_str));
        }
        let disturbed = results.disturbed(true);
        if !disturbed.is_empty() {
            let _ = writeln!(text, "\n{disturbed}");
        }
    }
    let profiles = profiles(results);
    if !profiles.is_empty() {
        text.push_str("\nProfile, in percent of the samples of a process:\n\n");
        profile_text(&mut text, PROFILE_HEAD);
        for cells in &profiles {
            profile_text(&mut text, cells.each_ref().map(String::as_str));
        }
    }
    text
}

/// Profiles of workloads that miss their goal: a line for each side, in percent of the
/// samples of its process. Empty without `--profile`.
pub(crate) fn profiles(results: &Results) -> Vec<[String; 9]> {
    let all = results.rows.iter();
    let profiled = all.filter_map(|row| Some((row.work.name(), row.profile.as_ref()?)));
    let lines = profiled.flat_map(|(name, sides)| {
        let sides = ["target", "initiator"].into_iter().zip(sides);
        sides.map(move |(side, profile)| profile_line(&name, side, profile))
    });
    lines.collect()
}

fn profile_line(work: &str, side: &str, profile: &Profile) -> [String; 9] {
    let [a, b, c, d, e, f] = PARTS.map(|part| format!("{:.0}", profile.percent_of(part)));
    let largest = match &profile.largest {
        Some((function, count)) => format!("{:.0} {function}", profile.percent(*count)),
        None => String::new(),
    };
    [work.to_owned(), side.to_owned(), a, b, c, d, e, f, largest]
}

/// The heading of [`profiles`].
pub(crate) const PROFILE_HEAD: [&str; 9] = [
    "work",
    "side",
    "kernel",
    "bytes",
    "provider",
    "commands",
    "store",
    "other",
    "largest function",
];

fn profile_text(text: &mut String, cells: [&str; 9]) {
    let [
        work,
        side,
        kernel,
        bytes,
        provider,
        commands,
        store,
        other,
        _,
    ] = cells;
    // The largest function does not fit 80 columns; documents have it.
    let line = format!(
        "{work:26} {side:9} {kernel:>6} {bytes:>5} {provider:>8} {commands:>8} {store:>5} \
         {other:>5}"
    );
    let _ = writeln!(text, "{line}");
}

fn hostile_text(text: &mut String, cells: [&str; 8]) {
    let [peers, addresses, size, quiet, beside, ratio, longest, goal] = cells;
    let peers = format!("{peers:>4.7} {addresses:10} {size:>4}");
    let line = format!("{peers} {quiet:>9} {beside:>11} {ratio:>5} {longest:>12} {goal}");
    let _ = writeln!(text, "{}", line.trim_end());
}

fn line(text: &mut String, [work, yardstick, ours, ratio, spread, goal]: [&str; 6]) {
    let line = format!("{work:31} {yardstick:>9} {ours:>9} {ratio:>5} {spread:>10} {goal}");
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
    let disturbed = results.disturbed(false);
    if !disturbed.is_empty() {
        let _ = writeln!(text, "\n{disturbed}");
    }
    let profiles = profiles(results);
    if !profiles.is_empty() {
        text.push_str(
            "\nProfile of the workloads that miss their goal, in percent of the samples of a \
             process:\n\n",
        );
        let _ = writeln!(text, "| {} |", PROFILE_HEAD.join(" | "));
        let _ = writeln!(text, "|{}", " --- |".repeat(PROFILE_HEAD.len()));
        for cells in &profiles {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    text
}

/// A line for each contestant except the yardstick; this project's line has the name of
/// the workload. A goal for the 99th percentile has a line of its own.
fn rows(row: &Row) -> Vec<[String; 6]> {
    let work = &row.work;
    if work.hostile().is_some() && !row.samples.is_empty() {
        // It has a table of its own.
        return Vec::new();
    }
    if row.samples.is_empty() {
        let mut cells: [String; 6] = Default::default();
        let [name, .., goal] = &mut cells;
        (*name, *goal) = (work.name(), needs(work));
        return vec![cells];
    }
    let yardstick = row.median(row.yardstick());
    let mut rows = Vec::new();
    for contestant in row.others() {
        let (own, ratio) = (row.median(contestant), row.ratio(contestant));
        let goal = match row.lacks_cores {
            true => needs(work),
            false => verdict(&work.goal_text(), work.is_met(ratio.median)),
        };
        let figures = [figure(work, &yardstick), figure(work, &own)];
        rows.push(cells(name(work, contestant), figures, ratio, goal));
        if let Some(tail_goal) = work.tail_goal {
            let ratio = row.tail(contestant);
            let goal = verdict(&format!("≤{tail_goal:.2}"), work.is_tail_met(ratio.median));
            let figures = [&yardstick, &own].map(|one| format!("{:.0} us", one.p99_us));
            rows.push(cells("  p99 latency".to_owned(), figures, ratio, goal));
        }
    }
    rows
}

fn name(work: &Work, contestant: Contestant) -> String {
    match contestant {
        Contestant::Target | Contestant::Initiator => {
            format!("{} {}", work.name(), contestant.name())
        }
        foreign if foreign.is_foreign() => format!("  {}", foreign.name()),
        _ => work.name(),
    }
}

fn needs(work: &Work) -> String {
    format!("{} cores", work.cores())
}

fn verdict(goal: &str, met: Option<bool>) -> String {
    match met {
        Some(true) => format!("{goal} met"),
        Some(false) => format!("{goal} not"),
        None => String::new(),
    }
}

fn cells(name: String, figures: [String; 2], ratio: Spread, goal: String) -> [String; 6] {
    let [yardstick, own] = figures;
    let spread = format!("{:.2}-{:.2}", ratio.min, ratio.max);
    [
        name,
        yardstick,
        own,
        format!("{:.2}", ratio.median),
        spread,
        goal,
    ]
}

fn figure(work: &Work, sample: &Sample) -> String {
    match work.metric() {
        Metric::Latency => format!("{:.1} us", sample.p50_us),
        Metric::Cpu => format!("{:.3} %", sample.busy),
        Metric::Busy => format!("{:.2} us", sample.busy_us),
        Metric::Rate if work.bytes >= LARGE => format!("{:.2} GB/s", sample.bytes_per_s / 1e9),
        Metric::Rate => format!("{:.0} k/s", sample.iops / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::machine::Machine;
    use crate::profile::Part;
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
            seconds: 2.0,
            rows: work::all().into_iter().map(results::example).collect(),
        }
    }

    #[test]
    fn table_fits_eighty_columns() {
        let text = text(&all());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let line = text.lines().find(|line| line.contains("4k-qd16 "));
        let words: Vec<&str> = line.unwrap().split_whitespace().collect();
        let expected = "null-randread-4k-qd16 100 k/s 88 k/s 0.80 0.70-0.90";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn every_workload_is_a_row_of_the_document() {
        let text = markdown(&all());
        assert!(
            text.lines().all(|line| line.matches('|').count() == 7),
            "{text}"
        );
        let hostile = |work: &Work| work.hostile().is_some();
        for work in work::all() {
            let row = text.contains(&format!("| {} ", work.name()));
            let of_idle = text.contains(&format!("| {} target", work.name()));
            // Those with hostile peers have a table of their own.
            assert_eq!(row || of_idle, !hostile(&work), "{} {text}", work.name());
        }
        assert!(text.contains("GB/s"), "{text}");
        assert!(text.contains("| idle-shm initiator | 0.100 % |"), "{text}");
        let row = "| shm-file-randwrite-4k-qd128 | 100 k/s | 88 k/s | 0.80 | 0.70-0.90 \
                   | ≥0.95 not |\n\
                   |   p99 latency | 20 us | 23 us | 1.25 | 1.11-1.43 | ≤1.15 not |\n";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn workload_that_misses_its_goal_has_a_profile() {
        assert!(!text(&all()).contains("percent of"));
        let mut results = all();
        let side = Profile {
            samples: 8,
            parts: BTreeMap::from([(Part::Kernel, 6), (Part::Store, 2)]),
            largest: Some(("_copy_to_iter".to_owned(), 4)),
        };
        for row in &mut results.rows {
            row.profile = row.missed().map(|_| [side.clone(), Profile::default()]);
        }
        let text = text(&results);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let document = markdown(&results);
        let line =
            "| file-randread-4k-qd128 | target | 75 | 0 | 0 | 0 | 25 | 0 | 50 _copy_to_iter |";
        assert!(document.contains(line), "{document}");
        // It has no figure to reach.
        assert!(
            !document.contains("| null-randread-4k-qd4 | target |"),
            "{document}"
        );
    }

    #[test]
    fn workload_without_enough_cores_has_no_verdict() {
        let works = work::all().into_iter();
        let reactors = works.filter(|work| work.cores() > 2);
        let rows = reactors.map(|work| {
            let mut row = results::example(work);
            row.lacks_cores = true;
            if work.name().contains("shm") {
                row.samples.clear();
            }
            row
        });
        let rows = rows.collect();
        let text = markdown(&Results { rows, ..all() });
        assert!(text.contains("| 0.80 | 0.70-0.90 | 4 cores |"), "{text}");
        assert!(
            text.contains("| reactors-shm-4k-qd32 |  |  |  |  | 4 cores |"),
            "{text}"
        );
    }
}
