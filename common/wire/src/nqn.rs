//! NVMe qualified names (Base 2.0, 4.5).

use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

/// Longest name in bytes.
pub const NQN_MAX: usize = 223;
/// Length of the field that carries a name, padded with NUL.
pub const NQN_FIELD: usize = 256;
/// The name that every discovery subsystem answers to.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Start of a name made of a UUID.
pub const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A valid NVMe qualified name.
#[derive(Clone, Copy)]
pub struct Nqn {
    len: u8,
    bytes: [u8; NQN_MAX],
}

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NqnError {
    /// No name at all.
    Empty,
    /// Longer than 223 bytes.
    TooLong {
        /// Bytes it has.
        len: usize,
    },
    /// Not UTF-8.
    NotUtf8,
    /// A control character or white space in it.
    Unprintable {
        /// Where, in bytes.
        at: usize,
    },
    /// Does not start with `nqn.yyyy-mm.` and a reversed domain name.
    Form,
    /// Starts like a UUID name and does not go on with a UUID.
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
            Self::Unprintable { at } => {
                write!(
                    f,
                    "the NQN has white space or a control character at byte {at}"
                )
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

    /// Checks a name.
    ///
    /// # Errors
    /// [`NqnError`] says what is wrong.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        check(name)?;
        Self::copied(name)
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

    /// Reads the NUL-padded field of the connect data and of log pages.
    ///
    /// # Errors
    /// [`NqnError`] says what is wrong.
    pub fn from_field(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        Self::new(name_of(field)?)
    }

    /// Reads the field of the connect data as a peer filled it. There are
    /// hosts whose names are not of the form that the specification wants;
    /// what matters is that the name can be compared and written to a log.
    ///
    /// # Errors
    /// [`NqnError`] when it is not 1 to 223 bytes of UTF-8 without control
    /// characters, with a NUL after them.
    pub fn from_peer(field: &[u8; NQN_FIELD]) -> Result<Self, NqnError> {
        let name = name_of(field)?;
        check_text(name)?;
        Self::copied(name)
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

/// What every name must be, whoever made it.
fn check_text(name: &str) -> Result<(), NqnError> {
    if name.is_empty() {
        return Err(NqnError::Empty);
    }
    if name.len() > NQN_MAX {
        return Err(NqnError::TooLong { len: name.len() });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NqnError::Unprintable { at }),
        None => Ok(()),
    }
}

fn check(name: &str) -> Result<(), NqnError> {
    check_text(name)?;
    if let Some((at, _)) = name.char_indices().find(|(_, c)| c.is_whitespace()) {
        return Err(NqnError::Unprintable { at });
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

/// `nqn.yyyy-mm.` and at least one label of a reversed domain name. What
/// follows the first colon is up to the owner of the domain.
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
        f.pad(self.as_str())
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
    fn names_that_are_good() {
        for name in [
            DISCOVERY,
            "nqn.2026-11.org.example:disk",
            "nqn.2026-11.org.example",
            "nqn.2014-08.org.nvmexpress:uuid:2d8d9a4c-3f1b-4c7e-9a51-0123456789AB",
            "nqn.2026-11.org.example:a:b.c-\u{e4}",
        ] {
            assert_eq!(Nqn::new(name).unwrap().as_str(), name);
        }
        assert_eq!(Nqn::new(DISCOVERY).unwrap(), Nqn::discovery());
    }

    #[test]
    fn names_that_are_not() {
        let long = std::format!("nqn.2026-11.org.example:{}", "x".repeat(200));
        for (name, error) in [
            ("", NqnError::Empty),
            (long.as_str(), NqnError::TooLong { len: 224 }),
            ("nqn.2026-11.org.exa mple", NqnError::Unprintable { at: 19 }),
            ("nqn.2026-11.org\n", NqnError::Unprintable { at: 15 }),
            ("iqn.2026-11.org.example", NqnError::Form),
            ("nqn.2026-13.org.example", NqnError::Form),
            ("nqn.26-11.org.example", NqnError::Form),
            ("nqn.2026-11", NqnError::Form),
            ("nqn.2026-11.", NqnError::Form),
            ("nqn.2026-11..org", NqnError::Form),
            ("nqn.2014-08.org.nvmexpress:uuid:2d8d9a4c", NqnError::Uuid),
        ] {
            assert_eq!(Nqn::new(name), Err(error), "{name:?}");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn the_longest_name_fits_its_field() {
        let longest = std::format!("nqn.2026-11.org.example:{}", "x".repeat(199));
        let nqn = Nqn::new(&longest).unwrap();
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::NotTerminated));
        assert_eq!(Nqn::from_field(&[0; 256]), Err(NqnError::Empty));
        let mut field = [0; 256];
        field[..2].copy_from_slice(&[0xff, 0xfe]);
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotUtf8));
    }

    #[test]
    fn names_of_peers_need_no_form_but_cannot_forge_a_log() {
        let field = |name: &[u8]| {
            let mut field = [0; NQN_FIELD];
            field[..name.len()].copy_from_slice(name);
            field
        };
        for good in ["my host", "iqn.2026-11.org.example", "x"] {
            let nqn = Nqn::from_peer(&field(good.as_bytes())).unwrap();
            assert_eq!(nqn.as_str(), good);
        }
        let long = [b'x'; 224];
        for (bad, error) in [
            (&b""[..], NqnError::Empty),
            (b"a\nb", NqnError::Unprintable { at: 1 }),
            (b"a\x1b[2J", NqnError::Unprintable { at: 1 }),
            (b"\xc2\x85", NqnError::Unprintable { at: 0 }),
            (b"\xff", NqnError::NotUtf8),
            (&long, NqnError::TooLong { len: 224 }),
        ] {
            assert_eq!(Nqn::from_peer(&field(bad)), Err(error));
        }
        let unterminated = Nqn::from_peer(&[b'x'; NQN_FIELD]);
        assert_eq!(unterminated, Err(NqnError::NotTerminated));
    }

    proptest! {
        #[test]
        fn what_parses_writes_back(name: String, field: Vec<u8>) {
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
        fn good_names_of_any_shape_parse(
            year in 1995u32..2100,
            month in 1u32..=12,
            domain in "[a-z]{2,6}(\\.[a-z0-9-]{1,10}){0,3}",
            tail in "(:[A-Za-z0-9.:_-]{0,40})?",
        ) {
            let name = std::format!("nqn.{year}-{month:02}.{domain}{tail}");
            prop_assert!(Nqn::new(&name).is_ok(), "{}", name);
        }
    }
}
