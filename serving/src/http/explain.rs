//! Why a value is what it is: the batch rows that it is made of with the runs that wrote them, and what was counted live
//! since.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::{Extension, Json};
use futures::future::try_join_all;
use schemas::provenance::Provenance;
use schemas::seam::Epoch;
use schemas::shown::key_value;
use schemas::source::Source;
use serde::Serialize;
use serde_json::{Map, Value};
use stores::corrections::{self, CorrectionEntry, CorrectionFilter, MatchingCorrections};
use utoipa::ToSchema;

use super::explain_board::{self, BoardExplanation};
use super::problem::{Problem, ProblemShape};
use super::runs::drift_total;
use super::stats::{Asked, Filters, Times};
use super::{Api, Caller};
use crate::answer::{AnswerRange, Overflow, ProvenanceShape, fit, shown_ms};
use crate::explained::{Explained as Rows, ExplainedRow, Share};
use crate::tally::Tally;

/// The metric that is meant where none is named.
const METRIC: &str = "plays";
/// Runs of which more is told than their number: the newest.
const RUNS_MAX: usize = 50;
/// Restorations that are told.
const RESTORATIONS_MAX: usize = 100;

/// What a value is made of.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explanation {
    metric: String,
    /// The value, as the total of the same question says it.
    count: i64,
    /// What batch rows hold of it, by the run that wrote them last.
    batch: Vec<BatchPart>,
    /// What was counted live since, by epoch: after the newest run.
    live: Vec<LiveShare>,
    /// What restorations have corrected of it, which is part of the rows as any event is.
    corrections: Corrections,
    /// The rows, in the order of views and keys; the first 1,000.
    rows: Vec<RowShown>,
    /// How many rows there are.
    rows_all: u64,
    range: AnswerRange,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// Corrections that are part of a value.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Corrections {
    /// How many.
    count: u64,
    /// The sum of their amounts.
    sum: i64,
    /// How many more may be part of it: of large restorations it is not kept which values each of their corrections
    /// has, and of none which listener; and those that are not counted yet.
    maybe: u64,
    /// By which restorations, newest first: the first 100 of those that have a part in it, or may have.
    restorations: Vec<CorrectedBy>,
}

/// A restoration that has corrected a value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CorrectedBy {
    number: u64,
    /// Null for a key that reads some owners alone: what it says may be about others.
    by: Option<String>,
    /// The same.
    reason: Option<String>,
    /// When, in UTC.
    at: String,
    /// The restoration that it takes back; null unless it does.
    undoes: Option<u64>,
    /// How many of its corrections are part of the value.
    count: u64,
    /// The sum of their amounts.
    sum: i64,
    /// How many more of them may be.
    maybe: u64,
    /// Whether all of its corrections are below the position of the answer. Those of one where it is not so are not in
    /// the sums.
    is_counted: bool,
}

/// What batch rows of one run hold of a value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchPart {
    /// The run that changed these rows last.
    epoch: u64,
    /// When that was, in UTC; null where the run's record is not kept any more, and of all but the newest 50 runs.
    at: Option<String>,
    count: i64,
    /// Of so many rows.
    rows: u64,
    /// What the run found that live state had counted otherwise, in all; null where that is not known.
    drift: Option<u64>,
}

/// What was counted live of a value in one epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LiveShare {
    epoch: u64,
    count: i64,
    /// Of so many rows.
    rows: u64,
}

/// A row that has a part in a value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RowShown {
    /// The view.
    job: String,
    /// By column, its value.
    key: Map<String, Value>,
    /// What the row counts: batch and live.
    count: i64,
    /// What the batch row holds, and the run that wrote it; null where there is none.
    batch: Option<BatchRowShown>,
    /// What was counted since, by epoch.
    live: Vec<LiveRowShown>,
}

/// A batch row.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchRowShown {
    count: i64,
    epoch: u64,
}

/// What was counted live of a row in one epoch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LiveRowShown {
    epoch: u64,
    count: i64,
}

/// Why something is what it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Explained {
    /// A total.
    Value(Box<Explanation>),
    /// A board, and a place on it.
    Board(Box<BoardExplanation>),
}

