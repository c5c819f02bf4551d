//! Slots that were read a moment ago.
//!
//! What a cached board answers depends on the slot of its own partition only, which is read with it. The
//! others are told of in the answer: how far they reach, and whether one is missing. That may be some
//! milliseconds old, as any answer is when it arrives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use schemas::seam::Slot;
use schemas::source::Source;
use stores::live::LiveRead;
use tokio::time::{Duration, Instant};

use crate::gather::Gather;
use crate::lock::lock;

/// How long slots are good for.
const KEPT_FOR: Duration = Duration::from_millis(5);

type Slots = Arc<Vec<Option<Slot>>>;
type Read = Result<Slots, Arc<stores::Error>>;

/// By source, what was read last.
#[derive(Debug)]
pub(crate) struct SlotsCache {
    seen: Arc<Mutex<HashMap<Source, (Instant, Slots)>>>,
    /// Reads that are under way.
    reads: Gather<Read>,
}

impl SlotsCache {
    pub(crate) fn new() -> Self {
        Self {
            seen: Arc::default(),
            reads: Gather::new(),
        }
    }

    /// The slots of a source, read once for all who want them at the same time; none where the live store
    /// has no cached boards.
    pub(crate) async fn seen(
        &self,
        live: &Arc<dyn LiveRead>,
        source: Source,
        partitions: u32,
    ) -> Read {
        let known = lock(&self.seen).get(&source).cloned();
        if let Some((at, slots)) = known
            && at.elapsed() < KEPT_FOR
            && slots.len() == partitions as usize
        {
            return Ok(slots);
        }
        let (live, seen) = (Arc::clone(live), Arc::clone(&self.seen));
        let read = async move {
            let before = Instant::now();
            if live.cached_boards().is_none() {
                return Ok(Arc::default());
            }
            let slots: Slots = Arc::new(live.partition_states(source, 0..partitions).await?);
            lock(&seen).insert(source, (before, Arc::clone(&slots)));
            Ok(slots)
        };
        let key = (u128::from(partitions) << 64) | source as u128;
        self.reads.read(key, read).await
    }

    /// A slot was met otherwise: what answers tell of it does not go back.
    pub(crate) fn met(&self, source: Source, partition: u32, slot: Option<&Slot>) {
        let Some(slot) = slot else { return };
        let reach = |slot: &Slot| (slot.generation, slot.position.next_offset);
        let mut seen = lock(&self.seen);
        let Some((_, slots)) = seen.get_mut(&source) else {
            return;
        };
        let known = slots.get(partition as usize).and_then(Option::as_ref);
        if known.is_none_or(|known| reach(known) < reach(slot))
            && let Some(known) = Arc::make_mut(slots).get_mut(partition as usize)
        {
            *known = Some(slot.clone());
        }
    }
}
