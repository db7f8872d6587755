//! The live view on a terminal: what is seen, keys, sizes, and what is left of it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::{Pid, ttyname};
use nvmeof_e2e::{Setup, Target, eventually, target_command};

const MIB: usize = 1 << 20;
/// What has a terminal show another screen, and the one before again.
const ENTERS: &str = "\u{1b}[?1049h";
const LEAVES: &str = "\u{1b}[?1049l";

/// The view on a terminal of its own.
struct Terminal {
    keys: File,
    seen: Arc<Mutex<Vec<u8>>>,
    /// The end that programs have.
    slave: File,
    before: Termios,
    top: Child,
}

impl Terminal {
    fn start(setup: &Setup, columns: u16, rows: u16) -> Self {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let both = openpty(&size, None).unwrap();
        let (master, slave) = (File::from(both.master), File::from(both.slave));
        let before = tcgetattr(&slave).unwrap();
        let end = || slave.try_clone().unwrap();
        let program = target_command();
        // So that it hears of other sizes.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(program.get_program());
        command.args(["top", "--interval", "0.2", "--socket"]);
        command.arg(setup.path("control.sock")).env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        let top = command.spawn().unwrap();
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let (into, mut from) = (Arc::clone(&seen), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = from.read(&mut bytes) {
                into.lock()
                    .unwrap()
                    .extend_from_slice(bytes.get(..len).unwrap());
            }
        });
        Self {
            keys: master,
            seen,
            slave,
            before,
            top,
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Waits until this was shown after the first `from` bytes. Words in new places
    /// come one by one.
    fn shows(&self, from: usize, words: &str) {
        let there = || {
            self.text()
                .get(from..)
                .is_some_and(|text| text.contains(words))
        };
        let shown = eventually(|| there().then_some(()));
        assert!(shown.is_some(), "{words}: {:?}", self.text());
    }

    /// Waits until the word is drawn when all is: after a resize. Otherwise only
    /// characters are that differ from those before at their place.
    fn draws(&self, word: &str) {
        let mut columns = 80;
        let drawn = eventually(|| {
            columns = if columns == 80 { 81 } else { 80 };
            let before = self.text().len();
            self.resize(columns, 24);
            std::thread::sleep(Duration::from_millis(200));
            let text = self.text();
            text.get(before..)?.contains(word).then_some(())
        });
        assert!(drawn.is_some(), "{word}: {:?}", self.text());
    }

    fn press(&mut self, key: &[u8]) {
        self.keys.write_all(key).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let path = ttyname(&self.slave).unwrap();
        let mut stty = Command::new("stty");
        stty.arg("-F").arg(path);
        let (columns, rows) = (columns.to_string(), rows.to_string());
        stty.args(["cols", &columns, "rows", &rows]);
        assert!(stty.status().unwrap().success());
    }

    /// Ends by itself, and the terminal is what it was. Gives the exit status.
    fn ends(&mut self) -> Option<i32> {
        let status = eventually(|| self.top.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("it goes on: {:?}", self.text()));
        self.shows(0, LEAVES);
        assert!(tcgetattr(self.slave.as_fd()).unwrap() == self.before);
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

fn watched() -> (Setup, Target) {
    let setup = Setup::new();
    let socket = setup.path("control.sock");
    let head = format!("[control]\nsocket = '{}'\nstate = \"\"\n", socket.display());
    let setup = setup.head(&head).file(MIB);
    let target = setup.start();
    (setup, target)
}

#[test]
fn the_view_is_there_until_a_key_ends_it() {
    let (setup, target) = watched();
    for (key, size) in [
        (&b"q"[..], (80, 24)),
        (b"\x03", (40, 10)),
        (b"\x1b", (120, 50)),
    ] {
        let mut terminal = Terminal::start(&setup, size.0, size.1);
        for words in [ENTERS, "nvmeof-target", "IOPS", "NAMESPACE"] {
            terminal.shows(0, words);
        }
        terminal.press(key);
        assert_eq!(terminal.ends(), Some(0), "{key:?}");
    }
    target.stop();
}

#[test]
fn another_size_is_filled_and_keys_go_on() {
    let (setup, target) = watched();
    let mut terminal = Terminal::start(&setup, 80, 24);
    terminal.shows(0, "REACTOR");
    terminal.press(b"p");
    terminal.shows(0, "PAUSED");
    for (columns, rows) in [(40, 10), (20, 3), (100, 30)] {
        let before = terminal.text().len();
        terminal.resize(columns, rows);
        terminal.shows(before, "nvmeof-target");
    }
    terminal.press(b"q");
    assert_eq!(terminal.ends(), Some(0));
    target.stop();
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let (setup, target) = watched();
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut terminal = Terminal::start(&setup, 80, 24);
        terminal.shows(0, "REACTOR");
        // setsid(1) became it: it led no group.
        let pid = Pid::from_raw(i32::try_from(terminal.top.id()).unwrap());
        kill(pid, signal).unwrap();
        assert_eq!(terminal.ends(), Some(status), "{signal}");
    }
    target.stop();
}

#[test]
fn a_target_that_goes_away_is_told_and_waited_for() {
    let (setup, target) = watched();
    let mut terminal = Terminal::start(&setup, 80, 24);
    terminal.shows(0, "REACTOR");
    target.stop();
    terminal.draws("socket;");
    let target = setup.start();
    terminal.draws("started");
    terminal.press(b"q");
    assert_eq!(terminal.ends(), Some(0));
    target.stop();
}
