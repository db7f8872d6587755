//! What a subsystem counts over its life, for the SMART log page.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use busy::{Busy, IDLE, tick};

mod busy;

/// Counters of one subsystem. They are read only for the log page, so that no
/// order between them is needed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    queues: Mutex<Queues>,
    /// The first [`tick`] that is not included in the controller busy time yet.
    next_tick: AtomicU64,
    media_errors: AtomicU64,
    error_entries: AtomicU64,
}

/// Counters of queues. Each queue has its own, so that counting a command causes no
/// cache traffic between cores.
#[derive(Debug, Default)]
struct Queues {
    connected: Vec<Arc<Tally>>,
    /// Sums of the queues that are gone.
    departed: DataTransferred,
    busy: Busy,
}

/// The counters of one queue, which is their only writer: on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Tally {
    /// Since which [`tick`] the queue has had commands outstanding.
    busy_since: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// Data read and written, by the commands that SMART counts (NVM Command Set 1.2,
/// 1.4.2.7 to 1.4.2.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataTransferred {
    /// SMART Data Units Read Commands: "Compare command, Read command, and Verify
    /// command".
    pub(crate) bytes_read: u64,
    /// User Data Out Commands: "Copy command and Write command".
    pub(crate) bytes_written: u64,
    /// SMART Host Read Commands: "Compare command, Copy command, and Read command".
    pub(crate) reads: u64,
    /// User Data Out Commands.
    pub(crate) writes: u64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) moved: DataTransferred,
    pub(crate) media_errors: u64,
    pub(crate) error_entries: u64,
    /// Minutes in which commands were outstanding on I/O queues.
    pub(crate) busy_minutes: u64,
}

/// Counts for one queue. Its counts remain when it is dropped.
#[derive(Debug)]
pub(crate) struct Counting {
    health: Arc<Health>,
    tally: Arc<Tally>,
    /// Commands that are outstanding.
    outstanding: u32,
    /// Tick of the last update.
    at: u64,
}

impl Health {
    /// Adds a queue.
    pub(crate) fn join(self: &Arc<Self>) -> Counting {
        let tally = Arc::new(Tally::idle());
        self.queues().connected.push(Arc::clone(&tally));
        Counting {
            health: Arc::clone(self),
            tally,
            outstanding: 0,
            at: IDLE,
        }
    }

    /// An entry was made in an error log.
    pub(crate) fn error_entry(&self) {
        self.error_entries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self, now: Duration) -> Counts {
        self.is_at(tick(now));
        let queues = self.queues();
        let connected = queues.connected.iter().map(|tally| tally.moved());
        Counts {
            moved: connected.fold(queues.departed, DataTransferred::plus),
            media_errors: self.media_errors.load(Ordering::Relaxed),
            error_entries: self.error_entries.load(Ordering::Relaxed),
            busy_minutes: queues.busy.minutes(),
        }
    }

    /// Adds the time until `tick` in which any queue had commands outstanding, unless
    /// another queue adds it.
    fn is_at(&self, tick: u64) {
        if self.claims(tick) {
            self.queues().is_at(tick);
        }
    }

    /// Whether the caller is the one that adds the time until `tick`. Others do not wait for it: a
    /// queue that becomes idle meanwhile loses at most this tick.
    fn claims(&self, tick: u64) -> bool {
        let next = tick.saturating_add(1);
        self.next_tick.load(Ordering::Relaxed) <= tick
            && self.next_tick.fetch_max(next, Ordering::Relaxed) <= tick
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // A panic leaves no change half done.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    fn is_at(&mut self, tick: u64) {
        let since = |tally: &Arc<Tally>| tally.busy_since.load(Ordering::Relaxed);
        if let Some(since) = self.connected.iter().map(since).min() {
            self.busy.until(since, tick);
        }
    }
}

impl Counting {
    /// A command arrived.
    #[inline]
    pub(crate) fn began(&mut self, now: Duration) {
        if self.outstanding == 0 {
            self.tally.busy_since.store(tick(now), Ordering::Relaxed);
        }
        self.outstanding = self.outstanding.saturating_add(1);
        self.is_at(now);
    }

    /// Commands are outstanding at `now`. Updates the busy time once per tick.
    #[inline]
    pub(crate) fn is_at(&mut self, now: Duration) {
        let tick = tick(now);
        if self.at != tick {
            self.at = tick;
            self.health.is_at(tick);
        }
    }

    /// A command completed.
    #[inline]
    pub(crate) fn ended(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.tally.busy_since.store(IDLE, Ordering::Relaxed);
        }
    }

    /// A Read or Compare of `bytes` succeeded.
    #[inline]
    pub(crate) fn read(&mut self, bytes: u64) {
        add(&self.tally.reads, 1);
        add(&self.tally.bytes_read, bytes);
    }

    /// A Write of `bytes` succeeded.
    #[inline]
    pub(crate) fn written(&mut self, bytes: u64) {
        add(&self.tally.writes, 1);
        add(&self.tally.bytes_written, bytes);
    }

    /// A Verify read `bytes`.
    pub(crate) fn verified(&mut self, bytes: u64) {
        add(&self.tally.bytes_read, bytes);
    }

    /// A Copy wrote `bytes`, and has finished if `is_done`.
    pub(crate) fn stored(&mut self, bytes: u64, is_done: bool) {
        let commands = u64::from(is_done);
        add(&self.tally.reads, commands);
        add(&self.tally.writes, commands);
        add(&self.tally.bytes_written, bytes);
    }

    /// A backing store failed.
    pub(crate) fn media_error(&self) {
        self.health.media_errors.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        let mut queues = self.health.queues();
        queues.departed = queues.departed.plus(self.tally.moved());
        queues
            .connected
            .retain(|one| !Arc::ptr_eq(one, &self.tally));
    }
}

