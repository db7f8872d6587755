//! A target that is killed while it saves its state file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "tests"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvmeof_e2e::{Setup, Target};
use serde_json::{Value, json};

/// Number of kills.
const ROUNDS: u32 = 100;
/// Number of namespaces of one document: a part of them shows a partial document.
const NAMESPACES: u64 = 3;
/// It is killed within the duration of this number of saves.
const WITHIN: u32 = 4;

/// Pseudo-random numbers (xorshift64*, Vigna 2016).
struct Dice(u64);

impl Dice {
    /// Seeded by `NVMEOF_SEED`, which repeats a run, or the clock. Prints the seed.
    fn new() -> Self {
        let given = std::env::var("NVMEOF_SEED").ok();
        let given = given.map(|seed| seed.parse().unwrap());
        let clock = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_nanos()
        };
        let seed = given.unwrap_or_else(|| u64::try_from(clock() % u128::from(u64::MAX)).unwrap());
        eprintln!("NVMEOF_SEED={seed}");
        Self(seed.max(1))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end
    }
}

/// A small target with its state file in a separate folder.
fn managed() -> Setup {
    let setup = Setup::new();
    let (socket, kept) = (setup.path("control.sock"), setup.path("kept"));
    fs::create_dir(&kept).unwrap();
    let head = format!(
        "[control]\nsocket = '{}'\nstate = '{}'\n[reactor]\ncount = 1\nbuffer_memory = '8M'\n",
        socket.display(),
        kept.join("state.json").display()
    );
    setup.head(&head)
}

/// One request and its complete response; `None` when the target was killed meanwhile.
fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let len = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {len}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{response}");
    let whole = serde_json::from_str::<Value>(body).is_ok();
    whole.then(|| body.to_owned())
}

/// Document `number`; 0 is the configuration file.
fn document(setup: &Setup, number: u64) -> String {
    let mut text = setup.text();
    for nsid in nsids(number) {
        let head = "[[subsystem.namespace]]";
        writeln!(text, "{head}\nnsid = {nsid}\npath = 'null:1M'").unwrap();
    }
    text
}

fn nsids(number: u64) -> Vec<u64> {
    let of = |at| (number - 1) * NAMESPACES + at + 1;
    match number {
        0 => Vec::new(),
        _ => (0..NAMESPACES).map(of).collect(),
    }
}

/// The number of the document that is served, which must be complete.
fn served(socket: &Path, target: &Target) -> u64 {
    let status = ask(socket, "GET", "/v1/status", "");
    let status = status.unwrap_or_else(|| panic!("no answer:\n{}", target.log()));
    let status: Value = serde_json::from_str(&status).unwrap();
    let all = status["subsystems"][0]["namespaces"].as_array().unwrap();
    let found: Vec<u64> = all
        .iter()
        .map(|one| one["nsid"].as_u64().unwrap())
        .collect();
    let number = found.last().map_or(0, |last| last.div_ceil(NAMESPACES));
    assert_eq!(
        found,
        nsids(number),
        "half of a document:\n{}",
        target.log()
    );
    let name = (number > 0).then(|| format!("{number}.toml"));
    assert_eq!(status["applied"], json!(name), "{status}");
    number
}

/// Applies that document. False when the target was killed meanwhile.
fn apply(setup: &Setup, socket: &Path, number: u64) -> bool {
    let (name, text) = (format!("{number}.toml"), document(setup, number));
    let body = json!({ "name": name, "text": text }).to_string();
    let Some(response) = ask(socket, "POST", "/v1/apply", &body) else {
        return false;
    };
    assert!(response.contains("\"saved\":true"), "{response}");
    true
}

/// Applies one document after the other until the target is killed. Returns the last one that
/// was acknowledged.
fn apply_until_killed(setup: &Setup, socket: &Path, mut number: u64) -> u64 {
    while apply(setup, socket, number + 1) {
        number += 1;
    }
    number
}

