//! What is served follows from a document: the administrator's file, or one
//! that was applied in its place, with every change made since, in order.
//!
//! A change becomes part of that document first, which is then checked and
//! served as a whole. The administrator's file is only read.

mod broken;
mod compact;
mod document;
mod effective;
pub(crate) mod fuzzing;
mod keeper;
mod keys;
mod lock;
mod resize;
mod settings;
mod start;
mod state;
#[cfg(test)]
mod tests;
mod together;
mod waking;

pub use document::EditError;
pub use keeper::Keeper;
pub(crate) use keeper::Stalled;
pub(crate) use nvmeof_target_api::Edit;
pub(crate) use nvmeof_target_api::Resize;
pub use start::{Standing, check_state};

use std::sync::Arc;

use nvmeof_target_core::Disconnected;

use nvmeof_target_config::ConfigError;
use nvmeof_target_manage::{ApplyError, Plan, Report};

/// What a change would do.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The differences to what is served.
    pub(crate) plan: Plan,
    /// Run-time changes that it would drop.
    pub(crate) dropped: Vec<Edit>,
    /// What else the administrator should know.
    pub(crate) warnings: Vec<String>,
}

/// What came of a change.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What is other now.
    pub report: Report,
    /// The edits as they were made, with what they left out filled in.
    pub edits: Vec<Edit>,
    /// Run-time changes that it dropped.
    pub dropped: Vec<Edit>,
    /// Whether it survives the process.
    pub saved: bool,
    /// Why it does not, and what else the administrator should know.
    pub warnings: Vec<String>,
}

impl Outcome {
    /// Tells the log of it; `what` made it.
    pub fn tell(&self, what: &str) {
        for change in &self.report.changes {
            tracing::info!("{what}: {change}");
        }
        for edit in &self.dropped {
            tracing::warn!("{what}: run-time change dropped: {edit}");
        }
        tell_lost(&format!("{what}: disconnected"), &self.report.disconnected);
        for remark in &self.report.remarks {
            tracing::warn!("{what}: {remark}");
        }
        for warning in &self.warnings {
            tracing::warn!("{what}: {warning}");
        }
    }
}

/// Tells the log who lost a controller.
fn tell_lost(what: &str, lost: &[Disconnected]) {
    for one in lost {
        let (peer, host) = (&one.peer, &one.hostnqn);
        let (subsystem, cntlid) = (&one.subnqn, one.cntlid);
        tracing::warn!(%peer, %host, %subsystem, cntlid, queue = 0, "{what}: {one}");
    }
}

/// A change was refused; nothing changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The configuration that would come of it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is to be changed is not there, or is there already.
    #[error("{edit}: {refusal}")]
    Edit {
        /// The edit.
        edit: String,
        /// What is wrong with it.
        refusal: EditError,
    },
    /// It cannot be done at present.
    #[error("{0}")]
    Refused(String),
    /// It could not be kept.
    #[error("the change cannot be saved, so nothing changed: {0}; see control.state")]
    Unsaved(Arc<std::io::Error>),
    /// What is in effect could not be kept.
    #[error(
        "not saved: {0}; what is in effect stays so until the target ends; mend that, then \
         `ctl save` again"
    )]
    StillUnsaved(Arc<std::io::Error>),
}

impl ChangeError {
    /// The same of a change that is called that.
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
