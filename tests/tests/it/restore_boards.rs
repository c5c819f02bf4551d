//! The Reconciler on boards: consistent boards show no differences, also during ingestion. Changed
//! live state, rows without notifications and lost batch rows are found, classified and repaired
//! once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use batch::{Expected, Progress, ReconcileCause, ReconcileReport, ReconcileRequest, RunRequest};
use bytes::Bytes;
use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::views::{NewHead, NewVersion};
use tests::stages::{StageCallback, cancel_at, wait_for};
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

use super::board_drift::{add_row_without_notification, connect, replace_live_state};

const SEGMENTS: &str = "segment_boards";
const ATHLETES: &str = "application_athletes";
const APPLICATION: i64 = 7;

fn request_for(view: &str) -> ReconcileRequest {
    ReconcileRequest {
        view: view.to_owned(),
        expected: Expected::Canonical,
        limit: 100,
        ..ReconcileRequest::default()
    }
}

fn applying_request(view: &str) -> ReconcileRequest {
    ReconcileRequest {
        apply: true,
        by: "ada".to_owned(),
        ..request_for(view)
    }
}

fn find_source(view: &str) -> Source {
    match view {
        SEGMENTS => Source::Efforts,
        _ => Source::Authorizations,
    }
}

async fn restore_with(
    world: &World,
    request: &ReconcileRequest,
    progress: &dyn Progress,
) -> batch::Result<ReconcileReport> {
    let stop = CancellationToken::new();
    let intake = world.intake(find_source(&request.view)).await;
    let batch = world.batch();
    batch.restore(request, &intake, (progress, &stop)).await
}

async fn restore(world: &World, request: &ReconcileRequest) -> ReconcileReport {
    let report = restore_with(world, request, &()).await;
    report.expect("a restoration")
}

async fn assert_view_matches(world: &World, view: &str) {
    let report = restore(world, &request_for(view)).await;
    assert_eq!(
        (report.differ, &report.warnings[..]),
        (0, &[][..]),
        "{report:#?}"
    );
    assert_eq!(report.live_unknown, None);
    assert!(report.keys > 0, "{report:#?}");
}

fn effort(id: i64, segment: i64, seconds: i64) -> String {
    let row = json!({
        "id": id, "segment_id": segment, "athlete_id": id % 90, "activity_id": id,
        "elapsed_time": seconds, "started_at": "2026-02-01T10:00:00Z",
    });
    row.to_string()
}

async fn ingest_efforts(world: &World, ids: std::ops::Range<i64>) {
    let rows = ids.map(|id| effort(id, 5 + id % 3, 100 + (id * 37) % 50));
    let rows: Vec<String> = rows.collect();
    world.ingest_into(Source::Efforts, &rows).await;
}

