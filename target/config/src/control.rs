//! Where the daemon is managed from, as it is configured.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::unistd::Group;
use nvmeof_rdma::explain;
use serde::Deserialize;
use toml::Spanned;

use super::provider::Wrong;

/// Where the daemon is managed from, and where it keeps what was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// The Unix socket; `None`: there is none.
    pub socket: Option<PathBuf>,
    /// Permissions of its file.
    pub mode: u32,
    /// The group that its file belongs to; `None` is that of the process.
    pub group: Option<u32>,
    /// The file that changes are kept in; `None`: they end with the process.
    pub state: Option<PathBuf>,
}

/// Where the target is managed from, and where it keeps what was changed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawControl {
    /// Unix socket of `nvmeof-target ctl`, an absolute path. Left out: `control.sock` in
    /// the folder `RUNTIME_DIRECTORY`, which systemd gives; without that, none.
    socket: Option<Spanned<PathBuf>>,
    /// Permissions of the socket: who may write it may change everything.
    ///
    /// Default: `0o660`
    mode: Option<Spanned<u32>>,
    /// Name of the group that the socket belongs to. Left out: that of the process.
    group: Option<Spanned<String>>,
    /// File that changes are kept in over a restart, an absolute path. Left out:
    /// `state.json` in the folder `STATE_DIRECTORY`, which systemd gives; without that,
    /// none.
    state: Option<Spanned<PathBuf>>,
}

/// The user of the target, and its group.
const DEFAULT_MODE: u32 = 0o660;
/// Names of the files in the folders that a service manager makes.
const SOCKET: &str = "control.sock";
const STATE: &str = "state.json";

impl RawControl {
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(crate) fn to_config(&self) -> Result<ControlConfig, Wrong> {
        let folder = |name| std::env::var_os(name);
        self.in_folders(
            folder("RUNTIME_DIRECTORY").as_deref(),
            folder("STATE_DIRECTORY").as_deref(),
        )
    }

    /// With the folders of systemd.exec(5), `RUNTIME_DIRECTORY` and
    /// `STATE_DIRECTORY`.
    fn in_folders(
        &self,
        runtime: Option<&OsStr>,
        state: Option<&OsStr>,
    ) -> Result<ControlConfig, Wrong> {
        Ok(ControlConfig {
            socket: path("socket", self.socket.as_ref(), runtime, SOCKET)?,
            mode: self.mode()?,
            group: self.group()?,
            state: path("state", self.state.as_ref(), state, STATE)?,
        })
    }

    fn mode(&self) -> Result<u32, Wrong> {
        let Some(mode) = &self.mode else {
            return Ok(DEFAULT_MODE);
        };
        // Whoever may write the file may change everything.
        let given = *mode.get_ref();
        if given & !0o770 == 0 && given & 0o600 == 0o600 {
            return Ok(given);
        }
        Err(Wrong {
            at: Some(mode.span().start),
            what: format!(
                "control.mode = {given:#o}: must be 0o600 to 0o770, with read and write for the \
                 owner and nothing for others; name a group instead"
            ),
        })
    }

    fn group(&self) -> Result<Option<u32>, Wrong> {
        let Some(group) = &self.group else {
            return Ok(None);
        };
        let name = group.get_ref();
        let wrong = |what| Wrong {
            at: Some(group.span().start),
            what,
        };
        match Group::from_name(name) {
            Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
            Ok(None) => Err(wrong(format!(
                "control.group: there is no group {name:?}; `getent group` shows those there are"
            ))),
            Err(error) => Err(wrong(format!(
                "control.group: {name:?} cannot be looked up: {}",
                explain(&error.into())
            ))),
        }
    }
}

/// The path given, none for an empty one; otherwise `name` in `folder`.
fn path(
    key: &str,
    given: Option<&Spanned<PathBuf>>,
    folder: Option<&OsStr>,
    name: &str,
) -> Result<Option<PathBuf>, Wrong> {
    let Some(given) = given else {
        // systemd.exec(5): several folders are "concatenated with colon".
        let first = folder.and_then(|all| all.as_bytes().split(|byte| *byte == b':').next());
        let first = first.filter(|first| !first.is_empty());
        return Ok(first.map(|first| PathBuf::from(OsStr::from_bytes(first)).join(name)));
    };
    let path = given.get_ref();
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    if path.is_absolute() {
        return Ok(Some(path.clone()));
    }
    Err(Wrong {
        at: Some(given.span().start),
        what: format!(
            "control.{key} = {path:?}: must be a path that starts with /, or \"\" for none"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ControlConfig, String> {
        let raw: RawControl = toml::from_str(text).unwrap();
        let (runtime, state) = (
            OsStr::new("/run/nvmeof:/run/b"),
            OsStr::new("/var/lib/nvmeof"),
        );
        let config = raw.in_folders(Some(runtime), Some(state));
        config.map_err(|wrong| wrong.what)
    }

    #[test]
    fn the_service_manager_says_where() {
        let config = read("").unwrap();
        assert_eq!(config.socket, Some("/run/nvmeof/control.sock".into()));
        assert_eq!(config.state, Some("/var/lib/nvmeof/state.json".into()));
        assert_eq!((config.mode, config.group), (0o660, None));
        let without = RawControl::default().in_folders(None, Some(OsStr::new("")));
        let without = without.unwrap();
        assert_eq!((without.socket, without.state), (None, None));
    }

    #[test]
    fn the_file_says_otherwise() {
        let config = read("socket = \"/a/b\"\nmode = 0o600\ngroup = \"root\"\nstate = \"\"");
        let expected = ControlConfig {
            socket: Some("/a/b".into()),
            mode: 0o600,
            group: Some(0),
            state: None,
        };
        assert_eq!(config.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("socket = \"a\"", "control.socket = \"a\""),
            ("state = \"x/y\"", "control.state"),
            ("mode = 0o666", "control.mode = 0o666"),
            ("mode = 0o060", "control.mode = 0o60"),
            (
                "group = \"no such group\"",
                "control.group: there is no group",
            ),
        ] {
            let what = read(text).unwrap_err();
            assert!(what.contains(words), "{what}");
        }
    }
}
