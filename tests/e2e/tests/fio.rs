//! fio drives a target through the engine of this project.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvmeof_e2e::{Ended, Jobs, Run, Setup, Target, engine, eventually, fds};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn total(job: &Value, operation: &str) -> u64 {
    job[operation]["total_ios"].as_u64().unwrap()
}

#[test]
fn every_size_and_depth_is_verified() {
    // Shorter queues than one of the jobs is deep.
    let setup = Setup::new()
        .file(64 * MIB)
        .head("[limits]\nqueue_depth = 64");
    let mut target = setup.start();
    let sections = "\
        [single]\nbs=512\nsize=256k\niodepth=128\n\
        [one]\nbs=4k\nsize=1m\niodepth=1\n\
        [odd]\nbsrange=512-267776\nsize=8m\niodepth=16\nverify=md5\n\
        [large]\nbs=1m\nsize=16m\niodepth=32\nqueues=2\n\
        [sync]\nbs=8k\nsize=1m\niodepth=8\nsync=1\n\
        [jobs]\nbs=16k\nsize=4m\niodepth=32\nnumjobs=3\noffset_increment=4m\n\
        [threads]\nbs=16k\nsize=4m\niodepth=32\nnumjobs=3\noffset_increment=4m\nthread\n";
    let global = "rw=randwrite\nverify=crc32c\nverify_fatal=1\nstonewall";
    let jobs = Jobs::new(&setup, &target, global, sections).ok();
    assert_eq!(jobs.len(), 11);
    for job in &jobs {
        // fio has been seen to report success for jobs that checked nothing.
        assert!(total(job, "write") > 0, "{job}");
        assert_eq!(total(job, "read"), total(job, "write"), "{job}");
    }
    target.must_be_well();
    // One job, one controller; two queues where two are wanted.
    let controllers = target.lines(&["queue 1 of controller", "connected"]);
    assert_eq!(controllers.len(), 11);
    let second = target.lines(&["queue 2 of controller", "connected"]);
    assert_eq!(second.len(), 1);
    target.stop();
}

#[test]
fn the_namespace_has_what_fio_wrote() {
    let setup = Setup::new().file(8 * MIB);
    let target = setup.start();
    let sections = "[write]\nrw=write\nbs=64k\nsize=4m\noffset=2m\nverify_pattern=0x5a\n\
                    verify=pattern\ndo_verify=0\nend_fsync=1\n";
    let before = fs::read(setup.image_path(1)).unwrap();
    let jobs = Jobs::new(&setup, &target, "iodepth=8", sections).ok();
    assert_eq!(total(&jobs[0], "write"), 64);
    let image = fs::read(setup.image_path(1)).unwrap();
    assert!(image[2 * MIB..6 * MIB].iter().all(|byte| *byte == 0x5a));
    assert!(image[..2 * MIB] == before[..2 * MIB]);
    assert!(image[6 * MIB..] == before[6 * MIB..]);
    target.stop();
}

#[test]
fn reads_see_what_is_there() {
    // An image of zeroes alone: verifying another pattern has to fail.
    let setup = Setup::new();
    let disk = setup.path("zeroes.img");
    fs::write(&disk, vec![0; 4 * MIB]).unwrap();
    let setup = setup.namespace(&disk.display().to_string(), "");
    let target = setup.start();
    let section = "[read]\nrw=randread\nbs=4k\niodepth=16\nverify=pattern\nverify_fatal=1\n";
    let zeroes = format!("{section}verify_pattern=0x00\n");
    assert_eq!(
        total(&Jobs::new(&setup, &target, "", &zeroes).ok()[0], "read"),
        1024
    );
    let ones = format!("{section}verify_pattern=0xff\nverify_dump=0\n");
    Jobs::new(&setup, &target, "", &ones).fails(&[]);
    assert_eq!(
        Jobs::new(&setup, &target, "", &ones).report()[0]["error"],
        84,
        "EILSEQ"
    );
    target.stop();
}

