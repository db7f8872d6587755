//! The counters of one namespace, or of one host, on one reactor.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvmeof_wire::Status;

use super::histogram::{Histogram, Latency, LatencySample};
use super::{Class, Operation};
use crate::health::DataTransferred;

const OPERATIONS: usize = Operation::ALL.len();
const CLASSES: usize = Class::ALL.len();

/// Counters that one thread writes, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Tally {
    classes: [PerClass; CLASSES],
    /// Except reads and writes, which have their own class.
    operations: [AtomicU64; OPERATIONS],
    /// Data that Compare and Verify read.
    bytes_checked: AtomicU64,
    /// Data that Copy wrote.
    bytes_copied: AtomicU64,
    /// Queue pairs that ended with an error.
    broken: AtomicU64,
    failed: Mutex<Failed>,
}

/// Commands that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Failed {
    /// By status type and code: bounded by the values of `Status`.
    statuses: BTreeMap<u16, u64>,
    operations: [u64; OPERATIONS],
}

#[derive(Debug, Default)]
struct PerClass {
    times: Histogram,
    /// Data transferred to or from the host.
    bytes: AtomicU64,
}

/// A snapshot of counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    operations: [u64; OPERATIONS],
    /// Bytes that Read commands transferred to hosts.
    pub bytes_read: u64,
    /// Bytes that Write commands transferred from hosts.
    pub bytes_written: u64,
    bytes_checked: u64,
    bytes_copied: u64,
    /// Queue pairs that ended with an error of RDMA or of the network.
    pub broken: u64,
    latency: [Latency; CLASSES],
    failed: Failed,
}

impl Tally {
    /// A Read or Write succeeded, and transferred `bytes`.
    #[inline]
    pub(crate) fn moved(&self, class: Class, bytes: u64, took: LatencySample) {
        // The discriminant of a variant is its index in `ALL`.
        if let Some(per_class) = self.classes.get(class as usize) {
            per_class.times.add(took);
            add(&per_class.bytes, bytes);
        }
    }

    /// Any other command completed.
    pub(crate) fn count(&self, operation: Operation, status: Status, took: LatencySample) {
        let class = operation.class();
        if let Some(class) = class {
            self.moved(class, 0, took);
        }
        if !matches!(class, Some(Class::Read | Class::Write))
            && let Some(count) = self.operations.get(operation as usize)
        {
            add(count, 1);
        }
        if !status.is_success() {
            let mut failed = self.failed();
            let kind = status.kind().to_field();
            *failed.statuses.entry(kind).or_default() += 1;
            if let Some(count) = failed.operations.get_mut(operation as usize) {
                *count += 1;
            }
        }
    }

    /// A command other than Read and Write read or wrote `bytes` of blocks.
    pub(crate) fn touched(&self, operation: Operation, bytes: u64) {
        match operation {
            Operation::Compare | Operation::Verify => add(&self.bytes_checked, bytes),
            Operation::Copy => add(&self.bytes_copied, bytes),
            _ => {}
        }
    }

    /// A queue pair ended with an error.
    pub(crate) fn count_connection_error(&self) {
        add(&self.broken, 1);
    }

    fn failed(&self) -> MutexGuard<'_, Failed> {
        // A panic leaves no change half done.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Totals {
    /// Completed commands, including failed ones.
    #[must_use]
    pub fn operations(&self, of: Operation) -> u64 {
        let count = self.operations.get(of as usize);
        count.copied().unwrap_or_default()
    }

    /// Latency by class.
    pub fn latency(&self) -> impl Iterator<Item = (Class, &Latency)> {
        Class::ALL.into_iter().zip(&self.latency)
    }

    /// Number of failures by status, without More and Do Not Retry.
    pub fn failed(&self) -> impl Iterator<Item = (Status, u64)> {
        let all = self.failed.statuses.iter();
        all.map(|(status, count)| (Status::from_field(*status), *count))
    }

