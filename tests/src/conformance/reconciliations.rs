//! The laws of reconciliations, on the record store of an adapter.

use schemas::source::Source;
use serde_json::json;
use stores::reconciliations::{add, count_expired, list, purge_expired, replace};
use stores::{ErrorKind, Result, Stores};

const PLAYS: Source = Source::Plays;

async fn numbers(ports: &Stores, before: Option<u64>, limit: usize) -> Result<Vec<u64>> {
    let records = list(&*ports.records, PLAYS, before, limit).await?;
    Ok(records.iter().map(|record| record.number).collect())
}

/// Sets the numbers of a source that has no records.
async fn set_numbers(ports: &Stores, oldest: u64, newest: u64) -> Result<()> {
    let numbers = json!({"oldest": oldest, "newest": newest});
    let is_set = ports
        .records
        .compare_and_set("numbers", "plays", None, Some(&numbers))
        .await?;
    assert!(is_set, "the source has no numbers");
    Ok(())
}

/// Writes the record of a number as a writer does that dies before it sets the numbers of the source.
async fn write(ports: &Stores, number: u64) -> Result<()> {
    let scope = format!("reconciliations plays {:010}", number / 1_000);
    let value = json!({"id": format!("id {number}"), "at_ms": number, "record": {}});
    let written = ports
        .records
        .compare_and_set(&scope, &format!("{number:010}"), None, Some(&value))
        .await?;
    assert!(written, "{number} is not there");
    Ok(())
}

/// Records get increasing numbers by source, are listed newest first, and can be replaced.
pub async fn records_are_listed_newest_first(ports: &Stores) -> Result<()> {
    let records = &*ports.records;
    assert_eq!(list(records, PLAYS, None, 10).await?, []);
    for n in 1..=5_i64 {
        let record = json!({"n": n, "text": "ü'\"\u{1f3b5}"});
        let id = format!("id {n}");
        let number = add(records, PLAYS, &id, n * 100, &record).await?;
        assert_eq!(number, n.unsigned_abs());
        // The reply was lost, so the record is added again.
        assert_eq!(add(records, PLAYS, &id, n * 100, &record).await?, number);
    }
    let other_number = add(records, Source::Efforts, "id 1", 7, &json!({})).await?;
    assert_eq!(other_number, 1, "each source has its own numbers");
    assert_eq!(numbers(ports, None, 3).await?, [5, 4, 3]);
    assert_eq!(numbers(ports, Some(3), 3).await?, [2, 1]);
    assert_eq!(numbers(ports, Some(1), 3).await?, [0_u64; 0]);
    replace(records, PLAYS, 4, &json!({"n": "other"})).await?;
    let listed = list(records, PLAYS, Some(5), 1).await?;
    assert_eq!(listed[0].record, json!({"n": "other"}));
    assert_eq!((listed[0].id.as_str(), listed[0].at_ms), ("id 4", 400));
    let missing = replace(records, PLAYS, 9, &json!({})).await;
    assert_eq!(
        missing.expect_err("there is none").kind(),
        ErrorKind::Reject
    );
    Ok(())
}

/// Old records expire, oldest first, up to the first younger one. Later numbers continue.
pub async fn old_records_expire(ports: &Stores) -> Result<()> {
    let records = &*ports.records;
    let none = count_expired(records, PLAYS, i64::MAX).await?;
    assert_eq!((none.total, none.oldest_ms, none.expired), (0, None, 0));
    // A clock went back in between.
    for (n, at_ms) in [100, 200, 50, 300, 400].into_iter().enumerate() {
        add(records, PLAYS, &format!("{n}"), at_ms, &json!({})).await?;
    }
    let count = count_expired(records, PLAYS, 250).await?;
    assert_eq!(
        (count.total, count.oldest_ms, count.expired),
        (5, Some(100), 3)
    );
    assert_eq!(count_expired(records, PLAYS, 150).await?.expired, 1);
    assert_eq!(purge_expired(records, PLAYS, 250, 2).await?, 2);
    assert_eq!(purge_expired(records, PLAYS, 250, 2).await?, 1);
    assert_eq!(purge_expired(records, PLAYS, 250, 2).await?, 0);
    assert_eq!(numbers(ports, None, 10).await?, [5, 4]);
    assert_eq!(purge_expired(records, PLAYS, i64::MAX, 10).await?, 2);
    assert_eq!(count_expired(records, PLAYS, i64::MAX).await?.total, 0);
    assert_eq!(add(records, PLAYS, "new", 500, &json!({})).await?, 6);
    Ok(())
}

