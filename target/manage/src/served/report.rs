//! Plans and reports of changes, as text and as JSON.

use std::fmt;

use nvmeof_target_core::{Change, ChangeKind, Disconnected, Subject};
use serde_json::{Value, json};

use nvmeof_target_config::ConfigError;

/// The changes that a configuration would make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The changes in order; empty if nothing differs.
    pub changes: Vec<Change>,
    /// Remarks for the administrator, such as connected hosts that will need a key.
    pub remarks: Vec<String>,
}

/// The changes that were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    /// The changes in order.
    pub changes: Vec<Change>,
    /// Controllers that were deleted by the change.
    pub disconnected: Vec<Disconnected>,
    /// Remarks for the administrator, such as namespaces that are still faulted.
    pub remarks: Vec<String>,
}

/// A change was refused; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The configuration, or an object that it names.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state of the target.
    #[error("{0}")]
    Refused(String),
}

impl Plan {
    /// The changes of [`to_json`](Self::to_json).
    #[must_use]
    pub fn to_json_list(&self) -> Vec<Value> {
        let changes = self.changes.iter();
        changes
            .map(|one| change(one, &one.planned().to_string()))
            .collect()
    }

    /// An object with `changes`. Each has a `subject` with its names, a `change`, and a `text`
    /// such as "namespace 7 would be added".
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({ "changes": self.to_json_list() })
    }
}

impl Report {
    /// The changes of [`to_json`](Self::to_json).
    #[must_use]
    pub fn to_json_list(&self) -> Vec<Value> {
        let changes = self.changes.iter();
        changes.map(|one| change(one, &one.to_string())).collect()
    }

    /// As [`Plan::to_json`] with the changes that were made, and `disconnected` and `remarks`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let lost = self.disconnected.iter().map(|one| {
            json!({
                "controller": one.cntlid,
                "host": one.hostnqn.as_str(),
                "subsystem": one.subnqn.as_str(),
                "why": one.reason.to_string(),
            })
        });
        json!({
            "changes": self.to_json_list(),
            "disconnected": lost.collect::<Vec<_>>(),
            "remarks": self.remarks,
        })
    }
}

fn change(change: &Change, text: &str) -> Value {
    let subject = match &change.subject {
        Subject::Port { address } => json!({ "port": address }),
        Subject::Discovery => json!({ "discovery": "nqn" }),
        Subject::Referral { address, nqn } => json!({
            "referral": address,
            "subsystem": nqn.as_str(),
        }),
        Subject::AnaGroup { address, group } => json!({ "port": address, "ana_group": group }),
        Subject::Subsystem { nqn } => json!({ "subsystem": nqn.as_str() }),
        Subject::Host { nqn, host } => json!({
            "subsystem": nqn.as_str(),
            "host": host.as_ref().map(|host| host.as_str()),
        }),
        Subject::HostKey { host } => json!({ "host_key": host.as_str() }),
        Subject::Namespace { nqn, nsid } => json!({
            "subsystem": nqn.as_str(),
            "namespace": nsid,
        }),
    };
    let kind = match change.kind {
        ChangeKind::Added => json!("added"),
        ChangeKind::Removed => json!("removed"),
        ChangeKind::Resized { from, to } => json!({ "resized": { "from": from, "to": to } }),
        ChangeKind::Faulted => json!("faulted"),
        ChangeKind::Recovered => json!("recovered"),
        ChangeKind::Enabled => json!("enabled"),
        ChangeKind::Disabled => json!("disabled"),
        ChangeKind::State { from, to } => {
            json!({ "state": { "from": from.name(), "to": to.name() } })
        }
        ChangeKind::Changed { key } => json!({ "changed": key }),
    };
    json!({
        "subject": subject,
        "change": kind,
        "text": text,
    })
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.changes {
            writeln!(f, "{}", change.planned())?;
        }
        Ok(())
    }
}
