//! Keys in their text form, `DHHC-1:hh:base64(key, CRC-32):` (NVMe Base 2.0, 8.13.5.8).

use std::fmt;

use base64ct::{Base64, Encoding};
use crc_fast::{CrcAlgorithm, checksum};
use nvmeof_memory::{MemoryError, Secret};
use nvmeof_wire::auth::HashId;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::hash::{self, Digested, UnknownHash};
use crate::random::{Random, RandomError, SystemRandom};

/// A key of a host or of a controller.
#[derive(Debug)]
pub struct Key {
    /// The hash function that transforms it before use; `None`: it is used as it is.
    transformation: Option<HashId>,
    secret: Secret,
}

/// Why a text is no key. The text itself is not part of it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It does not have the form of a key.
    #[error(
        "the text is not of the form `DHHC-1:hh:BASE64:`; `nvmeof gen-dhchap-key` and \
         `nvme gen-dhchap-key` write such keys"
    )]
    Form,
    /// The hash function of the transformation is not defined.
    #[error("the transformation `{0:02x}` is unknown; known are 00, 01, 02 and 03")]
    Transformation(u8),
    /// The part between the colons is no Base64.
    #[error("the key is not valid Base64")]
    Base64,
    /// The key is of another length.
    #[error("the key has {0} bytes; valid are 32, 48 and 64")]
    Length(usize),
    /// The check value does not agree with the key.
    #[error("the CRC-32 of the key is wrong: a character is missing or changed")]
    Crc,
    /// See [`RandomError`].
    #[error(transparent)]
    Random(#[from] RandomError),
    /// There is no memory for it.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

const CRC_LEN: usize = 4;
/// Valid lengths of a key in bytes.
const LENGTHS: [usize; 3] = [32, 48, 64];

impl Key {
    /// The beginning of the text form.
    pub const PREFIX: &str = "DHHC-1:";

    /// Parses the text form. White space around it is ignored.
    ///
    /// # Errors
    /// [`KeyError`], which does not contain the text.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let rest = text
            .trim()
            .strip_prefix(Self::PREFIX)
            .ok_or(KeyError::Form)?;
        let (transformation, rest) = rest.split_once(':').ok_or(KeyError::Form)?;
        let encoded = rest.strip_suffix(':').ok_or(KeyError::Form)?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if transformation.len() != 2 || !is_hex(transformation) || encoded.contains(':') {
            return Err(KeyError::Form);
        }
        let transformation = u8::from_str_radix(transformation, 16).map_err(|_| KeyError::Form)?;
        let transformation = match HashId(transformation) {
            HashId(0) => None,
            known if known.hash_len().is_some() => Some(known),
            HashId(unknown) => return Err(KeyError::Transformation(unknown)),
        };
        let decoded = Base64::decode_vec(encoded).map_err(|_| KeyError::Base64)?;
        let mut decoded = Zeroizing::new(decoded);
        let len = decoded.len().saturating_sub(CRC_LEN);
        if !LENGTHS.contains(&len) {
            return Err(KeyError::Length(len));
        }
        let (secret, crc) = decoded.split_at_mut(len);
        if crc != crc_of(secret) {
            return Err(KeyError::Crc);
        }
        Ok(Self {
            transformation,
            secret: Secret::take(secret)?,
        })
    }

    /// A new random key of 32, 48 or 64 bytes.
    ///
    /// # Errors
    /// [`KeyError`]: another length, or the system has no random numbers or memory.
    pub fn generate(len: usize, transformation: Option<HashId>) -> Result<Self, KeyError> {
        if !LENGTHS.contains(&len) {
            return Err(KeyError::Length(len));
        }
        let mut secret = Secret::zeroed(len)?;
        SystemRandom.fill(secret.expose_mut())?;
        Self::of(secret, transformation)
    }

    /// A key of these bytes.
    ///
    /// # Errors
    /// [`KeyError`]: it does not have 32, 48 or 64 bytes, or the transformation is unknown.
    pub fn of(secret: Secret, transformation: Option<HashId>) -> Result<Self, KeyError> {
        if !LENGTHS.contains(&secret.len()) {
            return Err(KeyError::Length(secret.len()));
        }
        if let Some(unknown) = transformation.filter(|hash| hash.hash_len().is_none()) {
            return Err(KeyError::Transformation(unknown.0));
        }
        Ok(Self {
            transformation,
            secret,
        })
    }

    /// The text form. It is erased when it is dropped.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = self.secret.expose();
        let mut bytes = Zeroizing::new(Vec::with_capacity(secret.len() + CRC_LEN));
        bytes.extend_from_slice(secret);
        bytes.extend_from_slice(&crc_of(secret));
        let encoded = Zeroizing::new(Base64::encode_string(&bytes));
        let transformation = self.transformation.unwrap_or(HashId(0)).0;
        let mut text = Zeroizing::new(String::with_capacity(encoded.len() + 16));
        // Writing to a string does not fail.
        let _ = fmt::Write::write_fmt(
            &mut *text,
            format_args!("{}{transformation:02x}:{}:", Self::PREFIX, encoded.as_str()),
        );
        text
    }

    /// Bytes of the key: 32, 48 or 64.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.secret.len()
    }

    /// Whether it is the same key. Takes the same time wherever they differ.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        let same = self.secret.expose().ct_eq(other.secret.expose());
        self.transformation == other.transformation && same.into()
    }

    /// The hash function that transforms it before use; `None`: it is used as it is.
    #[must_use]
    pub fn transformation(&self) -> Option<HashId> {
        self.transformation
    }

    /// The transformed key of the host or controller whose name is `nqn`.
    pub(crate) fn transformed(&self, nqn: &str) -> Result<Digested, UnknownHash> {
        match self.transformation {
            None => Ok(Zeroizing::new(self.secret.expose().to_vec())),
            Some(id) => hash::hmac(
                id,
                self.secret.expose(),
                &[nqn.as_bytes(), b"NVMe-over-Fabrics"],
            ),
        }
    }
}

