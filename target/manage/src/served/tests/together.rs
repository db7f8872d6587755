//! A document is served completely or not at all, at whatever step it fails.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use nvmeof_backend::OpenError;

use super::puppet::{LONG, Puppet, manager};
use super::*;
use nvmeof_target_engine::Order;

/// A document with one more namespace on `path` and one more port of that number.
fn with(path: &Path, port: u16) -> String {
    let both = [(1, "ram:1M"), (2, path.to_str().unwrap())];
    format!(
        "{}[[port]]\ntraddr = \"{}\"\ntrsvcid = {port}\nprovider = \"iwarp\"\n",
        text(&both),
        own_address()
    )
}

/// An address of this machine that no other process listens on, or calls from: a port
/// that is free there stays free.
fn own_address() -> Ipv4Addr {
    Ipv4Addr::from_bits(0x7F80_0000 | std::process::id() & 0x7F_FFFF)
}

/// A port of that address that is free now.
fn free_port() -> u16 {
    let taken = TcpListener::bind((own_address(), 0)).unwrap();
    taken.local_addr().unwrap().port()
}

/// Waits until reactors have closed the file.
fn unlocked(path: &Path) -> bool {
    let until = Instant::now() + LONG;
    while locked(path) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    !locked(path)
}

#[test]
fn failed_port_or_store_leaves_neither() {
    let daemon = Daemon::start(&[(1, "ram:1M")]);
    let path = daemon.file("a.img", 1 << 20);
    let taken = TcpListener::bind((own_address(), 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = daemon.manager.apply(&parse(&with(&path, port)));
    assert!(error.unwrap_err().to_string().contains("is in use"));
    assert!(unlocked(&path));

    let (missing, port) = (daemon.folder.path().join("missing"), free_port());
    let error = daemon.manager.apply(&parse(&with(&missing, port)));
    assert!(error.unwrap_err().to_string().contains("path: "));
    assert!(TcpStream::connect((own_address(), port)).is_err());

    assert_eq!(daemon.served(), [(1, 1 << 20)]);
    assert_eq!(daemon.manager.ports().len(), 1);
    // With both available, the change succeeds.
    let report = daemon.manager.apply(&parse(&with(&path, port))).unwrap();
    assert_eq!(report.changes.len(), 2, "{report:?}");
    assert!(locked(&path) && TcpStream::connect((own_address(), port)).is_ok());
}

/// The last step that can fail: all other errors are found before.
#[test]
fn store_that_fails_to_open_is_named_and_nothing_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.img");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let before = with_one_reactor(&text(&[(1, "ram:1M")]));
    let next = with_one_reactor(&text(&[(1, "ram:1M"), (2, path.to_str().unwrap())]));
    let (manager, mailbox) = manager(&before, LONG);
    let mut refuses = true;
    let _reactor = Puppet::new(mailbox, move |order| match order {
        Order::Open { reply, stores } if std::mem::take(&mut refuses) => {
            let (store, claim) = stores.last().unwrap();
            let error = OpenError::Missing(claim.name().into());
            reply.send(Err((*store, error))).unwrap();
        }
        Order::Open { reply, .. } => reply.send(Ok(())).unwrap(),
        Order::Close { stores, reply } => {
            for (store, _) in stores {
                let _ = reply.send(store);
            }
        }
        _ => {}
    });
    let error = manager.apply(&parse(&next)).unwrap_err().to_string();
    let lines: Vec<_> = next.lines().collect();
    let line = lines
        .iter()
        .rposition(|line| line.starts_with("path = "))
        .unwrap()
        + 1;
    assert!(
        error.starts_with(&format!("target.toml:{line}: path: ")),
        "{error}"
    );
    assert!(error.contains("no such file"), "{error}");
    assert!(unlocked(&path));
    assert_eq!(manager.model().subsystems()[0].namespaces().len(), 1);
    let report = manager.apply(&parse(&next)).unwrap();
    assert_eq!(report.changes.len(), 1, "{report:?}");
    assert!(locked(&path));
}
