//! Boards: pages, one athlete with neighbors, and counts.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::provenance::Provenance;
use stores::board_cache::BoardSelection;

use super::params::{Params, Path, build_next_link, parse_integer};
use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Api, csv, cursor};
use crate::board::answer::{
    AthleteRank, BoardPage, Counts, PreviousBoard, PreviousRank, build_gap, compute_percentile,
    field_names, merge_provenance,
};
use crate::board::divisions::{
    Division, RequestedBoard, Window, has_divisions, parse_division, parse_window, resolve_board,
};
use crate::board::earlier::{EarlierBoard, read_earlier_board};
use crate::board::entries::{EARLIER_FIELDS, Entry, build_entries};
use crate::board::read::read;
use crate::board::reader::{BoardReadContext, BoardReadRequest};
use crate::board::reading::{BoardReading, BoardsReading};
use crate::request_coalescer::seeded_hash;

/// Default number of neighbors before and after the athlete.
pub(super) const NEIGHBORS_DEFAULT: u64 = 5;
/// Maximum number of neighbors before and after the athlete.
pub(super) const NEIGHBORS_MAX: u64 = 500;
/// The board whose counts are served.
const SEGMENTS_BOARD: &str = "segments";

/// A page of a board: each athlete's best effort, best first.
///
/// Of equal efforts the one with the lower id comes first.
#[utoipa::path(
    get,
    path = "/api/v1/boards/{name}/{key}",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("key" = i64, Path, description = "The segment"),
        ("board" = Option<String>, Query, description = "overall, gender:F, age:35-44 or weight:75-84; default overall"),
        ("window" = Option<String>, Query, description = "all, year, month or day; default all"),
        ("date" = Option<String>, Query, description = "A day in the window; default today (UTC)"),
        ("club_id" = Option<i64>, Query, description = "Only athletes of this club"),
        ("following" = Option<i64>, Query, description = "Only this athlete and those that this athlete follows"),
        ("limit" = Option<usize>, Query, description = "Rows per page, at most 1,000; default 50"),
        ("offset" = Option<u64>, Query, description = "Number of rows before the page, to jump to a rank"),
        ("cursor" = Option<String>, Query, description = "The field cursor of the previous page, instead of offset. The page begins after the last row of that page, so rows that moved meanwhile are neither skipped nor repeated"),
        ("history" = Option<bool>, Query, description = "true: each row has previous_rank and change, compared with the last batch run of an earlier day"),
        ("format" = Option<String>, Query, description = "json (default) or csv; the Link header has the URL of the next page")
    ),
    responses(
        (status = 200, description = "The page; an unknown key or an empty board has total 0", body = BoardPage),
        (status = 404, description = "Unknown board name", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_board(
    State(api): State<Arc<Api>>,
    Path((name, key)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let job = find_board(&api, &name)?;
    let mut known_params = list_board_params(job);
    known_params.extend(["limit", "offset", "cursor", "history", "format"]);
    let params = Params::parse(&uri, &known_params)?;
    let (limit, format, has_history) = (
        params.parse_limit()?,
        params.parse_format()?,
        params.parse_flag("history")?,
    );
    let today = today(&api);
    let board_request = BoardRequest::parse(job, &key, &params, today)?;
    let fingerprint = cursor::compute_fingerprint(&format!("board {name} {board_request:?}"));
    let selection = match (params.get("offset"), params.get("cursor")) {
        (Some(_), Some(_)) => {
            return Err(Problem::parameter(
                "offset and cursor exclude each other: send one of them",
            ));
        }
        (None, Some(text)) => cursor::decode_board_page(fingerprint, text, key_sizes(job), limit)?,
        (offset, None) => {
            let offset = offset
                .map(|text| parse_unsigned("offset", text))
                .transpose()?;
            let offset = offset.unwrap_or(0);
            BoardSelection::Page { offset, limit }
        }
    };
    let read_request = board_request.build_read_request(&api, selection).await?;
    let history_request = has_history.then(|| read_request.clone());
    let reading = read_boards(&api, job, read_request).await?;
    let board = first_board(&reading);
    let earlier = read_earlier_ranks(&api, job, history_request, board, today).await?;
    let page_end = board.first_index.saturating_add(board.rows.len() as u64);
    let last = board.rows.last().filter(|_| page_end < board.sum.count);
    let page = BoardPage {
        total: board.sum.count,
        entries: build_entries(job, board, earlier.as_ref())?,
        cursor: last.map(|last| cursor::encode_board_row(fingerprint, last)),
        previous: earlier.map(|earlier| earlier.as_ref().map(PreviousBoard::new)),
        provenance: merge_provenance([board], reading.read_position.clone()),
    };
    // The next page shows the same day's board, even after midnight.
    let is_dated = params.get("window").is_some() && params.get("date").is_none();
    let date = is_dated.then(|| format!("date={today}"));
    let link = page
        .cursor
        .as_deref()
        .and_then(|cursor| build_next_link(&uri, cursor, date.as_deref()));
    let response = format.respond(page, |page| {
        write_csv(job, has_history, &page.entries, &page.provenance)
    });
    Ok((link.map(|link| [link]), response).into_response())
}

/// Returns the encoded sizes of scores and members, which consist of numbers.
fn key_sizes(job: &Job<Board>) -> cursor::BoardKeySizes {
    cursor::BoardKeySizes {
        score_bytes: 8 * job.score().0.len(),
        member_bytes: 8 * job.member().0.len(),
    }
}

/// Writes rows of a board, with their earlier ranks if `has_history`.
fn write_csv(
    job: &Job<Board>,
    has_history: bool,
    entries: &[Entry],
    provenance: &Provenance,
) -> Response {
    let mut names = field_names(job);
    names.extend(EARLIER_FIELDS.iter().filter(|_| has_history));
    csv::write_objects(&names.join(","), entries, Some(provenance))
}

/// One athlete on a board, with neighbors.
#[utoipa::path(
    get,
    path = "/api/v1/boards/{name}/{key}/athletes/{athlete_id}",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("key" = i64, Path, description = "The segment"),
        ("athlete_id" = i64, Path, description = "The athlete"),
        ("around" = Option<u64>, Query, description = "Entries to show before and after the athlete's, at most 500; default 5"),
        ("board" = Option<String>, Query, description = "overall, gender:F, age:35-44 or weight:75-84; default overall"),
        ("window" = Option<String>, Query, description = "all, year, month or day; default all"),
        ("date" = Option<String>, Query, description = "A day in the window; default today (UTC)"),
        ("club_id" = Option<i64>, Query, description = "Only athletes of this club"),
        ("following" = Option<i64>, Query, description = "Only this athlete and those that this athlete follows"),
        ("history" = Option<bool>, Query, description = "true: adds previous and change, compared with the last batch run of an earlier day"),
        ("format" = Option<String>, Query, description = "json (default), or csv: the neighbors")
    ),
    responses(
        (status = 200, description = "The athlete's entry and neighbors", body = AthleteRank),
        (status = 404, description = "The athlete is not on the board, or the board name is unknown", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn show_athlete(
    State(api): State<Arc<Api>>,
    Path((name, key, athlete)): Path<(String, String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let job = find_board(&api, &name)?;
    let mut known_params = list_board_params(job);
    known_params.extend(["around", "history", "format"]);
    let params = Params::parse(&uri, &known_params)?;
    let format = params.parse_format()?;
    let member = parse_id("athlete_id", &athlete)?;
    let around = params.parse_with("around", parse_unsigned)?;
    let around = around.unwrap_or(NEIGHBORS_DEFAULT);
    if around > NEIGHBORS_MAX {
        return Err(Problem::parameter(format!(
            "around={around} exceeds {NEIGHBORS_MAX}: request a page of the board instead"
        ))
        .with_parameter("around"));
    }
    let today = today(&api);
    let board_request = BoardRequest::parse(job, &key, &params, today)?;
    // The entry before is always read, because the response has the gap to it.
    let selection = select_around(job, member, around.max(1))?;
    let has_history = params.parse_flag("history")?;
    let read_request = board_request.build_read_request(&api, selection).await?;
    let history_request = has_history.then(|| read_request.clone());
    let reading = read_boards(&api, job, read_request).await?;
    let board = first_board(&reading);
    let member_index = board.member_index.ok_or_else(|| {
        ProblemKind::NotOnBoard.with_detail(format!("athlete {member} is not on this board"))
    })?;
    let earlier = read_earlier_ranks(&api, job, history_request, board, today).await?;
    let mut neighbours = build_entries(job, board, earlier.as_ref())?;
    let index =
        usize::try_from(member_index.saturating_sub(board.first_index)).unwrap_or(usize::MAX);
    let entry = neighbours.get(index).cloned();
    let entry_before = index.checked_sub(1).and_then(|index| neighbours.get(index));
    let gap = entry_before.zip(entry.as_ref());
    let gap = gap.map(|(before, entry)| build_gap(job, before, entry));
    if around == 0 {
        neighbours = entry.iter().cloned().collect();
    }
    let signed = |rank: u64| i64::try_from(rank).unwrap_or(i64::MAX);
    let earlier = earlier.flatten();
    let previous = earlier.and_then(|earlier| PreviousRank::new(&earlier, index));
    let change = previous
        .as_ref()
        .map(|previous| signed(previous.rank) - signed(member_index + 1));
    let response = AthleteRank {
        total: board.sum.count,
        entry,
        neighbours,
        percentile: compute_percentile(member_index, board.sum.count),
        gap,
        previous: has_history.then_some(previous),
        change: has_history.then_some(change),
        provenance: merge_provenance([board], reading.read_position.clone()),
    };
    Ok(format.respond(response, |response| {
        let (entries, provenance) = (&response.neighbours, &response.provenance);
        write_csv(job, has_history, entries, provenance)
    }))
}

/// Reads the ranks of a board's rows at the end of an earlier day. Returns `None` without a
/// request, and `Some(None)` if there is no earlier version.
async fn read_earlier_ranks(
    api: &Api,
    job: &Arc<Job<Board>>,
    read_request: Option<BoardReadRequest>,
    board: &BoardReading,
    today: Date,
) -> Result<Option<Option<EarlierBoard>>, Problem> {
    let Some(read_request) = read_request else {
        return Ok(None);
    };
    let retry_for = api.options.live_state_wait();
    let context = build_read_context(api);
    let earlier = read_earlier_board(context, job, &read_request, &board.rows, today, retry_for);
    Ok(Some(Box::pin(earlier).await?))
}

/// The numbers of efforts and athletes of a segment.
#[utoipa::path(
    get,
    path = "/api/v1/segments/{segment_id}/counts",
    tag = "boards",
    params(
        ("segment_id" = i64, Path, description = "The segment"),
        ("format" = Option<String>, Query, description = "json (default) or csv")
    ),
    responses(
        (status = 200, description = "The counts; 0 for an unknown segment", body = Counts)
    )
)]
pub(crate) async fn show_counts(
    State(api): State<Arc<Api>>,
    Path(segment): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let format = Params::parse(&uri, &["format"])?.parse_format()?;
    let job = find_board(&api, SEGMENTS_BOARD)?;
    let read_request = build_count_request(job, vec![parse_id("segment_id", &segment)?]);
    let reading = read_boards(&api, job, read_request).await?;
    let board = first_board(&reading);
    let counts = Counts {
        efforts: board.sum.weight,
        athletes: board.sum.count,
        provenance: merge_provenance([board], reading.read_position.clone()),
    };
    Ok(format.respond(counts, |counts| {
        csv::write_objects("efforts,athletes", [&counts], Some(&counts.provenance))
    }))
}

/// Returns the board of a name.
pub(super) fn find_board<'a>(api: &'a Api, name: &str) -> Result<&'a Arc<Job<Board>>, Problem> {
    api.boards.get(name).ok_or_else(|| {
        let names: Vec<&str> = api.boards.keys().map(String::as_str).collect();
        ProblemKind::UnknownBoard.with_detail(format!(
            "unknown board {name:?}: the boards are {}",
            names.join(", ")
        ))
    })
}

/// Reads boards. Equal concurrent requests share a single read.
pub(super) async fn read_boards(
    api: &Arc<Api>,
    job: &Arc<Job<Board>>,
    read_request: BoardReadRequest,
) -> Result<Arc<BoardsReading>, Problem> {
    let key = seeded_hash(&(job.view(), &read_request));
    let (shared_api, job) = (Arc::clone(api), Arc::clone(job));
    let read = async move {
        let retry_for = shared_api.options.live_state_wait();
        let reading = read(
            build_read_context(&shared_api),
            &job,
            &read_request,
            retry_for,
        )
        .await;
        Ok(Arc::new(shared_api.board_cache.or_stale(key, reading)?))
    };
    api.board_coalescer.read(key, read).await
}

/// Builds the ports, caches and limits of board reads.
const fn build_read_context(api: &Api) -> BoardReadContext<'_> {
    BoardReadContext {
        ports: &api.ports,
        caches: &api.read_caches,
        recent_reads: &api.recent_board_reads,
        permits: &api.board_read_permits,
    }
}

