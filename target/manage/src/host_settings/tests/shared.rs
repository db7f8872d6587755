//! Records of images, in a model of RADOS that gateways share.

use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use nvmeof_backend::{RbdRefusal, RecordsError};
use nvmeof_target_core::{Limits, Model, NamespaceSpec, NamespaceState, SubsystemSpec};

use super::super::Admission;
use super::super::rados::Values;
use super::*;

/// Longer than any step of a test that succeeds.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(20);
/// A time limit that a test can measure.
const MEASURED: Duration = Duration::from_millis(400);

/// The object, with all its values.
#[derive(Default)]
struct Object {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Clients that are fenced.
    fenced: Mutex<Vec<&'static str>>,
    /// Calls wait until this is dropped.
    stalled: Mutex<Option<Receiver<()>>>,
    /// Calls so far.
    calls: AtomicU32,
    /// Swaps that take effect, although the caller learns that they failed.
    unsure: AtomicU32,
    /// How long each call takes.
    delay: Mutex<Duration>,
}

/// The object, as one client sees it.
#[derive(Clone)]
struct Client {
    name: &'static str,
    object: Arc<Object>,
    /// Whether its image is read-only.
    is_readonly: bool,
}

impl Client {
    fn begin(&self) -> Result<MutexGuard<'_, BTreeMap<String, Vec<u8>>>, RecordsError> {
        self.object.calls.fetch_add(1, Ordering::Relaxed);
        let stalled = self.object.stalled.lock().unwrap().take();
        if let Some(stalled) = stalled {
            let _ = stalled.recv();
        }
        let delay = *self.object.delay.lock().unwrap();
        std::thread::sleep(delay);
        if self.object.fenced.lock().unwrap().contains(&self.name) {
            return Err(RbdRefusal::Blocklisted.into());
        }
        Ok(self.object.values.lock().unwrap())
    }
}

impl Values for Client {
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, RecordsError> {
        Ok(self.begin()?.get(key).cloned())
    }

