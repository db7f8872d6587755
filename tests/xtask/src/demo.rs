//! `cargo xtask demo`: the main use of the project from beginning to end.
//!
//! The target exports a disk image with files, and the initiator uses it over software
//! iWARP. Each step is a command line of a user, which is printed before it runs. With `--ceph`,
//! two gateways serve images of a Ceph cluster, and one takes over from the other.

mod gateways;
mod image;
mod load;
mod options;
mod steps;
mod table;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::profile::Profile;
use crate::run::{self, Failure, Outcome};
use crate::setup;
use crate::stage::{Folder, Stage};
use options::Options;

use table::Table;

const NQN: &str = "nqn.2026-11.org.example:demo";
const ADDRESS: Ipv4Addr = Ipv4Addr::LOCALHOST;
const BENCH: &str = "--namespace-id 1 --rw randread --bs 4k --iodepth 32 --runtime 5 -o json";

/// The name of the target in messages.
const TARGET: &str = "the target";

/// `cargo xtask demo [--port N]`, or with `--ceph` that of two gateways.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    match options::parse(arguments)? {
        Options::Disk { port } => of_disk(port),
        Options::Ceph(options) => gateways::main(options),
    }
}

/// The demo of two gateways, for the step `ceph`.
pub(crate) fn of_gateways(profile: Profile) -> Outcome {
    gateways::main(options::for_tests(profile)?)
}

fn of_disk(port: u16) -> Outcome {
    must_be_free(port)?;
    setup::ensure(&[&[setup::E2FS], setup::RDMA])?;
    run::heading("build");
    run::run(&mut Profile::Release.build(""))?;
    // From here on the stage cleans up, however this function is left.
    let mut demo = Demo {
        port,
        stage: Stage::new(&run::build_dir(), "demo", Folder::Remove)?,
        table: Table::default(),
    };
    demo.play()
        .map_err(|failure| with_log(failure, &demo.log()))?;
    let Demo { table, stage, .. } = demo;
    drop(stage);
    run::heading("result");
    print!("{table}");
    Ok(())
}

fn must_be_free(port: u16) -> Outcome {
    TcpListener::bind((ADDRESS, port))
        .map(drop)
        .map_err(|error| {
            Failure::Usage(format!(
                "cannot listen on {ADDRESS}:{port}: {error}; choose another port with \
             `cargo xtask demo --port {}`",
                port.checked_add(1).unwrap_or(options::DISK_PORT)
            ))
        })
}

struct Demo {
    port: u16,
    stage: Stage,
    table: Table,
}

impl Demo {
    fn play(&mut self) -> Outcome {
        run::heading("create a disk image with files, and an empty disk");
        let disk = self.stage.path("disk.img");
        let second = self.stage.path("second.img");
        let files = image::make(&self.stage.path("tree"), &disk, &second)?;
        let files = format!("{files} files of this project");
        self.table.row("image", "64 MiB, ext4", &files);

        run::heading("start the target");
        self.start_target(&disk, &second)?;

        run::heading("discover and identify");
        run::run(&mut self.fabrics("discover"))?;
        run::run(&mut self.subsystem("id-ctrl"))?;
        run::run(&mut self.subsystem("list-ns"))?;

        run::heading("read the whole first namespace");
        let copy = self.stage.path("copy.img");
        let took = timed(&mut self.data("read", "1", &copy))?;
        self.compared("read, namespace 1", took, &disk, &copy)?;

        run::heading("write it to the second namespace and read it back");
        let took = timed(&mut self.data("write", "2", &disk))?;
        let back = self.stage.path("back.img");
        run::run(&mut self.data("read", "2", &back))?;
        self.compared("write, namespace 2", took, &disk, &back)?;
        run::run(run::command("e2fsck").arg("-fn").arg(&second))?;
        self.table.row("e2fsck, second disk", "clean", "");

        run::heading("measure random reads");
        self.bench()?;

        run::heading("stop the target");
        self.stage.stop(TARGET)?;
        image::must_be_equal(&disk, &second)?;
        self.table
            .row("target", "stopped", "by SIGTERM, exit status 0");
        Ok(())
    }

