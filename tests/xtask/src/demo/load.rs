//! Verified I/O of the demo: the example `verified_load` of the initiator, which reports calls
//! that take long.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::run::{Failure, Outcome};

/// Without a gateway, calls wait for its lease, which is 2 s or longer. Calls that wait for
/// another reason take less.
const LOST: Duration = Duration::from_secs(1);

/// The last line of a load without errors.
const VERIFIED: &str = "every read returned the last acknowledged write";

/// A load in progress. It ends when it is finished or dropped.
pub(super) struct Load {
    /// Of the process in messages.
    pub(super) name: String,
    /// Closing it ends the load.
    stdin: Option<ChildStdin>,
    printed: Receiver<(Instant, String)>,
    lines: Vec<(Instant, String)>,
}

/// The numbers of the last line of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) longest_read: Duration,
    pub(super) longest_write: Duration,
}

impl Load {
    /// Reads the output of a process, and copies it to `log`.
    pub(super) fn new(name: &str, child: &mut Child, log: &Path) -> Outcome<Self> {
        let mut copy = File::create(log).map_err(|error| Failure::file("create", log, &error))?;
        let (lines, printed) = mpsc::channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let now = Instant::now();
                    // Only a person reads it.
                    drop(writeln!(copy, "{line}"));
                    if lines.send((now, line)).is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self {
            name: name.to_owned(),
            stdin: child.stdin.take(),
            printed,
            lines: Vec::new(),
        })
    }

    /// Its lines until now, with the time of each.
    fn lines(&mut self) -> &[(Instant, String)] {
        self.lines.extend(self.printed.try_iter());
        &self.lines
    }

    pub(super) fn is_connected(&mut self) -> bool {
        self.lines().iter().any(|(_, line)| line == "connected")
    }

    /// When the first call completed that waited for another gateway after `lost`.
    pub(super) fn first_after(&mut self, lost: Instant) -> Option<Duration> {
        let lines = self.lines().iter();
        let mut after =
            lines.filter_map(|(at, line)| Some((at.checked_duration_since(lost)?, line)));
        let found = after.find(|(_, line)| stall(line).is_some_and(|took| took >= LOST));
        found.map(|(after, _)| after)
    }

    /// Starts no more calls; those in progress complete.
    pub(super) fn finish(&mut self) {
        self.stdin = None;
    }

    /// The result of a load that has ended.
    ///
    /// # Errors
    /// It found wrong data, or a call failed: its last line.
    pub(super) fn result(&mut self) -> Outcome<Counts> {
        // The sender ends with the output.
        self.lines.extend(self.printed.iter());
        let lines = &self.lines;
        let is_verified = lines.last().is_some_and(|(_, line)| line == VERIFIED);
        let counts = lines.iter().rev().find_map(|(_, line)| counts(line));
        counts.filter(|_| is_verified).ok_or_else(|| {
            let last = lines.last().map_or("nothing", |(_, line)| line);
            Failure::Failed(format!("{} verified nothing: it printed {last}", self.name))
        })
    }
}

/// `stall: read 3495 ms`
fn stall(line: &str) -> Option<Duration> {
    let (_, time) = line.strip_prefix("stall: ")?.split_once(' ')?;
    millis(time)
}

fn millis(text: &str) -> Option<Duration> {
    let number = text.trim().strip_suffix(" ms")?.parse().ok()?;
    Some(Duration::from_millis(number))
}

/// `reads 10, writes 20, longest read 30 ms, longest write 40 ms, paths 1 of 2`
fn counts(line: &str) -> Option<Counts> {
    let mut parts = line.split(", ");
    let mut after = |word: &str| parts.next()?.strip_prefix(word);
    Some(Counts {
        reads: after("reads ")?.parse().ok()?,
        writes: after("writes ")?.parse().ok()?,
        longest_read: millis(after("longest read ")?)?,
        longest_write: millis(after("longest write ")?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(lines: &[(u64, &str)], start: Instant) -> Load {
        let (sender, printed) = mpsc::channel();
        for (at, line) in lines {
            let at = start + Duration::from_millis(*at);
            sender.send((at, (*line).to_owned())).unwrap();
        }
        Load {
            name: "load".to_owned(),
            stdin: None,
            printed,
            lines: Vec::new(),
        }
    }

    #[test]
    fn first_call_after_the_loss_of_a_gateway() {
        let start = Instant::now();
        let lines = [
            (10, "connected"),
            (900, "stall: read 1200 ms"),
            (1100, "stall: write 150 ms"),
            (4500, "stall: read 3495 ms"),
            (4600, "stall: write 3500 ms"),
        ];
        let mut all = load(&lines, start);
        assert!(all.is_connected());
        let after = |load: &mut Load| load.first_after(start + Duration::from_secs(1));
        assert_eq!(after(&mut all), Some(Duration::from_millis(3500)));
        assert_eq!(after(&mut load(&lines[..3], start)), None);
    }

    #[test]
    fn result_requires_that_all_data_were_verified() {
        let line = "reads 10, writes 20, longest read 30 ms, longest write 40 ms, paths 2 of 2";
        let now = Instant::now();
        let counts = load(&[(0, line), (1, "path ..."), (2, VERIFIED)], now).result();
        let expected = Counts {
            reads: 10,
            writes: 20,
            longest_read: Duration::from_millis(30),
            longest_write: Duration::from_millis(40),
        };
        assert_eq!(counts.unwrap(), expected);
        let failure = load(&[(0, line)], now).result().unwrap_err();
        assert!(failure.text().contains("verified nothing"), "{failure}");
    }
}
