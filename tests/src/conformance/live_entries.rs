//! Laws of the live port: live entries of boards.

use arrow::array::{Array, BinaryArray};
use schemas::seam::{Checkpoint, Cut};
use schemas::source::Source;
use stores::live::{Changes, Entries, EntryQuery, LiveEntries, LiveWrite, MembersQuery, Outbox};
use stores::live_count::{LiveCountChange, StoredLiveCount};
use stores::{Result, Stores};

use super::{OTHER_VIEW, VIEW, binary, new_generation, state_id};

const VIEWS: [&str; 2] = [VIEW, OTHER_VIEW];

fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn entry_changes(view: &str, groups: &[(&str, &str, Option<&str>)]) -> Changes {
    let entries: BinaryArray = groups
        .iter()
        .map(|(.., entry)| entry.map(str::as_bytes))
        .collect();
    Changes {
        entries: vec![Entries {
            view: view.to_owned(),
            keys: binary(groups.iter().map(|(key, ..)| key)),
            members: binary(groups.iter().map(|(_, member, _)| member)),
            entries,
        }],
        ..Changes::default()
    }
}

fn query(key: &str, partition: Option<u32>) -> EntryQuery {
    EntryQuery {
        view: VIEW.to_owned(),
        key: key.into(),
        partition,
    }
}

type EntryRows = Vec<(u32, u64, String, Option<String>)>;

fn entry_rows(entries: &LiveEntries) -> EntryRows {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut rows: EntryRows = (0..entries.members.len())
        .map(|row| {
            (
                entries.partitions.value(row),
                entries.epochs.value(row),
                text(entries.members.value(row)),
                entries
                    .entries
                    .is_valid(row)
                    .then(|| text(entries.entries.value(row))),
            )
        })
        .collect();
    rows.sort();
    rows
}

async fn read(live: &dyn LiveWrite, key: &str) -> Result<EntryRows> {
    let snapshot = live
        .read_entries(Source::Plays, 2, &[query(key, None)])
        .await?;
    Ok(entry_rows(&snapshot.entries[0]))
}

/// Creates a partition state that begins at offset 0 in epoch 1.
async fn create_state(live: &dyn LiveWrite, partition: u32) -> Result<()> {
    let start = new_generation(0, 0, 1);
    let created = live.rebuild(state_id(partition), None, &start).await?;
    assert_eq!(created, Ok(()));
    Ok(())
}

/// Applies changes with the current checkpoint.
async fn apply(
    live: &dyn LiveWrite,
    partition: u32,
    checkpoint: Checkpoint,
    next: Cut,
    changes: &Changes,
) -> Result<()> {
    let id = state_id(partition);
    let applied = live.apply(id, checkpoint, next, &VIEWS, changes).await?;
    assert_eq!(applied, Ok(()));
    Ok(())
}

/// A live entry replaces the previous one of the same epoch. The absence of a member is an entry
/// too. Entries of pruned epochs and earlier generations are not returned.
pub async fn the_newest_entry_of_an_epoch_wins(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    create_state(live, 0).await?;
    let mut checkpoint = Checkpoint {
        generation: 1,
        next_offset: 0,
        epoch: 1,
    };
    let first = entry_changes(
        VIEW,
        &[
            ("k", "a", Some("1")),
            ("k", "b", Some("2")),
            ("l", "a", None),
        ],
    );
    apply(live, 0, checkpoint, cut(3), &first).await?;
    let stale = entry_changes(VIEW, &[("k", "a", Some("stale"))]);
    let refused = live
        .apply(state_id(0), checkpoint, cut(4), &VIEWS, &stale)
        .await?;
    assert!(refused.is_err(), "the checkpoint has advanced");
    checkpoint.next_offset = 3;
    let second = entry_changes(VIEW, &[("k", "b", None), ("k", "", Some(""))]);
    apply(live, 0, checkpoint, cut(5), &second).await?;
    let row = |epoch: u64, member: &str, entry: Option<&str>| {
        (0, epoch, member.to_owned(), entry.map(str::to_owned))
    };
    let first_rows = [
        row(1, "", Some("")),
        row(1, "a", Some("1")),
        row(1, "b", None),
    ];
    assert_eq!(read(live, "k").await?, first_rows);
    assert_eq!(read(live, "l").await?, [row(1, "a", None)]);
    assert_eq!(read(live, "m").await?, []);

    let end = live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint = Checkpoint {
        generation: 1,
        next_offset: 5,
        epoch: 2,
    };
    let third = entry_changes(VIEW, &[("k", "a", Some("3"))]);
    apply(live, 0, checkpoint, cut(6), &third).await?;
    let mut rows = first_rows.to_vec();
    rows.push(row(2, "a", Some("3")));
    assert_eq!(read(live, "k").await?, rows, "each epoch has its own");
    assert!(live.prune_through(state_id(0), 1, end).await?);
    assert_eq!(read(live, "k").await?, [row(2, "a", Some("3"))]);
    let mut deleted = 0;
    while live.collect_garbage(state_id(0), 2).await? > 0 {
        deleted += 1;
        assert!(deleted < 20, "it ends");
    }
    assert_eq!(read(live, "k").await?, [row(2, "a", Some("3"))]);
    checkpoint.next_offset = 6;
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 9))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(read(live, "k").await?, [], "a new generation has none");
    Ok(())
}

