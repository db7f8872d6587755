//! Data commands of `nvmeof` over one or two paths that are cut, and while the target restarts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::sys::signal::Signal;
use nvmeof_e2e::{
    HOST, NQN, Run, Running, Setup, Target, ctl, eventually, free_port, managed, over_socket,
    pattern, same_bytes,
};

const MIB: usize = 1 << 20;

/// A target with one namespace of `len` bytes and two ports.
fn two_ports(len: usize) -> (Setup, [u16; 2]) {
    let ports = [free_port(), free_port()];
    let second = format!(
        "[limits]\nquiesce_time_s = 2\n\
         [[port]]\nid = 7\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\nprovider = \"iwarp\"\n",
        ports[1]
    );
    (managed().head(&second).port(ports[0]).file(len), ports)
}

/// `nvmeof COMMAND` on namespace 1 over paths to `ports`.
fn over(ports: &[u16], command: &str) -> Run {
    over_namespace(1, ports, command)
}

fn over_namespace(nsid: u32, ports: &[u16], command: &str) -> Run {
    let addrs: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    Run::nvmeof(&format!("{command} -a {}", addrs.join(",")))
        .args(&format!("--provider iwarp -k 2 --namespace-id {nsid}"))
        .args(&format!("-n {NQN} -q {HOST}"))
}

/// A pipe with a name; both ends are open, so that neither blocks.
fn fifo(setup: &Setup) -> (PathBuf, File) {
    let path = setup.path("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = OpenOptions::new().read(true).write(true).open(&path);
    (path, both.unwrap())
}

/// Feeds data to a pipe, as much as is permitted.
struct Feeder {
    permits: mpsc::Sender<usize>,
    fed: Arc<AtomicUsize>,
    thread: JoinHandle<()>,
}

impl Feeder {
    fn new(mut pipe: File, data: Vec<u8>) -> Self {
        let (permits, permitted) = mpsc::channel::<usize>();
        let fed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&fed);
        let thread = std::thread::spawn(move || {
            let mut rest = data.as_slice();
            for len in permitted {
                let (some, after) = rest.split_at(len.min(rest.len()));
                for piece in some.chunks(16 << 10) {
                    pipe.write_all(piece).unwrap();
                    count.fetch_add(piece.len(), Ordering::Relaxed);
                }
                rest = after;
            }
        });
        Self {
            permits,
            fed,
            thread,
        }
    }

    fn fed(&self) -> usize {
        self.fed.load(Ordering::Relaxed)
    }

    fn permit(&self, len: usize) {
        self.permits.send(len).unwrap();
    }

    /// Permits `len` bytes and waits until the reader has taken as many more.
    #[track_caller]
    fn feed(&self, len: usize) {
        let until = self.fed() + len;
        self.permit(len);
        assert!(eventually(|| (self.fed() >= until).then_some(())).is_some());
    }

    /// Permits `len` bytes, and waits until the reader takes no more because all of its buffers
    /// are in flight. It takes fewer bytes if some are in flight already.
    fn fill(&self, len: usize) {
        let until = self.fed() + len;
        self.permit(len);
        let _ = eventually(|| (self.fed() >= until).then_some(()));
    }

    /// Closes the pipe after the last byte.
    fn close(self) {
        drop(self.permits);
        self.thread.join().unwrap();
    }
}

/// Waits until `text` is on the standard error of `host` for the `nth` time.
#[track_caller]
fn wait_for(host: &mut Running, text: &str, nth: usize) {
    let found = eventually(|| {
        let lines = host.stderr().matches(text).count() >= nth;
        (lines || !host.runs()).then_some(lines)
    });
    assert_eq!(found, Some(true), "`{text}`: {}", host.stderr());
}

/// Kills the target while it does not complete commands of the host, and starts it again.
fn restart(setup: &Setup, target: &mut Target, feed: impl FnOnce()) {
    target.signal(Signal::SIGSTOP);
    feed();
    target.kill();
    *target = setup.start();
}

#[test]
fn write_over_two_paths_survives_a_cut_path_and_a_restart() {
    let (setup, ports) = two_ports(64 * MIB);
    let mut target = setup.start();
    let data = pattern(5, 48 * MIB);
    let (path, pipe) = fifo(&setup);
    let feeder = Feeder::new(pipe, data.clone());
    let mut host = over(&ports, "write").arg("--data").arg(&path).start();
    feeder.feed(8 * MIB);
    let second = format!("127.0.0.1:{}", ports[1]);
    ctl(&setup, &format!("port remove {second}")).ok();
    wait_for(&mut host, &format!("nvmeof: path {second} lost: "), 1);
    feeder.feed(8 * MIB);
    ctl(
        &setup,
        &format!("port add {second} --id 7 --provider iwarp"),
    )
    .ok();
    wait_for(
        &mut host,
        &format!("nvmeof: path {second} recovered after "),
        1,
    );
    feeder.feed(8 * MIB);
    // More than the pipe holds: commands are in flight.
    restart(&setup, &mut target, || feeder.fill(2 * MIB));
    let first = format!("127.0.0.1:{}", ports[0]);
    wait_for(
        &mut host,
        &format!("nvmeof: path {first} recovered after "),
        1,
    );
    wait_for(
        &mut host,
        &format!("nvmeof: path {second} recovered after "),
        2,
    );
    feeder.permit(data.len());
    feeder.close();
    let ended = host.end();
    assert_eq!(ended.status, Some(0), "{ended}");
    // Nothing but lines about paths.
    let mut lines = ended.stderr.lines();
    assert!(
        lines.all(|line| line.starts_with("nvmeof: path ")),
        "{ended}"
    );
    let image = std::fs::read(setup.image_path(1)).unwrap();
    same_bytes(&image[..data.len()], &data);
    same_bytes(&image[data.len()..], &pattern(1, 64 * MIB)[data.len()..]);
    target.stop();
}

