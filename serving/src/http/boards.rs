//! Boards: pages, one athlete with neighbours, counts.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jobs::{Board, Job};
use schemas::key::{KeyError, KeyValue};
use schemas::provenance::Provenance;
use stores::board_cache::BoardWant;

use super::params::{Params, Path, integer, link_to_next};
use super::problem::{Kind, Problem, ProblemShape};
use super::{Api, csv, cursor};
use crate::board::answer::{
    BoardPage, BoardPlace, Counts, PreviousBoard, PreviousPlace, field_names, gap as gap_to,
    of_reading, percentile,
};
use crate::board::earlier::{Earlier, read_earlier};
use crate::board::entries::{Entry, SINCE, entries};
use crate::board::question::{Named, Section, Window, has_sections, named, section, window};
use crate::board::read::{BoardQuestion, BoardReading, BoardsReading, read};
use crate::gather::key_of;

/// Neighbours before and after, unless it is said.
const AROUND_DEFAULT: u64 = 5;
/// Neighbours before and after, at most.
const AROUND_MAX: u64 = 500;
/// The board of segments, which counts are told of.
const SEGMENTS: &str = "segments";

/// A page of a board: the best of each athlete, best first. Of equal ones the one with the lower
/// effort id stands first.
#[utoipa::path(
    get,
    path = "/api/v1/boards/{name}/{key}",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("key" = i64, Path, description = "The segment"),
        ("board" = Option<String>, Query, description = "overall, gender:F, age:35-44 or weight:75-84; overall if left out"),
        ("window" = Option<String>, Query, description = "all, year, month or day; all if left out"),
        ("date" = Option<String>, Query, description = "The day whose year, month or day it is; today in UTC if left out"),
        ("club_id" = Option<i64>, Query, description = "Only athletes of this club"),
        ("following" = Option<i64>, Query, description = "Only this athlete and those that this athlete follows"),
        ("limit" = Option<usize>, Query, description = "Rows of a page, at most 1,000; 50 if left out"),
        ("offset" = Option<u64>, Query, description = "Rows before the page, to jump to a rank"),
        ("cursor" = Option<String>, Query, description = "cursor of the page before, in the place of offset: the page begins after the last row of that page, so it skips and repeats no row because others have moved"),
        ("history" = Option<bool>, Query, description = "true: each row has previous_rank and change, which tell of the place after the last batch run of an earlier day"),
        ("format" = Option<String>, Query, description = "json or csv; the header Link leads to the next page")
    ),
    responses(
        (status = 200, description = "The page; an unknown or empty board has total 0", body = BoardPage),
        (status = 404, description = "No such kind of board", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn page(
    State(api): State<Arc<Api>>,
    Path((name, key)): Path<(String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let job = find(&api, &name)?;
    let mut known = known(job);
    known.extend(["limit", "offset", "cursor", "history", "format"]);
    let params = Params::read(&uri, &known)?;
    let (limit, format, has_history) = (params.limit()?, params.format()?, params.flag("history")?);
    let today = today(&api);
    let asked = Asked::read(job, &key, &params, today)?;
    let fingerprint = cursor::fingerprint(&format!("board {name} {asked:?}"));
    let want = match (params.get("offset"), params.get("cursor")) {
        (Some(_), Some(_)) => {
            return Err(Problem::parameter(
                "offset and cursor say both where the page begins: leave one of them out",
            ));
        }
        (None, Some(text)) => cursor::board_page(fingerprint, text, key_bytes(job), limit)?,
        (offset, None) => {
            let offset = offset.map(|text| natural("offset", text)).transpose()?;
            let offset = offset.unwrap_or(0);
            BoardWant::Page { offset, limit }
        }
    };
    let asked = asked.question(&api, want).await?;
    let history = has_history.then(|| asked.clone());
    let reading = read_boards(&api, job, asked).await?;
    let board = first(&reading);
    let earlier = earlier(&api, (job, history), board, today).await?;
    let read = board.first.saturating_add(board.rows.len() as u64);
    let last = board.rows.last().filter(|_| read < board.sum.count);
    let page = BoardPage {
        total: board.sum.count,
        entries: entries(job, board, earlier.as_ref())?,
        cursor: last.map(|last| cursor::after_row(fingerprint, last)),
        previous: earlier.map(|earlier| earlier.as_ref().map(PreviousBoard::of)),
        provenance: of_reading([board], reading.standing.clone()),
    };
    // The next page is one of the same day's board, also after midnight.
    let is_dated = params.get("window").is_some() && params.get("date").is_none();
    let date = is_dated.then(|| format!("date={today}"));
    let link = page
        .cursor
        .as_deref()
        .and_then(|cursor| link_to_next(&uri, cursor, date.as_deref()));
    let answer = format.answer(page, |page| {
        as_csv((job, has_history), &page.entries, &page.provenance)
    });
    Ok((link.map(|link| [link]), answer).into_response())
}

/// How many bytes scores and members of a board have: both are of numbers.
fn key_bytes(job: &Job<Board>) -> (usize, usize) {
    (8 * job.score().0.len(), 8 * job.member().0.len())
}

/// Rows of a board, of an earlier day too where that is asked for.
fn as_csv(
    (job, has_history): (&Job<Board>, bool),
    entries: &[Entry],
    provenance: &Provenance,
) -> Response {
    let mut names = field_names(job);
    names.extend(SINCE.iter().filter(|_| has_history));
    csv::objects(&names.join(","), entries, Some(provenance))
}

/// One athlete on a board, with the neighbours.
#[utoipa::path(
    get,
    path = "/api/v1/boards/{name}/{key}/athletes/{athlete_id}",
    tag = "boards",
    params(
        ("name" = String, Path, description = "segments, or the name of another board"),
        ("key" = i64, Path, description = "The segment"),
        ("athlete_id" = i64, Path, description = "The athlete"),
        ("around" = Option<u64>, Query, description = "Places before and after the athlete's that are shown, at most 500; 5 if left out"),
        ("board" = Option<String>, Query, description = "overall, gender:F, age:35-44 or weight:75-84; overall if left out"),
        ("window" = Option<String>, Query, description = "all, year, month or day; all if left out"),
        ("date" = Option<String>, Query, description = "The day whose year, month or day it is; today in UTC if left out"),
        ("club_id" = Option<i64>, Query, description = "Only athletes of this club"),
        ("following" = Option<i64>, Query, description = "Only this athlete and those that this athlete follows"),
        ("history" = Option<bool>, Query, description = "true: previous and change tell of the place after the last batch run of an earlier day"),
        ("format" = Option<String>, Query, description = "json, or csv: the neighbours")
    ),
    responses(
        (status = 200, description = "The athlete's place", body = BoardPlace),
        (status = 404, description = "The athlete is not on the board, or there is no such kind of board", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn place(
    State(api): State<Arc<Api>>,
    Path((name, key, athlete)): Path<(String, String, String)>,
    uri: Uri,
) -> Result<Response, Problem> {
    let job = find(&api, &name)?;
    let mut known = known(job);
    known.extend(["around", "history", "format"]);
    let params = Params::read(&uri, &known)?;
    let format = params.format()?;
    let member = id("athlete_id", &athlete)?;
    let around = params.parsed("around", natural)?;
    let around = around.unwrap_or(AROUND_DEFAULT);
    if around > AROUND_MAX {
        return Err(Problem::parameter(format!(
            "around={around} is more than {AROUND_MAX}: ask for a page of the board"
        )));
    }
    let today = today(&api);
    let asked = Asked::read(job, &key, &params, today)?;
    // The place before is shown in any case, by the gap to it.
    let want = around_member(job, member, around.max(1))?;
    let has_history = params.flag("history")?;
    let asked = asked.question(&api, want).await?;
    let history = has_history.then(|| asked.clone());
    let reading = read_boards(&api, job, asked).await?;
    let board = first(&reading);
    let place = board.found.ok_or_else(|| {
        Kind::NotOnBoard.with_detail(format!("athlete {member} is not on this board"))
    })?;
    let earlier = earlier(&api, (job, history), board, today).await?;
    let mut neighbours = entries(job, board, earlier.as_ref())?;
    let at = usize::try_from(place.saturating_sub(board.first)).unwrap_or(usize::MAX);
    let own = neighbours.get(at).cloned();
    let before = at.checked_sub(1).and_then(|before| neighbours.get(before));
    let gap = before.zip(own.as_ref());
    let gap = gap.map(|(before, own)| gap_to(job, before, own));
    if around == 0 {
        neighbours = own.iter().cloned().collect();
    }
    let rank = |place: u64| i64::try_from(place).unwrap_or(i64::MAX);
    let earlier = earlier.flatten();
    let previous = earlier.and_then(|earlier| PreviousPlace::of(&earlier, at));
    let change = previous
        .as_ref()
        .map(|then| rank(then.rank) - rank(place + 1));
    let place = BoardPlace {
        total: board.sum.count,
        entry: own,
        neighbours,
        percentile: percentile(place, board.sum.count),
        gap,
        previous: has_history.then_some(previous),
        change: has_history.then_some(change),
        provenance: of_reading([board], reading.standing.clone()),
    };
    Ok(format.answer(place, |place| {
        as_csv((job, has_history), &place.neighbours, &place.provenance)
    }))
}

/// Where the rows that were read stood at the end of an earlier day, if that is asked for.
async fn earlier(
    api: &Api,
    (job, asked): (&Arc<Job<Board>>, Option<BoardQuestion>),
    board: &BoardReading,
    today: Date,
) -> Result<Option<Option<Earlier>>, Problem> {
    let Some(asked) = asked else {
        return Ok(None);
    };
    let with = (&api.board_reads, &api.memory, &api.noted);
    let (of, patience) = ((board.rows.as_slice(), today), api.options.whole_wait());
    let earlier = read_earlier(&api.ports, with, (job, &asked), of, patience);
    Ok(Some(Box::pin(earlier).await?))
}

/// How many efforts and athletes there are on a segment.
#[utoipa::path(
    get,
    path = "/api/v1/segments/{segment_id}/counts",
    tag = "boards",
    params(
        ("segment_id" = i64, Path, description = "The segment"),
        ("format" = Option<String>, Query, description = "json or csv")
    ),
    responses(
        (status = 200, description = "The counts; an unknown segment has none", body = Counts)
    )
)]
pub(crate) async fn counts(
    State(api): State<Arc<Api>>,
    Path(segment): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let format = Params::read(&uri, &["format"])?.format()?;
    let job = find(&api, SEGMENTS)?;
    let asked = sums_of(job, vec![id("segment_id", &segment)?]);
    let reading = read_boards(&api, job, asked).await?;
    let board = first(&reading);
    let counts = Counts {
        efforts: board.sum.weight,
        athletes: board.sum.count,
        provenance: of_reading([board], reading.standing.clone()),
    };
    Ok(format.answer(counts, |counts| {
        csv::objects("efforts,athletes", [&counts], Some(&counts.provenance))
    }))
}

/// The board of that name.
pub(super) fn find<'a>(api: &'a Api, name: &str) -> Result<&'a Arc<Job<Board>>, Problem> {
    api.boards.get(name).ok_or_else(|| {
        let have: Vec<&str> = api.boards.keys().map(String::as_str).collect();
        Kind::UnknownBoard.with_detail(format!(
            "there is no board {name:?}; there are {}",
            have.join(", ")
        ))
    })
}

/// Reads boards, once for all who ask the same at the same time; only so many are read at once.
pub(super) async fn read_boards(
    api: &Arc<Api>,
    job: &Arc<Job<Board>>,
    asked: BoardQuestion,
) -> Result<Arc<BoardsReading>, Problem> {
    let key = key_of(&(job.view(), &asked));
    let (gathered, job) = (Arc::clone(api), Arc::clone(job));
    let read = async move {
        let patience = gathered.options.whole_wait();
        let with = (&gathered.board_reads, &gathered.memory, &gathered.noted);
        let reading = read(&gathered.ports, with, &job, &asked, patience).await;
        Ok(Arc::new(gathered.kept_boards.or_kept(key, reading)?))
    };
    api.gathered_boards.read(key, read).await
}

/// The board of the one key that was asked for.
pub(super) fn first(reading: &BoardsReading) -> &BoardReading {
    static NOTHING: LazyLock<BoardReading> = LazyLock::new(BoardReading::default);
    reading.boards.first().unwrap_or(&NOTHING)
}

/// Asks how many rows the boards of some keys have, of everybody and all time.
pub(super) fn sums_of(job: &Job<Board>, keys: Vec<i64>) -> BoardQuestion {
    BoardQuestion {
        keys,
        section: section(job, Named::Overall, Window::All, Date::default()),
        members: None,
        want: BoardWant::Sums,
        explains: false,
    }
}

/// The parameters that say which rows of which board.
pub(super) fn known(job: &Job<Board>) -> Vec<&'static str> {
    let mut known = vec!["club_id", "following"];
    if has_sections(job) {
        known.extend(["board", "window", "date"]);
    }
    known
}

