//! Parquet rows as JSON lines, so that they are checked as lines are.
//!
//! Columns are found by name; those that a play does not have are passed over. A column of a wrong
//! type is refused before anything is taken; a value that is wrong makes its row a dead letter.

use std::fs::File;

use anyhow::Context;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Int64Type, Schema, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use jiff::Timestamp;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};

use super::chunk::Chunk;

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Int,
    Text,
    Time,
}

/// The fields of a play, and whether a file must have them.
const FIELDS: [(&str, Kind, bool); 10] = [
    ("event_id", Kind::Text, true),
    ("track_id", Kind::Int, true),
    ("owner_id", Kind::Int, true),
    ("listener_id", Kind::Int, false),
    ("country", Kind::Text, false),
    ("referrer", Kind::Text, false),
    ("app_id", Kind::Int, false),
    ("kind", Kind::Text, true),
    ("at", Kind::Time, true),
    ("amount", Kind::Int, false),
];

/// Reads all rows and hands them on, until `hand_on` no longer takes them.
pub(super) fn read(file: File, hand_on: &mut impl FnMut(Chunk) -> bool) -> anyhow::Result<()> {
    let size = file.metadata()?.len();
    if size == 0 {
        return Ok(());
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .context("is no Parquet file; is it --format jsonl?")?;
    check(builder.schema())?;
    let rows_all = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
    let mut row = 0;
    for batch in builder.with_batch_size(8_192).build()? {
        let batch = batch.context("reading rows")?;
        let columns = columns(&batch)?;
        let mut chunk = Chunk::default();
        for index in 0..batch.num_rows() {
            row += 1;
            chunk.push(row, |bytes| {
                // Writing into memory does not fail.
                drop(serde_json::to_writer(bytes, &object(&columns, index)));
            });
            if chunk.is_full()
                && !hand_on(std::mem::take(&mut chunk).at(place(size, row, rows_all)))
            {
                return Ok(());
            }
        }
        if !chunk.is_empty() && !hand_on(chunk.at(place(size, row, rows_all))) {
            return Ok(());
        }
    }
    Ok(())
}

/// How far into the file a row is, in bytes, as far as progress needs it.
fn place(size: u64, row: u64, rows: u64) -> u64 {
    let place = u128::from(size) * u128::from(row) / u128::from(rows.max(1));
    u64::try_from(place).unwrap_or(size)
}

/// Whether the file has the columns that a play needs, with types that can hold them.
fn check(schema: &Schema) -> anyhow::Result<()> {
    for (name, kind, needed) in FIELDS {
        let Some((_, field)) = schema.column_with_name(name) else {
            anyhow::ensure!(
                !needed,
                "there is no column {name}; nothing was taken of this file. Columns of plays are {}",
                FIELDS.map(|(name, ..)| name).join(", ")
            );
            continue;
        };
        let data_type = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let (fits, expected) = match kind {
            Kind::Int => (
                data_type.is_integer() || *data_type == DataType::Null,
                "an integer",
            ),
            Kind::Text => (is_text(data_type) || *data_type == DataType::Null, "text"),
            Kind::Time => (
                is_text(data_type) || matches!(data_type, DataType::Timestamp(..)),
                "a timestamp, or text as RFC 3339",
            ),
        };
        anyhow::ensure!(
            fits,
            "column {name} is {data_type}, not {expected}; nothing was taken of this file"
        );
    }
    Ok(())
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// A column whose values can be read one by one.
enum Column {
    Int(ArrayRef),
    Unsigned(ArrayRef),
    Text(StringArray),
    Micros(ArrayRef),
}

fn columns(batch: &RecordBatch) -> anyhow::Result<Vec<(&'static str, Column)>> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let mut columns = Vec::with_capacity(FIELDS.len());
    for (name, kind, _) in FIELDS {
        let Some(array) = batch.column_by_name(name) else {
            continue;
        };
        let cast = |to: &DataType| {
            cast_with_options(array, to, &options).with_context(|| format!("column {name}"))
        };
        let column = match (kind, array.data_type()) {
            (Kind::Int, DataType::UInt64) => Column::Unsigned(cast(&DataType::UInt64)?),
            (Kind::Int, _) => Column::Int(cast(&DataType::Int64)?),
            (Kind::Time, DataType::Timestamp(_, zone)) => Column::Micros(cast(
                // A timestamp without a zone is taken as UTC.
                &DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
            )?),
            (Kind::Text | Kind::Time, _) => {
                Column::Text(cast(&DataType::Utf8)?.as_string::<i32>().clone())
            }
        };
        columns.push((name, column));
    }
    Ok(columns)
}

/// A row as the JSON object that a line holds. What is null is left out.
fn object(columns: &[(&'static str, Column)], row: usize) -> Map<String, Value> {
    columns
        .iter()
        .filter_map(|(name, column)| Some(((*name).to_owned(), column.value(row)?)))
        .collect()
}

impl Column {
    fn value(&self, row: usize) -> Option<Value> {
        let is_null = match self {
            Self::Int(array) | Self::Unsigned(array) | Self::Micros(array) => array.is_null(row),
            Self::Text(array) => array.is_null(row),
        };
        if is_null {
            return None;
        }
        Some(match self {
            Self::Int(array) => array.as_primitive::<Int64Type>().value(row).into(),
            Self::Unsigned(array) => array.as_primitive::<UInt64Type>().value(row).into(),
            Self::Text(array) => array.value(row).into(),
            Self::Micros(array) => {
                let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
                match Timestamp::from_microsecond(micros) {
                    Ok(instant) => instant.to_string().into(),
                    // No instant: the check of the line says so.
                    Err(_) => format!("{micros} µs").into(),
                }
            }
        })
    }
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
