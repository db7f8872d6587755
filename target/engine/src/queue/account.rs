//! Accounts of the buffers of one reactor by host and by port, so that none holds all of
//! them while there are others.
//!
//! A host is a Host NQN at the address of a peer. Host NQNs are not authenticated, so the
//! same one at another address is another host, and all hosts of one address together may
//! hold no more than one host. Host Identifiers are ignored: a host with several would
//! get several shares, and a host that uses the identifier of another would use up the
//! other's share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nvmeof_memory::{Buf, Classes};
use nvmeof_target_core::{ExhaustedQuotas, Limit, Port, PortAddress, Source, Target};
use nvmeof_wire::Nqn;

use super::charged::{UNCHARGED, kind_of, kind_of_len};
use super::holder_limits::{CapsuleDivision, HolderLimits};
use super::lingering::Lingering;
use super::room::all_admin_capsules;
use super::slots::{Command, MissingBuffers};
use super::trust::{Mark, Origin, Origins, Record, TrustLevel, UnprovenUsage, WithheldReason};
use super::{Io, QueuePair};
use crate::fair_queue::HostId;
use crate::tag::SlotId;

/// One host: its number, its holding, and its record.
type Entry = (u64, Rc<Holding>, Rc<Record>);

/// The accounts of one reactor.
pub(crate) struct Accounts {
    hosts: BTreeMap<(Nqn, Source), Entry>,
    origins: Origins,
    /// Buffers of hosts that have not shown yet that they move data.
    unproven_usage: Rc<UnprovenUsage>,
    /// Whether there are several hosts, and several addresses of hosts.
    several: bool,
    several_origins: bool,
    /// A short list: one entry for each port that hosts use.
    ports: Vec<(PortAddress, Rc<Holding>)>,
    /// The number of the next host.
    next: u64,
    /// Each account of an I/O queue has a clone: the count is that of the I/O queues.
    io_queues: Rc<()>,
    /// Maximum of one host, and of one port.
    of_host: HolderLimits,
    of_port: HolderLimits,
    target: Target,
}

/// Where the buffers of one queue are counted: the holdings of its host and of its port.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    number: HostId,
    host: Rc<Holding>,
    origin: Rc<Origin>,
    unproven_usage: Rc<UnprovenUsage>,
    record: Rc<Record>,
    /// `None` if its port is not known.
    port: Option<Rc<Holding>>,
    /// For an I/O queue.
    _io_queue: Option<Rc<()>>,
}

/// Buffers of each kind and capsule buffers that a host, an address or a port holds.
#[derive(Debug, Default)]
pub(super) struct Holding {
    held: [Cell<u32>; KINDS],
    capsules: Cell<u32>,
}

/// Buffers that one command requests at once: the numbers of their kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Charge([u8; 2]);

/// Buffers of a closed queue that backing stores still have. They stay in its account
/// until they are returned.
#[derive(Debug)]
pub(crate) struct UnreturnedBuffers {
    account: Account,
    /// By slot.
    held: Vec<(SlotId, Held)>,
    lingering: Lingering,
}

/// One buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Capsule,
    /// A data buffer.
    Data(Mark),
}

/// The result of a request for buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provided {
    Yes,
    /// There are not enough.
    NotNow,
    /// The host or its port has reached that limit.
    LimitReached(Limit),
    /// The connection, or all connections of its trust level, have reached their window.
    Withheld(WithheldReason),
}

/// Maximum number of kinds of data buffers.
pub(crate) const KINDS: usize = 8;
impl Accounts {
    /// Accounts for these kinds of buffers, at most [`KINDS`] of them, and so many
    /// capsules.
    pub(crate) fn new(target: Target, buffers: &Classes, capsules: usize) -> Self {
        let limits = target.limits();
        Self {
            hosts: BTreeMap::new(),
            origins: Origins::default(),
            unproven_usage: Rc::new(UnprovenUsage::new(buffers)),
            several: false,
            several_origins: false,
            ports: Vec::new(),
            next: 1,
            io_queues: Rc::default(),
            of_host: HolderLimits::of(limits.host_memory, limits, buffers, capsules),
            of_port: HolderLimits::of(limits.port_memory, limits, buffers, capsules),
            target,
        }
    }

