//! Tasks that wait for a piece of some pools: first come, first served.
//!
//! While a task waits for a pool, that pool is [awaited](Free::set_awaited): a returned piece is
//! handed over to the first such task and never becomes free. A later caller can therefore not
//! take it, and a waiting task does not starve.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::free::Free;

/// The tasks that wait for pieces of several pools.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// In order of arrival, so their identifiers ascend.
    waiters: VecDeque<Waiter>,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    /// The pools of which it takes a piece.
    pools: Range<usize>,
    turn: Turn,
}

#[derive(Debug)]
enum Turn {
    Waiting(Waker),
    /// Its task has been woken.
    Given(Piece),
}

/// A piece that was handed over to a task. It is not free, and no [`Buf`](crate::Buf) has it.
#[derive(Debug)]
pub(crate) struct Piece {
    pool: usize,
    number: u32,
}

impl Piece {
    /// The index of its pool, and its number there, for the one buffer that it becomes.
    pub(crate) fn into_parts(self) -> (usize, u32) {
        (self.pool, self.number)
    }
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No state is inconsistent between two statements of a holder.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task that waits for a piece of `pools`; returns the identifier of the waiter. `mark`
    /// marks these pools as awaited, and then takes what was returned before.
    ///
    /// # Errors
    /// What `mark` took: the task does not wait.
    pub(crate) fn enter<T>(
        &self,
        pools: Range<usize>,
        waker: &Waker,
        mark: impl FnOnce() -> Option<T>,
    ) -> Result<u64, T> {
        let mut queue = self.lock();
        if let Some(taken) = mark() {
            // The next return detects that no task waits.
            return Err(taken);
        }
        let id = queue.next;
        queue.next += 1;
        queue.waiters.push_back(Waiter {
            id,
            pools,
            turn: Turn::Waiting(waker.clone()),
        });
        Ok(id)
    }

    /// The piece that was handed over to waiter `id`, which then waits no more.
    pub(crate) fn given(&self, id: u64, waker: &Waker) -> Option<Piece> {
        let mut queue = self.lock();
        let at = queue.find(id)?;
        let waiter = queue.waiters.get_mut(at)?;
        if let Turn::Waiting(known) = &mut waiter.turn {
            // A waker is dropped without the lock: it may own a task that owns a buffer.
            let is_known = known.will_wake(waker);
            let former = (!is_known).then(|| std::mem::replace(known, waker.clone()));
            drop(queue);
            drop(former);
            return None;
        }
        match queue.waiters.remove(at)?.turn {
            Turn::Given(piece) => Some(piece),
            Turn::Waiting(_) => None,
        }
    }

    /// Removes waiter `id`. Returns the piece that was handed over to it.
    pub(crate) fn leave(&self, id: u64) -> Option<Piece> {
        let left = {
            let mut queue = self.lock();
            let at = queue.find(id)?;
            queue.waiters.remove(at)?
        };
        match left.turn {
            Turn::Given(piece) => Some(piece),
            Turn::Waiting(_) => None,
        }
    }

    /// Piece `number` of pool `pool` returns: hands it over to the first task that waits for that
    /// pool. Without such a task, the piece is free.
    #[cold]
    pub(crate) fn hand_over(&self, pool: usize, free: &Free, number: u32) {
        let mut queue = self.lock();
        let first = queue
            .waiters
            .iter_mut()
            .find(|waiter| matches!(waiter.turn, Turn::Waiting(_)) && waiter.pools.contains(&pool));
        let Some(first) = first else {
            // It is marked again only with the lock.
            free.set_awaited(false);
            let is_free = free.push(number);
            debug_assert!(is_free, "no task waits");
            return;
        };
        let piece = Piece { pool, number };
        let turn = std::mem::replace(&mut first.turn, Turn::Given(piece));
        drop(queue);
        if let Turn::Waiting(waker) = turn {
            waker.wake();
        }
    }

    /// Number of tasks that wait, or have not taken their piece yet.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().waiters.len()
    }
}

impl Queue {
    fn find(&self, id: u64) -> Option<usize> {
        self.waiters.binary_search_by_key(&id, |one| one.id).ok()
    }
}
