//! Stalls: intervals in which a job waits and no operation completes.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use nvmeof_initiator::polled::{PathChange, PathEvent, PathStatus};
use nvmeof_initiator_core::FenceMethod;
use nvmeof_initiator_core::multipath::PathState;

/// Detects stalls, prints them, and sums them up at the end of the job.
///
/// Time in which fio does not ask for results is not part of a stall: it could not have seen a
/// completion.
#[derive(Debug)]
pub(crate) struct Stalls {
    /// Name of the job.
    job: String,
    /// The shortest stall.
    threshold: Duration,
    /// The last completion, or when the job began to wait; moved by the time in which fio did not
    /// ask.
    progress_at: Duration,
    /// When fio stopped asking.
    left_at: Duration,
    /// What was found when the present stall exceeded the threshold.
    open: Option<Vec<String>>,
    /// Changes of the paths since the last completion.
    events: VecDeque<PathEvent>,
    /// The first ones.
    list: Vec<Stall>,
    count: u64,
    total: Duration,
}

/// A stall that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    /// Since the start of the job.
    start: Duration,
    duration: Duration,
    causes: Vec<String>,
}

/// Stalls that are listed at the end; more are counted.
const MAX_LISTED: usize = 100;
/// Changes that are kept for the causes of one stall.
const MAX_EVENTS: usize = 64;

impl Stalls {
    /// Reports intervals of at least `threshold`; `None` for none.
    pub(crate) fn new(job: &str, threshold: Option<Duration>, now: Duration) -> Self {
        Self {
            job: job.to_owned(),
            threshold: threshold.unwrap_or(Duration::MAX),
            progress_at: now,
            left_at: now,
            open: None,
            events: VecDeque::new(),
            list: Vec::new(),
            count: 0,
            total: Duration::ZERO,
        }
    }

    /// The first operation after none was in flight was accepted.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.progress_at = now;
        self.left_at = now;
    }

    /// fio asks for results.
    pub(crate) fn enter(&mut self, now: Duration) {
        self.progress_at += now.saturating_sub(self.left_at);
    }

    /// fio got its results.
    pub(crate) fn leave(&mut self, now: Duration) {
        self.left_at = now;
    }

    /// A path changed.
    pub(crate) fn note(&mut self, event: PathEvent) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Operations completed.
    #[inline]
    pub(crate) fn completed(&mut self, now: Duration) {
        if now.saturating_sub(self.progress_at) >= self.threshold {
            self.end(now);
        }
        self.progress_at = now;
        if !self.events.is_empty() {
            self.events.clear();
        }
    }

    /// Nothing completed so far. Returns whether a stall exceeds the threshold now and is not
    /// [opened](Self::open) yet.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.open.is_none() && now.saturating_sub(self.progress_at) >= self.threshold
    }

    /// Prints that a stall exceeds the threshold, with its causes: the state of the paths, and the
    /// number of operations that wait for a fence.
    pub(crate) fn open(&mut self, now: Duration, paths: &[PathStatus], awaiting_fence: usize) {
        let causes = present_causes(paths, awaiting_fence);
        let duration = now.saturating_sub(self.progress_at);
        eprintln!(
            "nvmeof: {}: I/O stalled for {}: {}",
            self.job,
            seconds(duration),
            causes.join("; ")
        );
        self.open = Some(causes);
    }

    /// Prints all stalls.
    pub(crate) fn summarize(&self) {
        if self.count == 0 {
            return;
        }
        eprintln!(
            "nvmeof: {}: stalls of at least {}: {}, {} in total",
            self.job,
            seconds(self.threshold),
            self.count,
            seconds(self.total)
        );
        for stall in &self.list {
            eprintln!("nvmeof: {}: stall at {stall}", self.job);
        }
    }

    #[cold]
    fn end(&mut self, now: Duration) {
        let (start, open) = (self.progress_at, self.open.take());
        let mut causes: Vec<String> = self
            .events
            .iter()
            .map(|event| change(event, event.at.saturating_sub(start)))
            .collect();
        if causes.is_empty() {
            causes = open.unwrap_or_else(|| vec![NO_CAUSE.to_owned()]);
        }
        let stall = Stall {
            start,
            duration: now.saturating_sub(start),
            causes,
        };
        self.count += 1;
        self.total += stall.duration;
        eprintln!("nvmeof: {}: stall ended: at {stall}", self.job);
        if self.list.len() < MAX_LISTED {
            self.list.push(stall);
        }
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, duration) = (seconds(self.start), seconds(self.duration));
        write!(f, "{start} for {duration}: {}", self.causes.join("; "))
    }
}

const NO_CAUSE: &str = "no completion although a path is connected";

/// Why nothing completes, by the state of the paths.
fn present_causes(paths: &[PathStatus], awaiting_fence: usize) -> Vec<String> {
    let mut causes: Vec<String> = paths.iter().filter_map(obstacle).collect();
    if awaiting_fence > 0 {
        causes.push(format!(
            "{awaiting_fence} operations wait until a lost controller is fenced"
        ));
    }
    if causes.is_empty() {
        causes.push(NO_CAUSE.to_owned());
    }
    causes
}

