//! Quotas of peers: how many items each has, and their total weight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Usage of a quota by peer. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quota {
    /// By name of the peer.
    taken: Arc<Mutex<BTreeMap<Arc<str>, PeerUsage>>>,
}

/// Usage of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerUsage {
    pub(crate) count: u32,
    pub(crate) weight: u32,
}

/// An item that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    all: Quota,
    key: Arc<str>,
    weight: u32,
}

impl Quota {
    /// Adds an item for `key`, if `fits` accepts the usage including it.
    pub(crate) fn take<E>(
        &self,
        key: &str,
        weight: u32,
        fits: impl FnOnce(PeerUsage) -> Result<(), E>,
    ) -> Result<QuotaGuard, E> {
        let mut taken = self.lock();
        let (key, before) = match taken.get_key_value(key) {
            Some((key, before)) => (Arc::clone(key), *before),
            None => (Arc::from(key), PeerUsage::default()),
        };
        let after = PeerUsage {
            count: before.count.saturating_add(1),
            weight: before.weight.saturating_add(weight),
        };
        fits(after)?;
        taken.insert(Arc::clone(&key), after);
        drop(taken);
        Ok(QuotaGuard {
            all: self.clone(),
            key,
            weight,
        })
    }

    /// Whether no peer uses any of it.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, PeerUsage>> {
        // A panic leaves no change half done.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaGuard {
    fn drop(&mut self) {
        let mut taken = self.all.lock();
        let left = taken.get_mut(&self.key).map(|taken| {
            taken.count = taken.count.saturating_sub(1);
            taken.weight = taken.weight.saturating_sub(self.weight);
            taken.count
        });
        if left == Some(0) {
            taken.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_per_peer_until_dropped() {
        let quota = Quota::default();
        let two = |taken: PeerUsage| (taken.count <= 2).then_some(()).ok_or(taken.count);
        let [one, _other] = [(); 2].map(|()| quota.take("a", 5, two).unwrap());
        assert_eq!(quota.take("a", 5, two).unwrap_err(), 3);
        assert!(quota.take("b", 5, two).is_ok());
        let has = |key| quota.lock().get(key).map(|it| (it.count, it.weight));
        assert_eq!((has("a"), has("b")), (Some((2, 10)), None));
        drop(one);
        assert_eq!(has("a"), Some((1, 5)));
        assert!(quota.take("a", 5, two).is_ok());
    }
}
