//! Implements the ports of the log, and sends their requests to the brokers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::Array;
use async_trait::async_trait;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as KafkaOffset;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use tokio::sync::Semaphore;

use super::KafkaOptions;
use super::cluster::{ClientCallbacks, Cluster, drain_events, run_blocking};
use super::group_membership;
use super::producer::Appender;
use super::reader::{Partition, Prefetch, ReadOutcome, Reader};
use super::reader_pool::ReaderPool;
use crate::log::{
    FetchLimit, FetchedRecords, GroupMembership, LogRead, LogWrite, NewRecords, Records, Span,
    TopicRetention,
};
use crate::namespace::Namespace;
use crate::{Error, ErrorKind, Result, tls};

/// How long the number of partitions of a topic is cached.
const PARTITION_COUNT_TTL: Duration = Duration::from_secs(10);
/// Space that a record needs besides its key and value.
const RECORD_FRAME_BYTES: usize = 512;
/// Pause between two checks whether a new topic is ready.
const NEW_TOPIC_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The log on Kafka.
#[derive(Debug, Clone)]
pub struct KafkaLog {
    inner: Arc<Inner>,
    /// Limits concurrent fetches.
    fetches: Arc<Semaphore>,
}

/// State that blocking calls share.
pub(super) struct Inner {
    pub(super) cluster: Arc<Cluster>,
    /// A client for metadata only. It reads no records, so that no request waits behind a fetch.
    pub(super) metadata_client: Arc<BaseConsumer<ClientCallbacks>>,
    readers: ReaderPool,
    appender: Appender,
    /// The numbers of partitions of topics, and when they were read.
    partition_counts: Mutex<HashMap<String, (u32, Instant)>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("cluster", &self.cluster)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

impl KafkaLog {
    /// Creates the clients of a log. Does not connect to the brokers yet.
    ///
    /// # Errors
    /// [`Error::Broken`] for invalid options.
    pub fn open(options: &KafkaOptions, namespace: &Namespace) -> Result<Self> {
        let cluster = Arc::new(Cluster::new(options, namespace));
        // Checked here because the client's message does not name the file.
        tls::read_certificates(&options.ca_file)?;
        let operation = "creating a client";
        let mut config = cluster.build_config();
        config.set("isolation.level", "read_committed");
        let metadata_client: BaseConsumer<ClientCallbacks> = config
            .create_with_context(cluster.callbacks())
            .map_err(|error| cluster.classify_error(operation, &error))?;
        let metadata_client = Arc::new(metadata_client);
        let readers = ReaderPool::new(options.consumers_max, Arc::downgrade(&metadata_client))
            .map_err(|error| Error::broken(cluster.describe(operation), error))?;
        Ok(Self {
            inner: Arc::new(Inner {
                readers,
                appender: Appender::new(Arc::clone(&cluster)),
                partition_counts: Mutex::default(),
                metadata_client,
                cluster,
            }),
            fetches: Arc::new(Semaphore::new(options.consumers_max.max(1))),
        })
    }

    async fn fetch_from(
        &self,
        topic: &str,
        partition: u32,
        from: FetchStart,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        let cluster = &self.inner.cluster;
        let name = cluster.namespace.topic(topic);
        let operation = format!("reading {name}/{partition}");
        let permit = Arc::clone(&self.fetches).acquire_owned();
        let permit = match tokio::time::timeout(cluster.options.request_timeout(), permit).await {
            Ok(permit) => {
                permit.map_err(|error| Error::broken(cluster.describe(&operation), error))?
            }
            Err(_) => {
                let reason = "all consumers are busy; raise consumers_max";
                return Err(cluster.unavailable(&operation, reason));
            }
        };
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let partition = Partition {
            topic: name,
            number,
        };
        self.run_blocking(move |inner| {
            let fetched = inner.fetch(&partition, from, limit, &operation);
            drop(permit);
            fetched
        })
        .await
    }

    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        run_blocking(move || call(&inner)).await
    }
}

/// The offset at which a fetch starts, and the reader that it uses.
#[derive(Debug, Clone, Copy)]
enum FetchStart {
    /// Uses an idle reader at this offset, with its prefetched records, if there is one.
    Resume(Offset),
    /// Uses a new reader, because prefetched records may be outdated.
    Fresh(Offset),
    /// Uses a new reader with little prefetching, and closes it afterwards.
    OneOff(Offset),
}

