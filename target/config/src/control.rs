//! `[control]`: the control socket and the state file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::unistd::Group;
use nvmeof_rdma::explain;
use serde::Deserialize;
use toml::Spanned;

use super::provider::ValueError;

/// The control socket and the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlConfig {
    /// The Unix socket; `None`: there is none.
    pub socket: Option<PathBuf>,
    /// Permissions of its file.
    pub mode: u32,
    /// Group of its file; `None`: that of the process.
    pub group: Option<u32>,
    /// The state file; `None`: run-time changes are lost when the process ends.
    pub state: Option<PathBuf>,
}

/// The control socket and the state file, see managing.md.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawControl {
    /// Unix socket of `nvmeof-target ctl`, an absolute path; `""` for none. If left out:
    /// `control.sock` in `$RUNTIME_DIRECTORY`, which systemd sets, or else none.
    socket: Option<Spanned<PathBuf>>,
    /// Permissions of the socket: write permission allows every change.
    ///
    /// Default: `0o660`
    mode: Option<Spanned<u32>>,
    /// Group of the socket, by name. If left out, that of the process.
    group: Option<Spanned<String>>,
    /// File of run-time changes, which are applied again after a restart: an absolute path;
    /// `""` for none. If left out: `state.json` in `$STATE_DIRECTORY`, which systemd sets, or
    /// else none.
    state: Option<Spanned<PathBuf>>,
}

/// The user of the target, and its group.
const DEFAULT_MODE: u32 = 0o660;
/// Names of the files in the folders that a service manager makes.
const SOCKET: &str = "control.sock";
const STATE: &str = "state.json";

impl RawControl {
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn to_config(&self) -> Result<ControlConfig, ValueError> {
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
    ) -> Result<ControlConfig, ValueError> {
        Ok(ControlConfig {
            socket: path("socket", self.socket.as_ref(), runtime, SOCKET)?,
            mode: self.mode()?,
            group: self.group()?,
            state: path("state", self.state.as_ref(), state, STATE)?,
        })
    }

    fn mode(&self) -> Result<u32, ValueError> {
        let Some(mode) = &self.mode else {
            return Ok(DEFAULT_MODE);
        };
        // Write permission on the socket allows every change.
        let given = *mode.get_ref();
        if given & !0o770 == 0 && given & 0o600 == 0o600 {
            return Ok(given);
        }
        Err(ValueError {
            at: Some(mode.span().start),
            what: format!(
                "control.mode = {given:#o}: must be 0o600 to 0o770, with read and write for the \
                 owner and nothing for others; name a group instead"
            ),
        })
    }

    fn group(&self) -> Result<Option<u32>, ValueError> {
        let Some(group) = &self.group else {
            return Ok(None);
        };
        let name = group.get_ref();
        let wrong = |what| ValueError {
            at: Some(group.span().start),
            what,
        };
        match Group::from_name(name) {
            Ok(Some(group)) => Ok(Some(group.gid.as_raw())),
            Ok(None) => Err(wrong(format!(
                "control.group: there is no group {name:?}; `getent group` lists groups"
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
) -> Result<Option<PathBuf>, ValueError> {
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
    Err(ValueError {
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
    fn paths_default_to_folders_of_the_service_manager() {
        let config = read("").unwrap();
        assert_eq!(config.socket, Some("/run/nvmeof/control.sock".into()));
        assert_eq!(config.state, Some("/var/lib/nvmeof/state.json".into()));
        assert_eq!((config.mode, config.group), (0o660, None));
        let without = RawControl::default().in_folders(None, Some(OsStr::new("")));
        let without = without.unwrap();
        assert_eq!((without.socket, without.state), (None, None));
    }

    #[test]
    fn configured_paths_override_the_service_manager() {
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
    fn invalid_values_are_reported_with_their_key() {
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