/// Why a path cannot be used.
fn obstacle(path: &PathStatus) -> Option<String> {
    let PathStatus { addr, .. } = path;
    let cause = path.last_error.as_ref().map(|error| error.cause());
    let because = cause.map_or_else(String::new, |cause| format!(": {cause}"));
    Some(match path.state {
        PathState::Live if path.is_accessible => return None,
        PathState::Live => format!("path {addr} cannot access the namespace{because}"),
        PathState::GivenUp => format!("path {addr} is given up{because}"),
        _ => format!("path {addr} is lost, reconnecting{because}"),
    })
}

/// A change of a path `after` the start of a stall.
fn change(event: &PathEvent, after: Duration) -> String {
    let PathEvent { addr, .. } = event;
    let after = seconds(after);
    match &event.change {
        PathChange::Connected => format!("path {addr} connected after {after}"),
        PathChange::Lost(error) => format!("path {addr} lost after {after}: {}", error.cause()),
        PathChange::Failed(error) => format!("path {addr} not connected: {}", error.cause()),
        PathChange::GivenUp => format!("path {addr} given up after {after}"),
        PathChange::Fenced(method) => {
            let method = method_name(*method);
            format!("controller of path {addr} fenced by {method} after {after}")
        }
        _ => format!("path {addr} changed after {after}"),
    }
}

fn method_name(method: FenceMethod) -> &'static str {
    match method {
        FenceMethod::CrossControllerReset => "Cross-Controller Reset",
        FenceMethod::QuiesceTime => "its quiesce time (CQT)",
        FenceMethod::AssumedQuiesceTime => "an assumed quiesce time",
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use nvmeof_initiator::{Error, UsageError};

    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn stalls() -> Stalls {
        Stalls::new("job", Some(MS(1000)), MS(0))
    }

    fn event(at: u64, change: PathChange) -> PathEvent {
        PathEvent {
            at: MS(at),
            path: 0,
            addr: "10.0.0.1:4420".parse().unwrap(),
            change,
        }
    }

    #[test]
    fn interval_of_the_threshold_is_a_stall_and_a_shorter_one_is_not() {
        let mut stalls = stalls();
        stalls.begin(MS(500));
        stalls.enter(MS(500));
        stalls.completed(MS(1499));
        assert!(stalls.list.is_empty());
        assert!(!stalls.is_due(MS(2498)));
        assert!(stalls.is_due(MS(2499)));
        stalls.open(MS(2499), &[], 3);
        assert!(!stalls.is_due(MS(2600)), "it is reported once");
        stalls.completed(MS(2700));
        let [stall] = &stalls.list[..] else {
            panic!("{stalls:?}")
        };
        assert_eq!((stall.start, stall.duration), (MS(1499), MS(1201)));
        assert!(stall.causes[0].contains("3 operations wait"), "{stall}");
        assert_eq!(stalls.total, MS(1201));
        assert!(stalls.is_due(MS(3700)), "the next one is reported as well");
    }

    #[test]
    fn time_without_a_request_for_results_is_not_part_of_a_stall() {
        let mut stalls = stalls();
        stalls.begin(MS(0));
        stalls.enter(MS(0));
        stalls.leave(MS(300));
        stalls.enter(MS(5000));
        assert!(!stalls.is_due(MS(5600)));
        stalls.completed(MS(5600));
        assert!(stalls.list.is_empty());
    }

    #[test]
    fn causes_of_a_stall_are_the_changes_of_its_paths() {
        let mut stalls = stalls();
        stalls.begin(MS(0));
        stalls.enter(MS(0));
        let why: Error = UsageError::Other("gone".to_owned()).into();
        stalls.note(event(10, PathChange::Connected));
        stalls.completed(MS(100));
        for (at, change) in [
            (200, PathChange::Lost(why)),
            (300, PathChange::Connected),
            (2100, PathChange::Fenced(FenceMethod::CrossControllerReset)),
        ] {
            stalls.note(event(at, change));
        }
        stalls.completed(MS(2200));
        let text = stalls.list[0].to_string();
        assert_eq!(
            text,
            "0.100 s for 2.100 s: path 10.0.0.1:4420 lost after 0.100 s: gone; path \
             10.0.0.1:4420 connected after 0.200 s; controller of path 10.0.0.1:4420 fenced by \
             Cross-Controller Reset after 2.000 s"
        );
    }

    #[test]
    fn stalls_are_not_reported_without_a_threshold() {
        let mut stalls = Stalls::new("job", None, MS(0));
        stalls.begin(MS(0));
        stalls.enter(MS(0));
        assert!(!stalls.is_due(MS(1_000_000)));
        stalls.completed(MS(1_000_000));
        assert_eq!(stalls.count, 0);
    }
}
