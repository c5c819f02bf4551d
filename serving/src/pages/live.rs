//! Server-sent events that notify pages of changes. A page then reloads its own content.

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
use stores::lease::run_lease;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::query::Query;
use super::state::Pages;
use crate::http::{Api, Caller, Permit, Problem, ProblemKind};
use crate::request_coalescer::seeded_hash;

/// Interval between checks for changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum duration of a stream; the page then reconnects.
const STREAM_DURATION_MAX: Duration = Duration::from_secs(15 * 60);

/// Sends an event whenever one of the sources changed, until the stream ends. The permit is
/// released even if the client does not read.
async fn send_changes(
    api: Arc<Api>,
    key: Option<String>,
    _permit: Permit,
    sources: Vec<Source>,
    changes: mpsc::Sender<()>,
) {
    let deadline = Instant::now() + STREAM_DURATION_MAX;
    let mut last_fingerprints = None;
    loop {
        tokio::select! {
            () = api.shutdown.cancelled() => return,
            () = changes.closed() => return,
            () = sleep(CHECK_INTERVAL) => {}
        }
        if Instant::now() >= deadline || !is_key_valid(&api, key.as_deref()).await {
            return;
        }
        let fingerprints = sources
            .iter()
            .map(|source| compute_fingerprint(&api, *source));
        let Ok(fingerprints) = try_join_all(fingerprints).await else {
            // The page itself reports that a store is unavailable.
            continue;
        };
        if last_fingerprints
            .as_ref()
            .is_some_and(|last| *last != fingerprints)
        {
            // An unread event already notifies the page.
            let _sent = changes.try_send(());
        }
        last_fingerprints = Some(fingerprints);
    }
}

/// True if a key is still valid.
async fn is_key_valid(api: &Api, key: Option<&str>) -> bool {
    let Some(key) = key else { return true };
    match api.key_cache.get(key).await {
        Ok(Some(record)) => record.key.state(api.ports.clock.now_ms()) == KeyState::Valid,
        Ok(None) => false,
        // The key was valid before, and the key store is unavailable.
        Err(_) => true,
    }
}

/// Computes the fingerprint of a source: a hash of its position and newest runs. Concurrent
/// requests share one read.
async fn compute_fingerprint(api: &Arc<Api>, source: Source) -> Result<u128, Problem> {
    let api_for_read = Arc::clone(api);
    let read = async move {
        let runs = api_for_read.ports.views.runs(source).await?;
        let spans = api_for_read.ports.log.spans(source.topic()).await?;
        let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
        let states = api_for_read
            .ports
            .live
            .partition_states(source, 0..count)
            .await?;
        let positions = states.iter().flatten();
        let positions: Vec<i64> = positions.map(|state| state.position.next_offset).collect();
        let runs = runs.runs;
        let open_run = runs.open_run().map(|run| (run.epoch, run.state));
        // A run whose process ended keeps its state, but not its lease.
        let holder = match open_run {
            Some(_) => api_for_read.ports.leases.holder(&run_lease(source)).await?,
            None => None,
        };
        let newest = runs.newest_complete();
        Ok(seeded_hash(&(positions, newest, open_run, holder)))
    };
    api.position_coalescer
        .read(seeded_hash(&source.name()), read)
        .await
}

/// Parses the name of a source that has a log.
pub(super) fn parse_logged_source(name: &str) -> Option<Source> {
    let source = name.parse::<Source>().ok();
    source.filter(|source| Source::LOGGED.contains(source))
}

/// Parses a comma-separated list of sources without duplicates.
fn parse_sources(text: &str) -> Result<Vec<Source>, Problem> {
    let mut sources = Vec::new();
    for name in text.split(',') {
        match parse_logged_source(name) {
            Some(source) if sources.contains(&source) => {}
            Some(source) => sources.push(source),
            None => {
                let known = Source::LOGGED.map(Source::name).join(", ");
                let reason =
                    format!("source={text:?}: {name:?} is unknown; use one or more of {known}");
                return Err(Problem::parameter(reason));
            }
        }
    }
    Ok(sources)
}

/// Streams change events of one or more comma-separated sources.
pub(crate) async fn follow(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::parse(query.as_deref());
    let sources = parse_sources(query.get("source").unwrap_or("plays"))?;
    let api = &pages.api;
    let key = caller.key_id().map(str::to_owned);
    let permit = api.follower_permits.acquire(key.clone()).map_err(|_| {
        let detail = "the maximum number of pages that follow changes is reached: try again later";
        ProblemKind::Busy.with_detail(detail).with_retry_after_s(30)
    })?;
    let (changes, receiver) = mpsc::channel(1);
    let names: Vec<&str> = sources.iter().map(|source| source.name()).collect();
    let names = names.join(",");
    let mut sender = JoinSet::new();
    sender.spawn(send_changes(Arc::clone(api), key, permit, sources, changes));
    let events = stream::unfold(
        (receiver, sender, names),
        |(mut receiver, sender, names)| async move {
            receiver.recv().await?;
            let event = Event::default().event("moved").data(&names);
            Some((Ok::<_, Infallible>(event), (receiver, sender, names)))
        },
    );
    let events = Sse::new(events).keep_alive(KeepAlive::default());
    Ok(events.into_response())
}
