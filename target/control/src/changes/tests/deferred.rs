//! Deferred changes, settings, and the lock of the state file.

use super::*;

#[test]
fn settings_come_from_the_configuration_file_after_apply() {
    let scene = Scene::new();
    let file = scene.text(&[(1, "ram:1M")], "allow_any_host = true");
    let with =
        |text: &str, limits: &str| text.replace("[control]", &format!("{limits}\n[control]"));
    let write = |limits| std::fs::write(scene.path("target.toml"), with(&file, limits)).unwrap();
    write("[limits]\nio_queues = 5");
    let daemon = scene.start();
    let other = scene.text(&[(7, "ram:1M")], "allow_any_host = true");
    let other = with(&other, "[limits]\nio_queues = 3\n[reactor]\ndrain_s = 1");
    let planned = daemon.keeper.plan("other.toml", other.clone()).unwrap();
    let planned = planned.warnings;
    let outcome = daemon.keeper.apply("other.toml".into(), other).unwrap();
    assert_eq!(outcome.warnings, planned);
    let warned = |word: &str| {
        planned
            .iter()
            .any(|one| one.contains(word) && one.contains("target.toml"))
    };
    assert!(
        warned("limits.io_queues") && warned("reactor.drain_s"),
        "{planned:?}"
    );
    assert_eq!(planned.len(), 2, "{planned:?}");
    let _ = daemon.edit(add("ram:2M")).unwrap();
    let limits = |daemon: &Daemon| {
        let config = Config::parse("x".as_ref(), daemon.keeper.show().text).unwrap();
        (
            config.limits().io_queues,
            config.reactor_settings().drain.as_secs(),
        )
    };
    assert_eq!((limits(&daemon), daemon.nsids()), ((5, 5), vec![1, 7]));
    drop(daemon);
    // A setting of the file takes effect at the next start.
    write("[limits]\nio_queues = 9");
    let daemon = scene.start();
    assert_eq!((limits(&daemon), daemon.nsids()), ((9, 5), vec![1, 7]));
    assert_eq!(daemon.keeper.show().applied.as_deref(), Some("other.toml"));
    // A document without settings gets no warning.
    let plain = scene.text(&[(3, "ram:1M")], "allow_any_host = true");
    let outcome = daemon.keeper.apply("plain.toml".into(), plain).unwrap();
    assert_eq!((outcome.warnings, limits(&daemon)), (Vec::new(), (9, 5)));
}

/// Replaces a file by a directory, which can never be served: the target would wait for a missing
/// file.
pub(super) fn hide(scene: &Scene, file: &str) {
    std::fs::rename(file, scene.path("elsewhere")).unwrap();
    std::fs::create_dir(file).unwrap();
}

/// Restores the file.
pub(super) fn show(scene: &Scene, file: &str) {
    std::fs::remove_dir(file).unwrap();
    std::fs::rename(scene.path("elsewhere"), file).unwrap();
}

/// A target with a namespace 2 of a path that is a directory at its start, and that path.
fn with_one_deferred(scene: &Scene) -> (Daemon, String) {
    let daemon = scene.start();
    let file = scene.file("b.img", 1 << 20);
    let _ = daemon.edit(add(&file)).unwrap();
    drop(daemon);
    hide(scene, &file);
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1]);
    assert_eq!(daemon.keeper.show().deferred.len(), 1);
    (daemon, file)
}

fn bytes_of(daemon: &Daemon, nsid: u32) -> u64 {
    let model = daemon.keeper.manager().model();
    model.subsystems()[0].namespace(nsid).unwrap().bytes()
}

#[test]
fn later_change_overrides_a_deferred_one() {
    let scene = Scene::new();
    let (daemon, file) = with_one_deferred(&scene);
    // Another namespace with its NSID.
    let two = Edit::NamespaceAdd(NamespaceAdd {
        nsid: Some(2),
        path: "ram:2M".into(),
        ..NamespaceAdd::default()
    });
    let forgotten = |warnings: &[String]| {
        let is_reported = warnings.iter().any(|one| one.contains("forgotten"));
        assert!(is_reported, "{warnings:?}");
    };
    let planned = daemon.keeper.plan_edit(vec![two.clone()]).unwrap();
    assert_eq!(planned.plan.changes.len(), 1);
    forgotten(&planned.warnings);
    forgotten(&daemon.edit(two).unwrap().warnings);
    assert_eq!(
        (daemon.nsids(), bytes_of(&daemon, 2)),
        (vec![1, 2], 2 << 20)
    );
    show(&scene, &file);
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(bytes_of(&daemon, 2), 2 << 20);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(
        (bytes_of(&daemon, 2), daemon.keeper.show().deferred),
        (2 << 20, vec![])
    );
}

