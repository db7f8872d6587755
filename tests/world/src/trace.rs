//! The trace of a run: lines, and a hash of all lines.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::time::Duration;

/// Lines kept for a failure.
const KEPT: usize = 80;

/// The lines of one run: the last ones, and a hash of all.
#[derive(Debug)]
pub(crate) struct Trace {
    last: VecDeque<String>,
    hash: u64,
    lines: u64,
    print: bool,
}

impl Trace {
    pub(crate) fn new(print: bool) -> Self {
        Self {
            last: VecDeque::with_capacity(KEPT),
            hash: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            print,
        }
    }

    /// Adds a line.
    pub(crate) fn say(&mut self, now: Duration, what: fmt::Arguments<'_>) {
        let nanos = now.as_nanos();
        let line = format!("{:>7}.{:03}us {what}", nanos / 1000, nanos % 1000);
        // FNV-1a.
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.lines += 1;
        if self.print {
            // Not `println`, which a test harness captures.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }
}
