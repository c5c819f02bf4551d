//! Laws of the entity store: dumps, groups, and visibility between processes.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::TryStreamExt;
use schemas::entities::{Entity, Group, schema};
use schemas::source::Source;
use stores::{Result, Stores};

use super::entity_rows::{
    EffortRow, NOW_MS, application, apply, authorization, authorization_rows, batches, effort,
    effort_rows, efforts, group,
};

/// A dump returns every row once in the order of key, member and id, in batches of any size, for
/// all keys or for some.
pub async fn dumps_are_in_order(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    // Few keys have many rows, including members with many; many keys have few rows.
    let rows = |id: i64| match id % 4 {
        0 => (5, id % 7),
        1 => (9, 3),
        _ => (id % 101, id % 13),
    };
    let mut all_rows: Vec<Entity> = Vec::new();
    for id in (0..4000).rev() {
        let (key, member) = rows(id);
        all_rows.push(Entity::Effort(effort(id, key, member)));
        all_rows.push(Entity::Authorization(authorization(id, key, member)));
    }
    entities.apply(&all_rows, NOW_MS).await?;
    let mut expected: Vec<(i64, i64, i64)> =
        (0..4000).map(|id| (rows(id).0, rows(id).1, id)).collect();
    expected.sort_unstable();
    let all_keys: Vec<i64> = (-3..10_000).rev().collect();
    let some_keys = [9, 1000, 5, 9, -4, 77, 0];
    for source in [Source::Efforts, Source::Authorizations] {
        for batch_rows in [0, 1, 7, 1000, 4096, usize::MAX] {
            for keys in [
                None,
                Some(&all_keys[..]),
                Some(&some_keys[..]),
                Some(&some_keys[..1]),
            ] {
                // Batches of one row are slow.
                if batch_rows < 7 && keys.is_none_or(|keys| keys.len() > 1) {
                    continue;
                }
                let mut expected = expected.clone();
                expected.retain(|row| keys.is_none_or(|keys| keys.contains(&row.0)));
                let actual = batches(entities, source, keys, batch_rows).await?;
                let actual: Vec<(i64, i64, i64)> = actual.iter().flat_map(row_ids).collect();
                assert!(actual == expected, "{source}, {batch_rows} rows a batch");
            }
        }
    }
    // A dump may be dropped before its end.
    let mut dump = entities.dump(Source::Efforts, None, 10).await?;
    assert_eq!(
        dump.try_next().await?.map(|batch| batch.num_rows()),
        Some(10)
    );
    drop(dump);
    entities.apply(&all_rows[..1], NOW_MS).await?;
    Ok(())
}

/// Many groups are read in one call, including unknown groups, duplicates, and gaps between groups.
pub async fn many_groups_are_read(ports: &Stores) -> Result<()> {
    let entities = &*ports.entities;
    let rows: Vec<Entity> = (0..9000)
        .map(|id| Entity::Effort(effort(id, id % 97, id % 89)))
        .collect();
    apply(entities, &rows).await?;
    let mut requested: Vec<Group> = (0..9000)
        .rev()
        .filter(|id| id % 3 > 0)
        .map(|id| group(id % 97, id % 89))
        .collect();
    requested.extend([group(96, 1000), group(-5, 3), requested[0]]);
    let requested_set: BTreeSet<Group> = requested.iter().copied().collect();
    let batch = entities.groups(Source::Efforts, &requested).await?;
    let mut expected: Vec<(i64, i64, i64)> = (0..9000)
        .map(|id| (id % 97, id % 89, id))
        .filter(|(key, member, _)| requested_set.contains(&group(*key, *member)))
        .collect();
    expected.sort_unstable();
    assert!(row_ids(&batch) == expected);
    Ok(())
}

/// Groups are returned in the requested order, as many as fit the row limit. A group larger than
/// the limit is returned alone.
pub async fn rows_of_groups_are_bounded(ports: &Stores) -> Result<()> {
    // More than any page size of an adapter.
    const MANY: i64 = 70_000;
    let entities = &*ports.entities;
    // The number of rows by member; one member has none.
    let sizes = [
        (5, 3),
        (9, 0),
        (2, 4),
        (7, MANY),
        (1, 1),
        (8, 0),
        (3, 2),
        (6, 2),
    ];
    let mut rows = Vec::new();
    for (member, size) in sizes {
        let ids = (0..size).map(|n| n * 10 + member);
        rows.extend(ids.clone().map(|id| Entity::Effort(effort(id, 4, member))));
        let few = ids.take(5).map(|id| authorization(id, 4, member));
        rows.extend(few.map(Entity::Authorization));
    }
    for rows in rows.chunks(20_000) {
        entities.apply(rows, NOW_MS).await?;
    }
    let requested: Vec<Group> = sizes.map(|(member, _)| group(4, member)).into();
    for rows_max in [0, 1, 3, 6, 7, 8, 70_006, 70_007, 70_011, 70_012, usize::MAX] {
        let mut start = 0;
        while start < requested.len() {
            let first = entities
                .first_groups(Source::Efforts, &requested[start..], rows_max)
                .await?;
            assert!(first.groups > 0, "it continues");
            let returned = &sizes[start..start + first.groups];
            let mut expected: Vec<(i64, i64, i64)> = returned
                .iter()
                .flat_map(|(member, size)| (0..*size).map(|n| (4, *member, n * 10 + *member)))
                .collect();
            expected.sort_unstable();
            assert!(row_ids(&first.rows) == expected, "{rows_max} from {start}");
            let is_one_group = returned[1..].iter().all(|(_, size)| *size == 0);
            assert!(
                expected.len() <= rows_max || is_one_group,
                "{rows_max} from {start}"
            );
            start += first.groups;
            if let Some((_, size)) = sizes.get(start)
                && rows_max < 10
            {
                let next = usize::try_from(*size).unwrap_or(usize::MAX);
                assert!(expected.len() + next > rows_max, "{rows_max} from {start}");
            }
        }
    }
    let first = entities
        .first_groups(Source::Authorizations, &requested, 7)
        .await?;
    assert_eq!((first.groups, first.rows.num_rows()), (3, 7));
    let batch = entities.groups(Source::Efforts, &requested).await?;
    assert_eq!(batch.num_rows(), 70_012);
    let none = entities.first_groups(Source::Efforts, &[], 5).await?;
    assert_eq!((none.groups, none.rows.num_rows()), (0, 0));
    Ok(())
}

