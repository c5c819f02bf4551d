//! The page of a segment: its leaderboards, and the rank of a requested athlete.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use stores::names::NamedKind;

use super::api;
use super::api_error::{ApiError, ApiResult};
use super::client::{ApiClient, EntityNames};
use super::components::{
    Choice, ExportLinks, PageContext, ProvenanceLabel, build_choices, render_page,
};
use super::extractors::Number;
use super::formatting::{Moment, format_effort_time, format_number, format_quantity};
use super::query::{Query, path_with_query};
use crate::board::divisions::{DIVISIONS, WINDOWS};

/// Maximum names listed if several athletes match.
const NAMES_MAX: usize = 10;
/// Entries per page.
const ENTRIES_PER_PAGE: u64 = 50;
/// Requests the ranks of an earlier day.
const WITH_HISTORY: (&str, Option<&str>) = ("history", Some("true"));
/// Parameters that select the board.
const BOARD_PARAMETERS: [&str; 5] = ["board", "window", "date", "club_id", "following"];

#[derive(Debug, Template)]
#[template(path = "board.html")]
struct BoardPage {
    context: PageContext,
    segment: String,
    /// The segment's name, if known.
    name: Option<String>,
    heading: String,
    query: Query,
    counts: ApiResult<api::Counts>,
    counts_export: ExportLinks,
    boards: Vec<Choice>,
    windows: Vec<Choice>,
    /// Number of the requested athlete.
    athlete: Option<i64>,
    rank: Option<ApiResult<api::SegmentRank>>,
    rank_export: ExportLinks,
    board_title: String,
    page: ApiResult<api::BoardPage>,
    export: ExportLinks,
    /// True if the page begins with rank 1.
    is_first: bool,
    /// Date of the board, for links to further pages.
    date: Option<String>,
    /// Names of athletes.
    names: EntityNames,
}

impl BoardPage {
    /// Name of an athlete, or its number.
    fn athlete_name(&self, id: i64) -> String {
        let name = self.names.get(id).map(str::to_owned);
        name.unwrap_or_else(|| format!("Athlete {id}"))
    }

    /// Time behind the next athlete.
    fn gap_text(&self, gap: &api::GapShape) -> String {
        format_gap(gap.elapsed_time, &self.athlete_name(gap.athlete_id))
    }

    /// URL of this page with changed parameters.
    fn url_with(&self, changes: &[(&str, Option<&str>)]) -> String {
        let page_url = format!("/segments/{}", self.segment);
        self.query.link_with(&page_url, changes)
    }

    /// URL of this page with an athlete's rank.
    fn athlete_url(&self, id: i64) -> String {
        self.url_with(&[("athlete", Some(&id.to_string()))])
    }

    /// URL of the page that begins at an offset or after a cursor.
    fn url_at(&self, offset: Option<u64>, cursor: Option<&str>) -> String {
        let offset = offset.map(|offset| offset.to_string());
        let changes = [
            ("offset", offset.as_deref()),
            ("cursor", cursor),
            ("date", self.date.as_deref()),
        ];
        self.url_with(&changes)
    }

    /// URL of the next page.
    fn next_url(&self, cursor: &str) -> String {
        self.url_at(None, Some(cursor))
    }

    /// URL of the previous page, if there is one.
    fn previous_url(&self, page: &api::BoardPage) -> Option<String> {
        // A page that begins after a cursor may begin at any rank.
        let first = page.entries.first();
        let first = first.map_or(page.total, |entry| entry.rank.saturating_sub(1));
        (!self.is_first && first > 0)
            .then(|| self.url_at(first.checked_sub(ENTRIES_PER_PAGE), None))
    }

    /// The earlier day that ranks are compared with.
    fn compared_date(&self) -> Option<Date> {
        let page = self.page.as_ref().ok()?;
        page.previous.as_ref().map(|previous| previous.date)
    }

    /// The earlier day that an athlete's rank is compared with.
    fn rank_compared_date(&self, rank: &api::SegmentRank) -> Option<Date> {
        let previous = rank.previous.as_ref();
        self.compared_date()
            .or(previous.map(|previous| previous.date))
    }
}

