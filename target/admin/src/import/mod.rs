//! `nvmeof-target import`: converts a configuration of the Linux kernel target (nvmet), as
//! `nvmetcli save` writes it, into one of this target.
//!
//! Each item that cannot be imported is reported with a remedy. An item that is not
//! understood never extends the access of hosts.

mod hosts;
mod limits;
mod ports;
mod report;
mod saved;
mod store_probe;
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
use zeroize::Zeroizing;

use crate::complain;
use hosts::{Host, KeyFolder};
use nvmeof_target_config::{Config, on_unusual_names};
use ports::{Port, Referral};
use report::Report;
use saved::Object;
use store_probe::Probe;
use subsystems::Subsystem;

/// Longest file in bytes. One with ten thousand namespaces has a third of it.
const LONGEST_FILE: u64 = 16 << 20;

/// Converts the output of `nvmetcli save` into a configuration of this target.
/// Items that cannot be converted are reported on standard error, with a remedy.
#[derive(Debug, Args)]
pub struct Import {
    /// File written by nvmetcli, such as /etc/nvmet/config.json.
    file: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
    /// Write the configuration to a new file instead of printing it, and the keys of hosts to new
    /// files in the folder keys beside it.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

/// The import failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {}", path.display(), explain(.error))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        error: std::io::Error,
    },
    /// The file is longer than any configuration.
    #[error(
        "{}: has more than {LONGEST_FILE} bytes; the output of `nvmetcli save` is shorter",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file is not JSON.
    #[error("{}: is not the output of `nvmetcli save`: {error}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The error and its position.
        error: serde_json::Error,
    },
    /// Another target's configuration.
    #[error(
        "{}: is a configuration of SPDK (save_config), not of nvmetcli; write it by hand: \
         nvmf_subsystem_add_listener becomes a [[port]], nvmf_create_subsystem a [[subsystem]], \
         nvmf_subsystem_add_ns a [[subsystem.namespace]] with the path of its bdev, \
         nvmf_subsystem_add_host an entry of allowed_hosts, and with dhchap_key a [[host]] whose \
         key_file is the path of keyring_file_add_key",
        path.display()
    )]
    Spdk {
        /// The file.
        path: PathBuf,
    },
    /// There is neither a port nor a subsystem in it.
    #[error(
        "{}: has neither ports nor subsystems; is it the output of `nvmetcli save`?",
        path.display()
    )]
    Nothing {
        /// The file.
        path: PathBuf,
    },
    /// The configuration cannot be written.
    #[error(
        "{}: cannot be written: {}; an existing file is not replaced",
        path.display(),
        explain(.error)
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        error: std::io::Error,
    },
}

/// The imported configuration.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    /// NQN of the discovery subsystem, if it is not the well-known one.
    discovery: Option<Nqn>,
    ports: Vec<Port>,
    referrals: Vec<Referral>,
    hosts: Vec<Host>,
    subsystems: Vec<Subsystem>,
}

/// A configuration that can be written.
#[derive(Debug)]
struct Converted {
    text: String,
    report: Report,
    /// The hosts whose keys are written to `keys`.
    hosts: Vec<Host>,
    keys: KeyFolder,
}

