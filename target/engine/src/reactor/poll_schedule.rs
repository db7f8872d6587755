//! Which providers a turn looks at. Some have to ask the kernel, which costs as
//! much as a small command: one on which nothing happens is not to slow down
//! the others.

/// Looks that found nothing after which a provider counts as quiet.
const PATIENCE: u32 = 256;
/// While others are busy, one turn of so many looks at a quiet one.
const SELDOM: u32 = 16;

/// How often each provider is looked at.
#[derive(Debug, Default)]
pub(super) struct PollSchedule {
    turn: u32,
    /// Of each provider: looks in a row that found nothing.
    nothing: Vec<u32>,
}

impl PollSchedule {
    /// A turn over so many providers begins.
    pub(super) fn begin(&mut self, providers: usize) {
        self.turn = self.turn.wrapping_add(1);
        self.nothing.resize(providers, 0);
    }

    /// Whether this turn looks at provider `at`. Where all are quiet it looks
    /// at each: whoever comes next is served at once.
    pub(super) fn looks(&self, at: usize) -> bool {
        let is_quiet = |nothing: &u32| *nothing >= PATIENCE;
        self.turn.is_multiple_of(SELDOM)
            || !self.nothing.get(at).is_some_and(is_quiet)
            || self.nothing.iter().all(is_quiet)
    }

    /// What came of looking at provider `at`.
    pub(super) fn looked(&mut self, at: usize, found: bool) {
        if let Some(nothing) = self.nothing.get_mut(at) {
            *nothing = if found { 0 } else { nothing.saturating_add(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often 160 turns look at each of two providers, of which those of
    /// `busy` find something.
    fn looks(poll_schedule: &mut PollSchedule, busy: [bool; 2]) -> [u32; 2] {
        let mut looks = [0; 2];
        for _ in 0..160 {
            poll_schedule.begin(2);
            for (at, (looks, busy)) in looks.iter_mut().zip(busy).enumerate() {
                if poll_schedule.looks(at) {
                    *looks += 1;
                    poll_schedule.looked(at, busy);
                }
            }
        }
        looks
    }

    #[test]
    fn quiet_ones_are_looked_at_seldom_as_long_as_another_is_busy() {
        let mut poll_schedule = PollSchedule::default();
        for _ in 0..2 {
            looks(&mut poll_schedule, [false, true]);
        }
        assert_eq!(looks(&mut poll_schedule, [false, true]), [10, 160]);
        // It is looked at as often as the other from its first work on.
        assert_eq!(looks(&mut poll_schedule, [true, true])[1], 160);
        assert_eq!(looks(&mut poll_schedule, [true, true]), [160, 160]);
        // And all are when nobody is busy.
        looks(&mut poll_schedule, [false, false]);
        looks(&mut poll_schedule, [false, false]);
        assert_eq!(looks(&mut poll_schedule, [false, false]), [160, 160]);
    }

    #[test]
    fn one_alone_is_always_looked_at() {
        let mut poll_schedule = PollSchedule::default();
        for _ in 0..1000 {
            poll_schedule.begin(1);
            assert!(poll_schedule.looks(0));
            poll_schedule.looked(0, false);
        }
    }
}
