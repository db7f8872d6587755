//! The log: on standard error, or under systemd in the journal with the fields of each
//! message.

mod journal;

use std::io::{self, IsTerminal, Write};

use nvmeof_logging::{filter, filter_of, may_color};
use nvmeof_wire::text::Lines;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use journal::Journal;

/// Starts the log. `level` takes precedence over `RUST_LOG`.
///
/// # Errors
/// An invalid level, with its origin.
pub(crate) fn start(level: Option<&str>) -> Result<(), String> {
    let filter = match level {
        Some(level) => filter(level).map_err(|error| format!("--log-level: {error}"))?,
        None => filter_of("RUST_LOG", "info").map_err(|error| format!("RUST_LOG: {error}"))?,
    };
    // Without a journal, standard error.
    let journal = Journal::of_service();
    let lines = journal.is_none().then(|| {
        fmt::layer()
            .with_writer(|| EscapingWriter(io::stderr()))
            .with_ansi(may_color() && io::stderr().is_terminal())
            .with_target(false)
    });
    tracing_subscriber::registry()
        .with(filter)
        .with(journal)
        .with(lines)
        .try_init()
        .map_err(|error| error.to_string())
}

/// Writes lines and escapes characters that a terminal interprets or hides. Names that peers
/// send are escaped before; this covers paths and quoted values.
struct EscapingWriter<W>(W);

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // One system call: standard error is unbuffered, and other processes write to it too.
        let visible = Lines(&String::from_utf8_lossy(line)).to_string();
        self.0.write_all(visible.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bidirectional_control_characters_are_escaped() {
        let mut lines = EscapingWriter(Vec::new());
        lines
            .write_all("path /a\u{202e}b: \u{e4}\n".as_bytes())
            .unwrap();
        assert_eq!(lines.0, "path /a\\u202Eb: \u{e4}\n".as_bytes());
    }

    /// Records each write.
    struct Pieces(Vec<Vec<u8>>);

    impl Write for Pieces {
        fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
            self.0.push(piece.to_vec());
            Ok(piece.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn log_line_is_one_write() {
        let mut lines = EscapingWriter(Pieces(Vec::new()));
        lines.write_all("a\u{202e}b\n".as_bytes()).unwrap();
        assert_eq!(lines.0.0, [b"a\\u202Eb\n"]);
    }
}
