//! The order-preserving encoding of keys, shared by writers and readers.
//!
//! A key is a list of columns:
//!
//! - Integers and times have eight bytes, big-endian, with the sign bit flipped.
//! - Text is escaped and terminated, so that no text is a prefix of another one.
//! - A nullable column begins with a byte that says whether it is null.
//!
//! So bytes sort like values, column by column, nulls first. A shorter list of values encodes to a
//! prefix, so a range of keys is a range of bytes in every store. The encoding is stored: a change
//! requires a new version of every view.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, Int64Array, Int64Builder, StringArray, StringBuilder,
    TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Field, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
};
use serde::{Deserialize, Serialize};

/// The type of a key column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// A 64-bit integer.
    Int,
    /// UTF-8 text.
    Text,
    /// An instant on a full second, such as the start of a bucket.
    Time,
    /// An instant in microseconds.
    Instant,
}

impl KeyKind {
    /// Returns the Arrow type of the column.
    #[must_use]
    pub fn data_type(self) -> DataType {
        match self {
            Self::Int => DataType::Int64,
            Self::Text => DataType::Utf8,
            Self::Time => DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            Self::Instant => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        }
    }

    /// Returns the kind of a column with an Arrow type, if the type is supported.
    #[must_use]
    pub fn from_data_type(data_type: &DataType) -> Option<Self> {
        [Self::Int, Self::Text, Self::Time, Self::Instant]
            .into_iter()
            .find(|kind| kind.data_type() == *data_type)
    }
}

/// One column of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyColumn {
    /// The column's name.
    pub name: String,
    /// The type.
    pub kind: KeyKind,
    /// True if the column may be null.
    pub nullable: bool,
}

impl KeyColumn {
    /// Returns the Arrow field of the column.
    #[must_use]
    pub fn field(&self) -> Field {
        Field::new(&self.name, self.kind.data_type(), self.nullable)
    }
}

/// One value of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyValue {
    /// No value, only for nullable columns.
    Null,
    /// An integer.
    Int(i64),
    /// Text.
    Text(String),
    /// An instant, in seconds since the Unix epoch.
    Time(i64),
    /// An instant, in microseconds since the Unix epoch.
    Instant(i64),
}

/// The columns of a key, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeyShape(pub Vec<KeyColumn>);

/// The reason why a key does not match its shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The number of columns differs.
    #[error("the key has {actual} columns instead of {expected}")]
    Columns {
        /// The number of columns in the shape.
        expected: usize,
        /// The actual number of columns.
        actual: usize,
    },
    /// A column has another type.
    #[error("key column {column} has the type {actual} instead of {expected}")]
    Type {
        /// The column's name.
        column: String,
        /// The type in the shape.
        expected: String,
        /// The actual type.
        actual: String,
    },
    /// A null in a column that is not nullable.
    #[error("key column {0} must not be null")]
    Null(String),
    /// An instant between two seconds.
    #[error("key column {column} has {millis} ms, which is not on a full second")]
    Fraction {
        /// The column's name.
        column: String,
        /// Milliseconds since the Unix epoch.
        millis: i64,
    },
    /// Stored bytes that are not a key of this shape.
    #[error(
        "a stored key does not decode at column {0}: the store is damaged, or another version wrote it"
    )]
    Damaged(String),
    /// The keys exceed the capacity of an array.
    #[error("the keys have more than 2 GiB: encode fewer rows at a time")]
    TooLarge,
}

const NULL: u8 = 0;
const PRESENT: u8 = 1;
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];
const TEXT_END: [u8; 2] = [0, 1];

impl KeyShape {
    /// Returns the names of the columns in order, separated by commas.
    #[must_use]
    pub fn join_names(&self) -> String {
        let names: Vec<&str> = self.0.iter().map(|column| column.name.as_str()).collect();
        names.join(",")
    }

