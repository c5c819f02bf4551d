//! Achievements under crashes and lost live state. Each change is published once and equals the
//! difference between a plain sort before and after it. The holder of a crown ranks first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use batch::RunRequest;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use schemas::achievement::{ACHIEVEMENTS_TOPIC, BOARD_CHANGES_TOPIC};
use schemas::source::Source;
use serde_json::{Value, json};
use stores::Stores;
use stores::log::LogRead;
use tests::expected_achievements::{BOARDS, ExpectedAchievements, board_of};
use tests::expected_boards::ExpectedEntities;
use tests::histories::history_seeds;
use tests::http::Client;
use tests::process::{Process, Server, run_ok};
use tests::topic::messages;
use tests::world::World;
use tokio_util::sync::CancellationToken;

const SEGMENTS: i64 = 2;
/// More athletes than the top entries that a worker remembers.
const ATHLETES: i64 = 45;
const APPLICATIONS: i64 = 2;
const STEPS: usize = 13;
const HISTORIES: u64 = 1;

fn random_effort(rng: &mut SmallRng) -> Value {
    let athlete = rng.random_range(1..=ATHLETES);
    let segment = rng.random_range(1..=SEGMENTS);
    // Each athlete has a few efforts on each segment, which are edited repeatedly.
    let id = (athlete * 10 + segment) * 10 + rng.random_range(0..3_i64);
    let mut row = json!({
        "id": id, "segment_id": segment, "athlete_id": athlete, "activity_id": id / 3,
        "elapsed_time": rng.random_range(20..60),
        "started_at": "2026-01-01T00:00:00Z",
    });
    match rng.random_range(0..10) {
        0 => row["deleted"] = json!(true),
        1 => row["visibility"] = json!("only_me"),
        2 => row["elapsed_time"] = json!(rng.random_range(1..22)),
        _ => {}
    }
    row
}

fn random_athlete(rng: &mut SmallRng) -> Value {
    let mut row = json!({"id": rng.random_range(1..=ATHLETES)});
    if rng.random_bool(0.9) {
        row["gender"] = json!(["F", "M", "X"].choose(rng));
    }
    if rng.random_bool(0.15) {
        row["deleted"] = json!(true);
    }
    row
}

/// All values of a topic with their offsets, by partition.
async fn read_values(log: &dyn LogRead, topic: &str) -> Vec<Vec<Value>> {
    let partitions = messages(log, topic).await.expect("the log").into_iter();
    let with_offset = |(offset, mut value): (i64, Value)| {
        value["offset"] = json!(offset);
        value
    };
    partitions
        .map(|values| values.into_iter().map(with_offset).collect())
        .collect()
}

/// The expected state of an installation: its rows and its achievements.
struct ExpectedState {
    truth: ExpectedEntities,
    expected_achievements: ExpectedAchievements,
    /// By partition: the number of notifications checked.
    checked: BTreeMap<u32, usize>,
}

impl ExpectedState {
    async fn ingest(&mut self, world: &World, rng: &mut SmallRng) {
        let source = if rng.random_bool(0.8) {
            Source::Efforts
        } else {
            Source::Athletes
        };
        let count = rng.random_range(1..30);
        let lines: Vec<String> = (0..count)
            .map(|_| match source {
                Source::Efforts => random_effort(rng).to_string(),
                _ => random_athlete(rng).to_string(),
            })
            .collect();
        world.ingest_into(source, &lines).await;
        if source == Source::Athletes {
            // A deleted athlete also leaves their applications.
            world.catch_up_on(Source::Authorizations).await;
        }
        for line in &lines {
            assert!(self.truth.apply_line(source.name(), line));
        }
        let topic = Source::Efforts.topic();
        for (partition, records) in (0..).zip(read_values(&*world.stores.log, topic).await) {
            let checked = self.checked.entry(partition).or_default();
            for record in &records[*checked..] {
                // Records a cache miss; no board changed.
                if record.get("miss").is_some() {
                    continue;
                }
                let int = |name: &str| record[name].as_i64().expect(name);
                let (segment, athlete) = (int("segment_id"), int("athlete_id"));
                let offset = int("offset");
                self.expected_achievements
                    .change(&self.truth, segment, athlete, partition, offset);
            }
            *checked = records.len();
        }
    }

