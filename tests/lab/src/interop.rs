//! `docs/interop.md`: scenarios that passed, with kernel, provider and commands.
//!
//! The text depends only on the results, not on the time or duration of the run.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use crate::results::{Finding, Results};

const HEAD: &str = "\
# Interoperability

Scenarios that passed with the stock Linux kernel. `cargo xtask lab --write-interop` writes this
file; each row is a file in `tests/lab/scenarios/`.

* `iwarp`: software iWARP in the process of the target or initiator; the kernel's side uses its
  software iWARP device (siw).
* `verbs-rxe`: libibverbs over the kernel's software RoCE v2 device (rxe).
* `verbs-siw`: libibverbs over siw.

";

/// The whole file.
pub(crate) fn text(results: &Results) -> String {
    let mut text = HEAD.to_owned();
    // Writing to a string does not fail.
    let _ = writeln!(text, "Verified with {}.\n", results.versions_line());
    text.push_str("| scenario | what it verifies | over | commands |\n| --- | --- | --- | --- |\n");
    for row in rows(&results.cases) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row.scenario,
            cell(row.about),
            row.providers.join(", "),
            row.commands.join(", ")
        );
    }
    text.push_str(&authentications(&results.cases));
    text.push_str(&stalls(&results.cases));
    text
}

/// The file as it was `before`, with the authentications of `results`, which may be those of some
/// scenarios. `None`: one of the two has none.
pub(crate) fn with_authentications(before: &str, results: &Results) -> Option<String> {
    let place = section(before)?;
    let text = authentications(&results.cases);
    (!text.is_empty()).then(|| [&before[..place.start], &text, &before[place.end..]].concat())
}

/// `text` with the authentications of the file as it was `before`: only a long run has all.
pub(crate) fn keep_authentications(text: &str, before: &str) -> String {
    match (section(text), section(before)) {
        (Some(place), Some(kept)) => {
            [&text[..place.start], &before[kept], &text[place.end..]].concat()
        }
        _ => text.to_owned(),
    }
}

/// The section of authentications.
fn section(text: &str) -> Option<Range<usize>> {
    let head = "\n## ";
    let start = text.find("\n## Authentication\n")?;
    let len = text[start + head.len()..].find(head);
    let end = len.map_or(text.len(), |len| start + head.len() + len);
    Some(start..end)
}

const AUTHENTICATIONS: &str = "
## Authentication

Providers over which DH-HMAC-CHAP passed, by hash function, group and direction: one-way proves
the host, two-way also the controller. The kernel host connects to this target (`auth-host`), the
initiator to the kernel target (`nvmet-auth`). Only
`cargo xtask lab --long --write-interop auth-host nvmet-auth` runs all rows.

By hand, not part of the lab: SPDK v26.05 as host and as target over rxe, 2026-11-27. All 36
combinations of hash, group and direction passed on each side. SPDK as host also over siw, to
`iwarp` and `verbs-siw`.

";

/// The scenarios of the section.
pub(crate) const AUTHENTICATING: [&str; 2] = ["auth-host", "nvmet-auth"];

/// The two sides that are not this project, by the scenario that has them.
const SIDES: [(&str, &str); 2] = [
    ("auth-host", "kernel host"),
    ("nvmet-auth", "kernel target"),
];
const DIRECTIONS: [&str; 2] = ["one-way", "two-way"];
const HASHES: [&str; 3] = ["sha256", "sha384", "sha512"];
const GROUPS: [&str; 6] = [
    "null",
    "ffdhe2048",
    "ffdhe3072",
    "ffdhe4096",
    "ffdhe6144",
    "ffdhe8192",
];

