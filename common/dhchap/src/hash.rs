//! HMAC and hash by identifier.

use hmac::{Hmac, KeyInit, Mac};
use nvmeof_wire::auth::HashId;
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// A hash function that DH-HMAC-CHAP does not define.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hash function {:#04x} is unknown; known are 0x01 (SHA-256), 0x02 and 0x03", .0.0)]
pub struct UnknownHash(pub HashId);

/// A hash or MAC, which may be secret.
pub(crate) type Digested = Zeroizing<Vec<u8>>;

/// HMAC of the concatenation of `parts`.
pub(crate) fn hmac(hash: HashId, key: &[u8], parts: &[&[u8]]) -> Result<Digested, UnknownHash> {
    fn run<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Option<Digested> {
        let mut mac = <M as KeyInit>::new_from_slice(key).ok()?;
        for part in parts {
            mac.update(part);
        }
        Some(Zeroizing::new(mac.finalize().into_bytes().to_vec()))
    }
    let mac = match hash {
        HashId::SHA256 => run::<Hmac<Sha256>>(key, parts),
        HashId::SHA384 => run::<Hmac<Sha384>>(key, parts),
        HashId::SHA512 => run::<Hmac<Sha512>>(key, parts),
        _ => None,
    };
    // HMAC takes keys of any length.
    mac.ok_or(UnknownHash(hash))
}

/// Hash of `bytes`.
pub(crate) fn digest(hash: HashId, bytes: &[u8]) -> Result<Digested, UnknownHash> {
    let digest = match hash {
        HashId::SHA256 => Sha256::digest(bytes).to_vec(),
        HashId::SHA384 => Sha384::digest(bytes).to_vec(),
        HashId::SHA512 => Sha512::digest(bytes).to_vec(),
        _ => return Err(UnknownHash(hash)),
    };
    Ok(Zeroizing::new(digest))
}
