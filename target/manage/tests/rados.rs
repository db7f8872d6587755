//! Records of RBD namespaces, in a real cluster. `cargo xtask test ceph` starts one and sets the
//! variables `NVMEOF_CEPH_*`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nvmeof_backend::{Claim, Spec};
use nvmeof_backend_spec::CephAccess;
use nvmeof_target_config::Config;
use nvmeof_target_core::ReservationState;
use nvmeof_target_manage::ha::HaOrder;
use nvmeof_target_manage::{ReservationsError, Server, host_settings};
use nvmeof_target_reservations::{Reservation, Reservations};
use nvmeof_wire::Nqn;
use nvmeof_wire::reservation::ReservationType;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const OBJECT: &str = "nvmeof.namespaces";

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test ceph`"))
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}

/// A machine with an image of its own, whose gateways are different clients of the cluster.
struct Lab {
    folder: TempDir,
    image: String,
    nqn: Nqn,
}

impl Lab {
    fn new(name: &str) -> Self {
        let image = format!("rbd/rec-{name}");
        let _ = Command::new("rbd")
            .args(["rm", "--no-progress", &image])
            .output();
        run("rbd", &["create", "--size", "16M", &image]);
        let nqn = Nqn::new(&format!("nqn.2026-11.org.example:rec-{name}")).unwrap();
        let this = Self {
            folder: tempfile::tempdir().unwrap(),
            image,
            nqn,
        };
        for key in this.keys() {
            run("rados", &["-p", "rbd", "rmomapkey", OBJECT, &key]);
        }
        this
    }

    /// The keys of the records of this lab.
    fn keys(&self) -> Vec<String> {
        let listed = Command::new("rados")
            .args(["-p", "rbd", "listomapkeys", OBJECT])
            .output();
        let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
        let prefix = format!("{}-", self.nqn.as_str().replace(':', "_"));
        let its = listed.lines().filter(|key| key.starts_with(&prefix));
        its.map(str::to_owned).collect()
    }

    /// The configuration file of the cluster, as another client has it: one connection is shared by
    /// images with the same access.
    fn conf(&self, client: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{client}.conf"));
        std::fs::copy(variable("NVMEOF_CEPH_CONF"), &path).unwrap();
        path
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }

    /// A gateway that serves the image, as that client, without a state file or with one.
    fn serve(&self, client: &str, state: Option<&Path>) -> Server {
        self.serve_path(client, state, &self.path())
    }

    /// A configuration whose namespace has that path, or without a namespace.
    fn config(&self, client: &str, state: Option<&Path>, path: &str) -> Config {
        let path = Some(path).filter(|path| !path.is_empty());
        self.config_of(client, state, path.as_slice())
    }

    /// A configuration whose namespaces have these paths.
    fn config_of(&self, client: &str, state: Option<&Path>, paths: &[&str]) -> Config {
        let control = state.map(|path| format!("[control]\nstate = \"{}\"\n", path.display()));
        let mut text = format!(
            "{}[ceph]\nconf = \"{}\"\nuser = \"{}\"\nkeyring = \"{}\"\n\
             [[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
             [[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n",
            control.unwrap_or_default(),
            self.conf(client).display(),
            variable("NVMEOF_CEPH_USER"),
            variable("NVMEOF_CEPH_KEYRING"),
            self.nqn,
        );
        for (path, nsid) in paths.iter().zip(1..) {
            text += &format!("[[subsystem.namespace]]\nnsid = {nsid}\n");
            text += &format!("uuid = \"00000000-0000-0000-0000-00000000000{nsid}\"\n");
            // A path may be followed by another key.
            let (path, key) = path.split_once('\n').unwrap_or((path, ""));
            text += &format!("path = \"{path}\"\n{key}\n");
        }
        Config::parse(Path::new("target.toml"), text).unwrap()
    }

    /// The path of its image.
    fn path(&self) -> String {
        format!("rbd:{}", self.image)
    }

    /// The configuration of a gateway that takes over from others.
    fn gateway(&self, name: &str, cntlid: u16) -> Config {
        let text = format!(
            "[ceph]\nconf = \"{}\"\nuser = \"{}\"\nkeyring = \"{}\"\n\
             [ha]\ngateway = \"{name}\"\nrecord = \"{}-ha\"\n\
             [[ha.group]]\nid = 1\ngateways = [\"gw1\", \"gw2\"]\n\
             [[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = 0\nprovider = \"iwarp\"\n\
             [[subsystem]]\nnqn = \"{}\"\nserial = \"1\"\nallow_any_host = true\n\
             cntlid_min = {cntlid}\ncntlid_max = {}\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"{}\"\nana_group = 1\n",
            self.conf(name).display(),
            variable("NVMEOF_CEPH_USER"),
            variable("NVMEOF_CEPH_KEYRING"),
            self.image,
            self.nqn,
            cntlid + 9,
            self.path(),
        );
        Config::parse(Path::new("target.toml"), text).unwrap()
    }

    fn serve_path(&self, client: &str, state: Option<&Path>, path: &str) -> Server {
        let config = self.config(client, state, path);
        // The lock of a client that was fenced ends with its watch, or is broken.
        let end = Instant::now() + LIMIT;
        loop {
            let server = Server::start(&config).unwrap();
            let waiting = server.manager().waiting();
            let Some(waiting) = waiting.first() else {
                return server;
            };
            let why = waiting.waits.why.clone();
            assert!(Instant::now() < end, "{why}");
            stop(server);
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn reserve(&self, server: &Server, key: u64) -> Result<(), ReservationsError> {
        self.reserve_of(server, 1, key)
    }

    fn reserve_of(&self, server: &Server, nsid: u32, key: u64) -> Result<(), ReservationsError> {
        let registrants = BTreeMap::from([([7; 16], key)]);
        let reservation = Reservation {
            kind: ReservationType::WRITE_EXCLUSIVE,
            holder: Some([7; 16]),
        };
        let reservations = Reservations::restore(1, true, registrants, Some(reservation));
        let state = ReservationState {
            reservations: reservations.unwrap(),
            ..ReservationState::default()
        };
        server.manager().import_reservations(self.nqn, nsid, state)
    }

    /// The key of the registrant, if there is one.
    fn key(&self, server: &Server) -> Option<u64> {
        let all = server.manager().reservations();
        let its = all.iter().find(|one| one.subsystem == self.nqn)?;
        let mut registrants = its.state.reservations.registrants();
        registrants.next().map(|(_, key)| key)
    }

    /// The image, for another client without a target.
    fn spec(&self) -> Spec {
        let spec: Spec = format!("rbd:{}", self.image).parse().unwrap();
        spec.with_ceph(&CephAccess {
            conf: Some(self.conf("other")),
            user: Some(variable("NVMEOF_CEPH_USER")),
            keyring: Some(variable("NVMEOF_CEPH_KEYRING").into()),
        })
    }
}

fn stop(server: Server) {
    server.stop();
    drop(server);
}

#[test]
fn next_gateway_finds_the_reservations() {
    let lab = Lab::new("next");
    let first = lab.serve("a", None);
    assert_eq!(lab.key(&first), None);
    lab.reserve(&first, 1).unwrap();
    assert_eq!(lab.keys().len(), 1);
    stop(first);
    let second = lab.serve("b", None);
    assert_eq!(lab.key(&second), Some(1));
    second.manager().clear_reservations(lab.nqn, 1).unwrap();
    assert_eq!(lab.key(&second), None);
    lab.reserve(&second, 2).unwrap();
    stop(second);
    let first = lab.serve("a", None);
    assert_eq!(lab.key(&first), Some(2));
    stop(first);
}

#[test]
fn fenced_gateway_cannot_change_the_record() {
    let lab = Lab::new("fenced");
    let first = lab.serve("a", None);
    lab.reserve(&first, 1).unwrap();
    let locks = run("rbd", &["lock", "ls", &lab.image]);
    let owner = locks.split_whitespace().last().unwrap().to_owned();
    run("ceph", &["osd", "blocklist", "add", &owner]);
    let second = lab.serve("b", None);
    assert_eq!(lab.key(&second), Some(1));
    let error = first.manager().clear_reservations(lab.nqn, 1).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("rados:rbd/nvmeof.namespaces:"), "{error}");
    assert!(error.contains("blocklisted"), "{error}");
    second.manager().clear_reservations(lab.nqn, 1).unwrap();
    lab.reserve(&second, 2).unwrap();
    stop(first);
    stop(second);
    let third = lab.serve("c", None);
    assert_eq!(lab.key(&third), Some(2));
    stop(third);
}

#[test]
fn record_of_the_folder_is_moved_to_the_cluster() {
    let lab = Lab::new("moved");
    let state = lab.state();
    let former = lab.serve_path("a", Some(&state), "ram:1M");
    lab.reserve(&former, 3).unwrap();
    stop(former);
    let folder = host_settings::path_beside(&state);
    let count = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!((count(), lab.keys().len()), (1, 0));
    let server = lab.serve("a", Some(&state));
    assert_eq!(lab.key(&server), Some(3));
    assert_eq!((count(), lab.keys().len()), (0, 1));
    stop(server);
}

#[test]
fn removed_namespace_has_no_record() {
    let lab = Lab::new("removed");
    let server = lab.serve("a", None);
    lab.reserve(&server, 4).unwrap();
    let without = lab.config("a", None, "");
    let _ = server.manager().apply(&without).unwrap();
    let with = lab.config("a", None, &format!("rbd:{}", lab.image));
    let _ = server.manager().apply(&with).unwrap();
    assert_eq!(lab.key(&server), Some(4), "only a reload");
    let removal = server.manager().begin_removal(vec![(lab.nqn, Some(1))]);
    let _ = server.manager().apply(&without).unwrap();
    let most = Duration::from_secs(10);
    let forgotten = server.manager().forget_settings(&lab.nqn, Some(1), most);
    forgotten.unwrap();
    drop(removal);
    assert_eq!(lab.keys(), Vec::<String>::new());
    // Its image is free.
    let end = Instant::now() + LIMIT;
    let spec = lab.spec();
    while let Err(error) = Claim::take(&spec, None) {
        assert!(Instant::now() < end, "{error}");
    }
    stop(server);
}

/// Reservations follow an ANA group, also back to a gateway that knows an earlier state.
#[test]
fn takeover_reads_the_record_again() {
    let lab = Lab::new("group");
    let record = format!("{}-ha", lab.image.replace("rbd/", ""));
    let _ = Command::new("rados")
        .args(["-p", "rbd", "rm", &record])
        .output();
    let first = Server::start(&lab.gateway("gw1", 1)).unwrap();
    let second = Server::start(&lab.gateway("gw2", 11)).unwrap();
    // A namespace on standby is refused.
    wait_until(|| lab.reserve(&first, 1).is_ok());
    assert_eq!(lab.key(&second), None);
    let move_to = |gateway: &str, target: &Server| {
        let order = HaOrder::Move {
            group: 1,
            gateway: gateway.to_owned(),
        };
        target.manager().ha().unwrap().order(order).unwrap();
    };
    move_to("gw2", &second);
    wait_until(|| lab.key(&second) == Some(1));
    second.manager().clear_reservations(lab.nqn, 1).unwrap();
    wait_until(|| lab.reserve(&second, 2).is_ok());
    assert_eq!(lab.key(&first), Some(1), "as it was");
    move_to("gw1", &first);
    wait_until(|| lab.key(&first) == Some(2));
    second.manager().clear_reservations(lab.nqn, 1).unwrap_err();
    stop(second);
    stop(first);
}

fn wait_until(mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn swaps_compare_the_whole_value_and_end_with_the_claim() {
    let lab = Lab::new("swap");
    let claim = Claim::take(&lab.spec(), None).unwrap();
    let records = claim.records().unwrap();
    assert_eq!(records.to_string(), "rados:rbd/nvmeof.namespaces");
    let key = "rec-swap";
    let former = records.get(key).unwrap();
    assert!(records.swap(key, former.as_deref(), None).unwrap());
    assert_eq!(records.get(key).unwrap(), None);
    assert!(records.swap(key, None, Some(b"one")).unwrap());
    for expected in [None, Some(&b"on"[..]), Some(b"one two")] {
        assert!(!records.swap(key, expected, Some(b"two")).unwrap());
    }
    assert_eq!(records.get(key).unwrap().unwrap(), b"one");
    let removal = records.removal(key);
    let words: Vec<_> = removal.split(' ').collect();
    run(words[0], &words[1..]);
    assert_eq!(records.get(key).unwrap(), None);
    drop(claim);
    let error = records.swap(key, None, Some(b"one")).unwrap_err();
    assert!(error.is_lost(), "{error}");
}

/// Neither a plan nor a change that is refused concerns a namespace that is served.
#[test]
fn plan_and_refused_change_leave_the_settings_of_a_served_namespace() {
    let lab = Lab::new("plan");
    let other = lab.serve("b", None);
    lab.reserve(&other, 9).unwrap();
    stop(other);
    let state = lab.state();
    let server = lab.serve_path("a", Some(&state), "ram:1M");
    lab.reserve(&server, 1).unwrap();
    let folder = host_settings::path_beside(&state);
    let files = || std::fs::read_dir(&folder).unwrap().count();
    let to_image = lab.config("a", Some(&state), &lab.path());
    let planned = server.manager().plan(&to_image);
    assert_eq!((lab.key(&server), files()), (Some(1), 1));
    let applied = server.manager().apply(&to_image);
    assert_eq!((lab.key(&server), files()), (Some(1), 1));
    for error in [
        planned.unwrap_err().to_string(),
        applied.unwrap_err().to_string(),
    ] {
        let words = ["path", "ram:1048576", &lab.path(), "remove the namespace"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    stop(server);
}

#[test]
fn namespace_with_different_records_waits_until_one_is_removed() {
    let lab = Lab::new("differ");
    let other = lab.serve("b", None);
    lab.reserve(&other, 9).unwrap();
    stop(other);
    let state = lab.state();
    let server = lab.serve_path("a", Some(&state), "ram:1M");
    lab.reserve(&server, 1).unwrap();
    stop(server);
    for path in [lab.path(), format!("{}\nreadonly = true", lab.path())] {
        let server = Server::start(&lab.config("a", Some(&state), &path)).unwrap();
        let waiting = server.manager().waiting();
        let why = waiting.first().map(|it| it.waits.why.clone()).unwrap();
        let words = [
            "rados:rbd/nvmeof.namespaces:",
            "state.json.namespaces/",
            "rados --pool rbd rmomapkey nvmeof.namespaces ",
        ];
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        stop(server);
    }
    let folder = host_settings::path_beside(&state);
    std::fs::remove_dir_all(folder).unwrap();
    let server = lab.serve("a", Some(&state));
    assert_eq!(lab.key(&server), Some(9));
    stop(server);
}

#[test]
fn read_only_image_has_the_settings_of_its_record() {
    let lab = Lab::new("readonly");
    let other = lab.serve("b", None);
    lab.reserve(&other, 9).unwrap();
    stop(other);
    let state = lab.state();
    let path = format!("{}\nreadonly = true", lab.path());
    let server = lab.serve_path("a", Some(&state), &path);
    assert_eq!(lab.key(&server), Some(9));
    let error = server.manager().clear_reservations(lab.nqn, 1).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    assert_eq!(lab.key(&server), Some(9));
    stop(server);
}

#[test]
fn settings_in_force_are_copied_to_another_place() {
    let lab = Lab::new("copied");
    let state = lab.state();
    let server = lab.serve("a", Some(&state));
    lab.reserve(&server, 5).unwrap();
    let _ = server
        .manager()
        .apply(&lab.config("a", Some(&state), ""))
        .unwrap();
    let to_memory = lab.config("a", Some(&state), "ram:1M");
    let _ = server.manager().apply(&to_memory).unwrap();
    assert_eq!(lab.key(&server), Some(5));
    stop(server);
    let server = lab.serve_path("a", Some(&state), "ram:1M");
    assert_eq!(lab.key(&server), Some(5), "it is in the folder");
    stop(server);
}

#[test]
fn namespaces_that_are_removed_together_have_no_records() {
    let lab = Lab::new("together");
    let second = format!("{}-2", lab.image);
    let _ = Command::new("rbd")
        .args(["rm", "--no-progress", &second])
        .output();
    run("rbd", &["create", "--size", "16M", &second]);
    let paths = [lab.path(), format!("rbd:{second}")];
    let paths = paths.each_ref().map(String::as_str);
    let server = Server::start(&lab.config_of("a", None, &paths)).unwrap();
    for nsid in [1, 2] {
        lab.reserve_of(&server, nsid, 4).unwrap();
    }
    assert_eq!(lab.keys().len(), 2);
    let removal = [1, 2].map(|nsid| (lab.nqn, Some(nsid))).to_vec();
    let removal = server.manager().begin_removal(removal);
    let _ = server.manager().apply(&lab.config("a", None, "")).unwrap();
    for nsid in [1, 2] {
        let most = Duration::from_secs(10);
        let forgotten = server.manager().forget_settings(&lab.nqn, Some(nsid), most);
        forgotten.unwrap();
        // An image without an owner would be closed by now.
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(removal);
    assert_eq!(lab.keys(), Vec::<String>::new());
    stop(server);
}
