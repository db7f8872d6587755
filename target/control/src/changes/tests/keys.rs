//! Setting keys of existing objects.

use super::*;

fn set(nsid: u32, key: &str, value: Option<&str>) -> Edit {
    Edit::NamespaceSet {
        subsystem: None,
        nsid,
        key: key.to_owned(),
        value: value.map(str::to_owned),
    }
}

fn group(daemon: &Daemon) -> u32 {
    let model = daemon.keeper.manager().model();
    model.subsystems()[0].namespace(1).unwrap().ana_group
}

#[test]
fn key_keeps_its_set_value_across_restarts_until_unset() {
    let scene = Scene::new();
    let daemon = scene.start();
    for value in ["3", "4"] {
        let outcome = daemon.edit(set(1, "ana_group", Some(value))).unwrap();
        assert_eq!(outcome.report.changes.len(), 1);
    }
    let model = Edit::SubsystemSet {
        nqn: NQN.into(),
        key: "model".into(),
        value: Some("A disk".into()),
    };
    let port = Edit::PortSet {
        address: "1".into(),
        key: "queue_depth".into(),
        value: Some("64".into()),
    };
    let outcome = daemon.keeper.edit(vec![model, port]).unwrap();
    assert_eq!(outcome.report.changes.len(), 2, "{outcome:?}");
    // Of one key the last value is kept.
    assert_eq!(daemon.keeper.show().edits.len(), 3);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(group(&daemon), 4);
    let shown = daemon.keeper.show().text;
    let has = |line: &str| shown.lines().any(|one| one == line);
    assert!(
        has("model = \"A disk\"") && has("queue_depth = 64"),
        "{shown}"
    );
    let _ = daemon.edit(set(1, "ana_group", None)).unwrap();
    assert_eq!(group(&daemon), 1);
    // Removing an object also forgets its keys.
    let _ = daemon
        .edit(Edit::SubsystemRemove { nqn: NQN.into() })
        .unwrap();
    assert_eq!(daemon.keeper.show().edits.len(), 2);
}

#[test]
fn immutable_key_is_refused_with_a_remedy() {
    let scene = Scene::new();
    let file = scene.file("a.img", 1 << 20);
    scene.write(&[(1, &file)], "allow_any_host = true");
    let daemon = scene.start();
    let shown = daemon.keeper.show().text;
    for (key, value, words) in [
        ("nsid", "2", "remove it, then add another"),
        ("enabled", "false", "`ctl namespace disable`"),
        ("colour", "red", ": colour: unknown key"),
        ("ana_group", "0", "ana_group"),
        ("ana_group", "many", "ana_group"),
        ("path", "ram:what", "path: "),
        (
            "block_size",
            "4096",
            "remove the namespace, then add it again",
        ),
    ] {
        let error = daemon.edit(set(1, key, Some(value))).unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!(
            (daemon.keeper.show().text, scene.state()),
            (shown.clone(), String::new())
        );
    }
}

#[test]
fn unusable_path_at_start_is_deferred() {
    let scene = Scene::new();
    let daemon = scene.start();
    let file = scene.file("b.img", 3 << 20);
    let _ = daemon.edit(set(1, "path", Some(&file))).unwrap();
    let bytes = |daemon: &Daemon| {
        let model = daemon.keeper.manager().model();
        model.subsystems()[0].namespace(1).unwrap().bytes()
    };
    assert_eq!(bytes(&daemon), 3 << 20);
    drop(daemon);
    deferred::hide(&scene, &file);
    let daemon = scene.start();
    assert_eq!(
        (bytes(&daemon), daemon.keeper.show().deferred.len()),
        (1 << 20, 1)
    );
    deferred::show(&scene, &file);
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(
        (bytes(&daemon), daemon.keeper.show().deferred.len()),
        (3 << 20, 0)
    );
}