/// Figures `authentication, HASH, GROUP, DIRECTION`.
fn authentications(cases: &[Finding]) -> String {
    let prefix = "authentication, ";
    let passed = || cases.iter().filter(|case| case.passed);
    if !passed().any(|case| case.figures.keys().any(|key| key.starts_with(prefix))) {
        return String::new();
    }
    let mut text = AUTHENTICATIONS.to_owned();
    let columns = SIDES.iter().flat_map(|(scenario, side)| {
        let column = move |direction: &&'static str| (*scenario, *side, *direction);
        DIRECTIONS.iter().map(column)
    });
    let columns: Vec<_> = columns.collect();
    let heads = columns
        .iter()
        .map(|(_, side, direction)| format!("{side}, {direction}"));
    let heads: Vec<_> = heads.collect();
    let _ = writeln!(text, "| hash | group | {} |", heads.join(" | "));
    let _ = writeln!(text, "| --- | --- |{}", " --- |".repeat(columns.len()));
    for hash in HASHES {
        for group in GROUPS {
            let over = columns.iter().map(|(scenario, _, direction)| {
                let key = format!("{prefix}{hash}, {group}, {direction}");
                let over = passed()
                    .filter(|case| case.scenario == *scenario && case.figures.contains_key(&key))
                    .map(|case| case.provider);
                let over: Vec<_> = over.collect();
                match over.is_empty() {
                    true => "not run".to_owned(),
                    false => over.join(", "),
                }
            });
            let over: Vec<_> = over.collect();
            let _ = writeln!(text, "| {hash} | {group} | {} |", over.join(" | "));
        }
    }
    text
}

const STALLS: &str = "
## Stalls

The longest time that one read or write of fio took while paths and targets failed, in
milliseconds, on an emulated machine. All blocks were correct afterwards, and no command failed.
The host used `--reconnect-delay=1 --ctrl-loss-tmo=-1`. Package upgrades and kills are done twice,
kills during a restart four times. With `--long` they are done 20 and 40 times. A path is cut for
20 s, or for 60 s with `--long`; these hosts also used `--keep-alive-tmo=5`. Only `--long` cuts a
path of two transports.

";

/// Figures `longest stall, FAULT` by fault and provider.
fn stalls(cases: &[Finding]) -> String {
    let mut faults: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    let mut providers = BTreeSet::new();
    for case in cases.iter().filter(|case| case.passed) {
        for (key, time) in &case.figures {
            if let Some(fault) = key.strip_prefix("longest stall, ") {
                let time = time.trim_end_matches(" ms");
                faults.entry(fault).or_default().insert(case.provider, time);
                providers.insert(case.provider);
            }
        }
    }
    if faults.is_empty() {
        return String::new();
    }
    let columns: Vec<_> = providers.iter().copied().collect();
    let mut text = STALLS.to_owned();
    let _ = writeln!(text, "| fault | {} |", columns.join(" | "));
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(columns.len()));
    for (fault, times) in faults {
        let times = columns.iter().map(|provider| times.get(provider).copied());
        let times: Vec<_> = times.map(|time| time.unwrap_or("not run")).collect();
        let _ = writeln!(text, "| {} | {} |", cell(fault), times.join(" | "));
    }
    text
}

struct Row<'a> {
    scenario: &'a str,
    about: &'a str,
    providers: Vec<&'a str>,
    commands: Vec<String>,
}

/// One row for each scenario, with the cases that passed.
fn rows(cases: &[Finding]) -> Vec<Row<'_>> {
    let mut rows: BTreeMap<&str, Row<'_>> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.passed) {
        let row = match rows.entry(&case.scenario) {
            Entry::Vacant(free) => free.insert(Row {
                scenario: &case.scenario,
                about: &case.about,
                providers: Vec::new(),
                commands: Vec::new(),
            }),
            Entry::Occupied(row) => row.into_mut(),
        };
        row.providers.push(case.provider);
        row.commands
            .extend(case.commands.iter().map(|line| short(line)));
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    for row in &mut rows {
        row.commands.sort();
        row.commands.dedup();
    }
    rows
}