    async fn authorize(&mut self, world: &World, rng: &mut SmallRng) {
        let authorization = |id: i64, rng: &mut SmallRng| {
            let mut row = json!({
                "id": id, "application_id": 1 + id % APPLICATIONS, "athlete_id": 1 + id % 7,
                "created_at": "2026-01-01T00:00:00Z",
            });
            if rng.random_bool(0.4) {
                row["revoked_at"] = json!("2026-02-01T00:00:00Z");
            }
            row.to_string()
        };
        let ids = (0..6)
            .map(|_| rng.random_range(1..40))
            .collect::<Vec<i64>>();
        let lines: Vec<String> = ids.into_iter().map(|id| authorization(id, rng)).collect();
        world.ingest_into(Source::Authorizations, &lines).await;
        for line in &lines {
            assert!(self.truth.apply_line("authorizations", line));
        }
        world.catch_up_on(Source::Authorizations).await;
    }

    /// Compares all achievements, changes and boards.
    async fn compare(&self, world: &World, client: &Client, exact: bool) {
        let mut achievements = Vec::new();
        for athlete in 1..=ATHLETES {
            let path = format!("/api/v1/athletes/{athlete}/achievements");
            let pages = fetch_pages(client, &path).await;
            let mut actual: Vec<Value> = pages.iter().cloned().map(without_id_and_time).collect();
            actual.sort_by_key(Value::to_string);
            if exact {
                assert_eq!(
                    actual,
                    self.expected_achievements.achievements(athlete),
                    "athlete {athlete}"
                );
            }
            achievements.extend(pages);
        }
        check_holders_rank_first(&achievements, client, SEGMENTS).await;
        let log = &*world.stores.log;
        let log_ids = read_values(log, ACHIEVEMENTS_TOPIC)
            .await
            .into_iter()
            .flatten();
        let log_ids: BTreeSet<String> = log_ids.map(|published| read_id(&published)).collect();
        let table_ids: BTreeSet<String> = achievements.iter().map(read_id).collect();
        assert_eq!(
            table_ids.len(),
            achievements.len(),
            "an achievement was published twice"
        );
        assert_eq!(log_ids, table_ids);
        check_changes(
            &read_values(log, BOARD_CHANGES_TOPIC).await,
            &self.truth,
            SEGMENTS,
        );
    }
}

fn read_id(published: &Value) -> String {
    published["id"].as_str().expect("an id").to_owned()
}

fn without_id_and_time(mut published: Value) -> Value {
    let map = published.as_object_mut().expect("an object");
    map.remove("id");
    map.remove("at");
    published
}

/// All pages of a list of achievements from the API.
async fn fetch_pages(client: &Client, path: &str) -> Vec<Value> {
    let mut achievements = Vec::new();
    let mut uri = format!("{path}?limit=7");
    loop {
        let page = client.fetch_json(&uri).await;
        assert_eq!(page["provenance"]["complete"], true, "{page}");
        achievements.extend(page["achievements"].as_array().expect("a list").clone());
        let Some(cursor) = page["cursor"].as_str() else {
            break;
        };
        uri = format!("{path}?limit=7&cursor={cursor}");
    }
    let sort_key = |published: &Value| {
        let time: jiff::Timestamp = published["at"]
            .as_str()
            .expect("a time")
            .parse()
            .expect("a time");
        (time, read_id(published))
    };
    assert!(
        achievements.is_sorted_by(|a, b| sort_key(a) > sort_key(b)),
        "{achievements:?}"
    );
    achievements
}

