//! JSON lines and records of Avro to Arrow columns, strictly: each is taken whole or not at all, and
//! then with the reason. Both are checked by the same rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, Int64Builder, RecordBatch,
    StringBuilder, TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;

use super::raw::{RawAt, RawPlay};
use super::records;
use super::{AMOUNT_MAX, EVENT_ID_BYTES_MAX, REFERRER_BYTES_MAX, schema};
use crate::avro::Writers;
use crate::line::{self, Text};

/// What a line that is no object is told.
const EXPECTED: &str = r#"one event a line is expected, as {"event_id": …}"#;

/// A line with its place in the log; the place is zero where it has none yet.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The record's offset.
    pub offset: i64,
    /// When the record was logged, in milliseconds since the Unix epoch.
    pub logged_at_ms: i64,
    /// The line's bytes, without the end of line.
    pub bytes: &'a [u8],
}

/// A line that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The line's index among those given.
    pub index: usize,
    /// Field, fault and what is expected.
    pub reason: String,
}

/// What became of the lines.
#[derive(Debug)]
pub struct Decoded {
    /// The events that were taken, in the order of their lines, with the columns of
    /// [`super::schema`].
    pub events: RecordBatch,
    /// The lines that were not.
    pub rejected: Vec<Rejected>,
}

impl Decoded {
    /// Leaves the events at these offsets out; answers how many these were.
    ///
    /// # Errors
    /// Those of arrays that don't fit.
    pub fn leave_out(&mut self, offsets: &BTreeSet<i64>) -> Result<usize, ArrowError> {
        let before = self.events.num_rows();
        let column = self.events.column_by_name("offset");
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        if let Some(column) = column.filter(|_| !offsets.is_empty()) {
            let kept = column.values().iter();
            let kept: BooleanArray = kept.map(|at| Some(!offsets.contains(at))).collect();
            self.events = filter_record_batch(&self.events, &kept)?;
        }
        Ok(before - self.events.num_rows())
    }
}

/// Decodes lines into columns. One decoder serves one partition of the log.
#[derive(Debug)]
pub struct Decoder {
    partition: i32,
}

impl Decoder {
    /// A decoder for a partition of the log.
    #[must_use]
    pub fn new(partition: u32) -> Self {
        Self {
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
        }
    }

    /// Decodes `lines` into one batch.
    ///
    /// # Errors
    /// Only where Arrow cannot build the batch, such as more than 2 GiB of text in one column: give
    /// fewer lines at a time.
    pub fn decode<'a>(
        &self,
        lines: impl IntoIterator<Item = Line<'a>>,
    ) -> Result<Decoded, ArrowError> {
        self.decode_as(lines, |_, line| check(line.bytes))
    }

    /// Decodes `records` of the log into one batch: each is a line of JSON, or Avro as
    /// [`crate::avro`] frames it.
    ///
    /// # Errors
    /// As [`Decoder::decode`], or if `writers` says nothing about the schema of a record.
    pub fn decode_records<'a>(
        &self,
        records: impl IntoIterator<Item = Line<'a>, IntoIter: Clone>,
        writers: &Writers,
    ) -> Result<Decoded, ArrowError> {
        let records = records.into_iter();
        let avro = records::read(records.clone().map(|record| record.bytes), writers)?;
        self.decode_as(records, |index, record| {
            check_one(&avro, index, record.bytes)
        })
    }

    fn decode_as<'a, 'b>(
        &self,
        lines: impl IntoIterator<Item = Line<'a>>,
        read: impl Fn(usize, &Line<'a>) -> Result<Play<'b>, String>,
    ) -> Result<Decoded, ArrowError> {
        let lines = lines.into_iter();
        let mut columns = Columns::with_capacity(lines.size_hint().0);
        let mut rejected = Vec::new();
        for (index, line) in lines.enumerate() {
            match read(index, &line) {
                Ok(play) => columns.push(&line, &play),
                Err(reason) => rejected.push(Rejected { index, reason }),
            }
        }
        Ok(Decoded {
            events: columns.finish(self.partition)?,
            rejected,
        })
    }
}

/// Checks one line and answers the owner, which is the log key.
///
/// # Errors
/// The reason for which the line is not taken.
pub fn check_line(bytes: &[u8]) -> Result<i64, String> {
    check(bytes).map(|play| play.raw.owner_id)
}

/// Checks records, which are lines or Avro as [`crate::avro`] frames it, and answers the owner of each.
/// For one that is not taken it is the reason.
///
/// # Errors
/// If `writers` says nothing about the schema of a record.
pub fn check_records<'a>(
    records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    writers: &Writers,
) -> Result<Vec<Result<i64, String>>, ArrowError> {
    let records = records.into_iter();
    let avro = records::read(records.clone(), writers)?;
    let checked = records.enumerate().map(|(index, bytes)| {
        let play = check_one(&avro, index, bytes);
        play.map(|play| play.raw.owner_id)
    });
    Ok(checked.collect())
}