    fn swap(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, RecordsError> {
        let mut values = self.begin()?;
        if values.get(key).map(Vec::as_slice) != expected {
            return Ok(false);
        }
        match new {
            Some(new) => drop(values.insert(key.to_owned(), new.to_vec())),
            None => drop(values.remove(key)),
        }
        let unsure = &self.object.unsure;
        match unsure.load(Ordering::Relaxed) {
            0 => Ok(true),
            left => {
                unsure.store(left - 1, Ordering::Relaxed);
                Err(RecordsError::Full)
            }
        }
    }

    fn place(&self) -> String {
        "rados:rbd/nvmeof.namespaces".to_owned()
    }

    fn client(&self) -> String {
        self.name.to_owned()
    }

    fn removal(&self, key: &str) -> String {
        format!("rados rmomapkey {key}")
    }

    fn is_readonly(&self) -> bool {
        self.is_readonly
    }
}

/// A cluster, and a folder for state files.
struct Lab {
    object: Arc<Object>,
    folder: tempfile::TempDir,
}

/// One gateway, which serves namespace 1 of [`nqn`].
struct Gateway {
    records: Arc<Records>,
    target: Target,
    client: Client,
}

impl Lab {
    fn new() -> Self {
        Self {
            object: Arc::default(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }

    /// Without a state file.
    fn gateway(&self, name: &'static str) -> Gateway {
        self.gateway_with(name, Records::beside(None))
    }

    fn gateway_with(&self, name: &'static str, mut records: Records) -> Gateway {
        records.limit = SHORT;
        self.gateway_limited(name, records)
    }

    fn gateway_limited(&self, name: &'static str, records: Records) -> Gateway {
        let records = Arc::new(records);
        let target = target();
        let object = Arc::clone(&self.object);
        let is_readonly = false;
        let client = Client {
            name,
            object,
            is_readonly,
        };
        records.restore_in(&target);
        let spec = "rbd:rbd/image".parse().unwrap();
        assert!(records.keeper(&target, [&spec].into_iter()).is_some());
        Gateway {
            records,
            target,
            client,
        }
    }

    fn value(&self) -> Option<Vec<u8>> {
        let values = self.object.values.lock().unwrap();
        values.get(&name_of(&nqn(), 1)).cloned()
    }

    /// Stalls the next call until the result is dropped.
    fn stall(&self) -> Sender<()> {
        let (stalls, stalled) = channel();
        *self.object.stalled.lock().unwrap() = Some(stalled);
        stalls
    }
}

/// Its namespace waits.
fn target() -> Target {
    target_in(NamespaceState::Absent)
}

fn target_in(state: NamespaceState) -> Target {
    let namespace = |nsid| NamespaceSpec {
        nsid,
        state,
        blocks: 1000,
        store: nsid,
        uuid: Some(UUID),
        ..NamespaceSpec::default()
    };
    let subsystem = SubsystemSpec {
        nqn: nqn().as_str().into(),
        namespaces: vec![namespace(1)],
        ..SubsystemSpec::default()
    };
    Target::new(Model::build(Limits::default(), &[], &[subsystem]).unwrap())
}

impl Gateway {
    /// Opens the image of namespace 1, whose claim has that identity.
    fn open(&self, identity: u64) -> Result<(), Unreadable> {
        let admission = self.read(identity)?;
        self.records.remove_former(self.records.adopt(admission)?);
        Ok(())
    }

    fn read(&self, identity: u64) -> Result<Option<Admission>, Unreadable> {
        let values = Arc::new(self.client.clone());
        self.records.read_image((nqn(), 1), identity, values)
    }

    fn write(&self, settings: &SavedSettings) -> io::Result<()> {
        self.records.clone().write(&nqn(), 1, settings)
    }

    /// What is in force of namespace 1: an administrator removes it, and that is not saved.
    fn in_force(&self) -> SavedSettings {
        let mut settings = SavedSettings::default();
        let known = self.records.known().records[&(nqn(), 1)].clone();
        let bytes = known.record.bytes().unwrap();
        if !bytes.is_empty() {
            settings = NamespaceRecord::parse(&bytes, &nqn(), 1).unwrap().1;
        }
        let cleared = self.target.clear_reservations(&nqn(), 1);
        assert_eq!(cleared.is_some(), !settings.reservations.is_empty());
        if cleared.is_some() {
            // It fails, so that nothing changes.
            self.target
                .next_save()
                .unwrap()
                .end(&Err(io::Error::other("a test")));
        }
        settings
    }
}

#[test]
fn other_gateway_finds_the_record() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    assert_eq!(lab.value(), None, "nothing is set");
    let reserved = reserved(ReservationType::EXCLUSIVE_ACCESS);
    first.write(&reserved).unwrap();
    second.open(2).unwrap();
    assert_eq!(second.in_force(), reserved);
    second.write(&protected(&[1])).unwrap();
    second.write(&SavedSettings::default()).unwrap();
    assert_eq!(lab.value(), None, "nothing is set any more");
}

#[test]
fn reopened_image_has_the_settings_of_the_gateway_before() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    first.write(&protected(&[1])).unwrap();
    second.open(2).unwrap();
    let newer = reserved(ReservationType::WRITE_EXCLUSIVE);
    second.write(&newer).unwrap();
    first.open(1).unwrap();
    assert_eq!(first.in_force(), protected(&[1]), "the same claim");
    first.open(3).unwrap();
    assert_eq!(first.in_force(), newer);
    first.write(&protected(&[1])).unwrap();
    second.open(4).unwrap();
    second.write(&SavedSettings::default()).unwrap();
    first.open(5).unwrap();
    assert_eq!(first.in_force(), SavedSettings::default());
}

/// A fence that ended with a short fault of the cluster would be none.
#[test]
fn unchanged_record_keeps_reservations_that_do_not_persist() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    let mut settings = reserved(ReservationType::WRITE_EXCLUSIVE);
    let its = &mut settings.reservations[0].state.reservations;
    *its = its.with_persistence(false).next;
    gateway
        .target
        .restore(&nqn(), reserved(ReservationType::WRITE_EXCLUSIVE));
    gateway.write(&settings).unwrap();
    gateway.open(2).unwrap();
    assert_eq!(gateway.in_force(), settings);
    // A restart ends them.
    let restarted = lab.gateway("b");
    restarted.open(3).unwrap();
    assert_eq!(restarted.in_force(), SavedSettings::default());
}

