//! The current state of all sources: positions, lag, epochs and runs. Also reported as metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemas::seam::{PartitionState, RunState};
use schemas::source::Source;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::log::Span;
use stores::reconciliations::{self, Reconciliation};
use stores::views::RunDetails;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::params::Params;
use super::problem::Problem;
use super::runs::{RunResponse, find_running_time, read_drift_total};
use super::{Api, csv};
use crate::answer::format_ms;
use crate::read::newest_epoch;

/// Maximum number of runs in a response.
const NEWEST_RUNS_MAX: usize = 5;
/// Maximum number of comparisons to read for metrics.
const COMPARISONS_MAX: usize = 100;
/// Time limit of reading a source for metrics.
const METRICS_TIMEOUT: Duration = Duration::from_secs(2);

/// The current state of all sources.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Overview {
    /// The current time, in UTC.
    pub(crate) now: String,
    pub(crate) sources: Vec<SourceOverview>,
}

/// The current state of a source.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SourceOverview {
    #[schema(value_type = String)]
    pub(crate) source: Source,
    pub(crate) partitions: Vec<PartitionOverview>,
    /// The newest complete epoch, by view and version.
    pub(crate) views: BTreeMap<String, u64>,
    /// The newest runs, newest first.
    pub(crate) runs: Vec<RunResponse>,
    /// The newest complete run, which may be older than `runs`. Null before the first.
    pub(crate) newest_complete: Option<RunResponse>,
    /// The newest complete run, for metrics.
    #[serde(skip)]
    #[schema(ignore)]
    last_complete: LastCompleteRun,
}

/// The newest complete run of a source, as reported in metrics.
#[derive(Debug, Clone, Copy, Default)]
struct LastCompleteRun {
    /// Its end. 0 if several runs were attempted, but none completed.
    ended_at_ms: Option<i64>,
    /// The total difference between live counts and the run.
    drift: Option<u64>,
}

/// One log partition and its live state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct PartitionOverview {
    pub(crate) partition: usize,
    /// The first offset that the log still has.
    pub(crate) log_start: i64,
    /// The offset of the next record.
    pub(crate) log_end: i64,
    /// The offset up to which live state has counted. Null without live state.
    pub(crate) next_offset: Option<i64>,
    /// Number of offsets that are not counted yet.
    pub(crate) lag: Option<i64>,
    /// Log time of the newest counted record, if any.
    pub(crate) as_of: Option<String>,
    /// The current epoch.
    pub(crate) epoch: Option<u64>,
    /// True while a new generation of live state has not reached the end that the log had when it
    /// started.
    pub(crate) replaying: Option<bool>,
    /// The generation of the live state, which increases when lost state is rebuilt.
    pub(crate) generation: Option<u64>,
}

/// Positions, lag, epochs and runs of every source.
#[utoipa::path(
    get,
    path = "/api/v1/overview",
    tag = "service",
    params(("format" = Option<String>, Query, description = "json (default), or csv: the partitions")),
    responses(
        (status = 200, description = "The current state", body = Overview)
    )
)]
pub(crate) async fn show_overview(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    let format = Params::parse(&uri, &["format"])?.parse_format()?;
    let mut sources = Vec::new();
    for source in Source::LOGGED {
        sources.push(read_source_overview(&api, source).await?);
    }
    let overview = Overview {
        now: api.now().to_string(),
        sources,
    };
    Ok(format.respond(overview, |overview| write_csv(&overview.sources)))
}

/// Writes the partitions of all sources.
fn write_csv(sources: &[SourceOverview]) -> Response {
    let header =
        "source,partition,log_start,log_end,next_offset,lag,as_of,epoch,replaying,generation";
    let rows = sources.iter().flat_map(|source| {
        source.partitions.iter().map(|partition| {
            let mut row = serde_json::to_value(partition).unwrap_or_default();
            row["source"] = source.source.name().into();
            row
        })
    });
    csv::write_objects(header, rows, None)
}

/// Records the state of every source as gauges, so that the API's metrics show the progress of all
/// processes. If a store does not answer in time, the gauges keep their values.
pub(crate) async fn record_metrics(api: &Api) {
    for source in Source::LOGGED {
        if let Ok(Ok(overview)) = timeout(METRICS_TIMEOUT, read_source_overview(api, source)).await
        {
            overview.record_metrics();
            record_source_read_time(api, source);
        }
        let comparisons = reconciliations::list(&*api.ports.records, source, None, COMPARISONS_MAX);
        if let Ok(Ok(comparisons)) = timeout(METRICS_TIMEOUT, comparisons).await {
            record_differing_keys(source, &comparisons);
        }
    }
}

/// Records that a source was read now.
#[expect(clippy::cast_precision_loss, reason = "a metric")]
pub(crate) fn record_source_read_time(api: &Api, source: Source) {
    let now_s = api.ports.clock.now_ms() as f64 / 1_000.0;
    metrics::gauge!("backstitch_source_seen_seconds", "source" => source.name()).set(now_s);
}

