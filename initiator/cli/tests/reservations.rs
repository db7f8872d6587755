//! The reservation commands as processes, with a small target on a thread.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests"
)]

#[path = "../../client/tests/it/fake/mod.rs"]
mod fake;

use std::process::{Command, Output};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use fake::{Fake, SUBNQN, reservation_report};
use nvmeof_initiator::{Address, ReservationType, Status};
use nvmeof_rdma_iwarp::{Iwarp, IwarpConfig};
use nvmeof_wire::opcode::io;
use serde_json::Value;

const KIND: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;

/// Opcode, dword 10 and keys of a command that changes reservations.
type Change = (u8, u32, Vec<u64>);

/// A target, until it is dropped.
struct Target {
    addr: Address,
    changes: Arc<Mutex<Vec<Change>>>,
    _stop: mpsc::Sender<()>,
}

impl Target {
    fn start(prepare: impl FnOnce(&mut Fake<Iwarp>)) -> Self {
        let provider = nvmeof_rdma_iwarp::new(IwarpConfig::default()).unwrap();
        let (mut fake, addr) = Fake::listen(provider, "127.0.0.1:0".parse().unwrap());
        prepare(&mut fake);
        let (stop, stopped) = mpsc::channel();
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&changes);
        std::thread::spawn(move || {
            let start = Instant::now();
            while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                if !fake.poll(start.elapsed()) {
                    std::thread::sleep(Duration::from_micros(50));
                }
                for (sqe, data) in fake.reservations.drain(..) {
                    let keys = data.chunks(8);
                    let keys = keys.map(|key| u64::from_le_bytes(key.try_into().unwrap()));
                    let change = (sqe.opcode.0, sqe.cdw10.get(), keys.collect());
                    seen.lock().unwrap().push(change);
                }
            }
        });
        Self {
            addr,
            changes,
            _stop: stop,
        }
    }

    /// The last change, which the thread of the target may still have to report.
    fn change(&self) -> Change {
        let start = Instant::now();
        loop {
            if let Some(change) = self.changes.lock().unwrap().pop() {
                return change;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no change");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs `nvmeof` with the target; spaces separate arguments.
    fn run(&self, words: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeof"));
        let mut words = words.split_whitespace();
        command.arg(words.next().unwrap());
        command.args(["-a", &self.addr.to_string(), "-n", SUBNQN]);
        command.args(["--namespace-id", "1", "-q", "nqn.2026-11.org.example:host"]);
        command.args(words).output().unwrap()
    }
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", err(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// In one line.
fn err(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn options_of_nvme_cli_become_fields_and_keys() {
    let target = Target::start(|_| {});
    let (register, acquire, release) = (
        io::RESERVATION_REGISTER.0,
        io::RESERVATION_ACQUIRE.0,
        io::RESERVATION_RELEASE.0,
    );
    for (words, opcode, cdw10, keys) in [
        ("resv-register --nrkey=4", register, 0, vec![0, 4]),
        (
            "resv-register --nrkey 0x10 --crkey 4 --rrega 2 --cptpl 3",
            register,
            0xc000_0002,
            vec![4, 16],
        ),
        (
            "resv-register -r replace --nrkey 5 --iekey -p clear",
            register,
            0x8000_000a,
            vec![0, 5],
        ),
        ("resv-register -c 5 -r 1", register, 1, vec![5, 0]),
        ("resv-acquire -c 4 --rtype 1", acquire, 0x100, vec![4, 0]),
        (
            "resv-acquire --crkey 4 --prkey 9 --rtype write-exclusive-reg-only --racqa 1",
            acquire,
            0x301,
            vec![4, 9],
        ),
        (
            "resv-acquire -c 4 -p 0 --rtype 0x6 --racqa preempt-and-abort",
            acquire,
            0x602,
            vec![4, 0],
        ),
        (
            "resv-release -c 4 --rtype exclusive-access --rrela 0",
            release,
            0x200,
            vec![4],
        ),
        ("resv-release -c 4 --rrela clear", release, 1, vec![4]),
    ] {
        let output = target.run(words);
        assert_eq!((out(&output), err(&output)), (String::new(), String::new()));
        assert_eq!(target.change(), (opcode, cdw10, keys), "{words}");
    }
}

#[test]
fn report_is_printed_as_text_and_json() {
    let target = Target::start(|fake| fake.report = reservation_report(KIND, 100));
    let text = out(&target.run("resv-report"));
    assert!(text.contains("rtype  : 3 (Write Exclusive - Registrants Only)\n"));
    assert!(text.contains("registrant 99:\n"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    for (words, fit) in [("resv-report --eds", 100), ("resv-report -d 47 -e", 2)] {
        let json = out(&target.run(&format!("{words} -o json")));
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["gen"], &json["regctl"]), (&7.into(), &100.into()));
        for key in ["regctlext", "registrantext"] {
            let entries = json[key].as_array().unwrap();
            assert_eq!((entries.len(), &entries[0]["rkey"]), (fit, &256.into()));
            assert_eq!(entries[0]["hostid"].as_str().unwrap().len(), 32);
        }
    }
}

#[test]
fn conflict_names_keys_and_remedy_and_is_not_retried() {
    let target = Target::start(|fake| fake.manners.status = Some(Status::RESERVATION_CONFLICT));
    let output = target.run("resv-acquire -c 4 -p 9 --rtype 1 --racqa preempt");
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    for said in [
        "namespace 1, current key 0x4, key to preempt 0x9: Reservation Acquire failed: \
         Reservation Conflict (status 0x083)",
        "(nvmeof resv-report)",
    ] {
        assert!(text.contains(said), "{text}");
    }
    let output = target.run("read --block-count 1 -d /dev/null -o json");
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["value"], 0x83, "{json}");
}

#[test]
fn lost_change_has_an_unknown_outcome_with_a_remedy() {
    let target = Target::start(|fake| fake.manners.hangs_up_at = Some(0));
    let output = target.run("resv-register --nrkey 4 --ctrl-loss-tmo 0");
    assert_eq!(output.status.code(), Some(1));
    let text = err(&output);
    assert!(text.contains("was executed or not"), "{text}");
    assert!(text.contains("nvmeof resv-report shows"), "{text}");
}

#[test]
fn unfit_options_are_refused_before_a_connection() {
    let target = Target::start(|_| {});
    for (words, said) in [
        ("resv-register -k 4", "--nrkey is missing"),
        ("resv-register -k 4", "-k is --keep-alive-tmo"),
        ("resv-register --nrkey 0", "--nrkey 0 is no key"),
        ("resv-register -r unregister", "give --crkey N, or --iekey"),
        ("resv-register -r 3", "unregister (1), replace (2)"),
        (
            "resv-register --nrkey 4 -p 1",
            "keep (0), clear (2), set (3)",
        ),
        ("resv-register --nrkey 4 -i", "write --iekey"),
        ("resv-acquire -c 4 -t 1", "write --rtype"),
        (
            "resv-acquire -c 4 --rtype 7",
            "exclusive-access-all-regs (6)",
        ),
        ("resv-acquire -c 4 --rtype 1 -p 9", "give --racqa preempt"),
        (
            "resv-acquire -c 4 --rtype 1 --racqa 1",
            "--prkey is missing",
        ),
        ("resv-acquire -c 4 --rtype 1 -a 1", "write --racqa 1"),
        ("resv-release -c 4", "--rtype is missing"),
        ("resv-release -c 4 -t 1", "write --rtype"),
        ("resv-release --rtype 1", "--crkey"),
    ] {
        let output = target.run(words);
        let text = err(&output);
        assert_eq!(output.status.code(), Some(2), "{words}: {text}");
        assert!(text.contains(said), "{words}: {text}");
    }
    assert!(target.changes.lock().unwrap().is_empty());
}
