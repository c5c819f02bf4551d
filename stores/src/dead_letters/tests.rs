use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::BinaryArray;
use async_trait::async_trait;
use schemas::dead_letter::{DeadLetter, LetterId};

use super::*;
use crate::log::{Fetched, Log, NewRecords, Records, Span};
use crate::{Error, Stores};

fn letter(origin: &str, reason: &str, at_ms: i64, raw: &[u8]) -> DeadLetter {
    DeadLetter {
        source: "plays".to_owned(),
        reason: reason.to_owned(),
        origin: origin.to_owned(),
        at_ms,
        raw: raw.to_vec(),
    }
}

async fn put(log: &dyn Log, source: Source, partition: u32, at_ms: i64, values: &[Vec<u8>]) {
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

fn written(letter: &DeadLetter) -> Vec<u8> {
    serde_json::to_vec(letter).unwrap()
}

/// The letters that are asked for, newest first.
async fn all(log: &dyn LogRead, asked: &Asked) -> Vec<Letter> {
    let mut newest = Newest::open(log, asked.clone(), None).await.unwrap();
    let mut letters = Vec::new();
    while let Some(letter) = newest.next(u64::MAX).await.unwrap() {
        letters.push(letter);
    }
    assert!(newest.is_over());
    letters
}

async fn opened() -> (tempfile::TempDir, Stores) {
    let folder = tempfile::tempdir().unwrap();
    let stores = Stores::embedded(folder.path()).await.unwrap();
    for (source, partitions) in [(Source::Plays, 3), (Source::Efforts, 1)] {
        let topic = source.dead_letter_topic();
        stores.log.ensure_topic(topic, partitions).await.unwrap();
    }
    (folder, stores)
}

#[tokio::test]
async fn the_newest_come_first_whatever_their_partition() {
    let (_folder, stores) = opened().await;
    let log = &*stores.log;
    // More than a stretch, so that stretches of partitions end at different moments.
    for n in 0..2_000_i64 {
        let partition = u32::try_from(n * n % 3).unwrap();
        let one = letter(&format!("f:{n}"), "bad", n, b"x");
        put(log, Source::Plays, partition, n, &[written(&one)]).await;
    }
    let found = all(log, &Asked::default()).await;
    let times: Vec<i64> = found.iter().map(|letter| letter.logged_at_ms).collect();
    assert_eq!(times, (0..2_000).rev().collect::<Vec<_>>());
    // The same page by page, though more come meanwhile.
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let asked = Asked::default();
        let mut newest = Newest::open(log, asked, after.as_ref()).await.unwrap();
        for _ in 0..123 {
            pages.extend(newest.next(u64::MAX).await.unwrap());
        }
        if newest.is_over() {
            break;
        }
        let text = serde_json::to_string(&newest.positions()).unwrap();
        after = Some(serde_json::from_str(&text).unwrap());
        let late = letter(&format!("late:{}", pages.len()), "bad", 9_999, b"x");
        put(log, Source::Plays, 1, 9_999, &[written(&late)]).await;
    }
    assert_eq!(pages, found);
    // Few are looked at: then it is not over, and goes on.
    let mut newest = Newest::open(log, Asked::default(), None).await.unwrap();
    while newest.next(10).await.unwrap().is_some() {}
    assert_eq!((newest.looked_at(), newest.is_over()), (10, false));
    assert!(newest.next(11).await.unwrap().is_some());
}

#[tokio::test]
async fn large_letters_come_in_small_stretches() {
    let (_folder, stores) = opened().await;
    let log = &*stores.log;
    let large = vec![b'x'; 700_000];
    for n in 0..40_i64 {
        let raw = if n % 3 == 0 { b"small" } else { &large[..] };
        let one = letter(&format!("f:{n}"), "bad", n, raw);
        put(log, Source::Plays, 0, n, &[written(&one)]).await;
    }
    put(log, Source::Plays, 0, 40, &[vec![b' '; 6 << 20]]).await;
    let found = all(log, &Asked::default()).await;
    let times: Vec<i64> = found.iter().map(|letter| letter.logged_at_ms).collect();
    assert_eq!(times, (0..=40).rev().collect::<Vec<_>>());
    assert!(found[0].is_broken && found[0].content.raw.len() == 6 << 20);
    let mut oldest = Oldest::open(log, Asked::default()).await.unwrap();
    let mut again = Vec::new();
    loop {
        let more = oldest.more().await.unwrap();
        if more.is_empty() {
            break;
        }
        again.extend(more);
    }
    again.reverse();
    assert_eq!(again, found);
}

