//! The Supported Log Pages log page, 00h (NVMe Base 2.0, figure 204).

use bitflags::bitflags;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::admin::LogId;

/// Length in bytes of the page.
pub const SUPPORTED_PAGES_LEN: usize = 1024;

bitflags! {
    /// Support of a log page. Bits 31:16 are specific to the page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PageSupport: u32 {
        /// The page is supported.
        const LSUPP = 1 << 0;
        /// The page can be read from an index instead of an offset.
        const IOS = 1 << 1;
    }
}

/// The page: an entry for each log page identifier.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SupportedPages {
    lids: [U32; 256],
}

const _: () = assert!(size_of::<SupportedPages>() == SUPPORTED_PAGES_LEN);

impl SupportedPages {
    /// A page that reports only `pages` as supported.
    #[must_use]
    pub fn new(pages: &[LogId]) -> Self {
        let mut page = Self::new_zeroed();
        for lid in pages {
            page.set(*lid, PageSupport::LSUPP);
        }
        page
    }

    /// Says `support` of `lid`.
    pub fn set(&mut self, lid: LogId, support: PageSupport) {
        if let Some(entry) = self.lids.get_mut(usize::from(lid.0)) {
            entry.set(support.bits());
        }
    }

    /// What the page says of `lid`.
    #[must_use]
    pub fn get(&self, lid: LogId) -> PageSupport {
        let bits = self
            .lids
            .get(usize::from(lid.0))
            .map_or(0, |entry| entry.get());
        PageSupport::from_bits_retain(bits)
    }

    /// The log pages that are supported.
    pub fn iter(&self) -> impl Iterator<Item = LogId> {
        (0..=u8::MAX)
            .map(LogId)
            .filter(|lid| self.get(*lid).contains(PageSupport::LSUPP))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page() {
        let page = SupportedPages::new(&[LogId::SMART, LogId::DISCOVERY, LogId(0xff)]);
        let bytes = page.as_bytes();
        for (lid, expected) in [(2, 1), (0x70, 1), (0xff, 1), (1, 0)] {
            assert_eq!(bytes[lid * 4..][..4], [expected, 0, 0, 0], "{lid:#x}");
        }
        assert!(
            page.iter()
                .eq([LogId::SMART, LogId::DISCOVERY, LogId(0xff)])
        );
    }
}
