//! Messages of DH-HMAC-CHAP (NVMe Base 2.0, 8.13.4 and 8.13.5).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Explanation, GroupId, HashId};

/// Bytes of the longest message that is accepted. A Reply of the largest group has 1,168; a
/// Negotiate of this length has 63 descriptors.
pub const MAX_MESSAGE: usize = 4096;

/// The first bytes of every message.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: Kind,
    reserved2: [u8; 2],
    t_id: U16,
}

/// Type (AUTH_TYPE) and identifier (AUTH_ID) of a message.
#[derive(
    Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug,
)]
#[repr(C)]
struct Kind(u8, u8);

impl Kind {
    const NEGOTIATE: Self = Self(0x00, 0x00);
    const FAILURE2: Self = Self(0x00, 0xf0);
    const FAILURE1: Self = Self(0x00, 0xf1);
    const CHALLENGE: Self = Self(0x01, 0x01);
    const REPLY: Self = Self(0x01, 0x02);
    const SUCCESS1: Self = Self(0x01, 0x03);
    const SUCCESS2: Self = Self(0x01, 0x04);
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NegotiateHead {
    header: Header,
    sc_c: u8,
    napd: u8,
}

/// Descriptor of DH-HMAC-CHAP in a Negotiate.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Descriptor {
    authid: u8,
    reserved1: u8,
    halen: u8,
    dhlen: u8,
    hashes: [HashId; LIST],
    groups: [GroupId; LIST],
}

/// Most identifiers of one list.
const LIST: usize = 30;
/// Protocol identifier (AUTHID) of DH-HMAC-CHAP.
const DH_HMAC_CHAP: u8 = 0x01;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChallengeHead {
    header: Header,
    hl: u8,
    reserved7: u8,
    hash: HashId,
    group: GroupId,
    dhvlen: U16,
    seqnum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyHead {
    header: Header,
    hl: u8,
    reserved7: u8,
    cvalid: u8,
    reserved9: u8,
    dhvlen: U16,
    seqnum: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success1Head {
    header: Header,
    hl: u8,
    reserved7: u8,
    rvalid: u8,
    reserved9: [u8; 7],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success2Head {
    header: Header,
    reserved6: [u8; 10],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FailureBytes {
    header: Header,
    reason: u8,
    explanation: Explanation,
}

/// The only reason code: authentication failure.
const REASON: u8 = 0x01;

const _: () = {
    assert!(offset_of!(Header, t_id) == 4);
    assert!(size_of::<Header>() == 6);
    assert!(size_of::<NegotiateHead>() == 8);
    assert!(size_of::<Descriptor>() == 64);
    assert!(offset_of!(Descriptor, hashes) == 4);
    assert!(offset_of!(Descriptor, groups) == 34);
    assert!(size_of::<ChallengeHead>() == 16);
    assert!(offset_of!(ChallengeHead, hash) == 8);
    assert!(offset_of!(ChallengeHead, dhvlen) == 10);
    assert!(offset_of!(ChallengeHead, seqnum) == 12);
    assert!(size_of::<ReplyHead>() == 16);
    assert!(offset_of!(ReplyHead, cvalid) == 8);
    assert!(offset_of!(ReplyHead, dhvlen) == 10);
    assert!(offset_of!(ReplyHead, seqnum) == 12);
    assert!(size_of::<Success1Head>() == 16);
    assert!(offset_of!(Success1Head, rvalid) == 8);
    assert!(size_of::<Success2Head>() == 16);
    assert!(size_of::<FailureBytes>() == 8);
    assert!(offset_of!(FailureBytes, reason) == 6);
};

/// Why bytes are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// A length that does not agree with the bytes, or an undefined value of a field.
    Payload,
    /// Undefined type or identifier.
    Kind,
}

impl MessageError {
    /// What a failure message says of it.
    #[must_use]
    pub fn explanation(self) -> Explanation {
        match self {
            Self::Payload => Explanation::INCORRECT_PAYLOAD,
            Self::Kind => Explanation::INCORRECT_MESSAGE,
        }
    }
}

/// A message, parsed. Its parts refer to the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// What the host supports.
    Negotiate(Negotiate<'a>),
    /// The choices and the challenge of the controller.
    Challenge(Challenge<'a>),
    /// The response of the host.
    Reply(Reply<'a>),
    /// The controller has authenticated the host.
    Success1(Success1<'a>),
    /// The host has authenticated the controller.
    Success2(Success2),
    /// The transaction failed.
    Failure(Failure),
}

/// AUTH_Negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// Transaction identifier.
    pub t_id: u16,
    /// Secure channel concatenation (SC_C); 0: none.
    pub sc_c: u8,
    /// Hash functions, the preferred first, empty if DH-HMAC-CHAP is not offered.
    pub hashes: &'a [HashId],
    /// Groups, the preferred first.
    pub groups: &'a [GroupId],
    /// Whether DH-HMAC-CHAP is offered.
    pub is_offered: bool,
}

/// DH-HMAC-CHAP_Challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Transaction identifier.
    pub t_id: u16,
    /// The hash function to use.
    pub hash: HashId,
    /// The group to use.
    pub group: GroupId,
    /// Sequence number S1.
    pub seqnum: u32,
    /// Challenge value C1, as long as the hash.
    pub challenge: &'a [u8],
    /// Public value of the controller, empty for the NULL group.
    pub public: &'a [u8],
}

/// DH-HMAC-CHAP_Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction identifier.
    pub t_id: u16,
    /// Sequence number S2; 0 if the host sends no challenge.
    pub seqnum: u32,
    /// Response value R1, as long as the hash.
    pub response: &'a [u8],
    /// Challenge value C2; `None` if the host does not authenticate the controller.
    pub challenge: Option<&'a [u8]>,
    /// Public value of the host, empty for the NULL group.
    pub public: &'a [u8],
}

/// DH-HMAC-CHAP_Success1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Transaction identifier.
    pub t_id: u16,
    /// Hash length (HL).
    pub hash_len: u8,
    /// Response value R2; `None` if the host sent no challenge.
    pub response: Option<&'a [u8]>,
}

/// DH-HMAC-CHAP_Success2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success2 {
    /// Transaction identifier.
    pub t_id: u16,
}

/// AUTH_Failure1 and AUTH_Failure2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Transaction identifier.
    pub t_id: u16,
    /// The sender.
    pub side: FailureSide,
    /// Why it failed.
    pub explanation: Explanation,
}

