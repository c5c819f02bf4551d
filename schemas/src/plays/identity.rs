//! The identity of events, which decides whether two records are the same event.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use xxhash_rust::xxh3::xxh3_128;

/// The identity of an event: a 128-bit hash of owner, event id and time. Among 2^40 events, the
/// probability of any collision is below 10^-14.
pub type EventIdentity = u128;

/// Returns the identity of each row of a batch of plays, in row order. Returns none if the batch
/// lacks the columns `owner_id`, `event_id` and `at` of [`super::schema`].
#[must_use]
pub fn event_identities(batch: &RecordBatch) -> Vec<EventIdentity> {
    let (Some(owners), Some(event_ids), Some(times)) = (
        batch
            .column_by_name("owner_id")
            .and_then(|c| c.as_primitive_opt::<Int64Type>()),
        batch
            .column_by_name("event_id")
            .and_then(|c| c.as_string_opt::<i32>()),
        batch
            .column_by_name("at")
            .and_then(|c| c.as_primitive_opt::<TimestampMicrosecondType>()),
    ) else {
        return Vec::new();
    };
    let mut bytes = Vec::with_capacity(64);
    (0..batch.num_rows())
        .map(|row| {
            bytes.clear();
            bytes.extend_from_slice(&owners.value(row).to_le_bytes());
            bytes.extend_from_slice(&times.value(row).to_le_bytes());
            bytes.extend_from_slice(event_ids.value(row).as_bytes());
            xxh3_128(&bytes)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::Xxh3;

    use super::super::{Decoder, Line};
    use super::*;

    /// The archive stores the identities of expired events, so the hash must never change.
    #[test]
    fn an_identity_is_the_hash_of_owner_time_and_id() {
        let bytes = br#"{"event_id":"e1","track_id":1,"owner_id":7,"kind":"play","at":"1970-01-01T00:00:01Z"}"#;
        let line = Line {
            offset: 0,
            logged_at_ms: 0,
            bytes,
        };
        let decoded = Decoder::new(0).decode([line]).unwrap();
        let mut hasher = Xxh3::new();
        hasher.update(&7_i64.to_le_bytes());
        hasher.update(&1_000_000_i64.to_le_bytes());
        hasher.update(b"e1");
        assert_eq!(event_identities(&decoded.events), [hasher.digest128()]);
    }
}