/// A query names one partition or all; the partition states are returned with their live entries.
pub async fn entry_queries_select_partitions(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    for partition in 0..2 {
        let outcome = live
            .rebuild(state_id(partition), None, &new_generation(0, 0, 1))
            .await?;
        assert_eq!(outcome, Ok(()));
        let checkpoint = Checkpoint {
            generation: 1,
            next_offset: 0,
            epoch: 1,
        };
        let entry = partition.to_string();
        let changes = entry_changes(VIEW, &[("k", "a", Some(&entry))]);
        let applied = live
            .apply(state_id(partition), checkpoint, cut(1), &VIEWS, &changes)
            .await?;
        assert_eq!(applied, Ok(()));
    }
    let queries = [query("k", None), query("k", Some(1)), query("k", Some(7))];
    let snapshot = live.read_entries(Source::Plays, 2, &queries).await?;
    assert_eq!(snapshot.partition_states.len(), 2);
    assert!(snapshot.partition_states.iter().all(Option::is_some));
    let row = |partition: u32| (partition, 1, "a".to_owned(), Some(partition.to_string()));
    let expected = [vec![row(0), row(1)], vec![row(1)], vec![]];
    for (entries, expected) in snapshot.entries.iter().zip(expected) {
        assert_eq!(entry_rows(entries), expected);
    }
    let none = live.read_entries(Source::Efforts, 1, &queries[..1]).await?;
    assert_eq!(
        (none.partition_states, entry_rows(&none.entries[0])),
        (vec![None], vec![])
    );
    Ok(())
}

/// Thousands of live entries are stored completely, repeatedly.
pub async fn many_entries_are_stored(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let members: Vec<String> = (0..5_000)
        .map(|n| format!("{:04}", (n * 7) % 5_000))
        .collect();
    for round in 0..2 {
        let entry = format!("{round}{}", "x".repeat(300));
        let groups: Vec<(&str, &str, Option<&str>)> = members
            .iter()
            .map(|member| ("k", member.as_str(), Some(entry.as_str())))
            .collect();
        let checkpoint = Checkpoint {
            generation: 1,
            next_offset: round,
            epoch: 1,
        };
        let changes = entry_changes(VIEW, &groups);
        let applied = live
            .apply(state_id(0), checkpoint, cut(round + 1), &VIEWS, &changes)
            .await?;
        assert_eq!(applied, Ok(()));
        let rows = read(live, "k").await?;
        assert_eq!(rows.len(), members.len());
        assert!(rows.iter().all(|row| row.3.as_deref() == Some(&*entry)));
    }
    Ok(())
}

fn start() -> Checkpoint {
    Checkpoint {
        generation: 1,
        next_offset: 0,
        epoch: 1,
    }
}

/// Writes live entries into two partitions, in two epochs.
async fn write_two_epochs(live: &dyn LiveWrite) -> Result<()> {
    for partition in 0..2 {
        let outcome = live
            .rebuild(state_id(partition), None, &new_generation(0, 0, 1))
            .await?;
        assert_eq!(outcome, Ok(()));
        let first = entry_changes(
            VIEW,
            &[
                ("k", "a", Some("1")),
                ("k", "b", None),
                ("l", "c", Some("3")),
            ],
        );
        let applied = live.apply(state_id(partition), start(), cut(3), &VIEWS, &first);
        assert_eq!(applied.await?, Ok(()));
        live.end_epoch(state_id(partition), 1)
            .await?
            .expect("an end");
        let later = Checkpoint {
            next_offset: 3,
            epoch: 2,
            ..start()
        };
        let second = entry_changes(VIEW, &[("k", "a", None), ("k", "d", Some("4"))]);
        let applied = live.apply(state_id(partition), later, cut(5), &VIEWS, &second);
        assert_eq!(applied.await?, Ok(()));
    }
    Ok(())
}

