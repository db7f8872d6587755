//! From what is written to what is served: the start of the target.

use std::path::Path;
use std::sync::Arc;

use super::effective::{AdminFile, Base, Effective};
use super::keeper::{Keeper, Kept, Places};
use super::lock::Lock;
use super::state::State;
use super::{broken, lock};
use nvmeof_atomic_file::{Real, sweep};
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::protections;
use nvmeof_target_manage::{ServeError, Server};

/// What is known before anything is served.
pub struct Standing {
    places: Places,
    kept: Kept,
}

/// Whether a target that serves `config` could read its changes, and keep them.
///
/// # Errors
/// [`ConfigError`] as [`Standing::read`] gives it: another target has them, or they cannot be
/// read.
pub fn check_state(config: &Config) -> Result<(), ConfigError> {
    let Some(path) = config.control().state.as_deref() else {
        return Ok(());
    };
    let _ = State::load(path)?;
    lock::is_free(path, config)
}

impl Standing {
    /// Reads the administrator's file and what was changed since, which nobody
    /// else changes as long as this is there.
    ///
    /// # Errors
    /// [`ConfigError`] names file, line and key.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let (admin, config) = AdminFile::read(file)?;
        let path = config.control().state.as_deref();
        let lock = path.map(|path| Lock::take(path, &config)).transpose()?;
        let lock = lock.flatten();
        // Without the lock somebody else may be writing.
        if let Some(path) = path.filter(|_| lock.is_some()) {
            sweep(path);
            sweep(&protections::path_beside(path));
        }
        let state = path.map(State::load).transpose()?;
        let state = state.unwrap_or_else(State::new);
        let places = Places {
            file: file.to_path_buf(),
            state: path.map(Path::to_path_buf),
            files: Box::new(Real),
            _lock: lock,
        };
        let applied = state.applied.is_some();
        let base = Base::of(&state, admin);
        let kept = base.and_then(|base| Kept::of(base, state));
        let kept = kept.map_err(|error| places.blamed(applied, error))?;
        Ok(Self { places, kept })
    }

    /// What is to be served.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.kept.effective.config
    }

    /// Serves it. A change made at run time that cannot be any more does not
    /// keep the target from serving the rest.
    ///
    /// # Errors
    /// When what cannot be is not to blame on such a change.
    pub fn serve(mut self) -> Result<(Server, Keeper), ServeError> {
        // Before anything that may fail because of it.
        self.kept.tell_applied();
        let applied = self.kept.state.applied.is_some();
        let server = self.start().map_err(|error| match error {
            ServeError::Config(error) => self.places.blamed(applied, error).into(),
            other => other,
        })?;
        self.kept.tell_edits();
        let keeper = Keeper::new(Arc::clone(server.manager()), self.places, self.kept);
        Ok((server, keeper))
    }

    /// Starts the server, without changes that cannot be.
    fn start(&mut self) -> Result<Server, ServeError> {
        match Server::start(self.config()) {
            Err(ServeError::Config(error)) if !self.kept.state.edits.is_empty() => {
                tracing::warn!("{error}; identifying the change that causes it");
                self.defer(|_| true)?;
                match Server::start(self.config()) {
                    Err(ServeError::Config(error)) => {
                        // Whether a port can be listened on is known only then.
                        let is_port = |edit: &Edit| {
                            matches!(edit, Edit::PortAdd { .. } | Edit::PortSet { .. })
                        };
                        self.defer(|edit| !is_port(edit)).map_err(|_| error)?;
                        Server::start(self.config())
                    }
                    other => other,
                }
            }
            other => other,
        }
    }

    /// Puts changes deferred that are not `possible`, or that name what cannot be
    /// opened.
    fn defer(&mut self, possible: impl Fn(&Edit) -> bool) -> Result<(), ConfigError> {
        let kept = &mut self.kept;
        let not = kept.state.edits.iter().filter(|edit| !possible(edit));
        let not = not.map(|edit| Deferred {
            edit: edit.clone(),
            why: "the address cannot be listened on".to_owned(),
        });
        let not: Vec<_> = not.collect();
        let (base, edits) = (&kept.base, &kept.state.edits);
        kept.effective = Effective::working(base, edits, &not, broken::find)?;
        kept.resting = kept.effective.deferred.clone();
        Ok(())
    }
}

impl Places {
    /// The error with the way out, when it is about a document that was applied.
    fn blamed(&self, applied: bool, error: ConfigError) -> ConfigError {
        match &self.state {
            Some(state) if applied => error.of_applied(state, &self.file),
            _ => error,
        }
    }
}
