//! Decodes framed Avro records to columns. Each record yields exactly one row or a reason.
//!
//! The Avro library waits for more bytes if a record is truncated, continues if a second record
//! follows, and is unusable after an error. Therefore each record must be consumed to its last byte
//! as exactly one row. After an invalid record, a new decoder reads the records before it again.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow_avro::reader::{Decoder, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};

use super::{HEAD_BYTES, WriterSchemas, fit, is_framed, schema_id};
use crate::line::LINE_BYTES_MAX;

/// The capacity of a batch in rows.
const ROWS_MAX: usize = 1024;

/// A record with its index among all records.
type IndexedRecord<'a> = (usize, &'a [u8]);

/// The decoded Avro records of a list that also contains JSON records.
#[derive(Debug, Default)]
pub(crate) struct AvroRecords {
    batches: Vec<RecordBatch>,
    /// By index among all records: batch and row, or the reason why the record was rejected.
    locations: BTreeMap<usize, Result<(usize, usize), String>>,
}

impl AvroRecords {
    /// Decodes those of `records` that are Avro, with our schema.
    ///
    /// # Errors
    /// The schema of a record was not looked up.
    pub(crate) fn read<'a>(
        reader_schema: &str,
        records: impl IntoIterator<Item = &'a [u8]>,
        writers: &WriterSchemas,
    ) -> Result<Self, ArrowError> {
        let mut decoded = Self::default();
        let mut by_schema: BTreeMap<u32, Vec<IndexedRecord<'_>>> = BTreeMap::new();
        for (index, bytes) in records.into_iter().enumerate() {
            match schema_id(bytes) {
                _ if !is_framed(bytes) => {}
                _ if bytes.len() > LINE_BYTES_MAX => decoded.reject(
                    index,
                    format!("the record is too long: at most {LINE_BYTES_MAX} bytes are accepted"),
                ),
                Some(id) => by_schema.entry(id).or_default().push((index, bytes)),
                None => decoded.reject(
                    index,
                    format!(
                        "the record has {} bytes: an Avro record begins with a byte 0 and the 4 bytes of its schema id",
                        bytes.len()
                    ),
                ),
            }
        }
        for (id, records) in by_schema {
            let writer = writers.get(id).ok_or_else(|| {
                ArrowError::InvalidArgumentError(format!("schema {id} was not looked up"))
            })?;
            let reader = match writer {
                Ok(writer) => SchemaReader::new(id, reader_schema, writer)
                    .map_err(|reason| format!("cannot read Avro schema {id}: {reason}")),
                Err(reason) => Err(reason.clone()),
            };
            match reader {
                Ok(mut reader) => {
                    // One row stays free, so that an extra row in a record is noticed.
                    for chunk in records.chunks(ROWS_MAX - 1) {
                        decoded.decode_all(&mut reader, chunk);
                    }
                }
                Err(reason) => records
                    .iter()
                    .for_each(|(index, _)| decoded.reject(*index, reason.clone())),
            }
        }
        Ok(decoded)
    }

    /// Returns the batches. Their columns are the fields of our schema; a time column has the type
    /// of the writer.
    pub(crate) fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// Returns batch and row of a record; none for a record that is not Avro.
    pub(crate) fn location(&self, index: usize) -> Option<Result<(usize, usize), &str>> {
        let location = self.locations.get(&index)?;
        Some(location.as_ref().copied().map_err(String::as_str))
    }

    fn reject(&mut self, index: usize, reason: String) {
        self.locations.insert(index, Err(reason));
    }

    fn decode_all(&mut self, reader: &mut SchemaReader<'_>, mut records: &[IndexedRecord<'_>]) {
        while !records.is_empty() {
            let error = match reader.read(records) {
                Ok(batch) => return self.push_batch(batch, records),
                Err(error) => error,
            };
            let invalid = error.index.unwrap_or(records.len());
            let (Some((index, _)), Some(after)) =
                (records.get(invalid), records.get(invalid + 1..))
            else {
                return self.decode_each(reader, records);
            };
            // The batch is lost, but the records before the invalid one are valid.
            self.decode_valid(reader, records.get(..invalid).unwrap_or_default());
            self.reject(*index, error.reason);
            records = after;
        }
    }

    fn decode_valid(&mut self, reader: &mut SchemaReader<'_>, records: &[IndexedRecord<'_>]) {
        if records.is_empty() {
            return;
        }
        match reader.read(records) {
            Ok(batch) => self.push_batch(batch, records),
            Err(_) => self.decode_each(reader, records),
        }
    }

    /// Decodes records one by one, to find the invalid one.
    fn decode_each(&mut self, reader: &mut SchemaReader<'_>, records: &[IndexedRecord<'_>]) {
        for record in records {
            match reader.read(std::slice::from_ref(record)) {
                Ok(batch) => self.push_batch(batch, std::slice::from_ref(record)),
                Err(error) => self.reject(record.0, error.reason),
            }
        }
    }

    fn push_batch(&mut self, batch: RecordBatch, records: &[IndexedRecord<'_>]) {
        let batch_index = self.batches.len();
        let rows = records.iter().enumerate();
        self.locations
            .extend(rows.map(|(row, (index, _))| (*index, Ok((batch_index, row)))));
        self.batches.push(batch);
    }
}

