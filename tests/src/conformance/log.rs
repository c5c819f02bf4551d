//! Laws of the log port.

use std::time::Duration;

use schemas::seam::{LastRecord, Offset};
use stores::log::{
    FetchLimit, LogIdentityError, LogIdentityVerifier, LogRead, NewRecords, Records, Span,
    verify_log_identity,
};
use stores::{Error, ErrorKind, Result};

use super::{binary, bytes};
use stores::Stores;

const TOPIC: &str = "backstitch.laws.v1";
const EVERYTHING: FetchLimit = FetchLimit {
    records: usize::MAX,
    bytes: usize::MAX,
};

/// Returns records with the values `prefix 0`, `prefix 1`, …, each with its number as the key.
fn numbered_records(partition: u32, prefix: &str, count: usize) -> NewRecords {
    NewRecords {
        partition,
        keys: binary((0..count).map(|number| number.to_string())),
        values: binary((0..count).map(|number| format!("{prefix} {number}"))),
        headers: Vec::new(),
    }
}

/// Fetches all records of a partition in several steps.
async fn read_all(log: &dyn LogRead, partition: u32, limit: FetchLimit) -> Result<Vec<Records>> {
    let mut batches = Vec::new();
    let mut offset = log.spans(TOPIC).await?[partition as usize].start;
    loop {
        let fetched = log.fetch(TOPIC, partition, offset, limit).await?;
        if fetched.next_offset == offset {
            assert!(fetched.records.is_empty(), "the next offset advances");
            assert_eq!(
                fetched.end, offset,
                "a fetch returns nothing only at the end"
            );
            return Ok(batches);
        }
        assert!(fetched.next_offset > offset, "a fetch moves on");
        assert!(fetched.end >= fetched.next_offset, "the end is not behind");
        offset = fetched.next_offset;
        batches.push(fetched.records);
    }
}

fn values(batches: &[Records]) -> Vec<Vec<u8>> {
    batches
        .iter()
        .flat_map(|batch| bytes(&batch.values))
        .collect()
}

/// Appended records are returned: keys and values in order, with increasing offsets that begin at
/// the returned offset, separately for each partition.
pub async fn records_round_trip(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 3).await?;
    let groups = [numbered_records(2, "a", 100), numbered_records(0, "b", 1)];
    let first = ports.log.append(TOPIC, &groups, 1000).await?;
    let groups_again = [numbered_records(2, "c", 50)];
    let second = ports.log.append(TOPIC, &groups_again, 2000).await?;

    let batches = read_all(&*ports.log, 2, EVERYTHING).await?;
    let expected: Vec<Vec<u8>> = [&groups[0].values, &groups_again[0].values]
        .into_iter()
        .flat_map(bytes)
        .collect();
    assert_eq!(values(&batches), expected, "values are returned in order");
    let keys: Vec<Vec<u8>> = batches
        .iter()
        .flat_map(|batch| bytes(&batch.keys))
        .collect();
    let expected: Vec<Vec<u8>> = (0..100)
        .chain(0..50)
        .map(|number: i32| number.to_string().into_bytes())
        .collect();
    assert_eq!(keys, expected, "keys are returned in order");
    let offsets = offsets(&batches);
    assert!(offsets.is_sorted_by(|a, b| a < b), "offsets rise");
    assert_eq!(
        offsets[0], first[0],
        "the first append begins at the returned offset"
    );
    assert_eq!(
        offsets[100], second[0],
        "the second append begins at the returned offset"
    );
    assert_eq!(
        values(&read_all(&*ports.log, 0, EVERYTHING).await?),
        [b"b 0".to_vec()]
    );
    assert!(read_all(&*ports.log, 1, EVERYTHING).await?.is_empty());
    Ok(())
}

/// Several groups for one partition are appended in order. An empty group gets the offset that its
/// first record would have. An append without groups does nothing.
pub async fn groups_are_appended_in_order(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 1).await?;
    let groups = [
        numbered_records(0, "a", 2),
        numbered_records(0, "none", 0),
        numbered_records(0, "b", 2),
    ];
    let firsts = ports.log.append(TOPIC, &groups, 1).await?;
    assert!(firsts[0] < firsts[1], "{firsts:?}");
    assert_eq!(firsts[1], firsts[2]);
    assert!(ports.log.append(TOPIC, &[], 1).await?.is_empty());
    let actual = values(&read_all(&*ports.log, 0, EVERYTHING).await?);
    assert_eq!(actual, [b"a 0", b"a 1", b"b 0", b"b 1"]);
    Ok(())
}

