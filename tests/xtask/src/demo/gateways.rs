//! Two gateways over a Ceph cluster of its own: one is killed, and the other one takes over.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::ADDRESS;
use super::load::{Counts, Load};
use super::options::OfGateways;
use super::steps::{self, Steps, relative};
use super::table::Table;
use crate::ceph;
use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup;
use crate::stage::{Stage, with_log};

const NQN: &str = "nqn.2026-11.org.example:ha";
const GATEWAYS: [&str; 2] = ["gw1", "gw2"];
/// Namespaces, and the ANA group and image of each.
const NAMESPACES: [&str; 2] = ["1", "2"];
/// The programs, and the load as an example.
const BUILD: &str = "-p nvmeof-target -p nvmeof-cli -p nvmeof-initiator --bins \
                     --example verified_load";

/// Bound of each wait: an overloaded machine takes longer than an idle one.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Bound of the verification, which reads everything.
const VERIFIED: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(50);
/// How long I/O runs between two steps.
const WORK: Duration = Duration::from_secs(3);
/// Time between two lines of a wait.
const STILL: Duration = Duration::from_secs(10);
/// A Unix socket has at most this many bytes in its path.
const SOCKET: usize = 107;
/// Lines of each log after a failure.
const LOG_LINES: usize = 12;

pub(super) fn main(options: OfGateways) -> Outcome {
    let steps = Steps::start();
    steps.step("two gateways on a Ceph cluster; all of it ends with this demo");
    options.ports.into_iter().try_for_each(must_be_free)?;
    steps.step("Debian's packages of Ceph, 46 MB, unpacked and not installed");
    foreground(&steps, &mut ceph::unpack()).map_err(ceph::not_unpacked)?;
    setup::ensure(&[setup::RDMA])?;
    steps.step("build the programs; the first time takes minutes");
    foreground(&steps, &mut build(options.profile))?;
    // From here on the stage cleans up, however this function is left.
    let mut demo = Demo {
        stage: Stage::new(&run::build_dir(), "demo", options.folder)?,
        options,
        steps,
        variables: Vec::new(),
        loads: Vec::new(),
        table: Table::default(),
    };
    if let Err(failure) = demo.play() {
        return Err(demo.explained(failure));
    }
    let Demo {
        stage,
        steps,
        table,
        ..
    } = demo;
    let folder = stage.path("");
    drop(stage);
    steps.step(match folder.exists() {
        true => "everything has ended; the folder is kept",
        false => "everything has ended, and its folder is removed",
    });
    println!("\n{}", table.to_string().trim_end());
    Ok(())
}

fn must_be_free(port: u16) -> Outcome {
    let Err(error) = TcpListener::bind((ADDRESS, port)) else {
        return Ok(());
    };
    Err(Failure::Failed(steps::failure(&format!(
        "cannot listen on {ADDRESS}:{port}: {error}; stop the program that uses it, or choose \
         other ports with `cargo xtask demo --ceph --port N`"
    ))))
}

/// Runs a command with our own output.
fn foreground(steps: &Steps, command: &mut Command) -> Outcome {
    steps.types(command);
    let status = command.status();
    let status = status.map_err(|error| run::cannot_start(command, &error))?;
    Failure::unless_success(&run::line(command), status)
}

fn build(profile: Profile) -> Command {
    match profile {
        Profile::Release => profile.build(BUILD),
        Profile::Dev => run::cargo(&format!("build --locked {BUILD}")),
    }
}

struct Demo {
    options: OfGateways,
    stage: Stage,
    steps: Steps,
    /// Environment of the programs of Ceph, and of the gateways.
    variables: Vec<(String, String)>,
    /// One for each namespace.
    loads: Vec<Load>,
    table: Table,
}