#[test]
fn target_killed_at_any_time_starts_with_old_or_new_document() {
    let setup = managed();
    let (socket, kept) = (setup.path("control.sock"), setup.path("kept"));
    let mut dice = Dice::new();
    let (mut acknowledged, mut unfinished, mut round) = (0, 0, 0);
    // The number of kills during a save depends on the machine.
    while round < ROUNDS || unfinished == 0 && round < 20 * ROUNDS {
        round += 1;
        let mut target = setup.start();
        let number = served(&socket, &target);
        let was = acknowledged..=acknowledged + 1;
        assert!(
            was.contains(&number),
            "round {round}: {number}, not one of {was:?}"
        );
        // Temporary files of a killed writer are removed.
        let mut files: Vec<_> = fs::read_dir(&kept).unwrap().map(|it| it.unwrap()).collect();
        files.retain(|file| file.file_name().to_string_lossy().contains(".new"));
        assert!(files.is_empty(), "round {round}: {files:?}");
        let begin = Instant::now();
        assert!(apply(&setup, &socket, number + 1), "{}", target.log());
        let within = u64::try_from((begin.elapsed() * WITHIN).as_micros()).unwrap();
        let wait = Duration::from_micros(dice.below(within.max(1)));
        acknowledged = std::thread::scope(|scope| {
            let changes = scope.spawn(|| apply_until_killed(&setup, &socket, number + 1));
            std::thread::sleep(wait);
            target.kill();
            changes.join().unwrap()
        });
        let left = fs::read_dir(&kept)
            .unwrap()
            .map(|it| it.unwrap().file_name());
        let left = left.filter(|name| name.to_string_lossy().contains(".new"));
        unfinished += left.count();
    }
    let target = setup.start();
    let number = served(&socket, &target);
    assert!(
        (acknowledged..=acknowledged + 1).contains(&number),
        "{number}"
    );
    eprintln!("{number} documents; {unfinished} of {round} kills left a file half way");
    assert!(unfinished > 0, "no kill came while a state was being saved");
    target.stop();
}

/// The system calls of a save, at which it is killed one after the other. Strace counts them
/// for each thread; other calls of write(2) wake threads before.
const CALLS: &[&str] = &["openat", "pwrite64", "fchmod", "fsync", "rename"];
/// A save makes fewer of each.
const MOST: u32 = 20;

/// Something that is saved: what it is now is a number that changes by one.
struct Saved<'a> {
    setup: &'a Setup,
    /// The steps of a save, in order: the call, and a word of its line.
    steps: &'a [(&'a str, &'a str)],
    /// From this step on the new state is effective.
    renamed: usize,
    /// The number that is in effect, which must be complete.
    now: &'a dyn Fn(&Target) -> u64,
    /// Saves that number. Returns whether that was acknowledged.
    save: &'a dyn Fn(&Target, u64) -> bool,
}

