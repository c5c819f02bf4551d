//! A live store that accepts few rows per call gets its micro-batches in parts.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut, Epoch, PartitionState};
use schemas::source::Source;
use serde_json::json;
use stores::Result;
use stores::live::{
    Changes, DeltaQuery, DeltasSnapshot, EntriesSnapshot, EntryQuery, LiveRead, LiveWrite,
    MembersQuery, Outbox, PartitionId, StateTransition,
};
use stores::live_scan::{ScanKey, ScannedDeltas, ScannedEntries};
use tests::plays;
use tests::world::World;

/// A live store that accepts few rows per call.
#[derive(Debug)]
pub(crate) struct SmallWrites {
    inner: Arc<dyn LiveWrite>,
    rows_max: usize,
    /// Offsets and rows of each applied micro-batch.
    applied: Mutex<Vec<(i64, usize)>>,
    /// The number of partition states of each read that requested nothing else.
    pub(crate) states_read: Mutex<Vec<u32>>,
}

impl SmallWrites {
    pub(crate) fn new(inner: &Arc<dyn LiveWrite>, rows_max: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            rows_max,
            applied: Mutex::default(),
            states_read: Mutex::default(),
        })
    }

    fn record_read(&self, partitions: u32) {
        self.states_read.lock().expect("no panic").push(partitions);
    }
}

#[async_trait]
impl LiveRead for SmallWrites {
    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot> {
        if queries.is_empty() {
            self.record_read(partitions);
        }
        self.inner.read_deltas(source, partitions, queries).await
    }

    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<PartitionState>>> {
        self.record_read(partitions.end - partitions.start);
        self.inner.partition_states(source, partitions).await
    }

    async fn read_entries(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        self.inner.read_entries(source, partitions, queries).await
    }

    async fn read_live_counts(
        &self,
        source: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        self.inner
            .read_live_counts(source, partitions, queries)
            .await
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<EntriesSnapshot> {
        self.inner.read_members(source, partitions, queries).await
    }

    async fn outboxes(
        &self,
        source: Source,
        partitions: Range<u32>,
        limit: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        self.inner.outboxes(source, partitions, limit).await
    }

    async fn scan_deltas(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let page = self
            .inner
            .scan_deltas(partition_id, view, epochs, after, limit);
        page.await
    }

    async fn scan_entries(
        &self,
        partition_id: PartitionId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<ScanKey>,
        limit: usize,
    ) -> Result<ScannedEntries> {
        let page = self
            .inner
            .scan_entries(partition_id, view, epochs, after, limit);
        page.await
    }
}

#[async_trait]
impl LiveWrite for SmallWrites {
    fn deltas_max(&self, _: PartitionId) -> usize {
        self.rows_max
    }

    async fn apply(
        &self,
        partition_id: PartitionId,
        expected: Checkpoint,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), CheckpointMismatch>> {
        let offsets = next.next_offset - expected.next_offset;
        let result = self
            .inner
            .apply(partition_id, expected, next, views, changes);
        let result = result.await?;
        if result.is_ok() {
            let mut applied = self.applied.lock().expect("no panic");
            applied.push((offsets, changes.rows()));
        }
        Ok(result)
    }

    async fn remove_published(&self, partition_id: PartitionId, read: &Outbox) -> Result<bool> {
        self.inner.remove_published(partition_id, read).await
    }

    async fn update_state(
        &self,
        action: &'static str,
        partition_id: PartitionId,
        rule: &StateTransition<'_>,
    ) -> Result<Option<PartitionState>> {
        self.inner.update_state(action, partition_id, rule).await
    }

    async fn collect_garbage(&self, partition_id: PartitionId, limit: usize) -> Result<usize> {
        self.inner.collect_garbage(partition_id, limit).await
    }
}

/// A play with so many tracks that each has its own rows.
fn play(id: usize) -> String {
    plays::play(format!("e{id}"), json!({"track_id": id}))
}

/// Every event counts once, including repeats in the other half of its micro-batch. A part has few
/// rows or one record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_micro_batches_are_split() {
    const EVENTS: usize = 120;
    let mut world = World::new().await;
    world.speed_options.records_max = 100;
    let mut lines = Vec::new();
    for id in 0..EVENTS {
        lines.push(play(id));
        lines.push(play(id / 2));
        if id % 10 == 0 {
            lines.push("no JSON".to_owned());
        }
    }
    let raw: Vec<&[u8]> = lines.iter().map(String::as_bytes).collect();
    world.intake(Source::Plays).await;
    world.append_raw(0, &raw).await;
    for (rows_max, parts_min) in [(60, 12), (1, EVENTS)] {
        let small_writes = SmallWrites::new(&world.stores.live, rows_max);
        let original = std::mem::replace(&mut world.stores.live, Arc::clone(&small_writes) as _);
        let report = world.catch_up().await;
        world.stores.live = original;
        assert_eq!(report.events, EVENTS as u64);
        assert_eq!(report.duplicates, EVENTS as u64);
        assert_eq!(report.dead_letters, EVENTS as u64 / 10);
        let applied = small_writes.applied.lock().expect("no panic").clone();
        assert!(applied.len() >= parts_min, "{applied:?}");
        for (offsets, rows) in &applied {
            assert!(*rows <= rows_max || *offsets == 1, "{applied:?}");
        }
        let served = world.serve().await;
        let answer = served
            .client
            .fetch_json("/api/v1/stats/plays/total?owner_id=1");
        assert_eq!(answer.await["count"], EVENTS, "{rows_max} rows at once");
        served.end().await;
        world.delete_live_state();
    }
}