#[test]
fn record_is_not_replaced_while_a_save_is_in_progress() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    first
        .write(&reserved(ReservationType::WRITE_EXCLUSIVE))
        .unwrap();
    first
        .target
        .restore(&nqn(), reserved(ReservationType::WRITE_EXCLUSIVE));
    second.open(2).unwrap();
    second.write(&protected(&[1])).unwrap();
    let cleared = first.target.clear_reservations(&nqn(), 1).unwrap();
    let save = first.target.next_save().unwrap();
    let error = first.open(3).unwrap_err().to_string();
    assert!(error.contains("still being saved"), "{error}");
    save.end(&Err(io::Error::other("a test")));
    assert!(cleared.outcome().unwrap().is_err());
    first.open(3).unwrap();
    assert_eq!(first.in_force(), protected(&[1]));
    // A change that waits for its save is of the former record.
    first
        .write(&reserved(ReservationType::WRITE_EXCLUSIVE))
        .unwrap();
    first
        .target
        .restore(&nqn(), reserved(ReservationType::WRITE_EXCLUSIVE));
    second.open(4).unwrap();
    second.write(&protected(&[1])).unwrap();
    let cleared = first.target.clear_reservations(&nqn(), 1).unwrap();
    first.open(5).unwrap();
    assert!(cleared.outcome().unwrap().is_err());
    assert!(first.target.next_save().is_none());
}

/// Whatever a caller believes: commands depend on what is in force.
#[test]
fn settings_of_a_served_namespace_are_not_replaced() {
    let lab = Lab::new();
    let other = lab.gateway("b");
    other.open(1).unwrap();
    other.write(&protected(&[1])).unwrap();
    let mut gateway = lab.gateway("a");
    gateway.target = target_in(NamespaceState::Ready);
    gateway.records.restore_in(&gateway.target);
    let error = gateway.open(2).unwrap_err().to_string();
    assert!(error.contains("the namespace is served"), "{error}");
    assert!(gateway.records.known().records.is_empty());
}

/// What was read is old when another attempt was faster.
#[test]
fn record_that_changed_since_it_was_read_is_not_adopted() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    let [early, late] = [1, 2].map(|identity| gateway.read(identity).unwrap());
    let _ = gateway.records.adopt(early).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    let error = gateway.records.adopt(late).map(drop).unwrap_err();
    assert!(error.to_string().contains("has changed"), "{error}");
    assert_eq!(gateway.in_force(), protected(&[1]));
}

/// A fence must not end because its gateway has failed.
#[test]
fn takeover_keeps_reservations_that_do_not_persist() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    let mut settings = reserved(ReservationType::WRITE_EXCLUSIVE);
    let its = &mut settings.reservations[0].state.reservations;
    *its = its.with_persistence(false).next;
    first.write(&settings).unwrap();
    let mut admission = second.read(2).unwrap().unwrap();
    admission.is_takeover = true;
    let _ = second.records.adopt([admission]).unwrap();
    assert_eq!(second.in_force(), settings);
}

#[test]
fn fenced_gateway_changes_nothing_and_the_host_is_told() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    first.write(&protected(&[1])).unwrap();
    lab.object.fenced.lock().unwrap().push("a");
    second.open(2).unwrap();
    let stored = lab.value();
    let error = first
        .write(&SavedSettings::default())
        .unwrap_err()
        .to_string();
    let place = format!("rados:rbd/nvmeof.namespaces:{}", name_of(&nqn(), 1));
    assert!(
        error.starts_with(&place) && error.contains("blocklisted"),
        "{error}"
    );
    assert_eq!(lab.value(), stored);
    assert_eq!(first.records.clone().retry(), Retried::All);
    assert_eq!(first.records.unknown(), []);
    // With another client.
    second
        .write(&reserved(ReservationType::WRITE_EXCLUSIVE))
        .unwrap();
    lab.object.fenced.lock().unwrap().clear();
    first.open(3).unwrap();
    assert_eq!(first.in_force(), reserved(ReservationType::WRITE_EXCLUSIVE));
}

