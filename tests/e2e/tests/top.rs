//! The live view on a terminal: content, keys, sizes, and restoring the terminal.
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
use vt100::{Parser, Screen};

const MIB: usize = 1 << 20;

/// The view on a pseudo-terminal.
struct Terminal {
    keys: File,
    /// The content of the screen.
    shown: Arc<Mutex<Parser>>,
    /// The program side of the terminal.
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
        // So that it gets SIGWINCH.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(program.get_program());
        command.args(["top", "--interval", "0.2", "--socket"]);
        command.arg(setup.path("control.sock")).env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        let top = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let (into, mut from) = (Arc::clone(&shown), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = from.read(&mut bytes) {
                into.lock().unwrap().process(bytes.get(..len).unwrap());
            }
        });
        Self {
            keys: master,
            shown,
            slave,
            before,
            top,
        }
    }

    fn sees<T>(&self, what: impl Fn(&Screen) -> T) -> T {
        what(self.shown.lock().unwrap().screen())
    }

    /// Waits until the screen contains these words.
    fn shows(&self, words: &str) {
        let words = squeezed(words);
        let there = |screen: &Screen| screen.alternate_screen() && text(screen).contains(&words);
        let shown = eventually(|| self.sees(there).then_some(()));
        assert!(
            shown.is_some(),
            "{words}: {:?}",
            self.sees(Screen::contents)
        );
    }

    fn press(&mut self, key: &[u8]) {
        self.keys.write_all(key).unwrap();
    }

    /// Clears the screen, so that later content is new.
    fn resize(&self, columns: u16, rows: u16) {
        let mut shown = self.shown.lock().unwrap();
        shown.screen_mut().set_size(rows, columns);
        shown.process(b"\x1b[2J");
        drop(shown);
        let path = ttyname(&self.slave).unwrap();
        let mut stty = Command::new("stty");
        stty.arg("-F").arg(path);
        let (columns, rows) = (columns.to_string(), rows.to_string());
        stty.args(["cols", &columns, "rows", &rows]);
        assert!(stty.status().unwrap().success());
    }

    /// Waits for its end; the terminal must be restored. Returns the exit status.
    fn ends(&mut self) -> Option<i32> {
        let status = eventually(|| self.top.try_wait().unwrap());
        let status = status.unwrap_or_else(|| panic!("it goes on: {:?}", self.sees(text)));
        let left = eventually(|| (!self.sees(Screen::alternate_screen)).then_some(()));
        assert!(left.is_some(), "{:?}", self.sees(text));
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

/// Removes spaces, so that words that a narrow screen wraps are complete.
fn text(screen: &Screen) -> String {
    squeezed(&screen.contents())
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect()
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
fn view_stays_until_a_key_quits() {
    let (setup, target) = watched();
    for (key, size) in [
        (&b"q"[..], (80, 24)),
        (b"\x03", (40, 10)),
        (b"\x1b", (120, 50)),
    ] {
        let mut terminal = Terminal::start(&setup, size.0, size.1);
        for words in ["nvmeof-target", "IOPS", "NAMESPACE"] {
            terminal.shows(words);
        }
        terminal.press(key);
        assert_eq!(terminal.ends(), Some(0), "{key:?}");
    }
    target.stop();
}

#[test]
fn resized_terminal_is_filled_and_keys_work() {
    let (setup, target) = watched();
    let mut terminal = Terminal::start(&setup, 80, 24);
    terminal.shows("REACTOR");
    terminal.press(b"p");
    terminal.shows("PAUSED");
    for (columns, rows) in [(40, 10), (20, 3), (100, 30)] {
        terminal.resize(columns, rows);
        terminal.shows("nvmeof-target");
    }
    terminal.press(b"q");
    assert_eq!(terminal.ends(), Some(0));
    target.stop();
}

#[test]
fn key_during_resize_is_not_lost() {
    let (setup, target) = watched();
    let mut terminal = Terminal::start(&setup, 80, 24);
    terminal.shows("REACTOR");
    // The view waits for a response, so that it gets both at the same time.
    target.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(1));
    terminal.resize(100, 30);
    terminal.press(b"q");
    target.signal(Signal::SIGCONT);
    assert_eq!(terminal.ends(), Some(0));
    target.stop();
}

#[test]
fn signal_restores_the_terminal() {
    let (setup, target) = watched();
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut terminal = Terminal::start(&setup, 80, 24);
        terminal.shows("REACTOR");
        // setsid(1) has executed it: it was no process group leader.
        let pid = Pid::from_raw(i32::try_from(terminal.top.id()).unwrap());
        kill(pid, signal).unwrap();
        assert_eq!(terminal.ends(), Some(status), "{signal}");
    }
    target.stop();
}

#[test]
fn top_reports_lost_target_and_reconnects() {
    let (setup, target) = watched();
    let mut terminal = Terminal::start(&setup, 80, 24);
    terminal.shows("REACTOR");
    target.stop();
    terminal.shows("there is no such socket; does the target run?");
    let target = setup.start();
    terminal.shows("the target was restarted");
    terminal.press(b"q");
    assert_eq!(terminal.ends(), Some(0));
    target.stop();
}
