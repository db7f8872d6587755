//! Other threads that want the CPU of a thread that polls.
//!
//! The CPU is yielded now and then, and after each iteration without work once another
//! thread took it: two threads that poll on one CPU then alternate. A thread with enough
//! work of its own keeps the CPU for milliseconds, while a thread that sleeps gets it
//! back when there is work. In that case the CPU is not yielded, and sleeping is better
//! than polling.

use std::thread::{self, ThreadId};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// State about other threads.
#[derive(Debug)]
pub(super) struct Others {
    /// Iterations without work in a row after which to yield, and when to yield while all
    /// iterations find work.
    yield_after: u32,
    yield_at: Duration,
    /// How long a yield takes if no thread takes the CPU; zero until measured.
    untaken: Duration,
    switches: ContextSwitches,
    /// Evidence that others keep the CPU for long, and until when to assume it.
    evidence: u32,
    assumed_until: Duration,
}

/// Iterations without work after which to yield, until it is known whether another thread
/// wants the CPU.
const YIELD_AFTER: u32 = 8;
/// The maximum of that: it doubles each time no thread takes the CPU. A yield is a system
/// call, which takes as long as some iterations and delays the detection of work.
const MAX_YIELD_AFTER: u32 = 64;
/// Interval of yields while all iterations find work: if no thread took the CPU the last
/// time, and if one did. Otherwise a thread on the same CPU would have to wait until the
/// kernel preempts this one.
const YIELD_INTERVAL: Duration = Duration::from_millis(1);
const SHARED_YIELD_INTERVAL: Duration = Duration::from_micros(100);
/// A yield that takes so many times as long as one without a taker was taken. For shorter
/// ones the kernel is asked, which takes as long as the yield.
const TAKEN_FACTOR: u32 = 4;
/// A thread that keeps the CPU for longer has enough work of its own. The kernel lets any
/// thread that wants more have it for longer (some `base_slice_ns` of its scheduler, up
/// to the next tick); threads that poll give it back earlier.
const LONG_YIELD: Duration = Duration::from_millis(1);
/// Others are assumed to keep the CPU if they kept it for long more than once in three
/// yields: each of these counts `LONG_WEIGHT`, each other yield minus one.
const LONG_WEIGHT: u32 = 2;
const THRESHOLD: u32 = 4;
/// How long to assume it: testing it costs as much time as they keep the CPU.
const ASSUMED_FOR: Duration = Duration::from_millis(200);

impl Others {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            yield_after: YIELD_AFTER,
            yield_at: now + YIELD_INTERVAL,
            untaken: Duration::ZERO,
            switches: ContextSwitches::default(),
            evidence: 0,
            assumed_until: now,
        }
    }

    /// Whether to yield after so many iterations without work in a row.
    #[inline]
    pub(super) fn yield_is_due(&self, empty: u32, now: Duration) -> bool {
        let due = match empty {
            0 => now >= self.yield_at,
            _ => empty.is_multiple_of(self.yield_after),
        };
        due && !self.keep_cpu(now)
    }

    /// Whether others keep the CPU for long when they get it.
    #[inline]
    pub(super) fn keep_cpu(&self, now: Duration) -> bool {
        now < self.assumed_until
    }

    pub(super) fn yield_cpu(&mut self, clock: impl Fn() -> Duration) {
        let before = clock();
        thread::yield_now();
        let after = clock();
        let time = after.saturating_sub(before);
        let was_taken = !self.untaken.is_zero() && time >= self.untaken * TAKEN_FACTOR;
        let taken = was_taken || self.switches.occurred();
        if was_taken {
            self.switches.forget();
        }
        if !taken {
            // A moving average: the speed of a CPU varies.
            let known = !self.untaken.is_zero();
            self.untaken = if known {
                (self.untaken * 7 + time) / 8
            } else {
                time
            };
        }
        self.record_yield(taken.then_some(time), after);
    }

    /// The CPU was yielded until `now`; another thread had it for `taken`.
    pub(super) fn record_yield(&mut self, taken: Option<Duration>, now: Duration) {
        (self.yield_after, self.yield_at) = match taken {
            Some(_) => (1, now + SHARED_YIELD_INTERVAL),
            None => (
                (self.yield_after * 2).min(MAX_YIELD_AFTER),
                now + YIELD_INTERVAL,
            ),
        };
        self.evidence = match taken {
            Some(time) if time >= LONG_YIELD => self.evidence + LONG_WEIGHT,
            _ => self.evidence.saturating_sub(1),
        };
        if self.evidence >= THRESHOLD {
            // One more is enough when it is tested again.
            self.evidence -= LONG_WEIGHT;
            self.assumed_until = now + ASSUMED_FOR;
        }
    }
}

