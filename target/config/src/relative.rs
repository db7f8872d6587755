//! Paths of files that do not begin at the root.

use std::path::Path;

use nvmeof_backend_spec::Spec;
use toml::Spanned;

use super::{Config, ConfigError};

/// What is wrong with such a path in a request, behind the path.
pub const RELATIVE: &str = "is relative; the target and its clients may be in \
    different folders, so the path must begin with /";

/// Whether the `path` of a namespace names a file relative to a folder.
#[must_use]
pub fn is_relative(path: &str) -> bool {
    matches!(path.parse(), Ok(Spec::File { path, .. }) if Path::new(&path).is_relative())
}

impl Config {
    /// That no namespace has a relative path.
    ///
    /// # Errors
    /// [`ConfigError`] names the first that has.
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
