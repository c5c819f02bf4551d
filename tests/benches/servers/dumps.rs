//! Dumps of PostgreSQL by number of connections and size of ranges, compared with its own `COPY`.

use futures::TryStreamExt;
use schemas::source::Source;
use stores::entities::EntityRead;
use stores::sql::{EntityStore, SqlOptions};
use tests::installation::Installation;
use tests::servers::{self, Addresses};

use super::{ROUNDS, measure_time, median, print_rates, rate};

/// Number of connections and rows in a range.
const VARIANTS: [(u32, u64); 5] = [
    (1, 131_072),
    (2, 131_072),
    (4, 131_072),
    (2, 524_288),
    (4, 524_288),
];

pub(crate) fn run(rows: u64) {
    let rows = rows * 2 / 5;
    let installation = Installation::with_addresses(&Addresses::default(), "");
    let schema = installation.options().namespace.identifier("backstitch");
    // Half of the rows belong to one percent of the segments, as in real data.
    let inserted = servers::run_on_postgres(&format!(
        "SET search_path = {schema};
         ALTER TABLE efforts DISABLE TRIGGER USER;
         INSERT INTO efforts (id, segment_id, athlete_id, activity_id, elapsed_time_s, started_at_us)
         SELECT n, CASE WHEN n % 2 = 0 THEN n % 1000 ELSE n % 100000 END, n::bigint * 7919 % 500000, n,
                60 + n % 3600, 1700000000000000 + n::bigint * 1000000 FROM generate_series(1, {rows}) n;
         ALTER TABLE efforts ENABLE TRIGGER USER; ANALYZE efforts;"
    ));
    inserted.expect("rows");
    println!("dumps: {rows} efforts in PostgreSQL, in the order of segment, athlete and id");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (mut copies, mut dumps) = (Vec::new(), vec![Vec::new(); VARIANTS.len()]);
    for _ in 0..ROUNDS {
        let copy = format!(
            "COPY (SELECT * FROM {schema}.efforts ORDER BY segment_id, athlete_id, id) TO STDOUT"
        );
        let (took, copied) = measure_time(|| servers::run_on_postgres(&copy).expect("rows"));
        assert_eq!(copied.lines().count() as u64, rows);
        copies.push(rate(rows, took));
        for ((connections, range), rates) in VARIANTS.iter().zip(&mut dumps) {
            let (took, dumped) =
                measure_time(|| runtime.block_on(dump(&installation, *connections, *range)));
            assert_eq!(dumped, rows);
            rates.push(rate(rows, took));
        }
    }
    let copy = print_rates("psql with COPY, one connection", &copies);
    for ((connections, range), rates) in VARIANTS.iter().zip(dumps) {
        let label = format!(
            "{connections} connections, ranges of {range} rows (ratio {:.2})",
            median(rates.clone()) / copy
        );
        print_rates(&label, &rates);
    }
}

/// Returns the number of dumped rows.
async fn dump(installation: &Installation, connections: u32, range: u64) -> u64 {
    let options = SqlOptions {
        dump_connections: connections,
        dump_range_rows: range,
        ..installation.options().database.clone()
    };
    let store = EntityStore::open(&options, &installation.options().namespace).await;
    let store = store.expect("the entity store");
    let dump = store.dump(Source::Efforts, None, 8_192).await;
    let rows = dump
        .expect("a dump")
        .try_fold(0, async |rows, batch| Ok(rows + batch.num_rows() as u64));
    rows.await.expect("rows")
}