impl Demo {
    fn play(&mut self) -> Outcome {
        self.start_cluster()?;
        for name in GATEWAYS {
            let text = format!("start gateway {name} on {ADDRESS}:{}", self.port(name));
            self.start_gateway(name, &text)?;
        }
        self.until("each gateway serves its group", TIMEOUT, |demo| {
            Ok(demo.state("gw1")?.filter(is_spread))
        })?;
        self.ctl("gw1", "ha")?;
        self.start_loads()?;
        let lost = self.kill_gateway()?;
        let took = self.take_over(lost)?;
        self.work()?;
        self.start_gateway("gw1", "start gw1 again; it takes no group back")?;
        self.until("gw1 is alive and serves no group", TIMEOUT, |demo| {
            Ok(demo.state("gw2")?.filter(|state| is_alive(state, "gw1")))
        })?;
        self.steps
            .step("move group 1 back; its images are closed first");
        self.ctl("gw2", "ha move 1 gw1")?;
        self.ctl("gw2", "ha")?;
        self.work()?;
        let counts = self.verify()?;
        self.rows(took, &counts);
        self.steps.step("stop both gateways");
        GATEWAYS
            .into_iter()
            .try_for_each(|name| self.stage.stop(&called(name)))?;
        self.steps.step("end the cluster");
        let folder = self.stage.cluster();
        self.tool(&mut ceph::stop(&folder)).map(drop)
    }

    fn start_cluster(&mut self) -> Outcome {
        self.steps
            .step("start a cluster: a monitor and an OSD, data in memory");
        let folder = self.stage.cluster();
        let mut up = ceph::up(&folder);
        for variable in ["PORT", "OSD_STORE", "OSD_SIZE"] {
            up.env_remove(variable);
        }
        let output = self.tool(&mut up)?;
        let ready = output.trim_end().lines().last().unwrap_or_default();
        self.steps.output(&relative(ready));
        self.variables = ceph::variables(&folder)?;
        self.steps
            .step("commands below have the environment of the cluster:");
        let env = run::line(&ceph::env(&folder));
        let env = relative(&env);
        self.steps.types_line(&format!("eval \"$({env})\""));
        self.steps
            .step("create an image for each of two ANA groups");
        for number in NAMESPACES {
            let mut create = run::command(ceph::program("rbd"));
            create.args(["create", "--size", "64M", &format!("rbd/g{number}")]);
            self.tool(&mut create)?;
        }
        Ok(())
    }

    fn start_gateway(&mut self, name: &str, what: &str) -> Outcome {
        self.steps.step(what);
        let config = self.stage.path(&format!("{name}.toml"));
        let text = self.configuration(name)?;
        fs::write(&config, text).map_err(|error| Failure::file("write", &config, &error))?;
        let mut serve = self.binary("nvmeof-target");
        serve.args(["serve", "--config"]).arg(config);
        self.steps.types(&serve);
        serve.envs(self.variables.iter().cloned());
        let log = self.log(name);
        self.stage.start(&called(name), &mut serve, &log).map(drop)
    }

    fn configuration(&self, name: &str) -> Outcome<String> {
        let variable = |wanted: &str| {
            let mut all = self.variables.iter().filter(|(name, _)| name == wanted);
            let found = all.next().map(|(_, value)| value.as_str());
            found.ok_or_else(|| Failure::Failed(format!("the cluster has no {wanted}")))
        };
        let socket = self.socket(name);
        if socket.as_os_str().len() > SOCKET {
            return Err(Failure::Failed(format!(
                "{}: the path of a socket has at most {SOCKET} bytes; set CARGO_TARGET_DIR to a \
                 folder with a shorter path",
                socket.display()
            )));
        }
        let conf = variable("CEPH_CONF")?;
        let keyring = variable("NVMEOF_CEPH_KEYRING")?;
        let socket = socket.display().to_string();
        Ok(toml(name, [conf, keyring, &socket], self.port(name)))
    }

    fn start_loads(&mut self) -> Outcome {
        self.steps
            .step("write, read and verify both images over both gateways");
        for nsid in NAMESPACES {
            let name = format!("the load of namespace {nsid}");
            let mut load = self.binary("examples/verified_load");
            load.args([NQN, nsid, "-"]);
            load.args(self.options.ports.map(|port| format!("{ADDRESS}:{port}")));
            self.steps.types(&load);
            let errors = self.log(&format!("load{nsid}.errors"));
            let errors =
                File::create(&errors).map_err(|error| Failure::file("create", &errors, &error))?;
            load.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(errors);
            let log = self.log(&format!("load{nsid}"));
            let child = self.stage.spawn(&name, &mut load)?;
            self.loads.push(Load::new(&name, child, &log)?);
        }
        self.until("the host is connected over all paths", TIMEOUT, |demo| {
            Ok(demo.loads.iter_mut().all(Load::is_connected).then_some(()))
        })?;
        self.work()
    }

