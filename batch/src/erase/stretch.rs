//! Reading a stretch of a topic, while others may delete from its beginning.

use schemas::seam::Offset;
use stores::log::{FetchLimit, Records};

use super::Eraser;
use crate::Result;

const FETCH: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};

impl Eraser {
    /// Hands on the records of a stretch, some at a time, for as long as more are wanted.
    pub(super) async fn each(
        &self,
        topic: &str,
        (partition, mut next, end): (u32, Offset, Offset),
        mut look: impl AsyncFnMut(&Records) -> Result<bool>,
    ) -> Result<()> {
        while next < end {
            let fetched = match self.log.fetch_apart(topic, partition, next, FETCH).await {
                // It was trimmed meanwhile, or its time was over.
                Err(stores::Error::OffsetOutOfRange { start, .. }) if start > next => {
                    next = start;
                    continue;
                }
                fetched => fetched?,
            };
            if fetched.next_offset == next {
                break;
            }
            next = fetched.next_offset;
            let offsets = fetched.records.offsets.values();
            let below = offsets.partition_point(|offset| *offset < end);
            if !look(&fetched.records.slice(0, below)).await? {
                break;
            }
        }
        Ok(())
    }
}
