//! The Reconciler with expected counts from a file: all corrections or none are applied, and can be
//! undone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampNanosecondArray, UInt64Array,
};
use batch::{Expected, Progress, ReconcileCause, ReconcileRequest, RunRequest};
use schemas::source::Source;
use tests::stages::cancel_at;
use tests::world::World;
use tokio_util::sync::CancellationToken;

use super::restore::{IngestDuringScan, assert_views_match, populate, request_for, restore};

/// Writes a file into the folder of the installation.
fn write_file(world: &World, name: &str, lines: &[&str]) -> PathBuf {
    let path = world.path().join(name);
    std::fs::write(&path, lines.join("\n")).expect("writing a file");
    path
}

fn claims_request(view: &str, path: &Path) -> ReconcileRequest {
    ReconcileRequest {
        expected: Expected::File(path.to_owned()),
        by: "ada".to_owned(),
        reason: "a lost shipment".to_owned(),
        ..request_for(view)
    }
}

fn correcting_request(view: &str, path: &Path) -> ReconcileRequest {
    ReconcileRequest {
        apply: true,
        ..claims_request(view, path)
    }
}

async fn fetch_owner_total(world: &World, owner: i64) -> i64 {
    let served = world.serve().await;
    let path = format!("/api/v1/stats/plays/total?owner_id={owner}");
    let count = served.client.fetch_json(&path).await["count"]
        .as_i64()
        .expect("a count");
    served.end().await;
    count
}

/// Writes a file that expects 40 plays on a day without plays; returns the owner's total, too.
async fn write_claim(world: &World, name: &str) -> (PathBuf, i64) {
    let total = fetch_owner_total(world, 1).await;
    let header = "owner_id,bucket,track_id,kind,expected";
    let path = write_file(world, name, &[header, "1,2026-05-01,12,play,40"]);
    (path, total)
}

async fn apply_and_undo_claims(world: &World) {
    populate(world).await;
    let view = "plays_owner_day_track";
    let (path, total) = write_claim(world, "claims.csv").await;
    let report = restore(world, &claims_request(view, &path))
        .await
        .expect("comparing");
    assert_eq!(
        (report.keys, report.differ, report.total),
        (1, 1, 40),
        "{report:#?}"
    );
    let difference = &report.differences[0];
    assert_eq!(
        (difference.cause, difference.served, difference.stored),
        (ReconcileCause::Claimed, 0, None),
        "{difference:?}"
    );
    let limited = ReconcileRequest {
        apply_max: Some(39),
        ..correcting_request(view, &path)
    };
    let report = restore(world, &limited).await.expect("comparing");
    assert!(
        report.applied.is_none() && report.held_back.is_some(),
        "{report:#?}"
    );
    let report = restore(world, &correcting_request(view, &path))
        .await
        .expect("correcting");
    let applied = report.applied.expect("it was applied");
    assert_eq!(
        (applied.corrections, applied.restoration, applied.rows),
        (1, Some(1), 0),
        "{applied:?}"
    );
    // Live state has not counted the correction yet, so a second one is refused.
    let report = restore(world, &correcting_request(view, &path))
        .await
        .expect("comparing");
    let reason = report.held_back.expect("a refusal");
    assert!(reason.contains("restoration 1"), "{reason}");
    world.catch_up().await;
    assert_eq!(fetch_owner_total(world, 1).await, total + 40);
    for full in [false, true] {
        let report = restore(world, &correcting_request(view, &path))
            .await
            .expect("correcting");
        let applied = report.applied.expect("nothing prevents it");
        assert_eq!(
            (report.differ, applied.corrections, applied.restoration),
            (0, 0, None)
        );
        let request = RunRequest {
            full,
            ..RunRequest::default()
        };
        world.run(&request).await.expect("a run");
        assert_eq!(fetch_owner_total(world, 1).await, total + 40);
    }
    assert_views_match(world, &[view]).await;
    undo_and_redo(world, total).await;
}

