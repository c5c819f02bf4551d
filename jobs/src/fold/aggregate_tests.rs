//! Sums without the engine must equal the results of the queries.

use std::collections::BTreeMap;

use proptest::prelude::*;
use schemas::plays::{Decoder, Line};
use schemas::source::Source;
use serde::Serialize;

use super::*;
use crate::catalog::tests::write_view;
use crate::{Catalog, EngineOptions, Layers};

fn engine(folder: &tempfile::TempDir) -> Engine {
    Engine::new(EngineOptions {
        threads: 1,
        memory_bytes: 256 << 20,
        spill_folder: folder.path().to_owned(),
        spill_bytes_max: 1 << 30,
    })
    .unwrap()
}

/// A play.
#[derive(Debug, Clone, Serialize)]
struct Play {
    owner_id: i64,
    track_id: i64,
    listener_id: Option<i64>,
    country: Option<&'static str>,
    referrer: Option<&'static str>,
    app_id: Option<i64>,
    kind: &'static str,
    amount: i64,
    #[serde(skip)]
    at_us: i64,
}

fn play() -> impl Strategy<Value = Play> {
    let ids = || {
        prop_oneof![
            Just(1_i64),
            Just(2),
            Just(-1),
            Just(i64::MAX),
            Just(i64::MIN)
        ]
    };
    let seconds = schemas::plays::AT_SECONDS;
    let near = prop_oneof![Just(0_i64), Just(1_772_000_000), Just(-86_400)];
    let at = prop_oneof![
        (near, -200_000_i64..200_000).prop_map(|(base_s, offset_s)| base_s + offset_s),
        seconds
    ];
    (
        (ids(), ids(), prop::option::of(ids())),
        prop::option::of(prop::sample::select(vec!["DE", "SE"])),
        prop::option::of(prop::sample::select(vec![
            "", "a\u{1}", "a", "a\u{1}b", "é",
        ])),
        prop::option::of(ids()),
        prop::sample::select(vec!["play", "download"]),
        -3_i64..4,
        (at, 0_i64..1_000_000),
    )
        .prop_map(
            |(
                (owner_id, track_id, listener_id),
                country,
                referrer,
                app_id,
                kind,
                amount,
                (at, us),
            )| Play {
                owner_id,
                track_id,
                listener_id,
                country,
                referrer,
                app_id,
                kind,
                amount,
                at_us: at * 1_000_000 + us,
            },
        )
}

fn events(plays: &[Play]) -> RecordBatch {
    let lines = plays.iter().enumerate().map(|(index, play)| {
        let mut line = serde_json::to_value(play).unwrap();
        line["event_id"] = format!("e{index}").into();
        line["at"] = jiff::Timestamp::from_microsecond(play.at_us)
            .unwrap()
            .to_string()
            .into();
        line.to_string().into_bytes()
    });
    let lines: Vec<Vec<u8>> = lines.collect();
    let lines = lines.iter().map(|bytes| Line {
        offset: 0,
        logged_at_ms: 0,
        bytes,
    });
    let decoded = Decoder::new(0).decode(lines).unwrap();
    assert_eq!(decoded.rejected, vec![]);
    decoded.events
}

type Sums = BTreeMap<(Vec<u8>, Vec<u8>), i64>;

fn sums(groups: &BinaryArray, rows: &BinaryArray, counts: &Int64Array) -> Sums {
    let mut sums = Sums::new();
    for ((group, row), count) in groups.iter().zip(rows).zip(counts.values()) {
        let key = (group.unwrap().to_vec(), row.unwrap().to_vec());
        *sums.entry(key).or_default() += count;
    }
    sums
}

/// Compares the sums with the results of the queries.
fn assert_equals_queries(jobs: &[Arc<Job>], plays: &[Play]) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let engine = engine(&folder);
        let (aggregates, queries) = (
            AggregateFold::new(&engine, jobs).await.unwrap(),
            Fold::new(&engine, jobs).await.unwrap(),
        );
        let events = events(plays);
        let (summed, expected) = (
            aggregates.run(&events).await.unwrap(),
            queries.run(&events).await.unwrap(),
        );
        assert_eq!((summed.len(), expected.len()), (jobs.len(), jobs.len()));
        for (summed, expected) in summed.iter().zip(expected) {
            let (groups, rows, counts) = expected.encode().unwrap();
            assert_eq!(summed.job.name(), expected.job.name());
            let actual_sums = sums(&summed.groups, &summed.rows, &summed.counts);
            assert_eq!(actual_sums.len(), summed.counts.len(), "each key once");
            assert_eq!(
                actual_sums,
                sums(&groups, &rows, &counts),
                "{}",
                summed.job.name()
            );
        }
    });
}

fn built_in() -> Vec<Arc<Job>> {
    let catalog = Catalog::built_in().unwrap();
    catalog.jobs().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn built_in_views_equal_their_queries(plays in prop::collection::vec(play(), 0..60)) {
        assert_equals_queries(&built_in(), &plays);
    }

    #[test]
    fn custom_views_equal_their_queries(plays in prop::collection::vec(play(), 0..60)) {
        assert_equals_queries(custom_catalog().jobs(), &plays);
    }
}

