//! The laws of the record store.

use serde_json::{Value, json};
use stores::records::{Direction, Record, Scan, update};
use stores::{Result, Stores};

fn names(records: Vec<Record>) -> Vec<String> {
    records.into_iter().map(|record| record.name).collect()
}

/// A record is inserted, updated and deleted over the version that the writer has seen, and never
/// over another.
pub async fn records_change_by_version(ports: &Stores) -> Result<()> {
    let records = &ports.records;
    let first_value = json!({"text": "ü'\"\u{1f3b5}\\", "n": u64::MAX});
    let second_value = json!([2, null, -1.5, {"a": i64::MIN}]);
    assert_eq!(records.get("s", "n").await?, None);
    assert!(records.compare_and_set("s", "n", None, None).await?);
    assert!(
        !records
            .compare_and_set("s", "n", Some(1), Some(&first_value))
            .await?
    );
    assert!(!records.compare_and_set("s", "n", Some(1), None).await?);
    assert!(
        records
            .compare_and_set("s", "n", None, Some(&first_value))
            .await?
    );
    let record = |version, value: &Value| Record {
        name: "n".to_owned(),
        version,
        value: value.clone(),
    };
    assert_eq!(records.get("s", "n").await?, Some(record(1, &first_value)));
    assert!(
        !records
            .compare_and_set("s", "n", None, Some(&second_value))
            .await?
    );
    assert!(!records.compare_and_set("s", "n", None, None).await?);
    assert!(
        records
            .compare_and_set("s", "n", Some(1), Some(&second_value))
            .await?
    );
    assert!(
        !records
            .compare_and_set("s", "n", Some(1), Some(&first_value))
            .await?
    );
    assert_eq!(records.get("s", "n").await?, Some(record(2, &second_value)));
    assert_eq!(records.get("t", "n").await?, None, "another scope");
    assert!(!records.compare_and_set("s", "n", Some(1), None).await?);
    assert!(records.compare_and_set("s", "n", Some(2), None).await?);
    assert_eq!(records.get("s", "n").await?, None);
    assert!(
        records
            .compare_and_set("s", "n", None, Some(&second_value))
            .await?
    );
    assert_eq!(records.get("s", "n").await?, Some(record(1, &second_value)));
    Ok(())
}

/// A scan returns the names of its scope between two others, in either order, and no more than its
/// limit.
pub async fn scans_are_ordered(ports: &Stores) -> Result<()> {
    let records = &ports.records;
    let ordered = [
        "0000000009",
        "0000000010",
        "a",
        "b c",
        "é",
        "\u{ffff}",
        "\u{10fffe}",
    ];
    for name in ordered.iter().rev() {
        let value = json!(name);
        assert!(
            records
                .compare_and_set("s", name, None, Some(&value))
                .await?
        );
    }
    let other = json!(1);
    assert!(
        records
            .compare_and_set("s ", "b", None, Some(&other))
            .await?
    );
    let scan = |after, before, direction, limit| Scan {
        after,
        before,
        direction,
        limit,
    };
    use Direction::{Ascending, Descending};
    for (scan, expected) in [
        (scan(None, None, Ascending, 100), &ordered[..]),
        (scan(None, None, Ascending, 2), &ordered[..2]),
        (scan(None, None, Ascending, 0), &[]),
        (scan(Some("a"), None, Ascending, 2), &ordered[3..5]),
        (scan(Some("a"), Some("é"), Ascending, 9), &["b c"]),
        (scan(Some("aa"), Some("f"), Descending, 9), &["b c"]),
        (scan(Some("f"), Some("a"), Ascending, 9), &[]),
        (scan(None, None, Descending, 1), &ordered[6..]),
        (
            scan(None, Some("a"), Descending, 9),
            &["0000000010", "0000000009"],
        ),
        (scan(None, Some("b c"), Descending, 1), &["a"]),
    ] {
        assert_eq!(names(records.scan("s", scan).await?), expected, "{scan:?}");
    }
    let listed = records
        .scan("s", scan(Some("b c"), None, Ascending, 1))
        .await?;
    assert_eq!((listed[0].version, &listed[0].value), (1, &json!("é")));
    assert_eq!(
        records.scan("none", scan(None, None, Ascending, 9)).await?,
        []
    );
    Ok(())
}

/// A scan returns each record of a large scope once, for values of any size.
pub async fn large_scopes_are_scanned(ports: &Stores) -> Result<()> {
    let records = &ports.records;
    let value = |n: usize| json!("x".repeat(n % 7 * 5_000));
    let all_names: Vec<String> = (0..330).map(|n| format!("{n:05}")).collect();
    for (n, name) in all_names.iter().enumerate() {
        let value = value(n);
        assert!(
            records
                .compare_and_set("s", name, None, Some(&value))
                .await?
        );
    }
    for limit in [usize::MAX, 330, 329, 150] {
        let scan = Scan {
            limit,
            ..Scan::default()
        };
        let actual = records.scan("s", scan).await?;
        assert!(
            actual
                .iter()
                .enumerate()
                .all(|(n, record)| record.value == value(n))
        );
        assert_eq!(names(actual), all_names[..limit.min(330)]);
        let scan = Scan {
            direction: Direction::Descending,
            ..scan
        };
        let mut actual = names(records.scan("s", scan).await?);
        actual.reverse();
        assert_eq!(actual, all_names[330 - limit.min(330)..]);
    }
    Ok(())
}

/// Of two writers that have seen the same version one succeeds, and no update is lost.
pub async fn one_of_two_writers_succeeds(ports: &Stores, other_ports: &Stores) -> Result<()> {
    let (a, b) = (json!("a"), json!("b"));
    let (first, second) = tokio::join!(
        ports.records.compare_and_set("s", "n", None, Some(&a)),
        other_ports
            .records
            .compare_and_set("s", "n", None, Some(&b)),
    );
    let (first, second) = (first?, second?);
    assert!(first != second, "one of them");
    let record = other_ports.records.get("s", "n").await?.expect("a record");
    assert_eq!(record.value, if first { a } else { b });
    let count = async |ports: &Stores| {
        for _ in 0..15 {
            update(&*ports.records, "s", "count", |count| {
                let count = count.and_then(|count| count.value.as_u64()).unwrap_or(0);
                Ok(Some(json!(count + 1)))
            })
            .await?;
        }
        Ok::<_, stores::Error>(())
    };
    let (first, second) = tokio::join!(count(ports), count(other_ports));
    first?;
    second?;
    let record = ports.records.get("s", "count").await?.expect("a record");
    assert_eq!((record.version, record.value), (30, json!(30)));
    Ok(())
}
