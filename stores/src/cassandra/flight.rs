//! How many requests are under way at the same time: halved when the servers are too slow or say that
//! they have too much to do, and then one more again after as many that went well.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What was too much is told by all requests that were under way: they count once.
const ONE_FAULT: Duration = Duration::from_millis(500);

/// Room for requests.
#[derive(Debug)]
pub(super) struct Flight {
    places: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    max: usize,
    limit: usize,
    /// Places that there are, more than `limit` until those that are taken come back.
    there: usize,
    well: usize,
    halved: Option<Instant>,
}

impl Flight {
    pub(super) fn new(max: usize) -> Self {
        let max = max.clamp(1, 4096);
        Self {
            places: Arc::new(Semaphore::new(max)),
            state: Mutex::new(State {
                max,
                limit: max,
                there: max,
                well: 0,
                halved: None,
            }),
        }
    }

    /// A place for a request; nothing once there are none any more, which never happens.
    pub(super) async fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Gives a place back; `too_much` where the servers could not keep up.
    pub(super) fn give_back(&self, place: Option<OwnedSemaphorePermit>, too_much: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if too_much {
            if state.halved.is_none_or(|at| now - at > ONE_FAULT) {
                state.limit = (state.limit / 2).max(1);
                state.halved = Some(now);
                state.well = 0;
                tracing::warn!(in_flight = state.limit, "Cassandra is slow: fewer requests");
            }
        } else {
            state.well += 1;
            if state.well >= state.limit && state.limit < state.max {
                state.limit += 1;
                state.well = 0;
            }
        }
        if state.there > state.limit
            && let Some(place) = place
        {
            place.forget();
            state.there -= 1;
        } else if state.there < state.limit {
            self.places.add_permits(1);
            state.there += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn room_shrinks_at_once_and_grows_slowly() {
        let flight = Flight::new(8);
        let mut taken = Vec::new();
        for _ in 0..8 {
            taken.push(flight.take().await);
        }
        for place in taken {
            flight.give_back(place, true);
        }
        assert_eq!(flight.places.available_permits(), 4, "halved once");
        for _ in 0..4 {
            let place = flight.take().await;
            flight.give_back(place, false);
        }
        assert_eq!(flight.places.available_permits(), 5);
        for _ in 0..100 {
            let place = flight.take().await;
            flight.give_back(place, false);
        }
        assert_eq!(flight.places.available_permits(), 8, "never more than said");
    }
}
