//! When two records are the same event.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use xxhash_rust::xxh3::Xxh3;

/// What makes two records the same event: owner, event id and time, as a 128-bit hash. With 2^40
/// events the chance that any two different ones meet is below 10^-14.
pub type EventIdentity = u128;

/// The identity of each row of a batch of plays, in row order. Rows of a batch that has not the
/// columns `owner_id`, `event_id` and `at` of [`super::schema`] have none.
#[must_use]
pub fn identities(batch: &RecordBatch) -> Vec<EventIdentity> {
    let (Some(owner), Some(id), Some(at)) = (
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
    let mut hasher = Xxh3::new();
    (0..batch.num_rows())
        .map(|row| {
            hasher.reset();
            hasher.update(&owner.value(row).to_le_bytes());
            hasher.update(&at.value(row).to_le_bytes());
            hasher.update(id.value(row).as_bytes());
            hasher.digest128()
        })
        .collect()
}
