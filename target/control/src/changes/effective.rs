//! The served document: a base with edits applied to it.

use std::path::PathBuf;
use std::sync::Arc;

use super::broken::Broken;
use super::document::Document;
use super::settings;
use super::state::{Applied, State};
use nvmeof_target_api::{Deferred, Edit};
use nvmeof_target_config::{Config, ConfigError, SettingsFile};

/// The document to which edits are applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// Its name in messages.
    pub(super) name: PathBuf,
    pub(super) text: String,
    /// Whether its settings come from the configuration file.
    pub(super) is_merged: bool,
    /// The configuration file, which always decides the settings.
    pub(super) file: Arc<AdminFile>,
}

/// The configuration file, which an administrator wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AdminFile {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A base with edits applied to it.
#[derive(Clone, Debug)]
pub(super) struct Effective {
    /// Its name in messages.
    pub(super) name: PathBuf,
    pub(super) text: String,
    pub(super) config: Arc<Config>,
    /// Edits that do not fit at present.
    pub(super) deferred: Vec<Deferred>,
}

/// Marks a name: line numbers are not those of the configuration file.
const EDITED: &str = ", as `ctl show` prints it";

impl Base {
    /// The configuration file, or the document that was applied instead.
    ///
    /// # Errors
    /// If the document is not TOML.
    pub(super) fn of(state: &State, file: Arc<AdminFile>) -> Result<Self, ConfigError> {
        let Some(Applied { name, text }) = &state.applied else {
            return Ok(Self {
                name: file.path.clone(),
                text: file.text.clone(),
                is_merged: false,
                file,
            });
        };
        let name = PathBuf::from(name);
        let merged = settings::merged(text, (&file.path, &file.text));
        let merged = merged.map_err(|what| ConfigError::plain(&name, what))?;
        Ok(Self {
            name,
            is_merged: merged.is_some(),
            text: merged.unwrap_or_else(|| text.clone()),
            file,
        })
    }

    /// The name of the document with edits: its lines are not those of the file.
    pub(super) fn edited(&self) -> PathBuf {
        let mut name = self.name.as_os_str().to_owned();
        name.push(EDITED);
        name.into()
    }

    /// Parses and checks it. Errors have the lines of the files that it comes from.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    fn parsed(&self) -> Result<Config, ConfigError> {
        let AdminFile { path, text } = &*self.file;
        let settings = self.is_merged.then(|| SettingsFile {
            path: path.clone(),
            text: text.clone(),
        });
        Config::parse_with(&self.name, self.text.clone(), settings)
    }

    /// As a document to edit.
    ///
    /// # Errors
    /// If it is not TOML.
    pub(super) fn document(&self) -> Result<Document, ConfigError> {
        Document::parse(&self.text).map_err(|what| ConfigError::plain(&self.name, what))
    }
}

impl Effective {
    /// Warnings for deferred edits, except those of `known`.
    pub(super) fn warnings(&self, known: &[Deferred]) -> Vec<String> {
        let is_new = |one: &&Deferred| known.iter().all(|other| other.edit != one.edit);
        let deferred = self.deferred.iter().filter(is_new);
        deferred.map(|one| format!("deferred: {one}")).collect()
    }

    /// Applies `edits` to `base` in order. Edits that do not fit are deferred, and so are those of
    /// `held`, with the reason given there.
    ///
    /// # Errors
    /// If the base alone is invalid.
    pub(super) fn of(base: &Base, edits: &[Edit], held: &[Deferred]) -> Result<Self, ConfigError> {
        let config = base.parsed()?;
        let whole = Self {
            name: base.name.clone(),
            text: base.text.clone(),
            config: Arc::new(config),
            deferred: Vec::new(),
        };
        if edits.is_empty() {
            return Ok(whole);
        }
        let mut document = base.document()?;
        let mut deferred = Vec::new();
        for edit in edits {
            if let Some(known) = held.iter().find(|one| one.edit == *edit) {
                deferred.push(known.clone());
            } else if let Err(refusal) = document.make(edit) {
                let (edit, why) = (edit.clone(), refusal.to_string());
                deferred.push(Deferred { edit, why });
            }
        }
        let (name, text) = (base.edited(), document.text());
        match Config::parse(&name, text.clone()) {
            Ok(config) => Ok(Self {
                name,
                text,
                config: Arc::new(config),
                deferred,
            }),
            Err(_) => Self::one_by_one(whole, base, edits, held),
        }
    }

    /// As [`of`](Self::of), and defers each edit that causes something `broken`.
    ///
    /// # Errors
    /// If something is broken without an edit, or the base alone is invalid.
    pub(super) fn working(
        base: &Base,
        edits: &[Edit],
        held: &[Deferred],
        broken: impl Fn(&Config) -> Vec<Broken>,
    ) -> Result<Self, ConfigError> {
        let mut deferred = held.to_vec();
        loop {
            let effective = Self::of(base, edits, &deferred)?;
            let mut found = broken(&effective.config).into_iter();
            let Some(first) = found.next() else {
                return Ok(effective);
            };
            for one in std::iter::once(first).chain(found) {
                let new = |edit: &&Edit| !deferred.iter().any(|known| known.edit == **edit);
                let made = edits.iter().filter(|edit| one.is_caused_by(edit));
                let made: Vec<_> = made.filter(new).cloned().collect();
                if made.is_empty() {
                    return Err(one.error);
                }
                let why = one.error.what().to_owned();
                deferred.extend(made.into_iter().map(|edit| Deferred {
                    edit,
                    why: why.clone(),
                }));
            }
        }
    }

    fn one_by_one(
        mut whole: Self,
        base: &Base,
        edits: &[Edit],
        held: &[Deferred],
    ) -> Result<Self, ConfigError> {
        let mut document = base.document()?;
        for edit in edits {
            if let Some(known) = held.iter().find(|one| one.edit == *edit) {
                whole.deferred.push(known.clone());
                continue;
            }
            let mut next = document.clone();
            let made = next.make(edit).map_err(|refusal| refusal.to_string());
            let config = made.and_then(|()| {
                let config = Config::parse(&base.edited(), next.text());
                config.map_err(|error| error.what().to_owned())
            });
            match config {
                Ok(config) => {
                    whole.config = Arc::new(config);
                    whole.name = base.edited();
                    whole.text = next.text();
                    document = next;
                }
                Err(why) => whole.deferred.push(Deferred {
                    edit: edit.clone(),
                    why,
                }),
            }
        }
        Ok(whole)
    }
}
