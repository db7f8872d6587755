//! Keeps the document that is served, and changes it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvmeof_target_core::Disconnected;
use nvmeof_wire::Nqn;

use super::compact;
use super::document::Document;
use super::edit::Edit;
use super::effective::{Aside, Base, Effective};
use super::resize::{self, Resize};
use super::state::{Applied, State};
use super::store::Real;
use super::{ChangeError, Outcome};
use crate::config::{Config, ConfigError};
use crate::manage::{DRAINED, Manager, Plan};
use crate::ports;
use crate::server::{ServeError, Server};

/// What is served, and the way to change it so that it stays. Changes come one
/// after the other, from whatever threads.
pub(crate) struct Keeper {
    manager: Arc<Manager>,
    /// The administrator's.
    file: PathBuf,
    state_file: Option<PathBuf>,
    kept: Mutex<Kept>,
}

/// What is known before anything is served.
pub(crate) struct Standing {
    file: PathBuf,
    state_file: Option<PathBuf>,
    kept: Kept,
}

pub(super) struct Kept {
    base: Base,
    pub(super) state: State,
    pub(super) effective: Effective,
    /// Changes that named what could not be opened at the start. They are tried
    /// again when the file is read again.
    resting: Vec<Aside>,
    /// Whether the state is in its file.
    saved: bool,
}

/// What is served, as a document.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The administrator's file.
    pub(crate) file: PathBuf,
    /// What the document is called in messages.
    pub(crate) name: PathBuf,
    /// The document.
    pub(crate) text: String,
    /// The name of the document that was applied in the place of the file.
    pub(crate) applied: Option<String>,
    /// Changes since, those aside included.
    pub(crate) edits: Vec<Edit>,
    /// Changes that do not fit at present.
    pub(crate) aside: Vec<Aside>,
    /// Where changes are kept.
    pub(crate) state: Option<PathBuf>,
    /// Whether they are.
    pub(crate) saved: bool,
}

impl Standing {
    /// Reads the administrator's file and what was changed since.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub(crate) fn read(file: &Path) -> Result<Self, ConfigError> {
        let (text, config) = read(file)?;
        let state_file = config.control().state.clone();
        let state = state_file.as_deref().map(State::load).transpose()?;
        let state = state.unwrap_or_else(State::new);
        let kept = Kept::of(Base::of(&state, file, text), state)?;
        Ok(Self {
            file: file.to_path_buf(),
            state_file,
            kept,
        })
    }

    /// What is to be served.
    pub(crate) fn config(&self) -> &Config {
        &self.kept.effective.config
    }

    /// Serves it. A change made at run time that cannot be any more does not
    /// keep the target from serving the rest.
    ///
    /// # Errors
    /// When what cannot be is not to blame on such a change.
    pub(crate) fn serve(mut self) -> Result<(Server, Keeper), ServeError> {
        let server = match Server::start(self.config()) {
            Err(ServeError::Config(error)) if !self.kept.state.edits.is_empty() => {
                tracing::warn!("{error}; looking for the change that is to blame");
                self.put_aside(|_| true).map_err(|_| error)?;
                match Server::start(self.config()) {
                    Err(ServeError::Config(error)) => {
                        // Whether a port can be listened on is known only then.
                        let is_port = |edit: &Edit| matches!(edit, Edit::PortAdd { .. });
                        self.put_aside(|edit| !is_port(edit)).map_err(|_| error)?;
                        Server::start(self.config())?
                    }
                    other => other?,
                }
            }
            other => other?,
        };
        self.kept.tell();
        let keeper = Keeper {
            manager: Arc::clone(server.manager()),
            file: self.file,
            state_file: self.state_file,
            kept: Mutex::new(self.kept),
        };
        Ok((server, keeper))
    }

    /// Puts changes aside that are not `possible`, or that name what cannot be
    /// opened.
    fn put_aside(&mut self, possible: impl Fn(&Edit) -> bool) -> Result<(), ConfigError> {
        let kept = &mut self.kept;
        let not = kept.state.edits.iter().filter(|edit| !possible(edit));
        let not = not.map(|edit| Aside {
            edit: edit.clone(),
            why: "the address cannot be listened on".to_owned(),
        });
        let not: Vec<_> = not.collect();
        let check = |config: &Config| {
            ports::plan(config)?;
            config.open().map(drop)
        };
        kept.effective = Effective::checked(&kept.base, &kept.state.edits, &not, check)?;
        kept.resting = kept.effective.aside.clone();
        Ok(())
    }
}