/// A query for some members returns the same live entries as a query for all, in all retained epochs.
pub async fn entries_of_some_members_are_read(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    write_two_epochs(live).await?;
    let members_query = |key: &str, partition, members: &[&str]| MembersQuery {
        query: query(key, partition),
        members: members.iter().map(|member| (*member).into()).collect(),
    };
    let queries = [
        members_query("k", None, &["d", "a", "x"]),
        members_query("l", Some(1), &["a", "c"]),
        members_query("k", Some(0), &["b"]),
        members_query("m", None, &["a"]),
        members_query("k", None, &[]),
    ];
    let row = |partition: u32, epoch: u64, member: &str, entry: Option<&str>| {
        (
            partition,
            epoch,
            member.to_owned(),
            entry.map(str::to_owned),
        )
    };
    let of_k = |partition| {
        vec![
            row(partition, 1, "a", Some("1")),
            row(partition, 2, "a", None),
            row(partition, 2, "d", Some("4")),
        ]
    };
    let snapshot = live.read_members(Source::Plays, 0..3, &queries).await?;
    assert_eq!(
        snapshot
            .partition_states
            .iter()
            .map(Option::is_some)
            .collect::<Vec<_>>(),
        [true, true, false]
    );
    let expected = [
        [of_k(0), of_k(1)].concat(),
        vec![row(1, 1, "c", Some("3"))],
        vec![row(0, 1, "b", None)],
        vec![],
        vec![],
    ];
    for (entries, expected) in snapshot.entries.iter().zip(expected) {
        assert_eq!(entry_rows(entries), expected);
    }
    let snapshot = live.read_members(Source::Plays, 1..2, &queries).await?;
    assert_eq!(snapshot.partition_states.len(), 1);
    assert_eq!(entry_rows(&snapshot.entries[0]), of_k(1));
    assert_eq!(entry_rows(&snapshot.entries[2]), []);
    Ok(())
}

async fn read_outbox(live: &dyn LiveWrite, limit: usize) -> Result<Outbox> {
    let outboxes = live.outboxes(Source::Plays, 0..1, limit).await?;
    Ok(outboxes.into_iter().next().flatten().expect("a state"))
}

fn outbox_entries(range: std::ops::Range<i64>) -> Vec<bytes::Bytes> {
    range.map(|n| n.to_string().into()).collect()
}

/// Reads at most `limit` outbox entries, which must be those of the range, of `pending` ones.
async fn read_expected_outbox(
    live: &dyn LiveWrite,
    limit: usize,
    pending: u64,
    range: std::ops::Range<i64>,
) -> Result<Outbox> {
    let outbox = read_outbox(live, limit).await?;
    let expected = outbox_entries(range);
    assert_eq!((outbox.pending, &outbox.entries), (pending, &expected));
    Ok(outbox)
}

async fn append_to_outbox(
    live: &dyn LiveWrite,
    checkpoint: Checkpoint,
    range: std::ops::Range<i64>,
) -> Result<bool> {
    let changes = Changes {
        outbox: outbox_entries(range),
        ..Changes::default()
    };
    let next = cut(checkpoint.next_offset + 1);
    Ok(live
        .apply(state_id(0), checkpoint, next, &VIEWS, &changes)
        .await?
        .is_ok())
}

