//! A backing store whose server does not respond: a file on FUSE. It delays its own commands
//! and nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests"
)]

use std::fs::{self, OpenOptions};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_e2e::{
    NQN, Run, Running, Setup, TIMEOUT, Target, assert_io_continues, ctl, eventually, image,
    managed, pattern, reactors_on_one_cpu, same_bytes, start_io, target_command,
};

const MIB: usize = 1 << 20;

/// A folder mounted with bindfs, a FUSE file system. Dropping it ends its server.
struct Fuse {
    server: Child,
    mount: PathBuf,
}

impl Fuse {
    /// `None`, with a message, if this machine or user has no FUSE.
    fn mount(setup: &Setup) -> Option<Self> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if let Err(error) = device {
            eprintln!("SKIPPED: /dev/fuse: {error}");
            return None;
        }
        let (real, mount) = (setup.path("real"), setup.path("mount"));
        fs::create_dir(&real).unwrap();
        fs::create_dir(&mount).unwrap();
        let mut bindfs = Command::new("bindfs");
        let bindfs = bindfs.args(["-f", "--no-allow-other"]);
        let server = bindfs
            .args([&real, &mount])
            .stderr(Stdio::piped())
            .spawn()
            .expect("bindfs: `cargo xtask setup` installs it");
        let mut this = Self { server, mount };
        let place = this.mount.display().to_string();
        let is_there =
            || fs::read_to_string("/proc/self/mounts").is_ok_and(|it| it.contains(&place));
        let there = eventually(|| {
            let ended = this.server.try_wait().unwrap().map(|_| false);
            is_there().then_some(true).or(ended)
        });
        if there == Some(true) {
            return Some(this);
        }
        let stderr = this.server.stderr.take().unwrap();
        let why = std::io::read_to_string(stderr).unwrap();
        assert!(
            why.contains("not permitted") || why.contains("denied"),
            "bindfs: {why}"
        );
        eprintln!("SKIPPED: mounting is not permitted: {why}");
        None
    }

    fn file(&self) -> PathBuf {
        self.mount.join("disk.img")
    }

    /// The file below the server.
    fn behind(&self) -> PathBuf {
        self.mount.with_file_name("real").join("disk.img")
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.server.id()).unwrap();
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        self.signal(Signal::SIGKILL);
        let _ = self.server.wait();
        let mut unmount = Command::new("fusermount");
        let _ = unmount.args(["-u", "-z", "-q"]).arg(&self.mount).status();
    }
}

/// A target with one reactor: namespace 1 is a file, namespace 2 one on FUSE, with more
/// outstanding operations than the default number of worker threads of the kernel.
fn at_work_on_fuse() -> Option<(Setup, Fuse, Target, Vec<Running>)> {
    let reactor = reactors_on_one_cpu(1) + "drain_s = 2\n";
    let setup = managed().head(&reactor).file(4 * MIB);
    let fuse = Fuse::mount(&setup)?;
    image(&fuse.file(), 2, 4 * MIB);
    let setup = setup.namespace(&fuse.file().display().to_string(), "");
    let target = setup.start();
    let bench = |rw: &str| {
        let line = format!("--rw {rw} --bs 4k --iodepth 64 --runtime 3600");
        other(&target, "bench").args(&line).start()
    };
    let busy = vec![bench("randread"), bench("randwrite")];
    let moved = || (reads_and_writes(&target) > 1000).then_some(());
    assert!(eventually(moved).is_some(), "{}", target.log());
    Some((setup, fuse, target, busy))
}

/// `nvmeof COMMAND` on namespace 2 by a separate host: writes of another host that were not
/// flushed do not delay its shutdown.
fn other(target: &Target, command: &str) -> Run {
    let at = target.address();
    let (ip, port) = (at.ip(), at.port());
    let host = "nqn.2026-11.org.example:other";
    let line = format!("{command} -t rdma -a {ip} -s {port} -q {host} -n {NQN}");
    Run::nvmeof(&line).args("--namespace-id 2")
}

fn reads_and_writes(target: &Target) -> u64 {
    let json = target.nvmeof("smart-log").json();
    let count = |key: &str| json[key].as_u64().unwrap();
    count("host_read_commands") + count("host_write_commands")
}

#[track_caller]
fn waits_for(target: &Target, words: &[&str]) {
    let there = eventually(|| (!target.lines(words).is_empty()).then_some(()));
    assert!(
        there.is_some(),
        "{words:?} within {TIMEOUT:?}:\n{}",
        target.log()
    );
}

