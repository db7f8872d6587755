//! Served files that are truncated, extended, removed and restored.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

use nix::errno::Errno;
use nvmeof_backend::{IoError, IoErrorKind};
use nvmeof_target_core::NamespaceState;

use super::*;

impl Daemon {
    fn set_len(path: &Path, len: u64) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(len).unwrap();
    }

    /// Checks backing stores, of which that of namespace `nsid` failed.
    fn check_stores(&self, nsid: u32, errno: Option<Errno>) -> bool {
        let model = self.manager.target.model();
        let subsystem = model.subsystems().first().unwrap();
        let store = subsystem.namespace(nsid).unwrap().store;
        let failed = errno.map(|errno| {
            let error = IoError {
                kind: IoErrorKind::of(errno),
                errno,
                verb: "read",
                path: "store".into(),
                offset: 4096,
            };
            (store, error)
        });
        self.manager.check_stores(&BTreeMap::from_iter(failed))
    }

    fn state(&self, nsid: u32) -> NamespaceState {
        let model = self.manager.target.model();
        let subsystem = model.subsystems().first().unwrap();
        subsystem.namespace(nsid).unwrap().state
    }

    /// Waits until no backing store is being closed.
    fn settle(&self) {
        for _ in 0..12_000 {
            let mut state = self.manager.lock();
            state.pool.collect();
            if state.pool.retired() == 0 {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("backing stores are still open");
    }
}

fn enable(daemon: &Daemon, nsid: u32) -> Result<Vec<String>, String> {
    let report = daemon.manager.enable(NQN, nsid);
    let report = report.map_err(|error| error.to_string())?;
    Ok(lines(&report.changes))
}

#[test]
fn changed_size_is_detected() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let both = [(1, path.to_str().unwrap()), (2, "ram:1M")];
    daemon.apply(&both).unwrap();
    assert!(!daemon.check_stores(1, None), "nothing to see");
    for mib in [3, 2] {
        Daemon::set_len(&path, mib << 20);
        assert!(daemon.check_stores(1, None));
        assert_eq!(daemon.served(), [(1, mib << 20), (2, 1 << 20)]);
        assert!(locked(&path) && !daemon.check_stores(1, None));
        daemon.settle();
    }
    // The file is being extended.
    Daemon::set_len(&path, (2 << 20) + 100);
    assert!(!daemon.check_stores(1, None));
    assert_eq!(daemon.state(1), NamespaceState::Ready);
    // Truncated while it is read: the size changes, and the namespace is not faulted.
    Daemon::set_len(&path, 1 << 20);
    assert!(daemon.check_stores(1, Some(Errno::ENXIO)));
    assert_eq!(daemon.served()[0], (1, 1 << 20));
    assert_eq!(daemon.state(1), NamespaceState::Ready);
    assert_eq!(daemon.manager.faults_total(), 0);
    assert_eq!(daemon.apply(&both).unwrap(), Vec::<String>::new());
}

#[test]
fn lost_store_is_faulted_until_enabled() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = path.to_str().unwrap();
    let both = [(1, a), (2, "ram:1M")];
    daemon.apply(&both).unwrap();
    Daemon::set_len(&path, 0);
    assert!(daemon.check_stores(1, None));
    assert_eq!(daemon.state(1), NamespaceState::Faulted);
    assert_eq!(daemon.state(2), NamespaceState::Ready);
    // It keeps its size.
    assert_eq!(daemon.served(), [(1, 1 << 20), (2, 1 << 20)]);
    let [fault] = &daemon.manager.faults()[..] else {
        panic!("{:?}", daemon.manager.faults());
    };
    assert_eq!((fault.nsid, fault.path.as_str()), (1, a));
    let message = fault.to_string();
    for word in ["0 bytes", "namespace enable", a, NQN] {
        assert!(message.contains(word), "{word}: {message}");
    }
    let status = daemon.manager.status();
    assert!(status.contains("2 namespaces (1 faulted)"), "{status}");
    assert!(!daemon.check_stores(1, Some(Errno::EIO)), "it is known");
    assert_eq!(daemon.manager.faults_total(), 1);
    let counted = daemon.manager.fault_counts().of(NQN, 1);
    assert_eq!(
        counted.collect::<Vec<_>>(),
        [
            ("removed", 0),
            ("fenced", 0),
            ("unreadable", 0),
            ("size", 1)
        ]
    );
    // It is still missing, which does not prevent other changes.
    assert!(enable(&daemon, 1).unwrap_err().contains("0 bytes"));
    let more = [(1, a), (2, "ram:1M"), (3, "ram:2M")];
    let report = daemon.manager.apply(&parse(&text(&more))).unwrap();
    assert_eq!(lines(&report.changes), ["namespace 3 is added"]);
    assert!(report.remarks[0].contains("0 bytes"), "{report:?}");
    // Another, larger file with its name.
    std::fs::remove_file(&path).unwrap();
    assert!(enable(&daemon, 1).unwrap_err().contains("no such file"));
    daemon.file("a.img", 2 << 20);
    assert_eq!(
        enable(&daemon, 1).unwrap(),
        ["namespace 1 is recovered: its backing store is available"]
    );
    assert_eq!(daemon.state(1), NamespaceState::Ready);
    assert_eq!(daemon.served()[0], (1, 2 << 20));
    assert!(locked(&path) && daemon.manager.faults().is_empty());
    assert_eq!(enable(&daemon, 1).unwrap(), Vec::<String>::new());
    let error = enable(&daemon, 9).unwrap_err();
    assert!(error.contains("no namespace 9"), "{error}");
}

