//! Keeps the document that is served, and changes it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nvmeof_target_core::Disconnected;
use nvmeof_wire::Nqn;

use super::document::refusal;
use super::effective::{AdminFile, Base, Effective};
use super::lock::Lock;
use super::resize;
use super::state::State;
use super::together::named;
use super::waking::told;
use super::{ChangeError, Outcome, Planned, settings};
use nvmeof_atomic_file::{Files, Pending};
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_api::Resize;
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::Manager;

/// What is served, and the way to change it so that it stays. Changes come one
/// after the other, from whatever threads.
pub struct Keeper {
    manager: Arc<Manager>,
    places: Places,
    /// Whoever changes something has it until that is done.
    changing: Mutex<()>,
    /// The change that has it.
    progress: Mutex<Option<Progress>>,
    /// What the last change left, for everybody.
    kept: Mutex<Arc<Kept>>,
}

#[derive(Clone)]
pub(super) struct Kept {
    pub(super) base: Base,
    pub(super) state: State,
    pub(super) effective: Effective,
    /// Changes that named what could not be opened at the start. They are tried
    /// again when the file is read again.
    pub(super) resting: Vec<Deferred>,
    /// Whether the state is in its file.
    pub(super) saved: bool,
}

/// A change that is in progress.
struct Progress {
    what: String,
    since: Instant,
    /// Whether the log was told that it takes long.
    is_told: bool,
}

/// The right to change something.
pub(super) struct Changing<'a> {
    progress: &'a Mutex<Option<Progress>>,
    _changing: MutexGuard<'a, ()>,
}

/// A change has been in progress for long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the change in progress ({what}) has not finished for {seconds} s: a file, device or file \
     system that it opens or saves to may not respond"
)]
pub(crate) struct Stalled {
    what: String,
    seconds: u64,
}

/// The files it is about.
pub(super) struct Places {
    /// The administrator's.
    pub(super) file: PathBuf,
    /// Where changes are kept.
    pub(super) state: Option<PathBuf>,
    /// What keeps them there.
    pub(super) files: Box<dyn Files + Send + Sync>,
    /// Keeps others from there.
    pub(super) _lock: Option<Lock>,
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
    /// The same, parsed.
    pub(crate) config: Arc<Config>,
    /// The name of the document that was applied in the place of the file.
    pub(crate) applied: Option<String>,
    /// Changes since, those deferred included.
    pub(crate) edits: Vec<Edit>,
    /// Changes that do not fit at present.
    pub(crate) deferred: Vec<Deferred>,
    /// Where changes are kept.
    pub(crate) state: Option<PathBuf>,
    /// Whether they are.
    pub(crate) saved: bool,
}

impl Changing<'_> {
    /// Says what is being changed.
    pub(super) fn is(&self, what: impl FnOnce() -> String) {
        *lock(self.progress) = Some(Progress {
            what: what(),
            since: Instant::now(),
            is_told: false,
        });
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        *lock(self.progress) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // It is replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// The base with the edits of `state`, of which nothing is deferred that fits.
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

    /// Tells the log of a document in the place of the administrator's file.
    pub(super) fn tell_applied(&self) {
        if let Some(applied) = &self.state.applied {
            tracing::warn!(
                "serving {}, which was applied at run time, instead of the configuration file; \
                 `ctl reload` goes back to the file",
                applied.name
            );
        }
    }

    /// Tells the log of changes.
    pub(super) fn tell_edits(&self) {
        let (all, deferred) = (self.state.edits.len(), self.effective.deferred.len());
        if all > 0 {
            tracing::info!("{} changes made at run time are in effect", all - deferred);
        }
        for one in &self.effective.deferred {
            tracing::warn!("run-time change deferred: {one}");
        }
    }
}

impl Keeper {
    /// Keeps what `manager` serves.
    pub(super) fn new(manager: Arc<Manager>, places: Places, kept: Kept) -> Self {
        Self {
            manager,
            places,
            changing: Mutex::default(),
            progress: Mutex::default(),
            kept: Mutex::new(Arc::new(kept)),
        }
    }

    /// Keeps changes on another file system.
    #[cfg(test)]
    pub(crate) fn keep_on(&mut self, files: impl Files + Send + Sync + 'static) {
        self.places.files = Box::new(files);
    }

