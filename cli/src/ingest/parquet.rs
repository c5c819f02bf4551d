//! Converts Parquet rows to JSON lines, which are checked like other lines.
//!
//! Columns are matched by name; unknown ones are not read. A column of a wrong type rejects the
//! file before any row is ingested. An invalid value makes its row a dead letter.

use std::fs::File;
use std::io::Write as _;

use anyhow::Context;
use arrow::datatypes::{DataType, Schema};
use schemas::line::{format_instant_us, out_of_range_reason};
use schemas::source::Source;
use stores::parquet_values::{
    BATCH_ROWS, ParquetInput, ParquetRows, ParquetValue, floor_to_micros,
};

use super::chunk::Chunk;
use super::fields::{Field, FieldKind, fields};

/// Times after and before all valid ones.
const LATEST: &str = "9999-12-31T23:59:59.999999Z";
const EARLIEST: &str = "0000-01-01T00:00:00Z";

/// Reads all rows and passes chunks to `send`, until `send` returns false.
pub(super) fn read(
    file: File,
    source: Source,
    send: &mut impl FnMut(Chunk) -> bool,
) -> anyhow::Result<()> {
    let size_bytes = file.metadata()?.len();
    if size_bytes == 0 {
        return Ok(());
    }
    let input = ParquetInput::open(file).context("is not a Parquet file; try --format jsonl")?;
    check_columns(input.schema(), source)?;
    let row_count = input.rows();
    let is_present = |field: &&Field| input.schema().column_with_name(field.name).is_some();
    let fields: Vec<Field> = fields(source).iter().filter(is_present).copied().collect();
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let mut row = 0;
    let mut chunk = Chunk::new(source);
    for rows in input.read(&names)? {
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                // Earlier rows can be ingested.
                if !chunk.is_empty() {
                    send(chunk.with_bytes_read(estimate_position(size_bytes, row, row_count)));
                }
                let last = row_count.min(row + BATCH_ROWS as u64);
                return Err(error).context(format!("cannot read rows {} to {last}", row + 1));
            }
        };
        for index in 0..rows.count() {
            row += 1;
            if let Err(reason) = chunk.push(row, |line| write_line(line, &fields, &rows, index)) {
                chunk.reject_last(reason);
            }
            if chunk.is_full()
                && !send(
                    chunk
                        .take()
                        .with_bytes_read(estimate_position(size_bytes, row, row_count)),
                )
            {
                return Ok(());
            }
        }
    }
    if !chunk.is_empty() {
        send(chunk.with_bytes_read(size_bytes));
    }
    Ok(())
}

/// Estimates the position of a row in the file, in bytes, for the progress bar.
fn estimate_position(size_bytes: u64, row: u64, row_count: u64) -> u64 {
    let position = u128::from(size_bytes) * u128::from(row) / u128::from(row_count.max(1));
    u64::try_from(position).unwrap_or(size_bytes)
}

/// Checks that the file has the required columns with suitable types.
fn check_columns(schema: &Schema, source: Source) -> anyhow::Result<()> {
    for field in fields(source) {
        let name = field.name;
        let Some((_, column)) = schema.column_with_name(name) else {
            anyhow::ensure!(
                !field.is_required,
                "column {name} is missing; nothing of this file was ingested. Columns of {source}: {}",
                format_column_names(source)
            );
            continue;
        };
        let data_type = match column.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let (is_suitable, expected) = match field.kind {
            FieldKind::Int => (data_type.is_integer(), "an integer"),
            FieldKind::Number => (data_type.is_numeric(), "a number"),
            FieldKind::Text => (is_text(data_type), "text"),
            FieldKind::Time | FieldKind::UnboundedTime => (
                is_text(data_type) || matches!(data_type, DataType::Timestamp(..)),
                "a timestamp, or text as RFC 3339",
            ),
            FieldKind::Bool => (*data_type == DataType::Boolean, "a boolean"),
            FieldKind::TextOrInt => (
                is_text(data_type) || data_type.is_integer(),
                "text or an integer",
            ),
        };
        anyhow::ensure!(
            // A column without values may have the null type.
            is_suitable || *data_type == DataType::Null,
            "column {name} is {data_type}, not {expected}; nothing of this file was ingested"
        );
    }
    Ok(())
}

