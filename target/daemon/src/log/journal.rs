//! Sends messages with their fields in the native protocol of the journal
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
//!
//! Each field of a message becomes a field of the journal entry, such as `NVMEOF_HOST` for
//! `host`, by which `journalctl` can select. The text repeats the fields, because
//! `journalctl` shows only the text by default.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::sys::stat::fstat;
use nvmeof_wire::text::Lines;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";
/// Prefix of the names of our fields.
const PREFIX: &str = "NVMEOF_";
/// Longest text in bytes: the limit of journald for a line (journald.conf(5), LineMax=).
const LONGEST: usize = 48 << 10;

/// The journal.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// The journal, if standard error is connected to it.
    pub(super) fn of_service() -> Option<Self> {
        let stream = std::env::var("JOURNAL_STREAM").ok()?;
        let stderr = fstat(io::stderr().as_fd()).ok()?;
        // systemd.exec(5): "a colon-separated pair of the device and inode
        // number of the file descriptor", with which "programs can ... verify".
        if !is_stream(&stream, stderr.st_dev, stderr.st_ino) {
            return None;
        }
        Self::at(Path::new(SOCKET)).ok()
    }

    /// The journal that listens at `path`.
    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A reactor must not wait for the journal.
        socket.set_nonblocking(true)?;
        // The journal ignores an empty message; without a listener this is an error.
        socket.send_to(&[], path)?;
        Ok(Self {
            socket,
            path: path.to_path_buf(),
        })
    }
}

fn is_stream(stream: &str, device: u64, inode: u64) -> bool {
    let both = stream.split_once(':').and_then(|(one, other)| {
        let parsed = (one.parse().ok()?, other.parse().ok()?);
        Some(parsed)
    });
    both == Some((device, inode))
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        let bytes = message.to_bytes(*event.metadata().level());
        // If the journal is full or gone the message is lost: serving has priority.
        let _ = self.send(&bytes);
    }
}

impl Journal {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match self.socket.send_to(bytes, &self.path) {
            Err(error) if error.raw_os_error() == Some(Errno::EMSGSIZE as i32) => {
                self.send_memfd(bytes)
            }
            sent => sent.map(drop),
        }
    }

    /// A message that is too large for a datagram is passed as a file descriptor: "memfd with
    /// all seals set".
    fn send_memfd(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
        let mut file = File::from(memfd_create("journal-message", flags)?);
        file.write_all(bytes)?;
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_WRITE
            | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let fds = [file.as_raw_fd()];
        let (message, to) = (
            [ControlMessage::ScmRights(&fds)],
            UnixAddr::new(&self.path)?,
        );
        sendmsg(
            self.socket.as_raw_fd(),
            &[],
            &message,
            MsgFlags::empty(),
            Some(&to),
        )?;
        Ok(())
    }
}

/// A message: its text and its fields.
#[derive(Debug, Default)]
struct Message {
    text: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }
}

impl Message {
    fn put(&mut self, field: &Field, value: &str) {
        let value = Lines(value).to_string();
        match field.name() {
            "message" => self.text = value,
            name => self.fields.push((name, value)),
        }
    }

    /// In the format of the journal.
    fn to_bytes(&self, level: Level) -> Vec<u8> {
        let mut text = self.text.clone();
        for (name, value) in &self.fields {
            let _ = write!(text, " {name}={value}");
        }
        let mut bytes = Vec::new();
        put(&mut bytes, "MESSAGE", truncated(&text));
        put(&mut bytes, "PRIORITY", priority(level));
        put(&mut bytes, "SYSLOG_IDENTIFIER", env!("CARGO_PKG_NAME"));
        for (name, value) in &self.fields {
            let name = format!("{PREFIX}{}", name.to_ascii_uppercase());
            put(&mut bytes, &name, truncated(value));
        }
        bytes
    }
}

/// syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

fn truncated(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST))
        .unwrap_or(text)
}

