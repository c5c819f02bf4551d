//! Cache of batch rows.
//!
//! Rows change only when a run publishes, and the rows that a run replaces are valid until it is
//! complete. So rows that were read under one newest run are valid as long as it is the newest.
//! If live state does not join them, the reader reads them again.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use moka::sync::Cache;
use schemas::seam::Epoch;
use stores::Result;
use stores::views::{PartitionQuery, ViewRows, ViewsRead};

use crate::ServingOptions;
use crate::request_coalescer::seeded_hash;

/// Approximate overhead of an entry, in bytes.
const ENTRY_BYTES: usize = 256;
/// Bounds how long rows remain after a single job was run again to repair them.
const TIME_TO_LIVE: Duration = Duration::from_secs(60);

/// Rows by table, newest run and queries.
#[derive(Debug)]
pub(crate) struct RowCache {
    entries: Cache<u128, Arc<Option<ViewRows>>>,
    /// Maximum size of a cached entry: larger ones would displace all others.
    entry_bytes_max: usize,
}

/// Selects the rows to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowRequest<'a> {
    pub(crate) table: &'a str,
    /// Epoch and stamp of the newest complete run of the table.
    pub(crate) newest: (Epoch, i64),
    /// True to ignore the cache.
    pub(crate) ignores_cache: bool,
}

impl RowCache {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        let weight = |_: &u128, rows: &Arc<Option<ViewRows>>| {
            u32::try_from(memory_bytes(rows) + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        Self {
            entries: Cache::builder()
                .max_capacity(options.row_cache_bytes_max)
                .weigher(weight)
                .time_to_live(TIME_TO_LIVE)
                .build(),
            entry_bytes_max: usize::try_from(options.row_cache_bytes_max / 8).unwrap_or(usize::MAX),
        }
    }

    /// Reads rows; returns `None` if the table does not exist.
    pub(crate) async fn read(
        &self,
        views: &dyn ViewsRead,
        request: RowRequest<'_>,
        queries: &[PartitionQuery],
    ) -> Result<Arc<Option<ViewRows>>> {
        let key = cache_key(request, queries);
        if !request.ignores_cache
            && let Some(rows) = self.entries.get(&key)
        {
            metrics::counter!("backstitch_serving_cached_rows_total", "found" => "yes")
                .increment(1);
            return Ok(rows);
        }
        metrics::counter!("backstitch_serving_cached_rows_total", "found" => "no").increment(1);
        let rows = Arc::new(views.rows(request.table, queries).await?);
        if let Some(rows) = rows.as_ref() {
            // Keys, epochs and counts.
            let bytes = rows.rows.value_data().len() + rows.counts.len() * 16;
            metrics::counter!("backstitch_serving_read_bytes_total", "from" => "views")
                .increment(bytes as u64);
        }
        // A missing table may be created at any moment, so its absence is not cached.
        if rows.is_some() && memory_bytes(&rows) <= self.entry_bytes_max {
            self.entries.insert(key, Arc::clone(&rows));
        }
        Ok(rows)
    }
}

fn memory_bytes(rows: &Option<ViewRows>) -> usize {
    rows.as_ref().map_or(0, |rows| {
        let arrays: [&dyn Array; 4] = [&rows.queries, &rows.rows, &rows.counts, &rows.epochs];
        arrays.map(Array::get_array_memory_size).iter().sum()
    })
}

fn cache_key(request: RowRequest<'_>, queries: &[PartitionQuery]) -> u128 {
    let queries = queries.iter().map(|query| (&query.partition, &query.range));
    seeded_hash(&(request.table, request.newest, queries.collect::<Vec<_>>()))
}