    /// The account of a queue, an I/O queue or not, whose host connected from `source` by
    /// `port`. It lives as long as it is referenced.
    fn of(
        &mut self,
        host: &Nqn,
        source: Source,
        port: Option<&PortAddress>,
        is_io: bool,
    ) -> Account {
        let origin = self.origins.of(source);
        let (number, host, record) = self.hosts.entry((*host, source)).or_insert_with(|| {
            let number = self.next;
            self.next += 1;
            (number, Rc::default(), Rc::default())
        });
        let (number, host, record) = (*number, Rc::clone(host), Rc::clone(record));
        let port = port.map(|at| match self.holding_of(at) {
            Some(holding) => Rc::clone(holding),
            None => {
                let holding = Rc::default();
                self.ports.push((at.clone(), Rc::clone(&holding)));
                holding
            }
        });
        self.several = self.hosts.len() > 1;
        self.several_origins = self.origins.are_several();
        Account {
            number: HostId {
                address: origin.number,
                account: number,
            },
            host,
            origin,
            unproven_usage: Rc::clone(&self.unproven_usage),
            record,
            port,
            _io_queue: is_io.then(|| Rc::clone(&self.io_queues)),
        }
    }

    fn holding_of(&self, port: &PortAddress) -> Option<&Rc<Holding>> {
        let its = self.ports.iter().find(|(at, _)| at == port);
        its.map(|(_, holding)| holding)
    }

    /// Every host and every port, as text, with its holding.
    pub(super) fn holders(&self) -> impl Iterator<Item = (String, &Holding)> {
        let hosts = self.hosts.iter();
        let hosts = hosts
            .map(|((name, source), (_, held, _))| (format!("host {name} at {source:?}"), &**held));
        let ports = self.ports.iter();
        let ports = ports.map(|(at, held)| (format!("port {at:?}"), &**held));
        hosts.chain(ports).chain(self.origins.holders())
    }

    /// Removes hosts and ports that hold nothing and have no queue.
    pub(crate) fn remove_unused(&mut self, now: Duration) {
        self.hosts
            .retain(|_, (_, host, _)| Rc::strong_count(host) > 1);
        self.ports.retain(|(_, port)| Rc::strong_count(port) > 1);
        self.origins.remove_unused(now);
        self.several = self.hosts.len() > 1;
        self.several_origins = self.origins.are_several();
    }

