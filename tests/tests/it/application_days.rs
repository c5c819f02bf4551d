//! The history of an application equals a plain recount at the last run of each day, even if
//! processes die.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use batch::RunRequest;
use jiff::Timestamp;
use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::clock::Clock;
use schemas::seam::{Epoch, RunState};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::counts::{CountsRead, CountsWrite, Day, DayRow};
use stores::{Error, Result};
use tests::catalog::catalog_with;
use tests::histories::history_seeds;
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{Server, run, run_ok};
use tests::world::World;

const SOURCE: Source = Source::Authorizations;
const JOB: &str = "application_athletes";
/// The last application never has an athlete.
const APPLICATIONS: i64 = 5;
const STEPS: usize = 20;
const HISTORIES: u64 = 2;
/// All tests take place in this year.
const YEAR: Range<Date> = date(2026, 1, 1)..date(2027, 1, 1);

/// A table of counts that fails after a number of writes, either before or after the last one is
/// stored.
#[derive(Debug)]
struct FailingCounts {
    inner: Arc<dyn CountsWrite>,
    /// Writes left before the failure; a negative value disables it.
    writes_left: AtomicI64,
    stores_failing_write: std::sync::atomic::AtomicBool,
}

#[async_trait]
impl CountsRead for FailingCounts {
    async fn read_days(
        &self,
        job: &str,
        key: &[u8],
        days: Range<Day>,
        limit: usize,
    ) -> Result<Vec<DayRow>> {
        self.inner.read_days(job, key, days, limit).await
    }

    async fn read_last_days(
        &self,
        job: &str,
        keys: &[(&[u8], Day)],
    ) -> Result<Vec<Option<DayRow>>> {
        self.inner.read_last_days(job, keys).await
    }
}

#[async_trait]
impl CountsWrite for FailingCounts {
    async fn write_days(&self, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()> {
        let fails = self.writes_left.fetch_sub(1, Ordering::Relaxed) == 0;
        if !fails || self.stores_failing_write.load(Ordering::Relaxed) {
            self.inner.write_days(job, stamp_us, rows).await?;
        }
        if fails {
            return Err(Error::Unavailable {
                operation: "a test".to_owned(),
                reason: "it fails here".to_owned(),
            });
        }
        Ok(())
    }
}

/// The authorizations, and the counts at each run.
#[derive(Debug, Default)]
struct Truth {
    /// By id: application, athlete, and whether the authorization counts.
    rows: BTreeMap<i64, (i64, i64, bool)>,
    /// By day: the last run, and the athletes of each application.
    days: BTreeMap<Date, (Epoch, BTreeMap<i64, u64>)>,
}

impl Truth {
    fn counts(&self) -> BTreeMap<i64, u64> {
        let mut athletes: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
        for (application, athlete, _) in self.rows.values().filter(|(.., counts)| *counts) {
            athletes.entry(*application).or_default().insert(*athlete);
        }
        let counts = athletes.into_iter();
        counts
            .map(|(application, athletes)| (application, athletes.len() as u64))
            .collect()
    }

    /// Records a completed run whose cut is on this day.
    fn record_run(&mut self, day: Date, epoch: Epoch) {
        let last = self.days.keys().next_back().copied();
        let counts = self.counts();
        self.days
            .insert(last.map_or(day, |last| last.max(day)), (epoch, counts));
    }

    /// The last run started with an earlier state: its cut decides which later changes it includes.
    /// The answer must match the state at the cut or the current one.
    async fn check_latest(&mut self, client: &Client, at_cut: &BTreeMap<i64, u64>) {
        let Some(mut last) = self.days.last_entry() else {
            return;
        };
        let day = *last.key();
        for application in 1..=APPLICATIONS {
            let path =
                format!("/api/v1/applications/{application}/history?from={day}&to=2027-01-01");
            let answer = client.fetch_json(&path).await;
            let connected = &answer["days"][0]["connected_athletes"];
            let connected = connected.as_u64().expect("a count");
            let count = |counts: &BTreeMap<i64, u64>| counts.get(&application).copied();
            let current = &mut last.get_mut().1;
            let possible = [count(at_cut), count(current)].map(Option::unwrap_or_default);
            assert!(
                possible.contains(&connected),
                "{path}: {connected} of {possible:?}"
            );
            current.insert(application, connected);
        }
    }

