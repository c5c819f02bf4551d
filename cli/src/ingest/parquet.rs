//! Parquet rows as JSON lines, so that they are checked as lines are.
//!
//! Columns are found by name; those that the source does not have are passed over. A column of a
//! wrong type is refused before anything is taken; a value that is wrong makes its row a dead
//! letter.

use std::fs::File;

use anyhow::Context;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Float64Type, Int64Type, Schema, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use jiff::Timestamp;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::source::Source;
use serde_json::{Map, Value};

use super::chunk::Chunk;
use super::fields::{Kind, fields};

/// Reads all rows and hands them on, until `hand_on` no longer takes them.
pub(super) fn read(
    file: File,
    source: Source,
    hand_on: &mut impl FnMut(Chunk) -> bool,
) -> anyhow::Result<()> {
    let size = file.metadata()?.len();
    if size == 0 {
        return Ok(());
    }
    let builder = ParquetRecordBatchReaderBuilder::try_new(file)
        .context("is no Parquet file; is it --format jsonl?")?;
    check(builder.schema(), source)?;
    let rows_all = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
    let mut row = 0;
    let mut chunk = Chunk::new(source);
    for batch in builder.with_batch_size(8_192).build()? {
        let read = batch.context("reading rows").and_then(|batch| {
            let columns = columns(&batch, source)?;
            Ok((batch.num_rows(), columns))
        });
        let (rows, columns) = match read {
            Ok(read) => read,
            Err(error) => {
                // What is before it can be taken.
                if !chunk.is_empty() {
                    hand_on(chunk.at(place(size, row, rows_all)));
                }
                return Err(error);
            }
        };
        for index in 0..rows {
            row += 1;
            chunk.push(row, |bytes| {
                // Writing into memory does not fail.
                drop(serde_json::to_writer(bytes, &object(&columns, index)));
            });
            if chunk.is_full() && !hand_on(chunk.take().at(place(size, row, rows_all))) {
                return Ok(());
            }
        }
    }
    if !chunk.is_empty() {
        hand_on(chunk.at(size));
    }
    Ok(())
}

/// How far into the file a row is, in bytes, as far as progress needs it.
fn place(size: u64, row: u64, rows: u64) -> u64 {
    let place = u128::from(size) * u128::from(row) / u128::from(rows.max(1));
    u64::try_from(place).unwrap_or(size)
}

/// Whether the file has the columns that a row needs, with types that can hold them.
fn check(schema: &Schema, source: Source) -> anyhow::Result<()> {
    for field in fields(source) {
        let name = field.name;
        let Some((_, column)) = schema.column_with_name(name) else {
            anyhow::ensure!(
                !field.is_needed,
                "there is no column {name}; nothing was taken of this file. Columns of {source} are {}",
                names(source)
            );
            continue;
        };
        let data_type = match column.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let (fits, expected) = match field.kind {
            Kind::Int => (data_type.is_integer(), "an integer"),
            Kind::Number => (data_type.is_numeric(), "a number"),
            Kind::Text => (is_text(data_type), "text"),
            Kind::Time => (
                is_text(data_type) || matches!(data_type, DataType::Timestamp(..)),
                "a timestamp, or text as RFC 3339",
            ),
            Kind::Bool => (*data_type == DataType::Boolean, "a boolean"),
            Kind::TextOrInt => (
                is_text(data_type) || data_type.is_integer(),
                "text or an integer",
            ),
        };
        anyhow::ensure!(
            // A column without any value may be of no type.
            fits || *data_type == DataType::Null,
            "column {name} is {data_type}, not {expected}; nothing was taken of this file"
        );
    }
    Ok(())
}

fn names(source: Source) -> String {
    let names: Vec<&str> = fields(source).iter().map(|field| field.name).collect();
    names.join(", ")
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
    Number(ArrayRef),
    Text(StringArray),
    Micros(ArrayRef),
    Bool(BooleanArray),
}

fn columns(batch: &RecordBatch, source: Source) -> anyhow::Result<Vec<(&'static str, Column)>> {
    fields(source)
        .iter()
        .filter_map(|field| {
            let array = batch.column_by_name(field.name)?;
            let column =
                column(array, field.kind).with_context(|| format!("column {}", field.name));
            Some(column.map(|column| (field.name, column)))
        })
        .collect()
}

fn column(array: &ArrayRef, kind: Kind) -> anyhow::Result<Column> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let cast = |to: &DataType| cast_with_options(array, to, &options);
    let data_type = match array.data_type() {
        DataType::Dictionary(_, values) => values.as_ref(),
        other => other,
    };
    Ok(match (kind, data_type) {
        (Kind::Int | Kind::TextOrInt, DataType::UInt64) => {
            Column::Unsigned(cast(&DataType::UInt64)?)
        }
        (Kind::TextOrInt, other) if other.is_integer() => Column::Int(cast(&DataType::Int64)?),
        (Kind::Int, _) => Column::Int(cast(&DataType::Int64)?),
        (Kind::Number, _) => Column::Number(cast(&DataType::Float64)?),
        (Kind::Bool, _) => Column::Bool(cast(&DataType::Boolean)?.as_boolean().clone()),
        (Kind::Time, DataType::Timestamp(_, zone)) => Column::Micros(cast(
            // A timestamp without a zone is taken as UTC.
            &DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        )?),
        (Kind::Text | Kind::Time | Kind::TextOrInt, _) => {
            Column::Text(cast(&DataType::Utf8)?.as_string::<i32>().clone())
        }
    })
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
        let array: &dyn Array = match self {
            Self::Int(array) | Self::Unsigned(array) => array,
            Self::Number(array) | Self::Micros(array) => array,
            Self::Text(array) => array,
            Self::Bool(array) => array,
        };
        if array.is_null(row) {
            return None;
        }
        Some(match self {
            Self::Int(array) => array.as_primitive::<Int64Type>().value(row).into(),
            Self::Unsigned(array) => array.as_primitive::<UInt64Type>().value(row).into(),
            Self::Number(array) => {
                let number = array.as_primitive::<Float64Type>().value(row);
                if number.is_finite() {
                    number.into()
                } else {
                    // No number of JSON: the check of the line says so.
                    number.to_string().into()
                }
            }
            Self::Text(array) => array.value(row).into(),
            Self::Bool(array) => array.value(row).into(),
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
