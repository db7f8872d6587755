//! Persistent run-time changes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod at_once;
mod blame;
mod deferred;
mod host_keys;
mod keys;
mod lineage;
mod outcome_log;
mod protected;
mod unsaved;

use std::fmt::Write;
use std::path::PathBuf;

use tempfile::TempDir;

use nvmeof_target_core::Change;

use super::*;
use nvmeof_target_api::NamespaceAdd;
use nvmeof_target_config::{Config, SettingsFile};
use nvmeof_target_manage::Drained;
use nvmeof_target_manage::Server;

const NQN: &str = "nqn.2026-11.org.example:disk";
const HOST: &str = "nqn.2026-11.org.example:host";

/// A folder with a configuration.
struct Scene {
    folder: TempDir,
}

/// A running target with its keeper.
struct Daemon {
    server: Option<Server>,
    keeper: Keeper,
}

impl Scene {
    /// With memory as namespace 1.
    fn new() -> Self {
        let scene = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(scene.path("kept")).unwrap();
        scene.write(&[(1, "ram:1M")], "allow_any_host = true");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, namespaces: &[(u32, &str)], access: &str) -> String {
        let mut text = format!(
            "# Ours.\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
             [control]\nstate = '{}'\n[[subsystem]]\nnqn = \"{NQN}\"\n{access}\n",
            self.path("kept/state.json").display()
        );
        for (nsid, path) in namespaces {
            let head = "[[subsystem.namespace]]";
            writeln!(text, "{head}\nnsid = {nsid}\npath = '{path}'").unwrap();
        }
        text
    }

    fn write(&self, namespaces: &[(u32, &str)], access: &str) {
        std::fs::write(self.path("target.toml"), self.text(namespaces, access)).unwrap();
    }

    fn file(&self, name: &str, len: u64) -> String {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        path.display().to_string()
    }

    fn start(&self) -> Daemon {
        let loaded = LoadedConfig::read(&self.path("target.toml")).unwrap();
        let (server, keeper) = loaded.serve().unwrap();
        let server = Some(server);
        Daemon { server, keeper }
    }

    fn state(&self) -> String {
        std::fs::read_to_string(self.path("kept/state.json")).unwrap_or_default()
    }
}

impl Daemon {
    fn nsids(&self) -> Vec<u32> {
        let model = self.keeper.manager().model();
        let Some(subsystem) = model.subsystems().first() else {
            return Vec::new();
        };
        subsystem.namespaces().iter().map(|one| one.nsid).collect()
    }

