//! When a lost path is connected again, and when it is given up.
//!
//! ```text
//!           lost                  due: Connect
//!  Live ─────────► Backoff ─────────────────────► Connecting
//!   ▲                 ▲ └ ctrl_loss expired ► GivenUp │  │
//!   │                 └──────── failed ───────────────┘  │
//!   └──────────────────────── connected ─────────────────┘
//! ```
//!
//! After a connection that lasted, the first attempt is made at once. The others follow after
//! delays that double from a tenth of a second to the reconnect delay, each shortened by a random
//! part: hosts that lost a target together do not come back together.

use std::time::Duration;

/// Options of a lost path, with the names and meanings of `nvme connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectOptions {
    /// The longest delay between two attempts (`--reconnect-delay`). Default: 1 s.
    pub reconnect_delay: Duration,
    /// Time after a loss until the path is given up (`--ctrl-loss-tmo`); `None`: never. Default:
    /// 600 s.
    pub ctrl_loss: Option<Duration>,
    /// Time after a loss until commands fail although the path is still being connected
    /// (`--fast_io_fail_tmo`); `None`, the default: they wait.
    pub fast_io_fail: Option<Duration>,
}

impl Default for ReconnectOptions {
    /// Attempts at most one second apart (`nvme connect`: 10 s). Paths are given up after 600 s, as
    /// with `nvme connect`. Commands wait until then.
    fn default() -> Self {
        Self {
            reconnect_delay: Duration::from_secs(1),
            ctrl_loss: Some(Duration::from_secs(600)),
            fast_io_fail: None,
        }
    }
}

/// What to do about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconnectStep {
    /// Nothing before [`Reconnect::next_deadline`].
    Wait,
    /// Connect now; report the result.
    Connect,
    /// The path is given up: its commands fail if no other path is left.
    GiveUp,
}

/// The state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathState {
    /// It is being connected.
    Connecting,
    /// It is connected.
    Live,
    /// It is lost, or was not connected yet, and the next attempt is due later.
    Backoff,
    /// It is not connected again, because of `ctrl_loss` or a refusal with Do Not Retry.
    GivenUp,
    /// The caller disconnected it.
    Disconnected,
}

impl PathState {
    /// Its name, such as `given-up`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Backoff => "backoff",
            Self::GivenUp => "given-up",
            Self::Disconnected => "disconnected",
        }
    }
}

/// The reconnects of one path.
#[derive(Clone, Debug)]
pub struct Reconnect {
    options: ReconnectOptions,
    state: State,
    /// When the path was lost the last time, or was to be connected first.
    lost_at: Duration,
    /// When it was connected.
    connected_at: Duration,
    /// Until then a path that has come back is not preferred; `None` until it was live once.
    settled_at: Option<Duration>,
    /// Failed attempts since then.
    attempts: u32,
    random: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    Backoff { until: Duration },
    Connecting,
    GivenUp,
}

/// The longest time until a path that came back is preferred again.
const LONGEST_SETTLING: Duration = Duration::from_secs(4);

/// A connection that lasted for so long was a good one.
const LASTING: Duration = Duration::from_secs(10);

/// The delay after the first failed attempt.
const SHORTEST_DELAY: Duration = Duration::from_millis(100);

impl Reconnect {
    /// A path that is to be connected for the first time at `now`. `seed` decides the random
    /// part of delays.
    #[must_use]
    pub fn new(options: ReconnectOptions, seed: u64, now: Duration) -> Self {
        Self {
            options,
            state: State::Backoff { until: now },
            lost_at: now,
            connected_at: now,
            settled_at: None,
            attempts: 0,
            random: seed,
        }
    }

    /// What to do at `now`. After [`ReconnectStep::Connect`], call [`connected`](Self::connected)
    /// or [`failed`](Self::failed).
    pub fn poll(&mut self, now: Duration) -> ReconnectStep {
        let State::Backoff { until } = self.state else {
            return match self.state {
                State::GivenUp => ReconnectStep::GiveUp,
                _ => ReconnectStep::Wait,
            };
        };
        // The first attempt is always made.
        let was_tried = self.attempts > 0 || self.settled_at.is_some();
        let end = self.after_loss(self.options.ctrl_loss);
        if was_tried && end.is_some_and(|end| now >= end) {
            self.state = State::GivenUp;
            return ReconnectStep::GiveUp;
        }
        if now < until {
            return ReconnectStep::Wait;
        }
        self.state = State::Connecting;
        ReconnectStep::Connect
    }

