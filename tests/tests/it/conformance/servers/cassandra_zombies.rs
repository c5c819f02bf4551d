//! Overtaken writers whose requests are delayed: a late request changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{BinaryArray, Int64Array};
use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::Cut;
use schemas::source::Source;
use schemas::time::BucketWidth;
use stores::cassandra::{Cassandra, CassandraOptions, CassandraViews};
use stores::namespace::Namespace;
use stores::views::{
    AggregateShape, BoardShape, NewHead, NewRows, NewVersion, NodeName, PartitionQuery, ViewShape,
    ViewsRead, ViewsWrite,
};
use stores::{ErrorKind, Result};
use tests::proxy::{Gate, Holds, Proxy};
use tests::servers;
use tokio::task::JoinSet;

const PLAYS: Source = Source::Plays;
const AGGREGATE: &str = "tally@1";
const BOARD: &str = "board@1";
const KEYS: u8 = 40;

/// The operation of an overtaken writer.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Rows,
    Versions,
    Collect,
}

fn rows(count: i64) -> NewRows {
    let keys = || (0..2_000_i64).map(i64::to_be_bytes);
    NewRows {
        partitions: BinaryArray::from_iter_values(keys().map(|key| key[..7].to_vec())),
        rows: BinaryArray::from_iter_values(keys()),
        counts: keys().map(|_| Some(count)).collect::<Int64Array>(),
    }
}

/// Versions of all keys. Each shares one node with all others and has one of its own.
fn versions(marker: u8) -> Vec<NewVersion> {
    let names = || [[0; 16], [1; 16], [marker; 16]];
    let version = |key: u8| NewVersion {
        key: vec![key],
        nodes: names()
            .map(|name| (name, Bytes::from(name.to_vec())))
            .to_vec(),
        head: Some(NewHead {
            root: Bytes::from(vec![marker]),
            names: names().to_vec(),
        }),
        rewrites_nodes: false,
        drops_earlier_root: false,
    };
    (0..KEYS).map(version).collect()
}

async fn run_operation(
    views: &CassandraViews,
    operation: Operation,
    stamp_us: i64,
    marker: u8,
) -> Result<()> {
    match operation {
        Operation::Rows => {
            views
                .publish(PLAYS, AGGREGATE, 1, stamp_us, &rows(i64::from(marker)))
                .await
        }
        Operation::Versions => {
            views
                .publish_versions(PLAYS, BOARD, 1, stamp_us, &versions(marker))
                .await
        }
        Operation::Collect => views
            .collect_garbage(PLAYS, BOARD, (1, stamp_us), 10_000)
            .await
            .map(drop),
    }
}

/// Checks that all rows are as the attempt `marker` left them.
async fn check_written_by(views: &CassandraViews, marker: u8) -> Result<()> {
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| vec![key]).collect();
    for (key, head) in keys
        .iter()
        .zip(views.heads(BOARD, &keys).await?.expect("a table"))
    {
        let head = head.expect("a head");
        assert_eq!(head.root.to_vec(), [marker], "the head of {key:?}");
        let names: [NodeName; 3] = [[0; 16], [1; 16], [marker; 16]];
        let nodes = views.nodes(BOARD, key, &names).await?;
        assert!(nodes.iter().all(Option::is_some), "{key:?}: {nodes:?}");
    }
    let queries: Vec<PartitionQuery> = (0..2_000_i64)
        .step_by(256)
        .map(|key| PartitionQuery {
            partition: key.to_be_bytes()[..7].to_vec(),
            range: (Vec::new(), None),
        })
        .collect();
    let table_rows = views.rows(AGGREGATE, &queries).await?.expect("a table");
    assert_eq!(table_rows.counts.iter().flatten().count(), 2_000);
    assert!(
        table_rows
            .counts
            .iter()
            .flatten()
            .all(|count| count == i64::from(marker))
    );
    Ok(())
}

async fn begin_publishing_both(views: &CassandraViews) -> Result<i64> {
    let results = [AGGREGATE, BOARD].map(|view| (view.to_owned(), "result".to_owned()));
    views
        .begin_publishing(PLAYS, 1, &BTreeMap::from(results), 1)
        .await
}

fn view_shapes() -> [ViewShape; 2] {
    let no_columns = KeyShape::default;
    [
        ViewShape::Aggregate(AggregateShape {
            view: AGGREGATE.to_owned(),
            group: no_columns(),
            partition: BucketWidth::All,
            row: no_columns(),
        }),
        ViewShape::Board(BoardShape {
            view: BOARD.to_owned(),
            key: no_columns(),
            boards: no_columns(),
            member: no_columns(),
            score: no_columns(),
            payload: no_columns(),
        }),
    ]
}

/// A keyspace with two clients; the gate can delay the requests of the first client.
async fn open_two_clients(
    options: &CassandraOptions,
    namespace: &Namespace,
    gate: &Arc<Gate>,
) -> Result<(Proxy, Arc<CassandraViews>, CassandraViews)> {
    Cassandra::migrate(options, namespace).await?;
    let proxy = Proxy::start(&servers::cassandra(), gate).await;
    let gated = CassandraOptions {
        nodes: proxy.address.clone(),
        ..options.clone()
    };
    let slow = Cassandra::open(&gated, namespace).await?.views();
    let quick = Cassandra::open(options, namespace).await?.views();
    Ok((proxy, Arc::new(slow), quick))
}

