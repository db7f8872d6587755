//! One build of the whole workspace, and its test programs in parallel.
//!
//! Cargo chooses the features of a crate by the requested packages and targets: separate
//! builds of tests, programs and single packages would compile most crates three times.
//! Therefore one command builds everything. Each step that needs a part runs the same
//! command, which then has nothing to do.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::run::{self, Failure, Outcome};

/// Libraries, programs, examples and test programs of all packages.
pub(crate) const BUILD: &str = "build --workspace --all-targets --locked";

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestProgram {
    package: String,
    /// The folder of its sources, in which it runs.
    folder: PathBuf,
    /// The option that selects it for cargo, such as `--test kill`.
    target: String,
    executable: PathBuf,
}

/// Builds everything.
pub(crate) fn build() -> Outcome {
    run::run(&mut run::cargo(BUILD))
}

/// Runs all tests of the packages that `is_wanted` chooses, as many programs at a time as
/// there are CPUs, with variables of the environment.
pub(crate) fn test(is_wanted: impl Fn(&str) -> bool, variables: &[(&str, &str)]) -> Outcome {
    let mut build = run::cargo(BUILD);
    run::announce(&build);
    let messages = run::output(build.arg("--message-format=json-render-diagnostics"))?;
    let mut programs = in_messages(&messages);
    programs.retain(|program| is_wanted(&program.package));
    run::in_parallel(&programs, |program| program.run(variables))
}

/// The test programs in cargo's messages, one JSON object a line.
fn in_messages(messages: &str) -> Vec<TestProgram> {
    let messages = messages.lines().map(serde_json::from_str::<Value>);
    messages
        .filter_map(|message| TestProgram::of(&message.ok()?))
        .collect()
}

impl TestProgram {
    /// That of a message which names one.
    fn of(message: &Value) -> Option<Self> {
        let text = |pointer| message.pointer(pointer).and_then(Value::as_str);
        if message.pointer("/profile/test") != Some(&Value::Bool(true)) {
            return None;
        }
        let name = text("/target/name")?;
        let target = match text("/target/kind/0")? {
            kind @ ("bin" | "test" | "example" | "bench") => format!("--{kind} {name}"),
            _ => "--lib".to_owned(),
        };
        Some(Self {
            package: package_name(text("/package_id")?)?.to_owned(),
            folder: Path::new(text("/manifest_path")?).parent()?.to_owned(),
            target,
            executable: text("/executable")?.into(),
        })
    }

    /// Prints its output when it has ended, not mixed with that of other programs.
    fn run(&self, variables: &[(&str, &str)]) -> Outcome {
        let started = Instant::now();
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.folder)
            .env("PATH", run::search_path())
            // Variables of cargo that tests read.
            .env("CARGO", run::cargo("").get_program())
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .envs(variables.iter().copied());
        let (text, status) = run::text_and_status(command)?;
        println!(
            "\n$ cargo test -p {} {}: {}\n{}",
            self.package,
            self.target,
            run::seconds(started.elapsed()),
            text.trim_end()
        );
        let repeats = || self.repeats(variables, &text);
        match Failure::unless_success(&self.repeat(variables, None), status) {
            Err(Failure::Commands { text, .. }) => Err(Failure::Commands {
                text,
                repeat: repeats(),
            }),
            other => other,
        }
    }

    /// The commands that repeat each failed test; the whole program if it was killed.
    fn repeats(&self, variables: &[(&str, &str)], text: &str) -> Vec<String> {
        let tests = failed(text);
        if tests.is_empty() {
            return vec![self.repeat(variables, None)];
        }
        let each = tests
            .into_iter()
            .map(|test| self.repeat(variables, Some(test)));
        each.collect()
    }

    fn repeat(&self, variables: &[(&str, &str)], test: Option<&str>) -> String {
        let mut command = run::cargo(&format!("test -p {} {}", self.package, self.target));
        command.envs(variables.iter().copied());
        if let Some(test) = test {
            command.args([test, "--", "--exact"]);
        }
        run::line(&command)
    }
}