#[tokio::test]
async fn what_is_no_letter_hides_none() {
    let (_folder, stores) = opened().await;
    let log = &*stores.log;
    let values = [
        written(&letter("f:1", "bad", 1, b"x")),
        b"garbage".to_vec(),
        Vec::new(),
        br#"{"source":"plays"}"#.to_vec(),
        written(&letter("f:2", "bad", 2, b"x")),
    ];
    put(log, Source::Plays, 2, 7, &values).await;
    let found = all(log, &Asked::default()).await;
    let broken: Vec<bool> = found.iter().map(|letter| letter.is_broken).collect();
    assert_eq!(broken, [false, true, true, true, false]);
    let garbage = &found[3];
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
    for one in &found {
        assert_eq!(find(log, one.id).await.unwrap().as_ref(), Some(one));
    }
    for (partition, offset) in [(2, 5), (2, 6), (0, 0), (3, 0)] {
        let id = LetterId {
            source: Source::Plays,
            partition,
            offset,
        };
        assert_eq!(find(log, id).await.unwrap(), None, "{id}");
    }
    let id = LetterId {
        source: Source::Clubs,
        partition: 0,
        offset: 0,
    };
    assert_eq!(find(log, id).await.unwrap(), None, "there is no such topic");
}

#[tokio::test]
async fn letters_are_asked_for_by_source_reason_and_time() {
    let (_folder, stores) = opened().await;
    let log = &*stores.log;
    for (source, n) in (0..4)
        .map(|n| (Source::Plays, n))
        .chain([(Source::Efforts, 4)])
    {
        let reason = format!("line {n}: \"{n}\" is bad");
        let at_ms = 1_000_000 * n;
        let one = letter(&format!("f:{n}"), &reason, at_ms, b"x");
        put(log, source, 0, at_ms, &[written(&one), written(&one)]).await;
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
        let asked = Asked {
            source,
            reason: reason.map(str::to_owned),
            since_ms,
        };
        let found = all(log, &asked).await;
        let times: Vec<i64> = found
            .iter()
            .map(|one| one.content.at_ms / 1_000_000)
            .collect();
        assert_eq!(times, expected, "{asked:?}");
        let mut oldest = Oldest::open(log, asked.clone()).await.unwrap();
        let mut again = BTreeSet::new();
        loop {
            let more = oldest.more().await.unwrap();
            if more.is_empty() {
                break;
            }
            assert!(more.iter().all(|one| one.id.source == more[0].id.source));
            again.extend(more.iter().map(|one| one.content.at_ms / 1_000_000));
        }
        assert_eq!(again, expected.iter().copied().collect(), "{asked:?}");
    }
}

