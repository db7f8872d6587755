//! What a reactor that polls is to be good at, in words.

use std::time::Duration;

use nvmeof_polling::PollingConfig;
use serde::Deserialize;

/// What a reactor is to be good at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preset {
    /// Both: it learns how long looking pays.
    #[default]
    Adaptive,
    /// Answers at once: it looks long before it sleeps.
    Latency,
    /// Leaves the CPU to others: it does not look before it sleeps.
    Efficiency,
}

impl Preset {
    /// How a reactor polls then, with another longest time if one is given.
    pub(crate) fn polling(self, longest: Option<Duration>) -> PollingConfig {
        let usual = match self {
            Self::Adaptive => 100,
            Self::Latency => 10_000,
            Self::Efficiency => 0,
        };
        PollingConfig {
            longest: longest.unwrap_or(Duration::from_micros(usual)),
            learns: self == Self::Adaptive,
        }
    }
}