/// Once a newer attempt has published, late requests of a delayed writer change nothing. This holds
/// for every operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_requests_change_nothing() -> Result<()> {
    let namespace = servers::namespace();
    let options = CassandraOptions {
        request_timeout_ms: 30_000,
        ..servers::cassandra_options(&servers::cassandra())
    };
    let gate = Arc::<Gate>::default();
    let (_proxy, slow, views) = open_two_clients(&options, &namespace, &gate).await?;
    for shape in view_shapes() {
        views.ensure_view(PLAYS, &shape).await?;
    }
    views.propose(PLAYS, 1, &[Cut::start()], "t", 1).await?;
    views.seal(PLAYS, 1, "t").await?;
    let mut marker = 10;
    for delay_ms in [0, 4, 8, 15, 30, 60] {
        for operation in [Operation::Rows, Operation::Versions, Operation::Collect] {
            marker += 2;
            let stamp_us = begin_publishing_both(&slow).await?;
            let late_writer = Arc::clone(&slow);
            let mut task = JoinSet::new();
            task.spawn(
                async move { run_operation(&late_writer, operation, stamp_us, marker).await },
            );
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            gate.hold(Holds::Requests);
            // Wait until the requests have reached the gate.
            tokio::time::sleep(Duration::from_millis(5)).await;
            let newer_stamp_us = begin_publishing_both(&views).await?;
            for operation in [Operation::Rows, Operation::Versions, Operation::Collect] {
                run_operation(&views, operation, newer_stamp_us, marker + 1).await?;
            }
            check_written_by(&views, marker + 1).await?;
            gate.hold(Holds::Nothing);
            let ended = task
                .join_next()
                .await
                .expect("a task")
                .expect("the task ends");
            if let Err(error) = ended {
                assert_eq!(error.kind(), ErrorKind::Reject, "{operation:?}: {error}");
            }
            check_written_by(&views, marker + 1).await?;
        }
    }
    Cassandra::remove(&options, &namespace).await
}

/// A process that drops old views is delayed halfway. A view that another process publishes
/// meanwhile keeps its tables, rows and records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_cleanup_drops_nothing() -> Result<()> {
    let namespace = servers::namespace();
    let options = CassandraOptions {
        request_timeout_ms: 60_000,
        retry_timeout_ms: 60_000,
        // How long to wait for the lock of a delayed process.
        lease_ms: 5_000,
        ..servers::cassandra_options(&servers::cassandra())
    };
    let gate = Arc::<Gate>::default();
    let (_proxy, slow, views) = open_two_clients(&options, &namespace, &gate).await?;
    views.propose(PLAYS, 1, &[Cut::start()], "t", 1).await?;
    views.seal(PLAYS, 1, "t").await?;
    for delay_ms in [0, 3, 6, 10, 20, 40, 80, 160, 320] {
        let [shape, _] = view_shapes();
        views.ensure_view(PLAYS, &shape).await?;
        let stamp_us = begin_publishing_both(&slow).await?;
        let late_writer = Arc::clone(&slow);
        let mut task = JoinSet::new();
        task.spawn(async move { late_writer.forget_views(PLAYS, (1, stamp_us), &[]).await });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        gate.hold(Holds::Requests);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let result = format!("of {delay_ms}");
        let results = BTreeMap::from([(AGGREGATE.to_owned(), result.clone())]);
        let publish = async || {
            views.ensure_view(PLAYS, &shape).await?;
            let newer_stamp_us = views.begin_publishing(PLAYS, 1, &results, 1).await?;
            let rows = rows(delay_ms.cast_signed());
            views
                .publish(PLAYS, AGGREGATE, 1, newer_stamp_us, &rows)
                .await?;
            views
                .complete(PLAYS, (1, newer_stamp_us), &results, false, 1)
                .await
        };
        while let Err(error) = publish().await {
            assert_eq!(error.kind(), ErrorKind::Reject, "{delay_ms}: {error}");
            // Until here, the view was about to be dropped.
            gate.hold(Holds::Nothing);
        }
        gate.hold(Holds::Nothing);
        let ended = task
            .join_next()
            .await
            .expect("a task")
            .expect("the task ends");
        eprintln!("{delay_ms} ms: {ended:?}");
        let runs = views.runs(PLAYS).await?;
        assert_eq!(
            runs.complete_epochs.get(AGGREGATE),
            Some(&1),
            "after {delay_ms} ms"
        );
        let published = views.results(PLAYS).await?;
        assert_eq!(published[AGGREGATE].published, Some(result));
        let query = PartitionQuery {
            partition: 0_i64.to_be_bytes()[..7].to_vec(),
            range: (Vec::new(), None),
        };
        let table_rows = views.rows(AGGREGATE, &[query]).await?.expect("a table");
        assert_eq!(table_rows.counts.iter().flatten().count(), 256);
    }
    Cassandra::remove(&options, &namespace).await
}
