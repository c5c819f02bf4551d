//! The law of statistics: for any history, any progress of the layers, and any question, the
//! response equals a recount of all plays.
//!
//! proptest generates the histories and shrinks a failing one. The recount sums the plays of the
//! history, and uses neither views nor stores.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use jiff::Timestamp;
use jobs::Catalog;
use proptest::prelude::*;
use proptest::sample::Index;
use schemas::key::{KeyColumn, KeyKind, KeyValue};
use schemas::time::series::close_range;
use schemas::time::{Interval, PeriodQuery, TimeRange, Zone, compute_points, resolve};
use serde_json::{Value, json};
use serving::Serving;

use crate::memory_stores::{LayerProgress, MemoryStores, NOW_MS, PlayEvent};
use crate::requests::{get_json, no_wait_options};

fn any_play() -> impl Strategy<Value = PlayEvent> {
    let now_s = NOW_MS / 1000;
    // In the last days, in the last year, or long ago.
    let time_s = prop_oneof![
        now_s - 200_000..now_s + 100_000,
        now_s - 40_000_000..now_s,
        Just(now_s - 900_000_000),
    ];
    let ids = (
        0_i64..3,
        0_i64..4,
        proptest::option::of(0_i64..2),
        proptest::option::of(0_i64..3),
    );
    let text =
        |choices: &'static [&'static str]| proptest::option::of(proptest::sample::select(choices));
    let texts = (text(&["DE", "US"]), text(&["", "a", "b"]), any::<bool>());
    let amount = prop_oneof![Just(1_i64), -2_i64..5];
    (time_s, ids, texts, amount).prop_map(|(time_s, ids, texts, amount)| {
        let (owner, track, listener, app) = ids;
        let mut int_columns = BTreeMap::from([("owner_id", owner), ("track_id", track)]);
        int_columns.extend(listener.map(|listener| ("listener_id", listener)));
        int_columns.extend(app.map(|app| ("app_id", app)));
        let (country, referrer, is_play) = texts;
        let kind = if is_play { "play" } else { "download" };
        let mut text_columns = BTreeMap::from([("kind", kind.to_owned())]);
        text_columns.extend(country.map(|country| ("country", country.to_owned())));
        text_columns.extend(referrer.map(|referrer| ("referrer", referrer.to_owned())));
        PlayEvent {
            time_s,
            int_columns,
            text_columns,
            amount,
        }
    })
}

/// Generates up to three runs over some events. The last run may be incomplete.
fn any_progress(event_count: usize) -> impl Strategy<Value = LayerProgress> {
    let cuts = proptest::collection::vec(0..=event_count, 0..4);
    (cuts, any::<bool>(), any::<Index>(), 0_u8..3).prop_map(
        |(mut cuts, is_last_incomplete, pruned, written_remainder)| {
            cuts.sort_unstable();
            let newest = cuts.len() - usize::from(is_last_incomplete && !cuts.is_empty());
            LayerProgress {
                cuts,
                newest_complete: newest as u64,
                pruned: pruned.index(newest + 1) as u64,
                written_remainder,
            }
        },
    )
}

/// Generates a history and the progress of the layers on it.
fn any_history() -> impl Strategy<Value = (Vec<PlayEvent>, LayerProgress)> {
    let plays = proptest::collection::vec(any_play(), 0..60);
    plays.prop_flat_map(|plays| {
        let progress = any_progress(plays.len());
        (Just(plays), progress)
    })
}

/// The parameters of a question about statistics.
#[derive(Debug, Clone)]
struct StatsQuestion {
    filters: Vec<(&'static str, &'static str)>,
    /// The parameters that select the time.
    time: &'static str,
    tz: &'static str,
    /// The interval of a series.
    interval: &'static str,
    /// The column of a breakdown.
    by: &'static str,
}