#[async_trait]
impl LogRead for KafkaLog {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        let topic_name = self.inner.cluster.namespace.topic(topic);
        let partitions = {
            let topic_name = topic_name.clone();
            let count = self.run_blocking(move |inner| inner.fetch_partition_count(&topic_name));
            let Some(partitions) = count.await? else {
                return Ok(Vec::new());
            };
            partitions
        };
        let (start_topic, end_topic) = (topic_name.clone(), topic_name);
        let range = 0..partitions;
        let (starts, ends) = tokio::join!(
            self.run_blocking({
                let range = range.clone();
                move |inner| inner.fetch_offsets(&start_topic, range, KafkaOffset::Beginning)
            }),
            self.run_blocking(move |inner| inner.fetch_offsets(
                &end_topic,
                range,
                KafkaOffset::End
            )),
        );
        let spans = starts?.into_iter().zip(ends?);
        Ok(spans.map(|(start, end)| Span { start, end }).collect())
    }

    async fn partition_count(&self, topic: &str) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        let cached = self.inner.lock_partition_counts().get(&name).copied();
        if let Some((partitions, read_at)) = cached
            && read_at.elapsed() < PARTITION_COUNT_TTL
        {
            return Ok(partitions);
        }
        let cached_count = cached.map_or(0, |(partitions, _)| partitions);
        let partitions = match self.current_partition_count(topic).await {
            // A broker's metadata may not include new partitions yet.
            Ok(partitions) => partitions.max(cached_count),
            // The number never decreases, so readers need not wait for unreachable brokers.
            Err(error) if cached_count > 0 && error.kind() == ErrorKind::Retry => cached_count,
            Err(error) => return Err(error),
        };
        if partitions > 0 {
            self.inner.cache_partition_count(&name, partitions);
        }
        Ok(partitions)
    }

    async fn current_partition_count(&self, topic: &str) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        let partitions = self
            .run_blocking(move |inner| inner.fetch_partition_count(&name))
            .await;
        Ok(partitions?.unwrap_or(0))
    }

    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let topic = self.inner.cluster.namespace.topic(topic);
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let partition = Partition { topic, number };
        let operation = format!("reading the end of {}/{number}", partition.topic);
        let span = self.run_blocking(move |inner| inner.fetch_span(&partition, &operation));
        Ok(span.await?.end)
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let partitions = self.partition_count(topic).await?;
        if partitions == 0 {
            return Ok(Vec::new());
        }
        let name = self.inner.cluster.namespace.topic(topic);
        self.run_blocking(move |inner| inner.fetch_offsets(&name, 0..partitions, KafkaOffset::End))
            .await
    }

    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        self.fetch_from(topic, partition, FetchStart::Resume(from), limit)
            .await
    }

    async fn fetch_once(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        self.fetch_from(topic, partition, FetchStart::OneOff(from), limit)
            .await
    }

    async fn fetch_fresh(
        &self,
        topic: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<FetchedRecords> {
        let single_record = FetchLimit {
            records: 1,
            bytes: usize::MAX,
        };
        self.fetch_from(topic, partition, FetchStart::Fresh(offset), single_record)
            .await
    }

    async fn retention(&self, topic: &str) -> Result<Option<TopicRetention>> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.run_blocking(move |inner| inner.cluster.fetch_retention(&name))
            .await
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.run_blocking(move |inner| {
            let range = partition..partition.saturating_add(1);
            // Negative values are special offsets, not times.
            let time = KafkaOffset::Offset(logged_at_ms.max(0));
            let offsets = inner.fetch_offsets(&name, range.clone(), time)?;
            if let Some(offset) = offsets.into_iter().find(|offset| *offset >= 0) {
                return Ok(offset);
            }
            let ends = inner.fetch_offsets(&name, range, KafkaOffset::End)?;
            ends.into_iter().next().ok_or_else(|| {
                let operation = format!("looking up an offset of {name}/{partition} by time");
                let reason = "the brokers returned no offset";
                inner.cluster.unavailable(&operation, reason)
            })
        })
        .await
    }

    async fn join_group(&self, topic: &str) -> Result<GroupMembership> {
        let cluster = &self.inner.cluster;
        group_membership::join(cluster, cluster.namespace.topic(topic))
    }
}

