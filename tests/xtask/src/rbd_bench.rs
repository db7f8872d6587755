//! `cargo xtask bench ceph`: an RBD image behind the target, beside fio's rbd engine on the same
//! image.

mod figures;
mod idle;

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ceph;
use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup;
use crate::stage::{Folder, Stage, with_log};
use figures::{Cell, Figure, Sample};
use idle::Usage;

const NQN: &str = "nqn.2026-11.org.example:rbd";
const TARGET: &str = "the target";
/// Large enough that random reads spread over 128 objects.
const IMAGE: &str = "512M";
const ROUNDS: u32 = 5;
const SECONDS: u32 = 3;
const MOST: u32 = 1000;
/// The providers that are compared with fio.
const PROVIDERS: [&str; 2] = ["iwarp", "shm"];

/// `[--rounds N] [--seconds N] [--profile NAME]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    rounds: u32,
    seconds: u32,
    profile: Profile,
}

fn parse(arguments: &[String]) -> Outcome<Options> {
    let mut options = Options {
        rounds: ROUNDS,
        seconds: SECONDS,
        profile: Profile::Release,
    };
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match argument {
            "--rounds" => options.rounds = number(argument, value)?,
            "--seconds" => options.seconds = number(argument, value)?,
            "--profile" => options.profile = Profile::parse(value)?,
            extra => return Err(Failure::unexpected(extra)),
        }
    }
    Ok(options)
}

fn number(option: &str, text: &str) -> Outcome<u32> {
    let number = text.parse().ok().filter(|it| (1..=MOST).contains(it));
    number.ok_or_else(|| Failure::Usage(format!("{option}: must be a number from 1 to {MOST}")))
}

/// Measures and prints the tables of docs/performance.md.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let options = parse(arguments)?;
    run::run(&mut ceph::unpack()).map_err(ceph::not_unpacked)?;
    setup::ensure(&[&[setup::FIO], setup::RDMA])?;
    run::run(&mut match options.profile {
        Profile::Release => Profile::Release.build("-p nvmeof-target -p nvmeof-cli"),
        Profile::Dev => run::cargo("build --locked -p nvmeof-target -p nvmeof-cli"),
    })?;
    // From here on the stage cleans up, however this function is left.
    let mut bench = Bench {
        options,
        stage: Stage::new(&run::build_dir(), "bench", Folder::Remove)?,
        variables: Vec::new(),
        port: free_port()?,
    };
    let result = bench.measure();
    let (figures, usage) = result.map_err(|failure| bench.with_log(failure))?;
    drop(bench);
    println!("\n{}", figures::table(&figures));
    println!("{usage}");
    Ok(())
}

fn free_port() -> Outcome<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let port = listener.and_then(|listener| Ok(listener.local_addr()?.port()));
    port.map_err(|error| Failure::Failed(format!("no port is free: {error}")))
}

struct Bench {
    options: Options,
    stage: Stage,
    variables: Vec<(String, String)>,
    port: u16,
}

impl Bench {
    fn measure(&mut self) -> Outcome<(Vec<Figure>, Usage)> {
        let folder = self.stage.cluster();
        run::run(&mut ceph::up(&folder))?;
        self.variables = ceph::variables(&folder)?;
        self.configure_fio()?;
        for image in ["a", "b"] {
            let mut create = self.with_cluster(run::command(ceph::program("rbd")));
            create.args(["create", "--size", IMAGE, &format!("rbd/{image}")]);
            // Not announced: the line has the whole environment.
            self.quietly(&mut create)?;
        }
        // Objects that do not exist are read without the store.
        println!("writing the whole image");
        let mut fill = self.fio("write");
        fill.args(["--bs=4M", "--iodepth=8"]);
        self.quietly(&mut fill)?;
        self.start_target()?;
        println!("idle for {} s", idle::TIME.as_secs());
        let usage = idle::measure(self.stage.pid(TARGET)?)?;
        let mut figures: Vec<_> = Cell::all().into_iter().map(Figure::new).collect();
        for round in 0..self.options.rounds {
            println!("round {} of {}", round + 1, self.options.rounds);
            for figure in &mut figures {
                let samples = self.round(figure.cell, round % 2 == 0)?;
                figure.add(samples);
            }
        }
        self.stage.stop(TARGET)?;
        Ok((figures, usage))
    }

