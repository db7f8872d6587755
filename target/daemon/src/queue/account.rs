//! What hosts hold of one reactor's buffers, so that none holds all of them
//! while there are others.
//!
//! A host is whom its name says (Host NQN), as for the controllers and queues that
//! it may have: that is what it is let in by. Host Identifiers are not asked for
//! anywhere: counted by them, a host with several would have several parts, and
//! one that uses another's would spend the part of that.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nvmeof_memory::{Buf, Classes};
use nvmeof_target_core::{Action, Limit, Limits, Target};
use nvmeof_wire::Nqn;

use super::slots::{Changing, Job};
use super::{Edge, Io};
use crate::tag::Place;
use crate::turns::HostId;

/// The accounts of one reactor.
pub(crate) struct Accounts {
    hosts: BTreeMap<Nqn, Rc<Account>>,
    /// The number of the next account.
    next: HostId,
    /// Of each kind of buffer how many one host may hold, shortest first.
    most: [u32; KINDS],
    capsules: Parts,
    target: Target,
}

/// What one host holds: buffers of each kind, and capsules to receive into.
#[derive(Debug)]
pub(crate) struct Account {
    number: HostId,
    held: [Cell<u32>; KINDS],
    capsules: Cell<u32>,
}

/// The buffers of one job, as far as its host's account knows them: the numbers of
/// their kinds, of that for its data and of the second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge([u8; 2]);

/// What disks have of a queue that is gone. It stays in its host's account until
/// it is back.
#[derive(Debug)]
pub(crate) struct Left {
    account: Rc<Account>,
    /// By the slot that it is of.
    held: Vec<(Place, Held)>,
    changing: Vec<Changing>,
}

/// One buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    Capsule,
    /// Of data, by its kind.
    Data(u8),
}

/// How the capsules of a reactor are divided.
#[derive(Clone, Copy, Debug)]
struct Parts {
    /// Of all, how many one host may have while there are others.
    most: usize,
    /// Those that are left to a host which has none.
    newcomer: usize,
}

/// What came of asking for buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provided {
    Yes,
    /// There are not enough.
    NotNow,
    /// The host has its part of them.
    Part,
}

/// Kinds of buffers for data that there may be.
pub(crate) const KINDS: usize = 8;
/// None.
const NO_KIND: u8 = u8::MAX;

impl Accounts {
    /// For buffers of these kinds, of which there are at most [`KINDS`], and so
    /// many capsules.
    pub(crate) fn new(target: Target, buffers: &Classes, capsules: usize) -> Self {
        let limits = target.limits();
        let percent = usize::from(limits.host_memory);
        let mut most = [u32::MAX; KINDS];
        for (most, count) in most.iter_mut().zip(buffers.counts()) {
            // Who may have all of a kind may have longer ones besides.
            if percent < 100 {
                let part = (count * percent / 100).max(1);
                *most = u32::try_from(part).unwrap_or(u32::MAX);
            }
        }
        Self {
            hosts: BTreeMap::new(),
            next: 1,
            most,
            capsules: Parts::of(limits, capsules),
            target,
        }
    }

    /// That of a host, as long as somebody has it.
    pub(crate) fn of(&mut self, host: &Nqn) -> Rc<Account> {
        let account = self.hosts.entry(*host).or_insert_with(|| {
            let number = self.next;
            self.next += 1;
            Rc::new(Account::new(number))
        });
        Rc::clone(account)
    }

    /// Forgets hosts of which nothing is left.
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

    /// The hosts that get no other queue which takes `needed` capsules while so
    /// many are `free`.
    pub(super) fn without_room(&self, needed: usize, free: usize) -> Vec<Nqn> {
        let several = self.are_several();
        let full = self.hosts.iter().filter(|(_, account)| {
            let held = usize::try_from(account.capsules.get()).unwrap_or(usize::MAX);
            !self.capsules.allow(held, several, needed, free)
        });
        full.map(|(host, _)| *host).collect()
    }

    /// Whether a host may hold these buffers as well: no more of a kind than its
    /// part, but whatever one command takes if it has none of it.
    fn allow(&self, account: &Account, charge: Charge) -> bool {
        charge.0.iter().all(|kind| {
            let (Some(held), Some(most)) = (
                account.held.get(usize::from(*kind)),
                self.most.get(usize::from(*kind)),
            ) else {
                return true;
            };
            let more = charge.0.iter().filter(|other| *other == kind).count();
            let more = u32::try_from(more).unwrap_or(2);
            held.get() == 0 || held.get().saturating_add(more) <= *most
        })
    }

    /// Counts it when a command has to wait because its host has its part.
    #[cold]
    pub(super) fn count_full(&self) {
        self.target.hits().add(Limit::HostMemory);
    }
}

