//! Retention of archived events does not change responses. Late events for the same days count,
//! repeated ones do not, and operations that need deleted events are rejected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use batch::{Cause, DataKind, KindReport, Retention, RetentionOptions, RunRequest};
use schemas::clock::Clock;
use schemas::source::Source;
use serde_json::json;
use tests::catalog::catalog_with;
use tests::stages::cancel_at;
use tests::world::{Served, World};
use tokio_util::sync::CancellationToken;

const HOUR_MS: i64 = 3_600_000;

/// A play of the first two days of March, at least three days before the world's clock; or of its
/// day.
fn play(number: i64, is_new: bool) -> (i64, i64, String) {
    let (owner, amount) = (number % 5, 1 + number % 3);
    let minutes = number * 7 % 2_880;
    let day = if is_new { 5 } else { 1 + minutes / 1_440 };
    let hour = if is_new { 1 } else { minutes / 60 % 24 };
    let at = format!("2026-03-{day:02}T{hour:02}:{:02}:00Z", minutes % 60);
    let line = json!({"event_id": format!("e{number}"), "track_id": number % 7, "owner_id": owner,
        "listener_id": number % 11, "kind": "play", "at": at, "amount": amount});
    (owner, amount, line.to_string())
}

/// Expected totals by owner.
#[derive(Debug, Default)]
struct Truth(BTreeMap<i64, i64>);

impl Truth {
    fn lines(&mut self, numbers: std::ops::Range<i64>, is_new: bool) -> Vec<String> {
        numbers
            .map(|number| play(number, is_new))
            .map(|(owner, amount, line)| {
                *self.0.entry(owner).or_default() += amount;
                line
            })
            .collect()
    }

    async fn check(&self, served: &Served) {
        for (owner, expected) in &self.0 {
            for query in ["total", "series"] {
                let path = format!("/api/v1/stats/plays/{query}?owner_id={owner}");
                let answer = served.client.fetch_json(&path).await;
                let count = match query {
                    "total" => answer["count"].as_i64().expect("a count"),
                    _ => {
                        let points = answer["points"].as_array().expect("points").iter();
                        points
                            .map(|point| point["count"].as_i64().expect("a count"))
                            .sum()
                    }
                };
                assert_eq!(count, *expected, "{answer}");
            }
        }
    }
}

/// Advances the clock by two hours, beyond the deduplication window of logs without their own
/// clock.
fn pass_two_hours(world: &World) {
    world.clock.set_ms(world.clock.now_ms() + 2 * HOUR_MS);
}

/// Lines that were ingested before.
fn repeated_lines(numbers: std::ops::Range<i64>) -> Vec<String> {
    numbers.map(|number| play(number, false).2).collect()
}

fn create_retention(world: &World, archive_days: u32) -> Retention {
    let options = RetentionOptions {
        archive_days,
        ..RetentionOptions::default()
    };
    Retention::new(
        world.batch(),
        Arc::clone(&world.stores.entities) as _,
        options,
    )
}

fn events_report(reports: Vec<KindReport>) -> KindReport {
    let mut reports = reports.into_iter();
    reports
        .find(|report| report.kind == DataKind::Events)
        .expect("events")
}

async fn delete_old_files(world: &World, archive_days: u32) -> KindReport {
    let run = create_retention(world, archive_days);
    events_report(run.run(&CancellationToken::new()).await.expect("retention"))
}

async fn list_files(world: &World) -> Vec<String> {
    let files = world.stores.archive.list("archive/plays/files").await;
    files.expect("the archive")
}

/// Checks that a run fails because events are deleted.
async fn assert_rejected(world: &World, request: &RunRequest) {
    let error = world.run(request).await.expect_err("events are gone");
    let text = error.to_string();
    assert!(
        text.contains("2026-03-01") && text.contains("retention.archive_days"),
        "{text}"
    );
}

fn full_request() -> RunRequest {
    RunRequest {
        full: true,
        ..RunRequest::default()
    }
}

