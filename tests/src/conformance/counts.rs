//! Laws of the daily counts port.

use stores::counts::{
    Day, DayRow, HistoryQuery, PublishedRuns, RUNS_KEY, RunCount, plan_rows, read_history,
    read_newest_rows,
};
use stores::{Result, Stores};

use schemas::seam::Epoch;
use schemas::source::Source;

const JOB: &str = "application_athletes";
const SOURCE: Source = Source::Authorizations;

fn run_count(epoch: Epoch, count: u64) -> RunCount {
    RunCount { epoch, count }
}

fn row(day: Day, current: (Epoch, u64), previous: Option<(Epoch, u64)>) -> DayRow {
    DayRow {
        day,
        current: run_count(current.0, current.1),
        previous: previous.map(|(epoch, count)| run_count(epoch, count)),
    }
}

/// Writes the rows of some keys.
async fn write(ports: &Stores, job: &str, stamp_us: i64, rows: &[(&[u8], DayRow)]) -> Result<()> {
    ports.counts.write_days(job, stamp_us, rows).await
}

/// Rows are returned as written, only those of their job and key, including days before 1970.
pub async fn daily_rows_round_trip(ports: &Stores) -> Result<()> {
    let large = i64::MAX.cast_unsigned();
    let rows = [
        row(Day::MIN, (1, 0), None),
        row(-1, (2, large), Some((1, large))),
        row(0, (3, 7), Some((0, 0))),
        row(20_648, (large, 1), None),
    ];
    let keyed_rows = |key: &'static [u8]| rows.map(|row| (key, row));
    let zeros: &[u8] = &[0, 255, 0];
    for key in [RUNS_KEY, b"a", zeros] {
        write(ports, JOB, 5, &keyed_rows(key)).await?;
    }
    let other = row(0, (9, 9), None);
    write(ports, "other", 5, &[(b"a", other)]).await?;
    write(ports, JOB, 5, &[]).await?;
    let store = &*ports.counts;
    let days = |key: &'static [u8], days: std::ops::Range<Day>, limit: usize| {
        store.read_days(JOB, key, days, limit)
    };
    for key in [RUNS_KEY, b"a", zeros] {
        assert_eq!(days(key, Day::MIN..Day::MAX, 100).await?, rows);
        assert_eq!(days(key, Day::MIN..Day::MAX, 3).await?, rows[..3]);
        assert_eq!(days(key, -1..20_648, 100).await?, rows[1..3]);
        assert_eq!(days(key, 1..20_648, 100).await?, []);
        assert_eq!(days(key, 5..5, 100).await?, []);
    }
    assert_eq!(days(b"nobody", Day::MIN..Day::MAX, 100).await?, []);
    assert_eq!(store.read_days("other", b"a", -9..9, 100).await?, [other]);
    let requests: [(&[u8], Day); 6] = [
        (b"a", Day::MAX),
        (b"nobody", Day::MAX),
        (RUNS_KEY, 0),
        (b"a", Day::MIN),
        (b"a", 20_648),
        (b"a", Day::MAX),
    ];
    let last = store.read_last_days(JOB, &requests).await?;
    let expected = [Some(3), None, Some(1), None, Some(2), Some(3)];
    assert_eq!(
        last,
        expected.map(|index: Option<usize>| index.map(|index| rows[index]))
    );
    assert_eq!(store.read_last_days(JOB, &[]).await?, []);
    Ok(())
}

/// A late write of an earlier attempt changes nothing; the same attempt may write again.
pub async fn the_larger_stamp_wins(ports: &Stores) -> Result<()> {
    let first = row(7, (2, 5), Some((1, 3)));
    let second = row(7, (2, 6), None);
    for (stamp_us, written, expected) in [
        (10, first, first),
        (10, first, first),
        (9, second, first),
        (11, second, second),
        (10, first, second),
    ] {
        write(ports, JOB, stamp_us, &[(b"a", written)]).await?;
        let actual = ports.counts.read_days(JOB, b"a", 0..100, 9).await?;
        assert_eq!(actual, [expected], "after a write with {stamp_us}");
    }
    Ok(())
}

/// One call writes or reads many keys, each with its own day.
pub async fn many_keys_are_read_at_once(ports: &Stores) -> Result<()> {
    let keys: Vec<[u8; 4]> = (0..1_500_u32).map(u32::to_be_bytes).collect();
    let count = |index: usize| u64::try_from(index).expect("few keys");
    let mut rows: Vec<(&[u8], DayRow)> = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        rows.push((key, row(1, (1, count(index)), None)));
        rows.push((key, row(4, (2, count(index) + 1), None)));
    }
    write(ports, JOB, 5, &rows).await?;
    let end_day = |index: usize| -> Day { [5, 4, 1][index % 3] };
    let requests: Vec<(&[u8], Day)> = keys
        .iter()
        .enumerate()
        .map(|(index, key)| (key.as_slice(), end_day(index)))
        .collect();
    let actual = ports.counts.read_last_days(JOB, &requests).await?;
    assert_eq!(actual.len(), keys.len());
    for (index, actual) in actual.into_iter().enumerate() {
        let expected = match index % 3 {
            0 => Some(row(4, (2, count(index) + 1), None)),
            1 => Some(row(1, (1, count(index)), None)),
            _ => None,
        };
        assert_eq!(actual, expected, "key {index}");
    }
    Ok(())
}