/// The sender of a failure message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureSide {
    /// AUTH_Failure1.
    Controller,
    /// AUTH_Failure2.
    Host,
}

impl<'a> Message<'a> {
    /// Parses a message at the start of `bytes`. Bytes after it are ignored: a buffer may be longer
    /// than its message.
    ///
    /// # Errors
    /// [`MessageError`]: an unknown message, or one that is longer than `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (header, _) = Header::read_from_prefix(bytes).map_err(|_| MessageError::Payload)?;
        match header.kind {
            Kind::NEGOTIATE => Negotiate::parse(bytes).map(Self::Negotiate),
            Kind::CHALLENGE => Challenge::parse(bytes).map(Self::Challenge),
            Kind::REPLY => Reply::parse(bytes).map(Self::Reply),
            Kind::SUCCESS1 => Success1::parse(bytes).map(Self::Success1),
            Kind::SUCCESS2 => {
                let (head, _) = head::<Success2Head>(bytes)?;
                let t_id = head.header.t_id.get();
                Ok(Self::Success2(Success2 { t_id }))
            }
            Kind::FAILURE1 => Failure::parse(bytes, FailureSide::Controller).map(Self::Failure),
            Kind::FAILURE2 => Failure::parse(bytes, FailureSide::Host).map(Self::Failure),
            _ => Err(MessageError::Kind),
        }
    }

    /// Transaction identifier at the start of `bytes`, of whatever message; `None` if they are too
    /// short to have one.
    #[must_use]
    pub fn t_id(bytes: &[u8]) -> Option<u16> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        Some(header.t_id.get())
    }

    /// Its name in the specification.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Negotiate(_) => "AUTH_Negotiate",
            Self::Challenge(_) => "DH-HMAC-CHAP_Challenge",
            Self::Reply(_) => "DH-HMAC-CHAP_Reply",
            Self::Success1(_) => "DH-HMAC-CHAP_Success1",
            Self::Success2(_) => "DH-HMAC-CHAP_Success2",
            Self::Failure(failure) => match failure.side {
                FailureSide::Controller => "AUTH_Failure1",
                FailureSide::Host => "AUTH_Failure2",
            },
        }
    }
}

/// The fixed part of a message and what follows it.
fn head<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), MessageError> {
    T::ref_from_prefix(bytes).map_err(|_| MessageError::Payload)
}