pub(super) fn today(api: &Api) -> Date {
    api.now().to_zoned(TimeZone::UTC).date()
}

/// The rows of which board are asked for. A cursor is bound to it: it holds the period, which the day
/// of the request may have decided.
#[derive(Debug)]
pub(super) struct Asked {
    key: i64,
    section: Section,
    club: Option<i64>,
    follower: Option<i64>,
}

impl Asked {
    pub(super) fn read(
        job: &Job<Board>,
        key: &str,
        params: &Params,
        today: Date,
    ) -> Result<Self, Problem> {
        let column = job.key().0.first();
        let key = id(column.map_or("key", |column| &column.name), key)?;
        let named = named(params.get("board").unwrap_or("overall")).map_err(Problem::parameter)?;
        let window = window(params.get("window").unwrap_or("all")).map_err(Problem::parameter)?;
        let date = params.parsed("date", date)?.unwrap_or(today);
        Ok(Self {
            key,
            section: section(job, named, window, date),
            club: params.parsed("club_id", id)?,
            follower: params.parsed("following", id)?,
        })
    }

    pub(super) async fn question(
        self,
        api: &Arc<Api>,
        want: BoardWant,
    ) -> Result<BoardQuestion, Problem> {
        Ok(BoardQuestion {
            keys: vec![self.key],
            members: members(api, self.club, self.follower).await?,
            section: self.section,
            want,
            explains: false,
        })
    }
}