/// Starts a run and begins to publish it; returns its stamp.
async fn begin(ports: &Stores, epoch: Epoch) -> Result<i64> {
    let views = &ports.views;
    let token = format!("{epoch}");
    views.propose(SOURCE, epoch, &[], &token, 1).await?;
    views.seal(SOURCE, epoch, &token).await?;
    begin_publishing(ports, epoch).await
}

async fn begin_publishing(ports: &Stores, epoch: Epoch) -> Result<i64> {
    let no_results = std::collections::BTreeMap::new();
    let views = &ports.views;
    views.begin_publishing(SOURCE, epoch, &no_results, 1).await
}

/// Writes a key's count as an attempt of a run, and checks that it is stored.
async fn write_count(
    ports: &Stores,
    day: Day,
    epoch: Epoch,
    count: u64,
    stamp_us: i64,
) -> Result<()> {
    let published = PublishedRuns::from_runs(&ports.views.runs(SOURCE).await?.runs);
    let store = &*ports.counts;
    let keys: [(&[u8], u64); 2] = [(b"a", count), (RUNS_KEY, 0)];
    let newest = read_newest_rows(store, JOB, &keys.map(|(key, _)| key), &published).await?;
    let mut rows = Vec::new();
    for ((key, count), newest) in keys.into_iter().zip(newest) {
        let current = run_count(epoch, count);
        let new_rows = plan_rows(&newest, day, current, &published, key.is_empty());
        rows.extend(new_rows.into_iter().map(|row| (key, row)));
    }
    write(ports, JOB, stamp_us, &rows).await
}

async fn complete(ports: &Stores, epoch: Epoch, stamp_us: i64) -> Result<()> {
    let no_results = std::collections::BTreeMap::new();
    let views = &ports.views;
    views
        .complete(SOURCE, (epoch, stamp_us), &no_results, true, 1)
        .await
}

/// Returns the days, counts and runs of a range of days, read page by page.
async fn list_days(ports: &Stores, days: std::ops::Range<Day>) -> Result<Vec<(Day, u64, Epoch)>> {
    let query = HistoryQuery {
        source: SOURCE,
        job: JOB,
        key: b"a",
    };
    let (counts, views) = (&*ports.counts, &*ports.views);
    let mut first_result: Option<Vec<_>> = None;
    for limit in [1, 2, 1_000] {
        let (mut listed, mut next) = (Vec::new(), Some(days.start));
        while let Some(start) = next {
            let page = read_history(counts, views, query, start..days.end, limit).await?;
            assert!(page.days.len() <= limit);
            listed.extend(page.days.iter().map(|d| (d.day, d.count, d.epoch)));
            next = page.next;
        }
        let first_result = first_result.get_or_insert_with(|| listed.clone());
        assert_eq!(*first_result, listed, "{limit} at a time");
    }
    Ok(first_result.unwrap_or_default())
}

/// A history consists of the counts of complete runs, even if other runs are in progress,
/// interrupted or abandoned.
pub async fn histories_follow_the_runs(ports: &Stores) -> Result<()> {
    let all_days = Day::MIN..Day::MAX;
    assert_eq!(list_days(ports, all_days.clone()).await?, []);
    let stamp_us = begin(ports, 1).await?;
    write_count(ports, 10, 1, 3, stamp_us).await?;
    assert_eq!(
        list_days(ports, all_days.clone()).await?,
        [],
        "nothing is published"
    );
    complete(ports, 1, stamp_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, [(10, 3, 1)]);
    // A later run of the same day is interrupted and tried again.
    let first_us = begin(ports, 2).await?;
    write_count(ports, 10, 2, 4, first_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, [(10, 3, 1)]);
    let stamp_us = begin_publishing(ports, 2).await?;
    write_count(ports, 10, 2, 5, stamp_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, [(10, 3, 1)]);
    complete(ports, 2, stamp_us).await?;
    write_count(ports, 10, 2, 4, first_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, [(10, 5, 2)]);
    // A run of a later day is abandoned, and the next run has a later day.
    let stamp_us = begin(ports, 3).await?;
    write_count(ports, 12, 3, 9, stamp_us).await?;
    ports.views.abandon(SOURCE, 3, 1).await?;
    let stamp_us = begin(ports, 4).await?;
    write_count(ports, 14, 4, 5, stamp_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, [(10, 5, 2)]);
    complete(ports, 4, stamp_us).await?;
    let mut expected = vec![(10, 5, 2), (11, 5, 2), (12, 5, 2), (13, 5, 2), (14, 5, 4)];
    assert_eq!(list_days(ports, all_days.clone()).await?, expected);
    // A run in progress does not change existing days.
    let stamp_us = begin(ports, 5).await?;
    write_count(ports, 16, 5, 6, stamp_us).await?;
    assert_eq!(list_days(ports, all_days.clone()).await?, expected);
    complete(ports, 5, stamp_us).await?;
    expected.extend([(15, 5, 4), (16, 6, 5)]);
    assert_eq!(list_days(ports, all_days).await?, expected);
    assert_eq!(list_days(ports, 12..16).await?, expected[2..6]);
    assert_eq!(list_days(ports, 17..90).await?, []);
    assert_eq!(list_days(ports, 0..10).await?, []);
    Ok(())
}
