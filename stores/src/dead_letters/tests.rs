use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::BinaryArray;
use async_trait::async_trait;
use schemas::dead_letter::{DeadLetter, DeadLetterId};

use super::*;
use crate::log::{FetchedRecords, Log, NewRecords, Records, Span};
use crate::{Error, Stores};

fn dead_letter(origin: &str, reason: &str, at_ms: i64, raw: &[u8]) -> DeadLetter {
    DeadLetter {
        source: "plays".to_owned(),
        reason: reason.to_owned(),
        origin: origin.to_owned(),
        at_ms,
        raw: raw.to_vec(),
    }
}

async fn append(log: &dyn Log, source: Source, partition: u32, at_ms: i64, values: &[Vec<u8>]) {
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| Some(value.as_slice())).collect();
    let records = NewRecords {
        partition,
        keys: BinaryArray::from(values.clone()),
        values: BinaryArray::from(values),
        headers: Vec::new(),
    };
    let topic = source.dead_letter_topic();
    log.append(topic, &[records], at_ms).await.unwrap();
}

fn encode(dead_letter: &DeadLetter) -> Vec<u8> {
    serde_json::to_vec(dead_letter).unwrap()
}

/// The dead letters that match a filter, newest first.
async fn read_all(log: &dyn LogRead, filter: &DeadLetterFilter) -> Vec<StoredDeadLetter> {
    let mut newest = NewestDeadLetters::open(log, filter.clone(), None)
        .await
        .unwrap();
    let mut letters = Vec::new();
    while let Some(dead_letter) = newest.next(u64::MAX).await.unwrap() {
        letters.push(dead_letter);
    }
    assert!(newest.is_exhausted());
    letters
}

async fn open_stores() -> (tempfile::TempDir, Stores) {
    let folder = tempfile::tempdir().unwrap();
    let stores = Stores::embedded(folder.path()).await.unwrap();
    for (source, partitions) in [(Source::Plays, 3), (Source::Efforts, 1)] {
        let topic = source.dead_letter_topic();
        stores.log.ensure_topic(topic, partitions).await.unwrap();
    }
    (folder, stores)
}

#[tokio::test]
async fn reads_all_partitions_newest_first() {
    let (_folder, stores) = open_stores().await;
    let log = &*stores.log;
    // More than one range, so that the ranges of the partitions end at different times.
    for n in 0..2_000_i64 {
        let partition = u32::try_from(n * n % 3).unwrap();
        let letter = dead_letter(&format!("f:{n}"), "bad", n, b"x");
        append(log, Source::Plays, partition, n, &[encode(&letter)]).await;
    }
    let dead_letters = read_all(log, &DeadLetterFilter::default()).await;
    let times: Vec<i64> = dead_letters
        .iter()
        .map(|dead_letter| dead_letter.logged_at_ms)
        .collect();
    assert_eq!(times, (0..2_000).rev().collect::<Vec<_>>());
    // Reads the same in pages, though more dead letters arrive meanwhile.
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let filter = DeadLetterFilter::default();
        let mut newest = NewestDeadLetters::open(log, filter, after.as_ref())
            .await
            .unwrap();
        for _ in 0..123 {
            pages.extend(newest.next(u64::MAX).await.unwrap());
        }
        if newest.is_exhausted() {
            break;
        }
        let text = serde_json::to_string(&newest.positions()).unwrap();
        after = Some(serde_json::from_str(&text).unwrap());
        let late = dead_letter(&format!("late:{}", pages.len()), "bad", 9_999, b"x");
        append(log, Source::Plays, 1, 9_999, &[encode(&late)]).await;
    }
    assert_eq!(pages, dead_letters);
    // A limit on examined dead letters pauses the reader.
    let mut newest = NewestDeadLetters::open(log, DeadLetterFilter::default(), None)
        .await
        .unwrap();
    while newest.next(10).await.unwrap().is_some() {}
    assert_eq!((newest.examined(), newest.is_exhausted()), (10, false));
    assert!(newest.next(11).await.unwrap().is_some());
}

#[tokio::test]
async fn large_dead_letters_are_read_in_small_ranges() {
    let (_folder, stores) = open_stores().await;
    let log = &*stores.log;
    let large = vec![b'x'; 700_000];
    for n in 0..40_i64 {
        let raw = if n % 3 == 0 { b"small" } else { &large[..] };
        let letter = dead_letter(&format!("f:{n}"), "bad", n, raw);
        append(log, Source::Plays, 0, n, &[encode(&letter)]).await;
    }
    append(log, Source::Plays, 0, 40, &[vec![b' '; 6 << 20]]).await;
    let dead_letters = read_all(log, &DeadLetterFilter::default()).await;
    let times: Vec<i64> = dead_letters
        .iter()
        .map(|dead_letter| dead_letter.logged_at_ms)
        .collect();
    assert_eq!(times, (0..=40).rev().collect::<Vec<_>>());
    assert!(dead_letters[0].is_broken && dead_letters[0].content.raw.len() == 6 << 20);
    let mut oldest = OldestDeadLetters::open(log, DeadLetterFilter::default())
        .await
        .unwrap();
    let mut reread = Vec::new();
    loop {
        let batch = oldest.next_batch().await.unwrap();
        if batch.is_empty() {
            break;
        }
        reread.extend(batch);
    }
    reread.reverse();
    assert_eq!(reread, dead_letters);
}

