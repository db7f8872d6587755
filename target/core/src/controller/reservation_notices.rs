//! The queue of reservation notifications of a controller (log page 80h; Base 2.1, 5.1.12.1.31).

use std::collections::VecDeque;

use nvmeof_wire::reservation::{NoticePage, NoticeType};
use zerocopy::FromZeros;

/// Notifications that wait to be read, at most.
const CAPACITY: usize = 256;

/// Notifications, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ReservationNotices {
    waiting: VecDeque<Waiting>,
    /// Log Page Count of the last one; 0 if there was none.
    count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    count: u64,
    notice: NoticeType,
    nsid: u32,
}

impl ReservationNotices {
    /// Adds a notification. If the queue is full, it is lost: then the last one in the queue has
    /// the count of the one that was lost, so that the host notices the gap.
    pub(crate) fn add(&mut self, nsid: u32, notice: NoticeType) {
        // 0 is that of the empty page.
        self.count = self.count.checked_add(1).unwrap_or(1);
        let count = self.count;
        let is_full = self.waiting.len() >= CAPACITY;
        match self.waiting.back_mut() {
            Some(last) if is_full => last.count = count,
            _ => self.waiting.push_back(Waiting {
                count,
                notice,
                nsid,
            }),
        }
    }

    /// Takes the oldest one, as the host reads it; an empty page if there is none.
    pub(crate) fn next_page(&mut self) -> NoticePage {
        let Some(Waiting {
            count,
            notice,
            nsid,
        }) = self.waiting.pop_front()
        else {
            return NoticePage::new_zeroed();
        };
        let available = u8::try_from(self.waiting.len()).unwrap_or(u8::MAX);
        NoticePage::new(count, notice, available, nsid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_in_order_until_none_is_left() {
        let mut notices = ReservationNotices::default();
        for nsid in [1, 2, 3] {
            notices.add(nsid, NoticeType::RESERVATION_RELEASED);
        }
        for (nsid, left) in [(1, 2), (2, 1), (3, 0)] {
            let page = notices.next_page();
            assert_eq!((page.count.get(), page.nsid.get()), (nsid.into(), nsid));
            assert_eq!(page.available, left);
        }
        assert_eq!(notices.next_page(), NoticePage::new_zeroed());
        notices.add(4, NoticeType::REGISTRATION_PREEMPTED);
        assert_eq!(notices.next_page().count.get(), 4, "it counts on");
    }

    #[test]
    fn lost_notification_leaves_a_gap_in_the_counts() {
        let mut notices = ReservationNotices::default();
        for nsid in 1..=300 {
            notices.add(nsid, NoticeType::RESERVATION_PREEMPTED);
        }
        let pages: Vec<_> = (0..CAPACITY).map(|_| notices.next_page()).collect();
        assert_eq!(pages[0].available, 255);
        assert_eq!(pages[254].count.get(), 255);
        let last = pages[255];
        assert_eq!((last.count.get(), last.nsid.get()), (300, 256));
        assert_eq!(notices.next_page(), NoticePage::new_zeroed());
    }

    #[test]
    fn count_skips_zero() {
        let mut notices = ReservationNotices {
            count: u64::MAX,
            ..ReservationNotices::default()
        };
        notices.add(1, NoticeType::RESERVATION_RELEASED);
        assert_eq!(notices.next_page().count.get(), 1);
    }
}
