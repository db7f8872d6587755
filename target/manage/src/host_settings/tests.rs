//! Records of what hosts set: restored, replaced, damaged.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use nvmeof_target_core::{
    Preemption, Registrant, ReservationState, SavedProtection, SavedReservations,
};
use nvmeof_target_reservations::{Reservation, Reservations};
use nvmeof_wire::reservation::ReservationType;

use super::*;

mod shared;

const UUID: [u8; 16] = [1; 16];

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:disk").unwrap()
}

fn host() -> Nqn {
    Nqn::new("nqn.2026-11.org.example:host").unwrap()
}

fn protection(nsid: u32) -> SavedProtection {
    SavedProtection { nsid, uuid: UUID }
}

fn protected(nsids: &[u32]) -> SavedSettings {
    SavedSettings {
        protected: nsids.iter().map(|nsid| protection(*nsid)).collect(),
        ..SavedSettings::default()
    }
}

/// Namespace 1 with two registrants, of which one holds a reservation of that type.
fn reserved(kind: ReservationType) -> SavedSettings {
    let registrants = BTreeMap::from([([7; 16], 1), ([8; 16], u64::MAX)]);
    let reservation = Reservation {
        kind,
        holder: (!kind.is_of_all()).then_some([8; 16]),
    };
    let reservations = Reservations::restore(5, true, registrants, Some(reservation)).unwrap();
    let registrant = |host, nqn| Registrant { host, nqn };
    let state = ReservationState {
        reservations,
        names: BTreeMap::from([([7; 16], host())]),
        preemption: Some(Preemption {
            generation: 4,
            by: registrant([7; 16], Some(host())),
            preempted: vec![registrant([9; 16], None)],
        }),
    };
    SavedSettings {
        protected: Vec::new(),
        reservations: vec![SavedReservations {
            nsid: 1,
            uuid: UUID,
            state,
        }],
    }
}

/// Reads the record of a namespace on a file, and puts it in force.
fn admit(records: &Records, subsystem: &Nqn, nsid: u32) -> Result<(), Unreadable> {
    let admission = records.read_folder((*subsystem, nsid))?;
    records.remove_former(records.adopt(admission)?);
    Ok(())
}

struct Scene {
    folder: tempfile::TempDir,
    records: Arc<Records>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let records = Arc::new(Records::beside(Some(&folder.path().join("state.json"))));
        for nsid in [1, 2] {
            admit(&records, &nqn(), nsid).unwrap();
        }
        Self { folder, records }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }

    fn file(&self, nsid: u32) -> PathBuf {
        path_beside(&self.state()).join(name_of(&nqn(), nsid))
    }

    /// Saves these settings of namespaces 1 and 2.
    fn write(&mut self, settings: &SavedSettings) -> io::Result<()> {
        let saved = [1, 2].map(|nsid| {
            let mut its = settings.clone();
            its.protected.retain(|one| one.nsid == nsid);
            its.reservations.retain(|one| one.nsid == nsid);
            self.records.write(&nqn(), nsid, &its)
        });
        saved.into_iter().collect()
    }

    /// What a restart restores of namespaces 1 and 2.
    fn restored(&self) -> Result<SavedSettings, Unreadable> {
        let records = Records::beside(Some(&self.state()));
        let mut all = SavedSettings::default();
        for nsid in [1, 2] {
            admit(&records, &nqn(), nsid)?;
        }
        for ((subsystem, _), settings) in std::mem::take(&mut records.known().unrestored) {
            assert_eq!(subsystem, nqn());
            all.protected.extend(settings.protected);
            all.reservations.extend(settings.reservations);
        }
        Ok(all)
    }
}

#[test]
fn what_was_written_is_restored() {
    let mut scene = Scene::new();
    assert!(!path_beside(&scene.state()).exists(), "nothing to store");
    let all = ReservationType::ALL.map(reserved);
    for settings in [protected(&[1, 2]), protected(&[2])].iter().chain(&all) {
        scene.write(settings).unwrap();
        assert_eq!(scene.restored().unwrap(), *settings);
    }
    scene.write(&SavedSettings::default()).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
    let left = fs::read_dir(path_beside(&scene.state())).unwrap().count();
    assert_eq!(left, 0, "a record without settings is removed");
}

#[test]
fn times_are_those_of_the_change() {
    let nsid = (&nqn(), 1);
    let second = |number| SystemTime::UNIX_EPOCH + Duration::from_secs(number);
    let settings = reserved(ReservationType::WRITE_EXCLUSIVE);
    let first = NamespaceRecord::of(nsid, &settings, None, second(1));
    let times = |record: &NamespaceRecord| {
        let its = record.reservations(nqn(), 1).next().unwrap();
        (its.held_since.unwrap(), its.preempted_at.unwrap())
    };
    assert_eq!(times(&first), (second(1), second(1)));
    let same = NamespaceRecord::of(nsid, &settings, Some(&first), second(2));
    assert_eq!(same, first);
    let mut settings = reserved(ReservationType::EXCLUSIVE_ACCESS);
    let other = NamespaceRecord::of(nsid, &settings, Some(&first), second(3));
    assert_eq!(times(&other), (second(3), second(1)));
    let preemption = settings.reservations[0].state.preemption.as_mut();
    preemption.unwrap().generation = 5;
    let other = NamespaceRecord::of(nsid, &settings, Some(&other), second(4));
    assert_eq!(times(&other), (second(3), second(4)));
}