/// The outbox entries of a micro-batch stay in order until the process that read them removes them,
/// once.
pub async fn outbox_entries_are_removed_once(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let none = live.outboxes(Source::Plays, 0..2, 5).await?;
    assert_eq!(none, [None, None]);
    create_state(live, 0).await?;
    let empty = read_outbox(live, 5).await?;
    assert_eq!((empty.pending, empty.entries.len()), (0, 0));
    assert!(!live.remove_published(state_id(0), &empty).await?);
    let mut checkpoint = start();
    assert!(append_to_outbox(live, checkpoint, 0..3).await?);
    assert!(
        !append_to_outbox(live, checkpoint, 7..9).await?,
        "the checkpoint has advanced"
    );
    checkpoint.next_offset = 1;
    // Together with live entries, and many at once.
    let changes = Changes {
        outbox: outbox_entries(3..9_000),
        ..entry_changes(VIEW, &[("k", "a", Some("1"))])
    };
    let applied = live
        .apply(state_id(0), checkpoint, cut(2), &VIEWS, &changes)
        .await?;
    assert_eq!(applied, Ok(()));
    checkpoint.next_offset = 2;
    assert_eq!(read(live, "k").await?.len(), 1);
    let whole_outbox = read_expected_outbox(live, usize::MAX, 9_000, 0..9_000).await?;
    assert_eq!(whole_outbox.state.position.next_offset, 2);
    let first = read_expected_outbox(live, 4, 9_000, 0..4).await?;
    assert!(live.remove_published(state_id(0), &first).await?);
    assert!(
        !live.remove_published(state_id(0), &first).await?,
        "it is deleted"
    );
    let batch = read_expected_outbox(live, 2, 8_996, 4..6).await?;
    assert!(live.remove_published(state_id(0), &batch).await?);
    assert!(
        append_to_outbox(live, checkpoint, 4..6).await?,
        "the same again"
    );
    assert!(
        !live.remove_published(state_id(0), &batch).await?,
        "these are others"
    );
    let batch = read_outbox(live, usize::MAX).await?;
    assert_eq!(batch.pending, 8_996);
    assert!(live.remove_published(state_id(0), &batch).await?);
    let empty = read_outbox(live, usize::MAX).await?;
    assert_eq!((empty.pending, empty.entries.len()), (0, 0));
    checkpoint.next_offset = 3;
    live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint.epoch = 2;
    assert!(append_to_outbox(live, checkpoint, 0..1).await?);
    assert_eq!(
        read_outbox(live, 9).await?.entries,
        outbox_entries(0..1),
        "epochs do not matter"
    );
    Ok(())
}

/// A new generation has no outbox entries of an earlier one, whose entries are collected as
/// garbage.
pub async fn an_outbox_ends_with_its_generation(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    assert!(append_to_outbox(live, start(), 0..9).await?);
    let old_outbox = read_outbox(live, 3).await?;
    let mut checkpoint = start();
    checkpoint.next_offset = 1;
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 5))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(read_outbox(live, 9).await?.pending, 0);
    let checkpoint = Checkpoint {
        generation: 5,
        ..start()
    };
    assert!(append_to_outbox(live, checkpoint, 0..4).await?);
    assert!(
        !live.remove_published(state_id(0), &old_outbox).await?,
        "it belongs to another generation"
    );
    let mut calls = 0;
    while live.collect_garbage(state_id(0), 4).await? > 0 {
        calls += 1;
        assert!(calls < 20, "it ends");
    }
    let current = read_outbox(live, 9).await?;
    assert_eq!(
        (current.pending, current.entries),
        (4, outbox_entries(0..4))
    );
    Ok(())
}

fn count_change(
    key: &str,
    expected: Option<&StoredLiveCount>,
    next: Option<&StoredLiveCount>,
) -> LiveCountChange {
    LiveCountChange {
        view: VIEW.to_owned(),
        key: key.into(),
        expected: expected.cloned(),
        next: next.cloned(),
    }
}

/// Reads the live entries of a key with and without its live count. Both queries must return the same
/// counts.
async fn read_counts(
    live: &dyn LiveWrite,
    key: &str,
) -> Result<(Vec<(u32, StoredLiveCount)>, usize)> {
    let queries = [query(key, None)];
    let snapshot = live.read_entries(Source::Plays, 2, &queries).await?;
    let counts = live.read_live_counts(Source::Plays, 2, &queries).await?;
    let members = MembersQuery {
        query: query(key, None),
        members: vec![b"a".to_vec()],
    };
    let members_snapshot = live.read_members(Source::Plays, 0..2, &[members]).await?;
    assert_eq!(
        counts.entries[0].live_counts,
        snapshot.entries[0].live_counts
    );
    assert_eq!(
        members_snapshot.entries[0].live_counts,
        snapshot.entries[0].live_counts
    );
    let entry_count = snapshot.entries[0].members.len() as u64;
    assert_eq!(
        members_snapshot.entries[0].stored_count, entry_count,
        "few are counted exactly"
    );
    let remaining = counts.entries[0].members.len();
    Ok((
        counts
            .entries
            .into_iter()
            .next()
            .expect("an entry set")
            .live_counts,
        remaining,
    ))
}

/// The live entries of groups, the live count changes, and the live count of `k` afterwards.
type Step<'a> = (
    &'a [(&'a str, &'a str, Option<&'a str>)],
    Vec<LiveCountChange>,
    Option<&'a StoredLiveCount>,
);

