//! Dead letters are taken once more, after what was wrong has been put right.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use schemas::dead_letter::{LetterId, NoLetterId};
use serde::{Deserialize, Serialize};
use stores::dead_letters::{Letter, Oldest, Replay, find};
use utoipa::ToSchema;

use super::{asked, unknown};
use crate::http::ingest::{intake, place};
use crate::http::layers::in_time;
use crate::http::params::Params;
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::{Api, Caller};

/// Letters that one request takes, and their bytes: all are read before the first is taken.
const LETTERS_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 << 20;
/// Letters that are taken in one step.
const STEP: usize = 1_000;

/// What became of letters that were taken once more.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LettersReplayed {
    /// Whether this is only what would become of them.
    pub(crate) dry_run: bool,
    /// Letters that are good now, and were taken. An event that was taken before counts once all the same.
    pub(crate) accepted: u64,
    /// Letters that are good now, and were left out: a row with the same version is stored.
    pub(crate) superseded: u64,
    /// Letters that are good now, and were left out: they are of athletes who were erased.
    pub(crate) erased: u64,
    /// Letters that still can't be taken.
    pub(crate) still_bad: u64,
    /// Records among the letters that are none.
    pub(crate) broken: u64,
    /// The first of those that still can't be taken: where it came from and why.
    pub(crate) first: Option<String>,
    /// The id of that one.
    pub(crate) first_id: Option<String>,
}

/// Takes dead letters once more: one by its id, or those that are asked for as in a list, each partition's from the oldest on, at most
/// 10,000. What is good now is taken; what is still bad stays a dead letter. After an error some may be taken: asking again is
/// safe.
#[utoipa::path(
    post,
    path = "/api/v1/dead-letters/replay",
    tag = "dead-letters",
    params(
        ("id" = Option<String>, Query, description = "This letter alone: TOPIC/PARTITION@OFFSET"),
        ("source" = Option<String>, Query, description = "plays, efforts, authorizations, athletes, clubs, follows or applications; all if left out"),
        ("reason" = Option<String>, Query, description = "Only those in whose reason, or the kind of it, this text is found"),
        ("since" = Option<String>, Query, description = "Only those that were set aside then or later: an instant such as 2026-11-21T00:00:00Z, or a date in UTC"),
        ("dry_run" = Option<bool>, Query, description = "true: nothing is taken, the answer says what would be")
    ),
    responses(
        (status = 200, description = "What became of them", body = LettersReplayed),
        (status = 400, description = "A parameter can't be used, or more letters are asked for than are taken at once", body = ProblemShape, content_type = "application/problem+json"),
        (status = 404, description = "No such letter, or the log holds it no more", body = ProblemShape, content_type = "application/problem+json"),
        (status = 429, description = "Letters are being taken already, or too many are writing at once: come again after Retry-After seconds", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn replay(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<LettersReplayed>, Problem> {
    let uri = request.uri();
    let params = Params::read(uri, &["id", "source", "reason", "since", "dry_run"])?;
    let is_dry = params.flag("dry_run")?;
    let _only = api.replays.try_acquire().map_err(|_| {
        let detail = "letters are being taken already: ask again when they are";
        Kind::TooManyWriters.with_detail(detail)
    })?;
    let read = async {
        let _turn = api.letter_reads.acquire().await;
        wanted(&api, &params).await
    };
    let letters = in_time(&api, read).await??;
    let _place = place(&api, &caller)?;
    let mut replay = Replay::new(&*api.ports.schemas, is_dry);
    for some in letters.chunk_by(|one, next| one.id.source == next.id.source) {
        if let Some(source) = some.first().map(|letter| letter.id.source) {
            let intake = intake(&api, source, &caller).await?;
            for step in some.chunks(STEP) {
                replay.take((source, &intake), step).await?;
            }
        }
    }
    let done = replay.end();
    Ok(Json(LettersReplayed {
        dry_run: done.dry_run,
        accepted: done.accepted,
        superseded: done.superseded,
        erased: done.erased,
        still_bad: done.still_bad,
        broken: done.broken,
        first: done.first,
        first_id: done.first_id.map(|id| id.to_string()),
    }))
}

/// The letters that are asked for.
async fn wanted(api: &Api, params: &Params) -> Result<Vec<Letter>, Problem> {
    let log = &*api.ports.log;
    if let Some(id) = params.get("id") {
        if let Some(other) = ["source", "reason", "since"]
            .into_iter()
            .find(|name| params.get(name).is_some())
        {
            let detail = format!("id and {other} can't be asked for together: id names one letter");
            return Err(Problem::parameter(detail));
        }
        let id: LetterId = id
            .parse()
            .map_err(|error: NoLetterId| Problem::parameter(format!("id: {error}")))?;
        let letter = find(log, id).await?.ok_or_else(|| unknown(id))?;
        return Ok(vec![letter]);
    }
    let mut oldest = Oldest::open(log, asked(params)?).await?;
    let (mut letters, mut bytes) = (Vec::new(), 0_usize);
    loop {
        let more = oldest.more().await?;
        if more.is_empty() {
            return Ok(letters);
        }
        bytes += more.iter().map(Letter::bytes).sum::<usize>();
        letters.extend(more);
        if letters.len() > LETTERS_MAX || bytes > BYTES_MAX {
            return Err(Problem::parameter(format!(
                "more than {LETTERS_MAX} letters or {} MiB are asked for, and nothing was taken: say less by source, reason or since, or use `backstitch dead-letters replay`",
                BYTES_MAX >> 20
            )));
        }
    }
}