/// `path+file:///clone/common/wire#nvmeof-wire@0.1.0`, or without the name where the folder
/// has it.
fn package_name(id: &str) -> Option<&str> {
    let (path, version) = id.split_once('#')?;
    match version.split_once('@') {
        Some((name, _)) => Some(name),
        None => path.rsplit('/').next(),
    }
}

/// The tests in the list that a test program ends with.
fn failed(text: &str) -> Vec<&str> {
    let Some((_, list)) = text.rsplit_once("\nfailures:\n") else {
        return Vec::new();
    };
    list.lines()
        .map_while(|line| line.strip_prefix("    "))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cargo 1.95 prints, shortened.
    const MESSAGES: &str = r#"
noise
{"reason":"compiler-artifact","package_id":"path+file:///c/common/wire#nvmeof-wire@0.1.0","manifest_path":"/c/common/wire/Cargo.toml","target":{"kind":["lib"],"name":"nvmeof_wire"},"profile":{"test":true},"executable":"/c/build/debug/deps/nvmeof_wire-1"}
{"reason":"compiler-artifact","package_id":"path+file:///c/common/wire#nvmeof-wire@0.1.0","manifest_path":"/c/common/wire/Cargo.toml","target":{"kind":["lib"],"name":"nvmeof_wire"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","package_id":"path+file:///c/tests/xtask#0.1.0","manifest_path":"/c/tests/xtask/Cargo.toml","target":{"kind":["bin"],"name":"xtask"},"profile":{"test":true},"executable":"/c/build/debug/deps/xtask-1"}
{"reason":"compiler-artifact","package_id":"path+file:///c/a#a@0.1.0","manifest_path":"/c/a/Cargo.toml","target":{"kind":["test"],"name":"kill"},"profile":{"test":true},"executable":"/c/build/debug/deps/kill-1"}
{"reason":"build-finished","success":true}
"#;

    /// What a test program prints, shortened.
    const OUTPUT: &str = "\
test rows::bad ... FAILED

failures:

---- rows::bad stdout ----
    indented noise

failures:
    rows::bad
    rows::ugly

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out
";

    fn program() -> TestProgram {
        in_messages(MESSAGES).pop().unwrap()
    }

    #[test]
    fn test_programs_are_found_among_messages() {
        let found = in_messages(MESSAGES);
        let names: Vec<_> = found
            .iter()
            .map(|it| format!("{} {}", it.package, it.target))
            .collect();
        let expected = ["nvmeof-wire --lib", "xtask --bin xtask", "a --test kill"];
        assert_eq!(names, expected);
        assert_eq!(found[0].folder, PathBuf::from("/c/common/wire"));
    }

    #[test]
    fn each_failed_test_has_the_line_that_repeats_it() {
        let expected = [
            "cargo test -p a --test kill rows::bad -- --exact",
            "cargo test -p a --test kill rows::ugly -- --exact",
        ];
        assert_eq!(program().repeats(&[], OUTPUT), expected);
        let killed = program().repeats(&[("NVMEOF_BIN_DIR", "/a b")], "test rows::bad ...");
        let whole = "NVMEOF_BIN_DIR='/a b' cargo test -p a --test kill";
        assert_eq!(killed, [whole]);
    }

    #[test]
    fn program_that_fails_is_a_failure_with_its_repeats() {
        let program = TestProgram {
            folder: run::root(),
            executable: "/bin/false".into(),
            ..program()
        };
        let Err(Failure::Commands { text, repeat }) = program.run(&[]) else {
            panic!("it failed otherwise")
        };
        assert_eq!(text, "`cargo test -p a --test kill`: exit status: 1");
        assert_eq!(repeat, ["cargo test -p a --test kill"]);
    }
}
