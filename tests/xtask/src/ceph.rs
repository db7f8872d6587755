//! `cargo xtask ceph` and the step `ceph`: a Ceph cluster of one node, started by
//! `tests/ceph/one-node.sh`, for tests and for developers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::profile::Profile;
use crate::run::{self, Failure, Failures, Outcome};

/// The test programs of the step, each an argument list of cargo. The last one has slow tests.
const TESTS: &[&str] = &[
    "test --locked -p nvmeof-ceph --test cluster",
    // One after the other: some change the whole cluster.
    "test --locked -p nvmeof-backend --test rbd -- --test-threads=1",
    "test --locked -p nvmeof-target-manage --test rados -- --test-threads=1",
    "test --locked -p nvmeof-e2e --test rbd -- --test-threads=1",
    "test --locked -p nvmeof-e2e --test gateways -- --test-threads=1",
];

/// Starts and ends clusters; relative to the root folder.
pub(crate) const SCRIPT: &str = "tests/ceph/one-node.sh";

const HELP: &str = "\
Usage: cargo xtask ceph up | env | down
       cargo xtask ceph run COMMAND [ARGUMENT...]

A Ceph cluster of one monitor and one OSD, which listens on loopback and keeps
its data in memory. Debian's packages are unpacked to build/ceph/cache, not
installed.

  up     start the cluster in build/ceph/dev, until `down`
  env    print its environment as shell commands:
             eval \"$(cargo xtask ceph env)\"
  down   end its processes and remove its data
  run    start another cluster in build/ceph/run, run a command with its
         environment, and end it; the step `ceph` runs its tests like this

Variables: PORT, OSD_STORE and OSD_SIZE, see tests/ceph/one-node.sh help.

Exit status: 0 success, 1 a step failed, 2 usage or set-up error.
";

/// `cargo xtask ceph up|env|down|run`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["--help" | "-h", ..] => {
            print!("{HELP}");
            Ok(())
        }
        ["up"] => {
            packages()?;
            run::run(script("up").arg(cache()).arg(folder("dev")))?;
            println!("\nUse it: eval \"$(cargo xtask ceph env)\"\nEnd it: cargo xtask ceph down");
            Ok(())
        }
        ["env"] => {
            print!("{}", run::output(&mut env(&folder("dev")))?);
            Ok(())
        }
        ["down"] => run::run(script("down").arg(folder("dev"))),
        ["run", program, arguments @ ..] => {
            let mut command = run::command(program);
            command.args(arguments);
            with_cluster(&mut [command])
        }
        ["run"] => Err(Failure::Usage("ceph run: no command given".to_owned())),
        ["up" | "env" | "down", extra, ..] | [extra, ..] => Err(Failure::unexpected(extra)),
        [] => Err(Failure::Usage(HELP.to_owned())),
    }
}

/// The step of `cargo xtask test`, with the programs of a profile; complete, or without the slow
/// tests of gateways.
pub(crate) fn step(profile: Profile, is_complete: bool) -> Outcome {
    // Without effect after the step `build`; alone, this step must not test old binaries.
    run::run(&mut profile.build(""))?;
    let mut tests: Vec<Command> = TESTS.iter().copied().map(run::cargo).collect();
    for test in &mut tests {
        test.env("NVMEOF_BIN_DIR", profile.folder());
    }
    if let Some(gateways) = tests.last_mut().filter(|_| is_complete) {
        gateways.arg("--include-ignored");
    }
    with_cluster(&mut tests)
}

/// Runs all commands with the environment of a new cluster, also after failures.
fn with_cluster(commands: &mut [Command]) -> Outcome {
    packages()?;
    let cluster = Cluster::start()?;
    let variables = variables(&cluster.folder)?;
    let mut failures = Failures::default();
    for command in commands {
        // Without the variables: they are many, and useless once the cluster has ended.
        let line = run::line(command);
        println!("\n$ {line}");
        for (name, value) in &variables {
            command.env(name, value);
        }
        let status = command
            .status()
            .map_err(|error| run::cannot_start(command, &error))?;
        let outcome = Failure::unless_success(&line, status);
        failures.add(outcome.map_err(repeatable))?;
    }
    failures.into_outcome()
}

