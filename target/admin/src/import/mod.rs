//! `nvmeof-target import`: the configuration of the Linux kernel's target, as
//! `nvmetcli save` writes it, becomes one of ours.
//!
//! What cannot come along is told, item by item, with what to do about it. An
//! item that is not understood is never taken for one that gives hosts more.

mod disks;
mod limits;
mod ports;
mod report;
mod saved;
mod subsystems;
#[cfg(test)]
mod tests;
mod text;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use nvmeof_rdma::explain;
use nvmeof_wire::Nqn;
use nvmeof_wire::text::Json;
use serde_json::{Value, json};

use crate::complain;
use disks::Disks;
use nvmeof_target_config::{Config, on_unusual_names};
use ports::{Port, Referral};
use report::Report;
use saved::Object;
use subsystems::Subsystem;

/// Bytes of a file, at most. One of ten thousand namespaces has a third of it.
const LONGEST_FILE: u64 = 16 << 20;

/// Converts the output of `nvmetcli save` into a configuration of this target.
/// What cannot be converted is reported on standard error, with a remedy.
#[derive(Debug, Args)]
pub struct Import {
    /// File of nvmetcli, such as /etc/nvmet/config.json.
    file: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
    /// Write the configuration to a new file instead of printing it.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {}", path.display(), explain(.error))]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The file is longer than any configuration.
    #[error(
        "{}: has more than {LONGEST_FILE} bytes; a configuration that nvmetcli saved is shorter",
        path.display()
    )]
    TooLong {
        /// Which file.
        path: PathBuf,
    },
    /// The file is no JSON.
    #[error("{}: is not what nvmetcli saves: {error}", path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        error: serde_json::Error,
    },
    /// Another target's configuration.
    #[error(
        "{}: is a configuration of SPDK (save_config), not of nvmetcli; write it by hand: \
         nvmf_subsystem_add_listener becomes a [[port]], nvmf_create_subsystem a [[subsystem]], \
         nvmf_subsystem_add_ns a [[subsystem.namespace]] with the path of its bdev, \
         nvmf_subsystem_add_host an entry of allowed_hosts",
        path.display()
    )]
    Spdk {
        /// Which file.
        path: PathBuf,
    },
    /// There is neither a port nor a subsystem in it.
    #[error(
        "{}: has neither ports nor subsystems: is it what nvmetcli saved?",
        path.display()
    )]
    Nothing {
        /// Which file.
        path: PathBuf,
    },
    /// The configuration cannot be written.
    #[error(
        "{}: cannot be written: {}; a file that is there is not replaced",
        path.display(),
        explain(.error)
    )]
    Write {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
}

/// What comes along.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// Name of the discovery subsystem, if it has one of its own.
    discovery: Option<Nqn>,
    ports: Vec<Port>,
    referrals: Vec<Referral>,
    subsystems: Vec<Subsystem>,
}

impl Import {
    /// Does what the command line says. Exit status: 0 a configuration was
    /// made, 1 it has to be corrected before it can be served, 2 none was made.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.import() {
            Ok((text, report)) => {
                self.tell(&text, &report);
                u8::from(!report.is_good).into()
            }
            Err(error) => {
                if self.output_format == Format::Json {
                    let error = json!({ "error": error.to_string() });
                    println!("{}", Json(&error.to_string()));
                } else {
                    complain(&error);
                }
                ExitCode::from(2)
            }
        }
    }

    fn import(&self) -> Result<(String, Report), ImportError> {
        let bytes = read(&self.file)?;
        let (text, report) = converted(&self.file, &bytes, Disks(&disks::kind))?;
        if let Some(output) = &self.output {
            write_new(output, &text).map_err(|error| ImportError::Write {
                path: output.clone(),
                error,
            })?;
        }
        Ok((text, report))
    }

    fn tell(&self, text: &str, report: &Report) {
        if self.output_format == Format::Json {
            let output = self.output.as_ref().map(|path| path.display().to_string());
            let told = json!({
                "configuration": text,
                "output": output,
                "lost": report.losses(),
                "remarks": report.remarks,
                "more_remarks": report.more,
            });
            println!("{}", Json(&told.to_string()));
            return;
        }
        for remark in &report.remarks {
            complain(remark);
        }
        if report.more > 0 {
            eprintln!("nvmeof-target: and {} more remarks", report.more);
        }
        match &self.output {
            Some(path) => {
                let path = path.display();
                println!("{path}: written; check it with `nvmeof-target check-config {path}`");
            }
            None => print!("{text}"),
        }
    }
}

/// The configuration that a file of these bytes becomes, and what is told of it.
fn converted(path: &Path, bytes: &[u8], disks: Disks<'_>) -> Result<(String, Report), ImportError> {
    let path = || path.to_owned();
    let saved: Value = serde_json::from_slice(bytes).map_err(|error| ImportError::Json {
        path: path(),
        error,
    })?;
    if is_spdk(&saved) {
        return Err(ImportError::Spdk { path: path() });
    }
    let mut report = Report::default();
    let carried = convert(&saved, disks, &mut report);
    let carried = carried.ok_or_else(|| ImportError::Nothing { path: path() })?;
    let text = text::of(&carried);
    check(&text, &mut report);
    Ok((text, report))
}

