//! `reactor.polling`: presets for how a reactor polls.

use std::time::Duration;

use nvmeof_polling::PollingConfig;
use serde::Deserialize;

/// How a reactor polls before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Preset {
    /// Adapts the time to whether polling found work recently.
    #[default]
    Adaptive,
    /// Lowest latency: polls for long before it sleeps.
    Latency,
    /// Lowest CPU use: sleeps without polling.
    Efficiency,
}

impl Preset {
    /// The polling configuration, with `longest` instead of the longest time of the preset.
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
