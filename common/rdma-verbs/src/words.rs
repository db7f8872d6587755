//! Descriptions of the libraries' status codes, and the close reasons that they stand for.

use std::io;

use nvmeof_rdma::{CloseReason, Fault};

use crate::sys::{event, status};

/// Description of a completion status.
pub(crate) fn status_words(number: u32) -> &'static str {
    match number {
        status::SUCCESS => "done",
        status::LOC_LEN => "the message is longer than the memory for it",
        status::LOC_QP_OP => "the queue pair cannot do this work",
        status::LOC_PROT => "memory of this side does not allow the access",
        status::FLUSH => "flushed",
        status::MW_BIND => "a memory window cannot be bound",
        status::BAD_RESP => "the peer sent an invalid response",
        status::LOC_ACCESS => "the peer wrote to memory that does not allow it",
        status::REM_INV_REQ => "the peer reported an invalid request",
        status::REM_ACCESS => "the peer reported that its memory does not allow the access",
        status::REM_OP => "the peer cannot execute the request",
        status::RETRY => "the peer does not acknowledge any more",
        status::RNR_RETRY => "the peer posts no receive",
        status::REM_ABORT => "the peer aborted the operation",
        status::FATAL => "the device failed",
        status::RESP_TIMEOUT => "the peer does not respond any more",
        status::GENERAL => "the device reported an unspecified error",
        _ => "the device reported an unknown error",
    }
}

fn fault(number: u32, vendor_error: u32) -> Fault {
    Fault {
        layer: "transport",
        code: u16::try_from(number).unwrap_or(u16::MAX),
        text: format!("{}, vendor error {vendor_error:#x}", status_words(number)),
    }
}

/// A failure of the network or of this host, described by `text`.
pub(crate) fn network(kind: io::ErrorKind, text: impl Into<String>) -> CloseReason {
    CloseReason::Network {
        kind,
        text: text.into(),
        remedy: None,
    }
}

/// As [`network`], where the kernel log may contain more.
pub(crate) fn of_device(kind: io::ErrorKind, text: impl Into<String>) -> CloseReason {
    network(kind, text).with_remedy("`dmesg` may say more")
}

/// As [`network`], for a peer that does not respond.
fn silent(text: impl Into<String>) -> CloseReason {
    let reason = network(io::ErrorKind::TimedOut, text);
    reason.with_remedy("check the peer and the network in between")
}

fn not_completed(number: u32, vendor_error: u32) -> CloseReason {
    let words = status_words(number);
    let text = format!("{words} (status {number}, vendor error {vendor_error:#x})");
    match number {
        status::RETRY | status::RESP_TIMEOUT => silent(text),
        status::RNR_RETRY => {
            network(io::ErrorKind::TimedOut, text).with_remedy("see the log of the peer")
        }
        _ => of_device(io::ErrorKind::Other, text),
    }
}

/// The close reason for a send, write or read that ended with status `number`. `None` if the
/// status contains no reason: flushed work.
pub(crate) fn send_reason(number: u32, vendor_error: u32) -> Option<CloseReason> {
    Some(match number {
        status::FLUSH => return None,
        status::REM_INV_REQ | status::REM_ACCESS | status::REM_OP | status::REM_ABORT => {
            CloseReason::Terminated(fault(number, vendor_error))
        }
        status::BAD_RESP => CloseReason::PeerFault(fault(number, vendor_error)),
        _ => not_completed(number, vendor_error),
    })
}

/// The close reason for a receive that ended with status `number`: the peer's message does
/// not fit it.
pub(crate) fn recv_reason(number: u32, vendor_error: u32) -> Option<CloseReason> {
    Some(match number {
        status::FLUSH => return None,
        status::LOC_PROT | status::FATAL => not_completed(number, vendor_error),
        // Receives are well-formed, so the message is invalid: a software device reports
        // "cannot do this work" then.
        _ => CloseReason::PeerFault(fault(number, vendor_error)),
    })
}

/// Adds the device and the queue pair that detected a fault or failure.
pub(crate) fn found_by(reason: CloseReason, device: &str, qp_number: u32) -> CloseReason {
    let with = |text: String| format!("{text}; device {device}, queue pair {qp_number}");
    let of = |Fault { layer, code, text }: Fault| Fault {
        layer,
        code,
        text: with(text),
    };
    match reason {
        CloseReason::Network { kind, text, remedy } => {
            let text = with(text);
            CloseReason::Network { kind, text, remedy }
        }
        CloseReason::PeerFault(fault) => CloseReason::PeerFault(of(fault)),
        CloseReason::Terminated(fault) => CloseReason::Terminated(of(fault)),
        as_usual => as_usual,
    }
}

