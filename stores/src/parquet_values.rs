//! Values of Parquet files that other programs wrote, read as they are stored.
//!
//! The library's own conversions fail for a whole batch when one text is not UTF-8, wrap INT96
//! timestamps that do not fit 64-bit nanoseconds, and round decimals twice. Here a file is read
//! without text annotations, and with INT96 as bytes; each value is converted by itself, so that a
//! bad value concerns its row alone.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, FixedSizeBinaryArray, Float64Array,
    Int64Array, RecordBatch, UInt64Array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use arrow::util::display::array_value_to_string;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{FileMetaData, ParquetMetaData};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};

/// Rows that are read at once.
pub const BATCH_ROWS: usize = 8_192;

const INT96_BYTES: i32 = 12;
/// The Julian day number of 1970-01-01.
const JULIAN_EPOCH_DAY: i128 = 2_440_588;
const NANOS_PER_DAY: i128 = 86_400_000_000_000;
const NANOS_PER_MICRO: i128 = 1_000;

/// A Parquet file whose metadata was read.
#[derive(Debug)]
pub struct ParquetInput {
    file: File,
    metadata: ArrowReaderMetadata,
}

impl ParquetInput {
    /// Reads the metadata of a file.
    ///
    /// # Errors
    /// The file is not Parquet, or cannot be read.
    pub fn open(file: File) -> Result<Self> {
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())?;
        Ok(Self { file, metadata })
    }

    /// The columns, with the types that the file declares.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        self.metadata.schema()
    }

    /// The number of rows.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let rows = self.metadata.metadata().file_metadata().num_rows();
        u64::try_from(rows).unwrap_or(0)
    }

    /// Reads the columns of these names, in this order. Other columns are not read.
    ///
    /// # Errors
    /// A column does not exist or has a type that is not supported.
    pub fn read(self, names: &[&str]) -> Result<RowReader> {
        let declared = Arc::clone(self.metadata.schema());
        let stored = Arc::new(to_stored_metadata(self.metadata.metadata())?);
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::try_new(stored, options)?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.file, metadata);
        let indices = names.iter().map(|name| find_column_index(&declared, name));
        let indices = indices.collect::<Result<Vec<_>>>()?;
        let projection = ProjectionMask::roots(builder.parquet_schema(), indices);
        let builder = builder
            .with_projection(projection)
            .with_batch_size(BATCH_ROWS);
        Ok(RowReader {
            batches: builder.build()?,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            declared,
        })
    }
}

fn find_column_index(schema: &Schema, name: &str) -> Result<usize> {
    let index = schema.column_with_name(name).map(|(index, _)| index);
    index.ok_or_else(|| ParquetError::General(format!("there is no column {name}")))
}

/// Converts metadata: removes text annotations, and declares fixed-length bytes instead of INT96:
/// both have the same encodings.
fn to_stored_metadata(metadata: &ParquetMetaData) -> Result<ParquetMetaData> {
    let file = metadata.file_metadata();
    let root = file.schema();
    let fields = root.get_fields().iter().map(to_stored_type);
    let root = Type::group_type_builder(root.name())
        .with_fields(fields.collect::<Result<_>>()?)
        .build()?;
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(root)));
    let created_by = file.created_by().map(str::to_owned);
    let file = FileMetaData::new(
        file.version(),
        file.num_rows(),
        created_by,
        None,
        schema,
        None,
    );
    Ok(ParquetMetaData::new(file, metadata.row_groups().to_vec()))
}

