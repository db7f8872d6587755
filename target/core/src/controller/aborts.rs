//! Abort commands that wait for the outcome of the commands that they name.

/// Abort commands that may be outstanding (ACL, 0's based).
pub(crate) const LIMIT: usize = 4;

/// The Abort commands of one controller, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Aborts {
    waiting: Vec<Abort>,
}

/// The result of beginning an Abort command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortOutcome {
    /// It waits until the queue, on reactor `at`, reports the outcome.
    Waits { at: u16 },
    /// The queue does not exist: nothing is aborted.
    NoQueue,
    /// The limit is reached.
    TooMany,
}

/// One Abort command.
#[derive(Clone, Copy, Debug)]
struct Abort {
    /// Its own command identifier.
    by: u16,
    /// The command that it names.
    sqid: u16,
    cid: u16,
    stage: Stage,
}

/// ```text
/// Requested -- the queue looks --> Looking -- it reports --> Known
///   └------------- the queue is closed ----------------------┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The queue of the command has not seen it yet.
    Requested,
    /// The queue is looking for the command.
    Looking,
    /// Whether the command was aborted.
    Known(bool),
}

impl Aborts {
    /// Abort command `by` names command `cid` of queue `sqid`. False if the limit is
    /// reached.
    pub(crate) fn ask(&mut self, by: u16, sqid: u16, cid: u16) -> bool {
        let fits = self.waiting.len() < LIMIT;
        if fits {
            self.waiting.push(Abort {
                by,
                sqid,
                cid,
                stage: Stage::Requested,
            });
        }
        fits
    }

    /// The next command that queue `sqid` is to look for.
    pub(crate) fn next_of(&mut self, sqid: u16) -> Option<u16> {
        let mut all = self.waiting.iter_mut();
        let next = all.find(|one| one.sqid == sqid && one.stage == Stage::Requested)?;
        next.stage = Stage::Looking;
        Some(next.cid)
    }

    /// Reports the outcome for command `cid` of queue `sqid`.
    pub(crate) fn report(&mut self, sqid: u16, cid: u16, aborted: bool) {
        for one in &mut self.waiting {
            if (one.sqid, one.cid, one.stage) == (sqid, cid, Stage::Looking) {
                one.stage = Stage::Known(aborted);
            }
        }
    }

    /// Queue `sqid` is closed, and its commands with it: none of them is aborted.
    pub(crate) fn queue_closed(&mut self, sqid: u16) {
        for one in &mut self.waiting {
            if one.sqid == sqid && !matches!(one.stage, Stage::Known(_)) {
                one.stage = Stage::Known(false);
            }
        }
    }

    /// An Abort command that can complete, and whether it aborted a command.
    pub(crate) fn take_known(&mut self) -> Option<(u16, bool)> {
        let known = |one: &Abort| match one.stage {
            Stage::Known(aborted) => Some((one.by, aborted)),
            _ => None,
        };
        let at = self.waiting.iter().position(|one| known(one).is_some())?;
        known(&self.waiting.remove(at))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_abort_is_looked_for_and_completed_once() {
        let mut aborts = Aborts::default();
        assert!(aborts.ask(100, 1, 7));
        assert!(aborts.ask(101, 2, 7));
        assert_eq!((aborts.next_of(3), aborts.take_known()), (None, None));
        assert_eq!((aborts.next_of(1), aborts.next_of(1)), (Some(7), None));
        aborts.report(2, 7, true);
        assert_eq!(aborts.take_known(), None, "queue 2 was not asked");
        aborts.report(1, 7, true);
        assert_eq!(aborts.take_known(), Some((100, true)));
        assert_eq!(aborts.take_known(), None);
        aborts.queue_closed(2);
        assert_eq!(aborts.take_known(), Some((101, false)));
        assert!(aborts.is_empty());
    }

    #[test]
    fn there_is_a_limit() {
        let mut aborts = Aborts::default();
        for by in 0..4 {
            assert!(aborts.ask(by, 1, 7));
        }
        assert!(!aborts.ask(4, 1, 7));
    }
}