/// Wants the row of a member, with so many before and after.
pub(super) fn around_member(
    job: &Job<Board>,
    member: i64,
    around: u64,
) -> Result<BoardWant, KeyError> {
    let member = job.member().encode_values(&[KeyValue::Int(member)])?;
    Ok(BoardWant::Around { member, around })
}

/// The members that a club or a following lets through; those that both do, if both are asked for.
pub(super) async fn members(
    api: &Arc<Api>,
    club: Option<i64>,
    follower: Option<i64>,
) -> Result<Option<Vec<i64>>, Problem> {
    let mut members: Option<Vec<i64>> = None;
    if let Some(club) = club {
        let members_of_club = gathered(api, (false, club)).await?;
        members = Some(members_of_club.to_vec());
    }
    if let Some(follower) = follower {
        let mut followed = gathered(api, (true, follower)).await?.to_vec();
        followed.push(follower);
        followed.sort_unstable();
        members = Some(match members {
            None => followed,
            Some(club) => {
                let both = |athlete: &i64| followed.binary_search(athlete).is_ok();
                club.into_iter().filter(both).collect()
            }
        });
    }
    if let Some(members) = &mut members {
        members.sort_unstable();
        members.dedup();
    }
    Ok(members)
}

/// The members of a club, or whom an athlete follows, read once for all who ask at the same time.
async fn gathered(api: &Arc<Api>, of: (bool, i64)) -> Result<Arc<[i64]>, Problem> {
    let (is_following, id) = of;
    let key = u128::from(is_following) << 64 | u128::from(id.cast_unsigned());
    let canon = Arc::clone(&api.ports.canon);
    let read = async move {
        let members = if is_following {
            canon.followed_by(id).await
        } else {
            canon.club_members(id).await
        };
        Ok(members?.into())
    };
    api.gathered_members.read(key, read).await
}

/// A date of a parameter.
pub(super) fn date(name: &str, text: &str) -> Result<Date, Problem> {
    let wrong = || {
        Problem::parameter(format!(
            "{name}={text:?} is not a date such as 2026-11-21, in the years 1 to 9999"
        ))
    };
    let plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    let date: Date = plain
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(wrong)?;
    (date.year() > 0).then_some(date).ok_or_else(wrong)
}

/// An id of a path or a parameter.
pub(super) fn id(name: &str, text: &str) -> Result<i64, Problem> {
    integer(text).ok_or_else(|| {
        Problem::parameter(format!(
            "{name}={text:?} is not a 64-bit integer such as 42"
        ))
    })
}

fn natural(name: &str, text: &str) -> Result<u64, Problem> {
    integer(text)
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| {
            Problem::parameter(format!(
                "{name}={text:?} is not a number from 0 to {}",
                i64::MAX
            ))
        })
}

#[cfg(test)]
#[path = "boards_tests.rs"]
mod tests;
