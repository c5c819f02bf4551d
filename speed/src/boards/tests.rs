//! What the worker knows of its cached boards, with a cache that may refuse.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use jobs::Catalog;
use jobs::board::Test;
use schemas::clock::FixedClock;
use schemas::draws::SeededDraws;
use schemas::key::{KeyColumn, KeyKind};
use schemas::seam::{Cut, Moved, NewLife};
use schemas::source::Source;
use stores::Stores;
use stores::board_cache::{BoardAnswer, BoardCacheRead, BoardQuery, Register};
use stores::live::{
    Changes, LiveAnswer, LiveQuery, LiveRead, LiveWrite, MembersQuery, Outbox, SlotRule,
    StateQuery, StatesAnswer,
};
use stores::live_scan::{LivePlace, ScannedDeltas, ScannedStates};
use tempfile::TempDir;

use super::*;

const SLOT: SlotId = SlotId {
    source: Source::Efforts,
    partition: 0,
};

/// A register without any rows.
#[derive(Debug, Default)]
struct Fake(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    register: Register,
    /// From the one that was read least recently on.
    used: Vec<BoardName>,
    /// So many drops are refused.
    refusals: usize,
}

impl Fake {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no panic")
    }

    fn ids(&self) -> Vec<String> {
        let register = &self.known().register;
        let all = register.boards.iter().chain(&register.leftovers);
        all.map(|board| board.id.clone()).collect()
    }
}

fn never<T>() -> stores::Result<T> {
    Err(stores::Error::Refused("nobody asks this".to_owned()))
}

#[async_trait]
impl BoardCacheRead for Fake {
    async fn read_boards(&self, _: Source, _: &[BoardQuery]) -> stores::Result<Vec<BoardAnswer>> {
        never()
    }

    async fn note_use(&self, _: SlotId, _: &BoardName, _: i64) -> stores::Result<()> {
        never()
    }
}

#[async_trait]
impl BoardCache for Fake {
    async fn register(&self, _: SlotId) -> stores::Result<Register> {
        Ok(self.known().register.clone())
    }

    async fn begin_fill(
        &self,
        _: SlotId,
        _: (Fence, Revision),
        _: &BoardName,
    ) -> stores::Result<Result<(String, Revision), Moved>> {
        never()
    }

    async fn fill(&self, _: SlotId, _: (&Registered, u64), _: &[BoardRow]) -> stores::Result<bool> {
        never()
    }

    async fn end_fill(
        &self,
        _: SlotId,
        _: (Fence, Revision),
        _: (&Registered, u64),
        _: Epoch,
    ) -> stores::Result<Result<Revision, Moved>> {
        never()
    }

    async fn measure(&self, _: SlotId, _: &Registered, _: i64) -> stores::Result<Option<u64>> {
        Ok(None)
    }

    async fn drop_boards(
        &self,
        _: SlotId,
        (_, believed): (Fence, Revision),
        boards: &[Registered],
    ) -> stores::Result<Result<Revision, Moved>> {
        let mut known = self.known();
        if known.refusals > 0 || believed != known.register.revision {
            known.refusals = known.refusals.saturating_sub(1);
            return Ok(Err(Moved { at: None }));
        }
        let register = &mut known.register;
        register.revision = Revision::random();
        register.boards.retain(|board| !boards.contains(board));
        register.leftovers.retain(|board| !boards.contains(board));
        Ok(Ok(known.register.revision))
    }

    async fn least_used(&self, _: SlotId, limit: usize) -> stores::Result<Vec<BoardName>> {
        let known = self.known();
        let is_there = |name: &&BoardName| {
            let mut boards = known.register.boards.iter();
            boards.any(|board| board.name == **name)
        };
        let found = known.used.iter().filter(is_there).take(limit);
        Ok(found.cloned().collect())
    }
}

#[async_trait]
impl LiveRead for Fake {
    async fn read(&self, _: Source, _: u32, _: &[LiveQuery]) -> stores::Result<LiveAnswer> {
        never()
    }

    async fn partition_states(
        &self,
        _: Source,
        _: Range<u32>,
    ) -> stores::Result<Vec<Option<Slot>>> {
        never()
    }

    async fn read_states(
        &self,
        _: Source,
        _: u32,
        _: &[StateQuery],
    ) -> stores::Result<StatesAnswer> {
        never()
    }

    async fn read_members(
        &self,
        _: Source,
        _: Range<u32>,
        _: &[MembersQuery],
    ) -> stores::Result<StatesAnswer> {
        never()
    }

