//! The keeper of the served document and its run-time changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_target_core::Disconnected;
use nvmeof_wire::Nqn;

use super::document::refusal;
use super::effective::{AdminFile, Base, Effective};
use super::lock::Lock;
use super::ready::remarks_on_deferred;
use super::resize;
use super::state::State;
use super::together::named;
use super::{ChangeError, Outcome, Planned, host_keys, settings};
use nvmeof_atomic_file::{Files, Pending};
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_api::Resize;
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::{KeysToRead, Manager};

/// The served document, and persistent changes to it. Changes from several threads are applied
/// one after the other.
pub struct Keeper {
    manager: Arc<Manager>,
    files: KeeperFiles,
    /// Held during a change.
    changing: Mutex<()>,
    /// The change that holds it.
    progress: Mutex<Option<Progress>>,
    /// The result of the last change.
    kept: Mutex<Arc<ServedState>>,
}

#[derive(Clone)]
pub(super) struct ServedState {
    pub(super) base: Base,
    pub(super) state: State,
    pub(super) effective: Effective,
    /// Changes deferred at the start because their object could not be opened. A reload retries
    /// them.
    pub(super) held: Vec<Deferred>,
    /// Whether the state file has the state.
    pub(super) saved: bool,
}

/// The change in progress.
struct Progress {
    what: String,
    since: Instant,
    /// Whether it was logged as stalled.
    is_logged: bool,
}

/// The exclusive right to change something.
pub(super) struct Changing<'a> {
    progress: &'a Mutex<Option<Progress>>,
    _changing: MutexGuard<'a, ()>,
}

/// The change in progress takes longer than its bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the change in progress ({what}) has not finished for {seconds} s: a file, device or file \
     system that it opens or saves to may not respond"
)]
pub(crate) struct Stalled {
    what: String,
    seconds: u64,
}

/// The files of a keeper.
pub(super) struct KeeperFiles {
    /// The configuration file.
    pub(super) config: PathBuf,
    /// The state file.
    pub(super) state: Option<PathBuf>,
    /// The file system with the state file.
    pub(super) system: Box<dyn Files + Send + Sync>,
    /// Excludes other targets from the state file.
    pub(super) lock: Option<Lock>,
}

/// The served document and its origin.
#[derive(Clone, Debug)]
pub(crate) struct ServedDocument {
    /// The configuration file.
    pub(crate) file: PathBuf,
    /// The name of the document in messages.
    pub(crate) name: PathBuf,
    /// The document.
    pub(crate) text: String,
    /// The parsed document.
    pub(crate) config: Arc<Config>,
    /// The name of the document that was applied instead of the file.
    pub(crate) applied: Option<String>,
    /// Later run-time changes, including deferred ones.
    pub(crate) edits: Vec<Edit>,
    /// Deferred changes.
    pub(crate) deferred: Vec<Deferred>,
    /// The state file.
    pub(crate) state: Option<PathBuf>,
    /// Whether it has the changes.
    pub(crate) saved: bool,
}

