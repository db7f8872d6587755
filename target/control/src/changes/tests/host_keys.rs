//! Keys of hosts: paths in the document, never a key.

use std::os::unix::fs::PermissionsExt;

use nvmeof_wire::Nqn;

use super::*;
use nvmeof_target_api::HostKeys;

/// Valid keys: 32 bytes of 40h, 41h and 42h.
const KEYS: [&str; 3] = [
    "DHHC-1:00:QEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB/pQrW:",
    "DHHC-1:00:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUEebzGt:",
    "DHHC-1:00:QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkK9MX0g:",
];

impl Scene {
    /// Writes key number `number` to the file `name`, which only its owner can read.
    fn key(&self, name: &str, number: usize) -> String {
        let path = self.path(name);
        std::fs::write(&path, KEYS[number]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }

    /// Adds a host with the key of that file to the configuration.
    fn write_host(&self, key_file: &str) {
        self.write_keys(key_file, None);
    }

    /// As [`write_host`](Self::write_host), with an old key.
    fn write_keys(&self, key_file: &str, old: Option<&str>) {
        let text = self.text(&[(1, "ram:1M")], "allow_any_host = true");
        let mut host = format!("[[host]]\nnqn = \"{HOST}\"\nkey_file = '{key_file}'\n");
        if let Some(old) = old {
            host.push_str(&format!("old_key_file = '{old}'\n"));
        }
        std::fs::write(self.path("target.toml"), text + &host).unwrap();
    }
}

impl Daemon {
    /// The number of keys of the host; 0: it does not authenticate.
    fn keys(&self) -> usize {
        let model = self.keeper.manager().model();
        let host = Nqn::new(HOST).unwrap();
        let policy = model.authentication().hosts.get(&host);
        policy.map_or(0, |policy| policy.keys.len())
    }
}

impl Daemon {
    /// Reloads; then this many edits are deferred, and the document has these files.
    #[track_caller]
    fn reloaded(&self, deferred: usize, files: &[&str]) -> Outcome {
        let outcome = self.keeper.reload().unwrap();
        let shown = self.keeper.show();
        assert_eq!(shown.deferred.len(), deferred, "{:?}", shown.deferred);
        let listed = outcome
            .warnings
            .iter()
            .filter(|one| one.starts_with("deferred: "));
        assert_eq!(listed.count(), deferred, "{outcome:?}");
        let document: toml::Table = shown.text.parse().unwrap();
        let host = document.get("host").map(|all| &all[0]);
        let keys = ["key_file", "old_key_file"].into_iter();
        let found = keys.filter_map(|key| host?.get(key)?.as_str());
        assert_eq!(found.collect::<Vec<_>>(), files);
        outcome
    }
}

fn set(key_file: &str) -> Edit {
    Edit::HostSetKey(HostKeys {
        host: HOST.to_owned(),
        key_file: key_file.to_owned(),
        ..HostKeys::default()
    })
}

fn rotate(key_file: &str, until: Option<&str>) -> Edit {
    Edit::HostRotateKey {
        host: HOST.to_owned(),
        key_file: key_file.to_owned(),
        old_key_file: None,
        old_key_until: until.map(str::to_owned),
        replaces: None,
    }
}

fn remove_old() -> Edit {
    Edit::HostRemoveOldKey {
        host: HOST.to_owned(),
        replaces: None,
        force: false,
    }
}

fn remove_key() -> Edit {
    Edit::HostRemoveKey {
        host: HOST.to_owned(),
        replaces: None,
    }
}

#[test]
fn key_is_set_rotated_and_removed_across_restarts() {
    let scene = Scene::new();
    let [a, b, c] = [("a", 0), ("b", 1), ("c", 2)].map(|(name, at)| scene.key(name, at));
    let daemon = scene.start();
    assert_eq!(daemon.keys(), 0);
    let outcome = daemon.edit(set(&a)).unwrap();
    assert!(outcome.saved && outcome.warnings.is_empty(), "{outcome:?}");
    assert_eq!((daemon.keys(), outcome.report.changes.len()), (1, 1));
    let outcome = daemon.edit(rotate(&b, None)).unwrap();
    assert_eq!(daemon.keys(), 2);
    assert!(!outcome.report.changes.is_empty());
    let Edit::HostRotateKey { old_key_file, .. } = &outcome.edits[0] else {
        panic!("{outcome:?}");
    };
    assert_eq!(old_key_file.as_ref(), Some(&a));
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(daemon.keys(), 2);
    let _ = daemon.edit(remove_old()).unwrap();
    assert_eq!(daemon.keys(), 1);
    let _ = daemon.edit(rotate(&c, Some("2099-12-31"))).unwrap();
    let shown = daemon.keeper.show();
    // What the second rotation overrides is forgotten.
    assert_eq!(shown.edits.len(), 2, "{:?}", shown.edits);
    assert!(shown.text.contains("old_key_until = \"2099-12-31\""));
    assert!(
        shown.text.contains(&format!("old_key_file = {b:?}")),
        "{}",
        shown.text
    );
    let _ = daemon.edit(remove_old()).unwrap();
    assert!(!daemon.keeper.show().text.contains("old_key"));
    for number in KEYS {
        let secret = &number[10..42];
        assert!(!scene.state().contains(secret), "{}", scene.state());
    }
    let _ = daemon.edit(remove_key()).unwrap();
    assert_eq!((daemon.keys(), daemon.keeper.show().edits.len()), (0, 0));
}

#[test]
fn setting_a_key_replaces_everything_of_the_host() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let _ = daemon.edit(rotate(&b, Some("2099-12-31"))).unwrap();
    let whole = Edit::HostSetKey(HostKeys {
        host: HOST.to_owned(),
        key_file: a.clone(),
        controller_key_file: Some(b),
        hash: vec!["sha512".to_owned()],
        dh_groups: vec!["ffdhe3072".to_owned(), "null".to_owned()],
        ..HostKeys::default()
    });
    let _ = daemon.edit(whole).unwrap();
    let shown = daemon.keeper.show();
    assert_eq!((daemon.keys(), shown.edits.len()), (1, 1));
    for line in [
        "hash = [\"sha512\"]",
        "dh_groups = [\"ffdhe3072\", \"null\"]",
    ] {
        assert!(shown.text.contains(line), "{}", shown.text);
    }
    let _ = daemon.edit(set(&a)).unwrap();
    // As in the configuration file.
    assert_eq!(daemon.keeper.show().edits, []);
    let model = daemon.keeper.manager().model();
    let policy = model.authentication().hosts.values().next().unwrap();
    assert!(policy.controller_key.is_none() && policy.hashes.len() > 1);
}

