//! Applications that are counted by increments and such that are counted anew, in one installation: what is served is
//! what a plain recount gives, now or when it says that it was counted, whatever dies on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use batch::RunRequest;
use jobs::counting::{Counting, CountingSection};
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
use tests::place::Place;
use tests::process::{CONFIG, Process, Server, done};
use tests::servers::Addresses;
use tests::world::{NOW_MS, World};
use tokio_util::sync::CancellationToken;

const SOURCE: Source = Source::Authorizations;
/// By increments, in a class and in none; anew after every event; anew now and then.
const EXACT: i64 = 1;
const PLAIN: i64 = 2;
const SMALL: i64 = 3;
const LARGE: i64 = 4;
/// Anew, and not among the first thousand: few tests have it.
const FAR: i64 = 1_100;
/// A day's share of the large ones.
const SHARE_MS: i64 = 3_600_000;
/// How long a count may take to be there.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn classes() -> Counting {
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
    Counting::parse(&sections).expect("classes")
}

/// A store that does not answer for a while, that can't count an application, or in which whoever records is never seen
/// again.
#[derive(Debug)]
struct Troubled {
    inner: Arc<dyn Recounts>,
    is_away: AtomicBool,
    swallows: AtomicBool,
    /// The application that can't be counted; 0 for none.
    broken: AtomicI64,
    failed: AtomicUsize,
    swallowed: AtomicUsize,
}

impl Troubled {
    fn of(world: &World) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(&world.stores.entities) as _,
            is_away: AtomicBool::new(false),
            swallows: AtomicBool::new(false),
            broken: AtomicI64::new(0),
            failed: AtomicUsize::new(0),
            swallowed: AtomicUsize::new(0),
        })
    }

    fn answers(&self) -> Result<()> {
        match self.is_away.load(Ordering::SeqCst) {
            true => self.fails("it is away"),
            false => Ok(()),
        }
    }

    fn fails(&self, why: &str) -> Result<()> {
        self.failed.fetch_add(1, Ordering::SeqCst);
        Err(Error::Unavailable {
            what: "a test".to_owned(),
            why: why.to_owned(),
        })
    }
}

#[async_trait]
impl Recounts for Troubled {
    async fn counted_applications(&self, ids: &[i64]) -> Result<Vec<CountedApplication>> {
        self.answers()?;
        self.inner.counted_applications(ids).await
    }

    async fn counted_applications_after(
        &self,
        after: Option<i64>,
        limit: usize,
    ) -> Result<Vec<CountedApplication>> {
        self.answers()?;
        self.inner.counted_applications_after(after, limit).await
    }

    async fn recount(&self, ids: &[i64], now_ms: i64) -> Result<Vec<Recount>> {
        self.answers()?;
        if ids.contains(&self.broken.load(Ordering::SeqCst)) {
            self.fails("it takes too long")?;
        }
        self.inner.recount(ids, now_ms).await
    }

    async fn record_recounts(&self, recounts: &[Recount]) -> Result<()> {
        self.answers()?;
        if self.swallows.load(Ordering::SeqCst) {
            self.swallowed.fetch_add(1, Ordering::SeqCst);
            return std::future::pending().await;
        }
        self.inner.record_recounts(recounts).await
    }
}

/// The authorizations, and how many athletes each application had at each moment.
#[derive(Debug)]
struct Truth {
    rng: SmallRng,
    /// By id: application, athlete, whether it counts, and its version.
    rows: BTreeMap<i64, (i64, i64, bool, i64)>,
    /// By moment, in milliseconds since 1970, and application.
    at: BTreeMap<i64, BTreeMap<i64, u64>>,
}

impl Truth {
    fn new(seed: u64) -> Self {
        Self {
            rng: SmallRng::seed_from_u64(seed),
            rows: BTreeMap::new(),
            at: BTreeMap::new(),
        }
    }

