//! SGL descriptors (NVMe Base 2.0, 4.1.2; keyed ones for the RDMA transport).

use core::mem::offset_of;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::status::Status;

/// Length of a descriptor in bytes.
pub const SGL_LEN: usize = 16;

/// A descriptor as it is on the wire: an address or offset, seven bytes that
/// depend on the type, and the identifier byte (type 7:4, subtype 3:0).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address or offset.
    pub address: U64,
    /// Length, and the key of a keyed descriptor.
    pub specific: [u8; 7],
    /// Type and subtype.
    pub identifier: u8,
}

const _: () = {
    assert!(size_of::<SglDescriptor>() == SGL_LEN);
    assert!(offset_of!(SglDescriptor, identifier) == 15);
};

/// Identifier: data block (0h), address (0h).
pub const DATA_BLOCK_ADDRESS: u8 = 0x00;
/// Identifier: data block (0h), offset (1h): data inside the capsule.
pub const DATA_BLOCK_OFFSET: u8 = 0x01;
/// Identifier: last segment (3h), offset (1h): descriptors inside the capsule.
pub const LAST_SEGMENT_OFFSET: u8 = 0x31;
/// Identifier: keyed data block (4h), address (0h).
pub const KEYED: u8 = 0x40;
/// Identifier: keyed data block (4h), transport specific subtype Fh: as
/// [`KEYED`], and the controller invalidates the key with its response (NVMe
/// RDMA transport, "Invalidate Key").
pub const KEYED_INVALIDATE: u8 = 0x4f;

/// Largest length of a keyed descriptor: it has 24 bits for it.
pub const KEYED_LEN_MAX: u32 = 0x00ff_ffff;

/// A descriptor, parsed into what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// Memory of the host, reached by RDMA with a key.
    Keyed {
        /// Address in the host's terms.
        addr: u64,
        /// Length in bytes, below 2^24.
        len: u32,
        /// Remote key.
        key: u32,
        /// Whether the controller has to invalidate the key when it responds.
        invalidate: bool,
    },
    /// Data inside the capsule.
    InCapsule {
        /// Bytes from where in-capsule data starts.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// A list of descriptors inside the capsule, the last of its kind.
    LastSegment {
        /// Bytes from where in-capsule data starts.
        offset: u64,
        /// Length of the list in bytes.
        len: u32,
    },
    /// No data: all 16 bytes zero, an unkeyed data block of length 0.
    None,
}

impl SglDescriptor {
    /// The descriptor that stands for no data.
    #[must_use]
    pub fn none() -> Self {
        Self::new_zeroed()
    }

    /// `specific` has 56 bits. Two words, so that they are stored as such.
    #[inline]
    fn new(address: u64, specific: u64, identifier: u8) -> Self {
        let word = specific | u64::from(identifier) << 56;
        zerocopy::transmute!([U64::new(address), U64::new(word)])
    }

    /// Length of an unkeyed descriptor.
    fn len32(&self) -> u32 {
        let [a, b, c, d, ..] = self.specific;
        u32::from_le_bytes([a, b, c, d])
    }
}

impl Sgl {
    /// Memory of the host, whose key the controller does not invalidate.
    #[inline]
    #[must_use]
    pub const fn keyed(addr: u64, len: u32, key: u32) -> Self {
        Self::Keyed {
            addr,
            len,
            key,
            invalidate: false,
        }
    }

