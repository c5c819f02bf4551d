//! Laws of the live port, in addition to those of [`super::live_model`].

use arrow::array::Int64Array;
use schemas::seam::{Checkpoint, CheckpointMismatch, Cut, EndEpochError};
use schemas::source::Source;
use stores::live::{Changes, DeltaQuery, Deltas, LiveDeltas, LiveWrite};
use stores::{Result, Stores};

use super::{OTHER_VIEW, VIEW, binary, bytes, new_generation, state_id};

const VIEWS: [&str; 2] = [VIEW, OTHER_VIEW];

fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

/// Rebuilds a partition state that begins at offset 0 in epoch 1, and returns its checkpoint.
async fn rebuild(live: &dyn LiveWrite, partition: u32) -> Result<Checkpoint> {
    let outcome = live
        .rebuild(state_id(partition), None, &new_generation(0, 0, 1))
        .await?;
    assert_eq!(outcome, Ok(()), "the state did not exist");
    Ok(Checkpoint {
        generation: 1,
        next_offset: 0,
        epoch: 1,
    })
}

fn deltas(view: &str, rows: &[(&str, &str, i64)]) -> Deltas {
    Deltas {
        view: view.to_owned(),
        grouped_by: "g".to_owned(),
        groups: binary(rows.iter().map(|(group, _, _)| group)),
        rows: binary(rows.iter().map(|(_, row, _)| row)),
        counts: Int64Array::from_iter_values(rows.iter().map(|(_, _, count)| *count)),
    }
}

fn query(group: &str, ranges: &[(&str, Option<&str>)], partition: Option<u32>) -> DeltaQuery {
    DeltaQuery {
        view: VIEW.to_owned(),
        group: group.into(),
        ranges: ranges
            .iter()
            .map(|(begin, end)| (begin.as_bytes().to_vec(), end.map(|end| end.into())))
            .collect(),
        partition,
    }
}

fn sorted_rows(deltas: &LiveDeltas) -> Vec<(u32, u64, String, i64)> {
    let rows = bytes(&deltas.rows)
        .into_iter()
        .map(|row| String::from_utf8_lossy(&row).into_owned());
    let mut tuples: Vec<_> = rows
        .enumerate()
        .map(|(n, row)| {
            (
                deltas.partitions.value(n),
                deltas.epochs.value(n),
                row,
                deltas.counts.value(n),
            )
        })
        .collect();
    tuples.sort();
    tuples
}

/// A missing partition state can only be rebuilt, and has no rows.
pub async fn a_missing_state_rejects_writes(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let checkpoint = Checkpoint {
        generation: 1,
        next_offset: 0,
        epoch: 1,
    };
    let batch = deltas(VIEW, &[("g", "r", 1)]);
    let missing = CheckpointMismatch { actual: None };
    assert_eq!(
        live.apply(state_id(0), checkpoint, cut(9), &VIEWS, &vec![batch].into())
            .await?,
        Err(missing)
    );
    assert_eq!(
        live.close_epoch(state_id(0), checkpoint).await?,
        Err(missing)
    );
    assert_eq!(
        live.end_epoch(state_id(0), 1).await?,
        Err(EndEpochError::Missing)
    );
    assert!(!live.prune_through(state_id(0), 1, cut(0)).await?);
    assert_eq!(live.collect_garbage(state_id(0), 10).await?, 0);
    let snapshot = live
        .read_deltas(Source::Plays, 2, &[query("g", &[("", None)], None)])
        .await?;
    assert_eq!(snapshot.partition_states, [None, None]);
    assert!(sorted_rows(&snapshot.deltas[0]).is_empty());
    let page = live
        .collect_deltas(state_id(0), VIEW, (0, 9), None, 10)
        .await?;
    assert!(page.counts.is_empty());
    Ok(())
}

