//! Decodes JSON lines and Avro records of plays to Arrow columns. Each input is accepted as a whole
//! or rejected with a reason. The same rules apply to both formats.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, Int64Builder, RecordBatch,
    StringBuilder, TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;

use super::raw::{RawPlay, RawTime};
use super::records;
use super::{AMOUNT_MAX, EVENT_ID_BYTES_MAX, REFERRER_BYTES_MAX, schema};
use crate::avro::WriterSchemas;
use crate::line::{self, Text};

/// The advice in the reason for a line that is not an object.
const NOT_AN_OBJECT_ADVICE: &str = r#"write one event a line, such as {"event_id": …}"#;

/// A line or Avro record with its position in the log, which is zero before it is appended.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// The record's offset.
    pub offset: i64,
    /// When the record was logged, in milliseconds since the Unix epoch.
    pub logged_at_ms: i64,
    /// The bytes, without a line end.
    pub bytes: &'a [u8],
}

/// A rejected line or record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedInput {
    /// The index among the inputs of the call.
    pub index: usize,
    /// The field, its fault, and the accepted values.
    pub reason: String,
}

/// The result of decoding lines or records of plays.
#[derive(Debug)]
pub struct DecodedPlays {
    /// The accepted events in input order, with the columns of [`super::schema`].
    pub events: RecordBatch,
    /// The rejected inputs.
    pub rejected: Vec<RejectedInput>,
}

impl DecodedPlays {
    /// Removes the events at these offsets and returns their number.
    ///
    /// # Errors
    /// Arrow cannot filter the batch.
    pub fn exclude_offsets(&mut self, offsets: &BTreeSet<i64>) -> Result<usize, ArrowError> {
        let rows_before = self.events.num_rows();
        let column = self.events.column_by_name("offset");
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        if let Some(column) = column.filter(|_| !offsets.is_empty()) {
            let values = column.values().iter();
            let filter: BooleanArray = values
                .map(|offset| Some(!offsets.contains(offset)))
                .collect();
            self.events = filter_record_batch(&self.events, &filter)?;
        }
        Ok(rows_before - self.events.num_rows())
    }
}

/// A decoder of the records of one log partition.
#[derive(Debug)]
pub struct Decoder {
    partition: i32,
}

impl Decoder {
    /// Creates a decoder for a log partition.
    #[must_use]
    pub fn new(partition: u32) -> Self {
        Self {
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
        }
    }

    /// Decodes `lines` into one batch.
    ///
    /// # Errors
    /// Arrow cannot build the batch, for example for more than 2 GiB of text in one column. Decode
    /// fewer lines at a time.
    pub fn decode<'a>(
        &self,
        lines: impl IntoIterator<Item = Line<'a>>,
    ) -> Result<DecodedPlays, ArrowError> {
        self.decode_with(lines, |_, line| parse_line(line.bytes))
    }

    /// Decodes `records` of the log into one batch. Each is a JSON line or framed Avro
    /// ([`crate::avro`]).
    ///
    /// # Errors
    /// As [`Decoder::decode`], or `writers` lacks the schema of a record.
    pub fn decode_records<'a>(
        &self,
        records: impl IntoIterator<Item = Line<'a>, IntoIter: Clone>,
        writers: &WriterSchemas,
    ) -> Result<DecodedPlays, ArrowError> {
        let records = records.into_iter();
        let avro = records::decode_avro(records.clone().map(|record| record.bytes), writers)?;
        self.decode_with(records, |index, record| {
            parse_record(&avro, index, record.bytes)
        })
    }

    fn decode_with<'a, 'b>(
        &self,
        lines: impl IntoIterator<Item = Line<'a>>,
        parse: impl Fn(usize, &Line<'a>) -> Result<Play<'b>, String>,
    ) -> Result<DecodedPlays, ArrowError> {
        let lines = lines.into_iter();
        let mut columns = ColumnsBuilder::with_capacity(lines.size_hint().0);
        let mut rejected = Vec::new();
        for (index, line) in lines.enumerate() {
            match parse(index, &line) {
                Ok(play) => columns.push(&line, &play),
                Err(reason) => rejected.push(RejectedInput { index, reason }),
            }
        }
        Ok(DecodedPlays {
            events: columns.finish(self.partition)?,
            rejected,
        })
    }
}

/// Validates a line and returns the owner, which is the log key.
///
/// # Errors
/// The reason for the rejection.
pub fn check_line(bytes: &[u8]) -> Result<i64, String> {
    parse_line(bytes).map(|play| play.raw.owner_id)
}

/// Validates records, which are JSON lines or framed Avro ([`crate::avro`]). Returns for each the
/// owner, or the reason for its rejection.
///
/// # Errors
/// `writers` lacks the schema of a record.
pub fn check_records<'a>(
    records: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    writers: &WriterSchemas,
) -> Result<Vec<Result<i64, String>>, ArrowError> {
    let records = records.into_iter();
    let avro = records::decode_avro(records.clone(), writers)?;
    let checked = records.enumerate().map(|(index, bytes)| {
        let play = parse_record(&avro, index, bytes);
        play.map(|play| play.raw.owner_id)
    });
    Ok(checked.collect())
}

/// Parses a record, which is Avro or else a JSON line.
fn parse_record<'a>(
    avro: &'a records::AvroPlays,
    index: usize,
    bytes: &'a [u8],
) -> Result<Play<'a>, String> {
    match avro.play(index) {
        Some(play) => play.and_then(validate).map_err(line::clip_reason),
        None => parse_line(bytes),
    }
}

/// A play with validated fields.
struct Play<'a> {
    raw: RawPlay<'a>,
    at_us: i64,
    amount: i64,
}

fn parse_line(bytes: &[u8]) -> Result<Play<'_>, String> {
    let raw = line::parse_object(bytes, NOT_AN_OBJECT_ADVICE);
    raw.and_then(validate).map_err(line::clip_reason)
}

fn validate(raw: RawPlay<'_>) -> Result<Play<'_>, String> {
    let id = &raw.event_id.0;
    if id.is_empty() || id.len() > EVENT_ID_BYTES_MAX {
        return Err(format!(
            "event_id: has {} bytes; 1 to {EVENT_ID_BYTES_MAX} are expected",
            id.len()
        ));
    }
    line::check_no_nul("event_id", id)?;
    if let Some(Text(country)) = &raw.country {
        line::check_country(country)?;
    }
    if let Some(Text(referrer)) = &raw.referrer {
        if referrer.len() > REFERRER_BYTES_MAX {
            return Err(format!(
                "referrer: has {} bytes; at most {REFERRER_BYTES_MAX} are accepted",
                referrer.len()
            ));
        }
        line::check_no_nul("referrer", referrer)?;
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
        RawTime::Text(Text(text)) => line::parse_instant_us("at", text)?,
        RawTime::Micros(at_us) => {
            line::check_instant_us("at", *at_us)?;
            *at_us
        }
    };
    Ok(Play { raw, at_us, amount })
}

/// A builder of the columns of plays.
struct ColumnsBuilder {
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

impl ColumnsBuilder {
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