    /// fio and each provider, one after the other; in every second round in reverse order.
    fn round(&mut self, cell: Cell, is_forward: bool) -> Outcome<[Sample; 3]> {
        if is_forward {
            let fio = self.fio_sample(cell)?;
            let [iwarp, shm] = PROVIDERS.map(|provider| self.our_sample(cell, provider));
            return Ok([fio, iwarp?, shm?]);
        }
        let (shm, iwarp) = (
            self.our_sample(cell, "shm")?,
            self.our_sample(cell, "iwarp")?,
        );
        Ok([self.fio_sample(cell)?, iwarp, shm])
    }

    /// The target releases the lock of the image meanwhile.
    fn fio_sample(&mut self, cell: Cell) -> Outcome<Sample> {
        self.ctl("disable")?;
        let mut fio = self.fio(cell.rw);
        fio.args(["--bs=4k", "--time_based", "--output-format=json"]);
        fio.arg(format!("--iodepth={}", cell.depth));
        fio.arg(format!("--runtime={}", self.options.seconds));
        let json = self.json(&mut fio);
        self.ctl("enable")?;
        let json = json?;
        let side = if cell.rw == "randread" {
            "read"
        } else {
            "write"
        };
        let job = json
            .pointer(&format!("/jobs/0/{side}"))
            .unwrap_or(&Value::Null);
        Sample::of(job).ok_or_else(|| Failure::Failed(format!("fio reports no figures: {json}")))
    }

    fn our_sample(&mut self, cell: Cell, provider: &str) -> Outcome<Sample> {
        let mut bench = self.binary("nvmeof");
        let (port, depth) = (self.port.to_string(), cell.depth.to_string());
        bench.args(["bench", "-a", "127.0.0.1", "-s", &port, "-n", NQN]);
        bench.args(["--provider", provider, "--namespace-id", "1"]);
        bench.args(["--rw", cell.rw, "--bs", "4k", "--iodepth", &depth]);
        if cell.depth > 1 {
            // The OSD needs the CPU that a host would poll on. As long as the async interface.
            bench.args(["--spin-us", "100"]);
        }
        bench.args(["--runtime", &self.options.seconds.to_string(), "-o", "json"]);
        bench.arg("--shm-folder").arg(self.stage.path("shm"));
        let json = self.json(&mut bench)?;
        Sample::of(&json)
            .ok_or_else(|| Failure::Failed(format!("nvmeof bench reports no figures: {json}")))
    }

    /// fio with a `ceph.conf` that disables the cache: its engine uses it otherwise.
    fn configure_fio(&self) -> Outcome {
        let given = self.stage.cluster().join("ceph.conf");
        let text = fs::read_to_string(&given);
        let text = text.map_err(|error| Failure::file("read", &given, &error))?;
        let file = self.fio_conf();
        fs::write(&file, format!("{text}\n[client]\nrbd_cache = false\n"))
            .map_err(|error| Failure::file("write", &file, &error))
    }

    fn fio_conf(&self) -> PathBuf {
        self.stage.path("fio.conf")
    }

    fn fio(&self, rw: &str) -> Command {
        let mut fio = self.with_cluster(run::command("fio"));
        fio.env("CEPH_CONF", self.fio_conf());
        // It writes files to its folder.
        fio.current_dir(self.stage.path(""));
        fio.args([
            "--name=a",
            "--ioengine=rbd",
            "--clientname=admin",
            "--pool=rbd",
        ]);
        fio.args(["--rbdname=a", &format!("--rw={rw}")]);
        fio
    }

