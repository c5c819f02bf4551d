//! Tests the worker's knowledge of its cached boards with a cache that may reject changes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use jobs::Catalog;
use jobs::board::ColumnFilter;
use schemas::clock::FixedClock;
use schemas::key::{KeyColumn, KeyKind};
use schemas::random::SeededRandom;
use schemas::seam::{CheckpointMismatch, Cut, GenerationStart};
use schemas::source::Source;
use stores::Stores;
use stores::board_cache::{BoardCacheRead, BoardQuery, BoardRegister, CachedBoardSnapshot};
use stores::live::{
    Changes, DeltaQuery, DeltasSnapshot, EntriesSnapshot, EntryQuery, LiveRead, LiveWrite,
    MembersQuery, Outbox, StateTransition,
};
use stores::live_scan::{ScanKey, ScannedDeltas, ScannedEntries};
use tempfile::TempDir;

use super::*;

const PARTITION_ID: PartitionId = PartitionId {
    source: Source::Efforts,
    partition: 0,
};

/// A register without rows.
#[derive(Debug, Default)]
struct FakeCache(Mutex<FakeState>);

#[derive(Debug, Default)]
struct FakeState {
    register: BoardRegister,
    /// Least recently read first.
    used: Vec<BoardName>,
    /// Number of drops to reject.
    refusals: usize,
}

impl FakeCache {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().expect("no panic")
    }

    fn ids(&self) -> Vec<String> {
        let register = &self.state().register;
        let all = register.boards.iter().chain(&register.stale_boards);
        all.map(|board| board.id.clone()).collect()
    }
}

fn refuse<T>() -> stores::Result<T> {
    Err(stores::Error::Refused(
        "the test does not call this".to_owned(),
    ))
}

#[async_trait]
impl BoardCacheRead for FakeCache {
    async fn read_boards(
        &self,
        _: Source,
        _: &[BoardQuery],
    ) -> stores::Result<Vec<CachedBoardSnapshot>> {
        refuse()
    }

    async fn record_use(&self, _: PartitionId, _: &BoardName, _: i64) -> stores::Result<()> {
        refuse()
    }
}

#[async_trait]
impl BoardCache for FakeCache {
    async fn read_register(&self, _: PartitionId) -> stores::Result<BoardRegister> {
        Ok(self.state().register.clone())
    }

    async fn begin_fill(
        &self,
        _: PartitionId,
        _: (Checkpoint, Revision),
        _: &BoardName,
    ) -> stores::Result<Result<(String, Revision), CheckpointMismatch>> {
        refuse()
    }

    async fn fill(
        &self,
        _: PartitionId,
        _: (&RegisteredBoard, u64),
        _: &[BoardRow],
    ) -> stores::Result<bool> {
        refuse()
    }

    async fn end_fill(
        &self,
        _: PartitionId,
        _: (Checkpoint, Revision),
        _: (&RegisteredBoard, u64),
        _: Epoch,
    ) -> stores::Result<Result<Revision, CheckpointMismatch>> {
        refuse()
    }

    async fn measure(
        &self,
        _: PartitionId,
        _: &RegisteredBoard,
        _: i64,
    ) -> stores::Result<Option<u64>> {
        Ok(None)
    }

    async fn remove_boards(
        &self,
        _: PartitionId,
        (_, believed): (Checkpoint, Revision),
        boards: &[RegisteredBoard],
    ) -> stores::Result<Result<Revision, CheckpointMismatch>> {
        let mut state = self.state();
        if state.refusals > 0 || believed != state.register.revision {
            state.refusals = state.refusals.saturating_sub(1);
            return Ok(Err(CheckpointMismatch { actual: None }));
        }
        let register = &mut state.register;
        register.revision = Revision::random();
        register.boards.retain(|board| !boards.contains(board));
        register
            .stale_boards
            .retain(|board| !boards.contains(board));
        Ok(Ok(state.register.revision))
    }

    async fn least_used(&self, _: PartitionId, limit: usize) -> stores::Result<Vec<BoardName>> {
        let state = self.state();
        let is_registered = |name: &&BoardName| {
            let mut boards = state.register.boards.iter();
            boards.any(|board| board.name == **name)
        };
        let names = state.used.iter().filter(is_registered).take(limit);
        Ok(names.cloned().collect())
    }
}

#[async_trait]
impl LiveRead for FakeCache {
    async fn read_deltas(
        &self,
        _: Source,
        _: u32,
        _: &[DeltaQuery],
    ) -> stores::Result<DeltasSnapshot> {
        refuse()
    }

    async fn partition_states(
        &self,
        _: Source,
        _: Range<u32>,
    ) -> stores::Result<Vec<Option<PartitionState>>> {
        refuse()
    }

    async fn read_entries(
        &self,
        _: Source,
        _: u32,
        _: &[EntryQuery],
    ) -> stores::Result<EntriesSnapshot> {
        refuse()
    }