#[test]
fn bad_key_is_refused_without_echo_and_changes_nothing() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    let open = scene.key("open", 2);
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
    let damaged = scene.key("damaged", 2);
    std::fs::write(&damaged, KEYS[2].replace("QkJC", "QkJD")).unwrap();
    let missing = scene.path("missing").display().to_string();
    let daemon = scene.start();
    for (edit, words) in [
        (set("a"), "key_file: \"a\" is relative"),
        (set(KEYS[0]), "not the key"),
        (set(&missing), "key_file: "),
        (set(&open), "mode 0644"),
        (set(&damaged), "CRC-32"),
        (rotate(&b, None), "no key is configured for"),
        (remove_old(), "no key is configured for"),
        (remove_key(), "no key is configured for"),
    ] {
        let error = daemon.edit(edit).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains("QEBA") && !error.contains("QkJ"), "{error}");
        assert_eq!((daemon.keys(), scene.state()), (0, String::new()));
    }
    let _ = daemon.edit(set(&a)).unwrap();
    let state = scene.state();
    for (edit, words) in [
        (rotate(&a, None), "already"),
        (rotate(&missing, None), "key_file: "),
        (rotate(&b, Some("tomorrow")), "old_key_until"),
        (remove_old(), "has no old key"),
    ] {
        let error = daemon.edit(edit).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!((daemon.keys(), scene.state()), (1, state.clone()));
    }
    let _ = daemon.edit(rotate(&b, None)).unwrap();
    let error = daemon.edit(rotate(&a, None)).unwrap_err();
    assert!(error.contains("`ctl host remove-old-key"), "{error}");
}

