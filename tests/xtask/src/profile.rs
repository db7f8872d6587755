//! Which of cargo's profiles programs are built with.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{self, Failure, Outcome};

/// A profile that optimises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What users get.
    #[default]
    Release,
    /// Without optimisation across crates, which takes most of the time: for tests that
    /// run the programs and measure nothing.
    Fast,
}

impl Profile {
    /// The word after `--profile`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Fast => "fast",
        }
    }

    pub(crate) fn parse(word: &str) -> Outcome<Self> {
        let known = [Self::Release, Self::Fast];
        let found = known.into_iter().find(|profile| profile.name() == word);
        found.ok_or_else(|| {
            Failure::Usage(format!(
                "no profile is called `{word}`; the profiles are release, fast"
            ))
        })
    }

    /// `cargo build` of those packages, arguments separated by spaces; of what users run
    /// if there are none.
    pub(crate) fn build(self, packages: &str) -> Command {
        run::cargo(&format!(
            "build --profile {} --locked {packages}",
            self.name()
        ))
    }

    /// Where cargo puts what it builds.
    pub(crate) fn folder(self) -> PathBuf {
        run::build_dir().join(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_cargo() {
        for profile in [Profile::Release, Profile::Fast] {
            assert_eq!(Profile::parse(profile.name()).unwrap(), profile);
            let manifest = std::fs::read_to_string(run::root().join("Cargo.toml")).unwrap();
            let table = format!("[profile.{}]", profile.name());
            assert!(manifest.contains(&table), "{table} is not in Cargo.toml");
            assert!(profile.folder().ends_with(profile.name()));
        }
        let unknown = Profile::parse("quick").unwrap_err();
        assert!(unknown.to_string().contains("`quick`"), "{unknown}");
    }
}
