//! The leaderboards of a segment, with the place of an athlete whom somebody looks for.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use stores::names::Named;

use super::ask::{Answer, ApiClient, ApiError, Called, path};
use super::parts::{Choice, Frame, From, Tools, answered, choices};
use super::query::Query;
use super::shown::{self, Moment, duration, number};
use super::{Number, api};
use crate::board::question::{DIVISIONS, WINDOWS};

/// Names that are shown where several athletes are called so.
const NAMES_MAX: usize = 10;
/// Places of a page.
const LIMIT: u64 = 50;
/// Asks for places of an earlier day.
const HISTORY: (&str, Option<&str>) = ("history", Some("true"));
/// What decides which rows count.
const SHARED: [&str; 5] = ["board", "window", "date", "club_id", "following"];

#[derive(Debug, Template)]
#[template(path = "board.html")]
struct BoardPage {
    frame: Frame,
    segment: String,
    /// What the segment is called, if it is.
    name: Option<String>,
    heading: String,
    query: Query,
    counts: Answer<api::Counts>,
    counts_tools: Tools,
    boards: Vec<Choice>,
    windows: Vec<Choice>,
    /// The athlete whom somebody looks for, by number.
    athlete: Option<i64>,
    place: Option<Answer<api::BoardPlace>>,
    place_tools: Tools,
    board_title: String,
    page: Answer<api::BoardPage>,
    tools: Tools,
    /// Whether the page begins with the first place.
    is_first: bool,
    /// The day of the board, in links to further pages.
    date: Option<String>,
    /// Names of athletes.
    called: Called,
}

impl BoardPage {
    /// What an athlete is called.
    fn person(&self, id: i64) -> String {
        let name = self.called.get(id).map(str::to_owned);
        name.unwrap_or_else(|| format!("Athlete {id}"))
    }

    /// The address of this page with changes.
    fn with(&self, changes: &[(&str, Option<&str>)]) -> String {
        let this = format!("/segments/{}", self.segment);
        self.query.with(&this, changes)
    }

    /// This page with an athlete's place.
    fn of_athlete(&self, id: i64) -> String {
        self.with(&[("athlete", Some(&id.to_string()))])
    }

    /// The page that begins at an offset or after a cursor.
    fn at(&self, offset: Option<u64>, cursor: Option<&str>) -> String {
        let offset = offset.map(|offset| offset.to_string());
        let begin = [
            ("offset", offset.as_deref()),
            ("cursor", cursor),
            ("date", self.date.as_deref()),
        ];
        self.with(&begin)
    }

    /// The page after this one.
    fn after(&self, cursor: &str) -> String {
        self.at(None, Some(cursor))
    }

    /// The page before this one, if there is any.
    fn back(&self, page: &api::BoardPage) -> Option<String> {
        // A page that begins after a row may begin at any place.
        let first = page.entries.first();
        let first = first.map_or(page.total, |entry| entry.rank.saturating_sub(1));
        (!self.is_first && first > 0).then(|| self.at(first.checked_sub(LIMIT), None))
    }

    /// The earlier day with which places are compared.
    fn since(&self) -> Option<Date> {
        let page = self.page.as_ref().ok()?;
        page.previous.as_ref().map(|before| before.date)
    }

    /// The same for the place of an athlete.
    fn since_of(&self, place: &api::BoardPlace) -> Option<Date> {
        let before = place.previous.as_ref();
        self.since().or(before.map(|before| before.date))
    }
}

/// How far an entry is behind the first of some.
fn behind(entries: &[api::EntryShape], entry: &api::EntryShape) -> String {
    let first = entries.first().map_or(0, |first| first.elapsed_time);
    match entry.elapsed_time.saturating_sub(first) {
        0 => "–".to_owned(),
        behind => format!("+{}", duration(behind)),
    }
}

/// How a place has moved.
#[derive(Debug, Clone, Template)]
#[template(path = "moved.html")]
struct Moved {
    /// Also the class.
    way: Option<&'static str>,
    text: String,
}

