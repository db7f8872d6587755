//! NVMe qualified names (Base 2.1, 4.7).
//!
//! The specification requires a form, `nqn.yyyy-mm.reversed.domain:name`. Linux and SPDK
//! do not: they accept any text, and there are targets called `testnqn` and hosts called
//! `hostnqn`. This crate accepts any text as well. Names that the project generates have
//! the form, and [`Nqn::check_form`] reports how others deviate.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use crate::text::Escaped;

/// Maximum length of a name in bytes.
pub const NQN_MAX: usize = 223;
/// Length of the field that carries a name, padded with NUL.
pub const NQN_FIELD: usize = 256;
/// The well-known name of every discovery subsystem.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Prefix of a name with a UUID.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A name: 1 to 223 bytes of UTF-8 without control characters. `Display` escapes
/// characters that a terminal interprets or hides ([`Escaped`]); [`as_str`](Self::as_str)
/// is the name itself.
#[derive(Clone, Copy)]
pub struct Nqn {
    len: u8,
    bytes: [u8; NQN_MAX],
}

/// Why a text is no name, or deviates from the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// An empty name.
    Empty,
    /// Longer than 223 bytes.
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// Not UTF-8.
    NotUtf8,
    /// A control character in it.
    Control {
        /// Its offset in bytes.
        at: usize,
    },
    /// Not one word that starts with `nqn.yyyy-mm.` and a reversed domain name.
    Form,
    /// The prefix of a UUID name without a UUID.
    Uuid,
    /// The 256-byte field has no NUL after the name.
    NotTerminated,
}

impl core::error::Error for NqnError {}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the NQN is empty"),
            Self::TooLong { len } => {
                write!(f, "the NQN has {len} bytes, at most {NQN_MAX} are possible")
            }
            Self::NotUtf8 => f.write_str("the NQN is not UTF-8"),
            Self::Control { at } => {
                write!(f, "the NQN has a control character at byte {at}")
            }
            Self::Form => f.write_str(
                "the NQN is not of the form nqn.yyyy-mm.reversed.domain:name, \
                 for example nqn.2026-11.org.example:disk",
            ),
            Self::Uuid => write!(f, "the NQN starts with {UUID_PREFIX} but no UUID follows"),
            Self::NotTerminated => f.write_str("the NQN field of 256 bytes has no NUL at its end"),
        }
    }
}

impl Nqn {
    /// The well-known name of discovery subsystems.
    #[must_use]
    pub fn discovery() -> Self {
        let mut bytes = [0; NQN_MAX];
        for (to, from) in bytes.iter_mut().zip(DISCOVERY.bytes()) {
            *to = from;
        }
        Self {
            len: DISCOVERY_LEN,
            bytes,
        }
    }

    /// Any text that is a valid name.
    ///
    /// # Errors
    /// [`NqnError`] if it is not 1 to 223 bytes without control characters.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        // A NUL ends the name on the wire. The others are rejected because names are
        // copied into files and logs with one name per line.
        match name.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(NqnError::Control { at }),
            None => Self::copied(name),
        }
    }

    /// The name for a UUID (Base 2.1, 4.7).
    #[must_use]
    pub fn of_uuid(uuid: &[u8; 16]) -> Self {
        let mut name = Self {
            len: 0,
            bytes: [0; NQN_MAX],
        };
        UUID_PREFIX.bytes().for_each(|byte| name.push(byte));
        for (at, byte) in uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                name.push(b'-');
            }
            name.push(hex_digit(byte >> 4));
            name.push(hex_digit(byte & 0xf));
        }
        name
    }

    fn push(&mut self, byte: u8) {
        if let Some(to) = self.bytes.get_mut(usize::from(self.len)) {
            *to = byte;
            self.len += 1;
        }
    }

    /// Whether it has the form that the specification requires.
    ///
    /// # Errors
    /// [`NqnError`] says how it deviates.
    pub fn check_form(&self) -> Result<(), NqnError> {
        check_form(self.as_str())
    }

    fn copied(name: &str) -> Result<Self, NqnError> {
        let too_long = NqnError::TooLong { len: name.len() };
        let mut bytes = [0; NQN_MAX];
        bytes
            .get_mut(..name.len())
            .ok_or(too_long)?
            .copy_from_slice(name.as_bytes());
        let len = u8::try_from(name.len()).map_err(|_| too_long)?;
        Ok(Self { len, bytes })
    }

    /// Parses the NUL-padded field of the connect data and of log pages.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn from_field(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        Self::new(name_of(field)?)
    }

    /// The NUL-padded field.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD] {
        let mut field = [0; NQN_FIELD];
        for (to, from) in field.iter_mut().zip(self.bytes) {
            *to = from;
        }
        field
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..usize::from(self.len)).unwrap_or_default();
        core::str::from_utf8(name).unwrap_or_default()
    }

    /// Whether it is the well-known name of discovery subsystems.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.as_str() == DISCOVERY
    }
}

