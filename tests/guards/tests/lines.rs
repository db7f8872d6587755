//! Cache lines that two reactors share on the path of a command. A tracer of memory accesses
//! (`valgrind --tool=lackey`) runs two reactors in turn, which serve two queues of one
//! controller. A line that one of them writes and the other one uses costs both of them about
//! 100 ns on two CPUs. There must be none, whatever the number of commands.
//!
//! The trace does not depend on the load of the machine, nor on its number of CPUs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Commands of each reactor.
const ROUNDS: &str = "40";
const PROGRAM: &str = env!("CARGO_BIN_EXE_nvmeof-guards-reactors");
/// Where valgrind loads a program that can be loaded anywhere.
const LOAD_ADDRESS: u64 = 0x10_8000;

/// Turns in which a line has to be used to count: a turn may include the last steps of the other
/// thread before it sleeps.
const FEWEST: usize = 4;

/// Accesses of one reactor to a line.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    /// The number of turns with one, and the last of these turns.
    turns: usize,
    turn: usize,
    /// The last instruction.
    instruction: u64,
}

impl Accesses {
    fn add(&mut self, turn: usize, instruction: u64) {
        self.turns += usize::from(self.turn != turn);
        self.turn = turn;
        self.instruction = instruction;
    }

    fn is_steady(&self) -> bool {
        self.turns >= FEWEST
    }
}

/// What the two reactors do with a line.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    writes: [Accesses; 2],
    uses: [Accesses; 2],
}

impl Uses {
    /// Whether it moves between CPUs.
    fn is_shared(&self) -> bool {
        let is_written = self.writes.iter().any(Accesses::is_steady);
        is_written && self.uses.iter().all(Accesses::is_steady)
    }
}

/// One line of the trace: the kind of access, address and length.
fn access(text: &[u8]) -> Option<(u8, u64, u64)> {
    let (kind, rest) = match text {
        [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return None,
    };
    let rest = std::str::from_utf8(rest).ok()?;
    let (address, length) = rest.trim_end().split_once(',')?;
    let address = u64::from_str_radix(address.trim_start(), 16).ok()?;
    Some((kind, address, length.parse().ok()?))
}

/// What reactors do with lines, by address.
#[derive(Default)]
struct Trace {
    lines: BTreeMap<u64, Uses>,
    /// Whose turn it is.
    turn: Option<usize>,
    turns: usize,
    instruction: u64,
}

impl Trace {
    /// Adds an access. `marks` are the words that say whose turn it is.
    fn add(&mut self, (kind, address, length): (u8, u64, u64), marks: &[u64]) {
        if kind == b'I' {
            self.instruction = address;
            return;
        }
        if let Some(mark) = marks.iter().position(|mark| *mark == address) {
            self.turn = mark.checked_sub(1);
            self.turns += usize::from(mark > 0);
            return;
        }
        let Some(turn) = self.turn else { return };
        for line in address / LINE..=(address + length - 1) / LINE {
            let uses = self.lines.entry(line * LINE).or_default();
            uses.uses[turn].add(self.turns, self.instruction);
            if kind != b'L' {
                uses.writes[turn].add(self.turns, self.instruction);
            }
        }
    }
}

/// Runs the program under the tracer.
fn trace(arguments: &[&str]) -> Trace {
    let mut valgrind = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2"])
        .arg(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("install the package `valgrind` (cargo xtask setup)");
    // The program prints the addresses of the marks when it starts. Its trace has to be read
    // meanwhile.
    let marks = Arc::new(OnceLock::new());
    let stdout = BufReader::new(valgrind.stdout.take().unwrap());
    let printed = Arc::clone(&marks);
    let reader = std::thread::spawn(move || {
        let parse = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let all: Vec<_> = stdout
            .lines()
            .take(3)
            .map(|line| parse(&line.unwrap()))
            .collect();
        printed
            .set(all.into_iter().map(Option::unwrap).collect::<Vec<_>>())
            .unwrap();
    });
    let mut log = BufReader::with_capacity(1 << 20, valgrind.stderr.take().unwrap());
    let (mut text, mut messages, mut trace) = (Vec::new(), Vec::new(), Trace::default());
    while log.read_until(b'\n', &mut text).unwrap() > 0 {
        match (access(&text), marks.get()) {
            (Some(access), Some(marks)) => trace.add(access, marks),
            (Some(_), None) => {}
            (None, _) => messages.extend_from_slice(&text),
        }
        text.clear();
    }
    reader.join().unwrap();
    let messages = String::from_utf8_lossy(&messages);
    assert!(valgrind.wait().unwrap().success(), "{messages}");
    trace
}

/// The lines that move between the reactors, with the functions that use them.
fn shared_lines(arguments: &[&str]) -> Vec<String> {
    let trace = trace(arguments);
    let rounds: usize = ROUNDS.parse().unwrap();
    assert!(
        trace.turns >= 2 * rounds,
        "only {} turns are marked",
        trace.turns
    );
    let shared = trace.lines.iter().filter(|(_, uses)| uses.is_shared());
    let text = |(address, uses): (&u64, &Uses)| {
        let mut text = format!("{address:#x}:");
        let sides = uses.writes.iter().zip(&uses.uses);
        for (reactor, (written, used)) in sides.enumerate() {
            let (verb, accesses) = match written.turns {
                0 => ("reads", used),
                _ => ("writes", written),
            };
            let (turns, place) = (accesses.turns, place(accesses.instruction));
            write!(
                text,
                " reactor {reactor} {verb} it in {turns} turns, in {place};"
            )
            .unwrap();
        }
        text
    };
    shared.map(text).collect()
}

/// The function of an instruction of the program. Valgrind loads it at a fixed address.
fn place(instruction: u64) -> String {
    let Some(offset) = instruction.checked_sub(LOAD_ADDRESS) else {
        return format!("{instruction:#x}");
    };
    let mut addr2line = Command::new("addr2line");
    addr2line.args(["-C", "-f", "-e", PROGRAM, &format!("{offset:#x}")]);
    match addr2line.output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout)
            .trim()
            .replace('\n', " "),
        Err(_) => format!("{offset:#x}"),
    }
}

