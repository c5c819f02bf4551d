//! Property test of reads: for random questions and any progress of the batch layer, the answer
//! equals a plain recount of all events.

use std::collections::BTreeMap;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use jiff::Timestamp;
use jobs::Catalog;
use proptest::prelude::*;
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::time::series::close_range;
use schemas::time::{Interval, PeriodQuery, Range, points, resolve};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::world::{NOW_MS, Play, Progress, World};
use crate::{Serving, ServingOptions};

pub(crate) async fn get(serving: &Serving, uri: &str) -> (StatusCode, Value) {
    let request = Request::get(uri).body(Body::empty()).unwrap();
    let response = serving.router().oneshot(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

fn play() -> impl Strategy<Value = Play> {
    let now = NOW_MS / 1000;
    let at = prop_oneof![
        now - 200_000..now + 100_000,
        now - 40_000_000..now,
        Just(now - 900_000_000),
    ];
    let text =
        |choices: &'static [&'static str]| proptest::option::of(proptest::sample::select(choices));
    (
        at,
        (
            0_i64..3,
            0_i64..4,
            proptest::option::of(0_i64..2),
            proptest::option::of(0_i64..3),
        ),
        (text(&["DE", "US"]), text(&["", "a", "b"]), any::<bool>()),
        prop_oneof![Just(1_i64), -2_i64..5],
    )
        .prop_map(
            |(at, (owner, track, listener, app), (country, referrer, play), amount)| {
                let mut ints = BTreeMap::from([("owner_id", owner), ("track_id", track)]);
                ints.extend(listener.map(|listener| ("listener_id", listener)));
                ints.extend(app.map(|app| ("app_id", app)));
                let kind = if play { "play" } else { "download" };
                let mut texts = BTreeMap::from([("kind", kind.to_owned())]);
                texts.extend(country.map(|country| ("country", country.to_owned())));
                texts.extend(referrer.map(|referrer| ("referrer", referrer.to_owned())));
                Play {
                    at,
                    ints,
                    texts,
                    amount,
                }
            },
        )
}

fn progress(events: usize) -> impl Strategy<Value = Progress> {
    (
        proptest::collection::vec(0..=events, 0..4),
        any::<bool>(),
        any::<prop::sample::Index>(),
        0_u8..3,
    )
        .prop_map(|(mut cuts, is_loading, pruned, loaded_remainder)| {
            cuts.sort_unstable();
            let newest = cuts.len() - usize::from(is_loading && !cuts.is_empty());
            Progress {
                cuts,
                newest: newest as u64,
                pruned: pruned.index(newest + 1) as u64,
                loaded_remainder,
            }
        })
}

/// A question: its filters and other parameters.
#[derive(Debug, Clone)]
struct StatsQuestion {
    filters: Vec<(&'static str, &'static str)>,
    time: &'static str,
    tz: &'static str,
    interval: &'static str,
    by: &'static str,
}

fn question() -> impl Strategy<Value = StatsQuestion> {
    let select = |choices: &'static [&'static str]| proptest::sample::select(choices);
    let filter = proptest::sample::select(vec![
        ("country", "DE"),
        ("referrer", ""),
        ("app_id", "1"),
        ("listener_id", "0"),
        ("kind", "play"),
    ]);
    (
        prop_oneof![
            Just(vec![("owner_id", "1")]),
            Just(vec![("track_id", "2")]),
            Just(vec![("owner_id", "0"), ("track_id", "2")]),
        ],
        proptest::collection::btree_map(Just(()), filter, 0..=1),
        select(&[
            "period=today",
            "period=7d",
            "period=30d",
            "period=month",
            "period=year",
            "period=all",
            "from=2026-07-01T03:45:00Z&to=2026-07-16T22:15:00Z",
            "from=2026-05-01",
            "to=2026-07-13T09:30:00Z",
            "from=2025-09-10&to=2026-07-20",
        ]),
        select(&["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]),
        select(&["hour", "day", "week", "month"]),
        select(&[
            "track", "listener", "country", "referrer", "app", "owner", "kind",
        ]),
    )
        .prop_map(|(mut filters, more, time, tz, interval, by)| {
            filters.extend(more.into_values());
            StatsQuestion {
                filters,
                time,
                tz,
                interval,
                by,
            }
        })
}

impl StatsQuestion {
    fn query(&self) -> String {
        let filters = self
            .filters
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let all = filters.chain([self.time.to_owned(), format!("tz={}", self.tz)]);
        all.collect::<Vec<_>>().join("&")
    }

    fn ranges(&self) -> (Range, Option<Range>, schemas::time::Zone) {
        let value = |name: &str| {
            self.time
                .split('&')
                .find_map(|pair| pair.split_once('=').filter(|(n, _)| *n == name))
                .map(|(_, v)| v)
        };
        let query = PeriodQuery {
            period: value("period"),
            from: value("from"),
            to: value("to"),
            date: None,
            tz: Some(self.tz),
            compare: Some("previous"),
        };
        let resolved = resolve(&query, Timestamp::from_millisecond(NOW_MS).unwrap()).unwrap();
        (resolved.range, resolved.previous, resolved.zone)
    }

    fn matching<'a>(&'a self, plays: &'a [Play]) -> impl Iterator<Item = &'a Play> {
        plays.iter().filter(|play| {
            self.filters
                .iter()
                .all(|(name, value)| match play.value(&column(name)) {
                    KeyValue::Int(n) => n.to_string() == *value,
                    KeyValue::Text(text) => text == *value,
                    _ => false,
                })
        })
    }

    fn sum(&self, plays: &[Play], range: Range) -> i64 {
        self.matching(plays)
            .filter(|play| range.contains(play.at))
            .map(|play| play.amount)
            .sum()
    }
}

fn column(name: &str) -> KeyColumn {
    let kind = if name.ends_with("_id") {
        KeyKind::Int
    } else {
        KeyKind::Text
    };
    KeyColumn {
        name: name.to_owned(),
        kind,
        nullable: true,
    }
}

fn expected_points(question: &StatsQuestion, plays: &[Play]) -> Vec<(String, i64)> {
    let (range, _, zone) = question.ranges();
    let interval: Interval = question.interval.parse().unwrap();
    let times: Vec<i64> = question
        .matching(plays)
        .map(|play| play.at)
        .filter(|at| range.contains(*at))
        .collect();
    let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else {
        return match (range.from, range.to) {
            (Some(from), Some(to)) => {
                let points = points(&zone, interval, from, to).unwrap();
                points
                    .starts()
                    .iter()
                    .map(|at| (crate::answer::format_seconds(*at), 0))
                    .collect()
            }
            _ => Vec::new(),
        };
    };
    let (from, to) = close_range(&zone, interval, range, *first, *last).unwrap();
    points(&zone, interval, from, to)
        .unwrap()
        .spans()
        .map(|(from, to)| {
            (
                crate::answer::format_seconds(from),
                question.sum(plays, Range::new(from, to)),
            )
        })
        .collect()
}

/// The rows of a breakdown; keys with count 0 are omitted.
fn expected_rows(question: &StatsQuestion, plays: &[Play]) -> Vec<(Value, i64)> {
    let mut rows = counts(question, plays);
    rows.retain(|(_, count)| *count != 0);
    rows
}

/// The counts of all keys with events.
fn counts(question: &StatsQuestion, plays: &[Play]) -> Vec<(Value, i64)> {
    let (range, _, _) = question.ranges();
    let by = match question.by {
        by @ ("country" | "referrer" | "kind") => by.to_owned(),
        by => format!("{by}_id"),
    };
    let mut counts: BTreeMap<(bool, KeyValue), i64> = BTreeMap::new();
    for play in question
        .matching(plays)
        .filter(|play| range.contains(play.at))
    {
        let key = play.value(&column(&by));
        *counts.entry((key == KeyValue::Null, key)).or_default() += play.amount;
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|(_, count)| -count);
    rows.into_iter()
        .map(|((_, key), count)| match key {
            KeyValue::Int(n) => (json!(n), count),
            KeyValue::Text(text) => (json!(text), count),
            _ => (Value::Null, count),
        })
        .collect()
}

/// Checks that the explanation of a total adds up to it, by layer, by epoch and by row.
async fn check_explanation(
    serving: &Serving,
    query: &str,
    total: &Value,
) -> Result<(), TestCaseError> {
    let uri = format!("/api/v1/explain?metric=plays&{query}");
    let (status, explanation) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", explanation);
    let sum = |list: &Value| -> i64 {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|one| one["count"].as_i64()).sum()
    };
    let count = total["count"].as_i64().unwrap();
    prop_assert_eq!(
        explanation["count"].as_i64(),
        Some(count),
        "{}",
        explanation
    );
    prop_assert_eq!(
        sum(&explanation["batch"]) + sum(&explanation["live"]),
        count,
        "{}",
        explanation
    );
    prop_assert_eq!(sum(&explanation["rows"]), count, "{}", explanation);
    for row in explanation["rows"].as_array().unwrap() {
        let stored = row["batch"]["count"].as_i64().unwrap_or_default();
        prop_assert_eq!(
            Some(stored + sum(&row["live"])),
            row["count"].as_i64(),
            "{}",
            row
        );
    }
    let has = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
    let source = match (has(&explanation["batch"]), has(&explanation["live"])) {
        (true, true) => Some("merged"),
        (true, false) => Some("batch"),
        (false, true) => Some("realtime"),
        (false, false) => None,
    };
    if let Some(source) = source {
        prop_assert_eq!(
            &explanation["provenance"]["source"],
            source,
            "{}",
            explanation
        );
    }
    Ok(())
}

async fn check(
    serving: &Serving,
    question: &StatsQuestion,
    plays: &[Play],
) -> Result<(), TestCaseError> {
    let query = question.query();
    let (range, previous, _) = question.ranges();
    let (status, total) = get(
        serving,
        &format!("/api/v1/stats/plays/total?{query}&compare=previous"),
    )
    .await;
    prop_assert_eq!(status, StatusCode::OK, "{}", total);
    prop_assert_eq!(
        &total["count"],
        &json!(question.sum(plays, range)),
        "{}",
        &query
    );
    let before = previous.map(|previous| question.sum(plays, previous));
    prop_assert_eq!(&total["previous"], &json!(before), "{}", &query);
    check_explanation(serving, &query, &total).await?;

    let uri = format!(
        "/api/v1/stats/plays/series?{query}&interval={}",
        question.interval
    );
    let (status, series) = get(serving, &uri).await;
    if status == StatusCode::BAD_REQUEST {
        prop_assert!(
            series["detail"].as_str().unwrap().contains("at most 10000"),
            "{}",
            series
        );
    } else {
        prop_assert_eq!(status, StatusCode::OK, "{}", series);
        let points = series["points"].as_array().unwrap().iter();
        let got: Vec<(String, i64)> = points
            .map(|point| {
                (
                    point["at"].as_str().unwrap().to_owned(),
                    point["count"].as_i64().unwrap(),
                )
            })
            .collect();
        prop_assert_eq!(got, expected_points(question, plays), "{}", uri);
    }

    let uri = format!("/api/v1/stats/plays/breakdown?{query}&by={}", question.by);
    let (status, breakdown) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", breakdown);
    let rows = breakdown["rows"].as_array().unwrap().iter();
    let got: Vec<(Value, i64)> = rows
        .map(|row| (row["key"].clone(), row["count"].as_i64().unwrap()))
        .collect();
    prop_assert_eq!(got, expected_rows(question, plays), "{}", uri);
    Ok(())
}

/// Number of distinct listeners. Those whose plays were all corrected to zero do not count.
fn distinct_listeners(question: &StatsQuestion, plays: &[Play], range: Range) -> usize {
    let mut listeners: BTreeMap<i64, i64> = BTreeMap::new();
    for play in question
        .matching(plays)
        .filter(|play| range.contains(play.at))
    {
        if let Some(listener) = play.ints.get("listener_id") {
            *listeners.entry(*listener).or_default() += play.amount;
        }
    }
    listeners.values().filter(|amount| **amount > 0).count()
}

/// Checks distinct listeners, and the values of each layer.
async fn check_others(
    serving: &Serving,
    question: &StatsQuestion,
    plays: &[Play],
    progress: &Progress,
) -> Result<(), TestCaseError> {
    let (query, (range, _, _)) = (question.query(), question.ranges());
    let uri = format!("/api/v1/stats/plays/uniques?{query}");
    let (status, uniques) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", uniques);
    // Few values are counted exactly.
    let expected = distinct_listeners(question, plays, range);
    prop_assert_eq!(&uniques["count"], &json!(expected), "{}", uri);

    let uri = format!("/api/v1/stats/plays/total?{query}&prefer=realtime");
    let (status, total) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", total);
    let all = question.sum(plays, range);
    prop_assert_eq!(&total["count"], &json!(all), "{}", uri);
    prop_assert_ne!(&total["provenance"]["source"], "batch", "{}", uri);

    let uri = format!("/api/v1/stats/plays/total?{query}&prefer=batch");
    let (status, total) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", total);
    let is_loading = usize::try_from(progress.newest).unwrap() < progress.cuts.len();
    let covered = match progress.cuts.last() {
        Some(cut) if !is_loading => &plays[..*cut],
        _ => return Ok(()),
    };
    let has_batch = question
        .matching(covered)
        .any(|play| range.contains(play.at));
    let expected = if has_batch {
        question.sum(covered, range)
    } else {
        all
    };
    prop_assert_eq!(&total["count"], &json!(expected), "{}", uri);

    // Each row has its own preferred value, and the answer is as new as its newest row.
    let uri = format!(
        "/api/v1/stats/plays/breakdown?{query}&by={}&prefer=batch",
        question.by
    );
    let (status, breakdown) = get(serving, &uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}", breakdown);
    let in_batch: BTreeMap<String, i64> = counts(question, covered)
        .into_iter()
        .map(|(key, count)| (key.to_string(), count))
        .collect();
    for row in breakdown["rows"].as_array().unwrap() {
        prop_assert_ne!(&row["count"], 0, "{}: {}", uri, row);
        match in_batch.get(&row["key"].to_string()) {
            Some(count) => {
                prop_assert_eq!(&row["count"], &json!(count), "{}: {}", uri, row);
                prop_assert_eq!(&row["source"], "batch", "{}: {}", uri, row);
            }
            None => prop_assert_eq!(&row["source"], "realtime", "{}: {}", uri, row),
        }
    }
    // Keys with count 0 contribute to the provenance, too.
    let mut keys = counts(question, plays).into_iter();
    let is_batch = keys.all(|(key, _)| in_batch.contains_key(&key.to_string()));
    let is_from_batch = breakdown["provenance"]["source"] == "batch";
    prop_assert_eq!(is_from_batch, is_batch, "{}: {}", uri, breakdown);

    if has_batch {
        prop_assert_eq!(&total["provenance"]["source"], "batch", "{}", uri);
        let position: i64 = total["provenance"]["position"]["plays"]
            .as_array()
            .unwrap()
            .iter()
            .map(|next| next.as_i64().unwrap())
            .sum();
        prop_assert_eq!(position, covered.len() as i64, "{}", uri);
    }
    Ok(())
}

/// Number of cases: `PROPTEST_CASES` if set, as `deploy/soak` does.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .map_or(60, |cases| cases.parse().expect("PROPTEST_CASES: a number"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn every_answer_equals_a_plain_recount(
        (plays, progress) in proptest::collection::vec(play(), 0..60)
            .prop_flat_map(|plays| { let n = plays.len(); (Just(plays), progress(n)) }),
        question in question(),
        partitions in 1_u32..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let catalog = Catalog::built_in().unwrap();
        let world = World::new(&catalog, &plays, partitions, &progress);
        let options = ServingOptions { whole_wait_ms: 0, ..ServingOptions::default() };
        let (serving, _) = world.serving(&catalog, options);
        runtime.block_on(check(&serving, &question, &plays))?;
        runtime.block_on(check_others(&serving, &question, &plays, &progress))?;
    }
}
