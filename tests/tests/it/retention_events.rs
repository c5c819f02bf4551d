//! Old events go, and every answer stays: what comes later for their days is counted, what comes again is not, and
//! what would need the events is refused.

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

/// A play of the first two days of March, three days before the world's clock; or of its day.
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

/// The plays of a world, and what they add up to by owner.
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
                let answer = served.client.ask(&path).await;
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

/// Two hours go by: what is logged then repeats nothing that the speed layer knows, where the log has no clock of its own.
fn later(world: &World) {
    world.clock.set_ms(world.clock.now_ms() + 2 * HOUR_MS);
}

/// Lines that came before.
fn again(numbers: std::ops::Range<i64>) -> Vec<String> {
    numbers.map(|number| play(number, false).2).collect()
}

fn retention(world: &World, archive_days: u32) -> Retention {
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

fn of_events(reports: Vec<KindReport>) -> KindReport {
    let mut reports = reports.into_iter();
    reports
        .find(|one| one.kind == DataKind::Events)
        .expect("events")
}

async fn let_go(world: &World, archive_days: u32) -> KindReport {
    let run = retention(world, archive_days);
    of_events(run.run(&CancellationToken::new()).await.expect("retention"))
}

async fn files(world: &World) -> Vec<String> {
    let files = world.stores.archive.list("archive/plays/files").await;
    files.expect("the archive")
}

/// A run that is expected to be refused for want of events.
async fn refused(world: &World, request: &RunRequest) {
    let error = world.run(request).await.expect_err("events are gone");
    let text = error.to_string();
    assert!(
        text.contains("2026-03-01") && text.contains("retention.archive_days"),
        "{text}"
    );
}

fn full() -> RunRequest {
    RunRequest {
        full: true,
        ..RunRequest::default()
    }
}

/// Counts, runs, lets go, and counts on.
async fn law(world: &World) {
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..200, false)).await;
    world.ingest(&truth.lines(200..230, true)).await;
    world.catch_up().await;
    let served = world.serve().await;
    let held_back = let_go(world, 2).await;
    assert_eq!(
        held_back.deleted.count, 0,
        "nothing is archived yet: {held_back:?}"
    );
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;

    let there = files(world).await;
    let looked = retention(world, 2).show().await.expect("a look");
    let topics = looked.iter().filter(|one| one.kind == DataKind::Topic);
    let policies: Vec<&str> = topics.map(|topic| &*topic.policy).collect();
    assert!(!policies.is_empty(), "{looked:?}");
    assert!(
        policies.iter().all(|policy| !policy.contains("unknown")),
        "{policies:?}"
    );
    let looked = of_events(looked);
    assert!(
        looked.eligible.count > 0 && looked.deleted.count == 0,
        "{looked:?}"
    );
    assert_eq!(files(world).await, there, "who looks deletes nothing");
    let mixed = let_go(world, 3).await;
    assert!(
        !mixed.retained.is_empty(),
        "some hold events of the second: {mixed:?}"
    );
    let went = let_go(world, 2).await;
    assert_eq!(
        mixed.deleted.count + went.deleted.count,
        looked.eligible.count,
        "{went:?}"
    );
    assert!(files(world).await.len() < there.len(), "files went");
    truth.check(&served).await;

    come_late(world, &served, &mut truth).await;
    what_needs_them_is_refused(world).await;
    truth.check(&served).await;
    world.lose_live();
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;
    let whole = world.batch().check_archive(Source::Plays).await;
    let (files, events) = whole.expect("a whole archive");
    assert!(files > 0 && events >= 230, "{files} files, {events} events");
    served.end().await;
}

/// Late events, and such as came before, beyond the window of the speed layer.
async fn come_late(world: &World, served: &Served, truth: &mut Truth) {
    for round in 0..3 {
        later(world);
        let from = 300 + round * 40;
        world.ingest(&truth.lines(from..from + 40, false)).await;
        world.ingest(&again(0..25)).await;
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
                "what repeats events was counted: {:?}",
                report.drift
            );
            assert!(
                causes.iter().all(|cause| *cause == Cause::Duplicate),
                "{:?}",
                report.drift
            );
        }
        truth.check(served).await;
        let went = let_go(world, 2).await;
        assert!(
            round > 0 || went.deleted.count > 0 || !went.retained.is_empty(),
            "{went:?}"
        );
        truth.check(served).await;
    }
}

