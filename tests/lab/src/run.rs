//! Runs cases in guests: scheduling, and handling of lost guests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::Trouble;
use crate::event::Event;
use crate::guest::{Blueprint, Guest};
use crate::outside::Outside;
use crate::results::Finding;
use crate::scenario::{Case, Machine};

/// Time limit for a guest to clean up after a scenario and report.
const CLEANING: Duration = Duration::from_secs(100);

/// How cases are run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// Number of guests at a time.
    pub(crate) lanes: usize,
    /// Scenarios repeat faults more often.
    pub(crate) long: bool,
    /// Number of commits, by which short runs rotate.
    pub(crate) turn: usize,
    /// Logs of scenarios that passed are kept.
    pub(crate) keep: bool,
}

/// Cases that wait, and the findings of the others.
struct Board<'a> {
    blueprint: &'a Blueprint,
    waiting: Mutex<Vec<Case>>,
    findings: Mutex<Vec<Finding>>,
    kernel: Mutex<Option<String>>,
    guests: AtomicU32,
    how: How,
    report: &'a (dyn Fn(&Finding) + Sync),
}

/// Runs all cases. Each finding is reported immediately. Returns
/// them in the order of their names, and the release of the kernel.
pub(crate) fn run(
    blueprint: &Blueprint,
    cases: Vec<Case>,
    how: How,
    report: &(dyn Fn(&Finding) + Sync),
) -> Result<(Vec<Finding>, Option<String>), Trouble> {
    let board = Board {
        blueprint,
        waiting: Mutex::new(in_order(cases)),
        findings: Mutex::new(Vec::new()),
        kernel: Mutex::new(None),
        guests: AtomicU32::new(0),
        how,
        report,
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..how.lanes.max(1))
            .map(|_| scope.spawn(|| board.lane()))
            .collect();
        lanes.into_iter().try_for_each(|lane| {
            let broken = || {
                Err(Trouble::Failed(
                    "a thread of the runner panicked".to_owned(),
                ))
            };
            lane.join().unwrap_or_else(|_| broken())
        })
    })?;
    let kernel = owned(board.kernel);
    let mut findings = owned(board.findings);
    findings.sort_by(|one, other| {
        (&one.scenario, one.provider).cmp(&(&other.scenario, other.provider))
    });
    Ok((findings, kernel))
}

/// Sorts cases: many CPUs or NUMA nodes first, then much memory, so that a guest suits most of
/// the remaining cases; among equal ones the long ones first, so that all lanes end at about
/// the same time.
fn in_order(mut cases: Vec<Case>) -> Vec<Case> {
    cases.sort_by(|one, other| {
        let key = |case: &Case| {
            let machine = case.scenario.machine;
            (
                machine.cpus,
                machine.nodes,
                machine.memory_mib,
                case.scenario.timeout,
            )
        };
        key(other).cmp(&key(one))
    });
    cases
}

fn owned<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board<'_> {
    /// Runs cases until none is left. A guest that crashed, does not respond or could not be
    /// cleaned up is replaced.
    fn lane(&self) -> Result<(), Trouble> {
        let mut guest: Option<Guest> = None;
        while let Some(case) = self.take() {
            guest = guest.filter(|guest| guest.machine.suits(case.scenario.machine));
            let mut fit = match guest.take() {
                Some(guest) => guest,
                None => self.boot(case.scenario.machine)?,
            };
            let (mut finding, mut usable) = self.attempt(&mut fit, &case);
            if !finding.passed {
                // Emulated machines crash sometimes, and are too slow on a busy machine. A
                // second failure counts; a first one is only reported.
                drop(fit);
                let folder = self.blueprint.folder.join(case.name());
                let first_kept = folder.with_extension("first");
                drop(fs::rename(&folder, &first_kept));
                fit = self.boot(case.scenario.machine)?;
                let first = finding.reason.take();
                (finding, usable) = self.attempt(&mut fit, &case);
                finding.first_time = first;
                finding.first_kept = Some(first_kept);
            }
            (self.report)(&finding);
            locked(&self.findings).push(finding);
            guest = usable.then_some(fit);
        }
        Ok(())
    }

    fn take(&self) -> Option<Case> {
        let mut waiting = locked(&self.waiting);
        (!waiting.is_empty()).then(|| waiting.remove(0))
    }

    fn boot(&self, machine: Machine) -> Result<Guest, Trouble> {
        let number = self.guests.fetch_add(1, Ordering::Relaxed);
        let guest = self.blueprint.boot(number, machine).inspect_err(|_| {
            // The other lanes would fail the same way.
            locked(&self.waiting).clear();
        })?;
        *locked(&self.kernel) = Some(guest.kernel.clone());
        Ok(guest)
    }

    /// Runs one case, with its script on this machine.
    fn execute(&self, guest: &mut Guest, case: &Case, folder: &Path) -> Watched {
        let tools = &self.blueprint.outside;
        let started = case.scenario.outside.as_ref();
        let started = started.map(|name| tools.start(name, folder)).transpose();
        match started {
            Ok(mut outside) => watch(guest, case, self.how, outside.as_mut()),
            Err(trouble) => Watched {
                reason: Some(trouble.to_string()),
                usable: true,
                ..Watched::default()
            },
        }
    }

    /// Runs one case. Also returns whether the guest can run another one.
    fn attempt(&self, guest: &mut Guest, case: &Case) -> (Finding, bool) {
        let started = Instant::now();
        let folder = self.blueprint.folder.join(case.name());
        let watched = self.execute(guest, case, &folder);
        let mut finding = Finding {
            scenario: case.scenario.name.clone(),
            about: case.scenario.about.clone(),
            provider: case.provider.name(),
            passed: watched.reason.is_none(),
            milliseconds: watched.milliseconds.unwrap_or_else(|| {
                u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
            }),
            reason: watched.reason,
            first_time: None,
            figures: watched.figures,
            commands: watched.commands,
            kept: None,
            first_kept: None,
        };
        if !finding.passed || self.how.keep {
            keep_console(guest.console(), &folder);
            finding.kept = Some(folder);
        } else {
            // The folder of the run is removed later in any case.
            drop(fs::remove_dir_all(&folder));
        }
        (finding, watched.usable)
    }
}

