//! Conversion of column values and times to JSON.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType, TimestampMillisecondType};
use jiff::Timestamp;
use serde_json::Value;

use crate::key::KeyValue;

/// Converts a value of a key column. Instants are in UTC.
#[must_use]
pub fn from_column(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::Null;
    }
    if let Some(ints) = column.as_primitive_opt::<Int64Type>() {
        return ints.value(row).into();
    }
    if let Some(texts) = column.as_string_opt::<i32>() {
        return texts.value(row).into();
    }
    let micros = column
        .as_primitive_opt::<TimestampMicrosecondType>()
        .map(|instants| instants.value(row));
    let millis = || {
        let millis = column.as_primitive_opt::<TimestampMillisecondType>()?;
        millis.value(row).checked_mul(1000)
    };
    let instant = micros
        .or_else(millis)
        .and_then(|micros| Timestamp::from_microsecond(micros).ok());
    instant.map_or(Value::Null, |instant| instant.to_string().into())
}

/// Converts a value of a key, as [`from_column`] does.
#[must_use]
pub fn from_key(value: &KeyValue) -> Value {
    let instant = match value {
        KeyValue::Null => return Value::Null,
        KeyValue::Int(n) => return (*n).into(),
        KeyValue::Text(text) => return text.as_str().into(),
        KeyValue::Time(seconds) => Timestamp::from_second(*seconds),
        KeyValue::Instant(micros) => Timestamp::from_microsecond(*micros),
    };
    instant.map_or(Value::Null, |instant| instant.to_string().into())
}

/// Formats milliseconds since the Unix epoch as RFC 3339 in UTC.
#[must_use]
pub fn format_timestamp_ms(at_ms: i64) -> String {
    Timestamp::from_millisecond(at_ms).map_or_else(|_| at_ms.to_string(), |time| time.to_string())
}
