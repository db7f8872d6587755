//! Counters for monitoring.
//!
//! Each reactor has a [`ReactorMetrics`], in which its queues count by namespace and by
//! host. Only the thread of the reactor writes a counter, and others read it on request,
//! so that counting causes no cache traffic between cores. Failures are counted under
//! an uncontended lock. All counters are in one [`MetricsRegistry`], whose lock is taken
//! when a queue is connected or closed, and when counters are read.

mod histogram;
#[cfg(test)]
mod monotonic;
mod reactor_metrics;
mod tally;
#[cfg(test)]
mod tests;

pub use histogram::Latency;
pub(crate) use histogram::LatencySample;
pub use reactor_metrics::{MetricsRegistry, ReactorMetrics, Subject, SubjectCounters};
pub(crate) use tally::Tally;
pub use tally::Totals;

use nvmeof_wire::opcode::{self, Opcode, io};

/// Kinds of commands that are counted separately.
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
    /// An unknown opcode on an I/O queue.
    Other,
    /// Any command of an admin queue except Fabrics commands.
    Admin,
    /// A Fabrics command.
    Fabrics,
}

/// Classes of commands with separate latency histograms.
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

    /// The value of labels.
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

    /// The kind of `opcode` on an I/O queue.
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

    /// The kind of `opcode` on an admin queue, or before a queue is connected.
    pub(crate) fn of_admin(opcode: Opcode) -> Self {
        match opcode {
            opcode::FABRICS => Self::Fabrics,
            _ => Self::Admin,
        }
    }

    /// The class of its latency; `None` for commands other than I/O commands.
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

    /// The value of labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}
