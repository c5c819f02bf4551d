//! Batch rows that were read before.
//!
//! Rows only change when a run publishes, and what a run publishes replaces rows that are right until
//! it is complete: so rows that were read under one newest run are right for as long as it is the
//! newest one. That is all that such rows are known by. Whoever finds that live state does not join
//! them reads them anew.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::Array;
use moka::sync::Cache;
use schemas::seam::Epoch;
use stores::Result;
use stores::views::{FoundRows, PartQuery, ViewsRead};

use crate::ServingOptions;
use crate::gather::key_of;

/// What an entry takes besides what is in it, in bytes, about.
const ENTRY_BYTES: usize = 256;
/// However seldom runs are: who repairs rows by running a single job again waits no longer for them.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// Rows by table, newest run and what was asked of them.
#[derive(Debug)]
pub(crate) struct RowCache {
    found: Cache<u128, Arc<Option<FoundRows>>>,
    /// Rows of more bytes are not kept: they would displace all others.
    one_bytes_max: usize,
}

/// Which rows are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsOf<'a> {
    pub(crate) table: &'a str,
    /// Epoch and stamp of the newest complete run of the table.
    pub(crate) newest: (Epoch, i64),
    /// Whether what was read before may not be used.
    pub(crate) anew: bool,
}

impl RowCache {
    pub(crate) fn new(options: &ServingOptions) -> Self {
        let weight = |_: &u128, found: &Arc<Option<FoundRows>>| {
            u32::try_from(bytes(found) + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        Self {
            found: Cache::builder()
                .max_capacity(options.row_cache_bytes_max)
                .weigher(weight)
                .time_to_live(KEPT_FOR)
                .build(),
            one_bytes_max: usize::try_from(options.row_cache_bytes_max / 8).unwrap_or(usize::MAX),
        }
    }

    /// Rows; nothing if the table is not there.
    pub(crate) async fn read(
        &self,
        views: &dyn ViewsRead,
        of: RowsOf<'_>,
        queries: &[PartQuery],
    ) -> Result<Arc<Option<FoundRows>>> {
        let key = key(of, queries);
        if !of.anew
            && let Some(found) = self.found.get(&key)
        {
            metrics::counter!("backstitch_serving_cached_rows_total", "found" => "yes")
                .increment(1);
            return Ok(found);
        }
        metrics::counter!("backstitch_serving_cached_rows_total", "found" => "no").increment(1);
        let found = Arc::new(views.rows(of.table, queries).await?);
        if let Some(found) = found.as_ref() {
            // Keys, epochs and counts.
            let bytes = found.rows.value_data().len() + found.counts.len() * 16;
            metrics::counter!("backstitch_serving_read_bytes_total", "from" => "views")
                .increment(bytes as u64);
        }
        // A table that is not there may be there at once.
        if found.is_some() && bytes(&found) <= self.one_bytes_max {
            self.found.insert(key, Arc::clone(&found));
        }
        Ok(found)
    }
}

fn bytes(found: &Option<FoundRows>) -> usize {
    found.as_ref().map_or(0, |found| {
        let arrays: [&dyn Array; 4] = [&found.queries, &found.rows, &found.counts, &found.epochs];
        arrays.map(Array::get_array_memory_size).iter().sum()
    })
}

fn key(of: RowsOf<'_>, queries: &[PartQuery]) -> u128 {
    let queries = queries.iter().map(|query| (&query.part, &query.range));
    key_of(&(of.table, of.newest, queries.collect::<Vec<_>>()))
}
