//! Profiles: samples of perf(1), counted by the purpose of the code.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::{Trouble, cores};

/// The purpose of the code of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    /// System calls and interrupts: sockets, devices, sleep, the clock.
    Kernel,
    /// Work on each byte: copies, CRCs, zeroing by the null device.
    Bytes,
    /// The RDMA provider.
    Provider,
    /// NVMe: commands, queues, and the loop around them.
    Commands,
    /// The backing store.
    #[serde(rename = "disk")]
    Store,
    Other,
}

/// All parts, in the order of tables.
pub(crate) const PARTS: [Part; 6] = [
    Part::Kernel,
    Part::Bytes,
    Part::Provider,
    Part::Commands,
    Part::Store,
    Part::Other,
];

/// Samples of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Profile {
    pub(crate) samples: usize,
    pub(crate) parts: BTreeMap<Part, usize>,
    /// The function with most samples, and their number.
    pub(crate) largest: Option<(String, usize)>,
}

/// The profiles of target and initiator.
pub(crate) type Sides = [Profile; 2];

/// Samples per second of a busy CPU.
const FREQUENCY: &str = "1999";

/// Samples a process for `time`. The samples go to `file`.
pub(crate) fn watch(process: u32, time: Duration, file: &Path) -> Result<Child, Trouble> {
    let mut record = record(file);
    record.arg("-p").arg(process.to_string());
    record.args(["--", "sleep", &time.as_secs_f64().to_string()]);
    record.stdin(Stdio::null()).stdout(Stdio::null());
    record.spawn().map_err(|error| missing(&error))
}

/// Runs a command on `cores` and samples it.
pub(crate) fn run(command: &Command, cores: &[usize], file: &Path) -> Result<(), Trouble> {
    let mut record = record(file);
    record.arg("--").arg(command.get_program());
    record.args(command.get_args());
    record.stdin(Stdio::null()).stdout(Stdio::null());
    ended(cores::spawn(cores, &mut record)?)
}

/// Waits until perf is done.
pub(crate) fn ended(mut perf: Child) -> Result<(), Trouble> {
    ended_with(perf.wait().map_err(|error| missing(&error))?)
}

fn ended_with(status: ExitStatus) -> Result<(), Trouble> {
    if status.success() {
        return Ok(());
    }
    Err(Trouble::SetUp(format!(
        "perf failed, {status}; if it is not permitted, run as root, \
         `sysctl kernel.perf_event_paranoid=-1`, or {WITHOUT}"
    )))
}

/// Reads the samples of `file`.
pub(crate) fn read(file: &Path) -> Result<Profile, Trouble> {
    let mut script = Command::new("perf");
    script.arg("script").arg("-i").arg(file);
    let output = script.args(["-F", "ip,sym,dso"]).output();
    let output = output.map_err(|error| missing(&error))?;
    Ok(Profile::of(&String::from_utf8_lossy(&output.stdout)))
}

/// Checks that perf is installed and permitted, before the first measurement. Its samples
/// go to `file`.
pub(crate) fn must_have_perf(file: &Path) -> Result<(), Trouble> {
    let mut record = record(file);
    record.args(["--", "true"]).stdin(Stdio::null());
    let output = record.output().map_err(|error| missing(&error))?;
    ended_with(output.status)
}

fn missing(error: &std::io::Error) -> Trouble {
    Trouble::SetUp(format!(
        "cannot start perf for profiles: {error}; install the package \
         `linux-perf` (cargo xtask setup does), or {WITHOUT}"
    ))
}

/// How to run without perf.
const WITHOUT: &str = "omit --profile and do not update docs/performance.md (--no-refresh)";

fn record(file: &Path) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "-F", FREQUENCY, "-o"]);
    perf.arg(file);
    perf
}

impl Profile {
    /// The profile of the output of `perf script -F ip,sym,dso`: a line for each sample.
    fn of(text: &str) -> Self {
        let mut profile = Self::default();
        let mut functions: BTreeMap<&str, usize> = BTreeMap::new();
        for line in text.lines() {
            let Some((function, file)) = sampled(line) else {
                continue;
            };
            profile.samples += 1;
            *profile.parts.entry(part(function, file)).or_default() += 1;
            *functions.entry(function).or_default() += 1;
        }
        let largest = functions.into_iter().max_by_key(|(_, count)| *count);
        profile.largest = largest.map(|(function, count)| (short(function), count));
        profile
    }

    /// Percent of the samples.
    pub(crate) fn percent(&self, count: usize) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "some thousands")]
        let ratio = |count: usize, all: usize| 100.0 * count as f64 / all.max(1) as f64;
        ratio(count, self.samples)
    }

    pub(crate) fn percent_of(&self, part: Part) -> f64 {
        self.percent(self.parts.get(&part).copied().unwrap_or_default())
    }
}

