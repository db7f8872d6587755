//! The folder and the processes of a demo or a measurement, which end with it.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::ceph;
use crate::run::{self, Failure, Outcome};

/// How long a target may take to be ready, and to stop.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// The folder of the Ceph cluster, if there is one.
const CLUSTER: &str = "ceph";

/// Waits until this program has ended (its standard input closes), then kills the process groups
/// that the last line named and ends a cluster, and removes the folder. It is a separate process,
/// because Ctrl-C and SIGKILL leave no time for cleanup.
const JANITOR: &str = r#"
while read -r line; do pids=$line; done
for pid in $pids; do kill -KILL "-$pid" 2>/dev/null; done
if [ -d "$1/$2" ]; then "$3" stop "$1/$2"; fi
if [ "$4" = remove ]; then rm -rf -- "$1"; fi
"#;

/// What happens to the folder at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Folder {
    Remove,
    Keep,
}

/// A folder and processes, which end when this is dropped. The folder is then removed unless it
/// is kept.
pub(crate) struct Stage {
    folder: PathBuf,
    /// With their names in messages.
    running: Vec<(String, Child)>,
    janitor: Child,
    /// Closing it starts the cleanup.
    orders: Option<ChildStdin>,
}

impl Stage {
    /// Makes a new folder in `parent`, whose name begins with `what`.
    ///
    /// Use the build folder, because the temporary folder of many systems is in memory.
    pub(crate) fn new(parent: &Path, what: &str, end: Folder) -> Outcome<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("{what}-{}-{count}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| Failure::file("create", &folder, &error))?;
        let mut command = run::command("sh");
        command
            .args(["-c", JANITOR, "janitor"])
            .arg(&folder)
            .args([CLUSTER, ceph::SCRIPT])
            .arg(match end {
                Folder::Remove => "remove",
                Folder::Keep => "keep",
            })
            .stdin(Stdio::piped());
        // Out of reach of the terminal's Ctrl-C.
        let started = command.process_group(0).spawn();
        let mut janitor = started.map_err(|error| run::cannot_start(&command, &error))?;
        let orders = janitor.stdin.take();
        Ok(Self {
            folder,
            running: Vec::new(),
            janitor,
            orders,
        })
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of a Ceph cluster: the processes of a cluster there end as well.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.folder.join(CLUSTER)
    }

    /// Starts a target with its output in `log`; returns its ready line.
    pub(crate) fn start(
        &mut self,
        name: &str,
        command: &mut Command,
        log: &Path,
    ) -> Outcome<String> {
        self.spawn(name, with_log(command, log)?)?;
        self.wait_until_ready(name, log)
    }

    /// Starts a process, out of reach of the terminal's Ctrl-C: it ends with the stage.
    pub(crate) fn spawn(&mut self, name: &str, command: &mut Command) -> Outcome<&mut Child> {
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| run::cannot_start(command, &error))?;
        self.running.push((name.to_owned(), child));
        self.order();
        match self.running.last_mut() {
            Some((_, child)) => Ok(child),
            None => Err(not_running(name)),
        }
    }

    fn wait_until_ready(&mut self, name: &str, log: &Path) -> Outcome<String> {
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
            if let Some(status) = self.exited(name)? {
                return Err(Failure::Failed(format!(
                    "{name} terminated unexpectedly: {status}"
                )));
            }
            std::thread::sleep(PAUSE);
        }
        let seconds = TIMEOUT.as_secs();
        let what = format!("{name} was not ready after {seconds} s");
        Err(Failure::Failed(what))
    }

    /// Asks a target to stop with SIGTERM and waits for exit status 0.
    pub(crate) fn stop(&mut self, name: &str) -> Outcome {
        let pid = self.pid(name)?;
        println!("$ kill -TERM {pid}");
        if !run::succeeds(&mut kill("-TERM", pid)) {
            return Err(Failure::Failed(format!("cannot send SIGTERM to {name}")));
        }
        let Some(status) = self.wait(name, TIMEOUT)? else {
            let seconds = TIMEOUT.as_secs();
            let what = format!("{name} still runs {seconds} s after SIGTERM");
            return Err(Failure::Failed(what));
        };
        if status.success() {
            return Ok(());
        }
        Err(Failure::Failed(format!("{name} stopped with {status}")))
    }

    /// Waits until a process has ended; `None` if it still runs after `limit`.
    pub(crate) fn wait(&mut self, name: &str, limit: Duration) -> Outcome<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            match self.exited(name)? {
                None if started.elapsed() < limit => std::thread::sleep(PAUSE),
                end => return Ok(end),
            }
        }
    }

    /// How a process has ended, once: it then has no name any more. `None` if it runs.
    pub(crate) fn exited(&mut self, name: &str) -> Outcome<Option<ExitStatus>> {
        let at = self.running.iter().position(|(other, _)| other == name);
        let Some((at, (_, child))) = at.and_then(|at| Some((at, self.running.get_mut(at)?))) else {
            return Err(not_running(name));
        };
        let status = child
            .try_wait()
            .map_err(|error| Failure::Failed(format!("cannot wait for {name}: {error}")))?;
        if status.is_some() {
            // Its process id may soon be reused.
            self.running.remove(at);
            self.order();
        }
        Ok(status)
    }

    /// Sends SIGKILL to a process and waits for its end. Returns when the signal was sent.
    pub(crate) fn kill(&mut self, name: &str) -> Outcome<Instant> {
        let named = self.running.iter_mut().find(|(other, _)| other == name);
        let (_, child) = named.ok_or_else(|| not_running(name))?;
        let sent = Instant::now();
        let ended = child.kill().and_then(|()| child.wait());
        ended.map_err(|error| Failure::Failed(format!("cannot kill {name}: {error}")))?;
        self.running.retain(|(other, _)| other != name);
        self.order();
        Ok(sent)
    }

    /// The process id.
    pub(crate) fn pid(&self, name: &str) -> Outcome<u32> {
        let mut named = self.running.iter().filter(|(other, _)| other == name);
        let found = named.next().map(|(_, child)| child.id());
        found.ok_or_else(|| not_running(name))
    }

    /// The names of all processes.
    pub(crate) fn names(&self) -> Vec<String> {
        self.running.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Names all processes to the janitor.
    fn order(&mut self) {
        if let Some(orders) = &mut self.orders {
            let pids = self.running.iter().map(|(_, child)| child.id().to_string());
            let pids: Vec<_> = pids.collect();
            // Fails if the janitor was killed, which does not matter.
            drop(writeln!(orders, "{}", pids.join(" ")));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Errors mean that they have ended. The janitor kills their groups, whose IDs are not
        // reused while these processes are not waited for.
        for (_, child) in &mut self.running {
            drop(child.kill());
        }
        self.orders = None;
        drop(self.janitor.wait());
        for (_, child) in &mut self.running {
            drop(child.wait());
        }
    }
}

/// A command without input and with its output in a file.
pub(crate) fn with_log<'a>(command: &'a mut Command, log: &Path) -> Outcome<&'a mut Command> {
    let file = File::create(log).map_err(|error| Failure::file("create", log, &error))?;
    let same = file.try_clone();
    let same = same.map_err(|error| Failure::file("open", log, &error))?;
    Ok(command.stdin(Stdio::null()).stdout(file).stderr(same))
}

