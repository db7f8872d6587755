//! fio with the engine of this project.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nvmeof_e2e::xml::{self, Element};
use nvmeof_e2e::{
    Ended, HOST, Jobs, NQN, Proxy, Run, Setup, TIMEOUT, Target, Traffic, engine, eventually, fds,
    free_port, managed,
};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn total(job: &Value, operation: &str) -> u64 {
    job[operation]["total_ios"].as_u64().unwrap()
}

/// fio may report success for jobs that verified nothing.
fn wrote_and_verified(jobs: &[Value]) {
    for job in jobs {
        assert!(total(job, "write") > 0, "{job}");
        assert_eq!(total(job, "read"), total(job, "write"), "{job}");
    }
}

#[test]
fn every_size_and_depth_is_verified() {
    // Queues that are shorter than the depth of one of the jobs.
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
    wrote_and_verified(&jobs);
    target.assert_healthy();
    // One controller per job; two queues if configured.
    let controllers = target.lines(&["queue 1 of controller", "connected"]);
    assert_eq!(controllers.len(), 11);
    let second = target.lines(&["queue 2 of controller", "connected"]);
    assert_eq!(second.len(), 1);
    target.stop();
}

/// The next two tests, with jobs as threads and as processes.
const LOCALLY: &str = "rw=randwrite\nverify=crc32c\nverify_fatal=1\nstonewall\nnumjobs=2\n\
                       offset_increment=4m\nsize=4m";

/// A target with a separate folder for its sockets.
#[test]
fn jobs_and_threads_share_memory_with_the_target() {
    let setup = Setup::new().provider("\"shm\"").file(16 * MIB);
    let mut target = setup.start();
    let folder = setup.shm_folder().display().to_string();
    let global = format!("{LOCALLY}\nshm_folder={folder}");
    let sections = "\
        [auto]\nbs=16k\niodepth=32\n\
        [jobs]\nbs=4k\niodepth=16\nqueues=2\nprovider=shm\n\
        [threads]\nbs=128k\niodepth=8\nprovider=shm\nthread\n";
    let jobs = Jobs::new(&setup, &target, &global, sections).ok();
    assert_eq!(jobs.len(), 6);
    wrote_and_verified(&jobs);
    let io_queues = |way: &str| {
        let lines = target.lines(&[way]);
        lines
            .iter()
            .filter(|line| !line.contains("queue=0"))
            .count()
    };
    let ways = || ["in_place=true", "in_place=false"].map(io_queues);
    assert_eq!(ways(), [8, 0], "one of each job, but for two with two");
    let section = "[copied]\nbs=4k\niodepth=16\nprovider=shm\nthread\nshm_copy=1\n";
    wrote_and_verified(&Jobs::new(&setup, &target, &global, section).ok());
    assert_eq!(ways(), [8, 2]);
    let section = "[elsewhere]\nrw=read\nprovider=shm\n";
    let words = ["cannot connect through shared memory", "shm_folder="];
    Jobs::new(&setup, &target, "", section).fails(&words);
    target.assert_healthy();
    target.stop();
}

/// Fails with an error and a status, not by a signal.
#[test]
fn job_with_unavailable_memory_type_fails() {
    let setup = Setup::new().file(16 * MIB);
    let mut target = setup.start();
    let aligned = "[aligned]\nrw=randwrite\nbs=4k\niomem_align=64k\n";
    Jobs::new(&setup, &target, "", aligned).fails(&["iomem_align=65536", "remove it"]);
    // Longer than a buffer can be.
    let large = "[large]\nrw=randwrite\nbsrange=4k-8g\nsize=1m\n";
    Jobs::new(&setup, &target, "", large).fails(&["lower iodepth= or bs="]);
    target.assert_healthy();
    target.stop();
}

#[test]
fn jobs_and_threads_go_through_a_unix_socket() {
    // Its own folder: the path of a socket has to be short.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvmeof.sock");
    let setup = Setup::new().socket(&path).file(16 * MIB);
    let mut target = setup.start();
    let sections = "\
        [jobs]\nbs=4k\niodepth=16\nqueues=2\n\
        [threads]\nbs=128k\niodepth=8\nthread\n\
        [checked]\nbs=4k\niodepth=16\nprovider=iwarp\ncrc=1\n";
    let jobs = Jobs::new(&setup, &target, LOCALLY, sections).ok();
    assert_eq!(jobs.len(), 6);
    wrote_and_verified(&jobs);
    target.assert_healthy();
    target.stop();
}