    async fn read_members(
        &self,
        _: Source,
        _: Range<u32>,
        _: &[MembersQuery],
    ) -> stores::Result<EntriesSnapshot> {
        refuse()
    }

    async fn outboxes(
        &self,
        _: Source,
        _: Range<u32>,
        _: usize,
    ) -> stores::Result<Vec<Option<Outbox>>> {
        refuse()
    }

    async fn scan_deltas(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> stores::Result<ScannedDeltas> {
        refuse()
    }

    async fn scan_entries(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> stores::Result<ScannedEntries> {
        refuse()
    }
}

#[async_trait]
impl LiveWrite for FakeCache {
    fn board_cache(&self) -> Option<&dyn BoardCache> {
        Some(self)
    }

    async fn apply(
        &self,
        _: PartitionId,
        _: Checkpoint,
        _: Cut,
        _: &[&str],
        _: &Changes,
    ) -> stores::Result<Result<(), CheckpointMismatch>> {
        refuse()
    }

    async fn remove_published(&self, _: PartitionId, _: &Outbox) -> stores::Result<bool> {
        refuse()
    }

    async fn update_state(
        &self,
        _: &'static str,
        _: PartitionId,
        _: &StateTransition<'_>,
    ) -> stores::Result<Option<PartitionState>> {
        refuse()
    }

    async fn collect_garbage(&self, _: PartitionId, _: usize) -> stores::Result<usize> {
        refuse()
    }
}

fn partition_state() -> PartitionState {
    let start = GenerationStart {
        newest: 0,
        cut: Cut::start(),
        log_end: 0,
        generation_min: 1,
    };
    PartitionState::new_generation(1, &start)
}

/// The boards of a worker that uses this cache.
async fn boards(fake: &Arc<FakeCache>) -> (CachedBoards, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let stores = Stores::embedded(folder.path()).await.expect("stores");
    let ports = SpeedPorts {
        schemas: stores.schemas,
        log: Arc::clone(&stores.log) as _,
        log_writes: stores.log as _,
        recounts: Arc::clone(&stores.entities) as _,
        entities: stores.entities as _,
        live: Arc::clone(fake) as _,
        views: stores.views as _,
        achievements: stores.achievements as _,
        hook: None,
        records: stores.records,
        suppressions: stores::erasures::Suppressions::none(),
        clock: Arc::new(FixedClock::new(0)),
        draws: Arc::new(SeededRandom::new(1)),
    };
    let options = SpeedOptions::default();
    (
        CachedBoards::new(PARTITION_ID, &ports, jobs(), &options),
        folder,
    )
}

fn jobs() -> Vec<Arc<Job<Board>>> {
    let catalog = Catalog::built_in().expect("the views");
    let boards = catalog.boards().iter();
    let boards = boards.filter(|job| job.source() == PARTITION_ID.source);
    boards.map(Arc::clone).collect()
}

fn name(key: i64) -> BoardName {
    let jobs = jobs();
    let section = FilteredBoard {
        board: Vec::new(),
        filters: Vec::new(),
    };
    let key = jobs[0].key().encode_values(&[KeyValue::Int(key)]);
    BoardName {
        view: jobs[0].view().to_owned(),
        key: key.expect("a key"),
        filtered_board: section.encode(),
    }
}

fn board(key: i64, bytes: Option<u64>) -> RegisteredBoard {
    let id = format!("1.{key}");
    let name = name(key);
    RegisteredBoard { name, id, bytes }
}

/// `begin` drops boards without an owner; after a checkpoint mismatch the next `begin` does.
#[tokio::test]
async fn a_rejected_drop_is_repeated() {
    let fake = Arc::new(FakeCache::default());
    fake.state().register.boards = vec![board(1, Some(5)), board(2, None)];
    fake.state().register.stale_boards = vec![board(3, Some(5))];
    fake.state().refusals = 1;
    let (mut boards, _folder) = boards(&fake).await;
    let rejected = boards.begin(&partition_state(), 1).await;
    assert!(
        matches!(rejected, Err(Error::CheckpointMismatch)),
        "{rejected:?}"
    );
    assert_eq!(fake.ids(), ["1.1", "1.2", "1.3"]);
    boards.reset();
    assert!(boards.known_boards.is_empty());
    boards.begin(&partition_state(), 1).await.expect("a begin");
    assert_eq!(fake.ids(), ["1.1"]);
    assert_eq!(
        (boards.known_boards.len(), boards.known_boards.bytes()),
        (1, 5)
    );
}

/// The least recently read boards are dropped first, a few at a time, and pending changes no longer
/// contain them.
#[tokio::test]
async fn boards_are_dropped_when_memory_is_full() {
    let fake = Arc::new(FakeCache::default());
    fake.state().register.boards = (0..6).map(|key| board(key, Some(1))).collect();
    fake.state().used = [9, 5, 4, 3, 2, 1, 0].map(name).to_vec();
    let (mut boards, _folder) = boards(&fake).await;
    boards.begin(&partition_state(), 1).await.expect("a begin");
    let change = |key: i64| CachedBoardChange {
        id: format!("1.{key}"),
        rows: Vec::new(),
    };
    let mut changes = CachedBoardChanges {
        boards: (0..6).map(change).collect(),
        ..CachedBoardChanges::default()
    };
    let checkpoint = partition_state().checkpoint();
    for remaining in [vec!["1.0", "1.1"], vec![]] {
        let outcome = boards.free_memory(checkpoint, &mut changes).await;
        assert_eq!(outcome.expect("room"), StepOutcome::More);
        assert_eq!(fake.ids(), remaining);
        let changing = changes.boards.iter().map(|change| change.id.as_str());
        assert_eq!(changing.collect::<Vec<_>>(), remaining);
        assert_eq!(changes.revision, fake.state().register.revision);
    }
    let outcome = boards.free_memory(checkpoint, &mut changes).await;
    assert_eq!(outcome.expect("none"), StepOutcome::Idle);
    // Fills pause for a while.
    boards.request(CacheMiss {
        view: name(1).view,
        key: 1,
        filtered_board: name(1).filtered_board,
        wants_live_count: false,
    });
    assert_eq!(boards.requested.len(), 0);
}

/// The least recently read board is dropped. A board that was never read is dropped only if there
/// is no other.
#[tokio::test]
async fn the_least_recently_read_board_is_dropped_first() {
    let fake = Arc::new(FakeCache::default());
    fake.state().register.boards = (0..4).map(|key| board(key, Some(1))).collect();
    fake.state().used = [7, 2, 8, 0].map(name).to_vec();
    let (mut boards, _folder) = boards(&fake).await;
    boards.begin(&partition_state(), 1).await.expect("a begin");
    for remaining in [vec!["1.0", "1.1", "1.3"], vec!["1.1", "1.3"]] {
        let evicted = boards.evict(&*fake, partition_state().checkpoint()).await;
        assert_eq!(evicted.expect("a drop"), StepOutcome::More);
        assert_eq!(fake.ids(), remaining);
    }
    for remaining in [1, 0] {
        let evicted = boards.evict(&*fake, partition_state().checkpoint()).await;
        assert_eq!(evicted.expect("a drop"), StepOutcome::More);
        assert_eq!(fake.ids().len(), remaining);
    }
}

/// Rows count as the batch layer's once all views with runs have completed the epoch.
#[tokio::test]
async fn the_covered_epoch_follows_the_runs() {
    let fake = Arc::new(FakeCache::default());
    let (mut boards, _folder) = boards(&fake).await;
    let view = name(1).view;
    for (newest, covered) in [(None, 0), (Some(0), 0), (Some(3), 3), (Some(20), 20)] {
        let newest: Vec<(String, Epoch)> = newest
            .map(|epoch| (view.clone(), epoch))
            .into_iter()
            .collect();
        boards.set_newest_epochs(&BTreeMap::from_iter(newest));
        // `begin` keeps the epoch.
        boards.begin(&partition_state(), 1).await.expect("a begin");
        let changes = boards
            .compute_changes(partition_state().checkpoint(), &[])
            .await;
        let changes = changes.expect("changes");
        assert_eq!(changes.covered_epoch, covered);
    }
}

/// Filters select the rows, and their columns take no memory.
#[test]
fn rows_hold_only_shown_columns() {
    let jobs = jobs();
    let (job, shape) = (&jobs[0], jobs[0].payload());
    let value = |column: &KeyColumn| match column.kind {
        KeyKind::Int => KeyValue::Int(1),
        KeyKind::Time => KeyValue::Time(1),
        KeyKind::Instant => KeyValue::Instant(1),
        KeyKind::Text => KeyValue::Text("F".to_owned()),
    };
    let mut values: Vec<KeyValue> = shape.0.iter().map(value).collect();
    let entry = BoardEntry {
        board: vec![1],
        score: vec![2],
        payload: shape.encode_values(&values).expect("a payload"),
        weight: 3,
    };
    let entries = vec![entry];
    let members = [
        (&[7][..], MemberEntries { entries }),
        (&[8][..], MemberEntries::default()),
    ];
    let shown = job.shown().0.len();
    assert!((1..values.len()).contains(&shown));
    values[shown..].fill(KeyValue::Null);
    for (gender, payload) in [("F", Some(shape.encode_values(&values))), ("M", None)] {
        let section = FilteredBoard {
            board: vec![1],
            filters: vec![("gender".to_owned(), ColumnFilter::Text(gender.to_owned()))],
        };
        let rows = filter_rows(job, &section, 5, &members).expect("rows");
        let row = payload.map(|payload| BoardRow {
            member: vec![7],
            score: vec![2],
            payload: payload.expect("a payload"),
            weight: 3,
            epoch: 5,
        });
        assert_eq!(rows, [(vec![7], row), (vec![8], None)]);
    }
}
