//! Fair queue: round robin over addresses, and at each address over its hosts, however
//! many names and queues each of them has.

use std::collections::VecDeque;

/// A host: the numbers of its address and of its account; zeros before its Connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostId {
    pub(crate) address: u64,
    pub(crate) account: u64,
}

/// Pending items of several hosts. The items of one host keep their order.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// In the order in which they are served, the current one first. Addresses without
    /// items are not listed.
    addresses: VecDeque<(u64, Hosts<T>)>,
    /// Items of all hosts.
    len: usize,
    /// Empty queues, kept to reuse their memory.
    spare: Vec<VecDeque<T>>,
    spare_hosts: Vec<Hosts<T>>,
}

/// The hosts of one address in the order in which they are served, with their items.
type Hosts<T> = VecDeque<(u64, VecDeque<T>)>;

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            addresses: VecDeque::new(),
            len: 0,
            spare: Vec::new(),
            spare_hosts: Vec::new(),
        }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Items of all hosts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Addresses with items.
    pub(crate) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Hosts of the current address.
    pub(crate) fn hosts_of_first(&self) -> usize {
        self.addresses.front().map_or(0, |(_, hosts)| hosts.len())
    }

    /// Appends an item of `host`. A host without items is appended to its address, and an
    /// address without items comes last.
    pub(crate) fn push(&mut self, host: HostId, item: T) {
        self.len += 1;
        // A linear search: few hosts wait at any time.
        let its = |(address, _): &(u64, Hosts<T>)| *address == host.address;
        let at = self.addresses.iter().position(its).unwrap_or_else(|| {
            let hosts = self.spare_hosts.pop().unwrap_or_default();
            self.addresses.push_back((host.address, hosts));
            self.addresses.len() - 1
        });
        let Some((_, hosts)) = self.addresses.get_mut(at) else {
            return;
        };
        match hosts.iter_mut().find(|(one, _)| *one == host.account) {
            Some((_, items)) => items.push_back(item),
            None => {
                let mut items = self.spare.pop().unwrap_or_default();
                items.push_back(item);
                hosts.push_back((host.account, items));
            }
        }
    }

    /// All items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let hosts = self.addresses.iter().flat_map(|(_, hosts)| hosts);
        hosts.flat_map(|(_, items)| items)
    }

    /// Items of the current host.
    pub(crate) fn of_first(&self) -> usize {
        let hosts = self.addresses.front().map(|(_, hosts)| hosts);
        let first = hosts.and_then(VecDeque::front);
        first.map_or(0, |(_, items)| items.len())
    }

    fn first_mut(&mut self) -> Option<&mut VecDeque<T>> {
        let (_, hosts) = self.addresses.front_mut()?;
        hosts.front_mut().map(|(_, items)| items)
    }

    /// The next item of the current host, which stays current until [`advance`](Self::advance).
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.first_mut()?.pop_front()?;
        self.len -= 1;
        Some(item)
    }

    /// Returns the item that was popped last to the front.
    pub(crate) fn put_back(&mut self, item: T) {
        if let Some(items) = self.first_mut() {
            items.push_front(item);
            self.len += 1;
        }
    }

    /// Removes the first item of `host` that `wanted` accepts.
    pub(crate) fn remove(&mut self, host: HostId, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let (address_index, at) = self.find(host)?;
        let (_, hosts) = self.addresses.get_mut(address_index)?;
        let (_, items) = hosts.get_mut(at)?;
        let item = items.remove(items.iter().position(wanted)?)?;
        self.len -= 1;
        self.drop_empty(address_index, at);
        Some(item)
    }

    /// Removes all items of `host` that `wanted` accepts.
    pub(crate) fn remove_all(&mut self, host: HostId, wanted: impl Fn(&T) -> bool) -> VecDeque<T> {
        let Some((address_index, at)) = self.find(host) else {
            return VecDeque::new();
        };
        let hosts = self
            .addresses
            .get_mut(address_index)
            .map(|(_, hosts)| hosts);
        let Some((_, items)) = hosts.and_then(|hosts| hosts.get_mut(at)) else {
            return VecDeque::new();
        };
        let (out, left): (VecDeque<T>, VecDeque<T>) =
            std::mem::take(items).into_iter().partition(wanted);
        *items = left;
        self.len -= out.len();
        self.drop_empty(address_index, at);
        out
    }

    /// The index of the address, and the index of the host there.
    fn find(&self, host: HostId) -> Option<(usize, usize)> {
        let mut addresses = self.addresses.iter();
        let address_index = addresses.position(|(address, _)| *address == host.address)?;
        let (_, hosts) = self.addresses.get(address_index)?;
        let at = hosts.iter().position(|(one, _)| *one == host.account)?;
        Some((address_index, at))
    }

    /// Removes the host if it has no items left, and the address if it has no hosts left.
    fn drop_empty(&mut self, address_index: usize, at: usize) {
        let Some((_, hosts)) = self.addresses.get_mut(address_index) else {
            return;
        };
        if hosts.get(at).is_some_and(|(_, items)| items.is_empty()) {
            self.spare.extend(hosts.remove(at).map(|(_, items)| items));
        }
        if hosts.is_empty() {
            let gone = self.addresses.remove(address_index);
            self.spare_hosts.extend(gone.map(|(_, hosts)| hosts));
        }
    }

    /// Moves on to the next address, and at this one to the next host.
    pub(crate) fn advance(&mut self) {
        self.advance_host();
        self.advance_address();
    }

    /// Moves on to the next host of the current address. Returns whether the previous one
    /// still has items; then it comes last.
    pub(crate) fn advance_host(&mut self) -> bool {
        let Some((_, hosts)) = self.addresses.front_mut() else {
            return false;
        };
        match hosts.pop_front() {
            Some((_, items)) if items.is_empty() => {
                self.spare.push(items);
                false
            }
            host => {
                hosts.extend(host);
                true
            }
        }
    }

    /// Moves on to the next address, at the host that is next there. Returns whether the
    /// previous one still has hosts; then it comes last.
    pub(crate) fn advance_address(&mut self) -> bool {
        match self.addresses.pop_front() {
            Some((_, hosts)) if hosts.is_empty() => {
                self.spare_hosts.push(hosts);
                false
            }
            address => {
                self.addresses.extend(address);
                true
            }
        }
    }

    /// Returns the last `skipped` addresses that were passed without being served to the
    /// front, in their order. With `was_served`, the very last one was served and stays
    /// last.
    pub(crate) fn return_addresses(&mut self, skipped: usize, was_served: bool) {
        come_first(&mut self.addresses, skipped, was_served);
    }

    /// As [`return_addresses`](Self::return_addresses), for hosts of the current address.
    pub(crate) fn return_hosts(&mut self, skipped: usize, was_served: bool) {
        if let Some((_, hosts)) = self.addresses.front_mut() {
            come_first(hosts, skipped, was_served);
        }
    }

    /// As [`return_addresses`](Self::return_addresses), for items of the current host.
    pub(crate) fn return_items(&mut self, skipped: usize, was_served: bool) {
        if let Some(items) = self.first_mut() {
            come_first(items, skipped, was_served);
        }
    }
}

