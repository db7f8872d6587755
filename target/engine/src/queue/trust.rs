//! The record of a host: how many buffers of a kind it may have for its transfers while
//! there are other hosts, and which peers stalled lately.
//!
//! Host NQNs and connections cost a peer nothing. A host therefore gets one buffer of a
//! kind first. With each buffer whose data it moved it may have twice as many. All hosts
//! without a record share a part of each kind, and so do all hosts of addresses that
//! stalled.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nvmeof_memory::Classes;

use super::QueuePair;
use super::account::{Holding, KINDS};
use crate::source::source_of;
use nvmeof_target_core::Source;

/// How long an address that stalled comes after others.
const SUSPECT_FOR: Duration = Duration::from_secs(60);
/// Addresses that are remembered for that.
const REMEMBERED: usize = 1024;
/// Buffers after whose return a host may have as many as its limit allows.
const PROVEN_AFTER: u32 = 6;

/// The trust level of a host for a kind of buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TrustLevel {
    /// It has not moved as much data yet.
    Unproven,
    /// A host of its address stalled lately.
    Suspect,
    Proven,
}

/// The kind of a buffer and the trust level of its holder, as a byte that stays with the
/// buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u8);

/// A buffer that is not for a transfer.
const EXEMPT: u8 = 3;

/// What is known of the address of a peer.
#[derive(Debug, Default)]
pub(super) struct Origin {
    /// Its number in fair queues.
    pub(super) number: u64,
    /// What all its hosts hold together.
    pub(super) holding: Holding,
    /// Until then its hosts have at most one buffer of a kind for transfers.
    suspect_until: Cell<Duration>,
}

/// The addresses of peers: those that have queues, and those that stalled lately.
#[derive(Debug, Default)]
pub(super) struct Origins {
    known: BTreeMap<Source, Rc<Origin>>,
    /// The number of addresses so far.
    numbers: u64,
}

/// The record of one host, and its buffers for transfers.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Buffers of a kind, or of a longer one, whose data were moved.
    shown: [Cell<u32>; KINDS],
    held: [Cell<u32>; KINDS],
}

/// Buffers for transfers of all hosts that are not proven, and the total of each kind.
#[derive(Debug, Default)]
pub(super) struct UnprovenUsage {
    all: [u32; KINDS],
    unproven: [Cell<u32>; KINDS],
    suspect: [Cell<u32>; KINDS],
}

impl QueuePair {
    /// The source of its connection.
    pub(crate) fn source(&self) -> Source {
        source_of(self.link.peer)
    }
}

impl Mark {
    pub(super) const NONE: Self = Self(u8::MAX);

    /// For a buffer that is for a transfer.
    fn of(kind: u8, trust: TrustLevel) -> Self {
        Self(kind | (trust as u8) << 4)
    }

    /// For a buffer that is not.
    pub(super) fn exempt(kind: u8) -> Self {
        Self(kind | EXEMPT << 4)
    }

    /// The mark of the same buffer after its transfer.
    pub(super) fn after_transfer(self) -> Self {
        Self(self.0 | EXEMPT << 4)
    }

    /// The number of the kind.
    pub(super) fn kind(self) -> usize {
        usize::from(self.0 & 0xf)
    }

    pub(super) fn trust(self) -> TrustLevel {
        match self.0 >> 4 {
            0 => TrustLevel::Unproven,
            1 => TrustLevel::Suspect,
            _ => TrustLevel::Proven,
        }
    }

    fn is_exempt(self) -> bool {
        self.0 >> 4 >= EXEMPT
    }
}

impl Origin {
    pub(super) fn is_suspect(&self) -> bool {
        !self.suspect_until.get().is_zero()
    }

    /// One of its connections stalled while others waited.
    pub(super) fn stalled(&self, now: Duration) {
        self.suspect_until.set(now.saturating_add(SUSPECT_FOR));
    }
}

impl Origins {
    /// An IPv6 network of one customer counts as one address.
    pub(super) fn of(&mut self, source: Source) -> Rc<Origin> {
        let new = || {
            self.numbers += 1;
            Rc::new(Origin {
                number: self.numbers,
                ..Origin::default()
            })
        };
        Rc::clone(self.known.entry(source.network()).or_insert_with(new))
    }

    /// Ends expired suspicions, and forgets addresses without queues beyond a limit.
    pub(super) fn remove_unused(&mut self, now: Duration) {
        for origin in self.known.values() {
            if origin.suspect_until.get() <= now {
                origin.suspect_until.set(Duration::ZERO);
            }
        }
        let in_use = |origin: &Rc<Origin>| Rc::strong_count(origin) > 1;
        self.known
            .retain(|_, origin| in_use(origin) || origin.is_suspect());
        while self.known.len() > REMEMBERED {
            let gone = self.known.iter().filter(|(_, origin)| !in_use(origin));
            let oldest = gone.min_by_key(|(_, origin)| origin.suspect_until.get());
            let Some((source, _)) = oldest.map(|(source, origin)| (*source, origin)) else {
                return;
            };
            self.known.remove(&source);
        }
    }

