//! Applications with both counting strategies, increments and recounts, in one installation.
//! Responses match a plain recount, as of now or as of the stated time, despite failures.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use batch::RunRequest;
use jobs::counting::{CountingClasses, CountingSection};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use schemas::clock::Clock;
use schemas::random::SeededRandom;
use schemas::source::Source;
use serde_json::{Value, json};
use speed::{Speed, SpeedPorts};
use stores::recounts::{CountedApplication, Recount, Recounts};
use stores::{Error, Result};
use tests::http::Client;
use tests::installation::Installation;
use tests::process::{CONFIG, Process, Server, run_ok};
use tests::servers::Addresses;
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

const SOURCE: Source = Source::Authorizations;
/// Counted by increments, in a class and in none; recounted after each event; recounted
/// periodically.
const EXACT: i64 = 1;
const PLAIN: i64 = 2;
const SMALL: i64 = 3;
const LARGE: i64 = 4;
/// Recounted, with an id beyond the first thousand. Only some tests include it.
const FAR: i64 = 1_100;
/// Interval of the periodic recounts, which is a 24th of a day.
const RECOUNT_INTERVAL_MS: i64 = 3_600_000;
/// Limit for waiting for a count.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn classes() -> CountingClasses {
    let recount = |class: &str, application: i64, large_size: i64| CountingSection {
        class: class.to_owned(),
        strategy: "recount".to_owned(),
        applications: vec![application],
        large_size: Some(large_size),
        events_per_athlete_per_day: Some(1_000.0),
        recounts_per_day: Some(24),
        ..CountingSection::default()
    };
    let exact = CountingSection {
        class: "exact".to_owned(),
        strategy: "increments".to_owned(),
        applications: vec![EXACT],
        ..CountingSection::default()
    };
    let sections = [
        exact,
        recount("small", SMALL, 1_000),
        recount("large", LARGE, 0),
        recount("far", FAR, 1_000),
    ];
    CountingClasses::parse(&sections).expect("classes")
}

/// A store that can be unavailable, fail to count one application, or never return from recording.
#[derive(Debug)]
struct FaultyRecounts {
    inner: Arc<dyn Recounts>,
    is_unavailable: AtomicBool,
    hangs: AtomicBool,
    /// The application that cannot be counted; 0 for none.
    uncountable: AtomicI64,
    failed: AtomicUsize,
    hung: AtomicUsize,
}

impl FaultyRecounts {
    fn new(world: &World) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(&world.stores.entities) as _,
            is_unavailable: AtomicBool::new(false),
            hangs: AtomicBool::new(false),
            uncountable: AtomicI64::new(0),
            failed: AtomicUsize::new(0),
            hung: AtomicUsize::new(0),
        })
    }

    fn check_available(&self) -> Result<()> {
        match self.is_unavailable.load(Ordering::SeqCst) {
            true => self.fail("unavailable"),
            false => Ok(()),
        }
    }

    fn fail(&self, reason: &str) -> Result<()> {
        self.failed.fetch_add(1, Ordering::SeqCst);
        Err(Error::Unavailable {
            operation: "a test".to_owned(),
            reason: reason.to_owned(),
        })
    }
}

#[async_trait]
impl Recounts for FaultyRecounts {
    async fn counted_applications(&self, ids: &[i64]) -> Result<Vec<CountedApplication>> {
        self.check_available()?;
        self.inner.counted_applications(ids).await
    }

    async fn counted_applications_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CountedApplication>> {
        self.check_available()?;
        self.inner.counted_applications_after(after, limit).await
    }

    async fn recount(&self, ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        self.check_available()?;
        if ids.contains(&self.uncountable.load(Ordering::SeqCst)) {
            self.fail("timeout")?;
        }
        self.inner.recount(ids, now_ms).await
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        self.check_available()?;
        if self.hangs.load(Ordering::SeqCst) {
            self.hung.fetch_add(1, Ordering::SeqCst);
            return std::future::pending().await;
        }
        self.inner.record_recounts(recounts).await
    }
}

/// The expected authorizations, and the number of athletes by application at each time.
#[derive(Debug)]
struct Truth {
    rng: SmallRng,
    /// By id: application, athlete, whether it is connected, and version.
    rows: BTreeMap<i64, (i64, i64, bool, i64)>,
    /// By time in milliseconds since the Unix epoch, and by application.
    history: BTreeMap<i64, BTreeMap<i64, u64>>,
}