const DISCOVERY_LEN: u8 = 36;
const _: () = assert!(DISCOVERY.len() == DISCOVERY_LEN as usize);
const _: () = assert!(NQN_MAX <= u8::MAX as usize);

fn name_of(field: &[u8; NQN_FIELD]) -> Result<&str, NqnError> {
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .ok_or(NqnError::NotTerminated)?;
    let name = field.get(..end).unwrap_or_default();
    core::str::from_utf8(name).map_err(|_| NqnError::NotUtf8)
}

/// The digit of a number below 16.
fn hex_digit(number: u8) -> u8 {
    match number {
        0..=9 => b'0' + number,
        _ => b'a' + (number & 0xf) - 10,
    }
}

fn check_form(name: &str) -> Result<(), NqnError> {
    if name.contains(char::is_whitespace) {
        return Err(NqnError::Form);
    }
    if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
        return if is_uuid(uuid) {
            Ok(())
        } else {
            Err(NqnError::Uuid)
        };
    }
    if has_form(name) {
        Ok(())
    } else {
        Err(NqnError::Form)
    }
}

/// `nqn.yyyy-mm.` and at least one label of a reversed domain name. The owner of the
/// domain decides what follows the first colon.
fn has_form(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("nqn.") else {
        return false;
    };
    let authority = rest.split(':').next().unwrap_or_default();
    let mut labels = authority.split('.');
    labels.next().is_some_and(is_year_and_month)
        && labels.clone().next().is_some()
        && labels.all(|label| !label.is_empty())
}

fn is_year_and_month(date: &str) -> bool {
    let Some((year, month)) = date.split_once('-') else {
        return false;
    };
    let digits =
        |text: &str, n: usize| text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit());
    digits(year, 4) && digits(month, 2) && matches!(month.parse::<u8>(), Ok(1..=12))
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

impl PartialEq for Nqn {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Nqn {}

impl PartialOrd for Nqn {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Nqn {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Nqn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(self.as_str()).fmt(f)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({self})")
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_the_form_pass_check_form() {
        for name in [
            DISCOVERY,
            "nqn.2026-11.org.example:disk",
            "nqn.2026-11.org.example",
            "nqn.2014-08.org.nvmexpress:uuid:2d8d9a4c-3f1b-4c7e-9a51-0123456789AB",
            "nqn.2026-11.org.example:a:b.c-\u{e4}",
        ] {
            let nqn = Nqn::new(name).unwrap();
            assert_eq!((nqn.as_str(), nqn.check_form()), (name, Ok(())));
        }
        assert_eq!(Nqn::new(DISCOVERY).unwrap(), Nqn::discovery());
    }

