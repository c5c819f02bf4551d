//! Run records that were read a moment ago.
//!
//! The seam allows a reader run records that are some seconds old: what it adds up is right for them
//! as long as live state still keeps what came after the newest run that they know, and where it does
//! not the reader sees that and reads them anew. So not every answer asks the views' store for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use schemas::source::Source;
use stores::Result;
use stores::views::{RunsSeen, ViewsRead};
use tokio::time::{Duration, Instant};

use crate::lock::lock;

/// By source, what was read last.
#[derive(Debug)]
pub(crate) struct RunsCache {
    kept_for: Duration,
    seen: Mutex<HashMap<Source, (Instant, Arc<RunsSeen>)>>,
}

impl RunsCache {
    pub(crate) fn new(kept_for: Duration) -> Self {
        Self {
            kept_for,
            seen: Mutex::default(),
        }
    }

    /// The run records of a source: those of a moment ago, unless they are wanted `anew`.
    pub(crate) async fn seen(
        &self,
        views: &dyn ViewsRead,
        source: Source,
        anew: bool,
    ) -> Result<Arc<RunsSeen>> {
        let before = Instant::now();
        let known = lock(&self.seen).get(&source).cloned();
        if let Some((at, seen)) = known
            && !anew
            && at.elapsed() < self.kept_for
        {
            return Ok(seen);
        }
        let seen = Arc::new(views.runs(source).await?);
        let mut all = lock(&self.seen);
        // Of two that read at once the one that began later knows more.
        if all.get(&source).is_none_or(|(at, _)| *at <= before) {
            all.insert(source, (before, Arc::clone(&seen)));
        }
        Ok(seen)
    }
}