    async fn outboxes(
        &self,
        _: Source,
        _: Range<u32>,
        _: usize,
    ) -> stores::Result<Vec<Option<Outbox>>> {
        never()
    }

    async fn scan_deltas(
        &self,
        _: SlotId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<LivePlace>,
        _: usize,
    ) -> stores::Result<ScannedDeltas> {
        never()
    }

    async fn scan_states(
        &self,
        _: SlotId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<LivePlace>,
        _: usize,
    ) -> stores::Result<ScannedStates> {
        never()
    }
}

#[async_trait]
impl LiveWrite for Fake {
    fn board_cache(&self) -> Option<&dyn BoardCache> {
        Some(self)
    }

    async fn apply(
        &self,
        _: SlotId,
        _: Fence,
        _: Cut,
        _: &[&str],
        _: &Changes,
    ) -> stores::Result<Result<(), Moved>> {
        never()
    }

    async fn take_out(&self, _: SlotId, _: &Outbox) -> stores::Result<bool> {
        never()
    }

    async fn change_slot(
        &self,
        _: &'static str,
        _: SlotId,
        _: &SlotRule<'_>,
    ) -> stores::Result<Option<Slot>> {
        never()
    }

    async fn collect_garbage(&self, _: SlotId, _: usize) -> stores::Result<usize> {
        never()
    }
}

fn slot() -> Slot {
    let life = NewLife {
        newest: 0,
        cut: Cut::start(),
        log_end: 0,
        hint: 1,
    };
    Slot::new_generation(1, &life)
}

/// The boards of a worker whose cache this is. Its other stores are in the folder, and hold nothing.
async fn boards(fake: &Arc<Fake>) -> (Boards, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let stores = Stores::embedded(folder.path()).await.expect("stores");
    let ports = SpeedPorts {
        schemas: stores.schemas,
        log: Arc::clone(&stores.log) as _,
        log_writes: stores.log as _,
        recounts: Arc::clone(&stores.canon) as _,
        canon: stores.canon as _,
        live: Arc::clone(fake) as _,
        views: stores.views as _,
        achievements: stores.achievements as _,
        hook: None,
        records: stores.records,
        suppressions: stores::erasures::Suppressions::nobody(),
        clock: Arc::new(FixedClock::at_ms(0)),
        draws: Arc::new(SeededDraws::new(1)),
    };
    let options = SpeedOptions::default();
    (Boards::new(SLOT, &ports, jobs(), &options), folder)
}

fn jobs() -> Vec<Arc<Job<Board>>> {
    let catalog = Catalog::built_in().expect("the views");
    let of_efforts = catalog.boards().iter();
    let of_efforts = of_efforts.filter(|job| job.source() == SLOT.source);
    of_efforts.map(Arc::clone).collect()
}

fn name(key: i64) -> BoardName {
    let jobs = jobs();
    let section = Section {
        board: Vec::new(),
        tests: Vec::new(),
    };
    let key = jobs[0].key().encode_values(&[KeyValue::Int(key)]);
    BoardName {
        view: jobs[0].view().to_owned(),
        key: key.expect("a key"),
        section: section.encode(),
    }
}

fn board(key: i64, bytes: Option<u64>) -> Registered {
    let id = format!("1.{key}");
    let name = name(key);
    Registered { name, id, bytes }
}

/// What nobody keeps is dropped at the begin, at the next one if the slot had moved.
#[tokio::test]
async fn a_drop_that_is_refused_is_made_again() {
    let fake = Arc::new(Fake::default());
    fake.known().register.boards = vec![board(1, Some(5)), board(2, None)];
    fake.known().register.leftovers = vec![board(3, Some(5))];
    fake.known().refusals = 1;
    let (mut boards, _folder) = boards(&fake).await;
    let refused = boards.begin(&slot(), 1).await;
    assert!(matches!(refused, Err(Error::Moved)), "{refused:?}");
    assert_eq!(fake.ids(), ["1.1", "1.2", "1.3"]);
    boards.forget();
    assert!(boards.entries.is_empty());
    boards.begin(&slot(), 1).await.expect("a begin");
    assert_eq!(fake.ids(), ["1.1"]);
    assert_eq!((boards.entries.len(), boards.entries.bytes()), (1, 5));
}

