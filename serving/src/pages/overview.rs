//! The first page: what comes in, what is counted, what the newest runs found.

use askama::Template;
use futures::future::try_join_all;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::api;
use super::ask::{Answer, ApiClient, path};
use super::chart::Step;
use super::parts::{Frame, Tools, about};
use super::plays::{SeriesShown, Tile, series_shown, total_tile};
use super::shown::{Moment, number};

const PATH: &str = "/api/v1/overview";
/// How long the totals of all plays are, with what they are called.
const PERIODS: [(&str, &str); 3] = [
    ("today", "Plays today"),
    ("7d", "Plays in 7 days"),
    ("30d", "Plays in 30 days"),
];

#[derive(Debug, Template)]
#[template(path = "overview.html")]
pub(crate) struct OverviewPage {
    frame: Frame,
    overview: Answer<Shown>,
    tools: Tools,
    /// All plays together; nothing for who does not read them, and where they are not counted.
    plays: Option<Answer<PlaysShown>>,
}

about!(OverviewPage, overview);

#[derive(Debug)]
struct PlaysShown {
    tiles: Vec<Tile>,
    series: SeriesShown,
}

#[derive(Debug)]
struct Shown {
    now: Moment,
    sources: Vec<SourceShown>,
}

#[derive(Debug)]
struct SourceShown {
    name: &'static str,
    title: &'static str,
    log_end: String,
    partitions: usize,
    /// When the newest event was logged that is counted, of the partition that is behind farthest.
    counted_to: Option<Moment>,
    lag: String,
    is_behind: bool,
    state: String,
    run: String,
    run_at: Option<Moment>,
    drift: String,
    has_drift: bool,
    drift_told: &'static str,
    trouble: Option<String>,
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

impl SourceShown {
    fn of(source: &api::SourceShown) -> Self {
        let (lag, is_behind) = lag(&source.partitions);
        let is_replaying = source
            .partitions
            .iter()
            .any(|one| one.replaying == Some(true));
        let is_missing = source
            .partitions
            .iter()
            .any(|one| one.next_offset.is_none());
        let state = match (is_missing, is_replaying) {
            (true, _) => "no live state yet: start the speed layer",
            (_, true) => "live state began anew and is catching up",
            _ => "live state is whole",
        };
        let complete = source.newest_complete.as_ref();
        let (drift, has_drift) =
            complete.map_or(("–".to_owned(), false), |run| drift(&run.drift));
        let newest = source.runs.first();
        let trouble = newest.and_then(|run| {
            let reason = run.reason.as_ref()?;
            let to_do = run.to_do.as_deref().map(|to_do| format!("; {to_do}"));
            Some(format!(
                "Run {}: {reason}{}",
                run.epoch,
                to_do.unwrap_or_default()
            ))
        });
        let end = |one: &api::PartitionShown| i128::from(one.log_end);
        Self {
            name: source.source.name(),
            title: title(source.source.name()),
            log_end: number(source.partitions.iter().map(end).sum::<i128>()),
            partitions: source.partitions.len(),
            counted_to: counted_to(&source.partitions),
            lag,
            is_behind,
            state: state.to_owned(),
            run: complete.map_or_else(|| "–".to_owned(), |run| number(run.epoch)),
            run_at: complete
                .and_then(|run| run.ended_at.as_deref())
                .map(Moment::utc),
            drift,
            has_drift,
            drift_told: match (complete, has_drift) {
                (None, _) => "the first run will compare",
                (Some(_), false) => "nothing was counted live otherwise than the run did",
                (Some(_), true) => "events that were counted live otherwise than the run did",
            },
            trouble,
        }
    }
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
    let series = series_shown(&series, (Step::Day, &TimeZone::UTC), tools);
    Some(Ok(PlaysShown { tiles, series }))
}

pub(crate) async fn page(client: &ApiClient) -> OverviewPage {
    let (answer, plays) = tokio::join!(client.get::<api::Overview>(PATH), plays(client));
    let overview = answer.map(|overview| Shown {
        now: Moment::utc(&overview.now),
        sources: overview
            .sources
            .iter()
            .filter(|source| !source.partitions.is_empty())
            .map(SourceShown::of)
            .collect(),
    });
    OverviewPage {
        frame: Frame::new("Overview", "overview", &client.caller).following_all(),
        overview,
        tools: client.tools(PATH, false),
        plays,
    }
}