/// Returns the first board of a reading, or an empty one.
pub(super) fn first_board(reading: &BoardsReading) -> &BoardReading {
    static EMPTY: LazyLock<BoardReading> = LazyLock::new(BoardReading::default);
    reading.boards.first().unwrap_or(&EMPTY)
}

/// Builds the request for the sizes of the overall, all-time boards of some keys.
pub(super) fn build_count_request(job: &Job<Board>, keys: Vec<i64>) -> BoardReadRequest {
    BoardReadRequest {
        keys,
        board: resolve_board(job, Division::Overall, Window::All, Date::default()),
        members: None,
        selection: BoardSelection::TotalsOnly,
        explains: false,
    }
}

/// Returns the parameters that select a board and its rows.
pub(super) fn list_board_params(job: &Job<Board>) -> Vec<&'static str> {
    let mut params = vec!["club_id", "following"];
    if has_divisions(job) {
        params.extend(["board", "window", "date"]);
    }
    params
}

pub(super) fn today(api: &Api) -> Date {
    api.now().to_zoned(TimeZone::UTC).date()
}

/// A parsed request for rows of a board. Its text is part of the fingerprint of cursors. It holds
/// the window, which may depend on the day of the request.
#[derive(Debug)]
pub(super) struct BoardRequest {
    key: i64,
    board: RequestedBoard,
    club: Option<i64>,
    follower: Option<i64>,
}

