//! Replays of dead letters, for use after the cause of the rejection is fixed.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use schemas::dead_letter::{DeadLetterId, DeadLetterIdError};
use serde::{Deserialize, Serialize};
use stores::dead_letters::{OldestDeadLetters, Reprocessor, StoredDeadLetter, find};
use utoipa::ToSchema;

use super::{parse_letter_filter, unknown_dead_letter};
use crate::http::ingest::{acquire_permit, open_intake};
use crate::http::params::Params;
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, Caller, with_timeout};

/// Maximum number and bytes of letters per request. All are read before the first is ingested.
const LETTERS_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 << 20;
/// Number of letters per step.
const LETTERS_PER_STEP: usize = 1_000;

/// The result of a replay.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ReplayResponse {
    /// True if nothing was ingested.
    pub(crate) dry_run: bool,
    /// Number of valid letters that were ingested. A repeated event still counts once.
    pub(crate) accepted: u64,
    /// Number of valid letters that were skipped because a row with the same version is stored.
    pub(crate) superseded: u64,
    /// Number of valid letters that were skipped because they concern erased athletes.
    pub(crate) erased: u64,
    /// Number of letters that are still rejected.
    pub(crate) still_bad: u64,
    /// Number of records that are not dead letters.
    pub(crate) broken: u64,
    /// Origin and reason of the first letter that is still rejected.
    pub(crate) first: Option<String>,
    /// The id of that letter.
    pub(crate) first_id: Option<String>,
}

/// Ingests dead letters again.
///
/// The letter of an id, or those that match the filters, oldest first in each partition, at most
/// 10,000. Letters that are still invalid remain dead letters. After an error some may have been
/// ingested; it is safe to repeat the request.
#[utoipa::path(
    post,
    path = "/api/v1/dead-letters/replay",
    tag = "dead-letters",
    params(
        ("id" = Option<String>, Query, description = "Only this dead letter: TOPIC/PARTITION@OFFSET"),
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; default all"),
        ("reason" = Option<String>, Query, description = "Only those with this text in their reason or its kind"),
        ("since" = Option<String>, Query, description = "Only those rejected at this time or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        ("dry_run" = Option<bool>, Query, description = "true: ingest nothing, and report what would happen")
    ),
    responses(
        (status = 200, description = "The result", body = ReplayResponse),
        (status = 400, description = "A parameter is invalid, or more letters match than one request may replay", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "Unknown id, or the record has expired", body = ProblemShape, content_type = "application/problem+json"),
        (status = 429, description = "Another replay is running, or there are too many concurrent writers: retry after Retry-After seconds", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn replay_dead_letters(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<ReplayResponse>, Problem> {
    let uri = request.uri();
    let params = Params::parse(uri, &["id", "source", "reason", "since", "dry_run"])?;
    let is_dry_run = params.parse_flag("dry_run")?;
    let _replay_permit = api.replay_permits.try_acquire().map_err(|_| {
        let detail = "another replay is running: retry when it has ended";
        ProblemKind::TooManyWriters.with_detail(detail)
    })?;
    let read = async {
        let _permit = api.dead_letter_read_permits.acquire().await;
        find_selected_letters(&api, &params).await
    };
    let letters = with_timeout(&api, read).await??;
    let _permit = acquire_permit(&api, &caller)?;
    let mut reprocessor = Reprocessor::new(&*api.ports.schemas, is_dry_run);
    for group in letters.chunk_by(|a, b| a.id.source == b.id.source) {
        if let Some(source) = group.first().map(|letter| letter.id.source) {
            let intake = open_intake(&api, source, &caller).await?;
            for step in group.chunks(LETTERS_PER_STEP) {
                reprocessor.reprocess(source, &intake, step).await?;
            }
        }
    }
    let outcome = reprocessor.finish();
    Ok(Json(ReplayResponse {
        dry_run: outcome.dry_run,
        accepted: outcome.accepted,
        superseded: outcome.superseded,
        erased: outcome.erased,
        still_bad: outcome.still_bad,
        broken: outcome.broken,
        first: outcome.first,
        first_id: outcome.first_id.map(|id| id.to_string()),
    }))
}

/// Reads the letters that match the parameters.
async fn find_selected_letters(
    api: &Api,
    params: &Params,
) -> Result<Vec<StoredDeadLetter>, Problem> {
    let log = &*api.ports.log;
    if let Some(id) = params.get("id") {
        if let Some(filter) = ["source", "reason", "since"]
            .into_iter()
            .find(|name| params.get(name).is_some())
        {
            let detail = format!("id and {filter} exclude each other: id names one letter");
            return Err(Problem::parameter(detail));
        }
        let id: DeadLetterId = id
            .parse()
            .map_err(|error: DeadLetterIdError| Problem::parameter(format!("id: {error}")))?;
        let letter = find(log, id)
            .await?
            .ok_or_else(|| unknown_dead_letter(id))?;
        return Ok(vec![letter]);
    }
    let mut oldest = OldestDeadLetters::open(log, parse_letter_filter(params)?).await?;
    let (mut letters, mut bytes) = (Vec::new(), 0_usize);
    loop {
        let batch = oldest.next_batch().await?;
        if batch.is_empty() {
            return Ok(letters);
        }
        bytes += batch.iter().map(StoredDeadLetter::bytes).sum::<usize>();
        letters.extend(batch);
        if letters.len() > LETTERS_MAX || bytes > BYTES_MAX {
            return Err(Problem::parameter(format!(
                "more than {LETTERS_MAX} letters or {} MiB match, and nothing was ingested: restrict source, reason or since, or use `backstitch dead-letters replay`",
                BYTES_MAX >> 20
            )));
        }
    }
}