    /// Starts the target and waits until it is ready.
    fn start_target(&mut self, disk: &Path, second: &Path) -> Outcome {
        let config = self.stage.path("demo.toml");
        let text = target_toml(self.port, disk, second);
        println!("{text}");
        std::fs::write(&config, text).map_err(|error| Failure::file("write", &config, &error))?;
        let mut serve = binary("nvmeof-target");
        serve.arg("serve").arg("--config").arg(config);
        let log = self.log();
        run::announce(&serve);
        println!("{}", self.stage.start(TARGET, &mut serve, &log)?);
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.stage.path("target.log")
    }

    /// `nvmeof COMMAND` with the address of the target.
    fn fabrics(&self, command: &str) -> Command {
        let mut nvmeof = binary("nvmeof");
        let (address, port) = (ADDRESS.to_string(), self.port.to_string());
        nvmeof.args([command, "-t", "rdma", "-a", &address, "-s", &port]);
        nvmeof
    }

    /// `nvmeof COMMAND` with the address and the name of the subsystem.
    fn subsystem(&self, command: &str) -> Command {
        let mut nvmeof = self.fabrics(command);
        nvmeof.args(["-n", NQN]);
        nvmeof
    }

    /// `nvmeof read` or `write` of a whole namespace to or from a file.
    fn data(&self, command: &str, nsid: &str, file: &Path) -> Command {
        let mut nvmeof = self.subsystem(command);
        nvmeof.args(["--namespace-id", nsid, "--start-block", "0"]);
        nvmeof.arg("--data").arg(file);
        nvmeof
    }

    /// The row of a transfer, if it moved the right bytes.
    fn compared(&mut self, what: &str, took: Duration, sent: &Path, came: &Path) -> Outcome {
        let sum = image::must_be_equal(sent, came)?;
        self.table
            .row(what, &image::rate(took), &format!("equal, sha256 {sum}"));
        Ok(())
    }

    fn bench(&mut self) -> Outcome {
        let mut bench = self.subsystem("bench");
        bench.args(BENCH.split_whitespace());
        run::announce(&bench);
        let json = run::output(&mut bench)?;
        let number = |key: &str| {
            let missing = || format!("`nvmeof bench -o json` reports no `{key}`:\n{json}");
            table::number(&json, key).ok_or_else(|| Failure::Failed(missing()))
        };
        let micros = |key: &str| number(key).map(|nanos| format!("{:.0} µs", nanos / 1e3));
        let result = format!("{:.0} IOPS", number("iops")?);
        let details = format!(
            "{:.0} MiB/s; latency p50 {}, p99 {}, p99.9 {}",
            number("bytes_per_s")? / image::MIB,
            micros("p50")?,
            micros("p99")?,
            micros("p99_9")?
        );
        self.table.row("randread 4k, depth 32", &result, &details);
        Ok(())
    }
}

fn binary(name: &str) -> Command {
    run::command(Profile::Release.folder().join(name))
}

fn timed(command: &mut Command) -> Outcome<Duration> {
    let started = Instant::now();
    run::run(command.stdin(Stdio::null()))?;
    Ok(started.elapsed())
}

/// The failure with the log of the target, if it ran.
fn with_log(failure: Failure, log: &Path) -> Failure {
    let Ok(text) = std::fs::read_to_string(log) else {
        return failure;
    };
    let cause = failure.text();
    Failure::Failed(format!("{cause}\nThe log of the target:\n{text}"))
}

fn target_toml(port: u16, disk: &Path, second: &Path) -> String {
    let namespace = |nsid: u32, path: &Path| {
        // A literal string of TOML: no character in it needs an escape.
        format!(
            "\n[[subsystem.namespace]]\nnsid = {nsid}\npath = '{}'\n",
            path.display()
        )
    };
    format!(
        "[[port]]\ntraddr = \"{ADDRESS}\"\ntrsvcid = {port}\nprovider = \"iwarp\"\n\n\
         [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n{}{}",
        namespace(1, disk),
        namespace(2, second)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_port_is_refused_with_a_remedy() {
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let failure = must_be_free(port).unwrap_err();
        assert!(failure.to_string().contains("--port"), "{failure}");
        drop(listener);
        assert!(must_be_free(port).is_ok());
    }

    #[test]
    fn configuration_names_both_disks() {
        let text = target_toml(4420, Path::new("/a/one.img"), Path::new("/a/two.img"));
        assert!(text.contains("nsid = 1\npath = '/a/one.img'"), "{text}");
        assert!(text.contains("nsid = 2\npath = '/a/two.img'"), "{text}");
    }
}