#[test]
fn reactors_share_no_written_line_on_the_path_of_a_read() {
    assert_eq!(shared_lines(&["lines", "read", ROUNDS]), [""; 0]);
}

#[test]
fn reactors_share_no_written_line_on_the_path_of_a_write() {
    assert_eq!(shared_lines(&["lines", "write", ROUNDS]), [""; 0]);
}

/// Both reactors have one file open, and count the writes that a failed flush may lose.
#[test]
fn reactors_share_no_written_line_on_the_path_to_a_file() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(4 << 30).unwrap();
    let path = file.path().to_str().unwrap();
    for kind in ["read", "write"] {
        let shared = shared_lines(&["lines", "--store", path, kind, ROUNDS]);
        assert_eq!(shared, [""; 0], "{kind}");
    }
}

/// Functions that use lines once per tick of a clock, not once per command:
///
/// * `Queue::begin`: the time of the last sign of life of the host, once per millisecond, so that
///   its Keep Alive Timer sees the traffic of all queues;
/// * `Health::is_at`: one of the reactors adds the controller busy time, once per 16.8 ms. It
///   writes the sum, and reads the counters of each queue.
const TICKS: [&str; 2] = ["Queue::begin", "Health::is_at"];
const TICK_LINES: usize = 3;

/// There are 17 ms between the commands of a queue.
#[test]
fn reactors_share_only_known_lines_in_ticks() {
    let shared = shared_lines(&["lines", "--between-ms", "17", "read", ROUNDS]);
    let is_known = |line: &String| TICKS.iter().any(|tick| line.contains(tick));
    let are_known = shared.iter().all(is_known) && shared.len() <= TICK_LINES;
    let is_found = |tick: &&str| shared.iter().any(|line| line.contains(tick));
    assert!(are_known && TICKS.iter().all(is_found), "{shared:#?}");
}

/// The check can fail: both reactors write one counter.
#[test]
fn shared_counter_is_found() {
    let shared = shared_lines(&["lines", "--share", "read", ROUNDS]);
    assert_eq!(shared.len(), 1, "{shared:#?}");
}