async fn undo_and_redo(world: &World, original: i64) {
    let intake = world.intake(Source::Plays).await;
    let stop = CancellationToken::new();
    for (number, expected) in [(1, original), (2, original + 40), (3, original)] {
        let batch = world.batch();
        let restoration = (Source::Plays, number);
        let undo = async || {
            let progress: (&dyn Progress, _) = (&(), &stop);
            batch
                .undo_restoration(restoration, ("bob", "it was found"), &intake, progress)
                .await
        };
        let undone = undo().await.expect("undoing");
        assert_eq!((undone.number, undone.undoes), (number + 1, Some(number)));
        let twice = undo().await.expect_err("already undone").to_string();
        assert!(twice.contains("already"), "{twice}");
        world.catch_up().await;
        assert_eq!(fetch_owner_total(world, 1).await, expected);
    }
    let restorations = world
        .batch()
        .restorations(Source::Plays)
        .await
        .expect("a list");
    let listed: Vec<_> = restorations
        .iter()
        .map(|restoration| {
            (
                restoration.restoration.number,
                restoration.restoration.by.as_str(),
                restoration.done_until.is_some(),
            )
        })
        .collect();
    assert_eq!(
        listed,
        [
            (1, "ada", true),
            (2, "bob", true),
            (3, "bob", true),
            (4, "bob", true)
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrections_are_applied_and_undone() {
    Box::pin(apply_and_undo_claims(&World::new().await)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrections_are_applied_and_undone_on_servers() {
    Box::pin(apply_and_undo_claims(&World::on_servers().await)).await;
}

/// Events counted during the scan of live state may be missing from partitions that were read
/// before: nothing is corrected twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrections_counted_during_a_scan_are_not_repeated() {
    let world = Arc::new(World::new().await);
    populate(&world).await;
    // Owners of several partitions: the first is read before events arrive.
    let mut lines = vec!["owner_id,bucket,track_id,kind,expected".to_owned()];
    lines.extend((1..=9).map(|owner| format!("{owner},2026-05-01,12,play,40")));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let path = write_file(&world, "claims.csv", &lines);
    let request = correcting_request("plays_owner_day_track", &path);
    let report = restore(&world, &request).await.expect("correcting");
    assert_eq!(report.applied.expect("it was applied").corrections, 9);
    let progress = IngestDuringScan {
        world: Arc::clone(&world),
        is_live_stage: false.into(),
        first_id: 4_000,
        rounds: 0.into(),
    };
    let (batch, intake) = (world.batch(), world.intake(Source::Plays).await);
    let stop = CancellationToken::new();
    let second = batch.restore(&request, &intake, (&progress, &stop)).await;
    let second = second.expect("comparing");
    assert!(progress.rounds.into_inner() > 0);
    assert!(second.held_back.is_some(), "{second:#?}");
    world.catch_up().await;
    let second = restore(&world, &request).await.expect("comparing");
    assert_eq!((second.differ, second.held_back), (0, None));
}

/// Corrections that would be rejected, or would change other counts, fail before anything is
/// recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_corrections_are_rejected() {
    let world = World::new().await;
    populate(&world).await;
    let cell_lines = [
        "track_id,bucket,owner_id,listener_cell,kind,expected",
        "10,2026-01-01,1,5,play,7",
    ];
    let kind_lines = [
        "owner_id,bucket,track_id,kind,expected",
        "1,2026-05-01,12,stream,40",
    ];
    let track_lines = ["owner_id,track_id,kind,expected", "1,12,play,4000"];
    let with_fields = |path: &Path, view: &str, set: &[(&str, &str)]| {
        let set = set.iter();
        ReconcileRequest {
            set: set
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..correcting_request(view, path)
        }
    };
    let track_day = "plays_owner_day_track";
    let track_lines = write_file(&world, "track.csv", &track_lines);
    let filtered = ReconcileRequest {
        from: Some(1_769_904_000),
        ..with_fields(&track_lines, track_day, &[("at", "2026-01-02T00:00:00Z")])
    };
    for (request, text) in [
        (
            with_fields(
                &write_file(&world, "cell.csv", &cell_lines),
                "plays_track_day_uniques",
                &[],
            ),
            "no single event changes",
        ),
        (
            with_fields(&write_file(&world, "kind.csv", &kind_lines), track_day, &[]),
            "kind",
        ),
        (
            with_fields(&track_lines, track_day, &[("at", "yesterday")]),
            "at",
        ),
        (filtered, "no single event changes"),
    ] {
        let error = restore(&world, &request).await.expect_err(text).to_string();
        assert!(
            error.contains(text) && error.contains("Nothing was corrected"),
            "{error}"
        );
    }
    for (name, text) in [("coutry", "unknown field"), ("amount", "unknown field")] {
        let request = with_fields(
            &track_lines,
            track_day,
            &[("at", "2026-01-02T00:00:00Z"), (name, "1")],
        );
        let error = restore(&world, &request).await.expect_err(name).to_string();
        assert!(error.contains(text) && error.contains(name), "{error}");
    }
    let from_archive = ReconcileRequest {
        expected: Expected::Archive,
        ..with_fields(&track_lines, track_day, &[("country", "DE")])
    };
    let error = restore(&world, &from_archive).await.expect_err("--set");
    assert!(error.to_string().contains("--set country"), "{error}");
    let recorded = world.batch().restorations(Source::Plays).await;
    assert!(recorded.expect("a list").is_empty());
}

/// The expected counts may include events that live state has not counted yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncounted_events_of_the_log_are_not_corrected() {
    let world = World::new().await;
    populate(&world).await;
    let lines: Vec<String> = (0..3)
        .map(|event| {
            format!(
                r#"{{"event_id": "late-{event}", "track_id": 12, "owner_id": 1, "kind": "play", "at": "2026-05-01T10:00:00Z"}}"#
            )
        })
        .collect();
    world.ingest(&lines).await;
    let header = "owner_id,bucket,track_id,kind,expected";
    let path = write_file(&world, "claims.csv", &[header, "1,2026-05-01,12,play,3"]);
    let view = "plays_owner_day_track";
    let preview = restore(&world, &claims_request(view, &path))
        .await
        .expect("comparing");
    assert_eq!(preview.differ, 1, "{preview:#?}");
    assert!(
        preview
            .warnings
            .iter()
            .any(|warning| warning.contains("backstitch speed")),
        "{preview:#?}"
    );
    let refused = restore(&world, &correcting_request(view, &path))
        .await
        .expect("comparing");
    assert!(refused.applied.is_none(), "{refused:#?}");
    assert!(
        refused
            .held_back
            .is_some_and(|reason| reason.contains("in the log"))
    );
    world.catch_up().await;
    let report = restore(&world, &correcting_request(view, &path))
        .await
        .expect("comparing");
    assert_eq!((report.differ, report.held_back), (0, None));
}

/// Interrupted corrections are continued under the same numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_corrections_are_continued() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_owner_day_track";
    let (path, total) = write_claim(&world, "claims.csv").await;
    for stage in ["correct", "append"] {
        let stop = CancellationToken::new();
        let progress = cancel_at(stage, &stop);
        let (batch, intake) = (world.batch(), world.intake(Source::Plays).await);
        let request = correcting_request(view, &path);
        let result = batch.restore(&request, &intake, (&progress, &stop)).await;
        result.expect_err("it was interrupted");
    }
    let recorded = world
        .batch()
        .restorations(Source::Plays)
        .await
        .expect("a list");
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].done_until, None);
    let report = restore(&world, &correcting_request(view, &path))
        .await
        .expect("continuing");
    assert!(report.held_back.is_some(), "{report:#?}");
    world.catch_up().await;
    assert_eq!(fetch_owner_total(&world, 1).await, total + 40);
    let report = restore(&world, &correcting_request(view, &path))
        .await
        .expect("nothing is left");
    assert_eq!(report.differ, 0, "{report:#?}");
    let recorded = world
        .batch()
        .restorations(Source::Plays)
        .await
        .expect("a list");
    assert_eq!(recorded.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_any_format_may_have_fewer_columns() {
    let world = World::new().await;
    populate(&world).await;
    let view = "plays_owner_day_track";
    let totals = [
        fetch_owner_total(&world, 1).await,
        fetch_owner_total(&world, 2).await,
    ];
    let lines = [
        format!(r#"{{"owner_id": 1, "expected": {}}}"#, totals[0]),
        format!(r#"{{"expected": {}, "owner_id": 2}}"#, totals[1] + 3),
    ];
    let path = write_file(&world, "claims.jsonl", &[&lines[0], "", &lines[1]]);
    let report = restore(&world, &claims_request(view, &path))
        .await
        .expect("comparing");
    assert_eq!(
        (report.keys, report.differ, report.total),
        (2, 1, 3),
        "{report:#?}"
    );
    let tolerant = ReconcileRequest {
        tolerance: (3, 0.0),
        ..claims_request(view, &path)
    };
    assert_eq!(
        restore(&world, &tolerant).await.expect("comparing").differ,
        0
    );
    // The third owner is not in the file.
    let complete = ReconcileRequest {
        is_whole: true,
        ..claims_request(view, &path)
    };
    assert_eq!(
        restore(&world, &complete).await.expect("comparing").differ,
        2
    );
    let error = restore(&world, &correcting_request(view, &path))
        .await
        .expect_err("no event");
    let error = error.to_string();
    assert!(
        error.contains("track_id and at") && error.contains("--set"),
        "{error}"
    );
    let with_fields = ReconcileRequest {
        set: [
            ("track_id", "7"),
            ("at", "2026-01-01T00:00:00Z"),
            ("kind", "play"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
        ..correcting_request(view, &path)
    };
    restore(&world, &with_fields).await.expect("correcting");
    world.catch_up().await;
    assert_eq!(fetch_owner_total(&world, 2).await, totals[1] + 3);
    let parquet = write_parquet_totals(&world, &[1, 2], &[totals[0], totals[1] + 3]);
    let report = restore(&world, &claims_request(view, &parquet))
        .await
        .expect("comparing");
    assert_eq!((report.keys, report.differ), (2, 0), "{report:#?}");
}

/// Writes expected totals by owner as Parquet, with 32-bit integers.
fn write_parquet_totals(world: &World, owners: &[i32], expected: &[i64]) -> PathBuf {
    write_parquet(
        world,
        &[
            ("owner_id", Arc::new(Int32Array::from(owners.to_vec()))),
            ("expected", Arc::new(Int64Array::from(expected.to_vec()))),
        ],
    )
}

fn write_parquet(world: &World, columns: &[(&str, ArrayRef)]) -> PathBuf {
    let columns = columns
        .iter()
        .map(|(name, column)| (*name, Arc::clone(column)));
    let rows = RecordBatch::try_from_iter(columns).expect("columns");
    let mut writer = stores::parquet_file::begin(rows.schema(), 10).expect("a file");
    writer.write(&rows).expect("rows");
    let bytes = stores::parquet_file::finish(writer).expect("a file");
    let path = world.path().join("claims.parquet");
    std::fs::write(&path, bytes).expect("writing a file");
    path
}

/// Other column types are accepted if every value converts exactly; no value is rounded or skipped.
async fn inexact_values_are_rejected(world: &World) {
    let ints = |ints: &[i64]| -> ArrayRef { Arc::new(Int64Array::from(ints.to_vec())) };
    let floats = |floats: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(floats.to_vec())) };
    let texts = |texts: &[&str]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    let nanos = |nanos: i64| -> ArrayRef { Arc::new(TimestampNanosecondArray::from(vec![nanos])) };
    let day_ns = 1_767_225_600_000_000_000;
    for (columns, text) in [
        (vec![("owner_id", floats(&[1.9]))], "owner_id is 1.9"),
        (vec![("owner_id", texts(&["993x"]))], "993x"),
        (
            vec![("owner_id", Arc::new(BooleanArray::from(vec![true])))],
            "Boolean",
        ),
        (
            vec![("owner_id", Arc::new(UInt64Array::from(vec![1_u64 << 63])))],
            "owner_id",
        ),
        (
            vec![("owner_id", floats(&[1e17]))],
            "write it as an integer",
        ),
        (
            vec![("owner_id", ints(&[1])), ("bucket", nanos(day_ns + 1))],
            "bucket",
        ),
        (
            vec![("owner_id", ints(&[1])), ("bucket", ints(&[0]))],
            "bucket is of the type Int64",
        ),
    ] {
        let columns = [columns, vec![("expected", ints(&[5]))]].concat();
        let request = claims_request("plays_owner_day", &write_parquet(world, &columns));
        let error = restore(world, &request).await.expect_err(text).to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
    let rounded = [("owner_id", ints(&[1])), ("expected", floats(&[20.5]))];
    let request = claims_request("plays_owner_day", &write_parquet(world, &rounded));
    let error = restore(world, &request)
        .await
        .expect_err("a half")
        .to_string();
    assert!(error.contains("expected is 20.5"), "{error}");
    let exact = [("owner_id", floats(&[1.0])), ("expected", floats(&[20.0]))];
    let request = claims_request("plays_owner_day", &write_parquet(world, &exact));
    restore(world, &request).await.expect("whole numbers");
    let exact = [
        ("owner_id", ints(&[1])),
        ("bucket", nanos(day_ns)),
        ("expected", ints(&[5])),
    ];
    let request = claims_request("plays_owner_day", &write_parquet(world, &exact));
    restore(world, &request)
        .await
        .expect("the beginning of a day");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_in_a_file_are_located() {
    let world = World::new().await;
    populate(&world).await;
    for (name, lines, text) in [
        (
            "a.csv",
            &["owner_id,expected", "1,5", "x,7"][..],
            "line 3: owner_id is \"x\"",
        ),
        (
            "b.csv",
            &["owner_id,expected", "1,many"],
            "line 2: expected is many",
        ),
        (
            "c.csv",
            &["owner_id,count", "1,5"],
            "no column \"expected\"",
        ),
        ("d.csv", &["owner,expected", "1,5"], "no column \"owner\""),
        (
            "e.csv",
            &["owner_id,bucket,expected", "1,2026-03-01T10:00:00Z,5"],
            "not the start of a bucket",
        ),
        ("f.csv", &["owner_id,expected", "1,5", "1,6"], "2 times"),
        ("g.csv", &["owner_id,expected", "1"], "record"),
        (
            "n.csv",
            &["owner_id,expected"],
            "it needs at least one line",
        ),
        (
            "h.jsonl",
            &[
                r#"{"owner_id": 1, "expected": 5}"#,
                r#"{"owner_id": null, "expected": 5}"#,
            ],
            "line 2: owner_id is missing",
        ),
        (
            "i.jsonl",
            &[
                r#"{"owner_id": 1, "expected": 5}"#,
                r#"{"owner_id": 1, "kind": "play", "expected": 5}"#,
            ],
            "line 2: \"kind\"",
        ),
        ("j.jsonl", &["[]"], "JSON object"),
        (
            "m.jsonl",
            &[
                "\u{feff}{\"owner_id\": 1, \"expected\": 5}",
                r#"{"owner_id": 1, "expected": 5, "owner_id": 2}"#,
            ],
            "line 2: \"owner_id\" occurs twice",
        ),
        ("k.txt", &["x"], ".csv, .jsonl or .parquet"),
        ("l.parquet", &["x"], "l.parquet"),
    ] {
        let path = write_file(&world, name, lines);
        let error = restore(&world, &claims_request("plays_owner_day", &path)).await;
        let error = error.expect_err(name).to_string();
        let is_located = error.contains(text) && error.contains(name);
        assert!(is_located, "{name}: {error}");
    }
    inexact_values_are_rejected(&world).await;
    let missing = world.path().join("none.csv");
    let error = restore(&world, &claims_request("plays_owner_day", &missing)).await;
    assert!(error.expect_err("no file").to_string().contains("none.csv"));
}