fn any_question() -> impl Strategy<Value = StatsQuestion> {
    let select = |choices: &'static [&'static str]| proptest::sample::select(choices);
    let subject = prop_oneof![
        Just(vec![("owner_id", "1")]),
        Just(vec![("track_id", "2")]),
        Just(vec![("owner_id", "0"), ("track_id", "2")]),
    ];
    let filter = proptest::sample::select(vec![
        ("country", "DE"),
        ("referrer", ""),
        ("app_id", "1"),
        ("listener_id", "0"),
        ("kind", "play"),
    ]);
    let time = select(&[
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
    ]);
    let tz = select(&["UTC", "Europe/Berlin", "Asia/Kolkata", "America/St_Johns"]);
    let interval = select(&["hour", "day", "week", "month"]);
    let by = select(&[
        "track", "listener", "country", "referrer", "app", "owner", "kind",
    ]);
    // An option would change the cases of the seeds in `proptest-regressions`.
    let filter = proptest::collection::btree_map(Just(()), filter, 0..=1);
    (subject, filter, time, tz, interval, by).prop_map(
        |(mut filters, filter, time, tz, interval, by)| {
            filters.extend(filter.into_values());
            StatsQuestion {
                filters,
                time,
                tz,
                interval,
                by,
            }
        },
    )
}

/// The times that a question is about.
struct QuestionTimes {
    range: TimeRange,
    /// The previous period of the same length.
    previous: Option<TimeRange>,
    zone: Zone,
}

impl StatsQuestion {
    /// Builds the query string, without interval and column.
    fn build_query(&self) -> String {
        let filters = self
            .filters
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let parameters = filters.chain([self.time.to_owned(), format!("tz={}", self.tz)]);
        parameters.collect::<Vec<_>>().join("&")
    }

    fn resolve_times(&self) -> QuestionTimes {
        let pairs = || self.time.split('&').filter_map(|pair| pair.split_once('='));
        let value = |name: &str| pairs().find(|pair| pair.0 == name).map(|pair| pair.1);
        let query = PeriodQuery {
            period: value("period"),
            from: value("from"),
            to: value("to"),
            date: None,
            tz: Some(self.tz),
            compare: Some("previous"),
        };
        let now = Timestamp::from_millisecond(NOW_MS).unwrap();
        let resolved = resolve(&query, now).unwrap();
        QuestionTimes {
            range: resolved.range,
            previous: resolved.previous,
            zone: resolved.zone,
        }
    }

    /// Returns the plays that match the filters, in a range of time.
    fn matching_plays<'a>(
        &'a self,
        plays: &'a [PlayEvent],
        range: TimeRange,
    ) -> impl Iterator<Item = &'a PlayEvent> {
        let is_value = |play: &PlayEvent, name: &str, value: &str| match play
            .column_value(&build_column(name))
        {
            KeyValue::Int(int) => int.to_string() == value,
            KeyValue::Text(text) => text == value,
            _ => false,
        };
        plays.iter().filter(move |play| {
            let mut filters = self.filters.iter();
            range.contains(play.time_s) && filters.all(|(name, value)| is_value(play, name, value))
        })
    }

    /// Recounts the total of a range of time.
    fn recount_total(&self, plays: &[PlayEvent], range: TimeRange) -> i64 {
        self.matching_plays(plays, range)
            .map(|play| play.amount)
            .sum()
    }
}

