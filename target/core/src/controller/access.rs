//! Change counts of the Asymmetric Namespace Access log page.

use std::collections::BTreeMap;

/// Counts from 0 at a Controller Level Reset, and one more each time the content
/// of the page changes (Base 2.1, 5.1.12.1.13).
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessCounts {
    page: u64,
    /// The value of `page` at the last change of each group.
    groups: BTreeMap<u32, u64>,
}

impl AccessCounts {
    /// These groups changed, if there are any.
    pub(crate) fn changed(&mut self, groups: &[u32]) {
        if groups.is_empty() {
            return;
        }
        // "If the value of this field is FFFFFFFF_FFFFFFFFh, then the field
        // shall be cleared to 0h when incremented".
        self.page = self.page.wrapping_add(1);
        let page = self.page;
        self.groups
            .extend(groups.iter().map(|group| (*group, page)));
    }

    /// The page's.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// A group's.
    pub(crate) fn group(&self, group: u32) -> u64 {
        self.groups.get(&group).copied().unwrap_or(0)
    }
}
