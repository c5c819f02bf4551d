//! Duplicates. The duplicate window filters them. A duplicate outside the window counts live until
//! the next run, which reports it.

use std::collections::BTreeMap;

use batch::{Cause, ReconcileCause, RunRequest};
use schemas::seam::{GenerationStart, RunState};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::live::{Changes, PartitionId};
use tests::plays;
use tests::stages::{StageCallback, wait_for};
use tests::world::{NOW_MS, PARTITIONS, World};
use tokio_util::sync::CancellationToken;

fn play(id: &str) -> String {
    plays::play(id, json!({"track_id": 10, "at": "2026-03-01T10:00:00Z"}))
}

async fn fetch_total(served: &tests::world::Served) -> (i64, String) {
    let answer = served
        .client
        .fetch_json("/api/v1/stats/plays/total?owner_id=1")
        .await;
    let source = answer["provenance"]["source"]
        .as_str()
        .expect("a source")
        .to_owned();
    (answer["count"].as_i64().expect("a count"), source)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_outside_the_window_is_drift_until_the_next_run() {
    let world = World::new().await;
    world.ingest(&[play("a"), play("b"), play("a")]).await;
    world.catch_up().await;
    let served = world.serve().await;
    assert_eq!(fetch_total(&served).await, (2, "realtime".to_owned()));
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!((report.drift.total, report.duplicates), (Some(0), 1));
    assert_eq!(fetch_total(&served).await, (2, "batch".to_owned()));

    // Two hours later, beyond the window of one hour.
    world.clock.set_ms(NOW_MS + 2 * 3_600_000);
    world.ingest(&[play("c"), play("a")]).await;
    world.catch_up().await;
    assert_eq!(
        fetch_total(&served).await,
        (4, "merged".to_owned()),
        "one too many, as documented"
    );
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(report.drift.total, Some(1));
    assert_eq!(report.drift.keys, 1);
    let worst = &report.drift.worst[0];
    assert_eq!((worst.batch, worst.live), (1, 2), "{worst:?}");
    assert!(worst.key.contains("owner_id=1"), "{worst:?}");
    assert_eq!(worst.cause, Cause::Duplicate);
    let detail = &report.drift.views[0];
    assert_eq!(detail.job, "plays_detail");
    assert_eq!((detail.total, detail.keys), (Some(1), 1));
    assert_eq!(detail.causes, BTreeMap::from([(Cause::Duplicate, 1)]));
    assert_eq!(report.drift.views.len(), 1, "no other reads the events");
    assert_eq!(fetch_total(&served).await, (3, "batch".to_owned()));
    // The live count is stored beside the batch count, for every form of the query.
    for (query, count, source) in [
        ("owner_id=1&prefer=batch", 3, "batch"),
        ("owner_id=1&prefer=realtime", 4, "realtime"),
        ("track_id=10&prefer=realtime", 4, "realtime"),
        (
            "owner_id=1&prefer=realtime&period=month&date=2026-03-09",
            4,
            "realtime",
        ),
        (
            "owner_id=1&prefer=realtime&period=month&date=2026-04-09",
            0,
            "realtime",
        ),
    ] {
        let path = format!("/api/v1/stats/plays/total?{query}");
        let answer = served.client.fetch_json(&path).await;
        assert_eq!(answer["count"], count, "{path}: {answer}");
        assert_eq!(answer["provenance"]["source"], source, "{path}: {answer}");
    }
    // It stays when more is counted, and after the next run.
    world.ingest(&[play("d")]).await;
    world.catch_up().await;
    let realtime = "/api/v1/stats/plays/total?owner_id=1&prefer=realtime";
    assert_eq!(served.client.fetch_json(realtime).await["count"], 5);
    world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!(served.client.fetch_json(realtime).await["count"], 5);
    assert_eq!(fetch_total(&served).await, (4, "batch".to_owned()));
    let runs = served.client.fetch_json("/api/v1/batch/runs").await;
    assert_eq!(runs["runs"][1]["drift"]["total"], 1, "{runs}");
    check_explanations(&served).await;
    served.end().await;
}

/// A client with another partitioner sends an event again, within the window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_in_another_partition_is_reported() {
    let world = World::new().await;
    world.ingest(&[play("a"), play("b")]).await;
    let owner_partition = schemas::partition::partition_of(b"1", PARTITIONS);
    let copy = play("a");
    world
        .append_raw((owner_partition + 1) % PARTITIONS, &[copy.as_bytes()])
        .await;
    world.catch_up().await;
    let request = crate::restore::request_for("plays_detail");
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!((report.drift.total, report.duplicates), (Some(1), 1));
    assert_eq!(report.drift.worst[0].cause, Cause::OtherPartition);
    assert_eq!(
        report.drift.views[0].causes,
        BTreeMap::from([(Cause::OtherPartition, 1)])
    );
    // The same for events after the run.
    world
        .append_raw((owner_partition + 1) % PARTITIONS, &[play("b").as_bytes()])
        .await;
    world.catch_up().await;
    let report = crate::restore::restore(&world, &request).await;
    let differences = report.expect("comparing").differences;
    let causes: Vec<_> = differences
        .iter()
        .map(|difference| difference.cause)
        .collect();
    assert_eq!(causes, [ReconcileCause::OtherPartition]);
}