/// A command is repeated with a cluster of its own.
fn repeatable(failure: Failure) -> Failure {
    match failure {
        Failure::Commands { text, repeat } => Failure::Commands {
            text,
            repeat: repeat
                .into_iter()
                .map(|line| format!("cargo xtask ceph run {line}"))
                .collect(),
        },
        other => other,
    }
}

/// Downloads and unpacks the packages unless the cache is complete.
fn packages() -> Outcome {
    run::run(&mut unpack()).map_err(not_unpacked)
}

/// The command that downloads and unpacks the packages.
pub(crate) fn unpack() -> Command {
    let mut packages = script("packages");
    packages.arg(cache());
    packages
}

/// The failure of that command, with its remedy.
pub(crate) fn not_unpacked(failure: Failure) -> Failure {
    match failure {
        Failure::Interrupted => failure,
        _ => Failure::Failed(format!(
            "the packages of Ceph cannot be unpacked to {}; see above. The packages are \
             Debian's: check the network and /etc/apt/sources.list, then repeat the command",
            cache().display()
        )),
    }
}

/// The command that starts a cluster in `folder`, which ends with this program.
pub(crate) fn up(folder: &Path) -> Command {
    let owner = std::process::id().to_string();
    let mut up = script("up");
    up.arg(cache()).arg(folder).args(["--until-pid", &owner]);
    up
}

/// The command that prints the environment of that cluster as shell commands.
pub(crate) fn env(folder: &Path) -> Command {
    let mut env = script("env");
    env.arg(cache()).arg(folder);
    env
}

/// The command that ends that cluster and keeps its folder.
pub(crate) fn stop(folder: &Path) -> Command {
    let mut stop = script("stop");
    stop.arg(folder);
    stop
}

/// The variables that commands need to use the cluster in `folder`.
pub(crate) fn variables(folder: &Path) -> Outcome<Vec<(String, String)>> {
    Ok(parse(&run::output(env(folder).arg("--plain"))?))
}

/// A program of the packages.
pub(crate) fn program(name: &str) -> PathBuf {
    cache().join("bin").join(name)
}

/// A running cluster, which ends when this is dropped. If this program is killed first, the
/// watchdog of the script ends it.
struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    fn start() -> Outcome<Self> {
        let folder = folder("run");
        run::run(&mut up(&folder)).map_err(|failure| match failure {
            Failure::Interrupted => failure,
            _ => Failure::Failed("the Ceph cluster does not start; see above".to_owned()),
        })?;
        Ok(Self { folder })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The script reports errors; the watchdog tries again when this program has ended.
        drop(run::run(script("down").arg(&self.folder)));
    }
}

/// `NAME=VALUE` lines.
fn parse(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn script(subcommand: &str) -> Command {
    let mut script = run::command(SCRIPT);
    script.arg(subcommand);
    script
}

/// The folder of the packages.
pub(crate) fn cache() -> PathBuf {
    folder("cache")
}

fn folder(name: &str) -> PathBuf {
    run::build_dir().join("ceph").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_command_is_repeated_with_a_cluster() {
        let line = "cargo test -p nvmeof-ceph --test cluster";
        let failed = Failure::Commands {
            text: format!("`{line}`: exit status: 101"),
            repeat: vec![line.to_owned()],
        };
        let Failure::Commands { text, repeat } = repeatable(failed) else {
            panic!("it became another failure")
        };
        assert_eq!(text, format!("`{line}`: exit status: 101"));
        assert_eq!(repeat, [format!("cargo xtask ceph run {line}")]);
        assert!(matches!(
            repeatable(Failure::Interrupted),
            Failure::Interrupted
        ));
    }

    #[test]
    fn value_of_a_variable_may_contain_an_equals_sign() {
        let expected = [("A", "1"), ("B", "/x=y z")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        assert_eq!(parse("A=1\nB=/x=y z\n"), expected);
    }

    #[test]
    fn script_prints_its_help() {
        assert!(run::output(&mut script("help")).is_ok_and(|text| text.contains("until-pid")));
    }
}
