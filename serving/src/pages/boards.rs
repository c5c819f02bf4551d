//! The leaderboards of a segment, with the place of an athlete whom somebody looks for.

use askama::Template;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use stores::names::Named;

use super::api;
use super::ask::{Answer, ApiClient, ApiError, Called, path};
use super::parts::{Choice, Frame, From, Moved, Places, Tools, about, choices, moved, places};
use super::query::Query;
use super::shown::{self, duration, number};

const BOARDS: [(&str, &str); 21] = [
    ("overall", "Overall"),
    ("gender:F", "Women"),
    ("gender:M", "Men"),
    ("gender:X", "Another gender"),
    ("age:0-19", "Age 0 to 19"),
    ("age:20-24", "Age 20 to 24"),
    ("age:25-34", "Age 25 to 34"),
    ("age:35-44", "Age 35 to 44"),
    ("age:45-54", "Age 45 to 54"),
    ("age:55-64", "Age 55 to 64"),
    ("age:65-69", "Age 65 to 69"),
    ("age:70-74", "Age 70 to 74"),
    ("age:75+", "Age 75 and older"),
    ("weight:0-54", "To 54 kg"),
    ("weight:55-64", "55 to 64 kg"),
    ("weight:65-74", "65 to 74 kg"),
    ("weight:75-84", "75 to 84 kg"),
    ("weight:85-94", "85 to 94 kg"),
    ("weight:95-104", "95 to 104 kg"),
    ("weight:105-114", "105 to 114 kg"),
    ("weight:115+", "From 115 kg"),
];
const WINDOWS: [(&str, &str); 4] = [
    ("all", "All time"),
    ("year", "The year"),
    ("month", "The month"),
    ("day", "The day"),
];
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
pub(crate) struct BoardPage {
    frame: Frame,
    segment: String,
    /// What the segment is called, if it is.
    name: Option<String>,
    heading: String,
    counts: Answer<api::Counts>,
    counts_tools: Tools,
    boards: Vec<Choice>,
    windows: Vec<Choice>,
    date: String,
    club: String,
    following: String,
    athlete: String,
    place: Option<Answer<PlaceShown>>,
    board_title: String,
    page: Answer<PageShown>,
}

about!(BoardPage, page);

#[derive(Debug)]
struct PlaceShown {
    athlete: i64,
    name: String,
    rank: String,
    total: String,
    percentile: Option<String>,
    time: String,
    gap: String,
    ahead: Option<String>,
    moved: Moved,
    since: Option<String>,
    neighbours: Places,
    from: From,
    tools: Tools,
}

#[derive(Debug)]
struct PageShown {
    total: String,
    places: Places,
    back: Option<String>,
    more: Option<String>,
    from: From,
    tools: Tools,
}

/// What an athlete is called.
fn person(called: &Called, id: i64) -> String {
    let name = called.get(id).map(str::to_owned);
    name.unwrap_or_else(|| format!("Athlete {id}"))
}

fn place(
    found: api::BoardPlace,
    (called, link): (&Called, impl Fn(i64) -> String),
    (since, tools): (Option<String>, Tools),
) -> PlaceShown {
    let since = since.or_else(|| {
        found
            .previous
            .as_ref()
            .map(|before| before.date.to_string())
    });
    let moved = since.as_ref().map(|_| moved(found.change));
    let own = found.entry.athlete_id;
    PlaceShown {
        athlete: own,
        name: person(called, own),
        rank: number(found.entry.rank),
        total: number(found.total),
        percentile: found
            .percentile
            .map(|percentile| format!("{percentile:.1}")),
        time: duration(found.entry.elapsed_time),
        gap: found.gap.as_ref().map_or_else(
            || "first".to_owned(),
            |gap| format!("{} s", number(gap.elapsed_time)),
        ),
        ahead: found.gap.as_ref().map(|gap| person(called, gap.athlete_id)),
        moved: moved.unwrap_or_else(Moved::unknown),
        since: found
            .previous
            .as_ref()
            .map(|before| format!("{} on {}", number(before.rank), before.date)),
        neighbours: places(&found.neighbours, (Some(own), since), (called, link)),
        from: From::of(&found.provenance),
        tools,
    }
}

