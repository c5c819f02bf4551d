//! Overtaken writers whose requests are delayed: a late request changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{BinaryArray, Int64Array};
use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::Cut;
use schemas::source::Source;
use schemas::time::Width;
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
const TALLY: &str = "tally@1";
const BOARD: &str = "board@1";
const KEYS: u8 = 40;

/// The operation of an overtaken writer.
#[derive(Debug, Clone, Copy)]
enum Act {
    Rows,
    Editions,
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
fn editions(own: u8) -> Vec<NewVersion> {
    let names = || [[0; 16], [1; 16], [own; 16]];
    let edition = |key: u8| NewVersion {
        key: vec![key],
        nodes: names()
            .map(|name| (name, Bytes::from(name.to_vec())))
            .to_vec(),
        head: Some(NewHead {
            root: Bytes::from(vec![own]),
            names: names().to_vec(),
        }),
        rewrites_nodes: false,
        drops_earlier_root: false,
    };
    (0..KEYS).map(edition).collect()
}

async fn act(views: &CassandraViews, act: Act, stamp_us: i64, own: u8) -> Result<()> {
    match act {
        Act::Rows => {
            views
                .publish(PLAYS, TALLY, 1, stamp_us, &rows(i64::from(own)))
                .await
        }
        Act::Editions => {
            views
                .publish_versions(PLAYS, BOARD, 1, stamp_us, &editions(own))
                .await
        }
        Act::Collect => views
            .collect_garbage(PLAYS, BOARD, (1, stamp_us), 10_000)
            .await
            .map(drop),
    }
}

/// Checks that all rows are as the attempt `own` left them.
async fn is_of(views: &CassandraViews, own: u8) -> Result<()> {
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| vec![key]).collect();
    for (key, head) in keys
        .iter()
        .zip(views.heads(BOARD, &keys).await?.expect("a table"))
    {
        let head = head.expect("a head");
        assert_eq!(head.root.to_vec(), [own], "the head of {key:?}");
        let names: [NodeName; 3] = [[0; 16], [1; 16], [own; 16]];
        let nodes = views.nodes(BOARD, key, &names).await?;
        assert!(nodes.iter().all(Option::is_some), "{key:?}: {nodes:?}");
    }
    let parts: Vec<PartitionQuery> = (0..2_000_i64)
        .step_by(256)
        .map(|key| PartitionQuery {
            partition: key.to_be_bytes()[..7].to_vec(),
            range: (Vec::new(), None),
        })
        .collect();
    let found = views.rows(TALLY, &parts).await?.expect("a table");
    assert_eq!(found.counts.iter().flatten().count(), 2_000);
    assert!(
        found
            .counts
            .iter()
            .flatten()
            .all(|count| count == i64::from(own))
    );
    Ok(())
}

async fn begin(views: &CassandraViews) -> Result<i64> {
    let results = [TALLY, BOARD].map(|view| (view.to_owned(), "result".to_owned()));
    views
        .begin_publishing(PLAYS, 1, &BTreeMap::from(results), 1)
        .await
}

fn shapes() -> [ViewShape; 2] {
    let none = KeyShape::default;
    [
        ViewShape::Aggregate(AggregateShape {
            view: TALLY.to_owned(),
            group: none(),
            partition: Width::All,
            row: none(),
        }),
        ViewShape::Board(BoardShape {
            view: BOARD.to_owned(),
            key: none(),
            boards: none(),
            member: none(),
            score: none(),
            payload: none(),
        }),
    ]
}

/// A keyspace with two clients; the requests of the first one can be held at the gate.
async fn slow_and_quick(
    options: &CassandraOptions,
    namespace: &Namespace,
    gate: &Arc<Gate>,
) -> Result<(Proxy, Arc<CassandraViews>, CassandraViews)> {
    Cassandra::migrate(options, namespace).await?;
    let proxy = Proxy::to(&servers::cassandra(), gate).await;
    let held_back = CassandraOptions {
        nodes: proxy.address.clone(),
        ..options.clone()
    };
    let slow = Cassandra::open(&held_back, namespace).await?.views();
    let quick = Cassandra::open(options, namespace).await?.views();
    Ok((proxy, Arc::new(slow), quick))
}

