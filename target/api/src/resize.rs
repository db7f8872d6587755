//! Resizing a namespace.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new size of a namespace.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// NQN of its subsystem; may be omitted if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Namespace ID.
    pub nsid: u32,
    /// New size of its file in bytes. Without it, the present size of the file or device is
    /// adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Whether the file may be truncated.
    #[serde(default)]
    pub shrink: bool,
}
