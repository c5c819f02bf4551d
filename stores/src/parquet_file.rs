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

/// The metadata entry: `start-end=crc` of each column chunk, in bytes from the file's beginning and
/// as a CRC-32 (ISO-HDLC) in hexadecimal, separated by spaces.
const CHECKSUMS: &str = "backstitch.chunk_crc32";

/// A file in memory: compressed, with at most `group_rows_max` rows in a row group.
///
/// # Errors
/// A schema that Parquet can't hold.
pub fn begin(schema: SchemaRef, group_rows_max: usize) -> Result<ArrowWriter<Vec<u8>>> {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1)?);
    let properties = properties(zstd, group_rows_max).build();
    ArrowWriter::try_new(Vec::new(), schema, Some(properties))
}

fn properties(compression: Compression, group_rows_max: usize) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(group_rows_max))
}

/// The same, of which rows come in the order of some columns of bytes: each value is written as what differs from the one
/// before, and nothing is said of their least and largest ones.
///
/// # Errors
/// As [`begin`].
pub fn begin_sorted(
    schema: SchemaRef,
    group_rows_max: usize,
    sorted: &[&str],
) -> Result<ArrowWriter<Vec<u8>>> {
    let mut properties = properties(Compression::LZ4_RAW, group_rows_max);
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

/// What is read of a file with one request, from its end: a small one wholly, of others the metadata.
const TAIL_BYTES: u64 = 512 << 10;

/// What is read at once, at least, of the row groups of a larger file.
const AHEAD_BYTES: u64 = 1 << 20;

/// What is known of files that were read, so that who comes back for another of their row groups asks
/// for nothing, or for those only. Files are never written twice.
#[derive(Debug, Clone)]
pub(crate) struct KnownFiles(Cache<Path, Arc<Opened>>);

impl KnownFiles {
    /// With at most so many bytes of them in memory, about.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let weigh = |_: &Path, file: &Arc<Opened>| {
            let bytes = file.whole.bytes.len() + file.metadata.memory_size();
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self(
            Cache::builder()
                .weigher(weigh)
                .max_capacity(bytes_max)
                .build(),
        )
    }
}

/// A file whose metadata were read.
#[derive(Debug)]
struct Opened {
    metadata: Arc<ParquetMetaData>,
    /// By range of bytes.
    checksums: HashMap<Range<u64>, u32>,
    /// All of a small file, nothing of others.
    whole: Stretch,
    size: u64,
}

/// Bytes of a file, and where in it they begin.
#[derive(Debug, Clone, Default)]
struct Stretch {
    start: u64,
    bytes: Bytes,
}

impl Stretch {
    /// The bytes at a range of the file; nothing if they are not all here.
    fn at(&self, range: &Range<u64>) -> Option<Bytes> {
        let at = |offset: u64| usize::try_from(offset.checked_sub(self.start)?).ok();
        let range = at(range.start)?..at(range.end)?;
        self.bytes.get(range.clone())?;
        Some(self.bytes.slice(range))
    }

    /// The same for several ranges.
    fn all_at(&self, ranges: &[Range<u64>]) -> Option<Vec<Bytes>> {
        ranges.iter().map(|range| self.at(range)).collect()
    }
}

impl Opened {
    async fn read(
        store: &dyn ObjectStore,
        path: &Path,
        options: Option<&ArrowReaderOptions>,
    ) -> Result<Self> {
        let size = store.head(path).await.map_err(external)?.size;
        let mut tail = Stretch::default();
        if size > 0 {
            tail.start = size.saturating_sub(TAIL_BYTES);
            let bytes = store.get_range(path, tail.start..size);
            tail.bytes = bytes.await.map_err(external)?;
        }
        let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
        let source = Unchecked {
            store,
            path,
            tail: &tail,
        };
        let metadata = reader.load_and_finish(source, size).await?;
        let checksums = checksums_of(&metadata)
            .ok_or_else(|| ParquetError::General("its checksums can't be read".to_owned()))?;
        let is_whole = tail.start == 0;
        Ok(Self {
            metadata: Arc::new(metadata),
            checksums,
            whole: if is_whole { tail } else { Stretch::default() },
            size,
        })
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

/// A Parquet file in an object store, read by ranges.
pub(crate) struct ParquetObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    known: Option<KnownFiles>,
    /// Set once the metadata were read.
    opened: Option<Arc<Opened>>,
    /// What was read ahead: row groups may be many and small, and are read one after the other.
    ahead: Stretch,
}

impl ParquetObject {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, path: Path, known: Option<KnownFiles>) -> Self {
        Self {
            store,
            path,
            known,
            opened: None,
            ahead: Stretch::default(),
        }
    }

    /// Bytes at some ranges, from what is in memory where they all are.
    async fn read(&mut self, opened: &Opened, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let at_hand = opened.whole.all_at(ranges);
        if let Some(all) = at_hand.or_else(|| self.ahead.all_at(ranges)) {
            return Ok(all);
        }
        let first = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let last = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if last.saturating_sub(first) <= AHEAD_BYTES {
            let range = first..first.saturating_add(AHEAD_BYTES).min(opened.size);
            let bytes = self.store.get_range(&self.path, range);
            self.ahead = Stretch {
                start: first,
                bytes: bytes.map_err(external).await?,
            };
            if let Some(all) = self.ahead.all_at(ranges) {
                return Ok(all);
            }
        }
        let all = self.store.get_ranges(&self.path, ranges);
        all.map_err(external).await
    }

    async fn open(&mut self, options: Option<&ArrowReaderOptions>) -> Result<Arc<Opened>> {
        if let Some(opened) = &self.opened {
            return Ok(Arc::clone(opened));
        }
        let found = self
            .known
            .as_ref()
            .and_then(|known| known.0.get(&self.path));
        let opened = match found {
            Some(found) => found,
            None => {
                let opened = Arc::new(Opened::read(&*self.store, &self.path, options).await?);
                if let Some(known) = &self.known {
                    known.0.insert(self.path.clone(), Arc::clone(&opened));
                }
                opened
            }
        };
        Ok(Arc::clone(self.opened.insert(opened)))
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
            let all = self.get_byte_ranges(vec![range]).await?;
            let bytes = all.into_iter().next();
            bytes.ok_or_else(|| ParquetError::General("no bytes of a chunk".to_owned()))
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let opened = self.open(None).await?;
            let all = self.read(&opened, &ranges).await?;
            for (range, bytes) in ranges.iter().zip(&all) {
                opened.compare(range, bytes)?;
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
            let opened = self.open(options).await?;
            Ok(Arc::clone(&opened.metadata))
        }
        .boxed()
    }
}

/// The same file before its checksums are known.
struct Unchecked<'a> {
    store: &'a dyn ObjectStore,
    path: &'a Path,
    tail: &'a Stretch,
}

impl MetadataFetch for Unchecked<'_> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        match self.tail.at(&range) {
            Some(bytes) => std::future::ready(Ok(bytes)).boxed(),
            None => {
                let bytes = self.store.get_range(self.path, range);
                bytes.map_err(external).boxed()
            }
        }
    }
}