/// The holder of each crown, according to the published achievements, ranks first on the board.
async fn check_holders_rank_first(published: &[Value], client: &Client, segments: i64) {
    let mut crowns: Vec<&Value> = published
        .iter()
        .filter(|published| published["kind"] == "crown" || published["kind"] == "crown_lost")
        .collect();
    let order = |published: &Value| {
        (
            published["position"]["offset"].as_i64(),
            published["kind"] == "crown",
        )
    };
    crowns.sort_by_key(|published| order(published));
    let mut holders: BTreeMap<(i64, String), i64> = BTreeMap::new();
    for published in crowns {
        let athlete = published["athlete_id"].as_i64().expect("an athlete");
        let segment = published["segment_id"].as_i64().expect("a segment");
        let board = (
            segment,
            published["board"].as_str().expect("a board").to_owned(),
        );
        if published["kind"] == "crown" {
            assert_eq!(holders.insert(board, athlete), None, "{published}");
        } else {
            assert_eq!(holders.remove(&board), Some(athlete), "{published}");
        }
    }
    for segment in 1..=segments {
        for board in BOARDS {
            let path = format!("/api/v1/boards/segments/{segment}?board={board}&limit=1");
            let answer = client.fetch_json(&path).await;
            let first = answer["entries"][0]["athlete_id"].as_i64();
            let holder = holders.get(&(segment, board.to_owned())).copied();
            assert_eq!(holder, first, "{path}: {answer}");
        }
    }
}

/// The rows of boards by segment, division and period, and by athlete.
type BoardRows = BTreeMap<(i64, i64, i64), BTreeMap<i64, Value>>;

/// The boards of all time have the rows of the current boards.
fn check_boards(boards: &BoardRows, truth: &ExpectedEntities, segments: i64) {
    for segment in 1..=segments {
        for (division, board) in (0..).zip(BOARDS) {
            let rows = boards.get(&(segment, division, 0));
            let rows: BTreeSet<String> = rows
                .into_iter()
                .flatten()
                .map(|(_, row)| row.to_string())
                .collect();
            let expected = board_of(truth, segment, board).into_iter().map(|mut row| {
                row.as_object_mut().expect("an entry").remove("rank");
                row.to_string()
            });
            assert_eq!(rows, expected.collect::<BTreeSet<_>>(), "{segment} {board}");
        }
    }
}

/// Applying the published changes in order gives the current boards.
fn check_changes(changes: &[Vec<Value>], truth: &ExpectedEntities, segments: i64) {
    let mut boards = BoardRows::new();
    let mut connected: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for published in changes.iter().flatten() {
        let int = |value: &Value, name: &str| value[name].as_i64().expect(name);
        if !ids.insert(read_id(published)) {
            continue;
        }
        let athlete = int(published, "athlete_id");
        if published["board"] == "applications" {
            let change = &published["changes"][0];
            let members = connected
                .entry(int(published, "application_id"))
                .or_default();
            let is_new = !change["after"].is_null();
            assert_ne!(
                change["before"].is_null(),
                change["after"].is_null(),
                "{published}"
            );
            assert_eq!(members.contains(&athlete), !is_new, "{published}");
            match is_new {
                true => members.insert(athlete),
                false => members.remove(&athlete),
            };
            continue;
        }
        for change in published["changes"].as_array().expect("changes") {
            let (division, period) = (int(change, "division"), int(change, "period"));
            let board = (int(published, "segment_id"), division, period);
            let rows = boards.entry(board).or_default();
            let previous = rows.remove(&athlete);
            let times = |row: &Value| (int(row, "elapsed_time"), int(row, "effort_id"));
            assert_eq!(
                change["before"].is_null(),
                previous.is_none(),
                "{published}"
            );
            assert_eq!(
                previous.as_ref().map(times),
                (!change["before"].is_null()).then(|| times(&change["before"])),
                "{published}"
            );
            if !change["after"].is_null() {
                let mut row = change["after"].clone();
                row["athlete_id"] = json!(athlete);
                rows.insert(athlete, row);
            }
        }
    }
    for application in 1..=APPLICATIONS {
        let members = connected.get(&application).map_or(0, BTreeSet::len);
        assert_eq!(
            members as u64,
            truth.connected(application),
            "{application}"
        );
    }
    check_boards(&boards, truth, segments);
}

