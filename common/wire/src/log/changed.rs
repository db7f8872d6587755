//! The Changed Attached Namespace List log page, 04h (NVMe Base 2.0, figure 209).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length in bytes of the page.
pub const CHANGED_NAMESPACES_LEN: usize = 4096;

/// Maximum number of namespaces in the page.
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

/// First entry of a page without namespaces: more than 1,024 have changed.
const TOO_MANY: u32 = 0xffff_ffff;

/// The page: namespaces that changed since it was last read, ascending, terminated by 0
/// if there are fewer than 1,024.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ChangedNamespaces {
    nsids: [U32; CHANGED_NAMESPACES_MAX],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == CHANGED_NAMESPACES_LEN);

impl ChangedNamespaces {
    /// A page of ascending `nsids`. With more than 1,024 it lists none (see
    /// [`Self::is_everything`]).
    #[must_use]
    pub fn new(nsids: impl IntoIterator<Item = u32>) -> Self {
        let mut page = Self::new_zeroed();
        let mut nsids = nsids.into_iter();
        for (entry, nsid) in page.nsids.iter_mut().zip(nsids.by_ref()) {
            entry.set(nsid);
        }
        if nsids.next().is_some() {
            return Self::everything();
        }
        page
    }

    /// A page that reports that more than 1,024 namespaces have changed.
    #[must_use]
    pub fn everything() -> Self {
        let mut page = Self::new_zeroed();
        if let Some(first) = page.nsids.first_mut() {
            first.set(TOO_MANY);
        }
        page
    }

    /// Whether more namespaces changed than the page can list.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.nsids
            .first()
            .is_some_and(|first| first.get() == TOO_MANY)
    }

    /// The namespaces in the page.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        let named = if self.is_everything() {
            0
        } else {
            self.nsids.len()
        };
        self.nsids
            .iter()
            .take(named)
            .map(|nsid| nsid.get())
            .take_while(|nsid| *nsid != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn more_than_1024_namespaces_are_not_listed() {
        let full = ChangedNamespaces::new(1..=1024);
        assert!(!full.is_everything());
        assert!(full.iter().eq(1..=1024));
        let over = ChangedNamespaces::new(1..=1025);
        assert!(over.is_everything());
        assert_eq!(over.iter().count(), 0);
        assert_eq!(over.as_bytes()[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn lists_given_namespaces(nsids in prop::collection::btree_set(1..u32::MAX, 0..1024)) {
            let page = ChangedNamespaces::new(nsids.iter().copied());
            prop_assert_eq!(page.iter().collect::<Vec<_>>(), nsids.into_iter().collect::<Vec<_>>());
        }
    }
}
