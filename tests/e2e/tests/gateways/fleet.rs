//! Gateways that share two ANA groups over images of a cluster.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nvmeof_e2e::{Proxy, Run, Setup, Target, ctl, eventually, free_port, managed};
use serde_json::Value;

/// Names of the gateways; most tests have two. Group 1 prefers the first one, group 2 the second
/// one.
pub(crate) const NAMES: [&str; 3] = ["gw1", "gw2", "gw3"];
/// The groups; group `n` has namespace `n`.
pub(crate) const GROUPS: [u32; 2] = [1, 2];
/// Controller identifiers of each.
pub(crate) const CNTLIDS: [(u16, u16); 3] = [(100, 199), (200, 299), (300, 399)];
/// Time limit of a takeover on a busy machine. The figures are printed.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(15);

/// A program of the cluster; its output.
pub(crate) fn run(program: &str, line: &str) -> String {
    let mut command = Command::new(program);
    command.args(line.split(' '));
    Run::new(command).ok().text()
}

pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `cargo xtask test ceph`"))
}

/// Prints a figure, also of a test that passes.
pub(crate) fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "gateways: {text}");
}

/// What is shared by the gateways of one test.
#[derive(Clone)]
pub(crate) struct Shared {
    /// Of the record and the images.
    pub(crate) name: String,
    /// Number of gateways.
    count: usize,
}

/// What may differ between the gateways.
pub(crate) struct Own {
    pub(crate) name: &'static str,
    pub(crate) cntlids: (u16, u16),
    pub(crate) serial: &'static str,
    /// The number of the image of namespace 2.
    pub(crate) second_image: u32,
}

impl Own {
    pub(crate) fn of(at: usize) -> Self {
        Self {
            name: NAMES[at],
            cntlids: CNTLIDS[at],
            serial: "HA1",
            second_image: 2,
        }
    }
}

impl Shared {
    /// New images of 16 MiB, and the name of a new record.
    pub(crate) fn new(test: &str, count: usize) -> Self {
        let name = format!("{test}-{}", std::process::id());
        let shared = Self { name, count };
        for group in GROUPS {
            run("rbd", &format!("create --size 16M {}", shared.image(group)));
        }
        shared
    }

    pub(crate) fn image(&self, number: u32) -> String {
        format!("rbd/{}-{number}", self.name)
    }

    /// The gateways of a group, by priority, as the configuration has them.
    fn candidates(&self, preferred: usize) -> String {
        let names = (0..self.count).map(|at| NAMES[(preferred + at) % self.count]);
        let names: Vec<_> = names.map(|name| format!("'{name}'")).collect();
        names.join(", ")
    }

    /// The configuration of a gateway.
    pub(crate) fn setup(&self, own: &Own, port: u16) -> Setup {
        let Own { name, serial, .. } = own;
        let ceph = format!(
            "[ceph]\nconf = '{}'\nuser = '{}'\nkeyring = '{}'\n",
            variable("NVMEOF_CEPH_CONF"),
            variable("NVMEOF_CEPH_USER"),
            variable("NVMEOF_CEPH_KEYRING"),
        );
        let ha = format!(
            "[ha]\ngateway = '{name}'\nrecord = 'rbd/{}'\n\
             [[ha.group]]\nid = 1\ngateways = [{}]\n\
             [[ha.group]]\nid = 2\ngateways = [{}]\n",
            self.name,
            self.candidates(0),
            self.candidates(1)
        );
        let (first, last) = own.cntlids;
        let access = format!(
            "serial = '{serial}'\nallow_any_host = true\ncntlid_min = {first}\n\
             cntlid_max = {last}\n"
        );
        managed()
            .head(&ceph)
            .head(&ha)
            .port(port)
            .access(&access)
            .namespace(&format!("rbd:{}", self.image(1)), "ana_group = 1\n")
            .namespace(
                &format!("rbd:{}", self.image(own.second_image)),
                "ana_group = 2\n",
            )
    }
}

/// A gateway, which may run.
pub(crate) struct Gateway {
    pub(crate) setup: Setup,
    /// Where hosts connect.
    pub(crate) address: SocketAddr,
    target: Option<Target>,
}

impl Gateway {
    pub(crate) fn new(setup: Setup, port: u16) -> Self {
        Self {
            setup,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            target: None,
        }
    }

    pub(crate) fn run_as(&mut self, command: &mut Command) {
        self.target = Some(self.setup.start_anyhow_as(command));
    }

    pub(crate) fn target(&mut self) -> &mut Target {
        self.target.as_mut().unwrap()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        self.target().signal(signal);
    }

    /// Hosts that connect later use a link that can be cut.
    pub(crate) fn behind_a_link(&mut self) -> Proxy {
        let link = Proxy::start(self.address);
        self.address = link.address();
        link
    }

    pub(crate) fn kill(&mut self) {
        self.target().kill();
        self.target = None;
    }

    /// Its state of high availability; `None` if it does not respond.
    pub(crate) fn status(&self) -> Option<Value> {
        status(&self.socket())
    }

    /// Its control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.setup.path("control.sock")
    }

    pub(crate) fn ctl(&self, line: &str) -> Run {
        ctl(&self.setup, line)
    }
}

