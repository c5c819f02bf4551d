//! The first page: what comes in, what is counted, what the newest runs found.

use askama::Template;
use axum::response::{IntoResponse, Redirect, Response};
use futures::future::try_join_all;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::time::Interval;

use super::ask::{Answer, ApiClient, path};
use super::parts::{Frame, Tools, answered};
use super::plays::{SeriesShown, Tile, series_shown, total_tile};
use super::query::Query;
use super::shown::{Moment, number};
use super::{api, found};

const PATH: &str = "/api/v1/overview";
/// How long the totals of all plays are, with what they are called.
const PERIODS: [(&str, &str); 3] = [
    ("today", "Plays today"),
    ("7d", "Plays in 7 days"),
    ("30d", "Plays in 30 days"),
];

#[derive(Debug, Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    overview: Answer<api::Overview>,
    tools: Tools,
    /// All plays together; nothing for who does not read them, and where they are not counted.
    plays: Option<Answer<PlaysShown>>,
}

#[derive(Debug)]
struct PlaysShown {
    tiles: Vec<Tile>,
    series: SeriesShown,
}

/// What a source is called.
pub(crate) fn title(source: &str) -> &'static str {
    match source {
        "plays" => "Plays",
        "efforts" => "Efforts on segments",
        "authorizations" => "Connected athletes",
        _ => "Another source",
    }
}

/// A count, which may be a lower bound.
pub(crate) fn or_least(count: Option<u64>, is_least: bool) -> String {
    let least = if is_least { "≥ " } else { "" };
    count.map_or_else(
        || "–".to_owned(),
        |count| format!("{least}{}", number(count)),
    )
}

/// The drift that a run found, and whether there is any.
pub(crate) fn drift(of: &serde_json::Value) -> (String, bool) {
    let total = of.get("total").and_then(serde_json::Value::as_u64);
    let is_least = of.get("is_lower_bound") == Some(&true.into());
    (or_least(total, is_least), total > Some(0))
}

/// How far events of a source are counted.
pub(crate) fn lag(partitions: &[api::PartitionShown]) -> (String, bool) {
    let known: Option<Vec<i64>> = partitions.iter().map(|one| one.lag).collect();
    match known {
        None => ("–".to_owned(), false),
        Some(lags) => {
            let lag: i64 = lags.into_iter().sum();
            (number(lag), lag > 10_000)
        }
    }
}

/// Up to when events are counted: where some partitions are behind, so is the whole.
fn counted_to(partitions: &[api::PartitionShown]) -> Option<Moment> {
    let at = |one: &api::PartitionShown| one.as_of.as_deref()?.parse::<Timestamp>().ok();
    let behind = partitions.iter().filter(|one| one.lag > Some(0));
    let oldest = behind.filter_map(at).min();
    let at = oldest.or_else(|| partitions.iter().filter_map(at).max())?;
    Some(Moment::utc(&at.to_string()))
}

/// The state of a source's live state.
fn state(partitions: &[api::PartitionShown]) -> &'static str {
    let is_missing = |one: &api::PartitionShown| one.next_offset.is_none();
    let is_replaying = |one: &api::PartitionShown| one.replaying == Some(true);
    if partitions.iter().any(is_missing) {
        "no live state yet: start the speed layer"
    } else if partitions.iter().any(is_replaying) {
        "live state began anew and is catching up"
    } else {
        "live state is whole"
    }
}

fn log_end(partitions: &[api::PartitionShown]) -> String {
    let ends = partitions.iter().map(|one| i128::from(one.log_end));
    number(ends.sum::<i128>())
}

/// Why the newest run is not published, and what to do.
fn trouble(runs: &[api::RunShown]) -> Option<String> {
    let run = runs.first()?;
    let reason = run.reason.as_ref()?;
    let to_do = run.to_do.as_deref().map(|to_do| format!("; {to_do}"));
    let to_do = to_do.unwrap_or_default();
    Some(format!("Run {}: {reason}{to_do}", run.epoch))
}

/// A path of the API that asks of all plays.
fn of_plays(what: &str, more: &[(&str, Option<&str>)]) -> String {
    let mut parameters = vec![("kind", Some("play"))];
    parameters.extend(more);
    path(&format!("/api/v1/stats/plays/{what}"), &parameters)
}

async fn plays(client: &ApiClient) -> Option<Answer<PlaysShown>> {
    if !client.caller.may_read_all() {
        return None;
    }
    let compare = ("compare", Some("previous"));
    let totals = PERIODS.map(|(period, title)| async move {
        let asked = of_plays("total", &[("period", Some(period)), compare]);
        let total = client.get::<api::Total>(&asked).await?;
        let tools = client.tools(&asked, false);
        Ok(total_tile(title, Ok(total), tools))
    });
    let asked = of_plays(
        "series",
        &[("period", Some("30d")), ("interval", Some("day"))],
    );
    let series = client.get::<api::Series>(&asked);
    let (tiles, series) = match tokio::try_join!(try_join_all(totals), series) {
        Ok(plays) => plays,
        // No view counts them: views are the installation's own.
        Err(error) if matches!(error.status, 400 | 404) => return None,
        Err(error) => return Some(Err(error)),
    };
    let tools = client.tools(&asked, false);
    let series = series_shown(&series, (Interval::Day, &TimeZone::UTC), tools);
    Some(Ok(PlaysShown { tiles, series }))
}

pub(super) async fn page(client: ApiClient) -> Response {
    // Who reads of some owners alone sees nothing of all.
    let owner = client.caller.only_owner();
    if let Some(owner) = owner.filter(|owner| crate::http::integer(owner).is_some()) {
        return Redirect::to(&found::page_of("owner", owner)).into_response();
    }
    if !client.caller.may_read_all() {
        return found::own(&client, Query::default()).await;
    }
    let (overview, plays) = tokio::join!(client.get::<api::Overview>(PATH), plays(&client));
    let page = OverviewPage {
        frame: Frame::new("Overview", "overview", &client.caller).following_all(),
        overview,
        tools: client.tools(PATH, false),
        plays,
    };
    answered(&page, page.overview.as_ref().err())
}