/// Its operation ends late, and another writer was faster: two targets with the same subsystem, but
/// different images in one pool, for example.
#[test]
fn former_record_is_not_restored_over_that_of_another_writer() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    first.write(&protected(&[1])).unwrap();
    second.open(2).unwrap();
    let stall = lab.stall();
    first.write(&SavedSettings::default()).unwrap_err();
    second
        .write(&reserved(ReservationType::WRITE_EXCLUSIVE))
        .unwrap();
    let stored = lab.value();
    drop(stall);
    let until = Instant::now() + LONG;
    while first.records.clone().retry() != Retried::All {
        assert!(Instant::now() < until);
    }
    assert!(lab.value() == stored);
    let error = first.write(&SavedSettings::default()).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

/// A change, and writing the former record again when it fails.
#[test]
fn change_has_one_time_limit() {
    let lab = Lab::new();
    let mut records = Records::beside(None);
    records.limit = MEASURED;
    let gateway = lab.gateway_limited("a", records);
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    *lab.object.delay.lock().unwrap() = MEASURED * 9 / 10;
    lab.object.unsure.store(1, Ordering::Relaxed);
    let start = Instant::now();
    gateway.write(&SavedSettings::default()).unwrap_err();
    assert!(start.elapsed() < MEASURED * 3 / 2, "{:?}", start.elapsed());
}

/// Saves of other namespaces wait for one of them, not for all.
#[test]
fn records_that_failed_are_retried_one_at_a_time() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    for (nsid, identity) in [(1, 1), (2, 2), (3, 3)] {
        let values = Arc::new(gateway.client.clone());
        let admission = gateway.records.read_image((nqn(), nsid), identity, values);
        let _ = gateway.records.adopt(admission.unwrap()).unwrap();
        // The change and its restoration fail.
        lab.object.unsure.store(2, Ordering::Relaxed);
        let write = gateway
            .records
            .clone()
            .write(&nqn(), nsid, &protected(&[nsid]));
        write.unwrap_err();
    }
    let unsure = || gateway.records.unknown().len();
    assert_eq!(unsure(), 3);
    let next = || gateway.records.known().next_unsure().unwrap().0.1;
    assert_eq!([next(), next(), next(), next()], [1, 2, 3, 1]);
    lab.object.unsure.store(1, Ordering::Relaxed);
    assert_eq!(gateway.records.clone().retry(), Retried::Failed);
    for left in [2, 1, 0] {
        assert_eq!(gateway.records.clone().retry(), Retried::One);
        assert_eq!(unsure(), left);
    }
    assert_eq!(gateway.records.clone().retry(), Retried::All);
}

/// Two targets with the same subsystem, but different images in one pool, for example.
#[test]
fn record_that_another_writer_changed_is_not_overwritten() {
    let lab = Lab::new();
    let [first, second] = ["a", "b"].map(|name| lab.gateway(name));
    first.open(1).unwrap();
    first.write(&protected(&[1])).unwrap();
    second.open(2).unwrap();
    let newer = reserved(ReservationType::WRITE_EXCLUSIVE);
    second.write(&newer).unwrap();
    let stored = lab.value();
    for _ in 0..2 {
        let error = first.write(&SavedSettings::default()).unwrap_err();
        assert!(error.to_string().contains("version 2"), "{error}");
        assert_eq!(lab.value(), stored);
    }
    second.write(&protected(&[1])).unwrap();
}

#[test]
fn record_that_was_replaced_although_that_failed_is_put_back() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    lab.object.unsure.store(1, Ordering::Relaxed);
    let error = gateway.write(&SavedSettings::default()).unwrap_err();
    assert!(error.to_string().contains("pool is full"), "{error}");
    let restarted = lab.gateway("b");
    restarted.open(2).unwrap();
    assert_eq!(restarted.in_force(), protected(&[1]));
}

