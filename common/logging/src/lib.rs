//! Which messages a program logs, and whether its output has colours: the same
//! rules in every program. This crate opens no log.
#![forbid(unsafe_code)]

use std::env;

use tracing_subscriber::EnvFilter;

/// The levels, from the quietest to the most verbose.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log filter was refused. Displays as value, rule and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{value}` is no log level; use error, warn, info, debug, trace or off, or a filter \
     TARGET=LEVEL such as nvmeof_target=debug, several separated by commas"
)]
pub struct BadFilter {
    value: String,
}

/// The filter that `text` describes: a level, or as in `RUST_LOG` a list of levels
/// for targets.
///
/// `EnvFilter` takes a word that is no level for the name of a target, enables that
/// and disables everything else: a misspelled level would silence the log.
///
/// # Errors
/// [`BadFilter`] names the part that has no valid level.
pub fn filter(text: &str) -> Result<EnvFilter, BadFilter> {
    let bad = |value: &str| BadFilter {
        value: value.to_owned(),
    };
    for part in text.split(',') {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        if !LEVELS.iter().any(|one| one.eq_ignore_ascii_case(level)) {
            return Err(bad(part));
        }
    }
    EnvFilter::try_new(text).map_err(|_| bad(text))
}

/// The filter that the environment variable `name` describes, or `default` where it is
/// not set or empty.
///
/// # Errors
/// [`BadFilter`] as of [`filter`].
pub fn filter_of(name: &str, default: &str) -> Result<EnvFilter, BadFilter> {
    let value = match env::var(name) {
        Ok(value) => value,
        Err(env::VarError::NotPresent) => String::new(),
        Err(env::VarError::NotUnicode(value)) => value.to_string_lossy().into_owned(),
    };
    filter(if value.is_empty() { default } else { &value })
}

/// Whether output to a terminal may have colours. <https://no-color.org>: programs add
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
    fn a_filter_names_valid_levels() {
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