    /// Whether there is more than one host. With a single one nothing is counted, because
    /// no other host could use the rest.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.several
    }

    /// Whether fair queueing applies: there are several hosts, or several I/O queues.
    pub(crate) fn needs_fair_queue(&self) -> bool {
        self.are_several() || Rc::strong_count(&self.io_queues) > 2
    }

    /// Whether hosts of more than one port have I/O queues.
    fn are_several_ports(&self) -> bool {
        let mut in_use = self.ports.iter().filter(|(_, port)| port.capsules() > 0);
        in_use.nth(1).is_some()
    }

    /// How capsules are divided between ports: nothing is reserved if every port has
    /// hosts already.
    fn port_division(&self) -> CapsuleDivision {
        let has_some = |port: &Port| {
            let holding = self.holding_of(&port.address());
            holding.is_some_and(|holding| holding.capsules() > 0)
        };
        let division = self.of_port.capsules;
        match self.target.model().ports().iter().all(has_some) {
            true => division.without_newcomers(),
            false => division,
        }
    }

    /// The hosts that get no other I/O queue which takes `needed` capsules while so many
    /// are `free`, and whether `port` gets none.
    pub(super) fn without_room(
        &self,
        port: Option<&PortAddress>,
        needed: usize,
        free: usize,
    ) -> ExhaustedQuotas {
        // Capsules reserved for other ports are not available to hosts of a port that has
        // some already.
        let its = port.and_then(|at| self.holding_of(at));
        let its = its.map_or(0, |its| its.capsules());
        let division = self.port_division();
        let for_others = division.reserved_for_others(its);
        let port = !division.allow(its, self.are_several_ports(), needed, free);
        let free = free.saturating_sub(for_others);
        let several = self.are_several();
        let full = self.hosts.iter().filter(|(_, (_, host, _))| {
            let division = &self.of_host.capsules;
            !division.allow(host.capsules(), several, needed, free)
        });
        let hosts = full.map(|((name, _), _)| *name).collect();
        ExhaustedQuotas { hosts, port }
    }

    /// The hosts that get no other admin queue; `count` is the number of capsules of all
    /// admin queues. If there are fewer than for all controllers, a quarter is reserved
    /// for hosts without a queue.
    pub(super) fn without_admin_room(
        &self,
        needed: usize,
        free: usize,
        count: usize,
    ) -> ExhaustedQuotas {
        let mut exhausted = ExhaustedQuotas::default();
        let for_all = all_admin_capsules(self.target.limits()) <= count;
        if !for_all && free < needed.saturating_add(count / 4) {
            exhausted.hosts = self.hosts.keys().map(|(name, _)| *name).collect();
        }
        exhausted
    }

    /// Whether these buffers may be held in addition: no more of a kind than the limits
    /// of the host and of its port, but always what a single command takes if none of
    /// that kind is held. The error is the limit that was reached.
    fn allow(&self, account: &Account, charge: Charge) -> Result<(), Provided> {
        let reached = |limit| Err(Provided::LimitReached(limit));
        if !account.host.may_take(charge, &self.of_host) {
            return reached(Limit::HostMemory);
        }
        // All hosts of one address together may hold as much as one host.
        if self.several_origins && !account.origin.holding.may_take(charge, &self.of_host) {
            return reached(Limit::HostMemory);
        }
        let [data, _] = charge.0;
        if data != UNCHARGED
            && let Err(withheld) =
                (self.unproven_usage).allow(data.into(), &account.record, &account.origin)
        {
            return Err(Provided::Withheld(withheld));
        }
        // A port is not limited while hosts use no other port.
        match &account.port {
            Some(port) if self.are_several_ports() && !port.may_take(charge, &self.of_port) => {
                reached(Limit::PortMemory)
            }
            _ => Ok(()),
        }
    }

    /// Counts a command that has to wait because of that limit.
    #[cold]
    pub(super) fn count_full(&self, limit: Limit) {
        self.target.limit_counters().add(limit);
    }
}

impl Holding {
    /// Buffers of each kind, then capsules.
    pub(super) fn counts(&self) -> [u32; KINDS + 1] {
        let mut counts = [0; KINDS + 1];
        let all = self.held.iter().chain([&self.capsules]);
        for (count, held) in counts.iter_mut().zip(all) {
            *count = held.get();
        }
        counts
    }

    fn capsules(&self) -> usize {
        usize::try_from(self.capsules.get()).unwrap_or(usize::MAX)
    }

    fn may_take(&self, charge: Charge, most: &HolderLimits) -> bool {
        charge.0.iter().all(|kind| {
            let at = usize::from(*kind);
            let (Some(held), Some(most)) = (self.held.get(at), most.held.get(at)) else {
                return true;
            };
            let more = charge.0.iter().filter(|other| *other == kind).count();
            let more = u32::try_from(more).unwrap_or(2);
            held.get() == 0 || held.get().saturating_add(more) <= *most
        })
    }

    fn take(&self, kind: usize) {
        if let Some(held) = self.held.get(kind) {
            held.set(held.get().saturating_add(1));
        }
    }

    fn release(&self, kind: usize) {
        if let Some(held) = self.held.get(kind) {
            held.set(held.get().saturating_sub(1));
        }
    }
}

impl Account {
    /// The identifier of its host in fair queues.
    #[inline]
    pub(super) fn number(&self) -> HostId {
        self.number
    }

    /// The holdings that count its buffers.
    pub(super) fn holdings(&self) -> impl Iterator<Item = &Holding> {
        let port = self.port.iter().map(|port| &**port);
        port.chain([&*self.host])
    }

    /// Adds `count` capsules.
    pub(super) fn take_capsules(&self, count: u32) {
        self.holdings().for_each(|one| {
            one.capsules.set(one.capsules.get().saturating_add(count));
        });
    }

    /// Subtracts `count` capsules.
    pub(super) fn return_capsules(&self, count: u32) {
        self.holdings().for_each(|one| {
            one.capsules.set(one.capsules.get().saturating_sub(count));
        });
    }

