//! Whether every reactor does something when it is told to.

use serde::Serialize;

/// What `GET /healthz` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether all is well.
    pub healthy: bool,
    /// Reactors there are.
    pub reactors: usize,
    /// The numbers of those that did nothing for too long, or ended.
    pub hanging: Vec<usize>,
}

impl Health {
    /// Of reactors that answered or did not.
    pub(super) fn of(answered: impl IntoIterator<Item = bool>) -> Self {
        let answered: Vec<bool> = answered.into_iter().collect();
        let hanging = (0..).zip(&answered).filter(|(_, answered)| !**answered);
        let hanging: Vec<usize> = hanging.map(|(number, _)| number).collect();
        Self {
            healthy: hanging.is_empty(),
            reactors: answered.len(),
            hanging,
        }
    }
}
