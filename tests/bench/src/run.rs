//! A whole run: scenes, rounds and progress.

use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::contestant::Contestant;
use crate::cores::{self, Cores};
use crate::machine::Machine;
use crate::profile::must_have_perf;
use crate::results::{Results, Row};
use crate::scene::{Kind, Programs, Scene, Setting};
use crate::work::{IDLE_SECONDS, Store, Work};
use crate::{Arguments, Trouble, attack};

/// Rounds with `--quick`.
const QUICK_ROUNDS: u32 = 3;

/// Measures the workloads.
pub(crate) fn run(arguments: &Arguments, works: Vec<Work>) -> Result<Results, Trouble> {
    let rounds = if arguments.quick {
        QUICK_ROUNDS
    } else {
        arguments.rounds
    };
    let time = time(arguments);
    let available = cores::allowed()?.len();
    let mut rows: Vec<Row> = works
        .into_iter()
        .map(|work| row(arguments, work, available))
        .collect();
    must_have_cores(&rows, available)?;
    let setting = Setting {
        arguments,
        programs: Programs::find(arguments.bin_dir.as_deref())?,
        cores: Cores::find()?,
        time,
    };
    prepare(&setting, &rows)?;
    let bar = progress(&rows, rounds, time);
    for kind in kinds(&rows) {
        let mine = |row: &&mut Row| Kind::of(&row.work) == kind && !row.samples.is_empty();
        let mut rows: Vec<&mut Row> = rows.iter_mut().filter(mine).collect();
        let works: Vec<Work> = rows.iter().map(|row| row.work).collect();
        let mut scene = setting.open(kind, &works)?;
        let mut measured = measure(&mut scene, &mut rows, kind.rounds(rounds), &bar);
        if arguments.profiles() {
            measured = measured.and_then(|()| profile(&scene, &mut rows));
        }
        measured.map_err(|trouble| {
            let output = scene.output();
            Trouble::Failed(format!("{trouble}\noutput of the processes:\n{output}"))
        })?;
    }
    bar.finish_and_clear();
    Ok(Results {
        machine: Machine::find(),
        rounds,
        seconds: time.as_secs_f64(),
        rows,
    })
}

/// The time of each contestant in a round. Another initiator receives its run time in
/// whole seconds; all contestants get the same time, because longer measurements vary
/// less.
fn time(arguments: &Arguments) -> Duration {
    match arguments.peer.as_ref().or(arguments.peer_pair.as_ref()) {
        Some(_) => Duration::from_secs_f64(arguments.seconds.as_secs_f64().ceil()),
        None => arguments.seconds,
    }
}

/// A row for a workload, without contestants if there are too few cores.
fn row(arguments: &Arguments, work: Work, available: usize) -> Row {
    let fits = work.cores() <= available;
    let mut contestants = Vec::new();
    if fits || arguments.force {
        contestants.extend(Contestant::of(&work));
        if work.takes_peers() {
            contestants.extend(arguments.peer.as_ref().map(|_| Contestant::Peer));
            let target = arguments.peer_target.as_ref();
            contestants.extend(target.map(|_| Contestant::PeerTarget));
        }
    }
    let mut row = Row::new(work, &contestants);
    row.lacks_cores = !fits;
    row
}

/// Checks that the available cores suffice for at least one workload.
fn must_have_cores(rows: &[Row], available: usize) -> Result<(), Trouble> {
    if rows.iter().any(|row| !row.samples.is_empty()) {
        return Ok(());
    }
    let least = rows.iter().map(|row| row.work.cores()).min();
    Err(Trouble::SetUp(format!(
        "nothing to measure: these workloads require at least {} CPU cores, and this process may \
         use {available}; --force measures them anyway",
        least.unwrap_or_default()
    )))
}