#[test]
fn trims_deallocate() {
    let setup = Setup::new().file(16 * MIB);
    let target = setup.start();
    let blocks = || fs::metadata(setup.image_path(1)).unwrap().blocks();
    let before = blocks();
    let sections = "\
        [trim]\nrw=randtrim\nbs=64k\nsize=8m\niodepth=16\n\
        [zeroes]\nrw=read\nbs=64k\nsize=8m\nverify=pattern\nverify_pattern=0x00\n\
        [mixed]\nrw=randtrimwrite\nbs=64k\nsize=4m\niodepth=8\n";
    let jobs = Jobs::new(&setup, &target, "stonewall\nverify_fatal=1", sections).ok();
    assert_eq!(total(&jobs[0], "trim"), 128);
    assert_eq!(total(&jobs[1], "read"), 128);
    assert!(total(&jobs[2], "trim") > 0 && total(&jobs[2], "write") > 0);
    assert!(blocks() < before, "{} {before}", blocks());
    target.stop();
}

#[test]
fn jobs_that_mix_pause_and_keep_to_a_time() {
    let setup = Setup::new().file(16 * MIB);
    let mut target = setup.start();
    let sections = "\
        [mixed]\nrw=randrw\nrwmixread=70\nbs=4k\niodepth=128\nfsync=16\n\
        runtime=1\ntime_based\nnumjobs=2\n\
        [trims]\nrw=randtrim\nbs=64k\nruntime=1\ntime_based\n\
        [pause]\nstonewall\nrw=randread\nbs=4k\niodepth=4\nthinktime=5000\nnumber_ios=20\n\
        [rate]\nrw=randread\nbs=4k\niodepth=8\nrate_iops=100\nnumber_ios=20\n";
    let jobs = Jobs::new(&setup, &target, "", sections).ok();
    for job in &jobs[..2] {
        let operations = ["read", "write", "sync"].map(|operation| total(job, operation));
        assert!(operations.iter().all(|count| *count > 0), "{job}");
        assert!(operations[0] > operations[1], "{job}");
    }
    assert!(total(&jobs[2], "trim") > 0);
    assert_eq!(total(&jobs[3], "read"), 20);
    target.must_be_well();
    target.stop();
}

/// Runs two jobs, does something to the target, and expects a clear end.
fn fails_when(happens: impl Fn(&mut Target), error: u64, words: &str) {
    let setup = Setup::new().file(16 * MIB);
    let mut target = setup.start();
    let sections = "[write]\nrw=randwrite\nbs=4k\niodepth=32\n\
                    [read]\nrw=randread\nbs=64k\niodepth=8\nqueues=2\nthread\n";
    let global = "runtime=300\ntime_based";
    let idle = fds(target.pid());
    let jobs = Jobs::new(&setup, &target, global, sections);
    let fio = jobs.fio().start();
    // Two admin queues, three I/O queues.
    let all = || (fds(target.pid()) >= idle + 5).then_some(());
    assert!(eventually(all).is_some(), "{}", target.log());
    std::thread::sleep(Duration::from_millis(300));
    happens(&mut target);
    let ended = fio.end();
    // How many of the jobs failed.
    assert_eq!(ended.status, Some(2), "{ended}");
    assert!(ended.stderr.contains("nvmeof: "), "{ended}");
    assert!(ended.stderr.contains(words), "`{words}`: {ended}");
    for job in jobs.report() {
        assert_eq!(job["error"], error, "{ended}");
    }
    target.signal(Signal::SIGCONT);
    target.kill();
}

const ECONNRESET: u64 = 104;
const ETIMEDOUT: u64 = 110;

#[test]
fn a_target_that_is_killed_ends_the_jobs() {
    fails_when(
        |target| target.signal(Signal::SIGKILL),
        ECONNRESET,
        "is lost",
    );
}