/// The program and its subcommand, if any. The rest of a command line changes with paths and
/// process ids.
fn short(line: &str) -> String {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    let subcommand = words.next().filter(|word| {
        matches!(program, "nvme" | "nvmeof" | "nvmeof-target")
            && word.starts_with(|letter: char| letter.is_ascii_lowercase())
    });
    match subcommand {
        Some(subcommand) => format!("`{program} {subcommand}`"),
        None => format!("`{program}`"),
    }
}

/// Escapes bars, which would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::example;

    fn finding(scenario: &str, provider: &'static str, passed: bool, commands: &[&str]) -> Finding {
        Finding {
            scenario: scenario.to_owned(),
            about: "a | b".to_owned(),
            provider,
            commands: commands.iter().map(|&line| line.to_owned()).collect(),
            ..example(passed)
        }
    }

    #[test]
    fn a_row_for_each_scenario_with_what_passed() {
        let results = Results {
            versions: BTreeMap::from([("kernel".to_owned(), "6.12".to_owned())]),
            cases: vec![
                finding("one", "iwarp", true, &["nvme list -o json", "fio /tmp/1"]),
                finding("one", "verbs-rxe", true, &["nvme list", "mount -t xfs"]),
                finding("two", "iwarp", false, &[]),
            ],
        };
        let text = text(&results);
        let row = "| one | a \\| b | iwarp, verbs-rxe | `fio`, `mount`, `nvme list` |\n";
        assert!(text.ends_with(row), "{text}");
        assert!(text.contains("Verified with kernel 6.12."), "{text}");
        assert!(!text.contains("## Stalls"), "{text}");
    }

    #[test]
    fn authentications_have_a_row_for_each_hash_and_group() {
        let figure = |scenario, provider, key: &str| Finding {
            figures: BTreeMap::from([(format!("authentication, {key}"), "passed".to_owned())]),
            ..finding(scenario, provider, true, &[])
        };
        let results = Results {
            versions: BTreeMap::new(),
            cases: vec![
                figure("auth-host", "iwarp", "sha256, null, one-way"),
                figure("auth-host", "verbs-rxe", "sha256, null, one-way"),
                figure("nvmet-auth", "iwarp", "sha512, ffdhe8192, two-way"),
            ],
        };
        let text = text(&results);
        let first = "| sha256 | null | iwarp, verbs-rxe | not run | not run | not run |\n";
        assert!(text.contains(first), "{text}");
        let last = "| sha512 | ffdhe8192 | not run | not run | not run | iwarp |\n";
        assert!(text.ends_with(last), "{text}");
        assert_eq!(text.matches("| sha").count(), 18);

        // A later run with fewer of them, and one of the scenarios alone.
        let fewer = Results {
            versions: BTreeMap::new(),
            cases: vec![
                finding("one", "iwarp", true, &[]),
                figure("auth-host", "verbs-siw", "sha512, null, two-way"),
            ],
        };
        let kept = keep_authentications(&super::text(&fewer), &text);
        assert!(kept.contains("| one |") && kept.contains(first), "{kept}");
        let replaced = with_authentications(&text, &fewer).unwrap();
        let row = "| sha512 | null | not run | verbs-siw | not run | not run |\n";
        assert!(
            replaced.contains(row) && !replaced.contains(first),
            "{replaced}"
        );
        assert_eq!(with_authentications("", &fewer), None);
    }

    #[test]
    fn stalls_have_a_row_for_each_fault() {
        let figure = |provider, fault: &str, time: &str| Finding {
            figures: BTreeMap::from([(format!("longest stall, {fault}"), time.to_owned())]),
            ..finding("one", provider, true, &[])
        };
        let results = Results {
            versions: BTreeMap::new(),
            cases: vec![
                figure("iwarp", "kill -9", "900 ms"),
                figure("iwarp", "restart", "20 ms"),
                figure("verbs-rxe", "restart", "30 ms"),
            ],
        };
        let text = text(&results);
        let rows = "| fault | iwarp | verbs-rxe |\n| --- | ---: | ---: |\n\
            | kill -9 | 900 | not run |\n| restart | 20 | 30 |\n";
        assert!(text.ends_with(rows), "{text}");
    }
}
