//! A change of the size of a namespace.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What size a namespace is to have.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Its subsystem; it may be left out where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Its number.
    pub nsid: u32,
    /// Bytes that its file is to have; none leaves the file as it is and looks
    /// how large it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether the end of the file may be cut off.
    #[serde(default)]
    pub shrink: bool,
}