/// The next `len` bytes and what follows them.
fn take(bytes: &[u8], len: usize) -> Result<(&[u8], &[u8]), MessageError> {
    bytes.split_at_checked(len).ok_or(MessageError::Payload)
}

/// Writes the parts of a message to the start of `buf`; their length, or `None` if `buf` is
/// shorter.
fn write(buf: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut at = 0usize;
    for part in parts {
        let end = at.checked_add(part.len())?;
        buf.get_mut(at..end)?.copy_from_slice(part);
        at = end;
    }
    Some(at)
}

fn header(kind: Kind, t_id: u16) -> Header {
    Header {
        kind,
        reserved2: [0; 2],
        t_id: U16::new(t_id),
    }
}

fn byte(len: usize) -> Option<u8> {
    u8::try_from(len).ok()
}

impl<'a> Negotiate<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head::<NegotiateHead>(bytes)?;
        let count = usize::from(head.napd);
        let len = count * size_of::<Descriptor>();
        let (descriptors, _) = take(rest, len)?;
        let none = Self {
            t_id: head.header.t_id.get(),
            sc_c: head.sc_c,
            hashes: &[],
            groups: &[],
            is_offered: false,
        };
        for bytes in descriptors.chunks_exact(size_of::<Descriptor>()) {
            let (descriptor, _) = self::head::<Descriptor>(bytes)?;
            if descriptor.authid != DH_HMAC_CHAP {
                continue;
            }
            let hashes = descriptor.hashes.get(..descriptor.halen.into());
            let groups = descriptor.groups.get(..descriptor.dhlen.into());
            return Ok(Self {
                hashes: hashes.ok_or(MessageError::Payload)?,
                groups: groups.ok_or(MessageError::Payload)?,
                is_offered: true,
                ..none
            });
        }
        Ok(none)
    }

    /// Writes the message with one descriptor. Returns its length; `None` if `buf` is too short or
    /// a list is too long.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        let mut descriptor = Descriptor::new_zeroed();
        descriptor.authid = DH_HMAC_CHAP;
        descriptor.halen = byte(self.hashes.len())?;
        descriptor.dhlen = byte(self.groups.len())?;
        let (hashes, groups) = (&mut descriptor.hashes, &mut descriptor.groups);
        hashes
            .get_mut(..self.hashes.len())?
            .copy_from_slice(self.hashes);
        groups
            .get_mut(..self.groups.len())?
            .copy_from_slice(self.groups);
        let head = NegotiateHead {
            header: header(Kind::NEGOTIATE, self.t_id),
            sc_c: self.sc_c,
            napd: 1,
        };
        write(buf, &[head.as_bytes(), descriptor.as_bytes()])
    }
}

impl<'a> Challenge<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head::<ChallengeHead>(bytes)?;
        let (challenge, rest) = take(rest, head.hl.into())?;
        let (public, _) = take(rest, head.dhvlen.get().into())?;
        Ok(Self {
            t_id: head.header.t_id.get(),
            hash: head.hash,
            group: head.group,
            seqnum: head.seqnum.get(),
            challenge,
            public,
        })
    }

    /// Writes the message. Returns its length; `None` if `buf` is too short or a value too long.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        let head = ChallengeHead {
            header: header(Kind::CHALLENGE, self.t_id),
            hl: byte(self.challenge.len())?,
            reserved7: 0,
            hash: self.hash,
            group: self.group,
            dhvlen: U16::new(u16::try_from(self.public.len()).ok()?),
            seqnum: U32::new(self.seqnum),
        };
        write(buf, &[head.as_bytes(), self.challenge, self.public])
    }
}

impl<'a> Reply<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head::<ReplyHead>(bytes)?;
        let (response, rest) = take(rest, head.hl.into())?;
        // Present even if it is not valid.
        let (challenge, rest) = take(rest, head.hl.into())?;
        let (public, _) = take(rest, head.dhvlen.get().into())?;
        let challenge = match head.cvalid {
            0 => None,
            1 => Some(challenge),
            _ => return Err(MessageError::Payload),
        };
        Ok(Self {
            t_id: head.header.t_id.get(),
            seqnum: head.seqnum.get(),
            response,
            challenge,
            public,
        })
    }

    /// Writes the message. Returns its length; `None` if `buf` is too short, a value is too long,
    /// or the challenge is not as long as the response.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        const ZEROES: [u8; 64] = [0; 64];
        let head = ReplyHead {
            header: header(Kind::REPLY, self.t_id),
            hl: byte(self.response.len())?,
            reserved7: 0,
            cvalid: self.challenge.is_some().into(),
            reserved9: 0,
            dhvlen: U16::new(u16::try_from(self.public.len()).ok()?),
            seqnum: U32::new(self.seqnum),
        };
        let challenge = match self.challenge {
            Some(challenge) => challenge,
            None => ZEROES.get(..self.response.len())?,
        };
        if challenge.len() != self.response.len() {
            return None;
        }
        write(
            buf,
            &[head.as_bytes(), self.response, challenge, self.public],
        )
    }
}

