//! Explanations of totals: the batch rows with the runs that wrote them, live counts, and
//! corrections.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use futures::future::try_join_all;
use schemas::json_value;
use schemas::provenance::Provenance;
use schemas::seam::Epoch;
use schemas::source::Source;
use serde::Serialize;
use serde_json::{Map, Value};
use stores::corrections::{self, CorrectionEntry, CorrectionFilter, MatchingCorrections};
use utoipa::ToSchema;

use super::explain_board::{self, BoardExplanationResponse};
use super::params::find_first_value;
use super::problem::{Problem, ProblemShape};
use super::runs::read_drift_total;
use super::stats::{FilterParams, PeriodParams, StatsRequest};
use super::{Api, Caller};
use crate::aggregation::Aggregation;
use crate::answer::{AnswerRange, Overflow, ProvenanceShape, format_ms, to_i64};
use crate::explanation::{ExplainedRow, PartialSum, ValueExplanation};

/// The default metric.
const DEFAULT_METRIC: &str = "plays";
/// Maximum number of runs with details, newest first.
const DETAILED_RUNS_MAX: usize = 50;
/// Maximum number of listed restorations.
const RESTORATIONS_MAX: usize = 100;

/// The parts of a value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explanation {
    metric: String,
    /// The value, equal to the total for the same parameters.
    count: i64,
    /// The part in batch rows, by the run that wrote them last.
    batch: Vec<BatchPart>,
    /// The part that was counted live after the newest run, by epoch.
    live: Vec<LivePart>,
    /// Corrections by restorations. They are events, so the rows include them.
    corrections: Corrections,
    /// The first 1,000 rows, ordered by view and key.
    rows: Vec<ExplainedRowResponse>,
    /// The number of all rows.
    rows_all: u64,
    range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// Corrections that are part of a value.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Corrections {
    /// The number of corrections.
    count: u64,
    /// The sum of their amounts.
    sum: i64,
    /// The number of further corrections that may be part of the value. Listeners are not recorded,
    /// nor the exact values of large restorations. Corrections that are not counted yet are
    /// included here.
    maybe: u64,
    /// The first 100 restorations that affect the value or may affect it, newest first.
    restorations: Vec<RestorationResponse>,
}

/// A restoration that has corrected a value.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CorrectedBy)]
pub(crate) struct RestorationResponse {
    number: u64,
    /// Null for a key that may read only some owners, because the text may concern others.
    by: Option<String>,
    /// Null in the same case as `by`.
    reason: Option<String>,
    /// Time in UTC.
    at: String,
    /// The number of the restoration that this entry undoes, if any.
    undoes: Option<u64>,
    /// The number of its corrections that are part of the value.
    count: u64,
    /// The sum of their amounts.
    sum: i64,
    /// The number of further corrections that may be.
    maybe: u64,
    /// True if all its corrections are below the position of the response. If not, the sums exclude
    /// them.
    is_counted: bool,
}

/// The part of a value in the batch rows of one run.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchPart {
    /// The run that changed these rows last.
    epoch: u64,
    /// Time of the run in UTC. Null if its record has expired, and for all but the newest 50 runs.
    at: Option<String>,
    count: i64,
    /// The number of these rows.
    rows: u64,
    /// The total difference between live counts and the run. Null if unknown.
    drift: Option<u64>,
}

/// The part of a value that was counted live in one epoch.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveShare)]
pub(crate) struct LivePart {
    epoch: u64,
    count: i64,
    /// The number of these rows.
    rows: u64,
}

/// A row that contributes to a value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExplainedRowResponse {
    /// The view.
    job: String,
    /// The key, by column.
    key: Map<String, Value>,
    /// The count of the row, batch and live.
    count: i64,
    /// The batch row, and the run that wrote it. Null if there is none.
    batch: Option<BatchRowResponse>,
    /// The live counts after that run, by epoch.
    live: Vec<LiveRowResponse>,
}

/// A batch row.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchRowResponse {
    count: i64,
    epoch: u64,
}