    /// When to [`poll`](Self::poll) next, if nothing happens before.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let State::Backoff { until } = self.state else {
            return None;
        };
        let end = self.after_loss(self.options.ctrl_loss);
        end.into_iter().chain([until]).min()
    }

    /// The attempt succeeded at `now`. After a loss, the path settles within four seconds.
    pub fn connected(&mut self, now: Duration) {
        if self.state == State::Connecting {
            self.state = State::Live;
            self.settled_at = Some(match self.settled_at {
                None => now,
                Some(_) => now + self.shortened(LONGEST_SETTLING),
            });
            self.connected_at = now;
        }
    }

    /// When a path that came back is preferred to others again. Hosts that lost a path together
    /// return to it one after the other.
    #[must_use]
    pub fn settled_at(&self) -> Duration {
        self.settled_at.unwrap_or(Duration::MAX)
    }

    /// The attempt failed at `now`. With `is_final`, the target will refuse each further one, as
    /// with Do Not Retry: the path is given up.
    pub fn failed(&mut self, now: Duration, is_final: bool) {
        if self.state != State::Connecting {
            return;
        }
        if is_final {
            self.state = State::GivenUp;
            return;
        }
        self.back_off(now);
    }

    fn back_off(&mut self, now: Duration) {
        let delay = SHORTEST_DELAY
            .saturating_mul(1u32.checked_shl(self.attempts).unwrap_or(u32::MAX))
            .min(self.options.reconnect_delay.max(SHORTEST_DELAY));
        self.attempts = self.attempts.saturating_add(1);
        self.state = State::Backoff {
            until: now + self.shortened(delay),
        };
    }

    /// The connected path was lost at `now`. One that was not connected for long counts as a
    /// failed attempt: a target that closes each connection is not connected without a pause.
    pub fn lost(&mut self, now: Duration) {
        if self.state != State::Live {
            return;
        }
        self.lost_at = now;
        if now.saturating_sub(self.connected_at) < LASTING {
            return self.back_off(now);
        }
        self.attempts = 0;
        self.state = State::Backoff { until: now };
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> PathState {
        match self.state {
            State::Live => PathState::Live,
            State::Backoff { .. } => PathState::Backoff,
            State::Connecting => PathState::Connecting,
            State::GivenUp => PathState::GivenUp,
        }
    }

    /// Whether commands can be sent.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Whether the path was given up.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    /// Whether commands that have no other path may still wait for this one at `now`.
    #[must_use]
    pub fn may_wait(&self, now: Duration) -> bool {
        if self.state == State::Live {
            return true;
        }
        let fails = self.after_loss(self.options.fast_io_fail);
        self.state != State::GivenUp && fails.is_none_or(|fails| now < fails)
    }

    /// When [`may_wait`](Self::may_wait) ends by itself, if it does.
    #[must_use]
    pub fn fails_at(&self) -> Option<Duration> {
        match self.state {
            State::Live | State::GivenUp => None,
            _ => self.after_loss(self.options.fast_io_fail),
        }
    }

    /// That time after the loss; `None` if there is no such time.
    fn after_loss(&self, time: Option<Duration>) -> Option<Duration> {
        Some(self.lost_at.saturating_add(time?))
    }

    /// Between half of `delay` and all of it.
    fn shortened(&mut self, delay: Duration) -> Duration {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let half = delay / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(mixed.checked_rem(nanos).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn lost(options: ReconnectOptions) -> Reconnect {
        let mut path = Reconnect::new(options, 1, S(0));
        assert_eq!(path.poll(S(0)), ReconnectStep::Connect);
        path.connected(S(0));
        assert_eq!(path.settled_at(), S(0));
        assert!(path.is_live() && path.next_deadline().is_none());
        path.lost(S(100));
        path
    }

    #[test]
    fn path_without_reconnects_is_connected_once() {
        let options = ReconnectOptions {
            ctrl_loss: Some(Duration::ZERO),
            ..ReconnectOptions::default()
        };
        for connects in [true, false] {
            let mut path = Reconnect::new(options, 1, S(0));
            assert_eq!(path.poll(S(5)), ReconnectStep::Connect);
            match connects {
                true => {
                    path.connected(S(5));
                    path.lost(S(60));
                }
                false => path.failed(S(6), false),
            }
            assert_eq!(path.poll(S(60)), ReconnectStep::GiveUp);
        }
    }

    #[test]
    fn first_attempt_is_made_at_once_and_delays_double() {
        let mut path = lost(ReconnectOptions::default());
        let mut now = S(100);
        let mut delays = Vec::new();
        for _ in 0..8 {
            assert_eq!(path.poll(now), ReconnectStep::Connect);
            assert_eq!(path.poll(now), ReconnectStep::Wait);
            path.failed(now, false);
            let next = path.next_deadline().unwrap();
            delays.push(next - now);
            now = next;
        }
        for (delay, longest) in delays.iter().zip([100, 200, 400, 800, 1000, 1000, 1000]) {
            let longest = Duration::from_millis(longest);
            assert!(longest / 2 <= *delay && *delay <= longest, "{delays:?}");
        }
    }

    #[test]
    fn path_is_given_up_after_ctrl_loss() {
        let mut path = lost(ReconnectOptions {
            ctrl_loss: Some(S(10)),
            ..ReconnectOptions::default()
        });
        assert_eq!(path.poll(S(100)), ReconnectStep::Connect);
        path.failed(S(109), false);
        assert!(path.next_deadline().unwrap() <= S(110));
        assert_eq!(path.poll(S(110)), ReconnectStep::GiveUp);
        assert!(!path.may_wait(S(110)));
        assert_eq!(path.next_deadline(), None);
    }

    #[test]
    fn target_that_closes_each_connection_is_not_connected_without_pauses() {
        let mut path = lost(ReconnectOptions::default());
        let mut now = S(100);
        let mut attempts = 0;
        while now < S(120) {
            match path.poll(now) {
                ReconnectStep::Connect => {
                    attempts += 1;
                    path.connected(now);
                    path.lost(now);
                }
                ReconnectStep::Wait => now = path.next_deadline().unwrap(),
                ReconnectStep::GiveUp => panic!("given up"),
            }
        }
        assert!((15..60).contains(&attempts), "{attempts}");
    }

    #[test]
    fn final_refusal_gives_up_at_once() {
        let mut path = lost(ReconnectOptions::default());
        assert_eq!(path.poll(S(100)), ReconnectStep::Connect);
        path.failed(S(100), true);
        assert_eq!(path.poll(S(101)), ReconnectStep::GiveUp);
    }

    #[test]
    fn commands_wait_until_fast_io_fail() {
        let mut path = lost(ReconnectOptions {
            fast_io_fail: Some(S(5)),
            ..ReconnectOptions::default()
        });
        assert_eq!(path.fails_at(), Some(S(105)));
        assert!(path.may_wait(S(104)) && !path.may_wait(S(105)));
        assert_eq!(path.poll(S(106)), ReconnectStep::Connect);
        path.connected(S(106));
        assert!(path.may_wait(S(200)));
        assert!(path.settled_at() > S(107) && path.settled_at() <= S(110));
    }

    proptest! {
        /// Whatever the results: a deadline is never in the past after a poll, attempts do not
        /// come closer than half of the shortest delay, and `ctrl_loss` ends all of them.
        #[test]
        fn attempts_are_bounded(
            seed in any::<u64>(),
            times in proptest::collection::vec(0u64..500, 1..200),
        ) {
            let mut path = Reconnect::new(ReconnectOptions {
                ctrl_loss: Some(S(30)),
                ..ReconnectOptions::default()
            }, seed, S(0));
            let mut now = S(0);
            let mut attempts = 0u32;
            for time in times {
                match path.poll(now) {
                    ReconnectStep::Connect => {
                        attempts += 1;
                        now += Duration::from_millis(time);
                        path.failed(now, false);
                    }
                    ReconnectStep::Wait => {
                        let next = path.next_deadline().unwrap();
                        prop_assert!(next > now);
                        now = next;
                    }
                    ReconnectStep::GiveUp => {
                        prop_assert!(now >= S(30));
                        break;
                    }
                }
            }
            prop_assert!(attempts <= 4 + 60 + 2, "{attempts}");
        }
    }
}
