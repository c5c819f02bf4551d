//! Telling pages that something has moved: server-sent events. What has changed they read from the page itself.

use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use schemas::source::Source;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::Pages;
use super::query::Query;
use crate::gather::key_of;
use crate::http::{Api, Kind, Problem};

/// How often is looked whether something has moved.
const EVERY: Duration = Duration::from_secs(2);
/// A page asks again after this time, so that nobody is followed for ever.
const FOLLOWED: Duration = Duration::from_secs(15 * 60);

/// Who is being told.
struct Follower {
    api: Arc<Api>,
    source: Source,
    seen: Option<u64>,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// Waits until something has moved; nothing once it is time to end.
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            let closing = self.api.closing.clone();
            tokio::select! {
                () = closing.cancelled() => return None,
                () = sleep(EVERY) => {}
            }
            if Instant::now() >= self.until {
                return None;
            }
            let Ok(state) = state(&self.api, self.source).await else {
                // The page says itself that a store does not answer.
                continue;
            };
            let is_new = self.seen.is_some_and(|seen| seen != state);
            self.seen = Some(state);
            if is_new {
                let event = Event::default().event("moved").data(self.source.name());
                return Some((Ok(event), self));
            }
        }
    }
}

/// What stands for the state of a source: how far it is counted, and its newest run. Who asks at the same time is answered
/// by one read.
async fn state(api: &Arc<Api>, source: Source) -> Result<u64, Problem> {
    let of = Arc::clone(api);
    let read = async move {
        let runs = of.ports.views.runs(source).await?;
        let spans = of.ports.log.spans(source.topic()).await?;
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        let live = of.ports.live.read(source, count, &[]).await?;
        let positions = live.slots.iter().flatten();
        let positions: Vec<i64> = positions.map(|slot| slot.position.next_offset).collect();
        Ok(Moved(positions, runs.runs.newest()).of())
    };
    api.moves.read(key_of(&source.name()), read).await
}

#[derive(Hash)]
struct Moved(Vec<i64>, u64);

impl Moved {
    fn of(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "a hash")]
        let low = key_of(self) as u64;
        low
    }
}

/// Events of one source.
pub(crate) async fn follow(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let query = Query::of(query.as_deref());
    let source = query.get("source").unwrap_or("plays");
    let source = match source.parse::<Source>() {
        Ok(source) if Source::LOGGED.contains(&source) => source,
        _ => {
            let known = Source::LOGGED.map(Source::name).join(", ");
            return Problem::parameter(format!("source={source:?} is none of {known}"))
                .into_response();
        }
    };
    let api = &pages.state;
    let Ok(place) = Arc::clone(&api.followers).try_acquire_owned() else {
        let detail = "as many pages are followed as may be: ask again later";
        return Problem::new(Kind::Busy, detail)
            .retry_after(30)
            .into_response();
    };
    let follower = Follower {
        api: Arc::clone(api),
        source,
        seen: None,
        until: Instant::now() + FOLLOWED,
        _place: place,
    };
    let events = stream::unfold(follower, Follower::next);
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}
