//! One run of the `nvmeof` program, or of any other.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::patience::{PATIENCE, eventually};

/// Where a program is.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    built(name, "cargo build --release")
}

/// Whether the programs are of a debug build: cargo names the folder after its profile.
#[must_use]
pub fn is_debug_build() -> bool {
    let program = binary("nvmeof");
    program
        .parent()
        .is_some_and(|folder| folder.ends_with("debug"))
}

/// The runner of the benchmarks; yardsticks are beside it.
#[must_use]
pub fn runner() -> PathBuf {
    let command = "cargo build --release -p nvmeof-bench";
    built("nvmeof-yardstick", command);
    built("nvmeof-bench", command)
}

/// Copies a program of the project into `folder`, where users other than root
/// reach it; returns where it is then.
///
/// A process of its own writes the copy. Were this one to do it, a process that
/// another test starts in that moment would inherit the open file, and the copy
/// could not be run before that one closes it: `ETXTBSY`, execve(2).
#[must_use]
pub fn copy_of(name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(name);
    let mut cp = Command::new("cp");
    let status = cp.arg(binary(name)).arg(&copy).status().unwrap();
    assert!(status.success(), "{cp:?}: {status}");
    copy
}

/// Where something is that `command` builds.
pub(crate) fn built(name: &str, command: &str) -> PathBuf {
    let folder = match std::env::var_os("NVMEOF_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/release"),
    };
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "{} is not there: run `{command}`, or set NVMEOF_BIN_DIR",
        path.display()
    );
    path
}

/// A program that will run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    stdin: Vec<u8>,
}

/// A program that runs; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    stdin: Option<JoinHandle<()>>,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<()>>,
    said: Arc<Mutex<Vec<u8>>>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    line: String,
    /// Exit status; `None` when a signal ended it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Run {
    /// A program with arguments.
    #[must_use]
    pub fn new(command: Command) -> Self {
        let stdin = Vec::new();
        Self { command, stdin }
    }

    /// `nvmeof` with the words of `line`.
    #[must_use]
    pub fn nvmeof(line: &str) -> Self {
        let mut command = Command::new(binary("nvmeof"));
        command.args(line.split_whitespace());
        Self::new(command)
    }

    /// One more argument, which may have spaces.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// More arguments.
    #[must_use]
    pub fn args(mut self, line: &str) -> Self {
        self.command.args(line.split_whitespace());
        self
    }

    /// As another user.
    #[must_use]
    pub fn user(mut self, uid: u32) -> Self {
        self.command.uid(uid);
        self
    }

    /// What it reads from standard input.
    #[must_use]
    pub fn stdin(mut self, bytes: &[u8]) -> Self {
        self.stdin = bytes.to_vec();
        self
    }

    /// Starts it.
    #[must_use]
    pub fn start(mut self) -> Running {
        let line = format!("{:?}", self.command);
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self
            .command
            .spawn()
            .unwrap_or_else(|e| panic!("{line}: {e}"));
        let mut pipe = child.stdin.take().unwrap();
        let input = self.stdin;
        let stdin = std::thread::spawn(move || {
            // Whoever does not read it all has a reason.
            let _ = pipe.write_all(&input);
        });
        let said = Arc::default();
        Running {
            line,
            stdin: Some(stdin),
            stdout: Some(collect(child.stdout.take().unwrap())),
            stderr: Some(keep(child.stderr.take().unwrap(), Arc::clone(&said))),
            said,
            child,
        }
    }

    /// Runs it to its end.
    #[must_use]
    pub fn end(self) -> Ended {
        self.start().end()
    }

    /// Runs it; exit status 0 is a must.
    #[track_caller]
    pub fn ok(self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.status, Some(0), "{ended}");
        ended
    }

    /// Runs it; must end with exit status `status` and words of help that
    /// contain all of `words`, and without a word on standard output.
    #[track_caller]
    pub fn fails(self, status: i32, words: &[&str]) -> Ended {
        let ended = self.end();
        assert_eq!(ended.status, Some(status), "{ended}");
        assert!(ended.stdout.is_empty(), "{ended}");
        // Messages are wrapped.
        let text = ended
            .stderr
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        for word in words {
            assert!(text.contains(word), "`{word}` is not said: {ended}");
        }
        assert!(!text.contains("panicked"), "{ended}");
        ended
    }

    /// Runs it with `-o json`.
    #[track_caller]
    #[must_use]
    pub fn json(self) -> Value {
        let ended = self.args("-o json").ok();
        serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"))
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Keeps what comes through `pipe` where others may look at it meanwhile.
fn keep(mut pipe: impl Read + Send + 'static, said: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count) = pipe.read(&mut piece)
            && count > 0
        {
            said.lock().unwrap().extend(&piece[..count]);
        }
    })
}

impl Running {
    /// What it has written to standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// Process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end, which comes before patience ends.
    #[must_use]
    pub fn end(mut self) -> Ended {
        let status = eventually(|| self.child.try_wait().unwrap());
        if status.is_none() {
            self.kill();
        }
        let stdout = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        let ended = Ended {
            line: self.line.clone(),
            status: status.and_then(|status| status.code()),
            stdout,
            stderr: self.stderr(),
        };
        let _ = self.stdin.take().unwrap().join();
        assert!(status.is_some(), "no end within {PATIENCE:?}: {ended}");
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ended {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.stdout[..self.stdout.len().min(2000)];
        let out = String::from_utf8_lossy(shown);
        let (line, status, error) = (&self.line, self.status, &self.stderr);
        write!(
            f,
            "{line}\nexit status {status:?}\nstdout: {out}\nstderr: {error}"
        )
    }
}
