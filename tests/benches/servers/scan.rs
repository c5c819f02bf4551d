//! Scanning the complete table of a view: rows per second from Cassandra by number of concurrent
//! readers, compared with the driver alone and with SQLite.

use std::num::NonZeroU32;
use std::time::Duration;

use arrow::array::{BinaryArray, Int64Array};
use futures::{StreamExt, TryStreamExt, stream};
use schemas::key::KeyShape;
use schemas::source::Source;
use schemas::time::BucketWidth;
use stores::cassandra::{Cassandra, CassandraOptions};
use stores::embedded::DataFolder;
use stores::namespace::Namespace;
use stores::view_scan::{ScanShare, ViewsScan};
use stores::views::{AggregateShape, NewRows, ViewsWrite};
use tests::direct_access::Cql;
use tests::servers;
use tokio::runtime::Runtime;

use super::{ROUNDS, bare, measure_time, median, print_rates, rate};

const VIEW: &str = "scan@1";
/// Rows of one table partition, as in the plays detail view. Every `WIDE_PART` partitions, the
/// second half form a single one.
const PART_ROWS: u64 = 20;
const WIDE_PART: u64 = 100;
/// Rows published in one call.
const STEP_ROWS: u64 = 100_000;
/// Rows of a page.
const PAGE_ROWS: usize = 10_000;
/// Numbers of concurrent readers. Each processes shares in turn, so that the total number of shares
/// stays the same.
const READERS: [usize; 3] = [1, 2, 4];
const SHARES: u32 = 16;

pub(crate) fn run(rows: u64) {
    let wide = PART_ROWS * WIDE_PART / 2;
    println!(
        "scan: {rows} rows of an aggregate view, in table partitions of {PART_ROWS} and of {wide}"
    );
    let runtime = Runtime::new().expect("a runtime");
    from_cassandra(&runtime, rows);
    from_sqlite(&runtime, rows);
}

fn from_cassandra(runtime: &Runtime, rows: u64) {
    let namespace = servers::namespace();
    let options = CassandraOptions {
        nodes: servers::cassandra(),
        ..CassandraOptions::default()
    };
    let opened = runtime.block_on(async {
        Cassandra::migrate(&options, &namespace).await?;
        Ok::<_, stores::Error>(Cassandra::open(&options, &namespace).await?.views())
    });
    let views = opened.expect("a keyspace");
    runtime.block_on(fill(&views, rows));
    let (mut bare, mut scans) = (Vec::new(), vec![Vec::new(); READERS.len()]);
    for _ in 0..ROUNDS {
        let (took, read_rows) = measure_time(|| runtime.block_on(read_bare(&namespace, VIEW)));
        assert_eq!(read_rows, rows);
        bare.push(rate(rows, took));
        for (readers, rates) in READERS.iter().zip(&mut scans) {
            let took = measure_scan(runtime, &views, *readers, rows);
            rates.push(rate(rows, took));
        }
    }
    let bare = print_rates("the driver alone, the same columns, one reader", &bare);
    for (readers, rates) in READERS.iter().zip(scans) {
        let ratio = median(rates.clone()) / bare;
        print_rates(
            &format!("Cassandra, {readers} readers (ratio {ratio:.2})"),
            &rates,
        );
    }
    let removed = runtime.block_on(Cassandra::remove(&options, &namespace));
    removed.expect("the keyspace is deleted");
}

fn from_sqlite(runtime: &Runtime, rows: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let views = runtime.block_on(async { DataFolder::open(folder.path())?.views().await });
    let views = views.expect("a data folder");
    runtime.block_on(fill(&views, rows));
    let rates = (0..ROUNDS).map(|_| rate(rows, measure_scan(runtime, &views, 1, rows)));
    print_rates("SQLite, one reader", &rates.collect::<Vec<_>>());
}

/// Writes rows as the run of an epoch does.
async fn fill(views: &dyn ViewsWrite, rows: u64) {
    let shape = AggregateShape {
        view: VIEW.to_owned(),
        group: KeyShape::default(),
        partition: BucketWidth::All,
        row: KeyShape::default(),
    };
    let source = Source::Plays;
    let written = async {
        views.ensure_view(source, &shape.into()).await?;
        let run = views.propose(source, 1, &[], "bench", 1).await?;
        views.seal(source, 1, "bench").await?;
        for from in (0..rows).step_by(usize::try_from(STEP_ROWS).unwrap_or(usize::MAX)) {
            let numbers = || from..rows.min(from + STEP_ROWS);
            let parts =
                numbers().map(|n| AggregateShape::encode_partition_key(0, &part(n).to_be_bytes()));
            let load = NewRows {
                partitions: BinaryArray::from_iter_values(parts),
                rows: BinaryArray::from_iter_values(numbers().map(|n| format!("{n:032}"))),
                counts: Int64Array::from_iter_values(numbers().map(u64::cast_signed)),
            };
            views.publish(source, VIEW, 1, run.stamp_us, &load).await?;
        }
        Ok::<_, stores::Error>(())
    };
    written.await.expect("rows are written");
}

/// Returns the partition number of a row, which never decreases.
fn part(row: u64) -> u64 {
    let part = row / PART_ROWS;
    part.min(part / WIDE_PART * WIDE_PART + WIDE_PART / 2)
}

/// Measures a scan.
fn measure_scan(runtime: &Runtime, views: &dyn ViewsScan, readers: usize, rows: u64) -> Duration {
    let share_count = if readers == 1 {
        NonZeroU32::MIN
    } else {
        NonZeroU32::new(SHARES).expect("some shares")
    };
    let shares = ScanShare::list_all(share_count).map(|share| scan(views, share));
    let shares: Vec<_> = shares.collect();
    let row_count = stream::iter(shares).buffer_unordered(readers);
    let row_count = row_count.fold(0, async |sum, share_rows| sum + share_rows);
    let (took, scanned_rows) = measure_time(|| runtime.block_on(row_count));
    assert_eq!(scanned_rows, rows, "every row is read once");
    took
}

/// Returns the number of rows of a share.
async fn scan(views: &dyn ViewsScan, share: ScanShare) -> u64 {
    let (mut row_count, mut after) = (0, None);
    loop {
        let page = views.scan_rows(VIEW, share, after.as_ref(), PAGE_ROWS);
        let page = page.await.expect("an answer").expect("a table");
        row_count += page.counts.values().len() as u64;
        after = page.next;
        if after.is_none() {
            return row_count;
        }
    }
}

/// Returns the number of rows of a view that the driver alone reads.
pub(crate) async fn read_bare(namespace: &Namespace, view: &str) -> u64 {
    let session = bare::session().await;
    let keyspace = namespace.identifier("backstitch");
    let id = Cql::connect(namespace).await.id(view).await;
    let rows =
        format!("SELECT part, row, count, epoch, WRITETIME(epoch) FROM {keyspace}.rows_{id}");
    let rows = session.query_iter(rows, ()).await.expect("rows");
    let rows = rows.rows_stream::<(Vec<u8>, Vec<u8>, i64, i64, i64)>();
    let count = rows
        .expect("rows")
        .try_fold(0, async |count, _| Ok(count + 1));
    count.await.expect("all rows")
}
