//! Use of our cores by other processes during a measurement.

use std::fs;
use std::time::Duration;

use crate::cores::Cores;

/// CPU time so far, in the kernel's ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Total time of our cores.
    all: u64,
    /// Time of all processes.
    busy: u64,
    /// Time of our processes.
    ours: u64,
}

impl Snapshot {
    /// Takes a snapshot. `servers` are our running processes; terminated ones are counted
    /// as children of this one. Values that the kernel does not report are 0.
    pub(crate) fn take(cores: Cores, servers: &[u32]) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (all, busy) = of_cores(&read("/proc/stat"), cores);
        let stat = |pid: &str| read(&format!("/proc/{pid}/stat"));
        let running = servers
            .iter()
            .map(|pid| of_process(&stat(&pid.to_string())).0);
        let (own, children) = of_process(&stat("self"));
        Self {
            all,
            busy,
            ours: running.sum::<u64>() + own + children,
        }
    }

    /// Time of other processes on our cores since `before`, in percent of one core, at most
    /// 100 for each core.
    #[allow(clippy::cast_precision_loss, reason = "a figure for people")]
    pub(crate) fn others_since(&self, before: &Self, cores: Cores) -> f64 {
        let busy = self.busy.saturating_sub(before.busy);
        let ours = self.ours.saturating_sub(before.ours);
        let all = self.all.saturating_sub(before.all).max(1);
        let count = if cores.are_two() { 2.0 } else { 1.0 };
        100.0 * count * busy.saturating_sub(ours) as f64 / all as f64
    }
}

/// CPU time of process `pid`; 0 if it does not exist. Not in ticks: an almost idle
/// process has hardly one in ten seconds.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let nanos = threads.flatten().filter_map(|thread| {
        // Time on a CPU is first (sched-stats.rst of the kernel).
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Total time of our cores, and that of processes: user, nice and system of the lines
/// `cpuN` (proc(5)). Interrupts are not counted: many are for our packets.
fn of_cores(stat: &str, cores: Cores) -> (u64, u64) {
    let ours = [cores.target, cores.initiator].map(|core| format!("cpu{core}"));
    let (mut all, mut busy) = (0, 0);
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        if words
            .next()
            .is_none_or(|name| !ours.iter().any(|one| one == name))
        {
            continue;
        }
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        // The time of guests, after the first eight, is part of user time.
        all += ticks.iter().take(8).sum::<u64>();
        busy += ticks.iter().take(3).sum::<u64>();
    }
    (all, busy)
}

/// Time of a process and of its terminated children: utime and stime, cutime
/// and cstime (proc(5), fields 14 to 17).
fn of_process(stat: &str) -> (u64, u64) {
    // The second field is a name in parentheses, which may have spaces.
    let rest = stat.rsplit_once(')').map(|(_, rest)| rest);
    let ticks = rest.unwrap_or_default().split_whitespace().skip(11);
    let ticks: Vec<u64> = ticks.map_while(|word| word.parse().ok()).take(4).collect();
    match ticks[..] {
        [user, system, of_children, system_of_children] => {
            (user + system, of_children + system_of_children)
        }
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: Cores = Cores {
        target: 0,
        initiator: 2,
    };

    #[test]
    fn stat_lines_are_parsed() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 5 100 2 3 4 1 7 0\n\
                    cpu1 50 50 50 50 50 50 50 50 0 0\ncpu2 1 0 0 10 0 0 0 0 0 0\nintr 1\n";
        assert_eq!(of_cores(stat, CORES), (126 + 11, 16 + 1));
        let stat = "7 (a (b) c) S 1 1 1 0 -1 4 0 0 0 0 30 12 5 6 20 0 1 0 99";
        assert_eq!(of_process(stat), (42, 11));
        assert_eq!(of_process(""), (0, 0));
    }

    #[test]
    fn time_of_others_excludes_our_processes() {
        let before = Snapshot::default();
        let after = |busy, ours| Snapshot {
            all: 400,
            busy,
            ours,
        };
        assert!((after(300, 200).others_since(&before, CORES) - 50.0).abs() < 1e-9);
        // The kernel counts in ticks: ours may seem to have more than all.
        assert!(after(200, 201).others_since(&before, CORES).abs() < 1e-9);
    }

    #[test]
    fn cpu_time_of_a_process_grows() {
        let own = std::process::id();
        let before = cpu_time(own);
        assert!(before > Duration::ZERO);
        let until = before + Duration::from_millis(2);
        while cpu_time(own) < until {}
        assert_eq!(cpu_time(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn snapshot_of_this_machine_has_times() {
        let cores = Cores::find().unwrap();
        let before = Snapshot::take(cores, &[]);
        assert!(before.all > 0 && before.busy > 0, "{before:?}");
    }
}
