//! What a request is answered with when it cannot be done.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use nvmeof_target_api::{ErrorBody, ErrorText};

use nvmeof_target_config::ConfigError;

/// A request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// What is told.
    pub(crate) error: ErrorText,
}

/// What any request may be answered instead, for the description.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only its shape is asked for")]
pub(crate) enum Refusals {
    /// The request cannot be done; nothing changed.
    #[response(status = "4XX")]
    OfRequest(ErrorBody),
    /// The target cannot do it now.
    #[response(status = "5XX")]
    OfTarget(ErrorBody),
}

impl Fault {
    /// Of that status, with no place.
    #[must_use]
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = ErrorText {
            message,
            ..ErrorText::default()
        };
        Self { status, error }
    }

    /// What was asked for is there but cannot be done.
    #[must_use]
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// The request says something that cannot be.
    #[must_use]
    pub(crate) fn wrong(key: &str, what: &str) -> Self {
        let mut fault = Self::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{key}: {what}"));
        fault.error.key = Some(key.to_owned());
        fault
    }
}

/// Where in which document, and what is wrong there.
fn error_text(error: &ConfigError) -> ErrorText {
    ErrorText {
        message: error.to_string(),
        file: error.file().map(|file| file.display().to_string()),
        line: error.line(),
        key: error.key().map(str::to_owned),
        others: error.others().iter().map(error_text).collect(),
    }
}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            error: error_text(&error),
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.error })).into_response()
    }
}