#[test]
fn read_and_compare_over_one_path_survive_a_restart() {
    let (setup, ports) = two_ports(32 * MIB);
    let mut target = setup.start();
    let image = pattern(1, 32 * MIB);
    let (path, mut pipe) = fifo(&setup);
    let mut reader = over(&ports[..1], "read").arg("--data").arg(&path).start();
    let mut read = vec![0; MIB];
    pipe.read_exact(&mut read).unwrap();
    let (second, comparing) = (setup.path("fifo2"), image.clone());
    nix::unistd::mkfifo(&second, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = OpenOptions::new().read(true).write(true).open(&second);
    let feeder = Feeder::new(both.unwrap(), comparing);
    let mut comparer = over(&ports[..1], "compare")
        .arg("--data")
        .arg(&second)
        .start();
    feeder.feed(4 * MIB);
    restart(&setup, &mut target, || feeder.fill(2 * MIB));
    for host in [&mut reader, &mut comparer] {
        wait_for(host, "recovered after ", 1);
    }
    feeder.permit(image.len());
    feeder.close();
    let mut rest = vec![0; image.len() - read.len()];
    pipe.read_exact(&mut rest).unwrap();
    read.extend(rest);
    same_bytes(&read, &image);
    for host in [reader, comparer] {
        let ended = host.end();
        assert_eq!(ended.status, Some(0), "{ended}");
    }
    target.stop();
}

#[test]
fn verify_over_two_paths_survives_a_cut_path_and_a_restart() {
    // More than is verified before the test ends.
    let (setup, ports) = two_ports(MIB);
    let setup = setup.namespace("null:65536G", "");
    let mut target = setup.start();
    let mut host = over_namespace(2, &ports, "verify").start();
    let [first, second] = ports.map(|port| format!("127.0.0.1:{port}"));
    wait_for_verifies(&setup);
    ctl(&setup, &format!("port remove {second}")).ok();
    wait_for(&mut host, &format!("path {second} lost: "), 1);
    ctl(
        &setup,
        &format!("port add {second} --id 7 --provider iwarp"),
    )
    .ok();
    wait_for(&mut host, &format!("path {second} recovered after "), 1);
    restart(&setup, &mut target, || ());
    wait_for(&mut host, &format!("path {first} recovered after "), 1);
    wait_for_verifies(&setup);
    assert!(host.runs(), "{}", host.stderr());
    host.kill();
    target.stop();
}

/// Waits until the target completes more Verify commands on namespace 2.
#[track_caller]
fn wait_for_verifies(setup: &Setup) {
    let count = || {
        let (_, text) = over_socket(setup, "/metrics");
        let its = |line: &&str| {
            let words = [
                "nvmeof_target_namespace_commands_total{",
                "nsid=\"2\"",
                "\"verify\"",
            ];
            words.iter().all(|word| line.contains(word))
        };
        let value = text
            .lines()
            .find(its)
            .and_then(|line| line.rsplit(' ').next());
        value.map_or(0.0, |value| value.parse::<f64>().unwrap())
    };
    let first = count();
    assert!(eventually(|| (count() > first).then_some(())).is_some());
}

#[test]
fn lost_path_is_given_up_after_ctrl_loss_tmo() {
    let (setup, ports) = two_ports(32 * MIB);
    for (tmo, lines) in [
        (0, ["lost: ", "given up: "]),
        (1, ["reconnecting", "given up: "]),
    ] {
        let mut target = setup.start();
        let (path, pipe) = fifo(&setup);
        let feeder = Feeder::new(pipe, vec![7; 32 * MIB]);
        let command = format!("write --ctrl-loss-tmo {tmo}");
        let host = over(&ports[..1], &command).arg("--data").arg(&path);
        let host = host.start();
        // More than the pipe and the transfers in flight hold: some are acknowledged.
        feeder.feed(8 * MIB);
        target.kill();
        feeder.permit(32 * MIB);
        let ended = host.end();
        assert_eq!(ended.status, Some(1), "{ended}");
        for line in lines {
            assert!(ended.stderr.contains(line), "{line}: {ended}");
        }
        assert!(ended.stderr.contains("acknowledged"), "{ended}");
        std::fs::remove_file(&path).unwrap();
        // Nobody reads the pipe any more.
        drop(feeder);
    }
}

#[test]
fn path_that_is_absent_at_first_is_reported_and_not_needed() {
    let (setup, ports) = two_ports(MIB);
    let target = setup.start();
    let absent = free_port();
    let ended = over(&[absent, ports[0]], "read --data -").ok();
    same_bytes(&ended.stdout, &pattern(1, MIB));
    over(&[absent], "read --data -").fails(1, &["refused", &absent.to_string()]);
    over(&[ports[0], ports[0]], "read --data -").fails(2, &["twice"]);
    // One that is connected and inaccessible counts as absent.
    ctl(&setup, "ana set 1 inaccessible --port 7").ok();
    over(&ports, "read --data -").ok();
    over(&ports[1..], "read --data -").fails(1, &["cannot access the namespace"]);
    target.stop();
}
