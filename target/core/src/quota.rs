//! What peers have of something that each may have so much of: places, and how
//! heavy they are together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What each of several peers has. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quota {
    /// By their names.
    taken: Arc<Mutex<BTreeMap<Arc<str>, Taken>>>,
}

/// What one peer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) count: u32,
    pub(crate) weight: u32,
}

/// A place that is taken until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaGuard {
    all: Quota,
    key: Arc<str>,
    weight: u32,
}

impl Quota {
    /// Takes one more place for `key`, if `fits` agrees to what it has with that.
    pub(crate) fn take<E>(
        &self,
        key: &str,
        weight: u32,
        fits: impl FnOnce(Taken) -> Result<(), E>,
    ) -> Result<QuotaGuard, E> {
        let mut taken = self.lock();
        let (key, before) = match taken.get_key_value(key) {
            Some((key, before)) => (Arc::clone(key), *before),
            None => (Arc::from(key), Taken::default()),
        };
        let after = Taken {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Taken>> {
        // Nothing is left half done when a holder panics.
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
    fn each_has_its_own_until_it_goes() {
        let quota = Quota::default();
        let two = |taken: Taken| (taken.count <= 2).then_some(()).ok_or(taken.count);
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
