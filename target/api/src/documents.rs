//! Bodies of requests (`...In`) and responses (`...Out`).

use nvmeof_target_core::{
    Authenticated, AuthenticationCounts, AuthenticationOutcome, Disconnected,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::edit::Edit;
use crate::object::edits;

/// A whole configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DocumentIn {
    /// Its name in messages, such as the path of its file.
    pub name: String,
    /// TOML, as in the configuration file.
    pub text: String,
}

/// Run-time changes of the configuration.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditsIn {
    /// The changes, applied in order, all or none.
    #[serde(deserialize_with = "edits")]
    pub edits: Vec<Edit>,
    /// Whether to report the effect without the change.
    #[serde(default)]
    pub plan: bool,
}

/// Deferred changes to remove.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForgetIn {
    /// The changes, removed all or none.
    #[serde(deserialize_with = "edits")]
    pub edits: Vec<Edit>,
}

/// A host to disconnect.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostIn {
    /// NQN of the host.
    pub host: String,
    /// NQN of a subsystem: only its controllers are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
}

/// The effect of a change, or of a planned one.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct OutcomeOut {
    /// The differences: `subject` identifies the object, `change` is the kind of change, `text` is
    /// a readable description.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<Value>,
    /// Controllers that were deleted.
    pub disconnected: Vec<Lost>,
    /// The edits as they were applied, with defaults filled in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<Edit>,
    /// Run-time changes that the document replaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Edit>,
    /// Whether it is saved and survives a restart.
    pub saved: bool,
    /// Warnings for the administrator.
    pub warnings: Vec<String>,
}

/// A controller that was deleted.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct Lost {
    /// Controller ID.
    pub controller: u16,
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// The reason.
    pub why: String,
}

/// Controllers that were deleted.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct LostOut {
    /// The controllers.
    pub disconnected: Vec<Lost>,
}

/// The file that was written.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct SavedOut {
    /// Path of the file.
    pub file: String,
}

/// The served document.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct DocumentOut {
    /// Its name in messages.
    pub name: String,
    /// TOML, as in the configuration file.
    pub text: String,
    /// The configuration file.
    pub file: String,
    /// Name of the document that was applied instead.
    pub applied: Option<String>,
    /// Run-time changes in order, including deferred ones.
    pub edits: Vec<Edit>,
    /// Deferred changes.
    pub deferred: Vec<Deferred>,
}

/// Status of the target.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct StatusOut {
    /// Version of the target.
    pub version: String,
    /// Summary in one line.
    pub serving: String,
    /// Whether the target is drained: it has no hosts and does not listen.
    pub drained: bool,
    /// High availability in one line, if it is configured; `GET /v1/ha` has the details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high_availability: Option<String>,
    /// Why the last drain failed, unless the target was resumed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_drained: Option<String>,
    /// The configuration file.
    pub file: String,
    /// Name of the document that was applied instead.
    pub applied: Option<String>,
    /// Number of run-time changes, including deferred ones.
    pub edits: usize,
    /// Number of deferred changes.
    pub deferred: usize,
    /// The state file; without one, changes are lost when the target ends.
    pub state: Option<String>,
    /// Whether the state file has all changes.
    pub saved: bool,
    /// Ports.
    pub ports: Vec<PortOut>,
    /// Configured objects that are not served yet.
    #[serde(default)]
    pub waiting: Vec<WaitingOut>,
    /// Subsystems.
    pub subsystems: Vec<SubsystemOut>,
    /// Controllers of connected hosts.
    pub controllers: Vec<ControllerOut>,
    /// Hosts that have a key.
    #[serde(default)]
    pub host_keys: Vec<HostKeysOut>,
    /// Authentications of all hosts since the start, by outcome.
    #[serde(default)]
    pub authentications: Vec<OutcomeCount>,
    /// Warnings about controllers whose host cannot reconnect with its present key, or soon cannot.
    #[serde(default)]
    pub key_warnings: Vec<String>,
    /// Warnings about connected hosts with the same host identifier.
    #[serde(default)]
    pub host_id_warnings: Vec<String>,
}