    /// Each address, as text, with what its hosts hold.
    pub(super) fn holders(&self) -> impl Iterator<Item = (String, &Holding)> {
        let all = self.known.iter();
        all.map(|(source, origin)| (format!("address {source:?}"), &origin.holding))
    }

    /// Whether peers of several addresses have queues.
    pub(super) fn are_several(&self) -> bool {
        let mut in_use = self.known.values().filter(|one| Rc::strong_count(one) > 1);
        in_use.nth(1).is_some()
    }
}

impl Record {
    pub(super) fn shown(&self, kind: usize) -> u32 {
        self.shown.get(kind).map_or(0, Cell::get)
    }

    pub(super) fn held(&self, kind: usize) -> u32 {
        self.held.get(kind).map_or(0, Cell::get)
    }

    fn trust(&self, kind: usize, origin: &Origin) -> TrustLevel {
        match self.shown(kind) {
            _ if origin.is_suspect() => TrustLevel::Suspect,
            0 => TrustLevel::Unproven,
            _ => TrustLevel::Proven,
        }
    }

    /// The mark of a buffer of this kind that is for a transfer.
    pub(super) fn mark(&self, kind: u8, origin: &Origin) -> Mark {
        Mark::of(kind, self.trust(kind.into(), origin))
    }

    /// It stalled: its record starts again from nothing.
    pub(super) fn forget(&self) {
        self.shown.iter().for_each(|shown| shown.set(0));
    }

    /// The data of a buffer of that kind were moved: this counts for shorter kinds as
    /// well.
    fn show(&self, kind: usize) {
        for shown in self.shown.iter().take(kind + 1) {
            shown.set(shown.get().saturating_add(1));
        }
    }
}

/// Why a host gets no buffer for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithheldReason {
    /// Its own window is full.
    Own,
    /// All hosts of its trust level together have reached their limit.
    Others(TrustLevel),
}

impl UnprovenUsage {
    pub(super) fn new(buffers: &Classes) -> Self {
        let mut all = [0; KINDS];
        for (all, count) in all.iter_mut().zip(buffers.counts()) {
            *all = u32::try_from(count).unwrap_or(u32::MAX);
        }
        Self {
            all,
            unproven: Default::default(),
            suspect: Default::default(),
        }
    }

    /// The total of a kind.
    pub(super) fn all(&self, kind: usize) -> u32 {
        self.all.get(kind).copied().unwrap_or_default()
    }

    /// The limit of all hosts of that trust level, with those below it: one half, of which
    /// one buffer is reserved for hosts that move data.
    pub(super) fn most(&self, kind: usize, trust: TrustLevel) -> u32 {
        let all = self.all(kind);
        match trust {
            TrustLevel::Unproven => (all / 2).saturating_sub(1).max(1),
            TrustLevel::Suspect => (all / 2).max(1),
            TrustLevel::Proven => u32::MAX,
        }
    }

    /// Whether a host may have one more.
    pub(super) fn allow(
        &self,
        kind: usize,
        record: &Record,
        origin: &Origin,
    ) -> Result<(), WithheldReason> {
        let trust = record.trust(kind, origin);
        let window = match trust {
            TrustLevel::Proven if record.shown(kind) >= PROVEN_AFTER => u32::MAX,
            TrustLevel::Proven => 1 << record.shown(kind),
            TrustLevel::Unproven | TrustLevel::Suspect => 1,
        };
        if record.held(kind) >= window {
            return Err(WithheldReason::Own);
        }
        let held = |of: &[Cell<u32>; KINDS]| of.get(kind).map_or(0, Cell::get);
        let held = match trust {
            TrustLevel::Proven => 0,
            TrustLevel::Suspect => held(&self.unproven).saturating_add(held(&self.suspect)),
            TrustLevel::Unproven => held(&self.unproven),
        };
        match held < self.most(kind, trust) {
            true => Ok(()),
            false => Err(WithheldReason::Others(trust)),
        }
    }

    fn of(&self, mark: Mark) -> Option<&Cell<u32>> {
        match mark.trust() {
            TrustLevel::Unproven => self.unproven.get(mark.kind()),
            TrustLevel::Suspect => self.suspect.get(mark.kind()),
            TrustLevel::Proven => None,
        }
    }

    /// A host has one more.
    pub(super) fn take(&self, mark: Mark, record: &Record) {
        if mark.is_exempt() {
            return;
        }
        let both = [self.of(mark), record.held.get(mark.kind())];
        for held in both.into_iter().flatten() {
            held.set(held.get().saturating_add(1));
        }
    }

