//! The ports of the log, and what they ask of the brokers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::Array;
use async_trait::async_trait;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset as At;
use rdkafka::types::RDKafkaErrorCode as Code;
use schemas::seam::Offset;
use tokio::sync::Semaphore;

use super::KafkaOptions;
use super::cluster::{Cluster, Ear, listen, off_thread};
use super::producer::Appender;
use super::reader::{Ahead, Partition, Read, Reader};
use super::readers::Readers;
use super::share;
use crate::log::{
    FetchLimit, Fetched, KeptFor, LogRead, LogWrite, NewRecords, Records, Share, Span,
};
use crate::namespace::Namespace;
use crate::{Error, ErrorKind, Result, tls};

/// How long it is believed how many partitions a topic has.
const PARTITIONS_FOR: Duration = Duration::from_secs(10);
/// Room that a record needs besides its key and value.
const RECORD_FRAME_BYTES: usize = 512;
/// How often it is looked whether a new topic can be used.
const LOOK: Duration = Duration::from_millis(20);

/// The log on Kafka.
#[derive(Debug, Clone)]
pub struct KafkaLog {
    inner: Arc<Inner>,
    /// Fetches under way.
    fetching: Arc<Semaphore>,
}

/// What calls that block work with.
pub(super) struct Inner {
    pub(super) cluster: Arc<Cluster>,
    /// A client that reads nothing, so that no request waits behind a fetch.
    pub(super) asker: Arc<BaseConsumer<Ear>>,
    readers: Readers,
    appender: Appender,
    /// How many partitions topics have, and when that was asked.
    partitions: Mutex<HashMap<String, (u32, Instant)>>,
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
    /// A log on these brokers. Nothing is asked of them yet.
    ///
    /// # Errors
    /// [`Error::Broken`] for options that can't be used.
    pub fn open(options: &KafkaOptions, namespace: &Namespace) -> Result<Self> {
        let cluster = Arc::new(Cluster::new(options, namespace));
        // The client's own message does not name the file.
        tls::certificates(&options.ca_file)?;
        let doing = "making a client";
        let mut config = cluster.config();
        config.set("isolation.level", "read_committed");
        let asker: BaseConsumer<Ear> = config
            .create_with_context(cluster.ear())
            .map_err(|error| cluster.fault(doing, &error))?;
        let asker = Arc::new(asker);
        let readers = Readers::new(options.consumers_max, Arc::downgrade(&asker))
            .map_err(|error| Error::broken(cluster.what(doing), error))?;
        Ok(Self {
            inner: Arc::new(Inner {
                readers,
                appender: Appender::new(Arc::clone(&cluster)),
                partitions: Mutex::default(),
                asker,
                cluster,
            }),
            fetching: Arc::new(Semaphore::new(options.consumers_max.max(1))),
        })
    }

    async fn fetch_as(
        &self,
        topic: &str,
        partition: u32,
        from: Begin,
        limit: FetchLimit,
    ) -> Result<Fetched> {
        let cluster = &self.inner.cluster;
        let name = cluster.namespace.topic(topic);
        let doing = format!("reading {name}/{partition}");
        let turn = Arc::clone(&self.fetching).acquire_owned();
        let turn = match tokio::time::timeout(cluster.options.request_timeout(), turn).await {
            Ok(turn) => turn.map_err(|error| Error::broken(cluster.what(&doing), error))?,
            Err(_) => {
                let why = "all consumers are busy; raise consumers_max";
                return Err(cluster.unavailable(&doing, why));
            }
        };
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let partition = Partition {
            topic: name,
            number,
        };
        self.blocking(move |inner| {
            let fetched = inner.fetch(&partition, from, limit, &doing);
            drop(turn);
            fetched
        })
        .await
    }

    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        off_thread(move || work(&inner)).await
    }
}