fn build_column(name: &str) -> KeyColumn {
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

/// Recounts the points of a series: start and count.
fn recount_points(question: &StatsQuestion, plays: &[PlayEvent]) -> Vec<(String, i64)> {
    let QuestionTimes { range, zone, .. } = question.resolve_times();
    let interval: Interval = question.interval.parse().unwrap();
    let format_time = |time_s: i64| Timestamp::from_second(time_s).unwrap().to_string();
    let times = || {
        question
            .matching_plays(plays, range)
            .map(|play| play.time_s)
    };
    let (start, end) = match (times().min(), times().max(), range.from, range.to) {
        (Some(first), Some(last), ..) => close_range(&zone, interval, range, first, last).unwrap(),
        (.., Some(from), Some(to)) => (from, to),
        _ => return Vec::new(),
    };
    let points = compute_points(&zone, interval, start, end).unwrap();
    let expected = points.spans().map(|(from, to)| {
        let count = question.recount_total(plays, TimeRange::new(from, to));
        (format_time(from), count)
    });
    expected.collect()
}

/// Recounts the rows of a breakdown: key and count. Rows with count 0 are left out.
fn recount_rows(question: &StatsQuestion, plays: &[PlayEvent]) -> Vec<(Value, i64)> {
    let mut rows = count_by_key(question, plays);
    rows.retain(|(_, count)| *count != 0);
    rows
}

/// Recounts each key of a breakdown that has events, with the largest count first.
fn count_by_key(question: &StatsQuestion, plays: &[PlayEvent]) -> Vec<(Value, i64)> {
    let by = match question.by {
        by @ ("country" | "referrer" | "kind") => build_column(by),
        by => build_column(&format!("{by}_id")),
    };
    // Among equal counts, null is the last key.
    let mut counts: BTreeMap<(bool, KeyValue), i64> = BTreeMap::new();
    for play in question.matching_plays(plays, question.resolve_times().range) {
        let key = play.column_value(&by);
        *counts.entry((key == KeyValue::Null, key)).or_default() += play.amount;
    }
    let mut rows: Vec<_> = counts.into_iter().collect();
    rows.sort_by_key(|(_, count)| -count);
    let rows = rows.into_iter().map(|((_, key), count)| match key {
        KeyValue::Int(int) => (json!(int), count),
        KeyValue::Text(text) => (json!(text), count),
        _ => (Value::Null, count),
    });
    rows.collect()
}

/// Recounts the distinct listeners. Those whose plays were all corrected to zero do not count.
fn recount_listeners(question: &StatsQuestion, plays: &[PlayEvent]) -> usize {
    let mut amounts: BTreeMap<i64, i64> = BTreeMap::new();
    for play in question.matching_plays(plays, question.resolve_times().range) {
        if let Some(listener) = play.int_columns.get("listener_id") {
            *amounts.entry(*listener).or_default() += play.amount;
        }
    }
    amounts.values().filter(|amount| **amount > 0).count()
}

/// Requests a document, which must exist.
async fn get_ok(serving: &Serving, uri: &str) -> Result<Value, TestCaseError> {
    let (status, document) = get_json(serving, uri).await;
    prop_assert_eq!(status, StatusCode::OK, "{}: {}", uri, document);
    Ok(document)
}

/// Checks total, series, breakdown, and distinct listeners.
async fn check_counts(
    serving: &Serving,
    question: &StatsQuestion,
    plays: &[PlayEvent],
) -> Result<(), TestCaseError> {
    let query = question.build_query();
    let times = question.resolve_times();
    let uri = format!("/api/v1/stats/plays/total?{query}&compare=previous");
    let total = get_ok(serving, &uri).await?;
    let count = question.recount_total(plays, times.range);
    prop_assert_eq!(&total["count"], &json!(count), "{}", uri);
    let previous = times
        .previous
        .map(|range| question.recount_total(plays, range));
    prop_assert_eq!(&total["previous"], &json!(previous), "{}", uri);
    check_explanation(serving, &query, count).await?;

    let interval = question.interval;
    let uri = format!("/api/v1/stats/plays/series?{query}&interval={interval}");
    let (status, series) = get_json(serving, &uri).await;
    if status == StatusCode::BAD_REQUEST {
        let detail = series["detail"].as_str().unwrap();
        prop_assert!(detail.contains("at most 10000"), "{}", detail);
    } else {
        prop_assert_eq!(status, StatusCode::OK, "{}", series);
        let points = series["points"].as_array().unwrap().iter();
        let points: Vec<(String, i64)> = points
            .map(|point| {
                let time = point["at"].as_str().unwrap().to_owned();
                (time, point["count"].as_i64().unwrap())
            })
            .collect();
        prop_assert_eq!(points, recount_points(question, plays), "{}", uri);
    }

    let by = question.by;
    let uri = format!("/api/v1/stats/plays/breakdown?{query}&by={by}");
    let breakdown = get_ok(serving, &uri).await?;
    let rows = breakdown["rows"].as_array().unwrap().iter();
    let rows: Vec<(Value, i64)> = rows
        .map(|row| (row["key"].clone(), row["count"].as_i64().unwrap()))
        .collect();
    prop_assert_eq!(rows, recount_rows(question, plays), "{}", uri);

    // Few distinct values are counted exactly.
    let uri = format!("/api/v1/stats/plays/uniques?{query}");
    let uniques = get_ok(serving, &uri).await?;
    let listeners = recount_listeners(question, plays);
    prop_assert_eq!(&uniques["count"], &json!(listeners), "{}", uri);
    Ok(())
}

/// Checks that the explanation of a total adds up to it, by layer, by epoch and by row.
async fn check_explanation(
    serving: &Serving,
    query: &str,
    total: i64,
) -> Result<(), TestCaseError> {
    let uri = format!("/api/v1/explain?metric=plays&{query}");
    let explanation = get_ok(serving, &uri).await?;
    let count = |part: &Value| part["count"].as_i64();
    let sum = |parts: &Value| -> i64 {
        let parts = parts.as_array().into_iter().flatten();
        parts.filter_map(count).sum()
    };
    let (batch, live) = (&explanation["batch"], &explanation["live"]);
    prop_assert_eq!(count(&explanation), Some(total), "{}", explanation);
    prop_assert_eq!(sum(batch) + sum(live), total, "{}", explanation);
    prop_assert_eq!(sum(&explanation["rows"]), total, "{}", explanation);
    for row in explanation["rows"].as_array().unwrap() {
        let in_batch = count(&row["batch"]).unwrap_or_default();
        prop_assert_eq!(Some(in_batch + sum(&row["live"])), count(row), "{}", row);
    }
    let has_parts = |parts: &Value| parts.as_array().is_some_and(|parts| !parts.is_empty());
    let source = match (has_parts(batch), has_parts(live)) {
        (true, true) => "merged",
        (true, false) => "batch",
        (false, true) => "realtime",
        (false, false) => return Ok(()),
    };
    let provenance = &explanation["provenance"];
    prop_assert_eq!(&provenance["source"], source, "{}", explanation);
    Ok(())
}

/// Checks the values of each layer that a request may prefer.
async fn check_preferred_layer(
    serving: &Serving,
    question: &StatsQuestion,
    plays: &[PlayEvent],
    progress: &LayerProgress,
) -> Result<(), TestCaseError> {
    let (query, range) = (question.build_query(), question.resolve_times().range);
    let count = question.recount_total(plays, range);
    let uri = format!("/api/v1/stats/plays/total?{query}&prefer=realtime");
    let total = get_ok(serving, &uri).await?;
    prop_assert_eq!(&total["count"], &json!(count), "{}", uri);
    prop_assert_ne!(&total["provenance"]["source"], "batch", "{}", uri);

    let uri = format!("/api/v1/stats/plays/total?{query}&prefer=batch");
    let total = get_ok(serving, &uri).await?;
    let is_last_complete = progress.newest_complete == progress.cuts.len() as u64;
    let covered = match progress.cuts.last() {
        Some(cut) if is_last_complete => &plays[..*cut],
        _ => return Ok(()),
    };
    let has_batch = question.matching_plays(covered, range).next().is_some();
    let expected = if has_batch {
        question.recount_total(covered, range)
    } else {
        count
    };
    prop_assert_eq!(&total["count"], &json!(expected), "{}", uri);
    if has_batch {
        let provenance = &total["provenance"];
        prop_assert_eq!(&provenance["source"], "batch", "{}", uri);
        let next_offsets = provenance["position"]["plays"].as_array().unwrap().iter();
        let covered_count: i64 = next_offsets.map(|offset| offset.as_i64().unwrap()).sum();
        prop_assert_eq!(covered_count, covered.len() as i64, "{}", uri);
    }
    check_preferred_rows(serving, question, plays, covered).await
}

/// Checks a breakdown that prefers batch values. Each row has its own preferred value: the batch
/// value if `covered`, the plays that the newest run covers, include the row's key.
async fn check_preferred_rows(
    serving: &Serving,
    question: &StatsQuestion,
    plays: &[PlayEvent],
    covered: &[PlayEvent],
) -> Result<(), TestCaseError> {
    let (query, by) = (question.build_query(), question.by);
    let uri = format!("/api/v1/stats/plays/breakdown?{query}&by={by}&prefer=batch");
    let breakdown = get_ok(serving, &uri).await?;
    let batch_counts: BTreeMap<String, i64> = count_by_key(question, covered)
        .into_iter()
        .map(|(key, count)| (key.to_string(), count))
        .collect();
    for row in breakdown["rows"].as_array().unwrap() {
        prop_assert_ne!(&row["count"], 0, "{}: {}", uri, row);
        match batch_counts.get(&row["key"].to_string()) {
            Some(count) => {
                prop_assert_eq!(&row["count"], &json!(count), "{}: {}", uri, row);
                prop_assert_eq!(&row["source"], "batch", "{}: {}", uri, row);
            }
            None => prop_assert_eq!(&row["source"], "realtime", "{}: {}", uri, row),
        }
    }
    // The response is as new as its newest row. Keys with count 0 contribute, too.
    let mut keys = count_by_key(question, plays).into_iter();
    let are_all_batch = keys.all(|(key, _)| batch_counts.contains_key(&key.to_string()));
    let is_batch = breakdown["provenance"]["source"] == "batch";
    prop_assert_eq!(is_batch, are_all_batch, "{}: {}", uri, breakdown);
    Ok(())
}

/// Number of cases: `PROPTEST_CASES` if set, as `deploy/soak` does.
fn case_count() -> u32 {
    std::env::var("PROPTEST_CASES")
        .map_or(60, |cases| cases.parse().expect("PROPTEST_CASES: a number"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(case_count()))]

    #[test]
    fn every_answer_equals_a_plain_recount(
        (plays, progress) in any_history(),
        question in any_question(),
        partition_count in 1_u32..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let catalog = Catalog::built_in().unwrap();
        let stores = MemoryStores::from_history(&catalog, &plays, partition_count, &progress);
        let (serving, _) = stores.start_service(&catalog, no_wait_options());
        runtime.block_on(check_counts(&serving, &question, &plays))?;
        runtime.block_on(check_preferred_layer(&serving, &question, &plays, &progress))?;
    }
}

/// The detail view has a table partition for each day, more than the service reads in one call.
#[tokio::test]
async fn a_question_about_many_days_needs_several_calls() {
    let days = 300;
    let play = |n: i64| PlayEvent {
        // One play on each day, logged in another order than that of the days.
        time_s: NOW_MS / 1000 - 86_400 * (7 * n % days),
        int_columns: BTreeMap::from([("owner_id", 1), ("track_id", n % 3), ("listener_id", 0)]),
        text_columns: BTreeMap::from([("kind", "play".to_owned())]),
        amount: 1 + n % 2,
    };
    let plays: Vec<PlayEvent> = (0..days).map(play).collect();
    let catalog = Catalog::built_in().unwrap();
    for newest_complete in [1, 2] {
        let progress = LayerProgress {
            cuts: vec![100, 200],
            newest_complete,
            pruned: 1,
            written_remainder: 0,
        };
        let stores = MemoryStores::from_history(&catalog, &plays, 2, &progress);
        let (serving, stores) = stores.start_service(&catalog, no_wait_options());
        for time in ["from=2025-09-10&to=2026-07-20", "period=all"] {
            let question = StatsQuestion {
                filters: vec![("owner_id", "1"), ("listener_id", "0")],
                time,
                tz: "UTC",
                interval: "day",
                by: "track",
            };
            let checked = check_counts(&serving, &question, &plays).await;
            checked.unwrap();
            let checked = check_preferred_layer(&serving, &question, &plays, &progress).await;
            checked.unwrap();
        }
        let partitions_max = stores.read_counts().table_partitions_max;
        assert!((64..200).contains(&partitions_max), "{partitions_max}");
    }
}
