//! Runs other programs: search path, output and failures.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::background::TO_REPEAT;

/// What Ctrl-C sends to every process of the terminal.
const SIGINT: u8 = 2;

/// How long output may still arrive after a command has ended.
const QUIET: Duration = Duration::from_secs(1);
/// How long a command may print nothing: longer than any test and than the counts of instructions.
const SILENCE: Duration = Duration::from_mins(25);

/// What every command of this program returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why this program stops, and with which exit status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Usage error, or the machine lacks something that this program may not install:
    /// status 2.
    Usage(String),
    /// A step ran and did not succeed: status 1.
    Failed(String),
    /// Commands ran and failed: what happened, and the lines that repeat it. Status 1.
    Commands { text: String, repeat: Vec<String> },
    /// Ctrl-C: nothing more is started. Status 130, as in a shell.
    Interrupted,
}

impl Failure {
    /// An unexpected argument.
    pub(crate) fn unexpected(argument: &str) -> Self {
        Self::Usage(format!(
            "unexpected argument `{argument}`; see `cargo xtask help`"
        ))
    }

    /// A failed file operation.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {doing} {}: {error}", path.display()))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) | Self::Commands { .. } => ExitCode::FAILURE,
            Self::Interrupted => ExitCode::from(128 + SIGINT),
        }
    }

    /// The command of that line ended.
    pub(crate) fn unless_success(line: &str, status: ExitStatus) -> Outcome {
        let signal = status.signal() == Some(SIGINT.into());
        if signal || status.code() == Some((128 + SIGINT).into()) {
            return Err(Self::Interrupted);
        }
        if status.success() {
            return Ok(());
        }
        Err(Self::Commands {
            text: format!("`{line}`: {status}"),
            repeat: vec![line.to_owned()],
        })
    }

    /// Its cause, without what says that it is one.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Usage(text) | Self::Failed(text) | Self::Commands { text, .. } => text,
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => write!(out, "{text}"),
            Self::Interrupted => write!(out, "interrupted"),
            Self::Failed(text) => write!(out, "FAILED: {text}"),
            Self::Commands { text, repeat } => {
                write!(out, "FAILED: {text}\n{TO_REPEAT}")?;
                repeat
                    .iter()
                    .try_for_each(|line| write!(out, "\n    {line}"))
            }
        }
    }
}

/// The root folder of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo has the current path of the crate; the path at compile time is wrong after the
    // clone was moved.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors().nth(2).unwrap_or(&here).to_owned()
}

/// The build folder of the workspace: `build`, unless CARGO_TARGET_DIR is set.
pub(crate) fn build_dir() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "build".into());
    root().join(chosen)
}

/// `PATH` with the folders that Debian leaves out of an ordinary user's, where
/// `mke2fs` and `e2fsck` are.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// The full path of a program, if the machine has it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path())
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

/// A command that runs in the root folder. `program` is a path or a bare name.
pub(crate) fn command(program: impl AsRef<Path>) -> Command {
    let program = program.as_ref();
    let found = program.to_str().and_then(find);
    let mut command = Command::new(found.as_deref().unwrap_or(program));
    command.current_dir(root()).env("PATH", search_path());
    command
}

/// The cargo that started this program, with arguments separated by spaces.
pub(crate) fn cargo(arguments: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = command(Path::new(&cargo));
    command.args(arguments.split_whitespace());
    command
}

/// Prints the command line, runs it with our own output, fails if it fails.
pub(crate) fn run(command: &mut Command) -> Outcome {
    announce(command);
    let status = command
        .status()
        .map_err(|error| cannot_start(command, &error))?;
    Failure::unless_success(&line(command), status)
}

