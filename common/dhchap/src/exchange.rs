//! The finite field Diffie-Hellman exchange (NVMe Base 2.0, 8.13.5.4; RFC 7919).

use std::fmt;

use crypto_bigint::modular::{ConstMontyForm, ConstMontyParams};
use crypto_bigint::{Encoding, U512, Uint};
use nvmeof_wire::auth::GroupId;
use zeroize::Zeroizing;

use crate::primes::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192};
use crate::random::{Random, RandomError};
use crate::reactor_thread;

/// One side of a key exchange: a secret exponent, used once, and its public value.
pub struct Exchange {
    group: GroupId,
    exponent: Zeroizing<U512>,
    public: Vec<u8>,
}

/// The secret that both sides compute (Z), as long as the modulus. It is erased when it is
/// dropped.
pub struct SharedSecret(Zeroizing<Vec<u8>>);

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// The group is unknown or has no key exchange.
    #[error("group {} ({:#04x}) has no key exchange that is supported", .0.name(), .0.0)]
    Group(GroupId),
    /// The public value of the peer is of another length than the modulus.
    #[error("the public value has {len} bytes; {} requires {expected}", .group.name())]
    PublicLength {
        /// The group.
        group: GroupId,
        /// Bytes of the value.
        len: usize,
        /// Bytes of the modulus.
        expected: usize,
    },
    /// The public value of the peer is not between 2 and p - 2.
    #[error("the public value is out of range (2 to p - 2 of {})", .0.name())]
    PublicRange(GroupId),
    /// See [`RandomError`].
    #[error(transparent)]
    Random(#[from] RandomError),
}

/// Bits of an exponent: at least those that RFC 7919, section 5.2 requires (225 to 400).
fn exponent_bits(group: GroupId) -> Result<u32, ExchangeError> {
    match group {
        GroupId::FFDHE2048 => Ok(256),
        GroupId::FFDHE3072 => Ok(320),
        GroupId::FFDHE4096 => Ok(384),
        GroupId::FFDHE6144 | GroupId::FFDHE8192 => Ok(448),
        _ => Err(ExchangeError::Group(group)),
    }
}

impl Exchange {
    /// A new exponent and its public value. Takes an exponentiation.
    ///
    /// # Errors
    /// [`ExchangeError`]: the group has no exchange, or there are no random numbers.
    pub fn generate(group: GroupId, random: &mut dyn Random) -> Result<Self, ExchangeError> {
        let bits = exponent_bits(group)?;
        let mut bytes = Zeroizing::new([0; 64]);
        random.fill(bytes.as_mut_slice())?;
        let exponent = Zeroizing::new(U512::from_be_bytes((*bytes).into()));
        // The highest bit is set, so that the exponent has its full length.
        let shift = U512::BITS - bits;
        let top = U512::ONE.shl(bits - 1);
        let exponent = Zeroizing::new(exponent.shr(shift).bitor(&top));
        Self::with(group, exponent)
    }

    fn with(group: GroupId, exponent: Zeroizing<U512>) -> Result<Self, ExchangeError> {
        let public = power(group, None, &exponent)?.to_vec();
        Ok(Self {
            group,
            exponent,
            public,
        })
    }

    /// The group.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The public value to send, as long as the modulus.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The secret shared with the peer whose public value is `public`. Takes an exponentiation. The
    /// exponent is erased: it is used once.
    ///
    /// # Errors
    /// [`ExchangeError`]: the value is of another length, or out of range.
    pub fn agree(self, public: &[u8]) -> Result<SharedSecret, ExchangeError> {
        power(self.group, Some(public), &self.exponent).map(SharedSecret)
    }
}

/// `base` to the power of `exponent`, as long as the modulus; base 2 if `base` is `None`.
fn power(
    group: GroupId,
    base: Option<&[u8]>,
    exponent: &U512,
) -> Result<Zeroizing<Vec<u8>>, ExchangeError> {
    let bits = exponent_bits(group)?;
    reactor_thread::check();
    match group {
        GroupId::FFDHE2048 => power_of::<Ffdhe2048, 32>(group, base, exponent, bits),
        GroupId::FFDHE3072 => power_of::<Ffdhe3072, 48>(group, base, exponent, bits),
        GroupId::FFDHE4096 => power_of::<Ffdhe4096, 64>(group, base, exponent, bits),
        GroupId::FFDHE6144 => power_of::<Ffdhe6144, 96>(group, base, exponent, bits),
        GroupId::FFDHE8192 => power_of::<Ffdhe8192, 128>(group, base, exponent, bits),
        _ => Err(ExchangeError::Group(group)),
    }
}