    /// The mark of a buffer of that kind, for a transfer or not.
    pub(super) fn mark(&self, kind: u8, for_transfer: bool) -> Mark {
        match for_transfer {
            _ if kind == UNCHARGED => Mark::NONE,
            true => self.record.mark(kind, &self.origin),
            false => Mark::exempt(kind),
        }
    }

    /// Adds a buffer.
    pub(super) fn take_one(&self, mark: Mark) {
        self.holdings().for_each(|one| one.take(mark.kind()));
        self.origin.holding.take(mark.kind());
        self.unproven_usage.take(mark, &self.record);
    }

    /// The data of the buffer with that mark were moved. Returns its new mark.
    pub(super) fn arrived(&self, mark: Mark) -> Mark {
        self.unproven_usage.moved(mark, &self.record);
        mark.after_transfer()
    }

    /// What all hosts of its address hold.
    pub(super) fn origin(&self) -> &Holding {
        &self.origin.holding
    }

    /// A transfer stalled while other commands waited for its buffer.
    pub(super) fn stalled(&self, now: Duration) {
        self.origin.stalled(now);
        self.record.forget();
    }

    /// Whether a host of its address stalled lately.
    pub(super) fn is_suspect(&self) -> bool {
        self.origin.is_suspect()
    }

    /// Buffers of a kind, or of a longer one, whose data its host has moved.
    pub(super) fn moved(&self, kind: usize) -> u32 {
        self.record.shown(kind)
    }

    /// Buffers of a kind that its host has for transfers, and the total of that kind.
    pub(super) fn in_transfer(&self, kind: usize) -> (u32, u32) {
        (self.record.held(kind), self.unproven_usage.all(kind))
    }

    /// Maximum number of buffers for all hosts of that trust level.
    pub(super) fn most(&self, kind: usize, trust: TrustLevel) -> u32 {
        self.unproven_usage.most(kind, trust)
    }

    /// Subtracts a buffer that was returned.
    pub(super) fn release_one(&self, mark: Mark) {
        self.holdings().for_each(|one| one.release(mark.kind()));
        self.origin.holding.release(mark.kind());
        self.unproven_usage.release(mark, &self.record);
    }
}

#[cfg(test)]
impl Account {
    pub(super) fn for_tests() -> Self {
        Self {
            number: HostId::default(),
            host: Rc::default(),
            origin: Rc::default(),
            unproven_usage: Rc::new(UnprovenUsage::default()),
            record: Rc::default(),
            port: Some(Rc::default()),
            _io_queue: None,
        }
    }

    /// Buffers of that kind that its port and its host hold.
    pub(super) fn counted(&self, kind: usize) -> Vec<u32> {
        let held = self.holdings().map(|one| one.held.get(kind).map(Cell::get));
        held.flatten().collect()
    }
}

impl Charge {
    fn of(bufs: [Option<&Buf>; 2], buffers: &Classes) -> Self {
        Self(bufs.map(|buf| kind_of(buf, buffers)))
    }
}

impl UnreturnedBuffers {
    /// The backing store returned the buffer of `slot`.
    pub(crate) fn release(&mut self, slot: SlotId) {
        self.lingering.complete(slot);
        if let Some(at) = self.held.iter().position(|(one, _)| *one == slot) {
            let (_, held) = self.held.swap_remove(at);
            self.account.release_held(held);
        }
    }
}

impl UnreturnedBuffers {
    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// What backing stores have.
    pub(super) fn held(&self) -> impl Iterator<Item = Held> {
        self.held.iter().map(|(_, held)| *held)
    }

    /// Ranges that backing stores may still be writing.
    pub(crate) fn lingering(&self) -> &Lingering {
        &self.lingering
    }
}

impl Drop for UnreturnedBuffers {
    fn drop(&mut self) {
        for (_, held) in &self.held {
            self.account.release_held(*held);
        }
    }
}

impl Account {
    fn release_held(&self, held: Held) {
        match held {
            Held::Capsule => self.return_capsules(1),
            Held::Data(mark) => self.release_one(mark),
        }
    }
}

impl QueuePair {
    /// The identifier of its host in fair queues: the same for all its queues, and zeros
    /// before a Connect.
    #[inline]
    pub(super) fn host(&self) -> HostId {
        self.account
            .as_ref()
            .map_or(HostId::default(), Account::number)
    }

