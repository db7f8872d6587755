//! A data buffer of a command together with its charge: one never exists without the
//! other.
//!
//! The charge is taken with the buffer, stays while the buffer is lent to the provider or
//! to the backing store, and ends when the buffer returns to its pool. With a single host
//! nothing is counted; a buffer taken then has no charge, even if another host connects
//! before it is returned.

use nvmeof_memory::{Buf, Classes};

use super::account::Account;
use super::trust::Mark;

/// A data buffer, or none, and the kind under which its account counts it.
#[derive(Debug)]
pub(super) struct Charged {
    /// Present and not lent.
    buf: Option<Buf>,
    /// [`Mark::NONE`] when the account does not count it.
    mark: Mark,
}

/// No kind of buffer.
pub(super) const UNCHARGED: u8 = u8::MAX;

impl Default for Charged {
    fn default() -> Self {
        Self {
            buf: None,
            mark: Mark::NONE,
        }
    }
}

impl Charged {
    /// Whether there is no buffer, or it is lent.
    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.buf.is_none()
    }

    pub(super) fn get(&self) -> Option<&Buf> {
        self.buf.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> Option<&mut Buf> {
        self.buf.as_mut()
    }

    /// The mark under which the account counts it, if it does.
    pub(super) fn mark(&self) -> Option<Mark> {
        (self.mark != Mark::NONE).then_some(self.mark)
    }

    /// Puts a buffer without a charge in an empty place. Returns whether there is one
    /// now.
    #[inline]
    pub(super) fn put(&mut self, buf: Option<Buf>) -> bool {
        debug_assert!(self.buf.is_none() && self.mark == Mark::NONE, "it has one");
        self.buf = buf;
        self.buf.is_some()
    }

    /// Charges the buffer to `account`; for a transfer, or not.
    pub(super) fn charge(&mut self, account: &Account, buffers: &Classes, for_transfer: bool) {
        debug_assert!(self.mark == Mark::NONE, "charged twice");
        let kind = kind_of(self.buf.as_ref(), buffers);
        self.mark = account.mark(kind, for_transfer);
        account.take_one(self.mark);
    }

    /// Lends the buffer to the provider or the backing store; its charge stays.
    #[inline]
    pub(super) fn lend(&mut self) -> Option<Buf> {
        self.buf.take()
    }

    /// Takes back a lent buffer.
    #[inline]
    pub(super) fn restore(&mut self, buf: Option<Buf>) -> Option<&mut Buf> {
        self.buf = buf;
        self.buf.as_mut()
    }

    /// The command is done with the buffer, here or lent: ends the charge, and returns
    /// the buffer if it is here.
    #[inline]
    pub(super) fn end(&mut self, account: Option<&Account>) -> Option<Buf> {
        if self.mark != Mark::NONE {
            self.release(account);
        }
        self.buf.take()
    }

    /// As [`end`](Self::end), and returns the buffer to its pool.
    #[inline]
    pub(super) fn discard(&mut self, account: Option<&Account>) {
        if self.mark != Mark::NONE {
            self.release(account);
        }
        self.buf = None;
    }

    /// Out of line: with a single host there is nothing to release.
    #[inline(never)]
    fn release(&mut self, account: Option<&Account>) {
        debug_assert!(account.is_some(), "a charge without an account");
        let mark = std::mem::replace(&mut self.mark, Mark::NONE);
        if let Some(account) = account {
            account.release_one(mark);
        }
    }

    /// The data for which the buffer was taken have arrived. The host no longer affects
    /// how long it is used, and its command may need another buffer: it counts only
    /// towards the limit of the host from now on.
    #[inline]
    pub(super) fn arrived(&mut self, account: Option<&Account>) {
        if self.mark != Mark::NONE
            && let Some(account) = account
        {
            self.mark = account.arrived(self.mark);
        }
    }

    /// The host has the data for which the buffer was taken.
    #[inline]
    pub(super) fn sent(&mut self, account: Option<&Account>) {
        self.arrived(account);
        drop(self.end(account));
    }

    /// The queue is closed and a backing store has the buffer: passes its mark to the
    /// caller, who takes over the charge.
    pub(super) fn hand_over(&mut self) -> Option<Mark> {
        let mark = self.mark();
        self.mark = Mark::NONE;
        mark
    }
}

/// The kind under which an account counts a buffer.
pub(super) fn kind_of(buf: Option<&Buf>, buffers: &Classes) -> u8 {
    let kind = buf.map(|buf| buffers.kind_of(buf.capacity()));
    kind.and_then(|kind| u8::try_from(kind).ok())
        .unwrap_or(UNCHARGED)
}

/// The kind that a buffer of that length is taken from first.
#[cold]
pub(super) fn kind_of_len(len: u32, buffers: &Classes) -> u8 {
    let kind = usize::try_from(len).map(|len| buffers.kind_of(len));
    kind.ok()
        .and_then(|kind| u8::try_from(kind).ok())
        .unwrap_or(UNCHARGED)
}

#[cfg(test)]
mod tests {
    use nvmeof_memory::{ClassSpec, Pages};

    use super::*;

    #[test]
    fn charge_lasts_from_the_pool_until_the_pool() {
        let specs = [4096, 65536].map(|len| ClassSpec { len, count: 2 });
        let buffers = Classes::new(&specs, Pages::Normal).unwrap();
        let account = Account::for_tests();
        let mut data = Charged::default();
        assert!(data.put(buffers.take(65536)));
        data.charge(&account, &buffers, true);
        assert_eq!(account.counted(1), [1, 1], "its port and its host");
        let lent = data.lend();
        assert!(data.is_none());
        assert_eq!(account.counted(1), [1, 1], "lent");
        assert!(data.restore(lent).is_some());
        assert!(data.end(Some(&account)).is_some());
        assert_eq!(account.counted(1), [0, 0]);
    }

    #[test]
    fn buffer_taken_without_a_charge_is_returned_without_one() {
        let specs = [ClassSpec {
            len: 4096,
            count: 1,
        }];
        let buffers = Classes::new(&specs, Pages::Normal).unwrap();
        let account = Account::for_tests();
        let mut data = Charged::default();
        assert!(data.put(buffers.take(1)));
        assert_eq!(data.mark(), None);
        // Another host has connected by then.
        assert!(data.end(Some(&account)).is_some());
        assert_eq!(account.counted(0), [0, 0]);
    }

    #[test]
    fn charge_of_a_buffer_in_a_backing_store_is_handed_over_once() {
        let specs = [ClassSpec {
            len: 4096,
            count: 1,
        }];
        let buffers = Classes::new(&specs, Pages::Normal).unwrap();
        let account = Account::for_tests();
        let mut data = Charged::default();
        data.put(buffers.take(1));
        data.charge(&account, &buffers, true);
        let _on_disk = data.lend();
        assert_eq!(data.hand_over().map(Mark::kind), Some(0));
        assert_eq!(data.hand_over(), None);
        assert!(data.end(Some(&account)).is_none());
        assert_eq!(
            account.counted(0),
            [1, 1],
            "until the backing store gives it back"
        );
    }
}
