//! Locks that outlive the process that took them.
//!
//! A process that is killed keeps its locks until the kernel has torn down its io_uring, which
//! waits for operations in flight: the device may still execute its writes. `/proc/locks`
//! (proc_locks(5)) names the process of each lock; here it has ended.

use std::fs;
use std::path::Path;

use nvmeof_backend_spec::within;

use crate::blocking::OPENING;

/// The process that locked the file or block device at `path` and has ended since: its PID.
/// `None` if there is no such lock, or it cannot be determined.
#[must_use]
pub fn ended_lock_holder(path: &Path) -> Option<u32> {
    let path = path.to_owned();
    within(OPENING, move || {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let holders = holders_of(&locks, metadata.dev(), metadata.ino());
        let holders: Vec<_> = holders.collect();
        // One that runs may be another target: that is not waited for.
        let ended = holders.first().copied()?;
        holders.iter().all(|pid| has_ended(*pid)).then_some(ended)
    })
    .flatten()
}

/// PIDs of the holders of flock(2) locks on that inode.
fn holders_of(locks: &str, dev: u64, inode: u64) -> impl Iterator<Item = u32> {
    let (major, minor) = (nix::sys::stat::major(dev), nix::sys::stat::minor(dev));
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().filter_map(move |line| {
        // `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`; one that waits for the lock has
        // `->` before the type.
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_lock = words.next()? == "FLOCK";
        let mut words = words.skip(2);
        let (pid, of) = (words.next()?, words.next()?);
        (is_lock && of == file).then(|| pid.parse().ok()).flatten()
    })
}

/// Whether that process does not exist any more, or is a zombie.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return !Path::new(&format!("/proc/{pid}")).exists();
    };
    // proc_pid_stat(5): the name in parentheses may have any characters.
    let state = stat.rsplit(')').next().map(str::trim_start);
    state.is_some_and(|state| state.starts_with(['Z', 'X']))
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
        assert_eq!(ended_lock_holder(file.path()), None);
        file.as_file().lock().unwrap();
        assert_eq!(ended_lock_holder(file.path()), None);
    }
}
