//! What happens at this moment, for the first page: positions, lag, epochs, runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::seam::{RunState, Slot};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::reconciliations::{self, Reconciliation};
use stores::views::RunStory;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::params::Params;
use super::problem::Problem;
use super::runs::{RunShown, drift_total};
use super::{Api, csv};
use crate::answer::shown_ms;
use crate::read::newest_of;

/// Runs that are shown.
const RUNS: usize = 5;
/// Comparisons that are looked at for metrics.
const COMPARED: usize = 100;
/// How long a source is looked at for metrics.
const NOTE_WAIT: Duration = Duration::from_secs(2);

/// What happens at this moment.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Overview {
    /// The moment, in UTC.
    pub(crate) now: String,
    pub(crate) sources: Vec<SourceShown>,
}

/// What happens in one source.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SourceShown {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    pub(crate) partitions: Vec<PartitionShown>,
    /// By view, with its version: the newest complete epoch.
    pub(crate) views: BTreeMap<String, u64>,
    /// The newest runs, newest first.
    pub(crate) runs: Vec<RunShown>,
    /// The newest run that is complete, which may be older than those; null before the first.
    pub(crate) newest_complete: Option<RunShown>,
    /// When that came to its end, in milliseconds since 1970, and what had been counted otherwise. Where many tries and no
    /// complete run are known, it is long ago.
    #[serde(skip)]
    #[schema(ignore)]
    pub(crate) complete: (Option<i64>, Option<u64>),
}

/// One log partition and its live state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PartitionShown {
    pub(crate) partition: usize,
    /// The first offset that the log still holds.
    pub(crate) log_start: i64,
    /// The offset that the next record will have.
    pub(crate) log_end: i64,
    /// Up to where live state has counted; null where there is none.
    pub(crate) next_offset: Option<i64>,
    /// Offsets that are not counted yet.
    pub(crate) lag: Option<i64>,
    /// When the newest record was logged that is counted; null where none is.
    pub(crate) as_of: Option<String>,
    /// The epoch that is being filled.
    pub(crate) epoch: Option<u64>,
    /// Whether live state that began anew has not come to where the log ended then.
    pub(crate) replaying: Option<bool>,
    /// The life of the live state: it rises when state was lost and is made again.
    pub(crate) generation: Option<u64>,
}

/// Positions, lag, epochs and runs of every source.
#[utoipa::path(
    get,
    path = "/api/v1/overview",
    tag = "service",
    params(("format" = Option<String>, Query, description = "json, or csv: the partitions")),
    responses(
        (status = 200, description = "The moment", body = Overview)
    )
)]
pub(crate) async fn overview(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    let format = Params::read(&uri, &["format"])?.format()?;
    let mut sources = Vec::new();
    for source in Source::LOGGED {
        sources.push(of_source(&api, source).await?);
    }
    let overview = Overview {
        now: api.now().to_string(),
        sources,
    };
    Ok(format.answer(overview, |overview| as_csv(&overview.sources)))
}

/// The partitions of all sources.
fn as_csv(sources: &[SourceShown]) -> Response {
    let header =
        "source,partition,log_start,log_end,next_offset,lag,as_of,epoch,replaying,generation";
    let rows = sources.iter().flat_map(|of| {
        of.partitions.iter().map(|one| {
            let mut row = serde_json::to_value(one).unwrap_or_default();
            row["source"] = of.source.name().into();
            row
        })
    });
    csv::objects(header, rows, None)
}

/// Notes what is known of every source as gauges: whoever watches the API alone sees how all processes of the installation
/// are getting on. What a store does not answer in time stays as it was.
pub(crate) async fn note(api: &Api) {
    for source in Source::LOGGED {
        if let Ok(Ok(shown)) = timeout(NOTE_WAIT, of_source(api, source)).await {
            shown.note();
            note_seen(api, source);
        }
        let compared = reconciliations::list(&*api.ports.records, source, None, COMPARED);
        if let Ok(Ok(compared)) = timeout(NOTE_WAIT, compared).await {
            note_compared(source, &compared);
        }
    }
}

/// Notes that a source was looked at now.
#[expect(clippy::cast_precision_loss, reason = "a figure")]
pub(crate) fn note_seen(api: &Api, source: Source) {
    let seen_s = api.ports.clock.now_ms() as f64 / 1_000.0;
    metrics::gauge!("backstitch_source_seen_seconds", "source" => source.name()).set(seen_s);
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
        let source = self.source.name();
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
            // Where nothing is counted yet, all of it is still to be.
            let lag = one.lag.unwrap_or(one.log_end.saturating_sub(one.log_start));
            metrics::gauge!("backstitch_source_lag_events", &labels).set(lag as f64);
            let next = one.next_offset.unwrap_or_default();
            metrics::gauge!("backstitch_source_next_offset", &labels).set(next as f64);
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
    let slots = api.ports.live.partition_states(source, 0..count).await?;
    let slots = slots
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
    let newest = runs.runs.newest();
    let complete = match stories.iter().find(is_complete) {
        Some(found) => Some(found.clone()),
        None if newest > 0 => api.ports.views.story(source, newest).await?,
        None => None,
    };
    let ended_at_ms = match &complete {
        Some(complete) => complete.ended_at_ms,
        None => (stories.len() >= RUNS).then_some(0),
    };
    Ok(SourceShown {
        source,
        complete: (ended_at_ms, complete.as_ref().and_then(drift_total)),
        newest_complete: complete.map(|story| RunShown::of(source, &story, newest)),
        partitions: partitions.collect(),
        views: views.collect(),
        runs: stories
            .iter()
            .map(|story| RunShown::of(source, story, newest))
            .collect(),
    })
}