/// The response to a command of a scenario without the line `# outside: ...`.
const NOT_OUTSIDE: &str = "failed: the scenario has no script on this machine";

/// Events of the guest about one case.
#[derive(Debug, Default)]
struct Watched {
    reason: Option<String>,
    milliseconds: Option<u64>,
    figures: BTreeMap<String, String>,
    commands: Vec<String>,
    usable: bool,
}

fn watch(guest: &mut Guest, case: &Case, how: How, mut outside: Option<&mut Outside>) -> Watched {
    let seconds = case.scenario.timeout.as_secs();
    let order = format!(
        "run {} {} {seconds} {} {}",
        case.scenario.name,
        case.provider.name(),
        how.turn,
        if how.long { "long" } else { "" }
    );
    let mut watched = Watched::default();
    if let Err(why) = guest.order(&order) {
        watched.reason = Some(why);
        return watched;
    }
    let until = Instant::now() + case.scenario.timeout + CLEANING;
    loop {
        match guest.next(until) {
            Ok(Event::Outside(command)) => {
                let response = outside.as_mut().map(|it| it.execute(&command));
                let response = response.as_deref().unwrap_or(NOT_OUTSIDE);
                if let Err(why) = guest.order(response) {
                    watched.lose(&why);
                    return watched;
                }
            }
            Ok(event) => {
                if watched.process(event) {
                    return watched;
                }
            }
            Err(why) => {
                watched.lose(&why);
                return watched;
            }
        }
    }
}

impl Watched {
    /// The guest is lost; `why` continues "the guest".
    fn lose(&mut self, why: &str) {
        self.reason = Some(match self.reason.take() {
            Some(reason) => format!("{reason}; then the guest {why}"),
            None => format!("the guest {why}"),
        });
    }

    /// Returns whether the case is over.
    fn process(&mut self, event: Event) -> bool {
        match event {
            Event::Ready { .. } | Event::Broken(_) | Event::WrongClock | Event::Outside(_) => {}
            Event::Reason(why) => {
                self.reason.get_or_insert(why);
            }
            Event::Record(key, value) => {
                self.figures.insert(key, value);
            }
            Event::Ran(line) => self.commands.push(line),
            Event::End {
                status,
                milliseconds,
                left,
            } => {
                self.milliseconds = Some(milliseconds);
                self.usable = left.is_empty();
                if status == 0 {
                    // The scenario handled a failure that did not end it.
                    self.reason = None;
                } else {
                    self.reason.get_or_insert(format!("exit status {status}"));
                }
                if !left.is_empty() {
                    self.reason.get_or_insert(left);
                }
                return true;
            }
        }
        false
    }
}

fn keep_console(console: &Path, folder: &Path) {
    // The reason is in the table; the console is additional information.
    drop(fs::create_dir_all(folder));
    drop(fs::copy(console, folder.join("console")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn end(status: i32, left: &str) -> Event {
        Event::End {
            status,
            milliseconds: 5,
            left: left.to_owned(),
        }
    }

    fn heard(events: Vec<Event>) -> Watched {
        let mut watched = Watched::default();
        let count = events.len();
        for (number, event) in events.into_iter().enumerate() {
            assert_eq!(watched.process(event), number + 1 == count);
        }
        watched
    }

    #[test]
    fn a_case_passes_with_status_0_and_a_clean_guest() {
        let reason = || Event::Reason("line 3".to_owned());
        let record = Event::Record("iops".to_owned(), "9".to_owned());
        let watched = heard(vec![record, reason(), end(0, "")]);
        assert!(watched.reason.is_none() && watched.usable);
        assert_eq!(watched.figures["iops"], "9");
        let watched = heard(vec![reason(), end(1, "")]);
        assert_eq!(watched.reason.as_deref(), Some("line 3"));
        assert!(watched.usable);
        assert_eq!(
            heard(vec![end(7, "")]).reason.as_deref(),
            Some("exit status 7")
        );
        let watched = heard(vec![end(0, "left behind: mount /a")]);
        assert!(watched.reason.unwrap().contains("/a") && !watched.usable);
    }

    #[test]
    fn a_lost_guest_does_not_hide_the_reason() {
        let mut watched = Watched::default();
        watched.lose("does not respond");
        assert_eq!(
            watched.reason.as_deref(),
            Some("the guest does not respond")
        );
        let mut watched = Watched::default();
        watched.process(Event::Reason("line 3".to_owned()));
        watched.lose("does not respond");
        assert_eq!(
            watched.reason.as_deref(),
            Some("line 3; then the guest does not respond")
        );
    }

    #[test]
    fn large_and_long_cases_come_first() {
        let case = |name: &str, timeout: u64, memory: u32| Case {
            scenario: Scenario::parse(
                name,
                &format!(
                    "# about: x\n# providers: iwarp\n# timeout: {timeout}\n# memory: {memory}"
                ),
            )
            .unwrap(),
            provider: crate::scenario::Provider::Iwarp,
        };
        let cases = in_order(vec![case("a", 1, 1), case("b", 2, 1), case("c", 1, 9)]);
        let names: Vec<_> = cases.iter().map(|case| &*case.scenario.name).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }
}
