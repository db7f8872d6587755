//! A part of a page that is being written: what lies outside is left out.

use zerocopy::{Immutable, IntoBytes};

/// Bytes from `offset` of some page on, at first zero.
pub(crate) struct Window<'a> {
    offset: u64,
    out: &'a mut [u8],
}

impl<'a> Window<'a> {
    /// The part of a page that starts at `offset` and is as long as `out`.
    pub(crate) fn new(offset: u64, out: &'a mut [u8]) -> Self {
        out.fill(0);
        Self { offset, out }
    }

    /// Writes what is in view of `value`, which belongs at byte `at` of the
    /// page.
    pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, at: u64, value: &T) {
        let bytes = value.as_bytes();
        // Either the value starts before the window or in it.
        let skipped = usize::try_from(self.offset.saturating_sub(at));
        let start = usize::try_from(at.saturating_sub(self.offset));
        let (Ok(skipped), Ok(start)) = (skipped, start) else {
            return;
        };
        let from = bytes.get(skipped..).unwrap_or_default();
        let to = self.out.get_mut(start..).unwrap_or_default();
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }

    /// Whether any of `len` bytes at byte `at` of the page is in view.
    pub(crate) fn intersects(&self, at: u64, len: u64) -> bool {
        let end = self.offset.saturating_add(self.out.len() as u64);
        !self.out.is_empty() && at < end && at.saturating_add(len) > self.offset
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn window_matches_the_whole_page(
            pieces in prop::collection::vec((0u64..100, prop::collection::vec(1u8.., 0..40)), 0..5),
            offset in 0u64..150,
            len in 0usize..80,
        ) {
            let mut whole = [0; 300];
            let mut part = vec![0xee; len];
            let part_len = len as u64;
            {
                let mut all = Window::new(0, &mut whole);
                let mut window = Window::new(offset, &mut part);
                for (at, bytes) in &pieces {
                    all.put(*at, bytes.as_slice());
                    window.put(*at, bytes.as_slice());
                    let len = bytes.len() as u64;
                    let visible = offset..offset + part_len;
                    let shown = (*at..at + len).any(|byte| visible.contains(&byte));
                    prop_assert_eq!(window.intersects(*at, len) && len > 0, shown);
                }
            }
            let start = usize::try_from(offset).unwrap();
            prop_assert_eq!(&part[..], &whole[start..start + len]);
        }
    }
}