/// The live count of a row in one epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LiveRowResponse {
    epoch: u64,
    count: i64,
}

/// An explanation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Explained)]
pub(crate) enum ExplanationResponse {
    /// A total.
    Value(Box<Explanation>),
    /// A board and the rank of an athlete.
    Board(Box<BoardExplanationResponse>),
}

/// Explains a total or a board.
///
/// With the parameters of a total, returns the rows that it adds up. With `segment_id` or
/// `application_id` and the parameters of a board, returns the parts of the board, and of an
/// athlete's rank.
#[utoipa::path(
    get,
    path = "/api/v1/explain",
    tag = "stats",
    params(
        ("metric" = Option<String>, Query, description = "The metric; default plays"),
        FilterParams,
        PeriodParams,
        ("segment_id" = Option<i64>, Query, description = "Explain the board of this segment, instead of a total"),
        ("application_id" = Option<i64>, Query, description = "Explain the connected athletes of this application, instead of a total"),
        ("athlete_id" = Option<i64>, Query, description = "Board only: the athlete whose rank to explain"),
        ("board" = Option<String>, Query, description = "Segment only: overall, gender:F, age:35-44 or weight:75-84; default overall"),
        ("window" = Option<String>, Query, description = "Segment only: all, year, month or day; default all"),
        ("club_id" = Option<i64>, Query, description = "Board only: restrict to athletes of this club"),
        ("following" = Option<i64>, Query, description = "Board only: restrict to this athlete and those that this athlete follows")
    ),
    responses(
        (status = 200, description = "The explanation", body = ExplanationResponse),
        (status = 404, description = "Unknown metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn explain_value(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<ExplanationResponse>, Problem> {
    if let Some(board) = explain_board::requested_board(&api, &uri)? {
        let explained = explain_board::explain(&api, &uri, &board).await?;
        return Ok(Json(ExplanationResponse::Board(Box::new(explained))));
    }
    let mut explained = explain_total(&api, &uri).await?;
    if !caller.may_read_all() {
        explained.corrections.redact();
        // The drift of a run concerns all owners.
        for part in &mut explained.batch {
            part.drift = None;
        }
    }
    Ok(Json(ExplanationResponse::Value(Box::new(explained))))
}

/// Explains a total.
async fn explain_total(api: &Arc<Api>, uri: &Uri) -> Result<Explanation, Problem> {
    let metric = find_first_value(uri, "metric").unwrap_or_else(|| DEFAULT_METRIC.to_owned());
    if find_first_value(uri, "compare").is_some() {
        return Err(Problem::parameter(
            "compare is not supported here: select the previous period with date, or with from and to",
        ));
    }
    let request = StatsRequest::parse(api, &metric, uri, &["metric"])?;
    let spec = request.build_answer_spec()?;
    let source = request.metric.source;
    let reading = request.read_rows(api).await?;
    let corrections =
        read_corrections(api, source, &request, &reading.read_position.position).await?;
    let explained = match reading.aggregation {
        Aggregation::Rows(explained) => *explained,
        Aggregation::Segments(_) | Aggregation::Keys(_) | Aggregation::Sketches(_) => {
            ValueExplanation::default()
        }
    };
    let newest_epochs = explained.batch.keys().rev().take(DETAILED_RUNS_MAX);
    let run_details = newest_epochs.map(|epoch| api.ports.views.run_details(source, *epoch));
    let run_details = try_join_all(run_details).await?.into_iter().flatten();
    let runs = run_details.map(|details| {
        let at = details.ended_at_ms.map(format_ms);
        (details.run.epoch, (at, read_drift_total(&details)))
    });
    let runs: BTreeMap<Epoch, _> = runs.collect();
    let batch = explained.batch.iter().map(|(epoch, part)| {
        let (at, drift) = runs.get(epoch).cloned().unwrap_or_default();
        Ok(BatchPart {
            epoch: *epoch,
            at,
            count: to_i64(part.count)?,
            rows: part.rows,
            drift,
        })
    });
    let live = explained
        .live
        .iter()
        .map(|(epoch, part): (_, &PartialSum)| {
            Ok(LivePart {
                epoch: *epoch,
                count: to_i64(part.count)?,
                rows: part.rows,
            })
        });
    Ok(Explanation {
        metric,
        count: to_i64(explained.sum.count)?,
        batch: batch.collect::<Result<_, Overflow>>()?,
        live: live.collect::<Result<_, Overflow>>()?,
        corrections,
        rows: explained
            .rows
            .iter()
            .map(build_row_response)
            .collect::<Result<_, Overflow>>()?,
        rows_all: explained.rows_total,
        range: spec.answer_range(),
        provenance: spec.provenance(
            [&explained.sum],
            reading.read_position,
            &reading.run_watermark,
        ),
    })
}

/// Reads the corrections of a value.
async fn read_corrections(
    api: &Api,
    source: Source,
    request: &StatsRequest<'_>,
    position: &[i64],
) -> Result<Corrections, Problem> {
    let range = request.build_answer_spec()?.range;
    let filters = request.params.parse_filters(request.metric)?.into_iter();
    let filter = CorrectionFilter {
        columns: filters
            .map(|(name, value)| (name, json_value::from_key(&value)))
            .collect(),
        from: range.from,
        to: range.to,
    };
    let mut corrections = Corrections::default();
    corrections::for_each_entry(&*api.ports.records, source, |entry| {
        corrections.add(entry, &filter, position);
    })
    .await?;
    corrections.restorations.reverse();
    Ok(corrections)
}

impl Corrections {
    /// Removes all details that may concern other owners.
    fn redact(&mut self) {
        self.restorations
            .retain(|restoration| restoration.count > 0);
        for restoration in &mut self.restorations {
            (restoration.by, restoration.reason) = (None, None);
        }
        // Uncertain corrections may belong to other owners.
        self.maybe = 0;
    }

    fn add(&mut self, entry: CorrectionEntry, filter: &CorrectionFilter, position: &[i64]) {
        let mut part = entry.sums.matching(filter);
        if part.count == 0 && part.maybe == 0 {
            return;
        }
        let end_offsets = entry.done_until.as_deref();
        let is_counted = end_offsets.is_some_and(|end_offsets| {
            let mut partitions = end_offsets.iter().enumerate();
            partitions
                .all(|(partition, end)| position.get(partition).is_some_and(|next| next >= end))
        });
        if !is_counted {
            part = MatchingCorrections {
                maybe: part.maybe + part.count,
                ..MatchingCorrections::default()
            };
        }
        self.count += part.count;
        self.sum = self.sum.saturating_add(part.sum);
        self.maybe += part.maybe;
        self.restorations.push(RestorationResponse {
            number: entry.number,
            by: Some(entry.by),
            reason: Some(entry.reason),
            at: format_ms(entry.at_ms),
            undoes: entry.undoes,
            count: part.count,
            sum: part.sum,
            maybe: part.maybe,
            is_counted,
        });
        if self.restorations.len() > RESTORATIONS_MAX {
            self.restorations.remove(0);
        }
    }
}

fn build_row_response(row: &ExplainedRow) -> Result<ExplainedRowResponse, Overflow> {
    let key = row.key.iter();
    let key = key.map(|(column, value)| (column.clone(), json_value::from_key(value)));
    let batch = row.batch.map(|(count, epoch)| {
        Ok(BatchRowResponse {
            count: to_i64(count)?,
            epoch,
        })
    });
    let live = row.live.iter().map(|(epoch, count)| {
        Ok(LiveRowResponse {
            epoch: *epoch,
            count: to_i64(*count)?,
        })
    });
    Ok(ExplainedRowResponse {
        job: row.job.clone(),
        key: key.collect(),
        count: to_i64(row.count)?,
        batch: batch.transpose()?,
        live: live.collect::<Result<_, Overflow>>()?,
    })
}