#[test]
fn new_namespace_avoids_nsids_of_deferred_ones() {
    let scene = Scene::new();
    let (daemon, file) = with_one_deferred(&scene);
    let planned = daemon.keeper.plan_edit(vec![add("ram:2M")]).unwrap();
    assert_eq!(planned.warnings, Vec::<String>::new());
    let outcome = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!(daemon.nsids(), [1, 3]);
    assert!(
        !outcome.warnings.iter().any(|one| one.contains("forgotten")),
        "{:?}",
        outcome.warnings
    );
    show(&scene, &file);
    let _ = daemon.keeper.reload().unwrap();
    let sizes = [2, 3].map(|nsid| bytes_of(&daemon, nsid));
    assert_eq!((daemon.nsids(), sizes), (vec![1, 2, 3], [1 << 20, 2 << 20]));
}

/// Waits until this process has closed the file.
fn wait_until_closed(path: &str) {
    let is_open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let mut all = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        all.any(|file| file == std::path::Path::new(path))
    };
    for _ in 0..6000 {
        if !is_open() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{path} is still open");
}

#[test]
fn deferred_changes_of_a_subsystem_return_with_it() {
    const OTHER: &str = "nqn.2026-11.org.example:other";
    let scene = Scene::new();
    let ours = scene.text(&[(1, "ram:1M")], "allow_any_host = true");
    let other = format!("[[subsystem]]\nnqn = \"{OTHER}\"\nallowed_hosts = [\"{HOST}\"]\n");
    std::fs::write(scene.path("target.toml"), format!("{ours}{other}")).unwrap();
    let daemon = scene.start();
    let (b, c) = (scene.file("b.img", 1 << 20), scene.file("c.img", 1 << 20));
    let of = |nsid, path: &str| {
        Edit::NamespaceAdd(NamespaceAdd {
            subsystem: Some(OTHER.into()),
            nsid: Some(nsid),
            path: path.to_owned(),
            ..NamespaceAdd::default()
        })
    };
    let host = |name: &str| format!("{HOST}-{name}");
    let allow = |name: &str| Edit::HostAllow {
        subsystem: Some(OTHER.into()),
        host: host(name),
    };
    let deny = Edit::HostDeny {
        subsystem: Some(OTHER.into()),
        host: HOST.to_owned(),
    };
    let edits = vec![of(5, &b), of(6, &c), allow("x"), deny];
    let _ = daemon.keeper.edit(edits).unwrap();
    // The administrator removed it.
    std::fs::write(scene.path("target.toml"), ours).unwrap();
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(daemon.keeper.show().deferred.len(), 4);
    let again = || {
        vec![Edit::SubsystemAdd {
            nqn: OTHER.into(),
            serial: None,
            model: None,
            hosts: vec![HOST.to_owned(), host("y")],
        }]
    };
    // A file that is being closed could still be locked.
    wait_until_closed(&c);
    let planned = daemon.keeper.plan_edit(again()).unwrap().warnings;
    let made = planned
        .iter()
        .filter(|one| one.contains("applied: the deferred change"));
    assert_eq!(made.count(), 3, "{planned:?}");
    std::fs::remove_file(&c).unwrap();
    std::fs::create_dir(&c).unwrap();
    assert!(daemon.keeper.plan_edit(again()).is_ok());
    let outcome = daemon.keeper.edit(again()).unwrap();
    let made = outcome
        .warnings
        .iter()
        .filter(|one| one.starts_with("applied: "));
    assert_eq!(made.count(), 2, "{:?}", outcome.warnings);
    let check = |daemon: &Daemon| {
        let model = daemon.keeper.manager().model();
        let its = &model.subsystems()[1];
        let nsids: Vec<_> = its.namespaces().iter().map(|one| one.nsid).collect();
        let hosts = its.allowed_hosts.as_ref().unwrap();
        let mut hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
        hosts.sort();
        assert_eq!(nsids, [5]);
        assert_eq!(hosts, [HOST.to_owned(), host("x"), host("y")]);
        // The path that is a directory, and the edit that would remove a new host.
        let deferred = daemon.keeper.show().deferred;
        assert_eq!(deferred.len(), 2, "{deferred:?}");
        let missing = deferred
            .iter()
            .any(|one| one.why.contains("is a directory"));
        assert!(missing, "{deferred:?}");
    };
    check(&daemon);
    drop(daemon);
    check(&scene.start());
}

