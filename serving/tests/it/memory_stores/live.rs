//! Live state: partition states, deltas of plays, live entries of boards, and their outbox.

use std::ops::Range;

use arrow::array::{BinaryArray, Int64Array, UInt32Array, UInt64Array};
use async_trait::async_trait;
use schemas::seam::{Epoch, PartitionState};
use schemas::source::Source;
use stores::Result;
use stores::live::{
    DeltaQuery, DeltasSnapshot, EntriesSnapshot, EntryQuery, LiveDeltas, LiveRead, MembersQuery,
    Outbox, PartitionId,
};
use stores::live_scan::{ScanKey, ScannedDeltas, ScannedEntries};
use tokio::time::sleep;

use super::{MemoryStores, fail_unsupported, is_in_range};

#[async_trait]
impl LiveRead for MemoryStores {
    async fn partition_states(
        &self,
        source: Source,
        partitions: Range<u32>,
    ) -> Result<Vec<Option<PartitionState>>> {
        self.read_counts().partition_states += 1;
        let gate = self.faults().partition_state_gate.clone();
        if let Some(gate) = gate {
            let _closed = gate.acquire().await;
        }
        let mut states = match source {
            Source::Plays => self.partition_states.lock().unwrap().clone(),
            _ => vec![self.find_board_partition_state()],
        };
        states.resize(partitions.end as usize, None);
        states.drain(..partitions.start as usize);
        let mut faults = self.faults();
        if faults.missing_state_reads > 0 {
            faults.missing_state_reads -= 1;
            states.fill(None);
        }
        Ok(states)
    }

    async fn read_deltas(
        &self,
        source: Source,
        partitions: u32,
        queries: &[DeltaQuery],
    ) -> Result<DeltasSnapshot> {
        let partition_states = self.partition_states(source, 0..partitions).await?;
        let deltas = queries.iter().map(|query| self.find_deltas(query));
        Ok(DeltasSnapshot {
            partition_states,
            deltas: deltas.collect(),
        })
    }

    async fn read_entries(
        &self,
        _: Source,
        partitions: u32,
        queries: &[EntryQuery],
    ) -> Result<EntriesSnapshot> {
        {
            let mut counts = self.read_counts();
            counts.keys_of_live_entries.push(queries.len());
            counts.live_entries_active += 1;
            let active = counts.live_entries_active;
            counts.live_entries_active_max = counts.live_entries_active_max.max(active);
        }
        let delay = self.faults().live_entries_delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        self.read_counts().live_entries_active -= 1;
        // Boards have one partition.
        let mut partition_states = vec![self.find_board_partition_state()];
        partition_states.resize(partitions as usize, None);
        let mut boards = self.boards();
        let entries = queries.iter().map(|query| boards.find_live_entries(query));
        let snapshot = EntriesSnapshot {
            partition_states,
            entries: entries.collect(),
        };
        boards.next_offset += boards.offset_step;
        Ok(snapshot)
    }

    async fn read_members(
        &self,
        _: Source,
        _: Range<u32>,
        _: &[MembersQuery],
    ) -> Result<EntriesSnapshot> {
        fail_unsupported()
    }

    async fn outboxes(
        &self,
        _: Source,
        partitions: Range<u32>,
        _: usize,
    ) -> Result<Vec<Option<Outbox>>> {
        let achievements = self.achievements.lock().unwrap();
        let unpublished = achievements.unpublished.iter();
        let entries: Vec<_> = unpublished.map(|message| message.encode().into()).collect();
        let outbox = self.find_board_partition_state().map(|state| Outbox {
            state,
            pending: entries.len() as u64,
            sequence_numbers: 0..entries.len() as u64,
            entries,
        });
        let mut outboxes = vec![outbox];
        outboxes.resize(partitions.len(), None);
        Ok(outboxes)
    }

    async fn scan_deltas(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> Result<ScannedDeltas> {
        fail_unsupported()
    }

    async fn scan_entries(
        &self,
        _: PartitionId,
        _: &str,
        _: (Epoch, Epoch),
        _: Option<ScanKey>,
        _: usize,
    ) -> Result<ScannedEntries> {
        fail_unsupported()
    }
}

impl MemoryStores {
    fn find_board_partition_state(&self) -> Option<PartitionState> {
        let is_missing = self.faults().lacks_board_state;
        (!is_missing).then(|| self.boards().build_partition_state())
    }

    fn find_deltas(&self, query: &DeltaQuery) -> LiveDeltas {
        let matching = self.deltas[&query.view].iter().filter(|(key, _)| {
            let ((group, row), partition, _) = key;
            *group == query.group
                && query.partition.is_none_or(|only| only == *partition)
                && query.ranges.iter().any(|range| is_in_range(row, range))
        });
        let matching: Vec<_> = matching.collect();
        let keys = || matching.iter().map(|(key, _)| key);
        LiveDeltas {
            partitions: keys().map(|key| key.1).collect::<UInt32Array>(),
            epochs: keys().map(|key| key.2).collect::<UInt64Array>(),
            rows: BinaryArray::from_iter_values(keys().map(|key| &key.0.1)),
            counts: matching
                .iter()
                .map(|(_, count)| **count)
                .collect::<Int64Array>(),
        }
    }
}