impl Tally {
    fn idle() -> Self {
        Self {
            busy_since: AtomicU64::new(IDLE),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    fn moved(&self) -> DataTransferred {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DataTransferred {
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            reads: get(&self.reads),
            writes: get(&self.writes),
        }
    }
}

impl DataTransferred {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes_read: self.bytes_read.wrapping_add(other.bytes_read),
            bytes_written: self.bytes_written.wrapping_add(other.bytes_written),
            reads: self.reads.wrapping_add(other.reads),
            writes: self.writes.wrapping_add(other.writes),
        }
    }
}

/// Adds to a counter that has no other writer.
fn add(counter: &AtomicU64, n: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
    counter.store(sum, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// It scans all queues under a lock.
    #[test]
    fn one_of_many_reactors_adds_the_time_of_a_tick() {
        let health = Health::default();
        let (threads, ticks) = (64, 1..200_u64);
        let ready = Barrier::new(threads);
        let claimed: usize = thread::scope(|scope| {
            let claims = || {
                ready.wait();
                ticks.clone().filter(|tick| health.claims(*tick)).count()
            };
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(claims)).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        // A reactor that is late skips ticks that are over.
        assert!((1..=ticks.count()).contains(&claimed), "{claimed}");
        assert!(!health.claims(199) && health.claims(200) && !health.claims(200));
    }

    #[test]
    fn counts_of_departed_queues_remain() {
        let health = Arc::new(Health::default());
        let [mut one, mut two] = [(); 2].map(|()| health.join());
        one.read(4096);
        two.read(512);
        two.written(1024);
        two.media_error();
        health.error_entry();
        let moved = DataTransferred {
            bytes_read: 4608,
            bytes_written: 1024,
            reads: 2,
            writes: 1,
        };
        let expected = Counts {
            moved,
            media_errors: 1,
            error_entries: 1,
            busy_minutes: 0,
        };
        let counts = || health.counts(Duration::ZERO);
        assert_eq!(counts(), expected);
        drop(two);
        assert_eq!(counts(), expected);
        one.written(1);
        drop(one);
        let counts = counts();
        assert_eq!((counts.moved.writes, counts.moved.bytes_written), (2, 1025));
        assert!(health.queues().connected.is_empty());
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn minutes(health: &Arc<Health>, now: Duration) -> u64 {
        health.counts(now).busy_minutes
    }

    /// SMART / Health Information, Controller Busy Time: "the amount of time the
    /// controller is busy with I/O commands ... when there is a command
    /// outstanding to an I/O Queue".
    #[test]
    fn time_counts_while_commands_are_outstanding() {
        let health = Arc::new(Health::default());
        let mut queue = health.join();
        assert_eq!(minutes(&health, 5 * MINUTE), 0);
        queue.began(5 * MINUTE);
        assert_eq!(minutes(&health, 6 * MINUTE), 1, "still outstanding");
        queue.began(7 * MINUTE);
        queue.is_at(8 * MINUTE);
        queue.ended();
        assert_eq!(minutes(&health, 9 * MINUTE), 4, "one is left");
        queue.is_at(10 * MINUTE);
        queue.ended();
        assert_eq!(minutes(&health, 100 * MINUTE), 5);
        // A command lost with its queue is no longer outstanding.
        queue.began(100 * MINUTE);
        drop(queue);
        assert_eq!(minutes(&health, 200 * MINUTE), 5);
    }

    #[test]
    fn time_counts_once_however_many_queues_are_busy() {
        let health = Arc::new(Health::default());
        let [mut slow, mut fast] = [(); 2].map(|()| health.join());
        slow.began(MINUTE);
        for minute in [1, 3, 3, 8] {
            fast.began(minute * MINUTE);
            fast.is_at(minute * MINUTE);
            fast.ended();
        }
        // The clocks of other reactors may be slightly behind.
        slow.is_at(9 * MINUTE);
        fast.began(9 * MINUTE - Duration::from_millis(100));
        fast.ended();
        slow.ended();
        assert_eq!(minutes(&health, 20 * MINUTE), 8);
    }

    #[test]
    fn short_commands_count_little_busy_time() {
        let health = Arc::new(Health::default());
        let mut queue = health.join();
        for second in 0..36_000 {
            let now = Duration::from_secs(second);
            queue.began(now);
            queue.is_at(now + Duration::from_micros(100));
            queue.ended();
        }
        // Ten hours of one quick command each second.
        assert_eq!(minutes(&health, 601 * MINUTE), 10);
    }
}
