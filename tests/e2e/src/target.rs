//! A target process.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvmeof_rdma::Address;
use tempfile::TempDir;

use crate::observe::{fds, is_stopped};
use crate::timeout::{TIMEOUT, eventually};
use crate::{Devices, HOST, NQN, Run};

/// Files of standard error and standard output.
const LOG: &str = "target.log";
const OUT: &str = "target.out";

/// A target that is ready; killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    /// The folder of its output.
    folder: Arc<TempDir>,
    address: Address,
    /// Devices for the hosts.
    devices: Option<Devices>,
}

impl Target {
    /// Starts `command` and waits until it is ready, with logs in `folder`.
    #[must_use]
    pub fn start(command: &mut Command, folder: Arc<TempDir>) -> Self {
        let mut target = Self::start_anyhow(command, folder);
        let line = target.wait_for_log("ready: serving");
        target.address = first_address(&line).unwrap_or_else(|| panic!("no address in: {line}"));
        target
    }

    /// Starts `command` with logs in `folder`, without waiting for it. Its address is unknown.
    #[must_use]
    pub fn start_anyhow(command: &mut Command, folder: Arc<TempDir>) -> Self {
        let create = |name| File::create(folder.path().join(name)).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(create(OUT))
            .stderr(create(LOG))
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let nowhere = Address::from(([0, 0, 0, 0], 0));
        Self {
            child,
            folder,
            address: nowhere,
            devices: None,
        }
    }

    /// Its hosts have devices.
    #[must_use]
    pub(crate) fn reached_over(mut self, devices: Option<Devices>) -> Self {
        self.devices = devices;
        self
    }

    /// The IP address and port where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address.socket_addr().unwrap()
    }

    /// The address or the Unix socket, as an option of a program.
    #[must_use]
    pub fn place(&self) -> String {
        self.address.to_string()
    }

    /// Process identifier.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join(LOG)).unwrap()).into_owned()
    }

    /// What it printed on standard output.
    #[must_use]
    pub fn printed(&self) -> String {
        fs::read_to_string(self.folder.path().join(OUT)).unwrap()
    }

    /// The lines of the log that contain all of `words`.
    #[must_use]
    pub fn lines(&self, words: &[&str]) -> Vec<String> {
        let log = self.log();
        let wanted = log
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        wanted.map(str::to_owned).collect()
    }

    /// Waits for a whole line of the log that contains `words`.
    #[track_caller]
    pub fn wait_for_log(&mut self, words: &str) -> String {
        let found = eventually(|| {
            let log = self.log();
            let mut whole = log
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let line = whole.find(|line| line.contains(words));
            let line = line.map(|line| Ok(line.trim_end().to_owned()));
            line.or_else(|| self.child.try_wait().unwrap().map(Err))
        });
        match found {
            Some(Ok(line)) => line,
            Some(Err(status)) => panic!("the target ended, {status}:\n{}", self.log()),
            None => panic!(
                "`{words}` was not logged within {TIMEOUT:?}:\n{}",
                self.log()
            ),
        }
    }

    /// `nvmeof COMMAND` with the target's address.
    #[must_use]
    pub fn fabrics(&self, command: &str) -> Run {
        let at = match self.address {
            Address::Ip(addr) => format!("-a {} -s {}", addr.ip(), addr.port()),
            Address::Unix(_) => format!("-a {}", self.address),
        };
        let run = Run::nvmeof(&format!("{command} -t rdma {at}")).args(&format!("-q {HOST}"));
        match &self.devices {
            Some(devices) => run.over(devices),
            None => run,
        }
    }

    /// `nvmeof COMMAND` with the target's address and subsystem.
    #[must_use]
    pub fn nvmeof(&self, command: &str) -> Run {
        self.fabrics(command).args(&format!("-n {NQN}"))
    }

    /// `nvmeof COMMAND` on namespace `nsid`.
    #[must_use]
    pub fn on(&self, nsid: u32, command: &str) -> Run {
        self.nvmeof(command).args(&format!("--namespace-id {nsid}"))
    }

    /// Reads blocks to memory.
    #[track_caller]
    #[must_use]
    pub fn read(&self, nsid: u32, start: u64, count: Option<u64>) -> Vec<u8> {
        let count = count
            .map(|count| format!("--block-count {count}"))
            .unwrap_or_default();
        let range = format!("--start-block {start} {count} --data -");
        self.on(nsid, "read").args(&range).ok().stdout
    }

    /// Writes blocks from memory.
    #[track_caller]
    pub fn write(&self, nsid: u32, start: u64, data: &[u8]) {
        let range = format!("--start-block {start} --data -");
        self.on(nsid, "write").args(&range).stdin(data).ok();
    }

    /// Open file descriptors, once so many connections that there were have been closed. The target
    /// logs the end of a connection shortly before it closes it.
    #[track_caller]
    #[must_use]
    pub fn idle_fds(&self, connections: usize) -> usize {
        let closed = || self.lines(&["disconnected"]).len();
        let all = eventually(|| (closed() == connections).then_some(()));
        assert!(all.is_some(), "{}", self.log());
        let counted = (0..20).map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            fds(self.pid())
        });
        counted.min().unwrap()
    }

    /// Sends a signal. After SIGSTOP, waits until all threads are stopped.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap());
        kill(pid, signal).unwrap();
        if signal == Signal::SIGSTOP {
            // Threads on other CPUs continue for a moment.
            let stopped = eventually(|| is_stopped(self.pid()).then_some(()));
            assert!(stopped.is_some(), "{}", self.log());
        }
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        eventually(|| self.child.try_wait().unwrap())
            .unwrap_or_else(|| panic!("the target still runs after {TIMEOUT:?}:\n{}", self.log()))
    }

    /// Ends it with SIGTERM; the exit status must be 0.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asserts that it is running and logged no internal error.
    #[track_caller]
    pub fn assert_healthy(&mut self) {
        let log = self.log();
        assert_eq!(self.child.try_wait().unwrap(), None, "it ended:\n{log}");
        for word in ["panicked", "internal error", "work was refused"] {
            assert!(!log.contains(word), "{log}");
        }
    }
}

/// The first word of `line` that is an address with a port, or a Unix socket.
fn first_address(line: &str) -> Option<Address> {
    let mut words = line.split([' ', ',']);
    words.find_map(|word| word.parse().ok())
}

impl Drop for Target {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the target's log:\n{}", self.log());
        }
        self.kill();
    }
}