    /// Encodes the rows of `columns`, which have the order of the shape. A shape without columns
    /// has no number of rows: use [`KeyShape::encode_rows`].
    ///
    /// # Errors
    /// [`KeyError`] if number, types or values of the columns do not match the shape.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<BinaryArray, KeyError> {
        self.encode_rows(columns, columns.first().map_or(0, |array| array.len()))
    }

    /// Encodes `rows` rows of `columns`.
    ///
    /// # Errors
    /// As [`KeyShape::encode`].
    pub fn encode_rows(&self, columns: &[ArrayRef], rows: usize) -> Result<BinaryArray, KeyError> {
        if columns.len() != self.0.len() {
            return Err(KeyError::Columns {
                expected: self.0.len(),
                actual: columns.len(),
            });
        }
        let encoders = self
            .0
            .iter()
            .zip(columns)
            .map(|(column, array)| ColumnEncoder::new(column, array))
            .collect::<Result<Vec<_>, _>>()?;
        let mut keys = Vec::with_capacity(rows * 10 * columns.len());
        let mut ends = Vec::with_capacity(rows + 1);
        ends.push(0);
        for row in 0..rows {
            for encoder in &encoders {
                encoder.encode_row(row, &mut keys)?;
            }
            ends.push(i32::try_from(keys.len()).map_err(|_| KeyError::TooLarge)?);
        }
        // Long texts can double the capacity.
        if keys.capacity() / 2 > keys.len() {
            keys.shrink_to_fit();
        }
        let ends = OffsetBuffer::new(ends.into());
        Ok(BinaryArray::new(ends, keys.into(), None))
    }

    /// Encodes the values of the first columns: a whole key, or a prefix for a range.
    ///
    /// # Errors
    /// [`KeyError`] if a value does not fit its column, or there are more values than columns.
    pub fn encode_values(&self, values: &[KeyValue]) -> Result<Vec<u8>, KeyError> {
        if values.len() > self.0.len() {
            return Err(KeyError::Columns {
                expected: self.0.len(),
                actual: values.len(),
            });
        }
        let mut key = Vec::with_capacity(values.len() * 12);
        for (column, value) in self.0.iter().zip(values) {
            match (column.kind, value) {
                (_, KeyValue::Null) if column.nullable => key.push(NULL),
                (_, KeyValue::Null) => return Err(KeyError::Null(column.name.clone())),
                (KeyKind::Int, KeyValue::Int(n))
                | (KeyKind::Time, KeyValue::Time(n))
                | (KeyKind::Instant, KeyValue::Instant(n)) => {
                    write_present(column.nullable, &mut key);
                    write_int(*n, &mut key);
                }
                (KeyKind::Text, KeyValue::Text(text)) => {
                    write_present(column.nullable, &mut key);
                    write_text(text, &mut key);
                }
                (kind, value) => {
                    return Err(KeyError::Type {
                        column: column.name.clone(),
                        expected: format!("{kind:?}"),
                        actual: format!("{value:?}"),
                    });
                }
            }
        }
        Ok(key)
    }

    /// Decodes keys into columns, in the order of the shape.
    ///
    /// # Errors
    /// [`KeyError::Damaged`] if bytes are not a key of this shape.
    pub fn decode<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<ArrayRef>, KeyError> {
        let mut decoders: Vec<ColumnDecoder> = self.0.iter().map(ColumnDecoder::new).collect();
        for key in keys {
            let mut rest = key;
            for (column, decoder) in self.0.iter().zip(&mut decoders) {
                rest = decoder
                    .decode_next(column, rest)
                    .ok_or_else(|| KeyError::Damaged(column.name.clone()))?;
            }
            if !rest.is_empty() {
                return Err(KeyError::Damaged("end".to_owned()));
            }
        }
        Ok(decoders.into_iter().map(ColumnDecoder::finish).collect())
    }

    /// Decodes one key into its values.
    ///
    /// # Errors
    /// [`KeyError::Damaged`] if the bytes are not a key of this shape.
    pub fn decode_values(&self, key: &[u8]) -> Result<Vec<KeyValue>, KeyError> {
        let mut rest = key;
        let mut values = Vec::with_capacity(self.0.len());
        for column in &self.0 {
            let (value, after) =
                read_value(column, rest).ok_or_else(|| KeyError::Damaged(column.name.clone()))?;
            values.push(value);
            rest = after;
        }
        match rest {
            [] => Ok(values),
            _ => Err(KeyError::Damaged("end".to_owned())),
        }
    }

    /// Returns whether [`KeyShape::decode`] accepts the bytes. It allocates no values, so it is
    /// fast for many keys.
    #[must_use]
    pub fn is_key(&self, key: &[u8]) -> bool {
        let mut rest = key;
        for column in &self.0 {
            let Some(after) = skip_valid_value(column, rest) else {
                return false;
            };
            rest = after;
        }
        rest.is_empty()
    }

    /// Returns the instant in the first column, in seconds since the Unix epoch. Returns `None` if
    /// that column is not a time or is null.
    #[must_use]
    pub fn decode_first_time(&self, key: &[u8]) -> Option<i64> {
        let first = self.0.first().filter(|first| first.kind == KeyKind::Time)?;
        match read_value(first, key)? {
            (KeyValue::Time(seconds), _) => Some(seconds),
            _ => None,
        }
    }

    /// Decodes the columns with the indexes `selected`; the others are `None`. Bytes after the last
    /// selected column are not validated.
    ///
    /// # Errors
    /// [`KeyError::Damaged`] if the bytes up to that column do not match the shape.
    pub fn decode_columns<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        selected: &[usize],
    ) -> Result<Vec<Option<ArrayRef>>, KeyError> {
        let end = selected.iter().max().map_or(0, |last| last + 1);
        let columns = self.0.iter().take(end).enumerate();
        let mut decoders: Vec<(&KeyColumn, Option<ColumnDecoder>)> = columns
            .map(|(index, column)| {
                (
                    column,
                    selected
                        .contains(&index)
                        .then(|| ColumnDecoder::new(column)),
                )
            })
            .collect();
        for key in keys {
            let mut rest = key;
            for (column, decoder) in &mut decoders {
                let after = match decoder {
                    Some(decoder) => decoder.decode_next(column, rest),
                    None => skip_value(column, rest),
                };
                rest = after.ok_or_else(|| KeyError::Damaged(column.name.clone()))?;
            }
        }
        let mut columns: Vec<Option<ArrayRef>> = decoders
            .into_iter()
            .map(|(_, decoder)| decoder.map(ColumnDecoder::finish))
            .collect();
        columns.resize(self.0.len(), None);
        Ok(columns)
    }

    /// Replaces the columns from index `first` on with nulls. Their bytes are not validated.
    ///
    /// # Errors
    /// [`KeyError::Damaged`] if the bytes before do not match the shape, [`KeyError::Null`] if a
    /// replaced column is not nullable.
    pub fn with_nulls_from(&self, key: &[u8], first: usize) -> Result<Vec<u8>, KeyError> {
        let (unchanged, nulls) = self.0.split_at(first.min(self.0.len()));
        let mut rest = key;
        for column in unchanged {
            rest =
                skip_value(column, rest).ok_or_else(|| KeyError::Damaged(column.name.clone()))?;
        }
        if let Some(column) = nulls.iter().find(|column| !column.nullable) {
            return Err(KeyError::Null(column.name.clone()));
        }
        let (prefix, _) = key.split_at(key.len() - rest.len());
        Ok([prefix, &vec![NULL; nulls.len()]].concat())
    }
}

