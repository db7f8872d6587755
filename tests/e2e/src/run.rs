//! Running the `nvmeof` program, or another one.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::devices::{Devices, Side};
use crate::timeout::{TIMEOUT, eventually};

/// The path of a program.
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

/// The path of the benchmark runner; yardsticks are beside it.
#[must_use]
pub fn runner() -> PathBuf {
    let command = "cargo build --release -p nvmeof-bench";
    built("nvmeof-yardstick", command);
    built("nvmeof-bench", command)
}

/// Copies a program of the project to `folder`, where users other than root have access;
/// returns the path of the copy.
///
/// Another process writes the copy. If this one did, a process that another test starts at
/// that moment would inherit the open file, and running the copy would fail until that
/// process closes it: `ETXTBSY`, execve(2).
#[must_use]
pub fn copy_of(name: &str, folder: &Path) -> PathBuf {
    let copy = folder.join(name);
    let mut cp = Command::new("cp");
    let status = cp.arg(binary(name)).arg(&copy).status().unwrap();
    assert!(status.success(), "{cp:?}: {status}");
    copy
}

/// The path of a file that `command` builds.
pub(crate) fn built(name: &str, command: &str) -> PathBuf {
    let folder = match std::env::var_os("NVMEOF_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/release"),
    };
    let path = folder.join(name);
    assert!(
        path.is_file(),
        "{} is missing: run `{command}`, or set NVMEOF_BIN_DIR",
        path.display()
    );
    path
}

/// A program to run.
#[derive(Debug)]
pub struct Run {
    command: Command,
    stdin: Vec<u8>,
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    line: String,
    stdin: Option<JoinHandle<()>>,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<()>>,
    output: Arc<Mutex<Vec<u8>>>,
}

/// The result of a program.
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

    /// With the device of a host.
    #[must_use]
    pub(crate) fn over(mut self, devices: &Devices) -> Self {
        devices.give(&mut self.command, Side::Host);
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
            // A program need not read all of its input.
            let _ = pipe.write_all(&input);
        });
        let output = Arc::default();
        Running {
            line,
            stdin: Some(stdin),
            stdout: Some(collect(child.stdout.take().unwrap())),
            stderr: Some(keep(child.stderr.take().unwrap(), Arc::clone(&output))),
            output,
            child,
        }
    }

    /// Runs it to its end.
    #[must_use]
    pub fn end(self) -> Ended {
        self.start().end()
    }

    /// Runs it; the exit status must be 0.
    #[track_caller]
    pub fn ok(self) -> Ended {
        let ended = self.end();
        assert_eq!(ended.status, Some(0), "{ended}");
        ended
    }

    /// Runs it; the exit status must be `status`, the message must contain all of `words`, and
    /// standard output must be empty.
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
            assert!(text.contains(word), "`{word}` is missing: {ended}");
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

/// Collects the output of `pipe`, which can be read meanwhile.
fn keep(mut pipe: impl Read + Send + 'static, output: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count) = pipe.read(&mut piece)
            && count > 0
        {
            output.lock().unwrap().extend(&piece[..count]);
        }
    })
}

impl Running {
    /// Its standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }

    /// Process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is running.
    #[must_use]
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end within [`TIMEOUT`].
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
        assert!(status.is_some(), "not ended within {TIMEOUT:?}: {ended}");
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
