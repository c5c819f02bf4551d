//! Parquet files that notice damage: each column chunk has a checksum in the file's metadata, and no
//! chunk is read without comparing it. The library writes none.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;

/// The metadata entry: `start-end=crc` of each column chunk, in bytes from the file's beginning and
/// as a CRC-32 (ISO-HDLC) in hexadecimal, separated by spaces.
const CHECKSUMS: &str = "backstitch.chunk_crc32";

/// A file in memory: compressed, with at most `group_rows_max` rows in a row group.
///
/// # Errors
/// A schema that Parquet can't hold.
pub fn begin(schema: SchemaRef, group_rows_max: usize) -> Result<ArrowWriter<Vec<u8>>> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_max_row_group_row_count(Some(group_rows_max))
        .build();
    ArrowWriter::try_new(Vec::new(), schema, Some(properties))
}

/// Ends a file and adds the checksums of its chunks.
///
/// # Errors
/// Those of writing.
pub fn finish(mut writer: ArrowWriter<Vec<u8>>) -> Result<Bytes> {
    writer.flush()?;
    writer.sync()?;
    let mut checksums = String::new();
    for chunk in writer.flushed_row_groups().iter().flat_map(|g| g.columns()) {
        let (start, length) = chunk.byte_range();
        let end = start + length;
        let bytes = usize::try_from(start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| writer.inner().get(start..end))
            .ok_or_else(|| ParquetError::General("a chunk that was not written".to_owned()))?;
        let space = if checksums.is_empty() { "" } else { " " };
        write!(
            checksums,
            "{space}{start}-{end}={:08x}",
            crc32fast::hash(bytes)
        )
        .map_err(|error| ParquetError::External(Box::new(error)))?;
    }
    writer.append_key_value_metadata(KeyValue::new(CHECKSUMS.to_owned(), checksums));
    writer.into_inner().map(Bytes::from)
}

/// A Parquet file in an object store, read by ranges.
pub(crate) struct ParquetObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// By range of bytes; known once the metadata were read.
    checksums: HashMap<Range<u64>, u32>,
}

impl ParquetObject {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: Path) -> Self {
        Self {
            store,
            path,
            checksums: HashMap::new(),
        }
    }

    fn compare(&self, range: &Range<u64>, bytes: &[u8]) -> Result<()> {
        let what = match self.checksums.get(range) {
            None => "has no checksum",
            Some(expected) if *expected != crc32fast::hash(bytes) => "is damaged",
            Some(_) => return Ok(()),
        };
        let Range { start, end } = range;
        Err(ParquetError::General(format!(
            "the chunk at bytes {start} to {end} {what}"
        )))
    }
}

fn checksums_of(metadata: &ParquetMetaData) -> Option<HashMap<Range<u64>, u32>> {
    let entries = metadata.file_metadata().key_value_metadata()?;
    let entry = entries.iter().find(|entry| entry.key == CHECKSUMS)?;
    let read = |chunk: &str| {
        let (range, crc) = chunk.split_once('=')?;
        let (start, end) = range.split_once('-')?;
        let range = start.parse().ok()?..end.parse().ok()?;
        Some((range, u32::from_str_radix(crc, 16).ok()?))
    };
    entry.value.as_ref()?.split_whitespace().map(read).collect()
}

fn external(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for ParquetObject {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            let bytes = self.store.get_range(&self.path, range.clone());
            let bytes = bytes.map_err(external).await?;
            self.compare(&range, &bytes)?;
            Ok(bytes)
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let all = self.store.get_ranges(&self.path, &ranges);
            let all = all.map_err(external).await?;
            for (range, bytes) in ranges.iter().zip(&all) {
                self.compare(range, bytes)?;
            }
            Ok(all)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let size = self.store.head(&self.path).await.map_err(external)?.size;
            let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
            let source = Unchecked(&*self.store, &self.path);
            let metadata = reader.load_and_finish(source, size).await?;
            self.checksums = checksums_of(&metadata)
                .ok_or_else(|| ParquetError::General("its checksums can't be read".to_owned()))?;
            Ok(Arc::new(metadata))
        }
        .boxed()
    }
}

/// The same file before its checksums are known.
struct Unchecked<'a>(&'a dyn ObjectStore, &'a Path);

impl parquet::arrow::async_reader::MetadataFetch for Unchecked<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        self.0.get_range(self.1, range).map_err(external).boxed()
    }
}
