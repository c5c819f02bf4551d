//! Workers without new records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemas::source::Source;
use serde_json::json;
use tests::world::{PARTITIONS, World};
use tokio_util::sync::CancellationToken;

use crate::batch_splitting::SmallWrites;

/// Timeout of each wait.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The number of records in live state, or zero if it is missing.
async fn count_records(world: &World) -> i64 {
    let states = world
        .stores
        .live
        .read_deltas(Source::Plays, PARTITIONS, &[]);
    let states = states.await.expect("live state").partition_states;
    states
        .iter()
        .flatten()
        .map(|state| state.position.next_offset)
        .sum()
}

async fn wait_for(world: &World, records: i64) {
    let started = Instant::now();
    while count_records(world).await < records {
        assert!(started.elapsed() < WAIT_MAX, "live state is incomplete");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A worker that waits at the end of the log polls live state instead of run records. It rebuilds
/// lost state although no record arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_live_state_is_rebuilt_without_new_records() {
    let mut world = World::new().await;
    world.speed_options.look_interval_ms = 600_000;
    let plays: Vec<String> = (0..40)
        .map(|n| json!({"event_id": format!("{n}"), "track_id": n, "owner_id": n, "kind": "play", "at": "2026-03-05T11:00:00Z"}).to_string())
        .collect();
    world.ingest(&plays).await;
    let speed = world.speed().await;
    let stop = CancellationToken::new();
    let scenario = async {
        wait_for(&world, 40).await;
        // By now, the worker is at the end of every partition.
        tokio::time::sleep(Duration::from_millis(50)).await;
        world.delete_live_state();
        wait_for(&world, 40).await;
        stop.cancel();
    };
    let counting = tokio::time::timeout(WAIT_MAX * 3, speed.run(false, stop.clone()));
    let (counting, ()) = tokio::join!(counting, scenario);
    let report = counting.expect("the worker stops").expect("counting");
    // The first state of each partition is rebuilt in the same way.
    assert!(report.heals > u64::from(PARTITIONS), "{report:?}");
}

/// The cost per partition does not depend on the number of partitions: a worker reads only its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_read_only_their_own_partition_states() {
    const PARTITIONS_MANY: u32 = 8;
    let mut world = World::new().await;
    let topic = Source::Plays.topic();
    let partition_count = world.stores.log.ensure_topic(topic, PARTITIONS_MANY).await;
    assert_eq!(partition_count.expect("a topic"), PARTITIONS_MANY);
    let live = SmallWrites::new(&world.stores.live, usize::MAX);
    world.stores.live = Arc::clone(&live) as _;
    world.catch_up().await;
    let read = live.states_read.lock().expect("no panic").clone();
    // Each worker refreshes before it creates its partition state, and after that.
    assert!(read.len() >= 2 * PARTITIONS_MANY as usize, "{read:?}");
    assert!(read.iter().all(|partitions| *partitions == 1), "{read:?}");
}
