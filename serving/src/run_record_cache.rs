//! Cache of run records.
//!
//! A reader may use run records that are a few seconds old: they are correct as long as live state
//! still holds everything after the newest known run. If it does not, the reader detects that and
//! reads the records again. So most answers do not query the view store for run records.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use schemas::source::Source;
use stores::Result;
use stores::views::{RunRecords, ViewsRead};
use tokio::time::{Duration, Instant};

use crate::lock::lock;

/// Newest run records by source, each with the time when its read began.
#[derive(Debug)]
pub(crate) struct RunRecordCache {
    retention: Duration,
    by_source: Mutex<HashMap<Source, (Instant, Arc<RunRecords>)>>,
}

impl RunRecordCache {
    pub(crate) fn new(retention: Duration) -> Self {
        Self {
            retention,
            by_source: Mutex::default(),
        }
    }

    /// Returns the run records of a source, from the cache unless `ignores_cache` is set.
    pub(crate) async fn get(
        &self,
        views: &dyn ViewsRead,
        source: Source,
        ignores_cache: bool,
    ) -> Result<Arc<RunRecords>> {
        let now = Instant::now();
        let cached = lock(&self.by_source).get(&source).cloned();
        if let Some((read_at, records)) = cached
            && !ignores_cache
            && read_at.elapsed() < self.retention
        {
            return Ok(records);
        }
        let records = Arc::new(views.runs(source).await?);
        let mut by_source = lock(&self.by_source);
        // Of two concurrent reads, the one that began later has the newer records.
        if by_source
            .get(&source)
            .is_none_or(|(read_at, _)| *read_at <= now)
        {
            by_source.insert(source, (now, Arc::clone(&records)));
        }
        Ok(records)
    }
}