/// Reads the null mark of a column: whether it has a value. Also returns the bytes that follow.
#[inline]
fn read_null_mark<'a>(column: &KeyColumn, bytes: &'a [u8]) -> Option<(bool, &'a [u8])> {
    if !column.nullable {
        return Some((true, bytes));
    }
    match bytes.split_first()? {
        (&PRESENT, rest) => Some((true, rest)),
        (&NULL, rest) => Some((false, rest)),
        _ => None,
    }
}

/// Reads the value of a column. Also returns the bytes that follow.
fn read_value<'a>(column: &KeyColumn, bytes: &'a [u8]) -> Option<(KeyValue, &'a [u8])> {
    let (is_present, rest) = read_null_mark(column, bytes)?;
    if !is_present {
        return Some((KeyValue::Null, rest));
    }
    if column.kind == KeyKind::Text {
        let mut text = Vec::new();
        let rest = read_text(rest, &mut text)?;
        return Some((KeyValue::Text(String::from_utf8(text).ok()?), rest));
    }
    let (n, rest) = read_int(rest)?;
    let value = match column.kind {
        KeyKind::Time => {
            // The column has milliseconds, so the value must fit.
            n.checked_mul(1000)?;
            KeyValue::Time(n)
        }
        KeyKind::Instant => KeyValue::Instant(n),
        KeyKind::Int | KeyKind::Text => KeyValue::Int(n),
    };
    Some((value, rest))
}

