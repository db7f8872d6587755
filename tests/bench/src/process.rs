//! Servers that run during a whole scene: targets, and the other side of yardsticks.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Trouble;
use crate::cores::{self, Cores};

/// Time-out for the line with the address of a server.
const TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);

/// A server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    cores: Vec<usize>,
    log: PathBuf,
    /// The line that it printed when it was ready.
    line: String,
}

impl Server {
    /// Starts `command` on `cores` with its output in `log`, and waits for a line that
    /// contains `words`, not as the end of a longer word.
    pub(crate) fn start(
        command: &mut Command,
        cores: &[usize],
        log: &Path,
        words: &str,
    ) -> Result<Self, Trouble> {
        let file = File::create(log).map_err(|error| Trouble::file("create", log, &error))?;
        let same = file.try_clone();
        let same = same.map_err(|error| Trouble::file("open", log, &error))?;
        command.stdin(Stdio::null()).stdout(file).stderr(same);
        let child = cores::spawn(cores, command)?;
        let mut server = Self {
            child,
            cores: cores.to_owned(),
            log: log.to_owned(),
            line: String::new(),
        };
        server.line = server.wait(words)?;
        Ok(server)
    }

    /// The first address in that line.
    pub(crate) fn addr(&self) -> Result<SocketAddr, Trouble> {
        let line = &self.line;
        address(line).ok_or_else(|| Trouble::SetUp(format!("a server printed no address: {line}")))
    }

    fn wait(&mut self, words: &str) -> Result<String, Trouble> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            let text = fs::read(&self.log);
            let text = text.map_err(|error| Trouble::file("read", &self.log, &error))?;
            let text = String::from_utf8_lossy(&text);
            // The last line may be incomplete.
            let mut whole = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            if let Some(line) = whole.find(|line| has_words(line, words)) {
                return Ok(line.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Trouble::SetUp(format!(
                    "a server terminated, {status}; its output:\n{text}"
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Err(Trouble::SetUp(format!(
            "a server printed no address within {} s; see {}",
            TIMEOUT.as_secs(),
            self.log.display()
        )))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Moves the process to the core of the other side.
    pub(crate) fn swap(&mut self, sides: Cores) -> Result<(), Trouble> {
        for core in &mut self.cores {
            *core = match *core {
                target if target == sides.target => sides.initiator,
                _ => sides.target,
            };
        }
        cores::shift(self.id(), &self.cores)
    }

    /// Moves the process to these cores, except kernel threads for its SQPOLL rings.
    pub(crate) fn move_to(&mut self, cores: &[usize]) -> Result<(), Trouble> {
        cores.clone_into(&mut self.cores);
        cores::shift(self.id(), cores)
    }

    /// Fails if it has terminated.
    pub(crate) fn must_run(&mut self) -> Result<(), Trouble> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            ended => Err(Trouble::Failed(format!(
                "a server terminated unexpectedly ({ended:?}); its output:\n{}",
                self.output()
            ))),
        }
    }

    /// Its output, for errors.
    pub(crate) fn output(&self) -> String {
        fs::read(&self.log)
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors mean that it has terminated.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn has_words(line: &str, words: &str) -> bool {
    let Some((before, _)) = line.split_once(words) else {
        return false;
    };
    // Such as `ready` in `already`.
    let continues = before.ends_with(char::is_alphanumeric);
    !(continues && words.starts_with(char::is_alphanumeric))
}

/// A process that is stopped, because it may poll on the core of others.
#[derive(Debug)]
pub(crate) struct Stopped(Pid);

/// Stops the process again when dropped.
#[derive(Debug)]
pub(crate) struct Running(Pid);

impl Stopped {
    /// Stops a process.
    pub(crate) fn stop(process: u32) -> Result<Self, Trouble> {
        let process = Pid::from_raw(i32::try_from(process).unwrap_or(i32::MAX));
        signal(process, Signal::SIGSTOP).map(|()| Self(process))
    }

    /// Lets it run as long as the result exists.
    pub(crate) fn resume(&self) -> Result<Running, Trouble> {
        signal(self.0, Signal::SIGCONT).map(|()| Running(self.0))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has terminated.
        drop(signal(self.0, Signal::SIGSTOP));
    }
}

fn signal(process: Pid, signal: Signal) -> Result<(), Trouble> {
    kill(process, signal)
        .map_err(|errno| Trouble::Failed(format!("cannot send {signal} to a server: {errno}")))
}

/// The first word of `line` that is an address with a port.
fn address(line: &str) -> Option<SocketAddr> {
    line.split([' ', ',', '\n'])
        .find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, name: &str) -> Result<Server, Trouble> {
        let log = std::env::temp_dir().join(format!("bench-{}-{name}", std::process::id()));
        let core = Cores::find().unwrap().target;
        let server = Server::start(Command::new("sh").args(["-c", script]), &[core], &log, "on");
        fs::remove_file(log).unwrap();
        server
    }

    #[test]
    fn address_is_found_in_the_log() {
        let server = shell(
            "echo off; echo icon 1.2.3.4:5; echo on 127.0.0.1:80, x; exec sleep 60",
            "a",
        );
        let addr = server.unwrap().addr();
        assert_eq!(addr.unwrap(), "127.0.0.1:80".parse().unwrap());
    }

    #[test]
    fn output_of_terminated_server_is_quoted() {
        let trouble = shell("echo no room; exit 3", "b").unwrap_err();
        assert!(trouble.to_string().contains("no room"), "{trouble}");
    }

    #[test]
    fn stopped_server_runs_while_it_is_resumed() {
        let server = shell("echo on 1.2.3.4:5; exec sleep 60", "c").unwrap();
        let is_stopped = |wanted: bool| {
            let stat = format!("/proc/{}/stat", server.id());
            (0..600).any(|_| {
                let text = fs::read_to_string(&stat).unwrap();
                let state = text.rsplit_once(") ").unwrap().1.starts_with('T');
                if state != wanted {
                    std::thread::sleep(PAUSE);
                }
                state == wanted
            })
        };
        let stopped = Stopped::stop(server.id()).unwrap();
        assert!(is_stopped(true));
        let running = stopped.resume().unwrap();
        assert!(is_stopped(false));
        drop(running);
        assert!(is_stopped(true));
    }
}
