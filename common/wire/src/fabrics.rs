//! Fabrics commands (Base 2.0, 6): Connect, Property Get and Set, Disconnect.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::nqn::NQN_FIELD;
use crate::opcode::FABRICS;
use crate::registers::{Property, PropertyValue};
use crate::sgl::SglDescriptor;
use crate::sqe::{PSDT_SGL, SQE_LEN};
use crate::{Nqn, Sqe};

/// Fabrics command type (FCTYPE), byte 4 of the entry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct FcType(pub u8);

impl FcType {
    /// Property Set.
    pub const PROPERTY_SET: Self = Self(0x00);
    /// Connect.
    pub const CONNECT: Self = Self(0x01);
    /// Property Get.
    pub const PROPERTY_GET: Self = Self(0x04);
    /// Authentication Send.
    pub const AUTH_SEND: Self = Self(0x05);
    /// Authentication Receive.
    pub const AUTH_RECEIVE: Self = Self(0x06);
    /// Disconnect.
    pub const DISCONNECT: Self = Self(0x08);

    /// The name as in the specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PROPERTY_SET => "Property Set",
            Self::CONNECT => "Connect",
            Self::PROPERTY_GET => "Property Get",
            Self::AUTH_SEND => "Authentication Send",
            Self::AUTH_RECEIVE => "Authentication Receive",
            Self::DISCONNECT => "Disconnect",
            _ => "unknown Fabrics command",
        }
    }

    /// The type of a command whose opcode is [`FABRICS`].
    #[must_use]
    pub fn of(sqe: &Sqe) -> Self {
        let [fctype, ..] = sqe.nsid.to_bytes();
        Self(fctype)
    }
}

/// CNTLID of a Connect that requests a new controller (the dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// CNTLID of a Connect that requests any existing static controller.
pub const CNTLID_ANY_STATIC: u16 = 0xfffe;

/// The Connect command.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Connect {
    /// [`FABRICS`].
    pub opcode: u8,
    /// PSDT and reserved bits.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// [`FcType::CONNECT`].
    pub fctype: FcType,
    /// Reserved.
    pub reserved5: [u8; 19],
    /// The location of [`ConnectData`].
    pub sgl: SglDescriptor,
    /// Record format: 0.
    pub recfmt: U16,
    /// Queue identifier: 0 for the admin queue.
    pub qid: U16,
    /// Submission queue size, zero-based.
    pub sqsize: U16,
    /// Connect attributes.
    pub cattr: u8,
    /// Reserved.
    pub reserved47: u8,
    /// Keep alive timeout in milliseconds, 0 for none; admin queue only.
    pub kato: U32,
    /// Reserved.
    pub reserved52: [u8; 12],
}

/// Connect attribute: disable submission queue flow control (CATTR bit 2).
pub const CATTR_NO_SQ_FLOW: u8 = 1 << 2;

const _: () = {
    assert!(size_of::<Connect>() == SQE_LEN);
    assert!(offset_of!(Connect, sgl) == 24);
    assert!(offset_of!(Connect, recfmt) == 40);
    assert!(offset_of!(Connect, qid) == 42);
    assert!(offset_of!(Connect, sqsize) == 44);
    assert!(offset_of!(Connect, cattr) == 46);
    assert!(offset_of!(Connect, kato) == 48);
};

/// The data of a Connect command: 1024 bytes.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier: 16 bytes, not all zero.
    pub hostid: [u8; 16],
    /// Controller identifier.
    pub cntlid: U16,
    /// Reserved.
    pub reserved18: [u8; 238],
    /// NQN of the subsystem.
    pub subnqn: [u8; NQN_FIELD],
    /// NQN of the host.
    pub hostnqn: [u8; NQN_FIELD],
    /// Reserved.
    pub reserved768: [u8; 256],
}

/// Length of the connect data in bytes.
pub const CONNECT_DATA_LEN: usize = 1024;

const _: () = {
    assert!(size_of::<ConnectData>() == CONNECT_DATA_LEN);
    assert!(offset_of!(ConnectData, cntlid) == 16);
    assert!(offset_of!(ConnectData, subnqn) == 256);
    assert!(offset_of!(ConnectData, hostnqn) == 512);
};

/// The location of an invalid parameter: the result of a Connect that failed with Connect
/// Invalid Parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParameter {
    /// Byte offset in the submission queue entry (IATTR 0).
    InCommand(u16),
    /// Byte offset in the connect data (IATTR 1).
    InData(u16),
}

impl InvalidParameter {
    /// As the result of the completion: IPO in bits 15:0, IATTR in bit 16.
    #[must_use]
    pub fn to_result(self) -> u64 {
        match self {
            Self::InCommand(offset) => u64::from(offset),
            Self::InData(offset) => u64::from(offset) | (1 << 16),
        }
    }