/// Function and file of a line such as `ffffffff8157ab85 perf_event_mmap
/// ([kernel.kallsyms])`.
fn sampled(line: &str) -> Option<(&str, &str)> {
    let (_address, rest) = line.trim().split_once(' ')?;
    let (function, file) = rest.rsplit_once(" (")?;
    Some((function.trim(), file.strip_suffix(')')?))
}

/// Parts by words in the names of functions. The first match counts: the name of a
/// function may contain a type of another crate.
const OURS: [(&str, Part); 6] = [
    ("nvmeof_rdma", Part::Provider),
    ("nvmeof_backend", Part::Store),
    ("nvmeof_uring", Part::Store),
    ("io_uring", Part::Store),
    ("nvmeof_", Part::Commands),
    ("nvmeof::", Part::Commands),
];

/// Words in the names of functions that process each byte.
const BYTES: [&str; 4] = ["memcpy", "memmove", "memset", "crc32"];

fn part(function: &str, file: &str) -> Part {
    let has = |word: &str| function.contains(word);
    if file.starts_with('[') {
        // The vdso is the kernel's too: the clock.
        return Part::Kernel;
    }
    if BYTES.iter().any(|word| has(word)) {
        return Part::Bytes;
    }
    if file.contains("/libc.so") {
        return Part::Kernel;
    }
    // The crate of the function, not of one of its types.
    let path = function.trim_start_matches('<');
    let begins = |word: &str| path.starts_with(word);
    let mut ours = OURS.iter();
    let first = OURS.iter().find(|(word, _)| begins(word));
    let found = first.or_else(|| ours.find(|(word, _)| has(word)));
    found.map_or(Part::Other, |(_, part)| *part)
}

/// A short name for a table, without paths and generic parameters.
fn short(function: &str) -> String {
    let mut depth = 0_usize;
    let plain: String = function
        .chars()
        .filter(|letter| {
            depth += usize::from(*letter == '<');
            let outside = depth == 0;
            depth = depth.saturating_sub(usize::from(*letter == '>'));
            outside
        })
        .collect();
    let parts: Vec<&str> = plain.split("::").filter(|part| !part.is_empty()).collect();
    let last = parts.get(parts.len().saturating_sub(2)..);
    last.unwrap_or_default().join("::")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
 ffffffff8157ab85 _copy_from_iter ([kernel.kallsyms])
     7f86c9dccbb2 __memset_avx2_unaligned_erms (/usr/lib/x86_64-linux-gnu/libc.so.6)
     55a0 nvmeof_rdma_soft::stage::<impl nvmeof_rdma_soft::Outbound>::begin (/a/nvmeof-target)
     55a1 <nvmeof_rdma_soft::SoftRdma<S> as nvmeof_rdma::Provider>::post (/a/nvmeof-target)
     55a2 nvmeof_target::reactor::Reactor<S>::poll_once (/a/nvmeof-target)
     55a2 nvmeof_target::reactor::Reactor<S>::poll_once (/a/nvmeof-target)
     55a3 <nvmeof_backend::NullDisk as nvmeof_backend::Backend>::submit (/a/nvmeof-target)
     7fff __vdso_clock_gettime ([vdso])
     7ffe epoll_wait (/usr/lib/x86_64-linux-gnu/libc.so.6)
     55a5 crc_fast::crc32::fusion::crc32_iscsi_sse_v4s3x3 (/a/nvmeof-target)
     55a4 main (/a/nvmeof-target)

";

    #[test]
    fn samples_are_counted_by_part() {
        let profile = Profile::of(TEXT);
        assert_eq!(profile.samples, 11);
        let counts = PARTS.map(|part| profile.parts.get(&part).copied().unwrap_or_default());
        assert_eq!(counts, [3, 2, 2, 2, 1, 1]);
        assert_eq!(profile.largest, Some(("Reactor::poll_once".to_owned(), 2)));
        assert!((profile.percent_of(Part::Kernel) - 27.3).abs() < 0.1);
        assert_eq!(Profile::of("").percent_of(Part::Kernel), 0.0);
    }

    #[test]
    fn function_counts_for_its_own_crate() {
        let part = |function| part(function, "/a/nvmeof");
        let own = "nvmeof_initiator::polled::transfer::<impl nvmeof_rdma::Conn>::submit";
        assert_eq!(part(own), Part::Commands);
        let generic = "core::ptr::drop_in_place<nvmeof_rdma_shm::Ring>";
        assert_eq!(part(generic), Part::Provider);
        assert_eq!(part("tokio::runtime::block_on"), Part::Other);
    }

    #[test]
    fn names_are_short() {
        let name = "nvmeof_rdma_soft::outbound::<impl nvmeof_rdma_soft::Outbound>::begin";
        assert_eq!(short(name), "outbound::begin");
        assert_eq!(short("_copy_from_iter"), "_copy_from_iter");
    }
}
