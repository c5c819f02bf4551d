//! Limits of concurrent work: a maximum, and a share of it for each address or key.

use std::any::Any;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// All places, and those that each `K` has.
#[derive(Debug)]
pub(crate) struct Places<K> {
    max: usize,
    share: usize,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    all: usize,
    by_owner: HashMap<K, usize>,
}

/// A place, released when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _held: Arc<dyn Any + Send + Sync>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All are taken.
    Full,
    /// The owner has its share.
    Share,
}

struct Held<K: Hash + Eq> {
    places: Arc<Places<K>>,
    owner: Option<K>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Places<K> {
    /// So many places, of which one owner may have `share`.
    pub(crate) fn new(max: usize, share: usize) -> Arc<Self> {
        let taken = Taken {
            all: 0,
            by_owner: HashMap::new(),
        };
        Arc::new(Self {
            max,
            share,
            taken: Mutex::new(taken),
        })
    }

    /// A place, if there is one. Without an owner, as for this service's own requests, no share limits it.
    pub(crate) fn take(self: &Arc<Self>, owner: Option<K>) -> Result<Place, NoPlace> {
        let mut taken = lock(&self.taken);
        if taken.all >= self.max {
            return Err(NoPlace::Full);
        }
        if let Some(owner) = &owner {
            let own = taken.by_owner.entry(owner.clone()).or_default();
            if *own >= self.share {
                return Err(NoPlace::Share);
            }
            *own += 1;
        }
        taken.all += 1;
        let places = Arc::clone(self);
        let _held = Arc::new(Held { places, owner });
        Ok(Place { _held })
    }
}

impl<K: Hash + Eq> Drop for Held<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        taken.all -= 1;
        let Some(owner) = &self.owner else { return };
        if let Some(own) = taken.by_owner.get_mut(owner) {
            *own -= 1;
            if *own == 0 {
                taken.by_owner.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_most_places_to_others() {
        let places = Places::new(16, 2);
        let mut held: Vec<_> = (0..2).map(|_| places.take(Some(1)).unwrap()).collect();
        assert_eq!(places.take(Some(1)).unwrap_err(), NoPlace::Share);
        held.push(places.take(Some(2)).unwrap());
        while let Ok(place) = places.take(None) {
            held.push(place);
        }
        assert_eq!(held.len(), 16);
        assert_eq!(places.take(Some(2)).unwrap_err(), NoPlace::Full);
        // A copy holds it as long as the place does.
        let answer = held[0].clone();
        drop(held.remove(0));
        places.take(None).unwrap_err();
        drop(answer);
        held.push(places.take(Some(1)).unwrap());
        drop(held);
        assert_eq!(lock(&places.taken).all, 0);
        assert!(lock(&places.taken).by_owner.is_empty());
    }

    #[test]
    fn one_place_alone_is_for_anybody() {
        let places = Places::new(1, 1);
        let held = places.take(Some(1));
        assert!(held.is_ok() && places.take(None).is_err());
    }
}
