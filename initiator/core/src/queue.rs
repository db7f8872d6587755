//! The host's side of one submission queue: slots, flow control, time-outs.

use std::time::Duration;

use crate::slots::{BadSlotCount, Cid, Slots, UnknownCid};

/// A violation of the protocol by the peer. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// A response to a command that is not in flight.
    #[error(transparent)]
    UnknownCid(#[from] UnknownCid),
    /// A submission queue head outside the queue.
    #[error("a response has submission queue head {sqhd}, the queue has {size} entries")]
    BadHead {
        /// The head in the response.
        sqhd: u16,
        /// Entries of the queue.
        size: u16,
    },
    /// A response came twice.
    #[error("command {:#06x} completed twice", cid.0)]
    Twice {
        /// Which command.
        cid: Cid,
    },
}

/// A submission queue: commands in flight, each with a `T` and a deadline.
///
/// At most `size - 1` commands are in flight: a queue whose tail would meet its
/// head is full (NVMe Base 2.0, section 3.3.1.5).
#[derive(Debug)]
pub struct Queue<T> {
    slots: Slots<Pending<T>>,
    size: u16,
    /// Tail and head of the queue; `None` if the host disabled SQ flow control (NVMe
    /// Base 2.0, section 6.3). A controller that does not agree loses nothing: it has
    /// fetched every entry of a command that completed.
    flow: Option<Flow>,
    /// No command expires before this: a lower bound that makes checks cheap.
    quiet_until: Option<Duration>,
}

#[derive(Debug)]
struct Flow {
    tail: u16,
    head: u16,
}

#[derive(Debug)]
struct Pending<T> {
    deadline: Option<Duration>,
    answered: bool,
    value: T,
}

impl Flow {
    /// Entries between head and tail, of `size`.
    #[inline]
    fn used(&self, size: u16) -> u16 {
        // Both are below the size. No remainder: a division would take as long as the
        // rest of the function.
        match self.tail.checked_sub(self.head) {
            Some(used) => used,
            None => size - (self.head - self.tail),
        }
    }
}

/// The entry after `at`, of `size`.
#[inline]
fn next(at: u16, size: u16) -> u16 {
    if at + 1 == size { 0 } else { at + 1 }
}

impl<T> Queue<T> {
    /// A queue of `size` entries, with or without flow control.
    ///
    /// # Errors
    /// [`BadSlotCount`] when `size` is below 2 or too large.
    pub fn new(size: u16, flow_control: bool) -> Result<Self, BadSlotCount> {
        Ok(Self {
            slots: Slots::new(usize::from(size).saturating_sub(1))?,
            size,
            flow: flow_control.then_some(Flow { tail: 0, head: 0 }),
            quiet_until: None,
        })
    }

    /// Entries of the queue.
    #[must_use]
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Commands that can be sent now.
    #[inline]
    #[must_use]
    pub fn room(&self) -> usize {
        let free = self.slots.free();
        match &self.flow {
            Some(flow) => free.min(usize::from(self.size - 1 - flow.used(self.size))),
            None => free,
        }
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.taken()
    }

    /// Reserves an entry for a command that must complete before `deadline`, if it has
    /// one.
    ///
    /// # Errors
    /// The value back when there is no room.
    pub fn begin(&mut self, value: T, deadline: Option<Duration>) -> Result<Cid, T> {
        if self.room() == 0 {
            return Err(value);
        }
        let pending = Pending {
            deadline,
            answered: false,
            value,
        };
        let cid = self
            .slots
            .insert(pending)
            .map_err(|pending| pending.value)?;
        if let Some(flow) = &mut self.flow {
            flow.tail = next(flow.tail, self.size);
        }
        if let Some(deadline) = deadline {
            self.quiet_until = Some(self.quiet_until.map_or(deadline, |q| q.min(deadline)));
        }
        Ok(cid)
    }

    /// Records the response to `cid`, which stays in flight until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// [`QueueFault`]; the queue must be closed then.
    pub fn record_response(&mut self, cid: Cid, sqhd: u16) -> Result<&mut T, QueueFault> {
        if let Some(flow) = &mut self.flow {
            if sqhd >= self.size {
                let size = self.size;
                return Err(QueueFault::BadHead { sqhd, size });
            }
            flow.head = sqhd;
        }
        let pending = self.slots.get_mut(cid)?;
        if std::mem::replace(&mut pending.answered, true) {
            return Err(QueueFault::Twice { cid });
        }
        Ok(&mut pending.value)
    }

    /// The value of the command `cid`.
    ///
    /// # Errors
    /// [`UnknownCid`] when it is not in flight.
    pub fn get_mut(&mut self, cid: Cid) -> Result<&mut T, UnknownCid> {
        Ok(&mut self.slots.get_mut(cid)?.value)
    }

    /// Releases the entry of a command.
    ///
    /// # Errors
    /// [`UnknownCid`] when it is not in flight.
    pub fn release(&mut self, cid: Cid) -> Result<T, UnknownCid> {
        let pending = self.slots.remove(cid)?;
        // With no command in flight, the controller has fetched every entry, whatever
        // head it reported last.
        if let Some(flow) = &mut self.flow
            && self.slots.taken() == 0
        {
            flow.head = flow.tail;
        }
        Ok(pending.value)
    }

    /// Cancels the last command of [`begin`](Self::begin): it was not sent.
    ///
    /// # Errors
    /// [`UnknownCid`] when it is not in flight.
    pub fn cancel(&mut self, cid: Cid) -> Result<T, UnknownCid> {
        let pending = self.slots.remove(cid)?;
        if let Some(flow) = &mut self.flow {
            flow.tail = flow.tail.checked_sub(1).unwrap_or(self.size - 1);
        }
        Ok(pending.value)
    }