/// Counts, runs, deletes old events, and counts more.
async fn delete_and_count(world: &World) {
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..200, false)).await;
    world.ingest(&truth.lines(200..230, true)).await;
    world.catch_up().await;
    let served = world.serve().await;
    let report = delete_old_files(world, 2).await;
    assert_eq!(
        report.deleted.count, 0,
        "nothing is archived yet: {report:?}"
    );
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;

    let files_before = list_files(world).await;
    let preview = create_retention(world, 2).show().await.expect("a preview");
    let topics = preview
        .iter()
        .filter(|report| report.kind == DataKind::Topic);
    let policies: Vec<&str> = topics.map(|topic| &*topic.policy).collect();
    assert!(!policies.is_empty(), "{preview:?}");
    assert!(
        policies.iter().all(|policy| !policy.contains("unknown")),
        "{policies:?}"
    );
    let preview = events_report(preview);
    assert!(
        preview.eligible.count > 0 && preview.deleted.count == 0,
        "{preview:?}"
    );
    assert_eq!(
        list_files(world).await,
        files_before,
        "a preview deletes nothing"
    );
    let first_report = delete_old_files(world, 3).await;
    assert!(
        !first_report.retained.is_empty(),
        "some files contain events of the second day: {first_report:?}"
    );
    let report = delete_old_files(world, 2).await;
    assert_eq!(
        first_report.deleted.count + report.deleted.count,
        preview.eligible.count,
        "{report:?}"
    );
    assert!(
        list_files(world).await.len() < files_before.len(),
        "files were deleted"
    );
    truth.check(&served).await;

    ingest_late_events(world, &served, &mut truth).await;
    check_rejections(world).await;
    truth.check(&served).await;
    world.delete_live_state();
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;
    let checked = world.batch().check_archive(Source::Plays).await;
    let (files, events) = checked.expect("a whole archive");
    assert!(files > 0 && events >= 230, "{files} files, {events} events");
    served.end().await;
}

/// Ingests late events and repeats of earlier ones, beyond the deduplication window.
async fn ingest_late_events(world: &World, served: &Served, truth: &mut Truth) {
    for round in 0..3 {
        pass_two_hours(world);
        let from = 300 + round * 40;
        world.ingest(&truth.lines(from..from + 40, false)).await;
        world.ingest(&repeated_lines(0..25)).await;
        world
            .ingest(&truth.lines(500 + round * 10..510 + round * 10, true))
            .await;
        world.catch_up().await;
        let report = world.run(&RunRequest::default()).await.expect("a run");
        assert!(report.duplicates >= 25, "{report:?}");
        if world.namespace().is_none() {
            let causes = report
                .drift
                .views
                .iter()
                .flat_map(|view| view.causes.keys());
            let causes: Vec<Cause> = causes.copied().collect();
            assert!(
                !causes.is_empty(),
                "the speed layer counted no repeated event: {:?}",
                report.drift
            );
            assert!(
                causes.iter().all(|cause| *cause == Cause::Duplicate),
                "{:?}",
                report.drift
            );
        }
        truth.check(served).await;
        let report = delete_old_files(world, 2).await;
        assert!(
            round > 0 || report.deleted.count > 0 || !report.retained.is_empty(),
            "{report:?}"
        );
        truth.check(served).await;
    }
}