fn offsets(batches: &[Records]) -> Vec<Offset> {
    batches
        .iter()
        .flat_map(|p| p.offsets.values().to_vec())
        .collect()
}

fn times(batches: &[Records]) -> Vec<i64> {
    batches
        .iter()
        .flat_map(|p| p.logged_at_ms.values().to_vec())
        .collect()
}

/// Timestamps in a partition never decrease, even if the writer's clock goes back.
pub async fn timestamps_never_decrease(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 2).await?;
    for (now_ms, partition) in [(5000, 0), (3000, 0), (3000, 1), (6000, 0)] {
        let group = numbered_records(partition, "at", 2);
        ports.log.append(TOPIC, &[group], now_ms).await?;
    }
    for (partition, count) in [(0, 6), (1, 2)] {
        let times = times(&read_all(&*ports.log, partition, EVERYTHING).await?);
        assert_eq!(times.len(), count);
        assert!(times.is_sorted(), "{times:?}");
    }
    Ok(())
}

/// A log without its own clock stamps records with the given time, or with the previous record's
/// time if that is later. Partitions are independent.
pub async fn timestamps_come_from_the_caller(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 2).await?;
    for (now_ms, partition) in [(5000, 0), (3000, 0), (3000, 1), (6000, 0)] {
        let group = numbered_records(partition, "at", 2);
        ports.log.append(TOPIC, &[group], now_ms).await?;
    }
    let first = times(&read_all(&*ports.log, 0, EVERYTHING).await?);
    assert_eq!(first, [5000, 5000, 5000, 5000, 6000, 6000]);
    let second = times(&read_all(&*ports.log, 1, EVERYTHING).await?);
    assert_eq!(second, [3000, 3000]);
    Ok(())
}

/// A fetch returns at most the limit and at least one record, from any offset, and consecutive
/// fetches return everything once.
pub async fn fetches_respect_limits(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 1).await?;
    for (prefix, count) in [("a", 7), ("bb", 1), ("ccc", 30), ("d", 2)] {
        ports
            .log
            .append(TOPIC, &[numbered_records(0, prefix, count)], 1)
            .await?;
    }
    let expected = values(&read_all(&*ports.log, 0, EVERYTHING).await?);
    assert_eq!(expected.len(), 40);
    for (records, bytes_max) in [
        (1, 1000),
        (0, 0),
        (3, 1000),
        (8, 40),
        (100, 1),
        (100, 11),
        (40, 9999),
    ] {
        let limit = FetchLimit {
            records,
            bytes: bytes_max,
        };
        let batches = read_all(&*ports.log, 0, limit).await?;
        assert_eq!(
            values(&batches),
            expected,
            "every record once, with {limit:?}"
        );
        for batch in &batches {
            let size: usize = bytes(&batch.values).iter().map(Vec::len).sum();
            assert!(
                batch.len() == 1 || batch.len() <= records,
                "{limit:?}: {}",
                batch.len()
            );
            assert!(batch.len() == 1 || size <= bytes_max, "{limit:?}: {size}");
        }
    }
    let offsets = read_all(&*ports.log, 0, EVERYTHING).await?[0]
        .offsets
        .clone();
    for (index, offset) in offsets.values().iter().enumerate() {
        let fetched = ports.log.fetch(TOPIC, 0, *offset, EVERYTHING).await?;
        assert_eq!(
            values(&[fetched.records]),
            expected[index..],
            "from {offset}"
        );
        // Also backwards, from an offset that does not continue the previous fetch.
        let (index, offset) = (
            expected.len() - 1 - index,
            offsets.value(expected.len() - 1 - index),
        );
        let fetched = ports.log.fetch_once(TOPIC, 0, offset, EVERYTHING).await?;
        assert_eq!(
            values(&[fetched.records]),
            expected[index..],
            "from {offset}"
        );
    }
    Ok(())
}

