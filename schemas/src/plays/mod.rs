//! Plays: what an event of the source `plays` is, as JSON, as Avro and as Arrow columns.
//!
//! The schema of Avro is `avro/plays.avsc`.

mod anonymous;
mod decode;
mod identity;
mod raw;
mod records;

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

pub use anonymous::{anonymous_lines, without_listeners};
pub use decode::{Decoded, Decoder, Line, Rejected, check_line, check_records};
pub use identity::{EventIdentity, identities};

use crate::line::INSTANT_SECONDS;
pub use crate::line::LINE_BYTES_MAX;

/// The longest `event_id`, in bytes.
pub const EVENT_ID_BYTES_MAX: usize = 1024;
/// The longest `referrer`, in bytes: a row key must fit into every store.
pub const REFERRER_BYTES_MAX: usize = 16 * 1024;
/// The largest `amount`, and with a minus the smallest: so that no sum of real events can pass the
/// range of 64-bit integers unseen.
pub const AMOUNT_MAX: i64 = 1_000_000_000_000;

/// The offset of events that never were in the log: they count as if they stood before it.
pub const BEFORE_THE_LOG: i64 = -1;

/// The times that a play can have, in seconds since the Unix epoch: from 1678 until 2261.
pub const AT_SECONDS: Range<i64> = INSTANT_SECONDS;

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let time = |unit| DataType::Timestamp(unit, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("logged_at", time(TimeUnit::Millisecond), false),
        Field::new("event_id", DataType::Utf8, false),
        Field::new("track_id", DataType::Int64, false),
        Field::new("owner_id", DataType::Int64, false),
        Field::new("listener_id", DataType::Int64, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("referrer", DataType::Utf8, true),
        Field::new("app_id", DataType::Int64, true),
        Field::new("kind", DataType::Utf8, false),
        Field::new("at", time(TimeUnit::Microsecond), false),
        Field::new("amount", DataType::Int64, false),
    ]))
});

/// The columns of plays: the record's place in the log, then the event's own fields. `at` is in
/// microseconds (finer digits are cut off), `logged_at` in milliseconds, both UTC.
#[must_use]
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}