async fn check_rejections(world: &World) {
    assert_rejected(world, &full_request()).await;
    let single = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    assert_rejected(world, &single).await;
    let result = world.batch().backfill(Source::Plays).await;
    let text = result.expect_err("a backfill needs all events").to_string();
    assert!(text.contains("retention.archive_days"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_old_events_changes_no_response() {
    delete_and_count(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_old_events_changes_no_response_on_servers() {
    delete_and_count(&World::on_servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_files_count_again() {
    let world = World::new().await;
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..120, false)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let mut copies = Vec::new();
    for path in list_files(&world).await {
        let bytes = archive.get(&path).await.expect("the archive");
        copies.push((path, bytes.expect("a file")));
    }
    assert!(delete_old_files(&world, 2).await.deleted.count > 0);
    world.ingest(&truth.lines(120..140, false)).await;
    world.catch_up().await;
    assert_rejected(&world, &full_request()).await;
    for (path, bytes) in copies {
        archive.put(&path, bytes).await.expect("restoring a copy");
    }
    world
        .run(&full_request())
        .await
        .expect("all events are there");
    let served = world.serve().await;
    truth.check(&served).await;
    assert!(
        delete_old_files(&world, 2).await.deleted.count > 0,
        "they are deleted again"
    );
    truth.check(&served).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_an_interrupted_run_are_retained() {
    for stage in ["archive", "compute", "check", "publish", "drift", "drop"] {
        let world = World::new().await;
        let mut truth = Truth::default();
        world.ingest(&truth.lines(0..120, false)).await;
        world.catch_up().await;
        world.run(&RunRequest::default()).await.expect("a run");
        assert!(delete_old_files(&world, 2).await.deleted.count > 0);
        pass_two_hours(&world);
        world.ingest(&truth.lines(120..160, false)).await;
        world.ingest(&repeated_lines(0..10)).await;
        world.catch_up().await;
        let reached = CancellationToken::new();
        let progress = cancel_at(stage, &reached);
        let stop = CancellationToken::new();
        let (batch, request) = (world.batch(), RunRequest::default());
        tokio::select! {
            biased;
            () = reached.cancelled() => {}
            _ = batch.run(Source::Plays, &request, &progress, &stop) => {}
        }
        // Retention deletes nothing while a run is unfinished.
        let report = delete_old_files(&world, 2).await;
        let runs = world.stores.views.runs(Source::Plays).await.expect("runs");
        if runs.runs.open_run().is_some() {
            assert_eq!(report.deleted.count, 0, "{stage}: {report:?}");
        }
        world.run_after_lease(Source::Plays, &request).await;
        let served = world.serve().await;
        truth.check(&served).await;
        delete_old_files(&world, 2).await;
        truth.check(&served).await;
        served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_retention_changes_no_response() {
    let world = World::new().await;
    let mut truth = Truth::default();
    let served = world.serve().await;
    for round in 0..4 {
        world
            .ingest(&truth.lines(round * 60..round * 60 + 60, false))
            .await;
        world.catch_up().await;
        let request = RunRequest::default();
        let (_, _, run) = tokio::join!(
            delete_old_files(&world, 2),
            delete_old_files(&world, 2),
            world.run_after_lease(Source::Plays, &request)
        );
        assert!(run.epoch > 0);
        let (first, second) =
            tokio::join!(delete_old_files(&world, 2), delete_old_files(&world, 2));
        assert!(first.deleted.count + second.deleted.count + first.retained.len() as u64 > 0);
        truth.check(&served).await;
    }
    served.end().await;
}

/// Retention that is interrupted at any moment is completed by the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_retention_is_completed() {
    let world = World::new().await;
    let mut truth = Truth::default();
    let served = world.serve().await;
    for round in 0..4 {
        world
            .ingest(&truth.lines(round * 60..round * 60 + 60, false))
            .await;
        world.catch_up().await;
        world
            .run_after_lease(Source::Plays, &RunRequest::default())
            .await;
        let count_before = list_files(&world).await.len();
        for timeout_ms in [1, 3, 6, 10, 15, 25, 40] {
            let retention = delete_old_files(&world, 2);
            let _cut_off = tokio::time::timeout(Duration::from_millis(timeout_ms), retention).await;
        }
        delete_old_files(&world, 2).await;
        assert!(
            list_files(&world).await.len() < count_before,
            "round {round}"
        );
        truth.check(&served).await;
    }
    pass_two_hours(&world);
    world.ingest(&repeated_lines(0..30)).await;
    world.catch_up().await;
    let report = world
        .run_after_lease(Source::Plays, &RunRequest::default())
        .await;
    assert_eq!(report.duplicates, 30, "{report:?}");
    truth.check(&served).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_view_is_rejected_and_the_others_continue() {
    let world = World::new().await;
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..120, false)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert!(delete_old_files(&world, 2).await.deleted.count > 0);
    let views = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
    let read = |file: &str| {
        let path = views.join("plays_owner_day").join(file);
        std::fs::read_to_string(path).expect("a file")
    };
    let (definition, query) = (read("job.toml"), read("query.sql"));
    let newer = catalog_with(&[("plays_owner_day_again", &definition, &query)]);
    let newer = world.with_catalog(newer);
    world.ingest(&truth.lines(120..130, true)).await;
    world.catch_up().await;
    assert_rejected(&newer, &RunRequest::default()).await;
    let report = delete_old_files(&world, 2).await;
    assert_eq!(report.deleted.count, 0, "{report:?}");
    let details = world.stores.views.run_details(Source::Plays, 2).await;
    let details = details.expect("records").expect("an unfinished run");
    let outcome = details
        .unpublished_reason(1, false)
        .expect("it is not published");
    assert!(
        outcome.reason.contains("retention.archive_days"),
        "{outcome:?}"
    );
    let served = world.serve().await;
    truth.check(&served).await;
    // The earlier build finishes the run.
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;
    served.end().await;
}
