//! What happens at this moment, for the first page: positions, lag, epochs, runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use schemas::seam::{RunState, Slot};
use schemas::source::Source;
use serde::Serialize;
use serde_json::Value;
use stores::reconciliations::Reconciliation;
use stores::views::RunStory;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::Api;
use super::problem::{Problem, ProblemShape};
use super::runs::RunShown;
use crate::answer::shown_ms;
use crate::read::newest_of;

/// Runs that are shown.
const RUNS: usize = 5;
/// Comparisons that are looked at for metrics.
const COMPARED: usize = 100;
/// How long a source is looked at for metrics.
const NOTE_WAIT: Duration = Duration::from_secs(2);

/// What happens at this moment.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Overview {
    /// The moment, in UTC.
    now: String,
    sources: Vec<SourceShown>,
}

/// What happens in one source.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SourceShown {
    source: &'static str,
    partitions: Vec<PartitionShown>,
    /// By view, with its version: the newest complete epoch.
    views: BTreeMap<String, u64>,
    /// The newest runs, newest first.
    runs: Vec<RunShown>,
    /// Of the newest of them that is complete: when it came to its end, and what had been counted otherwise.
    #[serde(skip)]
    #[schema(ignore)]
    complete: (Option<i64>, Option<u64>),
}

/// One log partition and its live state.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PartitionShown {
    partition: usize,
    /// The first offset that the log still holds.
    log_start: i64,
    /// The offset that the next record will have.
    log_end: i64,
    /// Up to where live state has counted; null where there is none.
    next_offset: Option<i64>,
    /// Offsets that are not counted yet.
    lag: Option<i64>,
    /// When the newest record was logged that is counted; null where none is.
    as_of: Option<String>,
    /// The epoch that is being filled.
    epoch: Option<u64>,
    /// Whether live state that began anew has not come to where the log ended then.
    replaying: Option<bool>,
    /// The life of the live state: it rises when state was lost and is made again.
    generation: Option<u64>,
}

/// Positions, lag, epochs and runs of every source.
#[utoipa::path(
    get,
    path = "/api/v1/overview",
    tag = "service",
    responses(
        (status = 200, description = "The moment", body = Overview),
        (status = 503, description = "A store does not answer", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn overview(State(api): State<Arc<Api>>) -> Result<Json<Overview>, Problem> {
    let mut sources = Vec::new();
    for source in Source::LOGGED {
        sources.push(of_source(&api, source).await?);
    }
    Ok(Json(Overview {
        now: api.now().to_string(),
        sources,
    }))
}

/// Notes what is known of every source as gauges: whoever watches the API alone sees how all processes of the installation
/// are getting on. What a store does not answer in time stays as it was.
pub(crate) async fn note(api: &Api) {
    for source in Source::LOGGED {
        if let Ok(Ok(shown)) = timeout(NOTE_WAIT, of_source(api, source)).await {
            shown.note();
        }
        let compared = api
            .ports
            .reconciliations
            .reconciliations(source, None, COMPARED);
        if let Ok(Ok(compared)) = timeout(NOTE_WAIT, compared).await {
            note_compared(source, &compared);
        }
    }
}

/// Notes of the newest comparison of each view how many keys differed that were not put right.
#[expect(clippy::cast_precision_loss, reason = "a figure")]
fn note_compared(source: Source, newest_first: &[Reconciliation]) {
    let mut seen = BTreeSet::new();
    for one in newest_first {
        let text = |name: &str| one.record.get(name).and_then(Value::as_str);
        let Some(view) = text("view").filter(|view| seen.insert(view.to_string())) else {
            continue;
        };
        let differ = one.record.get("differ").and_then(Value::as_u64);
        let keys = match text("outcome") {
            Some("right" | "put_right") => 0,
            _ => differ.unwrap_or_default(),
        };
        let labels = [
            ("source", source.name().to_owned()),
            ("view", view.to_owned()),
        ];
        metrics::gauge!("backstitch_source_differing_keys", &labels).set(keys as f64);
    }
}

impl SourceShown {
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    fn note(&self) {
        let source = self.source;
        let (at_ms, drift) = self.complete;
        if let Some(at_ms) = at_ms {
            metrics::gauge!("backstitch_source_last_run_seconds", "source" => source)
                .set(at_ms as f64 / 1_000.0);
        }
        if let Some(drift) = drift {
            metrics::gauge!("backstitch_source_drift_events", "source" => source).set(drift as f64);
        }
        for one in &self.partitions {
            let labels = [
                ("source", source.to_owned()),
                ("partition", one.partition.to_string()),
            ];
            if let Some(lag) = one.lag {
                metrics::gauge!("backstitch_source_lag_events", &labels).set(lag as f64);
            }
            let replaying = f64::from(u8::from(one.replaying.unwrap_or(false)));
            metrics::gauge!("backstitch_source_replaying", &labels).set(replaying);
        }
    }
}

async fn of_source(api: &Api, source: Source) -> Result<SourceShown, Problem> {
    let runs = api.ports.views.runs(source).await?;
    let stories = api.ports.views.stories(source, None, RUNS).await?;
    let spans = api.ports.log.spans(source.topic()).await?;
    let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
    let live = api.ports.live.read(source, count, &[]).await?;
    let slots = live
        .slots
        .iter()
        .map(Option::as_ref)
        .chain(std::iter::repeat(None));
    let partitions = spans
        .iter()
        .zip(slots)
        .enumerate()
        .map(|(partition, (span, slot))| {
            let next_offset = slot.map(|slot| slot.position.next_offset);
            PartitionShown {
                partition,
                log_start: span.start,
                log_end: span.end,
                next_offset,
                // The log was looked at first, so live state may have got further since.
                lag: next_offset.map(|next| span.end.saturating_sub(next).max(0)),
                as_of: slot
                    .and_then(|slot| slot.position.last)
                    .map(|last| shown_ms(last.logged_at_ms)),
                epoch: slot.map(|slot| slot.epoch),
                replaying: slot.map(Slot::is_replaying),
                generation: slot.map(|slot| slot.generation),
            }
        });
    let views = api
        .metrics
        .values()
        .filter(|metric| metric.source == source)
        .flat_map(|metric| &metric.views)
        .map(|job| job.view());
    let boards = api.boards.values().filter(|job| job.source() == source);
    let views = views
        .chain(boards.map(|job| job.view()))
        .map(|view| (view.to_owned(), newest_of(&runs, view)));
    let is_complete = |story: &&RunStory| story.run.state == RunState::Complete;
    let complete = stories.iter().find(is_complete);
    let drift = complete.and_then(|story| story.report.get("drift")?.get("total")?.as_u64());
    Ok(SourceShown {
        source: source.name(),
        complete: (complete.and_then(|story| story.ended_at_ms), drift),
        partitions: partitions.collect(),
        views: views.collect(),
        runs: stories
            .iter()
            .map(|story| RunShown::of(source, story, runs.runs.newest()))
            .collect(),
    })
}
