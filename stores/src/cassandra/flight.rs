//! How many requests are under way at the same time: halved when the servers are too slow or say that
//! they have too much to do, and then one more again after as many that went well.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

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
    /// When a request was answered last.
    answered: Option<Instant>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// The servers answered it.
    Answered,
    /// The servers could not keep up.
    Overloaded,
    /// Something else happened: the connection broke, say.
    Failed,
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
                answered: None,
            }),
        }
    }

    /// A place for a request. Waits as long as others are answered; nothing once none was for `silent_for`.
    pub(super) async fn take(&self, silent_for: Duration) -> Option<OwnedSemaphorePermit> {
        let mut taking = std::pin::pin!(Arc::clone(&self.places).acquire_owned());
        let mut since = Instant::now();
        loop {
            if let Ok(place) = timeout_at(since + silent_for, &mut taking).await {
                return place.ok();
            }
            since = self.state().answered.filter(|at| *at > since)?;
        }
    }

    /// How many requests may be under way now.
    pub(super) fn limit(&self) -> usize {
        self.state().limit
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a place back, if the request had one.
    pub(super) fn give_back(&self, place: Option<OwnedSemaphorePermit>, outcome: RequestOutcome) {
        let mut state = self.state();
        let now = Instant::now();
        match outcome {
            RequestOutcome::Overloaded => {
                if state.halved.is_none_or(|at| now - at > ONE_FAULT) {
                    state.limit = (state.limit / 2).max(1);
                    state.halved = Some(now);
                    state.well = 0;
                    tracing::warn!(in_flight = state.limit, "Cassandra is slow: fewer requests");
                }
            }
            RequestOutcome::Answered => {
                state.answered = Some(now);
                state.well += 1;
                if state.well >= state.limit && state.limit < state.max {
                    state.limit += 1;
                    state.well = 0;
                }
            }
            RequestOutcome::Failed => {}
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

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_wait_lasts_while_others_are_answered() {
        let flight = Flight::new(1);
        let place = flight.take(LONG).await;
        let moment = Duration::from_millis(50);
        assert!(flight.take(moment).await.is_none(), "nobody is answered");
        let others = async {
            // Longer than a wait in silence.
            for _ in 0..50 {
                tokio::time::sleep(moment).await;
                flight.give_back(None, RequestOutcome::Answered);
            }
            flight.give_back(place, RequestOutcome::Answered);
        };
        let (waited, ()) = tokio::join!(flight.take(40 * moment), others);
        assert!(waited.is_some());
    }

    #[tokio::test]
    async fn room_shrinks_at_once_and_grows_slowly() {
        let flight = Flight::new(8);
        let mut taken = Vec::new();
        for _ in 0..8 {
            taken.push(flight.take(LONG).await);
        }
        for place in taken {
            flight.give_back(place, RequestOutcome::Overloaded);
        }
        assert_eq!(flight.places.available_permits(), 4, "halved once");
        for _ in 0..4 {
            let place = flight.take(LONG).await;
            flight.give_back(place, RequestOutcome::Answered);
        }
        assert_eq!(flight.places.available_permits(), 5);
        for _ in 0..100 {
            let place = flight.take(LONG).await;
            flight.give_back(place, RequestOutcome::Answered);
        }
        assert_eq!(flight.places.available_permits(), 8, "never more than said");
    }
}
