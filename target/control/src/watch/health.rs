//! Whether every reactor responds.

use serde::Serialize;

/// Response to `GET /healthz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// Whether every reactor responded.
    pub healthy: bool,
    /// Number of reactors.
    pub reactors: usize,
    /// Numbers of the reactors that did not respond in time or have ended.
    pub stalled: Vec<usize>,
}

impl Health {
    /// From whether each reactor responded.
    pub(super) fn of(responded: impl IntoIterator<Item = bool>) -> Self {
        let responded: Vec<bool> = responded.into_iter().collect();
        let stalled = (0..).zip(&responded).filter(|(_, responded)| !**responded);
        let stalled: Vec<usize> = stalled.map(|(number, _)| number).collect();
        Self {
            healthy: stalled.is_empty(),
            reactors: responded.len(),
            stalled,
        }
    }
}
