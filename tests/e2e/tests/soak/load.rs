//! The process of the load: the example `verified_load`.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nvmeof_e2e::{NQN, eventually};

/// A running load; killed when dropped.
pub(crate) struct Load {
    child: Child,
    /// What it prints, and when.
    lines: Receiver<(Instant, String)>,
    printed: Vec<(Instant, String)>,
}

/// What a load did.
pub(crate) struct Ended {
    pub(crate) stalls: Vec<Stall>,
    /// Its last lines: totals, and the paths.
    pub(crate) summary: Vec<String>,
}

/// A call that took long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub(crate) is_write: bool,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

/// Builds the example, unless a run of all tests has; returns its path.
fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The features of a build of the whole workspace, so that nothing is built twice.
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--workspace"])
        .args(["--example", "verified_load"])
        .status();
    assert!(status.unwrap().success());
    // This program is in the folder `deps` beside the one of examples.
    let program = std::env::current_exe().unwrap();
    let folder = program.ancestors().nth(2).unwrap().join("examples");
    folder.join("verified_load")
}

impl Load {
    pub(crate) fn start(addresses: &[SocketAddr]) -> Self {
        let mut command = Command::new(build());
        command.args([NQN, "1", "-"]);
        command.args(addresses.iter().map(SocketAddr::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let its = sender.clone();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .map(|line| its.send((Instant::now(), line)))
                .take_while(Result::is_ok)
                .count()
        });
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .map(|line| sender.send((Instant::now(), format!("error: {line}"))))
                .take_while(Result::is_ok)
                .count()
        });
        Self {
            child,
            lines,
            printed: Vec::new(),
        }
    }

    /// Waits until it prints `words` from now on.
    pub(crate) fn wait_for(&mut self, words: &str) {
        self.take_lines();
        let from = self.printed.len();
        let found = eventually(|| {
            self.assert_running();
            self.take_lines();
            let mut new = self.printed.iter().skip(from);
            new.any(|(_, line)| line.contains(words)).then_some(())
        });
        assert!(found.is_some(), "no `{words}`:\n{}", self.text());
    }

    pub(crate) fn assert_running(&mut self) {
        if let Some(text) = self.failure() {
            panic!("the load ended:\n{text}");
        }
    }

    /// Its output, if it has ended.
    pub(crate) fn failure(&mut self) -> Option<String> {
        let status = self.child.try_wait().unwrap()?;
        // The pipes end with the process.
        self.printed.extend(self.lines.iter());
        Some(format!("{}\n{status}", self.text()))
    }

    /// Ends it; it must succeed.
    pub(crate) fn finish(mut self) -> Ended {
        drop(self.child.stdin.take());
        let status = eventually(|| self.child.try_wait().unwrap());
        self.printed.extend(self.lines.iter());
        let text = self.text();
        assert!(
            status.is_some_and(|status| status.success()),
            "{status:?}:\n{text}"
        );
        let last = "every read returned the last acknowledged write";
        assert!(text.contains(last), "{text}");
        let (totals, stalls): (Vec<_>, Vec<_>) = self
            .printed
            .iter()
            .partition(|(_, line)| !line.starts_with("stall: "));
        let totals: Vec<&String> = totals.iter().map(|(_, line)| line).collect();
        let from = totals.iter().rposition(|line| line.starts_with("reads "));
        Ended {
            stalls: stalls.into_iter().map(stall).collect(),
            summary: totals[from.unwrap()..]
                .iter()
                .map(ToString::to_string)
                .collect(),
        }
    }

    fn take_lines(&mut self) {
        self.printed.extend(self.lines.try_iter());
    }

    fn text(&self) -> String {
        let lines: Vec<&str> = self.printed.iter().map(|(_, line)| line.as_str()).collect();
        lines.join("\n")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A line such as `stall: write 1234 ms`, printed when the call ended.
fn stall((ended, line): &(Instant, String)) -> Stall {
    let words: Vec<&str> = line.split(' ').collect();
    let [_, kind, ms, _] = words[..] else {
        panic!("{line}")
    };
    let took = Duration::from_millis(ms.parse().unwrap());
    Stall {
        is_write: kind == "write",
        began: ended.checked_sub(took).unwrap(),
        took,
    }
}