/// Hosts were told that nothing changed, thus nothing may have. Other namespaces are not concerned.
#[test]
fn failed_write_changes_no_record() {
    let mut scene = Scene::new();
    scene.write(&protected(&[1, 2])).unwrap();
    // The first one cannot be removed.
    let (first, away) = (scene.file(1), scene.folder.path().join("away"));
    fs::rename(&first, &away).unwrap();
    fs::create_dir(&first).unwrap();
    scene.write(&SavedSettings::default()).unwrap_err();
    fs::remove_dir(&first).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
    fs::rename(&away, &first).unwrap();
    assert_eq!(scene.restored().unwrap(), protected(&[1]));
    // The settings are as before, but what is stored is not known.
    scene.write(&protected(&[1, 2])).unwrap();
    assert_eq!(scene.restored().unwrap(), protected(&[1, 2]));
    scene.write(&SavedSettings::default()).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
}

/// What is in force is known: it is written again.
#[test]
fn record_that_was_damaged_while_it_is_served_is_replaced() {
    let mut scene = Scene::new();
    scene.write(&protected(&[1, 2])).unwrap();
    fs::write(scene.file(1), "damaged").unwrap();
    let error = scene.write(&SavedSettings::default()).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(scene.restored().unwrap(), protected(&[1]));
    scene.write(&SavedSettings::default()).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
}

/// The folder is as it was after a while, and no host changes anything.
#[test]
fn record_that_could_not_be_restored_is_written_later() {
    let mut scene = Scene::new();
    scene.write(&protected(&[1])).unwrap();
    fs::remove_file(scene.file(1)).unwrap();
    fs::create_dir(scene.file(1)).unwrap();
    scene.write(&SavedSettings::default()).unwrap_err();
    assert_eq!(scene.records.retry(), Retried::Failed);
    let unknown = scene.records.unknown();
    assert_eq!((unknown.len(), unknown[0].nsid), (1, 1));
    let why = &unknown[0].why;
    assert!(why.contains("nor its record restored"), "{why}");
    fs::remove_dir(scene.file(1)).unwrap();
    assert_eq!(scene.records.retry(), Retried::One);
    assert_eq!(scene.records.retry(), Retried::All);
    assert!(scene.records.unknown().is_empty());
    assert_eq!(scene.restored().unwrap(), protected(&[1]));
}

/// Fails after it has replaced a record, as when the folder cannot be synced.
struct Unsure {
    folder: Folder,
    fails: Arc<AtomicBool>,
}

impl StateStore for Unsure {
    fn read(&mut self, name: &str) -> Result<Record, StateError> {
        self.folder.read(name)
    }

    fn replace(&mut self, name: &str, expected: u64, bytes: &[u8]) -> Result<u64, StateError> {
        let replaced = self.folder.replace(name, expected, bytes)?;
        match self.fails.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::from(io::ErrorKind::StorageFull).into()),
            false => Ok(replaced),
        }
    }

    fn overwrite(&mut self, name: &str, bytes: &[u8]) -> Result<u64, StateError> {
        self.folder.overwrite(name, bytes)
    }

    fn names(&mut self) -> Result<Vec<String>, StateError> {
        self.folder.names()
    }

    fn place(&self, name: &str) -> String {
        self.folder.place(name)
    }

    fn removal(&self, name: &str) -> String {
        self.folder.removal(name)
    }
}

/// Of namespaces that are disabled, for example.
#[test]
fn records_that_were_not_read_are_removed_by_name() {
    let mut scene = Scene::new();
    let similar = Nqn::new("nqn.2026-11.org.example:disk2").unwrap();
    let all = protected(&[1, 2]);
    scene.write(&all).unwrap();
    admit(&scene.records, &similar, 1).unwrap();
    scene.records.write(&similar, 1, &protected(&[1])).unwrap();
    let restarted = || Records::beside(Some(&scene.state()));
    let records = restarted();
    admit(&records, &nqn(), 2).unwrap();
    records.remove_unread(&nqn(), None).unwrap();
    assert_eq!(scene.restored().unwrap(), protected(&[2]), "one was read");
    restarted().remove_unread(&nqn(), Some(1)).unwrap();
    assert_eq!(scene.restored().unwrap(), protected(&[2]));
    fs::write(scene.file(1), "damaged").unwrap();
    let error = restarted()
        .remove_unread(&nqn(), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("move this file away"), "{error}");
    fs::remove_file(scene.file(1)).unwrap();
    restarted().remove_unread(&nqn(), None).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
    let left = restarted();
    admit(&left, &similar, 1).unwrap();
    assert_eq!(left.known().unrestored[&(similar, 1)], protected(&[1]));
}

