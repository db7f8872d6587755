//! What a person is told of an error of the operating system: its words without the number,
//! and what to do about it.

use std::io::{self, ErrorKind};

/// The text of `error`, and a remedy: one that fits what it means, where nothing closer to
/// what was tried is known. An error with a text of its own keeps it.
#[must_use]
pub fn explain(error: &io::Error) -> String {
    followed_by(describe(error), remedy(error))
}

/// `words`, and what to do if that is known.
pub(crate) fn followed_by(words: String, remedy: Option<&str>) -> String {
    match remedy {
        Some(remedy) => format!("{words}; {remedy}"),
        None => words,
    }
}

/// The text of `error` alone, for messages that say themselves what to do.
#[must_use]
pub fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let number = text.rsplit_once(" (os error ");
    let around = number.and_then(|(words, rest)| Some((words, rest.split_once(')')?.1)));
    let words = around.map_or(text.clone(), |(words, behind)| format!("{words}{behind}"));
    // Standard texts begin with a capital letter, and stand inside a sentence here.
    let mut letters = words.chars();
    match letters.next() {
        Some(first) if error.raw_os_error().is_some() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => words,
    }
}

/// `None` where the text is somebody's own and says what to do, or nothing can be said.
pub(crate) fn remedy(error: &io::Error) -> Option<&'static str> {
    let of_number = error.raw_os_error().and_then(of_number);
    let of_kind = || match error.kind() {
        ErrorKind::NotFound => Some("make it, or correct the path"),
        ErrorKind::PermissionDenied => {
            Some("this user needs access to it and its folders, or run as root")
        }
        ErrorKind::NotADirectory => Some("a part of the path is no folder; correct it"),
        ErrorKind::IsADirectory => Some("name a file in it"),
        ErrorKind::InvalidFilename => Some("choose a shorter path"),
        ErrorKind::ReadOnlyFilesystem => Some("mount it writable, or choose another path"),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Some("make room there"),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            Some("`ip route get` shows which way is taken")
        }
        ErrorKind::NetworkDown => Some("`ip link set IFACE up` brings an interface up"),
        ErrorKind::ConnectionRefused => Some("start what listens there, or correct the address"),
        ErrorKind::AddrInUse => Some("`ss -lp` shows what has it"),
        ErrorKind::AddrNotAvailable => {
            Some("`ip address` shows the addresses there are; or all local ports are in use")
        }
        ErrorKind::TimedOut => Some("is the machine there, and a firewall between?"),
        ErrorKind::OutOfMemory => Some("free memory, or raise what this process may use"),
        _ => None,
    };
    let unknown = || error.raw_os_error().map(|_| "`dmesg` may say more");
    of_number.or_else(of_kind).or_else(unknown)
}

/// Of error numbers that the standard library puts in no kind of their own. The numbers are
/// those of asm-generic/errno.h.
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
            Some("try again, or raise the limit of threads (`ulimit -u`, TasksMax= of its service)")
        }
        ENFILE => Some("raise `sysctl fs.file-max`"),
        EMFILE => Some("raise `ulimit -n` (LimitNOFILE= of its service)"),
        ELOOP => Some("it is or leads through a symbolic link; name the file itself"),
        EAFNOSUPPORT => Some(
            "the kernel has no addresses of that kind; is IPv6 switched off (`sysctl \
             net.ipv6.conf.all.disable_ipv6`)?",
        ),
        EPIPE | ECONNABORTED | ECONNRESET | ENOTCONN | ESHUTDOWN => {
            Some("the other side, or a firewall between, ended it; its log may say why")
        }
        ENOBUFS => Some("the kernel has no memory for it; free some"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_words_and_a_remedy() {
        for number in 1..134 {
            let said = explain(&io::Error::from_raw_os_error(number));
            assert!(!said.contains("os error"), "{number}: {said}");
            assert!(said.contains("; "), "{number}: {said}");
        }
    }

    #[test]
    fn description_has_neither_number_nor_remedy() {
        for number in 1..134 {
            let error = io::Error::from_raw_os_error(number);
            let (said, explained) = (describe(&error), explain(&error));
            assert!(!said.contains(['(', ';']), "{number}: {said}");
            assert!(explained.starts_with(&format!("{said}; ")), "{explained}");
        }
    }

    #[test]
    fn texts_of_others_are_kept() {
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
            "/run/x: No such file or directory; make it, or correct the path"
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