/// The close reason for a queue pair that its device stopped: an InfiniBand or RoCE queue
/// pair as responder does so when a request violates the protocol (InfiniBand Architecture,
/// 9.9.3).
pub(crate) fn stopped_by_request() -> CloseReason {
    CloseReason::PeerFault(Fault {
        layer: "transport",
        code: 0,
        text: "the device refused a request of the peer: it accesses memory that was not \
               exposed to it, or is invalid"
            .to_owned(),
    })
}

/// The close reason for an asynchronous event of a queue pair.
pub(crate) fn event_reason(number: i32) -> Option<CloseReason> {
    let text = match number {
        event::QP_ACCESS_ERR => "the peer accessed memory that was not exposed to it",
        event::QP_REQ_ERR => "the peer sent an invalid request",
        event::QP_FATAL => "a message of the peer stopped the queue pair",
        _ => return None,
    };
    Some(CloseReason::PeerFault(Fault {
        layer: "transport",
        code: u16::try_from(number).unwrap_or(u16::MAX),
        text: text.to_owned(),
    }))
}

/// Reasons of the InfiniBand connection manager (InfiniBand Architecture, 12.6.7.2), of which
/// few are used.
const REJECTED_INVALID_SERVICE: i32 = 8;
const REJECTED_BY_CONSUMER: i32 = 28;

/// Kind of a refused connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The peer's program rejected it.
    Peer,
    /// Anything else.
    Network(CloseReason),
}

/// The meaning of a rejection's status: InfiniBand and RoCE give a reason, iWARP a negative
/// errno.
pub(crate) fn refusal(number: i32) -> Refusal {
    match number {
        REJECTED_BY_CONSUMER => Refusal::Peer,
        REJECTED_INVALID_SERVICE => Refusal::Network(no_listener()),
        ..0 => match io::Error::from_raw_os_error(number.saturating_neg()) {
            // An MPA reply that rejects (RFC 5044, section 7.1).
            error if error.kind() == io::ErrorKind::ConnectionReset => Refusal::Peer,
            error if error.kind() == io::ErrorKind::ConnectionRefused => {
                Refusal::Network(no_listener())
            }
            error => Refusal::Network(CloseReason::failed(
                "the connection was not established",
                &error,
            )),
        },
        _ => {
            let text =
                format!("the peer's connection manager rejected the connection, reason {number}");
            Refusal::Network(of_device(io::ErrorKind::Other, text))
        }
    }
}

fn no_listener() -> CloseReason {
    network(
        io::ErrorKind::ConnectionRefused,
        "nothing listens at this address",
    )
    .with_remedy("start the service at this address, or correct the address")
}

/// The close reason for any other failed set-up, whose status is a negative errno.
pub(crate) fn set_up_reason(number: i32, what: &'static str) -> CloseReason {
    match number {
        // Reasons of protocols are positive.
        0.. => {
            let text = format!("{what} (status {number})");
            silent(text)
        }
        _ => {
            let error = io::Error::from_raw_os_error(number.saturating_neg());
            CloseReason::failed(what, &error)
        }
    }
}

/// The close reason if memory was not closed in time because the peer does not acknowledge.
pub(crate) fn not_acknowledged() -> CloseReason {
    let text = "the peer does not acknowledge messages, so the key of memory exposed to it cannot \
                be invalidated";
    silent(text)
}

/// The close reason if the device failed to close memory.
pub(crate) fn not_closed(error: &io::Error) -> CloseReason {
    CloseReason::failed(
        "the RDMA device cannot invalidate the key of memory that the peer may access",
        error,
    )
}

/// The close reason if the completion queue failed.
pub(crate) fn queue_failed(device: &str) -> CloseReason {
    let text = format!(
        "the completion queue on RDMA device {device} failed: the outcome of outstanding work \
         is unknown"
    );
    of_device(io::ErrorKind::Other, text)
}