/// Kills the target when one of its threads is about to make the `when`th such call
/// from now on, and writes what they call to the file `trace`.
fn kill_at(target: &Target, call: &str, when: u32, trace: &Path) -> Child {
    let mut strace = Command::new("strace")
        .args(["-f", "-y", "-e"])
        .arg(format!("trace={}", CALLS.join(",")))
        .args(["-e", &format!("inject={call}:signal=KILL:when={when}")])
        .arg("-o")
        .arg(trace)
        .args(["-p", &target.pid().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("strace, which `cargo xtask setup` installs: {error}"));
    let mut lines = BufReader::new(strace.stderr.take().unwrap()).lines();
    let output = lines.next().unwrap().unwrap();
    assert!(output.contains("attached"), "may it attach? {output}");
    // A closed pipe would end it.
    std::thread::spawn(move || lines.for_each(drop));
    strace
}

impl Saved<'_> {
    /// The index of the step at which it was killed, if it is one of a save.
    fn step(&self, trace: &str) -> Option<usize> {
        let began = |line: &&str| !line.contains(" resumed>");
        let ends = |line: &&str| line.ends_with("= ?") || line.ends_with("<unfinished ...>");
        let last = trace.lines().filter(began).rfind(ends)?;
        let mut steps = self.steps.iter();
        steps.position(|(call, what)| last.contains(call) && last.contains(what))
    }

    /// Kills the target at each call of a save, one after the other: afterwards, the old or the new
    /// number is in effect, and the new one if it was acknowledged.
    fn kill_at_each_call(&self, mut number: u64) {
        let (setup, trace) = (self.setup, self.setup.path("trace"));
        let mut seen = std::collections::BTreeSet::new();
        for call in CALLS {
            for when in 1.. {
                assert!(when < MOST, "{call}: {when}");
                let mut target = setup.start();
                assert_eq!((self.now)(&target), number);
                let mut strace = kill_at(&target, call, when, &trace);
                let done = (self.save)(&target, number + 1);
                target.kill();
                strace.wait().unwrap();
                if done {
                    number += 1;
                    break;
                }
                let trace = fs::read_to_string(&trace).unwrap();
                let (target, step) = (setup.start(), self.step(&trace));
                let is = (self.now)(&target);
                match step {
                    Some(step) => {
                        assert_eq!(is, number + u64::from(step >= self.renamed), "{trace}");
                    }
                    None => assert!((number..=number + 1).contains(&is), "{is}: {trace}"),
                }
                number = is;
                seen.extend(step);
                target.stop();
            }
        }
        // It was killed before each of them.
        assert_eq!(seen, (0..self.steps.len()).collect());
    }
}

#[test]
fn kill_at_any_system_call_of_a_save_leaves_old_or_new_document() {
    let setup = managed();
    let socket = setup.path("control.sock");
    let target = setup.start();
    assert!(apply(&setup, &socket, 1));
    target.stop();
    let saved = Saved {
        setup: &setup,
        steps: &[
            ("openat(", "/.state.json.new-"),
            ("fchmod(", "/.state.json.new-"),
            ("pwrite64(", "/.state.json.new-"),
            ("fsync(", "/.state.json.new-"),
            ("rename(", "/state.json\""),
            ("openat(", "/kept\""),
            ("fsync(", "/kept>"),
        ],
        renamed: 5,
        now: &|target| served(&socket, target),
        save: &|_, number| apply(&setup, &socket, number),
    };
    saved.kill_at_each_call(1);
}

/// The number is the reservation key of a host.
#[test]
fn kill_at_any_system_call_of_a_save_leaves_old_or_new_registration() {
    let setup = managed().file(1 << 20);
    let socket = setup.path("control.sock");
    let register = |target: &Target, action: &str| {
        let run = target.on(1, "resv-register --cptpl set --ctrl-loss-tmo 0");
        run.args(action).end().status == Some(0)
    };
    let target = setup.start();
    assert!(register(&target, "--nrkey 1"));
    target.stop();
    let saved = Saved {
        setup: &setup,
        steps: &[
            ("openat(", ".1.new-"),
            ("fchmod(", ".1.new-"),
            ("pwrite64(", ".1.new-"),
            ("fsync(", ".1.new-"),
            ("rename(", ".1\""),
            ("openat(", "/state.json.namespaces\""),
            ("fsync(", "/state.json.namespaces>"),
        ],
        renamed: 5,
        now: &|target| {
            let all = ask(&socket, "GET", "/v1/reservations", "");
            let all = all.unwrap_or_else(|| panic!("no answer:\n{}", target.log()));
            let all: Value = serde_json::from_str(&all).unwrap();
            let key = all["namespaces"][0]["registrants"][0]["key"].as_str();
            u64::from_str_radix(key.unwrap().strip_prefix("0x").unwrap(), 16).unwrap()
        },
        save: &|target, number| {
            let keys = format!("-r replace --crkey {} --nrkey {number}", number - 1);
            register(target, &keys)
        },
    };
    saved.kill_at_each_call(1);
}