/// Runs a command without input; returns what it printed, both kinds in order, and how it
/// ended. One that prints nothing for [`SILENCE`] is killed: a test that never ends would
/// otherwise hide which one it is.
pub(crate) fn text_and_status(mut command: Command) -> Outcome<(String, ExitStatus)> {
    let whole = line(&command);
    let broken = |error: std::io::Error| Failure::Failed(format!("`{whole}`: {error}"));
    // One pipe for both, so that they stay in order.
    let (output, input) = std::io::pipe().map_err(broken)?;
    command.stdin(Stdio::null());
    command.stderr(input.try_clone().map_err(broken)?);
    command.stdout(input);
    let mut child = command
        .spawn()
        .map_err(|error| cannot_start(&command, &error))?;
    // Its ends of the pipe are open as long as the command is there.
    drop(command);
    let (lines, printed) = mpsc::channel();
    thread::spawn(move || {
        let all = BufReader::new(output).split(b'\n').map_while(Result::ok);
        all.map(|line| lines.send(line))
            .take_while(Result::is_ok)
            .count()
    });
    let mut text = String::new();
    let mut printed_at = Instant::now();
    loop {
        match printed.recv_timeout(QUIET) {
            Ok(line) => {
                printed_at = Instant::now();
                text.push_str(&String::from_utf8_lossy(&line));
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Ok((text, child.wait().map_err(broken)?));
            }
            // A remaining child process may keep the pipe open.
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait().map_err(broken)? {
                    return Ok((text, status));
                }
                if printed_at.elapsed() >= SILENCE {
                    child.kill().map_err(broken)?;
                    let seconds = SILENCE.as_secs();
                    text.push_str(&format!("killed: it printed nothing for {seconds} s\n"));
                    return Ok((text, child.wait().map_err(broken)?));
                }
            }
        }
    }
}

/// Runs all jobs, as many at a time as there are CPUs, also after failures.
pub(crate) fn in_parallel<T: Sync>(jobs: &[T], run: impl Fn(&T) -> Outcome + Sync) -> Outcome {
    let waiting = Mutex::new(jobs.iter());
    let failures = Mutex::new(Failures::default());
    let lane = || -> Outcome {
        loop {
            let job = lock(&waiting).next();
            let Some(job) = job else { return Ok(()) };
            let outcome = run(job);
            let interrupted = lock(&failures).add(outcome);
            if interrupted.is_err() {
                // No lane starts another job.
                lock(&waiting).by_ref().for_each(drop);
                return interrupted;
            }
        }
    };
    let lanes = thread::available_parallelism().map_or(2, usize::from);
    let ends: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(ScopedJoinHandle::join).collect()
    });
    for end in ends {
        end.unwrap_or_else(|_| Err(Failure::Failed("a thread of xtask panicked".into())))?;
    }
    failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .into_outcome()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all commands, also after failures.
pub(crate) fn all(commands: &mut [Command]) -> Outcome {
    let mut failures = Failures::default();
    for command in commands {
        failures.add(run(command))?;
    }
    failures.into_outcome()
}

/// Failures of commands that do not need each other.
#[derive(Default)]
pub(crate) struct Failures {
    texts: Vec<String>,
    repeat: Vec<String>,
}

impl Failures {
    /// Keeps what failed; returns it only if nothing more is to be started.
    pub(crate) fn add(&mut self, outcome: Outcome) -> Outcome {
        let Err(failure) = outcome else {
            return Ok(());
        };
        self.texts.push(failure.text().to_owned());
        match failure {
            Failure::Interrupted => return Err(failure),
            Failure::Commands { repeat, .. } => self.repeat.extend(repeat),
            Failure::Usage(_) | Failure::Failed(_) => {}
        }
        Ok(())
    }

    pub(crate) fn into_outcome(self) -> Outcome {
        if self.texts.is_empty() {
            return Ok(());
        }
        Err(Failure::Commands {
            text: self.texts.join("\n"),
            repeat: self.repeat,
        })
    }
}

/// Like [`run`], but returns what the program wrote to its standard output.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let outcome = Failure::unless_success(&line(command), output.status);
    if outcome.is_err() {
        print!("{text}");
    }
    outcome.map(|()| text)
}

/// The platform of this machine, as the compiler calls it.
pub(crate) fn host() -> Outcome<String> {
    let version = output(command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| Failure::Failed("`rustc -vV` does not name its host".to_owned()))
}

/// Whether the program starts and succeeds, in silence.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A command that could not be started.
pub(crate) fn cannot_start(command: &Command, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot start `{}`: {error}", line(command)))
}