/// Formats the time behind the first of `entries`.
fn format_time_behind(entries: &[api::EntryShape], entry: &api::EntryShape) -> String {
    let first = entries.first().map_or(0, |first| first.elapsed_time);
    match entry.elapsed_time.saturating_sub(first) {
        0 => "–".to_owned(),
        behind => format!("+{}", format_effort_time(behind)),
    }
}

/// Formats the time behind the next athlete.
fn format_gap(gap_s: i64, name: &str) -> String {
    match gap_s {
        0 => format!("Level with {name}"),
        1..60 => format!("{gap_s} s behind {name}"),
        _ => format!("{} behind {name}", format_effort_time(gap_s)),
    }
}

/// Change of a rank since an earlier day.
#[derive(Debug, Clone, Template)]
#[template(path = "rank_change.html")]
struct RankChange {
    /// `up` or `down`, also the CSS class.
    direction: Option<&'static str>,
    text: String,
}

impl RankChange {
    /// Formats a change; `None` means that there was no earlier rank.
    fn new(change: Option<i64>) -> Self {
        let (direction, text) = match change {
            None => (None, "new".to_owned()),
            Some(0) => (None, "unchanged".to_owned()),
            Some(change) if change > 0 => (Some("up"), format_number(change)),
            Some(change) => (Some("down"), format_number(change.saturating_neg())),
        };
        Self { direction, text }
    }
}

/// Formats the title of a board and its window.
fn format_board_title(board: &str, window: &str) -> String {
    let division = DIVISIONS.iter().find(|(name, ..)| *name == board);
    format!("{}{window}", division.map_or(board, |(_, title, _)| *title))
}

