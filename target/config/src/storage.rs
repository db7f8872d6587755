//! How disks are reached, as it is configured.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::cores::RawCores;
use super::provider::Wrong;

/// How long a thread of the kernel looks for operations after the last one,
/// unless something else is said.
const DEFAULT_IDLE_MS: u32 = 2;
const MAX_IDLE_MS: u32 = 10_000;

/// How disks are reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStorage {
    /// Whether a thread of the kernel takes disk operations from each thread (`SQPOLL`).
    ///
    /// Default: `false`
    #[serde(default)]
    sqpoll: bool,
    /// Milliseconds without any after which that thread sleeps, with `sqpoll`: 1 to 10000. Left
    /// out: 2.
    sqpoll_idle_ms: Option<Spanned<u32>>,
    /// On which CPUs the kernel's threads run, with `sqpoll`: `[4, 6]` or `"4-7"`, in the
    /// order of the target's threads, and from the first on again. Left out: where the kernel
    /// likes, which on Linux 6.2 and later is where the target's thread may run.
    sqpoll_cores: Option<Spanned<RawCores>>,
}

/// Threads of the kernel that take disk operations from reactors, one from each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sqpoll {
    /// How long one looks for operations after the last one before it sleeps.
    pub idle: Duration,
    /// The CPUs that they run on, in turn; empty leaves that to the kernel.
    pub cores: Vec<usize>,
}

impl RawStorage {
    /// The threads of the kernel that take operations; `None`: there are none.
    ///
    /// # Errors
    /// [`Wrong`] says what would be right.
    pub(crate) fn sqpoll(&self) -> Result<Option<Sqpoll>, Wrong> {
        let (idle, cores) = (self.idle()?, self.cores()?);
        Ok(self.sqpoll.then_some(Sqpoll { idle, cores }))
    }

    fn idle(&self) -> Result<Duration, Wrong> {
        let wrong = |idle, what| Err(wrong("sqpoll_idle_ms", idle, what));
        let idle = match &self.sqpoll_idle_ms {
            Some(idle) if !self.sqpoll => {
                return wrong(idle, "goes with storage.sqpoll = true");
            }
            Some(idle) if !(1..=MAX_IDLE_MS).contains(idle.get_ref()) => {
                return wrong(idle, "must be 1 to 10000");
            }
            Some(idle) => *idle.get_ref(),
            None => DEFAULT_IDLE_MS,
        };
        Ok(Duration::from_millis(idle.into()))
    }

    fn cores(&self) -> Result<Vec<usize>, Wrong> {
        let wrong = |cores, what| Err(wrong("sqpoll_cores", cores, what));
        match &self.sqpoll_cores {
            Some(cores) if !self.sqpoll => wrong(cores, "goes with storage.sqpoll = true"),
            Some(cores) => match cores.get_ref() {
                RawCores::Auto => wrong(cores, "\"auto\" is for reactor.cores; name CPUs"),
                RawCores::On(cores) => Ok(cores.clone()),
            },
            None => Ok(Vec::new()),
        }
    }
}

fn wrong<T>(key: &str, value: &Spanned<T>, what: &str) -> Wrong {
    Wrong {
        at: Some(value.span().start),
        what: format!("storage.{key}: {what}"),
    }
}
