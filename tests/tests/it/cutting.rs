//! A live store that takes few rows at once gets its micro-batches in pieces.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use schemas::seam::{Cut, Epoch, Fence, Moved, Slot};
use schemas::source::Source;
use serde_json::json;
use stores::Result;
use stores::live::{
    Changes, LiveAnswer, LiveQuery, LiveRead, LiveWrite, MembersQuery, Outbox, SlotId, SlotRule,
    StateQuery, StatesAnswer,
};
use stores::live_scan::{LivePlace, ScannedDeltas, ScannedStates};
use tests::plays;
use tests::world::World;

/// A live store that wants few rows at once.
#[derive(Debug)]
pub(crate) struct Narrow {
    inner: Arc<dyn LiveWrite>,
    rows_max: usize,
    /// Offsets and rows of each micro-batch that was applied.
    applied: Mutex<Vec<(i64, usize)>>,
    /// How many partition states each read brought that asked for nothing else.
    pub(crate) states_read: Mutex<Vec<u32>>,
}

impl Narrow {
    pub(crate) fn new(inner: &Arc<dyn LiveWrite>, rows_max: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            rows_max,
            applied: Mutex::default(),
            states_read: Mutex::default(),
        })
    }

    fn note_read(&self, partitions: u32) {
        self.states_read.lock().expect("no panic").push(partitions);
    }
}

#[async_trait]
impl LiveRead for Narrow {
    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer> {
        if queries.is_empty() {
            self.note_read(partitions);
        }
        self.inner.read(source, partitions, queries).await
    }

    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<Slot>>> {
        self.note_read(partitions.end - partitions.start);
        self.inner.partition_states(source, partitions).await
    }

    async fn read_states(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        self.inner.read_states(source, partitions, queries).await
    }

    async fn read_sums(
        &self,
        source: Source,
        partitions: u32,
        queries: &[StateQuery],
    ) -> Result<StatesAnswer> {
        self.inner.read_sums(source, partitions, queries).await
    }

    async fn read_members(
        &self,
        source: Source,
        partitions: Range<u32>,
        queries: &[MembersQuery],
    ) -> Result<StatesAnswer> {
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
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedDeltas> {
        let page = self.inner.scan_deltas(slot, view, epochs, after, limit);
        page.await
    }

    async fn scan_states(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<LivePlace>,
        limit: usize,
    ) -> Result<ScannedStates> {
        let page = self.inner.scan_states(slot, view, epochs, after, limit);
        page.await
    }
}

#[async_trait]
impl LiveWrite for Narrow {
    fn deltas_max(&self, _: SlotId) -> usize {
        self.rows_max
    }

    async fn apply(
        &self,
        slot: SlotId,
        believed: Fence,
        next: Cut,
        views: &[&str],
        changes: &Changes,
    ) -> Result<Result<(), Moved>> {
        let offsets = next.next_offset - believed.next_offset;
        let done = self.inner.apply(slot, believed, next, views, changes);
        let done = done.await?;
        if done.is_ok() {
            let mut applied = self.applied.lock().expect("no panic");
            applied.push((offsets, changes.rows()));
        }
        Ok(done)
    }

    async fn take_out(&self, slot: SlotId, read: &Outbox) -> Result<bool> {
        self.inner.take_out(slot, read).await
    }

    async fn change_slot(
        &self,
        doing: &'static str,
        slot: SlotId,
        rule: &SlotRule<'_>,
    ) -> Result<Option<Slot>> {
        self.inner.change_slot(doing, slot, rule).await
    }

    async fn collect_garbage(&self, slot: SlotId, limit: usize) -> Result<usize> {
        self.inner.collect_garbage(slot, limit).await
    }
}

/// A play whose tracks are so many that each has rows of its own.
fn play(id: usize) -> String {
    plays::play(format!("e{id}"), json!({"track_id": id}))
}

/// Every event counts once, also those that come again in the other half of their micro-batch; a piece
/// has few rows, or is one record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_micro_batches_are_cut() {
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
    for (rows_max, pieces_min) in [(60, 12), (1, EVENTS)] {
        let narrow = Narrow::new(&world.stores.live, rows_max);
        let wide = std::mem::replace(&mut world.stores.live, Arc::clone(&narrow) as _);
        let report = world.catch_up().await;
        world.stores.live = wide;
        assert_eq!(report.events, EVENTS as u64);
        assert_eq!(report.duplicates, EVENTS as u64);
        assert_eq!(report.dead_letters, EVENTS as u64 / 10);
        let applied = narrow.applied.lock().expect("no panic").clone();
        assert!(applied.len() >= pieces_min, "{applied:?}");
        for (offsets, rows) in &applied {
            assert!(*rows <= rows_max || *offsets == 1, "{applied:?}");
        }
        let served = world.serve().await;
        let answer = served.client.ask("/api/v1/stats/plays/total?owner_id=1");
        assert_eq!(answer.await["count"], EVENTS, "{rows_max} rows at once");
        served.end().await;
        world.lose_live();
    }
}
