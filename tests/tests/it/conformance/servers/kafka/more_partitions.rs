//! Partitions that are added while all processes run.

use schemas::partition::partition_of;
use serde_json::{Value, json};
use stores::intake::{Intake, IntakePorts};
use tests::world::{PARTITIONS, Served};

use super::*;

const PARTITIONS_AFTER: u32 = 5;
const KEYS: i64 = 12;

async fn add_partitions(namespace: &Namespace, topic: &str) {
    let name = namespace.topic(topic);
    let new_partitions = [NewPartitions::new(&name, PARTITIONS_AFTER as usize)];
    let added = admin()
        .create_partitions(&new_partitions, &AdminOptions::new())
        .await;
    added.expect("adding")[0].as_ref().expect("added");
}

fn home_partition(key: i64, partitions: u32) -> u32 {
    partition_of(key.to_string().as_bytes(), partitions)
}

/// One play of each owner.
fn plays(round: u32) -> Vec<String> {
    let play = |owner: i64| {
        format!(
            r#"{{"event_id":"{round}","track_id":10,"owner_id":{owner},"kind":"play","at":"2026-03-01T00:00:00Z"}}"#
        )
    };
    (0..KEYS).map(play).collect()
}

/// One athlete's efforts on some segments, better ones in each round.
fn efforts(round: i64, segments: impl Iterator<Item = i64>) -> Vec<String> {
    let effort = |segment: i64| {
        json!({
            "id": 10 * segment + round, "segment_id": segment, "athlete_id": 4, "activity_id": 1,
            "elapsed_time": 100 - round, "started_at": "2026-03-01T10:00:00Z",
        })
        .to_string()
    };
    segments.map(effort).collect()
}

/// The owners of the plays in each partition, in log order.
async fn owners(log: &dyn Log) -> Vec<Vec<i64>> {
    let mut owners = Vec::new();
    for partition in 0..log.spans(TOPIC).await.expect("the log").len() {
        let partition = u32::try_from(partition).expect("few");
        let fetched = log.fetch(TOPIC, partition, 0, EVERYTHING).await;
        let keys = bytes(&fetched.expect("records").records.keys);
        let id = |key: Vec<u8>| String::from_utf8(key).expect("a number");
        owners.push(
            keys.into_iter()
                .map(|key| id(key).parse().expect("a number"))
                .collect(),
        );
    }
    owners
}

/// A long-lived intake distributes keys over the added partitions, including keys of lines that it
/// checked before.
#[tokio::test]
async fn an_intake_uses_added_partitions() -> Result<()> {
    let namespace = servers::namespace();
    let mut world = World::new().await;
    world.stores.log = Arc::new(KafkaLog::open(&options(), &namespace)?);
    let ports = IntakePorts {
        log: Arc::clone(&world.stores.log) as _,
        entities: Arc::clone(&world.stores.entities) as _,
        suppressions: stores::erasures::Suppressions::none(),
        clock: Arc::clone(&world.clock) as _,
    };
    let intake = Intake::open(ports, Source::Plays, PARTITIONS).await?;
    let check = |lines: &[String]| {
        intake.check("test", (1..).zip(lines.iter().map(|line| line.as_bytes())))
    };
    intake.write(check(&plays(0))).await?;
    let mut expected: Vec<Vec<i64>> = vec![Vec::new(); PARTITIONS_AFTER as usize];
    for owner in 0..KEYS {
        expected[home_partition(owner, PARTITIONS) as usize].push(owner);
    }
    assert_eq!(
        owners(&*world.stores.log).await,
        expected[..PARTITIONS as usize]
    );
    let checked_early = check(&plays(1));
    add_partitions(&namespace, TOPIC).await;
    let started = Instant::now();
    while intake.partition_count() < PARTITIONS_AFTER {
        assert!(
            started.elapsed() < WAIT_MAX,
            "the worker does not look again"
        );
        tokio::time::sleep(Duration::from_millis(300)).await;
        intake.write(check(&plays(9)[..1])).await?;
        let partition = home_partition(0, intake.partition_count()) as usize;
        expected[partition].push(0);
    }
    intake.write(checked_early).await?;
    intake.write(check(&plays(2))).await?;
    for _ in 0..2 {
        for owner in 0..KEYS {
            expected[home_partition(owner, PARTITIONS_AFTER) as usize].push(owner);
        }
    }
    // Different keys may come in any order.
    let mut actual = owners(&*world.stores.log).await;
    for owners in actual.iter_mut().chain(&mut expected) {
        owners.sort_unstable();
    }
    assert_eq!(actual, expected);
    delete_topics(&namespace).await;
    Ok(())
}

async fn request_json(served: &Served, path: String) -> Value {
    let client = served.client.clone();
    let response = tokio::task::spawn_blocking(move || client.get_json(&path));
    response.await.expect("an answer")
}