/// Where a fetch begins.
#[derive(Debug, Clone, Copy)]
enum Begin {
    /// Here, with what a kept reader has fetched ahead if there is one.
    Kept(Offset),
    /// Here, with nothing that was fetched before.
    Afresh(Offset),
    /// Here, with a reader that is given up afterwards.
    Apart(Offset),
}

#[async_trait]
impl LogRead for KafkaLog {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        let name = self.inner.cluster.namespace.topic(topic);
        let partitions = {
            let name = name.clone();
            let asked = self.blocking(move |inner| inner.partitions(&name));
            let Some(partitions) = asked.await? else {
                return Ok(Vec::new());
            };
            partitions
        };
        let (first, other) = (name.clone(), name);
        let (starts, ends) = tokio::join!(
            self.blocking(move |inner| inner.offsets(&first, 0..partitions, At::Beginning)),
            self.blocking(move |inner| inner.offsets(&other, 0..partitions, At::End)),
        );
        let spans = starts?.into_iter().zip(ends?);
        Ok(spans.map(|(start, end)| Span { start, end }).collect())
    }

    async fn partitions(&self, topic: &str) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        let known = self.inner.known().get(&name).copied();
        if let Some((partitions, asked)) = known
            && asked.elapsed() < PARTITIONS_FOR
        {
            return Ok(partitions);
        }
        let before = known.map_or(0, |(partitions, _)| partitions);
        let partitions = match self.partitions_now(topic).await {
            // A broker that has not heard of new ones yet is no reason to forget them.
            Ok(partitions) => partitions.max(before),
            // They can't have become fewer, and not every reader is to wait for brokers that are gone.
            Err(error) if before > 0 && error.kind() == ErrorKind::Retry => before,
            Err(error) => return Err(error),
        };
        if partitions > 0 {
            self.inner.note(&name, partitions);
        }
        Ok(partitions)
    }

    async fn partitions_now(&self, topic: &str) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        let asked = self.blocking(move |inner| inner.partitions(&name)).await;
        Ok(asked?.unwrap_or(0))
    }

    async fn end(&self, topic: &str, partition: u32) -> Result<Offset> {
        let topic = self.inner.cluster.namespace.topic(topic);
        let number = i32::try_from(partition).unwrap_or(i32::MAX);
        let partition = Partition { topic, number };
        let doing = format!("asking for the end of {}/{number}", partition.topic);
        let span = self.blocking(move |inner| inner.span(&partition, &doing));
        Ok(span.await?.end)
    }

    async fn ends(&self, topic: &str) -> Result<Vec<Offset>> {
        let partitions = self.partitions(topic).await?;
        if partitions == 0 {
            return Ok(Vec::new());
        }
        let name = self.inner.cluster.namespace.topic(topic);
        self.blocking(move |inner| inner.offsets(&name, 0..partitions, At::End))
            .await
    }

    async fn fetch(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<Fetched> {
        self.fetch_as(topic, partition, Begin::Kept(from), limit)
            .await
    }

    async fn fetch_apart(
        &self,
        topic: &str,
        partition: u32,
        from: Offset,
        limit: FetchLimit,
    ) -> Result<Fetched> {
        self.fetch_as(topic, partition, Begin::Apart(from), limit)
            .await
    }

    async fn fetch_afresh(&self, topic: &str, partition: u32, offset: Offset) -> Result<Fetched> {
        let one = FetchLimit {
            records: 1,
            bytes: usize::MAX,
        };
        self.fetch_as(topic, partition, Begin::Afresh(offset), one)
            .await
    }

    async fn kept_for(&self, topic: &str) -> Result<Option<KeptFor>> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.blocking(move |inner| inner.cluster.kept_for(&name))
            .await
    }

    async fn offset_at(&self, topic: &str, partition: u32, logged_at_ms: i64) -> Result<Offset> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.blocking(move |inner| {
            let one = partition..partition.saturating_add(1);
            // Below zero these mean something else.
            let moment = At::Offset(logged_at_ms.max(0));
            let found = inner.offsets(&name, one.clone(), moment)?;
            if let Some(found) = found.into_iter().find(|offset| *offset >= 0) {
                return Ok(found);
            }
            let end = inner.offsets(&name, one, At::End)?.into_iter().next();
            end.ok_or_else(|| {
                inner
                    .cluster
                    .unavailable("looking for a moment", "no answer")
            })
        })
        .await
    }

    async fn share(&self, topic: &str) -> Result<Share> {
        let cluster = &self.inner.cluster;
        share::join(cluster, cluster.namespace.topic(topic))
    }
}

