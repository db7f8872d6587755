//! Texts for errors of the operating system: the message without the error number, and a
//! remedy.

use std::io::{self, ErrorKind};

/// The text of `error` and a general remedy, for callers that know no more specific one. An
/// error with a text of its own keeps it.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    followed_by(describe(error), remedy(error))
}

/// `words`, followed by the remedy if there is one.
pub(crate) fn followed_by(words: String, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{words}; {remedy}"),
        None => words,
    }
}

/// The text of `error` alone, for messages that contain their own remedy.
#[must_use]
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let number = text.rsplit_once(" (os error ");
    let around = number.and_then(|(words, rest)| Some((words, rest.split_once(')')?.1)));
    let words = around.map_or(text.clone(), |(words, behind)| format!("{words}{behind}"));
    // Standard texts begin with a capital letter; here they stand inside a sentence.
    let mut letters = words.chars();
    match letters.next() {
        Some(first) if error.raw_os_error().is_some() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => words,
    }
}

/// `None` for an error with a text of its own, which contains its remedy, and where no remedy
/// is known.
pub(crate) fn remedy(error: &io::Error) -> Option<&'static str> {
    let of_number = error.raw_os_error().and_then(of_number);
    let of_kind = || match error.kind() {
        ErrorKind::NotFound => Some("create it, or correct the path"),
        ErrorKind::PermissionDenied => {
            Some("this user needs access to it and its directories, or run as root")
        }
        ErrorKind::NotADirectory => {
            Some("a component of the path is not a directory; correct the path")
        }
        ErrorKind::IsADirectory => Some("name a file in this directory"),
        ErrorKind::InvalidFilename => Some("choose a shorter path"),
        ErrorKind::ReadOnlyFilesystem => Some("mount it writable, or choose another path"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("free space there"),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            Some("check the route with `ip route get`")
        }
        ErrorKind::NetworkDown => Some("bring the interface up with `ip link set IFACE up`"),
        ErrorKind::ConnectionRefused => {
            Some("start the service at this address, or correct the address")
        }
        ErrorKind::AddrInUse => Some("`ss -lp` shows which process uses it"),
        ErrorKind::AddrNotAvailable => {
            Some("check the addresses with `ip address`; or all local ports are in use")
        }
        ErrorKind::TimedOut => {
            Some("check that the host is up and that no firewall blocks the connection")
        }
        ErrorKind::OutOfMemory => Some("free memory, or raise the memory limit of this process"),
        _ => None,
    };
    let unknown = || error.raw_os_error().map(|_| "`dmesg` may say more");
    of_number.or_else(of_kind).or_else(unknown)
}

/// Remedies for error numbers that have no `ErrorKind` of their own. The numbers are those of
/// asm-generic/errno.h.
fn of_number(number: i32) -> Option<&'static str> {
    const EIO: i32 = 5;
    const EAGAIN: i32 = 11;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const EPIPE: i32 = 32;
    const ELOOP: i32 = 40;
    const EAFNOSUPPORT: i32 = 97;
    const ECONNABORTED: i32 = 103;
    const ECONNRESET: i32 = 104;
    const ENOBUFS: i32 = 105;
    const ENOTCONN: i32 = 107;
    const ESHUTDOWN: i32 = 108;
    match number {
        EIO => Some("the device or the server of its file system failed; `dmesg` may say more"),
        EAGAIN => {
            Some("try again, or raise the limit on threads (`ulimit -u`, TasksMax= of its service)")
        }
        ENFILE => Some("raise `sysctl fs.file-max`"),
        EMFILE => Some("raise `ulimit -n` (LimitNOFILE= of its service)"),
        ELOOP => Some("the path is or contains a symbolic link; name the file itself"),
        EAFNOSUPPORT => Some(
            "the kernel does not support this kind of address; check that IPv6 is enabled \
             (`sysctl net.ipv6.conf.all.disable_ipv6`)",
        ),
        EPIPE | ECONNABORTED | ECONNRESET | ENOTCONN | ESHUTDOWN => {
            Some("the peer or a firewall closed the connection; see the log of the peer")
        }
        ENOBUFS => Some("the kernel is out of memory for buffers; free memory"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_number_has_text_and_remedy() {
        for number in 1..134 {
            let message = explain(&io::Error::from_raw_os_error(number));
            assert!(!message.contains("os error"), "{number}: {message}");
            assert!(message.contains("; "), "{number}: {message}");
        }
    }

    #[test]
    fn description_has_neither_number_nor_remedy() {
        for number in 1..134 {
            let error = io::Error::from_raw_os_error(number);
            let (message, explained) = (describe(&error), explain(&error));
            assert!(!message.contains(['(', ';']), "{number}: {message}");
            assert!(
                explained.starts_with(&format!("{message}; ")),
                "{explained}"
            );
        }
    }

    #[test]
    fn error_with_own_text_keeps_it() {
        let own = |kind, text: &str| explain(&io::Error::new(kind, text));
        assert_eq!(
            own(ErrorKind::AlreadyExists, "x is there; remove it"),
            "x is there; remove it"
        );
        assert_eq!(
            own(
                ErrorKind::NotFound,
                "/run/x: No such file or directory (os error 2)"
            ),
            "/run/x: No such file or directory; create it, or correct the path"
        );
        assert_eq!(
            own(
                ErrorKind::Other,
                "/run/x: Permission denied (os error 13); choose another folder"
            ),
            "/run/x: Permission denied; choose another folder"
        );
    }
}
