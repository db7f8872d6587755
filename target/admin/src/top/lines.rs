//! The rates as lines of text.

use nvmeof_wire::text::Escaped;

use super::rates::{Rates, Reactor, Row};
use super::view::View;
use crate::ctl::wrapped;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// The header of a table.
    Head,
    /// An error condition.
    Alarm,
}

/// Columns of a terminal that shows everything but long names.
const WIDTH: usize = 80;
/// Minimum width of names.
const NAME: usize = 30;
/// Width of each number after a name; a space precedes each.
const CELLS: [usize; 7] = [7, 7, 7, 6, 6, 4, 5];

/// All lines, in `columns`, or as wide as necessary for `None`.
pub(super) fn all(rates: &Rates, view: &View, columns: Option<usize>) -> Vec<Line> {
    let names = name_columns(rates, columns.unwrap_or(usize::MAX));
    let mut lines = head(rates, view);
    lines.push(plain(String::new()));
    lines.extend(table("NAMESPACE", &view.sorted(&rates.namespaces), names));
    lines.push(plain(String::new()));
    lines.extend(table("HOST", &view.sorted(&rates.hosts), names));
    lines
}

/// Width of names: that of the longest one, as far as `columns` has room beside the numbers.
/// The last column stays free.
pub(super) fn name_columns(rates: &Rates, columns: usize) -> usize {
    let rows = rates.namespaces.iter().chain(&rates.hosts);
    let lengths = rows.map(|row| Escaped(&row.name).to_string().chars().count());
    let numbers: usize = CELLS.iter().map(|width| 1 + width).sum();
    let longest = lengths.max().unwrap_or_default();
    longest.min(columns.saturating_sub(numbers + 1)).max(NAME)
}

/// Totals and reactors.
pub(super) fn head(rates: &Rates, view: &View) -> Vec<Line> {
    let Rates {
        version,
        controllers,
        queues,
        total,
        ..
    } = rates;
    let up = time_up(rates.uptime);
    let paused = if view.paused { "  PAUSED" } else { "" };
    let first = format!(
        "nvmeof-target {version}  up {up}  controllers {controllers}  queues {queues}{paused}"
    );
    let second = format!(
        "IOPS {}  read {}/s  write {}/s  errors {}/s",
        short(total.iops),
        short(total.read),
        short(total.written),
        short(total.errors),
    );
    let third = format!(
        "p50 {}  p99 {}  in flight {}",
        time(total.p50),
        time(total.p99),
        total.commands,
    );
    let mut lines = vec![plain(first), plain(second), plain(third)];
    let trouble = view.trouble.as_deref().map(wrapped).unwrap_or_default();
    lines.extend(trouble.lines().map(|line| alarm(line.to_owned())));
    lines.push(plain(String::new()));
    let titles = [
        "REACTOR", "working", "polling", "queues", "commands", "IOPS", "waiting",
    ];
    lines.push(Line {
        text: titles.map(|title| format!("{title:>9}")).concat(),
        kind: Kind::Head,
    });
    lines.extend(rates.reactors.iter().map(reactor));
    lines
}

fn reactor(one: &Reactor) -> Line {
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let cells = [
        one.reactor.to_string(),
        share(one.working),
        share(one.polling),
        one.queues.to_string(),
        one.commands.to_string(),
        short(one.iops),
        one.waiting.to_string(),
    ];
    let text = cells.map(|cell| format!("{cell:>9}")).concat();
    if one.answered {
        return plain(text);
    }
    alarm(format!("{text}  no response"))
}

/// A table of namespaces or hosts, with names of that width.
pub(super) fn table(title: &str, rows: &[&Row], names: usize) -> Vec<Line> {
    let head = line(
        title,
        names,
        ["IOPS", "read/s", "write/s", "p50", "p99", "cmds", "err/s"].map(str::to_owned),
    );
    let head = Line {
        text: head,
        kind: Kind::Head,
    };
    let rows = rows.iter().map(|row| {
        let cells = [
            short(row.iops),
            short(row.read),
            short(row.written),
            time(row.p50),
            time(row.p99),
            row.commands.to_string(),
            short(row.errors),
        ];
        let text = line(&row.name, names, cells);
        if row.errors > 0.0 || row.faulted {
            alarm(text)
        } else {
            plain(text)
        }
    });
    [head].into_iter().chain(rows).collect()
}

fn line(name: &str, names: usize, cells: [String; 7]) -> String {
    let mut text = format!("{:<names$}", shortened(name, names));
    for (cell, width) in cells.into_iter().zip(CELLS) {
        text.push_str(&format!(" {cell:>width$}"));
    }
    text
}

fn plain(text: String) -> Line {
    let kind = Kind::Plain;
    Line { text, kind }
}

fn alarm(text: String) -> Line {
    let kind = Kind::Alarm;
    Line { text, kind }
}

/// The end of `text`, where names differ, in `most` columns. Characters that a terminal
/// interprets or hides are escaped.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let text = Escaped(text).to_string();
    let count = text.chars().count();
    if count <= most {
        return text;
    }
    let rest = text.chars().skip(count + 1 - most);
    std::iter::once('…').chain(rest).collect()
}

/// Three digits and a letter for the thousands.
pub(super) fn short(number: f64) -> String {
    let mut number = number;
    for letter in ["", "k", "M", "G", "T"] {
        // A number that would round to four digits uses the next letter.
        if number < 999.5 {
            let digits = usize::from(number < 99.95 && !letter.is_empty());
            return format!("{number:.digits$}{letter}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

fn time(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else {
        return "-".to_owned();
    };
    let us = seconds * 1e6;
    match us {
        _ if us < 999.5 => format!("{us:.0}µs"),
        _ if us < 99_950.0 => format!("{:.1}ms", us / 1e3),
        _ if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        _ => format!("{seconds:.1}s"),
    }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds that a program runs"
)]
fn time_up(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let rest = format!("{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    match days {
        0 => rest,
        days => format!("{days}d {rest}"),
    }
}

/// A line fits the terminal.
const _: () = assert!(NAME + 7 + 3 * 7 + 2 * 6 + 4 + 5 < WIDTH);
