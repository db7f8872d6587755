//! Others who want the CPU of a thread that polls.
//!
//! It is offered to them now and then, and each time there is nothing to do once
//! somebody took it: two who poll on one CPU then take turns. Where somebody takes
//! it who has enough to do for himself, he keeps it for milliseconds, while one who
//! sleeps gets it back when there is work: there it is not offered, and sleeping is
//! better than looking.

use std::thread::{self, ThreadId};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

/// What is known of them.
#[derive(Debug)]
pub(super) struct Others {
    /// Empty turns in a row after which they get the CPU, and when they do if
    /// there are none.
    patience: u32,
    due_at: Duration,
    /// How long an offer takes that nobody takes; zero until there was one.
    alone: Duration,
    switches: Switches,
    /// How much speaks for it that they keep it for long, and until when that is
    /// believed.
    kept: u32,
    kept_until: Duration,
}

/// Empty turns after which others get the CPU, until it is known whether
/// anybody wants it.
const PATIENCE: u32 = 8;
/// The same at most: twice as many each time that nobody takes it. To offer it is
/// a system call, which takes as long as some turns and can come between us and
/// what we look for.
const MOST_PATIENCE: u32 = 64;
/// Who always has something to do lets others run so often as well: where nobody took
/// the CPU the last time, and where somebody did. Those who share it would have
/// to wait until the kernel takes it away otherwise.
const OFFER_EVERY: Duration = Duration::from_millis(1);
const SHARE_EVERY: Duration = Duration::from_micros(100);
/// An offer that takes so many times as long as one that nobody took was taken; of
/// others the kernel is asked, which takes as long as the offer.
const SURELY: u32 = 4;
/// Who keeps the CPU for longer has enough to do for himself. The kernel lets
/// anybody have it for longer who wants more of it (some `base_slice_ns` of its
/// scheduler, up to the next tick), and those who poll as we do give it back earlier.
const LONG: Duration = Duration::from_millis(1);
/// They are believed to keep it when they have it for long more than once in three
/// times: each counts for so much, and each other time for one less.
const COUNTS_FOR: u32 = 2;
const ENOUGH: u32 = 4;
/// How long that is believed: finding out costs as much as they keep it for.
const BELIEVED: Duration = Duration::from_millis(200);

impl Others {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            patience: PATIENCE,
            due_at: now + OFFER_EVERY,
            alone: Duration::ZERO,
            switches: Switches::default(),
            kept: 0,
            kept_until: now,
        }
    }

    /// Whether they should have the CPU after so many empty turns in a row.
    #[inline]
    pub(super) fn are_due(&self, empty: u32, now: Duration) -> bool {
        let due = match empty {
            0 => now >= self.due_at,
            _ => empty.is_multiple_of(self.patience),
        };
        due && !self.keep_it(now)
    }

    /// Whether they keep it for long when they have it.
    #[inline]
    pub(super) fn keep_it(&self, now: Duration) -> bool {
        now < self.kept_until
    }

    pub(super) fn let_run(&mut self, clock: impl Fn() -> Duration) {
        let before = clock();
        thread::yield_now();
        let after = clock();
        let time = after.saturating_sub(before);
        let surely = !self.alone.is_zero() && time >= self.alone * SURELY;
        let taken = surely || self.switches.any();
        if surely {
            self.switches.forget();
        }
        if !taken {
            // The mean of the last ones: a CPU is not always as fast.
            let known = !self.alone.is_zero();
            self.alone = if known {
                (self.alone * 7 + time) / 8
            } else {
                time
            };
        }
        self.had_it(taken.then_some(time), after);
    }

    /// They could have it until `now`, and had it for `taken`.
    pub(super) fn had_it(&mut self, taken: Option<Duration>, now: Duration) {
        (self.patience, self.due_at) = match taken {
            Some(_) => (1, now + SHARE_EVERY),
            None => ((self.patience * 2).min(MOST_PATIENCE), now + OFFER_EVERY),
        };
        self.kept = match taken {
            Some(time) if time >= LONG => self.kept + COUNTS_FOR,
            _ => self.kept.saturating_sub(1),
        };
        if self.kept >= ENOUGH {
            // Once more is enough, when retrying.
            self.kept -= COUNTS_FOR;
            self.kept_until = now + BELIEVED;
        }
    }
}

