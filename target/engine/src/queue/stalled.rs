//! Stalled transfers: buffers that a queue waits for and others hold, and how long its
//! own transfers have made no progress.

use std::time::Duration;

use nvmeof_rdma::Progress;

use super::account::{Account, Provided};
use super::slots::MissingBuffers;
use super::trust::{TrustLevel, WithheldReason};
use super::{Io, QueuePair, log_peer};
use crate::fair_queue::HostId;

/// Bytes that count as progress of a connection within the time after which it is
/// stalled.
const PROGRESS: u64 = 4096;
/// An observation is stale after that.
const VALID_FOR: Duration = Duration::from_millis(600);
/// How much longer one transfer may take if the provider cannot report progress: as long
/// as 1 MiB takes at 10 Mbit/s, and some more.
const UNOBSERVED: Duration = Duration::from_secs(1);

/// What a queue knows of its transfers.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The shortage of its first command that waits for a buffer, if others hold it.
    missing: Option<Shortage>,
    seen: Option<TransferProgress>,
}

/// A buffer that a queue waits for and others hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) host: HostId,
    /// Its kind; a buffer of the next kind does as well.
    kind: usize,
    /// Connections of this trust level, or below it, hold what it may get.
    of: TrustLevel,
}

/// A transfer that stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub(crate) host: HostId,
    pub(crate) time: Duration,
    /// `None` for a buffer that was taken while there was a single host.
    pub(crate) kind: Option<usize>,
    pub(crate) trust: TrustLevel,
    /// Buffers of that kind whose data its host moved, those that it has for transfers,
    /// and the total of that kind.
    pub(crate) moved: u32,
    pub(crate) held: u32,
    pub(crate) of: u32,
}

/// The progress of transfers at the last observation.
#[derive(Clone, Copy, Debug)]
struct TransferProgress {
    at: Duration,
    pulled: (u64, Duration),
    sent: (u64, Duration),
}

/// The oldest transfers of a queue: since when they wait for the host, and a number that
/// is unique to each command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Oldest {
    pub(super) pull: Option<(Duration, u64)>,
    pub(super) push: Option<(Duration, u64)>,
    pub(super) kind: Option<usize>,
    pub(super) trust: Option<TrustLevel>,
}

impl Stalled {
    /// Whether its host has moved data. Its trust level alone does not say so: it is that of
    /// the buffer when it was taken, and `Suspect` if others of the address stalled.
    pub(crate) fn has_moved(&self) -> bool {
        self.trust == TrustLevel::Proven || self.moved > 0
    }
}

impl Shortage {
    /// Whether that buffer would end the shortage.
    pub(crate) fn is_relieved_by(&self, stalled: &Stalled) -> bool {
        let fits = |kind| kind == self.kind || kind == self.kind + 1;
        self.host != stalled.host && stalled.kind.is_none_or(fits) && stalled.trust <= self.of
    }

    /// It no longer waits for buffers of hosts that move data.
    pub(crate) fn exclude_proven(&mut self) {
        self.of = self.of.min(TrustLevel::Suspect);
    }

    /// Whether it waits for buffers of hosts of that trust level.
    pub(crate) fn is_of(&self, trust: TrustLevel) -> bool {
        self.of == trust
    }
}

impl QueuePair {
    /// A command got a buffer, or did not.
    pub(super) fn note_shortage(
        &mut self,
        provided: Provided,
        missing: MissingBuffers,
        io: &Io<'_>,
    ) {
        let of = match provided {
            Provided::NotNow | Provided::LimitReached(nvmeof_target_core::Limit::PortMemory) => {
                TrustLevel::Proven
            }
            Provided::Withheld(WithheldReason::Others(trust)) => trust,
            Provided::Yes | Provided::LimitReached(_) | Provided::Withheld(WithheldReason::Own) => {
                self.watch.missing = None;
                return;
            }
        };
        self.watch.missing = Some(Shortage {
            host: self.host(),
            kind: missing.kind(io.resources.buffers.classes()),
            of,
        });
    }

    /// The buffer that it waits for and others hold.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.watch
            .missing
            .filter(|_| !self.awaiting.commands.is_empty())
    }

    /// For how long its transfers have made no progress, as far as observed.
    pub(crate) fn stalled(&mut self, io: &Io<'_>) -> Option<Stalled> {
        let oldest = self.slots.oldest_transfers();
        if oldest.pull.is_none() && oldest.push.is_none() {
            self.watch.seen = None;
            return None;
        }
        let progress = io.provider.progress(self.link.qp);
        let allowed = if progress.is_some() {
            Duration::ZERO
        } else {
            UNOBSERVED
        };
        let now = progress.unwrap_or(Progress {
            pulled: oldest
                .pull
                .map_or(0, |(_, number)| number.wrapping_mul(PROGRESS)),
            sent: oldest
                .push
                .map_or(0, |(_, number)| number.wrapping_mul(PROGRESS)),
        });
        let seen = self.watch.seen;
        let seen = seen.filter(|seen| io.now.saturating_sub(seen.at) < VALID_FOR);
        let later = |before: Option<(u64, Duration)>, bytes: u64| match before {
            Some((before, at)) if bytes.wrapping_sub(before) < PROGRESS => (before, at),
            _ => (bytes, io.now),
        };
        let seen = TransferProgress {
            at: io.now,
            pulled: later(seen.map(|seen| seen.pulled), now.pulled),
            sent: later(seen.map(|seen| seen.sent), now.sent),
        };
        self.watch.seen = Some(seen);
        let still = |oldest: Option<(Duration, u64)>, (_, moved): (u64, Duration)| {
            oldest.map(|(since, _)| io.now.saturating_sub(since.max(moved)))
        };
        let time = still(oldest.pull, seen.pulled).max(still(oldest.push, seen.sent));
        let kind = oldest.kind.unwrap_or_default();
        let account = self.account.as_ref();
        let (held, of) = account.map_or((0, 0), |account| account.in_transfer(kind));
        Some(Stalled {
            moved: account.map_or(0, |account| account.moved(kind)),
            held,
            of,
            host: self.host(),
            time: time.unwrap_or_default().saturating_sub(allowed),
            kind: oldest.kind,
            trust: oldest.trust.unwrap_or(TrustLevel::Proven),
        })
    }

    /// The maximum number of buffers of the kind that it waits for, for all connections
    /// without a record.
    pub(crate) fn most_unproven(&self) -> u32 {
        let most = |account: &Account| {
            let kind = self.watch.missing.map_or(0, |missing| missing.kind);
            account.most(kind, TrustLevel::Unproven)
        };
        self.account.as_ref().map_or(1, most)
    }

    /// Closes the connection for others that wait for its buffer: an RDMA Read cannot be
    /// cancelled in another way.
    pub(crate) fn give_up(&mut self, stalled: &Stalled, left_out: Option<u64>, io: &mut Io<'_>) {
        if self.is_closing() {
            return;
        }
        if let Some(account) = &self.account {
            account.stalled(io.now);
        }
        if let Some(left_out) = left_out {
            let ms = stalled.time.as_millis();
            log_peer!(
                warn,
                self,
                left_out,
                "transfer stalled: no data for {ms} ms while other hosts wait for its buffer; \
                 closing the connection; check the host and its network"
            );
        }
        self.end(io);
        io.provider.abort(self.link.qp);
    }
}