impl Moved {
    /// How a place has moved since a day of which places are kept; there was none then if there is no change.
    fn of(change: Option<i64>) -> Self {
        let (way, text) = match change {
            None => (None, "new".to_owned()),
            Some(0) => (None, "unchanged".to_owned()),
            Some(up) if up > 0 => (Some("up"), number(up)),
            Some(down) => (Some("down"), number(down.saturating_neg())),
        };
        Self { way, text }
    }
}

/// What a board is called, with its window.
fn board_title(board: &str, window: &str) -> String {
    let division = DIVISIONS.iter().find(|(name, ..)| *name == board);
    format!("{}{window}", division.map_or(board, |(_, title, _)| *title))
}

/// Which year, month or day a board is of, as it is said after the board's name.
fn window_title(window: &str, date: Option<&str>, now: Timestamp) -> String {
    let today = now.to_zoned(TimeZone::UTC).date();
    let date = date.map_or(Some(today), |date| date.parse::<Date>().ok());
    let format = match window {
        "year" => "%Y",
        "month" => "%B %Y",
        "day" => "%-d %B %Y",
        _ => return String::new(),
    };
    date.map_or_else(String::new, |date| format!(", {}", date.strftime(format)))
}

/// What the athletes of a page are called, and the segment; nothing is told to who does not read the page.
async fn names(
    client: &ApiClient,
    segment: &str,
    page: Option<&api::BoardPage>,
    found: Option<&api::BoardPlace>,
) -> (Called, Option<String>) {
    let entries = page.iter().flat_map(|page| &page.entries);
    let mut ids: Vec<i64> = entries.map(|entry| entry.athlete_id).collect();
    if let Some(found) = found {
        ids.push(found.entry.athlete_id);
        ids.extend(found.gap.iter().map(|gap| gap.athlete_id));
        ids.extend(found.neighbours.iter().map(|entry| entry.athlete_id));
    }
    let id = page.and_then(|_| crate::http::integer(segment));
    let (athletes, segments) = tokio::join!(
        client.names(Named::Athlete, ids),
        client.names(Named::Segment, id)
    );
    let name = id.and_then(|id| segments.get(id).map(str::to_owned));
    (athletes, name)
}

/// What is asked of the API: a page of the board, and the place of an athlete whom somebody looks for.
fn paths(
    segment: &str,
    query: &Query,
    offset: u64,
    athlete: Option<&str>,
) -> (String, Option<String>) {
    let shared: Vec<(&str, Option<&str>)> =
        SHARED.iter().map(|name| (*name, query.get(name))).collect();
    let of_board = format!("/api/v1/boards/segments/{segment}");
    let (limit, from) = (LIMIT.to_string(), offset.to_string());
    let mut of_page = shared.clone();
    of_page.push(("limit", Some(&limit)));
    of_page.push(match query.get("cursor") {
        Some(cursor) => ("cursor", Some(cursor)),
        None => ("offset", (offset > 0).then_some(from.as_str())),
    });
    let mut of_place = shared;
    of_place.extend([("around", Some("5")), HISTORY]);
    let place = |athlete| path(&format!("{of_board}/athletes/{athlete}"), &of_place);
    (path(&of_board, &of_page), athlete.map(place))
}

/// A page of the board, with the places of an earlier day if these can be told; `path` is what was asked for then.
async fn board_page(client: &ApiClient, path: &mut String) -> Answer<api::BoardPage> {
    let with_history = format!("{path}&history=true");
    match client.get(&with_history).await {
        Err(error) if error.status >= 500 => client.get(path).await,
        answered => {
            *path = with_history;
            answered
        }
    }
}

