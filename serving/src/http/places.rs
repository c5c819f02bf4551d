//! Requests that are answered at once: so many in all, and a part of them of one address. A request has its place until its answer
//! has left, since what a client does not take is in memory.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One address has this part of all places.
const SHARE: usize = 8;

/// All places.
#[derive(Debug)]
pub(crate) struct Places {
    max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_network: HashMap<IpAddr, usize>,
}

/// The place of a request.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    _held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    places: Arc<Places>,
    network: Option<IpAddr>,
}

impl Places {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            taken: Mutex::default(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a request of an address, if there is one. One that is not named is this service's own, or this machine's: it may
    /// have all of them.
    pub(crate) fn take(self: &Arc<Self>, network: Option<IpAddr>) -> Option<Place> {
        let mut taken = self.taken();
        if taken.all >= self.max {
            return None;
        }
        if let Some(network) = network {
            let own = taken.by_network.entry(network).or_default();
            if *own >= self.max.div_ceil(SHARE) {
                return None;
            }
            *own += 1;
        }
        taken.all += 1;
        let places = Arc::clone(self);
        Some(Place {
            _held: Arc::new(Held { places, network }),
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        let Some(network) = self.network else { return };
        if let Some(own) = taken.by_network.get_mut(&network) {
            *own -= 1;
            if *own == 0 {
                taken.by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_address_leaves_most_places_to_others() {
        let places = Places::new(2 * SHARE);
        let [one, other] = [1, 2].map(|last| Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))));
        let mut held: Vec<_> = (0..2).map(|_| places.take(one).expect("a place")).collect();
        assert!(places.take(one).is_none());
        held.push(places.take(other).expect("a place"));
        while let Some(place) = places.take(None) {
            held.push(place);
        }
        assert_eq!(held.len(), 2 * SHARE);
        assert!(places.take(other).is_none());
        // An answer holds it as long as the request does.
        let answer = held[0].clone();
        drop(held.remove(0));
        assert!(places.take(None).is_none());
        drop(answer);
        held.push(places.take(one).expect("a place"));
        drop(held);
        assert_eq!(places.taken().all, 0);
        assert!(places.taken().by_network.is_empty());
    }

    #[test]
    fn one_place_alone_is_for_anybody() {
        let places = Places::new(1);
        let one = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let held = places.take(one);
        assert!(held.is_some() && places.take(None).is_none());
    }
}