/// A repeated addition is recognized, even if its number and the newest are in different blocks of
/// a thousand.
pub async fn a_repeated_addition_gets_its_number(ports: &Stores) -> Result<()> {
    let records = &*ports.records;
    set_numbers(ports, 998, 997).await?;
    let ids = ["a", "b", "c", "d"];
    for (id, number) in ids.iter().zip(998..) {
        assert_eq!(add(records, PLAYS, id, 1, &json!({})).await?, number);
        for (earlier_id, earlier_number) in ids.iter().zip(998..=number) {
            let actual = add(records, PLAYS, earlier_id, 1, &json!({})).await?;
            assert_eq!(actual, earlier_number, "{earlier_id} after {number}");
        }
    }
    assert_eq!(numbers(ports, None, 10).await?, [1_001, 1_000, 999, 998]);
    Ok(())
}

/// The record of a writer that died before it set the numbers is found, and its number is not
/// reused.
pub async fn lagging_numbers_are_corrected(ports: &Stores) -> Result<()> {
    let records = &*ports.records;
    set_numbers(ports, 990, 998).await?;
    write(ports, 999).await?;
    assert_eq!(numbers(ports, None, 10).await?, [999]);
    assert_eq!(count_expired(records, PLAYS, i64::MAX).await?.total, 10);
    assert_eq!(add(records, PLAYS, "next", 5, &json!({})).await?, 1_000);
    write(ports, 1_001).await?;
    let actual = add(records, PLAYS, "id 1001", 1_001, &json!({})).await?;
    assert_eq!(actual, 1_001);
    write(ports, 1_002).await?;
    // The record is deleted, and its number is not reused.
    assert_eq!(purge_expired(records, PLAYS, i64::MAX, 10).await?, 4);
    assert_eq!(numbers(ports, None, 10).await?, [0_u64; 0]);
    assert_eq!(add(records, PLAYS, "last", 5, &json!({})).await?, 1_003);
    Ok(())
}

/// Records of many thousands of numbers are listed, counted and deleted, also if some are missing.
pub async fn all_number_blocks_are_visited(ports: &Stores) -> Result<()> {
    let records = &*ports.records;
    set_numbers(ports, 950, 3_100).await?;
    let block = (1_000..=1_150).collect::<Vec<u64>>();
    let all_numbers = [&[950, 999][..], &block, &[3_000, 3_100]].concat();
    for number in &all_numbers {
        write(ports, *number).await?;
    }
    let mut newest_first = all_numbers.clone();
    newest_first.reverse();
    assert_eq!(numbers(ports, None, 1_000).await?, newest_first);
    assert_eq!(numbers(ports, Some(3_000), 2).await?, [1_150, 1_149]);
    assert_eq!(numbers(ports, Some(1_001), 2).await?, [1_000, 999]);
    for (before_ms, expected) in [
        (0, 0),
        (951, 1),
        (1_000, 2),
        (1_102, 104),
        (3_100, 154),
        (i64::MAX, 155),
    ] {
        let count = count_expired(records, PLAYS, before_ms).await?;
        assert_eq!((count.total, count.oldest_ms), (2_151, Some(950)));
        assert_eq!(count.expired, expected, "{before_ms}");
    }
    assert_eq!(purge_expired(records, PLAYS, 1_010, 5).await?, 5);
    assert_eq!(purge_expired(records, PLAYS, 1_010, 55).await?, 7);
    assert_eq!(purge_expired(records, PLAYS, 1_010, 55).await?, 0);
    let remaining = count_expired(records, PLAYS, 1_011).await?;
    assert_eq!(
        (remaining.total, remaining.oldest_ms, remaining.expired),
        (2_091, Some(1_010), 1)
    );
    assert_eq!(purge_expired(records, PLAYS, 3_001, 1_000).await?, 142);
    assert_eq!(numbers(ports, None, 10).await?, [3_100]);
    Ok(())
}

/// Two concurrent additions get different numbers.
pub async fn concurrent_records_get_own_numbers(
    ports: &Stores,
    other_ports: &Stores,
) -> Result<()> {
    let add_all = async |ports: &Stores, prefix: &str| {
        let mut numbers = Vec::new();
        for n in 0..8 {
            let id = format!("{prefix}{n}");
            numbers.push(add(&*ports.records, PLAYS, &id, n, &json!(id)).await?);
        }
        Ok::<_, stores::Error>(numbers)
    };
    let (first, second) = tokio::join!(add_all(ports, "a"), add_all(other_ports, "b"));
    let mut numbers: Vec<u64> = first?.into_iter().chain(second?).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=16).collect::<Vec<u64>>());
    let records = list(&*ports.records, PLAYS, None, 100).await?;
    assert!(
        records
            .iter()
            .all(|record| record.record.as_str() == Some(&record.id))
    );
    assert_eq!(records.len(), 16);
    Ok(())
}
