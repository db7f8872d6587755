//! Fencing a lost controller: when commands that it may still have can be sent again.
//!
//! A host that loses the connection to a controller does not know which of its commands were
//! executed, nor whether some still will be. If it sends a write again over another path and
//! then newer data to the same blocks, the first write may end last and undo what was
//! acknowledged. So it first makes sure that the controller is quiet (NVMe Base 2.1, 9.6):
//!
//! ```text
//!              sibling, CIU and CIRN known             notice, or 1 s
//!  Waiting ─────────────────────────────► Resetting ─────────────► Reading log page 1Eh
//!   ▲  │  ◄──── refused, may be retried ────┘ │ immediate              │ successful
//!   │  │ deadline                             ▼                        ▼
//!   │  └───────────────────────────────────► Fenced ◄──────────────────┘
//!   └── sibling lost, entry failed ─────────────────────────────────────┘
//! ```
//!
//! No time fences a controller while a sibling says that a reset of it is in progress: its writes
//! may be in flight. Each such answer restarts the deadline, so that the time still ends a fence
//! when no sibling answers any more.
//!
//! [`Fence`] decides and does no I/O: [`poll`](Fence::poll) says what to do, the other methods
//! report what happened.

use std::time::Duration;

use nvmeof_wire::Status;
use nvmeof_wire::admin::CrossControllerReset;
use nvmeof_wire::identify::Ctratt;
use nvmeof_wire::log::controllers::CrossResetFlags;
use nvmeof_wire::log::{CrossResetEntry, CrossResetState};

use crate::setup::ControllerInfo;

/// What a host knew of a controller when it lost it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostController {
    /// What names its incarnation to a sibling: CNTLID, CIU and CIRN. `None` when Identify
    /// Controller reported no CIU (0), as of targets without Cross-Controller Reset.
    pub instance: Option<CrossControllerReset>,
    /// Keep Alive Timeout that the controller granted, rounded up to its granularity (KAS);
    /// zero: none.
    pub keep_alive: Duration,
    /// Whether any command counts as a keep alive (CTRATT.TBKAS). It takes the controller up to
    /// twice the timeout to notice a silent host then.
    pub traffic_based: bool,
    /// Command Quiesce Time (CQT); zero: not reported.
    pub quiesce_time: Duration,
    /// Whether the controller ended the connection, so that it knows that the host lost it.
    pub ended_by_controller: bool,
}

impl LostController {
    /// What `info` says of a controller, which granted `keep_alive`. Set
    /// [`ended_by_controller`](Self::ended_by_controller) when it is known to have ended the
    /// connection.
    #[must_use]
    pub fn of(info: &ControllerInfo, keep_alive: Duration) -> Self {
        let id = &info.identify;
        let instance = (id.ciu != 0).then(|| CrossControllerReset {
            icid: info.cntlid,
            ciu: id.ciu,
            cirn: id.cirn.get(),
        });
        Self {
            instance,
            keep_alive: granted(keep_alive, id.kas.get()),
            traffic_based: id.ctratt().contains(Ctratt::TBKAS),
            quiesce_time: Duration::from_millis(id.cqt.get().into()),
            ended_by_controller: false,
        }
    }
}

/// The Keep Alive Timeout that a controller grants: it rounds up to its granularity, in units of
/// 100 ms (NVMe Base 2.1, 5.1.25.1.8).
fn granted(keep_alive: Duration, granularity: u16) -> Duration {
    let unit = u128::from(granularity) * 100;
    match keep_alive.as_millis().checked_next_multiple_of(unit.max(1)) {
        Some(rounded) => Duration::from_millis(u64::try_from(rounded).unwrap_or(u64::MAX)),
        None => Duration::MAX,
    }
}

/// How a controller was fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceMethod {
    /// Another controller of the subsystem ended it.
    CrossControllerReset,
    /// The time passed that the controller reported.
    QuiesceTime,
    /// The time passed that was configured, since the controller reported none.
    AssumedQuiesceTime,
}

/// What to do about a lost controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStep {
    /// Nothing before [`Fence::next_deadline`].
    Wait,
    /// Send this command to a sibling, a controller of the same host and subsystem. Call
    /// [`Fence::sent`].
    Reset(CrossControllerReset),
    /// Read log page 1Eh of the sibling, with completed entries removed (RMC), and give it to
    /// the fences of all controllers that the sibling resets. Call [`Fence::sent`].
    ReadLog,
    /// The controller is quiet: its commands may be sent again, or failed.
    Fenced(FenceMethod),
}