/// A query returns the rows of its ranges. A range includes its start and excludes its end, an open
/// end extends to the last row, and neighboring groups and views are not included.
pub async fn ranges_are_half_open(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let checkpoint = rebuild(live, 0).await?;
    let rows = [
        ("g", "a", 1),
        ("g", "b", 2),
        ("g", "b0", 3),
        ("g", "c", 4),
        ("g", "d", 5),
    ];
    let neighbors = [("f", "b", 6), ("g0", "b", 7), ("", "b", 8)];
    let batch = deltas(VIEW, &[&rows[..], &neighbors[..]].concat());
    let other_batch = deltas(OTHER_VIEW, &[("g", "b", 9)]);
    assert_eq!(
        live.apply(
            state_id(0),
            checkpoint,
            cut(9),
            &VIEWS,
            &vec![batch, other_batch].into()
        )
        .await?,
        Ok(())
    );
    type Ranges<'a> = &'a [(&'a str, Option<&'a str>)];
    let cases: [(Ranges<'_>, &[i64]); 6] = [
        (&[("", None)], &[1, 2, 3, 4, 5]),
        (&[("b", Some("c"))], &[2, 3]),
        (&[("b", Some("b"))], &[]),
        (&[("a", Some("b")), ("c", None)], &[1, 4, 5]),
        (&[("e", None)], &[]),
        (&[], &[]),
    ];
    let queries: Vec<DeltaQuery> = cases
        .iter()
        .map(|(ranges, _)| query("g", ranges, None))
        .collect();
    let snapshot = live.read_deltas(Source::Plays, 1, &queries).await?;
    for ((ranges, expected), group_deltas) in cases.iter().zip(&snapshot.deltas) {
        let counts: Vec<i64> = sorted_rows(group_deltas)
            .into_iter()
            .map(|part| part.3)
            .collect();
        assert_eq!(counts, *expected, "{ranges:?}");
    }
    Ok(())
}

/// A query reads all requested partitions, or the one that it names.
pub async fn queries_select_partitions(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    for partition in 0..3 {
        let checkpoint = rebuild(live, partition).await?;
        let batch = deltas(VIEW, &[("g", "r", 10 + i64::from(partition))]);
        assert_eq!(
            live.apply(
                state_id(partition),
                checkpoint,
                cut(1),
                &VIEWS,
                &vec![batch].into()
            )
            .await?,
            Ok(())
        );
    }
    let queries = [None, Some(1), Some(2)].map(|partition| query("g", &[("", None)], partition));
    let snapshot = live.read_deltas(Source::Plays, 2, &queries).await?;
    assert_eq!(snapshot.partition_states.len(), 2);
    let row = |partition: u32| (partition, 1, "r".to_owned(), 10 + i64::from(partition));
    assert_eq!(sorted_rows(&snapshot.deltas[0]), [row(0), row(1)]);
    assert_eq!(sorted_rows(&snapshot.deltas[1]), [row(1)]);
    assert_eq!(
        sorted_rows(&snapshot.deltas[2]),
        [],
        "a partition that was not requested has no deltas"
    );
    Ok(())
}

/// A count that exceeds 64 bits is refused in both directions, and nothing of its micro-batch is
/// stored, neither deltas nor position.
pub async fn overflow_changes_nothing(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let checkpoint = rebuild(live, 0).await?;
    let extremes = deltas(VIEW, &[("g", "down", i64::MIN), ("g", "up", i64::MAX)]);
    assert_eq!(
        live.apply(
            state_id(0),
            checkpoint,
            cut(5),
            &VIEWS,
            &vec![extremes].into()
        )
        .await?,
        Ok(())
    );
    let before = live
        .read_deltas(Source::Plays, 1, &[query("g", &[("", None)], None)])
        .await?;
    let checkpoint = Checkpoint {
        next_offset: 5,
        ..checkpoint
    };
    for (row, delta) in [
        ("up", 1),
        ("down", -1),
        ("up", i64::MAX),
        ("down", i64::MIN),
    ] {
        let mut rows = vec![("a", "fine", 1), ("g", row, delta), ("z", "fine", 1)];
        rows.extend([("g", "fine", 7)]);
        let refused = live
            .apply(
                state_id(0),
                checkpoint,
                cut(6),
                &VIEWS,
                &vec![deltas(VIEW, &rows)].into(),
            )
            .await;
        assert!(refused.is_err(), "{row} {delta}");
    }
    for group in ["a", "z"] {
        let snapshot = live
            .read_deltas(Source::Plays, 1, &[query(group, &[("", None)], None)])
            .await?;
        assert_eq!(sorted_rows(&snapshot.deltas[0]), []);
    }
    let after = live
        .read_deltas(Source::Plays, 1, &[query("g", &[("", None)], None)])
        .await?;
    assert_eq!(after.partition_states, before.partition_states);
    assert_eq!(
        sorted_rows(&after.deltas[0]),
        sorted_rows(&before.deltas[0])
    );
    let reversal = deltas(VIEW, &[("g", "up", -1), ("g", "down", 1)]);
    assert_eq!(
        live.apply(
            state_id(0),
            checkpoint,
            cut(6),
            &VIEWS,
            &vec![reversal].into()
        )
        .await?,
        Ok(())
    );
    Ok(())
}

/// Micro-batches of thousands of rows are added completely, repeatedly.
pub async fn large_batches_add_up(ports: &Stores) -> Result<()> {
    const ROWS: i64 = 5000;
    let live = &*ports.live;
    let mut checkpoint = rebuild(live, 0).await?;
    for _ in 0..2 {
        // The order differs from that of the keys.
        let numbers = || (0..ROWS).map(|n| n * 2003 % ROWS);
        let batch = Deltas {
            view: VIEW.to_owned(),
            grouped_by: "g".to_owned(),
            groups: binary(numbers().map(|n| (n % 7).to_be_bytes())),
            rows: binary(numbers().map(i64::to_be_bytes)),
            counts: numbers().collect(),
        };
        let next = cut(checkpoint.next_offset + ROWS);
        assert_eq!(
            live.apply(state_id(0), checkpoint, next, &VIEWS, &vec![batch].into())
                .await?,
            Ok(())
        );
        checkpoint.next_offset += ROWS;
    }
    let all_rows = DeltaQuery {
        group: 3_i64.to_be_bytes().to_vec(),
        ..query("", &[("", None)], None)
    };
    let snapshot = live.read_deltas(Source::Plays, 1, &[all_rows]).await?;
    let mut actual: Vec<(Vec<u8>, i64)> = bytes(&snapshot.deltas[0].rows)
        .into_iter()
        .zip(snapshot.deltas[0].counts.values().iter().copied())
        .collect();
    actual.sort();
    let expected: Vec<(Vec<u8>, i64)> = (0..ROWS)
        .filter(|n| n % 7 == 3)
        .map(|n| (n.to_be_bytes().to_vec(), 2 * n))
        .collect();
    assert!(
        actual == expected,
        "{} of {} rows",
        actual.len(),
        expected.len()
    );
    Ok(())
}

/// Of several workers with the same checkpoint one succeeds, and in the end every micro-batch is
/// counted once.
pub async fn one_worker_wins(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const STEPS: i64 = 15;
    rebuild(&*ports.live, 0).await?;
    let work = async |live: &dyn LiveWrite| -> Result<i64> {
        let mut wins = 0;
        let mut checkpoint = Checkpoint {
            generation: 1,
            next_offset: 0,
            epoch: 1,
        };
        while checkpoint.next_offset < STEPS {
            let batch = deltas(VIEW, &[("g", "r", 1)]);
            let next = cut(checkpoint.next_offset + 1);
            match live
                .apply(state_id(0), checkpoint, next, &VIEWS, &vec![batch].into())
                .await?
            {
                Ok(()) => {
                    wins += 1;
                    checkpoint.next_offset += 1;
                }
                Err(conflict) => checkpoint = conflict.actual.expect("the state exists"),
            }
        }
        Ok(wins)
    };
    let (first, second, third) = tokio::join!(
        work(&*ports.live),
        work(&*other_ports.live),
        work(&*other_ports.live)
    );
    assert_eq!(first? + second? + third?, STEPS);
    let snapshot = ports
        .live
        .read_deltas(Source::Plays, 1, &[query("g", &[("", None)], None)])
        .await?;
    assert_eq!(
        sorted_rows(&snapshot.deltas[0]),
        [(0, 1, "r".to_owned(), STEPS)]
    );
    Ok(())
}

/// A query sees a partition state and its deltas at one moment, even while they change: the counted
/// records are those between the state's start and its position.
pub async fn reads_are_consistent(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const STEPS: i64 = 60;
    let mut checkpoint = rebuild(&*ports.live, 0).await?;
    let write = async {
        while checkpoint.next_offset < STEPS {
            let rows = [("g", "a", 1), ("g", "b", 1)];
            let next = cut(checkpoint.next_offset + 1);
            let outcome = ports
                .live
                .apply(
                    state_id(0),
                    checkpoint,
                    next,
                    &VIEWS,
                    &vec![deltas(VIEW, &rows)].into(),
                )
                .await?;
            assert_eq!(outcome, Ok(()));
            checkpoint.next_offset += 1;
            if checkpoint.next_offset % 10 == 0 {
                assert_eq!(
                    ports.live.end_epoch(state_id(0), checkpoint.epoch).await?,
                    Ok(next)
                );
                checkpoint.epoch += 1;
            }
        }
        Ok(())
    };
    let read = async {
        loop {
            let group_query = query("g", &[("", None)], None);
            let snapshot = other_ports
                .live
                .read_deltas(Source::Plays, 1, &[group_query])
                .await?;
            let position = snapshot.partition_states[0]
                .as_ref()
                .expect("the state exists")
                .position;
            let sum: i64 = snapshot.deltas[0].counts.values().iter().sum();
            assert_eq!(sum, 2 * position.next_offset);
            if position.next_offset == STEPS {
                return Ok(());
            }
        }
    };
    tokio::try_join!(write, read)?;
    Ok(())
}

/// Garbage is deleted in steps, never readable rows, and in the end completely.
pub async fn garbage_is_collected(ports: &Stores) -> Result<()> {
    // So large that a store keeps each row separately and counts it as one delta.
    const LARGE_COUNT: i64 = 1 << 40;
    let live = &*ports.live;
    let mut checkpoint = rebuild(live, 0).await?;
    for epoch in 1..=3 {
        let count = epoch * LARGE_COUNT;
        let rows = [("g", "a", count), ("g", "b", count), ("h", "a", count)];
        let next = cut(epoch);
        let batch = deltas(VIEW, &rows);
        assert_eq!(
            live.apply(state_id(0), checkpoint, next, &VIEWS, &vec![batch].into())
                .await?,
            Ok(())
        );
        assert_eq!(
            live.end_epoch(state_id(0), checkpoint.epoch).await?,
            Ok(next)
        );
        checkpoint = Checkpoint {
            next_offset: epoch,
            epoch: checkpoint.epoch + 1,
            ..checkpoint
        };
    }
    assert_eq!(
        live.collect_garbage(state_id(0), 100).await?,
        0,
        "everything is still kept"
    );
    assert!(live.prune_through(state_id(0), 2, cut(2)).await?);
    let group_query = query("g", &[("", None)], None);
    let snapshot = live.read_deltas(Source::Plays, 1, &[group_query]).await?;
    let count = 3 * LARGE_COUNT;
    let remaining = [(0, 3, "a".to_owned(), count), (0, 3, "b".to_owned(), count)];
    assert_eq!(sorted_rows(&snapshot.deltas[0]), remaining);
    assert_eq!(live.collect_garbage(state_id(0), 4).await?, 4);
    assert_eq!(live.collect_garbage(state_id(0), 100).await?, 2);
    assert_eq!(live.collect_garbage(state_id(0), 100).await?, 0);
    let snapshot = live
        .read_deltas(Source::Plays, 1, &[query("g", &[("", None)], None)])
        .await?;
    assert_eq!(sorted_rows(&snapshot.deltas[0]), remaining);
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(3, 3, 0))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(
        live.collect_garbage(state_id(0), 100).await?,
        3,
        "an old generation is garbage"
    );
    Ok(())
}

