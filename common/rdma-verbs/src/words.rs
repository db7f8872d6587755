//! Numbers of the libraries, in words, and what they say about a connection.

use std::io;

use nvmeof_rdma::{CloseReason, Fault};

use crate::sys::{event, status};

/// What a completion says, in words.
pub(crate) fn status_words(number: u32) -> &'static str {
    match number {
        status::SUCCESS => "done",
        status::LOC_LEN => "the message is longer than the memory for it",
        status::LOC_QP_OP => "the queue pair cannot do this work",
        status::LOC_PROT => "memory of this side does not allow the access",
        status::FLUSH => "flushed",
        status::MW_BIND => "a memory window cannot be bound",
        status::BAD_RESP => "the peer's answer makes no sense",
        status::LOC_ACCESS => "the peer wrote to memory that does not allow it",
        status::REM_INV_REQ => "the peer says that the request makes no sense",
        status::REM_ACCESS => "the peer says that its memory does not allow the access",
        status::REM_OP => "the peer cannot do what is asked",
        status::RETRY => "the peer does not acknowledge any more",
        status::RNR_RETRY => "the peer posts no receive",
        status::REM_ABORT => "the peer aborted the operation",
        status::FATAL => "the device failed",
        status::RESP_TIMEOUT => "the peer does not answer any more",
        status::GENERAL => "the device found an error it has no name for",
        _ => "the device found an error of its own kind",
    }
}

fn fault(number: u32, vendor_error: u32) -> Fault {
    Fault {
        layer: "transport",
        code: u16::try_from(number).unwrap_or(u16::MAX),
        text: format!("{}, vendor error {vendor_error:#x}", status_words(number)),
    }
}

/// The network or this machine failed: `text` says how.
pub(crate) fn network(kind: io::ErrorKind, text: impl Into<String>) -> CloseReason {
    CloseReason::Network {
        kind,
        text: text.into(),
        remedy: None,
    }
}

/// The same where the kernel may know more.
pub(crate) fn of_device(kind: io::ErrorKind, text: impl Into<String>) -> CloseReason {
    network(kind, text).with_remedy("`dmesg` may say more")
}

/// The same where nothing came from the peer.
fn silent(text: impl Into<String>) -> CloseReason {
    let reason = network(io::ErrorKind::TimedOut, text);
    reason.with_remedy("check that the peer runs, and the network between")
}

fn not_completed(number: u32, vendor_error: u32) -> CloseReason {
    let words = status_words(number);
    let text = format!("{words} (status {number}, vendor error {vendor_error:#x})");
    match number {
        status::RETRY | status::RESP_TIMEOUT => silent(text),
        status::RNR_RETRY => {
            network(io::ErrorKind::TimedOut, text).with_remedy("the peer's log may say why")
        }
        _ => of_device(io::ErrorKind::Other, text),
    }
}

/// Why a queue pair closes whose send, write or read ended with `number`.
/// `None` when that does not say: flushed work.
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

/// Why a queue pair closes whose receive ended with `number`: what the peer
/// sent does not fit it.
pub(crate) fn recv_reason(number: u32, vendor_error: u32) -> Option<CloseReason> {
    Some(match number {
        status::FLUSH => return None,
        status::LOC_PROT | status::FATAL => not_completed(number, vendor_error),
        // Receives are well-formed, so it is the message that is not: a
        // device in software says "cannot do this work" then.
        _ => CloseReason::PeerFault(fault(number, vendor_error)),
    })
}

/// The same, if something went wrong, with the device and the queue pair that found it.
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

/// A device stopped the queue pair by itself: a queue pair of InfiniBand and
/// RoCE that only answers does so when a request breaks a rule (InfiniBand
/// Architecture, 9.9.3).
pub(crate) fn stopped_by_request() -> CloseReason {
    CloseReason::PeerFault(Fault {
        layer: "transport",
        code: 0,
        text: "the device refused a request of the peer: it goes to memory that was not \
               exposed to it, or makes no sense"
            .to_owned(),
    })
}