    fn edit(&self, edit: Edit) -> Result<Outcome, String> {
        let done = self.keeper.edit(vec![edit]);
        done.map_err(|error| error.to_string())
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

fn add(path: &str) -> Edit {
    Edit::NamespaceAdd(NamespaceAdd {
        path: path.to_owned(),
        ..NamespaceAdd::default()
    })
}

fn remove(nsid: u32) -> Edit {
    Edit::NamespaceRemove {
        subsystem: None,
        nsid,
    }
}

fn deny(host: &str) -> Edit {
    Edit::HostDeny {
        subsystem: None,
        host: host.to_owned(),
    }
}

fn allow(host: &str) -> Edit {
    Edit::HostAllow {
        subsystem: None,
        host: host.to_owned(),
    }
}

#[test]
fn changes_are_served_and_survive_a_restart() {
    let scene = Scene::new();
    let before = std::fs::read(scene.path("target.toml")).unwrap();
    let daemon = scene.start();
    assert_eq!(scene.state(), "", "nothing was changed");
    let outcome = daemon.edit(add("ram:2M")).unwrap();
    assert!(outcome.saved && outcome.warnings.is_empty());
    let Edit::NamespaceAdd(made) = &outcome.edits[0] else {
        panic!("{outcome:?}");
    };
    assert_eq!((made.nsid, made.subsystem.as_deref()), (Some(2), Some(NQN)));
    let both = vec![deny("any"), allow(HOST)];
    let _ = daemon.keeper.edit(both).unwrap();
    let check = |daemon: &Daemon| {
        assert_eq!(daemon.nsids(), [1, 2]);
        let model = daemon.keeper.manager().model();
        let hosts = model.subsystems()[0].allowed_hosts.clone().unwrap();
        assert_eq!(hosts.len(), 1);
        let shown = daemon.keeper.show();
        assert!(shown.text.starts_with("# Ours.\n"), "{}", shown.text);
        assert_eq!((shown.edits.len(), shown.deferred.len()), (3, 0));
    };
    check(&daemon);
    drop(daemon);
    let daemon = scene.start();
    check(&daemon);
    let _ = daemon.edit(remove(1)).unwrap();
    // Edits that cancel each other are forgotten.
    let _ = daemon.edit(remove(2)).unwrap();
    assert!(daemon.nsids().is_empty());
    assert_eq!(daemon.keeper.show().edits.len(), 3);
    drop(daemon);
    assert!(scene.start().nsids().is_empty());
    assert_eq!(std::fs::read(scene.path("target.toml")).unwrap(), before);
}

#[test]
fn refused_change_is_named_and_changes_nothing() {
    let scene = Scene::new();
    let daemon = scene.start();
    let _ = daemon.edit(add("ram:2M")).unwrap();
    let (state, shown) = (scene.state(), daemon.keeper.show().text);
    let missing = scene.path("missing").display().to_string();
    let bad_host = || vec![deny("any"), allow("no\nname")];
    let port = |address: &str| Edit::PortAdd {
        address: address.to_owned(),
        provider: Vec::new(),
        id: None,
    };
    for (edits, words) in [
        (
            vec![remove(7)],
            &["namespace remove 7", "nsid: ", "no namespace 7"][..],
        ),
        (
            vec![add(&missing)],
            &[
                // The edit, not a line of a generated document.
                "namespace add",
                ": path: ",
                "no such file",
            ],
        ),
        (vec![add("ram:3M"), add(&missing)], &["path: "]),
        (vec![add("ram:what")], &["path: "]),
        (bad_host(), &["allowed_hosts", "control character"]),
        (vec![deny(HOST)], &["allow_any_host", "deny \"any\""]),
        (vec![allow(HOST)], &["allow_any_host"]),
        (vec![port("10.0.0.1")], &["port add", "traddr"]),
        (
            vec![Edit::SubsystemRemove { nqn: "x".into() }],
            &["no subsystem x"],
        ),
        (
            vec![Edit::AnaSet {
                address: Some("9".into()),
                group: 1,
                state: "optimized".into(),
            }],
            &["no port 9"],
        ),
    ] {
        let error = daemon.keeper.edit(edits).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains("as `ctl show` prints it"), "{error}");
        assert_eq!(scene.state(), state);
        assert_eq!(daemon.keeper.show().text, shown);
        assert_eq!(daemon.nsids(), [1, 2]);
    }
    let twice = Edit::NamespaceAdd(NamespaceAdd {
        nsid: Some(1),
        path: "ram:1M".into(),
        ..NamespaceAdd::default()
    });
    assert!(
        daemon
            .edit(twice)
            .unwrap_err()
            .contains("a namespace 1 already")
    );
    let names = std::fs::read_dir(scene.path("kept")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: std::collections::BTreeSet<_> = names.collect();
    let expected = ["state.json", "state.json.incarnations", "state.json.lock"];
    let expected = expected.map(str::to_owned);
    assert_eq!(names, expected.into(), "nothing is left behind");
}

#[test]
fn change_that_cannot_be_saved_is_refused() {
    let scene = Scene::new();
    let daemon = scene.start();
    // The folder of the state file is missing.
    std::fs::rename(scene.path("kept"), scene.path("elsewhere")).unwrap();
    let error = daemon.edit(add("ram:2M")).unwrap_err();
    assert!(
        error.contains("nothing changed") && error.contains("state.json.new"),
        "{error}"
    );
    assert_eq!(daemon.nsids(), [1]);
    std::fs::rename(scene.path("elsewhere"), scene.path("kept")).unwrap();
    let _ = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!(daemon.keeper.save().unwrap(), scene.path("kept/state.json"));
    assert_eq!(daemon.nsids(), [1, 2]);
}

#[test]
fn changes_that_no_longer_fit_are_deferred() {
    let scene = Scene::new();
    let daemon = scene.start();
    let _ = daemon.edit(add("ram:2M")).unwrap();
    let _ = daemon.edit(remove(1)).unwrap();
    assert_eq!(daemon.nsids(), [2]);
    // The administrator uses other NSIDs.
    scene.write(&[(2, "ram:4M"), (3, "ram:1M")], "allow_any_host = true");
    let outcome = daemon.keeper.reload().unwrap();
    assert_eq!(daemon.nsids(), [2, 3]);
    assert_eq!(outcome.warnings.len(), 2, "{:?}", outcome.warnings);
    let warned = |word: &str| outcome.warnings.iter().any(|one| one.contains(word));
    assert!(warned("a namespace 2 already") && warned("no namespace 1"));
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().deferred.len()),
        (vec![2, 3], 2)
    );
    // They are applied when they fit again.
    scene.write(&[(1, "ram:1M"), (5, "ram:1M")], "allow_any_host = true");
    let outcome = daemon.keeper.reload().unwrap();
    assert!(outcome.warnings.is_empty());
    assert_eq!(daemon.nsids(), [2, 5]);
}