/// Requires permission to create a block device.
#[test]
fn block_device_of_size_zero_counts_as_removed() {
    let losetup = |arguments: &[&str]| {
        let run = Command::new("losetup").args(arguments).output().ok()?;
        let message = String::from_utf8(run.stdout).ok()?;
        run.status.success().then(|| message.trim().to_owned())
    };
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let Some(device) = losetup(&["--find", "--show", path.to_str().unwrap()]) else {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: no loop device, which root can make"
        );
        return;
    };
    let applied = daemon.apply(&[(1, &device)]).is_ok();
    Daemon::set_len(&path, 0);
    let emptied = losetup(&["--set-capacity", &device]);
    let noticed = daemon.check_stores(1, None);
    let counted: Vec<_> = daemon.manager.fault_counts().of(NQN, 1).collect();
    let faults = daemon.manager.faults();
    drop(daemon);
    losetup(&["--detach", &device]).unwrap();
    assert!(applied && emptied.is_some() && noticed);
    assert_eq!(
        counted,
        [
            ("removed", 1),
            ("fenced", 0),
            ("unreadable", 0),
            ("size", 0)
        ]
    );
    let message = faults[0].to_string();
    assert!(
        message.contains(&device) && message.contains("is gone"),
        "{message}"
    );
}

#[test]
fn replaced_file_is_served_only_after_enable() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = [(1, path.to_str().unwrap())];
    daemon.apply(&a).unwrap();
    assert!(daemon.check_stores(1, Some(Errno::ENODEV)));
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    daemon.file("a.img", 1 << 20);
    let report = daemon.manager.apply(&parse(&text(&a))).unwrap();
    assert!(report.changes.is_empty(), "{report:?}");
    assert!(report.remarks[0].contains("another file"), "{report:?}");
    assert_eq!(daemon.state(1), NamespaceState::Faulted);
    assert!(!locked(&path));
    assert_eq!(
        enable(&daemon, 1).unwrap(),
        ["namespace 1 is recovered: its backing store is available"]
    );
}

#[test]
fn applying_the_same_document_recovers_faulted_namespace() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = [(1, path.to_str().unwrap())];
    daemon.apply(&a).unwrap();
    for errno in [Errno::ENODEV, Errno::ENXIO, Errno::ESHUTDOWN] {
        assert!(daemon.check_stores(1, Some(errno)));
        assert_eq!(daemon.state(1), NamespaceState::Faulted);
        // Immediately: it waits for the release of its own former lock.
        let changes = daemon.apply(&a).unwrap();
        assert_eq!(
            changes,
            ["namespace 1 is recovered: its backing store is available"]
        );
        assert_eq!(daemon.state(1), NamespaceState::Ready);
    }
    // A faulted namespace can be removed, with its NSID.
    assert!(daemon.check_stores(1, Some(Errno::ENODEV)));
    assert_eq!(daemon.apply(&[]).unwrap(), ["namespace 1 is removed"]);
    daemon.settle();
    assert!(!locked(&path) && daemon.manager.faults().is_empty());
}

#[test]
fn bad_block_does_not_fault_namespace() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    daemon.apply(&[(1, path.to_str().unwrap())]).unwrap();
    for _ in 0..3 {
        assert!(!daemon.check_stores(1, Some(Errno::EIO)));
    }
    assert_eq!(daemon.state(1), NamespaceState::Ready);
}

#[test]
fn namespace_is_disabled_and_enabled() {
    let daemon = Daemon::start(&[(2, "ram:1M")]);
    let path = daemon.file("a.img", 1 << 20);
    let good = text(&[(2, "ram:1M"), (1, path.to_str().unwrap())]);
    let off = good.clone() + "enabled = false\n";
    let apply = |text: &str| {
        let report = daemon.manager.apply(&parse(text)).unwrap();
        lines(&report.changes)
    };
    assert_eq!(apply(&off), ["namespace 1 is added"]);
    assert!(!locked(&path), "it is not opened");
    assert_eq!(daemon.served(), [(2, 1 << 20)]);
    let error = enable(&daemon, 1).unwrap_err();
    assert!(error.contains("enabled = true"), "{error}");
    assert_eq!(apply(&good), ["namespace 1 is enabled"]);
    assert!(locked(&path));
    assert_eq!(daemon.served(), [(1, 1 << 20), (2, 1 << 20)]);
    assert_eq!(apply(&off), ["namespace 1 is disabled"]);
    daemon.settle();
    assert!(!locked(&path));
    // A disabled namespace does not need its file.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(apply(&off), Vec::<String>::new());
    assert!(daemon.manager.apply(&parse(&good)).is_err());
    drop(daemon);
    let server = Server::start(&parse(&off)).unwrap();
    assert_eq!(server.manager().namespaces(), 1);
    server.stop();
    server.join().unwrap();
}