fn to_stored_type(declared: &TypePtr) -> Result<TypePtr> {
    if !declared.is_primitive() {
        return Ok(Arc::clone(declared));
    }
    let basic = declared.get_basic_info();
    let (physical, length) = match declared.get_physical_type() {
        Physical::INT96 => (Physical::FIXED_LEN_BYTE_ARRAY, INT96_BYTES),
        Physical::BYTE_ARRAY if !is_decimal(declared) => (Physical::BYTE_ARRAY, -1),
        _ => return Ok(Arc::clone(declared)),
    };
    if basic.logical_type_ref() == Some(&LogicalType::Unknown) {
        return Ok(Arc::clone(declared));
    }
    let stored = Type::primitive_type_builder(declared.name(), physical)
        .with_repetition(basic.repetition())
        .with_length(length)
        .build()?;
    Ok(Arc::new(stored))
}

fn is_decimal(declared: &Type) -> bool {
    let basic = declared.get_basic_info();
    matches!(basic.logical_type_ref(), Some(LogicalType::Decimal(_)))
        || basic.converted_type() == ConvertedType::DECIMAL
}

/// Reads rows in batches.
#[expect(
    missing_debug_implementations,
    reason = "the reader of the library has none"
)]
pub struct RowReader {
    batches: ParquetRecordBatchReader,
    names: Vec<String>,
    declared: SchemaRef,
}

impl Iterator for RowReader {
    type Item = Result<ParquetRows>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.batches.next()?;
        Some(batch.map_err(ParquetError::from).and_then(|batch| {
            let columns = self.names.iter().map(|name| self.column(&batch, name));
            Ok(ParquetRows {
                count: batch.num_rows(),
                columns: columns.collect::<Result<_>>()?,
            })
        }))
    }
}

impl RowReader {
    fn column(&self, batch: &RecordBatch, name: &str) -> Result<ParquetColumn> {
        let array = batch.column(find_column_index(&batch.schema(), name)?);
        let declared = self
            .declared
            .field(find_column_index(&self.declared, name)?);
        let declared = match declared.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        ParquetColumn::new(array, declared)
    }
}

/// A batch of rows.
#[derive(Debug)]
pub struct ParquetRows {
    count: usize,
    columns: Vec<ParquetColumn>,
}

impl ParquetRows {
    /// The number of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The value of a column, in the order in which columns were requested.
    #[must_use]
    pub fn value(&self, column: usize, row: usize) -> ParquetValue<'_> {
        self.columns
            .get(column)
            .map_or(ParquetValue::Null, |column| column.value(row))
    }
}

