//! Steps that run in the background, one after another in processes of their own. The
//! output of a step is printed when it has ended.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::run::{self, Failure, Outcome};
use crate::test::{Extent, Step};

/// The line before the commands that repeat a failure.
pub(crate) const TO_REPEAT: &str = "To repeat:";

/// The niceness of background steps.
const NICENESS: &str = "10";

/// Runs the steps until `is_interrupted`; returns the result and duration of each that was
/// started.
pub(crate) fn run<'a>(
    steps: &[&'a Step],
    extent: Extent,
    is_interrupted: &AtomicBool,
) -> Vec<(&'a Step, Outcome, Duration)> {
    let mut ends = Vec::new();
    for step in steps {
        if is_interrupted.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let heading = format!("{} (in the background): {}", step.name, step.about);
        let outcome = in_one_piece(&heading, alone(step, extent));
        ends.push((*step, outcome, started.elapsed()));
    }
    ends
}

/// This program with one step to run.
fn alone(step: &Step, extent: Extent) -> Command {
    let mut command = run::command("nice");
    command.args(["-n", NICENESS]);
    // Cargo may replace the file of this program meanwhile.
    command.arg(format!("/proc/{}/exe", std::process::id()));
    command.args(["test", step.name]);
    if extent == Extent::All {
        command.arg("--all");
    }
    command
}

fn in_one_piece(heading: &str, command: Command) -> Outcome {
    let line = run::line(&command);
    let (text, status) = run::text_and_status(command)?;
    run::heading(heading);
    println!("{}", text.trim_end());
    Failure::unless_success(&line, status).map_err(|failure| match failure {
        Failure::Commands { text: how, .. } => Failure::Commands {
            text: format!("{how}; see above"),
            repeat: repeats(&text),
        },
        other => other,
    })
}

/// The commands at the end of the output of a failed run.
fn repeats(text: &str) -> Vec<String> {
    let list = text.rsplit_once(TO_REPEAT).map_or("", |(_, list)| list);
    let lines = list.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_reported_with_the_commands_that_repeat_it() {
        let failed = Failure::Commands {
            text: "it".to_owned(),
            repeat: vec!["a b".to_owned(), "c".to_owned()],
        };
        let mut shell = run::command("sh");
        shell.args(["-c", &format!("echo '{failed}'; exit 1")]);
        let Err(Failure::Commands { text, repeat }) = in_one_piece("x", shell) else {
            panic!("it failed otherwise")
        };
        assert!(text.contains("exit status: 1; see above"), "{text}");
        assert_eq!(repeat, ["a b", "c"]);
        assert!(in_one_piece("x", run::command("true")).is_ok());
    }

    #[test]
    fn nothing_is_started_after_an_interruption() {
        assert!(run(&[], Extent::Short, &AtomicBool::new(true)).is_empty());
        let mut shell = run::command("sh");
        shell.args(["-c", "exit 130"]);
        assert!(matches!(
            in_one_piece("x", shell),
            Err(Failure::Interrupted)
        ));
    }
}
