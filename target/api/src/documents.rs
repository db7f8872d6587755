//! What goes over the socket, as types.

use nvmeof_target_core::Disconnected;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::edit::Edit;
use crate::object::edits;

/// A whole configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentIn {
    /// What it is called in messages, such as the path of its file.
    pub name: String,
    /// TOML, as in the configuration file.
    pub text: String,
}

/// Changes of the configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditsIn {
    /// All of them are made, one after the other, or none is.
    #[serde(deserialize_with = "edits")]
    pub edits: Vec<Edit>,
    /// Whether to tell only what they would change.
    #[serde(default)]
    pub plan: bool,
}

/// Changes that are deferred, to be given up.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetIn {
    /// All of them go, or none.
    #[serde(deserialize_with = "edits")]
    pub edits: Vec<Edit>,
}

/// Whom to let go.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostIn {
    /// The host's name.
    pub host: String,
    /// Its controllers of this subsystem only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
}

/// What a change did, or would do.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct OutcomeOut {
    /// What differs: `subject` names it, `change` says how, `text` is for
    /// people.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Value>,
    /// Controllers that hosts lost by it.
    pub disconnected: Vec<Lost>,
    /// The edits as they were made, with what they left out filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// Changes made at run time that are dropped, because the document takes their place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Edit>,
    /// Whether it survives the process.
    pub saved: bool,
    /// What the administrator should know.
    pub warnings: Vec<String>,
}

/// A controller that a host lost.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct Lost {
    /// Its identifier.
    pub controller: u16,
    /// The host.
    pub host: String,
    /// The subsystem.
    pub subsystem: String,
    /// Why.
    pub why: String,
}

/// Controllers that were let go.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct LostOut {
    /// One after the other.
    pub disconnected: Vec<Lost>,
}

/// Where something was written.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct SavedOut {
    /// The file.
    pub file: String,
}

/// The document that is served.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct DocumentOut {
    /// What it is called in messages.
    pub name: String,
    /// TOML, as in the configuration file.
    pub text: String,
    /// The administrator's file.
    pub file: String,
    /// The document that was applied in its place.
    pub applied: Option<String>,
    /// Changes since, in order, those deferred included.
    pub edits: Vec<Edit>,
    /// Changes that do not fit the document at present.
    pub deferred: Vec<Deferred>,
}

/// What is served, and to whom.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct StatusOut {
    /// The target's version.
    pub version: String,
    /// In a few words.
    pub serving: String,
    /// Whether all hosts were let go and nothing is listened on.
    pub drained: bool,
    /// Why they were not, where a drain failed that was not taken back since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_drained: Option<String>,
    /// The administrator's file.
    pub file: String,
    /// The document that was applied in its place.
    pub applied: Option<String>,
    /// Changes since.
    pub edits: usize,
    /// Changes that do not fit at present.
    pub deferred: usize,
    /// Where changes are kept; none: they end with the process.
    pub state: Option<String>,
    /// Whether they are there.
    pub saved: bool,
    /// Where hosts connect.
    pub ports: Vec<PortOut>,
    /// What is configured and not served yet.
    #[serde(default)]
    pub waiting: Vec<WaitingOut>,
    /// What they find.
    pub subsystems: Vec<SubsystemOut>,
    /// Who is connected.
    pub controllers: Vec<ControllerOut>,
}

/// Something that is configured and not served yet. It is tried again.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct WaitingOut {
    /// `namespace`, `port` or `listener`.
    pub kind: String,
    /// What it is.
    pub name: String,
    /// Why it is not served, and what to do.
    pub why: String,
}

/// A port.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct PortOut {
    /// Port ID: its number in the discovery log.
    pub id: u16,
    /// Its address in use.
    pub address: String,
    /// What serves it.
    pub providers: String,
    /// ANA groups with a state; all others are optimized.
    pub ana_groups: Vec<AnaGroupOut>,
    /// Subsystems that are reached by it; none at all stands for all.
    pub subsystems: Option<Vec<String>>,
}

/// An ANA group on a port.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct AnaGroupOut {
    /// Its number.
    pub group: u32,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: String,
}

/// A subsystem.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct SubsystemOut {
    /// Its name.
    pub nqn: String,
    /// Hosts that may connect; none at all stands for every host.
    pub allowed_hosts: Option<Vec<String>>,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceOut>,
}

/// A namespace.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct NamespaceOut {
    /// Its number.
    pub nsid: u32,
    /// The file or block device, `ram:SIZE` or `null:SIZE`, as configured.
    pub path: String,
    /// Its size in bytes; 0 where it is switched off, and not known.
    pub bytes: u64,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Whether writes are refused by configuration.
    pub readonly: bool,
    /// `ready`; `faulted`: its storage is gone; `waiting`: its storage was not there at
    /// the start; `disabled`: it is switched off.
    pub state: String,
    /// What is said of a file that was deleted, renamed or replaced, and is still served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlinked: Option<String>,
    /// Its group for asymmetric namespace access.
    pub ana_group: u32,
    /// The state of that group; none at all: it differs between ports.
    pub ana_state: Option<String>,
    /// Hosts that it is there for; none at all stands for all that may connect.
    pub hosts: Option<Vec<String>>,
}

/// A controller that a host has connected.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ControllerOut {
    /// Its identifier.
    pub controller: u16,
    /// The host.
    pub host: String,
    /// The subsystem.
    pub subsystem: String,
    /// I/O queues that are connected.
    pub io_queues: usize,
}

impl From<&Disconnected> for Lost {
    fn from(lost: &Disconnected) -> Self {
        Self {
            controller: lost.cntlid,
            host: lost.hostnqn.as_str().to_owned(),
            subsystem: lost.subnqn.as_str().to_owned(),
            why: lost.reason.to_string(),
        }
    }
}

impl From<&[Disconnected]> for LostOut {
    fn from(lost: &[Disconnected]) -> Self {
        Self {
            disconnected: lost.iter().map(Lost::from).collect(),
        }
    }
}

/// An edit that does not fit the document at present. It is kept for when it
/// does again.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct Deferred {
    /// The edit.
    pub edit: Edit,
    /// Why it does not fit.
    pub why: String,
}

impl std::fmt::Display for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.edit, self.why)
    }
}
