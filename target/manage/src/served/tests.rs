//! Changes of a running target. `tests/e2e` tests what hosts see of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod drain;
mod faults;
mod keys;
mod providers;
mod puppet;
mod resize;
mod together;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvmeof_backend::Claim;
use tempfile::TempDir;

use super::*;
use crate::Server;
use crate::cpus::first_usable;

const NQN: &str = "nqn.2026-11.org.example:disk";

/// A target with two reactors, and a folder for its files.
struct Daemon {
    server: Option<Server>,
    manager: Arc<Manager>,
    folder: TempDir,
}

/// A configuration with these namespaces: NSID and path.
fn text(namespaces: &[(u32, &str)]) -> String {
    let mut text = format!(
        "[reactor]\ncores = {}\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\n\
         provider = \"iwarp\"\n[[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n",
        cores(2)
    );
    for (nsid, path) in namespaces {
        let head = "[[subsystem.namespace]]";
        writeln!(text, "{head}\nnsid = {nsid}\npath = \"{path}\"").unwrap();
    }
    text
}

/// The value of `reactor.cores` for `reactors` reactors on a CPU that the process may use.
fn cores(reactors: usize) -> String {
    format!("{:?}", vec![first_usable(); reactors])
}

/// The same configuration with one reactor.
fn with_one_reactor(text: &str) -> String {
    text.replace(&cores(2), &cores(1))
}

fn parse(text: &str) -> Config {
    Config::parse(Path::new("target.toml"), text.to_owned()).unwrap()
}

fn lines(changes: &[nvmeof_target_core::Change]) -> Vec<String> {
    let prefix = format!("{NQN}: ");
    let short = |change: &nvmeof_target_core::Change| change.to_string().replace(&prefix, "");
    changes.iter().map(short).collect()
}

impl Daemon {
    fn start(namespaces: &[(u32, &str)]) -> Self {
        let server = Server::start(&parse(&text(namespaces))).unwrap();
        Self {
            manager: Arc::clone(server.manager()),
            server: Some(server),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.folder.path().join(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(len).unwrap();
        path
    }

    fn apply(&self, namespaces: &[(u32, &str)]) -> Result<Vec<String>, String> {
        let report = self.manager.apply(&parse(&text(namespaces)));
        let report = report.map_err(|error| error.to_string())?;
        Ok(lines(&report.changes))
    }

    /// Namespaces and their bytes.
    fn served(&self) -> Vec<(u32, u64)> {
        let model = self.manager.target.model();
        let subsystem = model.subsystems().first().unwrap();
        let all = subsystem.namespaces().iter();
        all.map(|one| (one.nsid, one.bytes())).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
            server.join().unwrap();
        }
    }
}

fn locked(path: &Path) -> bool {
    let file = std::fs::File::open(path).unwrap();
    file.try_lock().is_err()
}

#[test]
fn namespaces_are_added_and_removed_with_their_locks() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let path = daemon.file("a.img", 1 << 20);
    let a = path.to_str().unwrap();
    let both = [(1, "ram:1M"), (2, a)];
    let plan = daemon.manager.plan(&parse(&text(&both))).unwrap();
    assert_eq!(lines(&plan.changes), ["namespace 2 is added"]);
    let json = plan.to_json();
    assert_eq!(json["changes"][0]["subject"]["namespace"], 2);
    assert_eq!(json["changes"][0]["change"], "added");
    // A plan changes nothing.
    assert_eq!(daemon.served(), [(1, 1 << 20)]);
    assert!(!locked(&path));
    assert_eq!(daemon.apply(&both).unwrap(), ["namespace 2 is added"]);
    assert_eq!(daemon.served(), [(1, 1 << 20), (2, 1 << 20)]);
    assert!(locked(&path));
    assert_eq!(daemon.apply(&both).unwrap(), Vec::<String>::new());
    // The NSID changes, and the file stays locked meanwhile.
    let moved = daemon.apply(&[(1, "ram:1M"), (5, a)]).unwrap();
    assert_eq!(moved, ["namespace 2 is removed", "namespace 5 is added"]);
    assert_eq!(daemon.apply(&[]).unwrap().len(), 2);
    // While it is being closed, one namespace can use it again.
    assert!(
        daemon
            .apply(&[(1, a), (2, a)])
            .unwrap_err()
            .contains("locked")
    );
    assert_eq!(daemon.apply(&[(3, a)]).unwrap().len(), 1);
    assert!(
        daemon
            .apply(&[(1, a), (3, a)])
            .unwrap_err()
            .contains("locked")
    );
    assert_eq!(daemon.served(), [(3, 1 << 20)]);
    assert_eq!(daemon.apply(&[]).unwrap().len(), 1);
    let one = Claim::take(&a.parse().unwrap(), None);
    assert!(one.is_ok(), "everybody may have it again");
}