    /// From the result of a completion.
    #[must_use]
    pub fn from_result(result: u64) -> Self {
        let [low, high, iattr, ..] = result.to_le_bytes();
        let offset = u16::from_le_bytes([low, high]);
        if iattr & 1 == 0 {
            Self::InCommand(offset)
        } else {
            Self::InData(offset)
        }
    }

    /// The name of the field, if it is one of Connect.
    #[must_use]
    pub fn field(self) -> &'static str {
        match self {
            Self::InCommand(40) => "RECFMT (record format)",
            Self::InCommand(42) => "QID (queue identifier)",
            Self::InCommand(44) => "SQSIZE (queue size)",
            Self::InCommand(46) => "CATTR (connect attributes)",
            Self::InCommand(48) => "KATO (keep alive timeout)",
            Self::InData(0) => "HOSTID (host identifier)",
            Self::InData(16) => "CNTLID (controller identifier)",
            Self::InData(256) => "SUBNQN (name of the subsystem)",
            Self::InData(512) => "HOSTNQN (name of the host)",
            _ => "an unknown field",
        }
    }
}

/// Result of a Connect that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// Controller identifier.
    pub cntlid: u16,
    /// Authentication requirements (AUTHREQ), bits 31:16 of the result.
    pub authreq: u16,
}

/// AUTHREQ, authentication and a secure channel are required (ASCR).
const ASCR: u16 = 1 << 2;
/// AUTHREQ, authentication is required (ATR).
const ATR: u16 = 1 << 1;

impl ConnectResult {
    /// That of controller `cntlid`; whether the host has to authenticate the queue.
    #[must_use]
    pub fn new(cntlid: u16, authenticate: bool) -> Self {
        Self {
            cntlid,
            authreq: if authenticate { ATR } else { 0 },
        }
    }

    /// Whether the queue has to be authenticated.
    #[must_use]
    pub fn requires_authentication(self) -> bool {
        self.authreq & ATR != 0
    }

    /// Whether the queue has to be authenticated and encrypted.
    #[must_use]
    pub fn requires_secure_channel(self) -> bool {
        self.authreq & ASCR != 0
    }

    /// As the result of the completion.
    #[must_use]
    pub fn to_result(self) -> u64 {
        u64::from(self.cntlid) | (u64::from(self.authreq) << 16)
    }

    /// From the result of a completion.
    #[must_use]
    pub fn from_result(result: u64) -> Self {
        let [c0, c1, a0, a1, ..] = result.to_le_bytes();
        Self {
            cntlid: u16::from_le_bytes([c0, c1]),
            authreq: u16::from_le_bytes([a0, a1]),
        }
    }
}

impl Connect {
    /// A Connect of queue `qid` with `entries` entries.
    #[must_use]
    pub fn new(qid: u16, entries: u16, kato_ms: u32) -> Self {
        Self {
            opcode: FABRICS.0,
            flags: PSDT_SGL,
            fctype: FcType::CONNECT,
            qid: U16::new(qid),
            sqsize: U16::new(entries.saturating_sub(1)),
            kato: U32::new(kato_ms),
            ..Self::new_zeroed()
        }
    }

    /// Parses a command whose type is Connect.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        zerocopy::transmute!(*sqe)
    }

    /// The command as an entry.
    #[must_use]
    pub fn to_sqe(self) -> Sqe {
        zerocopy::transmute!(self)
    }

    /// Entries of the queue; `None` if SQSIZE is FFFFh, because the count needs more than
    /// 16 bits.
    #[must_use]
    pub fn entries(&self) -> Option<u16> {
        self.sqsize.get().checked_add(1)
    }
}

impl ConnectData {
    /// The data for a Connect to `subnqn`.
    #[must_use]
    pub fn new(hostid: [u8; 16], cntlid: u16, subnqn: &Nqn, hostnqn: &Nqn) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid),
            reserved18: [0; 238],
            subnqn: subnqn.to_field(),
            hostnqn: hostnqn.to_field(),
            reserved768: [0; 256],
        }
    }
}

/// A Property Get or Set, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// Whether the property has 8 bytes instead of 4 (ATTRIB bits 2:0, 001b).
    pub eight_bytes: bool,
    /// Whether the size in ATTRIB is neither 4 nor 8 bytes.
    pub bad_size: bool,
    /// The property.
    pub property: Property,
    /// Value to set; 0 in a Property Get.
    pub value: u64,
}