#[test]
fn reload_restores_available_deferred_namespaces_only() {
    let scene = Scene::new();
    let daemon = scene.start();
    let files = ["b.img", "c.img", "d.img"].map(|name| scene.file(name, 1 << 20));
    let _ = daemon
        .keeper
        .edit(files.iter().map(|file| add(file)).collect())
        .unwrap();
    drop(daemon);
    for file in &files {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    }
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1]);
    std::fs::remove_dir(&files[1]).unwrap();
    let _ = scene.file("c.img", 1 << 20);
    let outcome = daemon.keeper.reload().unwrap();
    assert_eq!(
        (daemon.nsids(), outcome.report.changes.len()),
        (vec![1, 3], 1)
    );
    assert!(outcome.saved, "{outcome:?}");
    let deferred = outcome
        .warnings
        .iter()
        .filter(|one| one.contains("deferred"));
    assert_eq!(deferred.count(), 2, "{:?}", outcome.warnings);
    for file in [&files[0], &files[2]] {
        std::fs::remove_dir(file).unwrap();
        let _ = scene.file(file, 1 << 20);
    }
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(daemon.nsids(), [1, 2, 3, 4]);
}

#[test]
fn failed_enable_leaves_the_whole_change_undone() {
    let scene = Scene::new();
    let files = ["a.img", "b.img"].map(|name| scene.file(name, 1 << 20));
    scene.write(&[(1, &files[0]), (2, &files[1])], "allow_any_host = true");
    let daemon = scene.start();
    let sized = |file: &str, len| {
        let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
        file.set_len(len).unwrap();
    };
    for file in &files {
        sized(file, 0);
    }
    let look = || daemon.keeper.manager().check_stores(&Default::default());
    assert!(look());
    let enable = Edit::NamespaceEnable {
        subsystem: None,
        nsid: 1,
        enabled: true,
    };
    let error = daemon.keeper.edit(vec![enable.clone(), add("ram:1M")]);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("namespace 1 of") && error.contains("0 bytes"),
        "{error}"
    );
    assert_eq!(daemon.nsids(), vec![1, 2]);
    // A recovered namespace leaves the remarks on others.
    sized(&files[0], 1 << 20);
    let outcome = daemon.edit(enable).unwrap();
    assert_eq!(outcome.warnings, Vec::<String>::new());
    assert_eq!(outcome.report.remarks.len(), 1, "{outcome:?}");
}

#[test]
fn restored_file_belongs_to_the_later_namespace() {
    let scene = Scene::new();
    let (daemon, file) = with_one_deferred(&scene);
    show(&scene, &file);
    let three = Edit::NamespaceAdd(NamespaceAdd {
        nsid: Some(3),
        path: file,
        ..NamespaceAdd::default()
    });
    let _ = daemon.edit(three).unwrap();
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(daemon.nsids(), [1, 3]);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().deferred.len()),
        (vec![1, 3], 1)
    );
}

#[test]
fn repeated_deferred_change_is_applied() {
    let scene = Scene::new();
    let (daemon, file) = with_one_deferred(&scene);
    show(&scene, &file);
    let _ = daemon.edit(add(&file)).unwrap();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().deferred.len()),
        (vec![1, 2], 0)
    );
    assert_eq!(daemon.keeper.show().edits.len(), 1);
}

