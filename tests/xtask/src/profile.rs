//! The cargo profile of programs.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{self, Failure, Outcome};
use crate::workspace;

/// A profile of cargo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For users.
    #[default]
    Release,
    /// Little optimised and with all checks: the profile of tests.
    Dev,
}

impl Profile {
    /// The word after `--profile`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dev => "dev",
        }
    }

    pub(crate) fn parse(word: &str) -> Outcome<Self> {
        let known = [Self::Release, Self::Dev];
        let found = known.into_iter().find(|profile| profile.name() == word);
        found.ok_or_else(|| {
            Failure::Usage(format!(
                "unknown profile `{word}`; the profiles are release, dev"
            ))
        })
    }

    /// `cargo build` of those packages, arguments separated by spaces; of what users run
    /// if there are none.
    pub(crate) fn build(self, packages: &str) -> Command {
        match self {
            Self::Release => run::cargo(&format!("build --release --locked {packages}")),
            // They are among everything, see there.
            Self::Dev => run::cargo(workspace::BUILD),
        }
    }

    /// The folder of its programs.
    pub(crate) fn folder(self) -> PathBuf {
        run::build_dir().join(match self {
            Self::Release => "release",
            Self::Dev => "debug",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_cargo() {
        for profile in [Profile::Release, Profile::Dev] {
            assert_eq!(Profile::parse(profile.name()).unwrap(), profile);
        }
        let unknown = Profile::parse("quick").unwrap_err();
        assert!(unknown.to_string().contains("`quick`"), "{unknown}");
    }
}
