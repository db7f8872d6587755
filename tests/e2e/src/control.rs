//! A target with a control socket.

use serde_json::Value;

use crate::{Run, Setup, target_command};

/// A configuration with a control socket and a state file.
#[must_use]
pub fn managed() -> Setup {
    let setup = Setup::new();
    let head = format!(
        "[control]\nsocket = '{}'\nstate = '{}'\n",
        setup.path("control.sock").display(),
        setup.path("state.json").display()
    );
    setup.head(&head)
}

/// `nvmeof-target ctl` with the arguments in `line`.
#[must_use]
pub fn ctl(setup: &Setup, line: &str) -> Run {
    let mut command = target_command();
    command
        .args(["ctl", "--socket"])
        .arg(setup.path("control.sock"));
    Run::new(command).args(line)
}

/// The JSON output of `ctl`.
#[track_caller]
#[must_use]
pub fn ask(setup: &Setup, line: &str) -> Value {
    let ended = ctl(setup, &format!("-o json {line}")).ok();
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"))
}