    /// A command that is overdue: it was not released before its deadline.
    pub fn expired(&mut self, now: Duration) -> Option<Cid> {
        if self.quiet_until.is_none_or(|quiet| now < quiet) {
            return None;
        }
        let in_flight = self.slots.iter();
        let first = in_flight
            .filter_map(|(cid, pending)| pending.deadline.map(|deadline| (deadline, cid)))
            .min();
        self.quiet_until = first.map(|(deadline, _)| deadline);
        first
            .filter(|(deadline, _)| now >= *deadline)
            .map(|(_, cid)| cid)
    }

    /// When to call [`expired`](Self::expired) next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.quiet_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn queue_holds_one_command_less_than_its_size() {
        let mut queue = Queue::new(4, true).unwrap();
        let cids: Vec<Cid> = (0..3).map(|n| queue.begin(n, None).unwrap()).collect();
        assert_eq!(queue.begin(9, None), Err(9));
        assert_eq!(queue.record_response(cids[0], 1), Ok(&mut 0));
        assert_eq!(queue.release(cids[0]), Ok(0));
        assert_eq!((queue.room(), queue.in_flight()), (1, 2));
        queue.begin(3, None).unwrap();
        assert_eq!(queue.room(), 0);
        assert!(Queue::<()>::new(1, true).is_err());
    }

    #[test]
    fn reported_head_limits_commands() {
        let mut queue = Queue::new(4, true).unwrap();
        let cids: Vec<Cid> = (0..3).map(|n| queue.begin(n, None).unwrap()).collect();
        // Answered, but the controller says it has not moved its head.
        queue.record_response(cids[1], 0).unwrap();
        queue.release(cids[1]).unwrap();
        assert_eq!(queue.room(), 0);
    }

    #[test]
    fn cancelled_command_takes_no_entry() {
        let mut queue = Queue::new(4, true).unwrap();
        queue.begin(0, None).unwrap();
        for _ in 0..9 {
            let cid = queue.begin(1, None).unwrap();
            assert_eq!(queue.cancel(cid), Ok(1));
        }
        assert_eq!((queue.room(), queue.in_flight()), (2, 1));
    }

    #[test]
    fn without_flow_control_slots_alone_count() {
        let mut queue = Queue::new(4, false).unwrap();
        let cids: Vec<Cid> = (0..3).map(|n| queue.begin(n, None).unwrap()).collect();
        assert_eq!(queue.begin(9, None), Err(9));
        queue.record_response(cids[1], 0xffff).unwrap();
        queue.release(cids[1]).unwrap();
        assert_eq!(queue.room(), 1);
    }

    /// Round and round, with every distance from head to tail.
    #[test]
    fn room_depends_on_head_and_tail() {
        for size in [2, 3, 7] {
            let mut queue = Queue::new(size, true).unwrap();
            let mut head = 0;
            for ahead in (1..size).cycle().take(100) {
                let cids: Vec<Cid> = (0..ahead).map(|_| queue.begin((), None).unwrap()).collect();
                for (answered, cid) in (1..).zip(cids) {
                    assert_eq!(queue.room(), usize::from(size - 1 - (ahead + 1 - answered)));
                    head = (head + 1) % size;
                    queue.record_response(cid, head).unwrap();
                    queue.release(cid).unwrap();
                }
                assert_eq!(queue.room(), usize::from(size - 1));
            }
        }
    }

    #[test]
    fn idle_queue_has_full_room() {
        let mut queue = Queue::new(4, true).unwrap();
        for n in 0..10 {
            let cid = queue.begin(n, None).unwrap();
            queue.record_response(cid, 0).unwrap();
            queue.release(cid).unwrap();
            assert_eq!(queue.room(), 3);
        }
    }

    #[test]
    fn invalid_responses_break_the_queue() {
        let mut queue = Queue::new(4, true).unwrap();
        let cid = queue.begin((), None).unwrap();
        let other = Cid(cid.0 ^ 1);
        assert_eq!(
            queue.record_response(other, 0),
            Err(UnknownCid { cid: other }.into())
        );
        assert_eq!(
            queue.record_response(cid, 4),
            Err(QueueFault::BadHead { sqhd: 4, size: 4 })
        );
        queue.record_response(cid, 1).unwrap();
        assert_eq!(
            queue.record_response(cid, 1),
            Err(QueueFault::Twice { cid })
        );
    }

    #[test]
    fn oldest_command_expires_until_released() {
        let mut queue = Queue::new(8, true).unwrap();
        let first = queue.begin(1, Some(S(10))).unwrap();
        let second = queue.begin(2, Some(S(12))).unwrap();
        queue.begin(3, None).unwrap();
        assert_eq!(queue.next_deadline(), Some(S(10)));
        assert_eq!(queue.expired(S(9)), None);
        queue.record_response(first, 1).unwrap();
        queue.release(first).unwrap();
        assert_eq!(queue.expired(S(11)), None);
        assert_eq!(queue.next_deadline(), Some(S(12)));
        assert_eq!(queue.expired(S(12)), Some(second));
        queue.record_response(second, 2).unwrap();
        assert_eq!(queue.expired(S(13)), Some(second), "not released yet");
        queue.release(second).unwrap();
        assert_eq!(queue.expired(S(99)), None);
        assert_eq!(queue.next_deadline(), None);
    }
}