#[test]
fn reload_applies_a_key_that_was_replaced_in_its_file() {
    let scene = Scene::new();
    let a = scene.key("a", 0);
    scene.write_host(&a);
    let daemon = scene.start();
    assert_eq!(daemon.keeper.reload().unwrap().report.changes, []);
    scene.key("a", 1);
    let outcome = daemon.keeper.reload().unwrap();
    assert_eq!(outcome.report.changes.len(), 1, "{outcome:?}");
    // A change of another object does not read the file, a reload does.
    std::fs::write(&a, "no key").unwrap();
    let _ = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!((daemon.nsids(), daemon.keys()), (vec![1, 2], 1));
    let error = daemon.keeper.reload().unwrap_err().to_string();
    assert!(error.contains("key_file"), "{error}");
    assert_eq!((daemon.nsids(), daemon.keys()), (vec![1, 2], 1));
}

#[test]
fn old_key_ends_at_its_date_without_reading_files() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let _ = daemon
        .edit(rotate(&b, Some("2099-12-31T00:00:00Z")))
        .unwrap();
    std::fs::remove_file(&a).unwrap();
    std::fs::remove_file(&b).unwrap();
    let manager = daemon.keeper.manager();
    let until = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(4_102_358_400);
    let second = std::time::Duration::from_secs(1);
    assert!(!manager.end_old_keys(until - second));
    assert_eq!(daemon.keys(), 2);
    assert_eq!(
        manager.host_keys()[0].old_key_until.as_deref(),
        Some("2099-12-31T00:00:00Z")
    );
    assert!(manager.end_old_keys(until));
    assert_eq!(daemon.keys(), 1);
    assert!(!manager.end_old_keys(until), "it is done once");
}

#[test]
fn host_whose_key_file_is_missing_at_start_has_no_other_key() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let _ = daemon.edit(rotate(&b, None)).unwrap();
    let _ = daemon.edit(remove_old()).unwrap();
    drop(daemon);
    std::fs::remove_file(&b).unwrap();
    let daemon = scene.start();
    let model = daemon.keeper.manager().model();
    let host = Nqn::new(HOST).unwrap();
    let policy = &model.authentication().hosts[&host];
    assert_eq!(
        (policy.keys.len(), daemon.keeper.show().deferred.len()),
        (0, 0)
    );
    scene.key("b", 1);
    let _ = daemon.reloaded(0, &[&b]);
    assert_eq!(daemon.keys(), 1);
}

#[test]
fn removed_old_key_stays_removed_only_itself() {
    let scene = Scene::new();
    let [a, b, c] = [("a", 0), ("b", 1), ("c", 2)].map(|(name, at)| scene.key(name, at));
    scene.write_keys(&b, Some(&a));
    let daemon = scene.start();
    let _ = daemon.edit(remove_old()).unwrap();
    let _ = daemon.reloaded(0, &[&b]);
    // The administrator tidies up, then rotates in the file: hosts still have b.
    scene.write_host(&b);
    let _ = daemon.reloaded(1, &[&b]);
    scene.write_keys(&c, Some(&b));
    let _ = daemon.reloaded(1, &[&c, &b]);
    assert_eq!(daemon.keys(), 2);
    scene.write_keys(&b, Some(&a));
    let _ = daemon.reloaded(0, &[&b]);
}

#[test]
fn saved_rotation_does_not_override_a_later_key_of_the_file() {
    let scene = Scene::new();
    let [a, b, c] = [("a", 0), ("b", 1), ("c", 2)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let _ = daemon.edit(rotate(&b, None)).unwrap();
    let _ = daemon.edit(remove_old()).unwrap();
    scene.write_keys(&c, Some(&b));
    let _ = daemon.reloaded(2, &[&c, &b]);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(daemon.keeper.show().deferred.len(), 2);
    // The same rotation in the file.
    scene.write_keys(&b, Some(&a));
    let _ = daemon.reloaded(0, &[&b]);
    // The file is as it was: a is not accepted again.
    scene.write_host(&a);
    let _ = daemon.reloaded(0, &[&b]);
}

#[test]
fn saved_set_key_does_not_override_a_later_key_of_the_file() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    let daemon = scene.start();
    let _ = daemon.edit(set(&a)).unwrap();
    scene.write_host(&b);
    let _ = daemon.reloaded(1, &[&b]);
    scene.write_host(&a);
    let _ = daemon.reloaded(0, &[&a]);
}