    #[test]
    fn names_accepted_by_linux_are_accepted() {
        for (name, unusual) in [
            ("testnqn", NqnError::Form),
            ("clvol", NqnError::Form),
            ("hostnqn", NqnError::Form),
            ("blktests-subsystem-1", NqnError::Form),
            (
                "nqn.nvme-subsystem-1-2d8d9a4c-3f1b-4c7e-9a51-0123456789ab",
                NqnError::Form,
            ),
            ("my host", NqnError::Form),
            ("nqn.2026-11.org.exa mple", NqnError::Form),
            ("a\u{202e}b", NqnError::Form),
            ("iqn.2026-11.org.example", NqnError::Form),
            ("nqn.2026-13.org.example", NqnError::Form),
            ("nqn.26-11.org.example", NqnError::Form),
            ("nqn.2026-11", NqnError::Form),
            ("nqn.2026-11.", NqnError::Form),
            ("nqn.2026-11..org", NqnError::Form),
            ("nqn.2014-08.org.nvmexpress:uuid:2d8d9a4c", NqnError::Uuid),
        ] {
            let nqn = Nqn::new(name).unwrap();
            assert_eq!(nqn.as_str(), name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
            assert_eq!(nqn.check_form(), Err(unusual), "{name:?}");
        }
    }

    #[test]
    fn invalid_names_are_rejected() {
        let long = "x".repeat(224);
        for (name, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong { len: 224 }),
            ("a\0b", NqnError::Control { at: 1 }),
            ("nqn.2026-11.org\n", NqnError::Control { at: 15 }),
            ("a\x1b[2J", NqnError::Control { at: 1 }),
            ("\u{85}", NqnError::Control { at: 0 }),
        ] {
            assert_eq!(Nqn::new(name), Err(error), "{name:?}");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn uuid_name_has_the_form() {
        let uuid = core::array::from_fn(|at| u8::try_from(at * 0x11).unwrap());
        let nqn = Nqn::of_uuid(&uuid);
        let expected = std::format!("{UUID_PREFIX}00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(
            (nqn.as_str(), nqn.check_form()),
            (expected.as_str(), Ok(()))
        );
    }

    #[test]
    fn display_escapes_hidden_characters() {
        let nqn = Nqn::new("a\u{202e}\u{2028}\u{200b}\u{feff}b").unwrap();
        let shown = "a\\u202E\\u2028\\u200B\\uFEFFb";
        assert_eq!(nqn.to_string(), shown);
        assert_eq!(std::format!("{nqn:?}"), std::format!("Nqn({shown})"));
    }

    #[test]
    fn longest_name_fits_its_field() {
        let longest = std::format!("nqn.2026-11.org.example:{}", "x".repeat(199));
        let nqn = Nqn::new(&longest).unwrap();
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::NotTerminated));
        assert_eq!(Nqn::from_field(&[0; 256]), Err(NqnError::Empty));
        let mut field = [0; 256];
        field[..2].copy_from_slice(&[0xff, 0xfe]);
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8));
    }

    proptest! {
        #[test]
        fn parsed_name_round_trips(name: String, field: Vec<u8>) {
            if let Ok(nqn) = Nqn::new(&name) {
                prop_assert_eq!(nqn.as_str(), name.as_str());
            }
            let mut bytes = [0; NQN_FIELD];
            for (to, from) in bytes.iter_mut().zip(field) {
                *to = from;
            }
            if let Ok(nqn) = Nqn::from_field(&bytes) {
                prop_assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
            }
        }

        #[test]
        fn valid_names_of_any_shape_parse(
            year in 1995u32..2100,
            month in 1u32..=12,
            domain in "[a-z]{2,6}(\\.[a-z0-9-]{1,10}){0,3}",
            tail in "(:[A-Za-z0-9.:_-]{0,40})?",
        ) {
            let name = std::format!("nqn.{year}-{month:02}.{domain}{tail}");
            prop_assert_eq!(Nqn::new(&name).map(|nqn| nqn.check_form()), Ok(Ok(())));
        }
    }
}