#[test]
fn invalid_change_is_reported_and_changes_nothing() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let path = daemon.file("a.img", 1 << 20);
    let other = daemon.file("b.img", 1 << 20);
    let (a, b) = (path.to_str().unwrap(), other.to_str().unwrap());
    let elsewhere = Claim::take(&b.parse().unwrap(), None).unwrap();
    let missing = daemon.folder.path().join("no.img");
    for (bad, word) in [(b, "locked"), (missing.to_str().unwrap(), "no such file")] {
        let error = daemon
            .apply(&[(1, "ram:2M"), (2, a), (3, bad)])
            .unwrap_err();
        assert!(error.starts_with("target.toml:18: path: "), "{error}");
        assert!(error.contains(word), "{error}");
        assert_eq!(daemon.served(), [(1, 1 << 20)]);
        assert!(!locked(&path), "its lock was released");
    }
    drop(elsewhere);
    assert!(daemon.apply(&[(1, "ram:1M"), (3, b)]).is_ok());
    // The same file twice, and with a setting that cannot change.
    let error = daemon.apply(&[(3, b), (4, b)]).unwrap_err();
    assert!(error.contains("locked"), "{error}");
    let larger = text(&[(3, b)]) + "block_size = 4096\n";
    let error = daemon.manager.apply(&parse(&larger)).unwrap_err();
    assert!(error.to_string().contains("block_size"), "{error}");
    assert_eq!(daemon.served().len(), 2);
}

#[test]
fn unchangeable_settings_are_reported() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let good = text(&[(1, "ram:1M")]);
    for (from, to, place) in [
        (&*cores(2), &*cores(1), "2: reactor.cores: "),
        (
            "[reactor]",
            "[storage]\nsqpoll = true\n[reactor]",
            "2: storage.sqpoll: ",
        ),
        (
            "[reactor]",
            "[reactor]\nbuffer_memory = \"32M\"",
            "2: reactor.buffer_memory: ",
        ),
        (
            "[reactor]",
            "[limits]\nio_queues = 3\n[reactor]",
            "2: limits.io_queues: ",
        ),
    ] {
        let error = daemon.manager.apply(&parse(&good.replace(from, to)));
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("target.toml:{place}")),
            "{error}"
        );
        assert!(error.contains("cannot change"), "{error}");
    }
    assert_eq!(daemon.served(), [(1, 1 << 20)]);
}

#[test]
fn extended_file_extends_namespace() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = [(1, path.to_str().unwrap())];
    daemon.apply(&a).unwrap();
    for mib in [3, 2] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(mib << 20).unwrap();
        let changes = daemon.apply(&a).unwrap();
        assert!(
            changes.len() == 1 && changes[0].contains("bytes"),
            "{changes:?}"
        );
        assert_eq!(daemon.served(), [(1, mib << 20)]);
        assert!(locked(&path));
    }
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1000).unwrap();
    let report = daemon.manager.apply(&parse(&text(&a))).unwrap();
    assert!(report.remarks[0].contains("1000"), "{report:?}");
    assert_eq!(daemon.served(), [(1, 2 << 20)]);
}

