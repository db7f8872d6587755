//! Text output within 80 columns.

use std::fmt::Write as _;
use std::io::Write as _;

use nvmeof_wire::text::{self, Escaped};
use serde_json::{Value, json};

use super::keys::{self, authenticated};
use super::{CallError, DocumentOut, Failed, LostOut, OutcomeOut, StatusOut};
use nvmeof_target_api::{ControllerOut, Lost, NamespaceOut, SubsystemOut};

/// Columns of a line.
const COLUMNS: usize = 80;

/// Prints lines to standard output. A closed pipe is not a failure.
pub(super) fn out(text: &str) {
    let _ = write!(std::io::stdout(), "{}", text::Lines(text));
}

/// Prints a JSON document to standard output, in the same way.
pub(super) fn out_json(document: &Value) {
    let _ = writeln!(std::io::stdout(), "{}", text::Json(&document.to_string()));
}

/// Prints an error.
pub(super) fn error(error: &Failed, as_json: bool) {
    if as_json {
        let body = match error {
            Failed::Call(CallError::Refused(_, body)) => json!(body),
            other => json!({ "error": { "message": other.to_string() } }),
        };
        out_json(&body);
    }
    let text = wrapped(&format!("nvmeof-target: {error}"));
    let text = text::Lines(&text).to_string();
    eprint!("{text}");
}

pub(super) fn status(status: &StatusOut) -> String {
    let mut lines = Lines::default();
    add_process(&mut lines, status);
    for port in &status.ports {
        let text = format!("port {}: {} ({})", port.id, port.address, port.providers);
        lines.add(0, &text);
        for one in &port.ana_groups {
            lines.add(2, &format!("ANA group {}: {}", one.group, one.state));
        }
    }
    for one in &status.waiting {
        lines.add(0, &format!("WAITING for {}: {}", one.name, one.why));
    }
    for subsystem in &status.subsystems {
        add_subsystem(&mut lines, subsystem);
        let its = |one: &&ControllerOut| one.subsystem == subsystem.nqn;
        for one in status.controllers.iter().filter(its) {
            let text = format!(
                "controller {} of {}: {} I/O queues{}",
                one.controller,
                Escaped(&one.host),
                one.io_queues,
                authenticated(one, status)
            );
            lines.add(2, &text);
        }
    }
    for warning in &status.host_id_warnings {
        lines.add(0, &format!("WARNING: {warning}"));
    }
    keys::add(&mut lines, status);
    lines.text
}

/// The process, its configuration, and run-time changes.
fn add_process(lines: &mut Lines, status: &StatusOut) {
    let drained = if status.drained { ", drained" } else { "" };
    lines.add(0, &format!("nvmeof-target {}{drained}", status.version));
    if let Some(text) = &status.high_availability {
        lines.add(0, &format!("high availability: {text}"));
    }
    if let Some(why) = &status.not_drained {
        let text = format!("NOT DRAINED: {why}; `ctl drain` retries, `ctl resume` cancels");
        lines.add(0, &text);
    }
    lines.add(
        0,
        &format!(
            "configuration {}",
            status.applied.as_ref().unwrap_or(&status.file)
        ),
    );
    if status.applied.is_some() {
        lines.add(
            2,
            &format!("instead of {}; `ctl reload` returns to it", status.file),
        );
    }
    if status.edits > 0 {
        lines.add(
            2,
            &format!(
                "run-time changes: {}, deferred: {}",
                status.edits, status.deferred
            ),
        );
    }
    match (&status.state, status.saved) {
        (Some(state), true) => lines.add(2, &format!("run-time changes are saved in {state}")),
        (Some(state), false) => lines.add(
            2,
            &format!("NOT SAVED to {state}: `ctl save` retries and shows the cause"),
        ),
        (None, _) => lines.add(2, "run-time changes are not saved (no control.state)"),
    }
}

fn add_subsystem(lines: &mut Lines, subsystem: &SubsystemOut) {
    lines.add(0, &format!("subsystem {}", Escaped(&subsystem.nqn)));
    match &subsystem.allowed_hosts {
        None if subsystem.require_authentication => {
            lines.add(2, "every host with a key may connect");
        }
        None => lines.add(2, "every host may connect"),
        Some(hosts) if hosts.is_empty() => lines.add(2, "no host may connect"),
        Some(hosts) => hosts
            .iter()
            .for_each(|host| lines.add(2, &format!("host {}", Escaped(host)))),
    }
    if subsystem.require_authentication && subsystem.allowed_hosts.is_some() {
        lines.add(2, "only hosts with a key may connect");
    }
    for one in &subsystem.namespaces {
        lines.add(2, &namespace(one));
        if let Some(what) = &one.unlinked {
            lines.add(4, &format!("WARNING: {what}"));
        }
        let hosts = one.hosts.iter().flatten();
        hosts.for_each(|host| lines.add(4, &format!("only for {}", Escaped(host))));
        if one.hosts.as_ref().is_some_and(Vec::is_empty) {
            lines.add(4, "for no host");
        }
    }
}

