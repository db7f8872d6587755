//! Responses to challenges (NVMe Base 2.0, 8.13.5.4 and 8.13.5.5).

use std::fmt;

use nvmeof_wire::auth::HashId;
use subtle::ConstantTimeEq;

use crate::exchange::SharedSecret;
use crate::hash::{self, Digested, UnknownHash};
use crate::key::Key;

/// What both responses of a transaction depend on.
#[derive(Clone, Copy, Debug)]
pub struct Transcript<'a> {
    /// The chosen hash function.
    pub hash: HashId,
    /// Transaction identifier.
    pub t_id: u16,
    /// Secure channel concatenation of the Negotiate.
    pub sc_c: u8,
    /// NQN of the host.
    pub hostnqn: &'a str,
    /// NQN of the subsystem.
    pub subnqn: &'a str,
}

/// What one side is asked to respond to.
#[derive(Clone, Copy, Debug)]
pub struct Challenged<'a> {
    /// The challenge value, as long as a hash.
    pub value: &'a [u8],
    /// Its sequence number.
    pub seqnum: u32,
    /// The shared secret; `None` without key exchange.
    pub shared: Option<&'a SharedSecret>,
}

/// A response value. Two are compared in constant time.
#[derive(Clone)]
pub struct Response(Digested);

/// Why a response cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// See [`UnknownHash`].
    #[error(transparent)]
    Hash(#[from] UnknownHash),
    /// The challenge is not as long as a hash.
    #[error("the challenge has {len} bytes; {expected} are required by the hash function")]
    ChallengeLength {
        /// Bytes of the challenge.
        len: usize,
        /// Bytes of a hash.
        expected: usize,
    },
}

impl Transcript<'_> {
    /// The response of the host (R1) to challenge C1; `key` is the host's.
    ///
    /// # Errors
    /// [`ResponseError`].
    pub fn host_response(
        &self,
        key: &Key,
        challenge: Challenged<'_>,
    ) -> Result<Response, ResponseError> {
        let names = [self.hostnqn, self.subnqn];
        self.response(key, challenge, "HostHost", names)
    }

    /// The response of the controller (R2) to challenge C2; `key` is the
    /// controller's.
    ///
    /// # Errors
    /// [`ResponseError`].
    pub fn controller_response(
        &self,
        key: &Key,
        challenge: Challenged<'_>,
    ) -> Result<Response, ResponseError> {
        let names = [self.subnqn, self.hostnqn];
        self.response(key, challenge, "Controller", names)
    }

    /// The response of the side whose NQN is the first of `names`.
    fn response(
        &self,
        key: &Key,
        challenge: Challenged<'_>,
        role: &str,
        names: [&str; 2],
    ) -> Result<Response, ResponseError> {
        let expected = self.hash.hash_len().ok_or(UnknownHash(self.hash))?;
        let len = challenge.value.len();
        if len != expected {
            return Err(ResponseError::ChallengeLength { len, expected });
        }
        let augmented = match challenge.shared {
            None => None,
            Some(shared) => Some(self.augmented(challenge.value, shared)?),
        };
        let value = augmented.as_deref().map_or(challenge.value, Vec::as_slice);
        let [own, other] = names;
        let transformed = key.transformed(own)?;
        let parts: [&[u8]; 8] = [
            value,
            &challenge.seqnum.to_le_bytes(),
            &self.t_id.to_le_bytes(),
            &[self.sc_c],
            role.as_bytes(),
            own.as_bytes(),
            &[0],
            other.as_bytes(),
        ];
        Ok(Response(hash::hmac(self.hash, &transformed, &parts)?))
    }

    /// The challenge augmented by the shared secret: HMAC(H(Z), C).
    fn augmented(&self, challenge: &[u8], shared: &SharedSecret) -> Result<Digested, UnknownHash> {
        let key = hash::digest(self.hash, shared.as_bytes())?;
        hash::hmac(self.hash, &key, &[challenge])
    }
}