#[test]
fn record_that_was_replaced_although_that_failed_is_put_back() {
    let mut scene = Scene::new();
    scene.write(&protected(&[1])).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let store = Unsure {
        folder: Folder::at(path_beside(&scene.state())),
        fails: Arc::clone(&fails),
    };
    scene.records = Arc::new(Records::of(Some(home(store))));
    let absent = scene.records.write(&nqn(), 1, &SavedSettings::default());
    assert!(absent.unwrap_err().to_string().contains("was not read"));
    for nsid in [1, 2] {
        admit(&scene.records, &nqn(), nsid).unwrap();
    }
    for settings in [
        SavedSettings::default(),
        reserved(ReservationType::WRITE_EXCLUSIVE),
    ] {
        fails.store(true, Ordering::Relaxed);
        scene.write(&settings).unwrap_err();
        assert_eq!(scene.restored().unwrap(), protected(&[1]));
    }
    scene.write(&SavedSettings::default()).unwrap();
    assert_eq!(scene.restored().unwrap(), SavedSettings::default());
}

#[test]
fn damaged_record_concerns_its_namespace_alone() {
    let mut scene = Scene::new();
    scene.write(&protected(&[1, 2])).unwrap();
    let text = fs::read(scene.file(1)).unwrap();
    for damage in [&b""[..], b"{}", &text[..text.len() - 1]] {
        fs::write(scene.file(1), damage).unwrap();
        let records = Records::beside(Some(&scene.state()));
        let error = admit(&records, &nqn(), 1).unwrap_err().to_string();
        let words = [
            "is damaged",
            "state.json.namespaces/",
            "move this file away",
        ];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        admit(&records, &nqn(), 2).unwrap();
        assert!(admit(&records, &nqn(), 1).is_err(), "still");
        assert_eq!(records.unknown()[0].why, error);
        fs::write(scene.file(1), &text).unwrap();
        admit(&records, &nqn(), 1).unwrap();
        assert_eq!(records.unknown(), []);
    }
    // A valid record of another namespace.
    fs::copy(scene.file(2), scene.file(1)).unwrap();
    let error = scene.restored().unwrap_err().to_string();
    assert!(error.contains("it is of namespace 2"), "{error}");
}

#[test]
fn record_with_impossible_contents_is_damaged() {
    let record = |edit: fn(&mut serde_json::Value)| {
        let settings = reserved(ReservationType::WRITE_EXCLUSIVE);
        let record = NamespaceRecord::of((&nqn(), 1), &settings, None, SystemTime::now());
        let mut value = serde_json::to_value(record).unwrap();
        let its = &mut value["by_uuid"][format!("{:032x}", u128::from_be_bytes(UUID))];
        edit(&mut its["reservations"]);
        NamespaceRecord::parse(value.to_string().as_bytes(), &nqn(), 1)
    };
    record(|_| {}).unwrap();
    let edits: [fn(&mut serde_json::Value); 7] = [
        |its| its["registrants"][0]["key"] = "0x0".into(),
        |its| its["registrants"][0]["key"] = "1".into(),
        |its| its["registrants"][0]["host_id"] = "0".repeat(32).into(),
        |its| its["registrants"][0]["host_id"] = its["registrants"][1]["host_id"].clone(),
        |its| its["reservation"]["type"] = 7.into(),
        |its| its["reservation"]["holder"] = "1".repeat(32).into(),
        |its| its["registrants"] = serde_json::json!([]),
    ];
    for edit in edits {
        let parsed = record(edit);
        assert!(parsed.is_err(), "{parsed:?}");
    }
}

#[test]
fn names_differ_and_are_names_of_files() {
    let long = format!("nqn.2026-11.org.example:{}", "../x".repeat(40));
    let names = [
        "nqn.2026-11.org.example:a/b",
        "nqn.2026-11.org.example:a_b",
        &long,
    ];
    let names = names.map(|name| name_of(&Nqn::new(name).unwrap(), u32::MAX));
    for (at, name) in names.iter().enumerate() {
        assert!(!name.contains('/') && name.len() < 200, "{name}");
        assert!(!names[..at].contains(name));
    }
}

#[test]
fn former_file_of_write_protections_is_converted() {
    let scene = Scene::new();
    let old = scene.state().with_file_name("state.json.protected");
    let text = format!(
        r#"{{"version": 1, "protected": {{"{}": [{{"nsid": 1, "uuid": "{}"}}]}}}}"#,
        nqn(),
        "01".repeat(16)
    );
    fs::write(&old, &text).unwrap();
    scene.records.convert_legacy(&scene.state()).unwrap();
    assert_eq!(scene.restored().unwrap(), protected(&[1]));
    assert!(!old.exists());
    scene.records.convert_legacy(&scene.state()).unwrap();
    for text in ["{", r#"{"version": 2, "protected": {}}"#] {
        fs::write(&old, text).unwrap();
        let error = scene.records.convert_legacy(&scene.state()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("is damaged"), "{error}");
        assert!(error.contains("state.json.protected"), "{error}");
    }
}
