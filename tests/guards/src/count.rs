//! Counting with callgrind.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::case::{Case, OTHERS};

/// Rounds of the shorter run.
const ROUNDS: u32 = 200;
/// Runs of a case that depends on the time, at least and at most. What a slow machine adds, as by
/// timers that expire while it runs something else, differs from run to run: the smallest count is
/// taken once two runs have it, or nearly so.
const FEWEST_RUNS: usize = 4;
const MOST_RUNS: usize = 10;
/// Generic variants of glibc's memory functions, independent of the CPU.
const TUNABLES: &str =
    "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX,-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM";
/// Lines of a profile.
const PROFILE_LINES: usize = 45;

/// Builds the other programs: `cargo run` builds only the program that it runs.
pub(crate) fn build_others() -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "--locked", "--package", "nvmeof-guards"]);
    cargo.args(OTHERS.iter().flat_map(|program| ["--bin", program]));
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
    match status.map_err(|error| format!("cannot start cargo: {error}"))? {
        status if status.success() => Ok(()),
        status => Err(format!(
            "cargo cannot build {}: {status}",
            OTHERS.join(", ")
        )),
    }
}

/// Instructions of one operation of `case`.
pub(crate) fn count(case: Case, profile: bool) -> Result<u64, String> {
    let (short, long) = std::thread::scope(|scope| {
        let short = scope.spawn(|| fewest_instructions(case, ROUNDS, false));
        let long = fewest_instructions(case, 2 * ROUNDS, profile);
        let broken = |_| Err("a thread panicked".to_owned());
        (short.join().unwrap_or_else(broken), long)
    });
    let (short, long) = (short?, long?);
    let rounds = u64::from(ROUNDS) * u64::from(case.depth);
    match long.checked_sub(short) {
        Some(difference) if difference > 0 => Ok(difference / rounds),
        _ => Err(format!(
            "{}: {long} instructions for twice the rounds of {short}: callgrind did not find {}",
            case.name(),
            case.functions().join(" and ")
        )),
    }
}

/// As [`instructions`], but the smallest count of several runs if it depends on the time.
fn fewest_instructions(case: Case, rounds: u32, profile: bool) -> Result<u64, String> {
    let first = instructions(case, rounds, profile)?;
    match case.has_baseline() {
        true => Ok(first),
        false => fewest(first, || instructions(case, rounds, false)),
    }
}

/// The smallest of `first` and further counts, of which two differ by at most 0.1 %.
fn fewest(first: u64, mut next: impl FnMut() -> Result<u64, String>) -> Result<u64, String> {
    let mut counts = vec![first];
    loop {
        counts.sort_unstable();
        match counts[..] {
            [smallest, second, ..]
                if counts.len() >= FEWEST_RUNS && second - smallest <= smallest / 1000 =>
            {
                return Ok(smallest);
            }
            [smallest, ..] if counts.len() >= MOST_RUNS => return Ok(smallest),
            _ => counts.push(next()?),
        }
    }
}

fn instructions(case: Case, rounds: u32, profile: bool) -> Result<u64, String> {
    let file = Output::new(&case.name(), rounds);
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find the path of this program: {error}"))?;
    let (program, mut arguments) = match case.elsewhere() {
        Some((other, words)) => (program.with_file_name(other), words),
        None => (program, vec!["run".to_owned(), case.name()]),
    };
    arguments.push(rounds.to_string());
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg({
        let mut option = std::ffi::OsString::from("--callgrind-out-file=");
        option.push(&file.0);
        option
    });
    for function in case.functions() {
        valgrind.arg(format!("--toggle-collect=*{function}*"));
    }
    valgrind.arg(program).args(arguments);
    valgrind.env("GLIBC_TUNABLES", TUNABLES);
    let output = valgrind.stdin(Stdio::null()).output().map_err(|error| {
        format!(
            "cannot start valgrind: {error}; install the package `valgrind` (cargo xtask setup)"
        )
    })?;
    let stdout = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("{}: {}\n{stdout}", case.name(), output.status));
    }
    if profile {
        print_profile(case, &file.0)?;
    }
    let text = std::fs::read_to_string(&file.0)
        .map_err(|error| format!("cannot read callgrind's output: {error}\n{stdout}"))?;
    total(&text).ok_or_else(|| format!("callgrind's output has no total\n{stdout}"))
}

/// A file that is removed when this is dropped.
struct Output(PathBuf);

impl Output {
    fn new(name: &str, rounds: u32) -> Self {
        let name = format!("callgrind-{}-{name}-{rounds}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Fails if there is no file, which does not matter.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn total(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let totals = lines.find_map(|line| line.strip_prefix("totals:"))?;
    totals.trim().parse().ok()
}

fn print_profile(case: Case, file: &Path) -> Result<(), String> {
    let output = Command::new("callgrind_annotate")
        .args(["--threshold=95", "--auto=no"])
        .arg(file)
        .output()
        .map_err(|error| format!("cannot start callgrind_annotate: {error}"))?;
    println!("== {}, {} rounds", case.name(), 2 * ROUNDS);
    for line in String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains('%'))
        .take(PROFILE_LINES)
    {
        println!("{line}");
    }
    Ok(())
}

/// The version string of the compiler.
pub(crate) fn compiler() -> Result<String, String> {
    let output = Command::new("rustc").arg("-V").output();
    let output = output.map_err(|error| format!("cannot start rustc: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_count_that_is_repeated_is_taken() {
        let of = |first, others: &[u64]| {
            let mut others = others.iter().copied();
            let fewest = fewest(first, || others.next().ok_or_else(|| "ended".to_owned()));
            (fewest.unwrap(), others.len())
        };
        assert_eq!(of(10_010, &[10_000, 10_300, 10_300, 9_000]), (10_000, 1));
        // What is added by chance may be in the first ones.
        assert_eq!(
            of(10_400, &[10_401, 10_200, 10_005, 10_000, 9_000]),
            (10_000, 1)
        );
        let never = [200, 190, 180, 170, 160, 150, 140, 130, 120];
        assert_eq!(of(210, &never), (120, 0));
    }

    #[test]
    fn total_is_found() {
        assert_eq!(total("events: Ir\nfn=x\n1 2\ntotals: 1234\n"), Some(1234));
        assert_eq!(total("events: Ir\n"), None);
    }
}
