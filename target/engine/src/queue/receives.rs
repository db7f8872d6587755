//! Receives of queues: each queue has its own, or the queues of one device use a shared
//! receive queue, so that memory follows the commands in flight and not what hosts might
//! send.
//!
//! A shared receive queue has as many receives as its queues may have outstanding
//! commands, but no more than its entries: beyond that, hosts wait now and then until one
//! is free. A queue that uses more than its share violates the protocol, because it would
//! use those of others.

use nvmeof_memory::Buf;
use nvmeof_rdma::{PostError, Provider, QpId, SharedReceives, SrqId, Tag as RdmaTag};

use crate::tag::{NO_SLOT, SlotId, Tag};

/// The source of the receives of one queue.
#[derive(Debug)]
pub(crate) enum Receives {
    /// The queue pair has its own.
    Own,
    /// The queue uses the shared receive queue of its device.
    Shared(Share),
}

/// The share of a queue in a shared receive queue.
#[derive(Debug)]
pub(crate) struct Share {
    /// The index in [`SharedQueues`].
    at: u16,
    /// Commands that may be outstanding on the queue.
    entries: u32,
    /// Receives that it consumed and did not return.
    drawn: u32,
}

/// The shared receive queues of one reactor.
#[derive(Debug, Default)]
pub(crate) struct SharedQueues(Vec<Option<SharedQueue>>);

/// One of them.
#[derive(Debug)]
struct SharedQueue {
    provider: usize,
    srq: SrqId,
    /// Its capacity.
    entries: u32,
    /// Queues that use it, and the sum of their shares.
    queues: u32,
    shares: u32,
    /// Receives that are posted, and that queues have consumed.
    posted: u32,
    drawn: u32,
}

impl SharedQueue {
    /// Receives that are missing if `more` commands may be outstanding.
    fn missing(&self, more: u32) -> u32 {
        let wanted = self.shares.saturating_add(more).min(self.entries);
        wanted.saturating_sub(self.posted.saturating_add(self.drawn))
    }
}

impl SharedQueues {
    /// Adds a queue to `shared` of provider `provider`. `None` if all indices are used.
    pub(crate) fn join(&mut self, provider: usize, shared: SharedReceives) -> Option<Receives> {
        let SharedReceives { srq, entries } = shared;
        let known = |one: &Option<SharedQueue>| {
            let one = one.as_ref();
            one.is_some_and(|one| (one.provider, one.srq) == (provider, srq))
        };
        let free = |all: &[Option<SharedQueue>]| all.iter().position(Option::is_none);
        let index = self.0.iter().position(known).or_else(|| free(&self.0));
        let index = index.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        let at = u16::try_from(index).ok()?;
        let queue = self.0.get_mut(index)?.get_or_insert(SharedQueue {
            provider,
            srq,
            entries,
            queues: 0,
            shares: 0,
            posted: 0,
            drawn: 0,
        });
        queue.queues += 1;
        Some(Receives::Shared(Share {
            at,
            entries: 0,
            drawn: 0,
        }))
    }

    fn get(&mut self, at: u16) -> Option<&mut SharedQueue> {
        self.0.get_mut(usize::from(at))?.as_mut()
    }

    /// Posts a receive, or drops it if there are enough.
    fn post(&mut self, at: u16, buf: Buf, provider: &mut dyn Provider) -> Result<(), PostError> {
        let Some(queue) = self.get(at) else {
            return Ok(());
        };
        if queue.missing(0) == 0 {
            return Ok(());
        }
        let posted = provider.post_shared_recv(queue.srq, tag(at), buf);
        posted.map_err(|refused| refused.why)?;
        queue.posted += 1;
        Ok(())
    }

    /// A shared receive completed; `slot` is that of its tag.
    pub(crate) fn receive_completed(&mut self, slot: SlotId) {
        if let Some(queue) = self.get(slot.index) {
            queue.posted = queue.posted.saturating_sub(1);
        }
    }

    /// A queue was closed, with the receives that it had consumed. Call
    /// [`refill`](Self::refill) afterwards.
    pub(crate) fn remove_queue(&mut self, receives: &Receives) {
        let Receives::Shared(share) = receives else {
            return;
        };
        let Some(queue) = self.get(share.at) else {
            return;
        };
        queue.shares = queue.shares.saturating_sub(share.entries);
        queue.drawn = queue.drawn.saturating_sub(share.drawn);
        queue.queues = queue.queues.saturating_sub(1);
        if queue.queues == 0
            && let Some(entry) = self.0.get_mut(usize::from(share.at))
        {
            // The provider drops posted receives.
            *entry = None;
        }
    }

    /// Posts receives that are missing after a queue was closed, as far as `take` returns
    /// buffers.
    pub(crate) fn refill(
        &mut self,
        receives: &Receives,
        provider: &mut dyn Provider,
        mut take: impl FnMut() -> Option<Buf>,
    ) {
        let Receives::Shared(share) = receives else {
            return;
        };
        while let Some(queue) = self.get(share.at)
            && queue.missing(0) > 0
            && let Some(buf) = take()
        {
            if let Err(why) = self.post(share.at, buf, provider) {
                tracing::debug!("cannot post a shared receive: {why}");
                return;
            }
        }
    }
}

