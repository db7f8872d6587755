//! The document that is served: a base with edits made on it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::document::Document;
use super::edit::Edit;
use super::state::{Applied, State};
use crate::config::{Config, ConfigError};

/// What edits are made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// What it is called in messages.
    pub(super) name: PathBuf,
    pub(super) text: String,
}

/// A base with edits made on it.
#[derive(Debug)]
pub(super) struct Effective {
    /// What it is called in messages.
    pub(super) name: PathBuf,
    pub(super) text: String,
    pub(super) config: Config,
    /// Edits that do not fit at present.
    pub(super) aside: Vec<Aside>,
}

/// An edit that does not fit the document at present. It is kept for when it
/// does again.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Aside {
    /// The edit.
    pub(crate) edit: Edit,
    /// Why it does not fit.
    pub(crate) why: String,
}

/// Says that lines are not those of the administrator's file.
const EDITED: &str = ", as `ctl show` prints it";

impl Base {
    /// The administrator's file, or the document that took its place.
    pub(super) fn of(state: &State, file: &Path, text: String) -> Self {
        match &state.applied {
            Some(Applied { name, text }) => Self {
                name: name.into(),
                text: text.clone(),
            },
            None => Self {
                name: file.to_path_buf(),
                text,
            },
        }
    }

    /// What it is called with edits made on it.
    pub(super) fn edited(&self) -> PathBuf {
        let mut name = self.name.clone().into_os_string();
        name.push(EDITED);
        name.into()
    }

    /// To be edited.
    ///
    /// # Errors
    /// When it is no TOML.
    pub(super) fn document(&self) -> Result<Document, ConfigError> {
        Document::parse(&self.text).map_err(|what| ConfigError::plain(&self.name, what))
    }
}

impl Effective {
    /// Makes `edits` on `base`, one after the other; those that do not fit are
    /// put aside, and so are those of `resting`, of which that is known.
    ///
    /// # Errors
    /// When the base by itself cannot be served.
    pub(super) fn of(base: &Base, edits: &[Edit], resting: &[Aside]) -> Result<Self, ConfigError> {
        let config = Config::parse(&base.name, base.text.clone())?;
        let whole = Self {
            name: base.name.clone(),
            text: base.text.clone(),
            config,
            aside: Vec::new(),
        };
        if edits.is_empty() {
            return Ok(whole);
        }
        let mut document = base.document()?;
        let mut aside = Vec::new();
        for edit in edits {
            if let Some(known) = resting.iter().find(|one| one.edit == *edit) {
                aside.push(known.clone());
            } else if let Err(misfit) = document.make(edit) {
                let (edit, why) = (edit.clone(), misfit.to_string());
                aside.push(Aside { edit, why });
            }
        }
        let (name, text) = (base.edited(), document.text());
        match Config::parse(&name, text.clone()) {
            Ok(config) => Ok(Self {
                name,
                text,
                config,
                aside,
            }),
            Err(_) => Self::one_by_one(whole, base, edits, resting, |_| Ok(())),
        }
    }

    /// As [`of`](Self::of), with a look at what comes of each edit: those of
    /// which `check` finds something wrong are put aside too.
    ///
    /// # Errors
    /// When the base by itself cannot be served.
    pub(super) fn checked(
        base: &Base,
        edits: &[Edit],
        resting: &[Aside],
        check: impl Fn(&Config) -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        let alone = Self::of(base, &[], &[])?;
        check(&alone.config)?;
        Self::one_by_one(alone, base, edits, resting, check)
    }

    fn one_by_one(
        mut whole: Self,
        base: &Base,
        edits: &[Edit],
        resting: &[Aside],
        check: impl Fn(&Config) -> Result<(), ConfigError>,
    ) -> Result<Self, ConfigError> {
        let mut document = base.document()?;
        for edit in edits {
            if let Some(known) = resting.iter().find(|one| one.edit == *edit) {
                whole.aside.push(known.clone());
                continue;
            }
            let mut next = document.clone();
            let made = next.make(edit).map_err(|misfit| misfit.to_string());
            let config = made.and_then(|()| {
                let config = Config::parse(&base.edited(), next.text());
                let config = config.and_then(|config| check(&config).map(|()| config));
                config.map_err(|error| error.what().to_owned())
            });
            match config {
                Ok(config) => {
                    whole.config = config;
                    whole.name = base.edited();
                    whole.text = next.text();
                    document = next;
                }
                Err(why) => whole.aside.push(Aside {
                    edit: edit.clone(),
                    why,
                }),
            }
        }
        Ok(whole)
    }
}

impl std::fmt::Display for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.edit, self.why)
    }
}
