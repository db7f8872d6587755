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

fn unknown(manager: &Manager) -> usize {
    let model = manager.model();
    model.authentication().hosts[&Nqn::new(HOST).unwrap()]
        .unknown
        .host
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
    assert_eq!(unknown(manager), 1);
    let name = format!("key_file of host {HOST}");
    assert_eq!(waiting(manager), std::slice::from_ref(&name));
    assert!(!manager.retry(|_| true));
    // A reload requires the file. A change of something else does not.
    assert!(manager.apply(&config).is_err());
    let more = with(&[(1, "ram:1M"), (2, "ram:1M")], "");
    assert!(
        manager
            .plan_with(&more, &KeysToRead::Of(BTreeSet::new()))
            .is_ok()
    );
    let _ = manager
        .apply_with(&more, &KeysToRead::Of(BTreeSet::new()))
        .unwrap();
    assert_eq!(daemon.served().len(), 2);
    assert_eq!(
        (known(manager), waiting(manager)),
        ((false, true), vec![name])
    );
    let changed = with(&[(1, "ram:1M")], "hash = \"sha384\"\n");
    assert!(
        manager
            .apply_with(&changed, &KeysToRead::Of(BTreeSet::new()))
            .is_err()
    );
    write(&new, ONE);
    assert!(manager.retry(|_| true));
    assert_eq!((known(manager), waiting(manager)), ((true, true), vec![]));
    assert_eq!(unknown(manager), 0);
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
        .apply_with(&required, &KeysToRead::Of(BTreeSet::new()))
        .unwrap();
    for remarks in [plan.remarks, report.remarks] {
        let [remark] = &remarks[..] else {
            panic!("{remarks:?}");
        };
        assert!(remark.contains("no [[host]] is configured"), "{remark}");
    }
    let again = daemon
        .manager
        .apply_with(&required, &KeysToRead::Of(BTreeSet::new()))
        .unwrap();
    assert_eq!(again.remarks, Vec::<String>::new());
    assert_eq!(daemon.manager.apply(&required).unwrap().remarks.len(), 1);
}

#[test]
fn change_of_a_host_reads_its_files_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    write(&path, ONE);
    let text = text(&[]);
    let config = parse(&format!(
        "{text}[[host]]\nnqn = \"{HOST}\"\nkey_file = {path:?}\n"
    ));
    let server = Server::start(&config).unwrap();
    let manager = Arc::clone(server.manager());
    let _daemon = Daemon {
        manager: Arc::clone(&manager),
        server: Some(server),
        folder,
    };
    let host = Nqn::new(HOST).unwrap();
    let key = || {
        let model = manager.model();
        let policy = &model.authentication().hosts[&host];
        policy.current().unwrap().to_text()
    };
    write(&path, OTHER);
    let others = KeysToRead::Of(BTreeSet::new());
    assert!(
        manager
            .apply_with(&config, &others)
            .unwrap()
            .changes
            .is_empty()
    );
    assert_eq!(*key(), ONE);
    let its = KeysToRead::Of(BTreeSet::from([host]));
    assert_eq!(manager.plan_with(&config, &its).unwrap().changes.len(), 1);
    assert_eq!(manager.apply_with(&config, &its).unwrap().changes.len(), 1);
    assert_eq!(*key(), OTHER);
}
