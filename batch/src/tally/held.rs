//! Rows that a task keeps in memory for the views which read from them, so that they are neither read nor decoded once for
//! each of these.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;

use crate::table::Rows;

/// Takes rows as long as there is room for all of them.
#[derive(Debug)]
pub(crate) struct Holder {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// What the rows take; none once there were too many.
    room: Option<MemoryReservation>,
    bytes_max: usize,
}

impl Holder {
    /// A holder of at most so many bytes, which are taken out of what `room` has room for.
    pub(crate) fn new(schema: SchemaRef, room: MemoryReservation, bytes_max: usize) -> Self {
        Self {
            schema,
            batches: Vec::new(),
            room: Some(room),
            bytes_max,
        }
    }

    /// Takes more rows; if there is no room for them, it lets go of all.
    pub(crate) fn take(&mut self, rows: &RecordBatch) {
        let Some(room) = &self.room else { return };
        let bytes = rows.get_array_memory_size();
        if room.size() + bytes <= self.bytes_max && room.try_grow(bytes).is_ok() {
            self.batches.push(rows.clone());
        } else {
            self.room = None;
            self.batches = Vec::new();
        }
    }

    /// All rows that were taken, if there was room for them.
    pub(crate) fn finish(self) -> Option<Held> {
        Some(Held {
            schema: self.schema,
            batches: self.batches.into(),
            room: Arc::new(self.room?),
        })
    }
}

/// Rows in memory. A copy is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    schema: SchemaRef,
    batches: Arc<[RecordBatch]>,
    /// Given back with the last copy.
    room: Arc<MemoryReservation>,
}

impl Rows for Held {
    fn narrowed(&self, columns: &[usize]) -> Result<Arc<dyn PartitionStream>, DataFusionError> {
        let batches = self.batches.iter().map(|batch| batch.project(columns));
        Ok(Arc::new(Self {
            schema: Arc::new(self.schema.project(columns)?),
            batches: batches.collect::<Result<_, _>>()?,
            room: Arc::clone(&self.room),
        }))
    }
}

impl PartitionStream for Held {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let held = self.clone();
        let rows =
            (0..held.batches.len()).filter_map(move |n| held.batches.get(n).cloned().map(Ok));
        let schema = Arc::clone(&self.schema);
        Box::pin(RecordBatchStreamAdapter::new(
            schema,
            futures::stream::iter(rows),
        ))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use futures::TryStreamExt;

    use super::*;

    fn rows(from: i64) -> RecordBatch {
        let column = || Arc::new(Int64Array::from_iter_values(from..from + 100));
        RecordBatch::try_new(schema(), vec![column(), column()]).unwrap()
    }

    fn schema() -> SchemaRef {
        let field = |name| Field::new(name, DataType::Int64, false);
        Arc::new(Schema::new(vec![field("a"), field("b")]))
    }

    fn holder(pool: &Arc<dyn MemoryPool>, bytes_max: usize) -> Holder {
        let room = MemoryConsumer::new("held").register(pool);
        Holder::new(schema(), room, bytes_max)
    }

    #[tokio::test]
    async fn rows_come_as_often_as_they_are_asked_for() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let mut holder = holder(&pool, 1 << 20);
        holder.take(&rows(0));
        holder.take(&rows(100));
        let held = holder.finish().unwrap();
        assert!(pool.reserved() >= 2 * 2 * 800);
        for _ in 0..2 {
            let narrow = held.narrowed(&[1]).unwrap();
            let batches = narrow.execute(Arc::default()).try_collect::<Vec<_>>().await;
            let batches = batches.unwrap();
            assert_eq!(batches.len(), 2);
            assert_eq!(batches[1], rows(100).project(&[1]).unwrap());
        }
        drop(held);
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn without_room_nothing_is_held() {
        for (pool_bytes, bytes_max) in [(2_000, 1 << 20), (1 << 20, 2_000)] {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(pool_bytes));
            let mut holder = holder(&pool, bytes_max);
            holder.take(&rows(0));
            assert!(pool.reserved() > 0);
            holder.take(&rows(100));
            assert_eq!(pool.reserved(), 0);
            assert!(holder.finish().is_none());
        }
    }
}
