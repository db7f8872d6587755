//! Remedies for errors of the control socket, in options and commands of this program: the
//! libraries name causes and keys only.

use nvmeof_target_api::CallError;

/// The error, with the option or command that helps.
pub(crate) fn with_remedy(error: &CallError) -> String {
    match error {
        CallError::NoSocket { .. } => format!("{error}; pass it with --socket"),
        CallError::Refused(_, body) if body.error.key.as_deref() == Some("allow_any_host") => {
            format!("{error}: `ctl host allow --only NQN`")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use nvmeof_target_api::{ErrorBody, ErrorText};

    use super::*;

    #[test]
    fn missing_socket_and_allowed_hosts_name_options() {
        let socket = "/run/nvmeof/control.sock".into();
        let text = with_remedy(&CallError::NoSocket { socket });
        assert!(text.ends_with("; pass it with --socket"), "{text}");
        let error = ErrorText {
            message: "every host may connect".to_owned(),
            key: Some("allow_any_host".to_owned()),
            ..ErrorText::default()
        };
        let refused = CallError::Refused(StatusCode::UNPROCESSABLE_ENTITY, ErrorBody { error });
        let text = with_remedy(&refused);
        assert_eq!(text, "every host may connect: `ctl host allow --only NQN`");
    }
}