impl Import {
    /// Runs the command. Exit status: 0 a configuration was written, 1 it has to be
    /// corrected before it can be served, 2 no configuration was written.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        match self.import() {
            Ok((converted, written)) => {
                self.print(&converted, &written);
                u8::from(!converted.report.is_good).into()
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

    /// The configuration, and the files with keys that were written.
    fn import(&self) -> Result<(Converted, Vec<PathBuf>), ImportError> {
        let bytes = Zeroizing::new(read(&self.file)?);
        let output = self.output.as_deref();
        let keys = KeyFolder::of(output).map_err(|error| ImportError::Write {
            path: self.output.clone().unwrap_or_default(),
            error,
        })?;
        let converted = converted(&self.file, &bytes, Probe(&store_probe::kind), keys)?;
        let mut written = Vec::new();
        if let Some(output) = output {
            let Converted {
                text, hosts, keys, ..
            } = &converted;
            let done = keys
                .write(hosts, &mut written)
                .and_then(|()| write_new(output, text).map_err(|error| (output.to_owned(), error)));
            if let Err((path, error)) = done {
                // Do not leave keys without their configuration.
                for file in written {
                    drop(fs::remove_file(file));
                }
                return Err(ImportError::Write { path, error });
            }
        }
        Ok((converted, written))
    }

    fn print(&self, converted: &Converted, written: &[PathBuf]) {
        let Converted { text, report, .. } = converted;
        if self.output_format == Format::Json {
            let output = self.output.as_ref().map(|path| path.display().to_string());
            let outcome = json!({
                "configuration": text,
                "output": output,
                "key_files": written.iter().map(|path| path.display().to_string())
                    .collect::<Vec<_>>(),
                "lost": report.losses(),
                "remarks": report.remarks,
                "more_remarks": report.more,
            });
            println!("{}", Json(&outcome.to_string()));
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

/// Converts the content of a file.
fn converted(
    path: &Path,
    bytes: &[u8],
    probe: Probe<'_>,
    keys: KeyFolder,
) -> Result<Converted, ImportError> {
    let path = || path.to_owned();
    let saved: Value = serde_json::from_slice(bytes).map_err(|error| ImportError::Json {
        path: path(),
        error,
    })?;
    if is_spdk(&saved) {
        return Err(ImportError::Spdk { path: path() });
    }
    let mut report = Report::default();
    let imported = convert(&saved, probe, &mut report);
    let imported = imported.ok_or_else(|| ImportError::Nothing { path: path() })?;
    let hosts = imported.hosts.iter();
    hosts.for_each(|host| host.report(&keys, &mut report));
    let text = text::of(&imported, &keys.path);
    check(&text, &mut report);
    Ok(Converted {
        text,
        report,
        hosts: imported.hosts,
        keys,
    })
}

/// Whether it is the output of `rpc.py save_config` of SPDK: a list of subsystems, each with
/// the calls that configure it.
fn is_spdk(saved: &Value) -> bool {
    let list = saved.get("subsystems").and_then(Value::as_array);
    let is_of_spdk = |one: &Value| one.get("subsystem").is_some_and(Value::is_string);
    list.is_some_and(|list| !list.is_empty() && list.iter().all(is_of_spdk))
}

/// Converts any bytes, for fuzzing; returns the configuration and the number of losses. The
/// file system is not accessed.
#[must_use]
pub fn fuzzed(bytes: &[u8]) -> Option<(String, usize)> {
    let nothing = |_: &Path| store_probe::Kind::Unknown;
    let keys = KeyFolder::service();
    let converted = converted(Path::new("nvmet.json"), bytes, Probe(&nothing), keys).ok()?;
    Some((converted.text, converted.report.losses()))
}

/// Checks the configuration as a whole: two namespaces may have the same identifier, for
/// example. Files are not accessed.
fn check(text: &str, report: &mut Report) {
    match Config::parse(Path::new("configuration"), text.to_owned()) {
        Ok(config) => {
            if let Some(remark) = on_unusual_names(config.unusual_names()) {
                report.note("names", &remark, "");
            }
        }
        Err(error) => {
            report.is_good = false;
            let what = format!("is not valid: {error}");
            report.lost("configuration", &what, "correct this line");
        }
    }
}

/// `None`: there are neither ports nor subsystems.
fn convert(saved: &Value, probe: Probe<'_>, report: &mut Report) -> Option<Imported> {
    let known = |key| saved.get(key).is_some_and(Value::is_array);
    if !known("ports") && !known("subsystems") {
        return None;
    }
    let mut root = Object::new(String::new(), saved, report)?;
    let discovery = subsystems::read_discovery(&mut root, report);
    let (ports, referrals) = ports::read(&mut root, report);
    let subsystems = subsystems::read(&mut root, probe, report);
    let hosts = hosts::read(&mut root, report);
    root.finish(report);
    let mut imported = Imported {
        discovery,
        ports,
        referrals,
        hosts,
        subsystems,
    };
    imported.drop_unreachable(report);
    imported.report_limits(report);
    imported.report_authentication(report);
    if imported.ports.is_empty() {
        let remedy = "add a [[port]] with traddr = \"127.0.0.1\", for example";
        report.lost("ports", "no port can be served", remedy);
    }
    Some(imported)
}

impl Imported {
    /// Drops subsystems without a port, and ports without a subsystem.
    fn drop_unreachable(&mut self, report: &mut Report) {
        let ports = &self.ports;
        self.subsystems.retain(|subsystem| {
            let mut ports = ports.iter();
            let reached = ports.any(|port| port.subsystems.contains(&subsystem.nqn));
            if !reached {
                let what = "no imported port exports it";
                let remedy = "it is left out, so that other ports do not export it";
                report.lost(&subsystem.location, what, remedy);
            }
            reached
        });
        let known: BTreeSet<&str> = self.subsystems.iter().map(|it| it.nqn.as_str()).collect();
        self.ports.retain_mut(|port| {
            let location = format!("{}.subsystems", port.location);
            port.subsystems.retain(|nqn| {
                let is_known = known.contains(nqn.as_str());
                if !is_known {
                    let what = format!("there is no subsystem {}", report::quoted(nqn));
                    report.lost(&location, &what, "add it");
                }
                is_known
            });
            !port.subsystems.is_empty()
        });
    }

    /// nvmet does not authenticate hosts of subsystems with `allow_any_host`.
    fn report_authentication(&self, report: &mut Report) {
        let open = self.subsystems.iter().find(|it| it.allow_any_host);
        if let Some(subsystem) = open.filter(|_| !self.hosts.is_empty()) {
            let what = "nvmet authenticates no host of a subsystem with allow_any_host";
            let remedy = "this target authenticates each host with a key in every subsystem";
            report.note(
                &format!("{}.attr.allow_any_host", subsystem.location),
                what,
                remedy,
            );
        }
    }

    /// The ANA groups of all namespaces.
    fn groups(&self) -> Vec<u32> {
        let namespaces = self.subsystems.iter().flat_map(|it| &it.namespaces);
        let groups: BTreeSet<u32> = namespaces.map(|it| it.ana_group).collect();
        groups.into_iter().filter(|group| *group > 0).collect()
    }

    /// Whether any path differs from the others.
    fn has_ana(&self) -> bool {
        let groups = self.groups();
        let differs = |port: &Port| !text::states(port, &groups).is_empty();
        groups.iter().any(|group| *group > 1) || self.ports.iter().any(differs)
    }

    /// The largest in-capsule data size of a port, if it is larger than the default.
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

/// Creates a file, which must not exist, completely or not at all.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    if written.is_err() {
        // Do not leave an incomplete configuration.
        drop(fs::remove_file(path));
    }
    written
}
