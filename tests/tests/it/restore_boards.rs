//! The Restorator of boards: what is right differs nowhere, also while it moves; live state that somebody changed, rows that
//! nobody was told of and batch rows that are gone are found, named and put right, once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use batch::{Expected, Progress, RestoreCause, RestoreReport, RestoreRequest, RunRequest};
use bytes::Bytes;
use schemas::key::KeyValue;
use schemas::source::Source;
use serde_json::json;
use stores::views::{NewHead, NewVersion};
use tests::stages::{OnStage, cancel_at, wait_for};
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

use super::board_drift::{connect, falsify, forgotten};

const SEGMENTS: &str = "segment_boards";
const ATHLETES: &str = "application_athletes";
const APPLICATION: i64 = 7;

fn of(view: &str) -> RestoreRequest {
    RestoreRequest {
        view: view.to_owned(),
        expected: Expected::Canonical,
        limit: 100,
        ..RestoreRequest::default()
    }
}

fn applied(view: &str) -> RestoreRequest {
    RestoreRequest {
        apply: true,
        by: "ada".to_owned(),
        ..of(view)
    }
}

fn source_of(view: &str) -> Source {
    match view {
        SEGMENTS => Source::Efforts,
        _ => Source::Authorizations,
    }
}

async fn restored_with(
    world: &World,
    request: &RestoreRequest,
    progress: &dyn Progress,
) -> batch::Result<RestoreReport> {
    let stop = CancellationToken::new();
    let intake = world.intake(source_of(&request.view)).await;
    let batch = world.batch();
    batch.restore(request, &intake, (progress, &stop)).await
}

async fn restored(world: &World, request: &RestoreRequest) -> RestoreReport {
    let done = restored_with(world, request, &()).await;
    done.expect("a restoration")
}

