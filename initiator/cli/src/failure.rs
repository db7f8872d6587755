//! Failures of a command: cause, remedy, exit status.

use std::io::{self, Write};
use std::process::ExitCode;

use nvmeof_initiator::{Error, MachineError, SetupFault, Status};
use nvmeof_initiator_core::SetupError;
use nvmeof_wire::text::{Json, Lines};
use serde_json::{Map, Value};

use crate::format::Format;
use crate::remedy::remedy;

/// A failure with its remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    cause: String,
    remedy: Option<String>,
    status: u8,
    /// Further keys of the JSON output.
    extra: Map<String, Value>,
    /// Whether a result precedes it on standard output.
    beside_result: bool,
}

/// Stream and format of a printed failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Printing {
    /// Text on standard error.
    Text,
    /// JSON on standard output, where nvme-cli prints it.
    Json,
    /// JSON on standard error: standard output has data.
    JsonBesideData,
}

impl Printing {
    /// For a command that prints in `format`, with data on standard output if `data`.
    pub(crate) fn new((format, data): (Format, bool)) -> Self {
        match (format, data) {
            (Format::Normal, _) => Self::Text,
            (Format::Json, false) => Self::Json,
            (Format::Json, true) => Self::JsonBesideData,
        }
    }
}

/// The operation failed.
const FAILED: u8 = 1;
/// Wrong usage: an invalid command line, or a feature that this machine lacks.
const USAGE: u8 = 2;

impl Failure {
    /// A failure of the operation: exit status 1.
    pub(crate) fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            remedy: None,
            status: FAILED,
            extra: Map::new(),
            beside_result: false,
        }
    }

    /// Wrong usage: exit status 2.
    pub(crate) fn usage(cause: impl Into<String>) -> Self {
        Self {
            status: USAGE,
            ..Self::new(cause)
        }
    }

    /// The same, with a remedy.
    pub(crate) fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same, with a key of the JSON output.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(key.to_owned(), value.into());
        self
    }

    /// The same, with another exit status.
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// The same, after a result on standard output.
    pub(crate) fn beside_result(mut self) -> Self {
        self.beside_result = true;
        self
    }

    /// The same, with `more` appended to the cause.
    pub(crate) fn and(mut self, more: &str) -> Self {
        self.cause.push_str(more);
        self
    }

    /// The same, with the object that it is about before the cause.
    pub(crate) fn about(mut self, object: &str) -> Self {
        self.cause = format!("{object}: {}", self.cause);
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

    /// The text, in lines of at most 80 columns where words allow it.
    fn text(&self) -> String {
        let mut text = wrapped("nvmeof: ", &self.cause);
        if let Some(remedy) = &self.remedy {
            text.push_str(&wrapped("  help: ", remedy));
        }
        text
    }

    /// As JSON: `error` as in nvme-cli, `remedy` if there is one, and for an NVMe status
    /// `type` and `value` as in nvme-cli.
    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("error".to_owned(), self.cause.clone().into());
        if let Some(remedy) = &self.remedy {
            object.insert("remedy".to_owned(), remedy.clone().into());
        }
        object.extend(self.extra.clone());
        object.into()
    }

    /// Prints it and returns the exit status.
    pub(crate) fn report(&self, printing: Printing) -> ExitCode {
        let json = || Json(&format!("{:#}\n", self.json())).to_string();
        // A write error has no other place to be reported.
        let _ = match printing {
            Printing::Text => io::stderr().write_all(Lines(&self.text()).to_string().as_bytes()),
            Printing::Json if !self.beside_result => io::stdout().write_all(json().as_bytes()),
            Printing::Json | Printing::JsonBesideData => io::stderr().write_all(json().as_bytes()),
        };
        self.status.into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let no_provider = matches!(
            &error,
            Error::Machine(machine) if matches!(**machine, MachineError::Provider { .. })
        );
        let failure = Self {
            remedy: remedy(&error),
            status: if no_provider { USAGE } else { FAILED },
            ..Self::new(error.cause())
        };
        match status_of(&error) {
            Some(status) => failure
                .with("type", "nvme")
                .with("value", status.kind().to_field()),
            None => failure,
        }
    }
}

/// The NVMe status with which a command or Connect failed.
fn status_of(error: &Error) -> Option<Status> {
    match error {
        Error::Command(error) => Some(error.status),
        Error::Setup(setup) => match &setup.why {
            SetupFault::Nvme(SetupError::Refused(refusal)) => Some(refusal.status),
            SetupFault::Nvme(SetupError::Command(error)) => Some(error.status),
            _ => None,
        },
        _ => None,
    }
}

/// The error of clap about a command line, without the usage text.
pub(crate) fn of_usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let error = text.split("\n\n").next().unwrap_or_default();
    let error = error.strip_prefix("error: ").unwrap_or(error);
    let words: Vec<&str> = error.split_whitespace().collect();
    Failure::usage(words.join(" ")).with_remedy("--help lists commands and options")
}

const WIDTH: usize = 80;

/// Wraps `text` after `label`, with the following lines indented to the same column.
/// Indented lines, which hold commands to copy, stay whole.
pub(crate) fn wrapped(label: &str, text: &str) -> String {
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
    use nvmeof_initiator::CommandError;

    use super::*;

    #[test]
    fn failures_are_wrapped_at_eighty_columns() {
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
    fn json_has_cause_remedy_and_status() {
        let error = CommandError {
            command: "Read",
            status: Status::LBA_OUT_OF_RANGE,
            result: 0,
            place: None,
        };
        let json = Failure::from(Error::from(error)).json();
        assert_eq!(
            json["error"],
            "Read failed: LBA Out of Range (status 0x080)"
        );
        assert!(json["remedy"].as_str().unwrap().contains("nvmeof id-ns"));
        assert_eq!(
            (&json["type"], &json["value"]),
            (&"nvme".into(), &0x80.into())
        );
        let plain = Failure::new("x").with("acknowledged_blocks", 7).json();
        assert_eq!(
            plain,
            serde_json::json!({"error": "x", "acknowledged_blocks": 7})
        );
    }

    #[test]
    fn words_longer_than_a_line_stay_whole() {
        let long = "x".repeat(100);
        assert_eq!(wrapped("a: ", &long), format!("a: {long}\n"));
    }
}
