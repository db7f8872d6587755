//! Relative paths of backing stores and keys, which requests and documents must not have.

use std::path::Path;

use nvmeof_backend_spec::Spec;
use toml::Spanned;

use super::host::RawHost;
use super::key_file::KeyFile;
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
    /// Checks that no namespace and no key of a host has a relative path.
    ///
    /// # Errors
    /// [`ConfigError`] of the first relative path.
    pub fn check_absolute(&self) -> Result<(), ConfigError> {
        let subsystems = self.raw.subsystem.iter().map(Spanned::get_ref);
        let mut paths = subsystems
            .flat_map(|one| &one.namespace)
            .map(|one| &one.get_ref().path);
        let path = paths.find(|path| is_relative(path.get_ref()));
        let mut files = self.hosts().flat_map(RawHost::files);
        let file =
            files.find(|(_, file)| KeyFile::parse(file.get_ref()).is_ok_and(KeyFile::is_relative));
        match path
            .map(|path| ("path", path))
            .or(file.map(|(key, file)| (key.name(), file)))
        {
            Some((key, path)) => {
                let what = format!("{key}: {:?} {RELATIVE}", path.get_ref());
                Err(self.error_at(Some(path.span().start), &what))
            }
            None => Ok(()),
        }
    }
}
