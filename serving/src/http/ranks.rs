//! The ranks of many athletes on the boards of many segments, in one request.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use jobs::{Board, Job};
use serde::Deserialize;
use serde_json::{Map, Value};
use stores::board_cache::BoardWant;
use utoipa::ToSchema;

use super::boards::{date, find, members, read_boards, today};
use super::params::{Params, Path};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, body, csv};
use crate::board::answer::{BoardRanks, field_names, of_reading};
use crate::board::entries::{Entry, entries};
use crate::board::question::{Section, has_sections, named, section, window};
use crate::board::read::{BoardQuestion, BoardReading, encoded_members};
use crate::read::Standing;

/// Boards that may be asked for at once, athletes, and pairs of both.
const KEYS_MAX: usize = 1_000;
const ATHLETES_MAX: usize = 1_000;
const PAIRS_MAX: usize = 10_000;
/// Boards of one consistent read: bounds how many live states are in memory.
const KEYS_READ: usize = 100;

const EXAMPLE: &str = "{\"segments\": [229781], \"athletes\": [227615, 42]}";

/// Whose ranks are asked for, and on which boards.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RanksAsked {
    /// The segments, at most 1,000; of other boards what these are asked for by. It may also be called
    /// `keys`. What is given twice is answered once.
    #[serde(alias = "keys")]
    segments: Vec<i64>,
    /// The athletes, at most 1,000; with the segments at most 10,000 pairs.
    athletes: Vec<i64>,
    /// overall, gender:F, age:35-44 or weight:75-84; overall if left out.
    #[serde(default)]
    board: Option<String>,
    /// all, year, month or day; all if left out.
    #[serde(default)]
    window: Option<String>,
    /// The day whose year, month or day it is; today in UTC if left out.
    #[serde(default)]
    date: Option<String>,
    /// Ranks among the athletes of this club only.
    #[serde(default)]
    club_id: Option<i64>,
    /// Ranks among this athlete and those that this athlete follows.
    #[serde(default)]
    following: Option<i64>,
}

/// The ranks of many athletes on the boards of many segments. Up to 100 segments are read as of one
/// moment; of more, provenance says what all of them hold at least.
#[utoipa::path(
    post,
    path = "/api/v1/boards/{name}/ranks",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    request_body = RanksAsked,
    responses(
        (status = 200, description = "The rows of those who are on a board", body = BoardRanks),
        (status = 404, description = "No such kind of board", body = ProblemShape, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn ranks(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Response, Problem> {
    let job = find(&api, &name)?;
    let format = Params::read(&uri, &["format"])?.format()?;
    let asked: RanksAsked =
        body::object_up_to(&api, request, body::LISTS_BYTES_MAX, EXAMPLE).await?;
    let section = section_of(&api, job, &asked)?;
    let keys = each_once(asked.segments);
    let athletes = each_once(asked.athletes);
    check_bounds(&keys, &athletes)?;
    let mut athletes = encoded_members(job, &athletes)?;
    athletes.sort_unstable();
    let members = members(&api, asked.club_id, asked.following).await?;
    let mut rows = Vec::new();
    let mut boards = Vec::with_capacity(keys.len());
    let mut reach: Option<Standing> = None;
    for some in keys.chunks(KEYS_READ) {
        let asked = BoardQuestion {
            keys: some.to_vec(),
            section: section.clone(),
            members: members.clone(),
            want: BoardWant::Places(athletes.clone()),
            explains: false,
        };
        let reading = read_boards(&api, job, asked).await?;
        reach = Some(match reach {
            None => reading.standing.clone(),
            Some(reach) => reach.least(&reading.standing),
        });
        for (key, board) in some.iter().zip(&reading.boards) {
            let entries = entries(job, board, None)?;
            let entries = entries.iter();
            rows.extend(entries.map(|entry| row(job, *key, board.sum.count, entry)));
            // Only where it is from is told of yet.
            boards.push(BoardReading {
                layers: board.layers,
                ..BoardReading::default()
            });
        }
    }
    let reach = reach.unwrap_or_else(|| Standing::nothing(job.source(), 0));
    let provenance = of_reading(&boards, reach);
    let ranks = BoardRanks { rows, provenance };
    Ok(format.answer(ranks, |ranks| {
        let names = [vec![key_name(job)], field_names(job), vec!["total"]].concat();
        csv::objects(&names.join(","), &ranks.rows, Some(&ranks.provenance))
    }))
}

/// What the key is called in rows.
fn key_name(job: &Job<Board>) -> &str {
    let column = job.key().0.first();
    column.map_or("key", |column| &column.name)
}

fn row(job: &Job<Board>, key: i64, total: u64, entry: &Entry) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert(key_name(job).to_owned(), key.into());
    row.insert("total".to_owned(), total.into());
    entry.put_into(&mut row);
    row
}

fn section_of(api: &Api, job: &Job<Board>, asked: &RanksAsked) -> Result<Section, Problem> {
    let is_named = asked.board.is_some() || asked.window.is_some() || asked.date.is_some();
    if is_named && !has_sections(job) {
        return Err(wrong(format!(
            "board, window and date: {} have one board each; leave them out",
            job.board()
        )));
    }
    let named = named(asked.board.as_deref().unwrap_or("overall")).map_err(wrong)?;
    let window = window(asked.window.as_deref().unwrap_or("all")).map_err(wrong)?;
    let date = match &asked.date {
        None => today(api),
        Some(text) => date("date", text).map_err(Problem::of_body)?,
    };
    Ok(section(job, named, window, date))
}

/// The ids in their order, each where it comes first.
fn each_once(ids: Vec<i64>) -> Vec<i64> {
    let mut seen = HashSet::with_capacity(ids.len());
    ids.into_iter().filter(|id| seen.insert(*id)).collect()
}

fn check_bounds(keys: &[i64], athletes: &[i64]) -> Result<(), Problem> {
    for (name, ids, max) in [
        ("segments", keys, KEYS_MAX),
        ("athletes", athletes, ATHLETES_MAX),
    ] {
        if ids.is_empty() || ids.len() > max {
            return Err(wrong(format!(
                "{name}: {} ids are given; from 1 to {max} can be asked for at a time",
                ids.len()
            )));
        }
    }
    let pairs = keys.len() * athletes.len();
    if pairs > PAIRS_MAX {
        return Err(wrong(format!(
            "segments and athletes: {} by {} are {pairs} pairs; at most {PAIRS_MAX} can be asked for at a time",
            keys.len(),
            athletes.len()
        )));
    }
    Ok(())
}

fn wrong(why: String) -> Problem {
    Kind::BadBody.with_detail(why)
}

#[cfg(test)]
#[path = "ranks_tests.rs"]
mod tests;