/// What a refusal with Do Not Retry says: which resets not to request of that sibling again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetRefusal {
    /// That of this controller, which the sibling does not know, for example.
    ThisController,
    /// All: the sibling does not have the command.
    AnyController,
}

/// Fences one lost controller.
#[derive(Clone, Debug)]
pub struct Fence {
    instance: Option<CrossControllerReset>,
    state: State,
    /// Whether there was a sibling at the last poll. Without one, no time leads to a reset.
    has_sibling: bool,
    lost_at: Duration,
    /// When a sibling last said that a reset is in progress.
    in_progress_at: Option<Duration>,
    /// The same before the last reset began.
    in_progress_before: Option<Duration>,
    /// How long it takes the controller to be quiet; `None`: nothing says so.
    wait: Option<Duration>,
    by_time: FenceMethod,
    /// Resets that failed too late. A sibling that answers "in progress" does not clear them:
    /// otherwise one whose resets all begin and fail would delay the fence for ever.
    late_failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A reset may be sent from then on.
    Waiting {
        from: Duration,
    },
    /// The command is outstanding.
    Resetting,
    /// The sibling resets the controller. The log page is read then.
    InProgress {
        read_at: Duration,
    },
    /// Completed entries must be removed before a reset can be sent.
    LogFull,
    /// The log page is being read.
    Reading {
        in_progress: bool,
    },
    Fenced(FenceMethod),
}

/// How long to wait before a refused reset is sent again, or the log page is read without a
/// notice.
const RETRY: Duration = Duration::from_secs(1);

/// Resets that may fail late before the time alone counts.
const LATE_FAILURES: u32 = 3;

/// Multiple of the Keep Alive Timeout after which a controller that reports no Command Quiesce
/// Time is taken for quiet. An assumption: such targets promise nothing.
const ASSUMED_KEEP_ALIVES: u32 = 3;

impl Fence {
    /// The controller was lost at `now`. `assumed` is how long to wait for one that reports no
    /// quiesce time; `None`: three keep-alive timeouts.
    #[must_use]
    pub fn new(lost: &LostController, assumed: Option<Duration>, now: Duration) -> Self {
        // It last heard of the host at the moment of the loss, at the latest. Without a keep
        // alive it never notices that the host is silent.
        let detection = match lost.keep_alive {
            _ if lost.ended_by_controller => Some(Duration::ZERO),
            Duration::ZERO => None,
            timeout if lost.traffic_based => Some(timeout * 2),
            timeout => Some(timeout),
        };
        let (wait, by_time) = if lost.quiesce_time.is_zero() {
            let keep_alives = lost.keep_alive * ASSUMED_KEEP_ALIVES;
            let wait = assumed.or(Some(keep_alives).filter(|wait| !wait.is_zero()));
            (wait, FenceMethod::AssumedQuiesceTime)
        } else {
            let wait = detection.map(|detection| detection.saturating_add(lost.quiesce_time));
            (wait, FenceMethod::QuiesceTime)
        };
        Self {
            instance: lost.instance,
            state: State::Waiting { from: now },
            has_sibling: true,
            lost_at: now,
            in_progress_at: None,
            in_progress_before: None,
            wait,
            by_time,
            late_failures: 0,
        }
    }