    /// Lets I/O run.
    fn work(&mut self) -> Outcome {
        let seconds = WORK.as_secs();
        self.steps.step(&format!("I/O runs for {seconds} s"));
        let started = Instant::now();
        while started.elapsed() < WORK {
            self.check()?;
            sleep(PAUSE);
        }
        Ok(())
    }

    fn kill_gateway(&mut self) -> Outcome<Instant> {
        let name = called("gw1");
        let pid = self.stage.pid(&name)?;
        self.steps
            .step("kill gw1, which serves group 1; gw2 waits for its lease");
        self.steps.types_line(&format!("kill -KILL {pid}"));
        self.stage.kill(&name)
    }

    /// Waits for the first call after the loss of the owner; returns how long it took.
    fn take_over(&mut self, lost: Instant) -> Outcome<Duration> {
        let took = self.until("I/O on group 1 continues on gw2", TIMEOUT, |demo| {
            Ok(demo
                .loads
                .first_mut()
                .and_then(|load| load.first_after(lost)))
        })?;
        let seconds = took.as_secs_f64();
        let text = format!("first completed I/O {seconds:.1} s after the kill");
        self.steps.step(&text);
        self.ctl("gw2", "ha why 1")?;
        Ok(took)
    }

    /// Ends the loads, which verify everything that they have written.
    fn verify(&mut self) -> Outcome<Vec<Counts>> {
        self.steps.step("end I/O and verify all data");
        self.loads.iter_mut().for_each(Load::finish);
        let mut names: Vec<_> = self.loads.iter().map(|load| load.name.clone()).collect();
        self.until("all data are verified", VERIFIED, |demo| {
            let mut open = Vec::new();
            for name in names.drain(..) {
                match demo.stage.exited(&name)? {
                    Some(status) if !status.success() => {
                        return Err(Failure::Failed(format!("{name} failed: {status}")));
                    }
                    Some(_) => {}
                    None => open.push(name),
                }
            }
            names = open;
            Ok(names.is_empty().then_some(()))
        })?;
        self.loads.iter_mut().map(Load::result).collect()
    }

    fn rows(&mut self, took: Duration, counts: &[Counts]) {
        let table = &mut self.table;
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let what = "from the kill to the first completed I/O";
        table.row("takeover", &seconds(took), what);
        if let [first, second] = counts {
            let what = "sent again when gw2 had fenced gw1";
            table.row("writes in flight then", &seconds(first.longest_write), what);
            let longest = second.longest_read.max(second.longest_write);
            let what = "of namespace 2; gw2 was not killed";
            table.row("longest I/O", &format!("{} ms", longest.as_millis()), what);
        }
        let sum = |count: fn(&Counts) -> u64| counts.iter().map(count).sum::<u64>();
        let result = format!("{} writes", sum(|it| it.writes));
        let what = format!("{} reads, no error, no wrong data", sum(|it| it.reads));
        table.row("verified I/O", &result, &what);
    }

    /// `nvmeof-target ctl` with its output.
    fn ctl(&mut self, gateway: &str, command: &str) -> Outcome {
        let mut ctl = self.control(gateway);
        ctl.args(command.split(' '));
        let output = self.tool(&mut ctl)?;
        self.steps.output(&output);
        Ok(())
    }

    fn control(&self, gateway: &str) -> Command {
        let mut ctl = self.binary("nvmeof-target");
        ctl.args(["ctl", "--socket"]).arg(self.socket(gateway));
        ctl
    }

    /// `ctl ha` in JSON; `None` before the gateway responds.
    fn state(&self, gateway: &str) -> Outcome<Option<Value>> {
        let mut ctl = self.control(gateway);
        let output = ctl.args(["-o", "json", "ha"]).output();
        let output = output.map_err(|error| run::cannot_start(&ctl, &error))?;
        Ok(serde_json::from_slice(&output.stdout).ok())
    }