/// A host that has a key.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct HostKeysOut {
    /// NQN of the host.
    pub host: String,
    /// Whether an old key is accepted, too.
    pub old_key: bool,
    /// When the old key ceases to be accepted, in UTC (RFC 3339); null: when it is removed.
    pub old_key_until: Option<String>,
    /// Whether the host can require that the controller authenticates, too.
    pub controller_key: bool,
    /// Authentications since it has a key, by outcome.
    pub authentications: Vec<OutcomeCount>,
}

/// How many authentications ended in one way.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutcomeCount {
    /// `success`, or why it failed: `no_key`, `wrong_key`, `unknown_key`, `no_controller_key`,
    /// `not_usable`, `protocol`, `timeout`, `refused_by_host` or `internal`.
    pub outcome: String,
    /// Their number.
    pub count: u64,
}

impl OutcomeCount {
    /// The number of authentications of each outcome.
    #[must_use]
    pub fn of(counts: AuthenticationCounts) -> Vec<Self> {
        let all = AuthenticationOutcome::ALL.into_iter();
        let all = all.map(|outcome| Self {
            outcome: outcome.name().to_owned(),
            count: counts.get(outcome),
        });
        all.collect()
    }
}

/// A configured object that is not served yet; the target retries it.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct WaitingOut {
    /// `namespace`, `port`, `listener` or `host_key`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// The cause and the remedy.
    pub why: String,
}

/// A port.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct PortOut {
    /// Port ID: its number in the discovery log.
    pub id: u16,
    /// Address in use.
    pub address: String,
    /// Names of the providers in use.
    pub providers: String,
    /// ANA groups with a configured state; all others are optimized.
    pub ana_groups: Vec<AnaGroupOut>,
    /// NQNs of subsystems that it serves; null: all.
    pub subsystems: Option<Vec<String>>,
}

/// An ANA group on a port.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct AnaGroupOut {
    /// ANA group ID.
    pub group: u32,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: String,
}

/// A subsystem.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct SubsystemOut {
    /// NQN.
    pub nqn: String,
    /// NQNs of hosts that may connect; null: every host.
    pub allowed_hosts: Option<Vec<String>>,
    /// Whether only hosts with a key may connect.
    #[serde(default)]
    pub require_authentication: bool,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceOut>,
}

/// A namespace.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct NamespaceOut {
    /// Namespace ID.
    pub nsid: u32,
    /// The file or block device, `ram:SIZE` or `null:SIZE`, as configured.
    pub path: String,
    /// Size in bytes; 0 if unknown, as of a disabled namespace.
    pub bytes: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Whether the configuration refuses writes.
    pub readonly: bool,
    /// `ready`; `faulted`: the backing store became unavailable; `waiting`: it was unavailable at
    /// the start; `disabled`.
    pub state: String,
    /// Remark on a file that was deleted, renamed or replaced and is still served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unlinked: Option<String>,
    /// ANA group ID.
    pub ana_group: u32,
    /// State of the ANA group; null: it differs between ports.
    pub ana_state: Option<String>,
    /// NQNs of hosts that can access it; null: all that may connect.
    pub hosts: Option<Vec<String>>,
}

/// A controller that a host has connected.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ControllerOut {
    /// Controller ID.
    pub controller: u16,
    /// NQN of the host.
    pub host: String,
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Number of connected I/O queues.
    pub io_queues: usize,
    /// How the host authenticated at the last time; null: it did not.
    #[serde(default)]
    pub authentication: Option<AuthenticationOut>,
}

/// How a host authenticated.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct AuthenticationOut {
    /// The key that it used: `current`, `old`, or `removed`: no key of the host any more.
    pub key: String,
    /// Hash function.
    pub hash: String,
    /// Group of the key exchange.
    pub group: String,
    /// Whether the controller authenticated, too.
    pub two_way: bool,
}

impl From<Authenticated> for AuthenticationOut {
    fn from(authenticated: Authenticated) -> Self {
        Self {
            key: authenticated.key.name().to_owned(),
            hash: authenticated.hash.name().to_owned(),
            group: authenticated.group.name().to_owned(),
            two_way: authenticated.is_mutual,
        }
    }
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

/// A change that does not fit the document at present. It is applied when it fits again.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct Deferred {
    /// The change.
    pub edit: Edit,
    /// Why it does not fit.
    pub why: String,
}

impl std::fmt::Display for Deferred {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.edit, self.why)
    }
}
