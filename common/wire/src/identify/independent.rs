//! The I/O Command Set Independent Identify Namespace structure, CNS 08h (NVMe
//! Base 2.0, figure 280).

use core::mem::offset_of;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;
use super::namespace::{IdentifyNamespace, Nsfeat};

bitflags! {
    /// Common Namespace Features. Only UIDREUSE has the same bit in [`Nsfeat`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommonFeatures: u8 {
        /// NGUID and EUI64 are never reused.
        const UIDREUSE = 1 << 3;
        /// Rotational medium.
        const RMEDIA = 1 << 4;
        /// No volatile write cache for this namespace.
        const VWCNP = 1 << 5;
    }

    /// Namespace Status.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct NamespaceStatus: u8 {
        /// The namespace is ready.
        const NRDY = 1 << 0;
    }
}

/// The data structure.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespaceIndependent {
    /// Common namespace features: [`CommonFeatures`].
    pub nsfeat: u8,
    /// Multi-path and sharing capabilities: [`super::namespace::Nmic`].
    pub nmic: u8,
    /// Reservation capabilities: [`super::namespace::Rescap`].
    pub rescap: u8,
    /// Format progress indicator.
    pub fpi: u8,
    /// ANA group identifier.
    pub anagrpid: U32,
    /// Attributes: [`super::namespace::Nsattr`].
    pub nsattr: u8,
    #[doc(hidden)]
    pub rsvd9: u8,
    /// NVM set identifier.
    pub nvmsetid: U16,
    /// Endurance group identifier.
    pub endgid: U16,
    /// Namespace status: [`NamespaceStatus`].
    pub nstat: u8,
    /// Key per I/O status (NVMe Base 2.1).
    pub kpios: u8,
    /// Maximum key tag (NVMe Base 2.1).
    pub maxkt: U16,
    #[doc(hidden)]
    pub rsvd18: [u8; 2],
    /// Reachability group identifier (NVMe Base 2.1).
    pub rgrpid: U32,
    #[doc(hidden)]
    pub rsvd24: [u8; 4072],
}

const _: () = {
    assert!(size_of::<IdentifyNamespaceIndependent>() == IDENTIFY_LEN);
    assert!(offset_of!(IdentifyNamespaceIndependent, anagrpid) == 4);
    assert!(offset_of!(IdentifyNamespaceIndependent, nsattr) == 8);
    assert!(offset_of!(IdentifyNamespaceIndependent, nvmsetid) == 10);
    assert!(offset_of!(IdentifyNamespaceIndependent, endgid) == 12);
    assert!(offset_of!(IdentifyNamespaceIndependent, nstat) == 14);
    assert!(offset_of!(IdentifyNamespaceIndependent, maxkt) == 16);
    assert!(offset_of!(IdentifyNamespaceIndependent, rgrpid) == 20);
};

impl IdentifyNamespaceIndependent {
    /// A structure of zeros: what an inactive namespace returns.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// The structure of a ready namespace, with the fields that it shares with
    /// [`IdentifyNamespace`].
    #[must_use]
    pub fn of(namespace: &IdentifyNamespace) -> Self {
        let reuse = namespace.nsfeat().contains(Nsfeat::UIDREUSE);
        Self {
            nsfeat: if reuse {
                CommonFeatures::UIDREUSE.bits()
            } else {
                0
            },
            nmic: namespace.nmic,
            rescap: namespace.rescap,
            fpi: namespace.fpi,
            anagrpid: namespace.anagrpid,
            nsattr: namespace.nsattr,
            nvmsetid: namespace.nvmsetid,
            endgid: namespace.endgid,
            nstat: NamespaceStatus::NRDY.bits(),
            ..Self::zeroed()
        }
    }

    /// Common namespace features.
    #[must_use]
    pub fn nsfeat(&self) -> CommonFeatures {
        CommonFeatures::from_bits_retain(self.nsfeat)
    }

    /// Namespace status.
    #[must_use]
    pub fn nstat(&self) -> NamespaceStatus {
        NamespaceStatus::from_bits_retain(self.nstat)
    }
}

#[cfg(test)]
mod tests {
    use super::super::namespace::{Nmic, Nsattr};
    use super::*;

    #[test]
    fn golden_structure_of_a_namespace() {
        let mut namespace = IdentifyNamespace::with_format(8, 9);
        namespace.nsfeat = (Nsfeat::UIDREUSE | Nsfeat::OPTPERF | Nsfeat::DAE).bits();
        namespace.nmic = Nmic::SHRNS.bits();
        namespace.nsattr = Nsattr::CWP.bits();
        namespace.anagrpid = U32::new(7);
        let id = IdentifyNamespaceIndependent::of(&namespace);
        assert_eq!(
            id.as_bytes()[..16],
            [8, 1, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]
        );
        assert!(!id.nsfeat().contains(CommonFeatures::RMEDIA));
        assert!(id.nstat().contains(NamespaceStatus::NRDY));
    }
}
