//! A whole run: the servers, the rounds, the progress shown.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, IsTerminal as _, Read as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use indicatif::{ProgressBar, ProgressStyle};

use crate::contestant::{Contestant, Stage};
use crate::cores::Cores;
use crate::machine::Machine;
use crate::process::Server;
use crate::results::{Results, Row};
use crate::work::{About, Disk, Placement, Work};
use crate::{Arguments, Trouble};

/// The subsystem of our target.
pub(crate) const NQN: &str = "nqn.2026-11.org.example:bench";

/// The namespace with that disk behind it.
pub(crate) fn nsid(disk: Disk) -> &'static str {
    match disk {
        Disk::Null => "1",
        Disk::File => "2",
    }
}

/// Measures the works.
pub(crate) fn run(arguments: &Arguments, works: Vec<Work>) -> Result<Results, Trouble> {
    let cores = Cores::find()?;
    let works = possible(works, cores)?;
    let folder = &arguments.folder;
    fs::create_dir_all(folder).map_err(|error| Trouble::file("create", folder, &error))?;
    let file = folder.join("disk.img");
    if works.iter().any(|work| work.disk == Disk::File) {
        must_have_fio()?;
        fill(&file, arguments.file_mib << 20)?;
    }
    let programs = Programs::find(arguments.bin_dir.as_deref())?;
    let target = start_target(&programs, cores, folder, &works)?;
    let mut serve = Command::new(&programs.yardstick);
    serve.arg("tcp-serve");
    let tcp = Server::start(&mut serve, cores.target, &folder.join("tcp.log"), ":")?;
    let shm_bare = folder.join("shm-bare.sock");
    let mut serve = Command::new(&programs.yardstick);
    serve.arg("shm-serve").arg(&shm_bare);
    let log = folder.join("shm-bare.log");
    let shm_server = Server::start(&mut serve, cores.target, &log, "on ")?;
    let (rounds, seconds) = if arguments.quick {
        (3, 1)
    } else {
        (arguments.rounds, arguments.seconds)
    };
    let stage = Stage {
        cores,
        target: target.addr()?,
        tcp: tcp.addr()?,
        shm_bare,
        shm_folder: shm_folder(folder),
        file,
        initiator: programs.initiator,
        yardstick: programs.yardstick,
        peer: arguments.peer.clone(),
        seconds,
        servers: vec![target.id(), tcp.id(), shm_server.id()],
        tries: arguments.tries,
    };
    let rows = measure(&stage, works, rounds).map_err(|trouble| {
        Trouble::Failed(format!("{trouble}\nour target said:\n{}", target.said()))
    })?;
    Ok(Results {
        machine: Machine::find(),
        rounds,
        seconds,
        rows,
    })
}

/// Without the works for which there are too few cores.
fn possible(mut works: Vec<Work>, cores: Cores) -> Result<Vec<Work>, Trouble> {
    let all = works.len();
    works.retain(|work| cores.are_two() || work.placement == Placement::Together);
    if works.len() < all {
        eprintln!("bench: there is one core only; works that need two are left out");
    }
    if works.is_empty() {
        return Err(Trouble::SetUp(
            "there is nothing to measure: these works need two cores".to_owned(),
        ));
    }
    Ok(works)
}

fn must_have_fio() -> Result<(), Trouble> {
    match Command::new("fio").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(Trouble::SetUp(
            "works on files need fio as their yardstick: install the package `fio` \
             (cargo xtask setup does), or name works that begin with null-"
                .to_owned(),
        )),
    }
}

/// The programs that take part.
struct Programs {
    target: PathBuf,
    initiator: PathBuf,
    yardstick: PathBuf,
}

impl Programs {
    fn find(folder: Option<&Path>) -> Result<Self, Trouble> {
        let ours = std::env::current_exe()
            .map_err(|error| Trouble::SetUp(format!("cannot find our own program: {error}")))?;
        let beside = ours.parent().unwrap_or(Path::new("."));
        let find = |folder: &Path, name: &str| {
            let path = folder.join(name);
            if path.is_file() {
                return Ok(path);
            }
            Err(Trouble::SetUp(format!(
                "{} is not there: run `cargo xtask bench`, which builds it, or name its \
                 folder with --bin-dir",
                path.display()
            )))
        };
        let folder = folder.unwrap_or(beside);
        Ok(Self {
            target: find(folder, "nvmeof-target")?,
            initiator: find(folder, "nvmeof")?,
            yardstick: find(beside, "nvmeof-yardstick")?,
        })
    }
}