/// Three runs, of which the second found a duplicate.
async fn check_explanations(served: &tests::world::Served) {
    let path = "/api/v1/reconciliations";
    let client = &served.client;
    let listed = client.fetch_json(path).await;
    let runs_of = |page: &Value| -> Vec<(u64, u64)> {
        let list = page["reconciliations"].as_array().expect("a list");
        let run = |run: &Value| Some((run["epoch"].as_u64()?, run["total"].as_u64()?));
        list.iter().filter_map(run).collect()
    };
    assert_eq!(runs_of(&listed), [(3, 0), (2, 1), (1, 0)], "{listed}");
    let second = &listed["reconciliations"][1];
    assert_eq!(
        (&second["kind"], &second["source"]),
        (&json!("batch-run"), &json!("plays"))
    );
    assert_eq!(
        second["views"][0]["causes"],
        json!({"duplicate": 1}),
        "{second}"
    );
    assert_eq!(second["worst"][0]["cause"], "duplicate", "{second}");
    let (mut pages, mut cursor) = (Vec::new(), String::new());
    loop {
        let page_path = format!("{path}?limit=1{cursor}");
        let page = client.fetch_json(&page_path).await;
        pages.extend(runs_of(&page));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(pages, runs_of(&listed));
    let efforts_path = format!("{path}?source=efforts");
    let efforts = client.fetch_json(&efforts_path).await;
    assert_eq!(runs_of(&efforts), []);

    // The second and the third run changed the only row of the quarter hour.
    let explanation = client.fetch_json("/api/v1/explain?owner_id=1").await;
    let batch = explanation["batch"].as_array().expect("a list");
    let batch: Vec<_> = batch
        .iter()
        .map(|row| (&row["epoch"], &row["count"], &row["drift"]))
        .collect();
    assert_eq!(batch, [(&json!(3), &json!(4), &json!(0))], "{explanation}");
    assert_eq!(
        (&explanation["count"], &explanation["live"]),
        (&json!(4), &json!([])),
        "{explanation}"
    );
    let row = &explanation["rows"][0];
    assert_eq!(
        (&row["key"]["owner_id"], &row["batch"]["epoch"]),
        (&json!(1), &json!(3)),
        "{explanation}"
    );
    for query in [
        "owner_id=1&compare=previous",
        "owner_id=1&prefer=batch",
        "metric=none&owner_id=1",
        "segment_id=1&application_id=2",
        "",
    ] {
        let path = format!("/api/v1/explain?{query}");
        let (status, explanation) = tokio::task::block_in_place(|| client.get(&path));
        assert!([400, 404].contains(&status), "{query}: {status}");
        if query.contains("segment_id") {
            assert!(explanation.contains("name two boards"), "{explanation}");
        }
    }
}

/// The next run finds losses of live state and foreign additions, names them, and removes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_live_state_is_reported() {
    let world = World::new().await;
    world.ingest(&[play("a")]).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let served = world.serve().await;
    for (events, change, cause) in [
        (3, -2, Cause::LostLive),
        (3, -3, Cause::LostLive),
        (1, 5, Cause::Unexplained),
    ] {
        let count_before = fetch_total(&served).await.0;
        let events: Vec<String> = (0..events)
            .map(|n| play(&format!("{count_before} {n}")))
            .collect();
        world.ingest(&events).await;
        world.catch_up().await;
        add_to_live_counts(&world, change).await;
        let report = world.run(&RunRequest::default()).await.expect("a run");
        let detail = &report.drift.views[0];
        let causes = BTreeMap::from([(cause, change.unsigned_abs())]);
        assert_eq!(detail.causes, causes, "{report:?}");
        assert_eq!(report.drift.worst[0].cause, cause);
        let expected = count_before + i64::try_from(events.len()).expect("few");
        assert_eq!(fetch_total(&served).await, (expected, "batch".to_owned()));
    }
    served.end().await;
}

