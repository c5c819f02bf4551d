//! The ranks of many athletes on the boards of many segments, in one request.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use jobs::{Board, Job};
use serde::Deserialize;
use serde_json::{Map, Value};
use stores::board_cache::BoardSelection;
use utoipa::ToSchema;

use super::boards::{find_board, find_matching_members, parse_date, read_boards, today};
use super::params::{Params, Path};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, body, csv};
use crate::board::answer::{BoardRanks, field_names, merge_provenance};
use crate::board::divisions::{
    RequestedBoard, has_divisions, parse_division, parse_window, resolve_board,
};
use crate::board::entries::{Entry, build_entries};
use crate::board::reader::{BoardReadRequest, encode_members};
use crate::board::reading::BoardReading;
use crate::read_position::ReadPosition;

/// Maximum numbers of boards, athletes, and pairs of both per request.
const SEGMENTS_MAX: usize = 1_000;
const ATHLETES_MAX: usize = 1_000;
const PAIRS_MAX: usize = 10_000;
/// Maximum number of boards per consistent read, which bounds the live entries in memory.
const KEYS_PER_READ: usize = 100;

const BODY_EXAMPLE: &str = "{\"segments\": [229781], \"athletes\": [227615, 42]}";

/// The athletes and boards of a request for ranks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RanksRequest {
    /// The segments, or the keys of another board, at most 1,000. `keys` is an alias. A
    /// duplicate has no effect.
    #[serde(alias = "keys")]
    segments: Vec<i64>,
    /// The athletes, at most 1,000. At most 10,000 pairs of segment and athlete.
    athletes: Vec<i64>,
    /// overall, gender:F, age:35-44 or weight:75-84; default overall.
    #[serde(default)]
    board: Option<String>,
    /// all, year, month or day; default all.
    #[serde(default)]
    window: Option<String>,
    /// A day in the window; default today (UTC).
    #[serde(default)]
    date: Option<String>,
    /// Only ranks among athletes of this club.
    #[serde(default)]
    club_id: Option<i64>,
    /// Only ranks among this athlete and the athletes that this athlete follows.
    #[serde(default)]
    following: Option<i64>,
}

/// The ranks of many athletes on the boards of many segments.
///
/// Up to 100 segments are read at one position. For more, the provenance has the lowest position of
/// all reads.
#[utoipa::path(
    post,
    path = "/api/v1/boards/{name}/ranks",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("format" = Option<String>, Query, description = "json (default) or csv")
    ),
    request_body = RanksRequest,
    responses(
        (status = 200, description = "A row for each athlete on each board", body = BoardRanks),
        (status = 404, description = "Unknown board name", body = ProblemShape, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn rank_athletes(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    let job = find_board(&api, &name)?;
    let format = Params::parse(&uri, &["format"])?.parse_format()?;
    let ranks_request: RanksRequest =
        body::parse_object_up_to(&api, request, body::LISTS_BYTES_MAX, BODY_EXAMPLE).await?;
    let requested_board = parse_board(&api, job, &ranks_request)?;
    let keys = deduplicate(ranks_request.segments);
    let athletes = deduplicate(ranks_request.athletes);
    check_bounds(&keys, &athletes)?;
    let mut athletes = encode_members(job, &athletes)?;
    athletes.sort_unstable();
    let members =
        find_matching_members(&api, ranks_request.club_id, ranks_request.following).await?;
    let mut rows = Vec::new();
    let mut boards = Vec::with_capacity(keys.len());
    let mut position: Option<ReadPosition> = None;
    for chunk in keys.chunks(KEYS_PER_READ) {
        let read_request = BoardReadRequest {
            keys: chunk.to_vec(),
            board: requested_board.clone(),
            members: members.clone(),
            selection: BoardSelection::MembersWithIndexes(athletes.clone()),
            explains: false,
        };
        let reading = read_boards(&api, job, read_request).await?;
        position = Some(match position {
            None => reading.read_position.clone(),
            Some(position) => position.min_with(&reading.read_position),
        });
        for (key, board) in chunk.iter().zip(&reading.boards) {
            let entries = build_entries(job, board, None)?;
            let entries = entries.iter();
            rows.extend(entries.map(|entry| build_row(job, *key, board.sum.count, entry)));
            // Only the provenance is still needed.
            boards.push(BoardReading {
                layers: board.layers,
                ..BoardReading::default()
            });
        }
    }
    let position = position.unwrap_or_else(|| ReadPosition::empty(job.source(), 0));
    let provenance = merge_provenance(&boards, position);
    let ranks = BoardRanks { rows, provenance };
    Ok(format.respond(ranks, |ranks| {
        let names = [vec![key_name(job)], field_names(job), vec!["total"]].concat();
        csv::write_objects(&names.join(","), &ranks.rows, Some(&ranks.provenance))
    }))
}

/// Returns the name of the key in rows.
fn key_name(job: &Job<Board>) -> &str {
    let column = job.key().0.first();
    column.map_or("key", |column| &column.name)
}

fn build_row(job: &Job<Board>, key: i64, total: u64, entry: &Entry) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert(key_name(job).to_owned(), key.into());
    row.insert("total".to_owned(), total.into());
    entry.insert_into(&mut row);
    row
}

fn parse_board(
    api: &Api,
    job: &Job<Board>,
    request: &RanksRequest,
) -> Result<RequestedBoard, Problem> {
    let has_selection =
        request.board.is_some() || request.window.is_some() || request.date.is_some();
    if has_selection && !has_divisions(job) {
        return Err(invalid_body(format!(
            "{} have a single board each: leave out board, window and date",
            job.board()
        )));
    }
    let division =
        parse_division(request.board.as_deref().unwrap_or("overall")).map_err(invalid_body)?;
    let window = parse_window(request.window.as_deref().unwrap_or("all")).map_err(invalid_body)?;
    let date = match &request.date {
        None => today(api),
        Some(text) => parse_date("date", text).map_err(Problem::into_body_problem)?,
    };
    Ok(resolve_board(job, division, window, date))
}

/// Removes repeated ids, and preserves the order.
fn deduplicate(ids: Vec<i64>) -> Vec<i64> {
    let mut distinct = HashSet::with_capacity(ids.len());
    ids.into_iter().filter(|id| distinct.insert(*id)).collect()
}

fn check_bounds(keys: &[i64], athletes: &[i64]) -> Result<(), Problem> {
    for (name, ids, max) in [
        ("segments", keys, SEGMENTS_MAX),
        ("athletes", athletes, ATHLETES_MAX),
    ] {
        if ids.is_empty() || ids.len() > max {
            return Err(invalid_body(format!(
                "{name}: the list has {} ids; send 1 to {max}",
                ids.len()
            )));
        }
    }
    let pairs = keys.len() * athletes.len();
    if pairs > PAIRS_MAX {
        return Err(invalid_body(format!(
            "segments and athletes: {} by {} are {pairs} pairs; send at most {PAIRS_MAX}",
            keys.len(),
            athletes.len()
        )));
    }
    Ok(())
}

fn invalid_body(detail: String) -> Problem {
    ProblemKind::BadBody.with_detail(detail)
}