/// An offset outside the log is an error and never skipped; the end is no error.
pub async fn out_of_range_offsets_fail(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 2).await?;
    ports
        .log
        .append(TOPIC, &[numbered_records(0, "a", 5)], 1)
        .await?;
    let spans = ports.log.spans(TOPIC).await?;
    let Span { start, end } = spans[0];
    for invalid_offset in [start - 1, end + 1, Offset::MAX, Offset::MIN] {
        for fetched in [
            ports.log.fetch(TOPIC, 0, invalid_offset, EVERYTHING).await,
            ports
                .log
                .fetch_once(TOPIC, 0, invalid_offset, EVERYTHING)
                .await,
        ] {
            let error = fetched.expect_err("there is no such offset");
            assert_eq!(error.kind(), ErrorKind::Reject);
            assert!(
                matches!(error, Error::OffsetOutOfRange { requested, .. } if requested == invalid_offset),
                "{error}"
            );
        }
    }
    let fetched = ports.log.fetch(TOPIC, 0, end, EVERYTHING).await?;
    assert_eq!(
        (fetched.records.len(), fetched.next_offset, fetched.end),
        (0, end, end)
    );
    let empty = spans[1];
    assert_eq!(
        empty.start, empty.end,
        "an empty partition begins where it ends"
    );
    let fetched = ports.log.fetch(TOPIC, 1, empty.end, EVERYTHING).await?;
    assert!(fetched.records.is_empty());
    Ok(())
}

/// Only records below the offset are deleted: the others keep their offsets, the end does not
/// change, and later appends continue from it.
pub async fn records_are_deleted_from_the_beginning(ports: &Stores) -> Result<()> {
    let log = &ports.log;
    log.ensure_topic(TOPIC, 3).await?;
    for prefix in ["a", "b"] {
        log.append(
            TOPIC,
            &[
                numbered_records(0, prefix, 10),
                numbered_records(1, prefix, 3),
            ],
            1,
        )
        .await?;
    }
    let before = read_all(&*ports.log, 0, EVERYTHING).await?;
    let spans = log.spans(TOPIC).await?;
    // Within one append, the whole log, and beyond its end.
    let cut = spans[0].start + 14;
    log.trim(TOPIC, &[cut, spans[1].end, 0]).await?;
    let trimmed = log.spans(TOPIC).await?;
    let end = |partition: usize| spans[partition].end;
    assert_eq!(
        trimmed[0],
        Span {
            start: cut,
            end: end(0)
        }
    );
    assert_eq!(
        trimmed[1],
        Span {
            start: end(1),
            end: end(1)
        }
    );
    assert_eq!(trimmed[2], spans[2]);
    let remaining = read_all(&*ports.log, 0, EVERYTHING).await?;
    assert_eq!(values(&remaining), values(&before)[14..]);
    let error = log
        .fetch_fresh(TOPIC, 0, cut - 1)
        .await
        .expect_err("it is gone");
    assert!(
        matches!(error, Error::OffsetOutOfRange { start, .. } if start == cut),
        "{error}"
    );
    // Below the start of the log, or beyond its end.
    log.trim(TOPIC, &[1, Offset::MAX]).await?;
    assert_eq!(log.spans(TOPIC).await?, trimmed);
    let firsts = log
        .append(
            TOPIC,
            &[numbered_records(0, "c", 1), numbered_records(1, "c", 2)],
            2,
        )
        .await?;
    assert_eq!(firsts, [end(0), end(1)]);
    let after = read_all(&*ports.log, 1, EVERYTHING).await?;
    assert_eq!(values(&after), [b"c 0".to_vec(), b"c 1".to_vec()]);
    log.trim(TOPIC, &[Offset::MAX; 5]).await?;
    let empty = log.spans(TOPIC).await?;
    assert!(empty.iter().all(|span| span.start == span.end), "{empty:?}");
    Ok(())
}