impl Response {
    /// Its bytes, to be sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a peer sent the same value. Takes the same time wherever they differ.
    #[must_use]
    pub fn equals(&self, received: &[u8]) -> bool {
        self.0.as_slice().ct_eq(received).into()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
    const SUBSYSTEM: &str = "nqn.2026-11.org.example:disk";
    const C1: Challenged<'_> = Challenged {
        value: &[0x11; 32],
        seqnum: 1,
        shared: None,
    };
    const TRANSCRIPT: Transcript<'_> = Transcript {
        hash: HashId::SHA256,
        t_id: 2,
        sc_c: 0,
        hostnqn: HOST,
        subnqn: SUBSYSTEM,
    };

    /// Bytes 00h to 1Fh with that transformation.
    fn key(transformation: Option<HashId>) -> Key {
        let mut bytes: Vec<u8> = (0..32).collect();
        Key::of(crate::Secret::take(&mut bytes).unwrap(), transformation).unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Computed from the formulas with another implementation of HMAC.
    #[test]
    fn known_responses() {
        let of = |key: Key| TRANSCRIPT.host_response(&key, C1).unwrap();
        assert_eq!(
            hex(of(key(None)).as_bytes()),
            "2e0c26e0ecbe9104ac083267f552882e2f00277a37d41a511830f2af0e90e00b"
        );
        assert_eq!(
            hex(&key(Some(HashId::SHA256)).transformed(HOST).unwrap()),
            "5b78a3f41bf7d05eb6c0cda0eb53cff08bfcd6773e1db312e107b351c1d59091"
        );
        assert_eq!(
            hex(of(key(Some(HashId::SHA256))).as_bytes()),
            "d61dac66a7712d40ca155da7e00b38982959276173e67d5af59657bdd417ca75"
        );
        let controller = TRANSCRIPT.controller_response(&key(None), C1);
        assert_eq!(
            hex(controller.unwrap().as_bytes()),
            "137948e03b34b3804b9e47d70322953d25ef37a2af439b5adc3129f5dbbbfe1a"
        );
        let shared = SharedSecret::of_bytes(vec![0x22; 256]);
        assert_eq!(
            hex(&TRANSCRIPT.augmented(C1.value, &shared).unwrap()),
            "fce52f42d0d8902e738a431adc5a62a340791e094a45c488c752be1a8e23e5b2"
        );
    }

    /// Computed as above, for hash functions with longer digests: a secret, a challenge and a
    /// response have their length.
    #[test]
    fn known_responses_of_longer_hashes() {
        let r1_384 = "2161a82b7c3358dbb7c896bef0979d6d110758a811e46796285cb56ac7f3bbd0\
                      958d44edf7610957437817276eebf0f3";
        let r2_384 = "c011203d1a6d1ba3c5f4ef6d57c909f31bec2b7e8a0856a9d852c573fddb0c5d\
                      ea35f16d9776885968d9cbeb0336cb0f";
        let transformed_384 = "56fa1f8c5225cae847abc4be7f809ebafe4890a22106b3d8daa86410a532ce02\
                               28edbedbb2c6dd82de2d7289aacdfa28";
        let r1_512 = "f6b0ee583d392d05ece75feedbddfe5549f937282b2c7f72dbae91bbd161906e\
                      65e4e316e268754851d878e89825ed80db7ca99f9db0c804e8103d78b3bbf9e9";
        let r2_512 = "d639ecfdb9d9c89b543cf4516e56cc9d723641307b6a960fc9d5f41358784242\
                      28ca814fcaaae814eafe939ffcaa35b61c97aa527f37e498c726fd935fb4e4b3";
        let transformed_512 = "49995c0225ad54c8ac1df99ee8a3312c0ef2acbefaad6dfcfbbfe7e0d30db2a4\
                               a0771ff7be33867438a9ad38273116132b75a77c72101fdbe21345c188cccbcb";
        for (hash, len, r1, transformed, r2) in [
            (HashId::SHA384, 48, r1_384, transformed_384, r2_384),
            (HashId::SHA512, 64, r1_512, transformed_512, r2_512),
        ] {
            let value = vec![0x11; len];
            let challenge = Challenged {
                value: &value,
                ..C1
            };
            let transcript = Transcript { hash, ..TRANSCRIPT };
            let key = |transformation| {
                let mut bytes: Vec<u8> = (0u8..64).take(len).collect();
                Key::of(crate::Secret::take(&mut bytes).unwrap(), transformation).unwrap()
            };
            let of = |key: Key| {
                hex(transcript
                    .host_response(&key, challenge)
                    .unwrap()
                    .as_bytes())
            };
            assert_eq!(of(key(None)), r1);
            assert_eq!(of(key(Some(hash))), transformed);
            let controller = transcript.controller_response(&key(None), challenge);
            assert_eq!(hex(controller.unwrap().as_bytes()), r2);
        }
    }

    #[test]
    fn response_depends_on_every_input() {
        let shared = SharedSecret::of_bytes(vec![0x22; 256]);
        let base = TRANSCRIPT.host_response(&key(None), C1).unwrap();
        let with = |transcript: Transcript<'_>, seqnum, shared: Option<&SharedSecret>| {
            let challenge = Challenged {
                seqnum,
                shared,
                ..C1
            };
            let other = transcript.host_response(&key(None), challenge);
            other.unwrap()
        };
        let others = [
            with(TRANSCRIPT, 2, None),
            with(TRANSCRIPT, 1, Some(&shared)),
            with(
                Transcript {
                    t_id: 3,
                    ..TRANSCRIPT
                },
                1,
                None,
            ),
            with(
                Transcript {
                    sc_c: 1,
                    ..TRANSCRIPT
                },
                1,
                None,
            ),
            with(
                Transcript {
                    hostnqn: SUBSYSTEM,
                    ..TRANSCRIPT
                },
                1,
                None,
            ),
            with(
                Transcript {
                    subnqn: HOST,
                    ..TRANSCRIPT
                },
                1,
                None,
            ),
            TRANSCRIPT
                .host_response(&key(Some(HashId::SHA384)), C1)
                .unwrap(),
            TRANSCRIPT
                .host_response(
                    &key(None),
                    Challenged {
                        value: &[0x12; 32],
                        ..C1
                    },
                )
                .unwrap(),
            TRANSCRIPT.controller_response(&key(None), C1).unwrap(),
        ];
        assert!(base.equals(base.as_bytes()));
        for other in &others {
            assert!(!base.equals(other.as_bytes()));
        }
        assert!(!base.equals(&base.as_bytes()[..31]) && !base.equals(&[]));
    }

    #[test]
    fn challenge_of_another_length_is_refused() {
        let error = TRANSCRIPT
            .host_response(
                &key(None),
                Challenged {
                    value: &[0; 48],
                    ..C1
                },
            )
            .unwrap_err();
        assert!(error.to_string().contains("has 48 bytes; 32"));
        let unknown = Transcript {
            hash: HashId(9),
            ..TRANSCRIPT
        };
        let error = unknown
            .host_response(
                &key(None),
                Challenged {
                    value: &[0; 32],
                    ..C1
                },
            )
            .unwrap_err();
        assert_eq!(error, ResponseError::Hash(UnknownHash(HashId(9))));
    }
}
