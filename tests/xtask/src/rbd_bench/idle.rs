//! CPU time, memory and threads of an idle process.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::run::{Failure, Outcome};

/// How long it is observed.
pub(super) const TIME: Duration = Duration::from_secs(20);
/// After the start, connections and leases settle.
const SETTLE: Duration = Duration::from_secs(3);

/// Threads of librados and librbd, by the beginnings of their names.
const OF_CEPH: &[&str] = &[
    "admin_socket",
    "ceph_timer",
    "fn_",
    "fn-",
    "io_context_pool",
    "log",
    "ms_",
    "msgr-worker",
    "safe_timer",
    "service",
    "signal_handler",
    "taskfin_",
    "tp_",
];

/// Threads of one name: how many, and their CPU time in percent of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Threads {
    count: usize,
    percent: f64,
}

/// What a process uses.
pub(super) struct Usage {
    threads: BTreeMap<String, Threads>,
    resident_mib: f64,
}

/// Observes a process while it is idle.
pub(super) fn measure(pid: u32) -> Outcome<Usage> {
    let process = Path::new("/proc").join(pid.to_string());
    sleep(SETTLE);
    let (before, started) = (times(&process)?, Instant::now());
    sleep(TIME);
    let (after, took) = (times(&process)?, started.elapsed());
    let mut threads: BTreeMap<String, Threads> = BTreeMap::new();
    for (id, (name, nanos)) in after {
        let earlier = before.get(&id).map_or(0.0, |(_, nanos)| *nanos);
        let kind = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '-');
        let all = threads.entry(kind.to_owned()).or_default();
        all.count += 1;
        all.percent += (nanos - earlier) / took.as_secs_f64() / 1e7;
    }
    let status = read(&process.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    Ok(Usage {
        threads,
        resident_mib: kib.unwrap_or_default() / 1024.0,
    })
}

/// Name and CPU time in nanoseconds of each thread, by its ID.
fn times(process: &Path) -> Outcome<BTreeMap<PathBuf, (String, f64)>> {
    let folder = process.join("task");
    let cannot = |error: std::io::Error| Failure::file("read", &folder, &error);
    let mut times = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(cannot)? {
        let task = entry.map_err(cannot)?.path();
        // A thread may end meanwhile.
        let (Ok(name), Ok(time)) = (read(&task.join("comm")), read(&task.join("schedstat"))) else {
            continue;
        };
        let nanos = time.split(' ').next().and_then(|first| first.parse().ok());
        times.insert(task, (name.trim().to_owned(), nanos.unwrap_or_default()));
    }
    Ok(times)
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))
}

fn is_of_ceph(name: &str) -> bool {
    OF_CEPH.iter().any(|begin| name.starts_with(begin))
}

impl Usage {
    fn sum(&self, of_ceph: bool) -> Threads {
        let of_kind = self
            .threads
            .iter()
            .filter(|(name, _)| is_of_ceph(name) == of_ceph);
        of_kind.fold(Threads::default(), |sum, (_, threads)| Threads {
            count: sum.count + threads.count,
            percent: sum.percent + threads.percent,
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "| idle target with two images | threads | CPU |")?;
        writeln!(out, "| --- | --- | --- |")?;
        for (what, of_ceph) in [("of the target", false), ("of librbd and librados", true)] {
            let Threads { count, percent } = self.sum(of_ceph);
            writeln!(out, "| {what} | {count} | {percent:.2} % of a core |")?;
        }
        writeln!(
            out,
            "\nResident memory: {:.0} MiB. Threads:",
            self.resident_mib
        )?;
        for (name, Threads { count, percent }) in &self.threads {
            writeln!(out, "{name:16} {count:3} {percent:6.2} %")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_ceph_are_counted_apart() {
        let some = |count, percent| Threads { count, percent };
        let threads = [
            ("msgr-worker", some(3, 0.5)),
            ("reactor", some(2, 0.25)),
            ("fn_anonymous", some(2, 0.5)),
        ];
        let usage = Usage {
            threads: threads.map(|(name, it)| (name.to_owned(), it)).into(),
            resident_mib: 40.0,
        };
        assert_eq!(usage.sum(true), some(5, 1.0));
        let text = usage.to_string();
        assert!(
            text.contains("| of the target | 2 | 0.25 % of a core |"),
            "{text}"
        );
    }

    #[test]
    fn own_threads_are_found() {
        let own = times(Path::new("/proc/self")).unwrap();
        assert!(!own.is_empty() && own.values().any(|(_, nanos)| *nanos > 0.0));
    }
}