#[test]
fn a_target_that_hangs_ends_the_jobs() {
    // The keep-alive notices long before a command times out.
    fails_when(
        |target| target.signal(Signal::SIGSTOP),
        ETIMEDOUT,
        "Keep Alive",
    );
}

#[test]
fn refusals_say_what_to_do() {
    let setup = Setup::new().file_with(4 * MIB, "block_size = 4096");
    let mut target = setup.start();
    for (lines, words) in [
        ("bs=512", &["bs=512", "4096 bytes"][..]),
        ("bs=4k\nnamespace=7", &["no namespace 7", "list-ns"]),
        ("bs=4k\nprovider=roce", &["provider", "roce", "iwarp"]),
        (
            "bs=4k\nsubsystem=nqn.2026-11.org.example:no",
            &["nqn.2026-11.org.example:no"],
        ),
        ("bs=4k\naddress=127.0.0.1:1", &["127.0.0.1:1", "address="]),
        ("bs=4k\nqueues=1000", &["queues="]),
        ("bs=4k\nfilename=a:b", &["one namespace"]),
        ("bs=4k\niomem_align=1m", &["iomem_align"]),
    ] {
        let section = format!("[job]\nrw=randread\n{lines}\n");
        Jobs::new(&setup, &target, "", &section).fails(words);
    }
    // A size that only turns out to be wrong on the way.
    let section = "[job]\nrw=randread\nbsrange=4k-8k\nbs_unaligned\n";
    Jobs::new(&setup, &target, "", section).fails(&["whole blocks of 4096 bytes"]);
    let section = "[job]\nrw=randread\nbs=4k\niomem_align=4k\nnumber_ios=4\n";
    assert_eq!(Jobs::new(&setup, &target, "", section).ok().len(), 1);
    target.must_be_well();
    target.stop();
}

/// The jobs of the project: one in each file of that kind.
fn job_files(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let jobs = files.filter(|file| file.extension().is_some_and(|kind| kind == "fio"));
    jobs.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// Jobs of one run, which has to end before patience does.
const TOGETHER: usize = 6;

/// All of them, through the engine. `run` has them in an order of its own,
/// which none may be missing in.
#[test]
fn every_job_file_of_the_project_runs() {
    let setup = Setup::new().file(64 * MIB);
    let mut target = setup.start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs");
    let list = Run::new(Command::new(folder.join("run"))).arg("--list");
    let list = list.ok().text();
    let order = list.lines().filter(|line| !line.starts_with(' '));
    let order: Vec<&str> = order.collect();
    let listed: BTreeSet<String> = order.iter().copied().map(str::to_owned).collect();
    assert_eq!(listed, job_files(&folder));
    for names in order.chunks(TOGETHER) {
        let ended = run_jobs(&folder, &setup, &target, names);
        let results: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(results["bytes"], 64 * MIB, "{ended}");
        let jobs = results["jobs"].as_array().unwrap();
        let ran: Vec<_> = jobs.iter().map(|job| job["job"].as_str()).collect();
        let wanted: Vec<_> = names.iter().copied().map(Some).collect();
        assert_eq!(ran, wanted, "{ended}");
        for job in jobs {
            // The engine has no page cache.
            let skipped = job["job"] == "verify-buffered";
            let expected = if skipped { "skipped" } else { "ok" };
            assert_eq!(job["status"], expected, "{job}: {ended}");
        }
    }
    target.must_be_well();
    target.stop();
}

fn run_jobs(folder: &Path, setup: &Setup, target: &Target, names: &[&str]) -> Ended {
    let mut run = Command::new(folder.join("run"));
    run.env("RUNTIME", "1").env("NVMEOF_FIO_ENGINE", engine());
    let run = Run::new(run).args("--engine nvmeof --queues 2 --short -o json");
    let run = run.arg("--address").arg(target.address().to_string());
    let run = run.args("--subsystem").arg(nvmeof_e2e::NQN);
    let run = run.arg("--keep").arg(setup.path("reports"));
    run.arg("--jobs").arg(names.join(",")).ok()
}