/// Checks other requirements and creates files before the first measurement.
fn prepare(setting: &Setting<'_>, rows: &[Row]) -> Result<(), Trouble> {
    let measured = || rows.iter().filter(|row| !row.samples.is_empty());
    let folder = &setting.arguments.folder;
    fs::create_dir_all(folder).map_err(|error| Trouble::file("create", folder, &error))?;
    if setting.arguments.profiles() {
        must_have_perf(&folder.join("perf.data"))?;
    }
    let len = setting.arguments.file_mib << 20;
    if measured().any(|row| row.work.store == Store::File) {
        must_have_fio()?;
        fill(&setting.file(), len)?;
    }
    if measured().any(|row| Kind::of(&row.work) == Kind::Sqpoll) {
        fill(&setting.second_file(), len)?;
    }
    Ok(())
}

/// The required scenes, in order.
fn kinds(rows: &[Row]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for row in rows.iter().filter(|row| !row.samples.is_empty()) {
        let kind = Kind::of(&row.work);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn measure(
    scene: &mut Scene,
    rows: &mut [&mut Row],
    rounds: u32,
    bar: &ProgressBar,
) -> Result<(), Trouble> {
    for round in 1..=rounds {
        if round > 1 {
            scene.swap()?;
        }
        if bar.is_hidden() {
            let work = rows.first().map(|row| row.work.name());
            let first = work.unwrap_or_default();
            eprintln!("bench: round {round} of {rounds}, first workload {first}");
        }
        for row in &mut *rows {
            let work = row.work;
            bar.set_message(work.name());
            let contestants: Vec<Contestant> = row.contestants().collect();
            // The order may affect the result, so it alternates.
            let backwards = round.is_multiple_of(2);
            let samples = scene.stage.round(&work, &contestants, backwards)?;
            scene.check()?;
            for ((_, taken), sample) in row.samples.iter_mut().zip(samples) {
                taken.push(sample);
                bar.inc(1);
            }
        }
    }
    Ok(())
}

/// Profiles the workloads that miss their goal.
fn profile(scene: &Scene, rows: &mut [&mut Row]) -> Result<(), Trouble> {
    let profiled = |row: &&mut &mut Row| !row.work.is_idle() && row.work.hostile().is_none();
    for row in rows.iter_mut().filter(profiled) {
        if let Some(ours) = row.missed() {
            row.profile = Some(scene.stage.profile(ours, &row.work)?);
        }
    }
    Ok(())
}

fn must_have_fio() -> Result<(), Trouble> {
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Trouble::SetUp(
            "workloads on files require fio as their yardstick: install the package `fio` \
             (cargo xtask setup does), or name workloads that begin with null-"
                .to_owned(),
        )),
    }
}

/// Fills a file with `len` bytes, so that it has no holes: reads of holes do not reach
/// the device. A file from an earlier run is kept.
fn fill(path: &Path, len: u64) -> Result<(), Trouble> {
    if fs::metadata(path).is_ok_and(|found| found.len() == len) {
        return Ok(());
    }
    eprintln!("bench: writing {} MiB to {}", len >> 20, path.display());
    let write = || {
        // Written under another name, so that a partial file is never used.
        let unfinished = path.with_extension("part");
        let mut file = File::create(&unfinished)?;
        io::copy(&mut File::open("/dev/urandom")?.take(len), &mut file)?;
        file.sync_all()?;
        fs::rename(unfinished, path)
    };
    write().map_err(|error| Trouble::file("write", path, &error))
}