fn namespace(one: &NamespaceOut) -> String {
    let mut text = format!("namespace {}: {}", one.nsid, Escaped(&one.path));
    let is_size_known = one.state != "disabled" && (one.state != "waiting" || one.bytes > 0);
    if is_size_known {
        let _ = write!(text, ", {}, blocks of {}", size(one.bytes), one.block_size);
    }
    if one.readonly {
        text.push_str(", read-only");
    }
    let ana_state = one.ana_state.as_deref().unwrap_or("state by port");
    if one.ana_group != 1 || ana_state != "optimized" {
        let _ = write!(text, ", ANA group {} ({ana_state})", one.ana_group);
    }
    if one.state != "ready" {
        let _ = write!(text, ", {}", one.state.to_uppercase());
    }
    text
}

/// As in the configuration: a whole number of the largest possible unit.
pub(super) fn size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = |(shift, _): &(u32, &str)| bytes > 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

pub(super) fn document(document: &DocumentOut) -> String {
    let mut text = document.text.clone();
    for deferred in &document.deferred {
        let _ = writeln!(text, "# deferred: {deferred}");
    }
    text
}

/// The run-time changes, with the numbers for `ctl forget`.
pub(super) fn changes(document: &DocumentOut) -> String {
    let mut lines = Lines::default();
    if document.edits.is_empty() {
        lines.add(0, "no changes");
    }
    for (number, edit) in (1..).zip(&document.edits) {
        let deferred = document.deferred.iter().find(|one| one.edit == *edit);
        let deferred = deferred.map(|one| format!(": deferred: {}", one.why));
        lines.add(
            0,
            &format!("{number} {edit}{}", deferred.unwrap_or_default()),
        );
    }
    lines.text
}

pub(super) fn planned(outcome: &OutcomeOut) -> String {
    let mut lines = Lines::default();
    lines.changes("would change", outcome);
    lines.dropped("would drop", outcome);
    lines.warnings(outcome);
    lines.text
}

pub(super) fn changed(outcome: &OutcomeOut) -> String {
    let mut lines = Lines::default();
    lines.changes("changed", outcome);
    lines.dropped("dropped", outcome);
    lines.lost(&outcome.disconnected);
    lines.warnings(outcome);
    lines.text
}

pub(super) fn lost(lost: &LostOut) -> String {
    let mut lines = Lines::default();
    lines.lost(&lost.disconnected);
    if lost.disconnected.is_empty() {
        lines.add(
            0,
            "the host was not connected; `ctl status` shows connected hosts",
        );
    }
    lines.text
}

pub(super) fn drained(lost: &LostOut) -> String {
    let mut lines = Lines::default();
    lines.lost(&lost.disconnected);
    lines.add(0, "drained: no host is served until `ctl resume`");
    lines.text
}

/// Lines of 80 columns.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) text: String,
}

impl Lines {
    /// Adds a line, indented and wrapped.
    pub(super) fn add(&mut self, indent: usize, text: &str) {
        self.text.push_str(&wrapped_at(indent, text));
    }

    /// Adds a row of a table, which is not wrapped.
    pub(super) fn add_row(&mut self, indent: usize, row: &str) {
        let _ = writeln!(self.text, "{:indent$}{row}", "");
    }

    fn changes(&mut self, verb: &str, outcome: &OutcomeOut) {
        if outcome.changes.is_empty() {
            self.add(0, &format!("nothing {verb}"));
        }
        for changes in outcome
            .changes
            .chunk_by(|a, b| its_subsystem(a) == its_subsystem(b))
        {
            self.changes_of_one(changes);
        }
    }

    /// Run-time changes that a document replaces.
    fn dropped(&mut self, verb: &str, outcome: &OutcomeOut) {
        for edit in &outcome.dropped {
            self.add(0, &format!("{verb} the run-time change: {edit}"));
        }
    }

