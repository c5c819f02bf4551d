//! In-memory stores, which implement every port of the serving layer.
//!
//! A test builds [`MemoryStores`] from a history: play events in the order of the log, and how far
//! the batch and speed layers have processed them. No layer runs. The stores change only if a
//! request writes, or the test changes them.
//!
//! The clock of the service stands at [`NOW_MS`]. Timeouts and delays take real time.

mod achievements;
mod api_keys;
mod applications;
pub(crate) mod boards;
mod day_counts;
mod entities;
mod history;
mod leases;
mod live;
mod log;
mod records;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jobs::Catalog;
use schemas::achievement::OutboxMessage;
use schemas::clock::FixedClock;
use schemas::seam::{Epoch, PartitionState, Run};
use serving::{Serving, ServingOptions, ServingPorts};
use stores::counts::{Day, DayRow};
use stores::{Error, Result};
use tokio::sync::Semaphore;

use self::api_keys::MemoryKeys;
use self::boards::BoardStore;
use self::entities::EntityTables;
pub(crate) use self::history::{LayerProgress, PlayEvent};

/// Time of the service's clock: 2026-07-14T03:33:20Z.
pub(crate) const NOW_MS: i64 = 1_784_000_000_000;

/// Keys of a group and of a row within it.
type GroupAndRow = (Vec<u8>, Vec<u8>);
/// Keys of a table partition and of a row within it.
type PartitionAndRow = (Vec<u8>, Vec<u8>);

/// All stores of a service.
#[derive(Debug, Default)]
pub(crate) struct MemoryStores {
    /// Number of partitions of the log of plays.
    partition_count: u32,
    /// By view: the count of each batch row, and the run that wrote it.
    rows: BTreeMap<String, BTreeMap<PartitionAndRow, (i64, Epoch)>>,
    /// By view: live deltas of each row, log partition and epoch.
    deltas: BTreeMap<String, BTreeMap<(GroupAndRow, u32, Epoch), i64>>,
    /// Partition states of plays.
    pub(crate) partition_states: Mutex<Vec<Option<PartitionState>>>,
    /// Runs of plays.
    runs: Vec<Run>,
    newest_complete: Epoch,
    boards: Mutex<BoardStore>,
    entities: Mutex<EntityTables>,
    /// Counts of members by board key and day.
    pub(crate) day_counts: Mutex<BTreeMap<(Vec<u8>, Day), DayRow>>,
    pub(crate) achievements: Mutex<Achievements>,
    pub(crate) keys: Arc<MemoryKeys>,
    /// Leases of batch runs that are under way.
    pub(crate) held_leases: Mutex<BTreeSet<String>>,
    /// Appended records: topic and value.
    appended: Mutex<Vec<(String, Vec<u8>)>>,
    /// Actors of the applied entity rows.
    pub(crate) actors: Mutex<Vec<String>>,
    faults: Mutex<Faults>,
    read_counts: Mutex<ReadCounts>,
}

/// Messages about achievements. A message may be in both lists.
#[derive(Debug, Default)]
pub(crate) struct Achievements {
    /// Messages in the outbox of the partition state.
    pub(crate) unpublished: Vec<OutboxMessage>,
    /// Messages in the achievement store.
    pub(crate) published: Vec<OutboxMessage>,
}

/// Faults and delays that a test injects.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) is_view_store_down: bool,
    /// Number of further reads of partition states that find none.
    pub(crate) missing_state_reads: usize,
    /// True if boards have no partition state.
    pub(crate) lacks_board_state: bool,
    /// Number of further reads of board nodes that find none.
    pub(crate) missing_node_reads: usize,
    /// Reads of partition states wait until this semaphore is closed.
    pub(crate) partition_state_gate: Option<Arc<Semaphore>>,
    pub(crate) live_entries_delay: Duration,
}

/// Counts of reads since the start.
#[derive(Debug, Default)]
pub(crate) struct ReadCounts {
    pub(crate) partition_states: usize,
    pub(crate) batch_rows: usize,
    /// The maximum number of table partitions in a read of batch rows.
    pub(crate) table_partitions_max: usize,
    /// Number of board keys in each read of live entries.
    pub(crate) keys_of_live_entries: Vec<usize>,
    /// Concurrent reads of live entries: now, and at most.
    live_entries_active: usize,
    pub(crate) live_entries_active_max: usize,
}

impl MemoryStores {
    /// Starts a service that uses these stores.
    pub(crate) fn start_service(
        self,
        catalog: &Catalog,
        options: ServingOptions,
    ) -> (Serving, Arc<Self>) {
        let stores = Arc::new(self);
        let ports = ServingPorts {
            log: Arc::clone(&stores) as _,
            ingest: Arc::clone(&stores) as _,
            entities: Arc::clone(&stores) as _,
            live: Arc::clone(&stores) as _,
            views: Arc::clone(&stores) as _,
            achievements: Arc::clone(&stores) as _,
            counts: Arc::clone(&stores) as _,
            records: Arc::clone(&stores) as _,
            keys: Arc::clone(&stores.keys) as _,
            leases: Arc::clone(&stores) as _,
            schemas: Arc::new(stores::registry::NoRegistry),
            suppressions: stores::erasures::Suppressions::none(),
            clock: Arc::new(FixedClock::new(NOW_MS)),
        };
        let serving = Serving::new(ports, catalog.clone(), options, None).unwrap();
        (serving, stores)
    }

    pub(crate) fn boards(&self) -> MutexGuard<'_, BoardStore> {
        self.boards.lock().unwrap()
    }

    pub(crate) fn entities(&self) -> MutexGuard<'_, EntityTables> {
        self.entities.lock().unwrap()
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap()
    }

    pub(crate) fn read_counts(&self) -> MutexGuard<'_, ReadCounts> {
        self.read_counts.lock().unwrap()
    }

    /// Returns the appended records: topic and value.
    pub(crate) fn appended(&self) -> Vec<(String, Vec<u8>)> {
        self.appended.lock().unwrap().clone()
    }
}

/// Fails like a store that does not support an operation.
fn fail_unsupported<T>() -> Result<T> {
    Err(Error::Refused(
        "the serving layer does not use this".to_owned(),
    ))
}

/// Returns whether a key is in a range of keys; without an end, the range is unbounded.
fn is_in_range(key: &[u8], (start, end): &(Vec<u8>, Option<Vec<u8>>)) -> bool {
    key >= &start[..] && end.as_ref().is_none_or(|end| key < &end[..])
}