/// Waits until all records of a log are counted, in this number of partitions.
async fn wait_counted(world: &World, source: Source, partitions: u32) {
    let started = Instant::now();
    loop {
        let spans = world.stores.log.spans(source.topic()).await.expect("a log");
        let live = world.stores.live.read_deltas(source, partitions, &[]).await;
        let states = live.expect("live state").partition_states;
        let offsets = states
            .iter()
            .map(|state| state.as_ref().map(|state| state.position.next_offset));
        if offsets.eq(spans.iter().map(|span| Some(span.end))) {
            return;
        }
        assert!(
            started.elapsed() < WAIT_MAX,
            "{source}: {states:?} of {spans:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Every owner has `expected` plays, in an answer that covers all partitions.
async fn check_plays(served: &Served, expected: u32) {
    let started = Instant::now();
    for owner in 0..KEYS {
        loop {
            let path = format!("/api/v1/stats/plays/total?owner_id={owner}&period=all");
            let answer = request_json(served, path).await;
            let position = &answer["provenance"]["position"]["plays"];
            if position.as_array().expect("a position").len() < PARTITIONS_AFTER as usize {
                assert!(started.elapsed() < WAIT_MAX, "{answer}");
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            }
            assert_eq!(answer["count"], expected, "{answer}");
            assert_eq!(answer["provenance"]["complete"], true, "{answer}");
            break;
        }
    }
}

/// By segment: the best time, and whether the answer is complete.
async fn boards(served: &Served) -> Vec<(i64, bool)> {
    let mut boards = Vec::new();
    for segment in 0..KEYS {
        let answer = request_json(served, format!("/api/v1/boards/segments/{segment}")).await;
        assert_eq!(answer["total"], 1, "{answer}");
        let best = answer["entries"][0]["elapsed_time"].as_i64();
        let complete = answer["provenance"]["complete"].as_bool();
        boards.push((best.expect("a time"), complete.expect("a flag")));
    }
    boards
}

/// A segment's best time after the third effort on each even segment.
fn best_time(segment: i64) -> i64 {
    99 - i64::from(segment % 2 == 0)
}

/// Even segments whose partition changed have live entries in two partitions. Their boards are
/// marked as possibly stale; all others are exact.
async fn check_split_boards(served: &Served) {
    let is_split = |segment: i64| {
        segment % 2 == 0
            && home_partition(segment, PARTITIONS) != home_partition(segment, PARTITIONS_AFTER)
    };
    assert!((0..KEYS).any(is_split));
    let started = Instant::now();
    loop {
        let boards = boards(served).await;
        let mut boards = (0..).zip(&boards);
        let all_marked = boards.all(|(segment, (best, complete))| match is_split(segment) {
            true => !complete,
            false => *complete && *best == best_time(segment),
        });
        if all_marked {
            return;
        }
        assert!(started.elapsed() < WAIT_MAX, "{boards:?}");
    }
}

/// Running workers find the added partitions, and plays stay exact. A board whose member has live
/// entries in two partitions is marked as possibly stale until the next run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_processes_use_added_partitions() {
    let world = World::on_servers().await;
    let sources = [Source::Plays, Source::Efforts];
    let run = async |source| {
        let request = batch::RunRequest::default();
        world.run_on(source, &request).await.expect("a run");
    };
    world.ingest(&plays(0)).await;
    world
        .ingest_into(Source::Efforts, &efforts(0, 0..KEYS))
        .await;
    let (plays_speed, efforts_speed) = (world.speed().await, world.speed_of(Source::Efforts).await);
    let stop = CancellationToken::new();
    let scenario = async {
        for source in sources {
            wait_counted(&world, source, PARTITIONS).await;
            run(source).await;
        }
        // After the run, the live entries are in the original partitions.
        world.ingest(&plays(1)).await;
        world
            .ingest_into(Source::Efforts, &efforts(1, 0..KEYS))
            .await;
        for source in sources {
            wait_counted(&world, source, PARTITIONS).await;
            let namespace = world.namespace().expect("servers");
            add_partitions(namespace, source.topic()).await;
            let partitions = async || world.stores.log.ensure_topic(source.topic(), 1).await;
            while partitions().await.expect("the topic") < PARTITIONS_AFTER {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let served = world.serve().await;
        // Every call opens a new intake, which reads the number of partitions.
        world.ingest(&plays(2)).await;
        let even = (0..KEYS).step_by(2);
        world.ingest_into(Source::Efforts, &efforts(2, even)).await;
        for source in sources {
            wait_counted(&world, source, PARTITIONS_AFTER).await;
        }
        check_plays(&served, 3).await;
        check_split_boards(&served).await;
        for source in sources {
            run(source).await;
        }
        check_plays(&served, 3).await;
        for (segment, board) in (0..).zip(boards(&served).await) {
            assert_eq!(board, (best_time(segment), true), "{segment}");
        }
        // The same after more plays.
        world.ingest(&plays(3)).await;
        world
            .ingest_into(Source::Efforts, &efforts(3, 0..KEYS))
            .await;
        for source in sources {
            wait_counted(&world, source, PARTITIONS_AFTER).await;
        }
        check_plays(&served, 4).await;
        for (segment, board) in (0..).zip(boards(&served).await) {
            assert_eq!(board, (97, true), "{segment}");
        }
        served.end().await;
        stop.cancel();
    };
    let (plays_outcome, efforts_outcome, ()) = tokio::join!(
        plays_speed.run(false, stop.clone()),
        efforts_speed.run(false, stop.clone()),
        scenario
    );
    plays_outcome.expect("speed");
    efforts_outcome.expect("speed");
    delete_topics(world.namespace().expect("servers")).await;
}