/// RFC 5044, section 7.1: bit C of the first frame of a connection.
#[test]
fn crc_is_requested_by_the_job_option() {
    let setup = Setup::new().namespace("null:1M", "");
    let target = setup.start();
    for (lines, asked) in [("", 0), ("crc=0\n", 0), ("crc=1\n", 0x40)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let section = format!("[job]\nrw=read\nprovider=iwarp\naddress={address}\n{lines}");
        let fio = Jobs::new(&setup, &target, "", &section).fio().start();
        let mut frame = [0; 20];
        let mut peer = eventually(|| listener.accept().ok()).unwrap().0;
        peer.set_read_timeout(Some(TIMEOUT)).unwrap();
        peer.read_exact(&mut frame).unwrap();
        drop(peer);
        assert!(frame.starts_with(b"MPA ID Req Frame"), "{frame:?}");
        assert_eq!(frame[16] & 0x40, asked, "{lines}");
        assert_eq!(fio.end().status, Some(1));
    }
    target.stop();
}

#[test]
fn namespace_contains_data_of_fio() {
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
fn fio_reads_existing_data() {
    // An image of zeroes: verifying another pattern must fail.
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
fn mixed_jobs_with_pauses_and_time_limits_work() {
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
    target.assert_healthy();
    target.stop();
}

/// Runs two jobs that do not reconnect, disturbs the target, and expects an error of the jobs.
fn fails_when(happens: impl Fn(&mut Target), error: u64, words: &str) {
    let setup = Setup::new().file(16 * MIB);
    let mut target = setup.start();
    let sections = "[write]\nrw=randwrite\nbs=4k\niodepth=32\n\
                    [read]\nrw=randread\nbs=64k\niodepth=8\nqueues=2\nthread\n";
    let global = "runtime=300\ntime_based\nctrl_loss_tmo=0";
    let idle = fds(target.pid());
    let jobs = Jobs::new(&setup, &target, global, sections);
    let fio = jobs.fio().start();
    // Two admin queues, three I/O queues.
    let all = || (fds(target.pid()) >= idle + 5).then_some(());
    assert!(eventually(all).is_some(), "{}", target.log());
    let begun = || {
        let json = target.nvmeof("smart-log").json();
        let of = |name: &str| json[name].as_u64().unwrap() > 0;
        (of("host_read_commands") && of("host_write_commands")).then_some(())
    };
    assert!(eventually(begun).is_some(), "no work is done");
    happens(&mut target);
    let ended = fio.end();
    // The number of failed jobs.
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
fn killed_target_ends_fio_jobs() {
    fails_when(
        |target| target.signal(Signal::SIGKILL),
        ECONNRESET,
        "is lost",
    );
}

#[test]
fn stalled_target_ends_fio_jobs() {
    // The Keep Alive timer expires long before a command times out.
    fails_when(
        |target| target.signal(Signal::SIGSTOP),
        ETIMEDOUT,
        "Keep Alive",
    );
}

/// A target with two ports, the second one behind a proxy, and the address option of both.
fn two_paths() -> (Setup, Proxy, String) {
    let port = free_port();
    let head = "[limits]\nquiesce_time_s = 2\n";
    let setup = managed().head(head).port(port).file(64 * MIB);
    let direct = format!("127.0.0.1:{port}");
    let proxy = Proxy::start(direct.parse().unwrap());
    let address = format!("address={direct},{}", proxy.address());
    (setup, proxy, address)
}

/// About ten seconds of writes, whose data are verified afterwards.
const WRITES: &str = "[write]\nrw=randwrite\nbs=4k\nsize=32m\niodepth=16\nrate_iops=800\n\
                      verify=crc32c\nverify_fatal=1\nprovider=iwarp\nkeep_alive_tmo=2\n\
                      stall_ms=50\n";

/// Waits until a controller has its I/O queue `count` times.
fn connected(target: &Target, count: usize) {
    let has =
        || (target.lines(&["queue 1 of controller", "connected"]).len() >= count).then_some(());
    assert!(eventually(has).is_some(), "{}", target.log());
}

/// Waits until the jobs write.
fn writing(target: &Target) {
    let writes = || {
        let json = target.nvmeof("smart-log").json();
        (json["host_write_commands"].as_u64().unwrap() > 0).then_some(())
    };
    assert!(eventually(writes).is_some(), "no work is done");
}

#[test]
fn job_over_two_paths_survives_the_loss_of_a_path_and_of_the_target() {
    let (setup, proxy, address) = two_paths();
    let mut target = setup.start();
    let jobs = Jobs::new(&setup, &target, "", &format!("{WRITES}{address}\n"));
    let fio = jobs.fio().start();
    connected(&target, 2);
    writing(&target);
    proxy.set(Traffic::Reset);
    let lost = || fio.stderr().contains("path lost").then_some(());
    assert!(eventually(lost).is_some(), "{}", fio.stderr());
    proxy.set(Traffic::Forward);
    connected(&target, 3);
    target.kill();
    target = setup.start();
    let ended = fio.end();
    assert_eq!(ended.status, Some(0), "{ended}");
    let report = jobs.report();
    wrote_and_verified(&report);
    assert_eq!(report[0]["error"], 0, "{ended}");
    assert!(
        ended.stderr.contains("nvmeof: write: stall ended: at "),
        "{ended}"
    );
    assert!(
        ended.stderr.contains("stalls of at least 0.050 s"),
        "{ended}"
    );
    target.assert_healthy();
    target.stop();
}

#[test]
fn job_over_one_path_continues_when_the_target_restarts() {
    let (setup, _proxy, _) = two_paths();
    let mut target = setup.start();
    let jobs = Jobs::new(&setup, &target, "", WRITES);
    let fio = jobs.fio().start();
    connected(&target, 1);
    writing(&target);
    target.kill();
    target = setup.start();
    let ended = fio.end();
    assert_eq!(ended.status, Some(0), "{ended}");
    let report = jobs.report();
    wrote_and_verified(&report);
    assert_eq!(report[0]["error"], 0, "{ended}");
    let place = target.place();
    assert!(
        ended.stderr.contains(&format!("path {place} lost after")),
        "{ended}"
    );
    assert!(
        ended
            .stderr
            .contains(&format!("path {place} connected after")),
        "{ended}"
    );
    target.assert_healthy();
    target.stop();
}

#[test]
fn example_job_over_two_paths_runs() {
    let (setup, _proxy, address) = two_paths();
    let mut target = setup.start();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs/examples");
    let mut fio = Command::new("fio");
    let (_, addresses) = address.split_once('=').unwrap();
    for (name, value) in [
        ("ENGINE", engine().display().to_string()),
        ("ADDRESSES", addresses.to_owned()),
        ("SUBSYSTEM", NQN.to_owned()),
        ("HOSTNQN", HOST.to_owned()),
        ("SIZE", "4m".to_owned()),
    ] {
        fio.env(name, value);
    }
    fio.arg("--output-format=json")
        .arg(file.join("two-paths.fio"));
    let ended = Run::new(fio).ok();
    let text = ended.text();
    let report: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    wrote_and_verified(report["jobs"].as_array().unwrap());
    // Both paths were used.
    connected(&target, 2);
    target.assert_healthy();
    target.stop();
}

#[test]
fn fio_errors_contain_remedies() {
    let setup = Setup::new().file_with(4 * MIB, "block_size = 4096");
    let mut target = setup.start();
    for (lines, words) in [
        ("bs=512", &["bs=512", "4096 bytes"][..]),
        (
            "bs=4k\nnamespace=7",
            &["no namespace 7; it has 1", "(namespace=)"],
        ),
        ("bs=4k\nprovider=roce", &["provider", "roce", "iwarp"]),
        (
            "bs=4k\nsubsystem=nqn.2026-11.org.example:no",
            &["nqn.2026-11.org.example:no"],
        ),
        ("bs=4k\naddress=127.0.0.1:1", &["127.0.0.1:1", "address="]),
        ("bs=4k\nqueues=1000", &["queues="]),
        (
            "bs=4k\npath_policy=fast",
            &["path_policy=fast", "queue-depth"],
        ),
        (
            "bs=4k\naddress=127.0.0.1:1,127.0.0.1:2",
            &["127.0.0.1:1", "address="],
        ),
        ("bs=4k\nfilename=a:b", &["one namespace"]),
        ("bs=4k\niomem_align=1m", &["iomem_align"]),
    ] {
        let section = format!("[job]\nrw=randread\n{lines}\n");
        Jobs::new(&setup, &target, "", &section).fails(words);
    }
    // A size whose error is detected only during the job.
    let section = "[job]\nrw=randread\nbsrange=4k-8k\nbs_unaligned\n";
    Jobs::new(&setup, &target, "", section).fails(&["whole blocks of 4096 bytes"]);
    let section = "[job]\nrw=randread\nbs=4k\niomem_align=4k\nnumber_ios=4\n";
    assert_eq!(Jobs::new(&setup, &target, "", section).ok().len(), 1);
    target.assert_healthy();
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

/// Number of jobs of one run, which must end in time.
const TOGETHER: usize = 6;

/// All jobs, with the engine. The order of `run` must contain each of them.
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
        let ended = run_jobs(&folder, &setup, &target, names, "");
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
    target.assert_healthy();
    target.stop();
}

/// `run` passes `--provider` and `--shm-folder` to both programs, and `--crc` as well, which has
/// no effect there.
#[test]
fn the_jobs_run_through_shared_memory() {
    let setup = Setup::new().provider("\"shm\"").file(64 * MIB);
    let target = setup.start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs");
    let way = format!(
        "--crc --provider shm --shm-folder {}",
        setup.shm_folder().display()
    );
    let jobs = ["verify-crc32c-qd32", "randread-4k-qd1"];
    let ended = run_jobs(&folder, &setup, &target, &jobs, &way);
    let results: Value = serde_json::from_slice(&ended.stdout).unwrap();
    for job in results["jobs"].as_array().unwrap() {
        assert_eq!(job["status"], "ok", "{ended}");
    }
    let kept = setup.path("reports/job-files/setup/measure.fio");
    assert!(fs::read_to_string(kept).unwrap().contains("\ncrc=1\n"));
    let run = || Run::new(Command::new(folder.join("run")));
    let words = ["--shm-folder", "--engine nvmeof"];
    run().args("/dev/null --shm-folder /run").fails(2, &words);
    target.stop();
}

fn run_jobs(folder: &Path, setup: &Setup, target: &Target, names: &[&str], way: &str) -> Ended {
    prepare_jobs(folder, setup, target, names, way).ok()
}

fn prepare_jobs(folder: &Path, setup: &Setup, target: &Target, names: &[&str], way: &str) -> Run {
    let mut run = Command::new(folder.join("run"));
    run.env("RUNTIME", "1").env("NVMEOF_FIO_ENGINE", engine());
    let run = Run::new(run).args("--engine nvmeof --queues 2 --short -o json");
    let run = run.args(way).arg("--address").arg(target.place());
    let run = run.args("--subsystem").arg(NQN);
    let run = run.arg("--keep").arg(setup.path("reports"));
    run.arg("--jobs").arg(names.join(","))
}

/// The lines of a plot: their class, and their points.
fn polylines(elements: &[Element]) -> Vec<(&str, Vec<[f64; 2]>)> {
    let lines = elements.iter().filter(|it| it.name == "polyline");
    let point = |point: &str| {
        let (x, y) = point.split_once(',').unwrap();
        [x, y].map(|number| number.parse().unwrap())
    };
    let points = |line: &Element| line.attributes["points"].split(' ').map(point).collect();
    lines
        .map(|line| (line.attributes["class"].as_str(), points(line)))
        .collect()
}

fn texts(elements: &[Element]) -> Vec<&str> {
    let texts = elements.iter().filter(|it| it.name == "text");
    texts.map(|it| it.text.as_str()).collect()
}

/// The null device does not keep the data of `verify-pattern`, which therefore fails.
#[test]
fn plot_has_a_line_for_each_job_and_operation() {
    let setup = Setup::new().namespace("null:64M", "");
    let mut target = setup.start();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs");
    let names = ["randread-4k-qd1", "verify-pattern", "randrw-4k-qd1"];
    let path = setup.path("plot.svg");
    let way = format!("--plot {}", path.display());
    let ended = prepare_jobs(&folder, &setup, &target, &names, &way).end();
    assert_eq!(ended.status, Some(1), "{ended}");
    let results: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(results["jobs"][1]["status"], "failed", "{ended}");

    let svg = fs::read_to_string(&path).unwrap();
    let elements = xml::elements(&svg);
    let classes: Vec<_> = polylines(&elements).into_iter().map(|it| it.0).collect();
    let latencies = ["line read", "line read", "line write"];
    let rates = ["line thin read", "line thin read", "line thin write"];
    assert_eq!(classes, [latencies, rates].concat(), "{svg}");
    for (class, points) in polylines(&elements) {
        assert!(!points.is_empty() && (class.contains("thin") || points.len() == 5));
    }
    let texts = texts(&elements);
    for text in [
        "latency (logarithmic)",
        "p99.99",
        "IOPS",
        "time since the start of the job (s)",
        "randread-4k-qd1 read",
        "randrw-4k-qd1 read",
        "randrw-4k-qd1 write",
    ] {
        assert!(texts.contains(&text), "{text}: {svg}");
    }
    let failed = texts
        .iter()
        .any(|it| it.starts_with("not drawn: verify-pattern failed: "));
    assert!(failed, "{svg}");
    let outside = svg.replace("http://www.w3.org/2000/svg", "");
    for word in ["http", "href", "url(", "@import", "<script"] {
        assert!(!outside.contains(word), "{word}: {svg}");
    }
    target.assert_healthy();
    target.stop();
}

/// Runs a program of the project for jq, with the words of a line.
fn jq(program: &str, line: &str, input: &str) -> String {
    let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs/setup");
    let run = Run::new(Command::new("jq")).args(line);
    let run = run.arg("-f").arg(setup.join(program));
    run.stdin(input.as_bytes()).ok().text()
}

#[test]
fn plot_axes_match_their_values() {
    // Without a completion from 300 to 801 ms.
    let times = [100, 200, 300, 901, 1000, 1100];
    let log = times.map(|ms| format!("{}, 2000, 1, 4096, 0\n", 1_700_000_000_000_u64 + ms));
    let line = "-cnR --arg job randwrite-4k-qd1 --argjson interval 100";
    let series = jq("iops.jq", line, &log.concat());
    let drawn: Value = serde_json::from_str(&series).unwrap();
    let points = drawn["series"][0]["points"].as_array().unwrap();
    let rates: Vec<_> = points
        .iter()
        .map(|it| it[1].as_f64().unwrap().round())
        .collect();
    let expected = [2e3, 2e3, 2e3, 0.0, 0.0, 0.0, 0.0, 0.0, 1980.0, 2e3, 2e3];
    assert_eq!(rates, expected, "{series}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("series");
    fs::write(&path, series).unwrap();
    let results = serde_json::json!({
        "device": "/dev/<a> & \"b\"\u{1}", "bytes": MIB, "engine": "io_uring", "runtime_s": 1,
        "fio": "fio-3.33", "kernel": "6.1", "jobs": [{
            "job": "randwrite-4k-qd1", "status": "ok", "message": null, "results": [{
                "operation": "write", "p50_us": 10.0, "p90_us": 10.0, "p99_us": 100.0,
                "p999_us": null, "p9999_us": 1000.0,
            }],
        }],
    });
    let line = format!(
        "-r --argjson interval 100 --slurpfile series {}",
        path.display()
    );
    let elements = xml::elements(&jq("plot.jq", &line, &results.to_string()));
    // The charts are 250 high and begin 116 below the top: 10 µs to 1 ms, 0 to 2k.
    let lines = polylines(&elements);
    let [(_, latencies), (_, rates)] = &lines[..] else {
        panic!("{lines:?}")
    };
    let heights = |points: &[[f64; 2]]| points.iter().map(|it| it[1]).collect::<Vec<_>>();
    assert_eq!(heights(latencies), [366.0, 366.0, 241.0, 116.0]);
    assert_eq!(heights(rates)[2..4], [116.0, 366.0]);
    let texts = texts(&elements);
    for text in ["/dev/<a> & \"b\" ", "10 µs", "1 ms", "2k", "1"] {
        assert!(texts.contains(&text), "{text}: {texts:?}");
    }
    // Nothing to draw, and still a picture.
    let mut results = results;
    results["jobs"] = serde_json::json!([]);
    let elements = xml::elements(&jq("plot.jq", &line, &results.to_string()));
    assert_eq!(polylines(&elements).len(), 0);
}

#[test]
fn plot_that_cannot_be_written_is_refused_before_the_first_job() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(path("folder.svg")).unwrap();
    fs::write(path("disk.svg"), vec![0; 16 * MIB]).unwrap();
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fio-configs/run");
    for (plot, words) in [
        (path("plot.png"), "must be a file name ending in .svg"),
        (path("no/plot.svg"), "does not exist: create it"),
        (path("folder.svg"), "is not a regular file"),
        (path("disk.svg"), "is the file that the jobs use"),
        ("/proc/plot.svg".to_owned(), "cannot write it: "),
    ] {
        let run = Run::new(Command::new(&run)).arg(path("disk.svg"));
        let run = run.args("--short --jobs randread-4k-qd1 --keep");
        let run = run.arg(path("reports")).arg("--plot").arg(&plot);
        run.fails(2, &["run: --plot", &plot, words]);
        assert_eq!(fs::read_dir(path("reports")).unwrap().count(), 0, "{plot}");
    }
}