/// Decodes the records of one writer schema.
struct SchemaReader<'a> {
    id: u32,
    /// Our schema, fitted to the writer's.
    reader_schema: String,
    writer: &'a str,
    /// `None` after an error.
    decoder: Option<Decoder>,
}

/// The reason why a batch could not be decoded.
struct BatchError {
    /// The index of the invalid record in the batch, if known.
    index: Option<usize>,
    reason: String,
}

impl<'a> SchemaReader<'a> {
    fn new(id: u32, reader_schema: &str, writer: &'a str) -> Result<Self, String> {
        let reader_schema = fit::fit_schema(reader_schema, writer)?;
        let mut reader = Self {
            id,
            reader_schema,
            writer,
            decoder: None,
        };
        let decoder = reader.build_decoder();
        reader.decoder = Some(decoder.map_err(|error| strip_error_type(&error))?);
        Ok(reader)
    }

    fn build_decoder(&self) -> Result<Decoder, ArrowError> {
        let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
        let writer = AvroSchema::new(self.writer.to_owned());
        store.set(Fingerprint::Id(self.id), writer)?;
        ReaderBuilder::new()
            .with_batch_size(ROWS_MAX)
            .with_writer_schema_store(store)
            .with_reader_schema(AvroSchema::new(self.reader_schema.clone()))
            .build_decoder()
    }

    /// Decodes records into one batch, one row each.
    fn read(&mut self, records: &[IndexedRecord<'_>]) -> Result<RecordBatch, BatchError> {
        let id = self.id;
        let batch_error = |index, reason: String| BatchError {
            index,
            reason: format!("not a record of the Avro schema {id}: {reason}"),
        };
        let decoder = match self.decoder.take() {
            Some(decoder) => Ok(decoder),
            None => self.build_decoder(),
        };
        let mut decoder = decoder.map_err(|error| batch_error(None, strip_error_type(&error)))?;
        for (index, (_, bytes)) in records.iter().enumerate() {
            decode_record(&mut decoder, bytes)
                .map_err(|reason| batch_error(Some(index), reason))?;
        }
        let flushed = decoder
            .flush()
            .map_err(|error| batch_error(None, strip_error_type(&error)))?;
        match flushed {
            Some(batch) if batch.num_rows() == records.len() => {
                self.decoder = Some(decoder);
                Ok(batch)
            }
            _ => Err(batch_error(
                None,
                "it does not decode to exactly one row".to_owned(),
            )),
        }
    }
}

/// Formats an error of the Avro library without the name of its type.
fn strip_error_type(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    match text.split_once("error: ") {
        Some((kind, message)) if !kind.contains(':') => message.to_owned(),
        _ => text,
    }
}

/// Decodes a record into the decoder's batch. After an error the decoder is unusable.
fn decode_record(decoder: &mut Decoder, bytes: &[u8]) -> Result<(), String> {
    let capacity_before = decoder.capacity();
    let consumed = decoder.decode(bytes);
    let rows = capacity_before.saturating_sub(decoder.capacity());
    match consumed {
        Ok(consumed) if rows == 1 && consumed == bytes.len() => Ok(()),
        Ok(_) if rows == 0 => Err(format!(
            "its {} bytes end too early",
            bytes.len().saturating_sub(HEAD_BYTES)
        )),
        _ if rows > 0 => Err("more bytes follow after its last field".to_owned()),
        Ok(_) => Err("it was not accepted".to_owned()),
        Err(_) => Err("its bytes do not match the fields of the schema".to_owned()),
    }
}