/// Live state is lost after the cuts are sealed. It restarts at the previous run and is still
/// incomplete, so the run cannot report drift.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuilt_live_state_is_no_drift() {
    let world = World::new().await;
    world.ingest(&[play("a"), play("b")]).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.ingest(&[play("c"), play("d")]).await;
    world.catch_up().await;
    let progress = StageCallback(|name: &str| {
        if name == "check" {
            wait_for(lose_and_rebuild(&world));
        }
    });
    let stop = CancellationToken::new();
    let request = RunRequest::default();
    let batch = world.batch();
    let report = batch.run(Source::Plays, &request, &progress, &stop).await;
    let report = report.expect("a run");
    assert_eq!((report.epoch, report.drift.total), (2, None), "{report:?}");
    let unknown = report.drift.unknown.expect("a reason");
    assert!(unknown.contains("was rebuilt"), "{unknown}");
    world.catch_up().await;
    let served = world.serve().await;
    for prefer in ["", "&prefer=realtime"] {
        let path = format!("/api/v1/stats/plays/total?owner_id=1{prefer}");
        assert_eq!(
            served.client.fetch_json(&path).await["count"],
            4,
            "{prefer}"
        );
    }
    served.end().await;
}

/// Loses live state after the cuts are sealed; it restarts at the previous run.
async fn lose_and_rebuild(world: &World) {
    world.delete_live_state();
    let (live, views) = (&world.stores.live, &world.stores.views);
    let runs = views.runs(Source::Plays).await.expect("runs").runs;
    for (index, partition) in (0..PARTITIONS as usize).zip(0..) {
        let start = GenerationStart {
            newest: runs.newest_complete(),
            cut: runs.cut(runs.newest_complete(), index).expect("a cut"),
            log_end: 0,
            generation_min: 77,
        };
        let id = PartitionId {
            source: Source::Plays,
            partition,
        };
        let rebuilt = live.rebuild(id, None, &start).await.expect("live state");
        assert!(rebuilt.is_ok(), "{rebuilt:?}");
    }
}

/// Adds to the live counts of the owner's plays since the latest run.
async fn add_to_live_counts(world: &World, change: i64) {
    add_to_live_row(world, "plays_detail", change).await;
}