/// Formats the suffix for the title of a board: its year, month or day.
fn format_window_title(window: &str, date: Option<&str>, now: Timestamp) -> String {
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

/// Reads the names of the page's athletes and of the segment, if the caller may read the page.
async fn read_names(
    client: &ApiClient,
    segment: &str,
    page: Option<&api::BoardPage>,
    rank: Option<&api::SegmentRank>,
) -> (EntityNames, Option<String>) {
    let entries = page.iter().flat_map(|page| &page.entries);
    let mut ids: Vec<i64> = entries.map(|entry| entry.athlete_id).collect();
    if let Some(rank) = rank {
        ids.push(rank.entry.athlete_id);
        ids.extend(rank.gap.iter().map(|gap| gap.athlete_id));
        ids.extend(rank.neighbours.iter().map(|entry| entry.athlete_id));
    }
    let id = page.and_then(|_| crate::http::parse_integer(segment));
    let (athletes, segments) = tokio::join!(
        client.fetch_names(NamedKind::Athlete, ids),
        client.fetch_names(NamedKind::Segment, id)
    );
    let name = id.and_then(|id| segments.get(id).map(str::to_owned));
    (athletes, name)
}

/// Builds the API paths of the board page and of the requested athlete's rank.
fn build_api_paths(
    segment: &str,
    query: &Query,
    offset: u64,
    athlete: Option<&str>,
) -> (String, Option<String>) {
    let board_parameters: Vec<(&str, Option<&str>)> = BOARD_PARAMETERS
        .iter()
        .map(|name| (*name, query.get(name)))
        .collect();
    let board_path = format!("/api/v1/boards/segments/{segment}");
    let (limit, offset_text) = (ENTRIES_PER_PAGE.to_string(), offset.to_string());
    let mut page_parameters = board_parameters.clone();
    page_parameters.push(("limit", Some(&limit)));
    page_parameters.push(match query.get("cursor") {
        Some(cursor) => ("cursor", Some(cursor)),
        None => ("offset", (offset > 0).then_some(offset_text.as_str())),
    });
    let mut rank_parameters = board_parameters;
    rank_parameters.extend([("around", Some("5")), WITH_HISTORY]);
    let rank = |athlete| {
        path_with_query(
            &format!("{board_path}/athletes/{athlete}"),
            &rank_parameters,
        )
    };
    (
        path_with_query(&board_path, &page_parameters),
        athlete.map(rank),
    )
}

/// Reads a board page, with earlier ranks if they are available; `path` becomes the path that was
/// used.
async fn read_board_page(client: &ApiClient, path: &mut String) -> ApiResult<api::BoardPage> {
    let with_history = format!("{path}&history=true");
    match client.get(&with_history).await {
        Err(error) if error.status >= 500 => client.get(path).await,
        result => {
            *path = with_history;
            result
        }
    }
}

/// Resolves the requested athlete, by number or by a part of the name.
async fn find_athlete(client: &ApiClient, query: &Query) -> ApiResult<Option<String>> {
    let text = query.get("athlete").map(str::trim).unwrap_or_default();
    if text.is_empty() || crate::http::parse_integer(text).is_some() {
        return Ok(Some(text.to_owned()).filter(|text| !text.is_empty()));
    }
    let not_found = |title: &str, detail: String| Err(ApiError::new(404, title, detail));
    if !client.caller.may_read_all() || text.contains(char::is_control) {
        return not_found("No athlete found", "Enter the athlete's number.".to_owned());
    }
    let matches = client
        .find_names(NamedKind::Athlete, text, NAMES_MAX)
        .await?;
    match matches.as_slice() {
        [] => not_found(
            "No athlete found",
            "Enter another part of the name, or the number.".to_owned(),
        ),
        [(id, _)] => Ok(Some(id.to_string())),
        several => {
            let names = several.iter().map(|(id, name)| format!("{name} ({id})"));
            not_found(
                "Several athletes found",
                format!(
                    "Enter the number of one of them: {}.",
                    names.collect::<Vec<_>>().join(", ")
                ),
            )
        }
    }
}

/// Date for links to further pages, so that they show the same board after midnight.
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
    let offset: u64 = query.get_or_empty("offset").parse().unwrap_or(0);
    let athlete = find_athlete(client, &query).await;
    let athlete_number = athlete.as_ref().ok().and_then(Option::as_deref);
    let (mut page_path, rank_path) = build_api_paths(&segment, &query, offset, athlete_number);
    let counts_path = format!("/api/v1/segments/{segment}/counts");
    let rank = async {
        match (&athlete, &rank_path) {
            (Err(error), _) => Some(Err(error.clone())),
            (Ok(_), Some(path)) => Some(client.get::<api::SegmentRank>(path).await),
            (Ok(_), None) => None,
        }
    };
    let (page, rank, counts) = tokio::join!(
        read_board_page(client, &mut page_path),
        rank,
        client.get::<api::Counts>(&counts_path)
    );
    let found_rank = rank.as_ref().and_then(|rank| rank.as_ref().ok());
    let (names, name) = read_names(client, &segment, page.as_ref().ok(), found_rank).await;
    let heading = name.clone().unwrap_or_else(|| format!("Segment {segment}"));
    let context = PageContext::new(heading.clone(), "boards", &client.caller)
        .follow("efforts")
        .with_kind("segment")
        .with_shortcuts(&[("b", "board"), ("w", "window"), ("f", "find an athlete")]);
    let window_title = format_window_title(window, query.get("date"), now);
    let page = BoardPage {
        context,
        segment,
        name,
        heading,
        counts,
        counts_export: client.export_links(&counts_path, false),
        boards: build_choices(&DIVISIONS.map(|(name, title, _)| (name, title)), board),
        windows: build_choices(&WINDOWS.map(|(name, title, _)| (name, title)), window),
        athlete: athlete_number.and_then(|athlete| athlete.parse().ok()),
        rank,
        rank_export: client.export_links(&rank_path.unwrap_or_default(), false),
        board_title: format_board_title(board, &window_title),
        page,
        export: client.export_links(&page_path, true),
        is_first: offset == 0 && query.get("cursor").is_none(),
        date: board_date(&query, window, now),
        names,
        query,
    };
    render_page(&page, page.page.as_ref().err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_name_the_next_athlete() {
        for (gap_s, text) in [
            (0, "Level with Athlete 163"),
            (12, "12 s behind Athlete 163"),
            (125, "2:05 behind Athlete 163"),
        ] {
            assert_eq!(format_gap(gap_s, "Athlete 163"), text);
        }
    }

    #[test]
    fn titles_contain_the_window() {
        let now: Timestamp = "2026-11-28T23:59:00Z".parse().unwrap();
        for (window, date, title) in [
            ("all", Some("2025-03-01"), ""),
            ("year", None, ", 2026"),
            ("month", Some("2025-03-01"), ", March 2025"),
            ("day", None, ", 28 November 2026"),
            ("day", Some("tomorrow"), ""),
        ] {
            assert_eq!(format_window_title(window, date, now), title);
        }
    }
}