/// Records the number of differing keys that the newest comparison of each view did not repair.
#[expect(clippy::cast_precision_loss, reason = "a metric")]
fn record_differing_keys(source: Source, newest_first: &[Reconciliation]) {
    let mut known_views = BTreeSet::new();
    for comparison in newest_first {
        let text = |name: &str| comparison.record.get(name).and_then(Value::as_str);
        let Some(view) = text("view").filter(|view| known_views.insert(view.to_string())) else {
            continue;
        };
        let differing_keys = comparison.record.get("differ").and_then(Value::as_u64);
        let keys = match text("outcome") {
            Some("right" | "put_right") => 0,
            _ => differing_keys.unwrap_or_default(),
        };
        let labels = [
            ("source", source.name().to_owned()),
            ("view", view.to_owned()),
        ];
        metrics::gauge!("backstitch_source_differing_keys", &labels).set(keys as f64);
    }
}

impl SourceOverview {
    #[expect(clippy::cast_precision_loss, reason = "a metric")]
    fn record_metrics(&self) {
        let source = self.source.name();
        let LastCompleteRun { ended_at_ms, drift } = self.last_complete;
        if let Some(ended_at_ms) = ended_at_ms {
            metrics::gauge!("backstitch_source_last_run_seconds", "source" => source)
                .set(ended_at_ms as f64 / 1_000.0);
        }
        if let Some(drift) = drift {
            metrics::gauge!("backstitch_source_drift_events", "source" => source).set(drift as f64);
        }
        for partition in &self.partitions {
            let labels = [
                ("source", source.to_owned()),
                ("partition", partition.partition.to_string()),
            ];
            // Without live state, nothing is counted yet.
            let lag = partition
                .lag
                .unwrap_or(partition.log_end.saturating_sub(partition.log_start));
            metrics::gauge!("backstitch_source_lag_events", &labels).set(lag as f64);
            let next = partition.next_offset.unwrap_or_default();
            metrics::gauge!("backstitch_source_next_offset", &labels).set(next as f64);
            let replaying = f64::from(u8::from(partition.replaying.unwrap_or(false)));
            metrics::gauge!("backstitch_source_replaying", &labels).set(replaying);
        }
    }
}

fn build_partition_overview(
    partition: usize,
    span: Span,
    state: Option<&PartitionState>,
) -> PartitionOverview {
    let next_offset = state.map(|state| state.position.next_offset);
    PartitionOverview {
        partition,
        log_start: span.start,
        log_end: span.end,
        next_offset,
        // The log was read first, so live state may be ahead of it.
        lag: next_offset.map(|next| span.end.saturating_sub(next).max(0)),
        as_of: state
            .and_then(|state| state.position.last)
            .map(|last| format_ms(last.logged_at_ms)),
        epoch: state.map(|state| state.epoch),
        replaying: state.map(PartitionState::is_replaying),
        generation: state.map(|state| state.generation),
    }
}

async fn read_source_overview(api: &Api, source: Source) -> Result<SourceOverview, Problem> {
    let runs = api.ports.views.runs(source).await?;
    let run_details = api
        .ports
        .views
        .list_run_details(source, None, NEWEST_RUNS_MAX)
        .await?;
    let spans = api.ports.log.spans(source.topic()).await?;
    let count = u32::try_from(spans.len()).unwrap_or(u32::MAX);
    let states = api.ports.live.partition_states(source, 0..count).await?;
    let states = states
        .iter()
        .map(Option::as_ref)
        .chain(std::iter::repeat(None));
    let partitions = spans
        .iter()
        .zip(states)
        .enumerate()
        .map(|(partition, (span, state))| build_partition_overview(partition, *span, state));
    let views = api
        .metrics
        .values()
        .filter(|metric| metric.source == source)
        .flat_map(|metric| &metric.views)
        .map(|job| job.view());
    let boards = api.boards.values().filter(|job| job.source() == source);
    let views = views
        .chain(boards.map(|job| job.view()))
        .map(|view| (view.to_owned(), newest_epoch(&runs, view)));
    let is_complete = |details: &&RunDetails| details.run.state == RunState::Complete;
    let newest = runs.runs.newest_complete();
    let complete = match run_details.iter().find(is_complete) {
        Some(complete) => Some(complete.clone()),
        None if newest > 0 => api.ports.views.run_details(source, newest).await?,
        None => None,
    };
    let ended_at_ms = match &complete {
        Some(complete) => complete.ended_at_ms,
        None => (run_details.len() >= NEWEST_RUNS_MAX).then_some(0),
    };
    let last_complete = LastCompleteRun {
        ended_at_ms,
        drift: complete.as_ref().and_then(read_drift_total),
    };
    let running_at_ms = find_running_time(api, source, &run_details).await?;
    Ok(SourceOverview {
        source,
        last_complete,
        newest_complete: complete.map(|details| RunResponse::new(source, &details, newest, None)),
        partitions: partitions.collect(),
        views: views.collect(),
        runs: run_details
            .iter()
            .map(|details| RunResponse::new(source, details, newest, running_at_ms))
            .collect(),
    })
}