#[async_trait]
impl LogWrite for KafkaLog {
    async fn ensure_topic(&self, topic: &str, partitions: u32) -> Result<u32> {
        let name = self.inner.cluster.namespace.topic(topic);
        self.blocking(move |inner| inner.ensure(&name, partitions))
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
        // Arrays are shared, so this copies no records.
        let groups = groups.to_vec();
        self.blocking(move |inner| inner.append(&name, &groups))
            .await
    }

    async fn trim(&self, topic: &str, before: &[Offset]) -> Result<()> {
        let spans = self.spans(topic).await?;
        // What begins later already is left alone, and nothing beyond the end is asked for.
        let before = before.iter().zip(&spans);
        let before = before.map(|(before, span)| match *before > span.start {
            true => (*before).min(span.end),
            false => 0,
        });
        let before: Vec<Offset> = before.collect();
        let name = self.inner.cluster.namespace.topic(topic);
        self.blocking(move |inner| inner.cluster.delete_before(&name, &before))
            .await
    }
}

impl Inner {
    /// How many partitions a topic has; nothing if there is no such topic.
    pub(super) fn partitions(&self, name: &str) -> Result<Option<u32>> {
        let doing = format!("looking for the topic {name}");
        let timeout = self.cluster.options.request_timeout();
        let fault = |error: &KafkaError| self.complain(&doing, error);
        let metadata = match self.asker.fetch_metadata(Some(name), timeout) {
            Ok(metadata) => metadata,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(fault(&error)),
        };
        let Some(topic) = metadata.topics().iter().find(|topic| topic.name() == name) else {
            return Ok(None);
        };
        if let Some(error) = topic.error() {
            let error = KafkaError::MetadataFetch(error.into());
            if is_missing(&error) {
                return Ok(None);
            }
            return Err(fault(&error));
        }
        let partitions = u32::try_from(topic.partitions().len()).unwrap_or(u32::MAX);
        if partitions == 0 {
            return Ok(None);
        }
        self.note(name, partitions);
        Ok(Some(partitions))
    }

    /// Remembers how many partitions a topic has: never fewer than before, since whoever is asked may not
    /// have heard of the newest.
    fn note(&self, name: &str, partitions: u32) {
        let mut known = self.known();
        let before = known.get(name).map_or(0, |(before, _)| *before);
        known.insert(name.to_owned(), (partitions.max(before), Instant::now()));
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.partitions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a partition that is not there.
    fn must_have(&self, name: &str, partition: u32) -> Result<()> {
        let known = self.known().get(name).copied();
        if known.is_some_and(|(n, at)| partition < n && at.elapsed() < PARTITIONS_FOR) {
            return Ok(());
        }
        let partitions = self.partitions(name)?.unwrap_or(0);
        if partition < partitions {
            return Ok(());
        }
        Err(Error::NoPartition {
            what: format!("{name}/{partition}, where there are {partitions} partitions"),
        })
    }

    /// What is where at `at`, by partition: the beginning, the end, or the first record of a moment,
    /// below zero if there is none.
    fn offsets(&self, name: &str, partitions: std::ops::Range<u32>, at: At) -> Result<Vec<Offset>> {
        let doing = format!("asking for offsets of {name}");
        let fault = |error: KafkaError| self.complain(&doing, &error);
        if let Some(last) = partitions.end.checked_sub(1) {
            self.must_have(name, last)?;
        }
        let mut asked = TopicPartitionList::new();
        for partition in partitions {
            let number = i32::try_from(partition).unwrap_or(i32::MAX);
            asked
                .add_partition_offset(name, number, at)
                .map_err(fault)?;
        }
        let timeout = self.cluster.options.request_timeout();
        let found = self
            .asker
            .offsets_for_times(asked, timeout)
            .map_err(fault)?;
        let offset = |one: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
            one.error().map_err(fault)?;
            Ok(match one.offset() {
                At::Offset(offset) => offset,
                _ => -1,
            })
        };
        found.elements().into_iter().map(offset).collect()
    }

