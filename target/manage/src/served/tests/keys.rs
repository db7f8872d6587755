//! Keys of hosts whose files cannot be read.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const HOST: &str = "nqn.2026-11.org.example:host";
/// Keys of bytes 00h to 1Fh, and 00h to 2Fh.
const ONE: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER: &str =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn write(path: &Path, key: &str) {
    fs::write(path, key).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Whether the current and the old key of the host are known.
fn known(manager: &Manager) -> (bool, bool) {
    let model = manager.model();
    let policy = &model.authentication().hosts[&Nqn::new(HOST).unwrap()];
    (policy.current().is_some(), policy.old().is_some())
}

fn waiting(manager: &Manager) -> Vec<String> {
    let all = manager.waiting();
    let names = all.iter().map(|one| one.what.to_string());
    names.filter(|one| one.contains(HOST)).collect()
}

#[test]
fn key_that_cannot_be_read_at_the_start_is_accepted_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let [new, old] = ["new", "old"].map(|name| folder.path().join(name));
    write(&old, OTHER);
    let with = |namespaces: &[(u32, &str)], more: &str| {
        let text = text(namespaces);
        parse(&format!(
            "{text}[[host]]\nnqn = \"{HOST}\"\nkey_file = {new:?}\nold_key_file = {old:?}\n{more}"
        ))
    };
    let config = with(&[(1, "ram:1M")], "");
    let server = Server::start(&config).unwrap();
    let daemon = Daemon {
        manager: Arc::clone(server.manager()),
        server: Some(server),
        folder,
    };
    let manager = &daemon.manager;
    assert_eq!(known(manager), (false, true));
    let name = format!("key_file of host {HOST}");
    assert_eq!(waiting(manager), std::slice::from_ref(&name));
    assert!(!manager.retry(|_| true));
    // A reload requires the file. A change of something else does not.
    assert!(manager.apply(&config).is_err());
    let more = with(&[(1, "ram:1M"), (2, "ram:1M")], "");
    assert!(manager.plan_with(&more, KeysToRead::Changed).is_ok());
    let _ = manager.apply_with(&more, KeysToRead::Changed).unwrap();
    assert_eq!(daemon.served().len(), 2);
    assert_eq!(
        (known(manager), waiting(manager)),
        ((false, true), vec![name])
    );
    let changed = with(&[(1, "ram:1M")], "hash = \"sha384\"\n");
    assert!(manager.apply_with(&changed, KeysToRead::Changed).is_err());
    write(&new, ONE);
    assert!(manager.retry(|_| true));
    assert_eq!((known(manager), waiting(manager)), ((true, true), vec![]));
}

#[test]
fn reload_ends_the_wait_for_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let text = text(&[]);
    let config = parse(&format!(
        "{text}[[host]]\nnqn = \"{HOST}\"\nkey_file = {path:?}\n"
    ));
    let server = Server::start(&config).unwrap();
    let daemon = Daemon {
        manager: Arc::clone(server.manager()),
        server: Some(server),
        folder,
    };
    assert_eq!(known(&daemon.manager), (false, false));
    write(&path, ONE);
    let _ = daemon.manager.apply(&config).unwrap();
    assert_eq!(known(&daemon.manager), (true, false));
    assert_eq!(waiting(&daemon.manager), Vec::<String>::new());
}

#[test]
fn change_reports_hosts_that_it_leaves_without_a_key_once() {
    let daemon = Daemon::start(&[]);
    let required = text(&[]).replace("= true", "= true\nrequire_authentication = true");
    let required = parse(&required);
    let plan = daemon.manager.plan(&required).unwrap();
    let report = daemon
        .manager
        .apply_with(&required, KeysToRead::Changed)
        .unwrap();
    for remarks in [plan.remarks, report.remarks] {
        let [remark] = &remarks[..] else {
            panic!("{remarks:?}");
        };
        assert!(remark.contains("no [[host]] is configured"), "{remark}");
    }
    let again = daemon
        .manager
        .apply_with(&required, KeysToRead::Changed)
        .unwrap();
    assert_eq!(again.remarks, Vec::<String>::new());
    assert_eq!(daemon.manager.apply(&required).unwrap().remarks.len(), 1);
}
