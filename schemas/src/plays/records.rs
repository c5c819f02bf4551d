//! Records of Avro to plays as they stand there. What they say is checked with the lines.

use std::borrow::Cow;

use arrow::array::{
    Array, AsArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    TimestampMillisecondArray,
};
use arrow::error::ArrowError;

use super::raw::{RawAt, RawPlay};
use crate::avro::{Frames, Writers};
use crate::line::Text;

/// Our schema of a play.
const SCHEMA: &str = include_str!("../../avro/plays.avsc");

/// The plays of Avro among some records.
pub(super) struct Plays {
    frames: Frames,
    columns: Vec<Columns>,
}

/// Reads those of `records` that are Avro.
///
/// # Errors
/// If `writers` says nothing about the schema of one.
pub(super) fn read<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    writers: &Writers,
) -> Result<Plays, ArrowError> {
    let frames = Frames::read(SCHEMA, records, writers)?;
    let columns = frames.batches().iter().map(Columns::of);
    Ok(Plays {
        columns: columns.collect::<Result<_, _>>()?,
        frames,
    })
}

/// A play, or the reason for which there is none.
type Found<'a> = Result<RawPlay<'a>, String>;

impl Plays {
    /// The record of that index, if it is Avro.
    pub(super) fn play(&self, index: usize) -> Option<Found<'_>> {
        let place = self.frames.place(index)?;
        let found = place.map_err(str::to_owned).and_then(|(batch, row)| {
            let columns = self.columns.get(batch).ok_or("it has no batch")?;
            columns.play(row)
        });
        Some(found)
    }
}

/// The fields of our schema, by column.
struct Columns {
    event_id: StringArray,
    track_id: Int64Array,
    owner_id: Int64Array,
    listener_id: Int64Array,
    country: StringArray,
    referrer: StringArray,
    app_id: Int64Array,
    kind: StringArray,
    at: At,
    amount: Int64Array,
}

/// Times as they were written.
enum At {
    Text(StringArray),
    Millis(TimestampMillisecondArray),
    Micros(TimestampMicrosecondArray),
}

impl Columns {
    fn of(batch: &RecordBatch) -> Result<Self, ArrowError> {
        let column = |name: &str| {
            let missing = || ArrowError::SchemaError(format!("a batch without {name}"));
            batch.column_by_name(name).ok_or_else(missing)
        };
        let other = |name: &str| ArrowError::SchemaError(format!("{name} of another type"));
        let text = |name: &str| {
            let column = column(name)?.as_string_opt::<i32>();
            column.cloned().ok_or_else(|| other(name))
        };
        let whole = |name: &str| {
            let column = column(name)?.as_primitive_opt();
            column.cloned().ok_or_else(|| other(name))
        };
        let at = column("at")?;
        let at = if let Some(text) = at.as_string_opt::<i32>() {
            At::Text(text.clone())
        } else if let Some(micros) = at.as_primitive_opt() {
            At::Micros(micros.clone())
        } else if let Some(millis) = at.as_primitive_opt() {
            At::Millis(millis.clone())
        } else {
            return Err(other("at"));
        };
        Ok(Self {
            event_id: text("event_id")?,
            track_id: whole("track_id")?,
            owner_id: whole("owner_id")?,
            listener_id: whole("listener_id")?,
            country: text("country")?,
            referrer: text("referrer")?,
            app_id: whole("app_id")?,
            kind: text("kind")?,
            at,
            amount: whole("amount")?,
        })
    }

    fn play(&self, row: usize) -> Found<'_> {
        Ok(RawPlay {
            event_id: needed("event_id", text(&self.event_id, row))?,
            track_id: needed("track_id", whole(&self.track_id, row))?,
            owner_id: needed("owner_id", whole(&self.owner_id, row))?,
            listener_id: whole(&self.listener_id, row),
            country: text(&self.country, row),
            referrer: text(&self.referrer, row),
            app_id: whole(&self.app_id, row),
            kind: needed("kind", text(&self.kind, row))?,
            at: needed("at", self.at.at(row))?,
            amount: whole(&self.amount, row),
        })
    }
}

impl At {
    fn at(&self, row: usize) -> Option<RawAt<'_>> {
        match self {
            Self::Text(column) => text(column, row).map(RawAt::Text),
            Self::Millis(column) => {
                let at_ms = column.is_valid(row).then(|| column.value(row))?;
                // What is beyond is out of the range of times that are taken as well.
                Some(RawAt::Micros(at_ms.saturating_mul(1_000)))
            }
            Self::Micros(column) => {
                let at_us = column.is_valid(row).then(|| column.value(row))?;
                Some(RawAt::Micros(at_us))
            }
        }
    }
}

fn text(column: &StringArray, row: usize) -> Option<Text<'_>> {
    let is_there = column.is_valid(row);
    is_there.then(|| Text(Cow::Borrowed(column.value(row))))
}

fn whole(column: &Int64Array, row: usize) -> Option<i64> {
    column.is_valid(row).then(|| column.value(row))
}

fn needed<T>(field: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("{field}: is null, but must be there"))
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
