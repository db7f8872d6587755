//! Log filters and colors, by the same rules in every program of the project. This
//! crate does not open a log.
#![forbid(unsafe_code)]

use std::env;

use tracing_subscriber::EnvFilter;

/// The levels, from the quietest to the most verbose.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log filter was refused. Displays as value, rule and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{value}` is not a log level; use error, warn, info, debug, trace or off, or a filter \
     TARGET=LEVEL such as nvmeof_target=debug, several separated by commas"
)]
pub struct BadFilter {
    value: String,
}

/// Parses a level, or a list of levels of targets as in `RUST_LOG`.
///
/// `EnvFilter` takes a word that is not a level for the name of a target, enables this
/// target and disables all others: a misspelled level would silence the log.
///
/// # Errors
/// [`BadFilter`] names the part without a valid level.
pub fn filter(text: &str) -> Result<EnvFilter, BadFilter> {
    let bad = |value: &str| BadFilter {
        value: value.to_owned(),
    };
    for part in text.split(',') {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(bad(part));
        }
    }
    EnvFilter::try_new(text).map_err(|_| bad(text))
}

/// Parses the environment variable `name`, or `default` if it is unset or empty.
///
/// # Errors
/// [`BadFilter`], as [`filter`].
pub fn filter_of(name: &str, default: &str) -> Result<EnvFilter, BadFilter> {
    let value = match env::var(name) {
        Ok(value) => value,
        Err(env::VarError::NotPresent) => String::new(),
        Err(env::VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
    };
    filter(if value.is_empty() { default } else { &value })
}

/// Whether output to a terminal may have colors. <https://no-color.org>: programs add
/// none where the environment variable `NO_COLOR` is "present and not an empty string
/// (regardless of its value)".
#[must_use]
pub fn may_color() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_without_valid_level_is_refused() {
        for good in [
            "info",
            "WARN",
            "off",
            "nvmeof_target=debug",
            "warn,nvmeof_target::queue=trace",
            "[turn{reactor=1}]=debug,error",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for (bad, part) in [
            ("nonsense", "nonsense"),
            ("", ""),
            ("info,", ""),
            ("warn,verbose", "verbose"),
            ("nvmeof_target=loud", "nvmeof_target=loud"),
            ("2", "2"),
        ] {
            let error = filter(bad).map(drop).unwrap_err();
            assert_eq!(error.value, part, "{bad}");
            assert!(error.to_string().contains("error, warn, info"), "{error}");
        }
    }
}