fn format_column_names(source: Source) -> String {
    let names: Vec<&str> = fields(source).iter().map(|field| field.name).collect();
    names.join(", ")
}

/// True if a column may contain texts. Impala, Hive and older Spark versions write them as bytes
/// without annotation.
fn is_text(data_type: &DataType) -> bool {
    data_type.is_string()
        || matches!(
            data_type,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        )
}

/// Appends a row as a JSON object without null fields. A value that JSON cannot represent is
/// written unchanged, and the error names it.
fn write_line(
    line: &mut Vec<u8>,
    fields: &[Field],
    rows: &ParquetRows,
    row: usize,
) -> Result<(), String> {
    let mut outcome = Ok(());
    line.push(b'{');
    let mut separator = "";
    for (column, field) in fields.iter().enumerate() {
        let value = rows.value(column, row);
        if value == ParquetValue::Null {
            continue;
        }
        // Writing to memory does not fail.
        drop(write!(line, "{separator}\"{}\":", field.name));
        separator = ",";
        outcome = outcome.and(write_value(line, *field, &value));
    }
    line.push(b'}');
    outcome
}

fn write_value(line: &mut Vec<u8>, field: Field, value: &ParquetValue<'_>) -> Result<(), String> {
    let mut json = |value: serde_json::Value| {
        // Writing to memory does not fail.
        drop(serde_json::to_writer(&mut *line, &value));
    };
    match value {
        ParquetValue::Null => json(serde_json::Value::Null),
        ParquetValue::Bool(value) => json((*value).into()),
        ParquetValue::Int(number) => json((*number).into()),
        ParquetValue::Unsigned(number) => json((*number).into()),
        ParquetValue::Number(number) => json(to_json_number(*number)),
        // Rounds only once: the digits identify the nearest number.
        ParquetValue::Decimal(digits) => json(
            digits
                .parse()
                .map_or(digits.as_str().into(), to_json_number),
        ),
        ParquetValue::Text(text) => json((*text).into()),
        ParquetValue::Instant(nanos) => {
            let time_us = floor_to_micros(*nanos);
            match (format_instant_us(time_us), field.kind) {
                (Some(text), _) => json(text.into()),
                (None, FieldKind::UnboundedTime) if time_us > 0 => json(LATEST.into()),
                (None, FieldKind::UnboundedTime) => json(EARLIEST.into()),
                (None, _) => {
                    json(format!("{time_us} µs since 1970").into());
                    return Err(out_of_range_reason(field.name, time_us));
                }
            }
        }
        ParquetValue::Bytes(bytes) => {
            write_bytes(line, bytes);
            let valid_bytes = bytes
                .utf8_chunks()
                .next()
                .map_or(0, |part| part.valid().len());
            return Err(format!(
                "{}: the text is not UTF-8 from byte {} on",
                field.name,
                valid_bytes + 1
            ));
        }
        ParquetValue::Other(text) => json(text.as_str().into()),
    }
    Ok(())
}

fn to_json_number(number: f64) -> serde_json::Value {
    if number.is_finite() {
        number.into()
    } else {
        // JSON has no such number, so the check rejects the line.
        number.to_string().into()
    }
}

/// Appends bytes that are not UTF-8 as a text, so that the dead letter contains them.
fn write_bytes(line: &mut Vec<u8>, bytes: &[u8]) {
    line.push(b'"');
    for byte in bytes {
        match byte {
            b'"' | b'\\' => line.extend([b'\\', *byte]),
            0..0x20 => {
                // Writing to memory does not fail.
                drop(write!(line, "\\u{byte:04x}"));
            }
            _ => line.push(*byte),
        }
    }
    line.push(b'"');
}

#[cfg(test)]
#[path = "parquet_tests.rs"]
mod tests;
