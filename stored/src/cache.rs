//! A bounded memory of what was used last: what was not used for a while is forgotten.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by key, at most so many. Those that were used since half of them came stay.
#[derive(Debug)]
pub struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    half: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Room for so many values.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            half: (max / 2).max(1),
        }
    }

    /// The value of a key, which is used by that.
    pub fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.put(key, value.clone());
        Some(value)
    }

    /// Puts a value in the place of what its key has.
    pub fn put(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Forgets a key.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays() {
        let mut cache = Cache::new(4);
        for n in 0..100 {
            cache.put(n, n);
            assert_eq!(cache.get(&0), Some(0), "after {n}");
            assert!(cache.young.len() + cache.old.len() <= 4);
        }
        assert_eq!(cache.get(&99), Some(99));
        assert_eq!(cache.get(&50), None);
        cache.put(99, 1);
        assert_eq!(cache.get(&99), Some(1));
        cache.remove(&99);
        assert_eq!(cache.get(&99), None);
        cache.clear();
        assert_eq!(cache.get(&0), None);
    }
}