    /// Parses a descriptor.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid for a type that the RDMA transport does not define,
    /// and for an unkeyed address, which no fabric supports.
    pub fn parse(raw: &SglDescriptor) -> Result<Self, Status> {
        let address = raw.address.get();
        let len = raw.len32();
        match raw.identifier {
            KEYED | KEYED_INVALIDATE => {
                // A length of 3 bytes, then the key.
                let [_, _, _, k0, k1, k2, k3] = raw.specific;
                Ok(Self::Keyed {
                    addr: address,
                    len: len & KEYED_LEN_MAX,
                    key: u32::from_le_bytes([k0, k1, k2, k3]),
                    invalidate: raw.identifier == KEYED_INVALIDATE,
                })
            }
            DATA_BLOCK_OFFSET => Ok(Self::InCapsule {
                offset: address,
                len,
            }),
            LAST_SEGMENT_OFFSET => Ok(Self::LastSegment {
                offset: address,
                len,
            }),
            DATA_BLOCK_ADDRESS if len == 0 => Ok(Self::None),
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID),
        }
    }

    /// The descriptor as it goes on the wire. The length of a keyed one is cut
    /// to its 24 bits: callers keep it below [`KEYED_LEN_MAX`].
    #[must_use]
    pub fn to_descriptor(self) -> SglDescriptor {
        match self {
            Self::Keyed {
                addr,
                len,
                key,
                invalidate,
            } => {
                debug_assert!(len <= KEYED_LEN_MAX, "a keyed length has 24 bits");
                let len = u64::from(len & KEYED_LEN_MAX);
                let identifier = if invalidate { KEYED_INVALIDATE } else { KEYED };
                SglDescriptor::new(addr, len | u64::from(key) << 24, identifier)
            }
            Self::InCapsule { offset, len } => {
                SglDescriptor::new(offset, len.into(), DATA_BLOCK_OFFSET)
            }
            Self::LastSegment { offset, len } => {
                SglDescriptor::new(offset, len.into(), LAST_SEGMENT_OFFSET)
            }
            Self::None => SglDescriptor::none(),
        }
    }

    /// Length of the data in bytes; 0 for a list, where its descriptors specify it.
    #[must_use]
    pub fn data_len(&self) -> u32 {
        match self {
            Self::Keyed { len, .. } | Self::InCapsule { len, .. } => *len,
            Self::LastSegment { .. } | Self::None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured from a Linux 6.12 host: the descriptor of its Connect.
    const LINUX_CONNECT: [u8; 16] = [
        0x00, 0x28, 0x46, 0x02, 0x01, 0x00, 0x11, 0xff, 0x00, 0x04, 0x00, 0x01, 0xd7, 0xc7, 0x13,
        0x4f,
    ];

    #[test]
    fn golden_keyed_descriptor_of_linux() {
        let raw = SglDescriptor::read_from_bytes(&LINUX_CONNECT).unwrap();
        let parsed = Sgl::parse(&raw).unwrap();
        let expected = Sgl::Keyed {
            addr: 0xff11_0001_0246_2800,
            len: 1024,
            key: 0x13c7_d701,
            invalidate: true,
        };
        assert_eq!(parsed, expected);
        assert_eq!(parsed.to_descriptor().as_bytes(), LINUX_CONNECT);
    }

    #[test]
    fn zero_is_no_data_and_unkeyed_address_is_rejected() {
        assert_eq!(Sgl::parse(&SglDescriptor::none()), Ok(Sgl::None));
        let address = SglDescriptor::new(4096, 512, DATA_BLOCK_ADDRESS);
        assert_eq!(
            Sgl::parse(&address),
            Err(Status::SGL_DESCRIPTOR_TYPE_INVALID)
        );
    }

    proptest! {
        #[test]
        fn parsed_values_round_trip(bytes: [u8; 16]) {
            let raw = SglDescriptor::read_from_bytes(&bytes).unwrap();
            if let Ok(sgl) = Sgl::parse(&raw) {
                prop_assert_eq!(Sgl::parse(&sgl.to_descriptor()), Ok(sgl));
            }
        }

        #[test]
        fn written_value_parses_back(
            addr: u64,
            len in 0..=KEYED_LEN_MAX,
            key: u32,
            invalidate: bool,
        ) {
            let keyed = Sgl::Keyed { addr, len, key, invalidate };
            prop_assert_eq!(Sgl::parse(&keyed.to_descriptor()), Ok(keyed));
            let data = Sgl::InCapsule { offset: addr, len };
            prop_assert_eq!(Sgl::parse(&data.to_descriptor()), Ok(data));
            let list = Sgl::LastSegment { offset: addr, len };
            prop_assert_eq!(Sgl::parse(&list.to_descriptor()), Ok(list));
        }
    }
}