    /// Runs a command that ends soon; returns its output.
    fn tool(&mut self, command: &mut Command) -> Outcome<String> {
        self.steps.types(command);
        let name = run::line(command);
        command.envs(self.variables.iter().cloned());
        let file = self.stage.path("output");
        self.stage.spawn(&name, with_log(command, &file)?)?;
        let end = self.stage.wait(&name, TIMEOUT)?;
        let output = fs::read(&file).map_err(|error| Failure::file("read", &file, &error))?;
        let output = String::from_utf8_lossy(&output).into_owned();
        if let Some(status) = end
            && status.success()
        {
            return Ok(output);
        }
        let what = match end {
            Some(status) => status.to_string(),
            None => format!("it still runs after {} s", TIMEOUT.as_secs()),
        };
        Err(Failure::Failed(format!("`{name}`: {what}\n{output}")))
    }

    /// Repeats `poll` until it returns a value; prints what is then true.
    fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut poll: impl FnMut(&mut Self) -> Outcome<Option<T>>,
    ) -> Outcome<T> {
        let (started, mut printed) = (Instant::now(), Instant::now());
        while started.elapsed() < limit {
            if let Some(found) = poll(self)? {
                self.steps.step(what);
                return Ok(found);
            }
            self.check()?;
            if printed.elapsed() >= STILL {
                printed = Instant::now();
                self.steps.step(&format!("waiting until {what}"));
            }
            sleep(PAUSE);
        }
        let seconds = limit.as_secs();
        let what = format!("not reached within {seconds} s: {what}");
        Err(Failure::Failed(what))
    }

    /// Fails if a process has ended that should run.
    fn check(&mut self) -> Outcome {
        self.check_cluster()?;
        // Loads end when they are finished.
        for name in GATEWAYS.map(called) {
            let runs = self.stage.names().contains(&name);
            if let Some(status) = runs
                .then(|| self.stage.exited(&name))
                .transpose()?
                .flatten()
            {
                let what = format!("{name} ended unexpectedly: {status}");
                return Err(Failure::Failed(what));
            }
        }
        Ok(())
    }

    fn check_cluster(&self) -> Outcome {
        let pids = [("monitor", "MON"), ("OSD", "OSD")];
        for (what, variable) in pids {
            let name = format!("NVMEOF_CEPH_{variable}_PID");
            let pid = self.variables.iter().find(|(other, _)| *other == name);
            if let Some((_, pid)) = pid
                && !is_running(pid)
            {
                return Err(Failure::Failed(format!(
                    "the {what} of the cluster (process {pid}) has ended: it was killed, or the \
                     machine has too little memory (see `dmesg`); repeat the command"
                )));
            }
        }
        Ok(())
    }

    /// A failure with what is known about it: the end of each log, and a remedy.
    fn explained(&mut self, failure: Failure) -> Failure {
        // A dead cluster is the cause of all others.
        let failure = match (failure, self.check_cluster()) {
            (Failure::Interrupted, _) => return Failure::Interrupted,
            (_, Err(cause)) => return Failure::Failed(steps::failure(cause.text())),
            (failure, Ok(())) => failure,
        };
        let mut text = steps::failure(failure.text());
        for name in ["gw1", "gw2", "load1.errors", "load2.errors"] {
            let log = fs::read(self.log(name)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<_> = log.lines().collect();
            let last = lines.get(lines.len().saturating_sub(LOG_LINES)..);
            if let Some(last) = last.filter(|last| !last.is_empty()) {
                let last: Vec<_> = last.iter().map(|line| steps::cut(line)).collect();
                text += &format!("\n\nThe end of {name}.log:\n{}", last.join("\n"));
            }
        }
        text += "\n\nTo keep all files, repeat it with --keep.";
        Failure::Failed(text)
    }

    fn port(&self, gateway: &str) -> u16 {
        let [first, second] = self.options.ports;
        if gateway == "gw1" { first } else { second }
    }

    fn socket(&self, gateway: &str) -> PathBuf {
        self.stage.path(&format!("{gateway}.sock"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.stage.path(&format!("{name}.log"))
    }

    fn binary(&self, name: &str) -> Command {
        run::command(self.options.profile.folder().join(name))
    }
}

/// The name of the process of a gateway.
fn called(gateway: &str) -> String {
    format!("gateway {gateway}")
}

/// Whether a process runs; a zombie does not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| !state.starts_with('Z'))
}

/// Whether both gateways are alive and serve the group that prefers each.
fn is_spread(state: &Value) -> bool {
    let groups = state["groups"].as_array().into_iter().flatten();
    let owners = groups.map(|group| match group["phase"].as_str() {
        Some("serving") => group["owner"].as_str().unwrap_or_default(),
        _ => "",
    });
    owners.eq(GATEWAYS) && GATEWAYS.into_iter().all(|name| is_alive(state, name))
}

fn is_alive(state: &Value, gateway: &str) -> bool {
    let all = state["gateways"].as_array().into_iter().flatten();
    let mut named = all.filter(|one| one["gateway"] == gateway);
    named.any(|one| one["state"] == "alive")
}

/// The configuration of a gateway. Gateways differ in their names, addresses, sockets and
/// controller IDs.
fn toml(gateway: &str, [conf, keyring, socket]: [&str; 3], port: u16) -> String {
    let first = if gateway == "gw1" { 100 } else { 200 };
    let last = first + 99;
    let mut text = format!(
        "\
[ceph]
conf = '{conf}'
user = \"nvmeof\"
keyring = '{keyring}'

[control]
socket = '{socket}'

[ha]
gateway = \"{gateway}\"
record = \"rbd/nvmeof-ha\"

[[ha.group]]
id = 1
gateways = [\"gw1\", \"gw2\"]

[[ha.group]]
id = 2
gateways = [\"gw2\", \"gw1\"]

[[port]]
traddr = \"{ADDRESS}\"
trsvcid = {port}
provider = \"iwarp\"

[[subsystem]]
nqn = \"{NQN}\"
serial = \"HA1\"
allow_any_host = true
cntlid_min = {first}
cntlid_max = {last}
"
    );
    for number in NAMESPACES {
        text += &format!(
            "\n[[subsystem.namespace]]\nnsid = {number}\n\
             uuid = \"de300000-0000-4000-8000-00000000000{number}\"\n\
             path = \"rbd:rbd/g{number}\"\nana_group = {number}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_spread_when_both_gateways_serve() {
        let state = |owner: &str, phase: &str, state: &str| {
            serde_json::json!({
                "gateways": [{"gateway": "gw1", "state": "alive"},
                             {"gateway": "gw2", "state": state}],
                "groups": [{"owner": "gw1", "phase": "serving"},
                           {"owner": owner, "phase": phase}],
            })
        };
        assert!(is_spread(&state("gw2", "serving", "alive")));
        assert!(!is_spread(&state("gw1", "serving", "alive")));
        assert!(!is_spread(&state("gw2", "taking", "alive")));
        assert!(!is_spread(&state("gw2", "serving", "unknown")));
        assert!(!is_spread(&Value::Null));
    }

    #[test]
    fn gateways_differ_where_they_must() {
        let [one, two] = GATEWAYS.map(|name| toml(name, ["/c", "/k", "/s"], 1));
        let lines = one.lines().zip(two.lines());
        let different: Vec<_> = lines.filter(|(one, two)| one != two).collect();
        let keys = different.iter().map(|(one, _)| one.split(' ').next());
        let keys: Vec<_> = keys.flatten().collect();
        assert_eq!(keys, ["gateway", "cntlid_min", "cntlid_max"]);
    }

    #[test]
    fn used_port_is_a_failure_with_a_remedy() {
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let failure = must_be_free(port).unwrap_err();
        assert!(matches!(&failure, Failure::Failed(text) if text.contains("--port")));
        drop(listener);
        assert!(must_be_free(port).is_ok());
    }

    #[test]
    fn ended_process_does_not_run() {
        assert!(is_running(&std::process::id().to_string()));
        assert!(!is_running("0"));
    }
}
