//! Resources of a process, from the kernel.

use std::fs;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The CPUs that this process and the programs that it starts may use. CPU 0 need not
/// be among them.
#[must_use]
pub fn usable_cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let is_set = |cpu: &usize| set.is_set(*cpu).unwrap();
    (0..CpuSet::count()).filter(is_set).collect()
}

/// The table `[reactor]` with so many reactors on the first of these.
#[must_use]
pub fn reactors_on_one_cpu(count: usize) -> String {
    let cores = vec![usable_cpus()[0]; count];
    format!("[reactor]\ncores = {cores:?}\n")
}

/// Open file descriptors.
#[must_use]
pub fn fds(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Memory in use, in KiB.
#[must_use]
pub fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    number.parse().unwrap()
}

/// Memory of a process in KiB: anonymous memory, and its proportional share of shared memory.
/// Programs, files and memory of the kernel are not counted.
#[must_use]
pub fn own_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let lines = rollup.lines().filter_map(|line| line.split_once(':'));
    let own = lines.filter(|(key, _)| ["Pss_Anon", "Pss_Shmem"].contains(key));
    own.map(|(_, kib)| kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap())
        .sum()
}

/// CPU time used so far, in seconds, user and system.
#[must_use]
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name in parentheses may contain any character. The fields after it begin with
    // number 3; utime and stime are 14 and 15.
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.map(|field| field.parse::<f64>().unwrap()).sum();
    // USER_HZ is 100 on every Linux.
    ticks / 100.0
}

/// CPU time of the threads of a process so far, in nanoseconds. Ticks are too coarse: an idle
/// process has hardly one in ten seconds.
#[must_use]
pub fn cpu_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanos = threads.map(|thread| {
        let text = fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap();
        // Time on a CPU is first (sched-stats.rst of the kernel).
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(nanos.sum())
}

/// Whether all threads of a process are stopped by a signal (proc_pid_status(5)).
pub(crate) fn is_stopped(pid: u32) -> bool {
    let mut threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.all(|thread| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:\tT"))
    })
}

/// Whether the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
