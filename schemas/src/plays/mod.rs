//! Plays: the events of the source `plays` as JSON, as Avro, and as Arrow columns.
//!
//! The Avro schema is `avro/plays.avsc`.

mod decode;
mod identity;
mod raw;
mod records;
mod redact;

use std::ops::Range;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

pub use decode::{DecodedPlays, Decoder, Line, RejectedInput, check_line, check_records};
pub use identity::{EventIdentity, event_identities};
pub use redact::{redact_lines, redact_listeners};

use crate::line::INSTANT_SECONDS;
pub use crate::line::LINE_BYTES_MAX;

/// The maximum length of an `event_id`.
pub const EVENT_ID_BYTES_MAX: usize = 1024;
/// The maximum length of a `referrer`: a row key must fit into every store.
pub const REFERRER_BYTES_MAX: usize = 16 * 1024;
/// The largest absolute value of an `amount`, so that sums of real events stay within 64 bits.
pub const AMOUNT_MAX: i64 = 1_000_000_000_000;

/// The offset of events that were never in the log. They count as if they came before it.
pub const BEFORE_THE_LOG: i64 = -1;

/// The range of times of plays, in seconds since the Unix epoch: the years 1678 to 2261.
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

/// Returns the columns of plays: the position in the log, then the fields of the event. `at` is in
/// microseconds (finer digits are truncated), `logged_at` in milliseconds, both in UTC.
#[must_use]
pub fn schema() -> SchemaRef {
    Arc::clone(&SCHEMA)
}