    /// What to do at `now`; `has_sibling` says whether another controller of the same host and
    /// subsystem takes commands, of those that have not refused for good ([`ResetRefusal`]).
    pub fn poll(&mut self, now: Duration, has_sibling: bool) -> FenceStep {
        self.has_sibling = has_sibling;
        match self.state {
            State::Fenced(method) => return FenceStep::Fenced(method),
            State::Waiting { from } => {
                if let Some(instance) = self.asks()
                    && now >= from
                {
                    return FenceStep::Reset(instance);
                }
            }
            // While a sibling says that something is in flight, no deadline says otherwise.
            State::InProgress { read_at } if now >= read_at => return FenceStep::ReadLog,
            State::InProgress { .. } | State::Reading { in_progress: true } => {
                return FenceStep::Wait;
            }
            // It is about to say whether that has changed.
            State::Resetting if self.in_progress_at.is_some() => return FenceStep::Wait,
            State::LogFull if self.late_failures < LATE_FAILURES => return FenceStep::ReadLog,
            State::Resetting | State::LogFull | State::Reading { in_progress: false } => {}
        }
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.state = State::Fenced(self.by_time);
            return FenceStep::Fenced(self.by_time);
        }
        FenceStep::Wait
    }

    /// The reset to send to a sibling, unless the time alone counts.
    fn asks(&self) -> Option<CrossControllerReset> {
        let asks = self.has_sibling && self.late_failures < LATE_FAILURES;
        self.instance.filter(|_| asks)
    }

    /// When the controller is quiet at the latest; `None`: nothing says so. After an answer "in
    /// progress", the wait begins when a sibling is asked again, [`RETRY`] later.
    fn deadline(&self) -> Option<Duration> {
        let in_progress = self.in_progress_at.map(|at| at.saturating_add(RETRY));
        let from = in_progress.unwrap_or(self.lost_at);
        self.wait.map(|wait| from.saturating_add(wait))
    }

    /// When to [`poll`](Self::poll) next, if nothing happens before: a sibling that takes
    /// commands again, for example.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let next = match self.state {
            State::Waiting { from } => self.asks().map(|_| from),
            State::InProgress { read_at } => return Some(read_at),
            State::Resetting if self.in_progress_at.is_some() => return None,
            State::Reading { in_progress: true } | State::Fenced(_) => return None,
            _ => None,
        };
        next.into_iter().chain(self.deadline()).min()
    }

    /// The command of the last step went out.
    pub fn sent(&mut self) {
        self.state = match self.state {
            State::Waiting { .. } => State::Resetting,
            State::InProgress { .. } => State::Reading { in_progress: true },
            State::LogFull => State::Reading { in_progress: false },
            other => other,
        };
    }

    /// Whether `reset`, of this controller, is outstanding.
    #[must_use]
    pub fn is_resetting(&self, reset: CrossControllerReset) -> bool {
        self.state == State::Resetting && self.instance == Some(reset)
    }

    /// The reset completed with `status` and `result`, dword 0 of the completion. After a
    /// [`ResetRefusal`], do not count the sibling for [`poll`](Self::poll) any more. Others may
    /// still know the controller.
    pub fn reset_completed(
        &mut self,
        now: Duration,
        status: Status,
        result: u32,
    ) -> Option<ResetRefusal> {
        if self.state != State::Resetting {
            return None;
        }
        self.state = if status.is_success() && result & CrossControllerReset::IMMEDIATE != 0 {
            State::Fenced(FenceMethod::CrossControllerReset)
        } else if status.is_success() {
            self.in_progress_before = self.in_progress_at.replace(now);
            State::InProgress {
                read_at: now + RETRY,
            }
        } else if status.is(Status::CROSS_RESET_IN_PROGRESS) {
            // Of an earlier reset, whose log page another sibling may have.
            self.in_progress_at = Some(now);
            State::Waiting { from: now + RETRY }
        } else if status.is(Status::CROSS_RESET_LOG_FULL) {
            self.failed(now, self.deadline());
            State::LogFull
        } else {
            self.failed(now, self.deadline());
            let refusal = refusal_of(status);
            // Another sibling is asked at once.
            let pause = refusal.map_or(RETRY, |_| Duration::ZERO);
            self.state = State::Waiting { from: now + pause };
            return refusal;
        };
        None
    }

    /// The sibling reported that a reset completed: the log page is read now.
    pub fn notified(&mut self, now: Duration) {
        if let State::InProgress { read_at } = &mut self.state {
            *read_at = now;
        }
    }

    /// The log page was read, on behalf of this controller or of another one. A reset that failed
    /// for good is a refusal, as of [`reset_completed`](Self::reset_completed).
    pub fn log_read<'a>(
        &mut self,
        now: Duration,
        entries: impl IntoIterator<Item = &'a CrossResetEntry>,
    ) -> Option<ResetRefusal> {
        let in_progress = match self.state {
            State::InProgress { .. } | State::Reading { in_progress: true } => true,
            State::Reading { in_progress: false } => false,
            _ => return None,
        };
        let its = |entry: &&CrossResetEntry| {
            let named = self.instance.map(|instance| (instance.icid, instance.ciu));
            named == Some((entry.icid.get(), entry.ciu))
        };
        // The newest: an older one may have failed.
        let entry = entries.into_iter().filter(its).last();
        let state = entry.map(|entry| entry.ccrs);
        let may_retry = entry.is_some_and(|entry| {
            CrossResetFlags::from_bits_retain(entry.ccrf).contains(CrossResetFlags::RETRY)
        });
        if in_progress && state == Some(CrossResetState::FAILED) && !may_retry {
            // The sibling, which may be on another machine, does not know what is in flight. That
            // it said "in progress" has no meaning.
            self.in_progress_at = self.in_progress_before;
            self.state = State::Waiting { from: now };
            return Some(ResetRefusal::ThisController);
        }
        if state == Some(CrossResetState::IN_PROGRESS) {
            self.in_progress_at = Some(now);
        } else if in_progress && state != Some(CrossResetState::SUCCESS) {
            // Late by the time of the loss: the begin of each reset restarts the deadline.
            self.failed(now, self.wait.map(|wait| self.lost_at.saturating_add(wait)));
        }
        self.state = match state {
            Some(CrossResetState::SUCCESS) if in_progress => {
                State::Fenced(FenceMethod::CrossControllerReset)
            }
            Some(CrossResetState::IN_PROGRESS) if in_progress => State::InProgress {
                read_at: now + RETRY,
            },
            _ => State::Waiting { from: now + RETRY },
        };
        None
    }

    /// A reset failed at `now`, which is late after `deadline`.
    fn failed(&mut self, now: Duration, deadline: Option<Duration>) {
        if deadline.is_some_and(|deadline| now >= deadline) {
            self.late_failures = self.late_failures.saturating_add(1);
        }
    }

    /// The sibling was lost, with what was asked of it.
    pub fn sibling_lost(&mut self, now: Duration) {
        if !matches!(self.state, State::Fenced(_)) {
            if !matches!(self.state, State::Waiting { .. }) {
                self.failed(now, self.deadline());
            }
            self.state = State::Waiting { from: now };
        }
    }
}

