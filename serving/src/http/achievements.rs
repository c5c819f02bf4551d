//! Achievements of athletes and of activities.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use jobs::{Board, Job};
use schemas::achievement::{AchievementKind, OutboxMessage};
use schemas::provenance::{Origin, Provenance};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stores::achievements::{AchievementCursor, AchievementOwner};
use utoipa::ToSchema;

use super::boards::parse_id;
use super::params::{PageQuery, Path};
use super::problem::Problem;
use super::{Api, csv, cursor};
use crate::answer::{ProvenanceShape, build_provenance};
use crate::read::RunsAndStates;
use crate::read_position::ReadPosition;

/// A page of achievements.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Achievements)]
pub(crate) struct AchievementsPage {
    /// Newest first.
    #[schema(value_type = Vec<AchievementShape>)]
    achievements: Vec<Map<String, Value>>,
    /// The cursor of the next page; null on the last one.
    cursor: Option<String>,
    #[schema(value_type = ProvenanceShape)]
    provenance: Provenance,
}

/// An achievement of an athlete, or the loss of a crown.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = Achievement)]
#[expect(dead_code, reason = "pages read some of what the speed layer writes")]
pub(crate) struct AchievementShape {
    /// The id of the achievement, the same as in the log.
    pub(crate) id: String,
    /// crown, `crown_lost`, `top_ten` or `personal_record`.
    pub(crate) kind: String,
    /// overall, gender:F or gender:M, of all time.
    pub(crate) board: String,
    /// The new rank, from 1 to 10. Null for a lower rank, or if the athlete is no longer on the
    /// board.
    pub(crate) rank: Option<u64>,
    pub(crate) segment_id: i64,
    pub(crate) athlete_id: i64,
    /// Whole seconds. For a lost crown, this and the following fields describe the effort that held
    /// it.
    pub(crate) elapsed_time: i64,
    pub(crate) effort_id: i64,
    pub(crate) activity_id: i64,
    /// In UTC.
    #[schema(format = DateTime)]
    pub(crate) started_at: String,
    /// Log time of the change that caused it.
    #[schema(format = DateTime)]
    pub(crate) at: String,
    /// For a lost crown: the athlete who holds it now, if any.
    pub(crate) taken_by: Option<i64>,
    /// The log position of the change that caused it: source, partition, offset.
    #[schema(value_type = Object)]
    pub(crate) position: Value,
}

/// The achievements of an athlete.
///
/// Crowns, top tens, personal records, and lost crowns.
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
        (status = 200, description = "The page, newest first; empty for an unknown athlete", body = AchievementsPage)
    )
)]
pub(crate) async fn list_athlete_achievements(
    State(api): State<Arc<Api>>,
    Path(athlete): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let owner = AchievementOwner::Member(parse_id("athlete_id", &athlete)?);
    list_page(&api, owner, &uri).await
}

/// The achievements by efforts of an activity, of any athlete.
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
        (status = 200, description = "The page, newest first; empty for an unknown activity", body = AchievementsPage)
    )
)]
pub(crate) async fn list_activity_achievements(
    State(api): State<Arc<Api>>,
    Path(activity): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let owner = AchievementOwner::Activity(parse_id("id", &activity)?);
    list_page(&api, owner, &uri).await
}

async fn list_page(api: &Api, owner: AchievementOwner, uri: &Uri) -> Result<Response, Problem> {
    let (params, query) = PageQuery::parse(uri, &["kind"])?;
    let kind = params.parse_with("kind", |name, text| {
        let kind = text.parse::<AchievementKind>();
        kind.map_err(|error| Problem::parameter(format!("{name}: {error}")))
    })?;
    let fingerprint = cursor::compute_fingerprint(&format!("achievements {owner:?} {kind:?}"));
    let (older_than, limit) = (
        query.decode_start(fingerprint, cursor::decode_achievement)?,
        query.limit,
    );
    let mut boards = api.boards.values();
    let job = boards.find(|job| !job.achievement_boards().is_empty());
    let job = job.ok_or_else(|| Problem::parameter("no board has achievements"))?;
    let filter = AchievementFilter {
        owner,
        kind,
        older_than,
    };
    let (mut messages, position) = read_achievements(api, job, &filter, limit).await?;
    let encode_cursor = |last: &OutboxMessage| {
        cursor::encode_achievement(fingerprint, &AchievementCursor::from_message(last))
    };
    let next_cursor = cursor::truncate_page(&mut messages, limit, encode_cursor);
    let page = AchievementsPage {
        achievements: messages
            .into_iter()
            .map(|message| message.message)
            .collect(),
        cursor: next_cursor.clone(),
        provenance: build_provenance(Origin::Realtime, position),
    };
    Ok(query.respond(uri, next_cursor.as_deref(), page, |page| {
        let header = list_field_names(job).join(",");
        csv::write_objects(&header, &page.achievements, Some(&page.provenance))
    }))
}