/// Boards with batch rows and live states.
async fn populate(world: &World) {
    ingest_efforts(world, 0..200).await;
    let row = json!({"id": APPLICATION, "name": "a", "owner": "o", "athlete_capacity": 1_000});
    world
        .ingest_into(Source::Applications, &[row.to_string()])
        .await;
    world.intake(Source::Authorizations).await;
    world.catch_up_on(Source::Efforts).await;
    connect(world, 1..60).await;
    for source in [Source::Efforts, Source::Authorizations] {
        let run = world.run_on(source, &RunRequest::default()).await;
        run.expect("a run");
    }
    ingest_efforts(world, 200..230).await;
    world.catch_up_on(Source::Efforts).await;
    connect(world, 60..70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_boards_have_no_differences() {
    let world = World::new().await;
    let error = restore_with(&world, &request_for(SEGMENTS), &()).await;
    let error = error.expect_err("nothing to compare").to_string();
    assert!(error.contains("batch run"), "{error}");
    populate(&world).await;
    assert_view_matches(&world, SEGMENTS).await;
    assert_view_matches(&world, ATHLETES).await;
    let stages = AtomicU64::new(0);
    // Ingests rows in several stages of the comparison.
    let progress = StageCallback(|name: &str| {
        let next = stages.fetch_add(1, Ordering::Relaxed);
        if !["compute", "compare"].contains(&name) || next > 20 {
            return;
        }
        let first_id = 1_000 + 40 * i64::try_from(next).expect("small");
        wait_for(async {
            ingest_efforts(&world, first_id..first_id + 30).await;
            if next.is_multiple_of(2) {
                world.catch_up_on(Source::Efforts).await;
            }
        });
    });
    let report = restore_with(&world, &request_for(SEGMENTS), &progress).await;
    let report = report.expect("comparing");
    assert_eq!(report.differ, 0, "{report:#?}");
    assert!(stages.load(Ordering::Relaxed) > 0);
    world.catch_up_on(Source::Efforts).await;
    assert_view_matches(&world, SEGMENTS).await;
}

/// Repairs a view, and checks that nothing differs and a second repair does nothing.
async fn repair(world: &World, view: &str) {
    let report = restore(world, &applying_request(view)).await;
    let applied = report.applied.expect("it was applied");
    assert!(
        applied.restoration.is_some() && applied.run.is_some(),
        "{applied:?}"
    );
    world.catch_up_on(find_source(view)).await;
    assert_view_matches(world, view).await;
    let second = restore(world, &applying_request(view)).await;
    let applied = second.applied.expect("it was applied");
    assert_eq!(
        (second.differ, applied.restoration, applied.run),
        (0, None, None)
    );
}

async fn repair_damage(world: &World) {
    populate(world).await;
    // Live state was changed by another program.
    for (view, board, key, athlete) in [
        (ATHLETES, "applications", APPLICATION, 62),
        (SEGMENTS, "segments", 5, 27),
    ] {
        replace_live_state(world, board, key, athlete).await;
        let report = restore(world, &request_for(view)).await;
        assert!(report.differ > 0, "{report:#?}");
        let difference = &report.differences[0];
        assert_eq!(difference.cause, ReconcileCause::ChangedLive, "{report:#?}");
        assert_eq!(
            (difference.served, difference.difference),
            (0, 1),
            "{report:#?}"
        );
        assert_eq!(difference.key["athlete_id"], athlete, "{difference:#?}");
        assert!(difference.expected_row.is_some() && difference.served_row.is_none());
        repair(world, view).await;
    }
    // Rows without notifications.
    add_row_without_notification(world, 99).await;
    let report = restore(world, &request_for(ATHLETES)).await;
    let causes: Vec<_> = report.causes.keys().copied().collect();
    assert_eq!(causes, [ReconcileCause::NotTold], "{report:#?}");
    let elsewhere = ReconcileRequest {
        keys: BTreeMap::from([("application_id".to_owned(), vec!["8".to_owned()])]),
        ..request_for(ATHLETES)
    };
    assert_eq!(restore(world, &elsewhere).await.differ, 0);
    repair(world, ATHLETES).await;
    repair_lost_batch_rows(world).await;
}

/// Repairs an unreadable head, and a head whose nodes are lost.
async fn repair_lost_batch_rows(world: &World) {
    let view = SEGMENTS;
    let run = world.run_on(Source::Efforts, &RunRequest::default()).await;
    run.expect("a run");
    let boards = world.catalog.boards().iter();
    let job = boards.clone().find(|job| job.name() == view);
    let job = job.expect("the job");
    let key = job.key().encode_values(&[KeyValue::Int(5)]).expect("a key");
    let (views, results) = (&world.stores.views, BTreeMap::new());
    let heads = views.heads(job.view(), std::slice::from_ref(&key)).await;
    let heads = heads.expect("heads").expect("a table");
    let root = heads[0].as_ref().expect("a head").root.clone();
    for (root, days) in [(Bytes::from_static(b"nothing"), 0), (root, 3)] {
        let records = views.runs(Source::Efforts).await.expect("runs");
        let epoch = records.runs.newest_complete();
        // An earlier root keeps its nodes for a day.
        for day in 0..=days {
            let at_ms = NOW_MS + day * 86_400_000;
            let stamp = views.begin_publishing(Source::Efforts, epoch, &results, at_ms);
            let stamp = stamp.await.expect("a stamp");
            let versions = [NewVersion {
                key: key.clone(),
                nodes: Vec::new(),
                head: Some(NewHead {
                    root: root.clone(),
                    names: Vec::new(),
                }),
                rewrites_nodes: false,
                drops_earlier_root: false,
            }];
            let written =
                views.publish_versions(Source::Efforts, job.view(), epoch, stamp, &versions);
            written.await.expect("a head");
            let epoch_and_stamp = (epoch, stamp);
            let collected =
                views.collect_garbage(Source::Efforts, job.view(), epoch_and_stamp, 10_000);
            collected.await.expect("nodes");
        }
        let report = restore(world, &request_for(view)).await;
        let causes: Vec<_> = report.causes.keys().copied().collect();
        assert_eq!(causes, [ReconcileCause::Damaged], "{report:#?}");
        assert_eq!(report.differences[0].key["segment_id"], 5);
        repair(world, view).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_boards_are_repaired() {
    repair_damage(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_boards_are_repaired_on_servers() {
    repair_damage(&World::on_servers().await).await;
}

/// A repair completes after interruptions in any stage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_repair_is_repeated() {
    let world = World::new().await;
    populate(&world).await;
    add_row_without_notification(&world, 99).await;
    for stage in ["snapshot", "compare", "tell", "seal", "publish"] {
        let stop = CancellationToken::new();
        let progress = cancel_at(stage, &stop);
        let intake = world.intake(Source::Authorizations).await;
        let batch = world.batch();
        let request = applying_request(ATHLETES);
        let result = batch.restore(&request, &intake, (&progress, &stop)).await;
        result.expect_err("it was interrupted");
    }
    let report = restore(&world, &applying_request(ATHLETES)).await;
    assert!(report.applied.is_some(), "{report:#?}");
    world.catch_up_on(Source::Authorizations).await;
    assert_view_matches(&world, ATHLETES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_are_rejected() {
    let world = World::new().await;
    populate(&world).await;
    let keys =
        |name: &str, value: &str| BTreeMap::from([(name.to_owned(), vec![value.to_owned()])]);
    for (request, text) in [
        (
            ReconcileRequest {
                expected: Expected::Archive,
                ..request_for(SEGMENTS)
            },
            "--expected canonical",
        ),
        (
            ReconcileRequest {
                expected: Expected::Canonical,
                ..request_for("plays_owner_day")
            },
            "counts events",
        ),
        (
            ReconcileRequest {
                from: Some(0),
                ..request_for(SEGMENTS)
            },
            "--from",
        ),
        (
            ReconcileRequest {
                keys: keys("athlete_id", "3"),
                ..request_for(SEGMENTS)
            },
            "segment_id",
        ),
        (
            ReconcileRequest {
                keys: keys("segment_id", "five"),
                ..request_for(SEGMENTS)
            },
            "expected an integer",
        ),
    ] {
        let error = restore_with(&world, &request, &()).await;
        let error = error.expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
}