impl PropertyAccess {
    /// Parses a command whose type is Property Get or Property Set: ATTRIB is byte 40,
    /// OFST bytes 47:44, VALUE bytes 55:48.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [attrib, ..] = sqe.cdw10.to_bytes();
        let value = u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32);
        Self {
            eight_bytes: attrib & 0x7 == 1,
            bad_size: attrib & 0x7 > 1,
            property: Property::new(sqe.cdw11.get()),
            value,
        }
    }

    fn command(fctype: FcType, property: Property, eight_bytes: bool) -> Sqe {
        let mut sqe = Sqe::new(FABRICS);
        sqe.nsid = U32::new(u32::from(fctype.0));
        sqe.cdw10 = U32::new(u32::from(eight_bytes));
        sqe.cdw11 = U32::new(property.offset());
        sqe
    }

    /// A Property Get.
    #[must_use]
    pub fn get(property: Property, eight_bytes: bool) -> Sqe {
        Self::command(FcType::PROPERTY_GET, property, eight_bytes)
    }

    /// A Property Set.
    #[must_use]
    pub fn set(property: Property, value: PropertyValue) -> Sqe {
        let eight = matches!(value, PropertyValue::Qword(_));
        let mut sqe = Self::command(FcType::PROPERTY_SET, property, eight);
        let [a, b, c, d, e, f, g, h] = U64::new(value.to_u64()).to_bytes();
        sqe.cdw12 = U32::from_bytes([a, b, c, d]);
        sqe.cdw13 = U32::from_bytes([e, f, g, h]);
        sqe
    }
}

/// A Disconnect command (record format 0).
#[must_use]
pub fn disconnect() -> Sqe {
    let mut sqe = Sqe::new(FABRICS);
    sqe.nsid = U32::new(u32::from(FcType::DISCONNECT.0));
    sqe
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_connect_of_linux() {
        let mut connect = Connect::new(0, 32, 5_000);
        connect.cid = U16::new(0);
        let bytes = connect.to_sqe().to_bytes();
        assert_eq!(bytes[..8], [0x7f, 0x40, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes[40..52], [0, 0, 0, 0, 31, 0, 0, 0, 0x88, 0x13, 0, 0]);
        assert_eq!(FcType::of(&connect.to_sqe()), FcType::CONNECT);
        assert_eq!(Connect::parse(&connect.to_sqe()), connect);
    }

    #[test]
    fn invalid_parameter_results_round_trip() {
        let bad = InvalidParameter::InData(256);
        assert_eq!(bad.to_result(), 0x1_0100);
        assert_eq!(InvalidParameter::from_result(0x1_0100), bad);
        assert_eq!(bad.field(), "SUBNQN (name of the subsystem)");
        let good = ConnectResult {
            cntlid: 7,
            authreq: 2,
        };
        assert_eq!(ConnectResult::from_result(good.to_result()), good);
        // Bits 17 (ATR) and 18 (ASCR) of the result.
        assert_eq!(ConnectResult::new(7, true).to_result(), 0x2_0007);
        let of = ConnectResult::from_result;
        assert!(of(1 << 17).requires_authentication() && of(1 << 18).requires_secure_channel());
        assert!(!of(0xffff).requires_authentication() && !of(0xffff).requires_secure_channel());
    }

    #[test]
    fn golden_property_set() {
        let sqe = PropertyAccess::set(Property::CC, PropertyValue::Dword(0x0046_0001));
        let bytes = sqe.to_bytes();
        assert_eq!((bytes[0], bytes[4], bytes[40]), (0x7f, 0, 0));
        assert_eq!(bytes[44..56], [0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        let get = PropertyAccess::parse(&PropertyAccess::get(Property::CAP, true));
        assert!(get.eight_bytes && !get.bad_size && get.property == Property::CAP);
    }

    #[test]
    fn largest_sqsize_has_no_entry_count() {
        let mut connect = Connect::new(1, 128, 0);
        assert_eq!(connect.entries(), Some(128));
        connect.sqsize = U16::new(0xffff);
        assert_eq!(connect.entries(), None);
    }

    proptest! {
        #[test]
        fn any_entry_round_trips(bytes: [[u8; 32]; 2]) {
            let bytes: [u8; 64] = zerocopy::transmute!(bytes);
            let sqe = Sqe::from_capsule(&bytes).unwrap();
            prop_assert_eq!(Connect::parse(&sqe).to_sqe(), sqe);
            let access = PropertyAccess::parse(&sqe);
            let value = if access.eight_bytes {
                PropertyValue::Qword(access.value)
            } else {
                PropertyValue::Dword(sqe.cdw12.get())
            };
            let again = PropertyAccess::parse(&PropertyAccess::set(access.property, value));
            prop_assert_eq!(again.property, access.property);
            prop_assert_eq!(again.value, value.to_u64());
        }
    }
}
