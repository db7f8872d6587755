//! `[iwarp]`: software iWARP over TCP.

use serde::Deserialize;

/// Software iWARP over TCP.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawIwarp {
    /// Whether large data are sent without a copy to the kernel: 64 KiB and more at a time, to
    /// other machines, over paths with an MTU of 9000. Buffers are in use until the host has
    /// acknowledged the data. See "Zero-copy sends" in configuration.md.
    ///
    /// Default: `false`
    zero_copy_sends: Option<bool>,
}

impl RawIwarp {
    pub(crate) fn zero_copy_sends(&self) -> bool {
        self.zero_copy_sends.unwrap_or(false)
    }
}
