//! Where the receives of queues come from: each has its own, or those of one
//! device draw from shared ones, so that memory follows what is in flight and
//! not what hosts might send.
//!
//! Of a shared receive queue as many receives are held as its queues may have
//! commands outstanding, but no more than it has entries: beyond that, hosts
//! wait now and then until one is free. A queue that takes more than its part
//! broke the protocol, since it would take those of others.

use nvmeof_memory::Buf;
use nvmeof_rdma::{PostError, Provider, SharedReceives, SrqId, Tag as RdmaTag};

use crate::tag::{NO_SLOT, SlotId, Tag};

/// Where the receives of one queue come from.
#[derive(Debug)]
pub(crate) enum Receives {
    /// The queue pair has its own.
    Own,
    /// The queue draws from those of its device.
    Shared(Part),
}

/// What a queue has to do with the receives that it draws from.
#[derive(Debug)]
pub(crate) struct Part {
    /// Which of [`SharedQueues`].
    at: u16,
    /// Commands that may be outstanding on the queue.
    share: u32,
    /// Receives that it took and did not give back.
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
    /// Receives it has room for.
    entries: u32,
    /// Queues that draw from it, and the sum of their shares.
    queues: u32,
    shares: u32,
    /// Receives that are posted, and that queues took.
    posted: u32,
    drawn: u32,
}

impl SharedQueue {
    /// Receives that are missing if `more` commands may be outstanding.
    fn lacks(&self, more: u32) -> u32 {
        let wanted = self.shares.saturating_add(more).min(self.entries);
        wanted.saturating_sub(self.posted.saturating_add(self.drawn))
    }
}

impl SharedQueues {
    /// One more queue draws from `shared`, which is provider `provider`'s.
    /// `None` when there are as many as can be named.
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
        Some(Receives::Shared(Part {
            at,
            share: 0,
            drawn: 0,
        }))
    }

    fn get(&mut self, at: u16) -> Option<&mut SharedQueue> {
        self.0.get_mut(usize::from(at))?.as_mut()
    }

    /// Posts a receive, or drops it when there are enough.
    fn post(&mut self, at: u16, buf: Buf, provider: &mut dyn Provider) -> Result<(), PostError> {
        let Some(queue) = self.get(at) else {
            return Ok(());
        };
        if queue.lacks(0) == 0 {
            return Ok(());
        }
        let posted = provider.post_shared_recv(queue.srq, tag(at), buf);
        posted.map_err(|refused| refused.why)?;
        queue.posted += 1;
        Ok(())
    }

    /// A shared receive came back; `slot` is of its tag.
    pub(crate) fn came_back(&mut self, slot: SlotId) {
        if let Some(queue) = self.get(slot.index) {
            queue.posted = queue.posted.saturating_sub(1);
        }
    }

    /// A queue is gone, and with it what it had taken. Afterwards
    /// [`refill`](Self::refill).
    pub(crate) fn leave(&mut self, receives: &Receives) {
        let Receives::Shared(part) = receives else {
            return;
        };
        let Some(queue) = self.get(part.at) else {
            return;
        };
        queue.shares = queue.shares.saturating_sub(part.share);
        queue.drawn = queue.drawn.saturating_sub(part.drawn);
        queue.queues = queue.queues.saturating_sub(1);
        if queue.queues == 0
            && let Some(place) = self.0.get_mut(usize::from(part.at))
        {
            // The provider drops what is posted.
            *place = None;
        }
    }

    /// Posts what is missing since a queue went with what it had taken, as far
    /// as `take` gives buffers.
    pub(crate) fn refill(
        &mut self,
        receives: &Receives,
        provider: &mut dyn Provider,
        mut take: impl FnMut() -> Option<Buf>,
    ) {
        let Receives::Shared(part) = receives else {
            return;
        };
        while let Some(queue) = self.get(part.at)
            && queue.lacks(0) > 0
            && let Some(buf) = take()
        {
            if let Err(why) = self.post(part.at, buf, provider) {
                tracing::debug!("a shared receive is missing: {why}");
                return;
            }
        }
    }
}

impl Receives {
    /// Buffers to be taken before the queue may have `entries` commands
    /// outstanding instead of `now`.
    pub(crate) fn needed(&self, now: u16, entries: u16, shared: &mut SharedQueues) -> usize {
        let more = entries.saturating_sub(now);
        match self {
            Self::Own => usize::from(more),
            Self::Shared(part) => {
                let lacks = shared.get(part.at).map(|one| one.lacks(more.into()));
                usize::try_from(lacks.unwrap_or(0)).unwrap_or(usize::MAX)
            }
        }
    }

    /// The queue may have `entries` commands outstanding from now on.
    pub(crate) fn grow(&mut self, entries: u16, shared: &mut SharedQueues) {
        let Self::Shared(part) = self else { return };
        let more = u32::from(entries).saturating_sub(part.share);
        part.share += more;
        if let Some(queue) = shared.get(part.at) {
            queue.shares = queue.shares.saturating_add(more);
        }
    }

    /// A command came. The error says by how much it is one too many.
    pub(crate) fn draw(&mut self, shared: &mut SharedQueues) -> Result<(), String> {
        let Self::Shared(part) = self else {
            // The queue pair has no more receives than commands are allowed.
            return Ok(());
        };
        part.drawn += 1;
        if let Some(queue) = shared.get(part.at) {
            queue.drawn += 1;
        }
        if part.drawn > part.share {
            return Err(format!(
                "the host sent {} commands before one was answered, {} are allowed",
                part.drawn, part.share
            ));
        }
        Ok(())
    }

    /// What a command came in is free; it has to be posted or dropped.
    #[inline]
    pub(crate) fn give_back(&mut self, shared: &mut SharedQueues) {
        let Self::Shared(part) = self else { return };
        part.drawn = part.drawn.saturating_sub(1);
        if let Some(queue) = shared.get(part.at) {
            queue.drawn = queue.drawn.saturating_sub(1);
        }
    }

    /// Posts a receive where it belongs. `own` does so for a queue pair that
    /// has its own.
    #[inline]
    pub(crate) fn post(
        &self,
        buf: Buf,
        provider: &mut dyn Provider,
        shared: &mut SharedQueues,
        own: impl FnOnce(&mut dyn Provider, Buf) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        match self {
            Self::Own => own(provider, buf),
            Self::Shared(part) => shared.post(part.at, buf, provider),
        }
    }
}

/// The name of shared receives: they are of no queue yet.
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
    fn a_queue_draws_no_more_than_it_may_have_commands() {
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
    fn what_is_needed_ends_at_the_entries() {
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
    fn a_queue_that_all_left_is_forgotten() {
        let mut shared = SharedQueues::default();
        let [mut a, b] = [(); 2].map(|()| shared.join(0, SHARED).unwrap());
        a.grow(50, &mut shared);
        shared.leave(&a);
        assert_eq!(b.needed(0, 10, &mut shared), 10);
        shared.leave(&b);
        assert!(shared.0.iter().all(Option::is_none));
    }
}