impl BoardRequest {
    pub(super) fn parse(
        job: &Job<Board>,
        key: &str,
        params: &Params,
        today: Date,
    ) -> Result<Self, Problem> {
        let column = job.key().0.first();
        let key = parse_id(column.map_or("key", |column| &column.name), key)?;
        let invalid = |name: &'static str| {
            move |detail: String| Problem::parameter(detail).with_parameter(name)
        };
        let division = parse_division(params.get("board").unwrap_or("overall"));
        let division = division.map_err(invalid("board"))?;
        let window = parse_window(params.get("window").unwrap_or("all"));
        let window = window.map_err(invalid("window"))?;
        let date = params.parse_with("date", parse_date)?.unwrap_or(today);
        Ok(Self {
            key,
            board: resolve_board(job, division, window, date),
            club: params.parse_with("club_id", parse_id)?,
            follower: params.parse_with("following", parse_id)?,
        })
    }

    pub(super) async fn build_read_request(
        self,
        api: &Arc<Api>,
        selection: BoardSelection,
    ) -> Result<BoardReadRequest, Problem> {
        Ok(BoardReadRequest {
            keys: vec![self.key],
            members: find_matching_members(api, self.club, self.follower).await?,
            board: self.board,
            selection,
            explains: false,
        })
    }
}