/// A file of `len` bytes that are really on the disk: reads of holes do not
/// reach it. One from an earlier run is as good.
fn fill(path: &Path, len: u64) -> Result<(), Trouble> {
    if fs::metadata(path).is_ok_and(|found| found.len() == len) {
        return Ok(());
    }
    eprintln!("bench: writing {} MiB to {}", len >> 20, path.display());
    let write = || {
        // Unfinished under another name, so that it is never taken for whole.
        let unfinished = path.with_extension("part");
        let mut file = File::create(&unfinished)?;
        io::copy(&mut File::open("/dev/urandom")?.take(len), &mut file)?;
        file.sync_all()?;
        fs::rename(unfinished, path)
    };
    write().map_err(|error| Trouble::file("write", path, &error))
}

fn start_target(
    programs: &Programs,
    cores: Cores,
    folder: &Path,
    works: &[Work],
) -> Result<Server, Trouble> {
    let disks = works.iter().map(|work| (nsid(work.disk), work.disk));
    let disks: BTreeSet<&str> = disks.map(|(nsid, _)| nsid).collect();
    let config = folder.join("target.toml");
    let text = target_toml(&disks, &folder.join("disk.img"), &shm_folder(folder));
    fs::write(&config, text).map_err(|error| Trouble::file("write", &config, &error))?;
    let mut serve = Command::new(&programs.target);
    serve.arg("serve").arg("--config").arg(&config);
    serve.env_remove("RUST_LOG");
    let log = folder.join("target.log");
    Server::start(&mut serve, cores.target, &log, "ready: serving")
}

/// Where our target and our initiator meet.
fn shm_folder(folder: &Path) -> PathBuf {
    folder.join("shm")
}

fn target_toml(nsids: &BTreeSet<&str>, file: &Path, shm: &Path) -> String {
    let mut text = format!(
        "[shm]\nfolder = '{}'\n\n\
         [[port]]\ntraddr = \"{}\"\ntrsvcid = 0\nprovider = [\"iwarp\", \"shm\"]\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n",
        shm.display(),
        Ipv4Addr::LOCALHOST
    );
    for (disk, path) in [
        (Disk::Null, "null:16G".to_owned()),
        (Disk::File, file.display().to_string()),
    ] {
        if nsids.contains(nsid(disk)) {
            text.push_str(&format!(
                "\n[[subsystem.namespace]]\nnsid = {}\npath = '{path}'\n",
                nsid(disk)
            ));
        }
    }
    text
}

fn measure(stage: &Stage, works: Vec<Work>, rounds: u32) -> Result<Vec<Row>, Trouble> {
    let mut rows: Vec<Row> = works
        .into_iter()
        .map(|work| {
            let mut contestants = vec![Contestant::yardstick(&work), Contestant::ours(&work)];
            let peer = stage.peer.as_ref().filter(|_| work.about == About::Iwarp);
            contestants.extend(peer.map(|_| Contestant::Peer));
            Row::new(work, &contestants)
        })
        .collect();
    let in_round: usize = rows.iter().map(|row| row.samples.len()).sum();
    let bar = progress(in_round, rounds, stage.seconds);
    for round in 1..=rounds {
        if bar.is_hidden() {
            eprintln!("bench: round {round} of {rounds}");
        }
        for row in &mut rows {
            let work = row.work;
            bar.set_message(work.name());
            let mut order: Vec<_> = row.samples.iter_mut().collect();
            // Whoever is first may find the machine otherwise than the second.
            if round.is_multiple_of(2) {
                order.reverse();
            }
            for (contestant, samples) in order {
                samples.push(stage.measure(*contestant, &work)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// A bar on a terminal, nothing on a pipe.
fn progress(in_round: usize, rounds: u32, seconds: u64) -> ProgressBar {
    let all = u64::try_from(in_round).unwrap_or(u64::MAX) * u64::from(rounds);
    eprintln!(
        "bench: {all} measurements of {seconds} s, about {} min",
        (all * seconds).div_ceil(60)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work;

    #[test]
    fn target_serves_only_what_is_needed() {
        let file = Path::new("/a/disk.img");
        let shm = Path::new("/a/shm");
        let text = target_toml(&BTreeSet::from(["1"]), file, shm);
        assert!(text.contains("folder = '/a/shm'"), "{text}");
        assert!(text.contains("nsid = 1\npath = 'null:16G'"), "{text}");
        assert!(!text.contains("disk.img"), "{text}");
        let text = target_toml(&BTreeSet::from(["2"]), file, shm);
        assert!(text.contains("nsid = 2\npath = '/a/disk.img'"), "{text}");
    }

    #[test]
    fn one_core_leaves_the_works_for_one() {
        let one = Cores {
            target: 3,
            initiator: 3,
        };
        let works = possible(work::all(), one).unwrap();
        assert!(works.iter().all(|work| work.name().ends_with("-1core")));
        let apart = work::select(&["file".to_owned()]).unwrap();
        assert!(possible(apart, one).is_err());
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
