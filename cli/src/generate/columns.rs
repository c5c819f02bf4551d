//! Rows as Parquet, with a typed column for each field of the source.
//!
//! What can't be taken has faults that typed columns can hold: a missing field, an unknown kind, a
//! wrong country.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use schemas::source::Source;

use super::rows::{Cell, Record, Row, Sink};
use crate::ingest::fields::{Kind, fields};

/// Writes rows to a Parquet file.
pub(super) struct Writer<W: Write + Send> {
    file: ArrowWriter<W>,
    schema: SchemaRef,
    columns: Vec<Column>,
}

impl<W: Write + Send> Writer<W> {
    pub(super) fn new(out: W, source: Source) -> anyhow::Result<Self> {
        let columns: Vec<Column> = fields(source)
            .iter()
            .map(|field| Column::new(field.name, field.kind))
            .collect();
        let fields: Vec<Field> = columns.iter().map(Column::field).collect();
        let schema = Arc::new(Schema::new(fields));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        Ok(Self {
            file: ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties))?,
            schema,
            columns,
        })
    }

    pub(super) fn push<R: Record>(&mut self, row: &Row<R>) {
        row.put(&mut Columns(self.columns.iter_mut()));
    }

    /// Writes what was pushed.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        let arrays = self.columns.iter_mut().map(|column| column.values.finish());
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays.collect())?;
        Ok(self.file.write(&batch)?)
    }

    /// Writes the end of the file.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.file.into_inner()?.flush()?;
        Ok(())
    }
}

/// Takes the fields of one row, column by column.
struct Columns<'a>(std::slice::IterMut<'a, Column>);

impl Sink for Columns<'_> {
    fn put(&mut self, name: &'static str, cell: Cell<'_>) {
        let column = self.0.next();
        debug_assert_eq!(column.as_ref().map(|column| column.name), Some(name));
        if let Some(column) = column {
            column.values.append(cell);
        }
    }
}

/// A column as it grows.
struct Column {
    name: &'static str,
    values: Values,
}

enum Values {
    Int(Int64Builder),
    Number(Float64Builder),
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
    Bool(BooleanBuilder),
}

impl Column {
    fn new(name: &'static str, kind: Kind) -> Self {
        let values = match kind {
            Kind::Int => Values::Int(Int64Builder::new()),
            Kind::Number => Values::Number(Float64Builder::new()),
            Kind::Text | Kind::TextOrInt => Values::Text(StringBuilder::new()),
            Kind::Time | Kind::UnboundedTime => Values::Time(TimestampMicrosecondBuilder::new()),
            Kind::Bool => Values::Bool(BooleanBuilder::new()),
        };
        Self { name, values }
    }

    fn field(&self) -> Field {
        let data_type = match self.values {
            Values::Int(_) => DataType::Int64,
            Values::Number(_) => DataType::Float64,
            Values::Text(_) => DataType::Utf8,
            Values::Time(_) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Values::Bool(_) => DataType::Boolean,
        };
        Field::new(self.name, data_type, true)
    }
}

impl Values {
    fn append(&mut self, cell: Cell<'_>) {
        match (self, cell) {
            (Self::Int(column), Cell::Int(n)) => column.append_value(n),
            (Self::Int(column), _) => column.append_null(),
            (Self::Number(column), Cell::Number(x)) => column.append_value(x),
            (Self::Number(column), _) => column.append_null(),
            (Self::Text(column), Cell::Text(text)) => column.append_value(text),
            (Self::Text(column), _) => column.append_null(),
            (Self::Time(column), Cell::Time(ms)) => column.append_value(ms.saturating_mul(1_000)),
            (Self::Time(column), _) => column.append_null(),
            (Self::Bool(column), Cell::Bool(is)) => column.append_value(is),
            (Self::Bool(column), _) => column.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Int(column) => Arc::new(column.finish()),
            Self::Number(column) => Arc::new(column.finish()),
            Self::Text(column) => Arc::new(column.finish()),
            Self::Time(column) => Arc::new(column.finish().with_timezone("UTC")),
            Self::Bool(column) => Arc::new(column.finish()),
        }
    }
}