    /// The expected API response for a range of days.
    fn expected_days(&self, application: i64, days: Range<Date>) -> Vec<Value> {
        let (Some((first, _)), Some((last, _))) =
            (self.days.first_key_value(), self.days.last_key_value())
        else {
            return Vec::new();
        };
        let all_days = first.series(jiff::ToSpan::days(1));
        all_days
            .take_while(|day| day <= last)
            .filter(|day| days.contains(day))
            .map(|day| {
                let (_, (epoch, counts)) = self.days.range(..=day).next_back().expect("a run");
                let count = counts.get(&application).copied().unwrap_or(0);
                json!({"date": day.to_string(), "connected_athletes": count, "epoch": epoch})
            })
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_match_a_recount_at_their_last_run() {
    for seed in history_seeds(HISTORIES, 1) {
        eprintln!("history {seed}");
        Box::pin(check_history(World::new().await, seed)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_on_servers_match_a_recount() {
    for seed in history_seeds(HISTORIES, 6) {
        eprintln!("history {seed} on servers");
        Box::pin(check_history(World::on_servers().await, 100 + seed)).await;
    }
}

async fn check_history(mut world: World, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    world.batch_options.check_rows_min = 6;
    let table = Arc::new(FailingCounts {
        inner: Arc::clone(&world.stores.counts),
        writes_left: AtomicI64::new(-1),
        stores_failing_write: false.into(),
    });
    world.stores.counts = Arc::clone(&table) as _;
    let mut truth = ingest_applications(&world).await;
    let served = world.serve().await;
    // The counts at the cut of a run that died.
    let mut at_cut: Option<BTreeMap<i64, u64>> = None;
    for _ in 0..STEPS {
        if rng.random_bool(0.5) {
            let hours = rng.random_range(1..60);
            world.clock.set_ms(world.clock.now_ms() + hours * 3_600_000);
        }
        if rng.random_bool(0.7) {
            authorize(&world, &mut truth, &mut rng).await;
        }
        let fails = rng.random_bool(0.4);
        let writes_left = if fails { rng.random_range(0..4) } else { -1 };
        table.writes_left.store(writes_left, Ordering::Relaxed);
        let stores_failing_write = rng.random_bool(0.5);
        table
            .stores_failing_write
            .store(stores_failing_write, Ordering::Relaxed);
        let request = RunRequest {
            full: rng.random_bool(0.3),
            jobs: match !fails && rng.random_bool(0.2) {
                true => vec![JOB.to_owned()],
                false => Vec::new(),
            },
            force: rng.random_bool(0.3),
            ..RunRequest::default()
        };
        match world.run_on(SOURCE, &request).await {
            Ok(report) => {
                let day = cut_day(&world, report.epoch).await;
                truth.record_run(day, report.epoch);
                if let Some(at_cut) = at_cut.take() {
                    truth.check_latest(&served.client, &at_cut).await;
                }
            }
            Err(batch::Error::Check { .. }) => {
                at_cut = None;
            }
            Err(batch::Error::Request(_)) if !request.jobs.is_empty() => {}
            Err(batch::Error::Store(Error::Unavailable { .. })) if fails => {
                at_cut.get_or_insert_with(|| truth.counts());
            }
            Err(error) => panic!("{error}"),
        }
        compare(&served.client, &truth, &mut rng).await;
    }
    served.end().await;
}

/// Ingests applications that have no athletes.
async fn ingest_applications(world: &World) -> Truth {
    let application = |id: i64| json!({"id": id, "name": "a", "owner": "o"}).to_string();
    let lines: Vec<String> = (1..=APPLICATIONS).map(application).collect();
    let ingested = world.ingest_into(Source::Applications, &lines).await;
    assert_eq!(ingested.accepted, lines.len() as u64);
    world.intake(SOURCE).await;
    Truth::default()
}

/// The day of a run's cut.
async fn cut_day(world: &World, epoch: Epoch) -> Date {
    let details = world.stores.views.run_details(SOURCE, epoch).await;
    let details = details.expect("the records").expect("the run");
    assert_eq!(details.run.state, RunState::Complete);
    let started_at = Timestamp::from_millisecond(details.started_at_ms).expect("a time");
    started_at.to_zoned(TimeZone::UTC).date()
}

/// Connects some athletes and disconnects others; occasionally disconnects most of them.
async fn authorize(world: &World, truth: &mut Truth, rng: &mut SmallRng) {
    let all_end = rng.random_bool(0.15);
    let ids: Vec<i64> = match all_end {
        true => truth.rows.keys().copied().collect(),
        false => (0..rng.random_range(1..15))
            .map(|_| rng.random_range(0..80))
            .collect(),
    };
    let mut lines = Vec::new();
    for id in ids {
        let (application, athlete) = (1 + id % (APPLICATIONS - 1), id / 4 % 9);
        let counts = !all_end && rng.random_bool(0.7);
        truth.rows.insert(id, (application, athlete, counts));
        let revoked = (!counts).then_some("2026-02-01T00:00:00Z");
        let row = json!({
            "id": id, "application_id": application, "athlete_id": athlete,
            "created_at": "2026-01-01T00:00:00Z", "revoked_at": revoked,
        });
        lines.push(row.to_string());
    }
    let ingested = world.ingest_into(SOURCE, &lines).await;
    assert_eq!(ingested.accepted, lines.len() as u64);
    world.catch_up_on(SOURCE).await;
}

async fn compare(client: &Client, truth: &Truth, rng: &mut SmallRng) {
    for application in 1..=APPLICATIONS {
        let random_days =
            date(2026, 3, rng.random_range(1..20))..date(2026, 4, rng.random_range(1..20));
        for (days, limit) in [(YEAR, 3_660), (random_days, rng.random_range(1..9))] {
            let path = format!(
                "/api/v1/applications/{application}/history?from={}&to={}&limit={limit}",
                days.start, days.end
            );
            let (mut returned_days, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = client.fetch_json(&format!("{path}{cursor}")).await;
                returned_days.extend(page["days"].as_array().expect("days").clone());
                match page["cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            assert_eq!(
                returned_days,
                truth.expected_days(application, days),
                "{path}: {truth:?}"
            );
        }
    }
}

/// The definition of the board without its history.
fn read_definition_without_history() -> (String, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../jobs/views")
        .join(JOB);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).expect("a file");
    let definition = read("job.toml");
    let (definition, _) = definition
        .split_once("[history]")
        .expect("the history section");
    (definition.to_owned(), read("query.sql"))
}

/// The first run with history enabled records the day for all applications, although no view is
/// recomputed. A run also fills in counts that runs without history missed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn days_start_with_the_first_run_that_records_them() {
    let new = World::new().await;
    let (definition, query) = read_definition_without_history();
    let old = new.with_catalog(catalog_with(&[(JOB, &definition, &query)]));
    let view_version = |world: &World| {
        let mut boards = world.catalog.boards().iter();
        let job = boards.find(|job| job.name() == JOB).expect("the job");
        job.view().to_owned()
    };
    assert_eq!(
        view_version(&old),
        view_version(&new),
        "the history is part of the version"
    );
    let rng = &mut SmallRng::seed_from_u64(1);
    let mut truth = ingest_applications(&new).await;
    let served = new.serve().await;
    for round in 0..4 {
        // History is disabled in the first and third round.
        let world = if round % 2 == 0 { &old } else { &new };
        for _ in 0..3 {
            new.clock.set_ms(new.clock.now_ms() + 86_400_000);
            authorize(&new, &mut truth, rng).await;
            let report = world.run_after_lease(SOURCE, &RunRequest::default()).await;
            assert!(!report.full || report.epoch == 1);
            if round % 2 == 1 {
                truth.record_run(cut_day(world, report.epoch).await, report.epoch);
            }
        }
        compare(&served.client, &truth, rng).await;
    }
    served.end().await;
}

#[test]
fn processes_return_the_days_embedded() {
    check_days_of_processes(&Installation::embedded());
}

#[test]
fn processes_return_the_days_on_servers() {
    check_days_of_processes(&Installation::on_servers());
}

fn check_days_of_processes(installation: &Installation) {
    let ingest = |source: &str, line: Value| installation.ingest(source, &line.to_string());
    ingest(
        "applications",
        json!({"id": 7, "name": "Pacer", "owner": 42}),
    );
    let output = run_ok(installation.data(), &["applications", "history", "7"]);
    assert_eq!(
        output,
        "no batch run has recorded a day of this application\n"
    );
    ingest(
        "authorizations",
        json!({"id": 1, "application_id": 7, "athlete_id": 3, "created_at": "2026-01-01T00:00:00Z"}),
    );
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    run_ok(installation.data(), &["batch", "run"]);
    let server = Server::start(installation.data(), &[]);
    let answer = server.client.get_json("/api/v1/applications/7/history");
    let days = answer["days"].as_array().expect("days");
    assert_eq!(days.len(), 1, "{answer}");
    assert_eq!(days[0]["connected_athletes"], 1);
    assert_eq!(answer["provenance"]["source"], "batch");
    let first = days[0]["date"].as_str().expect("a date");
    let message = run_ok(installation.data(), &["applications", "history", "7"]);
    assert_eq!(message, format!("{first}  1\n"));
    let json_args = ["applications", "history", "7", "--from", first, "--json"];
    let message: Value =
        serde_json::from_str(&run_ok(installation.data(), &json_args)).expect("JSON");
    assert_eq!(message, json!({"application_id": 7, "days": days}));
    for (args, status, words) in [
        (&["8"][..], 1, "application 8 does not exist"),
        (&["7", "--from", "today"], 2, "expected a date"),
        (
            &["7", "--to", first, "--from", first],
            2,
            "is not before --to",
        ),
    ] {
        let args = [&["applications", "history"], args].concat();
        let output = run(installation.data(), &args);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(words), "{message}");
    }
}