/// How often the CPU was taken from this thread: by those who got it when it
/// was offered, and by force, which tells the same.
#[derive(Debug, Default)]
struct Switches {
    /// Of which thread, and how often: tasks change threads.
    seen: Option<(ThreadId, i64)>,
}

impl Switches {
    /// Whether it was since the last call; false where nothing is known of that.
    fn any(&mut self) -> bool {
        // Cannot fail: the arguments are right (getrusage(2)).
        let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else {
            return false;
        };
        let (here, now) = (thread::current().id(), usage.involuntary_context_switches());
        let seen = self.seen.replace((here, now));
        seen.is_some_and(|(thread, before)| thread == here && before != now)
    }

    /// The next call tells of nothing that was before it.
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
    fn whom_nobody_asks_for_the_processor_offers_it_less_often() {
        let mut others = Others::new(US(0));
        let mut turns_until_due = |taken: Option<u64>| {
            let turns = (1..=1000).find(|empty| others.are_due(*empty, US(1)));
            others.had_it(taken.map(US), US(1));
            turns
        };
        let alone: Vec<_> = (0..6).map(|_| turns_until_due(None)).collect();
        assert_eq!(alone, [8, 16, 32, 64, 64, 64].map(Some));
        assert_eq!(turns_until_due(Some(3)), Some(64), "somebody took it");
        let asked = [Some(3), Some(400), None, None].map(turns_until_due);
        assert_eq!(asked, [1, 1, 1, 2].map(Some));
    }

    #[test]
    fn who_always_has_something_to_do_lets_others_run_too() {
        let mut others = Others::new(US(0));
        assert!(!others.are_due(0, US(999)) && others.are_due(0, US(1000)));
        others.had_it(None, US(1000));
        assert!(!others.are_due(0, US(1999)) && others.are_due(0, US(2000)));
        others.had_it(Some(US(50)), US(2050));
        assert!(!others.are_due(0, US(2149)) && others.are_due(0, US(2150)));
    }

    #[test]
    fn those_who_keep_it_for_long_are_not_offered_it() {
        let mut others = Others::new(US(0));
        for time in [3000, 10, 10, 3000, 999, 999] {
            others.had_it(Some(US(time)), US(10));
            assert!(!others.keep_it(US(10)), "now and then");
        }
        others.had_it(Some(US(3000)), US(10));
        others.had_it(Some(US(3000)), US(20));
        assert!(others.keep_it(US(20)) && others.keep_it(US(200_019)));
        assert!(!others.are_due(0, US(10_000)) && !others.are_due(64, US(10_000)));
        assert!(!others.keep_it(US(200_020)) && others.are_due(1, US(200_020)));
        others.had_it(Some(US(3000)), US(203_020));
        assert!(others.keep_it(US(203_020)), "still so");
    }

    #[test]
    fn it_is_seen_whether_somebody_took_the_processor() {
        // Both threads are bound to the first CPU that we may use.
        let here = Pid::from_raw(0);
        let allowed = sched_getaffinity(here).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap());
        let mut only = CpuSet::new();
        only.set(first.unwrap()).unwrap();
        sched_setaffinity(here, &only).unwrap();

        let over = AtomicBool::new(false);
        let mut switches = Switches::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
            // The other thread may be slow to begin.
            let start = std::time::Instant::now();
            let taken = loop {
                thread::yield_now();
                let taken = switches.any();
                if taken || start.elapsed() > Duration::from_secs(60) {
                    break taken;
                }
            };
            over.store(true, Ordering::Relaxed);
            assert!(taken);
        });
        assert!((0..1000).any(|_| !switches.any()), "nobody wants it");
    }
}
