//! Text from outside, made safe for logs and terminals.
//!
//! Qualified names are any UTF-8 (Base 2.1, 4.7), so a peer may send characters that a
//! terminal interprets or does not show: U+202E reverses the rest of a line, U+200B and
//! U+FEFF are invisible, U+2028 ends a line for some programs. All output for people
//! shows them escaped as in TOML and JSON, `\u202E`.

use core::fmt::{self, Write};

/// Whether `c` must not be written to a terminal: a control or format character, a
/// separator other than a space, an unassigned or private one, a mark that changes the
/// character before it, or an invisible one.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    match c {
        // It has its own escape, and is harmless.
        ' '..='~' => false,
        // Invisible letters and an invisible symbol: fillers of Hangul and the empty
        // Braille pattern.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => true,
        // The Unicode property table of the core library.
        _ => c.escape_debug().len() > 1,
    }
}

/// Text with every hidden character escaped. Backslashes are doubled, so that different
/// texts look different.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                c if is_hidden(c) => escape(c, f)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Lines written by this project, with hidden characters escaped. ASCII control
/// characters are kept: line feeds, and the colours of a log.
#[derive(Clone, Copy, Debug)]
pub struct Lines<'a>(pub &'a str);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                c if is_hidden(c) && !c.is_ascii() => escape(c, f)?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// A JSON document with hidden characters escaped as in JSON (RFC 8259, section 7). Its
/// meaning is the same: JSON has no such characters outside of strings.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a>(pub &'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_hidden(c) && !c.is_ascii() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(f, "\\u{unit:04X}")?;
                }
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// A word of a command that can be copied into a shell: quoted unless it is plain. Hidden
/// characters are not escaped, because the shell would not undo that.
#[derive(Clone, Copy, Debug)]
pub struct ShellWord<'a>(pub &'a str);

impl fmt::Display for ShellWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| c.is_alphanumeric() || "%+,-./:=@_".contains(c);
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        // POSIX.1-2017, Shell & Utilities 2.2.2: between single quotes every character
        // but a single quote stands for itself.
        write!(f, "'")?;
        for c in self.0.chars() {
            match c {
                '\'' => f.write_str("'\\''")?,
                c => f.write_char(c)?,
            }
        }
        write!(f, "'")
    }
}

/// As in TOML.
fn escape(c: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let code = u32::from(c);
    match u16::try_from(code) {
        Ok(code) => write!(f, "\\u{code:04X}"),
        Err(_) => write!(f, "\\U{code:08X}"),
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    /// Characters that may be in a name, and how they are shown.
    const NAMES: [(&str, &str); 14] = [
        (
            "nqn.2026-11.org.example:disk",
            "nqn.2026-11.org.example:disk",
        ),
        ("testnqn", "testnqn"),
        ("my host", "my host"),
        ("\u{e4}\u{65e5}\u{672c}", "\u{e4}\u{65e5}\u{672c}"),
        ("a\u{202e}b", "a\\u202Eb"),
        ("a\u{2028}b", "a\\u2028b"),
        ("a\u{200b}b", "a\\u200Bb"),
        ("\u{feff}a", "\\uFEFFa"),
        ("a\u{2066}b", "a\\u2066b"),
        ("a\u{ad}\u{a0}b", "a\\u00AD\\u00A0b"),
        ("a\u{301}", "a\\u0301"),
        ("\u{3164}", "\\u3164"),
        ("\u{e0041}", "\\U000E0041"),
        ("a\\u202Eb", "a\\\\u202Eb"),
    ];

    #[test]
    fn shell_words_are_quoted_unless_plain() {
        for (text, word) in [
            ("/srv/disk-1.img", "/srv/disk-1.img"),
            (
                "nqn.2026-11.org.example:disk",
                "nqn.2026-11.org.example:disk",
            ),
            ("/srv/my disk.img", "'/srv/my disk.img'"),
            ("it's", "'it'\\''s'"),
            ("$(reboot)", "'$(reboot)'"),
            ("", "''"),
        ] {
            assert_eq!(ShellWord(text).to_string(), word);
        }
    }

    #[test]
    fn hidden_characters_are_escaped() {
        for (text, shown) in NAMES {
            assert_eq!(Escaped(text).to_string(), shown);
            assert!(!shown.contains(is_hidden));
        }
        assert_eq!(
            Escaped("a\x1b[2J\n\u{85}").to_string(),
            "a\\u001B[2J\\u000A\\u0085"
        );
    }

    #[test]
    fn lines_keep_line_feeds_and_colours() {
        let line = "\x1b[33m WARN\x1b[0m a\\b \u{202e}\u{85}\n\tc\n";
        assert_eq!(
            Lines(line).to_string(),
            "\x1b[33m WARN\x1b[0m a\\b \\u202E\\u0085\n\tc\n"
        );
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let text = "{\n \"a\": \"b\\n\u{202e}\u{e0041}\u{e4}\" }";
        assert_eq!(
            Json(text).to_string(),
            "{\n \"a\": \"b\\n\\u202E\\uDB40\\uDC41\u{e4}\" }"
        );
    }
}
