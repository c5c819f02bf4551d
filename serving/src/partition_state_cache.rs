//! Cache of partition states.
//!
//! The content of a cached board depends only on the state of its own partition, which is read with
//! it. The states of the other partitions contribute only to the reported position and completeness
//! and may be some milliseconds old.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use schemas::seam::PartitionState;
use schemas::source::Source;
use stores::live::LiveRead;
use tokio::time::{Duration, Instant};

use crate::lock::lock;
use crate::request_coalescer::RequestCoalescer;

/// How long cached partition states are used.
const AGE_MAX: Duration = Duration::from_millis(5);

type States = Arc<Vec<Option<PartitionState>>>;
type StatesResult = Result<States, Arc<stores::Error>>;

/// Most recently read partition states by source.
#[derive(Debug)]
pub(crate) struct PartitionStateCache {
    by_source: Arc<Mutex<HashMap<Source, (Instant, States)>>>,
    /// Reads in progress.
    reads: RequestCoalescer<StatesResult>,
}

impl PartitionStateCache {
    pub(crate) fn new() -> Self {
        Self {
            by_source: Arc::default(),
            reads: RequestCoalescer::new(),
        }
    }

    /// Returns the partition states of a source. Concurrent requests share one read. The result is
    /// empty if the live store has no cached boards.
    pub(crate) async fn get(
        &self,
        live: &Arc<dyn LiveRead>,
        source: Source,
        partitions: u32,
    ) -> StatesResult {
        let cached = lock(&self.by_source).get(&source).cloned();
        if let Some((read_at, states)) = cached
            && read_at.elapsed() < AGE_MAX
            && states.len() == partitions as usize
        {
            return Ok(states);
        }
        let (live, by_source) = (Arc::clone(live), Arc::clone(&self.by_source));
        let read = async move {
            let read_at = Instant::now();
            if live.cached_boards().is_none() {
                return Ok(Arc::default());
            }
            let states: States = Arc::new(live.partition_states(source, 0..partitions).await?);
            lock(&by_source).insert(source, (read_at, Arc::clone(&states)));
            Ok(states)
        };
        let key = (u128::from(partitions) << 64) | source as u128;
        self.reads.read(key, read).await
    }

    /// Records a newer state that another read found, so that reported positions never go back.
    pub(crate) fn record(&self, source: Source, partition: u32, state: Option<&PartitionState>) {
        let Some(state) = state else { return };
        let position = |state: &PartitionState| (state.generation, state.position.next_offset);
        let mut by_source = lock(&self.by_source);
        let Some((_, states)) = by_source.get_mut(&source) else {
            return;
        };
        let known = states.get(partition as usize).and_then(Option::as_ref);
        if known.is_none_or(|known| position(known) < position(state))
            && let Some(known) = Arc::make_mut(states).get_mut(partition as usize)
        {
            *known = Some(state.clone());
        }
    }
}