#[test]
fn namespace_becomes_read_only_and_writable_without_reopening() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let store = || {
        let model = daemon.manager.target.model();
        let one = &model.subsystems()[0].namespaces()[0];
        (one.store, one.readonly)
    };
    let good = text(&[(1, "ram:1M")]);
    let readonly = parse(&format!("{good}readonly = true\n"));
    assert_eq!(store(), (0, false));
    let _ = daemon.manager.apply(&readonly).unwrap();
    assert_eq!(store(), (0, true));
    let _ = daemon.manager.apply(&parse(&good)).unwrap();
    assert_eq!(store(), (0, false));
}

#[test]
fn concurrent_documents_leave_no_stale_backing_store() {
    let daemon = Daemon::start(&[]);
    std::thread::scope(|scope| {
        for nsid in 1..=4 {
            let daemon = &daemon;
            scope.spawn(move || {
                for _ in 0..20 {
                    daemon.apply(&[(nsid, "ram:1M")]).unwrap();
                    daemon.apply(&[(nsid, "null:1M"), (9, "ram:2M")]).unwrap();
                }
            });
        }
    });
    let served = daemon.served();
    assert!(served.len() == 2 && served[1] == (9, 2 << 20), "{served:?}");
    // Of the former backing stores only these two are left.
    let mut state = daemon.manager.lock();
    for _ in 0..6000 {
        state.pool.collect();
        if state.pool.retired() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} backing stores are still open", state.pool.retired());
}

#[test]
fn ports_are_added_and_removed() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let one = text(&[(1, "ram:1M")]);
    let socket = daemon.folder.path().join("port.sock");
    let served_ports = format!(
        "[[port]]\ntraddr = \"unix:{}\"\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\n\
         provider = \"iwarp\"\n",
        socket.display()
    );
    let report = daemon
        .manager
        .apply(&parse(&format!("{one}{served_ports}")))
        .unwrap();
    assert_eq!(report.changes.len(), 2, "{report:?}");
    let addresses = || -> Vec<_> {
        let ports = daemon.manager.ports();
        ports.iter().map(|port| port.address).collect()
    };
    let [_, _, third] = addresses()[..] else {
        panic!("{:?}", addresses());
    };
    let reach = || std::net::TcpStream::connect(third.socket_addr().unwrap());
    assert!(reach().is_ok() && socket.exists());
    // A port that cannot be listened on: nothing changes, and what was opened is closed.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let more = |port: u16| {
        let other = daemon.folder.path().join("other.sock");
        format!(
            "{one}{served_ports}[[port]]\ntraddr = \"unix:{}\"\n[[port]]\ntraddr = \"127.0.0.1\"\n\
             trsvcid = {port}\nprovider = \"iwarp\"\n",
            other.display()
        )
    };
    let number = taken.local_addr().unwrap().port();
    let error = daemon.manager.apply(&parse(&more(number))).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
    assert!(addresses().len() == 3 && !daemon.folder.path().join("other.sock").exists());
    let report = daemon.manager.apply(&parse(&one)).unwrap();
    assert_eq!((report.changes.len(), addresses().len()), (2, 1));
    assert!(reach().is_err() && !socket.exists());
    assert!(daemon.manager.status().ends_with("(iwarp)"));
}

#[test]
fn subsystems_are_added_and_removed() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let whole = text(&[(1, "ram:1M")]);
    let (none, subsystem) = whole.split_once("[[subsystem]]").unwrap();
    let report = daemon.manager.apply(&parse(none)).unwrap();
    assert_eq!(
        lines(&report.changes),
        [format!("subsystem {NQN} is removed")]
    );
    assert!(daemon.manager.target.model().subsystems().is_empty());
    let back = format!("{none}[[subsystem]]{subsystem}");
    let report = daemon.manager.apply(&parse(&back)).unwrap();
    assert_eq!(report.changes.len(), 3, "{report:?}");
    assert_eq!(report.to_json()["disconnected"], serde_json::json!([]));
}