/// CRC-32 (IEEE 802.3) of a key, as it follows the key.
fn crc_of(secret: &[u8]) -> [u8; CRC_LEN] {
    let [a, b, c, d, ..] = checksum(CrcAlgorithm::Crc32IsoHdlc, secret).to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes 00h to 1Fh.
    const KNOWN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn known_text_is_parsed_and_written() {
        let key = Key::parse(KNOWN).unwrap();
        let expected: Vec<u8> = (0..32).collect();
        assert_eq!(key.secret.expose(), expected);
        assert_eq!(key.transformation(), None);
        assert_eq!(*key.to_text(), KNOWN);
        assert_eq!(Key::parse(&format!(" {KNOWN}\n")).unwrap().bytes(), 32);
        assert!(!format!("{key:?}").contains("AAEC"));
    }

    #[test]
    fn wrong_texts_are_refused_without_echo() {
        let wrong = [
            ("", "form"),
            ("DHHC-2:00:AA==:", "form"),
            ("DHHC-1:00:AA==", "form"),
            ("DHHC-1:0:AA==:", "form"),
            ("DHHC-1:+1:AA==:", "form"),
            ("DHHC-1:00:AA==::", "form"),
            ("DHHC-1:04:AA==:", "transformation `04`"),
            ("DHHC-1:00:A?==:", "Base64"),
            ("DHHC-1:00:AAECAw==:", "0 bytes"),
            (
                "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh6KfiaR:",
                "CRC-32",
            ),
        ];
        for (text, words) in wrong {
            let error = Key::parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains("AAEC"), "{error}");
        }
        assert!(matches!(Key::generate(33, None), Err(KeyError::Length(33))));
    }

    #[test]
    fn generated_keys_differ() {
        let [one, other] = [(); 2].map(|()| Key::generate(48, Some(HashId::SHA384)).unwrap());
        assert_ne!(*one.to_text(), *other.to_text());
        assert!(one.to_text().starts_with("DHHC-1:02:"));
    }

    #[test]
    fn keys_with_another_byte_length_or_transformation_differ() {
        let of = |len, byte, transformation| {
            let mut bytes = vec![7; len];
            bytes[31] = byte;
            Key::of(Secret::take(&mut bytes).unwrap(), transformation).unwrap()
        };
        let key = of(32, 1, None);
        assert!(key.equals(&of(32, 1, None)));
        for other in [
            of(32, 2, None),
            of(48, 1, None),
            of(32, 1, Some(HashId::SHA256)),
        ] {
            assert!(!key.equals(&other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn keys_round_trip(
            mut bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 32),
                prop::collection::vec(any::<u8>(), 48),
                prop::collection::vec(any::<u8>(), 64),
            ],
            id in 0u8..4,
        ) {
            let expected = bytes.clone();
            let transformation = Some(HashId(id)).filter(|id| id.0 != 0);
            let key = Key::of(Secret::take(&mut bytes).unwrap(), transformation).unwrap();
            let again = Key::parse(&key.to_text()).unwrap();
            prop_assert_eq!(again.secret.expose(), &expected[..]);
            prop_assert_eq!(again.transformation(), transformation);
        }

        #[test]
        fn any_text_is_parsed_without_panic(
            text in "(DHHC-1:)?[0-9a-f]{0,3}:?[A-Za-z0-9+/=:]{0,120}",
        ) {
            let _ = Key::parse(&text);
        }
    }
}