#[tokio::test]
async fn records_that_are_not_dead_letters_are_returned_too() {
    let (_folder, stores) = open_stores().await;
    let log = &*stores.log;
    let values = [
        encode(&dead_letter("f:1", "bad", 1, b"x")),
        b"garbage".to_vec(),
        Vec::new(),
        br#"{"source":"plays"}"#.to_vec(),
        encode(&dead_letter("f:2", "bad", 2, b"x")),
    ];
    append(log, Source::Plays, 2, 7, &values).await;
    let dead_letters = read_all(log, &DeadLetterFilter::default()).await;
    let broken: Vec<bool> = dead_letters
        .iter()
        .map(|dead_letter| dead_letter.is_broken)
        .collect();
    assert_eq!(broken, [false, true, true, true, false]);
    let garbage = &dead_letters[3];
    assert_eq!(garbage.content.raw, b"garbage");
    assert_eq!(garbage.content.origin, "backstitch.plays.v1.dlq/2@1");
    assert_eq!((garbage.content.at_ms, garbage.logged_at_ms), (7, 7));
    assert!(
        garbage
            .content
            .reason
            .contains("writes to backstitch.plays.v1.dlq"),
        "{}",
        garbage.content.reason
    );
    for letter in &dead_letters {
        assert_eq!(find(log, letter.id).await.unwrap().as_ref(), Some(letter));
    }
    for (partition, offset) in [(2, 5), (2, 6), (0, 0), (3, 0)] {
        let id = DeadLetterId {
            source: Source::Plays,
            partition,
            offset,
        };
        assert_eq!(find(log, id).await.unwrap(), None, "{id}");
    }
    let id = DeadLetterId {
        source: Source::Clubs,
        partition: 0,
        offset: 0,
    };
    assert_eq!(
        find(log, id).await.unwrap(),
        None,
        "the topic does not exist"
    );
}

#[tokio::test]
async fn filters_by_source_reason_and_time() {
    let (_folder, stores) = open_stores().await;
    let log = &*stores.log;
    for (source, n) in (0..4)
        .map(|n| (Source::Plays, n))
        .chain([(Source::Efforts, 4)])
    {
        let reason = format!("line {n}: \"{n}\" is bad");
        let at_ms = 1_000_000 * n;
        let letter = dead_letter(&format!("f:{n}"), &reason, at_ms, b"x");
        append(log, source, 0, at_ms, &[encode(&letter), encode(&letter)]).await;
    }
    for (source, reason, since_ms, expected) in [
        (None, None, None, &[4, 3, 2, 1, 0][..]),
        (Some(Source::Plays), None, None, &[3, 2, 1, 0]),
        (Some(Source::Clubs), None, None, &[]),
        (None, Some("\"2\" is"), None, &[2]),
        (None, Some("line N: \"…\" is bad"), None, &[4, 3, 2, 1, 0]),
        (None, Some("good"), None, &[]),
        (None, None, Some(2_000_000), &[4, 3, 2]),
        (None, None, Some(2_000_001), &[4, 3]),
        (Some(Source::Plays), Some("is bad"), Some(3_000_000), &[3]),
    ] {
        let filter = DeadLetterFilter {
            source,
            reason: reason.map(str::to_owned),
            since_ms,
        };
        let dead_letters = read_all(log, &filter).await;
        let times: Vec<i64> = dead_letters
            .iter()
            .map(|letter| letter.content.at_ms / 1_000_000)
            .collect();
        assert_eq!(times, expected, "{filter:?}");
        let mut oldest = OldestDeadLetters::open(log, filter.clone()).await.unwrap();
        let mut reread = BTreeSet::new();
        loop {
            let batch = oldest.next_batch().await.unwrap();
            if batch.is_empty() {
                break;
            }
            assert!(
                batch
                    .iter()
                    .all(|letter| letter.id.source == batch[0].id.source)
            );
            reread.extend(batch.iter().map(|letter| letter.content.at_ms / 1_000_000));
        }
        assert_eq!(reread, expected.iter().copied().collect(), "{filter:?}");
    }
}