async fn is_right(world: &World, view: &str) {
    let report = restored(world, &of(view)).await;
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

async fn efforts(world: &World, ids: std::ops::Range<i64>) {
    let rows = ids.map(|id| effort(id, 5 + id % 3, 100 + (id * 37) % 50));
    let rows: Vec<String> = rows.collect();
    world.ingest_into(Source::Efforts, &rows).await;
}

/// Boards with batch rows and live states.
async fn lived_in(world: &World) {
    efforts(world, 0..200).await;
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
    efforts(world, 200..230).await;
    world.catch_up_on(Source::Efforts).await;
    connect(world, 60..70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_right_differs_nowhere() {
    let world = World::new().await;
    let none = restored_with(&world, &of(SEGMENTS), &()).await;
    let none = none.expect_err("nothing to compare").to_string();
    assert!(none.contains("batch run"), "{none}");
    lived_in(&world).await;
    is_right(&world, SEGMENTS).await;
    is_right(&world, ATHLETES).await;
    let moved = AtomicU64::new(0);
    // Rows come while boards are compared, a few times.
    let moving = OnStage(|name: &str| {
        let next = moved.fetch_add(1, Ordering::Relaxed);
        if !["compute", "compare"].contains(&name) || next > 20 {
            return;
        }
        let first = 1_000 + 40 * i64::try_from(next).expect("small");
        wait_for(async {
            efforts(&world, first..first + 30).await;
            if next.is_multiple_of(2) {
                world.catch_up_on(Source::Efforts).await;
            }
        });
    });
    let report = restored_with(&world, &of(SEGMENTS), &moving).await;
    let report = report.expect("comparing");
    assert_eq!(report.differ, 0, "{report:#?}");
    assert!(moved.load(Ordering::Relaxed) > 0);
    world.catch_up_on(Source::Efforts).await;
    is_right(&world, SEGMENTS).await;
}

/// Once put right, nothing differs and nothing is to be done.
async fn put_right(world: &World, view: &str) {
    let report = restored(world, &applied(view)).await;
    let done = report.applied.expect("it was applied");
    assert!(done.restoration.is_some() && done.run.is_some(), "{done:?}");
    world.catch_up_on(source_of(view)).await;
    is_right(world, view).await;
    let again = restored(world, &applied(view)).await;
    let done = again.applied.expect("nothing is in the way");
    assert_eq!((again.differ, done.restoration, done.run), (0, None, None));
}

async fn damages(world: &World) {
    lived_in(world).await;
    // Somebody else wrote to live state.
    for (view, key, athlete) in [
        (
            ATHLETES,
            (Source::Authorizations, "applications", APPLICATION),
            62,
        ),
        (SEGMENTS, (Source::Efforts, "segments", 5), 27),
    ] {
        falsify(world, key, athlete).await;
        let report = restored(world, &of(view)).await;
        assert!(report.differ > 0, "{report:#?}");
        let one = &report.differences[0];
        assert_eq!(one.cause, RestoreCause::ChangedLive, "{report:#?}");
        assert_eq!((one.served, one.difference), (0, 1), "{report:#?}");
        assert_eq!(one.key["athlete_id"], athlete, "{one:#?}");
        assert!(one.expected_row.is_some() && one.served_row.is_none());
        put_right(world, view).await;
    }
    // Rows that nobody was told of.
    forgotten(world, 99).await;
    let report = restored(world, &of(ATHLETES)).await;
    let causes: Vec<_> = report.causes.keys().copied().collect();
    assert_eq!(causes, [RestoreCause::NotTold], "{report:#?}");
    let elsewhere = RestoreRequest {
        keys: BTreeMap::from([("application_id".to_owned(), vec!["8".to_owned()])]),
        ..of(ATHLETES)
    };
    assert_eq!(restored(world, &elsewhere).await.differ, 0);
    put_right(world, ATHLETES).await;
    batch_rows_are_gone(world).await;
}

/// A head that can't be read, and one whose nodes are gone.
async fn batch_rows_are_gone(world: &World) {
    let view = SEGMENTS;
    let run = world.run_on(Source::Efforts, &RunRequest::default()).await;
    run.expect("a run");
    let boards = world.catalog.boards().iter();
    let job = boards.clone().find(|job| job.name() == view);
    let job = job.expect("the job");
    let key = job.key().encode_values(&[KeyValue::Int(5)]).expect("a key");
    let (views, nothing) = (&world.stores.views, BTreeMap::new());
    let heads = views.heads(job.view(), std::slice::from_ref(&key)).await;
    let heads = heads.expect("heads").expect("a table");
    let root = heads[0].as_ref().expect("a head").root.clone();
    for (root, days) in [(Bytes::from_static(b"nothing"), 0), (root, 3)] {
        let seen = views.runs(Source::Efforts).await.expect("runs");
        let epoch = seen.runs.newest();
        // An earlier root keeps its nodes for a day.
        for day in 0..=days {
            let at_ms = NOW_MS + day * 86_400_000;
            let stamp = views.begin_publishing(Source::Efforts, epoch, &nothing, at_ms);
            let stamp = stamp.await.expect("a stamp");
            let editions = [NewVersion {
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
                views.publish_versions(Source::Efforts, job.view(), epoch, stamp, &editions);
            written.await.expect("a head");
            let at = (epoch, stamp);
            let gone = views.collect_garbage(Source::Efforts, job.view(), at, 10_000);
            gone.await.expect("nodes");
        }
        let report = restored(world, &of(view)).await;
        let causes: Vec<_> = report.causes.keys().copied().collect();
        assert_eq!(causes, [RestoreCause::Damaged], "{report:#?}");
        assert_eq!(report.differences[0].key["segment_id"], 5);
        put_right(world, view).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damages_are_put_right() {
    damages(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damages_are_put_right_on_servers() {
    damages(&World::on_servers().await).await;
}

/// A restoration that was cut off anywhere is done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_off_is_done_again() {
    let world = World::new().await;
    lived_in(&world).await;
    forgotten(&world, 99).await;
    for stage in ["snapshot", "compare", "tell", "seal", "publish"] {
        let stop = CancellationToken::new();
        let cutting = cancel_at(stage, &stop);
        let intake = world.intake(Source::Authorizations).await;
        let batch = world.batch();
        let request = applied(ATHLETES);
        let cut = batch.restore(&request, &intake, (&cutting, &stop)).await;
        cut.expect_err("it was cut off");
    }
    let report = restored(&world, &applied(ATHLETES)).await;
    assert!(report.applied.is_some(), "{report:#?}");
    world.catch_up_on(Source::Authorizations).await;
    is_right(&world, ATHLETES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_are_named() {
    let world = World::new().await;
    lived_in(&world).await;
    let keys =
        |name: &str, value: &str| BTreeMap::from([(name.to_owned(), vec![value.to_owned()])]);
    for (request, text) in [
        (
            RestoreRequest {
                expected: Expected::Archive,
                ..of(SEGMENTS)
            },
            "--expected canonical",
        ),
        (
            RestoreRequest {
                expected: Expected::Canonical,
                ..of("plays_owner_day")
            },
            "counts events",
        ),
        (
            RestoreRequest {
                from: Some(0),
                ..of(SEGMENTS)
            },
            "--from",
        ),
        (
            RestoreRequest {
                keys: keys("athlete_id", "3"),
                ..of(SEGMENTS)
            },
            "segment_id",
        ),
        (
            RestoreRequest {
                keys: keys("segment_id", "five"),
                ..of(SEGMENTS)
            },
            "expected an integer",
        ),
    ] {
        let error = restored_with(&world, &request, &()).await;
        let error = error.expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
}
