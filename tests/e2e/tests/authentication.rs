//! In-band authentication between `nvmeof`, the fio engine or the crate, and the target.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, File};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nvmeof_e2e::{
    HOST, Jobs, KEY, NQN, OTHER_KEY, Run, Setup, Target, binary, ctl, eventually, key_file_with,
    managed,
};
use nvmeof_initiator::dhchap::{HostKeys, Key};
use nvmeof_initiator::{ConnectOptions, Host, HostConfig, Identity, Nqn, WriteOptions};
use tokio::task::JoinHandle;

const MIB: usize = 1 << 20;
const WRONG_KEY: &str = "DHHC-1:01:MJeNJW9KWXBWFRTRBkLitUFfyoo7FO/YRk2v690G5FxGmteF:";

/// A target that has [`KEY`] of the host and [`OTHER_KEY`] of the controller.
struct Scene {
    setup: Setup,
    target: Target,
}

impl Scene {
    /// With `head` in its configuration.
    fn new(head: &str) -> Self {
        let setup = managed().file(8 * MIB);
        for (name, key) in [
            ("host", KEY),
            ("controller", OTHER_KEY),
            ("wrong", WRONG_KEY),
        ] {
            key_file_with(&setup.path(&format!("{name}.key")), key);
        }
        let file = |name: &str| setup.path(name).display().to_string();
        let (host, controller) = (file("host.key"), file("controller.key"));
        let setup = setup.head(&format!(
            "[[host]]\nnqn = \"{HOST}\"\nkey_file = '{host}'\ncontroller_key_file = \
             '{controller}'\n{head}\n"
        ));
        let target = setup.start();
        Self { setup, target }
    }

    /// Options with the keys in these files.
    fn keys(&self, host: &str, controller: &str) -> String {
        let option = |option: &str, name: &str| match name {
            "" => String::new(),
            name => {
                let path = self.setup.path(&format!("{name}.key"));
                format!(" --dhchap-{option} @{}", path.display())
            }
        };
        option("secret", host) + &option("ctrl-secret", controller)
    }

    /// `nvmeof COMMAND` with the keys in these files.
    fn with(&self, command: &str, host: &str, controller: &str) -> Run {
        self.target
            .nvmeof(command)
            .args(&self.keys(host, controller))
    }

    /// `nvmeof COMMAND` with keys in the environment: without that of the controller if it is
    /// empty.
    fn inherits(&self, command: &str, host: &str, controller: &str) -> Command {
        let address = self.target.address();
        let mut nvmeof = Command::new(binary("nvmeof"));
        nvmeof
            .args(command.split_whitespace())
            .args(["-t", "rdma", "-a", &address.to_string()])
            .args(["-q", HOST])
            .env("NVMEOF_DHCHAP_SECRET", host)
            .env_remove("NVMEOF_DHCHAP_CTRL_SECRET");
        if !controller.is_empty() {
            nvmeof.env("NVMEOF_DHCHAP_CTRL_SECRET", controller);
        }
        nvmeof
    }

    fn end(mut self) {
        self.target.assert_healthy();
        assert_no_key(&self.target.log());
        self.target.stop();
    }
}

