//! The folder and the target process of a demo, both removed at the end.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::run::{self, Failure, Outcome};

/// How long the target may take to be ready, and to stop.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until this program has ended (its standard input closes), then stops the process
/// that the last line named, if any, and removes the folder. It is a separate process,
/// because Ctrl-C and SIGKILL leave no time for cleanup.
const JANITOR: &str = r#"
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then kill -TERM "$pid"; fi
rm -rf -- "$1"
"#;

/// A folder and at most one target; both are removed when this is dropped.
pub(super) struct Stage {
    folder: PathBuf,
    target: Option<Child>,
    janitor: Child,
    /// Closing it starts the cleanup.
    orders: Option<ChildStdin>,
}

impl Stage {
    /// Makes a new folder in `parent`.
    ///
    /// Use the build folder, because the temporary folder of many systems is in memory.
    pub(super) fn new(parent: &Path) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("demo-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| Failure::file("create", &folder, &error))?;
        let mut command = run::command("sh");
        command
            .args(["-c", JANITOR, "janitor"])
            .arg(&folder)
            .stdin(Stdio::piped());
        // Out of reach of the terminal's Ctrl-C.
        let started = command.process_group(0).spawn();
        let mut janitor = started.map_err(|error| run::cannot_start(&command, &error))?;
        let orders = janitor.stdin.take();
        Ok(Self {
            folder,
            target: None,
            janitor,
            orders,
        })
    }

    /// The path of a file in the folder.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts the target with its output in `log`; returns its ready line.
    pub(super) fn start(&mut self, command: &mut Command, log: &Path) -> Outcome<String> {
        let file = File::create(log).map_err(|error| Failure::file("create", log, &error))?;
        let same = file
            .try_clone()
            .map_err(|error| Failure::file("open", log, &error))?;
        command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(same)
            .process_group(0);
        run::announce(command);
        let target = command
            .spawn()
            .map_err(|error| run::cannot_start(command, &error))?;
        self.order(&target.id().to_string());
        self.target = Some(target);
        self.wait_until_ready(log)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Outcome<String> {
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            // A log may contain any bytes; the ready line is text.
            let text = fs::read(log).map_err(|error| Failure::file("read", log, &error))?;
            let text = String::from_utf8_lossy(&text);
            // The last line may be incomplete.
            let mut lines = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            if let Some(line) = lines.find(|line| line.contains("ready")) {
                return Ok(line.trim_end().to_owned());
            }
            if let Some(status) = self.exited()? {
                return Err(Failure::Failed(format!(
                    "the target terminated unexpectedly: {status}"
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Err(Failure::Failed(format!(
            "the target was not ready after {} s",
            TIMEOUT.as_secs()
        )))
    }

    /// Asks the target to stop with SIGTERM and waits for exit status 0.
    pub(super) fn stop(&mut self) -> Outcome {
        let Some(target) = &self.target else {
            return Ok(());
        };
        run::run(&mut kill("-TERM", target.id()))?;
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            match self.exited()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(Failure::Failed(format!("the target stopped with {status}")));
                }
                None => std::thread::sleep(PAUSE),
            }
        }
        Err(Failure::Failed(format!(
            "the target still runs {} s after SIGTERM",
            TIMEOUT.as_secs()
        )))
    }

    fn exited(&mut self) -> Outcome<Option<ExitStatus>> {
        let Some(target) = &mut self.target else {
            return Ok(None);
        };
        let status = target
            .try_wait()
            .map_err(|error| Failure::Failed(format!("cannot wait for the target: {error}")))?;
        if status.is_some() {
            self.forget_target();
        }
        Ok(status)
    }

    /// Its process id may soon be reused.
    fn forget_target(&mut self) {
        self.target = None;
        self.order("");
    }

    fn order(&mut self, pid: &str) {
        if let Some(orders) = &mut self.orders {
            // Fails if the janitor was killed, which does not matter.
            drop(writeln!(orders, "{pid}"));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(target) = &mut self.target {
            // `stop` has ended it already, or it is killed; errors mean that it has ended.
            drop(target.kill());
            drop(target.wait());
            self.forget_target();
        }
        self.orders = None;
        drop(self.janitor.wait());
    }
}

/// Sends `signal` to a process with the `kill` of the shell: not every machine has the
/// program.
fn kill(signal: &str, pid: u32) -> Command {
    let mut shell = run::command("sh");
    shell.args(["-c", &format!("kill {signal} {pid}")]);
    shell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage() -> Stage {
        Stage::new(&std::env::temp_dir()).unwrap()
    }

    fn shell(script: &str) -> Command {
        let mut shell = run::command("sh");
        shell.args(["-c", script]);
        shell
    }

    fn is_running(pid: u32) -> bool {
        run::succeeds(&mut kill("-0", pid))
    }

    #[test]
    fn ready_target_is_stopped_and_the_folder_removed() {
        let mut stage = stage();
        let folder = stage.folder.clone();
        let log = stage.path("log");
        let script =
            "trap 'exit 0' TERM; echo starting; echo is ready; while :; do sleep 0.1; done";
        assert_eq!(stage.start(&mut shell(script), &log).unwrap(), "is ready");
        stage.stop().unwrap();
        drop(stage);
        assert!(!folder.exists());
    }

    #[test]
    fn unexpected_end_of_target_is_a_failure() {
        let mut stage = stage();
        let log = stage.path("log");
        let failure = stage
            .start(&mut shell("echo no; exit 2"), &log)
            .unwrap_err();
        assert!(
            failure.to_string().contains("terminated unexpectedly"),
            "{failure}"
        );

        let script = "trap 'exit 1' TERM; echo ready; while :; do sleep 0.1; done";
        stage.start(&mut shell(script), &log).unwrap();
        assert!(stage.stop().is_err());
    }

    #[test]
    fn dropped_stage_kills_the_target() {
        let mut stage = stage();
        let log = stage.path("log");
        stage
            .start(&mut shell("trap '' TERM; echo ready; exec sleep 600"), &log)
            .unwrap();
        let pid = stage.target.as_ref().unwrap().id();
        assert!(is_running(pid));
        drop(stage);
        assert!(!is_running(pid));
    }

    #[test]
    fn janitor_alone_stops_the_target_and_removes_the_folder() {
        let mut stage = stage();
        let log = stage.path("log");
        stage
            .start(&mut shell("echo ready; exec sleep 600"), &log)
            .unwrap();
        let folder = stage.folder.clone();
        // What the system does when we are killed.
        stage.orders = None;
        assert!(stage.janitor.wait().unwrap().success());
        assert!(!folder.exists());
        // Ended by the janitor's signal, not by ours.
        assert!(!stage.target.take().unwrap().wait().unwrap().success());
    }
}