/// Selects a member's row, with `around` rows before and after.
pub(super) fn select_around(
    job: &Job<Board>,
    member: i64,
    around: u64,
) -> Result<BoardSelection, KeyError> {
    let member = job.member().encode_values(&[KeyValue::Int(member)])?;
    Ok(BoardSelection::Around { member, around })
}

/// Finds the athletes that pass both filters: the members of `club`, and `follower` with the
/// athletes that it follows. Returns `None` without a filter.
pub(super) async fn find_matching_members(
    api: &Arc<Api>,
    club: Option<i64>,
    follower: Option<i64>,
) -> Result<Option<Vec<i64>>, Problem> {
    let mut members: Option<Vec<i64>> = None;
    if let Some(club) = club {
        let club_members = read_members(api, MemberFilter::Club(club)).await?;
        members = Some(club_members.to_vec());
    }
    if let Some(follower) = follower {
        let followed = read_members(api, MemberFilter::FollowedBy(follower)).await?;
        let mut followed = followed.to_vec();
        followed.push(follower);
        followed.sort_unstable();
        members = Some(match members {
            None => followed,
            Some(club) => {
                let is_followed = |athlete: &i64| followed.binary_search(athlete).is_ok();
                club.into_iter().filter(is_followed).collect()
            }
        });
    }
    if let Some(members) = &mut members {
        members.sort_unstable();
        members.dedup();
    }
    Ok(members)
}