/// A progress bar on a terminal, nothing on a pipe.
fn progress(rows: &[Row], rounds: u32, time: Duration) -> ProgressBar {
    let (mut all, mut seconds) = (0, 0.0);
    for row in rows {
        let rounds = Kind::of(&row.work).rounds(rounds);
        let count = u32::try_from(row.samples.len()).unwrap_or(u32::MAX);
        all += u64::from(rounds) * u64::from(count);
        seconds += f64::from(rounds)
            * match row.work.is_idle() {
                _ if row.work.hostile().is_some() => {
                    let beside = attack::time_beside(&row.work).as_secs_f64();
                    time.as_secs_f64() + beside + ATTACKING
                }
                true if count > 0 => Duration::from_secs(IDLE_SECONDS).as_secs_f64(),
                // Processes take time to start and to connect.
                _ => {
                    let starting = STARTING * f64::from(row.slices());
                    f64::from(count) * (time.as_secs_f64() + starting)
                }
            };
    }
    eprintln!(
        "bench: {all} measurements of {:.1} s, about {:.0} min",
        time.as_secs_f64(),
        (seconds / 60.0).ceil()
    );
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(all);
    if let Ok(style) = ProgressStyle::with_template("{pos:>4} of {len} {bar:30} {eta} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Seconds for start and connection of a contestant.
const STARTING: f64 = 0.05;
/// The same for a target, an honest host and hostile peers.
const ATTACKING: f64 = 0.6;

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::work;

    #[test]
    fn workloads_without_enough_cores_are_reported_and_not_measured() {
        let plain = Arguments::parse_from(["bench"]);
        let force = Arguments::parse_from(["bench", "--force"]);
        for work in work::all() {
            for (available, arguments) in [(1, &plain), (2, &plain), (4, &plain), (1, &force)] {
                let row = row(arguments, work, available);
                let name = work.name();
                let fits = match available {
                    1 => name.ends_with("-1core"),
                    2 => !["reactors-", "sqpoll-"]
                        .iter()
                        .any(|many| name.starts_with(many)),
                    _ => true,
                };
                assert_eq!(row.lacks_cores, !fits, "{name} {available}");
                assert_eq!(row.samples.is_empty(), !fits && !arguments.force, "{name}");
            }
        }
    }

    #[test]
    fn missing_cores_are_reported_with_their_number() {
        let rows = |line: &str| -> Vec<Row> {
            let arguments = Arguments::parse_from(line.split(' '));
            let works = arguments.chosen().unwrap().into_iter();
            works.map(|work| row(&arguments, work, 2)).collect()
        };
        let many = rows("bench reactors- sqpoll-");
        let words = must_have_cores(&many, 2).unwrap_err().to_string();
        let expected = "require at least 3 CPU cores, and this process may use 2; --force";
        assert!(words.contains(expected), "{words}");
        for line in ["bench reactors- null-rand", "bench --force reactors-"] {
            must_have_cores(&rows(line), 2).unwrap();
        }
    }

    #[test]
    fn foreign_initiator_gives_all_contestants_the_same_time() {
        let seconds = |line: &str| {
            let arguments = Arguments::parse_from(line.split(' '));
            (
                time(&arguments).as_secs_f64(),
                row(&arguments, work::all()[4], 2).slices(),
            )
        };
        assert_eq!(seconds("bench"), (0.6, 4));
        assert_eq!(seconds("bench --peer x"), (1.0, 1));
        assert_eq!(seconds("bench --peer x --seconds 2.5"), (3.0, 1));
        assert_eq!(seconds("bench --peer-pair x").0, 1.0);
        // Our initiator measures a foreign target as it does ours.
        assert_eq!(seconds("bench --peer-target x"), (0.6, 4));
    }

    #[test]
    fn workloads_of_a_kind_are_measured_together() {
        let arguments = Arguments::parse_from(["bench", "--peer-target", "x"]);
        let works = work::all().into_iter();
        let rows: Vec<Row> = works.map(|work| row(&arguments, work, 4)).collect();
        // Each work with hostile peers has a scene of its own.
        let hostile = rows.iter().filter(|row| row.work.hostile().is_some());
        assert_eq!(kinds(&rows).len(), 9 + hostile.count());
        assert_eq!(kinds(&rows).first(), Some(&Kind::Plain));
        let contestants: Vec<_> = rows[0].contestants().collect();
        assert_eq!(contestants.last(), Some(&Contestant::PeerTarget));
        assert!(kinds(&[]).is_empty());
    }

    #[test]
    fn file_is_filled_once() {
        let path = std::env::temp_dir().join(format!("bench-{}-fill", std::process::id()));
        fill(&path, 10_000).unwrap();
        let first = fs::read(&path).unwrap();
        assert!(first.len() == 10_000 && first.iter().any(|byte| *byte != 0));
        fill(&path, 10_000).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first);
        fill(&path, 5_000).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 5_000);
        fs::remove_file(path).unwrap();
    }
}
