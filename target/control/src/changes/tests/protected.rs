//! Write protection by hosts across changes of an administrator.

use super::*;

const RECORDS: &str = "kept/state.json.namespaces";

/// Write protects a namespace before the start of the target, as an earlier version saved it.
fn protected(scene: &Scene, uuid: [u8; 16]) {
    let uuid = u128::from_be_bytes(uuid);
    let entry = format!(r#"{{"nsid": 2, "uuid": "{uuid:032x}"}}"#);
    let text = format!(r#"{{"version": 1, "protected": {{"{NQN}": [{entry}]}}}}"#);
    std::fs::write(scene.path("kept/state.json.protected"), text).unwrap();
}

fn records(scene: &Scene) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(scene.path(RECORDS)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn is_recorded(scene: &Scene) -> bool {
    let mut texts = records(scene).into_iter().map(std::fs::read_to_string);
    texts.any(|text| text.unwrap().contains("write_protected"))
}

#[test]
fn only_removal_by_name_forgets_write_protection() {
    let scene = Scene::new();
    let daemon = scene.start();
    let file = scene.file("b.img", 1 << 20);
    let _ = daemon.edit(add(&file)).unwrap();
    let model = daemon.keeper.manager().model();
    let uuid = model.subsystems()[0].namespace(2).unwrap().uuid;
    let all = Edit::SubsystemRemove { nqn: NQN.into() };
    drop(daemon);
    for by_name in [remove(2), all] {
        protected(&scene, uuid);
        // Its file is missing for a while.
        std::fs::rename(&file, scene.path("elsewhere")).unwrap();
        let daemon = scene.start();
        // It was served before, so it stays active and inaccessible.
        assert_eq!(daemon.nsids(), [1, 2]);
        assert_eq!(daemon.keeper.manager().waiting().len(), 1);
        assert!(is_recorded(&scene));
        std::fs::rename(scene.path("elsewhere"), &file).unwrap();
        let _ = daemon.keeper.reload().unwrap();
        assert_eq!(daemon.nsids(), [1, 2]);
        let off = |enabled| Edit::NamespaceEnable {
            subsystem: None,
            nsid: 2,
            enabled,
        };
        let _ = daemon.edit(off(false)).unwrap();
        let _ = daemon.edit(off(true)).unwrap();
        let _ = daemon.edit(deny("any"));
        assert!(is_recorded(&scene));
        let outcome = daemon.edit(by_name).unwrap();
        assert_eq!(outcome.warnings, Vec::<String>::new());
        assert!(!is_recorded(&scene));
        let _ = daemon.edit(add(&file));
        drop(daemon);
    }
    // A document does not remove protection.
    std::fs::remove_file(scene.path("kept/state.json")).unwrap();
    scene.write(&[(1, "ram:1M"), (2, &file)], "allow_any_host = true");
    protected(&scene, uuid);
    let daemon = scene.start();
    assert_eq!(daemon.nsids(), [1, 2]);
    let without = scene.text(&[(1, "ram:1M")], "allow_any_host = true");
    let _ = daemon.keeper.apply("other.toml".into(), without).unwrap();
    assert_eq!(daemon.nsids(), [1]);
    assert!(is_recorded(&scene));
}

#[test]
fn unsaved_removal_of_protection_is_reported() {
    let scene = Scene::new();
    let daemon = scene.start();
    let _ = daemon.edit(add("ram:1M")).unwrap();
    let model = daemon.keeper.manager().model();
    let uuid = model.subsystems()[0].namespace(2).unwrap().uuid;
    drop(daemon);
    protected(&scene, uuid);
    let daemon = scene.start();
    // A file cannot be renamed over a folder.
    let [record] = &records(&scene)[..] else {
        panic!("one record");
    };
    std::fs::remove_file(record).unwrap();
    std::fs::create_dir(record).unwrap();
    let outcome = daemon.edit(remove(2)).unwrap();
    assert_eq!(daemon.nsids(), [1]);
    let warnings = outcome.warnings.join(" ");
    assert!(warnings.contains("write protection"), "{warnings}");
}

/// No other target writes there while the state file is locked.
#[test]
fn leftover_record_files_are_removed_under_the_lock() {
    let scene = Scene::new();
    let left = scene.path(&format!("{RECORDS}/.a.1.new-0123456789abcdef"));
    std::fs::create_dir(scene.path(RECORDS)).unwrap();
    std::fs::write(&left, "1").unwrap();
    drop(scene.start());
    assert!(!left.exists());
    // Without the lock it stays.
    let lock = scene.path("kept/state.json.lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    std::fs::write(&left, "1").unwrap();
    drop(scene.start());
    assert!(left.exists());
}
