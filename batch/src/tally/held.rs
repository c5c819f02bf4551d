//! Rows that a task keeps in memory for the views which read from them, so that they are neither read nor decoded once for
//! each of these.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::catalog::MemTable;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryReservation;

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
        // Batches may be parts of a larger one, of which the others are taken as well.
        let columns = rows.columns().iter();
        let bytes = columns.map(|column| column.to_data().get_slice_memory_size());
        let Ok(bytes) = bytes.sum::<Result<usize, _>>() else {
            return self.give_up();
        };
        if room.size() + bytes <= self.bytes_max && room.try_grow(bytes).is_ok() {
            self.batches.push(rows.clone());
        } else {
            self.give_up();
        }
    }

    /// Lets go of all rows, and takes no more.
    pub(crate) fn give_up(&mut self) {
        self.room = None;
        self.batches = Vec::new();
    }

    /// All rows that were taken, if there was room for them.
    ///
    /// # Errors
    /// If they have not the columns that were said.
    pub(crate) fn finish(self) -> Result<Option<Held>, DataFusionError> {
        let Some(room) = self.room else {
            return Ok(None);
        };
        let table = Arc::new(MemTable::try_new(self.schema, vec![self.batches])?);
        Ok(Some(Held { table, _room: room }))
    }
}

/// Rows in memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) table: Arc<MemTable>,
    /// Given back with them.
    _room: MemoryReservation,
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
    use datafusion::prelude::{SessionContext, ident};

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
        let held = holder.finish().unwrap().unwrap();
        assert!(pool.reserved() >= 2 * 2 * 800);
        for _ in 0..2 {
            let table = Arc::clone(&held.table);
            let all = SessionContext::new().read_table(table).unwrap();
            let narrow = all.select(vec![ident("b")]).unwrap();
            let batches = narrow.collect().await.unwrap();
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
            assert!(holder.finish().unwrap().is_none());
        }
    }
}