impl Parts {
    fn of(limits: &Limits, capsules: usize) -> Self {
        let percent = usize::from(limits.host_memory.min(100));
        let others = capsules * (100 - percent) / 100;
        // An admin queue and an I/O queue, as long as they may be.
        let one = usize::from(limits.queue_depth) + usize::from(Limits::ADMIN_DEPTH);
        Self {
            most: capsules - others,
            newcomer: others.min(one),
        }
    }

    /// Whether a host that holds so many may have `needed` more of those that are
    /// `free`; `several`: it is not alone. Alone it may have all of them but what
    /// the next one needs, which cannot be taken back from a queue by then.
    fn allow(&self, held: usize, several: bool, needed: usize, free: usize) -> bool {
        let part = !several || held.saturating_add(needed) <= self.most;
        held == 0 || (part && free >= needed.saturating_add(self.newcomer))
    }
}

impl Account {
    fn new(number: HostId) -> Self {
        Self {
            number,
            held: Default::default(),
            capsules: Cell::new(0),
        }
    }

    /// What its host is called where hosts take turns.
    #[inline]
    pub(super) fn number(&self) -> HostId {
        self.number
    }

    /// The host has so many capsules more.
    pub(super) fn take_capsules(&self, count: u32) {
        self.capsules.set(self.capsules.get().saturating_add(count));
    }

    /// It gave them back.
    pub(super) fn return_capsules(&self, count: u32) {
        self.capsules.set(self.capsules.get().saturating_sub(count));
    }

    fn take(&self, charge: Charge) {
        for kind in charge.0 {
            if let Some(held) = self.held.get(usize::from(kind)) {
                held.set(held.get() + 1);
            }
        }
    }

    /// It gave all of it back.
    #[inline]
    pub(super) fn release(&self, charge: Charge) {
        if charge != Charge::NONE {
            charge.0.iter().for_each(|kind| self.release_one(*kind));
        }
    }

    fn release_one(&self, kind: u8) {
        if let Some(held) = self.held.get(usize::from(kind)) {
            held.set(held.get().saturating_sub(1));
        }
    }
}

impl Default for Charge {
    fn default() -> Self {
        Self::NONE
    }
}

impl Charge {
    pub(super) const NONE: Self = Self([NO_KIND; 2]);

    fn of(bufs: [Option<&Buf>; 2], buffers: &Classes) -> Self {
        Self(bufs.map(|buf| {
            let kind = buf.map(|buf| buffers.kind_of(buf.capacity()));
            kind.and_then(|kind| u8::try_from(kind).ok())
                .unwrap_or(NO_KIND)
        }))
    }

    /// Without what `other` has.
    fn beyond(self, other: Self) -> Self {
        let ([data, spare], [its_data, its_spare]) = (self.0, other.0);
        let more = |kind, its| if its == NO_KIND { kind } else { NO_KIND };
        Self([more(data, its_data), more(spare, its_spare)])
    }

    /// With what `other` has besides.
    fn with(self, other: Self) -> Self {
        let ([data, spare], [its_data, its_spare]) = (self.0, other.0);
        Self([data.min(its_data), spare.min(its_spare)])
    }

    /// Of the data, or of the second buffer.
    pub(super) fn held(self, second: bool) -> Option<Held> {
        let [data, spare] = self.0;
        let kind = if second { spare } else { data };
        (kind != NO_KIND).then_some(Held::Data(kind))
    }
}

impl Left {
    /// The disk gave back what it had of `slot`.
    pub(crate) fn release(&mut self, slot: Place) {
        self.changing.retain(|one| one.slot != slot);
        if let Some(at) = self.held.iter().position(|(place, _)| *place == slot) {
            let (_, held) = self.held.swap_remove(at);
            self.account.release_held(held);
        }
    }
}

impl Left {
    /// When the oldest command was begun for which a disk may be changing of which
    /// `is_it` says that it is the one.
    pub(crate) fn oldest_write(&self, is_it: &impl Fn(u32) -> bool) -> Option<Duration> {
        let its = self.changing.iter().filter(|one| is_it(one.disk));
        its.map(|one| one.began).min()
    }
}

impl Drop for Left {
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
            Held::Data(kind) => self.release_one(kind),
        }
    }
}

impl Edge {
    /// What its host is called where hosts take turns: one name for all queues of
    /// it, and none before it said who it is.
    #[inline]
    pub(super) fn host(&self) -> HostId {
        self.account.as_deref().map_or(0, Account::number)
    }

    /// The queue is connected and takes `capsules` for its receives.
    pub(super) fn open_account(&mut self, capsules: usize, io: &mut Io<'_>) {
        let Some(host) = self.core.hostnqn() else {
            return;
        };
        let account = io.accounts.of(&host);
        self.capsules = u32::try_from(capsules).unwrap_or(u32::MAX);
        account.take_capsules(self.capsules);
        self.account = Some(account);
    }