/// Whatever a writer was doing when it was held: once a newer attempt has published, its late
/// requests change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_late_changes_nothing() -> Result<()> {
    let namespace = servers::namespace();
    let options = CassandraOptions {
        request_timeout_ms: 30_000,
        ..servers::cassandra_options(&servers::cassandra())
    };
    let gate = Arc::<Gate>::default();
    let (_proxy, slow, views) = slow_and_quick(&options, &namespace, &gate).await?;
    for shape in shapes() {
        views.ensure_view(PLAYS, &shape).await?;
    }
    views.propose(PLAYS, 1, &[Cut::start()], "t", 1).await?;
    views.seal(PLAYS, 1, "t").await?;
    let mut own = 10;
    for delay_ms in [0, 4, 8, 15, 30, 60] {
        for doing in [Act::Rows, Act::Editions, Act::Collect] {
            own += 2;
            let stamp_us = begin(&slow).await?;
            let late = Arc::clone(&slow);
            let mut task = JoinSet::new();
            task.spawn(async move { act(&late, doing, stamp_us, own).await });
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            gate.hold(Holds::Requests);
            // Wait until the requests have reached the gate.
            tokio::time::sleep(Duration::from_millis(5)).await;
            let newer = begin(&views).await?;
            for doing in [Act::Rows, Act::Editions, Act::Collect] {
                act(&views, doing, newer, own + 1).await?;
            }
            is_of(&views, own + 1).await?;
            gate.hold(Holds::Nothing);
            let ended = task.join_next().await.expect("a task").expect("it ends");
            if let Err(error) = ended {
                assert_eq!(error.kind(), ErrorKind::Reject, "{doing:?}: {error}");
            }
            is_of(&views, own + 1).await?;
        }
    }
    Cassandra::remove(&options, &namespace).await
}

/// A process that drops old views is delayed halfway. A view that another process publishes
/// meanwhile keeps its tables, rows and records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_forgets_late_drops_nothing() -> Result<()> {
    let namespace = servers::namespace();
    let options = CassandraOptions {
        request_timeout_ms: 60_000,
        retry_timeout_ms: 60_000,
        // How long to wait for the lock of a delayed process.
        lease_ms: 5_000,
        ..servers::cassandra_options(&servers::cassandra())
    };
    let gate = Arc::<Gate>::default();
    let (_proxy, slow, views) = slow_and_quick(&options, &namespace, &gate).await?;
    views.propose(PLAYS, 1, &[Cut::start()], "t", 1).await?;
    views.seal(PLAYS, 1, "t").await?;
    for delay_ms in [0, 3, 6, 10, 20, 40, 80, 160, 320] {
        let [shape, _] = shapes();
        views.ensure_view(PLAYS, &shape).await?;
        let stamp_us = begin(&slow).await?;
        let late = Arc::clone(&slow);
        let mut task = JoinSet::new();
        task.spawn(async move { late.forget_views(PLAYS, (1, stamp_us), &[]).await });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        gate.hold(Holds::Requests);
        tokio::time::sleep(Duration::from_millis(5)).await;
        let result = format!("of {delay_ms}");
        let results = BTreeMap::from([(TALLY.to_owned(), result.clone())]);
        let publish = async || {
            views.ensure_view(PLAYS, &shape).await?;
            let newer = views.begin_publishing(PLAYS, 1, &results, 1).await?;
            let rows = rows(delay_ms.cast_signed());
            views.publish(PLAYS, TALLY, 1, newer, &rows).await?;
            views.complete(PLAYS, (1, newer), &results, false, 1).await
        };
        while let Err(error) = publish().await {
            assert_eq!(error.kind(), ErrorKind::Reject, "{delay_ms}: {error}");
            // Until here, the view was about to be dropped.
            gate.hold(Holds::Nothing);
        }
        gate.hold(Holds::Nothing);
        let ended = task.join_next().await.expect("a task").expect("it ends");
        eprintln!("{delay_ms} ms: {ended:?}");
        let seen = views.runs(PLAYS).await?;
        assert_eq!(
            seen.complete_epochs.get(TALLY),
            Some(&1),
            "after {delay_ms} ms"
        );
        let published = views.results(PLAYS).await?;
        assert_eq!(published[TALLY].published, Some(result));
        let query = PartitionQuery {
            partition: 0_i64.to_be_bytes()[..7].to_vec(),
            range: (Vec::new(), None),
        };
        let found = views.rows(TALLY, &[query]).await?.expect("a table");
        assert_eq!(found.counts.iter().flatten().count(), 256);
    }
    Cassandra::remove(&options, &namespace).await
}
