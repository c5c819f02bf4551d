//! Parquet files with checksums: the metadata of a file has a checksum for each column chunk, which
//! is verified before the chunk is used. The library writes none itself.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, TryFutureExt};
use moka::sync::Cache;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;

/// The metadata entry: `start-end=crc` of each column chunk, in bytes from the start of the file
/// and as a CRC-32 (ISO-HDLC) in hexadecimal, separated by spaces.
const CHECKSUMS: &str = "backstitch.chunk_crc32";

/// Starts a compressed file in memory with at most `group_rows_max` rows in a row group.
///
/// # Errors
/// A schema that Parquet can't represent.
pub fn begin(schema: SchemaRef, group_rows_max: usize) -> Result<ArrowWriter<Vec<u8>>> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
    let properties = build_properties(zstd, group_rows_max).build();
    ArrowWriter::try_new(Vec::new(), schema, Some(properties))
}

fn build_properties(compression: Compression, group_rows_max: usize) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(group_rows_max))
}

/// Starts a file whose rows are sorted by some binary columns. Their values are delta-encoded and
/// have no statistics.
///
/// # Errors
/// As [`begin`].
pub fn begin_sorted(
    schema: SchemaRef,
    group_rows_max: usize,
    sorted: &[&str],
) -> Result<ArrowWriter<Vec<u8>>> {
    let mut properties = build_properties(Compression::LZ4_RAW, group_rows_max);
    for name in sorted {
        let column = || ColumnPath::from(*name);
        properties = properties
            .set_column_dictionary_enabled(column(), false)
            .set_column_encoding(column(), Encoding::DELTA_BYTE_ARRAY)
            .set_column_statistics_enabled(column(), EnabledStatistics::None);
    }
    ArrowWriter::try_new(Vec::new(), schema, Some(properties.build()))
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
            .ok_or_else(|| {
                ParquetError::General("a column chunk is missing in the written file".to_owned())
            })?;
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

/// The size of the first read, from the end of the file: all of a small file, the metadata of
/// others.
const TAIL_BYTES: u64 = 512 << 10;

/// The minimum size of a read of row groups of a larger file.
const READ_AHEAD_BYTES: u64 = 1 << 20;

/// A cache of opened files, so that a later read of other row groups needs fewer requests. Files
/// never change.
#[derive(Debug, Clone)]
pub(crate) struct FileCache(Cache<Path, Arc<OpenFile>>);

impl FileCache {
    /// A cache with about this capacity in bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let weight = |_: &Path, file: &Arc<OpenFile>| {
            let bytes = file.contents.bytes.len() + file.metadata.memory_size();
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self(
            Cache::builder()
                .weigher(weight)
                .max_capacity(bytes_max)
                .build(),
        )
    }
}

/// A file whose metadata is loaded.
#[derive(Debug)]
struct OpenFile {
    metadata: Arc<ParquetMetaData>,
    /// The checksums by byte range.
    checksums: HashMap<Range<u64>, u32>,
    /// The content of a small file; empty for others.
    contents: FileBytes,
    size: u64,
}

/// A part of a file with its offset.
#[derive(Debug, Clone, Default)]
struct FileBytes {
    start: u64,
    bytes: Bytes,
}

impl FileBytes {
    /// The bytes of a range of the file; `None` if this part does not contain it.
    fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        let to_index = |offset: u64| usize::try_from(offset.checked_sub(self.start)?).ok();
        let range = to_index(range.start)?..to_index(range.end)?;
        self.bytes.get(range.clone())?;
        Some(self.bytes.slice(range))
    }

    /// The bytes of several ranges, if this part contains them all.
    fn get_all(&self, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
        ranges.iter().map(|range| self.get(range)).collect()
    }
}

impl OpenFile {
    async fn read(
        store: &dyn ObjectStore,
        path: &Path,
        options: Option<&ArrowReaderOptions>,
    ) -> Result<Self> {
        let size = store.head(path).await.map_err(external_error)?.size;
        let mut tail = FileBytes::default();
        if size > 0 {
            tail.start = size.saturating_sub(TAIL_BYTES);
            let bytes = store.get_range(path, tail.start..size);
            tail.bytes = bytes.await.map_err(external_error)?;
        }
        let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
        let source = UncheckedFile {
            store,
            path,
            tail: &tail,
        };
        let metadata = reader.load_and_finish(source, size).await?;
        let checksums = parse_checksums(&metadata)
            .ok_or_else(|| ParquetError::General("the file has no valid checksums".to_owned()))?;
        let is_complete = tail.start == 0;
        Ok(Self {
            metadata: Arc::new(metadata),
            checksums,
            contents: if is_complete {
                tail
            } else {
                FileBytes::default()
            },
            size,
        })
    }