/// The former record is written again when the late operation has ended.
#[test]
fn operation_that_ends_late_is_undone() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    let stall = lab.stall();
    let error = gateway.write(&SavedSettings::default()).unwrap_err();
    assert!(error.to_string().contains("ceph -s"), "{error}");
    assert_eq!(gateway.records.clone().retry(), Retried::Failed);
    let why = &gateway.records.unknown()[0].why;
    assert!(why.contains("nor its record restored"), "{why}");
    drop(stall);
    let until = Instant::now() + LONG;
    while gateway.records.clone().retry() != Retried::All {
        assert!(Instant::now() < until);
    }
    let restarted = lab.gateway("b");
    restarted.open(2).unwrap();
    assert_eq!(restarted.in_force(), protected(&[1]));
}

#[test]
fn unresponsive_cluster_does_not_delay_the_folder() {
    let lab = Lab::new();
    let gateway = lab.gateway_with("a", Records::beside(Some(&lab.state())));
    let records = &gateway.records;
    gateway.open(1).unwrap();
    admit(records, &nqn(), 2).unwrap();
    let stall = lab.stall();
    std::thread::scope(|scope| {
        let opens = scope.spawn(|| gateway.open(2));
        while lab.object.stalled.lock().unwrap().is_some() {
            std::thread::yield_now();
        }
        records.clone().write(&nqn(), 2, &protected(&[2])).unwrap();
        let error = opens.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("no response"), "{error}");
        drop(stall);
    });
    let until = Instant::now() + LONG;
    while gateway.open(2).is_err() {
        assert!(Instant::now() < until);
    }
    // One operation takes the limit; others fail at once.
    gateway.open(3).unwrap();
    let stall = lab.stall();
    gateway.write(&protected(&[1])).unwrap_err();
    let calls = lab.object.calls.load(Ordering::Relaxed);
    gateway.write(&protected(&[1])).unwrap_err();
    let error = gateway.open(4).unwrap_err().to_string();
    assert!(
        error.contains("no response") && !error.contains("rmomapkey"),
        "{error}"
    );
    assert_eq!(records.unknown()[0].why, error);
    assert_eq!(lab.object.calls.load(Ordering::Relaxed), calls);
    records
        .clone()
        .write(&nqn(), 2, &SavedSettings::default())
        .unwrap();
    drop(stall);
}

/// In the folder of `lab`, with which a gateway served namespace 1 from a file.
fn in_folder(lab: &Lab, settings: &SavedSettings) -> PathBuf {
    let mut records = Arc::new(Records::beside(Some(&lab.state())));
    admit(&records, &nqn(), 1).unwrap();
    records.write(&nqn(), 1, settings).unwrap();
    path_beside(&lab.state()).join(name_of(&nqn(), 1))
}

#[test]
fn record_in_the_folder_is_moved_when_its_namespace_is_served() {
    let lab = Lab::new();
    let former = || Records::beside(Some(&lab.state()));
    let settings = reserved(ReservationType::WRITE_EXCLUSIVE);
    let file = in_folder(&lab, &settings);
    let gateway = lab.gateway_with("a", former());
    // A plan, `check-config`, or a change that fails.
    let admission = gateway.read(1).unwrap();
    assert!(file.exists() && lab.value().is_none());
    assert!(gateway.records.known().records.is_empty());
    let moved = gateway.records.adopt(admission).unwrap();
    assert_eq!(gateway.in_force(), settings);
    assert!(file.exists() && lab.value().is_some());
    // It failed after all, or the target was killed: both are the same.
    drop(moved);
    let restarted = lab.gateway_with("b", former());
    restarted.open(2).unwrap();
    assert_eq!(restarted.in_force(), settings);
    assert!(!file.exists(), "else it would be in force later");
}

