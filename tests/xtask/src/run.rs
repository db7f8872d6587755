//! Running other programs: where they are found, what is printed, how they fail.

use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What every command of this program returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why this program stops, and with which exit status.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The person asked for something that does not exist, or the machine
    /// lacks something that we may not install: status 2.
    Usage(String),
    /// A step ran and did not succeed: status 1.
    Failed(String),
}

impl Failure {
    /// An argument that nobody asked for.
    pub(crate) fn unexpected(argument: &str) -> Self {
        Self::Usage(format!(
            "unexpected argument `{argument}`; see `cargo xtask help`"
        ))
    }

    /// A file operation that did not work.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {doing} {}: {error}", path.display()))
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::FAILURE,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) => write!(out, "{text}"),
            Self::Failed(text) => write!(out, "FAILED: {text}"),
        }
    }
}

/// The root folder of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo says where the crate is now; the place it was compiled at is only
    // right as long as nobody moved the clone.
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors().nth(2).unwrap_or(&here).to_owned()
}

/// The build folder of the workspace: `build`, unless cargo was told otherwise.
pub(crate) fn build_dir() -> PathBuf {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "build".into());
    root().join(chosen)
}

/// `PATH` with the folders that Debian leaves out of an ordinary user's, where
/// `mke2fs` and `e2fsck` are.
fn search_path() -> OsString {
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
    if status.success() {
        return Ok(());
    }
    Err(Failure::Failed(format!("`{}`: {status}", line(command))))
}

/// Like [`run`], but returns what the program wrote to its standard output.
pub(crate) fn output(command: &mut Command) -> Outcome<String> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    print!("{text}");
    Err(Failure::Failed(format!(
        "`{}`: {}",
        line(command),
        output.status
    )))
}

/// Whether the program starts and succeeds, in silence.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// A command that could not even be started.
pub(crate) fn cannot_start(command: &Command, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot start `{}`: {error}", line(command)))
}

/// Prints a command line the way a person would type it.
pub(crate) fn announce(command: &Command) {
    println!("$ {}", line(command));
    flush();
}

fn line(command: &Command) -> String {
    let name = Path::new(command.get_program())
        .file_name()
        .unwrap_or(command.get_program());
    let mut line = name.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
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

/// What we print and what our children print must stay in order in a pipe.
fn flush() {
    // Without a reader there is nobody to keep in order for.
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
    fn output_is_captured() {
        assert_eq!(output(command("echo").arg("a b")).unwrap(), "a b\n");
        assert!(output(&mut command("false")).is_err());
    }
}