/// Whether it is what `rpc.py save_config` of SPDK prints: a list of its subsystems, each
/// with the calls that configure it.
fn is_spdk(saved: &Value) -> bool {
    let list = saved.get("subsystems").and_then(Value::as_array);
    let is_of_spdk = |one: &Value| one.get("subsystem").is_some_and(Value::is_string);
    list.is_some_and(|list| !list.is_empty() && list.iter().all(is_of_spdk))
}

/// Reads any bytes as a file that nvmetcli saved; returns the configuration and
/// how much was lost. Nothing of the machine is looked at.
#[must_use]
pub fn fuzzed(bytes: &[u8]) -> Option<(String, usize)> {
    let nothing = |_: &Path| disks::Kind::Unknown;
    let (text, report) = converted(Path::new("nvmet.json"), bytes, Disks(&nothing)).ok()?;
    Some((text, report.losses()))
}

/// What was saved may be wrong in ways that only show together, such as an
/// identifier that two namespaces have. Files are not looked at.
fn check(text: &str, report: &mut Report) {
    match Config::parse(Path::new("configuration"), text.to_owned()) {
        Ok(config) => {
            if let Some(remark) = on_unusual_names(config.unusual_names()) {
                report.note("names", &remark, "");
            }
        }
        Err(error) => {
            report.is_good = false;
            let what = format!("is not good: {error}");
            report.lost("configuration", &what, "correct that line of it");
        }
    }
}

/// `None` where there is nothing that could be one of nvmetcli's.
fn convert(saved: &Value, disks: Disks<'_>, report: &mut Report) -> Option<Carried> {
    let known = |key| saved.get(key).is_some_and(Value::is_array);
    if !known("ports") && !known("subsystems") {
        return None;
    }
    let mut root = Object::new(String::new(), saved, report)?;
    let discovery = subsystems::read_discovery(&mut root, report);
    let (ports, referrals) = ports::read(&mut root, report);
    let subsystems = subsystems::read(&mut root, disks, report);
    subsystems::read_hosts(&mut root, report);
    root.finish(report);
    let mut carried = Carried {
        discovery,
        ports,
        referrals,
        subsystems,
    };
    carried.keep_what_is_reached(report);
    carried.tell_of_limits(report);
    if carried.ports.is_empty() {
        let remedy = "add a [[port]] with traddr = \"127.0.0.1\", for example";
        report.lost("ports", "no port can be served", remedy);
    }
    Some(carried)
}

impl Carried {
    /// Only subsystems that some port leads to, and ports that lead to some.
    fn keep_what_is_reached(&mut self, report: &mut Report) {
        let ports = &self.ports;
        self.subsystems.retain(|subsystem| {
            let mut ports = ports.iter();
            let reached = ports.any(|port| port.subsystems.contains(&subsystem.nqn));
            if !reached {
                let what = "no port that is carried over leads to it";
                let remedy = "it is left out, so that hosts do not find what they could not reach";
                report.lost(&subsystem.place, what, remedy);
            }
            reached
        });
        let known: BTreeSet<&str> = self.subsystems.iter().map(|it| it.nqn.as_str()).collect();
        self.ports.retain_mut(|port| {
            let place = format!("{}.subsystems", port.place);
            port.subsystems.retain(|nqn| {
                let there = known.contains(nqn.as_str());
                if !there {
                    let what = format!("there is no subsystem {}", report::quoted(nqn));
                    report.lost(&place, &what, "add it");
                }
                there
            });
            !port.subsystems.is_empty()
        });
    }

    /// Every ANA group that a namespace is in, once.
    fn groups(&self) -> Vec<u32> {
        let namespaces = self.subsystems.iter().flat_map(|it| &it.namespaces);
        let groups: BTreeSet<u32> = namespaces.map(|it| it.ana_group).collect();
        groups.into_iter().filter(|group| *group > 0).collect()
    }

    /// Whether hosts are told of anything but paths that are all the same.
    fn has_ana(&self) -> bool {
        let groups = self.groups();
        let differs = |port: &Port| !text::states(port, &groups).is_empty();
        groups.iter().any(|group| *group > 1) || self.ports.iter().any(differs)
    }

    /// Bytes of in-capsule data of the port with the most, where that is more than
    /// usual.
    fn long_capsules(&self) -> Option<u32> {
        let all = self.ports.iter().filter_map(|it| it.in_capsule);
        all.max().filter(|bytes| *bytes > ports::IN_CAPSULE)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ImportError> {
    let unreadable = |error| ImportError::Read {
        path: path.to_owned(),
        error,
    };
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let mut limited = file.take(LONGEST_FILE + 1);
    limited.read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len <= LONGEST_FILE) {
        return Ok(bytes);
    }
    Err(ImportError::TooLong {
        path: path.to_owned(),
    })
}

/// Writes a file that must not be there yet, all of it or nothing.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a configuration is worse than none.
        drop(fs::remove_file(path));
    }
    written
}