/// What a status that is neither success nor about a reset in progress says about later resets.
fn refusal_of(status: Status) -> Option<ResetRefusal> {
    match status {
        _ if !status.dnr() => None,
        // "A reserved coded value or an unsupported value in the command opcode field" (Base 2.1,
        // 4.2.3.1): it has nothing to do with the controller that is to be reset.
        _ if status.is(Status::INVALID_OPCODE) => Some(ResetRefusal::AnyController),
        _ => Some(ResetRefusal::ThisController),
    }
}

/// A controller of the same host and subsystem that can reset a lost one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sibling {
    /// Whether it is on the path of the lost controller.
    pub is_same_path: bool,
    /// Whether it refused this reset, or all resets, for good ([`ResetRefusal`]).
    pub has_refused: bool,
    /// Whether a command for a fence is outstanding. A second one could read the log page, which
    /// removes completed entries, before the completion of the first one is known.
    pub is_busy: bool,
    /// Commands for fences that it did not complete in time since the last one that it completed.
    pub unanswered: u32,
}

/// The index of the sibling for the next reset; `None` if it is busy, or if there is none that has
/// not refused.
///
/// An unresponsive sibling is used only while there is no other: it would delay each fence. A
/// sibling on another path comes first, because the target of the lost one may be gone.
#[must_use]
pub fn choose_sibling(siblings: &[Sibling]) -> Option<usize> {
    let rank = |one: &Sibling| (one.unanswered, one.is_busy, one.is_same_path);
    let all = siblings.iter().enumerate();
    let asked = all.filter(|(_, one)| !one.has_refused);
    let (at, chosen) = asked.min_by_key(|(at, one)| (rank(one), *at))?;
    (!chosen.is_busy).then_some(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::little_endian::U16;

    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const NAMED: CrossControllerReset = CrossControllerReset {
        icid: 7,
        ciu: 3,
        cirn: 99,
    };

    fn lost() -> LostController {
        LostController {
            instance: Some(NAMED),
            keep_alive: S(5),
            traffic_based: false,
            quiesce_time: S(20),
            ended_by_controller: false,
        }
    }

    /// An entry of a reset that the host may send again.
    const FAILED_FOR_NOW: CrossResetEntry = CrossResetEntry {
        icid: U16::new(NAMED.icid),
        ciu: NAMED.ciu,
        rsvd3: 0,
        acid: U16::new(1),
        ccrs: CrossResetState::FAILED,
        ccrf: CrossResetFlags::RETRY.bits(),
    };

    fn entry(ccrs: CrossResetState) -> CrossResetEntry {
        CrossResetEntry {
            icid: NAMED.icid.into(),
            ciu: NAMED.ciu,
            rsvd3: 0,
            acid: 1.into(),
            ccrs,
            ccrf: 0,
        }
    }

    fn reset(fence: &mut Fence, now: Duration, status: Status, result: u32) {
        assert_eq!(fence.poll(now, true), FenceStep::Reset(NAMED));
        fence.sent();
        assert_eq!(fence.poll(now, true), FenceStep::Wait);
        fence.reset_completed(now, status, result);
    }

    const BY_RESET: FenceStep = FenceStep::Fenced(FenceMethod::CrossControllerReset);

    #[test]
    fn immediate_reset_fences_at_once() {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::SUCCESS, 1);
        assert_eq!(fence.poll(S(100), true), BY_RESET);
        fence.sibling_lost(S(101));
        assert_eq!(fence.poll(S(101), false), BY_RESET);
        assert_eq!(fence.next_deadline(), None);
    }

    #[test]
    fn reset_in_progress_fences_when_the_log_page_says_so() {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::SUCCESS, 0);
        assert_eq!(fence.poll(S(100), true), FenceStep::Wait);
        fence.notified(S(100));
        assert_eq!(fence.poll(S(100), true), FenceStep::ReadLog);
        fence.sent();
        fence.log_read(S(100), &[entry(CrossResetState::IN_PROGRESS)]);
        // Without a notice it is read again, and no deadline counts meanwhile.
        assert_eq!(fence.next_deadline(), Some(S(101)));
        assert_eq!(fence.poll(S(500), true), FenceStep::ReadLog);
        fence.sent();
        assert_eq!(fence.poll(S(500), true), FenceStep::Wait);
        let other = CrossResetEntry {
            ciu: 4,
            ..entry(CrossResetState::IN_PROGRESS)
        };
        fence.log_read(S(500), &[entry(CrossResetState::SUCCESS), other]);
        assert_eq!(fence.poll(S(500), true), BY_RESET);
    }

    #[test]
    fn failed_or_missing_reset_is_sent_again() {
        for entries in [vec![], vec![FAILED_FOR_NOW]] {
            let mut fence = Fence::new(&lost(), None, S(100));
            reset(&mut fence, S(100), Status::SUCCESS, 0);
            assert_eq!(fence.log_read(S(100), &entries), None);
            assert_eq!(fence.poll(S(100), true), FenceStep::Wait);
            assert_eq!(fence.poll(S(101), true), FenceStep::Reset(NAMED));
        }
    }

    /// A sibling on another machine does not know the controller after all.
    #[test]
    fn reset_that_failed_for_good_leaves_the_time_since_the_loss() {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(102), Status::SUCCESS, 0);
        let refusal = fence.log_read(S(104), &[entry(CrossResetState::FAILED)]);
        assert_eq!(refusal, Some(ResetRefusal::ThisController));
        assert_eq!(fence.poll(S(104), false), FenceStep::Wait);
        assert_eq!(fence.next_deadline(), Some(S(125)));
        // What another one said before keeps its meaning.
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(110), Status::CROSS_RESET_IN_PROGRESS, 0);
        reset(&mut fence, S(112), Status::SUCCESS, 0);
        let _ = fence.log_read(S(113), &[entry(CrossResetState::FAILED)]);
        assert_eq!(fence.poll(S(114), false), FenceStep::Wait);
        assert_eq!(fence.next_deadline(), Some(S(136)));
    }

    #[test]
    fn refusals_are_retried_or_leave_the_time() {
        for status in [
            Status::CROSS_RESET_IN_PROGRESS,
            Status::CROSS_RESET_LIMIT_EXCEEDED,
            Status::INTERNAL_ERROR,
        ] {
            let mut fence = Fence::new(&lost(), None, S(100));
            reset(&mut fence, S(100), status, 0);
            assert_eq!(fence.next_deadline(), Some(S(101)));
            assert_eq!(
                fence.poll(S(101), true),
                FenceStep::Reset(NAMED),
                "{status}"
            );
        }
        for (status, refusal) in [
            (Status::INVALID_OPCODE, ResetRefusal::AnyController),
            (Status::INVALID_FIELD, ResetRefusal::ThisController),
        ] {
            let mut fence = Fence::new(&lost(), None, S(100));
            assert_eq!(fence.poll(S(100), true), FenceStep::Reset(NAMED));
            fence.sent();
            let completed = fence.reset_completed(S(100), status.with_dnr(), 0);
            assert_eq!(completed, Some(refusal), "{status}");
            // It was the only one.
            assert_eq!(fence.poll(S(124), false), FenceStep::Wait);
            assert_eq!(fence.next_deadline(), Some(S(125)));
            let by_time = FenceStep::Fenced(FenceMethod::QuiesceTime);
            assert_eq!(fence.poll(S(125), false), by_time, "{status}");
        }
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::CROSS_RESET_LOG_FULL, 0);
        assert_eq!(fence.poll(S(100), true), FenceStep::ReadLog);
        fence.sent();
        fence.log_read(S(100), &[entry(CrossResetState::SUCCESS)]);
        assert_eq!(fence.next_deadline(), Some(S(101)));
        assert_eq!(fence.poll(S(101), true), FenceStep::Reset(NAMED));
    }

    #[test]
    fn sibling_that_refuses_is_replaced_by_another_at_once() {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::INVALID_FIELD.with_dnr(), 0);
        reset(&mut fence, S(100), Status::INVALID_OPCODE.with_dnr(), 0);
        reset(&mut fence, S(100), Status::SUCCESS, 1);
        assert_eq!(fence.poll(S(100), true), BY_RESET);
    }

    #[test]
    fn siblings_that_refuse_or_end_do_not_delay_the_fence_for_ever() {
        let full = |fence: &mut Fence, now| {
            fence.reset_completed(now, Status::CROSS_RESET_LOG_FULL, 0);
            if fence.poll(now, true) == FenceStep::ReadLog {
                fence.sent();
                fence.log_read(now, &[]);
            }
        };
        let lose = |fence: &mut Fence, now| fence.sibling_lost(now);
        for answer in [&full as &dyn Fn(&mut Fence, Duration), &lose] {
            let mut fence = Fence::new(&lost(), None, S(100));
            let mut now = S(100);
            let method = loop {
                match fence.poll(now, true) {
                    FenceStep::Reset(_) => {
                        fence.sent();
                        now += S(1);
                        answer(&mut fence, now);
                    }
                    FenceStep::Wait => now = fence.next_deadline().unwrap().max(now),
                    FenceStep::ReadLog => panic!("the log was read"),
                    FenceStep::Fenced(method) => break method,
                }
            };
            assert_eq!(method, FenceMethod::QuiesceTime);
            assert!(now >= S(125) && now < S(140), "{now:?}");
        }
    }

    /// A sibling that says "in progress" as late as possible, 400 s after the loss.
    fn in_progress_late() -> Fence {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::SUCCESS, 0);
        assert_eq!(fence.poll(S(500), true), FenceStep::ReadLog);
        fence.sent();
        fence.log_read(S(500), &[entry(CrossResetState::IN_PROGRESS)]);
        assert_eq!(fence.poll(S(501), true), FenceStep::ReadLog);
        fence.sent();
        fence
    }

    #[test]
    fn reset_in_progress_at_another_sibling_is_asked_for_without_end() {
        let mut fence = in_progress_late();
        fence.sibling_lost(S(506));
        for now in (506..600).map(S) {
            reset(&mut fence, now, Status::CROSS_RESET_IN_PROGRESS, 0);
            assert_eq!(fence.next_deadline(), Some(now + S(1)));
            assert_eq!(fence.poll(now, true), FenceStep::Wait);
        }
        // Also if that one is lost, or does not know the command: the first one may return.
        assert_eq!(fence.poll(S(600), true), FenceStep::Reset(NAMED));
        fence.sent();
        fence.reset_completed(S(600), Status::INVALID_OPCODE.with_dnr(), 0);
        assert_eq!(fence.poll(S(601), true), FenceStep::Reset(NAMED));
        fence.sent();
        assert_eq!(fence.poll(S(700), true), FenceStep::Wait, "it may answer");
        assert_eq!(fence.next_deadline(), None);
        fence.reset_completed(S(700), Status::SUCCESS, 1);
        assert_eq!(fence.poll(S(700), true), BY_RESET);
    }

    #[test]
    fn siblings_lost_after_an_answer_in_progress_restart_the_wait() {
        let by_time = FenceStep::Fenced(FenceMethod::QuiesceTime);
        let mut fence = in_progress_late();
        fence.sibling_lost(S(506));
        // 25 s after the next question would have followed the answer.
        assert_eq!(fence.poll(S(506), false), FenceStep::Wait);
        assert_eq!(fence.next_deadline(), Some(S(526)));
        assert_eq!(fence.poll(S(525), false), FenceStep::Wait);
        assert_eq!(fence.poll(S(526), false), by_time);
        // Siblings that are lost again and again are asked as long.
        let mut fence = in_progress_late();
        for now in (506..526).map(S) {
            fence.sibling_lost(now);
            assert_eq!(fence.poll(now, true), FenceStep::Reset(NAMED));
            fence.sent();
        }
        for _ in 0..LATE_FAILURES {
            assert_eq!(fence.state, State::Resetting);
            fence.sibling_lost(S(526));
            if fence.poll(S(526), true) == FenceStep::Reset(NAMED) {
                fence.sent();
            }
        }
        assert_eq!(fence.poll(S(526), true), by_time);
    }

    /// A short wait, as of an assumed quiesce time, ends before the sibling is asked again.
    #[test]
    fn wait_shorter_than_the_time_between_questions_fences_nothing_in_progress() {
        let unknown = LostController {
            quiesce_time: S(0),
            ..lost()
        };
        let mut fence = Fence::new(&unknown, Some(Duration::from_millis(1)), S(100));
        for now in (100..200).map(S) {
            reset(&mut fence, now, Status::CROSS_RESET_IN_PROGRESS, 0);
            assert_eq!(fence.poll(now + S(1) / 2, true), FenceStep::Wait);
        }
    }

    #[test]
    fn resets_that_all_begin_and_fail_leave_the_time() {
        for entries in [vec![], vec![FAILED_FOR_NOW]] {
            let mut fence = Fence::new(&lost(), None, S(100));
            for now in (100..128).map(S) {
                reset(&mut fence, now, Status::SUCCESS, 0);
                fence.log_read(now, &entries);
            }
            // The last one began at 127 s.
            assert_eq!(fence.poll(S(128), true), FenceStep::Wait);
            assert_eq!(fence.next_deadline(), Some(S(153)));
            let by_time = FenceStep::Fenced(FenceMethod::QuiesceTime);
            assert_eq!(fence.poll(S(153), true), by_time);
        }
    }

    #[test]
    fn keep_alive_timeout_is_rounded_up_to_its_granularity() {
        for (kato_ms, kas, granted_ms) in [(5000, 0, 5000), (5000, 1, 5000), (5000, 100, 10_000)] {
            let granted = granted(Duration::from_millis(kato_ms), kas);
            assert_eq!(granted, Duration::from_millis(granted_ms));
        }
    }

    #[test]
    fn a_lost_sibling_is_replaced_by_the_next() {
        let mut fence = Fence::new(&lost(), None, S(100));
        reset(&mut fence, S(100), Status::SUCCESS, 0);
        fence.sibling_lost(S(102));
        assert_eq!(fence.poll(S(102), false), FenceStep::Wait);
        assert_eq!(fence.poll(S(103), true), FenceStep::Reset(NAMED));
    }

    /// Otherwise a host without another path polls without a pause until the deadline.
    #[test]
    fn deadline_without_a_sibling_is_not_in_the_past() {
        let mut fence = Fence::new(&lost(), None, S(100));
        assert_eq!(fence.next_deadline(), Some(S(100)), "it was not polled yet");
        assert_eq!(fence.poll(S(100), false), FenceStep::Wait);
        assert_eq!(fence.next_deadline(), Some(S(125)));
        assert_eq!(fence.poll(S(101), true), FenceStep::Reset(NAMED));
    }

    #[test]
    fn time_fences_without_a_sibling() {
        let wait = |lost: LostController, assumed| {
            let fence = Fence::new(&lost, assumed, S(100));
            fence.deadline().map(|deadline| deadline - S(100))
        };
        let none = LostController {
            instance: None,
            ..lost()
        };
        assert_eq!(wait(none, None), Some(S(25)));
        assert_eq!(
            wait(
                LostController {
                    traffic_based: true,
                    ..none
                },
                None
            ),
            Some(S(30))
        );
        assert_eq!(
            wait(
                LostController {
                    ended_by_controller: true,
                    ..none
                },
                None
            ),
            Some(S(20))
        );
        let silent = LostController {
            keep_alive: S(0),
            ..none
        };
        assert_eq!(wait(silent, Some(S(3))), None, "it never notices");
        let unknown = LostController {
            quiesce_time: S(0),
            ..none
        };
        assert_eq!(wait(unknown, None), Some(S(15)));
        assert_eq!(wait(unknown, Some(S(4))), Some(S(4)));
        assert_eq!(
            wait(
                LostController {
                    keep_alive: S(0),
                    ..unknown
                },
                None
            ),
            None
        );
        let mut fence = Fence::new(&unknown, None, S(100));
        assert_eq!(fence.poll(S(114), false), FenceStep::Wait);
        let assumed = FenceStep::Fenced(FenceMethod::AssumedQuiesceTime);
        assert_eq!(fence.poll(S(115), false), assumed);
    }

    #[test]
    fn responsive_idle_sibling_on_another_path_is_chosen() {
        let good = Sibling {
            is_same_path: false,
            has_refused: false,
            is_busy: false,
            unanswered: 0,
        };
        let refused = Sibling {
            has_refused: true,
            ..good
        };
        let same = Sibling {
            is_same_path: true,
            ..good
        };
        let busy = Sibling {
            is_busy: true,
            ..good
        };
        let silent = Sibling {
            unanswered: 2,
            ..good
        };
        assert_eq!(choose_sibling(&[same, busy, silent, good, good]), Some(3));
        assert_eq!(choose_sibling(&[silent, busy, same]), Some(2));
        // The command of a busy one ends in a bounded time; a silent one may take all of it.
        assert_eq!(choose_sibling(&[silent, busy]), None);
        assert_eq!(choose_sibling(&[silent]), Some(0));
        assert_eq!(choose_sibling(&[]), None);
        assert_eq!(choose_sibling(&[refused, same]), Some(1));
        assert_eq!(choose_sibling(&[refused]), None);
    }

    #[derive(Clone, Copy, Debug)]
    enum Happens {
        Time(u8),
        Poll(bool),
        Completed(u16, u32),
        Notified,
        Log(u8),
        SiblingLost,
    }

    fn happens() -> impl Strategy<Value = Happens> {
        let statuses = prop_oneof![
            Just(0u16),
            Just(0x13f),
            Just(0x140),
            Just(0x141),
            Just(0x4001),
            Just(0x6)
        ];
        prop_oneof![
            (0u8..10).prop_map(Happens::Time),
            any::<bool>().prop_map(Happens::Poll),
            (statuses, 0u32..2).prop_map(|(status, result)| Happens::Completed(status, result)),
            Just(Happens::Notified),
            (0u8..4).prop_map(Happens::Log),
            Just(Happens::SiblingLost),
        ]
    }

    proptest! {
        /// Whatever happens, the controller is fenced only by a reset that succeeded or by time,
        /// and by time only when it has passed since a sibling last said "in progress".
        #[test]
        fn nothing_else_fences(all in prop::collection::vec(happens(), 0..60)) {
            let mut fence = Fence::new(&lost(), None, S(100));
            let (mut now, mut proven, mut quiet_at) = (S(100), false, S(125));
            let mut quiet_before = quiet_at;
            for one in all {
                let was_resetting = fence.state == State::Resetting;
                let was_in_progress = matches!(
                    fence.state,
                    State::InProgress { .. } | State::Reading { in_progress: true }
                );
                match one {
                    Happens::Time(seconds) => now += S(seconds.into()),
                    Happens::Poll(sibling) => match fence.poll(now, sibling) {
                        FenceStep::Fenced(FenceMethod::CrossControllerReset) => {
                            prop_assert!(proven);
                        }
                        FenceStep::Fenced(_) => {
                            prop_assert!(now >= quiet_at && !was_in_progress);
                        }
                        FenceStep::Reset(_) | FenceStep::ReadLog => fence.sent(),
                        FenceStep::Wait => {
                            prop_assert!(fence.next_deadline().is_none_or(|at| at > now));
                        }
                    },
                    Happens::Completed(status, result) => {
                        let status = Status::from_field(status);
                        fence.reset_completed(now, status, result);
                        let is_immediate = status.is_success() && result == 1;
                        let is_in_progress = status.is_success() && result == 0
                            || status.is(Status::CROSS_RESET_IN_PROGRESS);
                        if was_resetting && is_in_progress {
                            if status.is_success() {
                                quiet_before = quiet_at;
                            }
                            quiet_at = now + S(25);
                        }
                        proven |= was_resetting && is_immediate;
                    }
                    Happens::Notified => fence.notified(now),
                    Happens::Log(state) => {
                        let state = CrossResetState(state);
                        fence.log_read(now, &[entry(state)]);
                        if was_in_progress && state == CrossResetState::IN_PROGRESS {
                            quiet_at = now + S(25);
                        }
                        if was_in_progress && state == CrossResetState::FAILED {
                            quiet_at = quiet_before;
                        }
                        proven |= was_in_progress && state == CrossResetState::SUCCESS;
                    }
                    Happens::SiblingLost => fence.sibling_lost(now),
                }
            }
            // When each sibling is lost from then on, the time ends it.
            for _ in 0..100 {
                fence.sibling_lost(now);
                match fence.poll(now, true) {
                    FenceStep::Fenced(_) => return Ok(()),
                    FenceStep::Reset(_) | FenceStep::ReadLog => {
                        fence.sent();
                        now += S(1);
                    }
                    FenceStep::Wait => now = fence.next_deadline().unwrap(),
                }
            }
            prop_assert!(false, "not fenced at {now:?}: {fence:?}");
        }
    }
}