    /// Counts a command of the queue that has to wait because its host or its port has
    /// reached a limit: once for all commands that wait one behind the other.
    pub(super) fn note_full(&mut self, provided: Provided, io: &Io<'_>) {
        if let Provided::LimitReached(limit) = provided
            && self.awaiting.full.replace(limit) != Some(limit)
        {
            io.resources.accounts.count_full(limit);
        }
    }

    /// The queue is connected and uses `capsules` for its receives.
    pub(super) fn open_account(&mut self, capsules: usize, io: &mut Io<'_>) {
        let Some(host) = self.core.hostnqn() else {
            return;
        };
        let port = self.core.port();
        let (source, is_io) = (self.source(), !self.is_admin());
        let account = io.resources.accounts.of(&host, source, port, is_io);
        self.capsules = u32::try_from(capsules).unwrap_or(u32::MAX);
        account.take_capsules(self.capsules);
        self.account = Some(account);
    }

    /// The queue is closed: its host is no longer charged for it, except for what backing
    /// stores still have, which is returned.
    pub(crate) fn close_account(&mut self) -> Option<UnreturnedBuffers> {
        let account = self.account.take()?;
        let held = self.slots.hand_over(&account);
        let capsules = held.iter().filter(|(_, held)| *held == Held::Capsule);
        capsules.for_each(|_| account.take_capsules(1));
        account.return_capsules(self.capsules);
        Some(UnreturnedBuffers {
            account,
            held,
            lingering: std::mem::take(&mut self.cold.lingering),
        })
    }
}

/// Takes the buffers that the command lacks. Takes nothing if they are not available now,
/// or if the host with that account has reached its limit.
#[inline]
pub(super) fn provide(
    command: &mut Command,
    missing: MissingBuffers,
    account: Option<&Account>,
    io: &mut Io<'_>,
) -> Provided {
    match account {
        Some(account) if io.resources.accounts.are_several() => {
            provide_part(command, missing, account, io)
        }
        _ if command.provide(missing, &mut io.resources.buffers) => Provided::Yes,
        _ => Provided::NotNow,
    }
}

/// As [`provide`], with several hosts.
fn provide_part(
    command: &mut Command,
    missing: MissingBuffers,
    account: &Account,
    io: &mut Io<'_>,
) -> Provided {
    let (data, spare) = (missing.data.is_some(), missing.spare.is_some());
    if !data && !spare {
        return Provided::Yes;
    }
    if !command.provide(missing, &mut io.resources.buffers) {
        // A free buffer might not be for this host.
        let classes = io.resources.buffers.classes();
        let kind = |len: Option<u32>| len.map_or(UNCHARGED, |len| kind_of_len(len, classes));
        let more = Charge([missing.data, missing.spare].map(kind));
        return io
            .resources
            .accounts
            .allow(account, more)
            .err()
            .unwrap_or(Provided::NotNow);
    }
    let taken = [
        command.data.get().filter(|_| data),
        command.spare.get().filter(|_| spare),
    ];
    let more = Charge::of(taken, io.resources.buffers.classes());
    let allowed = io.resources.accounts.allow(account, more);
    for (taken, buf, is_data) in [
        (data, &mut command.data, true),
        (spare, &mut command.spare, false),
    ] {
        match allowed {
            Ok(()) if taken => buf.charge(account, io.resources.buffers.classes(), is_data),
            Err(_) if taken => drop(buf.end(None)),
            _ => {}
        }
    }
    allowed.err().unwrap_or(Provided::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_of_each_kind_is_counted_once() {
        let account = Account::for_tests();
        for mark in [1, 7, 7, 7].map(Mark::exempt) {
            account.take_one(mark);
        }
        account.take_one(Mark::NONE);
        for holding in account.holdings() {
            let held: Vec<u32> = holding.held.iter().map(Cell::get).collect();
            assert_eq!(held, [0, 1, 0, 0, 0, 0, 0, 3]);
        }
        account.release_one(Mark::exempt(7));
        account.release_one(Mark::NONE);
        assert_eq!(account.counted(7), [2, 2]);
    }
}