    /// The queue is gone: its host has nothing of it any more but what is left,
    /// which disks have.
    pub(crate) fn close_account(&mut self) -> Option<Left> {
        let account = self.account.take()?;
        let held = self.slots.on_disk();
        for (_, held) in &held {
            match held {
                Held::Capsule => account.take_capsules(1),
                Held::Data(kind) => account.take(Charge([*kind, NO_KIND])),
            }
        }
        self.slots
            .charges()
            .for_each(|charge| account.release(charge));
        account.return_capsules(self.capsules);
        let changing = self.slots.changing();
        Some(Left {
            account,
            held,
            changing,
        })
    }
}

/// Takes the buffers that `action` needs. Nothing is taken when they cannot be had
/// now, or the host with that account holds its part of them.
#[inline]
pub(super) fn provide(
    job: &mut Job,
    action: &Action,
    account: Option<&Account>,
    io: &Io<'_>,
) -> Provided {
    match account {
        Some(account) if io.accounts.are_several() => provide_part(job, action, account, io),
        _ if job.provide(action, io.buffers) => Provided::Yes,
        _ => Provided::NotNow,
    }
}

/// As [`provide`], where there are several hosts.
fn provide_part(job: &mut Job, action: &Action, account: &Account, io: &Io<'_>) -> Provided {
    let [data, spare] = job.lacks(action).map(|len| len.is_some());
    if !data && !spare {
        return Provided::Yes;
    }
    if !job.provide(action, io.buffers) {
        return Provided::NotNow;
    }
    let taken = [
        job.data.as_ref().filter(|_| data),
        job.spare.as_ref().filter(|_| spare),
    ];
    // What a command gave back between two pieces stays in the account.
    let more = Charge::of(taken, io.buffers).beyond(job.charge);
    if !io.accounts.allow(account, more) {
        if data {
            job.data = None;
        }
        if spare {
            job.spare = None;
        }
        return Provided::Part;
    }
    account.take(more);
    job.charge = job.charge.with(more);
    Provided::Yes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARTS: Parts = Parts {
        most: 100,
        newcomer: 60,
    };

    #[test]
    fn the_next_host_is_left_a_queue_or_what_the_percentage_says() {
        let limits = |host_memory| Limits {
            host_memory,
            queue_depth: 256,
            ..Limits::default()
        };
        let rows = [
            (75, 4096, 3072, 256 + 32),
            (75, 256, 192, 64),
            (100, 4096, 4096, 0),
            (1, 1000, 10, 256 + 32),
        ];
        for (percent, count, most, newcomer) in rows {
            let parts = Parts::of(&limits(percent), count);
            assert_eq!((parts.most, parts.newcomer), (most, newcomer), "{percent}");
        }
    }

    #[test]
    fn a_buffer_of_each_kind_is_counted_once() {
        let charge = Charge([1, 7]);
        assert_eq!(charge.beyond(Charge::NONE), charge);
        assert_eq!(charge.beyond(Charge([3, NO_KIND])), Charge([NO_KIND, 7]));
        assert_eq!(Charge([1, NO_KIND]).with(Charge([NO_KIND, 7])), charge);
        let account = Account::new(1);
        account.take(charge);
        account.take(Charge([7, 7]));
        let held: Vec<u32> = account.held.iter().map(Cell::get).collect();
        assert_eq!(held, [0, 1, 0, 0, 0, 0, 0, 3]);
        account.release(charge);
        account.release(Charge::NONE);
        assert_eq!(account.held.get(7).map(Cell::get), Some(2));
    }

    proptest! {
        /// Whatever hosts ask for in whatever order: one that is alone gets all
        /// but what the next one needs, one with others no more than its part, and
        /// what is left for those who have nothing only those take.
        #[test]
        fn whoever_comes_finds_something_left(
            steps in prop::collection::vec((0..4usize, 1..60usize, 0..5u8), 1..200),
        ) {
            let (mut held, mut first) = ([0usize; 4], [0usize; 4]);
            for (host, needed, leaves) in steps {
                let free = 400 - held.iter().sum::<usize>();
                if leaves == 0 {
                    (held[host], first[host]) = (0, 0);
                    continue;
                }
                let others = held.iter().zip(0..).any(|(held, at)| *held > 0 && at != host);
                let allowed = PARTS.allow(held[host], others, needed, free);
                if held[host] == 0 {
                    prop_assert!(allowed, "refused to a host that has nothing");
                    if needed <= free {
                        (held[host], first[host]) = (needed, needed);
                    }
                } else if allowed {
                    held[host] += needed;
                    prop_assert!(!others || held[host] <= PARTS.most);
                } else if !others {
                    prop_assert!(free < needed + PARTS.newcomer, "refused for nobody");
                }
                let left = 400 - held.iter().sum::<usize>();
                prop_assert!(left + first.iter().sum::<usize>() >= PARTS.newcomer);
            }
        }
    }
}
