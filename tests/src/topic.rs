//! Topics as consumers see them.

use serde_json::Value;
use stores::Result;
use stores::log::{FetchLimit, LogRead};

/// Returns all messages of a topic by partition, each with its offset.
///
/// # Errors
/// If the topic does not exist.
///
/// # Panics
/// If a message cannot be read or is not JSON.
pub async fn messages(log: &dyn LogRead, topic: &str) -> Result<Vec<Vec<(i64, Value)>>> {
    let mut partitions = Vec::new();
    for (partition, span) in (0..).zip(log.spans(topic).await?) {
        let (mut next_offset, mut messages) = (span.start, Vec::new());
        while next_offset < span.end {
            let limit = FetchLimit {
                records: 10_000,
                bytes: 1 << 24,
            };
            let fetched = log.fetch(topic, partition, next_offset, limit).await;
            let fetched = fetched.expect("fetching");
            let offsets = fetched.records.offsets.values();
            let records = fetched.records.values.iter().flatten().zip(offsets);
            for (bytes, offset) in records {
                let value = serde_json::from_slice(bytes).expect("JSON");
                messages.push((*offset, value));
            }
            next_offset = fetched.next_offset;
        }
        partitions.push(messages);
    }
    Ok(partitions)
}