impl Receives {
    /// Buffers to allocate before the queue may have `entries` outstanding commands
    /// instead of `now`.
    pub(crate) fn needed(&self, now: u16, entries: u16, shared: &mut SharedQueues) -> usize {
        let more = entries.saturating_sub(now);
        match self {
            Self::Own => usize::from(more),
            Self::Shared(share) => {
                let missing = shared.get(share.at).map(|one| one.missing(more.into()));
                usize::try_from(missing.unwrap_or(0)).unwrap_or(usize::MAX)
            }
        }
    }

    /// The queue may have `entries` outstanding commands from now on.
    pub(crate) fn grow(&mut self, entries: u16, shared: &mut SharedQueues) {
        let Self::Shared(share) = self else { return };
        let more = u32::from(entries).saturating_sub(share.entries);
        share.entries += more;
        if let Some(queue) = shared.get(share.at) {
            queue.shares = queue.shares.saturating_add(more);
        }
    }

    /// A command arrived. The error says by how much it exceeds the limit.
    pub(crate) fn draw(&mut self, shared: &mut SharedQueues) -> Result<(), String> {
        let Self::Shared(share) = self else {
            // The queue pair has no more receives than allowed commands.
            return Ok(());
        };
        share.drawn += 1;
        if let Some(queue) = shared.get(share.at) {
            queue.drawn += 1;
        }
        if share.drawn > share.entries {
            return Err(format!(
                "the host has {} commands outstanding, {} are allowed",
                share.drawn, share.entries
            ));
        }
        Ok(())
    }

    /// The buffer of a command is free; the caller posts or drops it.
    #[inline]
    pub(crate) fn give_back(&mut self, shared: &mut SharedQueues) {
        let Self::Shared(share) = self else { return };
        share.drawn = share.drawn.saturating_sub(1);
        if let Some(queue) = shared.get(share.at) {
            queue.drawn = queue.drawn.saturating_sub(1);
        }
    }

    /// Posts a receive to the shared queue, or with `tag` to the queue pair `qp` if it has
    /// its own.
    #[inline]
    pub(crate) fn post(
        &self,
        (qp, tag): (QpId, RdmaTag),
        buf: Buf,
        provider: &mut dyn Provider,
        shared: &mut SharedQueues,
    ) -> Result<(), PostError> {
        match self {
            Self::Own => {
                let posted = provider.post_recv(qp, tag, buf);
                posted.map_err(|refused| refused.why)
            }
            Self::Shared(share) => shared.post(share.at, buf, provider),
        }
    }
}

/// The tag of shared receives, which belong to no queue yet.
fn tag(at: u16) -> RdmaTag {
    let slot = SlotId {
        index: at,
        generation: 0,
    };
    let queue = NO_SLOT;
    RdmaTag(Tag { queue, slot }.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::FIRST;

    const SHARED: SharedReceives = SharedReceives {
        srq: SrqId(1),
        entries: 100,
    };

    #[test]
    fn queue_draws_no_more_than_its_share() {
        let mut shared = SharedQueues::default();
        let mut receives = shared.join(0, SHARED).unwrap();
        receives.grow(FIRST, &mut shared);
        assert!(receives.draw(&mut shared).is_ok());
        assert!(receives.draw(&mut shared).is_ok());
        receives.give_back(&mut shared);
        assert!(receives.draw(&mut shared).is_ok());
        assert!(receives.draw(&mut shared).is_err(), "a third");
        receives.give_back(&mut shared);
        receives.grow(32, &mut shared);
        for _ in 2..32 {
            assert!(receives.draw(&mut shared).is_ok());
        }
        assert!(receives.draw(&mut shared).is_err());
    }

    #[test]
    fn needed_receives_are_limited_by_entries() {
        let mut shared = SharedQueues::default();
        let mut first = shared.join(0, SHARED).unwrap();
        assert_eq!(first.needed(0, 64, &mut shared), 64);
        first.grow(64, &mut shared);
        let second = shared.join(0, SHARED).unwrap();
        assert_eq!(second.needed(2, 34, &mut shared), 64 + 32);
        assert_eq!(second.needed(0, 64, &mut shared), 100);
        let other = shared.join(1, SHARED).unwrap();
        assert_eq!(other.needed(0, 64, &mut shared), 64, "another provider's");
        assert_eq!(Receives::Own.needed(2, 64, &mut shared), 62);
    }

    #[test]
    fn shared_queue_without_users_is_removed() {
        let mut shared = SharedQueues::default();
        let [mut a, b] = [(); 2].map(|()| shared.join(0, SHARED).unwrap());
        a.grow(50, &mut shared);
        shared.remove_queue(&a);
        assert_eq!(b.needed(0, 10, &mut shared), 10);
        shared.remove_queue(&b);
        assert!(shared.0.iter().all(Option::is_none));
    }
}
