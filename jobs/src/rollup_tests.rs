use arrow::array::Array;
use schemas::key::KeyValue;

use super::*;
use crate::Catalog;
use crate::catalog::tests::write_view;

const DETAIL: (&str, &str) = (
    "layers = \"both\"\nbucket = \"quarter\"\npartition = \"day\"\ndimensions = [\"kind\", \"country\", \"listener_id\"]",
    "SELECT owner_id, date_bin(INTERVAL '15 minutes', at) AS bucket, kind, country, listener_id,
        sum(amount) AS count
    FROM plays GROUP BY 1, 2, 3, 4, 5",
);

/// Creates the catalog of a detail view and a view that reads it.
fn catalog_with(fields: &str, sql: &str) -> Catalog {
    let root = tempfile::tempdir().unwrap();
    for (name, over, fields, sql) in [
        ("detail", "", DETAIL.0, DETAIL.1),
        ("coarse", "over = \"detail\"\n", fields, sql),
    ] {
        let head =
            "kind = \"tally\"\nmetric = \"plays\"\nsource = \"plays\"\ngroup = [\"owner_id\"]\n";
        write_view(root.path(), name, &format!("{head}{over}{fields}\n"), sql);
    }
    Catalog::read(root.path()).unwrap()
}

fn find_rollup(fields: &str, sql: &str) -> Option<Rollup> {
    let catalog = catalog_with(fields, sql);
    Rollup::find(catalog.job("coarse").unwrap(), catalog.jobs())
}

const DAYS: &str =
    "layers = \"batch\"\nbucket = \"day\"\npartition = \"all\"\ndimensions = [\"country\"]";
const DAYS_SQL: &str =
    "SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, country, sum(count) AS count
    FROM detail GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), country";

#[test]
fn only_a_plain_roll_up_derives_deltas() {
    assert!(find_rollup(DAYS, DAYS_SQL).is_some());
    assert!(
        find_rollup(&DAYS.replace("batch", "both"), DAYS_SQL).is_none(),
        "it has its own"
    );
    for (from, to) in [
        ("FROM detail", "FROM detail WHERE kind = 'play'"),
        ("FROM detail", "FROM (SELECT * FROM detail LIMIT 7)"),
        ("sum(count)", "max(count)"),
        ("'1 day'", "'1 hour'"),
        (
            "'1 day', bucket",
            "'1 day', bucket, TIMESTAMP '2000-01-01T06:00:00Z'",
        ),
        (
            "date_bin(INTERVAL '1 day', bucket)",
            "date_trunc('week', bucket)",
        ),
        ("sum(count)", "sum(2 * count)"),
        ("sum(count)", "sum(count) FILTER (WHERE kind = 'play')"),
        ("sum(count) AS", "2 * sum(count) AS"),
        (" country", " upper(country) AS country"),
    ] {
        assert!(DAYS_SQL.contains(from), "{from}");
        let first = DAYS_SQL.replacen(from, to, 1);
        let all = DAYS_SQL.replace(from, to);
        let sql = if from.contains("day") { all } else { first };
        assert!(find_rollup(DAYS, &sql).is_none(), "{sql}");
    }
    let truncated = DAYS_SQL.replace(
        "date_bin(INTERVAL '1 day', bucket)",
        "date_trunc('day', bucket)",
    );
    assert!(find_rollup(DAYS, &truncated).is_some());
    let having = format!("{DAYS_SQL} HAVING sum(count) > 1");
    assert!(find_rollup(DAYS, &having).is_none());
    // `date_trunc` means the quarter of a year, the bucket a quarter of an hour.
    let quarters = DAYS_SQL.replace(
        "date_bin(INTERVAL '1 day', bucket)",
        "date_trunc('quarter', bucket)",
    );
    assert!(find_rollup(&DAYS.replace("\"day\"", "\"quarter\""), &quarters).is_none());
    // A column with the name of another one.
    let renamed = DAYS_SQL.replace(" country, sum", " kind AS country, sum");
    let renamed = renamed.replace("bucket), country", "bucket), kind");
    assert!(find_rollup(DAYS, &renamed).is_none());
}

#[test]
fn roll_up_keys_equal_those_of_the_query() {
    let fields = DAYS.replace("[\"country\"]", "[\"listener_cell\", \"country\"]");
    let sql = "SELECT owner_id, date_bin(INTERVAL '1 day', bucket) AS bucket, sketch_cell(listener_id) AS listener_cell,
        country, sum(count) AS count
        FROM detail GROUP BY owner_id, date_bin(INTERVAL '1 day', bucket), sketch_cell(listener_id), country";
    let catalog = catalog_with(&fields, sql);
    let (detail, coarse) = (
        catalog.job("detail").unwrap(),
        catalog.job("coarse").unwrap(),
    );
    let rollup = Rollup::find(coarse, catalog.jobs()).unwrap();
    assert_eq!(rollup.base().name(), "detail");
    let text = |text: &str| KeyValue::Text(text.to_owned());
    let rows = [
        (86_400 + 900, "play", text("DE"), KeyValue::Int(7)),
        (-900, "download", KeyValue::Null, KeyValue::Null),
    ];
    let fine = rows.iter().map(|(bucket_s, kind, country, listener)| {
        let values = [
            KeyValue::Time(*bucket_s),
            text(kind),
            country.clone(),
            listener.clone(),
        ];
        detail.row().encode_values(&values).unwrap()
    });
    let fine: Vec<Vec<u8>> = fine.collect();
    let expected = [
        vec![
            KeyValue::Time(86_400),
            KeyValue::Int(sketch::compute_cell(7)),
            text("DE"),
        ],
        vec![KeyValue::Time(-86_400), KeyValue::Null, KeyValue::Null],
    ];
    let keys = rollup
        .roll_up_keys(&BinaryArray::from_iter_values(&fine))
        .unwrap();
    assert_eq!(keys.len(), 2);
    for (key, values) in keys.iter().zip(expected) {
        assert_eq!(key.unwrap(), coarse.row().encode_values(&values).unwrap());
    }
    assert!(
        rollup
            .roll_up_keys(&BinaryArray::from_iter_values([b"x"]))
            .is_err()
    );
}

#[test]
fn a_chain_of_roll_ups_reads_the_nearest_live_view() {
    let catalog = Catalog::built_in().unwrap();
    for (name, live) in [
        ("plays_owner_all", "plays_owner_quarter"),
        ("plays_owner_month_track", "plays_owner_day_track"),
        ("plays_owner_month_uniques", "plays_detail"),
        ("plays_track_month_uniques", "plays_track_day_listener"),
    ] {
        let rollup = Rollup::find(catalog.job(name).unwrap(), catalog.jobs()).unwrap();
        assert_eq!(rollup.base().name(), live, "{name}");
    }
}
