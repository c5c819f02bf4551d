//! Laws of the live port: scans of a view's states in a partition, page by page.

use std::collections::BTreeMap;

use arrow::array::{Array, Int64Array};
use schemas::seam::{Checkpoint, Cut, Epoch};
use schemas::source::Source;
use stores::live::{Changes, Deltas, Entries, LiveWrite};
use stores::live_scan::ScannedEntries;
use stores::{ErrorKind, Result, Stores};

use super::{OTHER_VIEW, VIEW, binary, bytes, new_generation, state_id};

const VIEWS: [&str; 2] = [VIEW, OTHER_VIEW];
const START: Checkpoint = Checkpoint {
    generation: 1,
    next_offset: 0,
    epoch: 1,
};

type Key = (Vec<u8>, Vec<u8>);
/// The epoch of a state, and the state.
type Value = (Epoch, Option<Vec<u8>>);
type ScanResult = BTreeMap<Key, Value>;

fn key(key: &str, member: &str) -> Key {
    (key.into(), member.into())
}

fn cut(next_offset: i64) -> Cut {
    Cut {
        next_offset,
        last: None,
    }
}

fn states(view: &str, rows: &[(Key, Option<&str>)]) -> Changes {
    Changes {
        entries: vec![Entries {
            view: view.to_owned(),
            keys: binary(rows.iter().map(|((key, _), _)| key)),
            members: binary(rows.iter().map(|((_, member), _)| member)),
            entries: rows
                .iter()
                .map(|(_, state)| state.map(str::as_bytes))
                .collect(),
        }],
        ..Changes::default()
    }
}

fn deltas(view: &str, rows: &[(Key, i64)]) -> Changes {
    let deltas = Deltas {
        view: view.to_owned(),
        grouped_by: "g".to_owned(),
        groups: binary(rows.iter().map(|((group, _), _)| group)),
        rows: binary(rows.iter().map(|((_, row), _)| row)),
        counts: Int64Array::from_iter_values(rows.iter().map(|(_, count)| *count)),
    };
    vec![deltas].into()
}

/// Applies changes and advances the checkpoint by one.
async fn apply(live: &dyn LiveWrite, checkpoint: &mut Checkpoint, changes: &Changes) -> Result<()> {
    let next = cut(checkpoint.next_offset + 1);
    let done = live
        .apply(state_id(0), *checkpoint, next, &VIEWS, changes)
        .await?;
    assert_eq!(done, Ok(()));
    checkpoint.next_offset += 1;
    Ok(())
}

async fn end_epoch(live: &dyn LiveWrite, checkpoint: &mut Checkpoint) -> Result<Cut> {
    let cut = live
        .end_epoch(state_id(0), checkpoint.epoch)
        .await?
        .expect("an end");
    checkpoint.epoch += 1;
    Ok(cut)
}

/// Returns the rows of a page, which are ordered by key and member.
fn rows_of(page: &ScannedEntries, limit: usize) -> Vec<(Key, Value)> {
    let states = &page.entries;
    let keys = bytes(&states.keys).into_iter().zip(bytes(&states.members));
    let keys: Vec<Key> = keys.collect();
    assert!(keys.is_sorted(), "{keys:?}");
    assert!(keys.len() <= limit, "at most the limit");
    assert_eq!(
        (page.epochs.len(), states.entries.len()),
        (keys.len(), keys.len())
    );
    let value = |n| (page.epochs.value(n), states.entry(n).map(<[u8]>::to_vec));
    keys.into_iter()
        .enumerate()
        .map(|(n, key)| (key, value(n)))
        .collect()
}

/// Scans all states of a view in pages of `limit`, each with the checkpoint of its page.
async fn scan(
    live: &dyn LiveWrite,
    epochs: (Epoch, Epoch),
    limit: usize,
    checkpoint: Option<Checkpoint>,
) -> Result<ScanResult> {
    let mut found = ScanResult::new();
    let mut after: Option<Key> = None;
    loop {
        let at = after.clone();
        let page = live
            .scan_entries(state_id(0), VIEW, epochs, after, limit)
            .await?;
        assert_eq!(
            page.state.as_ref().map(|state| state.checkpoint()),
            checkpoint
        );
        assert_eq!(page.entries.view, VIEW);
        for (key, value) in rows_of(&page, limit) {
            assert!(
                at.as_ref().is_none_or(|at| key > *at),
                "{key:?} after {at:?}"
            );
            let twice = found.insert(key, value);
            assert_eq!(twice, None, "no member is returned twice");
        }
        after = page.next;
        if after.is_none() {
            return Ok(found);
        }
    }
}