/// Those that were read least recently go first, a few at a time, and the changes that wait do not name
/// them any more.
#[tokio::test]
async fn boards_make_room_when_memory_is_full() {
    let fake = Arc::new(Fake::default());
    fake.known().register.boards = (0..6).map(|key| board(key, Some(1))).collect();
    fake.known().used = [9, 5, 4, 3, 2, 1, 0].map(name).to_vec();
    let (mut boards, _folder) = boards(&fake).await;
    boards.begin(&slot(), 1).await.expect("a begin");
    let change = |key: i64| BoardChange {
        id: format!("1.{key}"),
        rows: Vec::new(),
    };
    let mut changes = BoardChanges {
        boards: (0..6).map(change).collect(),
        ..BoardChanges::default()
    };
    let fence = slot().fence();
    for left in [vec!["1.0", "1.1"], vec![]] {
        let made = boards.make_room(fence, &mut changes).await;
        assert_eq!(made.expect("room"), Stepped::More);
        assert_eq!(fake.ids(), left);
        let changing = changes.boards.iter().map(|change| change.id.as_str());
        assert_eq!(changing.collect::<Vec<_>>(), left);
        assert_eq!(changes.revision, fake.known().register.revision);
    }
    let made = boards.make_room(fence, &mut changes).await;
    assert_eq!(made.expect("none"), Stepped::Idle);
    // None is filled for a while.
    boards.want(Miss {
        view: name(1).view,
        key: 1,
        section: name(1).section,
        is_sum: false,
    });
    assert_eq!(boards.wanted.len(), 0);
}

/// The least recently read one goes, whatever else is noted; one that was never noted only if all are so.
#[tokio::test]
async fn the_board_read_least_recently_goes_first() {
    let fake = Arc::new(Fake::default());
    fake.known().register.boards = (0..4).map(|key| board(key, Some(1))).collect();
    fake.known().used = [7, 2, 8, 0].map(name).to_vec();
    let (mut boards, _folder) = boards(&fake).await;
    boards.begin(&slot(), 1).await.expect("a begin");
    for left in [vec!["1.0", "1.1", "1.3"], vec!["1.1", "1.3"]] {
        let evicted = boards.evict(&*fake, slot().fence()).await;
        assert_eq!(evicted.expect("a drop"), Stepped::More);
        assert_eq!(fake.ids(), left);
    }
    for left in [1, 0] {
        let evicted = boards.evict(&*fake, slot().fence()).await;
        assert_eq!(evicted.expect("a drop"), Stepped::More);
        assert_eq!(fake.ids().len(), left);
    }
}

/// Rows count as the batch layer's once all views that have any are so far.
#[tokio::test]
async fn what_is_covered_is_learnt_of_the_runs() {
    let fake = Arc::new(Fake::default());
    let (mut boards, _folder) = boards(&fake).await;
    let view = name(1).view;
    for (newest, covered) in [(None, 0), (Some(0), 0), (Some(3), 3), (Some(20), 20)] {
        let newest: Vec<(String, Epoch)> = newest
            .map(|epoch| (view.clone(), epoch))
            .into_iter()
            .collect();
        boards.covers(&BTreeMap::from_iter(newest));
        // A begin does not forget it.
        boards.begin(&slot(), 1).await.expect("a begin");
        let changes = boards.changes(slot().fence(), &[]).await;
        let changes = changes.expect("changes");
        assert_eq!(changes.covered, covered);
    }
}

/// What is filtered by decides which rows are there, and takes no memory.
#[test]
fn rows_hold_what_is_shown() {
    let jobs = jobs();
    let (job, shape) = (&jobs[0], jobs[0].payload());
    let value = |column: &KeyColumn| match column.kind {
        KeyKind::Int => KeyValue::Int(1),
        KeyKind::Time => KeyValue::Time(1),
        KeyKind::Instant => KeyValue::Instant(1),
        KeyKind::Text => KeyValue::Text("F".to_owned()),
    };
    let mut values: Vec<KeyValue> = shape.0.iter().map(value).collect();
    let place = Place {
        board: vec![1],
        score: vec![2],
        payload: shape.encode_values(&values).expect("a payload"),
        weight: 3,
    };
    let places = vec![place];
    let members = [
        (&[7][..], GroupState { places }),
        (&[8][..], GroupState::default()),
    ];
    let shown = job.shown().0.len();
    assert!((1..values.len()).contains(&shown));
    values[shown..].fill(KeyValue::Null);
    for (gender, payload) in [("F", Some(shape.encode_values(&values))), ("M", None)] {
        let section = Section {
            board: vec![1],
            tests: vec![("gender".to_owned(), Test::Text(gender.to_owned()))],
        };
        let rows = rows_on((job, &section), 5, &members).expect("rows");
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