/// Returns the bytes after a column's value without decoding it.
fn skip_value<'a>(column: &KeyColumn, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (is_present, mut rest) = read_null_mark(column, bytes)?;
    if !is_present {
        return Some(rest);
    }
    if column.kind != KeyKind::Text {
        return rest.get(8..);
    }
    loop {
        let zero = rest.iter().position(|byte| *byte == 0)?;
        let (mark, after) = rest.get(zero..)?.split_first_chunk::<2>()?;
        rest = after;
        match *mark {
            TEXT_END => return Some(rest),
            ESCAPED_ZERO => {}
            _ => return None,
        }
    }
}

/// Returns the bytes after a column's value if the value is valid.
fn skip_valid_value<'a>(column: &KeyColumn, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let rest = skip_value(column, bytes)?;
    let (value, _) = bytes.split_at_checked(bytes.len() - rest.len())?;
    let value = match column.nullable {
        true => value.get(1..)?,
        false => value,
    };
    let is_valid = match column.kind {
        KeyKind::Int | KeyKind::Instant => true,
        // The column has milliseconds, so the value must fit.
        KeyKind::Time => read_int(value).is_none_or(|(n, _)| n.checked_mul(1000).is_some()),
        // No other UTF-8 character contains a zero byte, so each segment between zeros must be
        // valid by itself. After a zero, the first byte is its mark.
        KeyKind::Text => value
            .split(|byte| *byte == 0)
            .enumerate()
            .all(|(index, segment)| {
                let segment = if index == 0 {
                    segment
                } else {
                    segment.get(1..).unwrap_or_default()
                };
                std::str::from_utf8(segment).is_ok()
            }),
    };
    is_valid.then_some(rest)
}

fn write_present(nullable: bool, key: &mut Vec<u8>) {
    if nullable {
        key.push(PRESENT);
    }
}

fn write_int(n: i64, key: &mut Vec<u8>) {
    key.extend_from_slice(&(n.cast_unsigned() ^ (1 << 63)).to_be_bytes());
}

fn write_text(text: &str, key: &mut Vec<u8>) {
    if !text.as_bytes().contains(&0) {
        key.extend_from_slice(text.as_bytes());
        key.extend_from_slice(&TEXT_END);
        return;
    }
    for segment in text.as_bytes().split_inclusive(|byte| *byte == 0) {
        if let Some((0, head)) = segment.split_last() {
            key.extend_from_slice(head);
            key.extend_from_slice(&ESCAPED_ZERO);
        } else {
            key.extend_from_slice(segment);
        }
    }
    key.extend_from_slice(&TEXT_END);
}

fn read_int(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some(((u64::from_be_bytes(*head) ^ (1 << 63)).cast_signed(), rest))
}

/// Decodes an integer at every position of bytes that do not decode as a key. An integer that was
/// encoded anywhere in the bytes is among the results.
pub fn find_possible_ints(bytes: &[u8]) -> impl Iterator<Item = i64> + use<'_> {
    let windows = bytes.windows(size_of::<i64>());
    windows.filter_map(|window| read_int(window).map(|(n, _)| n))
}

fn read_text<'a>(bytes: &'a [u8], text: &mut Vec<u8>) -> Option<&'a [u8]> {
    text.clear();
    let mut rest = bytes;
    loop {
        let zero = rest.iter().position(|byte| *byte == 0)?;
        let (head, tail) = rest.split_at(zero);
        text.extend_from_slice(head);
        let (mark, after) = tail.split_first_chunk::<2>()?;
        rest = after;
        match *mark {
            TEXT_END => return Some(rest),
            ESCAPED_ZERO => text.push(0),
            _ => return None,
        }
    }
}

