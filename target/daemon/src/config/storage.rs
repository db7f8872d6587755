//! How disks are reached, as it is configured.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::provider::Wrong;

/// How long a thread of the kernel looks for operations after the last one,
/// unless something else is said.
const DEFAULT_IDLE_MS: u32 = 2;
const MAX_IDLE_MS: u32 = 10_000;

/// How disks are reached.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStorage {
    /// Whether a thread of the kernel takes disk operations from each thread (`SQPOLL`).
    ///
    /// Default: `false`
    #[serde(default)]
    sqpoll: bool,
    /// Milliseconds without any after which that thread sleeps, with `sqpoll`: 1 to 10000. Left
    /// out: 2.
    sqpoll_idle_ms: Option<Spanned<u32>>,
}

impl RawStorage {
    /// How long the thread of the kernel looks for operations that takes them
    /// from a reactor; `None`: there is none.
    ///
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(super) fn sqpoll(&self) -> Result<Option<Duration>, Wrong> {
        let wrong = |idle: &Spanned<u32>, what: &str| Wrong {
            at: Some(idle.span().start),
            what: format!("storage.sqpoll_idle_ms: {what}"),
        };
        let idle = match &self.sqpoll_idle_ms {
            Some(idle) if !self.sqpoll => {
                return Err(wrong(idle, "goes with storage.sqpoll = true"));
            }
            Some(idle) if !(1..=MAX_IDLE_MS).contains(idle.get_ref()) => {
                return Err(wrong(idle, "must be 1 to 10000"));
            }
            Some(idle) => *idle.get_ref(),
            None => DEFAULT_IDLE_MS,
        };
        Ok(self.sqpoll.then(|| Duration::from_millis(idle.into())))
    }
}