impl<'a> Success1<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head::<Success1Head>(bytes)?;
        let response = match head.rvalid {
            0 => None,
            1 => Some(take(rest, head.hl.into())?.0),
            _ => return Err(MessageError::Payload),
        };
        Ok(Self {
            t_id: head.header.t_id.get(),
            hash_len: head.hl,
            response,
        })
    }

    /// Writes the message. Returns its length; `None` if `buf` is too short or the response is not
    /// as long as the hash.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        let response = self.response.unwrap_or_default();
        if self.response.is_some() && response.len() != usize::from(self.hash_len) {
            return None;
        }
        let head = Success1Head {
            header: header(Kind::SUCCESS1, self.t_id),
            hl: self.hash_len,
            reserved7: 0,
            rvalid: self.response.is_some().into(),
            reserved9: [0; 7],
        };
        write(buf, &[head.as_bytes(), response])
    }
}

impl Success2 {
    /// Writes the message. Returns its length; `None` if `buf` is too short.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        let head = Success2Head {
            header: header(Kind::SUCCESS2, self.t_id),
            reserved6: [0; 10],
        };
        write(buf, &[head.as_bytes()])
    }
}

impl Failure {
    fn parse(bytes: &[u8], side: FailureSide) -> Result<Self, MessageError> {
        let (bytes, _) = head::<FailureBytes>(bytes)?;
        if bytes.reason != REASON {
            return Err(MessageError::Payload);
        }
        Ok(Self {
            t_id: bytes.header.t_id.get(),
            side,
            explanation: bytes.explanation,
        })
    }