/// A timestamp resolves to the first record that was appended then or later.
pub async fn timestamps_resolve_to_offsets(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 2).await?;
    for now_ms in [1000, 2000, 2000, 4000] {
        let group = numbered_records(0, "at", 3);
        ports.log.append(TOPIC, &[group], now_ms).await?;
        // Lets the log's own clock advance as well.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let batches = read_all(&*ports.log, 0, EVERYTHING).await?;
    let times = times(&batches);
    let offsets = offsets(&batches);
    let (first, last) = (times[0], times[times.len() - 1]);
    assert!(first < last, "{times:?}");
    let end = ports.log.spans(TOPIC).await?[0].end;
    let near = times.iter().flat_map(|time| [time - 1, *time, time + 1]);
    for moment in near.chain([i64::MIN, -1, 0, i64::MAX]) {
        let actual = ports.log.offset_at(TOPIC, 0, moment).await?;
        let expected = times.iter().position(|time| *time >= moment);
        let expected = expected.map_or(end, |index| offsets[index]);
        assert_eq!(actual, expected, "at {moment} of {times:?}");
    }
    let empty = ports.log.spans(TOPIC).await?[1];
    assert_eq!(ports.log.offset_at(TOPIC, 1, 0).await?, empty.end);
    Ok(())
}