    fn fetch(
        &self,
        partition: &Partition,
        from: Begin,
        limit: FetchLimit,
        doing: &str,
    ) -> Result<Fetched> {
        let Partition { topic, number } = partition;
        let (from, mut kept, ahead) = match from {
            Begin::Kept(from) => (from, self.readers.take(partition, from), Ahead::Much),
            Begin::Afresh(from) => (from, None, Ahead::Much),
            Begin::Apart(from) => (from, None, Ahead::Little),
        };
        let was_kept = kept.is_some();
        if !was_kept {
            self.must_have(topic, u32::try_from(*number).unwrap_or(u32::MAX))?;
            self.cluster.must_be_fit(topic)?;
        }
        let Span { start, end } = self.span(partition, doing)?;
        if !self.readers.goes_on(partition, end) {
            tracing::warn!(
                topic,
                partition = number,
                end,
                "the end of a partition went back"
            );
            kept = None;
        }
        if from < start || from > end {
            return Err(out_of_range(partition, from, Span { start, end }));
        }
        if from == end {
            if let Some(reader) = kept {
                self.readers.keep(reader);
            }
            return Ok(Fetched {
                records: Records::empty(),
                next_offset: from,
                end,
            });
        }
        let patience = self.cluster.options.request_timeout();
        let mut reader = match kept {
            Some(reader) => reader,
            None => Reader::open(&self.cluster, partition, from, ahead)?,
        };
        let mut read = reader.read(end, limit, patience);
        if was_kept && !matches!(&read, Ok(Read::Records(..))) {
            // What it was connected to may be gone, and an end that it told may be an old one.
            drop(reader);
            reader = Reader::open(&self.cluster, partition, from, ahead)?;
            read = reader.read(end, limit, patience);
        }
        match read {
            Ok(Read::Records(records, next_offset)) => {
                if ahead == Ahead::Much {
                    self.readers.keep(reader);
                    self.tell_lag(partition, next_offset, end);
                }
                Ok(Fetched {
                    records: *records,
                    next_offset,
                    end: end.max(next_offset),
                })
            }
            Ok(Read::Stuck) => {
                let why = format!("no record came, although the partition ends at {end}");
                Err(self.cluster.unavailable(doing, why))
            }
            Err(error) => Err(self.unread(partition, from, doing, &error)?),
        }
    }

    /// What it means for who reads from here on that no record could be read.
    fn unread(
        &self,
        partition: &Partition,
        from: Offset,
        doing: &str,
        error: &KafkaError,
    ) -> Result<Error> {
        let code = error.rdkafka_error_code();
        if matches!(code, Some(Code::OffsetOutOfRange | Code::AutoOffsetReset)) {
            // Records were deleted in this moment.
            return Ok(out_of_range(partition, from, self.span(partition, doing)?));
        }
        Ok(self.cluster.fault(doing, error))
    }

    /// What a partition holds: both ends in one round trip.
    fn span(&self, partition: &Partition, doing: &str) -> Result<Span> {
        let timeout = self.cluster.options.request_timeout();
        let asked = self
            .asker
            .fetch_watermarks(&partition.topic, partition.number, timeout);
        match asked {
            Ok((start, end)) => Ok(Span { start, end }),
            Err(error) => {
                self.readers.forget(&partition.topic);
                Err(self.complain(doing, &error))
            }
        }
    }