    /// Consecutive changes in one subsystem. The NQN, which is long, is printed once for
    /// several changes.
    fn changes_of_one(&mut self, changes: &[Value]) {
        let nqn = changes.first().and_then(its_subsystem);
        let nqn = nqn.filter(|_| changes.len() > 1);
        let nqn = nqn.map(|nqn| Escaped(nqn).to_string());
        if let Some(nqn) = &nqn {
            self.add(0, &format!("subsystem {nqn}"));
        }
        for change in changes {
            let text = change.get("text").and_then(Value::as_str);
            let text = text.unwrap_or_default();
            let name = nqn.as_deref();
            match name.and_then(|nqn| text.strip_prefix(nqn)?.strip_prefix(": ")) {
                Some(rest) => self.add(2, rest),
                None => self.add(0, text),
            }
        }
    }

    fn warnings(&mut self, outcome: &OutcomeOut) {
        for warning in &outcome.warnings {
            self.add(0, &format!("warning: {warning}"));
        }
    }

    fn lost(&mut self, lost: &[Lost]) {
        for one in lost {
            let text = format!(
                "disconnected: controller {} of {}, host {}: {}",
                one.controller,
                Escaped(&one.subsystem),
                Escaped(&one.host),
                one.why
            );
            self.add(0, &text);
        }
    }
}

/// The subsystem that contains the changed object; none for the subsystem itself.
fn its_subsystem(change: &Value) -> Option<&str> {
    let subject = change.get("subject")?;
    let nqn = subject.get("subsystem")?.as_str()?;
    let is_in = subject.get("namespace").is_some() || subject.get("host").is_some();
    is_in.then_some(nqn)
}

/// The text in lines of 80 columns.
pub(crate) fn wrapped(text: &str) -> String {
    text.lines().map(|line| wrapped_at(0, line)).collect()
}

/// Wraps one line of text; further lines are indented by two more columns. Words are not
/// split.
fn wrapped_at(indent: usize, text: &str) -> String {
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if column == 0 {
            lines.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column + 1 + len > COLUMNS {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent + 2));
            column = indent + 2;
        } else {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += len;
    }
    lines.push('\n');
    lines
}

#[cfg(test)]
mod print_tests {
    use nvmeof_target_api::Edit;

    use super::*;

    #[test]
    fn size_uses_the_largest_unit_without_a_fraction() {
        let texts = [0, 512, 1 << 10, 3 << 20, 1536 << 20, 5 << 40].map(size);
        assert_eq!(texts, ["0 bytes", "512 bytes", "1K", "3M", "1536M", "5T"]);
        assert_eq!(size(u64::MAX), "18446744073709551615 bytes");
    }

    #[test]
    fn subsystem_of_consecutive_changes_is_printed_once() {
        let change = |nqn: &str, nsid: u32| {
            json!({
                "subject": { "subsystem": nqn, "namespace": nsid },
                "text": format!("{nqn}: namespace {nsid} is added"),
            })
        };
        let (long, port) = (
            "n".repeat(200),
            json!({ "text": "port 1.2.3.4:5 is added" }),
        );
        let outcome = OutcomeOut {
            changes: vec![port, change(&long, 1), change(&long, 2), change("other", 1)],
            ..OutcomeOut::default()
        };
        let expected = format!(
            "port 1.2.3.4:5 is added\nsubsystem\n  {long}\n  namespace 1 is added\n  \
             namespace 2 is added\nother: namespace 1 is added\n"
        );
        assert_eq!(planned(&outcome), expected);
    }

    #[test]
    fn dropped_run_time_changes_are_listed() {
        let dropped = vec![Edit::SubsystemRemove {
            nqn: "nqn.2026-11.org.example:disk".into(),
        }];
        let outcome = OutcomeOut {
            dropped,
            ..OutcomeOut::default()
        };
        let plan = planned(&outcome);
        let expected = "nothing would change\nwould drop the run-time change: ";
        assert!(plan.starts_with(expected), "{plan}");
        let made = changed(&outcome);
        assert!(made.contains("dropped the run-time change: "), "{made}");
    }

    #[test]
    fn lines_are_wrapped_at_eighty_columns() {
        let long = "n".repeat(100);
        let text = format!("one two {} {long} end", "three ".repeat(20).trim_end());
        let lines = wrapped_at(2, &text);
        for line in lines.lines() {
            assert!(line.chars().count() <= 80 || line.trim() == long, "{line}");
            assert!(line.starts_with("  "));
        }
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&lines), text);
    }
}