/// Returns key, member and id of the rows of either source.
fn row_ids(batch: &RecordBatch) -> Vec<(i64, i64, i64)> {
    if Some(batch.schema()) == schema(Source::Efforts) {
        let rows = effort_rows(batch).into_iter();
        return rows
            .map(|row| (row.segment_id, row.athlete_id, row.id))
            .collect();
    }
    let rows = authorization_rows(batch).into_iter();
    rows.map(|row| (row.application_id, row.athlete_id, row.id))
        .collect()
}

/// One process sees the changes of another.
pub async fn changes_are_visible_to_other_processes(
    ports: &Stores,
    other_ports: &Stores,
) -> Result<()> {
    let (ports, other_ports) = (&*ports.entities, &*other_ports.entities);
    for round in 0..10 {
        let (writer, reader) = if round % 2 == 0 {
            (ports, other_ports)
        } else {
            (other_ports, ports)
        };
        let mut row = effort(1, 2, 3);
        row.elapsed_time_s = 100 + round;
        let applied = apply(
            writer,
            &[
                Entity::Effort(row),
                Entity::Application(application(4, round)),
            ],
        )
        .await?;
        assert_eq!(efforts(reader, 10).await?[0].elapsed_time_s, 100 + round);
        let group = reader.groups(Source::Efforts, &[group(2, 3)]).await?;
        assert_eq!(effort_rows(&group)[0].elapsed_time_s, 100 + round);
        assert_eq!(reader.application(4).await?, Some(application(4, round)));
        let pending = reader
            .pending_notifications(Source::Efforts, i64::MAX, 10)
            .await?;
        assert_eq!(pending, applied.notifications);
        reader.remove_notifications(&[pending[0].id]).await?;
        assert_eq!(
            writer
                .pending_notifications(Source::Efforts, i64::MAX, 10)
                .await?,
            []
        );
    }
    Ok(())
}

/// Dumps and groups are consistent snapshots despite concurrent writes. A dump shows the state at
/// its start.
pub async fn reads_are_snapshots(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const ROWS: i64 = 300;
    const ROUNDS: i64 = 60;
    let rows_with_time = |elapsed_time_s: i64| -> Vec<Entity> {
        let row = |id| {
            let mut row = effort(id, id % 5, id % 7);
            row.elapsed_time_s = elapsed_time_s;
            Entity::Effort(row)
        };
        (0..ROWS).map(row).collect()
    };
    apply(&*ports.entities, &rows_with_time(1)).await?;
    let early = other_ports.entities.dump(Source::Efforts, None, 7).await?;
    let writer = Arc::clone(&ports.entities);
    let mut writing = tokio::task::JoinSet::new();
    writing.spawn(async move {
        for round in 2..ROUNDS {
            writer.apply(&rows_with_time(round), NOW_MS).await?;
        }
        Result::Ok(())
    });
    let groups: Vec<Group> = (0..5)
        .flat_map(|key| (0..7).map(move |member| group(key, member)))
        .collect();
    let keys: Vec<i64> = (0..5).collect();
    let read_single_time = |rows: &[EffortRow]| {
        assert_eq!(rows.len(), usize::try_from(ROWS).unwrap_or_default());
        let times: BTreeSet<i64> = rows.iter().map(|row| row.elapsed_time_s).collect();
        assert_eq!(times.len(), 1, "{times:?}");
        *times.first().expect("a time")
    };
    let mut last = 0;
    while last + 1 < ROUNDS {
        let actual = batches(&*other_ports.entities, Source::Efforts, Some(&keys), 11).await?;
        let actual: Vec<EffortRow> = actual.iter().flat_map(effort_rows).collect();
        let time = read_single_time(&actual);
        assert!(time >= last, "{time} after {last}");
        let actual = other_ports
            .entities
            .groups(Source::Efforts, &groups)
            .await?;
        last = read_single_time(&effort_rows(&actual));
        assert!(last >= time, "{last} after {time}");
    }
    while let Some(outcome) = writing.join_next().await {
        outcome.expect("it ends")?;
    }
    let early: Vec<RecordBatch> = early.try_collect().await?;
    let early: Vec<EffortRow> = early.iter().flat_map(effort_rows).collect();
    assert_eq!(read_single_time(&early), 1, "its start time");
    Ok(())
}