fn power_of<P: ConstMontyParams<LIMBS>, const LIMBS: usize>(
    group: GroupId,
    base: Option<&[u8]>,
    exponent: &U512,
    bits: u32,
) -> Result<Zeroizing<Vec<u8>>, ExchangeError>
where
    Uint<LIMBS>: Encoding,
{
    let modulus = P::PARAMS.modulus().as_ref();
    let base = match base {
        None => Uint::from(2u8),
        Some(bytes) => {
            let expected = Uint::<LIMBS>::BYTES;
            if bytes.len() != expected {
                return Err(ExchangeError::PublicLength {
                    group,
                    len: bytes.len(),
                    expected,
                });
            }
            let value = Uint::<LIMBS>::from_be_slice(bytes);
            // p - 1 has order 2, and 0 and 1 give no secret (RFC 7919, section 5.1).
            let last = modulus.wrapping_sub(&Uint::from(2u8));
            if value <= Uint::ONE || value > last {
                return Err(ExchangeError::PublicRange(group));
            }
            value
        }
    };
    let result = ConstMontyForm::<P, LIMBS>::new(&base).pow_bounded_exp(exponent, bits);
    let result = Zeroizing::new(result.retrieve());
    Ok(Zeroizing::new(result.to_be_bytes().as_ref().to_vec()))
}

