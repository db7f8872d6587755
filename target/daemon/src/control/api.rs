//! What goes over the socket, as types.

use nvmeof_target_core::Disconnected;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::object::edits;
use crate::changes::{Aside, Edit};

/// A whole configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentIn {
    /// What it is called in messages, such as the path of its file.
    pub(crate) name: String,
    /// TOML, as in the configuration file.
    pub(crate) text: String,
}

/// Changes of the configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditsIn {
    /// All of them are made, one after the other, or none is.
    #[serde(deserialize_with = "edits")]
    pub(crate) edits: Vec<Edit>,
    /// Whether to tell only what they would change.
    #[serde(default)]
    pub(crate) plan: bool,
}

/// Changes that are put aside, to be given up.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetIn {
    /// All of them go, or none.
    #[serde(deserialize_with = "edits")]
    pub(crate) edits: Vec<Edit>,
}

/// Whom to let go.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostIn {
    /// The host's name.
    pub(crate) host: String,
    /// Its controllers of this subsystem only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subsystem: Option<String>,
}

/// What a change did, or would do.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
pub(crate) struct OutcomeOut {
    /// What differs: `subject` names it, `change` says how, `text` is for
    /// people.
    #[schema(value_type = Vec<Object>)]
    pub(crate) changes: Vec<Value>,
    /// Controllers that hosts lost by it.
    pub(crate) disconnected: Vec<Lost>,
    /// The edits as they were made, with what they left out filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) edits: Vec<Edit>,
    /// Whether it survives the process.
    pub(crate) saved: bool,
    /// What the administrator should know.
    pub(crate) warnings: Vec<String>,
}

/// A controller that a host lost.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct Lost {
    /// Its identifier.
    pub(crate) controller: u16,
    /// The host.
    pub(crate) host: String,
    /// The subsystem.
    pub(crate) subsystem: String,
    /// Why.
    pub(crate) why: String,
}

/// Controllers that were let go.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct LostOut {
    /// One after the other.
    pub(crate) disconnected: Vec<Lost>,
}

/// Where something was written.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct SavedOut {
    /// The file.
    pub(crate) file: String,
}

/// The document that is served.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct DocumentOut {
    /// What it is called in messages.
    pub(crate) name: String,
    /// TOML, as in the configuration file.
    pub(crate) text: String,
    /// The administrator's file.
    pub(crate) file: String,
    /// The document that was applied in its place.
    pub(crate) applied: Option<String>,
    /// Changes since, in order, those put aside included.
    pub(crate) edits: Vec<Edit>,
    /// Changes that do not fit the document at present.
    pub(crate) aside: Vec<Aside>,
}

/// What is served, and to whom.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct StatusOut {
    /// The target's version.
    pub(crate) version: String,
    /// In a few words.
    pub(crate) serving: String,
    /// Whether all hosts were let go and nothing is listened on.
    pub(crate) drained: bool,
    /// Why they were not, where a drain failed that was not taken back since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_drained: Option<String>,
    /// The administrator's file.
    pub(crate) file: String,
    /// The document that was applied in its place.
    pub(crate) applied: Option<String>,
    /// Changes since.
    pub(crate) edits: usize,
    /// Changes that do not fit at present.
    pub(crate) aside: usize,
    /// Where changes are kept; none: they end with the process.
    pub(crate) state: Option<String>,
    /// Whether they are there.
    pub(crate) saved: bool,
    /// Where hosts connect.
    pub(crate) ports: Vec<PortOut>,
    /// What is configured and not served yet.
    #[serde(default)]
    pub(crate) waiting: Vec<WaitingOut>,
    /// What they find.
    pub(crate) subsystems: Vec<SubsystemOut>,
    /// Who is connected.
    pub(crate) controllers: Vec<ControllerOut>,
}

/// Something that is configured and not served yet. It is tried again.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct WaitingOut {
    /// `namespace`, `port` or `listener`.
    pub(crate) kind: String,
    /// What it is.
    pub(crate) name: String,
    /// Why it is not served, and what to do.
    pub(crate) why: String,
}

/// A port.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct PortOut {
    /// Its address in use.
    pub(crate) address: String,
    /// What serves it.
    pub(crate) providers: String,
}

/// A subsystem.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct SubsystemOut {
    /// Its name.
    pub(crate) nqn: String,
    /// Hosts that may connect; none at all stands for every host.
    pub(crate) allowed_hosts: Option<Vec<String>>,
    /// Its namespaces.
    pub(crate) namespaces: Vec<NamespaceOut>,
}

/// A namespace.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct NamespaceOut {
    /// Its number.
    pub(crate) nsid: u32,
    /// Its size in bytes; 0 where it is switched off, and not known.
    pub(crate) bytes: u64,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    /// Whether writes are refused by configuration.
    pub(crate) readonly: bool,
    /// `ready`; `faulted`: its storage is gone; `waiting`: its storage was not there at
    /// the start; `disabled`: it is switched off.
    pub(crate) state: String,
    /// What is said of a file that was deleted, renamed or replaced, and is still served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unlinked: Option<String>,
    /// Its group for asymmetric namespace access.
    pub(crate) ana_group: u32,
    /// Hosts that it is there for; none at all stands for all that may connect.
    pub(crate) hosts: Option<Vec<String>>,
}

/// A controller that a host has connected.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct ControllerOut {
    /// Its identifier.
    pub(crate) controller: u16,
    /// The host.
    pub(crate) host: String,
    /// The subsystem.
    pub(crate) subsystem: String,
    /// I/O queues that are connected.
    pub(crate) io_queues: usize,
}

impl From<&Disconnected> for Lost {
    fn from(lost: &Disconnected) -> Self {
        Self {
            controller: lost.cntlid,
            host: lost.hostnqn.as_str().to_owned(),
            subsystem: lost.subnqn.as_str().to_owned(),
            why: lost.why.to_string(),
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