/// One field. A value with a line feed is preceded by its length.
fn put(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        let len = u64::try_from(value.len()).unwrap_or(0);
        bytes.extend_from_slice(&len.to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn message_has_its_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let there = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        let log = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(log, || {
            let (host, peer) = ("nqn.a", "10.0.0.1:7");
            tracing::warn!(%peer, host, queue = 3, "lost: {}", "reset");
            tracing::info!("two\nlines");
        });
        let mut buf = [0; 4096];
        assert_eq!(
            there.recv(&mut buf).unwrap(),
            0,
            "the probe of `Journal::at`"
        );
        let len = there.recv(&mut buf).unwrap();
        let text = String::from_utf8(buf[..len].to_vec()).unwrap();
        let expected = "MESSAGE=lost: reset peer=10.0.0.1:7 host=nqn.a queue=3\nPRIORITY=4\n\
                        SYSLOG_IDENTIFIER=nvmeof-target\nNVMEOF_PEER=10.0.0.1:7\n\
                        NVMEOF_HOST=nqn.a\nNVMEOF_QUEUE=3\n";
        assert_eq!(text, expected);
        let len = there.recv(&mut buf).unwrap();
        let expected = b"MESSAGE\n\x09\0\0\0\0\0\0\0two\nlines\nPRIORITY=6\n";
        assert!(buf[..len].starts_with(expected), "{:?}", &buf[..len]);
    }

    /// The next message, as a datagram or a memfd.
    fn next(there: &UnixDatagram) -> Vec<u8> {
        let (mut space, mut bytes) = (nix::cmsg_space!(std::os::fd::RawFd), vec![0; 1 << 20]);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let fd = there.as_raw_fd();
        let got = recvmsg::<()>(fd, &mut parts, Some(&mut space), MsgFlags::empty()).unwrap();
        let passed = got.cmsgs().unwrap().find_map(|one| match one {
            ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
            _ => None,
        });
        let len = got.bytes;
        match passed {
            Some(fd) => std::fs::read(format!("/proc/self/fd/{fd}")).unwrap(),
            None => bytes[..len].to_vec(),
        }
    }

    #[test]
    fn message_too_long_for_a_datagram_is_sent_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let there = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::at(&path).unwrap();
        nix::sys::socket::setsockopt(&journal.socket, nix::sys::socket::sockopt::SndBuf, &4096)
            .unwrap();
        assert!(next(&there).is_empty());
        let log = tracing_subscriber::registry().with(journal);
        let long = "ä\n".repeat(10_000);
        tracing::subscriber::with_default(log, || {
            tracing::warn!(host = "nqn.a", long, "much");
            tracing::warn!("little");
        });
        let message = next(&there);
        assert!(message.starts_with(b"MESSAGE\n"), "{}", message.len());
        let field = [
            b"NVMEOF_LONG\n".as_slice(),
            &30_000_u64.to_le_bytes(),
            long.as_bytes(),
            b"\n",
        ];
        assert!(message.ends_with(&field.concat()));
        let host = b"\nNVMEOF_HOST=nqn.a\n";
        assert!(message.windows(host.len()).any(|part| part == host));
        assert!(next(&there).starts_with(b"MESSAGE=little\n"));
    }

    #[test]
    fn absent_journal_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Journal::at(&folder.path().join("socket")).is_err());
        // Standard error of the test is not the journal.
        assert!(Journal::of_service().is_none());
    }

    #[test]
    fn journal_stream_must_match_standard_error() {
        assert!(is_stream("9:12345", 9, 12345));
        for other in ["9:1", "8:12345", "9", "", "9:12345:1", "a:b"] {
            assert!(!is_stream(other, 9, 12345), "{other}");
        }
    }

    #[test]
    fn long_text_is_truncated_at_a_character_boundary() {
        let long = "ä".repeat(LONGEST);
        assert_eq!(truncated(&long).len(), LONGEST);
        let long = format!("a{long}");
        assert_eq!(truncated(&long).len(), LONGEST - 1);
    }
}
