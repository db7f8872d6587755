//! Remarks on items that cannot be imported unchanged, with remedies.

use std::fmt;

use serde::Serialize;

/// Number of remarks that are kept; further ones are only counted.
const MOST_REMARKS: usize = 500;
/// Characters of a value that a remark quotes.
const QUOTED: usize = 64;

/// The severity of a remark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weight {
    /// Hosts lose something, or have more access than before.
    Lost,
    /// Without effect on hosts.
    Note,
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Remark {
    pub(super) weight: Weight,
    /// The place in the file, such as `ports[0].addr.trtype`.
    pub(super) location: String,
    pub(super) what: String,
    /// The remedy.
    pub(super) remedy: String,
}

/// All differences.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) remarks: Vec<Remark>,
    /// Number of further remarks.
    pub(super) more: usize,
    /// Whether the configuration can be served without corrections.
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
    pub(super) fn lost(&mut self, location: &str, what: &str, remedy: &str) {
        self.add(Weight::Lost, location, what, remedy);
    }

    pub(super) fn note(&mut self, location: &str, what: &str, remedy: &str) {
        self.add(Weight::Note, location, what, remedy);
    }

    fn add(&mut self, weight: Weight, location: &str, what: &str, remedy: &str) {
        if self.remarks.len() == MOST_REMARKS {
            self.more = self.more.saturating_add(1);
            return;
        }
        self.remarks.push(Remark {
            weight,
            location: location.to_owned(),
            what: what.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Number of losses.
    pub(super) fn losses(&self) -> usize {
        let lost = |remark: &&Remark| remark.weight == Weight::Lost;
        self.remarks.iter().filter(lost).count()
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.weight {
            Weight::Lost => "not imported",
            Weight::Note => "note",
        };
        write!(f, "{word}: {}: {}", self.location, self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A value for a message: escaped, and shortened to one line.
pub(super) fn quoted(text: &str) -> String {
    if text.chars().count() <= QUOTED {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(QUOTED).collect();
    format!("{start:?}...")
}