/// No output has any part of a key.
#[track_caller]
fn assert_no_key(text: &str) {
    for key in [KEY, OTHER_KEY, WRONG_KEY] {
        let secret = &key[10..26];
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[test]
fn both_sides_prove_their_keys_or_are_refused() {
    let mut scene = Scene::new("");
    scene.with("id-ctrl", "host", "").ok();
    scene.with("id-ctrl", "host", "controller").ok();
    let without_key = scene.with("id-ctrl", "", "");
    without_key.fails(1, &["this host has no key"]);
    let line = scene
        .target
        .wait_for_log("closed by the peer before it authenticated");
    assert!(line.contains(HOST), "{line}");
    for (host, controller, words) in [
        ("", "", "this host has no key"),
        ("wrong", "", "authentication failed"),
        ("host", "wrong", "the controller did not prove its key"),
    ] {
        let refused = scene
            .with("id-ctrl", host, controller)
            .fails(1, &[words, "--dhchap-secret"]);
        assert_no_key(&refused.stderr);
    }
    // A host without a key on the target cannot use the name of this one, and the controller
    // cannot prove its key to another host.
    let other = |keys: &str| {
        let address = scene.target.address().to_string();
        Run::nvmeof(&format!("id-ctrl -a {address} -n {NQN} -q {HOST}-2 {keys}"))
    };
    other("").ok();
    other(&scene.keys("host", "controller")).fails(1, &["cannot prove that it has the"]);
    scene.end();
}

#[test]
fn data_commands_and_benchmarks_authenticate_each_queue() {
    let scene = Scene::new("");
    let file = scene.setup.path("data");
    fs::write(&file, vec![7; MIB]).unwrap();
    let io = |command: &str| {
        scene
            .with(command, "host", "controller")
            .args("--namespace-id 1")
    };
    io("write").arg("--data").arg(&file).ok();
    let read = io("read").args("--block-count 2048 --data -").ok();
    assert_eq!(read.stdout, vec![7; MIB]);
    for interface in ["async", "polled"] {
        let load = "bench --rw randrw --bs 4k --iodepth 8 -i 2 --runtime 1";
        io(load).args(&format!("--interface {interface}")).ok();
    }
    io("copy").args("--start-block 0 --nlb 7 --to 512").ok();
    scene.end();
}

/// The process list and logs have no key, if it comes from a file or from the environment.
#[test]
fn keys_are_not_visible() {
    let scene = Scene::new("");
    let id_ctrl = format!("id-ctrl -n {NQN}");
    let mut command = scene.inherits(&id_ctrl, KEY, OTHER_KEY);
    command.env("NVMEOF_LOG", "trace");
    let ended = Run::new(command).ok();
    assert_no_key(&ended.stderr);
    let file = format!("@{}", scene.setup.path("host.key").display());
    let command = scene.inherits(&id_ctrl, &file, "");
    Run::new(command).ok();
    let refused = Run::new(scene.inherits(&id_ctrl, WRONG_KEY, "")).fails(1, &["failed"]);
    assert_no_key(&refused.stderr);

    let load = format!("bench --rw randread --bs 4k -n {NQN} --namespace-id 1 --runtime 600");
    let mut running = Run::new(scene.inherits(&load, KEY, OTHER_KEY)).start();
    let line = eventually(|| {
        let line = fs::read(format!("/proc/{}/cmdline", running.pid())).unwrap();
        let line = String::from_utf8(line).unwrap();
        line.contains("bench").then_some(line)
    });
    assert_no_key(&line.unwrap());
    assert!(running.runs());
    running.kill();
    scene.end();
}

#[test]
fn discovery_that_requires_authentication() {
    let scene = Scene::new("[discovery]\nrequire_authentication = true");
    let discover = |keys: &str| scene.target.fabrics("discover").args(keys);
    discover("").fails(1, &["this host has no key"]);
    discover(&scene.keys("wrong", "")).fails(1, &["authentication failed"]);
    for controller in ["", "controller"] {
        let log = discover(&scene.keys("host", controller)).json();
        let names = log["records"].as_array().unwrap().iter();
        assert!(
            names.map(|one| &one["subnqn"]).any(|name| name == NQN),
            "{log}"
        );
    }
    discover(&scene.keys("host", "wrong")).fails(1, &["did not prove its key"]);

    // The key of the controller is for the subsystems.
    let all = scene.target.fabrics("connect-all");
    let all = all.args(&scene.keys("host", "controller")).ok();
    assert!(String::from_utf8(all.stdout).unwrap().contains(NQN));

    let (out, other) = (
        scene.setup.path("watch.out"),
        "nqn.2026-11.org.example:other",
    );
    let mut watch = scene.inherits("discover --watch", KEY, OTHER_KEY);
    let mut watch = watch.stdout(File::create(&out).unwrap()).spawn().unwrap();
    let wait_for = |name: &str| {
        let seen = || fs::read_to_string(&out).unwrap().contains(name);
        assert!(eventually(|| seen().then_some(())).is_some(), "{name}");
    };
    wait_for(NQN);
    ctl(&scene.setup, &format!("subsystem add {other} --host any")).ok();
    wait_for(other);
    watch.kill().unwrap();
    watch.wait().unwrap();
    scene.end();
}

/// Discovery without a requirement authenticates no host, and connects with a key as well.
#[test]
fn connect_all_with_keys_uses_a_discovery_service_without_authentication() {
    let scene = Scene::new("");
    let run = |command: &str, controller: &str| {
        let keys = scene.keys("host", controller);
        scene.target.fabrics(command).args(&keys)
    };
    run("discover", "").ok();
    run("connect-all", "controller").ok();
    let refused = run("connect-all", "wrong").end();
    assert_eq!(refused.status, Some(1), "{refused}");
    let report = String::from_utf8_lossy(&refused.stdout).into_owned() + &refused.stderr;
    let words: Vec<&str> = report.split_whitespace().collect();
    assert!(
        words.join(" ").contains("did not prove its key"),
        "{refused}"
    );
    // A key that is missing by mistake is not "no key".
    let mut empty = scene.inherits(&format!("id-ctrl -n {NQN}"), KEY, "");
    empty.env("NVMEOF_DHCHAP_CTRL_SECRET", "");
    Run::new(empty).fails(2, &["--dhchap-ctrl-secret: the text is not of the form"]);
    run("discover", "controller").fails(1, &["cannot prove that it has the controller's key"]);
    scene.end();
}

#[test]
fn jobs_of_fio_authenticate() {
    let scene = Scene::new("");
    let file = |name: &str| {
        scene
            .setup
            .path(&format!("{name}.key"))
            .display()
            .to_string()
    };
    let global = "rw=randwrite\nverify=crc32c\nverify_fatal=1\nbs=4k\nsize=1m\niodepth=8";
    let jobs = |host: &str, more: &str| {
        let keys = format!("{global}\nqueues=2\ndhchap_secret={host}\n{more}");
        Jobs::new(&scene.setup, &scene.target, &keys, "[job]\n")
    };
    let [host, controller] = [file("host"), file("controller")];
    let controller = format!("dhchap_ctrl_secret=@{controller}");
    let _ = jobs(&format!("@{host}"), &controller).ok();
    jobs(&format!("@{}", file("wrong")), "").fails(&["authentication failed", "dhchap_secret="]);
    let refused = jobs(KEY, "").fails(&["dhchap_secret=: must be @FILE"]);
    assert_no_key(&refused.stderr);
    scene.end();
}

/// The crate changes its key while calls are in progress, and the target its keys meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn crate_changes_its_key_under_load() {
    let scene = Scene::new("");
    let keys = |host: &str| {
        let key = |text| Arc::new(Key::parse(text).unwrap());
        Arc::new(HostKeys::new(key(host), Some(key(OTHER_KEY))))
    };
    let identity = Identity::of_name(Nqn::new(HOST).unwrap());
    let host = Host::new(HostConfig::new(identity)).unwrap();
    let mut options = ConnectOptions::new(scene.target.address().into(), Nqn::new(NQN).unwrap());
    (options.io_queues, options.keys) = (4, Some(keys(KEY)));
    let controller = host.connect(options).await.unwrap();
    let disk = controller.namespace(1).await.unwrap();
    let load: JoinHandle<()> = tokio::spawn(async move {
        loop {
            let buf = disk
                .write(8, host.buffer(4096).unwrap(), WriteOptions::default())
                .await;
            disk.read(8, buf.unwrap()).await.unwrap();
        }
    });
    // The target does not have the new key: the controller remains connected.
    let refused = controller.reauthenticate(Some(keys(WRONG_KEY))).await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("authentication failed")
    );
    controller.reauthenticate(None).await.unwrap();

    let new = scene.setup.path("wrong.key").display().to_string();
    ctl(
        &scene.setup,
        &format!("host rotate-key {HOST} --key-file {new}"),
    )
    .ok();
    controller
        .reauthenticate(Some(keys(WRONG_KEY)))
        .await
        .unwrap();
    ctl(&scene.setup, &format!("host remove-old-key {HOST}")).ok();
    controller.reauthenticate(None).await.unwrap();
    assert!(controller.reauthenticate(Some(keys(KEY))).await.is_err());
    assert!(!load.is_finished(), "a call failed");
    load.abort();
    tokio::time::timeout(Duration::from_secs(30), controller.disconnect())
        .await
        .unwrap();
    scene.end();
}