/// Starts two workers and cancels them at random points. Unless `exact`, live state may also be
/// lost.
async fn run_and_cancel_workers(world: &World, rng: &mut SmallRng, exact: bool) {
    let (first, second) = (
        world.speed_of(Source::Efforts).await,
        world.speed_of(Source::Efforts).await,
    );
    let work = async move {
        let stop = CancellationToken::new();
        let (first, second) = tokio::join!(first.run(true, stop.clone()), second.run(true, stop));
        first.and(second).expect("speed");
    };
    let wait = Duration::from_millis(rng.random_range(1..60));
    #[expect(clippy::disallowed_methods, reason = "it is awaited or aborted")]
    let mut task = tokio::spawn(work);
    match tokio::time::timeout(wait, &mut task).await {
        Ok(ended) => ended.expect("the work"),
        Err(_) => {
            task.abort();
            drop(task.await);
        }
    }
    if !exact && rng.random_bool(0.25) {
        world.delete_live_state();
    }
}

/// Unpublished changes may be lost with live state. A change may then be published at an earlier
/// notification of its group, so the comparison is not `exact`.
async fn check_history(mut world: World, seed: u64, exact: bool) {
    let mut rng = SmallRng::seed_from_u64(seed);
    for source in [Source::Efforts, Source::Authorizations] {
        world.intake(source).await;
    }
    let mut expected = ExpectedState {
        truth: ExpectedEntities::default(),
        expected_achievements: ExpectedAchievements::default(),
        checked: BTreeMap::new(),
    };
    let served = world.serve().await;
    for step in 0..STEPS {
        world.speed_options.records_max = rng.random_range(1..40);
        world.speed_options.groups_max = rng.random_range(1..20);
        world.speed_options.rows_max = rng.random_range(1..60);
        for _ in 0..rng.random_range(1..4) {
            expected.ingest(&world, &mut rng).await;
            while rng.random_bool(0.4) {
                run_and_cancel_workers(&world, &mut rng, exact).await;
            }
            // Changes that a run publishes before the speed layer processes them are published too.
            while exact && rng.random_bool(0.3) {
                let request = RunRequest {
                    full: rng.random_bool(0.3),
                    force: true,
                    ..RunRequest::default()
                };
                world.run_after_lease(Source::Efforts, &request).await;
            }
            world.catch_up_on(Source::Efforts).await;
            world.mark_live_restored();
        }
        match rng.random_range(0..6) {
            0 if step > 0 => {
                world.delete_live_state();
                world.catch_up_on(Source::Efforts).await;
                world.mark_live_restored();
            }
            1 => expected.authorize(&world, &mut rng).await,
            2 | 3 => {
                let request = RunRequest {
                    full: rng.random_bool(0.3),
                    force: true,
                    ..RunRequest::default()
                };
                world.run_after_lease(Source::Efforts, &request).await;
                if rng.random_bool(0.5) {
                    let run = world.run_after_lease(Source::Authorizations, &request);
                    Box::pin(run).await;
                }
            }
            _ => {}
        }
        if rng.random_bool(0.3) {
            expected.compare(&world, &served.client, exact).await;
        }
    }
    expected.compare(&world, &served.client, exact).await;
    for kind in ["crown", "crown_lost", "top_ten", "personal_record"] {
        assert!(
            expected.expected_achievements.count(kind) > 5,
            "too few achievements: {kind}"
        );
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn achievements_match_a_plain_recount() {
    for seed in history_seeds(HISTORIES, 1) {
        eprintln!("history {seed}");
        Box::pin(check_history(World::new().await, seed, seed % 3 > 0)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn achievements_on_servers_match_a_plain_recount() {
    for seed in history_seeds(HISTORIES, 8) {
        eprintln!("history {seed} on servers");
        Box::pin(check_history(World::on_servers().await, 100 + seed, true)).await;
    }
}

/// Batch runs proceed while rows arrive and the speed layer works; every change is still published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_and_speed_layer_publish_every_change() {
    let world = World::new().await;
    let mut rng = SmallRng::seed_from_u64(9);
    world.intake(Source::Efforts).await;
    let mut truth = ExpectedEntities::default();
    let stop = CancellationToken::new();
    let (speed, speed_stop) = (world.speed_of(Source::Efforts).await, stop.clone());
    #[expect(clippy::disallowed_methods, reason = "it is awaited below")]
    let speed = tokio::spawn(async move { speed.run(false, speed_stop).await });
    for _ in 0..12 {
        let lines: Vec<String> = (0..30)
            .map(|_| random_effort(&mut rng).to_string())
            .collect();
        for line in &lines {
            assert!(truth.apply_line("efforts", line));
        }
        let request = RunRequest {
            full: rng.random_bool(0.3),
            force: true,
            ..RunRequest::default()
        };
        let ingest = async {
            for line in lines.chunks(5) {
                world.ingest_into(Source::Efforts, line).await;
            }
        };
        let run = world.run_on(Source::Efforts, &request);
        let ((), run) = tokio::join!(ingest, Box::pin(run));
        run.expect("a run");
    }
    stop.cancel();
    speed.await.expect("speed ended").expect("speed");
    world.catch_up_on(Source::Efforts).await;
    let api = world.serve().await;
    let mut achievements = Vec::new();
    for athlete in 1..=ATHLETES {
        let path = format!("/api/v1/athletes/{athlete}/achievements");
        achievements.extend(fetch_pages(&api.client, &path).await);
    }
    check_holders_rank_first(&achievements, &api.client, SEGMENTS).await;
    check_changes(
        &read_values(&*world.stores.log, BOARD_CHANGES_TOPIC).await,
        &truth,
        SEGMENTS,
    );
    api.end().await;
}

fn read_stored(data: &std::path::Path) -> (Vec<Value>, Vec<Value>) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let stores = Stores::embedded(data).await.expect("the stores");
        let read_topic = |topic| read_values(&*stores.log, topic);
        let published = read_topic(ACHIEVEMENTS_TOPIC)
            .await
            .into_iter()
            .flatten()
            .collect();
        let notified = read_topic(Source::Efforts.topic()).await;
        (published, notified.into_iter().flatten().collect())
    })
}

/// Kills speed layers repeatedly while rows arrive; the last one catches up. The holder of a crown
/// ranks first, and no change is published twice.
#[test]
fn killed_workers_publish_nothing_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let mut rng = SmallRng::seed_from_u64(3);
    for round in 0..12 {
        let file = folder.path().join(format!("{round}.jsonl"));
        let mut text = String::new();
        for _ in 0..400 {
            writeln!(text, "{}", random_effort(&mut rng)).expect("writing");
        }
        std::fs::write(&file, text).expect("a file");
        let speed = Process::start(&data, &["speed", "--source", "efforts"]);
        run_ok(&data, &["ingest", "efforts", &file.to_string_lossy()]);
        #[expect(
            clippy::disallowed_methods,
            reason = "a process is killed after some time"
        )]
        std::thread::sleep(Duration::from_millis(rng.random_range(10..700)));
        speed.kill();
        if round == 5 {
            run_ok(&data, &["speed", "--until-caught-up"]);
            run_ok(&data, &["batch", "run"]);
        }
    }
    run_ok(&data, &["speed", "--until-caught-up"]);
    let server = Server::start(&data, &[]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let achievements = runtime.block_on(async {
        let mut achievements = Vec::new();
        for athlete in 1..=ATHLETES {
            let path = format!("/api/v1/athletes/{athlete}/achievements");
            achievements.extend(fetch_pages(&server.client, &path).await);
        }
        check_holders_rank_first(&achievements, &server.client, SEGMENTS).await;
        achievements
    });
    assert!(
        achievements.len() > 50,
        "{} achievements",
        achievements.len()
    );
    let ids: BTreeSet<String> = achievements.iter().map(read_id).collect();
    assert_eq!(ids.len(), achievements.len());
    let (published, _) = read_stored(&data);
    assert_eq!(published.iter().map(read_id).collect::<BTreeSet<_>>(), ids);
}
