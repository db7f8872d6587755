//! `[ceph]`: how the Ceph cluster of RBD images is reached.

use std::path::PathBuf;

use nvmeof_backend_spec::CephAccess;
use serde::Deserialize;
use toml::Spanned;

use super::provider::ValueError;

/// The Ceph cluster of backing stores `rbd:POOL/IMAGE`. The key itself is in the keyring, and is
/// never logged.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawCeph {
    /// Configuration file of the cluster: an absolute path.
    ///
    /// Default: `"/etc/ceph/ceph.conf"`
    conf: Option<Spanned<PathBuf>>,
    /// User of the cluster, without `client.`.
    ///
    /// Default: `"admin"`
    user: Option<Spanned<String>>,
    /// File with the key of the user: an absolute path. If left out, where the configuration file
    /// of the cluster says, which by default is `/etc/ceph/ceph.client.USER.keyring`.
    keyring: Option<Spanned<PathBuf>>,
}

impl RawCeph {
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn to_access(&self) -> Result<CephAccess, ValueError> {
        let path = |key: &str, path: &Option<Spanned<PathBuf>>| {
            let Some(path) = path else {
                return Ok(None);
            };
            match path.get_ref().is_absolute() {
                true => Ok(Some(path.get_ref().clone())),
                false => Err(ValueError::of(
                    "ceph",
                    key,
                    path,
                    "must be an absolute path",
                )),
            }
        };
        let user = match &self.user {
            Some(user) if user.get_ref().is_empty() || user.get_ref().starts_with("client.") => {
                let what = "must be the user without client., such as \"admin\"";
                return Err(ValueError::of("ceph", "user", user, what));
            }
            user => user.as_ref().map(|user| user.get_ref().clone()),
        };
        Ok(CephAccess {
            conf: path("conf", &self.conf)?,
            user,
            keyring: path("keyring", &self.keyring)?,
        })
    }
}
