//! Errors in a configuration, with file, line and key.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nvmeof_rdma::explain;

use super::locations::{self, Found};
use super::{SETTINGS, SettingsFile};

/// A configuration was refused. Displays as `file:line: key: what`, with a line for each
/// further error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    location: Location,
    key: Option<String>,
    what: String,
    /// See [`ConfigError::may_succeed_later`].
    passing: bool,
    /// Further errors, whose own lists are empty.
    others: Vec<ConfigError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Location {
    File {
        path: PathBuf,
        line: Option<usize>,
    },
    CommandLine,
    /// A change made at run time.
    Change(String),
}

impl ConfigError {
    /// About byte `at` of `text`, the content of `path`.
    pub(crate) fn at(path: &Path, text: &str, at: Option<usize>, what: &str) -> Self {
        let before = at.and_then(|at| text.get(..at));
        let line = before.map(|before| before.matches('\n').count() + 1);
        let path = path.to_path_buf();
        Self {
            location: Location::File { path, line },
            key: key(at.and_then(|at| locations::at(text, at)), what),
            what: what.trim_end().to_owned(),
            passing: false,
            others: Vec::new(),
        }
    }

    /// All errors as one, in order of lines; `None` if there are none.
    pub(crate) fn joined(errors: Vec<Self>) -> Option<Self> {
        let each = |mut error: Self| {
            let others = std::mem::take(&mut error.others);
            std::iter::once(error).chain(others)
        };
        let mut all: Vec<_> = errors.into_iter().flat_map(each).collect();
        all.sort_by_key(Self::line);
        let mut all = all.into_iter();
        let first = all.next()?;
        Some(Self {
            others: all.collect(),
            ..first
        })
    }

    /// Further errors in the same configuration.
    #[must_use]
    pub fn others(&self) -> &[Self] {
        &self.others
    }

    /// About a file as a whole.
    #[must_use]
    pub fn plain(path: &Path, what: String) -> Self {
        let path = path.to_path_buf();
        Self {
            location: Location::File { path, line: None },
            key: None,
            what,
            passing: false,
            others: Vec::new(),
        }
    }

    /// The file cannot be read.
    #[must_use]
    pub fn unreadable(path: &Path, error: &io::Error) -> Self {
        Self::plain(path, format!("cannot be read: {}", explain(error)))
    }

    /// About the command line.
    pub(crate) fn command_line(what: &str) -> Self {
        Self {
            location: Location::CommandLine,
            key: None,
            what: what.to_owned(),
            passing: false,
            others: Vec::new(),
        }
    }

    /// The same for the file with the settings, if the error is about one of them.
    pub(crate) fn of_settings(self, file: &SettingsFile) -> Self {
        let named = self.key.as_deref().unwrap_or_default();
        let (table, key) = named.split_once('.').unwrap_or((named, ""));
        if !SETTINGS.contains(&table) {
            return self;
        }
        // A key of an array of tables in it has the position of the array.
        let key = key.split('.').next().unwrap_or_default();
        let at = locations::of(&file.text, table, key);
        Self::at(&file.path, &file.text, at, &self.what).passing(self.passing)
    }

    /// The same for a run-time change: it has no line, because no user wrote the document that
    /// would result from it.
    #[must_use]
    pub fn of_change(self, change: &str) -> Self {
        if self.line().is_none() {
            return self;
        }
        let others = self.others.into_iter();
        Self {
            location: Location::Change(change.to_owned()),
            others: others.map(|other| other.of_change(change)).collect(),
            ..self
        }
    }

    /// The same for a document that was applied instead of `file` and is saved in `state`.
    #[must_use]
    pub fn of_applied(mut self, state: &Path, file: &Path) -> Self {
        let Self { what, .. } = &self;
        self.what = format!(
            "{what}; applied at run time, kept in {}; move it away to serve {}",
            state.display(),
            file.display()
        );
        self
    }

    /// The same, as a condition that may pass or not.
    #[must_use]
    pub fn passing(self, passing: bool) -> Self {
        Self { passing, ..self }
    }

    /// Whether the condition may pass without a change of the configuration: a file or an
    /// address that does not exist yet, or that another process uses. `serve` waits in this
    /// case, and refuses all other errors.
    #[must_use]
    pub fn may_succeed_later(&self) -> bool {
        self.passing
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.location {
            Location::File { path, .. } => Some(path),
            Location::CommandLine | Location::Change(_) => None,
        }
    }

    /// The key that it is about, if any, after the names of its tables:
    /// `subsystem.namespace.path`.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The message, without file and line.
    #[must_use]
    pub fn what(&self) -> &str {
        &self.what
    }

    /// The line, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<usize> {
        match self.location {
            Location::File { line, .. } => line,
            Location::CommandLine | Location::Change(_) => None,
        }
    }
}

/// The key at the position of an error, or else the key that its message `what` begins with.
fn key(found: Option<Found>, what: &str) -> Option<String> {
    let table = match found {
        Some(Found::Key(key)) => return Some(key),
        Some(Found::Table(table)) => Some(table),
        None => None,
    };
    let key = named(what)?;
    match table {
        // It is about the table itself.
        Some(table) if table.rsplit('.').next() == Some(key) => Some(table),
        Some(table) if !key.starts_with(&table) => Some(format!("{table}.{key}")),
        _ => Some(key.to_owned()),
    }
}

fn named(what: &str) -> Option<&str> {
    let of_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c);
    let (key, rest) = what.split_at(what.find(|c| !of_key(c))?);
    (!key.is_empty() && rest.starts_with(':')).then_some(key)
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Location::File { path, line } => {
                write!(f, "{}:", path.display())?;
                if let Some(line) = line {
                    write!(f, "{line}:")?;
                }
                f.write_str(" ")?;
            }
            Location::CommandLine => {}
            Location::Change(change) => write!(f, "{change}: ")?,
        }
        f.write_str(&self.what)?;
        self.others
            .iter()
            .try_for_each(|other| write!(f, "\n{other}"))
    }
}

impl std::error::Error for ConfigError {}