/// The athlete whom somebody looks for, by number or by a part of the name.
async fn looked_for(client: &ApiClient, query: &Query) -> Answer<Option<String>> {
    let text = query.get("athlete").map(str::trim).unwrap_or_default();
    if text.is_empty() || crate::http::integer(text).is_some() {
        return Ok(Some(text.to_owned()).filter(|text| !text.is_empty()));
    }
    let none = |title: &str, detail: String| Err(ApiError::own(404, title, detail));
    if !client.caller.may_read_all() || text.contains(char::is_control) {
        return none(
            "No athlete is called so",
            "Write the athlete's number.".to_owned(),
        );
    }
    let found = client.find(Named::Athlete, text, NAMES_MAX).await?;
    match found.as_slice() {
        [] => none(
            "No athlete is called so",
            "Write another part of the name, or the number.".to_owned(),
        ),
        [(id, _)] => Ok(Some(id.to_string())),
        several => {
            let names = several.iter().map(|(id, name)| format!("{name} ({id})"));
            none(
                "Several athletes are called so",
                format!(
                    "Write the number of one: {}.",
                    names.collect::<Vec<_>>().join(", ")
                ),
            )
        }
    }
}

/// The day that links to further pages name, so that they show the same day's board after midnight, too.
fn board_date(query: &Query, window: &str, now: Timestamp) -> Option<String> {
    match query.get("date") {
        None if window != "all" => Some(now.to_zoned(TimeZone::UTC).date().to_string()),
        date => date.map(str::to_owned),
    }
}

pub(super) async fn page(client: ApiClient, Number(segment): Number, query: Query) -> Response {
    let (now, client) = (client.now(), &client);
    let board = query.get("board").unwrap_or("overall");
    let window = query.get("window").unwrap_or("all");
    let offset: u64 = query.text("offset").parse().unwrap_or(0);
    let athlete = looked_for(client, &query).await;
    let known = athlete.as_ref().ok().and_then(Option::as_deref);
    let (mut page_path, place_path) = paths(&segment, &query, offset, known);
    let counts_path = format!("/api/v1/segments/{segment}/counts");
    let place = async {
        match (&athlete, &place_path) {
            (Err(error), _) => Some(Err(error.clone())),
            (Ok(_), Some(path)) => Some(client.get::<api::BoardPlace>(path).await),
            (Ok(_), None) => None,
        }
    };
    let (page, place, counts) = tokio::join!(
        board_page(client, &mut page_path),
        place,
        client.get::<api::Counts>(&counts_path)
    );
    let found = place.as_ref().and_then(|place| place.as_ref().ok());
    let (called, name) = names(client, &segment, page.as_ref().ok(), found).await;
    let heading = name.clone().unwrap_or_else(|| format!("Segment {segment}"));
    let frame = Frame::new(heading.clone(), "boards", &client.caller)
        .following("efforts")
        .of_kind("segment")
        .with_keys(&[("b", "board"), ("w", "window"), ("f", "find an athlete")]);
    let window_title = window_title(window, query.get("date"), now);
    let page = BoardPage {
        frame,
        segment,
        name,
        heading,
        counts,
        counts_tools: client.tools(&counts_path, false),
        boards: choices(&DIVISIONS.map(|(name, title, _)| (name, title)), board),
        windows: choices(&WINDOWS.map(|(name, title, _)| (name, title)), window),
        athlete: known.and_then(|athlete| athlete.parse().ok()),
        place,
        place_tools: client.tools(&place_path.unwrap_or_default(), false),
        board_title: board_title(board, &window_title),
        page,
        tools: client.tools(&page_path, true),
        is_first: offset == 0 && query.get("cursor").is_none(),
        date: board_date(&query, window, now),
        called,
        query,
    };
    answered(&page, page.page.as_ref().err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_says_which_one_it_is() {
        let now: Timestamp = "2026-11-28T23:59:00Z".parse().unwrap();
        for (window, date, title) in [
            ("all", Some("2025-03-01"), ""),
            ("year", None, ", 2026"),
            ("month", Some("2025-03-01"), ", March 2025"),
            ("day", None, ", 28 November 2026"),
            ("day", Some("tomorrow"), ""),
        ] {
            assert_eq!(window_title(window, date, now), title);
        }
    }
}
