//! Limits of concurrent work: a maximum in total, and a smaller one for each address or key.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// A pool of permits, with a limit for each owner `K`.
#[derive(Debug)]
pub(crate) struct PermitPool<K> {
    permits_max: usize,
    owner_permits_max: usize,
    counts: Mutex<PermitCounts<K>>,
}

#[derive(Debug)]
struct PermitCounts<K> {
    total: usize,
    by_owner: HashMap<K, usize>,
}

/// A permit, released when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Permit {
    _guard: Arc<dyn Any + Send + Sync>,
}

/// Why no permit is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitError {
    /// All permits are in use.
    PoolLimitReached,
    /// The owner has the maximum number of permits.
    OwnerLimitReached,
}

struct PermitGuard<K: Hash + Eq> {
    pool: Arc<PermitPool<K>>,
    owner: Option<K>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> PermitPool<K> {
    /// Creates a pool of `permits_max` permits, of which each owner may hold `owner_permits_max`.
    pub(crate) fn new(permits_max: usize, owner_permits_max: usize) -> Arc<Self> {
        let counts = PermitCounts {
            total: 0,
            by_owner: HashMap::new(),
        };
        Arc::new(Self {
            permits_max,
            owner_permits_max,
            counts: Mutex::new(counts),
        })
    }

    /// Acquires a permit without waiting. Requests of the service itself have no owner, so only the
    /// total limits them.
    pub(crate) fn acquire(self: &Arc<Self>, owner: Option<K>) -> Result<Permit, PermitError> {
        let mut counts = lock(&self.counts);
        if counts.total >= self.permits_max {
            return Err(PermitError::PoolLimitReached);
        }
        if let Some(owner) = &owner {
            let owner_count = counts.by_owner.entry(owner.clone()).or_default();
            if *owner_count >= self.owner_permits_max {
                return Err(PermitError::OwnerLimitReached);
            }
            *owner_count += 1;
        }
        counts.total += 1;
        let pool = Arc::clone(self);
        let _guard = Arc::new(PermitGuard { pool, owner });
        Ok(Permit { _guard })
    }
}

impl<K: Hash + Eq> Drop for PermitGuard<K> {
    fn drop(&mut self) {
        let mut counts = lock(&self.pool.counts);
        counts.total -= 1;
        let Some(owner) = &self.owner else { return };
        if let Some(owner_count) = counts.by_owner.get_mut(owner) {
            *owner_count -= 1;
            if *owner_count == 0 {
                counts.by_owner.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_the_permits_of_an_owner() {
        let pool = PermitPool::new(16, 2);
        let mut permits: Vec<_> = (0..2).map(|_| pool.acquire(Some(1)).unwrap()).collect();
        assert_eq!(
            pool.acquire(Some(1)).unwrap_err(),
            PermitError::OwnerLimitReached
        );
        permits.push(pool.acquire(Some(2)).unwrap());
        while let Ok(permit) = pool.acquire(None) {
            permits.push(permit);
        }
        assert_eq!(permits.len(), 16);
        assert_eq!(
            pool.acquire(Some(2)).unwrap_err(),
            PermitError::PoolLimitReached
        );
        // A clone keeps the permit.
        let response_permit = permits[0].clone();
        drop(permits.remove(0));
        pool.acquire(None).unwrap_err();
        drop(response_permit);
        permits.push(pool.acquire(Some(1)).unwrap());
        drop(permits);
        assert_eq!(lock(&pool.counts).total, 0);
        assert!(lock(&pool.counts).by_owner.is_empty());
    }

    #[test]
    fn any_owner_may_hold_the_only_permit() {
        let pool = PermitPool::new(1, 1);
        let permits = pool.acquire(Some(1));
        assert!(permits.is_ok() && pool.acquire(None).is_err());
    }
}
