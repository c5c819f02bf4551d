//! Workers for which nothing comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::source::Source;
use serde_json::json;
use tests::world::{PARTITIONS, World};
use tokio_util::sync::CancellationToken;

use crate::cutting::Narrow;

/// No step takes so long.
const LONG: Duration = Duration::from_secs(60);

/// How many records live state holds: none if it is not there.
async fn counted(world: &World) -> i64 {
    let slots = world
        .stores
        .live
        .read_deltas(Source::Plays, PARTITIONS, &[]);
    let slots = slots.await.expect("live state").partition_states;
    slots
        .iter()
        .flatten()
        .map(|slot| slot.position.next_offset)
        .sum()
}

async fn wait_for(world: &World, records: i64) {
    let begun = Instant::now();
    while counted(world).await < records {
        assert!(begun.elapsed() < LONG, "live state is not whole");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Who waits at the end of the log does not look at the records of runs each time, but at live state: what was lost
/// there is made again although no record comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_live_state_is_made_again_though_nothing_comes() {
    let mut world = World::new().await;
    world.speed_options.look_interval_ms = 600_000;
    let plays: Vec<String> = (0..40)
        .map(|n| json!({"event_id": format!("{n}"), "track_id": n, "owner_id": n, "kind": "play", "at": "2026-03-05T11:00:00Z"}).to_string())
        .collect();
    world.ingest(&plays).await;
    let speed = world.speed().await;
    let stop = CancellationToken::new();
    let story = async {
        wait_for(&world, 40).await;
        // At the end by now, in every partition.
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.lose_live();
        wait_for(&world, 40).await;
        stop.cancel();
    };
    let counting = tokio::time::timeout(LONG * 3, speed.run(false, stop.clone()));
    let (counting, ()) = tokio::join!(counting, story);
    let report = counting.expect("it stops").expect("counting");
    // Each partition's first slot is made so, too.
    assert!(report.heals > u64::from(PARTITIONS), "{report:?}");
}

/// The state of a partition costs the same however many there are: a worker reads its own alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_read_the_states_of_their_own_partitions() {
    const MANY: u32 = 8;
    let mut world = World::new().await;
    let topic = Source::Plays.topic();
    let made = world.stores.log.ensure_topic(topic, MANY).await;
    assert_eq!(made.expect("a topic"), MANY);
    let live = Narrow::new(&world.stores.live, usize::MAX);
    world.stores.live = Arc::clone(&live) as _;
    world.catch_up().await;
    let read = live.states_read.lock().expect("no panic").clone();
    // Each worker refreshes before it makes its partition state, and after it.
    assert!(read.len() >= 2 * MANY as usize, "{read:?}");
    assert!(read.iter().all(|partitions| *partitions == 1), "{read:?}");
}
