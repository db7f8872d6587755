//! What hosts hold of one reactor's buffers, so that none holds all of them
//! while there are others.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use nvmeof_memory::{Buf, Classes};
use nvmeof_target_core::{Action, Limit, Target};

use super::Io;
use super::slots::Job;
use crate::turns::HostId;

/// The accounts of one reactor.
pub(crate) struct Accounts {
    hosts: BTreeMap<HostId, Rc<Account>>,
    /// Of each kind of buffer how many one host may hold, shortest first.
    most: Vec<u32>,
    target: Target,
}

/// What one host holds: buffers of each kind.
#[derive(Debug, Default)]
pub(crate) struct Account {
    held: [Cell<u32>; KINDS],
}

/// A buffer, as far as its host's account knows it: the number of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge(u8);

/// Kinds that are told apart. Longer ones count as the last.
const KINDS: usize = 4;

impl Accounts {
    /// For buffers of these kinds.
    pub(crate) fn new(target: Target, buffers: &Classes) -> Self {
        let percent = usize::from(target.limits().host_memory);
        let most = buffers.counts().map(|count| {
            // Who may have all of a kind may have longer ones besides.
            let most = (percent < 100).then_some((count * percent / 100).max(1));
            most.and_then(|most| u32::try_from(most).ok())
                .unwrap_or(u32::MAX)
        });
        Self {
            hosts: BTreeMap::new(),
            most: most.collect(),
            target,
        }
    }

    /// Of so many capsules, those that are left to hosts which have no queue.
    pub(super) fn spared(&self, capsules: usize) -> usize {
        let percent = 100u8.saturating_sub(self.target.limits().host_memory);
        capsules * usize::from(percent) / 100
    }

    /// That of a host, as long as somebody has it.
    pub(crate) fn of(&mut self, host: HostId) -> Rc<Account> {
        Rc::clone(self.hosts.entry(host).or_default())
    }

    /// Forgets hosts of which no queue is left.
    pub(crate) fn tidy(&mut self) {
        self.hosts
            .retain(|_, account| Rc::strong_count(account) > 1);
    }

    /// Whether there is more than one host: otherwise nobody else would have what
    /// is left over, and nothing is counted.
    #[inline]
    pub(super) fn are_several(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Whether a host with that account has to wait until one of its buffers of
    /// the kind that has `len` bytes is back.
    pub(super) fn is_full(&self, account: &Account, len: usize, buffers: &Classes) -> bool {
        let kind = buffers.kind_of(len);
        let held = account.held.get(kind.min(KINDS - 1));
        let most = self.most.get(kind).copied().unwrap_or(u32::MAX);
        held.is_some_and(|held| held.get() >= most)
    }

    /// Counts it when a command has to wait for that reason.
    #[cold]
    pub(super) fn count_if_full(&self, account: &Account, len: usize, buffers: &Classes) {
        if self.are_several() && self.is_full(account, len, buffers) {
            self.target.hits().add(Limit::HostMemory);
        }
    }
}

impl Account {
    /// The host holds `buf` from now on.
    #[inline]
    pub(super) fn charge(&self, buf: &Buf, buffers: &Classes) -> Charge {
        let kind = buffers.kind_of(buf.capacity()).min(KINDS - 1);
        if let Some(held) = self.held.get(kind) {
            held.set(held.get() + 1);
        }
        Charge(u8::try_from(kind).unwrap_or(u8::MAX))
    }

    /// It gave it back.
    #[inline]
    pub(super) fn release(&self, charge: Charge) {
        if let Some(held) = self.held.get(usize::from(charge.0)) {
            held.set(held.get().saturating_sub(1));
        }
    }
}

/// Takes the buffers that `action` needs. False, and nothing is taken, when they
/// cannot be had now, or the host with that account holds its part of them.
#[inline]
pub(super) fn provide(
    job: &mut Job,
    action: &Action,
    account: Option<&Account>,
    io: &Io<'_>,
) -> bool {
    match account {
        Some(account) if io.accounts.are_several() => provide_part(job, action, account, io),
        _ => job.provide(action, io.buffers),
    }
}

/// As [`provide`], where there are several hosts.
fn provide_part(job: &mut Job, action: &Action, account: &Account, io: &Io<'_>) -> bool {
    if job.charge.is_some() {
        return job.provide(action, io.buffers);
    }
    if !job.needs(action) {
        return true;
    }
    let full = io.accounts.is_full(account, Job::wants(action), io.buffers);
    if full || !job.provide(action, io.buffers) {
        return false;
    }
    job.charge = job.longest().map(|buf| account.charge(buf, io.buffers));
    true
}
