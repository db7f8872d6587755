//! `[shm]`: shared memory with processes of this host. Folder of the sockets, and users that
//! may connect.

use std::path::PathBuf;

use nix::unistd::User;
use nvmeof_rdma::explain;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use toml::Spanned;

use super::provider::ValueError;
use super::size::Size;

/// How hosts on this machine connect over shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmSettings {
    /// Folder of the sockets; `None`: the default of this user.
    pub folder: Option<PathBuf>,
    /// Users that may connect besides this one and root.
    pub users: Vec<u32>,
    /// Most bytes of memory of hosts that are mapped.
    pub lent_memory: usize,
}

impl Default for ShmSettings {
    fn default() -> Self {
        Self {
            folder: None,
            users: Vec::new(),
            lent_memory: 1 << 30,
        }
    }
}

/// Shared memory with hosts on this machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawShm {
    /// Folder of the sockets, an absolute path. If left out: `/run/nvmeof` for root, and
    /// `$XDG_RUNTIME_DIR/nvmeof` for other users, or else `nvmeof-UID` in the folder for
    /// temporary files.
    folder: Option<Spanned<PathBuf>>,
    /// Users that may connect besides root and the user of the target: names or numbers.
    ///
    /// Default: `[]`
    #[serde(default)]
    users: Vec<Spanned<RawUser>>,
    /// Most memory of hosts that the target maps to access it in place: 0 to 1T. Each user has a
    /// quarter of it, except root and the user of the target. Data beyond the limit are copied.
    ///
    /// Default: `"1G"`
    lent_memory: Option<Spanned<Size>>,
}

/// The most that `lent_memory` can be.
const MOST_LENT: u64 = 1 << 40;

/// A user: by name, or by number.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RawUser {
    Name(String),
    Number(u32),
}

impl RawShm {
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn to_settings(&self) -> Result<ShmSettings, ValueError> {
        let folder = match &self.folder {
            None => None,
            Some(folder) if folder.get_ref().is_absolute() => Some(folder.get_ref().clone()),
            Some(folder) => {
                let what = format!(
                    "shm.folder = {:?}: must be a path that starts with /",
                    folder.get_ref()
                );
                let at = Some(folder.span().start);
                return Err(ValueError { at, what });
            }
        };
        let mut users = Vec::new();
        for user in &self.users {
            let number = user.get_ref().number();
            users.push(number.map_err(|what| ValueError {
                at: Some(user.span().start),
                what,
            })?);
        }
        let mut settings = ShmSettings {
            folder,
            users,
            ..ShmSettings::default()
        };
        if let Some(lent) = &self.lent_memory {
            settings.lent_memory = lent_memory(lent)?;
        }
        Ok(settings)
    }
}

fn lent_memory(lent: &Spanned<Size>) -> Result<usize, ValueError> {
    let bytes = lent.get_ref().all_bytes();
    let fits = usize::try_from(bytes).ok().filter(|_| bytes <= MOST_LENT);
    fits.ok_or_else(|| ValueError {
        at: Some(lent.span().start),
        what: format!("shm.lent_memory: {bytes} bytes are out of range (0 to 1T)"),
    })
}

impl RawUser {
    /// The user ID.
    fn number(&self) -> Result<u32, String> {
        let name = match self {
            Self::Number(number) => return Ok(*number),
            Self::Name(name) => name,
        };
        match User::from_name(name) {
            Ok(Some(user)) => Ok(user.uid.as_raw()),
            Ok(None) => Err(format!(
                "shm.users: there is no user {name:?}; `getent passwd` lists users"
            )),
            Err(error) => {
                let why = explain(&error.into());
                Err(format!("shm.users: {name:?} cannot be looked up: {why}"))
            }
        }
    }
}

impl<'de> Deserialize<'de> for RawUser {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;

        impl Visitor<'_> for NameOrNumber {
            type Value = RawUser;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a user such as \"alice\", or a number")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<RawUser, E> {
                // The highest number stands for no user.
                let number = u32::try_from(number).ok();
                let number = number.filter(|number| *number != u32::MAX);
                number
                    .map(RawUser::Number)
                    .ok_or_else(|| E::custom("the number of a user is 0 to 4294967294"))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<RawUser, E> {
                Ok(RawUser::Name(name.to_owned()))
            }
        }

        deserializer.deserialize_any(NameOrNumber)
    }
}
