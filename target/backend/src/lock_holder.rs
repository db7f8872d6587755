//! Locks that outlive the process that took them.
//!
//! A process that is killed keeps its locks until the kernel has torn down its io_uring, which
//! waits for operations in flight: the device may still execute its writes. `/proc/locks`
//! (proc_locks(5)) names the process of each lock; here it has ended.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use nvmeof_backend_spec::within;

use crate::blocking::OPENING;

/// The first of `paths` that a process has locked which has ended since, and its PID. `None`
/// if there is no such lock, or it cannot be determined.
#[must_use]
pub fn locked_by_ended_process(paths: impl Iterator<Item = PathBuf>) -> Option<(PathBuf, u32)> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // Almost always there is none. Then no file system is asked, which may not respond.
    if !locks
        .lines()
        .filter_map(flock)
        .any(|(_, pid)| has_ended(pid))
    {
        return None;
    }
    paths.into_iter().find_map(|path| {
        let named = path.clone();
        let metadata = within(OPENING, move || fs::metadata(named).ok()).flatten()?;
        let holders: Vec<_> = holders_of(&locks, metadata.dev(), metadata.ino()).collect();
        // A process that still exists may be another target: it is not waited for.
        let ended = holders.first().copied()?;
        let all_ended = holders.iter().all(|pid| has_ended(*pid));
        all_ended.then_some((path, ended))
    })
}

/// PIDs of the holders of flock(2) locks on that inode.
fn holders_of(locks: &str, dev: u64, inode: u64) -> impl Iterator<Item = u32> {
    let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let locks = locks.lines().filter_map(flock);
    locks.filter_map(move |(of, pid)| (of == file).then_some(pid))
}

/// File and PID of a flock(2) lock, as in `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`. A
/// request that waits for the lock has `->` before the type.
fn flock(line: &str) -> Option<(&str, u32)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let is_lock = words.next()? == "FLOCK";
    let mut words = words.skip(2);
    let (pid, file) = (words.next()?.parse().ok()?, words.next()?);
    is_lock.then_some((file, pid))
}

/// Whether that process does not exist any more, or is a zombie. Processes of others may be hidden
/// in `/proc` (hidepid, `ProtectProc=`), so that is not asked whether they exist.
pub(crate) fn has_ended(pid: u32) -> bool {
    let known = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    let Some(known) = known.map(Pid::from_raw) else {
        return false;
    };
    if kill(known, None) == Err(Errno::ESRCH) {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    // proc_pid_stat(5): the name in parentheses may have any characters.
    let state = stat
        .as_deref()
        .ok()
        .and_then(|stat| stat.rsplit(')').next());
    state.is_some_and(|state| state.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_those_of_the_inode() {
        let locks = "\
            1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF\n\
            1: -> FLOCK  ADVISORY  WRITE 99 fd:01:5678 0 EOF\n\
            2: POSIX  ADVISORY  WRITE 7 fd:01:5678 0 EOF\n\
            3: FLOCK  ADVISORY  READ  1235 fd:01:5678 0 EOF\n\
            4: FLOCK  ADVISORY  WRITE 8 fd:01:56789 0 EOF\n\
            5: OFDLCK ADVISORY  WRITE -1 fd:01:5678 0 EOF\n\
            garbage\n";
        let dev = nix::sys::stat::makedev(0xfd, 1);
        let holders: Vec<_> = holders_of(locks, dev, 5678).collect();
        assert_eq!(holders, [1234, 1235]);
        assert_eq!(holders_of(locks, dev, 1).count(), 0);
    }

    #[test]
    fn a_running_process_has_not_ended() {
        assert!(!has_ended(std::process::id()));
        // Of root, and possibly hidden.
        assert!(!has_ended(1));
        // Of locks that belong to no process (OFD), and of another PID namespace.
        assert!(!has_ended(0) && !has_ended(u32::MAX));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        // A zombie until it is waited for.
        while !has_ended(pid) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
    }

    #[test]
    fn own_lock_is_not_one_of_an_ended_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let paths = || std::iter::once(file.path().to_owned());
        assert_eq!(locked_by_ended_process(paths()), None);
        file.as_file().lock().unwrap();
        assert_eq!(locked_by_ended_process(paths()), None);
    }
}
