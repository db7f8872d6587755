//! Lists of namespaces and of controllers: CNS 02h, 07h, 10h to 13h (NVMe Base
//! 2.0, 4.4.1 and 4.4.2).

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_LEN;

/// Maximum number of namespaces in a list.
pub const NAMESPACE_LIST_MAX: usize = 1024;
/// Maximum number of controllers in a list.
pub const CONTROLLER_LIST_MAX: usize = 2047;

/// Namespace identifiers, ascending, terminated by 0 unless the list is full.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceList {
    nsids: [U32; NAMESPACE_LIST_MAX],
}

/// Controller identifiers, ascending.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ControllerList {
    num: U16,
    cntlids: [U16; CONTROLLER_LIST_MAX],
}

const _: () = {
    assert!(size_of::<NamespaceList>() == IDENTIFY_LEN);
    assert!(size_of::<ControllerList>() == IDENTIFY_LEN);
    assert!(offset_of!(ControllerList, cntlids) == 2);
};

impl NamespaceList {
    /// The first 1,024 of `ascending` that are greater than `nsid`, the
    /// identifier of the command (NVMe Base 2.0, 5.17.2.2).
    #[must_use]
    pub fn after(nsid: u32, ascending: impl IntoIterator<Item = u32>) -> Self {
        let mut list = Self::new_zeroed();
        let greater = ascending.into_iter().filter(|id| *id > nsid);
        for (entry, id) in list.nsids.iter_mut().zip(greater) {
            entry.set(id);
        }
        list
    }

    /// The namespaces. If the list is full, request the next one, from the last namespace
    /// on.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.nsids
            .iter()
            .map(|nsid| nsid.get())
            .take_while(|nsid| *nsid != 0)
    }

    /// Whether there may be more namespaces than the list holds.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.iter().count() == NAMESPACE_LIST_MAX
    }
}

impl ControllerList {
    /// The first 2,047 of `ascending` that are not less than `cntid`, the
    /// controller identifier of the command (NVMe Base 2.0, 5.17.2.13).
    #[must_use]
    pub fn from_id(cntid: u16, ascending: impl IntoIterator<Item = u16>) -> Self {
        let mut list = Self::new_zeroed();
        let mut num = 0;
        let not_less = ascending.into_iter().filter(|id| *id >= cntid);
        for (entry, id) in list.cntlids.iter_mut().zip(not_less) {
            entry.set(id);
            num += 1;
        }
        list.num.set(num);
        list
    }

    /// The controllers: at most as many as a list holds, whatever its count field says.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.cntlids
            .iter()
            .take(usize::from(self.num.get()))
            .map(|cntlid| cntlid.get())
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_lists() {
        let namespaces = NamespaceList::after(1, [1, 2, 0x0102_0304]);
        assert_eq!(
            namespaces.as_bytes()[..12],
            [2, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]
        );
        let controllers = ControllerList::from_id(2, [1, 2, 0x0304]);
        assert_eq!(controllers.as_bytes()[..8], [2, 0, 2, 0, 4, 3, 0, 0]);
    }

    #[test]
    fn count_beyond_the_list_is_limited() {
        let list = ControllerList::read_from_bytes(&[0xff; IDENTIFY_LEN]).unwrap();
        assert_eq!(list.iter().count(), CONTROLLER_LIST_MAX);
        let list = NamespaceList::read_from_bytes(&[0xff; IDENTIFY_LEN]).unwrap();
        assert_eq!(list.iter().count(), NAMESPACE_LIST_MAX);
    }

    proptest! {
        #[test]
        fn consecutive_lists_contain_every_namespace(
            nsids in prop::collection::btree_set(1..=u32::MAX, 0..3000),
        ) {
            let mut seen = Vec::new();
            loop {
                let last = seen.last().copied().unwrap_or(0);
                let list = NamespaceList::after(last, nsids.iter().copied());
                seen.extend(list.iter());
                if !list.is_full() {
                    break;
                }
            }
            prop_assert!(seen.iter().eq(nsids.iter()));
        }

        #[test]
        fn controllers_start_at_the_requested_one(
            cntid: u16, cntlids in prop::collection::btree_set(any::<u16>(), 0..3000),
        ) {
            let list = ControllerList::from_id(cntid, cntlids.iter().copied());
            prop_assert!(list.iter().eq(cntlids.range(cntid..).copied().take(CONTROLLER_LIST_MAX)));
        }
    }
}