/// A partition state keeps the newest epoch with a misrouted record until it is rebuilt.
pub async fn misrouted_records_are_remembered(stores: &Stores) -> Result<()> {
    let live = &*stores.live;
    let mut checkpoint = rebuild(live, 0).await?;
    for (next, has_misrouted, expected_epoch) in
        [(3, false, None), (5, true, Some(1)), (8, false, Some(1))]
    {
        let changes = Changes {
            has_misrouted,
            ..Changes::default()
        };
        let outcome = live
            .apply(state_id(0), checkpoint, cut(next), &VIEWS, &changes)
            .await?;
        assert_eq!(outcome, Ok(()));
        checkpoint.next_offset = next;
        let states = live
            .read_deltas(Source::Plays, 1, &[])
            .await?
            .partition_states;
        let actual = states[0]
            .as_ref()
            .map(|state| (state.checkpoint(), state.misrouted_epoch));
        assert_eq!(actual, Some((checkpoint, expected_epoch)));
    }
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 9))
        .await?;
    assert_eq!(outcome, Ok(()));
    let states = live
        .read_deltas(Source::Plays, 1, &[])
        .await?
        .partition_states;
    assert_eq!(
        states[0].as_ref().and_then(|state| state.misrouted_epoch),
        None
    );
    Ok(())
}
