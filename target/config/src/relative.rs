//! Relative paths of backing stores, which requests and documents must not have.

use std::path::Path;

use nvmeof_backend_spec::Spec;
use toml::Spanned;

use super::{Config, ConfigError};

/// The error for such a path in a request, after the path.
pub const RELATIVE: &str = "is relative; target and client may have different working \
    directories, so the path must be absolute";

/// Whether the `path` of a namespace is the relative path of a file.
#[must_use]
pub fn is_relative(path: &str) -> bool {
    matches!(path.parse(), Ok(Spec::File { path, .. }) if Path::new(&path).is_relative())
}

impl Config {
    /// Checks that no namespace has a relative path.
    ///
    /// # Errors
    /// [`ConfigError`] of the first namespace with a relative path.
    pub fn check_absolute(&self) -> Result<(), ConfigError> {
        let subsystems = self.raw.subsystem.iter().map(Spanned::get_ref);
        let mut paths = subsystems
            .flat_map(|one| &one.namespace)
            .map(|one| &one.get_ref().path);
        match paths.find(|path| is_relative(path.get_ref())) {
            Some(path) => {
                let what = format!("path: {:?} {RELATIVE}", path.get_ref());
                Err(self.error_at(Some(path.span().start), &what))
            }
            None => Ok(()),
        }
    }
}