    fn tell_lag(&self, partition: &Partition, next: Offset, end: Offset) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::gauge!("backstitch_kafka_lag_records", "topic" => partition.topic.clone(),
            "partition" => partition.number.to_string())
        .set(end.saturating_sub(next).max(0) as f64);
    }

    /// Makes a topic if it is not there; answers how many partitions it has.
    fn ensure(&self, name: &str, partitions: u32) -> Result<u32> {
        if let Some(partitions) = self.partitions(name)? {
            self.cluster.must_be_fit(name)?;
            return Ok(partitions);
        }
        self.cluster.make_topic(name, partitions)?;
        let deadline = Instant::now() + self.cluster.options.request_timeout();
        loop {
            // Brokers learn of it one after the other, and its partitions need leaders.
            if let Some(partitions) = self.partitions(name)?
                && self.offsets(name, 0..partitions, At::End).is_ok()
            {
                self.cluster.must_be_fit(name)?;
                return Ok(partitions);
            }
            if Instant::now() >= deadline {
                let doing = format!("making the topic {name}");
                return Err(self.cluster.unavailable(&doing, "it can't be used yet"));
            }
            tokio::runtime::Handle::current().block_on(tokio::time::sleep(LOOK));
        }
    }

    fn append(&self, name: &str, groups: &[NewRecords]) -> Result<Vec<Offset>> {
        let bytes_max = self.cluster.options.record_bytes_max as usize;
        for group in groups {
            self.must_have(name, group.partition)?;
            check(name, group, bytes_max)?;
        }
        self.cluster.must_be_fit(name)?;
        let reported = self.appender.append(name, groups);
        let reported = reported.inspect_err(|_| {
            // To be asked again. Where that does not go, who reads still needs what was known.
            if let Some((_, asked)) = self.known().get_mut(name) {
                *asked = asked.checked_sub(PARTITIONS_FOR).unwrap_or(*asked);
            }
        })?;
        let mut firsts = Vec::with_capacity(groups.len());
        for (index, (group, first)) in groups.iter().zip(&reported).enumerate() {
            let place = match first {
                Some(first) => *first,
                None => self.place_of_none(name, groups, &reported, index, group.partition)?,
            };
            firsts.push(place);
        }
        Ok(firsts)
    }

    /// Where the first record of a group without any would be: where the next group of its partition
    /// begins, else the end.
    fn place_of_none(
        &self,
        name: &str,
        groups: &[NewRecords],
        firsts: &[Option<Offset>],
        index: usize,
        partition: u32,
    ) -> Result<Offset> {
        let after = groups.iter().zip(firsts).skip(index);
        let mut after = after.filter(|(group, _)| group.partition == partition);
        if let Some(first) = after.find_map(|(_, first)| *first) {
            return Ok(first);
        }
        let one = partition..partition.saturating_add(1);
        let ends = self.offsets(name, one, At::End)?;
        Ok(ends.into_iter().next().unwrap_or(0))
    }

    /// The meaning of an error of the asker, after what it has to say.
    pub(super) fn complain(&self, doing: &str, error: &KafkaError) -> Error {
        listen(&self.asker);
        self.cluster.fault(doing, error)
    }
}

/// What would be refused is, before anything is written.
fn check(name: &str, group: &NewRecords, bytes_max: usize) -> Result<()> {
    let (keys, values) = (&group.keys, &group.values);
    if keys.len() != values.len() {
        return Err(Error::Refused(format!(
            "{name}/{}: {} keys for {} values; give one for each",
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

fn out_of_range(partition: &Partition, asked: Offset, Span { start, end }: Span) -> Error {
    Error::OffsetOutOfRange {
        topic: partition.topic.clone(),
        partition: u32::try_from(partition.number).unwrap_or(u32::MAX),
        asked,
        start,
        end,
    }
}