fn list_field_names(job: &Job<Board>) -> Vec<&str> {
    let shapes = [job.key(), job.member(), job.score(), job.shown()];
    let columns = shapes.into_iter().flat_map(|shape| &shape.0);
    ["kind", "board", "rank"]
        .into_iter()
        .chain(columns.map(|column| column.name.as_str()))
        .chain(["at", "taken_by", "id"])
        .collect()
}

/// Selects achievements.
struct AchievementFilter {
    owner: AchievementOwner,
    kind: Option<AchievementKind>,
    /// Only achievements that are older than this.
    older_than: Option<AchievementCursor>,
}

/// Reads the newest achievements, up to `limit` + 1. Reads the outboxes of the partition states
/// before the published achievements, so that an achievement that is published meanwhile is not
/// missed.
async fn read_achievements(
    api: &Api,
    job: &Job<Board>,
    filter: &AchievementFilter,
    limit: usize,
) -> Result<(Vec<OutboxMessage>, ReadPosition), Problem> {
    let AchievementFilter {
        owner,
        kind,
        older_than,
    } = filter;
    let (source, view) = (job.source(), job.view());
    let ports = &api.ports;
    let (partitions, runs) = tokio::try_join!(
        ports.log.partition_count(source.topic()),
        ports.views.runs(source)
    )?;
    let newest = runs.complete_epochs.get(view).copied().unwrap_or(0);
    let run_partitions = u32::try_from(runs.runs.partition_count()).unwrap_or(u32::MAX);
    let mut partitions = partitions.max(run_partitions);
    let outboxes = loop {
        // Partition states remain after the loss of a log, so there may be more of them.
        let range = 0..partitions.saturating_add(1);
        let mut outboxes = ports.live.outboxes(source, range, usize::MAX).await?;
        if outboxes.pop().flatten().is_none() {
            break outboxes;
        }
        partitions += 1;
    };
    let published = ports
        .achievements
        .achievements(*owner, *kind, older_than.as_ref(), limit + 1);
    let mut messages: BTreeMap<Reverse<AchievementCursor>, OutboxMessage> = BTreeMap::new();
    for message in published.await? {
        messages.insert(Reverse(AchievementCursor::from_message(&message)), message);
    }
    let entries = outboxes.iter().flatten();
    for entry in entries.flat_map(|outbox| &outbox.entries) {
        let message = OutboxMessage::decode(entry)
            .map_err(|error| stores::Error::broken("reading an unpublished achievement", error))?;
        let is_kind = |kind| message.achievement.is_some_and(|key| key.kind == kind);
        let message_cursor = AchievementCursor::from_message(&message);
        if owner.contains(&message)
            && kind.is_none_or(is_kind)
            && older_than
                .as_ref()
                .is_none_or(|older_than| message_cursor < *older_than)
        {
            messages.insert(Reverse(message_cursor), message);
        }
    }
    let states = outboxes.into_iter();
    let states = states.map(|outbox| outbox.map(|outbox| outbox.state));
    let snapshot = RunsAndStates {
        states: states.collect(),
        runs: Arc::new(runs),
    };
    let position = match partitions {
        0 => ReadPosition::empty(source, 0),
        _ => snapshot.read_position(source, newest),
    };
    let messages = messages.into_values().take(limit + 1).collect();
    Ok((messages, position))
}
