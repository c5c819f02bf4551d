//! Reads an offset range of a topic, tolerating concurrent deletion of its beginning.

use schemas::seam::Offset;
use stores::log::{FetchLimit, Records};

use super::eraser::Eraser;
use crate::Result;

const FETCH_LIMIT: FetchLimit = FetchLimit {
    records: 20_000,
    bytes: 16 << 20,
};

/// An offset range of a partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct OffsetRange {
    pub(super) partition: u32,
    pub(super) start: Offset,
    pub(super) end: Offset,
}

impl Eraser {
    /// Calls `visit` with batches of records of the range until it returns false.
    pub(super) async fn for_each_batch(
        &self,
        topic: &str,
        range: OffsetRange,
        mut visit: impl AsyncFnMut(&Records) -> Result<bool>,
    ) -> Result<()> {
        let (partition, end) = (range.partition, range.end);
        let mut next = range.start;
        while next < end {
            let fetched = match self
                .log
                .fetch_once(topic, partition, next, FETCH_LIMIT)
                .await
            {
                // The records were deleted by an erasure or by the topic's retention.
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
            if !visit(&fetched.records.slice(0, below)).await? {
                break;
            }
        }
        Ok(())
    }
}
