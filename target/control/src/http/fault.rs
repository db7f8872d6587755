//! Error responses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use nvmeof_target_api::{ErrorBody, ErrorText};

use nvmeof_target_config::ConfigError;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// The body.
    pub(crate) error: ErrorText,
}

/// Error responses that any request may get, for the OpenAPI description.
#[derive(utoipa::IntoResponses)]
#[allow(dead_code, reason = "only its schema is used")]
pub(crate) enum Refusals {
    /// The request is refused; nothing changed.
    #[response(status = "4XX")]
    OfRequest(ErrorBody),
    /// The target cannot process the request now.
    #[response(status = "5XX")]
    OfTarget(ErrorBody),
}

impl Fault {
    /// With a status and a message, without file, line and key.
    #[must_use]
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = ErrorText {
            message,
            ..ErrorText::default()
        };
        Self { status, error }
    }

    /// 409: not possible in the present state.
    #[must_use]
    pub(crate) fn refused(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    /// 422: the value of `key` is invalid.
    #[must_use]
    pub(crate) fn invalid(key: &str, what: &str) -> Self {
        let mut fault = Self::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{key}: {what}"));
        fault.error.key = Some(key.to_owned());
        fault
    }
}

/// An error of a document with its location.
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
