//! Achievements: what an athlete has achieved, and what was achieved by an activity.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jobs::{Board, Job};
use schemas::achievement::{Kind as Achievement, Told};
use schemas::provenance::{Origin, Provenance};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stores::achievements::{Mark, Of};
use utoipa::ToSchema;

use super::boards::id;
use super::params::{PageQuery, Path};
use super::problem::Problem;
use super::{Api, csv, cursor};
use crate::answer::{ProvenanceShape, provenance};
use crate::read::{Seen, Standing, is_one_more};

/// A page of achievements.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Achievements {
    /// Newest first.
    #[schema(value_type = Vec<AchievementShape>)]
    achievements: Vec<Map<String, Value>>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// What an athlete has achieved, or lost.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Achievement)]
#[expect(dead_code, reason = "pages read some of what the speed layer writes")]
pub(crate) struct AchievementShape {
    /// The same for the same achievement, also in the log.
    pub(crate) id: String,
    /// crown, `crown_lost`, `top_ten` or `personal_record`.
    pub(crate) kind: String,
    /// overall, gender:F or gender:M, of all time.
    pub(crate) board: String,
    /// The place after it, from 1 to 10; null further behind, or if the athlete is not on the board any
    /// more.
    pub(crate) rank: Option<u64>,
    pub(crate) segment_id: i64,
    pub(crate) athlete_id: i64,
    /// Whole seconds. Of a crown that was lost this and what follows is the effort that had held it.
    pub(crate) elapsed_time: i64,
    pub(crate) effort_id: i64,
    pub(crate) activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    pub(crate) started_at: String,
    /// When the change was logged that brought it.
    #[schema(format = DateTime)]
    pub(crate) at: String,
    /// Of a crown that was lost: the athlete who has it now; null if nobody has.
    pub(crate) taken_by: Option<i64>,
    /// The place in the log of the change that brought it: source, partition, offset.
    #[schema(value_type = Object)]
    pub(crate) position: Value,
}

/// What an athlete has achieved: crowns, top tens, personal records, and crowns that were lost.
#[utoipa::path(
    get,
    path = "/api/v1/athletes/{athlete_id}/achievements",
    tag = "achievements",
    params(
        ("athlete_id" = i64, Path, description = "The athlete"),
        ("kind" = Option<String>, Query, description = "Only crown, crown_lost, top_ten or personal_record"),
        PageQuery
    ),
    responses(
        (status = 200, description = "The page, newest first; an unknown athlete has none", body = Achievements)
    )
)]
pub(crate) async fn of_athlete(
    State(api): State<Arc<Api>>,
    Path(athlete): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let of = Of::Member(id("athlete_id", &athlete)?);
    page(&api, of, &uri).await
}

/// What was achieved by the efforts of an activity, by whomever.
#[utoipa::path(
    get,
    path = "/api/v1/activities/{id}/achievements",
    tag = "achievements",
    params(
        ("id" = i64, Path, description = "The activity"),
        ("kind" = Option<String>, Query, description = "Only crown, crown_lost, top_ten or personal_record"),
        PageQuery
    ),
    responses(
        (status = 200, description = "The page, newest first; an unknown activity has none", body = Achievements)
    )
)]
pub(crate) async fn of_activity(
    State(api): State<Arc<Api>>,
    Path(activity): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let of = Of::Activity(id("id", &activity)?);
    page(&api, of, &uri).await
}

async fn page(api: &Api, of: Of, uri: &Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::read(uri, &["kind"])?;
    let kind = params.parsed("kind", |name, text| {
        let kind = text.parse::<Achievement>();
        kind.map_err(|error| Problem::parameter(format!("{name}: {error}")))
    })?;
    let fingerprint = cursor::fingerprint(&format!("achievements {of:?} {kind:?}"));
    let (before, limit) = (query.start(fingerprint, cursor::mark)?, query.limit);
    let mut boards = api.boards.values();
    let job = boards.find(|job| !job.achievements().is_empty());
    let job = job.ok_or_else(|| Problem::parameter("no board has achievements"))?;
    let (mut found, standing) = read(api, job, (of, kind, before.as_ref()), limit).await?;
    let after = |last: &Told| cursor::after_mark(fingerprint, &Mark::of(last));
    let next = cursor::page(&mut found, limit, after);
    let page = Achievements {
        achievements: found.into_iter().map(|told| told.message).collect(),
        cursor: next.clone(),
        provenance: provenance(Origin::Realtime, standing),
    };
    Ok(query.answer(uri, next.as_deref(), page, |page| {
        let header = field_names(job).join(",");
        csv::objects(&header, &page.achievements, Some(&page.provenance))
    }))
}

fn field_names(job: &Job<Board>) -> Vec<&str> {
    let shapes = [job.key(), job.member(), job.score(), job.shown()];
    let columns = shapes.into_iter().flat_map(|shape| &shape.0);
    ["kind", "board", "rank"]
        .into_iter()
        .chain(columns.map(|column| column.name.as_str()))
        .chain(["at", "taken_by", "id"])
        .collect()
}

/// The newest achievements, one more than `limit` if there are so many: what waits in the slots to be
/// told, then what has been told, so that nothing is missed that goes from the one to the other.
async fn read(
    api: &Api,
    job: &Job<Board>,
    (of, kind, before): (Of, Option<Achievement>, Option<&Mark>),
    limit: usize,
) -> Result<(Vec<Told>, Standing), Problem> {
    let (source, view) = (job.source(), job.view());
    let ports = &api.ports;
    let (partitions, runs) = tokio::try_join!(
        ports.log.partitions(source.topic()),
        ports.views.runs(source)
    )?;
    let newest = runs.newest.get(view).copied().unwrap_or(0);
    let recorded = u32::try_from(runs.runs.partitions()).unwrap_or(u32::MAX);
    let mut partitions = partitions.max(recorded);
    let outboxes = loop {
        // As for boards: a log that was lost still has its slots.
        let asked = 0..partitions.saturating_add(1);
        let mut outboxes = ports.live.outboxes(source, asked, usize::MAX).await?;
        let last = outboxes.pop().flatten();
        if !is_one_more(&mut vec![last.map(|outbox| outbox.slot)]) {
            break outboxes;
        }
        partitions += 1;
    };
    let told = ports.achievements.achievements(of, kind, before, limit + 1);
    let mut found: BTreeMap<Reverse<Mark>, Told> = BTreeMap::new();
    for told in told.await? {
        found.insert(Reverse(Mark::of(&told)), told);
    }
    let entries = outboxes.iter().flatten();
    for entry in entries.flat_map(|outbox| &outbox.entries) {
        let told = Told::decode(entry)
            .map_err(|why| stores::Error::broken("reading what waits to be told", why))?;
        let is_kind = |kind| told.achieved.is_some_and(|achieved| achieved.kind == kind);
        let mark = Mark::of(&told);
        if of.has(&told) && kind.is_none_or(is_kind) && before.is_none_or(|before| mark < *before) {
            found.insert(Reverse(mark), told);
        }
    }
    let slots = outboxes.into_iter();
    let slots = slots.map(|outbox| outbox.map(|outbox| outbox.slot));
    let seen = Seen {
        slots: slots.collect(),
        runs: Arc::new(runs),
    };
    let standing = match partitions {
        0 => Standing::nothing(source, 0),
        _ => seen.standing(source, newest),
    };
    let found = found.into_values().take(limit + 1).collect();
    Ok((found, standing))
}

#[cfg(test)]
#[path = "achievements_tests.rs"]
mod tests;