/// Views of which some are not plain sums, at every position of a chain. Columns: name, the view
/// that it reads, bucket, dimensions, query.
const CUSTOM_VIEWS: &[[&str; 5]] = &[
    [
            "a_detail",
            "",
            "quarter",
            "\"kind\", \"country\", \"listener_id\"",
            "SELECT owner_id, date_bin(INTERVAL '15 minutes', at) AS bucket, kind, country, listener_id,
        sum(amount) AS count FROM plays GROUP BY 1, 2, 3, 4, 5",
    ],
    [
            "b_days",
            "a_detail",
            "day",
            "\"country\"",
            "SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, country, sum(count) AS count
            FROM a_detail GROUP BY 1, 2, 3",
    ],
    [
            "c_some",
            "a_detail",
            "quarter",
            "\"country\", \"listener_id\"",
            "SELECT owner_id, bucket, country, listener_id, sum(count) AS count
            FROM a_detail WHERE kind = 'play' GROUP BY 1, 2, 3, 4",
    ],
    [
            "d_months_of_some",
            "c_some",
            "month",
            "\"listener_id\"",
            "SELECT owner_id, date_trunc('month', bucket) AS bucket, listener_id, sum(count) AS count
            FROM c_some GROUP BY 1, 2, 3",
    ],
    [
            "e_hours",
            "",
            "hour",
            "\"track_id\"",
            "SELECT owner_id, date_trunc('hour', at) AS bucket, track_id, sum(amount) AS count
            FROM plays GROUP BY owner_id, date_trunc('hour', at), track_id",
    ],
    [
            "f_all_of_hours",
            "e_hours",
            "all",
            "\"track_id\"",
            "SELECT owner_id, track_id, sum(count) AS count FROM e_hours GROUP BY 1, 2",
    ],
    [
            "g_tracks_added_up",
            "e_hours",
            "day",
            "\"track_id\"",
            "SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, track_id, sum(track_id / 4) AS count
            FROM e_hours GROUP BY 1, 2, 3",
    ],
    [
            "g_wider",
            "",
            "hour",
            "\"track_id\"",
            "SELECT owner_id, date_trunc('hour', at) AS bucket, track_id, sum(amount) AS count
            FROM plays GROUP BY owner_id, date_trunc('hour', at), track_id, referrer",
    ],
    [
            "h_events",
            "",
            "hour",
            "\"kind\"",
            "SELECT owner_id, date_bin(INTERVAL '1 hour', at) AS bucket, kind, count(*) AS count
            FROM plays GROUP BY 1, 2, 3",
    ],
];

fn custom_catalog() -> Catalog {
    catalog(CUSTOM_VIEWS)
}

/// Creates a catalog of views by owner, each as in [`CUSTOM_VIEWS`].
fn catalog(views: &[[&str; 5]]) -> Catalog {
    let root = tempfile::tempdir().unwrap();
    for [name, over, bucket, dimensions, sql] in views {
        let over = match *over {
            "" => String::new(),
            over => format!("over = \"{over}\"\n"),
        };
        let definition = format!(
            "kind = \"tally\"\nmetric = \"plays\"\nsource = \"plays\"\ngroup = [\"owner_id\"]\npartial = true\n\
            layers = \"both\"\nbucket = \"{bucket}\"\npartition = \"all\"\ndimensions = [{dimensions}]\n{over}"
        );
        write_view(root.path(), name, &definition, sql);
    }
    Catalog::read(root.path()).unwrap()
}

/// The names of the views whose queries run.
fn views_with_queries(jobs: &[Arc<Job>]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine(&folder);
    let fold = AggregateFold::new(&engine, jobs);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let fold = runtime.block_on(fold).unwrap();
    let names = fold.steps.iter().zip(jobs);
    let names = names.filter(|(step, _)| step.is_query());
    names.map(|(_, job)| job.name().to_owned()).collect()
}

#[test]
fn built_in_live_views_are_summed_without_queries() {
    let catalog = Catalog::built_in().unwrap();
    let jobs = catalog.jobs_in_layer(Source::Plays, Layers::Speed);
    let jobs: Vec<Arc<Job>> = jobs.cloned().collect();
    assert!(jobs.len() > 5);
    assert_eq!(views_with_queries(&jobs), Vec::<String>::new());
}

/// A query runs if it does more than sum, or if such a query reads its rows.
#[test]
fn queries_run_only_where_needed() {
    let catalog = custom_catalog();
    let expected = [
        "a_detail",
        "c_some",
        "e_hours",
        "g_tracks_added_up",
        "h_events",
    ];
    assert_eq!(views_with_queries(catalog.jobs()), expected);
}

/// A cast column is not the column itself, so its query runs.
#[test]
fn views_with_casts_run_their_queries() {
    let query_count = |sql: &str| {
        views_with_queries(catalog(&[["one", "", "day", "\"kind\"", sql]]).jobs()).len()
    };
    let plain = "SELECT owner_id, date_trunc('day', at) AS bucket, kind, sum(amount) AS count FROM plays GROUP BY 1, 2, 3";
    assert_eq!(query_count(plain), 0);
    for (from, to) in [
        (
            "sum(amount)",
            "sum(CAST(CAST(amount AS BOOLEAN) AS BIGINT))",
        ),
        ("sum(amount)", "sum(CAST(amount AS SMALLINT))"),
        ("at)", "at AT TIME ZONE 'Europe/Berlin')"),
        ("at)", "CAST(at AS DATE))"),
        ("kind,", "CAST(kind AS VARCHAR) AS kind,"),
    ] {
        assert_eq!(query_count(&plain.replace(from, to)), 1, "{to}");
    }
}
