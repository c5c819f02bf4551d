//! Rows as Parquet, with a typed column for each field of a play.
//!
//! What can't be taken has faults that typed columns can hold: an unknown kind, a missing field, a
//! wrong country.

use std::io::Write;
use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayRef, Int64Builder, RecordBatch, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::traffic::{Fault, Row};

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("event_id", DataType::Utf8, false),
        Field::new("track_id", DataType::Int64, true),
        Field::new("owner_id", DataType::Int64, true),
        Field::new("listener_id", DataType::Int64, true),
        Field::new("country", DataType::Utf8, true),
        Field::new("referrer", DataType::Utf8, true),
        Field::new("app_id", DataType::Int64, true),
        Field::new("kind", DataType::Utf8, false),
        Field::new("at", time, true),
        Field::new("amount", DataType::Int64, true),
    ]))
});

/// Writes rows to a Parquet file.
pub(super) struct Writer<W: Write + Send> {
    file: ArrowWriter<W>,
    columns: Columns,
    text: String,
}

#[derive(Default)]
struct Columns {
    event_id: StringBuilder,
    track_id: Int64Builder,
    owner_id: Int64Builder,
    listener_id: Int64Builder,
    country: StringBuilder,
    referrer: StringBuilder,
    app_id: Int64Builder,
    kind: StringBuilder,
    at: TimestampMicrosecondBuilder,
    amount: Int64Builder,
}

impl<W: Write + Send> Writer<W> {
    pub(super) fn new(out: W) -> anyhow::Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        Ok(Self {
            file: ArrowWriter::try_new(out, Arc::clone(&SCHEMA), Some(properties))?,
            columns: Columns::default(),
            text: String::new(),
        })
    }

    pub(super) fn push(&mut self, row: &Row) {
        let (play, columns) = (&row.play, &mut self.columns);
        let has = |faults: &[Fault]| row.fault.is_some_and(|fault| faults.contains(&fault));
        let no_track = has(&[Fault::WrongType, Fault::FractionalId, Fault::HugeNumber]);
        let no_owner = has(&[Fault::MissingOwner, Fault::CutOff]);
        columns
            .event_id
            .append_value(format!("{:08x}-{:016x}", play.id.0, play.id.1));
        columns
            .track_id
            .append_option((!no_track).then_some(play.track_id));
        columns
            .owner_id
            .append_option((!no_owner).then_some(play.owner_id));
        columns.listener_id.append_option(play.listener_id);
        let country = if has(&[Fault::WrongCountry]) {
            Some("Germany")
        } else {
            play.country
        };
        columns.country.append_option(country);
        columns
            .referrer
            .append_option(play.referrer.map(|referrer| referrer.text(&mut self.text)));
        columns.app_id.append_option(play.app_id);
        columns.kind.append_value(
            match (has(&[Fault::UnknownKind, Fault::NoJson]), play.download) {
                (true, _) => "stream",
                (false, true) => "download",
                (false, false) => "play",
            },
        );
        let no_date = has(&[Fault::ImpossibleDate]);
        columns
            .at
            .append_option((!no_date).then_some(play.at_ms.saturating_mul(1_000)));
        columns.amount.append_option(play.amount);
    }

    /// Writes what was pushed.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        let mut columns = std::mem::take(&mut self.columns);
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(columns.event_id.finish()),
            Arc::new(columns.track_id.finish()),
            Arc::new(columns.owner_id.finish()),
            Arc::new(columns.listener_id.finish()),
            Arc::new(columns.country.finish()),
            Arc::new(columns.referrer.finish()),
            Arc::new(columns.app_id.finish()),
            Arc::new(columns.kind.finish()),
            Arc::new(columns.at.finish().with_timezone("UTC")),
            Arc::new(columns.amount.finish()),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&SCHEMA), arrays)?;
        Ok(self.file.write(&batch)?)
    }

    /// Writes the end of the file.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        self.file.into_inner()?.flush()?;
        Ok(())
    }
}