fn page_shown(
    page: &api::BoardPage,
    places: Places,
    tools: Tools,
    (is_first, at): (bool, impl Fn(Option<u64>, Option<&str>) -> String),
) -> PageShown {
    // A page that begins after a row may begin at any place.
    let first = page
        .entries
        .first()
        .map(|entry| entry.rank.saturating_sub(1));
    let first = first.unwrap_or(page.total);
    PageShown {
        total: number(page.total),
        places,
        back: (!is_first && first > 0).then(|| at(first.checked_sub(LIMIT), None)),
        more: page.cursor.as_deref().map(|next| at(None, Some(next))),
        from: From::of(&page.provenance),
        tools,
    }
}

/// What a board is called, with its window.
fn board_title(board: &str, window: &str) -> String {
    let title = BOARDS.iter().find(|(name, _)| *name == board);
    format!("{}{window}", title.map_or(board, |(_, title)| *title))
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

fn board_frame(heading: String, client: &ApiClient) -> Frame {
    Frame::new(heading, "boards", &client.caller)
        .following("efforts")
        .of_kind("segment")
        .with_keys(&[("b", "board"), ("w", "window"), ("f", "find an athlete")])
}

/// The day that links to further pages name, so that they show the same day's board after midnight, too.
fn board_date(query: &Query, window: &str, now: Timestamp) -> Option<String> {
    match query.get("date") {
        None if window != "all" => Some(now.to_zoned(TimeZone::UTC).date().to_string()),
        date => date.map(str::to_owned),
    }
}

/// Links to the page that begins at an offset or after a cursor.
fn page_links(
    query: &Query,
    this: &str,
    date: Option<String>,
) -> impl Fn(Option<u64>, Option<&str>) -> String {
    move |offset, cursor| {
        let offset = offset.map(|offset| offset.to_string());
        let begin = [
            ("offset", offset.as_deref()),
            ("cursor", cursor),
            ("date", date.as_deref()),
        ];
        query.with(this, &begin)
    }
}

pub(crate) async fn page(client: &ApiClient, segment: &str, query: &Query) -> BoardPage {
    let board = query.get("board").unwrap_or("overall");
    let window = query.get("window").unwrap_or("all");
    let offset: u64 = query
        .get("offset")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let athlete = looked_for(client, query).await;
    let known = athlete.as_ref().ok().and_then(Option::as_deref);
    let (mut page_path, place_path) = paths(segment, query, offset, known);
    let counts_path = format!("/api/v1/segments/{segment}/counts");
    let found = async {
        match &place_path {
            Some(path) => Some(client.get::<api::BoardPlace>(path).await),
            None => None,
        }
    };
    let (page, found, counts) = tokio::join!(
        board_page(client, &mut page_path),
        found,
        client.get::<api::Counts>(&counts_path)
    );
    let found_place = found.as_ref().and_then(|found| found.as_ref().ok());
    let (called, name) = names(client, segment, page.as_ref().ok(), found_place).await;
    let this = format!("/segments/{segment}");
    let link = |athlete: i64| query.with(&this, &[("athlete", Some(&athlete.to_string()))]);
    let is_first = offset == 0 && query.get("cursor").is_none();
    let at = page_links(query, &this, board_date(query, window, client.now()));
    let own = known.and_then(|athlete| athlete.parse().ok());
    let tools = client.tools(&page_path, true);
    let before = page.as_ref().ok().and_then(|page| page.previous.as_ref());
    let since = before.map(|before| before.date.to_string());
    let page = page.map(|page| {
        let places = places(&page.entries, (own, since.clone()), (&called, link));
        page_shown(&page, places, tools, (is_first, at))
    });
    let place = match (athlete, found.zip(place_path)) {
        (Err(error), _) => Some(Err(error)),
        (Ok(_), None) => None,
        (Ok(_), Some((found, path))) => {
            let tools = client.tools(&path, false);
            Some(found.map(|found| place(found, (&called, link), (since, tools))))
        }
    };
    let heading = name.clone().unwrap_or_else(|| format!("Segment {segment}"));
    let text = |name: &str| query.get(name).unwrap_or_default().to_owned();
    BoardPage {
        frame: board_frame(heading.clone(), client),
        segment: segment.to_owned(),
        name,
        heading,
        counts,
        counts_tools: client.tools(&counts_path, false),
        boards: choices(&BOARDS, board),
        windows: choices(&WINDOWS, window),
        date: text("date"),
        club: text("club_id"),
        following: text("following"),
        athlete: text("athlete"),
        place,
        board_title: board_title(
            board,
            &window_title(window, query.get("date"), client.now()),
        ),
        page,
    }
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
