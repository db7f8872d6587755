//! Starting the target from the configuration file and the state file.

use std::path::Path;
use std::sync::Arc;

use super::effective::{AdminFile, Base, Effective};
use super::keeper::{Keeper, KeeperFiles, ServedState};
use super::lock::Lock;
use super::state::State;
use super::{broken, lock};
use nvmeof_atomic_file::{Real, sweep, sweep_folder};
use nvmeof_target_api::Deferred;
use nvmeof_target_api::Edit;
use nvmeof_target_config::{Config, ConfigError};
use nvmeof_target_manage::{Lineage, ServeError, Server, host_settings};

/// The configuration and its changes, read but not served yet.
pub struct LoadedConfig {
    files: KeeperFiles,
    kept: ServedState,
}

/// Checks that a target that serves `config` could read and lock its state file.
///
/// # Errors
/// The [`ConfigError`] of [`LoadedConfig::read`]: another target holds the file, or it cannot be
/// read.
pub fn check_state(config: &Config) -> Result<(), ConfigError> {
    let Some(path) = config.control().state.as_deref() else {
        return Ok(());
    };
    let _ = State::load(path)?;
    lock::is_free(path, config)
}

impl LoadedConfig {
    /// Reads the configuration file and the state file, and locks the state file.
    ///
    /// # Errors
    /// [`ConfigError`] with file, line and key.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let (admin, config) = AdminFile::read(file)?;
        let path = config.control().state.as_deref();
        let lock = path.map(|path| Lock::take(path, &config)).transpose()?;
        let lock = lock.flatten();
        // Without the lock another target may be writing.
        if let Some(path) = path.filter(|_| lock.is_some()) {
            sweep(path);
            sweep_folder(&host_settings::path_beside(path));
        }
        let state = path.map(State::load).transpose()?;
        let state = state.unwrap_or_else(State::new);
        let files = KeeperFiles {
            config: file.to_path_buf(),
            state: path.map(Path::to_path_buf),
            system: Box::new(Real),
            lock,
        };
        let applied = state.applied.is_some();
        let base = Base::of(&state, admin);
        let kept = base.and_then(|base| ServedState::of(base, state));
        let kept = kept.map_err(|error| files.with_remedy(applied, error))?;
        Ok(Self { files, kept })
    }

    /// The configuration to serve.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.kept.effective.config
    }

    /// Serves it. Run-time changes that can never be served are deferred, and the rest is served.
    ///
    /// # Errors
    /// If something without a run-time change cannot be served.
    pub fn serve(mut self) -> Result<(Server, Keeper), ServeError> {
        // Before steps that may fail because of that document.
        self.kept.log_applied();
        let applied = self.kept.state.applied.is_some();
        let lineage = self.files.lineage().map(Arc::new);
        let server = self.start(lineage.as_ref()).map_err(|error| match error {
            ServeError::Config(error) => self.files.with_remedy(applied, error).into(),
            other => other,
        })?;
        self.kept.log_edits();
        let keeper = Keeper::new(Arc::clone(server.manager()), self.files, self.kept);
        for remark in keeper.remarks_on_saved_keys() {
            tracing::warn!("run-time changes: {remark}");
        }
        Ok((server, keeper))
    }

    /// Starts the server; defers changes that can never be served.
    fn start(&mut self, lineage: Option<&Arc<Lineage>>) -> Result<Server, ServeError> {
        match Server::start_in(lineage, self.config()) {
            Err(ServeError::Config(error)) if !self.kept.state.edits.is_empty() => {
                tracing::warn!("{error}; identifying the change that causes it");
                self.defer(|_| true)?;
                match Server::start_in(lineage, self.config()) {
                    Err(ServeError::Config(error)) => {
                        // Listening on a port may fail only when the server starts.
                        let is_port = |edit: &Edit| {
                            matches!(edit, Edit::PortAdd { .. } | Edit::PortSet { .. })
                        };
                        self.defer(|edit| !is_port(edit)).map_err(|_| error)?;
                        Server::start_in(lineage, self.config())
                    }
                    other => other,
                }
            }
            other => other,
        }
    }

    /// Defers changes that are not `possible`, or whose object can never be opened.
    fn defer(&mut self, possible: impl Fn(&Edit) -> bool) -> Result<(), ConfigError> {
        let kept = &mut self.kept;
        let impossible = kept.state.edits.iter().filter(|edit| !possible(edit));
        let impossible = impossible.map(|edit| Deferred {
            edit: edit.clone(),
            why: "cannot listen on the address".to_owned(),
        });
        let impossible: Vec<_> = impossible.collect();
        let (base, edits) = (&kept.base, &kept.state.edits);
        kept.effective = Effective::working(base, edits, &impossible, broken::find)?;
        kept.held = kept.effective.deferred.clone();
        Ok(())
    }
}

impl KeeperFiles {
    /// The place of this process among those with the same state file. `None` without the lock of
    /// that file, and if nothing can be proven of predecessors.
    fn lineage(&self) -> Option<Lineage> {
        let state = self.state.as_deref();
        state
            .filter(|_| self.lock.is_some())
            .and_then(Lineage::take)
    }

    /// The error; if a document was applied, with the way back to the configuration file.
    fn with_remedy(&self, applied: bool, error: ConfigError) -> ConfigError {
        match &self.state {
            Some(state) if applied => error.of_applied(state, &self.config),
            _ => error,
        }
    }
}