/// Prints a command line the way a person would type it.
pub(crate) fn announce(command: &Command) {
    println!("$ {}", line(command));
    flush();
}

/// The command line with the environment that was set for it: what a shell in the
/// root folder repeats it with.
pub(crate) fn line(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    // A shell finds these by their names alone.
    let known = name == "cargo" || find(&name.to_string_lossy()).as_deref() == Some(program);
    let program = if known { name } else { program.as_os_str() };
    let mut words = Vec::new();
    for (variable, value) in command.get_envs() {
        // Every command has one, see `command`.
        if let Some(value) = value.filter(|_| variable != "PATH") {
            words.push(format!("{}={}", variable.display(), word(value)));
        }
    }
    words.push(word(program));
    words.extend(command.get_args().map(word));
    words.join(" ")
}

/// A word that a shell takes for one.
fn word(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_=+:,./@%^".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A duration in a table.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Prints a heading.
pub(crate) fn heading(text: &str) {
    if std::io::stdout().is_terminal() {
        println!("\n\x1b[1m== {text}\x1b[0m");
    } else {
        println!("\n== {text}");
    }
    flush();
}

/// Keeps the output of this program and of its children in order in a pipe.
fn flush() {
    // Fails if the reader is gone, which does not matter.
    drop(std::io::stdout().flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_workspace() {
        assert!(root().join("common/wire/Cargo.toml").is_file());
    }

    #[test]
    fn exit_statuses_differ() {
        assert!(run(&mut command("true")).is_ok());
        let failed = run(&mut command("false")).unwrap_err();
        assert!(failed.to_string().contains("`false`"), "{failed}");
        let missing = run(&mut command("no-such-program")).unwrap_err();
        assert!(missing.to_string().contains("cannot start"), "{missing}");
    }

    #[test]
    fn printed_line_repeats_the_command() {
        let mut command = command("sh");
        command.args(["-c", "it's"]).env("NVMEOF_X", "a b");
        assert_eq!(line(&command), r"NVMEOF_X='a b' sh -c 'it'\''s'");
        assert_eq!(line(&cargo("test -p a")), "cargo test -p a");
        assert_eq!(line(&Command::new("/no/where/x")), "/no/where/x");
    }

    #[test]
    fn remaining_child_process_does_not_block() {
        let mut shell = command("sh");
        shell.args(["-c", "sleep 600 & echo $!"]);
        let (left, _) = text_and_status(shell).unwrap();
        assert!(
            succeeds(command("kill").arg(left.trim())),
            "it was still there"
        );
    }

    #[test]
    fn stdout_and_stderr_stay_in_order() {
        let mut shell = command("sh");
        shell.args(["-c", "echo out; echo err >&2; echo last; exit 1"]);
        let (text, status) = text_and_status(shell).unwrap();
        assert_eq!(
            (text.as_str(), status.code()),
            ("out\nerr\nlast\n", Some(1))
        );
    }

    #[test]
    fn parallel_jobs_all_run_and_all_failures_are_reported() {
        let jobs = ["true", "false", "true", "no-such-program", "true"];
        let ran = Mutex::new(0);
        let failure = in_parallel(&jobs, |job| {
            *lock(&ran) += 1;
            run(&mut command(job))
        });
        let text = failure.unwrap_err().to_string();
        assert!(text.contains("`false`: exit status: 1"), "{text}");
        assert!(text.contains("no-such-program"), "{text}");
        assert_eq!(*lock(&ran), jobs.len());
    }

    #[test]
    fn no_job_is_started_after_ctrl_c() {
        let lanes = thread::available_parallelism().map_or(2, usize::from);
        let jobs: Vec<_> = (0..100 * lanes).collect();
        let ran = Mutex::new(0);
        let outcome = in_parallel(&jobs, |_| {
            *lock(&ran) += 1;
            Err(Failure::Interrupted)
        });
        assert!(matches!(outcome, Err(Failure::Interrupted)));
        assert!(*lock(&ran) <= lanes, "{}", lock(&ran));
    }

    #[test]
    fn output_is_captured() {
        assert_eq!(output(command("echo").arg("a b")).unwrap(), "a b\n");
        assert!(output(&mut command("false")).is_err());
    }
}
