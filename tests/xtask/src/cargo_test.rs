//! `cargo test` that goes on after a failure and says how to repeat each one.

use crate::run::{self, Failure, Outcome};

/// Runs `cargo test` with arguments separated by spaces: all of its tests.
pub(crate) fn run(arguments: &str) -> Outcome {
    run_with(arguments, &[])
}

/// The same with variables of the environment.
pub(crate) fn run_with(arguments: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut test = run::cargo(&format!("test {arguments} --no-fail-fast"));
    test.envs(variables.iter().copied());
    run::announce(&test);
    let mut repeats = Repeats::new(variables);
    if let Err(failure) = run::passing_on(test, |line| repeats.read(line)) {
        return Err(repeats.say(failure));
    }
    Ok(())
}

/// What to type to see each failure again, read from what cargo and the tests say.
struct Repeats {
    variables: Vec<(String, String)>,
    /// Tests named in the list that a test program ends with.
    failed: Vec<String>,
    in_list: bool,
    lines: Vec<String>,
}

impl Repeats {
    fn new(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            variables: variables.iter().map(own).collect(),
            failed: Vec::new(),
            in_list: false,
            lines: Vec::new(),
        }
    }

    /// One line of the output. A program that fails prints `failures:` twice: before
    /// what the tests said, and before their names. Cargo then names the program:
    /// "error: test failed, to rerun pass `-p CRATE --test FILE`".
    fn read(&mut self, line: &str) {
        if line == "failures:" {
            self.failed.clear();
            self.in_list = true;
        } else if let Some((_, rest)) = line.split_once("test failed, to rerun pass `") {
            self.program(rest.split('`').next().unwrap_or_default());
        } else if let Some(name) = line.strip_prefix("    ").filter(|_| self.in_list) {
            self.failed.push(name.to_owned());
        } else {
            self.in_list = false;
        }
    }

    /// Tests of the program that cargo names so failed, or all of it did: it may have
    /// been killed.
    fn program(&mut self, named: &str) {
        let failed = std::mem::take(&mut self.failed);
        if failed.is_empty() {
            self.push(named, "");
        }
        for test in failed {
            self.push(named, &test);
        }
    }

    fn push(&mut self, program: &str, test: &str) {
        let mut command = run::cargo(&format!("test {program}"));
        command.envs(self.variables.iter().cloned());
        match test.split_once(' ') {
            None if test.is_empty() => {}
            None => drop(command.args([test, "--", "--exact"])),
            // An example in the documentation, by the file it stands in.
            Some((file, _)) => drop(command.arg(file)),
        }
        let line = run::line(&command);
        if !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    /// Replaces the line that repeats everything, where there are better ones.
    fn say(self, failure: Failure) -> Failure {
        match failure {
            Failure::Commands { text, .. } if !self.lines.is_empty() => Failure::Commands {
                text,
                repeat: self.lines,
            },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cargo 1.95 prints with `--no-fail-fast`, shortened.
    const OUTPUT: &str = "\
     Running unittests src/lib.rs (build/debug/deps/a-1)
test rows::bad ... FAILED
failures:

---- rows::bad stdout ----
    indented noise

failures:
    rows::bad
    rows::ugly

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
\x1b[1m\x1b[91merror\x1b[0m: test failed, to rerun pass `-p a --lib`
     Running tests/kill.rs (build/debug/deps/kill-1)
error: test failed, to rerun pass `-p a --test kill`

Caused by:
  process didn't exit successfully: `kill-1` (signal: 6, SIGABRT: process abort signal)
   Doc-tests a
failures:
    src/lib.rs - f (line 2)

error: doctest failed, to rerun pass `-p a --doc`
error: 3 targets failed:
    `-p a --lib`
    `-p a --test kill`
    `-p a --doc`
";

    fn lines(variables: &[(&str, &str)], output: &str) -> Vec<String> {
        let mut repeats = Repeats::new(variables);
        output.lines().for_each(|line| repeats.read(line));
        repeats.lines
    }

    #[test]
    fn each_failed_test_has_the_line_that_repeats_it() {
        let expected = [
            "cargo test -p a --lib rows::bad -- --exact",
            "cargo test -p a --lib rows::ugly -- --exact",
            "cargo test -p a --test kill",
            "cargo test -p a --doc src/lib.rs",
        ];
        assert_eq!(lines(&[], OUTPUT), expected);
        let with = lines(&[("NVMEOF_BIN_DIR", "/a b")], OUTPUT);
        assert_eq!(with[2], "NVMEOF_BIN_DIR='/a b' cargo test -p a --test kill");
    }

    #[test]
    fn what_does_not_compile_is_repeated_as_a_whole() {
        let failure = || Failure::Commands {
            text: "`cargo test`: exit status: 101".to_owned(),
            repeat: vec!["cargo test".to_owned()],
        };
        let Failure::Commands { repeat, .. } = Repeats::new(&[]).say(failure()) else {
            panic!("another failure")
        };
        assert_eq!(repeat, ["cargo test"]);
    }

    #[test]
    fn output_of_both_kinds_is_read_in_order() {
        let mut shell = run::command("sh");
        shell.args(["-c", "echo out; echo err >&2; echo last; exit 1"]);
        let mut lines = Vec::new();
        let failure = run::passing_on(shell, |line| lines.push(line.to_owned()));
        assert_eq!(lines, ["out", "err", "last"]);
        assert!(matches!(failure, Err(Failure::Commands { .. })));
    }
}
