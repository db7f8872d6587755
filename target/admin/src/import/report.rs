//! What of a saved configuration does not come along, and what to do about it.

use std::fmt;

use serde::Serialize;

/// Remarks that are kept; of more only their number is. A file can have more
/// items than anybody reads about.
const MOST_REMARKS: usize = 500;
/// Characters of a value that a remark quotes.
const QUOTED: usize = 64;

/// How much a remark matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// Hosts will find something missing, or may do more than before.
    Lost,
    /// Nothing that hosts depend on.
    Note,
}

/// One thing that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Remark {
    pub(super) weight: Weight,
    /// Where in the file, such as `ports[0].addr.trtype`.
    pub(super) place: String,
    pub(super) what: String,
    /// What can be done.
    pub(super) remedy: String,
}

/// Everything that is not as it was.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) remarks: Vec<Remark>,
    /// Remarks beyond those kept.
    pub(super) more: usize,
    /// Whether what came of it can be served as it is.
    pub(super) is_good: bool,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            remarks: Vec::new(),
            more: 0,
            is_good: true,
        }
    }
}

impl Report {
    pub(super) fn lost(&mut self, place: &str, what: &str, remedy: &str) {
        self.add(Weight::Lost, place, what, remedy);
    }

    pub(super) fn note(&mut self, place: &str, what: &str, remedy: &str) {
        self.add(Weight::Note, place, what, remedy);
    }

    fn add(&mut self, weight: Weight, place: &str, what: &str, remedy: &str) {
        if self.remarks.len() == MOST_REMARKS {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.remarks.push(Remark {
            weight,
            place: place.to_owned(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Remarks about what is missing.
    pub(super) fn losses(&self) -> usize {
        let lost = |remark: &&Remark| remark.weight == Weight::Lost;
        self.remarks.iter().filter(lost).count()
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.weight {
            Weight::Lost => "not carried over",
            Weight::Note => "note",
        };
        write!(f, "{word}: {}: {}", self.place, self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A value for a message: escaped, and not longer than a line.
pub(super) fn quoted(text: &str) -> String {
    if text.chars().count() <= QUOTED {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(QUOTED).collect();
    format!("{start:?}...")
}
