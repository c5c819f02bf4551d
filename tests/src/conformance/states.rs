//! Laws of the live port: states of boards.

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

fn states(view: &str, groups: &[(&str, &str, Option<&str>)]) -> Changes {
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

type StateRows = Vec<(u32, u64, String, Option<String>)>;

fn found(states: &LiveEntries) -> StateRows {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found: StateRows = (0..states.members.len())
        .map(|row| {
            (
                states.partitions.value(row),
                states.epochs.value(row),
                text(states.members.value(row)),
                states
                    .entries
                    .is_valid(row)
                    .then(|| text(states.entries.value(row))),
            )
        })
        .collect();
    found.sort();
    found
}

async fn read(live: &dyn LiveWrite, key: &str) -> Result<StateRows> {
    let answer = live
        .read_entries(Source::Plays, 2, &[query(key, None)])
        .await?;
    Ok(found(&answer.entries[0]))
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

/// A state replaces the previous one of the same epoch. The absence of a member is a state too.
/// States of pruned epochs and earlier generations are not returned.
pub async fn the_newest_state_of_an_epoch_wins(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    create_state(live, 0).await?;
    let mut checkpoint = Checkpoint {
        generation: 1,
        next_offset: 0,
        epoch: 1,
    };
    let first = states(
        VIEW,
        &[
            ("k", "a", Some("1")),
            ("k", "b", Some("2")),
            ("l", "a", None),
        ],
    );
    apply(live, 0, checkpoint, cut(3), &first).await?;
    let stale = states(VIEW, &[("k", "a", Some("stale"))]);
    let refused = live
        .apply(state_id(0), checkpoint, cut(4), &VIEWS, &stale)
        .await?;
    assert!(refused.is_err(), "the checkpoint has advanced");
    checkpoint.next_offset = 3;
    let second = states(VIEW, &[("k", "b", None), ("k", "", Some(""))]);
    apply(live, 0, checkpoint, cut(5), &second).await?;
    let row = |epoch: u64, member: &str, state: Option<&str>| {
        (0, epoch, member.to_owned(), state.map(str::to_owned))
    };
    let of_first = [
        row(1, "", Some("")),
        row(1, "a", Some("1")),
        row(1, "b", None),
    ];
    assert_eq!(read(live, "k").await?, of_first);
    assert_eq!(read(live, "l").await?, [row(1, "a", None)]);
    assert_eq!(read(live, "m").await?, []);

    let end = live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint = Checkpoint {
        generation: 1,
        next_offset: 5,
        epoch: 2,
    };
    let third = states(VIEW, &[("k", "a", Some("3"))]);
    apply(live, 0, checkpoint, cut(6), &third).await?;
    let mut both = of_first.to_vec();
    both.push(row(2, "a", Some("3")));
    assert_eq!(read(live, "k").await?, both, "each epoch has its own");
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

/// A query names one partition or all; the partition states are returned with their member states.
pub async fn state_queries_select_partitions(ports: &Stores) -> Result<()> {
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
        let state = partition.to_string();
        let one = states(VIEW, &[("k", "a", Some(&state))]);
        let applied = live
            .apply(state_id(partition), checkpoint, cut(1), &VIEWS, &one)
            .await?;
        assert_eq!(applied, Ok(()));
    }
    let queries = [query("k", None), query("k", Some(1)), query("k", Some(7))];
    let answer = live.read_entries(Source::Plays, 2, &queries).await?;
    assert_eq!(answer.partition_states.len(), 2);
    assert!(answer.partition_states.iter().all(Option::is_some));
    let row = |partition: u32| (partition, 1, "a".to_owned(), Some(partition.to_string()));
    let expected = [vec![row(0), row(1)], vec![row(1)], vec![]];
    for (states, expected) in answer.entries.iter().zip(expected) {
        assert_eq!(found(states), expected);
    }
    let none = live.read_entries(Source::Efforts, 1, &queries[..1]).await?;
    assert_eq!(
        (none.partition_states, found(&none.entries[0])),
        (vec![None], vec![])
    );
    Ok(())
}

/// Thousands of states are stored completely, repeatedly.
pub async fn many_states_are_stored(ports: &Stores) -> Result<()> {
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
        let state = format!("{round}{}", "x".repeat(300));
        let groups: Vec<(&str, &str, Option<&str>)> = members
            .iter()
            .map(|member| ("k", member.as_str(), Some(state.as_str())))
            .collect();
        let checkpoint = Checkpoint {
            generation: 1,
            next_offset: round,
            epoch: 1,
        };
        let all = states(VIEW, &groups);
        let applied = live
            .apply(state_id(0), checkpoint, cut(round + 1), &VIEWS, &all)
            .await?;
        assert_eq!(applied, Ok(()));
        let found = read(live, "k").await?;
        assert_eq!(found.len(), members.len());
        assert!(found.iter().all(|row| row.3.as_deref() == Some(&*state)));
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

/// Writes states into two partitions, in two epochs.
async fn put_in_two_epochs(live: &dyn LiveWrite) -> Result<()> {
    for partition in 0..2 {
        let outcome = live
            .rebuild(state_id(partition), None, &new_generation(0, 0, 1))
            .await?;
        assert_eq!(outcome, Ok(()));
        let first = states(
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
        let second = states(VIEW, &[("k", "a", None), ("k", "d", Some("4"))]);
        let applied = live.apply(state_id(partition), later, cut(5), &VIEWS, &second);
        assert_eq!(applied.await?, Ok(()));
    }
    Ok(())
}

/// A query for some members returns the same states as a query for all, in all retained epochs.
pub async fn states_of_some_members_are_read(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    put_in_two_epochs(live).await?;
    let ask = |key: &str, partition, members: &[&str]| MembersQuery {
        query: query(key, partition),
        members: members.iter().map(|member| (*member).into()).collect(),
    };
    let queries = [
        ask("k", None, &["d", "a", "x"]),
        ask("l", Some(1), &["a", "c"]),
        ask("k", Some(0), &["b"]),
        ask("m", None, &["a"]),
        ask("k", None, &[]),
    ];
    let row = |partition: u32, epoch: u64, member: &str, state: Option<&str>| {
        (
            partition,
            epoch,
            member.to_owned(),
            state.map(str::to_owned),
        )
    };
    let of_k = |partition| {
        vec![
            row(partition, 1, "a", Some("1")),
            row(partition, 2, "a", None),
            row(partition, 2, "d", Some("4")),
        ]
    };
    let answer = live.read_members(Source::Plays, 0..3, &queries).await?;
    assert_eq!(
        answer
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
    for (states, expected) in answer.entries.iter().zip(expected) {
        assert_eq!(found(states), expected);
    }
    let answer = live.read_members(Source::Plays, 1..2, &queries).await?;
    assert_eq!(answer.partition_states.len(), 1);
    assert_eq!(found(&answer.entries[0]), of_k(1));
    assert_eq!(found(&answer.entries[2]), []);
    Ok(())
}

async fn outbox(live: &dyn LiveWrite, limit: usize) -> Result<Outbox> {
    let read = live.outboxes(Source::Plays, 0..1, limit).await?;
    Ok(read.into_iter().next().flatten().expect("a state"))
}

fn entries(range: std::ops::Range<i64>) -> Vec<bytes::Bytes> {
    range.map(|n| n.to_string().into()).collect()
}

async fn put(
    live: &dyn LiveWrite,
    checkpoint: Checkpoint,
    range: std::ops::Range<i64>,
) -> Result<bool> {
    let changes = Changes {
        outbox: entries(range),
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
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let empty = outbox(live, 5).await?;
    assert_eq!((empty.pending, empty.entries.len()), (0, 0));
    assert!(!live.remove_published(state_id(0), &empty).await?);
    let mut checkpoint = start();
    assert!(put(live, checkpoint, 0..3).await?);
    assert!(
        !put(live, checkpoint, 7..9).await?,
        "the checkpoint has advanced"
    );
    checkpoint.next_offset = 1;
    // Together with states, and many at once.
    let changes = Changes {
        outbox: entries(3..9_000),
        ..states(VIEW, &[("k", "a", Some("1"))])
    };
    let applied = live
        .apply(state_id(0), checkpoint, cut(2), &VIEWS, &changes)
        .await?;
    assert_eq!(applied, Ok(()));
    checkpoint.next_offset = 2;
    assert_eq!(read(live, "k").await?.len(), 1);
    let all = outbox(live, usize::MAX).await?;
    assert_eq!((all.pending, &all.entries), (9_000, &entries(0..9_000)));
    assert_eq!(all.state.position.next_offset, 2);
    let first = outbox(live, 4).await?;
    assert_eq!((first.pending, &first.entries), (9_000, &entries(0..4)));
    assert!(live.remove_published(state_id(0), &first).await?);
    assert!(
        !live.remove_published(state_id(0), &first).await?,
        "it is deleted"
    );
    let rest = outbox(live, 2).await?;
    assert_eq!((rest.pending, &rest.entries), (8_996, &entries(4..6)));
    assert!(live.remove_published(state_id(0), &rest).await?);
    assert!(put(live, checkpoint, 4..6).await?, "the same again");
    assert!(
        !live.remove_published(state_id(0), &rest).await?,
        "these are others"
    );
    let rest = outbox(live, usize::MAX).await?;
    assert_eq!(rest.pending, 8_996);
    assert!(live.remove_published(state_id(0), &rest).await?);
    let empty = outbox(live, usize::MAX).await?;
    assert_eq!((empty.pending, empty.entries.len()), (0, 0));
    checkpoint.next_offset = 3;
    live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint.epoch = 2;
    assert!(put(live, checkpoint, 0..1).await?);
    assert_eq!(
        outbox(live, 9).await?.entries,
        entries(0..1),
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
    assert!(put(live, start(), 0..9).await?);
    let old = outbox(live, 3).await?;
    let mut checkpoint = start();
    checkpoint.next_offset = 1;
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 5))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(outbox(live, 9).await?.pending, 0);
    let checkpoint = Checkpoint {
        generation: 5,
        ..start()
    };
    assert!(put(live, checkpoint, 0..4).await?);
    assert!(
        !live.remove_published(state_id(0), &old).await?,
        "it belongs to another generation"
    );
    let mut calls = 0;
    while live.collect_garbage(state_id(0), 4).await? > 0 {
        calls += 1;
        assert!(calls < 20, "it ends");
    }
    let now = outbox(live, 9).await?;
    assert_eq!((now.pending, now.entries), (4, entries(0..4)));
    Ok(())
}

fn summing(
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

/// Reads the states of a key with and without its live count. Both queries must return the same
/// counts.
async fn summed(live: &dyn LiveWrite, key: &str) -> Result<(Vec<(u32, StoredLiveCount)>, usize)> {
    let queries = [query(key, None)];
    let all = live.read_entries(Source::Plays, 2, &queries).await?;
    let sums = live.read_live_counts(Source::Plays, 2, &queries).await?;
    let members = MembersQuery {
        query: query(key, None),
        members: vec![b"a".to_vec()],
    };
    let of_members = live.read_members(Source::Plays, 0..2, &[members]).await?;
    assert_eq!(sums.entries[0].live_counts, all.entries[0].live_counts);
    assert_eq!(
        of_members.entries[0].live_counts,
        all.entries[0].live_counts
    );
    let held = all.entries[0].members.len() as u64;
    assert_eq!(
        of_members.entries[0].stored_count, held,
        "few are counted exactly"
    );
    let left = sums.entries[0].members.len();
    Ok((
        sums.entries.into_iter().next().expect("one").live_counts,
        left,
    ))
}

/// The states of groups, the live count changes, and the live count of `k` afterwards.
type Put<'a> = (
    &'a [(&'a str, &'a str, Option<&'a str>)],
    Vec<LiveCountChange>,
    Option<&'a StoredLiveCount>,
);

/// A live count changes in the step that changes its states, and only by a writer that knows the
/// current count. A new generation has none.
pub async fn live_counts_change_with_their_states(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    for partition in 0..2 {
        create_state(live, partition).await?;
    }
    let other = states(VIEW, &[("k", "a", Some("1"))]);
    apply(live, 1, start(), cut(1), &other).await?;
    let mut checkpoint = start();
    let (begun, made) = (
        StoredLiveCount::started(),
        StoredLiveCount::completed(b"first"),
    );
    let both = [("k", "a", Some("1")), ("l", "a", Some("1"))];
    // Each step with the live count of `k` afterwards: the count, and the number of states returned
    // with it.
    let steps: Vec<Put<'_>> = vec![
        (&both, vec![], None),
        (&both, vec![summing("k", None, Some(&begun))], Some(&begun)),
        // Other keys and views do not affect it.
        (&both[1..], vec![], Some(&begun)),
        (
            &both,
            vec![summing("k", Some(&begun), Some(&made))],
            Some(&made),
        ),
        // Without states.
        (
            &[],
            vec![summing("k", Some(&made), Some(&begun))],
            Some(&begun),
        ),
        (
            &[],
            vec![summing("k", Some(&begun), Some(&made))],
            Some(&made),
        ),
        (&both, vec![summing("l", None, Some(&made))], None),
        (&both, vec![summing("k", Some(&made), Some(&made))], None),
        (&both, vec![summing("k", None, Some(&begun))], Some(&begun)),
        (&both, vec![summing("k", None, Some(&made))], None),
        (&[], vec![summing("k", None, Some(&made))], Some(&made)),
        (&[], vec![summing("k", Some(&made), None)], None),
        (&both, vec![summing("k", None, Some(&made))], Some(&made)),
    ];
    for (groups, sums, kept) in steps {
        let changes = Changes {
            live_counts: sums,
            ..states(VIEW, groups)
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
        let place = format!("at {}", checkpoint.next_offset);
        let (found, left) = summed(live, "k").await?;
        let expected: Vec<(u32, StoredLiveCount)> =
            kept.map(|kept| (0, kept.clone())).into_iter().collect();
        assert_eq!(found, expected, "{place}");
        let is_made = kept.is_some_and(|kept| kept.content().is_some());
        assert_eq!(left, if is_made { 1 } else { 2 }, "{place}");
    }
    live_counts_end_with_their_generation(live, checkpoint, &made).await
}

/// Live counts do not depend on epochs or other views; a new generation has none.
async fn live_counts_end_with_their_generation(
    live: &dyn LiveWrite,
    mut checkpoint: Checkpoint,
    made: &StoredLiveCount,
) -> Result<()> {
    live.end_epoch(state_id(0), 1).await?.expect("an end");
    checkpoint.epoch = 2;
    let other = states(OTHER_VIEW, &[("k", "a", Some("1"))]);
    let next = cut(checkpoint.next_offset + 1);
    let applied = live
        .apply(state_id(0), checkpoint, next, &VIEWS, &other)
        .await?;
    assert_eq!(applied, Ok(()));
    checkpoint.next_offset += 1;
    assert_eq!(summed(live, "k").await?.0, [(0, made.clone())]);
    assert_eq!(summed(live, "l").await?.0, []);
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 5))
        .await?;
    assert_eq!(outcome, Ok(()));
    assert_eq!(summed(live, "k").await?.0, []);
    let mut calls = 0;
    while live.collect_garbage(state_id(0), 4).await? > 0 {
        calls += 1;
        assert!(calls < 20, "it ends");
    }
    let checkpoint = Checkpoint {
        generation: 5,
        ..start()
    };
    let again = Changes {
        live_counts: vec![summing("k", None, Some(made))],
        ..states(VIEW, &[("k", "a", Some("1"))])
    };
    let applied = live
        .apply(state_id(0), checkpoint, cut(1), &VIEWS, &again)
        .await?;
    assert_eq!(applied, Ok(()));
    assert_eq!(summed(live, "k").await?.0, [(0, made.clone())]);
    Ok(())
}
