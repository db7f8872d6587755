//! Cores: which there are, and starting a process on one of them.

use std::fs;
use std::process::{Child, Command};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::Trouble;

/// Ours among all threads, for the kernel.
const SELF: Pid = Pid::from_raw(0);

/// The cores of the two sides; the same one on a machine that has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(crate) target: usize,
    pub(crate) initiator: usize,
}

impl Cores {
    /// The first two that we may use.
    pub(crate) fn find() -> Result<Self, Trouble> {
        let mut allowed = allowed()?.into_iter();
        let none = || Trouble::SetUp("the kernel lets us run on no core".to_owned());
        let target = allowed.next().ok_or_else(none)?;
        let initiator = allowed.next().unwrap_or(target);
        Ok(Self { target, initiator })
    }

    pub(crate) fn are_two(self) -> bool {
        self.target != self.initiator
    }

    /// The same with the sides changed.
    pub(crate) fn swapped(self) -> Self {
        Self {
            target: self.initiator,
            initiator: self.target,
        }
    }
}

/// All that we may use.
pub(crate) fn allowed() -> Result<Vec<usize>, Trouble> {
    let set = sched_getaffinity(SELF).map_err(|errno| trouble("ask for our cores", errno))?;
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
    let ours = sched_getaffinity(SELF).map_err(|errno| trouble("ask for our cores", errno))?;
    stay(SELF, cores)?;
    // A child starts where its parent's thread may run.
    let child = command.spawn();
    sched_setaffinity(SELF, &ours).map_err(|errno| trouble("go back to our cores", errno))?;
    child.map_err(|error| {
        let program = command.get_program().to_string_lossy();
        Trouble::SetUp(format!("cannot start `{program}`: {error}"))
    })
}

/// How the kernel names the threads that take a process's operations (SQPOLL).
const TAKERS: &str = "iou-sqp-";

/// Has a process go on on `cores`, with all threads that it has now, but for those
/// that take its operations.
pub(crate) fn shift(process: u32, cores: &[usize]) -> Result<(), Trouble> {
    for (thread, name) in threads(process)? {
        if name.starts_with(TAKERS) {
            continue;
        }
        match stay(thread, cores) {
            // It is gone by now.
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
        // Without a name it is gone by now.
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
    fn a_child_has_its_core_and_we_keep_ours() {
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
    fn a_process_goes_on_elsewhere() {
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
    fn threads_that_take_operations_stay_where_they_are() {
        let Cores { target, initiator } = Cores::find().unwrap();
        let mut command = Command::new("sh");
        let script = "echo iou-sqp-1 > /proc/$$/comm; echo named; read end";
        command.args(["-c", script]).stdin(Stdio::piped());
        let mut child = spawn(&[target], command.stdout(Stdio::piped())).unwrap();
        let said = &mut [0; 5];
        child.stdout.as_mut().unwrap().read_exact(said).unwrap();
        shift(child.id(), &[initiator]).unwrap();
        let list = cores_of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(list, target.to_string());
    }

    #[test]
    fn program_that_is_not_there_is_named() {
        let core = Cores::find().unwrap().target;
        let trouble = spawn(&[core], &mut Command::new("no-such-program")).unwrap_err();
        assert!(trouble.to_string().contains("no-such-program"), "{trouble}");
    }
}
