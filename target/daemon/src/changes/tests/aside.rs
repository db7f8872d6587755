//! Changes that cannot be at present, settings, and who keeps changes.

use super::*;
use crate::config::Config;

#[test]
fn settings_are_those_of_the_file_whatever_is_applied() {
    let scene = Scene::new();
    let file = scene.text(&[(1, "ram:1M")], "allow_any_host = true");
    let with =
        |text: &str, limits: &str| text.replace("[control]", &format!("{limits}\n[control]"));
    let write = |limits| std::fs::write(scene.path("target.toml"), with(&file, limits)).unwrap();
    write("[limits]\nio_queues = 5");
    let daemon = scene.start();
    let other = scene.text(&[(7, "ram:1M")], "allow_any_host = true");
    let other = with(&other, "[limits]\nio_queues = 3\n[reactor]\ndrain_s = 1");
    let (_, planned) = daemon.keeper.plan("other.toml", other.clone()).unwrap();
    let outcome = daemon.keeper.apply("other.toml".into(), other).unwrap();
    assert_eq!(outcome.warnings, planned);
    let told = |word: &str| {
        planned
            .iter()
            .any(|one| one.contains(word) && one.contains("target.toml"))
    };
    assert!(
        told("limits.io_queues") && told("reactor.drain_s"),
        "{planned:?}"
    );
    assert_eq!(planned.len(), 2, "{planned:?}");
    let _ = daemon.edit(add("ram:2M")).unwrap();
    let limits = |daemon: &Daemon| {
        let config = Config::parse("x".as_ref(), daemon.keeper.show().text).unwrap();
        (config.limits().io_queues, config.running().drain.as_secs())
    };
    assert_eq!((limits(&daemon), daemon.nsids()), ((5, 5), vec![1, 7]));
    drop(daemon);
    // What the administrator writes there counts after the next start.
    write("[limits]\nio_queues = 9");
    let daemon = scene.start();
    assert_eq!((limits(&daemon), daemon.nsids()), ((9, 5), vec![1, 7]));
    assert_eq!(daemon.keeper.show().applied.as_deref(), Some("other.toml"));
    // A document that says nothing of them is not told anything.
    let plain = scene.text(&[(3, "ram:1M")], "allow_any_host = true");
    let outcome = daemon.keeper.apply("plain.toml".into(), plain).unwrap();
    assert_eq!((outcome.warnings, limits(&daemon)), (Vec::new(), (9, 5)));
}

/// A target with a namespace 2 of a file that is not there at its start, and the
/// file's name.
fn with_one_aside(scene: &Scene) -> (Daemon, String) {
    let daemon = scene.start();
    let file = scene.file("b.img", 1 << 20);
    let _ = daemon.edit(add(&file)).unwrap();
    drop(daemon);
    std::fs::rename(&file, scene.path("elsewhere")).unwrap();
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1]);
    assert_eq!(daemon.keeper.show().aside.len(), 1);
    (daemon, file)
}

fn bytes_of(daemon: &Daemon, nsid: u32) -> u64 {
    let model = daemon.keeper.manager().model();
    model.subsystems()[0].namespace(nsid).unwrap().bytes()
}

#[test]
fn a_later_change_wins_over_one_that_was_put_aside() {
    let scene = Scene::new();
    let (daemon, file) = with_one_aside(&scene);
    // Another one with its number, and one with its file.
    let outcome = daemon.edit(add("ram:2M")).unwrap();
    assert_eq!(
        (daemon.nsids(), bytes_of(&daemon, 2)),
        (vec![1, 2], 2 << 20)
    );
    let forgotten = outcome.warnings.iter().any(|one| one.contains("forgotten"));
    assert!(forgotten, "{:?}", outcome.warnings);
    std::fs::rename(scene.path("elsewhere"), &file).unwrap();
    let _ = daemon.keeper.reload().unwrap();
    assert_eq!(bytes_of(&daemon, 2), 2 << 20);
    drop(daemon);
    let daemon = scene.start();
    assert_eq!(
        (bytes_of(&daemon, 2), daemon.keeper.show().aside),
        (2 << 20, vec![])
    );
}

#[test]
fn a_file_that_is_back_is_that_of_the_later_namespace() {
    let scene = Scene::new();
    let (daemon, file) = with_one_aside(&scene);
    std::fs::rename(scene.path("elsewhere"), &file).unwrap();
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
        (daemon.nsids(), daemon.keeper.show().aside.len()),
        (vec![1, 3], 1)
    );
}

#[test]
fn the_same_change_again_is_made() {
    let scene = Scene::new();
    let (daemon, file) = with_one_aside(&scene);
    std::fs::rename(scene.path("elsewhere"), &file).unwrap();
    let _ = daemon.edit(add(&file)).unwrap();
    assert_eq!(
        (daemon.nsids(), daemon.keeper.show().aside.len()),
        (vec![1, 2], 0)
    );
    assert_eq!(daemon.keeper.show().edits.len(), 1);
}

#[test]
fn what_is_put_aside_can_be_given_up() {
    let scene = Scene::new();
    let (daemon, file) = with_one_aside(&scene);
    let _ = daemon.edit(Edit::HostAllow {
        subsystem: None,
        host: "any".into(),
    });
    let shown = daemon.keeper.show();
    let aside: Vec<_> = shown.aside.iter().map(|one| one.edit.clone()).collect();
    let taken = shown.edits.iter().find(|edit| !aside.contains(edit));
    if let Some(taken) = taken {
        let error = daemon
            .keeper
            .forget(std::slice::from_ref(taken))
            .unwrap_err();
        assert!(error.to_string().contains("is not put aside"), "{error}");
    }
    let outcome = daemon.keeper.forget(&aside).unwrap();
    assert!(outcome.saved && outcome.warnings.is_empty(), "{outcome:?}");
    let error = daemon.keeper.forget(&aside).unwrap_err().to_string();
    assert!(
        error.contains("namespace add 2") && error.contains("not put aside"),
        "{error}"
    );
    std::fs::rename(scene.path("elsewhere"), &file).unwrap();
    let _ = daemon.keeper.reload().unwrap();
    drop(daemon);
    assert_eq!(scene.start().nsids(), [1]);
}

#[test]
fn what_an_edit_removed_need_not_be_there_when_another_cannot_be() {
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
    }
    let daemon = scene.start();
    assert_eq!(
        (daemon.nsids(), bytes_of(&daemon, 1)),
        (vec![1, 2], 3 << 20)
    );
    let aside = daemon.keeper.show().aside;
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert!(
        aside[0].to_string().contains("namespace add 3"),
        "{aside:?}"
    );
    drop(daemon);
    // What the file itself names has to be there.
    scene.write(&[(1, "ram:1M"), (2, &a)], "allow_any_host = true");
    let standing = Standing::read(&scene.path("target.toml")).unwrap();
    let error = standing.serve().map(drop).unwrap_err().to_string();
    assert!(
        error.contains("a.img") && error.contains("no such file"),
        "{error}"
    );
}

#[test]
fn a_second_target_does_not_get_the_file_of_changes() {
    let scene = Scene::new();
    let daemon = scene.start();
    let error = Standing::read(&scene.path("target.toml"))
        .map(drop)
        .unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("target.toml:7: control.state: another target"),
        "{error}"
    );
    assert!(error.contains("kept/state.json"), "{error}");
    drop(daemon);
    // It needs no file in a folder that is there.
    let text = scene
        .text(&[], "allow_any_host = true")
        .replace("kept/", "no/");
    std::fs::write(scene.path("target.toml"), text).unwrap();
    drop(scene.start());
}
