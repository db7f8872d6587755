//! Remedies for errors of the control socket and for failed authentications, in options and
//! commands of this program: the libraries name causes and keys only.

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

/// What to do about authentications with an outcome; `None` after a success.
pub(crate) fn of_outcome(outcome: &str) -> Option<&'static str> {
    let remedy = match outcome {
        "no_key" => "configure a key of the host: `ctl host set-key`; the log names the host",
        "wrong_key" => {
            "host and target have different keys: give both the same one; `nvmeof \
             check-dhchap-key` checks its text"
        }
        "unknown_key" => {
            "a key file of the host could not be read: `ctl status` says why; the host tries again"
        }
        "no_controller_key" => {
            "the host requires a key of the controller: set one with `ctl host set-key` \
             (--controller-key-file), or connect without --dhchap-ctrl-secret"
        }
        "not_usable" => {
            "host and target have no hash function or group in common: change hash or dh_groups of \
             the host"
        }
        "protocol" => {
            "a message was malformed or came at the wrong time: the log names the peer; if it is a \
             host of yours, update its software"
        }
        "timeout" => {
            "the host did not continue: check it and the network; if the target is busy, use a \
             smaller group in dh_groups"
        }
        "refused_by_host" => {
            "the host ended it: compare the controller key of the host with controller_key_file, \
             and see the log of the host"
        }
        "internal" => "the target could not compute a response: its log names the cause",
        _ => return None,
    };
    Some(remedy)
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use nvmeof_target_api::{ErrorBody, ErrorText};

    use nvmeof_target_core::AuthenticationOutcome;

    use super::*;

    #[test]
    fn every_failed_authentication_has_a_remedy() {
        for outcome in AuthenticationOutcome::ALL {
            let is_success = outcome == AuthenticationOutcome::Success;
            assert_eq!(
                of_outcome(outcome.name()).is_none(),
                is_success,
                "{outcome:?}"
            );
        }
    }

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
