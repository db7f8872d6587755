//! Transfers that do not get on: what a queue waits for that others have, and how long
//! nothing moved of what it has itself.

use std::time::Duration;

use nvmeof_rdma::Progress;

use super::account::{Account, Provided};
use super::slots::Lacks;
use super::trust::{Kept, Standing};
use super::{Io, QueuePair, of_peer};
use crate::fair_queue::HostId;

/// Bytes that a connection moves at least in the time in which it would otherwise count
/// as stalled.
const SOME: u64 = 4096;
/// What was seen is of no use after that.
const FRESH_FOR: Duration = Duration::from_millis(600);
/// How much longer one transfer may take where the provider does not say how far it is:
/// as long as 1 MiB takes at 10 Mbit/s, and some more.
const UNSEEN: Duration = Duration::from_secs(1);

/// What a queue knows of its transfers.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What its first command that waits for a buffer waits for, if others have it.
    lacks: Option<Shortage>,
    seen: Option<Seen>,
}

/// A buffer that a queue waits for and others have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) host: HostId,
    /// Its kind, or the next one, does.
    kind: usize,
    /// Those of this standing, or below it, have what it may get.
    of: Standing,
}

/// A transfer that stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stalled {
    pub(crate) host: HostId,
    pub(crate) time: Duration,
    /// Nothing is known of a buffer that was taken when there was one host.
    pub(crate) kind: Option<usize>,
    pub(crate) standing: Standing,
    /// Buffers of that kind whose data its host moved, those that it has for transfers,
    /// and how many there are.
    pub(crate) moved: u32,
    pub(crate) held: u32,
    pub(crate) of: u32,
}

/// How far transfers were when somebody looked.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Duration,
    pulled: (u64, Duration),
    sent: (u64, Duration),
}

/// The oldest transfers of a queue: since when they wait for the host, and a number
/// that is another for each command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Oldest {
    pub(super) pull: Option<(Duration, u64)>,
    pub(super) push: Option<(Duration, u64)>,
    pub(super) kind: Option<usize>,
    pub(super) standing: Option<Standing>,
}

impl Stalled {
    /// Whether its host has moved data. Its standing alone does not say so: it is that of the
    /// buffer when it was taken, and `Suspect` where others of the address stalled.
    pub(crate) fn has_moved(&self) -> bool {
        self.standing == Standing::Proven || self.moved > 0
    }
}

impl Shortage {
    /// Whether it would help to have that buffer back.
    pub(crate) fn is_met_by(&self, stalled: &Stalled) -> bool {
        let fits = |kind| kind == self.kind || kind == self.kind + 1;
        self.host != stalled.host && stalled.kind.is_none_or(fits) && stalled.standing <= self.of
    }

    /// It waits no more for what hosts have that move data.
    pub(crate) fn spare_proven(&mut self) {
        self.of = self.of.min(Standing::Suspect);
    }

    /// Whether hosts of that standing wait for each other.
    pub(crate) fn is_of(&self, standing: Standing) -> bool {
        self.of == standing
    }
}

impl QueuePair {
    /// A command gets a buffer, or does not.
    pub(super) fn note_shortage(&mut self, provided: Provided, lacks: Lacks, io: &Io<'_>) {
        let of = match provided {
            Provided::NotNow | Provided::Part(nvmeof_target_core::Limit::PortMemory) => {
                Standing::Proven
            }
            Provided::Kept(Kept::Others(standing)) => standing,
            Provided::Yes | Provided::Part(_) | Provided::Kept(Kept::Own) => {
                self.watch.lacks = None;
                return;
            }
        };
        self.watch.lacks = Some(Shortage {
            host: self.host(),
            kind: lacks.kind(io.resources.buffers.classes()),
            of,
        });
    }

    /// What it waits for that others have.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.watch
            .lacks
            .filter(|_| !self.awaiting.commands.is_empty())
    }

    /// For how long nothing moved of its transfers, as far as somebody looked.
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
            UNSEEN
        };
        let now = progress.unwrap_or(Progress {
            pulled: oldest
                .pull
                .map_or(0, |(_, number)| number.wrapping_mul(SOME)),
            sent: oldest
                .push
                .map_or(0, |(_, number)| number.wrapping_mul(SOME)),
        });
        let seen = self.watch.seen;
        let seen = seen.filter(|seen| io.now.saturating_sub(seen.at) < FRESH_FOR);
        let later = |before: Option<(u64, Duration)>, bytes: u64| match before {
            Some((before, at)) if bytes.wrapping_sub(before) < SOME => (before, at),
            _ => (bytes, io.now),
        };
        let seen = Seen {
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
            standing: oldest.standing.unwrap_or(Standing::Proven),
        })
    }

    /// How many buffers all connections without a record may have of the kind that it
    /// waits for.
    pub(crate) fn most_unproven(&self) -> u32 {
        let most = |account: &Account| {
            let kind = self.watch.lacks.map_or(0, |lacks| lacks.kind);
            account.most(kind, Standing::Unproven)
        };
        self.account.as_ref().map_or(1, most)
    }

    /// Closes it for others that wait for a buffer that its host does not give back: an
    /// RDMA Read cannot be withdrawn in another way.
    pub(crate) fn give_up(&mut self, stalled: &Stalled, left_out: Option<u64>, io: &mut Io<'_>) {
        if self.is_closing() {
            return;
        }
        if let Some(account) = &self.account {
            account.stalled(io.now);
        }
        if let Some(left_out) = left_out {
            let ms = stalled.time.as_millis();
            of_peer!(
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
