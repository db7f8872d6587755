//! Resizing a namespace with its file.

use std::os::fd::AsRawFd;
use std::sync::Mutex as Shared;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statvfs::statvfs;
use nvmeof_target_core::NamespaceState;

use super::puppet::{LONG, Puppet, SHORT, manager};
use super::*;
use nvmeof_target_engine::Order;

fn to(nsid: u32, size: u64) -> ResizeRequest<'static> {
    ResizeRequest {
        nqn: NQN,
        nsid,
        size: Some(size),
        shrink: true,
    }
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

fn bytes(manager: &Manager) -> u64 {
    manager.model().subsystems()[0].namespaces()[0].bytes()
}

/// The preferred write granularity that Identify reports.
fn granularity(manager: &Manager) -> u64 {
    let preferred = manager.model().subsystems()[0].namespaces()[0].preferred;
    preferred.write.into()
}

/// A file of 4 MiB, and a configuration that serves it.
fn scene() -> (TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(4 << 20).unwrap();
    let text = with_one_reactor(&text(&[(1, path.to_str().unwrap())]));
    (folder, path, text)
}

#[test]
fn file_shrinks_after_the_last_command_and_grows_before_the_first() {
    let (_folder, path, text) = scene();
    let (manager, mailbox) = manager(&text, LONG);
    let block = statvfs(&path).unwrap().fragment_size();
    assert_eq!(granularity(&manager), block);
    // The sizes when the reactor gets orders to open and to close backing stores.
    let seen = Arc::new(Shared::new(Vec::new()));
    let (sees, its, at) = (Arc::clone(&seen), Arc::clone(&manager), path.clone());
    let puppet = Puppet::new(mailbox, move |order| {
        let mib = |bytes: u64| bytes >> 20;
        let note = |what| {
            let found = (what, mib(bytes(&its)), mib(len(&at)));
            sees.lock().unwrap().push(found);
        };
        match order {
            Order::Open { reply, .. } => {
                note("open");
                let _ = reply.send(Ok(()));
            }
            Order::Close { stores, reply } => {
                note("close");
                for (store, _) in stores {
                    let _ = reply.send(store);
                }
            }
            _ => {}
        }
    });
    let report = manager.resize_namespace(to(1, 1 << 20)).unwrap();
    assert_eq!((report.changes.len(), report.remarks.len()), (1, 0));
    assert_eq!((bytes(&manager), len(&path)), (1 << 20, 1 << 20));
    let _ = manager.resize_namespace(to(1, 2 << 20)).unwrap();
    assert_eq!((bytes(&manager), len(&path)), (2 << 20, 2 << 20));
    assert_eq!(granularity(&manager), block);
    drop(puppet);
    let seen = seen.lock().unwrap();
    // Shrinking resizes the namespace first, extending resizes the file first.
    let small = [("open", 4, 4), ("close", 1, 4)];
    assert_eq!(seen[..2], small);
    assert_eq!(seen[2], ("open", 1, 2));
}

#[test]
fn file_does_not_shrink_under_commands() {
    let (_folder, path, text) = scene();
    let (manager, mailbox) = manager(&text, SHORT);
    // Commands in flight do not complete.
    let closing = Arc::new(Shared::new(Vec::new()));
    let waits = Arc::clone(&closing);
    let _puppet = Puppet::new(mailbox, move |order| match order {
        Order::Open { reply, .. } => drop(reply.send(Ok(()))),
        Order::Close { reply, .. } => waits.lock().unwrap().push(reply),
        _ => {}
    });
    let error = manager
        .resize_namespace(to(1, 1 << 20))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("did not complete") && error.contains("the file was not truncated"),
        "{error}"
    );
    assert_eq!((bytes(&manager), len(&path)), (4 << 20, 4 << 20));
}

#[test]
fn file_is_not_truncated_under_command_of_earlier_attempt() {
    let (_folder, path, text) = scene();
    let (manager, mailbox) = manager(&text, SHORT);
    // Commands in flight on the first backing store do not complete, those on others do.
    let stalled = Arc::new(Shared::new(Vec::new()));
    let stalls = Arc::clone(&stalled);
    let _puppet = Puppet::new(mailbox, move |order| match order {
        Order::Open { reply, .. } => drop(reply.send(Ok(()))),
        Order::Close { stores, reply } => {
            for (store, claim) in stores {
                if store == 0 {
                    stalls.lock().unwrap().push((reply.clone(), claim));
                } else {
                    let _ = reply.send(store);
                }
            }
        }
        _ => {}
    });
    for _ in 0..2 {
        let error = manager
            .resize_namespace(to(1, 1 << 20))
            .unwrap_err()
            .to_string();
        assert!(error.contains("the file was not truncated"), "{error}");
        assert_eq!((bytes(&manager), len(&path)), (4 << 20, 4 << 20));
    }
    for (reply, _) in stalled.lock().unwrap().drain(..) {
        reply.send(0).unwrap();
    }
    let _ = manager.resize_namespace(to(1, 1 << 20)).unwrap();
    assert_eq!((bytes(&manager), len(&path)), (1 << 20, 1 << 20));
}