fn not_running(name: &str) -> Failure {
    Failure::Failed(format!("{name} does not run"))
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

    const IT: &str = "the target";

    fn stage() -> Stage {
        Stage::new(&std::env::temp_dir(), "stage", Folder::Remove).unwrap()
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
        assert_eq!(
            stage.start(IT, &mut shell(script), &log).unwrap(),
            "is ready"
        );
        stage.stop(IT).unwrap();
        drop(stage);
        assert!(!folder.exists());
    }

    #[test]
    fn unexpected_end_of_target_is_a_failure() {
        let mut stage = stage();
        let log = stage.path("log");
        let failure = stage
            .start(IT, &mut shell("echo no; exit 2"), &log)
            .unwrap_err();
        assert!(
            failure.to_string().contains("terminated unexpectedly"),
            "{failure}"
        );

        let script = "trap 'exit 1' TERM; echo ready; while :; do sleep 0.1; done";
        stage.start(IT, &mut shell(script), &log).unwrap();
        assert!(stage.stop(IT).is_err());
    }

    #[test]
    fn dropped_stage_kills_the_target() {
        let mut stage = stage();
        let log = stage.path("log");
        stage
            .start(
                IT,
                &mut shell("trap '' TERM; echo ready; exec sleep 600"),
                &log,
            )
            .unwrap();
        let pid = stage.pid(IT).unwrap();
        assert!(is_running(pid));
        drop(stage);
        assert!(!is_running(pid));
    }

    #[test]
    fn janitor_alone_stops_the_target_and_removes_the_folder() {
        let mut stage = stage();
        let log = stage.path("log");
        stage
            .start(IT, &mut shell("echo ready; exec sleep 600"), &log)
            .unwrap();
        let folder = stage.folder.clone();
        // What the system does when we are killed.
        stage.orders = None;
        assert!(stage.janitor.wait().unwrap().success());
        assert!(!folder.exists());
        // Ended by the janitor's signal, not by ours.
        assert!(!stage.running[0].1.wait().unwrap().success());
    }

    #[test]
    fn all_processes_end_and_a_kept_folder_stays() {
        let mut stage = Stage::new(&std::env::temp_dir(), "stage", Folder::Keep).unwrap();
        let folder = stage.folder.clone();
        for name in ["a", "b", "c"] {
            stage.spawn(name, &mut shell("exec sleep 600")).unwrap();
        }
        let pids = stage.names().into_iter().map(|name| stage.pid(&name));
        let pids: Vec<_> = pids.map(Outcome::unwrap).collect();
        stage.kill("b").unwrap();
        assert!(stage.pid("b").is_err() && stage.exited("b").is_err());
        assert!(!is_running(pids[1]) && is_running(pids[0]) && is_running(pids[2]));
        assert!(stage.wait("a", PAUSE).unwrap().is_none());
        drop(stage);
        assert!(pids.into_iter().all(|pid| !is_running(pid)));
        fs::remove_dir(folder).unwrap();
    }
}