/// A scan returns the newest state of each member within the epochs, with its epoch. It skips
/// states of other views, pruned epochs and earlier generations.
pub async fn the_newest_states_are_scanned_in_order(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let all = (0, Epoch::MAX);
    assert_eq!(
        scan(live, all, 9, None).await?,
        ScanResult::new(),
        "no state"
    );
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    assert_eq!(
        scan(live, all, 9, Some(checkpoint)).await?,
        ScanResult::new()
    );
    let first = [
        (key("k", ""), Some("k1")),
        (key("k", "a"), Some("ka1")),
        (key("k", "b"), None),
        (key("", "z"), Some("")),
        (key("k0", "\u{ff}"), Some("k0")),
        (key("\u{0}", "a"), Some("zero")),
    ];
    apply(live, &mut checkpoint, &states(VIEW, &first)).await?;
    apply(live, &mut checkpoint, &states(OTHER_VIEW, &first[..2])).await?;
    let end = end_epoch(live, &mut checkpoint).await?;
    let second = [
        (key("k", "a"), None),
        (key("k", "c"), Some("kc2")),
        (key("l", "a"), Some("la2")),
    ];
    apply(live, &mut checkpoint, &states(VIEW, &second)).await?;
    let of = |epoch: Epoch, rows: &[(Key, Option<&str>)]| -> ScanResult {
        let value = |state: &Option<&str>| (epoch, state.map(|state| state.as_bytes().to_vec()));
        rows.iter()
            .map(|(key, state)| (key.clone(), value(state)))
            .collect()
    };
    let mut newest = of(1, &first);
    newest.extend(of(2, &second));
    for limit in [1, 2, 3, 100] {
        let found = scan(live, all, limit, Some(checkpoint)).await?;
        assert_eq!(found, newest, "pages of {limit}");
        let found = scan(live, (1, 1), limit, Some(checkpoint)).await?;
        assert_eq!(found, of(1, &first), "pages of {limit}");
        let found = scan(live, (2, 7), limit, Some(checkpoint)).await?;
        assert_eq!(found, of(2, &second), "pages of {limit}");
    }
    assert_eq!(
        scan(live, (3, 9), 9, Some(checkpoint)).await?,
        ScanResult::new()
    );
    assert!(live.prune_through(state_id(0), 1, end).await?);
    assert_eq!(scan(live, all, 2, Some(checkpoint)).await?, of(2, &second));
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 9))
        .await?;
    assert_eq!(outcome, Ok(()));
    let rebuilt = Checkpoint {
        generation: 9,
        ..START
    };
    assert_eq!(scan(live, all, 2, Some(rebuilt)).await?, ScanResult::new());
    Ok(())
}

/// The checkpoint of a page shows changes since the previous page.
pub async fn pages_carry_their_checkpoint(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let all = (0, Epoch::MAX);
    let missing = live.scan_deltas(state_id(0), VIEW, all, None, 1).await?;
    assert!(missing.state.is_none() && missing.next.is_none());
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    let counted = [(key("g", "a"), 1), (key("g", "b"), 2), (key("h", "a"), 3)];
    apply(live, &mut checkpoint, &deltas(VIEW, &counted)).await?;
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let page = live.scan_deltas(state_id(0), VIEW, all, after, 1).await?;
        assert_eq!(page.state.map(|state| state.checkpoint()), Some(checkpoint));
        let keys = bytes(&page.deltas.groups)
            .into_iter()
            .zip(bytes(&page.deltas.rows));
        found.extend(keys.zip(page.deltas.counts.values().iter().copied()));
        after = page.next;
        if after.is_none() {
            break;
        }
        if found.len() == 2 {
            end_epoch(live, &mut checkpoint).await?;
        }
        apply(live, &mut checkpoint, &deltas(VIEW, &counted)).await?;
    }
    assert_eq!(checkpoint.epoch, 2);
    let keys: Vec<&Key> = found.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, counted.iter().map(|(key, _)| key).collect::<Vec<_>>());
    // Each page has its own checkpoint.
    assert_eq!(found[0].1, 1);
    assert_eq!(found[1].1, 4);
    assert_eq!(found[2].1, 9);
    Ok(())
}

