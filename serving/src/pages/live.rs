//! Telling pages that something has moved: server-sent events. What has changed they read from the page itself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use futures::stream;
use schemas::source::Source;
use stores::keys::KeyState;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Pages;
use super::query::Query;
use crate::gather::key_of;
use crate::http::{Api, Caller, Kind, Place, Problem};

/// How often is looked whether something has moved.
const EVERY: Duration = Duration::from_secs(2);
/// A page asks again after this time, so that nobody is followed for ever.
const FOLLOWED: Duration = Duration::from_secs(15 * 60);

/// Sends an event whenever one of the sources has moved, until it is time to end. A client that does not read is not followed for
/// longer, and its place is released then.
async fn tell(
    api: Arc<Api>,
    (key, _place): (Option<String>, Place),
    sources: Vec<Source>,
    moved: mpsc::Sender<()>,
) {
    let until = Instant::now() + FOLLOWED;
    let mut seen = None;
    loop {
        tokio::select! {
            () = api.closing.cancelled() => return,
            () = moved.closed() => return,
            () = sleep(EVERY) => {}
        }
        if Instant::now() >= until || !is_valid(&api, key.as_deref()).await {
            return;
        }
        let states = sources.iter().map(|source| state(&api, *source));
        let Ok(states) = try_join_all(states).await else {
            // The page says itself that a store does not answer.
            continue;
        };
        if seen.as_ref().is_some_and(|seen| *seen != states) {
            // One that was not read yet says as much.
            let _told = moved.try_send(());
        }
        seen = Some(states);
    }
}

/// Whether a key still lets in who has it.
async fn is_valid(api: &Api, key: Option<&str>) -> bool {
    let Some(key) = key else { return true };
    match api.key_ring.found(key).await {
        Ok(Some(kept)) => kept.key.state(api.ports.clock.now_ms()) == KeyState::Valid,
        Ok(None) => false,
        // Who is asking is not known at the moment, and was.
        Err(_) => true,
    }
}

/// What stands for the state of a source: how far it is counted, and its newest run. Who asks at the same time is answered
/// by one read.
async fn state(api: &Arc<Api>, source: Source) -> Result<u128, Problem> {
    let of = Arc::clone(api);
    let read = async move {
        let runs = of.ports.views.runs(source).await?;
        let spans = of.ports.log.spans(source.topic()).await?;
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        let slots = of.ports.live.partition_states(source, 0..count).await?;
        let positions = slots.iter().flatten();
        let positions: Vec<i64> = positions.map(|slot| slot.position.next_offset).collect();
        Ok(key_of(&(positions, runs.runs.newest())))
    };
    api.moves.read(key_of(&source.name()), read).await
}

/// A source that has a log, by its name.
pub(super) fn logged(name: &str) -> Option<Source> {
    let source = name.parse::<Source>().ok();
    source.filter(|source| Source::LOGGED.contains(source))
}

/// The sources that a text names, each once.
fn sources(text: &str) -> Result<Vec<Source>, Problem> {
    let mut sources = Vec::new();
    for name in text.split(',') {
        match logged(name) {
            Some(source) if sources.contains(&source) => {}
            Some(source) => sources.push(source),
            None => {
                let known = Source::LOGGED.map(Source::name).join(", ");
                let why = format!("source={text:?}: {name:?} is none of {known}");
                return Err(Problem::parameter(why));
            }
        }
    }
    Ok(sources)
}

/// Events of one source, or of several with commas between.
pub(crate) async fn follow(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::of(query.as_deref());
    let sources = sources(query.get("source").unwrap_or("plays"))?;
    let api = &pages.state;
    let key = caller.key_id().map(str::to_owned);
    let place = api.following.take(key.clone()).map_err(|_| {
        let detail = "as many pages are followed as may be: ask again later";
        Kind::Busy.with_detail(detail).retry_after(30)
    })?;
    let (moved, heard) = mpsc::channel(1);
    let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
    let names = names.join(",");
    let mut telling = JoinSet::new();
    telling.spawn(tell(Arc::clone(api), (key, place), sources, moved));
    let events = stream::unfold(
        (heard, telling, names),
        |(mut heard, telling, names)| async move {
            heard.recv().await?;
            let event = Event::default().event("moved").data(&names);
            Some((Ok::<_, Infallible>(event), (heard, telling, names)))
        },
    );
    let events = Sse::new(events).keep_alive(KeepAlive::default());
    Ok(events.into_response())
}