    fn start_target(&mut self) -> Outcome {
        let file = self.stage.path("target.toml");
        let conf = self.stage.cluster().join("ceph.conf");
        let keyring = self.stage.cluster().join("client.nvmeof.keyring");
        let [conf, keyring] = [conf, keyring].map(|path| path.display().to_string());
        let (socket, shm) = (self.socket(), self.stage.path("shm"));
        let (socket, shm, port) = (socket.display(), shm.display(), self.port);
        let text = format!(
            "[ceph]\nconf = '{conf}'\nuser = \"nvmeof\"\nkeyring = '{keyring}'\n\
             [control]\nsocket = '{socket}'\n[shm]\nfolder = '{shm}'\n\
             [[port]]\ntraddr = \"127.0.0.1\"\ntrsvcid = {port}\nprovider = [\"iwarp\", \"shm\"]\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
             [[subsystem.namespace]]\nnsid = 1\npath = \"rbd:rbd/a\"\n\
             [[subsystem.namespace]]\nnsid = 2\npath = \"rbd:rbd/b\"\n"
        );
        fs::write(&file, text).map_err(|error| Failure::file("write", &file, &error))?;
        let mut serve = self.with_cluster(self.binary("nvmeof-target"));
        serve.args(["serve", "--config"]).arg(file);
        let log = self.stage.path("target.log");
        println!("{}", self.stage.start(TARGET, &mut serve, &log)?);
        Ok(())
    }

    fn ctl(&mut self, change: &str) -> Outcome {
        let mut ctl = self.binary("nvmeof-target");
        ctl.args(["ctl", "namespace", change, "1", "--socket"]);
        ctl.arg(self.socket());
        self.quietly(&mut ctl)
    }

    fn socket(&self) -> PathBuf {
        self.stage.path("target.sock")
    }

    fn binary(&self, name: &str) -> Command {
        run::command(self.options.profile.folder().join(name))
    }

    fn with_cluster(&self, mut command: Command) -> Command {
        command.envs(self.variables.iter().cloned());
        command
    }

    /// Runs a command without output, out of reach of Ctrl-C: it ends with the stage.
    fn quietly(&mut self, command: &mut Command) -> Outcome {
        let log = self.stage.path("output");
        self.finish(with_log(command, &log)?)
    }

    /// Runs a command that prints JSON.
    fn json(&mut self, command: &mut Command) -> Outcome<Value> {
        let file = self.stage.path("json");
        let errors = self.stage.path("output");
        let create = |path: &PathBuf| {
            fs::File::create(path).map_err(|error| Failure::file("create", path, &error))
        };
        command.stdin(Stdio::null());
        command.stdout(create(&file)?).stderr(create(&errors)?);
        self.finish(command)?;
        let text = fs::read_to_string(&file);
        let text = text.map_err(|error| Failure::file("read", &file, &error))?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::Failed(format!("output is not JSON: {error}\n{text}")))
    }

    fn finish(&mut self, command: &mut Command) -> Outcome {
        const NAME: &str = "the command";
        let program = command.get_program().to_string_lossy().into_owned();
        self.stage.spawn(NAME, command)?;
        let limit = idle::TIME * 6;
        let end = match self.stage.wait(NAME, limit)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => status.to_string(),
            None => format!("it still runs after {} s", limit.as_secs()),
        };
        let output = fs::read(self.stage.path("output")).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        Err(Failure::Failed(format!("{program}: {end}\n{output}")))
    }

    /// The failure with the log of the target.
    fn with_log(&self, failure: Failure) -> Failure {
        match (fs::read_to_string(self.stage.path("target.log")), failure) {
            (_, Failure::Interrupted) => Failure::Interrupted,
            (Err(_), failure) => failure,
            (Ok(log), failure) => {
                let cause = failure.text();
                Failure::Failed(format!("{cause}\nThe log of the target:\n{log}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let parse = |text: &str| {
            let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            parse(&words)
        };
        let options = parse("--seconds 1 --rounds 7 --profile dev").unwrap();
        let expected = Options {
            rounds: 7,
            seconds: 1,
            profile: Profile::Dev,
        };
        assert_eq!(options, expected);
        assert_eq!(parse("").unwrap().rounds, ROUNDS);
        for line in [
            "--rounds",
            "--rounds 0",
            "--seconds x",
            "now",
            "--rounds 1001",
        ] {
            assert!(matches!(parse(line), Err(Failure::Usage(_))), "{line}");
        }
    }
}