impl Truth {
    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            rows: BTreeMap::new(),
            history: BTreeMap::new(),
        }
    }

    /// Returns random lines with which athletes connect, reconnect and revoke.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let rng = &mut self.rng;
        let mut lines = Vec::with_capacity(count);
        for _ in 0..count {
            let id = rng.random_range(1..=40);
            let new = (rng.random_range(EXACT..=LARGE), rng.random_range(1..=12));
            let row = self.rows.entry(id).or_insert((new.0, new.1, false, 0));
            row.2 = rng.random_bool(0.7);
            row.3 += 1;
            let (application, athlete, is_connected, version) = *row;
            let mut line = json!({"id": id, "application_id": application, "athlete_id": athlete,
                "created_at": "2026-01-01T00:00:00Z", "version": version});
            if !is_connected {
                line["revoked_at"] = json!("2026-01-02T00:00:00Z");
            }
            lines.push(line.to_string());
        }
        lines
    }

    fn counts(&self) -> BTreeMap<i64, u64> {
        let mut athletes: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
        for (application, athlete, ..) in self.rows.values().filter(|row| row.2) {
            athletes.entry(*application).or_default().insert(*athlete);
        }
        let count = |id| {
            (
                id,
                athletes
                    .get(&id)
                    .map_or(0, |athletes| athletes.len() as u64),
            )
        };
        (EXACT..=LARGE).map(count).collect()
    }

    /// Checks the response for each application; periodic recounts as of their time.
    async fn check(&self, world: &World, client: &Client) {
        let counts = self.counts();
        for (id, class) in [(EXACT, Some("exact")), (PLAIN, None)] {
            let shown = client.fetch_json(&application_path(id)).await;
            assert_eq!(shown["connected_athletes"], counts[&id], "{shown}");
            assert_eq!(shown["counting"]["strategy"], "increments", "{shown}");
            assert_eq!(shown["counting"]["class"].as_str(), class, "{shown}");
            assert_eq!(shown["provenance"]["complete"], true, "{shown}");
        }
        let small = client.fetch_json(&application_path(SMALL)).await;
        assert_eq!(small["connected_athletes"], counts[&SMALL], "{small}");
        for (id, class) in [(SMALL, "small"), (LARGE, "large")] {
            let shown = client.fetch_json(&application_path(id)).await;
            assert_eq!(shown["counting"]["strategy"], "recount", "{shown}");
            assert_eq!(shown["counting"]["class"], class, "{shown}");
            let provenance = &shown["provenance"];
            assert_eq!(provenance["source"], "canonical", "{shown}");
            assert_eq!(provenance["complete"], false, "{shown}");
            assert_eq!(provenance["as_of"], shown["counting"]["counted_at"]);
            let at_ms = timestamp_ms(&provenance["as_of"]);
            let age_ms = world.clock.now_ms() - at_ms;
            assert!(
                (0..RECOUNT_INTERVAL_MS).contains(&age_ms),
                "{age_ms} ms: {shown}"
            );
            let expected = self.history[&at_ms][&id];
            assert_eq!(shown["connected_athletes"], expected, "when it was counted");
        }
    }
}

fn application_path(id: i64) -> String {
    format!("/api/v1/applications/{id}")
}

fn timestamp_ms(value: &Value) -> i64 {
    let text = value.as_str().expect("a timestamp");
    let timestamp: jiff::Timestamp = text.parse().expect("a timestamp");
    timestamp.as_millisecond()
}

async fn create_world(world: World) -> World {
    create_world_up_to(LARGE, world).await
}

async fn create_world_up_to(last_id: i64, mut world: World) -> World {
    world.catalog = world.catalog.with_counting(&classes());
    let rows = (EXACT..=last_id).map(|id| {
        json!({"id": id, "name": format!("app {id}"), "owner": 1, "athlete_capacity": 100})
            .to_string()
    });
    world
        .ingest_into(Source::Applications, &rows.collect::<Vec<_>>())
        .await;
    world
}

async fn create_speed(world: &World, recounts: &Arc<FaultyRecounts>, seed: u64) -> Speed {
    let ports = SpeedPorts {
        recounts: Arc::clone(recounts) as _,
        draws: Arc::new(SeededRandom::new(seed)),
        ..world.speed_ports()
    };
    world.speed_on_ports(SOURCE, ports).await
}

/// Returns the recorded count of an application.
async fn recorded_count(world: &World, id: i64) -> Option<u64> {
    let applications = world.stores.entities.counted_applications(&[id]).await;
    let applications = applications.expect("the store").pop();
    Some(applications?.recorded?.connected)
}

