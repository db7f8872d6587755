//! How failures are told: the cause, then what to do about it.

use std::io::{self, Write};
use std::process::ExitCode;

use nvmeof_initiator::{Error, MachineError};
use nvmeof_wire::text::Lines;

use crate::remedy::remedy;

/// A failure with what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    cause: String,
    remedy: Option<String>,
    status: u8,
}

/// The operation failed.
const FAILED: u8 = 1;
/// Wrong usage: something that makes no sense, or that this machine does not
/// have.
const USAGE: u8 = 2;

impl Failure {
    /// A failure of the operation: exit status 1.
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            remedy: None,
            status: FAILED,
        }
    }

    /// Wrong usage: exit status 2.
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self {
            status: USAGE,
            ..Self::new(cause)
        }
    }

    /// The same, with what to do about it.
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// A failure about a file.
    pub(crate) fn file(path: &std::path::Path, error: &io::Error) -> Self {
        Self::new(format!(
            "{}: {}",
            path.display(),
            nvmeof_rdma::explain(error)
        ))
    }

    /// What is printed, in lines of at most 80 columns where words allow it.
    fn text(&self) -> String {
        let mut text = wrapped("nvmeof: ", &self.cause);
        if let Some(remedy) = &self.remedy {
            text.push_str(&wrapped("  help: ", remedy));
        }
        text
    }

    /// Prints it; the exit status.
    pub(crate) fn report(&self) -> ExitCode {
        // Without standard error there is nobody to tell.
        let _ = io::stderr().write_all(Lines(&self.text()).to_string().as_bytes());
        self.status.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let no_provider = matches!(
            &error,
            Error::Machine(machine) if matches!(**machine, MachineError::Provider { .. })
        );
        Self {
            cause: error.cause(),
            remedy: remedy(&error),
            status: if no_provider { USAGE } else { FAILED },
        }
    }
}

const WIDTH: usize = 80;

/// Breaks `text` into lines after `label`, the following ones indented as far.
/// Lines of its own, which hold commands to copy, stay whole.
fn wrapped(label: &str, text: &str) -> String {
    let indent = " ".repeat(label.len());
    let mut out = String::new();
    for (number, line) in text.lines().enumerate() {
        let mut current = if number == 0 { label } else { &indent }.to_owned();
        let mut column = current.len();
        if line.starts_with(' ') {
            current.push_str(line);
        } else {
            for (nth, word) in line.split(' ').enumerate() {
                let width = word.chars().count();
                if nth > 0 && column + 1 + width > WIDTH {
                    current.push('\n');
                    current.push_str(&indent);
                    column = indent.len();
                } else if nth > 0 {
                    current.push(' ');
                    column += 1;
                }
                current.push_str(word);
                column += width;
            }
        }
        out.push_str(&current);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_lines_of_eighty_columns() {
        let failure = Failure::new("word ".repeat(40).trim().to_owned())
            .with_remedy("see\n  nvmeof discover -t rdma -a 127.0.0.1 -s 4420");
        let text = failure.text();
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.starts_with("nvmeof: word word"));
        assert!(text.contains("\n        word"));
        assert!(
            text.ends_with("  help: see\n          nvmeof discover -t rdma -a 127.0.0.1 -s 4420\n")
        );
    }

    #[test]
    fn words_longer_than_a_line_stay_whole() {
        let long = "x".repeat(100);
        assert_eq!(wrapped("a: ", &long), format!("a: {long}\n"));
    }
}
