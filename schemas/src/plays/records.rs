//! Decodes Avro records to unvalidated plays. The rules of JSON lines then validate them.

use std::borrow::Cow;

use arrow::array::{
    Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampMillisecondArray,
};
use arrow::error::ArrowError;

use super::raw::{RawPlay, RawTime};
use crate::avro::{AvroRecords, WriterSchemas};
use crate::line::Text;

/// The Avro schema of a play.
const SCHEMA: &str = include_str!("../../avro/plays.avsc");

/// The plays among some records that are Avro.
pub(super) struct AvroPlays {
    frames: AvroRecords,
    columns: Vec<Columns>,
}

/// Decodes those of `records` that are Avro.
///
/// # Errors
/// `writers` lacks the schema of a record.
pub(super) fn decode_avro<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    writers: &WriterSchemas,
) -> Result<AvroPlays, ArrowError> {
    let frames = AvroRecords::read(SCHEMA, records, writers)?;
    let columns = frames.batches().iter().map(Columns::new);
    Ok(AvroPlays {
        columns: columns.collect::<Result<_, _>>()?,
        frames,
    })
}

/// A play, or the reason for its rejection.
type PlayResult<'a> = Result<RawPlay<'a>, String>;

impl AvroPlays {
    /// Returns the play of a record; none if the record is not Avro.
    pub(super) fn play(&self, index: usize) -> Option<PlayResult<'_>> {
        let location = self.frames.location(index)?;
        let play = location.map_err(str::to_owned).and_then(|(batch, row)| {
            let columns = self.columns.get(batch).ok_or("it has no batch")?;
            columns.read_play(row)
        });
        Some(play)
    }
}

/// The columns of the Avro schema.
struct Columns {
    event_id: StringArray,
    track_id: Int64Array,
    owner_id: Int64Array,
    listener_id: Int64Array,
    country: StringArray,
    referrer: StringArray,
    app_id: Int64Array,
    kind: StringArray,
    at: TimeColumn,
    amount: Int64Array,
}

/// Times in the type of the writer.
enum TimeColumn {
    Text(StringArray),
    Millis(TimestampMillisecondArray),
    Micros(TimestampMicrosecondArray),
}

impl Columns {
    fn new(batch: &RecordBatch) -> Result<Self, ArrowError> {
        let column = |name: &str| {
            let missing = || ArrowError::SchemaError(format!("the batch has no column {name}"));
            batch.column_by_name(name).ok_or_else(missing)
        };
        let wrong_type =
            |name: &str| ArrowError::SchemaError(format!("column {name} has another type"));
        let text = |name: &str| {
            let column = column(name)?.as_string_opt::<i32>();
            column.cloned().ok_or_else(|| wrong_type(name))
        };
        let integer = |name: &str| {
            let column = column(name)?.as_primitive_opt();
            column.cloned().ok_or_else(|| wrong_type(name))
        };
        let time_column = column("at")?;
        let at = if let Some(text) = time_column.as_string_opt::<i32>() {
            TimeColumn::Text(text.clone())
        } else if let Some(micros) = time_column.as_primitive_opt() {
            TimeColumn::Micros(micros.clone())
        } else if let Some(millis) = time_column.as_primitive_opt() {
            TimeColumn::Millis(millis.clone())
        } else {
            return Err(wrong_type("at"));
        };
        Ok(Self {
            event_id: text("event_id")?,
            track_id: integer("track_id")?,
            owner_id: integer("owner_id")?,
            listener_id: integer("listener_id")?,
            country: text("country")?,
            referrer: text("referrer")?,
            app_id: integer("app_id")?,
            kind: text("kind")?,
            at,
            amount: integer("amount")?,
        })
    }

    fn read_play(&self, row: usize) -> PlayResult<'_> {
        Ok(RawPlay {
            event_id: require("event_id", text(&self.event_id, row))?,
            track_id: require("track_id", integer(&self.track_id, row))?,
            owner_id: require("owner_id", integer(&self.owner_id, row))?,
            listener_id: integer(&self.listener_id, row),
            country: text(&self.country, row),
            referrer: text(&self.referrer, row),
            app_id: integer(&self.app_id, row),
            kind: require("kind", text(&self.kind, row))?,
            at: require("at", self.at.time(row))?,
            amount: integer(&self.amount, row),
        })
    }
}

impl TimeColumn {
    fn time(&self, row: usize) -> Option<RawTime<'_>> {
        match self {
            Self::Text(column) => text(column, row).map(RawTime::Text),
            Self::Millis(column) => {
                let at_ms = column.is_valid(row).then(|| column.value(row))?;
                // A saturated value is also outside the accepted range of times.
                Some(RawTime::Micros(at_ms.saturating_mul(1_000)))
            }
            Self::Micros(column) => {
                let at_us = column.is_valid(row).then(|| column.value(row))?;
                Some(RawTime::Micros(at_us))
            }
        }
    }
}

fn text(column: &StringArray, row: usize) -> Option<Text<'_>> {
    let is_present = column.is_valid(row);
    is_present.then(|| Text(Cow::Borrowed(column.value(row))))
}

fn integer(column: &Int64Array, row: usize) -> Option<i64> {
    column.is_valid(row).then(|| column.value(row))
}

fn require<T>(field: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("{field} is required; got null"))
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
