//! The result of a soak: faults and the longest stalls by cause.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::faults::{Fault, Kind};
use super::load::{Ended, Stall};

/// A fault may cause stalls until its path is used again.
const AFTERMATH: Duration = Duration::from_secs(4);
/// Additional time of a stall on a busy machine.
const BUSY: Duration = Duration::from_secs(15);

/// Stalls with one cause.
#[derive(Clone, Copy, Default)]
struct Row {
    faults: usize,
    stalls: usize,
    /// The longest one of reads and of writes.
    longest: [Duration; 2],
}

/// A table of faults and stalls.
pub(crate) struct Report {
    seed: u64,
    rows: BTreeMap<Kind, Row>,
    /// Stalls during several faults.
    overlapping: Row,
    /// Stalls without a fault.
    without: Row,
    summary: Vec<String>,
    /// Stalls that are longer than their causes explain.
    too_long: Vec<String>,
}

impl Stall {
    /// Whether a part of it is within `fault` or the time after it.
    fn is_during(&self, fault: &Fault, aftermath: Duration) -> bool {
        let healed = fault.healed.map(|healed| healed + aftermath);
        fault.began <= self.began + self.took && healed.is_none_or(|healed| self.began <= healed)
    }
}

impl Report {
    pub(crate) fn new(seed: u64, faults: &[Fault], ended: &Ended) -> Self {
        let mut report = Self {
            seed,
            rows: BTreeMap::new(),
            overlapping: Row::default(),
            without: Row::default(),
            summary: ended.summary.clone(),
            too_long: Vec::new(),
        };
        for fault in faults {
            report.rows.entry(fault.kind).or_default().faults += 1;
        }
        for stall in &ended.stalls {
            report.count(faults, stall);
        }
        report
    }

    fn count(&mut self, faults: &[Fault], stall: &Stall) {
        let during = |aftermath| {
            let faults = faults.iter();
            let during = faults.filter(|fault| stall.is_during(fault, aftermath));
            during.collect::<Vec<_>>()
        };
        let (active, causes) = (during(Duration::ZERO), during(AFTERMATH));
        // After the end of a fault, paths may still be lost.
        let shown = if active.is_empty() { &causes } else { &active };
        let row = match shown.as_slice() {
            [] => &mut self.without,
            [only] => self.rows.entry(only.kind).or_default(),
            _ => &mut self.overlapping,
        };
        let which = usize::from(stall.is_write);
        row.stalls += 1;
        row.longest[which] = row.longest[which].max(stall.took);
        let bound = causes.iter().map(|fault| {
            let time = fault.healed.map(|healed| healed - fault.began);
            fault.kind.bounds(time.unwrap_or_default())[which]
        });
        let bound = bound.sum::<Duration>() + BUSY;
        if stall.took > bound {
            let causes: Vec<_> = causes.iter().map(|fault| fault.kind.to_string()).collect();
            let text = format!("{stall:?} during {}: at most {bound:?}", causes.join(", "));
            self.too_long.push(text);
        }
    }

    #[track_caller]
    pub(crate) fn assert_stalls_are_bounded(&self) {
        assert!(self.too_long.is_empty(), "{}", self.too_long.join("\n"));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n| fault (seed {}) | faults | calls over 100 ms | longest read | longest write |\n\
             | --- | --- | --- | --- | --- |",
            self.seed
        )?;
        let total = self.rows.values().map(|row| row.faults).sum::<usize>();
        let kinds = self.rows.iter().map(|(kind, row)| (kind.to_string(), *row));
        let others = [
            ("several at once".to_owned(), self.overlapping),
            ("none".to_owned(), self.without),
        ];
        for (name, row) in kinds.chain(others) {
            let [read, write] = row.longest.map(|time| time.as_millis());
            let (faults, stalls) = (row.faults, row.stalls);
            writeln!(
                f,
                "| {name} | {faults} | {stalls} | {read} ms | {write} ms |"
            )?;
        }
        writeln!(f, "\n{total} faults")?;
        self.summary
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