    /// Athletes connect, once more, and revoke.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let rng = &mut self.rng;
        let mut lines = Vec::with_capacity(count);
        for _ in 0..count {
            let id = rng.random_range(1..=40);
            let new = (rng.random_range(EXACT..=LARGE), rng.random_range(1..=12));
            let row = self.rows.entry(id).or_insert((new.0, new.1, false, 0));
            row.2 = rng.random_bool(0.7);
            row.3 += 1;
            let (application, athlete, counts, version) = *row;
            let mut line = json!({"id": id, "application_id": application, "athlete_id": athlete,
                "created_at": "2026-01-01T00:00:00Z", "version": version});
            if !counts {
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

    /// What is shown of every application is right; what was counted anew, when it was.
    async fn is_served(&self, world: &World, client: &Client) {
        let counts = self.counts();
        for (id, class) in [(EXACT, Some("exact")), (PLAIN, None)] {
            let shown = client.ask(&path(id)).await;
            assert_eq!(shown["connected_athletes"], counts[&id], "{shown}");
            assert_eq!(shown["counting"]["strategy"], "increments", "{shown}");
            assert_eq!(shown["counting"]["class"].as_str(), class, "{shown}");
            assert_eq!(shown["provenance"]["complete"], true, "{shown}");
        }
        let small = client.ask(&path(SMALL)).await;
        assert_eq!(small["connected_athletes"], counts[&SMALL], "{small}");
        for (id, class) in [(SMALL, "small"), (LARGE, "large")] {
            let shown = client.ask(&path(id)).await;
            assert_eq!(shown["counting"]["strategy"], "recount", "{shown}");
            assert_eq!(shown["counting"]["class"], class, "{shown}");
            let provenance = &shown["provenance"];
            assert_eq!(provenance["source"], "canonical", "{shown}");
            assert_eq!(provenance["complete"], false, "{shown}");
            assert_eq!(provenance["as_of"], shown["counting"]["counted_at"]);
            let at_ms = moment(&provenance["as_of"]);
            let age_ms = world.clock.now_ms() - at_ms;
            assert!((0..SHARE_MS).contains(&age_ms), "{age_ms} ms: {shown}");
            let then = self.at[&at_ms][&id];
            assert_eq!(shown["connected_athletes"], then, "when it was counted");
        }
    }
}

fn path(id: i64) -> String {
    format!("/api/v1/applications/{id}")
}

fn moment(shown: &Value) -> i64 {
    let text = shown.as_str().expect("a moment");
    let at: jiff::Timestamp = text.parse().expect("a moment");
    at.as_millisecond()
}

async fn installation(world: World) -> World {
    installation_up_to(LARGE, world).await
}

async fn installation_up_to(last: i64, mut world: World) -> World {
    world.catalog = world.catalog.with_counting(&classes());
    let rows = (EXACT..=last).map(|id| {
        json!({"id": id, "name": format!("app {id}"), "owner": 1, "athlete_capacity": 100})
            .to_string()
    });
    world
        .ingest_into(Source::Applications, &rows.collect::<Vec<_>>())
        .await;
    world
}

async fn speed(world: &World, recounts: &Arc<Troubled>, seed: u64) -> Speed {
    let ports = SpeedPorts {
        recounts: Arc::clone(recounts) as _,
        draws: Arc::new(SeededRandom::new(seed)),
        ..world.speed_ports()
    };
    world.speed_over(SOURCE, ports).await
}

/// The recorded count of an application.
async fn recorded(world: &World, id: i64) -> Option<u64> {
    let found = world.stores.entities.counted_applications(&[id]).await;
    let found = found.expect("the store").pop();
    Some(found?.recorded?.connected)
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < WAIT_MAX, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_serve_what_a_recount_gives_embedded() {
    for seed in 0..3 {
        strategies(installation(World::new().await).await, seed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_strategies_serve_what_a_recount_gives_on_servers() {
    strategies(installation(World::on_servers().await).await, 7).await;
}

/// Events and time go on, and batch runs; each time all that was logged is counted.
async fn strategies(world: World, seed: u64) {
    let mut truth = Truth::new(seed);
    let served = world.serve().await;
    let troubled = Troubled::of(&world);
    for step in 0..16_u64 {
        let count = truth.rng.random_range(0..12);
        let lines = truth.lines(count);
        if !lines.is_empty() {
            world.ingest_into(SOURCE, &lines).await;
        }
        let later_ms = truth.rng.random_range(1..SHARE_MS / 3);
        world.clock.set_ms(world.clock.now_ms() + later_ms);
        truth.at.insert(world.clock.now_ms(), truth.counts());
        let speed = speed(&world, &troubled, seed * 100 + step).await;
        let done = speed.run(true, CancellationToken::new()).await;
        done.expect("catching up");
        truth.is_served(&world, &served.client).await;
        if step % 5 == 4 {
            let run = world.run_on(SOURCE, &RunRequest::default()).await;
            run.expect("a run");
            truth.is_served(&world, &served.client).await;
        }
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_counted_anew_whatever_dies_embedded() {
    troubles(installation(World::new().await).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_counted_anew_whatever_dies_on_servers() {
    troubles(installation(World::on_servers().await).await).await;
}

/// Runs two speed layers until a story ends.
async fn beside(world: &World, troubled: &Arc<Troubled>, story: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let (one, two) = (
        speed(world, troubled, 1).await,
        speed(world, troubled, 2).await,
    );
    let story = async {
        story.await;
        stop.cancel();
    };
    let (one, two, ()) = tokio::join!(
        Box::pin(one.run(false, stop.clone())),
        Box::pin(two.run(false, stop.clone())),
        Box::pin(story)
    );
    one.and(two).expect("speed layers");
}

/// Something happens, until the small application has another count.
async fn go_on(world: &World, truth: &mut Truth) {
    let before = truth.counts()[&SMALL];
    while truth.counts()[&SMALL] == before {
        let lines = truth.lines(5);
        world.ingest_into(SOURCE, &lines).await;
    }
}

async fn is_counted(world: &World, truth: &Truth, id: i64) {
    let expected = Some(truth.counts()[&id]);
    let is_so = async || recorded(world, id).await == expected;
    until("the count", is_so).await;
}

/// No time passes, so nothing is counted for being old.
async fn troubles(world: World) {
    let mut truth = Truth::new(5);
    let troubled = Troubled::of(&world);
    let story = Box::pin(async {
        for _ in 0..5 {
            go_on(&world, &mut truth).await;
            is_counted(&world, &truth, SMALL).await;
        }
        // The database is away: what happens meanwhile is counted when it is back.
        let before = recorded(&world, SMALL).await;
        troubled.is_away.store(true, Ordering::SeqCst);
        go_on(&world, &mut truth).await;
        let failed = async || troubled.failed.load(Ordering::SeqCst) >= 3;
        until("an error", failed).await;
        assert_eq!(recorded(&world, SMALL).await, before);
        troubled.is_away.store(false, Ordering::SeqCst);
        is_counted(&world, &truth, SMALL).await;
    });
    beside(&world, &troubled, story).await;

    // Both die between counting and recording.
    troubled.swallows.store(true, Ordering::SeqCst);
    go_on(&world, &mut truth).await;
    let died = async || troubled.swallowed.load(Ordering::SeqCst) > 0;
    let dying = beside(&world, &troubled, async {
        until("a count that is lost", died).await;
        std::future::pending::<()>().await;
    });
    tokio::select! {
        () = dying => {}
        () = until("their end", died) => {}
    }
    let lost = Some(truth.counts()[&SMALL]);
    assert_ne!(recorded(&world, SMALL).await, lost);
    troubled.swallows.store(false, Ordering::SeqCst);
    beside(&world, &troubled, is_counted(&world, &truth, SMALL)).await;
    assert_eq!(world.clock.now_ms(), NOW_MS);
}

/// An application whose count fails for good waits, and nobody waits for it: not the one that is counted by the same
/// statement, and not those that a sweep comes to later.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_can_not_be_counted_leaves_the_others_alone() {
    let world = installation_up_to(FAR, World::new().await).await;
    let mut truth = Truth::new(11);
    let troubled = Troubled::of(&world);
    troubled.broken.store(LARGE, Ordering::SeqCst);
    go_on(&world, &mut truth).await;
    let layer = speed(&world, &troubled, 1).await;
    let run = Box::pin(layer.run(true, CancellationToken::new())).await;
    assert!(run.is_err(), "the end is not reached without it");
    assert_eq!(recorded(&world, FAR).await, Some(0));
    let small = truth.counts()[&SMALL];
    assert_eq!(recorded(&world, SMALL).await, Some(small));
    assert_eq!(recorded(&world, LARGE).await, None);

    let story = Box::pin(async {
        for _ in 0..5 {
            go_on(&world, &mut truth).await;
            is_counted(&world, &truth, SMALL).await;
        }
        assert_eq!(recorded(&world, LARGE).await, None);
        // It waits without another event.
        troubled.broken.store(0, Ordering::SeqCst);
        is_counted(&world, &truth, LARGE).await;
    });
    beside(&world, &troubled, story).await;
}

const CLASSES: &str = "[[applications.counting]]
class = \"watched\"
strategy = \"recount\"
applications = [7]
large_size = 100
events_per_athlete_per_day = 1
recounts_per_day = 24
";

/// With processes, by the settings: the API and the command line say the same.
#[test]
fn settings_choose_the_strategy_embedded() {
    let place = Place::embedded();
    std::fs::create_dir_all(place.data()).expect("a folder");
    std::fs::write(place.data().join(CONFIG), CLASSES).expect("a configuration");
    chosen(&place);
}

#[test]
fn settings_choose_the_strategy_on_servers() {
    chosen(&Place::on_these(&Addresses::default(), CLASSES));
}

fn chosen(place: &Place) {
    let rows = [7, 8].map(|id| {
        json!({"id": id, "name": "Pacer", "owner": 42, "athlete_capacity": 10}).to_string()
    });
    place.ingest("applications", &rows.join("\n"));
    let layers: Vec<Process> = (0..2)
        .map(|_| Process::start(place.data(), &["speed"]))
        .collect();
    let server = Server::start(place.data(), &[]);
    for athlete in 1..=6 {
        for id in [7, 8] {
            let body = json!({"athlete_id": athlete}).to_string();
            let path = format!("{}/authorizations", path(id));
            assert_eq!(server.client.post(&path, body.as_bytes()).0, 201);
        }
    }
    let counted = |shown: &Value| {
        shown["counting"]["strategy"] == "recount" && shown["connected_athletes"] == 6
    };
    // Until the count is recorded live state answers, or says that it is not whole yet.
    let ask = || {
        let (_, body) = server.client.get(&path(7));
        serde_json::from_str::<Value>(&body).expect("JSON")
    };
    let mut shown = ask();
    let begun = Instant::now();
    while !counted(&shown) && begun.elapsed() < WAIT_MAX {
        #[expect(clippy::disallowed_methods, reason = "another process works")]
        std::thread::sleep(Duration::from_millis(20));
        shown = ask();
    }
    assert!(counted(&shown), "{shown}");
    assert_eq!(shown["counting"]["class"], "watched");
    for layer in layers {
        let (succeeded, said) = layer.end();
        assert!(succeeded, "{said:?}");
    }
    done(place.data(), &["speed", "--until-caught-up"]);
    let other = server.client.json(&path(8));
    assert_eq!(other["counting"], json!({"strategy": "increments"}));
    assert_eq!(other["connected_athletes"], 6);
    let shown = done(place.data(), &["applications", "show", "7"]);
    assert!(
        shown.contains("6 of 10 athletes are connected, counted at 2"),
        "{shown}"
    );
    let listed = done(place.data(), &["applications", "list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let strategy = |id: i64| {
        let mut all = listed.as_array().expect("a list").iter();
        let found = all.find(|one| one["id"] == id).expect("it is listed");
        found["counting"]["strategy"].clone()
    };
    assert_eq!(
        (strategy(7), strategy(8)),
        (json!("recount"), json!("increments"))
    );
}
