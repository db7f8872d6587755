//! `nvmeof-target ctl`: shows and changes a running target.

mod edits;
mod ha;
mod keys;
mod lists;
mod print;
mod reservations;
#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use clap::{Args, Subcommand, ValueEnum};
use nvmeof_backend_spec::parse_size;
use nvmeof_rdma::explain;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use nvmeof_atomic_file::{ReadAccess, replace};
use nvmeof_target_api::{
    CallError, Caller, DocumentIn, DocumentOut, Edit, EditsIn, ForgetIn, HostIn, LostOut,
    OutcomeOut, Resize, SavedOut, StatusOut,
};

use crate::remedy::with_remedy;
use crate::{FAILED, USAGE};
pub(crate) use print::wrapped;

use edits::{Ana, Edits, Host, Namespace, Port, Referral, Subsystem};
use ha::OfHa;
use lists::List;
use reservations::OfReservations;

/// Shows and changes a running target over its control socket.
///
/// Changes are saved immediately and survive a restart. The configuration file
/// is not written.
#[derive(Debug, Args)]
pub struct Ctl {
    /// The control socket of the target.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "NVMEOF_CONTROL",
        default_value = "/run/nvmeof/control.sock"
    )]
    socket: PathBuf,
    /// Output format.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Normal)]
    output_format: Format,
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is served, and connected hosts.
    Status,
    /// Print the configuration that is served, with all changes.
    Show,
    /// Show what applying a file, or a reload, would change.
    Plan(Planned),
    /// Serve a file instead of the configuration file and all changes.
    Apply(OfFile),
    /// Read the configuration file again; keep run-time changes.
    Reload,
    /// List run-time changes, including deferred ones.
    Changes,
    /// Remove deferred changes.
    Forget(Forget),
    /// List, add, remove, resize, enable, disable or change namespaces.
    Namespace(Edits<Namespace>),
    /// List, allow or deny hosts, and set their keys.
    Host(Edits<Host>),
    /// List, add, remove or change ports.
    Port(Edits<Port>),
    /// List, add, remove or change subsystems.
    Subsystem(Edits<Subsystem>),
    /// Set the state of ANA groups.
    Ana(Edits<Ana>),
    /// Add or remove referrals to other discovery services.
    Referral(Edits<Referral>),
    /// Show, clear, export or import reservations of hosts.
    Reservations(OfReservations),
    /// Show high availability; move groups between gateways.
    Ha(OfHa),
    /// Delete the controllers of a host; it may reconnect.
    Disconnect(Disconnect),
    /// Stop listening, complete commands in flight, disconnect all hosts.
    Drain,
    /// Listen again after a drain.
    Resume,
    /// Save run-time changes, or the served configuration to a file.
    Save(Save),
}

#[derive(Debug, Args)]
struct OfFile {
    /// Configuration file (TOML), or - for standard input.
    file: PathBuf,
}