    /// Writes the message. Returns its length; `None` if `buf` is too short.
    #[must_use]
    pub fn write(&self, buf: &mut [u8]) -> Option<usize> {
        let kind = match self.side {
            FailureSide::Controller => Kind::FAILURE1,
            FailureSide::Host => Kind::FAILURE2,
        };
        let bytes = FailureBytes {
            header: header(kind, self.t_id),
            reason: REASON,
            explanation: self.explanation,
        };
        write(buf, &[bytes.as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// The bytes of `message`, written.
    fn written(message: &Message<'_>) -> Option<Vec<u8>> {
        let mut buf = vec![0xa5; MAX_MESSAGE];
        let len = match message {
            Message::Negotiate(one) => one.write(&mut buf),
            Message::Challenge(one) => one.write(&mut buf),
            Message::Reply(one) => one.write(&mut buf),
            Message::Success1(one) => one.write(&mut buf),
            Message::Success2(one) => one.write(&mut buf),
            Message::Failure(one) => one.write(&mut buf),
        }?;
        buf.truncate(len);
        Some(buf)
    }

    const HASHES: [HashId; 3] = [HashId::SHA256, HashId::SHA384, HashId::SHA512];
    const GROUPS: [GroupId; 6] = [
        GroupId::NULL,
        GroupId::FFDHE2048,
        GroupId::FFDHE3072,
        GroupId::FFDHE4096,
        GroupId::FFDHE6144,
        GroupId::FFDHE8192,
    ];

    fn negotiate() -> Message<'static> {
        Message::Negotiate(Negotiate {
            t_id: 0x1234,
            sc_c: 0,
            hashes: &HASHES,
            groups: &GROUPS,
            is_offered: true,
        })
    }

    #[test]
    fn golden_negotiate_of_linux() {
        let bytes = written(&negotiate()).unwrap();
        assert_eq!(bytes.len(), 72);
        assert_eq!(
            bytes[..16],
            [0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 3, 6, 1, 2, 3, 0]
        );
        assert_eq!(bytes[42..50], [0, 1, 2, 3, 4, 5, 0, 0]);
    }

    #[test]
    fn golden_heads() {
        let challenge = Message::Challenge(Challenge {
            t_id: 2,
            hash: HashId::SHA256,
            group: GroupId::FFDHE2048,
            seqnum: 7,
            challenge: &[0x11; 32],
            public: &[0x22; 256],
        });
        let bytes = written(&challenge).unwrap();
        assert_eq!(
            bytes[..16],
            [1, 1, 0, 0, 2, 0, 32, 0, 1, 1, 0, 1, 7, 0, 0, 0]
        );
        let reply = Message::Reply(Reply {
            t_id: 2,
            seqnum: 0,
            response: &[0x33; 32],
            challenge: None,
            public: &[],
        });
        let bytes = written(&reply).unwrap();
        assert_eq!(bytes.len(), 16 + 2 * 32);
        assert_eq!(
            bytes[..16],
            [1, 2, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let failure = Message::Failure(Failure {
            t_id: 3,
            side: FailureSide::Controller,
            explanation: Explanation::INCORRECT_PAYLOAD,
        });
        assert_eq!(written(&failure).unwrap(), [0, 0xf1, 0, 0, 3, 0, 1, 6]);
    }

    #[test]
    fn message_that_is_cut_anywhere_is_incorrect_payload() {
        let messages = [
            negotiate(),
            Message::Challenge(Challenge {
                t_id: 1,
                hash: HashId::SHA384,
                group: GroupId::FFDHE2048,
                seqnum: 1,
                challenge: &[1; 48],
                public: &[2; 256],
            }),
            Message::Reply(Reply {
                t_id: 1,
                seqnum: 2,
                response: &[1; 48],
                challenge: Some(&[3; 48]),
                public: &[2; 256],
            }),
            Message::Success1(Success1 {
                t_id: 1,
                hash_len: 48,
                response: Some(&[9; 48]),
            }),
            Message::Success2(Success2 { t_id: 1 }),
            Message::Failure(Failure {
                t_id: 1,
                side: FailureSide::Host,
                explanation: Explanation::FAILED,
            }),
        ];
        for message in &messages {
            let bytes = written(message).unwrap();
            for len in 0..bytes.len() {
                let cut = Message::parse(&bytes[..len]);
                assert_eq!(cut, Err(MessageError::Payload), "{}, {len}", message.name());
            }
            let mut longer = bytes.clone();
            longer.push(0xff);
            assert_eq!(Message::parse(&longer), Ok(*message));
        }
    }

    #[test]
    fn lengths_beyond_their_list_are_incorrect_payload() {
        let mut bytes = written(&negotiate()).unwrap();
        for (at, value) in [(7, 2), (10, 31), (11, 31), (10, 255)] {
            let before = bytes[at];
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes), Err(MessageError::Payload), "{at}");
            bytes[at] = before;
        }
        // A descriptor of another protocol offers nothing.
        bytes[8] = 2;
        let Ok(Message::Negotiate(other)) = Message::parse(&bytes) else {
            panic!("no Negotiate");
        };
        assert!(!other.is_offered && other.hashes.is_empty());
    }

    #[test]
    fn undefined_flags_and_kinds_are_refused() {
        let reply = Message::Reply(Reply {
            t_id: 1,
            seqnum: 2,
            response: &[1; 32],
            challenge: Some(&[3; 32]),
            public: &[],
        });
        let mut bytes = written(&reply).unwrap();
        bytes[8] = 2;
        assert_eq!(Message::parse(&bytes), Err(MessageError::Payload));
        bytes[8] = 1;
        for kind in [(0, 1), (1, 0), (1, 5), (2, 0), (0, 0xf2)] {
            (bytes[0], bytes[1]) = kind;
            assert_eq!(Message::parse(&bytes), Err(MessageError::Kind));
        }
    }

    proptest! {
        /// Parsing never panics, and what it accepts is written as it was.
        #[test]
        fn accepted_bytes_round_trip(
            kind in prop_oneof![
                Just((0u8, 0u8)), Just((0, 0xf0)), Just((0, 0xf1)), Just((1, 1)), Just((1, 2)),
                Just((1, 3)), Just((1, 4)), any::<(u8, u8)>()
            ],
            small in prop::collection::vec(0u8..70, 14),
            rest in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut bytes = vec![kind.0, kind.1];
            bytes.extend(small);
            bytes.extend(rest);
            if let Ok(message) = Message::parse(&bytes) {
                // Several descriptors, or none, are not written again.
                if let Some(written) = written(&message)
                    && matches!(message, Message::Negotiate(one) if !one.is_offered)
                        .then_some(())
                        .is_none()
                {
                    prop_assert_eq!(Message::parse(&written), Ok(message));
                }
            }
        }
    }
}