    /// Its data were moved: it no longer counts as a transfer.
    pub(super) fn moved(&self, mark: Mark, record: &Record) {
        self.release(mark, record);
        if !mark.is_exempt() {
            record.show(mark.kind());
        }
    }

    /// It was returned.
    pub(super) fn release(&self, mark: Mark, record: &Record) {
        if mark.is_exempt() {
            return;
        }
        let both = [self.of(mark), record.held.get(mark.kind())];
        for held in both.into_iter().flatten() {
            held.set(held.get().saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{ClassSpec, Pages};

    use super::*;

    fn unproven_usage() -> UnprovenUsage {
        let specs = [4096, 65536].map(|len| ClassSpec { len, count: 8 });
        UnprovenUsage::new(&Classes::new(&specs, Pages::Normal).unwrap())
    }

    fn take(
        unproven_usage: &UnprovenUsage,
        record: &Record,
        origin: &Origin,
    ) -> Result<Mark, WithheldReason> {
        unproven_usage.allow(1, record, origin)?;
        let mark = record.mark(1, origin);
        unproven_usage.take(mark, record);
        Ok(mark)
    }

    #[test]
    fn window_doubles_with_each_returned_buffer() {
        let (unproven_usage, origin, record) =
            (unproven_usage(), Origin::default(), Record::default());
        let mut expected = 1;
        for _ in 0..5 {
            let taken: Vec<_> =
                std::iter::from_fn(|| take(&unproven_usage, &record, &origin).ok()).collect();
            assert_eq!(taken.len(), expected);
            assert_eq!(
                take(&unproven_usage, &record, &origin),
                Err(WithheldReason::Own)
            );
            // Only one of them adds to the record.
            for mark in taken.iter().skip(1) {
                let shown = record.shown.clone();
                unproven_usage.moved(*mark, &record);
                for (now, before) in record.shown.iter().zip(shown) {
                    now.set(before.get());
                }
            }
            unproven_usage.moved(taken[0], &record);
            expected *= 2;
        }
    }

    #[test]
    fn hosts_without_a_record_share_a_limit() {
        let (unproven_usage, origin) = (unproven_usage(), Origin::default());
        let records: [Record; 8] = Default::default();
        let taken = records
            .each_ref()
            .map(|record| take(&unproven_usage, record, &origin));
        assert_eq!(taken.iter().filter(|one| one.is_ok()).count(), 3, "of 8");
        assert_eq!(taken[7], Err(WithheldReason::Others(TrustLevel::Unproven)));
        let proven = Record::default();
        proven.show(1);
        assert!(take(&unproven_usage, &proven, &origin).is_ok());
    }

    #[test]
    fn suspect_address_has_one_buffer_per_host() {
        let (unproven_usage, record) = (unproven_usage(), Record::default());
        let mut origins = Origins::default();
        let source = Source::User(7);
        let origin = origins.of(source);
        (0..3).for_each(|_| record.show(1));
        origin.stalled(Duration::from_secs(1));
        assert_eq!(record.trust(1, &origin), TrustLevel::Suspect);
        let mark = take(&unproven_usage, &record, &origin).unwrap();
        assert_eq!(
            take(&unproven_usage, &record, &origin),
            Err(WithheldReason::Own)
        );
        // Its connections are closed, and it connects again.
        drop(origin);
        origins.remove_unused(Duration::from_secs(2));
        let origin = origins.of(source);
        assert!(origin.is_suspect());
        origins.remove_unused(Duration::from_secs(1) + SUSPECT_FOR);
        assert!(!origin.is_suspect());
        unproven_usage.release(mark, &record);
        assert!(take(&unproven_usage, &record, &origin).is_ok());
    }

    #[test]
    fn buffer_returned_without_data_does_not_widen_the_window() {
        let (unproven_usage, origin, record) =
            (unproven_usage(), Origin::default(), Record::default());
        let mark = take(&unproven_usage, &record, &origin).unwrap();
        unproven_usage.release(mark, &record);
        assert_eq!(record.trust(1, &origin), TrustLevel::Unproven);
        let mark = take(&unproven_usage, &record, &origin).unwrap();
        unproven_usage.moved(mark, &record);
        assert_eq!(record.trust(1, &origin), TrustLevel::Proven);
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let mut origins = Origins::default();
        let [one, other, elsewhere] = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"]
            .map(|ip| origins.of(Source::Ip(ip.parse().unwrap())));
        assert!(Rc::ptr_eq(&one, &other));
        assert!(!Rc::ptr_eq(&one, &elsewhere));
        assert!(origins.are_several());
    }

    #[test]
    fn remembered_addresses_are_bounded() {
        let mut origins = Origins::default();
        for user in 0..2000 {
            let now = Duration::from_millis(user.into());
            origins.of(Source::User(user)).stalled(now);
            origins.remove_unused(now);
        }
        assert!(origins.known.len() <= REMEMBERED);
        assert!(origins.of(Source::User(1999)).is_suspect());
    }
}