/// A value of a column.
#[derive(Debug, Clone, PartialEq)]
pub enum ParquetValue<'a> {
    /// The value is null.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A floating-point number of any width.
    Number(f64),
    /// A decimal number, in digits.
    Decimal(String),
    /// A text, or other bytes that are UTF-8.
    Text(&'a str),
    /// Bytes that are not UTF-8.
    Bytes(&'a [u8]),
    /// An instant, in nanoseconds since the Unix epoch. A timestamp without a zone is taken as UTC.
    Instant(i128),
    /// A value of any other type, for display only.
    Other(String),
}

/// Rounds an instant down to whole microseconds.
#[must_use]
pub fn floor_to_micros(nanos: i128) -> i128 {
    nanos.div_euclid(NANOS_PER_MICRO)
}

#[derive(Debug)]
enum ParquetColumn {
    Null,
    Bool(BooleanArray),
    Int(Int64Array),
    Unsigned(UInt64Array),
    Number(Float64Array),
    Decimal(ArrayRef),
    Bytes(BinaryArray),
    /// Instants, and how many nanoseconds one unit is.
    Time(Int64Array, i128),
    Int96(FixedSizeBinaryArray),
    Other(ArrayRef),
}

impl ParquetColumn {
    fn new(array: &ArrayRef, declared: &DataType) -> Result<Self> {
        let cast_to = |to: &DataType| cast(array, to).map_err(ParquetError::from);
        let ints = || cast_to(&DataType::Int64).map(|ints| ints.as_primitive().clone());
        Ok(match (declared, array.data_type()) {
            (DataType::Null, _) | (_, DataType::Null) => Self::Null,
            (DataType::Timestamp(..), DataType::FixedSizeBinary(INT96_BYTES)) => {
                Self::Int96(array.as_fixed_size_binary().clone())
            }
            // The unit of an integer is in the schema of Arrow alone: Parquet has no seconds.
            (_, DataType::Timestamp(unit, _))
            | (DataType::Timestamp(unit, _), DataType::Int32 | DataType::Int64) => {
                Self::Time(ints()?, nanos_per_unit(*unit))
            }
            (_, DataType::Date32) => {
                let days = cast_to(&DataType::Int32)?;
                let days = cast(&days, &DataType::Int64)?.as_primitive().clone();
                Self::Time(days, NANOS_PER_DAY)
            }
            (_, DataType::Date64) | (DataType::Date64, DataType::Int64) => {
                Self::Time(ints()?, nanos_per_unit(TimeUnit::Millisecond))
            }
            (_, DataType::Boolean) => Self::Bool(array.as_boolean().clone()),
            (_, DataType::Binary) => Self::Bytes(array.as_binary().clone()),
            (_, other) if other.is_unsigned_integer() => {
                Self::Unsigned(cast_to(&DataType::UInt64)?.as_primitive().clone())
            }
            (_, other) if other.is_integer() => Self::Int(ints()?),
            (_, other) if other.is_floating() => {
                Self::Number(cast_to(&DataType::Float64)?.as_primitive().clone())
            }
            (_, other) if other.is_decimal() => Self::Decimal(Arc::clone(array)),
            _ => Self::Other(Arc::clone(array)),
        })
    }

    fn value(&self, row: usize) -> ParquetValue<'_> {
        let array: &dyn Array = match self {
            Self::Null => return ParquetValue::Null,
            Self::Bool(array) => array,
            Self::Int(array) | Self::Time(array, _) => array,
            Self::Unsigned(array) => array,
            Self::Number(array) => array,
            Self::Decimal(array) | Self::Other(array) => array,
            Self::Bytes(array) => array,
            Self::Int96(array) => array,
        };
        if array.is_null(row) {
            return ParquetValue::Null;
        }
        let digits = |array: &ArrayRef| array_value_to_string(array, row).unwrap_or_default();
        match self {
            Self::Null => ParquetValue::Null,
            Self::Bool(array) => ParquetValue::Bool(array.value(row)),
            Self::Int(array) => ParquetValue::Int(array.value(row)),
            Self::Unsigned(array) => ParquetValue::Unsigned(array.value(row)),
            Self::Number(array) => ParquetValue::Number(array.value(row)),
            Self::Decimal(array) => ParquetValue::Decimal(digits(array)),
            Self::Bytes(array) => match std::str::from_utf8(array.value(row)) {
                Ok(text) => ParquetValue::Text(text),
                Err(_) => ParquetValue::Bytes(array.value(row)),
            },
            Self::Time(array, unit) => ParquetValue::Instant(i128::from(array.value(row)) * unit),
            Self::Int96(array) => {
                decode_int96(array.value(row)).map_or(ParquetValue::Null, ParquetValue::Instant)
            }
            Self::Other(array) => ParquetValue::Other(digits(array)),
        }
    }
}

const fn nanos_per_unit(unit: TimeUnit) -> i128 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => NANOS_PER_MICRO,
        TimeUnit::Nanosecond => 1,
    }
}

/// Nanoseconds in the day, then a Julian day number, both little-endian.
fn decode_int96(bytes: &[u8]) -> Option<i128> {
    let (in_day, day) = bytes.split_at_checked(8)?;
    let in_day = i64::from_le_bytes(in_day.try_into().ok()?);
    let day = i32::from_le_bytes(day.try_into().ok()?);
    Some((i128::from(day) - JULIAN_EPOCH_DAY) * NANOS_PER_DAY + i128::from(in_day))
}

#[cfg(test)]
#[path = "parquet_values_tests.rs"]
mod tests;