    /// Data read and written, as SMART counts them.
    pub(crate) fn done(&self) -> DataTransferred {
        let succeeded = |of| {
            let failed = self.failed.operations.get(of as usize);
            self.operations(of)
                // A command may fail between the two reads.
                .saturating_sub(failed.copied().unwrap_or_default())
        };
        let sum = |all: &[Operation]| {
            let all = all.iter().map(|of| succeeded(*of));
            all.fold(0, u64::wrapping_add)
        };
        DataTransferred {
            bytes_read: self.bytes_read.wrapping_add(self.bytes_checked),
            bytes_written: self.bytes_written.wrapping_add(self.bytes_copied),
            reads: sum(&[Operation::Read, Operation::Compare, Operation::Copy]),
            writes: sum(&[Operation::Write, Operation::Copy]),
        }
    }

    /// Number of failures to read or write blocks.
    pub(crate) fn media_errors(&self) -> u64 {
        let media = |status: &Status| {
            status.is(Status::UNRECOVERED_READ_ERROR) || status.is(Status::WRITE_FAULT)
        };
        let all = self.failed().filter(|(status, _)| media(status));
        all.map(|(_, count)| count).fold(0, u64::wrapping_add)
    }

    /// Number of failures, each with an entry in an error log.
    pub(crate) fn failures(&self) -> u64 {
        let all = self.failed().map(|(_, count)| count);
        all.fold(0, u64::wrapping_add)
    }

    pub(super) fn of(tally: &Tally) -> Self {
        let bytes = |class: Class| tally.classes.get(class as usize).map(|it| get(&it.bytes));
        let mut totals = Self {
            bytes_read: bytes(Class::Read).unwrap_or_default(),
            bytes_written: bytes(Class::Write).unwrap_or_default(),
            bytes_checked: get(&tally.bytes_checked),
            bytes_copied: get(&tally.bytes_copied),
            broken: get(&tally.broken),
            failed: tally.failed().clone(),
            ..Self::default()
        };
        for (at, to) in totals.operations.iter_mut().enumerate() {
            *to = match tally.classes.get(at) {
                Some(class) if at < Class::Other as usize => class.times.count(),
                _ => tally.operations.get(at).map_or(0, get),
            };
        }
        for (to, from) in totals.latency.iter_mut().zip(&tally.classes) {
            from.times.add_to(to);
        }
        totals
    }

    pub(super) fn add(&mut self, tally: &Tally) {
        self.merge(&Self::of(tally));
    }

    /// Adds the values of `other`.
    pub(super) fn merge(&mut self, other: &Self) {
        let counts = [
            (&mut self.bytes_read, other.bytes_read),
            (&mut self.bytes_written, other.bytes_written),
            (&mut self.bytes_checked, other.bytes_checked),
            (&mut self.bytes_copied, other.bytes_copied),
            (&mut self.broken, other.broken),
        ];
        let failed = &mut self.failed.operations;
        let failed = failed.iter_mut().zip(other.failed.operations);
        let operations = self.operations.iter_mut().zip(other.operations);
        for (to, from) in counts.into_iter().chain(operations).chain(failed) {
            *to = to.wrapping_add(from);
        }
        for (status, count) in &other.failed.statuses {
            *self.failed.statuses.entry(*status).or_default() += count;
        }
        for (to, from) in self.latency.iter_mut().zip(&other.latency) {
            to.merge(from);
        }
    }
}

/// Reads and writes have the same index among operations and among classes.
const _: () = {
    assert!(Operation::Read as usize == Class::Read as usize);
    assert!(Operation::Write as usize == Class::Write as usize);
    assert!(Class::Write as usize + 1 == Class::Other as usize);
};

/// Adds to a counter that has no other writer.
#[inline]
pub(super) fn add(counter: &AtomicU64, n: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
    counter.store(sum, Ordering::Relaxed);
}

pub(super) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