#[test]
fn saved_removal_does_not_open_a_host_with_a_later_key() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let outcome = daemon.edit(remove_key()).unwrap();
    let is_open = |all: &[String]| all.iter().any(|one| one.contains("every peer that uses"));
    assert!(is_open(&outcome.warnings), "{outcome:?}");
    assert!(is_open(&daemon.reloaded(0, &[]).warnings));
    scene.write_host(&b);
    let outcome = daemon.reloaded(1, &[&b]);
    assert!(!is_open(&outcome.warnings), "{outcome:?}");
    assert_eq!(daemon.keys(), 1);
    drop(daemon);
    assert_eq!(scene.start().keys(), 1);
}

#[test]
fn old_key_is_removed_by_a_request_of_its_own() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let both = vec![rotate(&b, None), remove_old()];
    let planned = daemon.keeper.plan_edit(both.clone()).map(drop);
    let made = daemon.keeper.edit(both).map(drop);
    for refused in [planned, made] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("in one request"), "{error}");
    }
    let _ = daemon.edit(rotate(&b, None)).unwrap();
    assert_eq!(daemon.keys(), 2);
}

#[test]
fn rotation_until_a_date_that_has_passed_is_refused() {
    let scene = Scene::new();
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, at)| scene.key(name, at));
    scene.write_host(&a);
    let daemon = scene.start();
    let past = rotate(&b, Some("2026-01-31"));
    let planned = daemon.keeper.plan_edit(vec![past.clone()]).map(drop);
    for error in [
        planned.unwrap_err().to_string(),
        daemon.edit(past).unwrap_err(),
    ] {
        assert!(error.contains("2026-01-31 has passed"), "{error}");
    }
    assert_eq!((daemon.keys(), daemon.keeper.show().edits), (1, vec![]));
}

#[test]
fn key_in_place_of_another_word_is_not_echoed() {
    let scene = Scene::new();
    let a = scene.key("a", 0);
    let daemon = scene.start();
    let of = |host: &str, key_file: &str, hash: &str| {
        Edit::HostSetKey(HostKeys {
            host: host.to_owned(),
            key_file: key_file.to_owned(),
            hash: vec![hash.to_owned()],
            ..HostKeys::default()
        })
    };
    let in_path = format!("/keys/{}", KEYS[0]);
    let in_credential = format!("credential:{}", KEYS[0]);
    for edit in [
        of(KEYS[0], HOST, "sha256"),
        of(HOST, &in_path, "sha256"),
        of(HOST, &in_credential, "sha256"),
        of(HOST, &a, KEYS[0]),
        rotate(&a, Some(KEYS[0])),
        Edit::HostRemoveKey {
            host: KEYS[0].to_owned(),
            replaces: None,
        },
        Edit::HostAllow {
            subsystem: None,
            host: KEYS[0].to_owned(),
        },
    ] {
        let error = daemon.edit(edit.clone()).unwrap_err();
        assert!(error.contains("not the key"), "{error}");
        let forgotten = daemon.keeper.forget(&[edit]).unwrap_err().to_string();
        for text in [error, forgotten] {
            assert!(!text.contains("QEBA"), "{text}");
        }
    }
}

#[test]
fn removing_a_key_that_a_subsystem_requires_is_a_warning() {
    let scene = Scene::new();
    let a = scene.key("a", 0);
    let access = "allow_any_host = true\nrequire_authentication = true";
    scene.write(&[(1, "ram:1M")], access);
    let daemon = scene.start();
    let _ = daemon.edit(set(&a)).unwrap();
    let planned = daemon.keeper.plan_edit(vec![remove_key()]).unwrap();
    let outcome = daemon.edit(remove_key()).unwrap();
    for warnings in [&planned.warnings, &outcome.warnings] {
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let words = ["requires a key", HOST, NQN, "`ctl host set-key`"];
        assert!(
            words.iter().all(|word| warnings[0].contains(word)),
            "{warnings:?}"
        );
    }
}