/// A log is identified by any record that was read from it while it grows, and by no other record.
pub async fn log_identity_is_verified(ports: &Stores) -> Result<()> {
    let log = &*ports.log;
    log.ensure_topic(TOPIC, 2).await?;
    let mut known = LogIdentityVerifier::default();
    let mut last = None;
    for round in 0..4 {
        let groups = [numbered_records(1, &format!("round {round}"), 3)];
        let first = log.append(TOPIC, &groups, 1000 * round).await?[0];
        let records = log.fetch(TOPIC, 1, first, EVERYTHING).await?.records;
        for last in [records.first(), records.last()].into_iter().flatten() {
            assert_eq!(known.verify(log, TOPIC, 1, last).await?, Ok(()));
            assert_eq!(verify_log_identity(log, TOPIC, 1, last).await?, Ok(()));
        }
        last = records.last();
        // The log may use its own clock.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let last = last.expect("records");
    let (checksum, offset) = (last.checksum ^ 1, last.offset);
    let replaced = LastRecord { checksum, ..last };
    let outcome = LogIdentityVerifier::default()
        .verify(log, TOPIC, 1, replaced)
        .await?;
    assert_eq!(outcome, Err(LogIdentityError::Replaced { offset }));
    let (offset, end) = (offset + 7, offset + 1);
    let beyond = LastRecord { offset, ..last };
    let outcome = LogIdentityVerifier::default()
        .verify(log, TOPIC, 1, beyond)
        .await?;
    assert_eq!(outcome, Err(LogIdentityError::Shorter { offset, end }));
    Ok(())
}

/// A topic keeps the number of partitions that it was created with; topics are independent.
pub async fn topics_keep_their_partitions(ports: &Stores) -> Result<()> {
    assert!(
        ports.log.spans(TOPIC).await?.is_empty(),
        "there is no such topic yet"
    );
    assert_eq!(ports.log.ensure_topic(TOPIC, 2).await?, 2);
    ports
        .log
        .append(TOPIC, &[numbered_records(1, "kept", 1)], 1)
        .await?;
    assert_eq!(ports.log.ensure_topic(TOPIC, 1).await?, 2);
    assert_eq!(ports.log.ensure_topic(TOPIC, 5).await?, 2);
    assert_eq!(ports.log.spans(TOPIC).await?.len(), 2);
    assert_eq!(
        values(&read_all(&*ports.log, 1, EVERYTHING).await?),
        [b"kept 0"]
    );
    let other_topic = format!("{TOPIC}.dlq");
    ports.log.ensure_topic(&other_topic, 1).await?;
    ports
        .log
        .append(&other_topic, &[numbered_records(0, "other", 1)], 1)
        .await?;
    assert!(read_all(&*ports.log, 0, EVERYTHING).await?.is_empty());
    Ok(())
}

/// An append with an invalid record is refused, and writes nothing.
pub async fn a_refused_append_writes_nothing(ports: &Stores) -> Result<()> {
    let missing = ports
        .log
        .append(TOPIC, &[numbered_records(0, "a", 1)], 1)
        .await;
    assert!(missing.is_err(), "the topic does not exist");
    ports.log.ensure_topic(TOPIC, 2).await?;
    let groups = [numbered_records(0, "a", 1), numbered_records(2, "b", 1)];
    let refused = ports.log.append(TOPIC, &groups, 1).await;
    let error = refused.expect_err("there is no such partition");
    assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
    let mut uneven = numbered_records(0, "c", 2);
    uneven.keys = binary(["only one"]);
    let refused = ports
        .log
        .append(TOPIC, &[numbered_records(1, "d", 1), uneven], 1)
        .await;
    let error = refused.expect_err("a key is missing");
    assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
    for span in ports.log.spans(TOPIC).await? {
        assert_eq!(span.start, span.end);
    }
    assert!(ports.log.fetch(TOPIC, 2, 0, EVERYTHING).await.is_err());
    assert!(ports.log.offset_at(TOPIC, 2, 0).await.is_err());
    Ok(())
}

/// Many records, large ones, empty ones and arbitrary bytes are returned unchanged.
pub async fn records_of_any_size_are_returned(ports: &Stores) -> Result<()> {
    ports.log.ensure_topic(TOPIC, 1).await?;
    let large = vec![7; 5 << 20];
    let odd_values: Vec<Vec<u8>> =
        vec![Vec::new(), large, (0..=255).collect(), Vec::new(), vec![0]];
    let group = NewRecords {
        partition: 0,
        keys: binary(odd_values.iter().map(|value| &value[..value.len().min(3)])),
        values: binary(&odd_values),
        headers: Vec::new(),
    };
    let many = numbered_records(0, "many", 25_000);
    // A slice of larger arrays is a group like any other.
    let slice = NewRecords {
        partition: 0,
        keys: many.keys.slice(10, 20),
        values: many.values.slice(10, 20),
        headers: Vec::new(),
    };
    ports
        .log
        .append(TOPIC, &[group, many.clone(), slice.clone()], 1)
        .await?;
    let mut expected = odd_values;
    expected.extend(bytes(&many.values));
    expected.extend(bytes(&slice.values));
    let limit = FetchLimit {
        records: 9_999,
        bytes: 3 << 20,
    };
    assert!(values(&read_all(&*ports.log, 0, limit).await?) == expected);
    Ok(())
}

/// Concurrent appends of two processes are all stored: each in order and from its returned offset,
/// possibly interleaved.
pub async fn concurrent_appends_stay_in_order(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const ROUNDS: usize = 20;
    ports.log.ensure_topic(TOPIC, 2).await?;
    let append = async |ports: &Stores, name: &str| -> Result<Vec<(Offset, String)>> {
        let mut firsts = Vec::new();
        for round in 0..ROUNDS {
            let prefix = format!("{name}{round}");
            let groups = [
                numbered_records(0, &prefix, 3),
                numbered_records(1, &prefix, 1),
            ];
            let offsets = ports.log.append(TOPIC, &groups, 1).await?;
            firsts.push((offsets[0], prefix));
        }
        Ok(firsts)
    };
    let (first, second, third) = tokio::join!(
        append(ports, "one"),
        append(other_ports, "other"),
        append(other_ports, "third")
    );
    let firsts = [first?, second?, third?].concat();
    let batches = read_all(&*ports.log, 0, EVERYTHING).await?;
    let actual = values(&batches);
    let offsets = offsets(&batches);
    assert_eq!(actual.len(), 3 * 3 * ROUNDS);
    for (first, prefix) in firsts {
        let index = offsets.binary_search(&first).expect("the offset exists");
        let expected: Vec<Vec<u8>> = (0..3)
            .map(|n| format!("{prefix} {n}").into_bytes())
            .collect();
        assert_eq!(
            actual[index], expected[0],
            "it begins at the returned offset"
        );
        let appended = actual.iter().filter(|value| expected.contains(value));
        assert!(appended.eq(&expected), "in order, and once");
    }
    assert_eq!(
        values(&read_all(&*other_ports.log, 1, EVERYTHING).await?).len(),
        3 * ROUNDS
    );
    Ok(())
}
