//! What is wrong with a description of ports and subsystems.

use std::fmt;

/// Where in the description something is wrong. Numbers count from 0 in the
/// order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// The sizes.
    Limits,
    /// What discovery controllers tell of themselves.
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

/// A description was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {key} = {value}: {why}")]
pub struct ModelError {
    /// Where.
    pub place: Location,
    /// Name of the value.
    pub key: &'static str,
    /// The value itself.
    pub value: String,
    /// What is wrong with it and what would be right.
    pub why: String,
}