/// Why a total is what it is: for the same parameters as the total, the rows that it adds up. Or why a board, and an
/// athlete's place on it, is what it is, for the parameters of the board and `segment_id` or `application_id`.
#[utoipa::path(
    get,
    path = "/api/v1/explain",
    tag = "stats",
    params(
        ("metric" = Option<String>, Query, description = "plays, also if left out"),
        Filters,
        Times,
        ("segment_id" = Option<i64>, Query, description = "The segment whose board is explained, in the place of a total"),
        ("application_id" = Option<i64>, Query, description = "The application whose connected athletes are"),
        ("athlete_id" = Option<i64>, Query, description = "Of a board: the athlete whose place is explained"),
        ("board" = Option<String>, Query, description = "Of a segment: overall, gender:F, age:35-44 or weight:75-84; overall if left out"),
        ("window" = Option<String>, Query, description = "Of a segment: all, year, month or day; all if left out"),
        ("club_id" = Option<i64>, Query, description = "Of a board: only athletes of this club"),
        ("following" = Option<i64>, Query, description = "Of a board: only this athlete and those that this athlete follows")
    ),
    responses(
        (status = 200, description = "What it is made of", body = Explained),
        (status = 404, description = "No such metric", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn explain(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Json<Explained>, Problem> {
    if let Some((name, job, column)) = explain_board::asked(&api, &uri)? {
        let explained = explain_board::explain(&api, &uri, (name, job, column)).await?;
        return Ok(Json(Explained::Board(Box::new(explained))));
    }
    let mut explained = of_total(&api, &uri).await?;
    if !caller.may_read_all() {
        explained.corrections.tell_less();
        // That of a run is of all owners.
        for part in &mut explained.batch {
            part.drift = None;
        }
    }
    Ok(Json(Explained::Value(Box::new(explained))))
}

/// Why a total is what it is.
async fn of_total(api: &Arc<Api>, uri: &Uri) -> Result<Explanation, Problem> {
    let metric = super::params::one(uri, "metric").unwrap_or_else(|| METRIC.to_owned());
    if super::params::one(uri, "compare").is_some() {
        return Err(Problem::parameter(
            "compare can't be explained: ask for the period before with date=, or from= and to=",
        ));
    }
    let asked = Asked::read(api, &metric, uri, &["metric"])?;
    let frame = asked.frame()?;
    let source = asked.metric.source;
    let reading = asked.rows(api).await?;
    let corrections = corrections(api, source, &asked, &reading.standing.position).await?;
    let explained = match reading.tally {
        Tally::Rows(explained) => *explained,
        Tally::Segments(_) | Tally::Keys(_) | Tally::Sketches(_) => Rows::default(),
    };
    let newest = explained.batch.keys().rev().take(RUNS_MAX);
    let stories = newest.map(|epoch| api.ports.views.story(source, *epoch));
    let stories = try_join_all(stories).await?.into_iter().flatten();
    let runs = stories.map(|story| {
        let at = story.ended_at_ms.map(shown_ms);
        (story.run.epoch, (at, drift_total(&story)))
    });
    let runs: BTreeMap<Epoch, _> = runs.collect();
    let batch = explained.batch.iter().map(|(epoch, share)| {
        let (at, drift) = runs.get(epoch).cloned().unwrap_or_default();
        Ok(BatchPart {
            epoch: *epoch,
            at,
            count: fit(share.count)?,
            rows: share.rows,
            drift,
        })
    });
    let live = explained.live.iter().map(|(epoch, share): (_, &Share)| {
        Ok(LiveShare {
            epoch: *epoch,
            count: fit(share.count)?,
            rows: share.rows,
        })
    });
    Ok(Explanation {
        metric,
        count: fit(explained.cell.count)?,
        batch: batch.collect::<Result<_, Overflow>>()?,
        live: live.collect::<Result<_, Overflow>>()?,
        corrections,
        rows: explained
            .rows
            .iter()
            .map(shown)
            .collect::<Result<_, Overflow>>()?,
        rows_all: explained.rows_all,
        range: frame.shown(),
        provenance: frame.provenance([&explained.cell], reading.standing, &reading.run),
    })
}

/// What restorations have corrected of a value.
async fn corrections(
    api: &Api,
    source: Source,
    asked: &Asked<'_>,
    position: &[i64],
) -> Result<Corrections, Problem> {
    let range = asked.frame()?.range;
    let filters = asked.params.filters(asked.metric)?.into_iter();
    let filter = CorrectionFilter {
        columns: filters
            .map(|(name, value)| (name, key_value(&value)))
            .collect(),
        from: range.from,
        to: range.to,
    };
    let mut told = Corrections::default();
    corrections::for_each_entry(&*api.ports.records, source, |entry| {
        told.add(entry, &filter, position);
    })
    .await?;
    told.restorations.reverse();
    Ok(told)
}

impl Corrections {
    /// Leaves out what may be about others than who is asking.
    fn tell_less(&mut self) {
        self.restorations.retain(|one| one.count > 0);
        for one in &mut self.restorations {
            (one.by, one.reason) = (None, None);
        }
        // What may be of the value is of others, too.
        self.maybe = 0;
    }

    fn add(&mut self, one: CorrectionEntry, filter: &CorrectionFilter, position: &[i64]) {
        let mut part = one.sums.matching(filter);
        if part.count == 0 && part.maybe == 0 {
            return;
        }
        let until = one.done_until.as_deref();
        let is_counted = until.is_some_and(|until| {
            let mut places = until.iter().enumerate();
            places.all(|(place, until)| position.get(place).is_some_and(|at| at >= until))
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
        self.restorations.push(CorrectedBy {
            number: one.number,
            by: Some(one.by),
            reason: Some(one.reason),
            at: shown_ms(one.at_ms),
            undoes: one.undoes,
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

fn shown(row: &ExplainedRow) -> Result<RowShown, Overflow> {
    let key = row.key.iter();
    let key = key.map(|(column, value)| (column.clone(), key_value(value)));
    let batch = row.batch.map(|(count, epoch)| {
        Ok(BatchRowShown {
            count: fit(count)?,
            epoch,
        })
    });
    let live = row.live.iter().map(|(epoch, count)| {
        Ok(LiveRowShown {
            epoch: *epoch,
            count: fit(*count)?,
        })
    });
    Ok(RowShown {
        job: row.job.clone(),
        key: key.collect(),
        count: fit(row.count)?,
        batch: batch.transpose()?,
        live: live.collect::<Result<_, Overflow>>()?,
    })
}