/// What an asynchronous event says about its queue pair.
pub(crate) fn event_reason(number: i32) -> Option<CloseReason> {
    let text = match number {
        event::QP_ACCESS_ERR => "the peer reached for memory that was not exposed to it",
        event::QP_REQ_ERR => "the peer sent a request that makes no sense",
        event::QP_FATAL => "what the peer sent stopped the queue pair",
        _ => return None,
    };
    Some(CloseReason::PeerFault(Fault {
        layer: "transport",
        code: u16::try_from(number).unwrap_or(u16::MAX),
        text: text.to_owned(),
    }))
}

/// Reasons of the InfiniBand connection manager (InfiniBand Architecture,
/// 12.6.7.2), of which few matter.
const REJECTED_INVALID_SERVICE: i32 = 8;
const REJECTED_BY_CONSUMER: i32 = 28;

/// How a peer or the network refused a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The peer's program said no.
    Peer,
    /// Anything else.
    Network(CloseReason),
}

/// What the status of a rejection says: InfiniBand and RoCE give a reason,
/// iWARP a negative errno.
pub(crate) fn refusal(number: i32) -> Refusal {
    match number {
        REJECTED_BY_CONSUMER => Refusal::Peer,
        REJECTED_INVALID_SERVICE => Refusal::Network(nobody_listens()),
        ..0 => match io::Error::from_raw_os_error(number.saturating_neg()) {
            // An MPA reply that rejects (RFC 5044, section 7.1).
            error if error.kind() == io::ErrorKind::ConnectionReset => Refusal::Peer,
            error if error.kind() == io::ErrorKind::ConnectionRefused => {
                Refusal::Network(nobody_listens())
            }
            error => Refusal::Network(CloseReason::failed("the connection was not made", &error)),
        },
        _ => {
            let text = format!("the peer's connection manager refused, reason {number}");
            Refusal::Network(of_device(io::ErrorKind::Other, text))
        }
    }
}

fn nobody_listens() -> CloseReason {
    network(io::ErrorKind::ConnectionRefused, "nothing listens there")
        .with_remedy("start what listens there, or correct the address")
}

/// What the status of any other failed set-up says: a negative errno.
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

/// Why a queue pair closes that did not close memory for its caller in time.
pub(crate) fn not_acknowledged() -> CloseReason {
    let text = "the peer does not acknowledge messages, so that memory exposed to it cannot be \
                closed";
    silent(text)
}

/// Why a queue pair closes whose device did not close memory.
pub(crate) fn not_closed(error: &io::Error) -> CloseReason {
    CloseReason::failed(
        "the RDMA device does not close memory that the peer may reach",
        error,
    )
}

/// Why a queue pair closes whose completion queue failed.
pub(crate) fn queue_failed(device: &str) -> CloseReason {
    let text = format!(
        "the completion queue on RDMA device {device} failed: what is under way there cannot be \
         told"
    );
    of_device(io::ErrorKind::Other, text)
}

/// Why a request ends that could not be accepted.
pub(crate) fn accept_reason(error: &io::Error) -> CloseReason {
    match error.raw_os_error() {
        // Connection management says so when nobody waits for the answer any
        // more: of siw the first, of InfiniBand and RoCE the second.
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
    fn what_went_wrong_names_the_device_that_found_it() {
        for (reason, told) in [
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
                told,
                "{text}"
            );
            assert_eq!(text.replace("; device rxe0, queue pair 17", ""), was);
        }
    }

    #[test]
    fn completions_say_who_is_at_fault() {
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
    fn every_status_has_words_of_its_own() {
        let mut all: Vec<_> = (0..=22).map(status_words).collect();
        all.sort_unstable();
        all.dedup();
        // Six of the numbers belong to kinds of transport not used here.
        assert_eq!(all.len(), 18);
    }

    #[test]
    fn refusals_are_told_from_failures() {
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
            (refused(-libc::EINVAL), "the connection was not made: "),
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
                "does not close memory that the peer may reach: ",
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
    fn a_request_ends_for_the_reason_there_is() {
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
    fn events_about_queue_pairs_blame_the_peer() {
        assert!(matches!(
            event_reason(event::QP_ACCESS_ERR),
            Some(CloseReason::PeerFault(_))
        ));
        assert_eq!(event_reason(event::PORT_ERR), None);
    }
}