/// The close reason for a request that could not be accepted.
pub(crate) fn accept_reason(error: &io::Error) -> CloseReason {
    match error.raw_os_error() {
        // Errors of connection management if the peer does not wait for the response any
        // more: siw returns the first, InfiniBand and RoCE the second.
        Some(libc::ECONNRESET | libc::EINVAL | libc::ENOTCONN | libc::ECONNABORTED) => {
            CloseReason::Peer
        }
        _ => CloseReason::failed("accepting the connection", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_names_device_that_detected_it() {
        for (reason, named) in [
            (send_reason(status::RETRY, 7), true),
            (send_reason(status::REM_ACCESS, 7), true),
            (Some(stopped_by_request()), true),
            (Some(CloseReason::Peer), false),
            (Some(CloseReason::Local), false),
        ] {
            let reason = reason.unwrap();
            let found = found_by(reason.clone(), "rxe0", 17);
            let (text, was) = (found.to_string(), reason.to_string());
            assert_eq!(
                text.contains("; device rxe0, queue pair 17"),
                named,
                "{text}"
            );
            assert_eq!(text.replace("; device rxe0, queue pair 17", ""), was);
        }
    }

    #[test]
    fn completion_status_determines_kind_of_reason() {
        assert_eq!(send_reason(status::FLUSH, 0), None);
        assert_eq!(recv_reason(status::FLUSH, 0), None);
        for number in [status::REM_ACCESS, status::REM_INV_REQ, status::REM_OP] {
            let reason = send_reason(number, 0x88);
            assert!(matches!(reason, Some(CloseReason::Terminated(_))));
        }
        let silent = send_reason(status::RETRY, 0x81).unwrap();
        let kind = match &silent {
            CloseReason::Network { kind, .. } => *kind,
            _ => panic!("{silent}"),
        };
        assert_eq!(kind, io::ErrorKind::TimedOut);
        let words = silent.to_string();
        assert!(
            words.contains("0x81") && words.contains("acknowledge"),
            "{words}"
        );
        let long = recv_reason(status::LOC_LEN, 0).unwrap();
        assert!(matches!(&long, CloseReason::PeerFault(_)), "{long}");
        assert!(send_reason(999, 0).is_some());
    }

    #[test]
    fn every_status_has_own_description() {
        let mut all: Vec<_> = (0..=22).map(status_words).collect();
        all.sort_unstable();
        all.dedup();
        // Six of the numbers belong to transports that are not used here.
        assert_eq!(all.len(), 18);
    }

    #[test]
    fn rejections_are_distinguished_from_failures() {
        assert_eq!(refusal(REJECTED_BY_CONSUMER), Refusal::Peer);
        assert_eq!(refusal(-libc::ECONNRESET), Refusal::Peer);
        for number in [REJECTED_INVALID_SERVICE, -libc::ECONNREFUSED] {
            let Refusal::Network(CloseReason::Network { kind, .. }) = refusal(number) else {
                panic!("{number}");
            };
            assert_eq!(kind, io::ErrorKind::ConnectionRefused);
        }
        assert!(matches!(refusal(3), Refusal::Network(_)));
        let reason = set_up_reason(-libc::ETIMEDOUT, "no route").to_string();
        assert!(reason.contains("no route"), "{reason}");
    }

    #[test]
    fn network_reasons_name_what_failed_and_remedy_without_error_number() {
        let error = || io::Error::from_raw_os_error(libc::EINVAL);
        let refused = |number| match refusal(number) {
            Refusal::Network(reason) => reason,
            Refusal::Peer => panic!("{number}"),
        };
        for (reason, object) in [
            (send_reason(status::RETRY, 1).unwrap(), "acknowledge"),
            (send_reason(status::RNR_RETRY, 1).unwrap(), "no receive"),
            (send_reason(status::FATAL, 1).unwrap(), "the device failed"),
            (
                recv_reason(status::LOC_PROT, 1).unwrap(),
                "memory of this side",
            ),
            (refused(REJECTED_INVALID_SERVICE), "nothing listens"),
            (refused(3), "connection manager"),
            (
                refused(-libc::EINVAL),
                "the connection was not established: ",
            ),
            (
                set_up_reason(7, "no route to the peer"),
                "no route to the peer",
            ),
            (
                set_up_reason(-libc::EINVAL, "no route to the peer"),
                "no route to the peer: ",
            ),
            (not_acknowledged(), "memory exposed to it"),
            (
                not_closed(&error()),
                "cannot invalidate the key of memory that the peer may access: ",
            ),
            (queue_failed("rxe0"), "rxe0"),
            (
                accept_reason(&io::Error::from_raw_os_error(libc::EIO)),
                "accepting the connection: ",
            ),
            (
                of_device(io::ErrorKind::NetworkDown, "rxe0 is gone"),
                "rxe0 is gone",
            ),
        ] {
            let text = reason.to_string();
            assert!(!text.contains("os error"), "{text}");
            assert!(text.contains(object) && text.contains("; "), "{text}");
        }
    }

    #[test]
    fn failed_accept_has_matching_reason() {
        let reason = |number| accept_reason(&io::Error::from_raw_os_error(number));
        for given_up in [libc::ECONNRESET, libc::EINVAL] {
            assert_eq!(reason(given_up), CloseReason::Peer);
        }
        for ours in [libc::ENOMEM, libc::EIO, libc::ENODEV] {
            assert!(
                matches!(reason(ours), CloseReason::Network { .. }),
                "{ours}"
            );
        }
    }

    #[test]
    fn queue_pair_event_is_a_peer_fault() {
        assert!(matches!(
            event_reason(event::QP_ACCESS_ERR),
            Some(CloseReason::PeerFault(_))
        ));
        assert_eq!(event_reason(event::PORT_ERR), None);
    }
}
