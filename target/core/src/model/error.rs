//! Errors in a description of ports and subsystems.

use std::fmt;

/// Location of an error in the description. Indices start at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The limits.
    Limits,
    /// The discovery subsystem.
    Discovery,
    /// A referral.
    Referral(usize),
    /// A port.
    Port(usize),
    /// A subsystem.
    Subsystem(usize),
    /// A namespace of a subsystem.
    Namespace {
        /// Which subsystem.
        subsystem: usize,
        /// Which of its namespaces.
        namespace: usize,
    },
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limits => f.write_str("limits"),
            Self::Discovery => f.write_str("discovery"),
            Self::Referral(referral) => write!(f, "referral {}", referral + 1),
            Self::Port(port) => write!(f, "port {}", port + 1),
            Self::Subsystem(subsystem) => write!(f, "subsystem {}", subsystem + 1),
            Self::Namespace {
                subsystem,
                namespace,
            } => write!(
                f,
                "namespace {} of subsystem {}",
                namespace + 1,
                subsystem + 1
            ),
        }
    }
}

/// An invalid description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {key} = {value}: {why}")]
pub struct ModelError {
    /// Location of the error.
    pub location: Location,
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The cause, and the remedy.
    pub why: String,
}
