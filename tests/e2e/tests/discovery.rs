//! Discovery that follows changes and referrals, with real processes: `nvmeof discover --watch` and
//! `nvmeof connect-all`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

use nvmeof_e2e::{
    HOST, NQN, Run, Setup, Target, binary, ctl, eventually, free_port, managed, target_command,
};
use serde_json::Value;

const OTHER: &str = "nqn.2026-11.org.example:other";

/// A running `nvmeof discover --watch -o json`; killed when dropped.
struct Watch<'a> {
    child: Child,
    setup: &'a Setup,
}

impl<'a> Watch<'a> {
    /// Starts it with a target, with its output in the folder of `setup`.
    fn start(setup: &'a Setup, target: &Target) -> Self {
        let address = target.address();
        let child = Command::new(binary("nvmeof"))
            .args(["discover", "--watch", "-o", "json", "-q", HOST])
            .args(["-a", &address.ip().to_string()])
            .args(["-s", &address.port().to_string()])
            .stdin(Stdio::null())
            .stdout(File::create(setup.path("watch.out")).unwrap())
            .stderr(File::create(setup.path("watch.err")).unwrap())
            .spawn()
            .unwrap();
        Self { child, setup }
    }

    fn changes(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.setup.path("watch.out")).unwrap();
        let whole = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        whole
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for a change that `is_it` accepts, after the first `skip` changes. Returns the number
    /// of changes up to it.
    #[track_caller]
    fn wait(&mut self, skip: usize, is_it: impl Fn(&Value) -> bool) -> usize {
        let found = eventually(|| {
            let changes = self.changes();
            let at = changes.iter().skip(skip).position(&is_it);
            let ended = self.child.try_wait().unwrap();
            at.map(|at| Some(skip + at + 1))
                .or_else(|| ended.map(|_| None))
        });
        found.flatten().unwrap_or_else(|| {
            let log = fs::read_to_string(self.setup.path("watch.err")).unwrap();
            panic!("{:#?}\n{log}", self.changes())
        })
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a change is about an entry of `subnqn`.
fn entry(change: &'static str, subnqn: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["change"] == change && line["entry"]["subnqn"] == subnqn
}

fn service(change: &'static str) -> impl Fn(&Value) -> bool {
    move |line| line["change"] == change && line["service"].is_string()
}

#[test]
fn watch_sees_added_and_removed_subsystems() {
    let setup = managed().file(1 << 20);
    let mut target = setup.start();
    let mut watch = Watch::start(&setup, &target);
    let seen = watch.wait(0, entry("added", NQN));
    ctl(&setup, &format!("subsystem add {OTHER} --host any")).ok();
    let seen = watch.wait(seen, entry("added", OTHER));
    ctl(&setup, &format!("subsystem remove {OTHER}")).ok();
    let seen = watch.wait(seen, entry("removed", OTHER));
    let last = &watch.changes()[seen - 1];
    assert_eq!(last["entry"]["traddr"], "127.0.0.1");
    assert!(last["time"].as_str().unwrap().ends_with('Z'), "{last}");
    target.assert_healthy();
    drop(watch);
    target.stop();
}

#[test]
fn watch_reports_a_restart_and_changes_made_meanwhile() {
    let port = free_port();
    let setup = managed().port(port).file(1 << 20);
    let mut target = setup.start();
    let mut watch = Watch::start(&setup, &target);
    let seen = watch.wait(0, entry("added", NQN));
    target.kill();
    let seen = watch.wait(seen, service("lost"));
    let more = format!("[[subsystem]]\nnqn = \"{OTHER}\"\nallow_any_host = true\n");
    let config = setup.config();
    fs::write(&config, format!("{}\n{more}", setup.text())).unwrap();
    let mut command = target_command();
    command.arg("serve").arg("--config").arg(&config);
    let target = setup.start_as(&mut command);
    let seen = watch.wait(seen, service("recovered"));
    watch.wait(seen, entry("added", OTHER));
    // The subsystem was there before the restart and is there after it.
    assert!(!watch.changes().iter().any(entry("removed", NQN)));
    drop(watch);
    target.stop();
}

#[test]
fn watch_follows_a_referral() {
    let second = Setup::new();
    let second_target = second.start();
    let port = second_target.address().port();
    let setup = managed();
    let target = setup.start();
    let mut watch = Watch::start(&setup, &target);
    ctl(&setup, &format!("referral add 127.0.0.1:{port}")).ok();
    let from_second = |change: &'static str| {
        let port = port.to_string();
        move |line: &Value| {
            line["change"] == change
                && line["entry"]["subnqn"] == NQN
                && line["entry"]["trsvcid"] == port.as_str()
        }
    };
    let seen = watch.wait(0, from_second("added"));
    ctl(&setup, &format!("referral remove 127.0.0.1:{port}")).ok();
    watch.wait(seen, from_second("removed"));
    drop(watch);
    target.stop();
    second_target.stop();
}

/// Two ports of one target, and a second target that the first one refers to.
#[test]
fn connect_all_connects_two_ports_and_follows_a_referral() {
    let second = Setup::new().file(1 << 20);
    let second_text = second.text().replace(NQN, OTHER);
    fs::write(second.path("other.toml"), second_text).unwrap();
    let mut command = target_command();
    command
        .arg("serve")
        .arg("--config")
        .arg(second.path("other.toml"));
    let second_target = second.start_as(&mut command);
    let other_port = free_port();
    let head = format!(
        "[[referral]]\ntraddr = \"127.0.0.1\"\ntrsvcid = {}\n\
         [[port]]\nid = 7\ntraddr = \"127.0.0.1\"\ntrsvcid = {other_port}\nprovider = \"iwarp\"\n",
        second_target.address().port()
    );
    let setup = Setup::new().head(&head).file(1 << 20).file(2 << 20);
    let target = setup.start();

    let json = target.fabrics("connect-all --provider iwarp").json();
    let subsystems = json["subsystems"].as_array().unwrap();
    assert_eq!(subsystems.len(), 2, "{json:#}");
    let of = |nqn: &str| subsystems.iter().find(|one| one["subnqn"] == nqn).unwrap();
    let paths = of(NQN)["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 2, "{json:#}");
    assert!(paths.iter().all(|path| path["state"] == "live"), "{json:#}");
    let namespaces = of(NQN)["namespaces"].as_array().unwrap();
    let bytes = |namespace: &Value| {
        namespace["nsze"].as_u64().unwrap() * namespace["block_size"].as_u64().unwrap()
    };
    assert_eq!(
        namespaces.iter().map(bytes).collect::<Vec<_>>(),
        [1 << 20, 2 << 20]
    );
    let uuid = target.on(1, "id-ns").json()["uuid"].clone();
    assert_eq!(namespaces[0]["uuid"], uuid);
    assert_eq!(of(OTHER)["paths"][0]["state"], "live", "{json:#}");
    assert_eq!(json["services"].as_array().unwrap().len(), 2);

    let text = target.fabrics("connect-all --provider iwarp").ok().text();
    for words in [NQN, OTHER, "  live       127.0.0.1:", "1.0 MiB", "2.0 MiB"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    target.stop();
    second_target.stop();
}

#[test]
fn connect_all_without_a_target_fails_with_a_remedy() {
    let address = format!("-a 127.0.0.1 -s {} -q {HOST}", free_port());
    let absent = Run::nvmeof("connect-all").args(&address);
    absent.fails(1, &["connection refused", "nvmeof-target is running"]);
}
