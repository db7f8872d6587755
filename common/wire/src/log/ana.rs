//! The Asymmetric Namespace Access log page, 0Ch (NVMe Base 2.0, figure 221).

use core::fmt;
use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// Length in bytes of the header.
pub const ANA_HEADER_LEN: usize = 16;
/// Length in bytes of a group descriptor without its namespaces.
pub const ANA_GROUP_LEN: usize = 32;

/// State of a group, bits 3:0 of its byte.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct AnaState(pub u8);

impl AnaState {
    /// Optimized.
    pub const OPTIMIZED: Self = Self(0x1);
    /// Non-optimized.
    pub const NON_OPTIMIZED: Self = Self(0x2);
    /// Inaccessible.
    pub const INACCESSIBLE: Self = Self(0x3);
    /// Persistent loss.
    pub const PERSISTENT_LOSS: Self = Self(0x4);
    /// Change.
    pub const CHANGE: Self = Self(0xf);

    /// All states, with the names that tools use.
    const NAMES: [(Self, &'static str); 5] = [
        (Self::OPTIMIZED, "optimized"),
        (Self::NON_OPTIMIZED, "non-optimized"),
        (Self::INACCESSIBLE, "inaccessible"),
        (Self::PERSISTENT_LOSS, "persistent-loss"),
        (Self::CHANGE, "change"),
    ];

    /// The state of that name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut names = Self::NAMES.into_iter();
        names.find(|(_, its)| *its == name).map(|(state, _)| state)
    }

    /// Its name, such as `optimized`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut names = Self::NAMES.into_iter();
        names
            .find(|(state, _)| *state == self)
            .map_or("reserved", |(_, name)| name)
    }

    /// Whether commands can access the data of namespaces in this state (NVMe Base 2.2,
    /// 8.1.1.4 and 8.1.1.5).
    #[inline]
    #[must_use]
    pub fn is_accessible(self) -> bool {
        matches!(self, Self::OPTIMIZED | Self::NON_OPTIMIZED)
    }

    /// The status of a command that is aborted because of this state (8.1.1.6 to
    /// 8.1.1.8); `None` if it is executed.
    #[must_use]
    pub fn refusal(self) -> Option<Status> {
        match self {
            Self::INACCESSIBLE => Some(Status::ANA_INACCESSIBLE),
            Self::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
            Self::CHANGE => Some(Status::ANA_TRANSITION),
            _ => None,
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Log specific parameter of the page: return groups only (RGO), without the
/// namespaces in them.
pub const RETURN_GROUPS_ONLY: u8 = 1 << 0;

/// The header: `ngrps` group descriptors follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaHeader {
    /// Change count of the page.
    pub chgcnt: U64,
    /// Number of group descriptors.
    pub ngrps: U16,
    #[doc(hidden)]
    pub rsvd10: [u8; 6],
}

/// A group descriptor: `nnsids` namespace identifiers of four bytes follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct AnaGroup {
    /// Group identifier.
    pub agid: U32,
    /// Number of namespaces; 0 if only groups were requested.
    pub nnsids: U32,
    /// Change count of the page at the last change of this group.
    pub chgcnt: U64,
    /// State.
    pub state: AnaState,
    #[doc(hidden)]
    pub rsvd17: [u8; 15],
}

const _: () = {
    assert!(size_of::<AnaHeader>() == ANA_HEADER_LEN);
    assert!(offset_of!(AnaHeader, ngrps) == 8);
    assert!(size_of::<AnaGroup>() == ANA_GROUP_LEN);
    assert!(offset_of!(AnaGroup, chgcnt) == 8);
    assert!(offset_of!(AnaGroup, state) == 16);
};

impl AnaHeader {
    /// The header of a page of `ngrps` groups.
    #[must_use]
    pub fn new(chgcnt: u64, ngrps: u16) -> Self {
        Self {
            chgcnt: U64::new(chgcnt),
            ngrps: U16::new(ngrps),
            ..Self::new_zeroed()
        }
    }
}

impl AnaGroup {
    /// A group of `nnsids` namespaces.
    #[must_use]
    pub fn new(agid: u32, nnsids: u32, chgcnt: u64, state: AnaState) -> Self {
        Self {
            agid: U32::new(agid),
            nnsids: U32::new(nnsids),
            chgcnt: U64::new(chgcnt),
            state,
            ..Self::new_zeroed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_names_and_statuses() {
        for (state, name) in AnaState::NAMES {
            assert_eq!(AnaState::from_name(name), Some(state));
            assert_eq!(state.name(), name);
            assert_eq!(state.refusal().is_none(), state.is_accessible());
        }
        assert_eq!(AnaState::from_name("Optimized"), None);
        let transition = AnaState::CHANGE.refusal();
        assert_eq!(transition, Some(Status::ANA_TRANSITION));
    }

    #[test]
    fn golden_header_and_group() {
        let header = AnaHeader::new(3, 1);
        assert_eq!(
            header.as_bytes(),
            [3, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        let group = AnaGroup::new(1, 2, 3, AnaState::CHANGE);
        let bytes = group.as_bytes();
        assert_eq!(
            bytes[..17],
            [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 15]
        );
    }
}