#[test]
fn unservable_change_at_start_is_deferred_and_the_rest_served() {
    let scene = Scene::new();
    let daemon = scene.start();
    let file = scene.file("b.img", 1 << 20);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    drop(taken);
    let port = Edit::PortAdd {
        address: address.clone(),
        provider: vec!["iwarp".into()],
        id: None,
    };
    let _ = daemon
        .keeper
        .edit(vec![add(&file), add("ram:3M"), port])
        .unwrap();
    assert_eq!(daemon.nsids(), [1, 2, 3]);
    drop(daemon);
    // A change that can never be served is deferred; one that may be served later waits.
    deferred::hide(&scene, &file);
    let taken = std::net::TcpListener::bind(&address).unwrap();
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1, 3]);
    let deferred = daemon.keeper.show().deferred;
    assert_eq!(deferred.len(), 1, "{deferred:?}");
    assert!(deferred[0].why.contains("is a directory"), "{deferred:?}");
    let waiting = daemon.keeper.manager().waiting();
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    assert_eq!(waiting[0].what.to_string(), format!("port {address}"));
    // Other changes are possible meanwhile.
    let _ = daemon.edit(remove(1)).unwrap();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().deferred.len()),
        (vec![3], 1)
    );
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().deferred.len()),
        (vec![3], 1)
    );
    // Both return when they can be served.
    deferred::show(&scene, &file);
    drop(taken);
    let _ = daemon.keeper.reload().unwrap();
    assert!(daemon.keeper.manager().retry(|_| true));
    assert_eq!(daemon.nsids(), [2, 3]);
    assert_eq!(daemon.keeper.manager().ports().len(), 2);
}

#[test]
fn applied_document_replaces_the_file_until_reload() {
    let scene = Scene::new();
    let daemon = scene.start();
    let _ = daemon.edit(add("ram:2M")).unwrap();
    let whole = scene.text(&[(7, "ram:1M")], "allow_any_host = true");
    let planned = daemon.keeper.plan("other.toml", whole.clone()).unwrap();
    let changes = planned.plan.to_string();
    assert_eq!(
        (planned.plan.changes.len(), daemon.nsids()),
        (3, vec![1, 2])
    );
    assert!(
        changes.lines().all(|line| line.contains(" would be ")),
        "{changes}"
    );
    assert_eq!(planned.warnings, [""; 0]);
    // The namespace that was added at run time.
    assert_eq!(planned.dropped, daemon.keeper.show().edits);
    assert_eq!(planned.dropped.len(), 1);
    let bad = whole.replace("ram:1M", "ram:what");
    let error = daemon.keeper.apply("other.toml".into(), bad).unwrap_err();
    assert!(
        error.to_string().starts_with("other.toml:13: path: "),
        "{error}"
    );
    let applied = daemon.keeper.apply("other.toml".into(), whole).unwrap();
    assert_eq!(applied.dropped, planned.dropped);
    let _ = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!(daemon.nsids(), [1, 7]);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1, 7]);
    assert_eq!(daemon.keeper.show().applied.as_deref(), Some("other.toml"));
    // The change since does not fit the file, which has a namespace 1.
    let planned = daemon.keeper.plan_reload().unwrap();
    assert_eq!(daemon.nsids(), [1, 7], "nothing is done");
    let outcome = daemon.keeper.reload().unwrap();
    let texts = |changes: &[Change]| changes.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&planned.plan.changes), texts(&outcome.report.changes));
    assert!(!planned.plan.changes.is_empty());
    assert_eq!(planned.warnings, outcome.warnings);
    assert_eq!(daemon.keeper.plan_reload().unwrap().plan.changes, []);
    assert_eq!((daemon.nsids(), outcome.warnings.len()), (vec![1], 1));
    assert_eq!(daemon.keeper.show().applied, None);
}

