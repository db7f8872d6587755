//! The Namespace Identification Descriptor list, CNS 03h (NVMe Base 2.0,
//! 5.17.2.3).

use core::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// NIDT: namespace identifier type.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct Nidt(pub u8);

impl Nidt {
    /// IEEE extended unique identifier, 8 bytes.
    pub const EUI64: Self = Self(1);
    /// Namespace globally unique identifier, 16 bytes.
    pub const NGUID: Self = Self(2);
    /// Namespace UUID, 16 bytes.
    pub const UUID: Self = Self(3);
    /// Command set identifier, 1 byte.
    pub const CSI: Self = Self(4);
}

/// The header of a descriptor.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    nidt: Nidt,
    nidl: u8,
    rsvd2: [u8; 2],
}

const _: () = assert!(size_of::<DescriptorHeader>() == 4);

/// The list as on the wire: descriptors one after the other, terminated by one of length
/// 0.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct DescriptorList([u8; IDENTIFY_LEN]);

/// The identifiers of a namespace. All numbers have their most significant
/// byte first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIdentifiers {
    /// IEEE extended unique identifier.
    pub eui64: Option<[u8; 8]>,
    /// Namespace globally unique identifier.
    pub nguid: Option<[u8; 16]>,
    /// Namespace UUID.
    pub uuid: Option<[u8; 16]>,
    /// Command set of the namespace: 0 is NVM.
    pub csi: Option<u8>,
}

/// Why a list is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorError {
    /// A descriptor goes beyond the end of the list.
    Truncated {
        /// Its offset in bytes.
        at: usize,
    },
    /// The length of an identifier does not match its type.
    Length {
        /// Its type.
        nidt: Nidt,
        /// Its length in bytes.
        len: usize,
    },
    /// Two identifiers have the same type.
    Duplicate {
        /// Their type.
        nidt: Nidt,
    },
}

impl core::error::Error for DescriptorError {}

impl fmt::Display for DescriptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { at } => write!(
                f,
                "the namespace identification descriptor at byte {at} goes beyond the end \
                    of its list"
            ),
            Self::Length {
                nidt: Nidt(nidt),
                len,
            } => write!(
                f,
                "a namespace identifier of type {nidt} has {len} bytes, which is not the \
                    length of its type"
            ),
            Self::Duplicate { nidt: Nidt(nidt) } => {
                write!(f, "the namespace has two identifiers of type {nidt}")
            }
        }
    }
}

impl NamespaceIdentifiers {
    /// Parses a list. Identifiers of unknown types are skipped.
    ///
    /// # Errors
    /// [`DescriptorError`].
    pub fn parse(list: &DescriptorList) -> Result<Self, DescriptorError> {
        let mut found = Self::default();
        for descriptor in list.iter() {
            let (nidt, nid) = descriptor?;
            match nidt {
                Nidt::EUI64 => store(&mut found.eui64, nidt, nid)?,
                Nidt::NGUID => store(&mut found.nguid, nidt, nid)?,
                Nidt::UUID => store(&mut found.uuid, nidt, nid)?,
                Nidt::CSI => {
                    let mut csi = found.csi.map(|csi| [csi]);
                    store(&mut csi, nidt, nid)?;
                    found.csi = csi.map(|[csi]| csi);
                }
                _ => {}
            }
        }
        Ok(found)
    }

    /// The list, in the order of the types.
    #[must_use]
    pub fn to_list(&self) -> DescriptorList {
        let mut list = DescriptorList::new_zeroed();
        let csi = self.csi.map(|csi| [csi]);
        let identifiers: [(Nidt, Option<&[u8]>); 4] = [
            (Nidt::EUI64, self.eui64.as_ref().map(<[u8; 8]>::as_slice)),
            (Nidt::NGUID, self.nguid.as_ref().map(<[u8; 16]>::as_slice)),
            (Nidt::UUID, self.uuid.as_ref().map(<[u8; 16]>::as_slice)),
            (Nidt::CSI, csi.as_ref().map(<[u8; 1]>::as_slice)),
        ];
        let mut rest = list.0.as_mut_slice();
        for (nidt, nid) in identifiers {
            if let Some(nid) = nid {
                rest = write(rest, nidt, nid);
            }
        }
        list
    }
}

/// Writes a descriptor at the start of `space` and returns the rest. The four known types
/// take 57 bytes together, so there is always space.
fn write<'a>(space: &'a mut [u8], nidt: Nidt, nid: &[u8]) -> &'a mut [u8] {
    let nidl = u8::try_from(nid.len()).unwrap_or(0);
    let header = DescriptorHeader {
        nidt,
        nidl,
        rsvd2: [0; 2],
    };
    let len = size_of::<DescriptorHeader>() + nid.len();
    let Some((descriptor, rest)) = space.split_at_mut_checked(len) else {
        return &mut [];
    };
    for (to, from) in descriptor
        .iter_mut()
        .zip(header.as_bytes().iter().chain(nid))
    {
        *to = *from;
    }
    rest
}

