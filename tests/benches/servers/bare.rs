//! Bare clients for comparison: they transfer the same bytes and process nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};
use schemas::avro::WriterSchemas;
use schemas::plays::{Decoder, Line};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::batch::{Batch, BatchType};
use stores::namespace::Namespace;
use tests::direct_access::Cql;
use tests::servers;

/// Maximum wait of a bare consumer for a message.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Messages decoded in one batch, and batches in the channel.
const BATCH_RECORDS: usize = 5_000;
const CHANNEL_BATCHES: usize = 4;
/// Rows of one partition in a step, and concurrent steps, as in the system.
const STEP_ROWS: usize = 50;
/// Rows of a partition that consists of full steps.
const WIDE_ROWS: u64 = 1_000;
const CONCURRENT_STEPS: usize = 128;

/// Reads a topic from beginning to end with one consumer; returns the number of messages.
pub(crate) fn consume(topic: &str, partitions: i32) -> u64 {
    let mut bytes = 0;
    let count = each_message(topic, partitions, |_, _, value| bytes += value.len());
    assert!(bytes > 0, "messages have bytes");
    count
}

/// Reads a topic and decodes its messages like the speed layer, on a second thread; returns the
/// number of events.
pub(crate) fn consume_and_decode(topic: &str, partitions: i32) -> u64 {
    let (batches, received) = std::sync::mpsc::sync_channel::<Records>(CHANNEL_BATCHES);
    let decoding = std::thread::spawn(move || {
        let mut events = 0;
        for batch in received {
            let lines = batch.ends.iter().enumerate().map(|(index, end)| {
                let from = index
                    .checked_sub(1)
                    .and_then(|previous| batch.ends.get(previous));
                Line {
                    offset: batch.offsets[index],
                    logged_at_ms: 0,
                    bytes: &batch.values[from.copied().unwrap_or(0)..*end],
                }
            });
            let decoder = Decoder::new(batch.partition.cast_unsigned());
            let decoded = decoder.decode_records(lines, &WriterSchemas::default());
            events += decoded.expect("plays").events.num_rows() as u64;
        }
        events
    });
    let mut open: Vec<Records> = (0..partitions).map(Records::new).collect();
    each_message(topic, partitions, |partition, offset, value| {
        let records = &mut open[usize::try_from(partition).expect("a partition")];
        records.offsets.push(offset);
        records.values.extend_from_slice(value);
        records.ends.push(records.values.len());
        if records.ends.len() == BATCH_RECORDS {
            let full = std::mem::replace(records, Records::new(partition));
            batches.send(full).expect("a decoder");
        }
    });
    for records in open {
        batches.send(records).expect("a decoder");
    }
    drop(batches);
    decoding.join().expect("a decoder")
}

/// Some messages of a partition.
struct Records {
    partition: i32,
    offsets: Vec<i64>,
    values: Vec<u8>,
    /// The end of each value.
    ends: Vec<usize>,
}

impl Records {
    const fn new(partition: i32) -> Self {
        Self {
            partition,
            offsets: Vec::new(),
            values: Vec::new(),
            ends: Vec::new(),
        }
    }
}

/// Passes partition, offset and value of each message of a topic to `take`; returns the number of
/// messages.
fn each_message(topic: &str, partitions: i32, mut handle: impl FnMut(i32, i64, &[u8])) -> u64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers::kafka())
        .set("group.id", "backstitch-bench")
        .set("enable.auto.commit", "false")
        .set("check.crcs", "true")
        .create()
        .expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    let mut remaining = 0;
    for partition in 0..partitions {
        let watermarks = consumer.fetch_watermarks(topic, partition, SILENCE_MAX);
        let (low, high) = watermarks.expect("where the partition ends");
        remaining += high - low;
        offsets
            .add_partition_offset(topic, partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&offsets).expect("an assignment");
    let mut count = 0;
    // No producer here aborts transactions, so offsets have no gaps.
    while remaining > 0 {
        let message = consumer.poll(SILENCE_MAX).expect("a message in time");
        let message = message.expect("a message");
        let value = message.payload().unwrap_or_default();
        handle(message.partition(), message.offset(), value);
        count += 1;
        remaining -= 1;
    }
    count
}

/// Returns partition sizes that form only full steps: `rows` rows in partitions of [`WIDE_ROWS`].
pub(crate) fn full_steps(rows: u64) -> Vec<u64> {
    let whole = usize::try_from(rows / WIDE_ROWS).expect("a number of partitions");
    let last_size = rows % WIDE_ROWS;
    std::iter::repeat_n(WIDE_ROWS, whole)
        .chain((last_size > 0).then_some(last_size))
        .collect()
}

/// Writes rows in the shape of a view's, in batches of one partition each, with one partition for
/// each size; returns the time.
pub(crate) async fn write_rows(sizes: &[u64]) -> Duration {
    let session = session().await;
    let keyspace = format!("bench_{}", servers::namespace()).replace('-', "_");
    let replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    for text in [
        format!("CREATE KEYSPACE {keyspace} WITH replication = {replication}"),
        format!(
            "CREATE TABLE {keyspace}.rows (part blob, row blob, count bigint, epoch bigint, \
             PRIMARY KEY (part, row))"
        ),
    ] {
        session.query_unpaged(text, ()).await.expect("a schema");
    }
    let insert = format!(
        "INSERT INTO {keyspace}.rows (part, row, count, epoch) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    );
    let insert = Arc::new(session.prepare(insert).await.expect("a statement"));
    let steps = sizes.iter().zip(0_u64..).flat_map(|(size, part)| {
        let from = (0..*size).step_by(STEP_ROWS);
        from.map(move |from| (part, from..(from + STEP_ROWS as u64).min(*size)))
    });
    let begun = Instant::now();
    futures::stream::iter(steps)
        .map(|(part, rows)| {
            let (session, insert) = (&session, Arc::clone(&insert));
            async move {
                let mut batch = Batch::new(BatchType::Unlogged);
                let rows: Vec<_> = rows
                    .map(|row| {
                        batch.append_statement((*insert).clone());
                        let row = format!("{row:032}").into_bytes();
                        (part.to_be_bytes().to_vec(), row, 1_i64, 1_i64, 1_i64)
                    })
                    .collect();
                session.batch(&batch, rows).await.map(drop)
            }
        })
        .buffer_unordered(CONCURRENT_STEPS)
        .try_collect::<()>()
        .await
        .expect("rows are written");
    let took = begun.elapsed();
    let drop_keyspace = format!("DROP KEYSPACE {keyspace}");
    session
        .query_unpaged(drop_keyspace, ())
        .await
        .expect("a schema");
    took
}

/// Returns the number of rows in each partition of a view's table.
pub(crate) async fn partitions(namespace: &Namespace, view: &str) -> Vec<u64> {
    let keyspace = namespace.identifier("backstitch");
    let id = Cql::connect(namespace).await.id(view).await;
    let text = format!("SELECT part FROM {keyspace}.rows_{id}");
    let parts = session().await.query_iter(text, ()).await.expect("rows");
    let mut parts = parts.rows_stream::<(Vec<u8>,)>().expect("rows");
    let (mut sizes, mut last) = (Vec::new(), None);
    while let Some((part,)) = parts.try_next().await.expect("all rows") {
        match sizes.last_mut() {
            Some(size) if last.as_ref() == Some(&part) => *size += 1,
            _ => sizes.push(1),
        }
        last = Some(part);
    }
    sizes
}

/// Opens a session of the driver.
pub(crate) async fn session() -> Session {
    let node = SessionBuilder::new().known_node(servers::cassandra());
    node.build().await.expect("a session")
}
