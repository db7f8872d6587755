//! Progress of a demo in lines of 80 columns: elapsed time, and command lines to type.

use std::io::Write as _;
use std::process::Command;
use std::time::Instant;

use crate::run;

const COLUMNS: usize = 80;
const FAILED: &str = "FAILED: ";

/// Prints each step with the time since the start.
pub(super) struct Steps {
    started: Instant,
}

impl Steps {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    /// One line: what is done, or what has happened.
    pub(super) fn step(&self, text: &str) {
        let elapsed = self.started.elapsed().as_secs_f64();
        print(&wrapped(&format!("{elapsed:6.1} s  {text}"), "", 10));
    }

    /// A command line, relative to the root folder and without its environment.
    pub(super) fn types(&self, command: &Command) {
        let mut plain = Command::new(command.get_program());
        plain.args(command.get_args());
        self.types_line(&relative(&run::line(&plain)));
    }

    #[allow(clippy::unused_self, reason = "each line of the demo is printed by it")]
    pub(super) fn types_line(&self, line: &str) {
        print(&wrapped(&format!("$ {line}"), " \\", 4));
    }

    /// Output of a command.
    #[allow(clippy::unused_self, reason = "each line of the demo is printed by it")]
    pub(super) fn output(&self, text: &str) {
        print(text.trim_end());
    }
}

fn print(text: &str) {
    println!("{text}");
    // In order with the output of commands in a pipe. Fails if the reader is gone.
    drop(std::io::stdout().flush());
}

/// The text with paths relative to the root folder, where commands run.
pub(super) fn relative(text: &str) -> String {
    text.replace(&format!("{}/", run::root().display()), "")
}

/// The text of a failure, each paragraph in lines that fit, if its words do.
pub(super) fn failure(text: &str) -> String {
    // The word that is printed before it.
    let whole = format!("{FAILED}{text}");
    let lines: Vec<_> = whole.lines().map(|line| wrapped(line, "", 0)).collect();
    let whole = lines.join("\n");
    whole.strip_prefix(FAILED).unwrap_or(&whole).to_owned()
}

/// A line of a log, without what does not fit.
pub(super) fn cut(line: &str) -> String {
    line.chars().take(COLUMNS).collect()
}

/// Lines that fit, if the words do. Each but the last one ends in `more`; those after the first
/// one are indented.
fn wrapped(text: &str, more: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for (at, word) in text.split(' ').enumerate() {
        let width = word.chars().count();
        if at > 0 && column + 1 + width + more.len() > COLUMNS {
            lines.push_str(&format!("{more}\n{:indent$}", ""));
            column = indent;
        } else if at > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Failure;

    #[test]
    fn long_command_is_continued_on_the_next_line() {
        let line = format!("$ {} {} --last", "a".repeat(40), "b".repeat(36));
        let expected = format!("$ {} \\\n    {} --last", "a".repeat(40), "b".repeat(36));
        assert_eq!(wrapped(&line, " \\", 4), expected);
        let line = format!("$ {} {}", "a".repeat(40), "b".repeat(34));
        assert_eq!(wrapped(&line, " \\", 4), line);
    }

    #[test]
    fn paragraphs_are_kept() {
        let long = "word ".repeat(40);
        let all = failure(&format!("{long}\n{long}\n  two"));
        let printed = Failure::Failed(all.clone()).to_string();
        assert!(printed.lines().all(|line| line.chars().count() <= COLUMNS));
        assert!(all.starts_with("word") && all.ends_with("\n  two"));
    }
}
