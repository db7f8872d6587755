//! Starts of a target with one state file, one after the other.

use super::outcome_log::logged;
use super::*;

const FILE: &str = "kept/state.json.incarnations";

/// The number of the process in the incarnations file, and the secret before it.
fn last_process(scene: &Scene) -> (u16, String) {
    let line = std::fs::read_to_string(scene.path(FILE)).unwrap();
    let (secret, process) = line.trim_end().rsplit_once(' ').unwrap();
    (process.parse().unwrap(), secret.to_owned())
}

#[test]
fn each_start_takes_the_next_number_of_the_state_file() {
    let scene = Scene::new();
    drop(scene.start());
    let (first, secret) = last_process(&scene);
    assert_eq!(first, 1);
    drop(scene.start());
    assert_eq!(last_process(&scene), (2, secret));
}

#[test]
fn damaged_incarnations_file_is_logged_once_and_replaced() {
    let scene = Scene::new();
    drop(scene.start());
    let (_, secret) = last_process(&scene);
    std::fs::write(scene.path(FILE), "damaged").unwrap();
    let log = logged(|| drop(scene.start()));
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = warnings[..] else {
        panic!("{log}");
    };
    assert!(
        warning.contains("state.json.incarnations: damaged"),
        "{warning}"
    );
    let (process, replaced) = last_process(&scene);
    assert_eq!(process, 1);
    assert_ne!(replaced, secret);
}

/// Another target may run with the same state file.
#[test]
fn start_without_the_lock_of_the_state_file_proves_nothing() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("kept/state.json.lock")).unwrap();
    drop(scene.start());
    assert!(!scene.path(FILE).exists());
}