impl Changing<'_> {
    /// Describes the change.
    pub(super) fn describe(&self, what: impl FnOnce() -> String) {
        *lock(self.progress) = Some(Progress {
            what: what(),
            since: Instant::now(),
            is_logged: false,
        });
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        *lock(self.progress) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The content is replaced as a whole, so a panic leaves it consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServedState {
    /// The base with the edits of `state`; only edits that do not fit are deferred.
    pub(super) fn of(base: Base, state: State) -> Result<Self, ConfigError> {
        let effective = Effective::of(&base, &state.edits, &[])?;
        Ok(Self {
            base,
            state,
            effective,
            held: Vec::new(),
            saved: true,
        })
    }

    /// Logs that a document is served instead of the configuration file.
    pub(super) fn log_applied(&self) {
        if let Some(applied) = &self.state.applied {
            tracing::warn!(
                "applied document in effect: serving {} instead of the configuration file; \
                 `ctl reload` returns to the file",
                applied.name
            );
        }
    }

    /// Logs the run-time changes.
    pub(super) fn log_edits(&self) {
        let (all, deferred) = (self.state.edits.len(), self.effective.deferred.len());
        if all > 0 {
            tracing::info!("run-time changes in effect: {}", all - deferred);
        }
        for one in &self.effective.deferred {
            tracing::warn!("run-time change deferred: {one}");
        }
    }
}

impl Keeper {
    /// Keeps the document that `manager` serves.
    pub(super) fn new(manager: Arc<Manager>, files: KeeperFiles, kept: ServedState) -> Self {
        Self {
            manager,
            files,
            changing: Mutex::default(),
            progress: Mutex::default(),
            kept: Mutex::new(Arc::new(kept)),
        }
    }

    /// Saves changes on another file system.
    #[cfg(test)]
    pub(crate) fn save_on(&mut self, files: impl Files + Send + Sync + 'static) {
        self.files.system = Box::new(files);
    }

    /// The manager, which applies changes to reactors.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Plans [`apply`](Self::apply) of this document.
    ///
    /// # Errors
    /// [`ConfigError`] with document, line and key.
    pub(crate) fn plan(&self, name: &str, text: String) -> Result<Planned, ConfigError> {
        let (_changing, kept) = self.change();
        let warnings = kept.ignored_settings(Path::new(name), &text)?;
        let state = State::applied(name.to_owned(), text);
        let base = Base::of(&state, Arc::clone(&kept.base.file))?;
        let effective = Effective::of(&base, &[], &[])?;
        Ok(Planned {
            plan: self.manager.plan(&effective.config)?,
            dropped: kept.state.edits.clone(),
            warnings,
        })
    }

    /// Serves this document instead of the configuration file and all run-time changes. Settings
    /// stay those of the file.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing changed.
    pub(crate) fn apply(&self, name: String, text: String) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        let ignored = kept.ignored_settings(Path::new(&name), &text)?;
        let state = State::applied(name, text);
        let base = Base::of(&state, Arc::clone(&kept.base.file))?;
        let mut outcome = self.with_key_remarks(&[], || {
            self.serve(base, state, Vec::new(), &KeysToRead::All)
        })?;
        outcome.dropped.clone_from(&kept.state.edits);
        outcome.warnings.extend(ignored);
        Ok(outcome)
    }

    /// Reads the configuration file again and serves it with the run-time changes. It replaces a
    /// document that was applied.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing changed.
    pub fn reload(&self) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        let (base, state) = self.read_again(&kept)?;
        // Objects that could not be opened may be available again.
        let mut outcome = self.with_key_remarks(&[], || {
            self.serve_with_ready(&base, &state, &[], &kept.held, &KeysToRead::All)
        })?;
        outcome.warnings.extend(self.remarks_on_saved_keys());
        Ok(outcome)
    }

    /// Warnings about hosts whose keys a saved edit in effect removes: their administrator may
    /// expect that those of the configuration file are in effect.
    pub(super) fn remarks_on_saved_keys(&self) -> Vec<String> {
        let kept = self.kept();
        let mut edits = kept.state.edits.clone();
        edits.retain(|edit| kept.effective.deferred.iter().all(|one| one.edit != *edit));
        self.key_remarks(&edits)
    }

    /// Plans [`reload`](Self::reload).
    ///
    /// # Errors
    /// The [`ChangeError`] of the reload.
    pub(crate) fn plan_reload(&self) -> Result<Planned, ChangeError> {
        let (_changing, kept) = self.change();
        let (base, state) = self.read_again(&kept)?;
        let keys = &KeysToRead::All;
        let (planned, _) = self.plan_with_ready(&base, &state, &[], &kept.held, keys)?;
        Ok(planned)
    }

    fn read_again(&self, kept: &ServedState) -> Result<(Base, State), ConfigError> {
        let (file, _) = AdminFile::read(&self.files.config)?;
        let state = State {
            applied: None,
            ..kept.state.clone()
        };
        Ok((Base::of(&state, file)?, state))
    }

    /// Applies edits, all or none.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing changed.
    #[cfg(test)]
    pub(crate) fn edit(&self, edits: Vec<Edit>) -> Result<Outcome, ChangeError> {
        let made = self.edit_all(|| vec![((), edits)]).pop();
        made.map_or_else(|| Ok(Outcome::default()), |((), outcome)| outcome)
    }

    /// Plans edits, as for [`edit_all`](Self::edit_all).
    ///
    /// # Errors
    /// The [`ChangeError`] of the change.
    pub(crate) fn plan_edit(&self, edits: Vec<Edit>) -> Result<Planned, ChangeError> {
        let (_changing, kept) = self.change();
        let name = named(std::slice::from_ref(&edits));
        self.check_keys(&edits)?;
        let edited = kept.edited(edits)?;
        let ready = kept.ready(&edited)?;
        let (base, state) = (&kept.base, &edited.state);
        let keys = &host_keys::to_read(&edited.edits);
        let planned = self.plan_with_ready(base, state, &edited.held, &ready, keys);
        let (mut planned, is_applied) = planned.map_err(|error| error.of_change(&name))?;
        let made = ready.iter().map(|one| &one.edit).filter(|_| is_applied);
        planned.warnings.extend(self.key_remarks(&edited.edits));
        planned
            .warnings
            .extend(remarks_on_deferred(&edited.forgotten, made));
        Ok(planned)
    }

    /// Removes deferred edits.
    ///
    /// # Errors
    /// [`ChangeError`] if one of them is not deferred; nothing changed.
    pub(crate) fn forget(&self, edits: &[Edit]) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        let is_deferred = |edit: &Edit| kept.effective.deferred.iter().any(|one| one.edit == *edit);
        if let Some(edit) = edits.iter().find(|edit| !is_deferred(edit)) {
            let what = "is not deferred; reverse a change in effect by another change";
            return refusal("edits", what).map_err(|refusal| ChangeError::Edit {
                edit: edit.to_string(),
                refusal,
            });
        }
        let mut state = kept.state.clone();
        state.edits.retain(|edit| !edits.contains(edit));
        let mut held = kept.held.clone();
        held.retain(|one| !edits.contains(&one.edit));
        self.with_key_remarks(&[], || {
            self.serve(kept.base.clone(), state, held, &host_keys::to_read(&[]))
        })
    }

    /// Adopts the size of the file or device of a namespace; resizes the file first if a size is
    /// given.
    ///
    /// # Errors
    /// [`ChangeError`]; the namespace did not change. A file that was extended keeps its size:
    /// hosts may have written there already.
    pub(crate) fn resize(&self, resize: &Resize) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        Ok(Outcome {
            report: resize::make(&self.manager, &kept.effective.text, resize)?,
            // The file itself has the size: there is nothing to save.
            saved: true,
            ..Outcome::default()
        })
    }

    /// Deletes the controllers of a host.
    pub(crate) fn disconnect(&self, host: &Nqn, subsystem: Option<&Nqn>) -> Vec<Disconnected> {
        let lost = self.manager.disconnect(host, subsystem);
        super::log_disconnected("disconnected", &lost);
        lost
    }

    /// Disconnects all hosts, and accepts none until [`resume`](Self::resume).
    ///
    /// # Errors
    /// If a reactor did not respond.
    pub(crate) fn drain(&self) -> Result<Vec<Disconnected>, ChangeError> {
        // It may take minutes, so it does not block other changes; these are refused meanwhile.
        let kept = self.kept();
        Ok(self.manager.drain(&kept.effective.config)?)
    }

    /// Accepts hosts again.
    ///
    /// # Errors
    /// If the target cannot listen on one of its ports; it then listens on none.
    pub(crate) fn resume(&self) -> Result<(), ChangeError> {
        let (_changing, kept) = self.change();
        Ok(self.manager.resume(&kept.effective.config)?)
    }

    /// Saves the changes if that failed before. Returns the state file.
    ///
    /// # Errors
    /// [`ChangeError`] if that fails, or no state file is configured.
    pub(crate) fn save(&self) -> Result<PathBuf, ChangeError> {
        let (_changing, kept) = self.change();
        let Some(path) = &self.files.state else {
            return Err(ChangeError::Refused(NO_STATE.to_owned()));
        };
        let saved = kept
            .state
            .prepare(&*self.files.system, path)
            .and_then(|pending| pending.commit());
        saved.map_err(|error| ChangeError::StillUnsaved(Arc::new(error)))?;
        self.replace(ServedState {
            saved: true,
            ..ServedState::clone(&kept)
        });
        Ok(path.clone())
    }

    /// The served document and its origin.
    pub(crate) fn show(&self) -> ServedDocument {
        let kept = self.kept();
        ServedDocument {
            file: self.files.config.clone(),
            name: kept.effective.name.clone(),
            text: kept.effective.text.clone(),
            config: Arc::clone(&kept.effective.config),
            applied: kept
                .state
                .applied
                .as_ref()
                .map(|applied| applied.name.clone()),
            edits: kept.state.edits.clone(),
            deferred: kept.effective.deferred.clone(),
            state: self.files.state.clone(),
            saved: kept.saved,
        }
    }

    /// Reads `keys`, serves `base` with the edits of `state`, and keeps both. The new state is
    /// written and synced beside the state file before anything changes, and renamed over it
    /// afterwards: a change that was acknowledged survives a crash.
    pub(super) fn serve(
        &self,
        base: Base,
        state: State,
        held: Vec<Deferred>,
        keys: &KeysToRead,
    ) -> Result<Outcome, ChangeError> {
        let effective = Effective::of(&base, &state.edits, &held)?;
        let prepared = match &self.files.state {
            Some(path) => {
                let prepared = state.prepare(&*self.files.system, path);
                Some(prepared.map_err(|error| ChangeError::Unsaved(Arc::new(error)))?)
            }
            None => None,
        };
        let report = self.manager.apply_with(&effective.config, keys)?;
        let mut warnings = effective.warnings(&[]);
        let saved = match prepared.map(Pending::commit) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                let what = format!("in effect, but not saved: {error}; `ctl save` retries");
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
        self.replace(ServedState {
            base,
            state,
            effective,
            held,
            saved,
        });
        Ok(Outcome {
            report,
            saved,
            warnings,
            ..Outcome::default()
        })
    }

    /// The exclusive right to change something, and the present state. Waits for a change in
    /// progress.
    pub(super) fn change(&self) -> (Changing<'_>, Arc<ServedState>) {
        // The mutex protects no data that a panic could leave inconsistent.
        let changing = self.changing.lock();
        let changing = Changing {
            progress: &self.progress,
            _changing: changing.unwrap_or_else(PoisonError::into_inner),
        };
        changing.describe(|| "a change of the whole configuration".to_owned());
        (changing, self.kept())
    }

    /// The change in progress if it takes longer than `bound`. Logs it the first time.
    pub(crate) fn stalled(&self, bound: Duration) -> Option<Stalled> {
        let mut progress = lock(&self.progress);
        let progress = progress.as_mut()?;
        let elapsed = progress.since.elapsed();
        if elapsed < bound {
            return None;
        }
        let stalled = Stalled {
            what: progress.what.clone(),
            seconds: elapsed.as_secs(),
        };
        if !std::mem::replace(&mut progress.is_logged, true) {
            tracing::warn!("{stalled}");
        }
        Some(stalled)
    }

    /// The result of the last change. Does not wait for a change in progress.
    pub(super) fn kept(&self) -> Arc<ServedState> {
        // It is replaced as a whole, after every step that can fail.
        Arc::clone(&lock(&self.kept))
    }

    fn replace(&self, next: ServedState) {
        *lock(&self.kept) = Arc::new(next);
    }
}

const NO_STATE: &str =
    "not saved: there is no control.state, so the changes are lost when the target ends";

impl ServedState {
    /// Warnings about settings of a document to apply, which are ignored.
    fn ignored_settings(&self, name: &Path, text: &str) -> Result<Vec<String>, ConfigError> {
        let config = Config::parse(name, text.to_owned())?;
        config.check_absolute()?;
        let AdminFile { path, text: file } = &*self.base.file;
        let file = Config::parse(path, file.clone())?;
        let ignored = settings::ignored(&config, text, &file);
        ignored.map_err(|what| ConfigError::plain(name, what))
    }
}

impl AdminFile {
    /// Reads and checks the configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] with file, line and key.
    pub(super) fn read(file: &Path) -> Result<(Arc<Self>, Config), ConfigError> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| ConfigError::unreadable(file, &error))?;
        let config = Config::parse(file, text.clone())?;
        let path = file.to_path_buf();
        Ok((Arc::new(Self { path, text }), config))
    }
}