fn store<const N: usize>(
    slot: &mut Option<[u8; N]>,
    nidt: Nidt,
    nid: &[u8],
) -> Result<(), DescriptorError> {
    let nid = nid.try_into().map_err(|_| DescriptorError::Length {
        nidt,
        len: nid.len(),
    })?;
    match slot.replace(nid) {
        None => Ok(()),
        Some(_) => Err(DescriptorError::Duplicate { nidt }),
    }
}

impl DescriptorList {
    /// The descriptors: type and identifier.
    #[must_use]
    pub fn iter(&self) -> Descriptors<'_> {
        Descriptors {
            rest: &self.0,
            at: 0,
        }
    }
}

impl<'a> IntoIterator for &'a DescriptorList {
    type Item = Result<(Nidt, &'a [u8]), DescriptorError>;
    type IntoIter = Descriptors<'a>;

    fn into_iter(self) -> Descriptors<'a> {
        self.iter()
    }
}

/// Iterator over the descriptors of a list, which ends after an error.
#[derive(Clone, Debug)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Descriptors<'a> {
    type Item = Result<(Nidt, &'a [u8]), DescriptorError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = core::mem::take(&mut self.rest);
        // A full list may have no terminating descriptor of length 0.
        if rest.is_empty() {
            return None;
        }
        let Ok((header, rest)) = DescriptorHeader::read_from_prefix(rest) else {
            // An incomplete header: a missing length counts as 0.
            let nidl = rest.get(1).copied().unwrap_or(0);
            return (nidl != 0).then_some(Err(DescriptorError::Truncated { at: self.at }));
        };
        if header.nidl == 0 {
            return None;
        }
        let Some((nid, rest)) = rest.split_at_checked(usize::from(header.nidl)) else {
            return Some(Err(DescriptorError::Truncated { at: self.at }));
        };
        self.rest = rest;
        self.at += size_of::<DescriptorHeader>() + nid.len();
        Some(Ok((header.nidt, nid)))
    }
}

impl core::iter::FusedIterator for Descriptors<'_> {}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A list that starts with `bytes`.
    fn list(bytes: &[u8]) -> DescriptorList {
        let mut list = DescriptorList::new_zeroed();
        list.0[..bytes.len()].copy_from_slice(bytes);
        list
    }

    #[test]
    fn golden_list() {
        let identifiers = NamespaceIdentifiers {
            eui64: Some([1, 2, 3, 4, 5, 6, 7, 8]),
            nguid: None,
            uuid: Some([0xab; 16]),
            csi: Some(0),
        };
        let written = identifiers.to_list();
        let bytes = written.as_bytes();
        assert_eq!(bytes[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[12..16], [3, 16, 0, 0]);
        assert_eq!(bytes[16..32], [0xab; 16]);
        assert_eq!(bytes[32..40], [4, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(NamespaceIdentifiers::parse(&written), Ok(identifiers));
    }

    #[test]
    fn invalid_lists_are_rejected() {
        let parse = |bytes: &[u8]| NamespaceIdentifiers::parse(&list(bytes));
        let length = DescriptorError::Length {
            nidt: Nidt::CSI,
            len: 2,
        };
        assert_eq!(parse(&[4, 2, 0, 0, 0, 0]), Err(length));
        let duplicate = DescriptorError::Duplicate { nidt: Nidt::CSI };
        assert_eq!(parse(&[4, 1, 0, 0, 0, 4, 1, 0, 0, 0]), Err(duplicate));
        let unknown = parse(&[9, 3, 0, 0, 1, 2, 3, 4, 1, 0, 0, 2]);
        assert_eq!(unknown.map(|found| found.csi), Ok(Some(2)));
        // 15 times 259 bytes are 3,885: the sixteenth does not fit.
        let all = DescriptorList([0xff; IDENTIFY_LEN]);
        let truncated = DescriptorError::Truncated { at: 3885 };
        assert_eq!(NamespaceIdentifiers::parse(&all), Err(truncated));
        assert_eq!(all.iter().count(), 16);
    }

    proptest! {
        #[test]
        fn written_value_parses_back(eui64: Option<[u8; 8]>, nguid: Option<[u8; 16]>,
                                       uuid: Option<[u8; 16]>, csi: Option<u8>) {
            let identifiers = NamespaceIdentifiers { eui64, nguid, uuid, csi };
            let parsed = NamespaceIdentifiers::parse(&identifiers.to_list());
                prop_assert_eq!(parsed, Ok(identifiers));
        }

        #[test]
        fn any_bytes_parse_and_write_back_or_fail(
            start in prop::collection::vec(prop_oneof![0u8..20, any::<u8>()], 0..200), fill: u8,
        ) {
            let mut bytes = [fill; IDENTIFY_LEN];
            bytes[..start.len()].copy_from_slice(&start);
            let raw = DescriptorList(bytes);
            let found: Vec<_> = raw.iter().collect();
            prop_assert!(found.iter().rev().skip(1).all(Result::is_ok), "ends after an error");
            let len: usize = found.iter().flatten().map(|(_, nid)| 4 + nid.len()).sum();
            prop_assert!(len <= IDENTIFY_LEN);
            if let Ok(identifiers) = NamespaceIdentifiers::parse(&raw) {
                let parsed = NamespaceIdentifiers::parse(&identifiers.to_list());
                prop_assert_eq!(parsed, Ok(identifiers));
            }
        }
    }
}
