//! What is counted for whoever watches the target.
//!
//! Each reactor has a [`ReactorMetrics`], and its queues count in it: what was done in
//! each namespace, and what for each host. A counter is written by the one
//! thread of its reactor and read by others when somebody asks, so that counting
//! takes no instruction that other cores notice. What failed is looked up under
//! a lock, which nobody else wants. All books are in one [`MetricsRegistry`], whose lock
//! is taken when a queue comes or goes and when somebody asks.

#[cfg(test)]
mod falling;
mod histogram;
mod reactor_metrics;
mod tally;
#[cfg(test)]
mod tests;

pub use histogram::Latency;
pub(crate) use histogram::Took;
pub use reactor_metrics::{Counted, MetricsRegistry, Of, ReactorMetrics};
pub(crate) use tally::Tally;
pub use tally::Totals;

use nvmeof_wire::opcode::{self, Opcode, io};

/// What a command was, as far as commands are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Compare.
    Compare,
    /// Write Zeroes.
    WriteZeroes,
    /// Dataset Management: Deallocate and hints.
    DatasetManagement,
    /// Verify.
    Verify,
    /// Copy.
    Copy,
    /// An opcode that no I/O queue knows.
    Other,
    /// Any command of an admin queue but Fabrics commands.
    Admin,
    /// A Fabrics command.
    Fabrics,
}

/// What times are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Every other I/O command.
    Other,
}

impl Operation {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Compare,
        Self::WriteZeroes,
        Self::DatasetManagement,
        Self::Verify,
        Self::Copy,
        Self::Other,
        Self::Admin,
        Self::Fabrics,
    ];

    /// A word for labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Compare => "compare",
            Self::WriteZeroes => "write_zeroes",
            Self::DatasetManagement => "dataset_management",
            Self::Verify => "verify",
            Self::Copy => "copy",
            Self::Other => "other",
            Self::Admin => "admin",
            Self::Fabrics => "fabrics",
        }
    }

    /// What `opcode` means on an I/O queue.
    #[inline]
    pub(crate) fn of_io(opcode: Opcode) -> Self {
        match opcode {
            io::READ => Self::Read,
            io::WRITE => Self::Write,
            io::FLUSH => Self::Flush,
            io::COMPARE => Self::Compare,
            io::WRITE_ZEROES => Self::WriteZeroes,
            io::DATASET_MANAGEMENT => Self::DatasetManagement,
            io::VERIFY => Self::Verify,
            io::COPY => Self::Copy,
            opcode::FABRICS => Self::Fabrics,
            _ => Self::Other,
        }
    }

    /// What `opcode` means on an admin queue, or before a queue is connected.
    pub(crate) fn of_admin(opcode: Opcode) -> Self {
        match opcode {
            opcode::FABRICS => Self::Fabrics,
            _ => Self::Admin,
        }
    }

    /// With what its time is counted; `None` for what is no I/O.
    #[inline]
    pub(crate) fn class(self) -> Option<Class> {
        match self {
            Self::Read => Some(Class::Read),
            Self::Write => Some(Class::Write),
            Self::Admin | Self::Fabrics => None,
            _ => Some(Class::Other),
        }
    }
}

impl Class {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// A word for labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}