impl Kept {
    /// The base with the edits of `state`, of which nothing is aside that fits.
    pub(super) fn of(base: Base, state: State) -> Result<Self, ConfigError> {
        let effective = Effective::of(&base, &state.edits, &[])?;
        Ok(Self {
            base,
            state,
            effective,
            resting: Vec::new(),
            saved: true,
        })
    }

    /// Tells the log what is not as the administrator's file says.
    fn tell(&self) {
        if let Some(applied) = &self.state.applied {
            tracing::warn!(
                "serving {}, which was applied at run time, instead of the configuration file; \
                 `ctl reload` goes back to the file",
                applied.name
            );
        }
        let (all, aside) = (self.state.edits.len(), self.effective.aside.len());
        if all > 0 {
            tracing::info!("{} changes made at run time are in effect", all - aside);
        }
        for one in &self.effective.aside {
            tracing::warn!("a change made at run time is put aside: {one}");
        }
    }
}

impl Keeper {
    /// What serves.
    pub(crate) fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// What [`apply`](Self::apply) of this document would change.
    ///
    /// # Errors
    /// [`ConfigError`] names document, line and key.
    pub(crate) fn plan(&self, name: &str, text: String) -> Result<Plan, ConfigError> {
        let _kept = self.lock();
        self.manager.plan(&Config::parse(Path::new(name), text)?)
    }