/// Encodes the values of a column from an array.
struct ColumnEncoder<'a> {
    column: &'a KeyColumn,
    nulls: Option<&'a NullBuffer>,
    values: ColumnValues<'a>,
}

/// An array with its type.
enum ColumnValues<'a> {
    Int(&'a Int64Array),
    Text(&'a StringArray),
    Time(&'a TimestampMillisecondArray),
    Instant(&'a TimestampMicrosecondArray),
}

impl<'a> ColumnEncoder<'a> {
    fn new(column: &'a KeyColumn, array: &'a ArrayRef) -> Result<Self, KeyError> {
        let expected = column.kind.data_type();
        if *array.data_type() != expected {
            return Err(KeyError::Type {
                column: column.name.clone(),
                expected: expected.to_string(),
                actual: array.data_type().to_string(),
            });
        }
        if !column.nullable && array.null_count() > 0 {
            return Err(KeyError::Null(column.name.clone()));
        }
        let values = match column.kind {
            KeyKind::Int => ColumnValues::Int(array.as_primitive()),
            KeyKind::Text => ColumnValues::Text(array.as_string()),
            KeyKind::Time => ColumnValues::Time(array.as_primitive()),
            KeyKind::Instant => ColumnValues::Instant(array.as_primitive()),
        };
        Ok(Self {
            column,
            nulls: array.nulls(),
            values,
        })
    }

    fn encode_row(&self, row: usize, key: &mut Vec<u8>) -> Result<(), KeyError> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            key.push(NULL);
            return Ok(());
        }
        write_present(self.column.nullable, key);
        match self.values {
            ColumnValues::Int(array) => write_int(array.value(row), key),
            ColumnValues::Text(array) => write_text(array.value(row), key),
            ColumnValues::Time(array) => {
                let millis = array.value(row);
                if millis.rem_euclid(1000) != 0 {
                    return Err(KeyError::Fraction {
                        column: self.column.name.clone(),
                        millis,
                    });
                }
                write_int(millis.div_euclid(1000), key);
            }
            ColumnValues::Instant(array) => write_int(array.value(row), key),
        }
        Ok(())
    }
}

/// Decodes the values of a column into an array.
enum ColumnDecoder {
    Int(KeyKind, Int64Builder),
    Text(StringBuilder, Vec<u8>),
}

impl ColumnDecoder {
    fn new(column: &KeyColumn) -> Self {
        match column.kind {
            KeyKind::Text => Self::Text(StringBuilder::new(), Vec::new()),
            kind => Self::Int(kind, Int64Builder::new()),
        }
    }

    fn decode_next<'a>(&mut self, column: &KeyColumn, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (is_present, rest) = read_null_mark(column, bytes)?;
        match self {
            Self::Int(_, builder) if !is_present => builder.append_null(),
            Self::Text(builder, _) if !is_present => builder.append_null(),
            Self::Int(kind, builder) => {
                let (n, after) = read_int(rest)?;
                builder.append_value(match kind {
                    KeyKind::Time => n.checked_mul(1000)?,
                    _ => n,
                });
                return Some(after);
            }
            Self::Text(builder, buffer) => {
                let after = read_text(rest, buffer)?;
                builder.append_value(std::str::from_utf8(buffer).ok()?);
                return Some(after);
            }
        }
        Some(rest)
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Text(mut builder, _) => Arc::new(builder.finish()),
            Self::Int(kind, mut builder) => {
                let ints = builder.finish();
                match kind {
                    KeyKind::Time => {
                        let times = ints.reinterpret_cast::<TimestampMillisecondType>();
                        Arc::new(times.with_timezone("UTC"))
                    }
                    KeyKind::Instant => {
                        let instants = ints.reinterpret_cast::<TimestampMicrosecondType>();
                        Arc::new(instants.with_timezone("UTC"))
                    }
                    KeyKind::Int | KeyKind::Text => Arc::new(ints),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