    fn verify_checksum(&self, range: &Range<u64>, bytes: &[u8]) -> Result<()> {
        let problem = match self.checksums.get(range) {
            None => "has no checksum",
            Some(expected) if *expected != crc32fast::hash(bytes) => "is damaged",
            Some(_) => return Ok(()),
        };
        let Range { start, end } = range;
        Err(ParquetError::General(format!(
            "the chunk at bytes {start} to {end} {problem}"
        )))
    }
}

/// A Parquet file in an object store, read by ranges.
pub(crate) struct ParquetObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    cache: Option<FileCache>,
    /// Set after the metadata was loaded.
    file: Option<Arc<OpenFile>>,
    /// Data that was read ahead, because row groups may be many and small, and are read in order.
    read_ahead: FileBytes,
}

impl ParquetObject {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: Path, cache: Option<FileCache>) -> Self {
        Self {
            store,
            path,
            cache,
            file: None,
            read_ahead: FileBytes::default(),
        }
    }

    /// Reads ranges, from memory if possible.
    async fn read_ranges(&mut self, file: &OpenFile, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let in_memory = file.contents.get_all(ranges);
        if let Some(chunks) = in_memory.or_else(|| self.read_ahead.get_all(ranges)) {
            return Ok(chunks);
        }
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if end.saturating_sub(start) <= READ_AHEAD_BYTES {
            let range = start..start.saturating_add(READ_AHEAD_BYTES).min(file.size);
            let bytes = self.store.get_range(&self.path, range);
            self.read_ahead = FileBytes {
                start,
                bytes: bytes.map_err(external_error).await?,
            };
            if let Some(chunks) = self.read_ahead.get_all(ranges) {
                return Ok(chunks);
            }
        }
        let chunks = self.store.get_ranges(&self.path, ranges);
        chunks.map_err(external_error).await
    }

    async fn open(&mut self, options: Option<&ArrowReaderOptions>) -> Result<Arc<OpenFile>> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let cached = self
            .cache
            .as_ref()
            .and_then(|cache| cache.0.get(&self.path));
        let file = match cached {
            Some(cached) => cached,
            None => {
                let file = Arc::new(OpenFile::read(&*self.store, &self.path, options).await?);
                if let Some(cache) = &self.cache {
                    cache.0.insert(self.path.clone(), Arc::clone(&file));
                }
                file
            }
        };
        Ok(Arc::clone(self.file.insert(file)))
    }
}

fn parse_checksums(metadata: &ParquetMetaData) -> Option<HashMap<Range<u64>, u32>> {
    let entries = metadata.file_metadata().key_value_metadata()?;
    let entry = entries.iter().find(|entry| entry.key == CHECKSUMS)?;
    let parse_chunk = |chunk: &str| {
        let (range, crc) = chunk.split_once('=')?;
        let (start, end) = range.split_once('-')?;
        let range = start.parse().ok()?..end.parse().ok()?;
        Some((range, u32::from_str_radix(crc, 16).ok()?))
    };
    entry
        .value
        .as_ref()?
        .split_whitespace()
        .map(parse_chunk)
        .collect()
}

fn external_error(error: object_store::Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl AsyncFileReader for ParquetObject {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            let chunks = self.get_byte_ranges(vec![range]).await?;
            let bytes = chunks.into_iter().next();
            bytes.ok_or_else(|| {
                ParquetError::General("the store returned no data for a chunk".to_owned())
            })
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let file = self.open(None).await?;
            let chunks = self.read_ranges(&file, &ranges).await?;
            for (range, bytes) in ranges.iter().zip(&chunks) {
                file.verify_checksum(range, bytes)?;
            }
            Ok(chunks)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let file = self.open(options).await?;
            Ok(Arc::clone(&file.metadata))
        }
        .boxed()
    }
}

/// A file whose metadata is not loaded yet, so its bytes are read without checksums.
struct UncheckedFile<'a> {
    store: &'a dyn ObjectStore,
    path: &'a Path,
    tail: &'a FileBytes,
}

impl MetadataFetch for UncheckedFile<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        match self.tail.get(&range) {
            Some(bytes) => std::future::ready(Ok(bytes)).boxed(),
            None => {
                let bytes = self.store.get_range(self.path, range);
                bytes.map_err(external_error).boxed()
            }
        }
    }
}
