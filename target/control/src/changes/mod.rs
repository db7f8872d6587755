//! Run-time changes. The target serves one document: the configuration file, or a document that
//! was applied instead, with all later run-time changes applied in order.
//!
//! A change first becomes part of that document, which is then checked and served as a whole.
//! The configuration file is never written.

mod broken;
mod compact;
mod document;
mod effective;
pub(crate) mod fuzzing;
mod host_keys;
mod keeper;
mod keys;
mod lock;
mod ready;
mod resize;
mod settings;
mod start;
mod state;
#[cfg(test)]
mod tests;
mod together;

pub use document::EditError;
pub use keeper::Keeper;
pub(crate) use keeper::Stalled;
pub(crate) use nvmeof_target_api::Edit;
pub(crate) use nvmeof_target_api::Resize;
pub use start::{LoadedConfig, check_state};

use std::sync::Arc;

use nvmeof_target_core::Disconnected;

use nvmeof_target_config::ConfigError;
use nvmeof_target_manage::{ApplyError, Plan, Report};

/// The effect that a change would have.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The differences to what is served.
    pub(crate) plan: Plan,
    /// Run-time changes that it would drop.
    pub(crate) dropped: Vec<Edit>,
    /// Warnings for the administrator.
    pub(crate) warnings: Vec<String>,
}

/// The effect of a change.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The differences, and hosts that were disconnected.
    pub report: Report,
    /// The edits as they were applied, with defaults filled in.
    pub edits: Vec<Edit>,
    /// Run-time changes that it dropped.
    pub dropped: Vec<Edit>,
    /// Whether it is saved and survives a restart.
    pub saved: bool,
    /// Warnings for the administrator, for example why it is not saved.
    pub warnings: Vec<String>,
}

impl Outcome {
    /// Logs the outcome of the operation `what`.
    pub fn log(&self, what: &str) {
        for change in &self.report.changes {
            tracing::info!("{what}: {change}");
        }
        for edit in &self.dropped {
            tracing::warn!("{what}: run-time change dropped: {edit}");
        }
        log_disconnected(&format!("{what}: disconnected"), &self.report.disconnected);
        for remark in &self.report.remarks {
            tracing::warn!("{what}: {remark}");
        }
        for warning in &self.warnings {
            tracing::warn!("{what}: {warning}");
        }
    }
}

/// Logs the controllers that hosts lost.
fn log_disconnected(what: &str, lost: &[Disconnected]) {
    for one in lost {
        let (peer, host) = (&one.peer, &one.hostnqn);
        let (subsystem, cntlid) = (&one.subnqn, one.cntlid);
        tracing::warn!(%peer, %host, %subsystem, cntlid, queue = 0, "{what}: {one}");
    }
}

/// A change was refused; nothing changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The resulting configuration is invalid or cannot be served.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An edit does not fit the document.
    #[error("{edit}: {refusal}")]
    Edit {
        /// The edit.
        edit: String,
        /// Why it does not fit.
        refusal: EditError,
    },
    /// It is not possible in the present state.
    #[error("{0}")]
    Refused(String),
    /// The new state cannot be saved.
    #[error("the change cannot be saved, so nothing changed: {0}; see control.state")]
    Unsaved(Arc<std::io::Error>),
    /// The state in effect cannot be saved.
    #[error(
        "not saved: {0}; the changes stay in effect until the target ends; correct the cause, then \
         run `ctl save` again"
    )]
    StillUnsaved(Arc<std::io::Error>),
}

impl ChangeError {
    /// The error with the name of its change.
    fn of_change(self, change: &str) -> Self {
        match self {
            Self::Config(error) => Self::Config(error.of_change(change)),
            other => other,
        }
    }
}

impl From<ApplyError> for ChangeError {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Config(error) => Self::Config(error),
            ApplyError::Refused(what) => Self::Refused(what),
        }
    }
}