#[tokio::test]
async fn kinds_are_counted() {
    let (_folder, stores) = opened().await;
    let log = &*stores.log;
    let mut values = Vec::new();
    for n in 0..10 {
        let reason = format!("line {n}: \"{n}\" is bad");
        values.push(written(&letter(&format!("f:{n}"), &reason, 100 - n, b"x")));
    }
    values.push(written(&letter("g:1", "kind: missing", 50, b"x")));
    // Noted twice.
    values.push(written(&letter("g:1", "kind: missing", 50, b"x")));
    put(log, Source::Plays, 1, 1, &values).await;
    let of_efforts = written(&letter("h:1", "kind: missing", 60, b"x"));
    put(log, Source::Efforts, 0, 2, &[of_efforts]).await;
    let counts = count(log, Asked::default(), u64::MAX).await.unwrap();
    assert_eq!(
        (counts.letters, counts.looked_at, counts.is_complete),
        (12, 13, true)
    );
    let told = |kind: &KindCount| {
        let times = (kind.first_at_ms, kind.last_at_ms);
        let example = kind.example.to_string();
        (kind.source, kind.kind.clone(), kind.letters, times, example)
    };
    let example = |text: &str| text.to_owned();
    assert_eq!(
        counts.kinds.iter().map(told).collect::<Vec<_>>(),
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
    let counts = count(log, Asked::default(), 3).await.unwrap();
    assert_eq!((counts.looked_at, counts.is_complete), (3, false));
    // More kinds than are told apart.
    let many = (0..1_100).map(|n| {
        let word: String = format!("{n:04}")
            .bytes()
            .map(|b| char::from(b + 49))
            .collect();
        written(&letter(&format!("i:{n}"), &word, 1, b"x"))
    });
    put(log, Source::Efforts, 0, 3, &many.collect::<Vec<_>>()).await;
    let counts = count(log, Asked::default(), u64::MAX).await.unwrap();
    assert_eq!(counts.letters, 1_112);
    let other = counts.kinds.iter().filter(|kind| kind.kind == OTHER_KINDS);
    assert_eq!(other.map(|kind| kind.letters).sum::<u64>(), 1_112 - 1_000);
}

/// A log of one partition with holes, of which the oldest records go while it is read.
#[derive(Debug)]
struct Holed {
    offsets: Vec<i64>,
    end: i64,
    start: AtomicI64,
    start_later: i64,
}

#[async_trait]
impl LogRead for Holed {
    async fn spans(&self, topic: &str) -> Result<Vec<Span>> {
        let span = Span {
            start: self.start.load(Ordering::Relaxed),
            end: self.end,
        };
        let is_there = topic == Source::Plays.dead_letter_topic();
        Ok(vec![span; usize::from(is_there)])
    }

    async fn fetch(&self, topic: &str, _: u32, from: i64, limit: FetchLimit) -> Result<Fetched> {
        let start = self.start.swap(self.start_later, Ordering::Relaxed);
        if from < start {
            return Err(Error::OffsetOutOfRange {
                topic: topic.to_owned(),
                partition: 0,
                asked: from,
                start,
                end: self.end,
            });
        }
        let found = self.offsets.iter().filter(|offset| **offset >= from);
        let found: Vec<i64> = found.copied().take(limit.records).collect();
        let more = found.len() == limit.records;
        let next_offset = found
            .last()
            .filter(|_| more)
            .map_or(self.end, |last| last + 1);
        let values = found
            .iter()
            .map(|n| written(&letter(&format!("f:{n}"), "bad", *n, b"x")));
        let values: Vec<Vec<u8>> = values.collect();
        let values: BinaryArray = values.iter().map(Some).collect();
        Ok(Fetched {
            records: Records {
                logged_at_ms: found.clone().into(),
                offsets: found.into(),
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
async fn holes_and_what_goes_meanwhile_are_passed_over() {
    let offsets: Vec<i64> = (10..900).chain(5_000..5_003).chain(9_000..9_700).collect();
    for start_later in [10, 500, 5_001, 9_800] {
        let log = Holed {
            offsets: offsets.clone(),
            end: 9_900,
            start: AtomicI64::new(10),
            start_later,
        };
        let found = all(&log, &Asked::default()).await;
        let times: Vec<i64> = found.iter().map(|one| one.content.at_ms).collect();
        let there = offsets.iter().rev().copied();
        // The first fetch is of a log that still has all.
        let expected: Vec<i64> = there.filter(|n| *n >= start_later || *n >= 9_644).collect();
        assert_eq!(times, expected, "{start_later}");
        let hole = LetterId {
            source: Source::Plays,
            partition: 0,
            offset: 9_750,
        };
        assert_eq!(find(&log, hole).await.unwrap(), None);
    }
}