/// How often the CPU was taken from this thread: at a yield, and by preemption. Both mean that
/// another thread wanted it.
#[derive(Debug, Default)]
struct ContextSwitches {
    /// The thread, and its count: tasks move between threads.
    seen: Option<(ThreadId, i64)>,
}

impl ContextSwitches {
    /// Whether there was a switch since the last call; false if unknown.
    fn occurred(&mut self) -> bool {
        // Cannot fail: the arguments are right (getrusage(2)).
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else {
            return false;
        };
        let (here, now) = (thread::current().id(), usage.involuntary_context_switches());
        let seen = self.seen.replace((here, now));
        seen.is_some_and(|(thread, before)| thread == here && before != now)
    }

    /// The next call reports no earlier switch.
    fn forget(&mut self) {
        self.seen = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn unused_yields_become_less_frequent() {
        let mut others = Others::new(US(0));
        let mut iterations_until_due = |taken: Option<u64>| {
            let iterations = (1..=1000).find(|empty| others.yield_is_due(*empty, US(1)));
            others.record_yield(taken.map(US), US(1));
            iterations
        };
        let untaken: Vec<_> = (0..6).map(|_| iterations_until_due(None)).collect();
        assert_eq!(untaken, [8, 16, 32, 64, 64, 64].map(Some));
        assert_eq!(
            iterations_until_due(Some(3)),
            Some(64),
            "another thread took it"
        );
        let asked = [Some(3), Some(400), None, None].map(iterations_until_due);
        assert_eq!(asked, [1, 1, 1, 2].map(Some));
    }

    #[test]
    fn busy_thread_yields_periodically() {
        let mut others = Others::new(US(0));
        assert!(!others.yield_is_due(0, US(999)) && others.yield_is_due(0, US(1000)));
        others.record_yield(None, US(1000));
        assert!(!others.yield_is_due(0, US(1999)) && others.yield_is_due(0, US(2000)));
        others.record_yield(Some(US(50)), US(2050));
        assert!(!others.yield_is_due(0, US(2149)) && others.yield_is_due(0, US(2150)));
    }

    #[test]
    fn no_yield_while_others_keep_the_cpu() {
        let mut others = Others::new(US(0));
        for time in [3000, 10, 10, 3000, 999, 999] {
            others.record_yield(Some(US(time)), US(10));
            assert!(!others.keep_cpu(US(10)), "occasionally");
        }
        others.record_yield(Some(US(3000)), US(10));
        others.record_yield(Some(US(3000)), US(20));
        assert!(others.keep_cpu(US(20)) && others.keep_cpu(US(200_019)));
        assert!(!others.yield_is_due(0, US(10_000)) && !others.yield_is_due(64, US(10_000)));
        assert!(!others.keep_cpu(US(200_020)) && others.yield_is_due(1, US(200_020)));
        others.record_yield(Some(US(3000)), US(203_020));
        assert!(others.keep_cpu(US(203_020)), "still so");
    }

    #[test]
    fn taken_yield_is_detected() {
        // Both threads are bound to the first CPU that this process may use.
        let here = Pid::from_raw(0);
        let allowed = sched_getaffinity(here).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap());
        let mut only = CpuSet::new();
        only.set(first.unwrap()).unwrap();
        sched_setaffinity(here, &only).unwrap();

        let over = AtomicBool::new(false);
        let mut switches = ContextSwitches::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
            // The other thread may be slow to start.
            let start = std::time::Instant::now();
            let taken = loop {
                thread::yield_now();
                let taken = switches.occurred();
                if taken || start.elapsed() > Duration::from_secs(60) {
                    break taken;
                }
            };
            over.store(true, Ordering::Relaxed);
            assert!(taken);
        });
        assert!(
            (0..1000).any(|_| !switches.occurred()),
            "no thread wants it"
        );
    }
}