/// A record that is Avro, or else a line.
fn check_one<'a>(
    avro: &'a records::Plays,
    index: usize,
    bytes: &'a [u8],
) -> Result<Play<'a>, String> {
    match avro.play(index) {
        Some(play) => play.and_then(checked).map_err(line::clip),
        None => check(bytes),
    }
}

/// A play whose every field was checked.
struct Play<'a> {
    raw: RawPlay<'a>,
    at_us: i64,
    amount: i64,
}

fn check(bytes: &[u8]) -> Result<Play<'_>, String> {
    let raw = line::object(bytes, EXPECTED);
    raw.and_then(checked).map_err(line::clip)
}

fn checked(raw: RawPlay<'_>) -> Result<Play<'_>, String> {
    let id = &raw.event_id.0;
    if id.is_empty() || id.len() > EVENT_ID_BYTES_MAX {
        return Err(format!(
            "event_id: has {} bytes; 1 to {EVENT_ID_BYTES_MAX} are expected",
            id.len()
        ));
    }
    line::check_text("event_id", id)?;
    if let Some(Text(country)) = &raw.country {
        line::check_country(country)?;
    }
    if let Some(Text(referrer)) = &raw.referrer {
        if referrer.len() > REFERRER_BYTES_MAX {
            return Err(format!(
                "referrer: has {} bytes; at most {REFERRER_BYTES_MAX} are taken",
                referrer.len()
            ));
        }
        line::check_text("referrer", referrer)?;
    }
    if !matches!(&*raw.kind.0, "play" | "download") {
        return Err(format!(
            "kind: {:?} is neither \"play\" nor \"download\"",
            raw.kind.0
        ));
    }
    let amount = raw.amount.unwrap_or(1);
    if !(-AMOUNT_MAX..=AMOUNT_MAX).contains(&amount) {
        return Err(format!(
            "amount: {amount} is not within ±{AMOUNT_MAX}; split it into several events"
        ));
    }
    let at_us = match &raw.at {
        RawAt::Text(Text(text)) => line::instant_us("at", text)?,
        RawAt::Micros(at_us) => {
            line::check_instant_us("at", *at_us)?;
            *at_us
        }
    };
    Ok(Play { raw, at_us, amount })
}

/// The columns while they grow.
struct Columns {
    offset: Vec<i64>,
    logged_at: Vec<i64>,
    event_id: StringBuilder,
    track_id: Vec<i64>,
    owner_id: Vec<i64>,
    listener_id: Int64Builder,
    country: StringBuilder,
    referrer: StringBuilder,
    app_id: Int64Builder,
    kind: StringBuilder,
    at: Vec<i64>,
    amount: Vec<i64>,
}

impl Columns {
    fn with_capacity(rows: usize) -> Self {
        Self {
            offset: Vec::with_capacity(rows),
            logged_at: Vec::with_capacity(rows),
            event_id: StringBuilder::with_capacity(rows, rows * 24),
            track_id: Vec::with_capacity(rows),
            owner_id: Vec::with_capacity(rows),
            listener_id: Int64Builder::with_capacity(rows),
            country: StringBuilder::with_capacity(rows, rows * 2),
            referrer: StringBuilder::with_capacity(rows, rows * 8),
            app_id: Int64Builder::with_capacity(rows),
            kind: StringBuilder::with_capacity(rows, rows * 6),
            at: Vec::with_capacity(rows),
            amount: Vec::with_capacity(rows),
        }
    }

    fn push(&mut self, line: &Line<'_>, play: &Play<'_>) {
        let raw = &play.raw;
        self.offset.push(line.offset);
        self.logged_at.push(line.logged_at_ms);
        self.event_id.append_value(&raw.event_id.0);
        self.track_id.push(raw.track_id);
        self.owner_id.push(raw.owner_id);
        self.listener_id.append_option(raw.listener_id);
        self.country
            .append_option(raw.country.as_ref().map(|t| &t.0));
        self.referrer
            .append_option(raw.referrer.as_ref().map(|t| &t.0));
        self.app_id.append_option(raw.app_id);
        self.kind.append_value(&raw.kind.0);
        self.at.push(play.at_us);
        self.amount.push(play.amount);
    }

    fn finish(mut self, partition: i32) -> Result<RecordBatch, ArrowError> {
        let rows = self.offset.len();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![partition; rows])),
            Arc::new(Int64Array::from(self.offset)),
            Arc::new(TimestampMillisecondArray::from(self.logged_at).with_timezone("UTC")),
            Arc::new(self.event_id.finish()),
            Arc::new(Int64Array::from(self.track_id)),
            Arc::new(Int64Array::from(self.owner_id)),
            Arc::new(self.listener_id.finish()),
            Arc::new(self.country.finish()),
            Arc::new(self.referrer.finish()),
            Arc::new(self.app_id.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(TimestampMicrosecondArray::from(self.at).with_timezone("UTC")),
            Arc::new(Int64Array::from(self.amount)),
        ];
        RecordBatch::try_new(schema(), columns)
    }
}

#[cfg(test)]
use {
    super::{AT_SECONDS, LINE_BYTES_MAX},
    crate::line::REASON_CHARS_MAX,
    jiff::Timestamp,
};

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