#[test]
fn hung_file_system_stalls_only_its_own_namespace() {
    let Some((setup, fuse, mut target, mut busy)) = at_work_on_fuse() else {
        return;
    };
    let mut bench = start_io(&target);
    fuse.signal(Signal::SIGSTOP);
    assert_io_continues(&target, &mut bench);
    let zeroes = other(&target, "write-zeroes");
    let zeroes = zeroes.args("--start-block 0 --block-count 8").start();
    // A flush needs a worker thread of the kernel, of which the other file occupies many.
    target.on(1, "flush").ok();
    assert_eq!(target.read(1, 0, Some(8)).len(), 4096);
    // New hosts connect, and the configuration can be queried and changed.
    target.nvmeof("id-ctrl").ok();
    ctl(&setup, "status").ok();
    let third = setup.path("third.img");
    image(&third, 3, MIB);
    ctl(
        &setup,
        &format!("namespace add {} --nsid 3", third.display()),
    )
    .ok();
    same_bytes(&target.read(3, 0, None), &pattern(3, MIB));
    waits_for(&target, &["backing store unresponsive", "disk.img"]);
    assert_eq!(target.lines(&["backing store unresponsive"]).len(), 1);
    assert_io_continues(&target, &mut bench);
    bench.kill();
    assert!(busy.iter_mut().all(Running::runs), "{}", target.log());
    // I/O continues normally.
    fuse.signal(Signal::SIGCONT);
    waits_for(&target, &["backing store recovered", "disk.img"]);
    let before = reads_and_writes(&target);
    let moved = || (reads_and_writes(&target) > before + 100).then_some(());
    assert!(eventually(moved).is_some(), "{}", target.log());
    drop((busy, zeroes));
    target.assert_healthy();
    target.stop();
}

/// Neither program blocks on a file system that does not respond, nor do other retries.
#[test]
fn hung_file_system_at_the_start_is_waited_for() {
    let setup = managed().file(MIB);
    let Some(fuse) = Fuse::mount(&setup) else {
        return;
    };
    // The kernel has no inode of that file yet, so even stat(2) blocks.
    fuse.signal(Signal::SIGSTOP);
    image(&fuse.behind(), 2, MIB);
    let third = setup.path("third.img");
    let setup = setup.namespace(&fuse.file().display().to_string(), "");
    let setup = setup.namespace(&third.display().to_string(), "");
    // Ends before its folder is removed.
    let fuse = fuse;
    let mut check = target_command();
    check.arg("check-config").arg(setup.config());
    let output = String::from_utf8(Run::new(check).ok().stdout).unwrap();
    for words in ["no response within", "no such file"] {
        let line = output.lines().find(|line| line.contains(words));
        assert!(
            line.is_some_and(|line| line.contains("would wait")),
            "{output}"
        );
    }
    let mut target = setup.start();
    target.wait_for_log("WARN waiting for namespace 2");
    same_bytes(&target.read(1, 0, None), &pattern(1, MIB));
    target.wait_for_log("backing store unresponsive");
    let new = setup.path("new");
    image(&new, 3, MIB);
    fs::rename(&new, &third).unwrap();
    target.wait_for_log(&format!("namespace 3 of {NQN} is available and served"));
    same_bytes(&target.read(3, 0, None), &pattern(3, MIB));
    fuse.signal(Signal::SIGCONT);
    let served = format!("namespace 2 of {NQN} is available and served");
    target.wait_for_log(&served);
    same_bytes(&target.read(2, 0, None), &pattern(2, MIB));
    target.stop();
}

#[test]
fn target_stops_in_time_with_unresponsive_file_system() {
    let Some((_setup, fuse, mut target, busy)) = at_work_on_fuse() else {
        return;
    };
    fuse.signal(Signal::SIGSTOP);
    target.nvmeof("id-ctrl").ok();
    target.signal(Signal::SIGTERM);
    let line = target.wait_for_log("did not complete in time");
    let named = format!(" on {}", fuse.file().display());
    assert!(line.contains(&named), "{line}");
    // Other files are closed by then; the operations in the kernel end with the server.
    assert!(TcpStream::connect(target.address()).is_err());
    drop(fuse);
    assert_eq!(target.wait().code(), Some(1), "{}", target.log());
    drop(busy);
}
