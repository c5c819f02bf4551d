//! The overview page: ingested events, live state, and the newest runs.

use askama::Template;
use axum::response::{IntoResponse, Redirect, Response};
use futures::future::try_join_all;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemas::time::Interval;

use super::api_error::ApiResult;
use super::client::ApiClient;
use super::components::{ExportLinks, PageContext, render_page};
use super::formatting::{Moment, format_elapsed, format_number, format_quantity};
use super::plays::{SeriesPart, Tile, build_series_part, build_total_tile};
use super::query::{Query, entity_path, path_with_query};
use super::{api, search};

const OVERVIEW_PATH: &str = "/api/v1/overview";
/// Lag in events above which a page marks it.
const LARGE_LAG: i64 = 10_000;
/// Periods of the totals of all plays, with titles.
const PERIODS: [(&str, &str); 3] = [
    ("today", "Plays today"),
    ("7d", "Plays in 7 days"),
    ("30d", "Plays in 30 days"),
];

#[derive(Debug, Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    context: PageContext,
    overview: ApiResult<api::Overview>,
    export: ExportLinks,
    /// Plays of all owners; `None` if the caller may not read them or no view counts them.
    plays: Option<ApiResult<PlaysPart>>,
}

#[derive(Debug)]
struct PlaysPart {
    tiles: Vec<Tile>,
    series: SeriesPart,
}

/// Title of a source.
pub(crate) fn source_title(source: &str) -> &'static str {
    match source {
        "plays" => "Plays",
        "efforts" => "Efforts on segments",
        "authorizations" => "Connected athletes",
        _ => "Other source",
    }
}

/// Formats a count that may be a lower bound.
pub(crate) fn format_count(count: Option<u64>, is_lower_bound: bool) -> String {
    let prefix = if is_lower_bound { "≥ " } else { "" };
    count.map_or_else(
        || "–".to_owned(),
        |count| format!("{prefix}{}", format_number(count)),
    )
}

/// Formats the drift that a run found. Also returns whether it is not 0.
pub(crate) fn format_drift(drift: &serde_json::Value) -> (String, bool) {
    let total = drift.get("total").and_then(serde_json::Value::as_u64);
    let is_lower_bound = drift.get("is_lower_bound") == Some(&true.into());
    match total {
        Some(0) if !is_lower_bound => ("No drift".to_owned(), false),
        _ => (format_count(total, is_lower_bound), total > Some(0)),
    }
}

/// Formats the lag of a source. Also returns whether it is large.
pub(crate) fn format_lag(partitions: &[api::PartitionOverview]) -> (String, bool) {
    let lags: Option<Vec<i64>> = partitions.iter().map(|partition| partition.lag).collect();
    match lags {
        None => ("–".to_owned(), false),
        Some(lags) => {
            let lag: i64 = lags.into_iter().sum();
            (format_number(lag), lag > LARGE_LAG)
        }
    }
}

/// Time up to which events are counted: that of the slowest partition.
fn counted_until(partitions: &[api::PartitionOverview], now: &str) -> Option<Moment> {
    let as_of =
        |partition: &api::PartitionOverview| partition.as_of.as_deref()?.parse::<Timestamp>().ok();
    let behind = partitions
        .iter()
        .filter(|partition| partition.lag > Some(0));
    let oldest = behind.filter_map(as_of).min();
    let time = oldest.or_else(|| partitions.iter().filter_map(as_of).max())?;
    Some(Moment::utc_near(time, now))
}

/// Status of a source's live state.
fn live_state_status(partitions: &[api::PartitionOverview]) -> &'static str {
    let is_missing = |partition: &api::PartitionOverview| partition.next_offset.is_none();
    let is_replaying = |partition: &api::PartitionOverview| partition.replaying == Some(true);
    if partitions.iter().any(is_missing) {
        "no live state yet: start the speed layer"
    } else if partitions.iter().any(is_replaying) {
        "live state is being rebuilt"
    } else {
        "live state is complete"
    }
}

fn format_partitions(partitions: &[api::PartitionOverview]) -> String {
    format_quantity(partitions.len() as u64, "partition")
}

fn format_log_end(partitions: &[api::PartitionOverview]) -> String {
    let ends = partitions
        .iter()
        .map(|partition| i128::from(partition.log_end));
    format_number(ends.sum::<i128>())
}

/// Describes a run that a process executes.
pub(crate) fn describe_progress(run: &api::RunResponse) -> Option<String> {
    let activity = match run.state.as_str() {
        "proposed" => "starting",
        _ => "publishing",
    };
    Some(format!(
        "{activity}, {}",
        format_elapsed(run.running_seconds?)
    ))
}

/// The newest run, if it is not published. Also returns whether it needs attention.
fn describe_newest_run(runs: &[api::RunResponse]) -> Option<(String, bool)> {
    let run = runs.first()?;
    let epoch = format_number(run.epoch);
    if let Some(progress) = describe_progress(run) {
        return Some((format!("Run {epoch} is {progress}"), false));
    }
    let reason = run.reason.as_ref()?;
    let to_do = run.to_do.as_deref().map(|to_do| format!("; {to_do}"));
    let to_do = to_do.unwrap_or_default();
    Some((format!("Run {epoch}: {reason}{to_do}"), true))
}

/// API path of statistics of all plays.
fn plays_path(endpoint: &str, additional: &[(&str, Option<&str>)]) -> String {
    let mut parameters = vec![("kind", Some("play"))];
    parameters.extend(additional);
    path_with_query(&format!("/api/v1/stats/plays/{endpoint}"), &parameters)
}

async fn read_plays(client: &ApiClient) -> Option<ApiResult<PlaysPart>> {
    if !client.caller.may_read_all() {
        return None;
    }
    let compare = ("compare", Some("previous"));
    let totals = PERIODS.map(|(period, title)| async move {
        let api_path = plays_path("total", &[("period", Some(period)), compare]);
        let total = client.get::<api::Total>(&api_path).await?;
        let export = client.export_links(&api_path, false);
        Ok(build_total_tile(title, Ok(total), export))
    });
    let api_path = plays_path(
        "series",
        &[("period", Some("30d")), ("interval", Some("day"))],
    );
    let series = client.get::<api::Series>(&api_path);
    let (tiles, series) = match tokio::try_join!(try_join_all(totals), series) {
        Ok(plays) => plays,
        // No view counts plays: each installation defines its views.
        Err(error) if matches!(error.status, 400 | 404) => return None,
        Err(error) => return Some(Err(error)),
    };
    let export = client.export_links(&api_path, false);
    let series = build_series_part(&series, Interval::Day, &TimeZone::UTC, export);
    Some(Ok(PlaysPart { tiles, series }))
}

pub(super) async fn page(client: ApiClient) -> Response {
    // Callers who may read only some owners see no totals of all owners.
    let owner = client.caller.only_owner();
    if let Some(owner) = owner.filter(|owner| crate::http::parse_integer(owner).is_some()) {
        return Redirect::to(&entity_path("owner", owner)).into_response();
    }
    if !client.caller.may_read_all() {
        return search::list_permitted_owners(&client, Query::default()).await;
    }
    let (overview, plays) = tokio::join!(
        client.get::<api::Overview>(OVERVIEW_PATH),
        read_plays(&client)
    );
    let page = OverviewPage {
        context: PageContext::new("Overview", "overview", &client.caller).follow_all(),
        overview,
        export: client.export_links(OVERVIEW_PATH, false),
        plays,
    };
    render_page(&page, page.overview.as_ref().err())
}
