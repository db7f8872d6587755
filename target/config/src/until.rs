//! `host.old_key_until`: a date, or a date and time, after which a key is not accepted. Also the
//! text of such a time.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use toml::value::{Date, Datetime, Offset, Time};

/// The value of the key: a date of TOML, or the same as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawUntil(SystemTime);

const EXPECTED: &str = "a date (2026-12-31, to its end in UTC), or a date and time with an offset \
                        (2026-12-31T18:00:00Z)";
const DAY: u64 = 24 * 60 * 60;

impl RawUntil {
    /// The first moment at which the key is not accepted.
    pub(crate) fn time(self) -> SystemTime {
        self.0
    }

    /// `None`: it has no date, or a time without an offset, or is before 1970.
    fn of(given: &Datetime) -> Option<Self> {
        let Datetime { date, time, offset } = given;
        let day = days(date.as_ref()?)?.checked_mul(DAY)?;
        let seconds = match (time, offset) {
            (Some(time), Some(offset)) => {
                let local = day.checked_add(seconds(time))?;
                let minutes = match offset {
                    Offset::Z => 0,
                    Offset::Custom { minutes } => *minutes,
                };
                local.checked_add_signed(-i64::from(minutes) * 60)?
            }
            (None, None) => day.checked_add(DAY)?,
            // The time zone of the target need not be that of its administrator.
            _ => return None,
        };
        let since = Duration::from_secs(seconds);
        SystemTime::UNIX_EPOCH.checked_add(since).map(Self)
    }
}

/// Seconds since midnight. A fraction is left out.
fn seconds(time: &Time) -> u64 {
    let Time { hour, minute, .. } = *time;
    let second = time.second.unwrap_or(0);
    u64::from(hour) * 3600 + u64::from(minute) * 60 + u64::from(second)
}

/// Days since 1970-01-01 in the Gregorian calendar; `None`: before.
fn days(date: &Date) -> Option<u64> {
    // A year that begins in March ends with the leap day.
    let (month, day) = (u64::from(date.month), u64::from(date.day));
    let year = u64::from(date.year).checked_sub(u64::from(month < 3))?;
    let month = if month < 3 { month + 9 } else { month - 3 };
    let of_years = year * 365 + year / 4 - year / 100 + year / 400;
    // March to January have 31 and 30 days alternately, but July and August, and December and
    // January, have 31 both.
    let of_months = (153 * month + 2) / 5;
    (of_years + of_months + day).checked_sub(DAYS_BEFORE_1970 + 1)
}

/// A time in UTC, as RFC 3339 writes it, in whole seconds.
#[must_use]
pub fn utc(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since.unwrap_or_default().as_secs();
    let (days, second) = (seconds / DAY, seconds % DAY);
    // Days since 0000-03-01: a year that begins in March ends with the leap day.
    let days = days + DAYS_BEFORE_1970;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, year) = match month {
        0..10 => (month + 3, year),
        _ => (month - 9, year + 1),
    };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let year = era * 400 + year;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Days from 0000-03-01 to 1970-01-01.
const DAYS_BEFORE_1970: u64 = 719_468;

impl<'de> Deserialize<'de> for RawUntil {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UntilVisitor)
    }
}

struct UntilVisitor;

impl<'de> Visitor<'de> for UntilVisitor {
    type Value = RawUntil;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    /// As edits of a configuration write it.
    fn visit_str<E: Error>(self, text: &str) -> Result<RawUntil, E> {
        let given = text.parse::<Datetime>().ok();
        let until = given.and_then(|given| RawUntil::of(&given));
        until.ok_or_else(|| E::custom(format!("{text:?}: must be {EXPECTED}")))
    }

    /// As serde sees a date of TOML.
    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<RawUntil, M::Error> {
        let given = Datetime::deserialize(MapAccessDeserializer::new(map))?;
        let until = RawUntil::of(&given);
        until.ok_or_else(|| M::Error::custom(format!("{given}: must be {EXPECTED}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds since 1970 of the value `text`.
    fn read(text: &str) -> Result<u64, String> {
        #[derive(Deserialize)]
        struct Table {
            until: toml::Spanned<RawUntil>,
        }
        let table: Result<Table, _> = toml::from_str(&format!("until = {text}"));
        let until = table.map_err(|error| error.message().to_owned())?.until;
        let since = until
            .get_ref()
            .time()
            .duration_since(SystemTime::UNIX_EPOCH);
        Ok(since.unwrap().as_secs())
    }

    /// Seconds as `date -u -d ... +%s` prints them.
    #[test]
    fn date_is_accepted_to_its_end() {
        for (text, seconds) in [
            ("1970-01-01", 86_400),
            ("1999-12-31", 946_684_800),
            ("2000-02-28", 951_782_400),
            ("2000-02-29", 951_868_800),
            ("2026-12-31", 1_798_761_600),
            ("2100-02-28", 4_107_542_400),
            ("9999-12-31", 253_402_300_800),
            ("2026-12-31T18:00:00Z", 1_798_740_000),
            ("2026-12-31T18:00:00.5Z", 1_798_740_000),
            ("2026-12-31T18:00:00+02:00", 1_798_732_800),
            ("2026-12-31 18:00:00-00:30", 1_798_741_800),
        ] {
            assert_eq!(read(text), Ok(seconds), "{text}");
            assert_eq!(read(&format!("\"{text}\"")), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn time_is_written_in_utc() {
        // As `date -u -d @SECONDS +%FT%TZ` prints them.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_740_061, "2026-12-31T18:01:01Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(time), text);
        }
    }

    #[test]
    fn other_values_are_refused_with_examples() {
        for text in [
            "2026-12-31T18:00:00",
            "18:00:00",
            "1969-12-31",
            "0000-01-01",
            "1970-01-01T00:00:00+00:01",
            "\"tomorrow\"",
            "\"2026-02-30\"",
            "\"\"",
            "5",
            "{ a = 1 }",
        ] {
            let what = read(text).unwrap_err();
            let examples = what.contains("2026-12-31T18:00:00Z") || text.starts_with('{');
            assert!(examples, "{text}: {what}");
        }
    }
}