#[test]
fn resize_changes_or_adopts_the_file_size() {
    let scene = Scene::new();
    let file = scene.file("a.img", 1 << 20);
    scene.write(&[(1, &file), (2, "ram:1M")], "allow_any_host = true");
    let daemon = scene.start();
    let len = || std::fs::metadata(&file).unwrap().len();
    let resize = |nsid, size, shrink| {
        let done = daemon.keeper.resize(&Resize {
            subsystem: None,
            nsid,
            size,
            shrink,
        });
        let changes = done.map(|outcome| outcome.report.changes.len());
        changes.map_err(|error| error.to_string())
    };
    assert_eq!((resize(1, Some(4 << 20), false), len()), (Ok(1), 4 << 20));
    for (nsid, size, word) in [
        (1, 1 << 20, "4194304"),
        (1, 5 << 20 | 512, "multiple of 4096"),
        (1, 0, "multiple"),
        (2, 4 << 20, "memory"),
        (3, 4 << 20, "no namespace 3"),
    ] {
        let error = resize(nsid, Some(size), false).unwrap_err();
        assert!(error.contains(word), "{error}");
        assert_eq!(len(), 4 << 20);
    }
    assert_eq!((resize(1, Some(1 << 20), true), len()), (Ok(1), 1 << 20));
    // By another process.
    let grown = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    grown.set_len(2 << 20).unwrap();
    assert_eq!(
        (resize(1, None, false), resize(1, None, false)),
        (Ok(1), Ok(0))
    );
    assert_eq!(daemon.keeper.show().edits, []);
}

#[test]
fn drained_target_does_not_listen_or_change_until_resumed() {
    let scene = Scene::new();
    let daemon = scene.start();
    let address = daemon.keeper.manager().ports()[0]
        .address
        .socket_addr()
        .unwrap();
    let reach = || std::net::TcpStream::connect(address);
    let _connection = reach().unwrap();
    assert_eq!(daemon.keeper.drain().unwrap(), []);
    assert!(reach().is_err());
    assert_eq!(daemon.keeper.manager().drained(), Drained::Done);
    let error = daemon.edit(add("ram:1M")).unwrap_err();
    assert!(error.contains("ctl resume"), "{error}");
    assert!(daemon.keeper.reload().is_err());
    assert_eq!(
        (daemon.keeper.drain().unwrap(), scene.state().len()),
        (Vec::new(), 0)
    );
    daemon.keeper.resume().unwrap();
    assert!(reach().is_ok());
    let _ = daemon.edit(add("ram:1M")).unwrap();
    // And again.
    let _ = daemon.keeper.drain().unwrap();
    let other = std::net::TcpListener::bind(address).unwrap();
    assert!(daemon.keeper.resume().is_err());
    drop(other);
    daemon.keeper.resume().unwrap();
    assert!(reach().is_ok());
}

#[test]
fn inline_lists_of_tables_can_be_edited() {
    let scene = Scene::new();
    let text = format!(
        "subsystem = [{{ nqn = \"{NQN}\", allow_any_host = true, namespace = [{{ nsid = 1, \
         path = \"ram:1M\" }}] }}]\n[[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\n\
         provider = \"iwarp\"\n"
    );
    std::fs::write(scene.path("target.toml"), text).unwrap();
    let daemon = scene.start();
    let outcome = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!(daemon.nsids(), [1, 2]);
    assert!(!outcome.saved && outcome.warnings[0].contains("control.state"));
}
