//! A bounded memory of what was used last: what was not used for a while is forgotten.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Values by key, of a size that is bounded. Those that were used since half of them came stay.
#[derive(Debug)]
pub struct Cache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// The size of the young ones.
    young_size: usize,
    half: usize,
    size_of: fn(&V) -> usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// Room for so many values.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self::with_size_max(max, |_| 1)
    }

    /// Room for values whose sizes add up to `size_max`. A value that is larger than half of that is there alone.
    #[must_use]
    pub fn with_size_max(size_max: usize, size_of: fn(&V) -> usize) -> Self {
        Self {
            young: HashMap::new(),
            old: HashMap::new(),
            young_size: 0,
            half: (size_max / 2).max(1),
            size_of,
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
        self.remove(&key);
        let size = (self.size_of)(&value);
        if self.young_size.saturating_add(size) > self.half {
            self.old = std::mem::take(&mut self.young);
            self.young_size = 0;
        }
        self.young_size = self.young_size.saturating_add(size);
        self.young.insert(key, value);
    }

    /// Forgets what was not used since the last call.
    pub fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.young_size = 0;
    }

    /// Forgets a key.
    pub fn remove<Q: Hash + Eq + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(value) = self.young.remove(key) {
            self.young_size = self.young_size.saturating_sub((self.size_of)(&value));
        }
        self.old.remove(key);
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.young.clear();
        self.young_size = 0;
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

    #[test]
    fn sizes_are_bounded() {
        let mut cache = Cache::with_size_max(100, |text: &String| text.len());
        for n in 0..1000_usize {
            cache.put(n, "x".repeat(n % 40));
            let young: usize = cache.young.values().map(String::len).sum();
            let old: usize = cache.old.values().map(String::len).sum();
            assert_eq!(cache.young_size, young);
            assert!(young + old <= 100, "{young} and {old} after {n}");
            assert!(cache.get(&n).is_some());
            cache.remove(&(n / 2));
        }
        cache.put(0, "x".repeat(200));
        assert!(cache.get(&0).is_some());
        cache.put(1, "x".repeat(60));
        assert!(cache.get(&0).is_some());
    }

    #[test]
    fn what_was_not_used_between_two_ages_goes() {
        let mut cache = Cache::new(100);
        cache.put(1, 1);
        cache.put(2, 2);
        cache.age();
        assert_eq!(cache.get(&1), Some(1));
        cache.age();
        assert_eq!(cache.get(&1), Some(1));
        assert_eq!(cache.get(&2), None);
    }
}