/// An older one may be in either place.
#[test]
fn namespace_with_different_records_waits() {
    let lab = Lab::new();
    let former = || Records::beside(Some(&lab.state()));
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    let stored = lab.value();
    let file = in_folder(&lab, &reserved(ReservationType::WRITE_EXCLUSIVE));
    for is_readonly in [false, true] {
        let mut restarted = lab.gateway_with("b", former());
        restarted.client.is_readonly = is_readonly;
        let error = restarted.open(2).unwrap_err().to_string();
        let words = [
            format!("rados:rbd/nvmeof.namespaces:{} and ", name_of(&nqn(), 1)),
            format!("{} differ", file.display()),
            format!("remove it with `rados rmomapkey {}`", name_of(&nqn(), 1)),
            "move this file away".to_owned(),
        ];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert_eq!(restarted.records.unknown()[0].why, error);
        assert!(file.exists() && lab.value() == stored);
    }
    let restarted = lab.gateway_with("b", former());
    restarted.open(2).unwrap_err();
    fs::remove_file(&file).unwrap();
    restarted.open(2).unwrap();
    assert_eq!(restarted.in_force(), protected(&[1]));
    // It is not known what a damaged one has.
    fs::write(&file, "damaged").unwrap();
    let error = lab.gateway_with("c", former()).open(1).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("move this file away"), "{error}");
}

#[test]
fn read_only_image_has_the_settings_of_its_record() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    let stored = lab.value();
    let mut reader = lab.gateway("b");
    reader.client.is_readonly = true;
    reader.open(2).unwrap();
    assert_eq!(reader.in_force(), protected(&[1]));
    let error = reader.write(&SavedSettings::default()).unwrap_err();
    assert!(error.to_string().contains("readonly = false"), "{error}");
    assert_eq!(reader.records.retry(), Retried::All);
    assert_eq!(lab.value(), stored);
    // One in the folder is in force as well, and stays.
    gateway.write(&SavedSettings::default()).unwrap();
    let settings = reserved(ReservationType::EXCLUSIVE_ACCESS);
    let file = in_folder(&lab, &settings);
    let mut reader = lab.gateway_with("c", Records::beside(Some(&lab.state())));
    reader.client.is_readonly = true;
    reader.open(3).unwrap();
    assert_eq!(reader.in_force(), settings);
    assert!(file.exists() && lab.value().is_none());
}

/// The namespace is removed from the configuration, and added with another path.
#[test]
fn settings_in_force_are_copied_to_another_place() {
    let lab = Lab::new();
    let gateway = lab.gateway_with("a", Records::beside(Some(&lab.state())));
    let settings = reserved(ReservationType::WRITE_EXCLUSIVE);
    gateway.open(1).unwrap();
    gateway.write(&settings).unwrap();
    admit(&gateway.records, &nqn(), 1).unwrap();
    assert_eq!(gateway.in_force(), settings);
    let folder = || Records::beside(Some(&lab.state()));
    let restarted = lab.gateway_with("b", folder());
    admit(&restarted.records, &nqn(), 1).unwrap();
    assert_eq!(restarted.in_force(), settings);
    // Back to the image: both are the same until a host changes one.
    gateway.open(2).unwrap();
    assert_eq!(gateway.in_force(), settings);
    gateway.write(&protected(&[1])).unwrap();
    in_folder(&lab, &settings);
    let stored = lab.value();
    let error = admit(&gateway.records, &nqn(), 1).unwrap_err().to_string();
    let words = ["differ", "rados rmomapkey", "and restart the target"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    assert_eq!(lab.value(), stored);
}

#[test]
fn damaged_record_names_the_command_that_removes_it() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    gateway.open(1).unwrap();
    gateway.write(&protected(&[1])).unwrap();
    let name = name_of(&nqn(), 1);
    let damaged = b"damaged".to_vec();
    lab.object
        .values
        .lock()
        .unwrap()
        .insert(name.clone(), damaged);
    let error = gateway.open(2).unwrap_err().to_string();
    let words = [
        "is damaged".to_owned(),
        format!("rados:rbd/nvmeof.namespaces:{name}"),
        format!("rados rmomapkey {name}"),
    ];
    for word in words {
        assert!(error.contains(&word), "{error}");
    }
}

#[test]
fn namespace_on_a_file_needs_a_state_file() {
    let lab = Lab::new();
    let gateway = lab.gateway("a");
    admit(&gateway.records, &nqn(), 2).unwrap();
    let error = gateway.records.clone().write(&nqn(), 2, &protected(&[2]));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("control.state"), "{error}");
    let file = "/dev/null".parse().unwrap();
    let keeper = Arc::new(Records::beside(None));
    assert!(
        keeper
            .keeper(&gateway.target, [&file].into_iter())
            .is_none()
    );
}