/// Selects members of boards.
#[derive(Debug, Clone, Copy)]
enum MemberFilter {
    Club(i64),
    FollowedBy(i64),
}

/// Reads the members that match a filter. Concurrent requests share one read.
async fn read_members(api: &Arc<Api>, filter: MemberFilter) -> Result<Arc<[i64]>, Problem> {
    let (is_following, id) = match filter {
        MemberFilter::Club(id) => (false, id),
        MemberFilter::FollowedBy(id) => (true, id),
    };
    let key = u128::from(is_following) << 64 | u128::from(id.cast_unsigned());
    let entities = Arc::clone(&api.ports.entities);
    let read = async move {
        let members = match filter {
            MemberFilter::Club(_) => entities.club_members(id).await,
            MemberFilter::FollowedBy(_) => entities.followed_athletes(id).await,
        };
        Ok(members?.into())
    };
    api.member_coalescer.read(key, read).await
}

/// Parses a date.
pub(super) fn parse_date(name: &str, text: &str) -> Result<Date, Problem> {
    let invalid = || {
        Problem::parameter(format!(
            "{name}={text:?} is not a date such as 2026-11-21, in the years 1 to 9999"
        ))
    };
    let has_date_format = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let date: Date = has_date_format
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(invalid)?;
    (date.year() > 0).then_some(date).ok_or_else(invalid)
}

/// Parses an id of a path or a parameter.
pub(super) fn parse_id(name: &str, text: &str) -> Result<i64, Problem> {
    parse_integer(text).ok_or_else(|| {
        Problem::parameter(format!(
            "{name}={text:?} is not a 64-bit integer such as 42"
        ))
        .with_parameter(name)
    })
}

fn parse_unsigned(name: &str, text: &str) -> Result<u64, Problem> {
    parse_integer(text)
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| {
            Problem::parameter(format!(
                "{name}={text:?} is not a number from 0 to {}",
                i64::MAX
            ))
            .with_parameter(name)
        })
}