async fn wait_until(event: &str, mut is_done: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_done().await {
        assert!(started.elapsed() < WAIT_MAX, "timeout: {event}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_match_a_recount_embedded() {
    for seed in 0..3 {
        check_strategies(create_world(World::new().await).await, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_match_a_recount_on_servers() {
    check_strategies(create_world(World::on_servers().await).await, 7).await;
}

/// Ingests events, advances the clock, runs batches, and checks responses after each step.
async fn check_strategies(world: World, seed: u64) {
    let mut truth = Truth::new(seed);
    let served = world.serve().await;
    let faulty = FaultyRecounts::new(&world);
    for step in 0..16_u64 {
        let count = truth.rng.random_range(0..12);
        let lines = truth.lines(count);
        if !lines.is_empty() {
            world.ingest_into(SOURCE, &lines).await;
        }
        let later_ms = truth.rng.random_range(1..RECOUNT_INTERVAL_MS / 3);
        world.clock.set_ms(world.clock.now_ms() + later_ms);
        truth.history.insert(world.clock.now_ms(), truth.counts());
        let speed = create_speed(&world, &faulty, seed * 100 + step).await;
        let result = speed.run(true, CancellationToken::new()).await;
        result.expect("catching up");
        truth.check(&world, &served.client).await;
        if step % 5 == 4 {
            let run = world.run_on(SOURCE, &RunRequest::default()).await;
            run.expect("a run");
            truth.check(&world, &served.client).await;
        }
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recounts_follow_events_despite_failures_embedded() {
    check_failures(create_world(World::new().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recounts_follow_events_despite_failures_on_servers() {
    check_failures(create_world(World::on_servers().await).await).await;
}

/// Runs two speed layers until a scenario ends.
async fn with_speed_layers(
    world: &World,
    faulty: &Arc<FaultyRecounts>,
    scenario: impl Future<Output = ()>,
) {
    let stop = CancellationToken::new();
    let (first, second) = (
        create_speed(world, faulty, 1).await,
        create_speed(world, faulty, 2).await,
    );
    let scenario = async {
        scenario.await;
        stop.cancel();
    };
    let (first, second, ()) = tokio::join!(
        Box::pin(first.run(false, stop.clone())),
        Box::pin(second.run(false, stop.clone())),
        Box::pin(scenario)
    );
    first.and(second).expect("speed layers");
}

/// Ingests events until the count of the small application changes.
async fn change_count(world: &World, truth: &mut Truth) {
    let count = truth.counts()[&SMALL];
    while truth.counts()[&SMALL] == count {
        let lines = truth.lines(5);
        world.ingest_into(SOURCE, &lines).await;
    }
}

async fn wait_until_counted(world: &World, truth: &Truth, id: i64) {
    let expected = Some(truth.counts()[&id]);
    let is_recorded = async || recorded_count(world, id).await == expected;
    wait_until("the count", is_recorded).await;
}

/// The clock does not advance, so there are no periodic recounts.
async fn check_failures(world: World) {
    let mut truth = Truth::new(5);
    let faulty = FaultyRecounts::new(&world);
    let scenario = Box::pin(async {
        for _ in 0..5 {
            change_count(&world, &mut truth).await;
            wait_until_counted(&world, &truth, SMALL).await;
        }
        // Events during an outage of the database are counted after it.
        let count_before = recorded_count(&world, SMALL).await;
        faulty.is_unavailable.store(true, Ordering::SeqCst);
        change_count(&world, &mut truth).await;
        let failed = async || faulty.failed.load(Ordering::SeqCst) >= 3;
        wait_until("an error", failed).await;
        assert_eq!(recorded_count(&world, SMALL).await, count_before);
        faulty.is_unavailable.store(false, Ordering::SeqCst);
        wait_until_counted(&world, &truth, SMALL).await;
    });
    with_speed_layers(&world, &faulty, scenario).await;

    // Both speed layers end between counting and recording.
    faulty.hangs.store(true, Ordering::SeqCst);
    change_count(&world, &mut truth).await;
    let hung = async || faulty.hung.load(Ordering::SeqCst) > 0;
    let interrupted = with_speed_layers(&world, &faulty, async {
        wait_until("a count that is lost", hung).await;
        std::future::pending::<()>().await;
    });
    tokio::select! {
        () = interrupted => {}
        () = wait_until("their end", hung) => {}
    }
    let unrecorded = Some(truth.counts()[&SMALL]);
    assert_ne!(recorded_count(&world, SMALL).await, unrecorded);
    faulty.hangs.store(false, Ordering::SeqCst);
    with_speed_layers(&world, &faulty, wait_until_counted(&world, &truth, SMALL)).await;
    assert_eq!(world.clock.now_ms(), NOW_MS);
}

/// A permanent failure to count one application does not delay other applications, neither in the
/// same statement nor later in the sweep.
#[tokio::test(flavor = "multi_thread")]
async fn an_uncountable_application_does_not_delay_others() {
    let world = create_world_up_to(FAR, World::new().await).await;
    let mut truth = Truth::new(11);
    let faulty = FaultyRecounts::new(&world);
    faulty.uncountable.store(LARGE, Ordering::SeqCst);
    change_count(&world, &mut truth).await;
    let layer = create_speed(&world, &faulty, 1).await;
    let run = Box::pin(layer.run(true, CancellationToken::new())).await;
    assert!(run.is_err(), "the failed count is an error");
    assert_eq!(recorded_count(&world, FAR).await, Some(0));
    let small = truth.counts()[&SMALL];
    assert_eq!(recorded_count(&world, SMALL).await, Some(small));
    assert_eq!(recorded_count(&world, LARGE).await, None);

    let scenario = Box::pin(async {
        for _ in 0..5 {
            change_count(&world, &mut truth).await;
            wait_until_counted(&world, &truth, SMALL).await;
        }
        assert_eq!(recorded_count(&world, LARGE).await, None);
        // Its recount is retried without another event.
        faulty.uncountable.store(0, Ordering::SeqCst);
        wait_until_counted(&world, &truth, LARGE).await;
    });
    with_speed_layers(&world, &faulty, scenario).await;
}

const CLASSES: &str = "[[applications.counting]]
class = \"watched\"
strategy = \"recount\"
applications = [7]
large_size = 100
events_per_athlete_per_day = 1
recounts_per_day = 24
";

/// Settings choose the strategy of processes. API and command line show the same.
#[test]
fn settings_choose_the_strategy_embedded() {
    let installation = Installation::embedded();
    std::fs::create_dir_all(installation.data()).expect("a folder");
    std::fs::write(installation.data().join(CONFIG), CLASSES).expect("a configuration");
    check_settings(&installation);
}

#[test]
fn settings_choose_the_strategy_on_servers() {
    check_settings(&Installation::with_addresses(
        &Addresses::default(),
        CLASSES,
    ));
}

fn check_settings(installation: &Installation) {
    let rows = [7, 8].map(|id| {
        json!({"id": id, "name": "Pacer", "owner": 42, "athlete_capacity": 10}).to_string()
    });
    installation.ingest("applications", &rows.join("\n"));
    let layers: Vec<Process> = (0..2)
        .map(|_| Process::start(installation.data(), &["speed"]))
        .collect();
    let server = Server::start(installation.data(), &[]);
    for athlete in 1..=6 {
        for id in [7, 8] {
            let body = json!({"athlete_id": athlete}).to_string();
            let path = format!("{}/authorizations", application_path(id));
            assert_eq!(server.client.post(&path, body.as_bytes()).0, 201);
        }
    }
    let counted = |shown: &Value| {
        shown["counting"]["strategy"] == "recount" && shown["connected_athletes"] == 6
    };
    // Until a count is recorded, responses come from live state, or say that it is incomplete.
    let fetch = || {
        let (_, body) = server.client.get(&application_path(7));
        serde_json::from_str::<Value>(&body).expect("JSON")
    };
    let mut shown = fetch();
    let started = Instant::now();
    while !counted(&shown) && started.elapsed() < WAIT_MAX {
        #[expect(clippy::disallowed_methods, reason = "another process works")]
        std::thread::sleep(Duration::from_millis(20));
        shown = fetch();
    }
    assert!(counted(&shown), "{shown}");
    assert_eq!(shown["counting"]["class"], "watched");
    for layer in layers {
        let (succeeded, output) = layer.end();
        assert!(succeeded, "{output:?}");
    }
    run_ok(installation.data(), &["speed", "--until-caught-up"]);
    let other = server.client.get_json(&application_path(8));
    assert_eq!(other["counting"], json!({"strategy": "increments"}));
    assert_eq!(other["connected_athletes"], 6);
    let shown = run_ok(installation.data(), &["applications", "show", "7"]);
    assert!(
        shown.contains("6 of 10 athletes are connected, counted at 2"),
        "{shown}"
    );
    let listed = run_ok(installation.data(), &["applications", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let strategy = |id: i64| {
        let mut applications = listed.as_array().expect("a list").iter();
        let application = applications
            .find(|row| row["id"] == id)
            .expect("it is listed");
        application["counting"]["strategy"].clone()
    };
    assert_eq!(
        (strategy(7), strategy(8)),
        (json!("recount"), json!("increments"))
    );
}