#[async_trait]
impl LogWrite for KafkaLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.run_blocking(move |inner| inner.ensure_topic(&name, partitions))
            .await
    }

    async fn append(
        &self,
        topic: &str,
        groups: &[NewRecords],
        _logged_at_ms: i64,
    ) -> Result<Vec<Offset>> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let name = self.inner.cluster.namespace.topic(topic);
        // Arrow arrays are reference-counted, so this copies no records.
        let groups = groups.to_vec();
        self.run_blocking(move |inner| inner.append(&name, &groups))
            .await
    }

    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        let spans = self.spans(topic).await?;
        // Skips partitions that already start at or after the offset, and never deletes beyond the
        // end.
        let starts = before.iter().zip(&spans);
        let starts = starts.map(|(start, span)| match *start > span.start {
            true => (*start).min(span.end),
            false => 0,
        });
        let starts: Vec<Offset> = starts.collect();
        let name = self.inner.cluster.namespace.topic(topic);
        self.run_blocking(move |inner| inner.cluster.delete_before(&name, &starts))
            .await
    }
}

impl Inner {
    /// Fetches the number of partitions of a topic; `None` if the topic does not exist.
    pub(super) fn fetch_partition_count(&self, name: &str) -> Result<Option<u32>> {
        let operation = format!("reading the partitions of the topic {name}");
        let timeout = self.cluster.options.request_timeout();
        let metadata = match self.metadata_client.fetch_metadata(Some(name), timeout) {
            Ok(metadata) => metadata,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(self.metadata_error(&operation, &error)),
        };
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
            return Ok(None);
        };
        if let Some(error) = topic.error() {
            let error = KafkaError::MetadataFetch(error.into());
            if is_missing(&error) {
                return Ok(None);
            }
            return Err(self.metadata_error(&operation, &error));
        }
        let partitions = u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX);
        if partitions == 0 {
            return Ok(None);
        }
        self.cache_partition_count(name, partitions);
        Ok(Some(partitions))
    }

    /// Caches the number of partitions of a topic. The cached number never decreases, because a
    /// broker's metadata may not include the newest partitions.
    fn cache_partition_count(&self, name: &str, partitions: u32) {
        let mut counts = self.lock_partition_counts();
        let previous = counts.get(name).map_or(0, |(previous, _)| *previous);
        counts.insert(name.to_owned(), (partitions.max(previous), Instant::now()));
    }

    fn lock_partition_counts(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.partition_counts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails unless the partition exists.
    fn check_exists(&self, name: &str, partition: u32) -> Result<()> {
        let cached = self.lock_partition_counts().get(name).copied();
        if let Some((partitions, read_at)) = cached
            && partition < partitions
            && read_at.elapsed() < PARTITION_COUNT_TTL
        {
            return Ok(());
        }
        let partitions = self.fetch_partition_count(name)?.unwrap_or(0);
        if partition < partitions {
            return Ok(());
        }
        Err(Error::NoPartition {
            operation: format!("{name}/{partition} (the topic has {partitions} partitions)"),
        })
    }

    /// Looks up an offset in each partition. `target` selects the beginning, the end, or the first
    /// record at or after a time; the result is negative if there is no such record.
    fn fetch_offsets(
        &self,
        name: &str,
        partitions: std::ops::Range<u32>,
        target: KafkaOffset,
    ) -> Result<Vec<Offset>> {
        let operation = format!("reading offsets of {name}");
        let classify = |error: KafkaError| self.metadata_error(&operation, &error);
        if let Some(last) = partitions.end.checked_sub(1) {
            self.check_exists(name, last)?;
        }
        let mut request = TopicPartitionList::new();
        for partition in partitions {
            let number = i32::try_from(partition).unwrap_or(i32::MAX);
            request
                .add_partition_offset(name, number, target)
                .map_err(classify)?;
        }
        let timeout = self.cluster.options.request_timeout();
        let response = self
            .metadata_client
            .offsets_for_times(request, timeout)
            .map_err(classify)?;
        let offset = |partition: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            partition.error().map_err(classify)?;
            Ok(match partition.offset() {
                KafkaOffset::Offset(offset) => offset,
                _ => -1,
            })
        };
        response.elements().into_iter().map(offset).collect()
    }

    fn fetch(
        &self,
        partition: &Partition,
        from: FetchStart,
        limit: FetchLimit,
        operation: &str,
    ) -> Result<FetchedRecords> {
        let Partition { topic, number } = partition;
        let (from, mut idle, prefetch) = match from {
            FetchStart::Resume(from) => (from, self.readers.take(partition, from), Prefetch::Large),
            FetchStart::Fresh(from) => (from, None, Prefetch::Large),
            FetchStart::OneOff(from) => (from, None, Prefetch::Small),
        };
        let was_idle = idle.is_some();
        if !was_idle {
            self.check_exists(topic, u32::try_from(*number).unwrap_or(u32::MAX))?;
            self.cluster.check_not_compacted(topic)?;
        }
        let Span { start, end } = self.fetch_span(partition, operation)?;
        if !self.readers.record_end(partition, end) {
            tracing::warn!(
                topic,
                partition = number,
                end,
                "the end offset of a partition decreased: the topic was recreated or records were lost"
            );
            idle = None;
        }
        if from < start || from > end {
            return Err(out_of_range_error(partition, from, Span { start, end }));
        }
        if from == end {
            if let Some(reader) = idle {
                self.readers.put_back(reader);
            }
            return Ok(FetchedRecords {
                records: Records::empty(),
                next_offset: from,
                end,
            });
        }
        let timeout = self.cluster.options.request_timeout();
        let mut reader = match idle {
            Some(reader) => reader,
            None => Reader::open(&self.cluster, partition, from, prefetch)?,
        };
        let mut outcome = reader.read(end, limit, timeout);
        if was_idle && !matches!(&outcome, Ok(ReadOutcome::Records(..))) {
            // The reader's connection may be broken, and an end of partition that it reported may
            // be outdated.
            drop(reader);
            reader = Reader::open(&self.cluster, partition, from, prefetch)?;
            outcome = reader.read(end, limit, timeout);
        }
        match outcome {
            Ok(ReadOutcome::Records(records, next_offset)) => {
                if prefetch == Prefetch::Large {
                    self.readers.put_back(reader);
                    self.report_lag(partition, next_offset, end);
                }
                Ok(FetchedRecords {
                    records: *records,
                    next_offset,
                    end: end.max(next_offset),
                })
            }
            Ok(ReadOutcome::Stalled) => {
                let reason = format!("received no record, although the partition ends at {end}");
                Err(self.cluster.unavailable(operation, reason))
            }
            Err(error) => Err(self.classify_read_error(partition, from, operation, &error)?),
        }
    }

    /// Converts the error of a read that started at `from`.
    fn classify_read_error(
        &self,
        partition: &Partition,
        from: Offset,
        operation: &str,
        error: &KafkaError,
    ) -> Result<Error> {
        let code = error.rdkafka_error_code();
        if matches!(code, Some(Code::OffsetOutOfRange | Code::AutoOffsetReset)) {
            // The records were deleted during the read.
            let span = self.fetch_span(partition, operation)?;
            return Ok(out_of_range_error(partition, from, span));
        }
        Ok(self.cluster.classify_error(operation, error))
    }

    /// Reads the start and the end of a partition in one round trip.
    fn fetch_span(&self, partition: &Partition, operation: &str) -> Result<Span> {
        let timeout = self.cluster.options.request_timeout();
        let (topic, number) = (&partition.topic, partition.number);
        match (self.metadata_client).fetch_watermarks(topic, number, timeout) {
            Ok((start, end)) => Ok(Span { start, end }),
            Err(error) => {
                self.readers.close_topic(topic);
                Err(self.metadata_error(operation, &error))
            }
        }
    }

    fn report_lag(&self, partition: &Partition, next: Offset, end: Offset) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_kafka_lag_records", "topic" => partition.topic.clone(),
            "partition" => partition.number.to_string())
        .set(end.saturating_sub(next).max(0) as f64);
    }

    /// Creates a topic if it does not exist, and returns its number of partitions.
    fn ensure_topic(&self, name: &str, partitions: u32) -> Result<u32> {
        if let Some(partitions) = self.fetch_partition_count(name)? {
            self.cluster.check_not_compacted(name)?;
            return Ok(partitions);
        }
        self.cluster.create_topic(name, partitions)?;
        let deadline = Instant::now() + self.cluster.options.request_timeout();
        loop {
            // The topic is usable when the broker's metadata includes it and its partitions have
            // leaders.
            if let Some(partitions) = self.fetch_partition_count(name)?
                && self
                    .fetch_offsets(name, 0..partitions, KafkaOffset::End)
                    .is_ok()
            {
                self.cluster.check_not_compacted(name)?;
                return Ok(partitions);
            }
            if Instant::now() >= deadline {
                let operation = format!("creating the topic {name}");
                let reason = "its partitions have no leaders yet";
                return Err(self.cluster.unavailable(&operation, reason));
            }
            let pause = tokio::time::sleep(NEW_TOPIC_POLL_INTERVAL);
            tokio::runtime::Handle::current().block_on(pause);
        }
    }

    fn append(&self, name: &str, groups: &[NewRecords]) -> Result<Vec<Offset>> {
        let bytes_max = self.cluster.options.record_bytes_max as usize;
        for group in groups {
            self.check_exists(name, group.partition)?;
            check_sizes(name, group, bytes_max)?;
        }
        self.cluster.check_not_compacted(name)?;
        let appended = self.appender.append(name, groups);
        let first_offsets = appended.inspect_err(|_| {
            // Marks the cached number as outdated instead of removing it: readers need it while the
            // brokers are unreachable.
            if let Some((_, read_at)) = self.lock_partition_counts().get_mut(name) {
                *read_at = read_at.checked_sub(PARTITION_COUNT_TTL).unwrap_or(*read_at);
            }
        })?;
        let mut offsets = Vec::with_capacity(groups.len());
        for (index, (group, first_offset)) in groups.iter().zip(&first_offsets).enumerate() {
            let offset = match first_offset {
                Some(offset) => *offset,
                None => {
                    let partition = group.partition;
                    self.find_offset_of_empty_group(name, groups, &first_offsets, index, partition)?
                }
            };
            offsets.push(offset);
        }
        Ok(offsets)
    }

    /// Finds the offset to return for an empty group: the first offset of the next
    /// group of the same partition, else the end of the partition.
    fn find_offset_of_empty_group(
        &self,
        name: &str,
        groups: &[NewRecords],
        first_offsets: &[Option<Offset>],
        index: usize,
        partition: u32,
    ) -> Result<Offset> {
        let later = groups.iter().zip(first_offsets).skip(index);
        let mut later = later.filter(|(group, _)| group.partition == partition);
        if let Some(offset) = later.find_map(|(_, first_offset)| *first_offset) {
            return Ok(offset);
        }
        let range = partition..partition.saturating_add(1);
        let ends = self.fetch_offsets(name, range, KafkaOffset::End)?;
        Ok(ends.into_iter().next().unwrap_or(0))
    }

    /// Converts an error of the metadata client, after its callbacks have received the queued
    /// events.
    pub(super) fn metadata_error(&self, operation: &str, error: &KafkaError) -> Error {
        drain_events(&self.metadata_client);
        self.cluster.classify_error(operation, error)
    }
}

/// Fails if a record is too large or lacks a key, before any record is appended.
fn check_sizes(name: &str, group: &NewRecords, bytes_max: usize) -> Result<()> {
    let (keys, values) = (&group.keys, &group.values);
    if keys.len() != values.len() {
        return Err(Error::Refused(format!(
            "{name}/{}: {} keys for {} values; pass one key for each value",
            group.partition,
            keys.len(),
            values.len()
        )));
    }
    for index in 0..values.len() {
        let bytes = keys.value(index).len() + values.value(index).len() + RECORD_FRAME_BYTES;
        if bytes > bytes_max {
            return Err(Error::Refused(format!(
                "{name}/{}: a record of {bytes} bytes is larger than {bytes_max}; raise the option record_bytes_max and the topic's max.message.bytes",
                group.partition
            )));
        }
    }
    Ok(())
}

fn is_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition)
    )
}

fn out_of_range_error(partition: &Partition, requested: Offset, span: Span) -> Error {
    let Span { start, end } = span;
    Error::OffsetOutOfRange {
        topic: partition.topic.clone(),
        partition: u32::try_from(partition.number).unwrap_or(u32::MAX),
        requested,
        start,
        end,
    }
}
