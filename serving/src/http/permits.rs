//! Limits of concurrent work: a maximum, and a smaller share for each address or key.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// A pool of permits, with a limit for each owner `K`.
#[derive(Debug)]
pub(crate) struct PermitPool<K> {
    max: usize,
    share: usize,
    in_use: Mutex<PermitCounts<K>>,
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
    PoolExhausted,
    /// The owner has used its share.
    ShareExhausted,
}

struct PermitGuard<K: Hash + Eq> {
    pool: Arc<PermitPool<K>>,
    owner: Option<K>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> PermitPool<K> {
    /// Creates a pool of `max` permits, of which one owner may hold `share`.
    pub(crate) fn new(max: usize, share: usize) -> Arc<Self> {
        let in_use = PermitCounts {
            total: 0,
            by_owner: HashMap::new(),
        };
        Arc::new(Self {
            max,
            share,
            in_use: Mutex::new(in_use),
        })
    }

    /// Takes a permit without waiting. Requests of the service itself have no owner, so no share
    /// limits them.
    pub(crate) fn acquire(self: &Arc<Self>, owner: Option<K>) -> Result<Permit, PermitError> {
        let mut in_use = lock(&self.in_use);
        if in_use.total >= self.max {
            return Err(PermitError::PoolExhausted);
        }
        if let Some(owner) = &owner {
            let used = in_use.by_owner.entry(owner.clone()).or_default();
            if *used >= self.share {
                return Err(PermitError::ShareExhausted);
            }
            *used += 1;
        }
        in_use.total += 1;
        let pool = Arc::clone(self);
        let _guard = Arc::new(PermitGuard { pool, owner });
        Ok(Permit { _guard })
    }
}

impl<K: Hash + Eq> Drop for PermitGuard<K> {
    fn drop(&mut self) {
        let mut in_use = lock(&self.pool.in_use);
        in_use.total -= 1;
        let Some(owner) = &self.owner else { return };
        if let Some(used) = in_use.by_owner.get_mut(owner) {
            *used -= 1;
            if *used == 0 {
                in_use.by_owner.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_limits_one_owner() {
        let pool = PermitPool::new(16, 2);
        let mut permits: Vec<_> = (0..2).map(|_| pool.acquire(Some(1)).unwrap()).collect();
        assert_eq!(
            pool.acquire(Some(1)).unwrap_err(),
            PermitError::ShareExhausted
        );
        permits.push(pool.acquire(Some(2)).unwrap());
        while let Ok(permit) = pool.acquire(None) {
            permits.push(permit);
        }
        assert_eq!(permits.len(), 16);
        assert_eq!(
            pool.acquire(Some(2)).unwrap_err(),
            PermitError::PoolExhausted
        );
        // A clone keeps the permit.
        let answer = permits[0].clone();
        drop(permits.remove(0));
        pool.acquire(None).unwrap_err();
        drop(answer);
        permits.push(pool.acquire(Some(1)).unwrap());
        drop(permits);
        assert_eq!(lock(&pool.in_use).total, 0);
        assert!(lock(&pool.in_use).by_owner.is_empty());
    }

    #[test]
    fn any_owner_may_hold_the_only_permit() {
        let pool = PermitPool::new(1, 1);
        let permits = pool.acquire(Some(1));
        assert!(permits.is_ok() && pool.acquire(None).is_err());
    }
}