fn come_first<T>(row: &mut VecDeque<T>, skipped: usize, but_last: bool) {
    let last = if but_last { row.pop_back() } else { None };
    row.rotate_right(skipped.min(row.len()));
    row.extend(last);
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = host(1, 1);
    const B: HostId = host(2, 2);

    const fn host(address: u64, account: u64) -> HostId {
        HostId { address, account }
    }

    /// All items, one per address and pass.
    fn served<T>(fair_queue: &mut FairQueue<T>) -> Vec<T> {
        let mut all = Vec::new();
        while let Some(item) = fair_queue.pop() {
            all.push(item);
            fair_queue.advance();
        }
        all
    }

    #[test]
    fn hosts_are_served_round_robin_in_order() {
        let mut fair_queue = FairQueue::default();
        for item in 0..4 {
            fair_queue.push(A, item);
        }
        fair_queue.push(B, 10);
        fair_queue.push(host(3, 3), 20);
        fair_queue.push(B, 11);
        assert_eq!(fair_queue.addresses(), 3);
        let mut all: Vec<_> = fair_queue.iter().copied().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 10, 11, 20]);
        assert_eq!(served(&mut fair_queue), [0, 10, 20, 1, 11, 2, 3]);
        assert!(fair_queue.is_empty());
        assert_eq!(fair_queue.addresses(), 0);
    }

    #[test]
    fn hosts_of_one_address_count_as_one() {
        let mut fair_queue = FairQueue::default();
        for item in 0..3 {
            for account in 1..4 {
                fair_queue.push(host(1, account), 10 * account + item);
            }
            fair_queue.push(host(2, 4), item);
        }
        let expected = [10, 0, 20, 1, 30, 2, 11, 21, 31, 12, 22, 32];
        assert_eq!(served(&mut fair_queue), expected);
        assert_eq!((fair_queue.len(), fair_queue.addresses()), (0, 0));
    }

    #[test]
    fn hosts_of_one_address_are_served_round_robin() {
        let mut fair_queue = FairQueue::default();
        fair_queue.push(host(1, 1), 10);
        fair_queue.push(host(1, 2), 20);
        fair_queue.push(host(2, 3), 30);
        assert_eq!(fair_queue.hosts_of_first(), 2);
        fair_queue.advance_host();
        assert_eq!(fair_queue.pop(), Some(20));
        fair_queue.advance();
        assert_eq!(fair_queue.pop(), Some(30));
        fair_queue.advance_host();
        assert_eq!((fair_queue.hosts_of_first(), fair_queue.pop()), (0, None));
        fair_queue.advance_address();
        assert_eq!((fair_queue.addresses(), fair_queue.pop()), (1, Some(10)));
    }

    #[test]
    fn item_put_back_is_next() {
        let mut fair_queue = FairQueue::default();
        fair_queue.push(A, 1);
        fair_queue.push(B, 2);
        let first = fair_queue.pop().unwrap();
        assert!(!fair_queue.is_empty());
        fair_queue.put_back(first);
        assert_eq!(
            (fair_queue.of_first(), served(&mut fair_queue)),
            (1, vec![1, 2])
        );
    }

    #[test]
    fn removed_item_is_never_served() {
        let mut fair_queue = FairQueue::default();
        for item in 0..3 {
            fair_queue.push(A, item);
        }
        fair_queue.push(B, 1);
        assert_eq!(fair_queue.remove(A, |item| *item == 1), Some(1));
        assert_eq!(fair_queue.remove(A, |item| *item == 1), None);
        assert_eq!(fair_queue.remove(host(3, 3), |_| true), None);
        assert_eq!(fair_queue.remove(B, |_| true), Some(1));
        assert_eq!(served(&mut fair_queue), [0, 2]);
        assert!(fair_queue.is_empty());
        for item in 0..6 {
            fair_queue.push(A, item);
            fair_queue.push(B, item);
        }
        assert_eq!(fair_queue.remove_all(A, |item| *item % 2 == 0), [0, 2, 4]);
        assert_eq!(fair_queue.remove_all(B, |_| true).len(), 6);
        assert!(fair_queue.remove_all(B, |_| true).is_empty());
        assert_eq!((fair_queue.len(), fair_queue.addresses()), (3, 1));
        assert_eq!(served(&mut fair_queue), [1, 3, 5]);
    }

    #[test]
    fn host_stays_current_until_pass() {
        let mut fair_queue = FairQueue::default();
        fair_queue.push(A, 1);
        fair_queue.push(B, 2);
        assert_eq!((fair_queue.pop(), fair_queue.pop()), (Some(1), None));
        fair_queue.push(A, 3);
        assert_eq!((fair_queue.of_first(), fair_queue.pop()), (1, Some(3)));
        fair_queue.advance();
        assert_eq!(served(&mut fair_queue), [2]);
    }

    /// Items that cannot be served now stay before all that arrive later, however often
    /// others between them are served.
    #[test]
    fn skipped_items_precede_newcomers() {
        let mut fair_queue = FairQueue::default();
        for account in 1..=4 {
            fair_queue.push(host(1, account), account);
        }
        fair_queue.push(host(2, 9), 9);
        fair_queue.push(host(3, 8), 8);
        // The third is served, and has an item again.
        assert!(fair_queue.advance_host() && fair_queue.advance_host());
        assert_eq!(fair_queue.pop(), Some(3));
        fair_queue.push(host(1, 3), 3);
        assert!(fair_queue.advance_host());
        fair_queue.return_hosts(2, true);
        fair_queue.push(host(1, 5), 5);
        let (_, hosts) = fair_queue.addresses.front().unwrap();
        let order: Vec<u64> = hosts.iter().map(|(account, _)| *account).collect();
        assert_eq!(order, [1, 2, 4, 3, 5]);
        // The second address, which has no items left.
        assert!(fair_queue.advance_address());
        assert_eq!(fair_queue.pop(), Some(9));
        assert!(!fair_queue.advance_host() && !fair_queue.advance_address());
        fair_queue.return_addresses(1, false);
        let order: Vec<u64> = fair_queue.addresses.iter().map(|(at, _)| *at).collect();
        assert_eq!(order, [1, 3]);
        // Items of one host.
        for item in [10, 11] {
            fair_queue.push(host(1, 1), item);
        }
        let skipped = fair_queue.pop().unwrap();
        fair_queue.push(host(1, 1), skipped);
        let served = fair_queue.pop().unwrap();
        fair_queue.push(host(1, 1), served);
        fair_queue.return_items(1, true);
        assert_eq!((skipped, served), (1, 10));
        let items = fair_queue.first_mut().unwrap();
        assert_eq!(*items, [1, 11, 10]);
    }
}
