//! `[storage]`: how reactors submit I/O operations to backing stores.

use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::cores::RawCores;
use super::provider::ValueError;

/// How long a kernel thread polls for operations after the last one, by default.
const DEFAULT_IDLE_MS: u32 = 2;
const MAX_IDLE_MS: u32 = 10_000;

/// How I/O operations are submitted to backing stores.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawStorage {
    /// Whether a kernel thread submits the I/O operations of each reactor (`SQPOLL`).
    ///
    /// Default: `false`
    #[serde(default)]
    sqpoll: bool,
    /// With `sqpoll`: milliseconds without operations after which the kernel thread sleeps, 1 to
    /// 10000. If left out: 2.
    sqpoll_idle_ms: Option<Spanned<u32>>,
    /// With `sqpoll`: CPUs of the kernel threads, `[4, 6]` or `"4-7"`, in the order of the
    /// reactors. If there are fewer CPUs than reactors, the assignment starts again with the first
    /// CPU. If left out, the kernel decides; since Linux 6.2 each runs on the CPUs of its reactor.
    sqpoll_cores: Option<Spanned<RawCores>>,
}

/// Kernel threads that take I/O operations from reactors, one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sqpoll {
    /// How long one polls for operations after the last one before it sleeps.
    pub idle: Duration,
    /// The CPUs that they run on, round robin; empty: the kernel decides.
    pub cores: Vec<usize>,
}

impl RawStorage {
    /// The kernel threads that take operations; `None`: there are none.
    ///
    /// # Errors
    /// [`ValueError`] names the valid values.
    pub(crate) fn sqpoll(&self) -> Result<Option<Sqpoll>, ValueError> {
        let (idle, cores) = (self.idle()?, self.cores()?);
        Ok(self.sqpoll.then_some(Sqpoll { idle, cores }))
    }

    fn idle(&self) -> Result<Duration, ValueError> {
        let wrong = |idle, what| Err(ValueError::of("storage", "sqpoll_idle_ms", idle, what));
        let idle = match &self.sqpoll_idle_ms {
            Some(idle) if !self.sqpoll => {
                return wrong(idle, "requires storage.sqpoll = true");
            }
            Some(idle) if !(1..=MAX_IDLE_MS).contains(idle.get_ref()) => {
                return wrong(idle, "must be 1 to 10000");
            }
            Some(idle) => *idle.get_ref(),
            None => DEFAULT_IDLE_MS,
        };
        Ok(Duration::from_millis(idle.into()))
    }

    fn cores(&self) -> Result<Vec<usize>, ValueError> {
        let wrong = |cores, what| Err(ValueError::of("storage", "sqpoll_cores", cores, what));
        match &self.sqpoll_cores {
            Some(cores) if !self.sqpoll => wrong(cores, "requires storage.sqpoll = true"),
            Some(cores) => match cores.get_ref() {
                RawCores::Auto => wrong(cores, "\"auto\" is for reactor.cores; name CPUs"),
                RawCores::On(cores) => Ok(cores.clone()),
            },
            None => Ok(Vec::new()),
        }
    }
}