/// A key may have more members than one read returns, in some epochs, next to other keys. Its pages
/// stay correct while the partition state advances.
pub async fn large_keys_are_scanned(ports: &Stores) -> Result<()> {
    const MEMBERS: usize = 23_000;
    let live = &*ports.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    let name = |n: usize| key("large", &format!("{n:05}"));
    let around = [
        (key("a", "1"), Some("before")),
        (key("z", "1"), Some("behind")),
    ];
    apply(live, &mut checkpoint, &states(VIEW, &around)).await?;
    for step in [1, 2] {
        let all: Vec<usize> = (0..MEMBERS).step_by(step).collect();
        for some in all.chunks(8_000) {
            let rows = some.iter().map(|n| (name(*n), Some("state")));
            apply(
                live,
                &mut checkpoint,
                &states(VIEW, &rows.collect::<Vec<_>>()),
            )
            .await?;
        }
        end_epoch(live, &mut checkpoint).await?;
    }
    let (mut after, mut found) = (None, 0_usize);
    loop {
        let page = live
            .scan_entries(state_id(0), VIEW, (1, 2), after, 9_000)
            .await?;
        for ((key, member), (epoch, _)) in rows_of(&page, 9_000) {
            let number = found.checked_sub(1).filter(|n| *n < MEMBERS);
            match number {
                Some(n) => {
                    assert_eq!((key, member), name(n));
                    assert_eq!(epoch, if n % 2 == 0 { 2 } else { 1 }, "of {n}");
                }
                None => assert_eq!(member, b"1"),
            }
            found += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        let more = [(name(0), Some("later")), (name(found), Some("later"))];
        apply(live, &mut checkpoint, &states(VIEW, &more)).await?;
    }
    assert_eq!(found, MEMBERS + 2);
    Ok(())
}

/// A page and its checkpoint are from one moment, despite concurrent writes.
pub async fn pages_are_consistent(one: &Stores, other: &Stores) -> Result<()> {
    const STEPS: i64 = 60;
    let live = &*one.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let write = async {
        let mut checkpoint = START;
        while checkpoint.next_offset < STEPS {
            let state = (checkpoint.next_offset + 1).to_string();
            let both = [
                (key("k", "a"), Some(&*state)),
                (key("l", "b"), Some(&*state)),
            ];
            let mut changes = states(OTHER_VIEW, &both);
            changes.deltas = deltas(VIEW, &[(key("g", "a"), 1), (key("h", "b"), 1)]).deltas;
            apply(live, &mut checkpoint, &changes).await?;
            if checkpoint.next_offset % 10 == 0 {
                end_epoch(live, &mut checkpoint).await?;
            }
        }
        Ok(())
    };
    let read = async {
        loop {
            let page = other
                .live
                .scan_entries(state_id(0), OTHER_VIEW, (0, 99), None, 9);
            let page = page.await?;
            let offset = page.state.as_ref().expect("a state").position.next_offset;
            let expected = if offset == 0 {
                vec![]
            } else {
                vec![offset.to_string(); 2]
            };
            let found = rows_of(&page, 9)
                .into_iter()
                .filter_map(|(_, (_, state))| state);
            let found: Vec<String> = found
                .map(|bytes| String::from_utf8(bytes).expect("text"))
                .collect();
            assert_eq!(found, expected);
            let page = other
                .live
                .scan_deltas(state_id(0), VIEW, (0, 99), None, 9)
                .await?;
            let offset = page.state.as_ref().expect("a state").position.next_offset;
            assert!(
                page.deltas
                    .counts
                    .values()
                    .iter()
                    .all(|count| *count == offset)
            );
            if offset == STEPS {
                return Ok(());
            }
        }
    };
    tokio::try_join!(write, read)?;
    let slots = other
        .live
        .read_deltas(Source::Plays, 1, &[])
        .await?
        .partition_states;
    assert!(slots[0].is_some());
    Ok(())
}

/// A page of a key that takes several reads is from the moment of its checkpoint, or fails during
/// concurrent writes.
pub async fn large_key_pages_are_consistent(one: &Stores, other: &Stores) -> Result<()> {
    const MEMBERS: usize = 12_000;
    const STEPS: i64 = 200;
    let live = &*one.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    let name = |n: usize| key("large", &format!("{n:05}"));
    let all: Vec<_> = (0..MEMBERS).map(|n| (name(n), Some("0"))).collect();
    apply(live, &mut checkpoint, &states(VIEW, &all)).await?;
    let write = async {
        while checkpoint.next_offset < STEPS {
            let state = (checkpoint.next_offset + 1).to_string();
            let both = [3, 4_321].map(|n| (name(n), Some(&*state)));
            apply(live, &mut checkpoint, &states(VIEW, &both)).await?;
            if checkpoint.next_offset % 20 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            }
        }
        Ok(())
    };
    let read = async {
        loop {
            let page = other
                .live
                .scan_entries(state_id(0), VIEW, (1, 1), None, 5_000);
            let page = match page.await {
                Err(error) if error.kind() == ErrorKind::Retry => continue,
                page => page?,
            };
            let offset = page.state.as_ref().expect("a state").position.next_offset;
            let state = if offset == 1 { 0 } else { offset };
            let changed = [3, 4_321].map(|n| page.entries.entry(n));
            assert_eq!(changed, [Some(state.to_string().as_bytes()); 2]);
            assert_eq!(rows_of(&page, 5_000).len(), 5_000);
            if offset == STEPS {
                return Ok(());
            }
        }
    };
    tokio::try_join!(write, read)?;
    Ok(())
}
