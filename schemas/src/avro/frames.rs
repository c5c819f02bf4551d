//! Framed records into columns: each one whole and alone, or not at all and then with the reason.
//!
//! The library waits for more bytes where a record is cut off, goes on where a second one follows,
//! and can't be used after an error. So every record must be consumed to its last byte as exactly one
//! row; after one that is not, those before it are read once more by a new decoder.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow_avro::reader::{Decoder, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};

use super::{HEAD_BYTES, Writers, fit, is_framed, schema_id};
use crate::line::LINE_BYTES_MAX;

/// Rows for which a batch has room.
const ROWS_MAX: usize = 1024;

/// A record with its index among all.
type Numbered<'a> = (usize, &'a [u8]);

/// The records of Avro among some records.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    batches: Vec<RecordBatch>,
    /// By index among all records: the batch and its row, or the reason for which there is none.
    places: BTreeMap<usize, Result<(usize, usize), String>>,
}

impl Frames {
    /// Reads those of `records` that are Avro by our schema.
    ///
    /// # Errors
    /// If the schema of a record was not looked up.
    pub(crate) fn read<'a>(
        ours: &str,
        records: impl IntoIterator<Item = &'a [u8]>,
        writers: &Writers,
    ) -> Result<Self, ArrowError> {
        let mut frames = Self::default();
        let mut by_schema: BTreeMap<u32, Vec<Numbered<'_>>> = BTreeMap::new();
        for (index, bytes) in records.into_iter().enumerate() {
            match schema_id(bytes) {
                _ if !is_framed(bytes) => {}
                _ if bytes.len() > LINE_BYTES_MAX => frames.refuse(
                    index,
                    format!("the record is too long: at most {LINE_BYTES_MAX} bytes are taken"),
                ),
                Some(id) => by_schema.entry(id).or_default().push((index, bytes)),
                None => frames.refuse(
                    index,
                    format!(
                        "has {} bytes; a record that begins with a byte 0 is Avro and has the id of its schema in the next 4 bytes",
                        bytes.len()
                    ),
                ),
            }
        }
        for (id, some) in by_schema {
            let writer = writers.get(id).ok_or_else(|| {
                ArrowError::InvalidArgumentError(format!("schema {id} was not looked up"))
            })?;
            let reader = match writer {
                Ok(writer) => Reader::new(id, ours, writer)
                    .map_err(|why| format!("Avro schema {id} can't be read: {why}")),
                Err(why) => Err(why.clone()),
            };
            match reader {
                Ok(mut reader) => {
                    // One row less: that a second one follows must show.
                    for chunk in some.chunks(ROWS_MAX - 1) {
                        frames.take(&mut reader, chunk);
                    }
                }
                Err(why) => some
                    .iter()
                    .for_each(|(index, _)| frames.refuse(*index, why.clone())),
            }
        }
        Ok(frames)
    }

    /// The batches, whose columns are the fields of our schema. A time is a column of what it was
    /// written as.
    pub(crate) fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// Where the record of that index is: its batch and row. Nothing for a record that is not Avro.
    pub(crate) fn place(&self, index: usize) -> Option<Result<(usize, usize), &str>> {
        let place = self.places.get(&index)?;
        Some(place.as_ref().copied().map_err(String::as_str))
    }

    fn refuse(&mut self, index: usize, reason: String) {
        self.places.insert(index, Err(reason));
    }

    fn take(&mut self, reader: &mut Reader<'_>, mut records: &[Numbered<'_>]) {
        while !records.is_empty() {
            let bad = match reader.read(records) {
                Ok(batch) => return self.keep(batch, records),
                Err(bad) => bad,
            };
            let at = bad.index.unwrap_or(records.len());
            let (Some((number, _)), Some(rest)) = (records.get(at), records.get(at + 1..)) else {
                return self.take_each(reader, records);
            };
            // Nothing of the batch can be had any more, but what stood before is sound.
            self.take_sound(reader, records.get(..at).unwrap_or_default());
            self.refuse(*number, bad.why);
            records = rest;
        }
    }

    fn take_sound(&mut self, reader: &mut Reader<'_>, records: &[Numbered<'_>]) {
        if records.is_empty() {
            return;
        }
        match reader.read(records) {
            Ok(batch) => self.keep(batch, records),
            Err(_) => self.take_each(reader, records),
        }
    }

    /// For records of which one spoils the batch, without a word which.
    fn take_each(&mut self, reader: &mut Reader<'_>, records: &[Numbered<'_>]) {
        for record in records {
            match reader.read(std::slice::from_ref(record)) {
                Ok(batch) => self.keep(batch, std::slice::from_ref(record)),
                Err(bad) => self.refuse(record.0, bad.why),
            }
        }
    }

    fn keep(&mut self, batch: RecordBatch, records: &[Numbered<'_>]) {
        let number = self.batches.len();
        let rows = records.iter().enumerate();
        self.places
            .extend(rows.map(|(row, (index, _))| (*index, Ok((number, row)))));
        self.batches.push(batch);
    }
}