#[derive(Debug, Args)]
struct Planned {
    /// Configuration file (TOML), or - for standard input [default: what `ctl reload`
    /// would serve].
    file: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Forget {
    /// Numbers from `ctl changes`.
    #[arg(required = true, value_name = "NUMBER")]
    numbers: Vec<usize>,
}

#[derive(Debug, Args)]
struct Disconnect {
    /// NQN of the host.
    host: String,
    /// Only controllers of this subsystem.
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

#[derive(Debug, Args)]
struct Save {
    /// File for the served configuration.
    file: Option<PathBuf>,
    /// Replace an existing file.
    #[arg(long, requires = "file")]
    force: bool,
}

/// The error of a command.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{}", with_remedy(.0))]
    Call(#[from] CallError),
    #[error("{}: {why}", .file.display())]
    File { file: PathBuf, why: String },
    #[error("{0}")]
    Usage(String),
    /// An order was accepted and its effect did not appear.
    #[error("{0}")]
    NotDone(String),
}

/// Time limit of a request: a change waits for every reactor, a drain for commands in
/// flight.
const TIMEOUT: Duration = Duration::from_secs(1800);

impl Ctl {
    /// Runs the command. Exit status: 0 success, 1 failure, 2 usage error or
    /// configuration.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.ask() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print::error(&error, self.output_format == Format::Json);
                error.status().into()
            }
        }
    }

    fn ask(&self) -> Result<(), Failed> {
        if let Some(list) = List::of(&self.what)? {
            return self.list(list);
        }
        match &self.what {
            What::Status => self.get("/v1/status", print::status),
            What::Show => self.get("/v1/document", print::document),
            What::Plan(Planned { file: Some(file) }) => {
                self.post("/v1/plan", &document(file)?, print::planned)
            }
            What::Plan(Planned { file: None }) => {
                self.post("/v1/reload/plan", &Value::Null, print::planned)
            }
            What::Apply(OfFile { file }) => {
                self.post("/v1/apply", &document(file)?, print::changed)
            }
            What::Reload => self.post("/v1/reload", &Value::Null, print::changed),
            What::Changes => self.get("/v1/document", print::changes),
            What::Forget(Forget { numbers }) => self.forget(numbers),
            What::Namespace(Edits {
                what: Namespace::Resize(resize),
                plan,
            }) => {
                if *plan {
                    let what =
                        "--plan: not available for resize: a size is not part of the configuration";
                    return Err(Failed::Usage(what.to_owned()));
                }
                let size = resize.size.as_deref().map(parse_size).transpose();
                let size = size.map_err(|error| Failed::Usage(format!("SIZE: {error}")))?;
                let wanted = Resize {
                    subsystem: resize.subsystem.clone(),
                    nsid: resize.nsid,
                    size,
                    shrink: resize.shrink,
                };
                self.post("/v1/resize", &json!(wanted), print::changed)
            }
            What::Namespace(it) => self.edit(it.what.edits(), it.plan),
            What::Host(it) => self.edit(it.what.edits(), it.plan),
            What::Port(it) => self.edit(it.what.edits(), it.plan),
            What::Subsystem(it) => self.edit(it.what.edits(), it.plan),
            What::Ana(it) => self.edit(it.what.edits(), it.plan),
            What::Referral(it) => self.edit(it.what.edits(), it.plan),
            What::Disconnect(Disconnect { host, subsystem }) => {
                let (host, subsystem) = (host.clone(), subsystem.clone());
                self.post(
                    "/v1/disconnect",
                    &json!(HostIn { host, subsystem }),
                    print::lost,
                )
            }
            What::Reservations(it) => self.reservations(it),
            What::Ha(it) => self.ha(it),
            What::Drain => self.post("/v1/drain", &Value::Null, print::drained),
            What::Resume => self.post("/v1/resume", &Value::Null, print::status),
            What::Save(Save { file: None, .. }) => {
                self.post("/v1/save", &Value::Null, |saved: &SavedOut| {
                    format!("saved to {}\n", saved.file)
                })
            }
            What::Save(Save {
                file: Some(file),
                force,
            }) => self.save_to(file, *force),
        }
    }

    fn list(&self, list: List<'_>) -> Result<(), Failed> {
        let status = self.caller().ask(Method::GET, "/v1/status", None)?;
        let status: StatusOut = self.parsed(status)?;
        let subsystems = list.subsystems(&status)?;
        match self.output_format {
            Format::Json => print::out_json(&list.json(&subsystems, &status)),
            Format::Normal => print::out(&list.text(&subsystems, &status)),
        }
        Ok(())
    }

    fn edit(&self, edits: Vec<Edit>, plan: bool) -> Result<(), Failed> {
        let text = if plan { print::planned } else { print::changed };
        self.post("/v1/edits", &json!(EditsIn { edits, plan }), text)
    }

    /// Removes deferred changes by their numbers. The request has the changes themselves, so
    /// that no other one is removed if the list has changed in the meantime.
    fn forget(&self, numbers: &[usize]) -> Result<(), Failed> {
        let document = self.caller().ask(Method::GET, "/v1/document", None)?;
        let document: DocumentOut = self.parsed(document)?;
        let of = |number: &usize| {
            let at = number.checked_sub(1).and_then(|at| document.edits.get(at));
            let none =
                || format!("change {number} does not exist; `ctl changes` lists the numbers");
            at.cloned().ok_or_else(|| Failed::Usage(none()))
        };
        let edits = numbers.iter().map(of).collect::<Result<_, _>>()?;
        self.post("/v1/forget", &json!(ForgetIn { edits }), print::changed)
    }

    fn caller(&self) -> Caller {
        Caller::new(&self.socket, TIMEOUT)
    }

    fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failed> {
        let reply = self.caller().ask(Method::GET, path, None)?;
        self.print(reply, text)
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failed> {
        let reply = self.caller().ask(Method::POST, path, Some(body))?;
        self.print(reply, text)
    }

    fn print<T: DeserializeOwned>(
        &self,
        reply: Value,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failed> {
        if self.output_format == Format::Json {
            print::out_json(&reply);
        } else {
            print::out(&text(&self.parsed(reply)?));
        }
        Ok(())
    }

    fn parsed<T: DeserializeOwned>(&self, reply: Value) -> Result<T, Failed> {
        serde_json::from_value(reply).map_err(|error| Failed::File {
            file: self.socket.clone(),
            why: format!("unexpected response, perhaps of another version: {error}"),
        })
    }

    /// Writes the served configuration to a file with the rights of the caller, not those of
    /// the target.
    fn save_to(&self, file: &Path, force: bool) -> Result<(), Failed> {
        let reply = self.caller().ask(Method::GET, "/v1/document", None)?;
        let text = reply
            .get("text")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let wrong = |why: String| Failed::File {
            file: file.to_path_buf(),
            why,
        };
        if !force && file.exists() {
            return Err(wrong("exists already; --force replaces it".to_owned()));
        }
        let replaced = replace(file, text.as_bytes(), ReadAccess::Everybody);
        replaced.map_err(|error| wrong(explain(&error)))?;
        let saved = json!({ "file": file.display().to_string() });
        self.print(saved, |saved: &SavedOut| {
            format!("saved to {}\n", saved.file)
        })
    }
}

/// The request body with a configuration file.
fn document(file: &Path) -> Result<Value, Failed> {
    let name = if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        // Messages of the target name the file by its absolute path.
        let whole = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
        whole.display().to_string()
    };
    let text = read(file)?;
    Ok(json!(DocumentIn { name, text }))
}

/// The contents of a file, or of standard input for `-`.
fn read(file: &Path) -> Result<String, Failed> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(file)
    };
    read.map_err(|error| Failed::File {
        file: file.to_path_buf(),
        why: format!("cannot be read: {}", explain(&error)),
    })
}

impl Failed {
    fn status(&self) -> u8 {
        match self {
            // A conflict with the present state is not a usage error.
            Self::Call(CallError::Refused(status, _))
                if status.is_client_error() && *status != StatusCode::CONFLICT =>
            {
                USAGE
            }
            Self::Call(_) | Self::File { .. } | Self::NotDone(_) => FAILED,
            Self::Usage(_) => USAGE,
        }
    }
}