/// Adds to one live row of a view since the latest run.
pub(crate) async fn add_to_live_row(world: &World, view: &str, change: i64) {
    let (live, view) = (&world.stores.live, world.catalog.job(view));
    let view = view.expect("the job").view().to_owned();
    let states = live
        .read_deltas(Source::Plays, PARTITIONS, &[])
        .await
        .expect("live state")
        .partition_states;
    for (partition, state) in (0..).zip(states) {
        let (state, id) = (
            state.expect("a partition state"),
            PartitionId {
                source: Source::Plays,
                partition,
            },
        );
        let epochs = (state.epoch, state.epoch);
        let mut deltas = live
            .collect_deltas(id, &view, epochs, None, 1)
            .await
            .expect("rows");
        if deltas.counts.is_empty() {
            continue;
        }
        deltas.view = view.clone();
        deltas.counts = vec![change].into();
        let changes = Changes::from(vec![deltas]);
        let applied = live
            .apply(id, state.checkpoint(), state.position, &[&view], &changes)
            .await;
        assert_eq!(applied.expect("live state"), Ok(()));
        return;
    }
    panic!("nothing is live");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incremental_run_writes_only_what_differs() {
    let world = World::new().await;
    let early: Vec<String> = (0..30).map(|i| play(&format!("e{i}"))).collect();
    let other = json!({"event_id": "x", "track_id": 11, "owner_id": 2, "kind": "play", "at": "2026-02-01T10:00:00Z"});
    world.ingest(&early).await;
    world.ingest(&[other.to_string()]).await;
    world.catch_up().await;
    let first = world.run(&RunRequest::default()).await.expect("a run");
    assert!(first.full);
    world.ingest(&[play("late")]).await;
    world.catch_up().await;
    let second = world.run(&RunRequest::default()).await.expect("a run");
    assert!(!second.full);
    // One row per view changed, and only that day's events were read again.
    let views = u64::try_from(world.catalog.jobs().len()).expect("few");
    assert_eq!((second.rows_written, second.rows_read), (views, 31));
    let third = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!((third.rows_written, third.rows_read), (0, 0));
    let full = RunRequest {
        full: true,
        ..RunRequest::default()
    };
    let fourth = world.run(&full).await.expect("a run");
    assert_eq!(
        (fourth.rows_written, fourth.rows_read),
        (0, 32),
        "{fourth:?}"
    );
    // A single job, at the cuts of the latest run.
    let single_job = RunRequest {
        jobs: vec!["plays_owner_day".to_owned()],
        ..RunRequest::default()
    };
    let repeated = world.run(&single_job).await.expect("a run");
    assert_eq!((repeated.epoch, repeated.rows_written), (fourth.epoch, 0));
    let unknown = RunRequest {
        jobs: vec!["plays_owner_year".to_owned()],
        ..RunRequest::default()
    };
    let refused = world
        .run(&unknown)
        .await
        .expect_err("an unknown job")
        .to_string();
    assert!(
        refused.contains("plays_owner_year") && refused.contains("plays_detail"),
        "{refused}"
    );
}

/// A run whose result fails its check is not published; the next one includes its events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_run_includes_an_abandoned_one() {
    let world = World::new().await;
    world.ingest(&[play("a")]).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    world.ingest(&[play("b")]).await;
    world.catch_up().await;
    // A run that has sealed its cuts and then failed its check, as the batch layer records it.
    let stores = &world.stores;
    let id = PartitionId {
        source: Source::Plays,
        partition: 0,
    };
    let mut cuts = Vec::new();
    for partition in 0..PARTITIONS {
        let id = PartitionId { partition, ..id };
        cuts.push(
            stores
                .live
                .end_epoch(id, 2)
                .await
                .expect("ending an epoch")
                .expect("a cut"),
        );
    }
    let run = stores
        .views
        .propose(Source::Plays, 2, &cuts, "t", NOW_MS)
        .await
        .expect("a proposal");
    assert_eq!(run.state, RunState::Proposed);
    stores
        .views
        .seal(Source::Plays, 2, "t")
        .await
        .expect("sealed");
    stores
        .views
        .abandon(Source::Plays, 2, NOW_MS)
        .await
        .expect("abandoned");
    world.ingest(&[play("c")]).await;
    world.catch_up().await;
    let served = world.serve().await;
    assert_eq!(fetch_total(&served).await, (3, "merged".to_owned()));
    let report = world.run(&RunRequest::default()).await.expect("a run");
    assert_eq!((report.epoch, report.drift.total), (3, Some(0)));
    assert_eq!(fetch_total(&served).await, (3, "batch".to_owned()));
    let runs = stores.views.runs(Source::Plays).await.expect("runs").runs;
    assert_eq!(runs.get(2).map(|run| run.state), Some(RunState::Abandoned));
    served.end().await;
}