    /// What serves.
    pub fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// What [`apply`](Self::apply) of this document would change.
    ///
    /// # Errors
    /// [`ConfigError`] names document, line and key.
    pub(crate) fn plan(&self, name: &str, text: String) -> Result<Planned, ConfigError> {
        let (_changing, kept) = self.change();
        let warnings = kept.left_out(Path::new(name), &text)?;
        let state = State::applied(name.to_owned(), text);
        let base = Base::of(&state, Arc::clone(&kept.base.file))?;
        let effective = Effective::of(&base, &[], &[])?;
        Ok(Planned {
            plan: self.manager.plan(&effective.config)?,
            dropped: kept.state.edits.clone(),
            warnings,
        })
    }

    /// Serves this document from now on, in the place of the administrator's
    /// file and of every change made since. Settings stay those of the file.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    pub(crate) fn apply(&self, name: String, text: String) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        let left_out = kept.left_out(Path::new(&name), &text)?;
        let state = State::applied(name, text);
        let base = Base::of(&state, Arc::clone(&kept.base.file))?;
        let mut outcome = self.serve(base, state, Vec::new())?;
        outcome.dropped.clone_from(&kept.state.edits);
        outcome.warnings.extend(left_out);
        Ok(outcome)
    }

    /// Reads the administrator's file again and serves what it says, with the
    /// changes made at run time. It takes the place of a document that was
    /// applied.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    pub fn reload(&self) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        let (base, state) = self.read_again(&kept)?;
        // What could not be opened may be there again.
        self.serve_waking(&base, &state, &[], &kept.resting)
    }

    /// What [`reload`](Self::reload) would change.
    ///
    /// # Errors
    /// [`ChangeError`] as it would be.
    pub(crate) fn plan_reload(&self) -> Result<Planned, ChangeError> {
        let (_changing, kept) = self.change();
        let (base, state) = self.read_again(&kept)?;
        let (planned, _) = self.plan_waking(&base, &state, &[], &kept.resting)?;
        Ok(planned)
    }

    fn read_again(&self, kept: &Kept) -> Result<(Base, State), ConfigError> {
        let (file, _) = AdminFile::read(&self.places.file)?;
        let state = State {
            applied: None,
            ..kept.state.clone()
        };
        Ok((Base::of(&state, file)?, state))
    }

    /// Makes edits, all of them or none.
    ///
    /// # Errors
    /// [`ChangeError`]; then nothing changed.
    #[cfg(test)]
    pub(crate) fn edit(&self, edits: Vec<Edit>) -> Result<Outcome, ChangeError> {
        let made = self.edit_all(|| vec![((), edits)]).pop();
        made.map_or_else(|| Ok(Outcome::default()), |((), outcome)| outcome)
    }

    /// What [`edit_all`](Self::edit_all) would change.
    ///
    /// # Errors
    /// [`ChangeError`] as it would be.
    pub(crate) fn plan_edit(&self, edits: Vec<Edit>) -> Result<Planned, ChangeError> {
        let (_changing, kept) = self.change();
        let name = named(std::slice::from_ref(&edits));
        let edited = kept.edited(edits)?;
        let waking = kept.waking(&edited)?;
        let (base, state) = (&kept.base, &edited.state);
        let planned = self.plan_waking(base, state, &edited.resting, &waking);
        let (mut planned, wakes) = planned.map_err(|error| error.of_change(&name))?;
        let made = waking.iter().map(|one| &one.edit).filter(|_| wakes);
        planned.warnings.extend(told(&edited.forgotten, made));
        Ok(planned)
    }

    /// Gives edits up that are deferred.
    ///
    /// # Errors
    /// [`ChangeError`] when one is not; then nothing changed.
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
        let mut resting = kept.resting.clone();
        resting.retain(|one| !edits.contains(&one.edit));
        self.serve(kept.base.clone(), state, resting)
    }

    /// A namespace is as large as its file or device is, which is made another
    /// size first where one is given.
    ///
    /// # Errors
    /// [`ChangeError`]; then what is served did not change. A file that grew keeps
    /// its size: hosts may have written there already.
    pub(crate) fn resize(&self, resize: &Resize) -> Result<Outcome, ChangeError> {
        let (_changing, kept) = self.change();
        Ok(Outcome {
            report: resize::make(&self.manager, &kept.effective.text, resize)?,
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
        // It may take minutes: others are told so meanwhile.
        let kept = self.kept();
        Ok(self.manager.drain(&kept.effective.config)?)
    }

    /// Hosts may come again.
    ///
    /// # Errors
    /// When a port cannot be listened on any more: none is then.
    pub(crate) fn resume(&self) -> Result<(), ChangeError> {
        let (_changing, kept) = self.change();
        Ok(self.manager.resume(&kept.effective.config)?)
    }

    /// Saves the changes, if they are not. Says where.
    ///
    /// # Errors
    /// [`ChangeError`] when that cannot be, or there is no place for it.
    pub(crate) fn save(&self) -> Result<PathBuf, ChangeError> {
        let (_changing, kept) = self.change();
        let Some(path) = &self.places.state else {
            return Err(ChangeError::Refused(NO_STATE.to_owned()));
        };
        let saved = kept
            .state
            .prepare(&*self.places.files, path)
            .and_then(|pending| pending.commit());
        saved.map_err(|error| ChangeError::StillUnsaved(Arc::new(error)))?;
        self.becomes(Kept {
            saved: true,
            ..Kept::clone(&kept)
        });
        Ok(path.clone())
    }

    /// What is served, as a document.
    pub(crate) fn show(&self) -> Shown {
        let kept = self.kept();
        Shown {
            file: self.places.file.clone(),
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
            state: self.places.state.clone(),
            saved: kept.saved,
        }
    }

    /// Serves `base` with the edits of `state` from now on, and keeps both. It
    /// is on the disk before anything changes, and in its place afterwards: who
    /// is told that it was done finds it after a crash.
    pub(super) fn serve(
        &self,
        base: Base,
        state: State,
        resting: Vec<Deferred>,
    ) -> Result<Outcome, ChangeError> {
        let effective = Effective::of(&base, &state.edits, &resting)?;
        let prepared = match &self.places.state {
            Some(path) => {
                let prepared = state.prepare(&*self.places.files, path);
                Some(prepared.map_err(|error| ChangeError::Unsaved(Arc::new(error)))?)
            }
            None => None,
        };
        let report = self.manager.apply(&effective.config)?;
        let mut warnings = effective.defer(&[]);
        let saved = match prepared.map(Pending::commit) {
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
        self.becomes(Kept {
            base,
            state,
            effective,
            resting,
            saved,
        });
        Ok(Outcome {
            report,
            saved,
            warnings,
            ..Outcome::default()
        })
    }

    /// The right to change something, and what there is to be changed. Waits
    /// for whoever else is doing that.
    pub(super) fn change(&self) -> (Changing<'_>, Arc<Kept>) {
        // There is nothing in it that a panic could leave half done.
        let changing = self.changing.lock();
        let changing = Changing {
            progress: &self.progress,
            _changing: changing.unwrap_or_else(PoisonError::into_inner),
        };
        changing.is(|| "a change of the whole configuration".to_owned());
        (changing, self.kept())
    }

    /// What has been in progress for longer than `bound`, once it is. The log is told
    /// the first time.
    pub(crate) fn stalled(&self, bound: Duration) -> Option<Stalled> {
        let mut progress = lock(&self.progress);
        let progress = progress.as_mut()?;
        let so_long = progress.since.elapsed();
        if so_long < bound {
            return None;
        }
        let stalled = Stalled {
            what: progress.what.clone(),
            seconds: so_long.as_secs(),
        };
        if !std::mem::replace(&mut progress.is_told, true) {
            tracing::warn!("{stalled}");
        }
        Some(stalled)
    }

    /// What the last change left. Waits for nobody.
    pub(super) fn kept(&self) -> Arc<Kept> {
        // It is replaced as a whole, after everything that can fail.
        Arc::clone(&lock(&self.kept))
    }

    fn becomes(&self, next: Kept) {
        *lock(&self.kept) = Arc::new(next);
    }
}

const NO_STATE: &str = "not saved: there is no control.state, so changes end with the process";

impl Kept {
    /// What a document to be applied says of settings, which are those of the file.
    fn left_out(&self, name: &Path, text: &str) -> Result<Vec<String>, ConfigError> {
        let config = Config::parse(name, text.to_owned())?;
        config.check_absolute()?;
        let AdminFile { path, text: file } = &*self.base.file;
        let file = Config::parse(path, file.clone())?;
        let left_out = settings::left_out(&config, text, &file);
        left_out.map_err(|what| ConfigError::plain(name, what))
    }
}

impl AdminFile {
    /// The administrator's file, as text and checked.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub(super) fn read(file: &Path) -> Result<(Arc<Self>, Config), ConfigError> {
        let text = std::fs::read_to_string(file);
        let text = text.map_err(|error| ConfigError::unreadable(file, &error))?;
        let config = Config::parse(file, text.clone())?;
        let path = file.to_path_buf();
        Ok((Arc::new(Self { path, text }), config))
    }
}