/// Reads the records of one writer's schema.
struct Reader<'a> {
    id: u32,
    /// Our schema, fitted to the writer's.
    ours: String,
    writer: &'a str,
    /// Not after an error.
    decoder: Option<Decoder>,
}

/// Why there is no batch.
struct Bad {
    /// The record that can't be read, among those given, where that is known.
    index: Option<usize>,
    why: String,
}

impl<'a> Reader<'a> {
    fn new(id: u32, ours: &str, writer: &'a str) -> Result<Self, String> {
        let ours = fit::fitted(ours, writer)?;
        let mut reader = Self {
            id,
            ours,
            writer,
            decoder: None,
        };
        reader.decoder = Some(reader.build().map_err(|error| error.to_string())?);
        Ok(reader)
    }

    fn build(&self) -> Result<Decoder, ArrowError> {
        let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
        let writer = AvroSchema::new(self.writer.to_owned());
        store.set(Fingerprint::Id(self.id), writer)?;
        ReaderBuilder::new()
            .with_batch_size(ROWS_MAX)
            .with_writer_schema_store(store)
            .with_reader_schema(AvroSchema::new(self.ours.clone()))
            .build_decoder()
    }

    /// Reads records into one batch, a row for each.
    fn read(&mut self, records: &[Numbered<'_>]) -> Result<RecordBatch, Bad> {
        let id = self.id;
        let bad = |index, why: String| Bad {
            index,
            why: format!("not a record of the Avro schema {id}: {why}"),
        };
        let decoder = match self.decoder.take() {
            Some(decoder) => Ok(decoder),
            None => self.build(),
        };
        let mut decoder = decoder.map_err(|error| bad(None, error.to_string()))?;
        for (index, (_, bytes)) in records.iter().enumerate() {
            take_one(&mut decoder, bytes).map_err(|why| bad(Some(index), why))?;
        }
        let flushed = decoder
            .flush()
            .map_err(|error| bad(None, error.to_string()))?;
        match flushed {
            Some(batch) if batch.num_rows() == records.len() => {
                self.decoder = Some(decoder);
                Ok(batch)
            }
            _ => Err(bad(None, "another number of rows came out".to_owned())),
        }
    }
}

/// Takes a record into the batch that the decoder builds. After an error the decoder is of no use.
fn take_one(decoder: &mut Decoder, bytes: &[u8]) -> Result<(), String> {
    let before = decoder.capacity();
    let consumed = decoder.decode(bytes);
    let rows = before.saturating_sub(decoder.capacity());
    match consumed {
        Ok(consumed) if rows == 1 && consumed == bytes.len() => Ok(()),
        Ok(_) if rows == 0 => Err(format!(
            "its {} bytes end too early",
            bytes.len().saturating_sub(HEAD_BYTES)
        )),
        _ if rows > 0 => Err("more bytes follow after its last field".to_owned()),
        Ok(_) => Err("not taken".to_owned()),
        Err(error) => Err(format!("its bytes can't be read: {error}")),
    }
}