#[test]
fn file_that_cannot_be_truncated_keeps_namespace_size() {
    let file = memfd_create("a", MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let text = with_one_reactor(&text(&[(1, path.to_str().unwrap())]));
    let file = std::fs::File::from(file);
    file.set_len(4 << 20).unwrap();
    let (manager, mailbox) = manager(&text, LONG);
    let _puppet = Puppet::new(mailbox, move |order| match order {
        Order::Open { reply, .. } => drop(reply.send(Ok(()))),
        Order::Close { stores, reply } => {
            // The file is sealed now, and cannot be truncated any more.
            let seals = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK);
            fcntl(&file, seals).unwrap();
            for (store, _) in stores {
                let _ = reply.send(store);
            }
        }
        _ => {}
    });
    let error = manager
        .resize_namespace(to(1, 1 << 20))
        .unwrap_err()
        .to_string();
    assert!(error.contains("the file was not truncated"), "{error}");
    assert_eq!((bytes(&manager), len(&path)), (4 << 20, 4 << 20));
}

#[test]
fn replaced_file_is_not_resized() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = [(1, path.to_str().unwrap())];
    daemon.apply(&a).unwrap();
    let other = daemon.file("b.img", 2 << 20);
    let served = daemon.folder.path().join("served");
    std::fs::hard_link(&path, &served).unwrap();
    std::fs::rename(&other, &path).unwrap();
    for size in [4 << 20, 1 << 19] {
        let error = daemon.manager.resize_namespace(to(1, size)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("another file has this name"), "{error}");
        assert_eq!((len(&path), len(&served)), (2 << 20, 1 << 20));
    }
    std::fs::remove_file(&path).unwrap();
    assert!(daemon.manager.resize_namespace(to(1, 4 << 20)).is_err());
    // The file gets its name again.
    std::fs::rename(&served, &path).unwrap();
    let _ = daemon.manager.resize_namespace(to(1, 4 << 20)).unwrap();
    assert_eq!((len(&path), daemon.served()), (4 << 20, vec![(1, 4 << 20)]));
}

#[test]
fn readonly_disabled_faulted_or_ram_namespace_is_not_resized() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let other = daemon.file("b.img", 1 << 20);
    let a = path.to_str().unwrap();
    let good = text(&[(1, "ram:1M"), (2, a)]);
    let error = |nsid| {
        let resized = daemon.manager.resize_namespace(to(nsid, 4 << 20));
        assert_eq!(len(&path), 1 << 20);
        resized.unwrap_err().to_string()
    };
    let apply = |text: &str| daemon.manager.apply(&parse(text)).unwrap();
    let _ = apply(&good);
    assert!(error(1).contains("memory"));
    let _ = apply(&(good.clone() + "readonly = true\n"));
    assert!(error(2).contains("read-only"), "{}", error(2));
    let _ = apply(&(good + "enabled = false\n"));
    assert!(error(2).contains("disabled"), "{}", error(2));
    let b = text(&[(2, other.to_str().unwrap())]) + "readonly = true\n";
    let _ = apply(&b);
    assert!(error(2).contains("read-only"), "{}", error(2));
    let _ = apply(&text(&[]));
    let _ = apply(&text(&[(2, a)]));
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    assert!(daemon.manager.check_stores(&BTreeMap::new()));
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let model = daemon.manager.model();
    let state = model.subsystems()[0].namespaces()[0].state;
    assert_eq!(state, NamespaceState::Faulted);
    assert!(error(2).contains("namespace enable"), "{}", error(2));
}

#[test]
fn file_of_partial_blocks_does_not_prevent_other_changes() {
    let daemon = Daemon::start(&[]);
    let path = daemon.file("a.img", 1 << 20);
    let a = path.to_str().unwrap();
    daemon.apply(&[(1, a)]).unwrap();
    for size in [(1 << 20) + 100, 1000] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        for more in [&[(1, a), (2, "ram:1M")][..], &[(1, a)]] {
            let report = daemon.manager.apply(&parse(&text(more))).unwrap();
            assert_eq!(report.changes.len(), 1, "{report:?}");
            let remark = &report.remarks[0];
            assert!(remark.contains(&size.to_string()), "{remark}");
            assert!(remark.contains("namespace 1"), "{remark}");
        }
        // A request for that namespace gets the error.
        let looked = daemon.manager.resize_namespace(ResizeRequest {
            size: None,
            ..to(1, 0)
        });
        let error = looked.unwrap_err().to_string();
        assert!(error.contains(&size.to_string()), "{error}");
        assert_eq!(daemon.served(), [(1, 1 << 20)]);
    }
}