async fn what_needs_them_is_refused(world: &World) {
    refused(world, &full()).await;
    let single = RunRequest {
        jobs: vec!["plays_detail".to_owned()],
        ..RunRequest::default()
    };
    refused(world, &single).await;
    let begun = world.batch().backfill(Source::Plays).await;
    let text = begun.expect_err("no run could take it in").to_string();
    assert!(text.contains("retention.archive_days"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_when_old_events_go() {
    law(&World::new().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_when_old_events_go_on_servers() {
    law(&World::on_servers().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_come_back_count_again() {
    let world = World::new().await;
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..120, false)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    let archive = &world.stores.archive;
    let mut copies = Vec::new();
    for path in files(&world).await {
        let bytes = archive.get(&path).await.expect("the archive");
        copies.push((path, bytes.expect("a file")));
    }
    assert!(let_go(&world, 2).await.deleted.count > 0);
    world.ingest(&truth.lines(120..140, false)).await;
    world.catch_up().await;
    refused(&world, &full()).await;
    for (path, bytes) in copies {
        archive.put(&path, bytes).await.expect("putting back");
    }
    world.run(&full()).await.expect("all events are there");
    let served = world.serve().await;
    truth.check(&served).await;
    assert!(let_go(&world, 2).await.deleted.count > 0, "and go again");
    truth.check(&served).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_run_needs_that_died_stays() {
    for stage in ["archive", "compute", "check", "publish", "drift", "drop"] {
        let world = World::new().await;
        let mut truth = Truth::default();
        world.ingest(&truth.lines(0..120, false)).await;
        world.catch_up().await;
        world.run(&RunRequest::default()).await.expect("a run");
        assert!(let_go(&world, 2).await.deleted.count > 0);
        later(&world);
        world.ingest(&truth.lines(120..160, false)).await;
        world.ingest(&again(0..10)).await;
        world.catch_up().await;
        let reached = CancellationToken::new();
        let at = cancel_at(stage, &reached);
        let stop = CancellationToken::new();
        let (batch, request) = (world.batch(), RunRequest::default());
        tokio::select! {
            biased;
            () = reached.cancelled() => {}
            _ = batch.run(Source::Plays, &request, &at, &stop) => {}
        }
        // Nothing goes while a run is unfinished, and what it needs is there afterwards.
        let report = let_go(&world, 2).await;
        let runs = world.stores.views.runs(Source::Plays).await.expect("runs");
        if runs.runs.open().is_some() {
            assert_eq!(report.deleted.count, 0, "{stage}: {report:?}");
        }
        world.run_once_free(Source::Plays, &request).await;
        let served = world.serve().await;
        truth.check(&served).await;
        let_go(&world, 2).await;
        truth.check(&served).await;
        served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_at_once_do_no_harm() {
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
            let_go(&world, 2),
            let_go(&world, 2),
            world.run_once_free(Source::Plays, &request)
        );
        assert!(run.epoch > 0);
        let (one, other) = tokio::join!(let_go(&world, 2), let_go(&world, 2));
        assert!(one.deleted.count + other.deleted.count + one.retained.len() as u64 > 0);
        truth.check(&served).await;
    }
    served.end().await;
}

/// Cut off at any moment, it is gone on with by the next, and answers stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lets_go_may_die_at_any_moment() {
    let world = World::new().await;
    let mut truth = Truth::default();
    let served = world.serve().await;
    for round in 0..4 {
        world
            .ingest(&truth.lines(round * 60..round * 60 + 60, false))
            .await;
        world.catch_up().await;
        world
            .run_once_free(Source::Plays, &RunRequest::default())
            .await;
        let there = files(&world).await.len();
        for cut_ms in [1, 3, 6, 10, 15, 25, 40] {
            let died = let_go(&world, 2);
            let _cut_off = tokio::time::timeout(Duration::from_millis(cut_ms), died).await;
        }
        let_go(&world, 2).await;
        assert!(files(&world).await.len() < there, "round {round}");
        truth.check(&served).await;
    }
    later(&world);
    world.ingest(&again(0..30)).await;
    world.catch_up().await;
    let report = world
        .run_once_free(Source::Plays, &RunRequest::default())
        .await;
    assert_eq!(report.duplicates, 30, "{report:?}");
    truth.check(&served).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_view_is_refused_and_the_old_ones_go_on() {
    let world = World::new().await;
    let mut truth = Truth::default();
    world.ingest(&truth.lines(0..120, false)).await;
    world.catch_up().await;
    world.run(&RunRequest::default()).await.expect("a run");
    assert!(let_go(&world, 2).await.deleted.count > 0);
    let views = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../jobs/views");
    let text = |file: &str| {
        let path = views.join("plays_owner_day").join(file);
        std::fs::read_to_string(path).expect("a file")
    };
    let (definition, query) = (text("job.toml"), text("query.sql"));
    let newer = catalog_with(&[("plays_owner_day_again", &definition, &query)]);
    let newer = world.with_catalog(newer);
    world.ingest(&truth.lines(120..130, true)).await;
    world.catch_up().await;
    refused(&newer, &RunRequest::default()).await;
    let held_back = let_go(&world, 2).await;
    assert_eq!(held_back.deleted.count, 0, "{held_back:?}");
    let told = world.stores.views.run_details(Source::Plays, 2).await;
    let told = told.expect("records").expect("a run that is not finished");
    let outcome = told.unpublished_reason(1).expect("it is not published");
    assert!(
        outcome.reason.contains("retention.archive_days"),
        "{outcome:?}"
    );
    let served = world.serve().await;
    truth.check(&served).await;
    // The build of before finishes the run.
    world.run(&RunRequest::default()).await.expect("a run");
    truth.check(&served).await;
    served.end().await;
}
