//! The body of an answer that is no success.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is no success.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: ErrorText,
}

/// What is wrong, and where.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorText {
    /// Cause and remedy, for people; begins with file and line if these are
    /// given. A line for each error if there are several.
    pub message: String,
    /// The document that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line there, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The configuration key that is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Further errors in the same document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub others: Vec<ErrorText>,
}