    /// Serves this document from now on, in the place of the administrator's
    /// file and of every change made since.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    pub(crate) fn apply(&self, name: String, text: String) -> Result<Outcome, ChangeError> {
        let mut kept = self.lock();
        let state = State {
            applied: Some(Applied {
                name: name.clone(),
                text: text.clone(),
            }),
            ..State::new()
        };
        let name = name.into();
        self.serve(&mut kept, Base { name, text }, state, Vec::new())
    }

    /// Reads the administrator's file again and serves what it says, with the
    /// changes made at run time. It takes the place of a document that was
    /// applied.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    pub(crate) fn reload(&self) -> Result<Outcome, ChangeError> {
        let mut kept = self.lock();
        let (text, _) = read(&self.file)?;
        let state = State {
            applied: None,
            ..kept.state.clone()
        };
        let base = Base::of(&state, &self.file, text);
        let resting = kept.resting.clone();
        // What could not be opened may be there again.
        match self.serve(&mut kept, base.clone(), state.clone(), Vec::new()) {
            Err(ChangeError::Config(_)) if !resting.is_empty() => {
                self.serve(&mut kept, base, state, resting)
            }
            served => served,
        }
    }

    /// Makes edits, all of them or none.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    pub(crate) fn edit(&self, edits: Vec<Edit>) -> Result<Outcome, ChangeError> {
        let mut kept = self.lock();
        let (state, edits) = kept.edited(edits)?;
        let (base, resting) = (kept.base.clone(), kept.resting.clone());
        let mut outcome = self.serve(&mut kept, base, state, resting)?;
        for edit in &edits {
            // What was faulted comes back, whatever is there now.
            if let Edit::NamespaceEnable {
                subsystem: Some(nqn),
                nsid,
                enabled: true,
            } = edit
            {
                let enabled = self.manager.enable(nqn, *nsid)?;
                outcome.report.changes.extend(enabled.changes);
                outcome.report.remarks.clear();
            }
        }
        outcome.edits = edits;
        Ok(outcome)
    }

    /// What [`edit`](Self::edit) would change.
    ///
    /// # Errors
    /// [`ChangeError`] as it would be.
    pub(crate) fn plan_edit(&self, edits: Vec<Edit>) -> Result<Plan, ChangeError> {
        let kept = self.lock();
        let (state, _) = kept.edited(edits)?;
        let effective = Effective::of(&kept.base, &state.edits, &kept.resting)?;
        Ok(self.manager.plan(&effective.config)?)
    }

    /// A namespace is as large as its file or device is, which is made another
    /// size first where one is given.
    ///
    /// # Errors
    /// [`ChangeError`]; then what is served did not change. A file that grew keeps
    /// its size: hosts may have written there already.
    pub(crate) fn resize(&self, resize: &Resize) -> Result<Outcome, ChangeError> {
        let kept = self.lock();
        // A file must not lose its end to a change that cannot be.
        if self.manager.is_drained() {
            return Err(ChangeError::Refused(DRAINED.to_owned()));
        }
        self.manager.plan(&kept.effective.config)?;
        resize::make(&kept.effective.config, &kept.effective.text, resize)?;
        Ok(Outcome {
            report: self.manager.apply(&kept.effective.config)?,
            // The size is the file's: there is nothing to be kept.
            saved: true,
            ..Outcome::default()
        })
    }

    /// Lets go of a host.
    pub(crate) fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        let lost = self.manager.disconnect(host, subsystem);
        super::tell_lost("disconnected", &lost);
        lost
    }

    /// Lets go of all hosts, and takes no new ones until
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// When a reactor did not answer.
    pub(crate) fn drain(&self) -> Result<Vec<Disconnected>, ChangeError> {
        let kept = self.lock();
        Ok(self.manager.drain(&kept.effective.config)?)
    }

    /// Hosts may come again.
    ///
    /// # Errors
    /// When a port cannot be listened on any more: none is then.
    pub(crate) fn resume(&self) -> Result<(), ChangeError> {
        let kept = self.lock();
        Ok(self.manager.resume(&kept.effective.config)?)
    }

    /// Saves the changes, if they are not. Says where.
    ///
    /// # Errors
    /// [`ChangeError`] when that cannot be, or there is no place for it.
    pub(crate) fn save(&self) -> Result<PathBuf, ChangeError> {
        let mut kept = self.lock();
        let Some(path) = &self.state_file else {
            return Err(ChangeError::Refused(NO_STATE.to_owned()));
        };
        let saved = kept
            .state
            .prepare(&Real, path)
            .and_then(|pending| pending.commit());
        saved.map_err(ChangeError::Unsaved)?;
        kept.saved = true;
        Ok(path.clone())
    }

    /// What is served, as a document.
    pub(crate) fn show(&self) -> Shown {
        let kept = self.lock();
        Shown {
            file: self.file.clone(),
            name: kept.effective.name.clone(),
            text: kept.effective.text.clone(),
            applied: kept
                .state
                .applied
                .as_ref()
                .map(|applied| applied.name.clone()),
            edits: kept.state.edits.clone(),
            aside: kept.effective.aside.clone(),
            state: self.state_file.clone(),
            saved: kept.saved,
        }
    }

    /// Serves `base` with the edits of `state` from now on, and keeps both. It
    /// is on the disk before anything changes, and in its place afterwards: who
    /// is told that it was done finds it after a crash.
    fn serve(
        &self,
        kept: &mut Kept,
        base: Base,
        state: State,
        resting: Vec<Aside>,
    ) -> Result<Outcome, ChangeError> {
        let effective = Effective::of(&base, &state.edits, &resting)?;
        let prepared = match &self.state_file {
            Some(path) => Some(state.prepare(&Real, path).map_err(ChangeError::Unsaved)?),
            None => None,
        };
        let report = self.manager.apply(&effective.config)?;
        let mut warnings: Vec<_> = effective
            .aside
            .iter()
            .map(|one| format!("put aside: {one}"))
            .collect();
        let saved = match prepared.map(super::store::Pending::commit) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                let what = format!("in effect, but not saved: {error}; `ctl save` tries again");
                tracing::error!("{what}");
                warnings.push(what);
                false
            }
            None => {
                let changed = state.applied.is_some() || !state.edits.is_empty();
                warnings.extend(changed.then(|| NO_STATE.to_owned()));
                false
            }
        };
        *kept = Kept {
            base,
            state,
            effective,
            resting,
            saved,
        };
        Ok(Outcome {
            report,
            edits: Vec::new(),
            saved,
            warnings,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // It is replaced as a whole, after everything that can fail.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NO_STATE: &str = "not saved: there is no control.state, so changes end with the process";

impl Kept {
    /// The state with these edits made as well, and the edits as they are kept.
    pub(super) fn edited(&self, mut edits: Vec<Edit>) -> Result<(State, Vec<Edit>), ChangeError> {
        let mut document = Document::parse(&self.effective.text)
            .map_err(|what| ConfigError::plain(&self.effective.name, what))?;
        let base = self.base.document()?;
        let mut state = self.state.clone();
        for edit in &mut edits {
            let made = document.settle(edit).and_then(|()| document.make(edit));
            made.map_err(|misfit| ChangeError::Misfit {
                edit: edit.to_string(),
                misfit,
            })?;
            compact::add(&base, &mut state.edits, edit.clone());
        }
        // What is wrong with them shows here, and is not to be put aside.
        Config::parse(&self.base.edited(), document.text())?;
        Ok((state, edits))
    }
}

/// The administrator's file, as text and checked.
fn read(file: &Path) -> Result<(String, Config), ConfigError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| ConfigError::plain(file, format!("cannot be read: {error}")))?;
    let config = Config::parse(file, text.clone())?;
    Ok((text, config))
}