#[test]
fn deferred_change_can_be_forgotten() {
    let scene = Scene::new();
    let (daemon, file) = with_one_deferred(&scene);
    let _ = daemon.edit(Edit::HostAllow {
        subsystem: None,
        host: "any".into(),
    });
    let shown = daemon.keeper.show();
    let deferred: Vec<_> = shown.deferred.iter().map(|one| one.edit.clone()).collect();
    let taken = shown.edits.iter().find(|edit| !deferred.contains(edit));
    if let Some(taken) = taken {
        let error = daemon
            .keeper
            .forget(std::slice::from_ref(taken))
            .unwrap_err();
        assert!(error.to_string().contains("is not deferred"), "{error}");
    }
    let outcome = daemon.keeper.forget(&deferred).unwrap();
    assert!(outcome.saved && outcome.warnings.is_empty(), "{outcome:?}");
    let error = daemon.keeper.forget(&deferred).unwrap_err().to_string();
    assert!(
        error.contains("namespace add 2") && error.contains("not deferred"),
        "{error}"
    );
    show(&scene, &file);
    let _ = daemon.keeper.reload().unwrap();
    drop(daemon);
    assert_eq!(scene.start().nsids(), [1]);
}

#[test]
fn removed_object_need_not_exist_when_another_edit_is_deferred() {
    let scene = Scene::new();
    let (a, b) = (scene.file("a.img", 1 << 20), scene.file("b.img", 1 << 20));
    scene.write(&[(1, &a), (2, "ram:1M")], "allow_any_host = true");
    let daemon = scene.start();
    let _ = daemon.edit(add(&b)).unwrap();
    let _ = daemon.edit(remove(1)).unwrap();
    let _ = daemon.edit(add("ram:3M")).unwrap();
    assert_eq!(daemon.nsids(), [1, 2, 3]);
    drop(daemon);
    for file in [&a, &b] {
        std::fs::remove_file(file).unwrap();
        std::fs::create_dir(file).unwrap();
    }
    let daemon = scene.start();
    assert_eq!(
        (daemon.nsids(), bytes_of(&daemon, 1)),
        (vec![1, 2], 3 << 20)
    );
    let deferred = daemon.keeper.show().deferred;
    assert_eq!(deferred.len(), 1, "{deferred:?}");
    assert!(
        deferred[0].to_string().contains("namespace add 3"),
        "{deferred:?}"
    );
    drop(daemon);
    // The configuration file itself must not have what can never be served.
    scene.write(&[(1, "ram:1M"), (2, &a)], "allow_any_host = true");
    let loaded = LoadedConfig::read(&scene.path("target.toml")).unwrap();
    let error = loaded.serve().map(drop).unwrap_err().to_string();
    assert!(
        error.contains("a.img") && error.contains("is a directory"),
        "{error}"
    );
}

#[test]
fn unservable_applied_document_is_reported_with_a_remedy() {
    let scene = Scene::new();
    let daemon = scene.start();
    let file = scene.file("b.img", 1 << 20);
    let other = scene.text(&[(1, &file)], "allow_any_host = true");
    let _ = daemon.keeper.apply("other.toml".into(), other).unwrap();
    let _ = daemon.edit(add("ram:1M")).unwrap();
    drop(daemon);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let loaded = LoadedConfig::read(&scene.path("target.toml")).unwrap();
    let error = loaded.serve().map(drop).unwrap_err().to_string();
    let state = scene.path("kept/state.json");
    let words = format!(
        "; applied at run time, kept in {}; move it away to serve {}",
        state.display(),
        scene.path("target.toml").display()
    );
    assert!(
        error.starts_with("other.toml") && error.contains("is a directory"),
        "{error}"
    );
    assert!(error.ends_with(&words), "{error}");
    // So is a document that has become invalid.
    let damaged = scene.state().replace("allow_any_host", "allow_no_host");
    std::fs::write(&state, damaged).unwrap();
    let error = LoadedConfig::read(&scene.path("target.toml")).map(drop);
    let error = error.unwrap_err().to_string();
    assert!(error.ends_with(&words), "{error}");
    std::fs::remove_file(&state).unwrap();
    assert_eq!(scene.start().nsids(), [1]);
}

#[test]
fn state_file_is_locked_against_a_second_target() {
    let scene = Scene::new();
    let daemon = scene.start();
    let error = LoadedConfig::read(&scene.path("target.toml"))
        .map(drop)
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("target.toml:7: control.state: another target"),
        "{error}"
    );
    assert!(error.contains("kept/state.json"), "{error}");
    drop(daemon);
    // A missing folder of the state file does not prevent a start.
    let text = scene
        .text(&[], "allow_any_host = true")
        .replace("kept/", "no/");
    std::fs::write(scene.path("target.toml"), text).unwrap();
    drop(scene.start());
}
