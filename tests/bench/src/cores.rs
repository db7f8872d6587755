//! Cores: the available ones, and starting a process on one of them.

use std::fs;
use std::process::{Child, Command};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Trouble;

/// The calling thread, for the kernel.
const SELF: Pid = Pid::from_raw(0);

/// The cores of the two sides; equal on a machine with one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) target: usize,
    pub(crate) initiator: usize,
}

impl Cores {
    /// The first two cores that this process may use.
    pub(crate) fn find() -> Result<Self, Trouble> {
        let mut allowed = allowed()?.into_iter();
        let none = || Trouble::SetUp("this process may run on no core".to_owned());
        let target = allowed.next().ok_or_else(none)?;
        let initiator = allowed.next().unwrap_or(target);
        Ok(Self { target, initiator })
    }

    pub(crate) fn are_two(self) -> bool {
        self.target != self.initiator
    }

    /// The same with the sides exchanged.
    pub(crate) fn swapped(self) -> Self {
        Self {
            target: self.initiator,
            initiator: self.target,
        }
    }
}

/// All cores that this process may use.
pub(crate) fn allowed() -> Result<Vec<usize>, Trouble> {
    let set = sched_getaffinity(SELF).map_err(|errno| trouble("read the CPU affinity", errno))?;
    let cores = 0..CpuSet::count();
    Ok(cores
        .filter(|core| set.is_set(*core).unwrap_or(false))
        .collect())
}

fn trouble(doing: &str, errno: nix::errno::Errno) -> Trouble {
    Trouble::SetUp(format!("cannot {doing}: {errno}"))
}

/// Starts a process that stays on `cores`, with all its threads.
pub(crate) fn spawn(cores: &[usize], command: &mut Command) -> Result<Child, Trouble> {
    let ours = sched_getaffinity(SELF).map_err(|errno| trouble("read the CPU affinity", errno))?;
    stay(SELF, cores)?;
    // A child starts where its parent's thread may run.
    let child = command.spawn();
    sched_setaffinity(SELF, &ours).map_err(|errno| trouble("restore the CPU affinity", errno))?;
    child.map_err(|error| {
        let program = command.get_program().to_string_lossy();
        Trouble::SetUp(format!("cannot start `{program}`: {error}"))
    })
}

/// Prefix of the names of SQPOLL kernel threads.
const SQPOLL_THREADS: &str = "iou-sqp-";

/// Moves a process to `cores`, with all threads that it has now, except SQPOLL threads.
pub(crate) fn shift(process: u32, cores: &[usize]) -> Result<(), Trouble> {
    for (thread, name) in threads(process)? {
        if name.starts_with(SQPOLL_THREADS) {
            continue;
        }
        match stay(thread, cores) {
            // The thread has ended.
            Err(_) if !fs::exists(format!("/proc/{thread}")).unwrap_or(false) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Threads of a process and their names.
fn threads(process: u32) -> Result<Vec<(Pid, String)>, Trouble> {
    let path = format!("/proc/{process}/task");
    let all = fs::read_dir(&path);
    let all = all.map_err(|error| Trouble::file("read", path.as_ref(), &error))?;
    let threads = all.filter_map(|entry| {
        let path = entry.ok()?.path();
        let number = path.file_name()?.to_str()?.parse().ok()?;
        // Without a name, the thread has ended.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        Some((Pid::from_raw(number), name))
    });
    Ok(threads.collect())
}

fn stay(thread: Pid, cores: &[usize]) -> Result<(), Trouble> {
    let mut some = CpuSet::new();
    let mut set = cores.iter().map(|core| some.set(*core));
    set.find(Result::is_err)
        .unwrap_or(Ok(()))
        .and_then(|()| sched_setaffinity(thread, &some))
        .map_err(|errno| trouble(&format!("run on the cores {cores:?}"), errno))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Stdio;

    use super::*;

    #[test]
    fn child_runs_on_its_core_and_affinity_is_restored() {
        let before = allowed().unwrap();
        let core = *before.last().unwrap();
        let mut command = Command::new("grep");
        command
            .args(["Cpus_allowed_list", "/proc/self/status"])
            .stdout(Stdio::piped());
        let output = spawn(&[core], &mut command).unwrap().wait_with_output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(text.split_whitespace().nth(1), Some(&*core.to_string()));
        assert_eq!(allowed().unwrap(), before);
    }

    /// As a text.
    fn cores_of(process: u32) -> String {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
        list.unwrap().to_owned()
    }

    #[test]
    fn process_is_moved_to_another_core() {
        let Cores { target, initiator } = Cores::find().unwrap();
        let mut command = Command::new("sleep");
        let mut child = spawn(&[target], command.arg("60")).unwrap();
        let pid = child.id();
        shift(pid, &[initiator]).unwrap();
        let list = cores_of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(list, initiator.to_string());
        assert!(shift(pid, &[initiator]).is_err(), "it is gone");
    }

    /// A process with the name of such a thread.
    #[test]
    fn sqpoll_threads_are_not_moved() {
        let Cores { target, initiator } = Cores::find().unwrap();
        let mut command = Command::new("sh");
        let script = "echo iou-sqp-1 > /proc/$$/comm; echo named; read end";
        command.args(["-c", script]).stdin(Stdio::piped());
        let mut child = spawn(&[target], command.stdout(Stdio::piped())).unwrap();
        let stdout = &mut [0; 5];
        child.stdout.as_mut().unwrap().read_exact(stdout).unwrap();
        shift(child.id(), &[initiator]).unwrap();
        let list = cores_of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(list, target.to_string());
    }

    #[test]
    fn missing_program_is_named() {
        let core = Cores::find().unwrap().target;
        let trouble = spawn(&[core], &mut Command::new("no-such-program")).unwrap_err();
        assert!(trouble.to_string().contains("no-such-program"), "{trouble}");
    }
}