/// The response to `GET /v1/ha`; `None` if there is none within half a second.
pub(crate) fn status(socket: &Path) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    let limit = Some(Duration::from_millis(500));
    stream.set_read_timeout(limit).ok()?;
    let request = "GET /v1/ha HTTP/1.1\r\nhost: target\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (_, body) = text.split_once("\r\n\r\n")?;
    serde_json::from_str(body).ok()
}

/// A group in the response.
pub(crate) fn group(status: &Value, id: u32) -> Option<&Value> {
    let groups = status["groups"].as_array()?;
    groups.iter().find(|it| it["group"] == id)
}

/// Whether the gateway serves a group, by its own response.
pub(crate) fn serves(status: &Value, id: u32) -> bool {
    group(status, id).is_some_and(|it| it["served_here"] == true)
}

/// The gateways of a test.
pub(crate) struct Fleet {
    pub(crate) shared: Shared,
    pub(crate) gateways: Vec<Gateway>,
}

impl Fleet {
    /// Two, which run, and each serves the group that prefers it.
    pub(crate) fn started(test: &str) -> Self {
        Self::started_with(test, 2)
    }

    /// So many.
    pub(crate) fn started_with(test: &str, count: usize) -> Self {
        let mut fleet = Self::with(test, count);
        for at in 0..count {
            fleet.start(at);
        }
        fleet.wait_for_all();
        fleet
    }

    /// Two, neither of which runs.
    pub(crate) fn new(test: &str) -> Self {
        Self::with(test, 2)
    }

    fn with(test: &str, count: usize) -> Self {
        let shared = Shared::new(test, count);
        let gateway = |at| {
            let port = free_port();
            Gateway::new(shared.setup(&Own::of(at), port), port)
        };
        let gateways = (0..count).map(gateway).collect();
        Self { shared, gateways }
    }

    /// Starts a gateway without waiting for it.
    pub(crate) fn start(&mut self, at: usize) {
        let gateway = &mut self.gateways[at];
        let mut command = gateway.setup.command();
        gateway.run_as(&mut command);
    }

    pub(crate) fn wait_for_all(&mut self) {
        for gateway in &mut self.gateways {
            gateway.target().wait_for_log("ready: serving");
        }
        for (at, id) in GROUPS.into_iter().enumerate() {
            self.wait_until_serves(at, id);
        }
        for at in 0..self.gateways.len() {
            self.wait_for_member(at);
        }
    }

    /// Waits until the gateway serves the group, and returns for how long it waited.
    pub(crate) fn wait_until_serves(&self, at: usize, id: u32) -> Duration {
        let start = Instant::now();
        let status = || self.gateways[at].status();
        let served = eventually(|| status().filter(|it| serves(it, id)));
        assert!(served.is_some(), "group {id}: {:?}", status());
        start.elapsed()
    }

    /// Waits until the gateway is a member, and all know that it is alive.
    pub(crate) fn wait_for_member(&self, at: usize) {
        self.wait_for(at, |status| status["standing"] == "member");
        for by in 0..self.gateways.len() {
            self.wait_for(by, |status| status["gateways"][at]["state"] == "alive");
        }
    }

    /// Waits until the status of the gateway fulfils `is`.
    pub(crate) fn wait_for(&self, at: usize, is: impl Fn(&Value) -> bool) -> Value {
        let status = || self.gateways[at].status();
        let found = eventually(|| status().filter(|it| is(it)));
        found.unwrap_or_else(|| panic!("{:?}", status()))
    }

    /// Orders a move at another gateway, and waits until it has taken place.
    pub(crate) fn move_to(&self, at: usize, id: u32) -> Duration {
        let start = Instant::now();
        let line = format!("ha move {id} {} --no-wait", NAMES[at]);
        self.gateways[(at + 1) % self.gateways.len()]
            .ctl(&line)
            .ok();
        self.wait_until_serves(at, id);
        start.elapsed()
    }

    /// A group, as a gateway sees it.
    pub(crate) fn group(&self, at: usize, id: u32) -> Value {
        let status = self.gateways[at].status().unwrap();
        group(&status, id).unwrap().clone()
    }

    pub(crate) fn signal(&mut self, at: usize, signal: Signal) {
        self.gateways[at].signal(signal);
    }

    /// Ends those that run, which must have logged nothing unexpected.
    pub(crate) fn stop(self) {
        let running = self.gateways.into_iter().filter_map(|it| it.target);
        let mut running: Vec<_> = running.collect();
        for target in &mut running {
            target.assert_healthy();
        }
        for target in running {
            target.stop();
        }
    }

    /// Replaces the configuration of all by `change` of it, and reloads.
    pub(crate) fn reload(&mut self, change: impl Fn(&str) -> String) {
        for gateway in &mut self.gateways {
            let text = change(&gateway.setup.text());
            std::fs::write(gateway.setup.path("target.toml"), text).unwrap();
            gateway.ctl("reload").ok();
        }
    }

    /// Asserts that the gateway logged no error.
    pub(crate) fn assert_no_errors(&mut self, at: usize) {
        let errors = self.gateways[at].target().lines(&["ERROR"]);
        assert!(errors.is_empty(), "{errors:#?}");
    }

    /// Asserts that the gateway logged no error but those of operations that the cluster refused.
    pub(crate) fn assert_late_errors(&mut self, at: usize) {
        let errors = self.gateways[at].target().lines(&["ERROR"]);
        let is_late = |line: &String| line.contains("the cluster has blocklisted this client");
        assert!(errors.iter().all(is_late), "{errors:#?}");
    }
}
