//! Events of the guest while it runs scenarios.
//!
//! Lines on the second serial port: a word and fields, separated by tabs. The kernel writes to
//! the first port, so its messages do not interleave.

/// One line of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It waits for scenarios.
    Ready {
        /// The kernel's release.
        kernel: String,
    },
    /// It cannot run scenarios.
    Broken(String),
    /// Its clock is wrong, so it cannot run scenarios; that of another guest may be right.
    WrongClock,
    /// Why the scenario fails.
    Reason(String),
    /// A figure that the scenario measured.
    Record(String, String),
    /// A command that the scenario ran.
    Ran(String),
    /// A command for the script on this machine that belongs to the scenario.
    Outside(String),
    /// The scenario is over and the guest is clean again.
    End {
        /// Exit status of the scenario.
        status: i32,
        /// Its duration, without cleaning up.
        milliseconds: u64,
        /// What could not be cleaned up; empty if all is well.
        left: String,
    },
}

impl Event {
    /// `None` for a line of another program.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.trim_end_matches(['\r', '\n']).split('\t');
        let word = fields.next()?;
        let mut text = || fields.next().unwrap_or_default().to_owned();
        Some(match word {
            "ready" => Self::Ready { kernel: text() },
            "broken" => Self::Broken(text()),
            "clock" => Self::WrongClock,
            "reason" => Self::Reason(text()),
            "record" => Self::Record(text(), text()),
            "ran" => Self::Ran(text()),
            "outside" => Self::Outside(text()),
            "end" => Self::End {
                status: text().parse().ok()?,
                milliseconds: text().parse().ok()?,
                left: text(),
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events() {
        assert_eq!(
            Event::parse("end\t1\t2500\tqueue pair 3\r\n"),
            Some(Event::End {
                status: 1,
                milliseconds: 2500,
                left: "queue pair 3".to_owned()
            })
        );
        assert_eq!(
            Event::parse("record\tiops\t8700"),
            Some(Event::Record("iops".to_owned(), "8700".to_owned()))
        );
        assert_eq!(
            Event::parse("outside\tgateway gw1"),
            Some(Event::Outside("gateway gw1".to_owned()))
        );
        assert_eq!(Event::parse("clock\r\n"), Some(Event::WrongClock));
        let end = Event::parse("end\t0\t1\t").unwrap();
        assert!(matches!(end, Event::End { left, .. } if left.is_empty()));
    }

    #[test]
    fn noise_is_no_event() {
        for noise in ["", "\r\n", "ended\t0\t1", "end\tx\t1\t", "end\t0"] {
            assert_eq!(Event::parse(noise), None, "{noise:?}");
        }
    }
}
