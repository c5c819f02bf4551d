//! What bare clients do, to compare with: they move the same bytes and make nothing of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::batch::{Batch, BatchType};
use tests::servers;

/// How long a bare consumer may be without a message.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// As many rows of one partition as the system writes in one step, and as many steps at once.
const STEP_ROWS: usize = 50;
const AT_ONCE: usize = 128;

/// Reads a topic from its beginning to its end with one consumer; how many messages came.
pub(crate) fn consume(topic: &str, partitions: i32) -> u64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers::kafka())
        .set("group.id", "backstitch-bench")
        .set("enable.auto.commit", "false")
        .set("check.crcs", "true")
        .create()
        .expect("a consumer");
    let mut from = TopicPartitionList::new();
    let mut left = 0;
    for partition in 0..partitions {
        let marks = consumer.fetch_watermarks(topic, partition, SILENCE_MAX);
        let (low, high) = marks.expect("where the partition ends");
        left += high - low;
        from.add_partition_offset(topic, partition, Offset::Beginning)
            .expect("an offset");
    }
    consumer.assign(&from).expect("an assignment");
    let mut count = 0;
    let mut bytes = 0;
    // Nothing here aborts transactions, so offsets have no holes.
    while left > 0 {
        let message = consumer.poll(SILENCE_MAX).expect("a message in time");
        bytes += rdkafka::Message::payload(&message.expect("a message")).map_or(0, <[u8]>::len);
        count += 1;
        left -= 1;
    }
    assert!(bytes > 0, "messages have bytes");
    count
}

/// Writes so many rows of the shape of a view's, by partition, in batches; how long it took.
pub(crate) async fn write_rows(count: u64) -> Duration {
    let session: Session = SessionBuilder::new()
        .known_node(servers::cassandra())
        .build()
        .await
        .expect("a session");
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
    let begun = Instant::now();
    let steps = count / STEP_ROWS as u64;
    futures::stream::iter(0..steps)
        .map(|step| {
            let (session, insert) = (&session, Arc::clone(&insert));
            async move {
                let mut batch = Batch::new(BatchType::Unlogged);
                let rows: Vec<_> = (0..STEP_ROWS as u64)
                    .map(|row| {
                        batch.append_statement((*insert).clone());
                        let part = (step / 20).to_be_bytes().to_vec();
                        let row = format!("{:032}", step * STEP_ROWS as u64 + row).into_bytes();
                        (part, row, 1_i64, 1_i64, 1_i64)
                    })
                    .collect();
                session.batch(&batch, rows).await.map(drop)
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
        .expect("rows are written");
    let took = begun.elapsed();
    let drop_it = format!("DROP KEYSPACE {keyspace}");
    session.query_unpaged(drop_it, ()).await.expect("a schema");
    took
}
