//! In-band authentication: commands and messages of DH-HMAC-CHAP (NVMe Base 2.0, 6.1, 6.2 and
//! 8.13), which Base 2.4 calls KX-HMAC-CHAP.
//!
//! [`Message::parse`] checks every length of a message against its bytes. Whether the message is
//! expected, and whether its hash and its key exchange group are usable, is for a state machine.

mod message;

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Sqe;
use crate::fabrics::FcType;
use crate::number::numbers;
use crate::opcode::FABRICS;
use crate::sgl::SglDescriptor;
use crate::sqe::SQE_LEN;

pub use message::{
    Challenge, Failure, FailureSide, MAX_MESSAGE, Message, MessageError, Negotiate, Reply,
    Success1, Success2,
};

numbers! {
    /// A hash function of DH-HMAC-CHAP.
    HashId {
        SHA256 = 0x01, "SHA-256";
        SHA384 = 0x02, "SHA-384";
        SHA512 = 0x03, "SHA-512";
    }
}

impl HashId {
    /// Bytes of a hash and of a response; `None` if the function is unknown.
    #[must_use]
    pub const fn hash_len(self) -> Option<usize> {
        match self {
            Self::SHA256 => Some(32),
            Self::SHA384 => Some(48),
            Self::SHA512 => Some(64),
            _ => None,
        }
    }
}

numbers! {
    /// A group of the key exchange.
    GroupId {
        NULL = 0x00, "NULL";
        FFDHE2048 = 0x01, "ffdhe2048";
        FFDHE3072 = 0x02, "ffdhe3072";
        FFDHE4096 = 0x03, "ffdhe4096";
        FFDHE6144 = 0x04, "ffdhe6144";
        FFDHE8192 = 0x05, "ffdhe8192";
        SECP256R1 = 0x10, "secp256r1";
        SECP384R1 = 0x11, "secp384r1";
        MLKEM768 = 0x20, "ML-KEM-768";
        MLKEM1024 = 0x21, "ML-KEM-1024";
    }
}

impl GroupId {
    /// Bytes of a public value; `None` if the group is unknown or its encoding is not supported.
    #[must_use]
    pub const fn public_len(self) -> Option<usize> {
        match self {
            Self::NULL => Some(0),
            Self::FFDHE2048 => Some(256),
            Self::FFDHE3072 => Some(384),
            Self::FFDHE4096 => Some(512),
            Self::FFDHE6144 => Some(768),
            Self::FFDHE8192 => Some(1024),
            _ => None,
        }
    }
}

numbers! {
    /// Why an authentication failed: the reason code explanation of a failure message.
    Explanation {
        FAILED = 0x01, "authentication failed";
        PROTOCOL_NOT_USABLE = 0x02, "authentication protocol not usable";
        CONCATENATION_MISMATCH = 0x03, "secure channel concatenation mismatch";
        HASH_NOT_USABLE = 0x04, "hash function not usable";
        GROUP_NOT_USABLE = 0x05, "DH group not usable";
        INCORRECT_PAYLOAD = 0x06, "incorrect payload";
        INCORRECT_MESSAGE = 0x07, "incorrect protocol message";
    }
}

/// An Authentication Send or Authentication Receive command. Both have one layout; the length is
/// the transfer length (TL) of a send and the allocation length (AL) of a receive.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AuthCommand {
    /// [`FABRICS`].
    pub opcode: u8,
    /// PSDT and reserved bits.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// [`FcType::AUTH_SEND`] or [`FcType::AUTH_RECEIVE`].
    pub fctype: FcType,
    /// Reserved.
    pub reserved5: [u8; 19],
    /// The location of the message.
    pub sgl: SglDescriptor,
    /// Reserved.
    pub reserved40: u8,
    /// Security protocol specific field 0: 01h.
    pub spsp0: u8,
    /// Security protocol specific field 1: 01h.
    pub spsp1: u8,
    /// Security protocol: E9h, assigned to NVMe.
    pub secp: u8,
    /// Bytes of the message, or of the buffer for it.
    pub len: U32,
    /// Reserved.
    pub reserved48: [u8; 16],
}

const _: () = {
    assert!(size_of::<AuthCommand>() == SQE_LEN);
    assert!(offset_of!(AuthCommand, sgl) == 24);
    assert!(offset_of!(AuthCommand, spsp0) == 41);
    assert!(offset_of!(AuthCommand, secp) == 43);
    assert!(offset_of!(AuthCommand, len) == 44);
};

/// Security protocol of NVMe.
const SECP_NVME: u8 = 0xe9;
/// Security protocol specific field of authentication messages, both bytes.
const SPSP_AUTHENTICATION: u8 = 0x01;

impl AuthCommand {
    /// An Authentication Send of `len` bytes.
    #[must_use]
    pub fn send(len: u32) -> Self {
        Self::new(FcType::AUTH_SEND, len)
    }

    /// An Authentication Receive with room for `len` bytes.
    #[must_use]
    pub fn receive(len: u32) -> Self {
        Self::new(FcType::AUTH_RECEIVE, len)
    }

    fn new(fctype: FcType, len: u32) -> Self {
        Self {
            opcode: FABRICS.0,
            flags: crate::sqe::PSDT_SGL,
            fctype,
            spsp0: SPSP_AUTHENTICATION,
            spsp1: SPSP_AUTHENTICATION,
            secp: SECP_NVME,
            len: U32::new(len),
            ..Self::new_zeroed()
        }
    }

    /// Parses a command whose type is Authentication Send or Authentication Receive.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        zerocopy::transmute!(*sqe)
    }

    /// The command as an entry.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        zerocopy::transmute!(self)
    }

    /// Whether it is about authentication: its security protocol and the specific fields. Others
    /// shall be refused with Invalid Field.
    #[must_use]
    pub fn is_authentication(&self) -> bool {
        (self.secp, self.spsp0, self.spsp1) == (SECP_NVME, SPSP_AUTHENTICATION, SPSP_AUTHENTICATION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_authentication_send_of_linux() {
        let bytes = AuthCommand::send(72).to_sqe().to_bytes();
        assert_eq!(bytes[..8], [0x7f, 0x40, 0, 0, 5, 0, 0, 0]);
        assert_eq!(bytes[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        let parsed = AuthCommand::parse(&AuthCommand::receive(4096).to_sqe());
        assert_eq!(parsed.fctype, FcType::AUTH_RECEIVE);
        assert_eq!(parsed.len.get(), 4096);
        assert!(parsed.is_authentication());
    }

    #[test]
    fn other_security_protocols_are_not_authentication() {
        let wrong: [fn(&mut AuthCommand); 3] = [
            |command| command.secp = 0xea,
            |command| command.spsp0 = 0,
            |command| command.spsp1 = 2,
        ];
        for change in wrong {
            let mut command = AuthCommand::send(72);
            change(&mut command);
            assert!(!command.is_authentication(), "{command:?}");
        }
    }
}