/// Steps that change the live counts of `k` and `l`, each with the live count of `k` afterwards.
fn live_count_steps<'a>(
    both: &'a [(&'a str, &'a str, Option<&'a str>)],
    started: &'a StoredLiveCount,
    completed: &'a StoredLiveCount,
) -> Vec<Step<'a>> {
    vec![
        (both, vec![], None),
        (
            both,
            vec![count_change("k", None, Some(started))],
            Some(started),
        ),
        // Other keys and views do not affect it.
        (&both[1..], vec![], Some(started)),
        (
            both,
            vec![count_change("k", Some(started), Some(completed))],
            Some(completed),
        ),
        // Without live entries.
        (
            &[],
            vec![count_change("k", Some(completed), Some(started))],
            Some(started),
        ),
        (
            &[],
            vec![count_change("k", Some(started), Some(completed))],
            Some(completed),
        ),
        (both, vec![count_change("l", None, Some(completed))], None),
        (
            both,
            vec![count_change("k", Some(completed), Some(completed))],
            None,
        ),
        (
            both,
            vec![count_change("k", None, Some(started))],
            Some(started),
        ),
        (both, vec![count_change("k", None, Some(completed))], None),
        (
            &[],
            vec![count_change("k", None, Some(completed))],
            Some(completed),
        ),
        (&[], vec![count_change("k", Some(completed), None)], None),
        (
            both,
            vec![count_change("k", None, Some(completed))],
            Some(completed),
        ),
    ]
}

/// A live count changes in the step that changes its entries, and only by a writer that knows the
/// current count. A new generation has none.
pub async fn live_counts_change_with_their_entries(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    for partition in 0..2 {
        create_state(live, partition).await?;
    }
    let other = entry_changes(VIEW, &[("k", "a", Some("1"))]);
    apply(live, 1, start(), cut(1), &other).await?;
    let mut checkpoint = start();
    let (started, completed) = (
        StoredLiveCount::started(),
        StoredLiveCount::completed(b"first"),
    );
    let both = [("k", "a", Some("1")), ("l", "a", Some("1"))];
    let steps = live_count_steps(&both, &started, &completed);
    for (groups, count_changes, expected_count) in steps {
        let changes = Changes {
            live_counts: count_changes,
            ..entry_changes(VIEW, groups)
        };
        let next = cut(checkpoint.next_offset + 1);
        let stale = Checkpoint {
            next_offset: checkpoint.next_offset + 7,
            ..checkpoint
        };
        let refused = live
            .apply(state_id(0), stale, cut(99), &VIEWS, &changes)
            .await?;
        assert!(refused.is_err(), "the checkpoint differs");
        apply(live, 0, checkpoint, next, &changes).await?;
        checkpoint.next_offset += 1;
        let label = format!("at {}", checkpoint.next_offset);
        let (actual, remaining) = read_counts(live, "k").await?;
        let expected: Vec<(u32, StoredLiveCount)> = expected_count
            .map(|expected_count| (0, expected_count.clone()))
            .into_iter()
            .collect();
        assert_eq!(actual, expected, "{label}");
        let is_complete =
            expected_count.is_some_and(|expected_count| expected_count.content().is_some());
        assert_eq!(remaining, if is_complete { 1 } else { 2 }, "{label}");
    }
    live_counts_end_with_their_generation(live, checkpoint, &completed).await
}

/// Live counts do not depend on epochs or other views; a new generation has none.
async fn live_counts_end_with_their_generation(
    live: &dyn LiveWrite,
    mut checkpoint: Checkpoint,
    completed: &StoredLiveCount,
) -> Result<()> {
    live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint.epoch = 2;
    let other = entry_changes(OTHER_VIEW, &[("k", "a", Some("1"))]);
    let next = cut(checkpoint.next_offset + 1);
    let applied = live
        .apply(state_id(0), checkpoint, next, &VIEWS, &other)
        .await?;
    assert_eq!(applied, Ok(()));
    checkpoint.next_offset += 1;
    assert_eq!(read_counts(live, "k").await?.0, [(0, completed.clone())]);
    assert_eq!(read_counts(live, "l").await?.0, []);
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 5))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(read_counts(live, "k").await?.0, []);
    let mut calls = 0;
    while live.collect_garbage(state_id(0), 4).await? > 0 {
        calls += 1;
        assert!(calls < 20, "it ends");
    }
    let checkpoint = Checkpoint {
        generation: 5,
        ..start()
    };
    let changes = Changes {
        live_counts: vec![count_change("k", None, Some(completed))],
        ..entry_changes(VIEW, &[("k", "a", Some("1"))])
    };
    let applied = live
        .apply(state_id(0), checkpoint, cut(1), &VIEWS, &changes)
        .await?;
    assert_eq!(applied, Ok(()));
    assert_eq!(read_counts(live, "k").await?.0, [(0, completed.clone())]);
    Ok(())
}
