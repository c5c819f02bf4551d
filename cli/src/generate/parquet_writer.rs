//! Writes lines as Parquet, with a typed column for each field of the source.

use std::io::Write;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::json::reader::{Decoder, ReaderBuilder};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use schemas::source::Source;

use crate::ingest::fields::{FieldKind, fields};

/// Writes lines to a Parquet file.
pub(super) struct ParquetWriter<W: Write + Send> {
    file: ArrowWriter<W>,
    decoder: Decoder,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// A writer for a source. `lines_max` bounds the lines of one [`write`](Self::write).
    pub(super) fn new(out: W, source: Source, lines_max: usize) -> anyhow::Result<Self> {
        let columns = fields(source)
            .iter()
            .map(|field| Field::new(field.name, to_arrow_type(field.kind), true));
        let schema = Arc::new(Schema::new(columns.collect::<Vec<_>>()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        Ok(Self {
            file: ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties))?,
            decoder: ReaderBuilder::new(schema)
                .with_batch_size(lines_max)
                .build_decoder()?,
        })
    }

    /// Writes lines.
    pub(super) fn write(&mut self, lines: &[u8]) -> anyhow::Result<()> {
        self.decoder.decode(lines)?;
        if let Some(batch) = self.decoder.flush()? {
            self.file.write(&batch)?;
        }
        Ok(())
    }

    /// Writes the footer of the file.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.file.into_inner()?.flush()?;
        Ok(())
    }
}

fn to_arrow_type(kind: FieldKind) -> DataType {
    match kind {
        FieldKind::Int => DataType::Int64,
        FieldKind::Number => DataType::Float64,
        FieldKind::Text | FieldKind::TextOrInt => DataType::Utf8,
        FieldKind::Time | FieldKind::UnboundedTime => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        FieldKind::Bool => DataType::Boolean,
    }
}