#[tokio::test]
async fn kinds_are_counted() {
    let (_folder, stores) = open_stores().await;
    let log = &*stores.log;
    let mut values = Vec::new();
    for n in 0..10 {
        let reason = format!("line {n}: \"{n}\" is bad");
        let origin = format!("f:{n}");
        values.push(encode(&dead_letter(&origin, &reason, 100 - n, b"x")));
    }
    values.push(encode(&dead_letter("g:1", "kind: missing", 50, b"x")));
    // A duplicate.
    values.push(encode(&dead_letter("g:1", "kind: missing", 50, b"x")));
    append(log, Source::Plays, 1, 1, &values).await;
    let effort = encode(&dead_letter("h:1", "kind: missing", 60, b"x"));
    append(log, Source::Efforts, 0, 2, &[effort]).await;
    let counts = count(log, DeadLetterFilter::default(), u64::MAX)
        .await
        .unwrap();
    assert_eq!(
        (counts.dead_letters, counts.examined, counts.is_complete),
        (12, 13, true)
    );
    let summary = |kind: &KindCount| {
        let times = (kind.first_at_ms, kind.last_at_ms);
        let example = kind.example.to_string();
        (kind.source, kind.kind.clone(), kind.letters, times, example)
    };
    let example = |text: &str| text.to_owned();
    assert_eq!(
        counts.kinds.iter().map(summary).collect::<Vec<_>>(),
        [
            (
                Source::Plays,
                "line N: \"…\" is bad".to_owned(),
                10,
                (91, 100),
                example("backstitch.plays.v1.dlq/1@9")
            ),
            (
                Source::Plays,
                "kind: missing".to_owned(),
                1,
                (50, 50),
                example("backstitch.plays.v1.dlq/1@11")
            ),
            (
                Source::Efforts,
                "kind: missing".to_owned(),
                1,
                (60, 60),
                example("backstitch.efforts.v1.dlq/0@0")
            ),
        ]
    );
    let counts = count(log, DeadLetterFilter::default(), 3).await.unwrap();
    assert_eq!((counts.examined, counts.is_complete), (3, false));
    // More kinds than are counted separately.
    let many = (0..1_100).map(|n| {
        let word: String = format!("{n:04}")
            .bytes()
            .map(|b| char::from(b + 49))
            .collect();
        encode(&dead_letter(&format!("i:{n}"), &word, 1, b"x"))
    });
    append(log, Source::Efforts, 0, 3, &many.collect::<Vec<_>>()).await;
    let counts = count(log, DeadLetterFilter::default(), u64::MAX)
        .await
        .unwrap();
    assert_eq!(counts.dead_letters, 1_112);
    let other = counts.kinds.iter().filter(|kind| kind.kind == OTHER_KINDS);
    assert_eq!(other.map(|kind| kind.letters).sum::<u64>(), 1_112 - 1_000);
}

/// A log of one partition with gaps, whose oldest records are deleted while it is read.
#[derive(Debug)]
struct LogWithGaps {
    offsets: Vec<i64>,
    end: i64,
    start: AtomicI64,
    later_start: i64,
}

#[async_trait]
impl LogRead for LogWithGaps {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        let span = Span {
            start: self.start.load(Ordering::Relaxed),
            end: self.end,
        };
        let exists = topic == Source::Plays.dead_letter_topic();
        Ok(vec![span; usize::from(exists)])
    }

    async fn fetch(
        &self,
        topic: &str,
        _: u32,
        from: i64,
        limit: FetchLimit,
    ) -> Result<FetchedRecords> {
        let start = self.start.swap(self.later_start, Ordering::Relaxed);
        if from < start {
            return Err(Error::OffsetOutOfRange {
                topic: topic.to_owned(),
                partition: 0,
                requested: from,
                start,
                end: self.end,
            });
        }
        let offsets = self.offsets.iter().filter(|offset| **offset >= from);
        let offsets: Vec<i64> = offsets.copied().take(limit.records).collect();
        let more = offsets.len() == limit.records;
        let next_offset = offsets
            .last()
            .filter(|_| more)
            .map_or(self.end, |last| last + 1);
        let values = offsets
            .iter()
            .map(|n| encode(&dead_letter(&format!("f:{n}"), "bad", *n, b"x")));
        let values: Vec<Vec<u8>> = values.collect();
        let values: BinaryArray = values.iter().map(Some).collect();
        Ok(FetchedRecords {
            records: Records {
                logged_at_ms: offsets.clone().into(),
                offsets: offsets.into(),
                keys: values.clone(),
                values,
            },
            next_offset,
            end: self.end,
        })
    }

    async fn offset_at(&self, _: &str, _: u32, logged_at_ms: i64) -> Result<i64> {
        Ok(logged_at_ms)
    }
}

#[tokio::test]
async fn gaps_and_deleted_records_are_skipped() {
    let offsets: Vec<i64> = (10..900).chain(5_000..5_003).chain(9_000..9_700).collect();
    for later_start in [10, 500, 5_001, 9_800] {
        let log = LogWithGaps {
            offsets: offsets.clone(),
            end: 9_900,
            start: AtomicI64::new(10),
            later_start,
        };
        let dead_letters = read_all(&log, &DeadLetterFilter::default()).await;
        let times: Vec<i64> = dead_letters
            .iter()
            .map(|letter| letter.content.at_ms)
            .collect();
        let existing = offsets.iter().rev().copied();
        // The first fetch still finds all records.
        let expected: Vec<i64> = existing
            .filter(|n| *n >= later_start || *n >= 9_644)
            .collect();
        assert_eq!(times, expected, "{later_start}");
        let hole = DeadLetterId {
            source: Source::Plays,
            partition: 0,
            offset: 9_750,
        };
        assert_eq!(find(&log, hole).await.unwrap(), None);
    }
}