impl SharedSecret {
    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSecret({} bytes)", self.0.len())
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("group", &self.group.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemRandom;

    const GROUPS: [GroupId; 5] = [
        GroupId::FFDHE2048,
        GroupId::FFDHE3072,
        GroupId::FFDHE4096,
        GroupId::FFDHE6144,
        GroupId::FFDHE8192,
    ];

    #[test]
    fn both_sides_agree_in_every_group() {
        for group in GROUPS {
            let [host, controller] =
                [(); 2].map(|()| Exchange::generate(group, &mut SystemRandom).unwrap());
            let publics = [host.public().to_vec(), controller.public().to_vec()];
            assert_eq!(Some(publics[0].len()), group.public_len());
            assert_ne!(publics[0], publics[1]);
            let one = host.agree(&publics[1]).unwrap();
            let other = controller.agree(&publics[0]).unwrap();
            assert_eq!(one.as_bytes(), other.as_bytes());
            assert_eq!(Some(one.as_bytes().len()), group.public_len());
        }
    }

    /// The public value of exponent 5 is 32, padded to the length of the modulus.
    #[test]
    fn short_values_are_padded() {
        for group in GROUPS {
            let exchange = Exchange::with(group, Zeroizing::new(U512::from(5u8))).unwrap();
            let (last, zeroes) = exchange.public().split_last().unwrap();
            assert_eq!(*last, 32);
            assert!(zeroes.iter().all(|byte| *byte == 0));
            assert_eq!(Some(zeroes.len() + 1), group.public_len());
        }
    }

    /// The moduli are those of RFC 7919: 64 ones at both ends, and 2 generates the subgroup of
    /// order (p - 1) / 2, so that 2 to the power of p - 1 is 1.
    #[test]
    fn moduli_are_those_of_the_rfc() {
        fn check<P: ConstMontyParams<LIMBS>, const LIMBS: usize>() {
            let modulus = P::PARAMS.modulus().as_ref();
            let words = modulus.as_words();
            assert_eq!(words[0], u64::MAX);
            assert_eq!(words[LIMBS - 1], u64::MAX);
            let order = modulus.wrapping_sub(&Uint::ONE).shr(1);
            let two = ConstMontyForm::<P, LIMBS>::new(&Uint::from(2u8));
            assert_eq!(two.pow(&order).retrieve(), Uint::ONE);
        }
        check::<Ffdhe2048, 32>();
        check::<Ffdhe3072, 48>();
        check::<Ffdhe4096, 64>();
        check::<Ffdhe6144, 96>();
        check::<Ffdhe8192, 128>();
    }

    /// Public values and secrets of known exponents, computed with another implementation. Those
    /// of the first three groups begin with a zero byte, as 1 in 256 do.
    #[test]
    fn known_values() {
        for (group, own, peer, public, shared) in [
            (
                GroupId::FFDHE2048,
                623u32,
                1787u32,
                "8e3d947cb246bf8ffe9848ee7dc7cc1d06d21f0c0255f90f904e17c18cbc227d",
                "a93c0b2ee8c525142c2d330e1192e3082e2ba7b9d08aa4f633d1d852a3f65648",
            ),
            (
                GroupId::FFDHE3072,
                1463,
                1029,
                "b16fbd7ed7938205bb96f6a122b2af6e2113b790cdda14b1e5db16d15e631d38",
                "593b51b690c1127756163d752e5b044f938e28522b61b353370a3be16d4ddefe",
            ),
            (
                GroupId::FFDHE4096,
                1413,
                239,
                "33ce0f9e9ec53cf1cee9a76400763b30f1b596e8610cd2644d62cb45081a2a42",
                "b0c057e58ed857e12c15126494c50e2a7da673266a80be9f1518fefb51f828c1",
            ),
            (
                GroupId::FFDHE6144,
                1,
                1,
                "0db61745321fad06e9b0263ae5eedd6708e0d8a7ab6a0f314730e5a1977a49b0",
                "dbea02b6bc295039cb8f0ff51517c93672423494cf8a928e0b3bcf473df726b7",
            ),
            (
                GroupId::FFDHE8192,
                1,
                1,
                "1e87dfb2142519138e6025ce4de18f2e4eaedd2120cc5f55524912b2856cf571",
                "a694e44ad7d0c1ca92431da71943004e049247bf09e4a70af39b9ac716a85def",
            ),
        ] {
            let with = |bit, low: u32| {
                let exponent = U512::ONE.shl(bit).bitor(&U512::from(low));
                Exchange::with(group, Zeroizing::new(exponent)).unwrap()
            };
            let own = with(250, own);
            assert_eq!(sha256(own.public()), public, "{group:?}");
            let own = own.public().to_vec();
            let secret = with(251, peer).agree(&own).unwrap();
            assert_eq!(sha256(secret.as_bytes()), shared, "{group:?}");
        }
    }

    fn sha256(bytes: &[u8]) -> String {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(bytes);
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn bad_public_values_are_refused() {
        for group in GROUPS {
            let len = group.public_len().unwrap();
            let exchange = || Exchange::with(group, Zeroizing::new(U512::from(77u8))).unwrap();
            let mut value = vec![0; len];
            for small in [0, 1] {
                *value.last_mut().unwrap() = small;
                let error = exchange().agree(&value).unwrap_err();
                assert_eq!(error, ExchangeError::PublicRange(group));
            }
            *value.last_mut().unwrap() = 2;
            assert!(exchange().agree(&value).is_ok());
            assert_eq!(
                exchange().agree(&vec![0xff; len]).unwrap_err(),
                ExchangeError::PublicRange(group)
            );
            for wrong in [0, len - 1, len + 1] {
                assert!(matches!(
                    exchange().agree(&vec![2; wrong]),
                    Err(ExchangeError::PublicLength { .. })
                ));
            }
        }
        assert!(Exchange::generate(GroupId::NULL, &mut SystemRandom).is_err());
        assert!(Exchange::generate(GroupId::SECP256R1, &mut SystemRandom).is_err());
    }

    /// p - 2 is the largest valid value, p - 1 and p are not.
    #[test]
    fn upper_bound_is_exact() {
        let modulus = Ffdhe2048::PARAMS.modulus().as_ref();
        for (below, is_valid) in [(2u8, true), (1, false), (0, false)] {
            let value = modulus.wrapping_sub(&Uint::from(below)).to_be_bytes();
            let group = GroupId::FFDHE2048;
            let exchange = Exchange::with(group, Zeroizing::new(U512::from(77u8))).unwrap();
            assert_eq!(exchange.agree(value.as_ref()).is_ok(), is_valid, "{below}");
        }
    }
}
