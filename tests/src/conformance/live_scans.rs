//! Laws of the live port: scans of a view's live entries in a partition, page by page.

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
/// The epoch of a live entry, and the entry.
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

fn entry_changes(view: &str, rows: &[(Key, Option<&str>)]) -> Changes {
    Changes {
        entries: vec![Entries {
            view: view.to_owned(),
            keys: binary(rows.iter().map(|((key, _), _)| key)),
            members: binary(rows.iter().map(|((_, member), _)| member)),
            entries: rows
                .iter()
                .map(|(_, entry)| entry.map(str::as_bytes))
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
    let outcome = live
        .apply(state_id(0), *checkpoint, next, &VIEWS, changes)
        .await?;
    assert_eq!(outcome, Ok(()));
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
    let entries = &page.entries;
    let keys = bytes(&entries.keys)
        .into_iter()
        .zip(bytes(&entries.members));
    let keys: Vec<Key> = keys.collect();
    assert!(keys.is_sorted(), "{keys:?}");
    assert!(keys.len() <= limit, "at most the limit");
    assert_eq!(
        (page.epochs.len(), entries.entries.len()),
        (keys.len(), keys.len())
    );
    let value = |n| (page.epochs.value(n), entries.entry(n).map(<[u8]>::to_vec));
    keys.into_iter()
        .enumerate()
        .map(|(n, key)| (key, value(n)))
        .collect()
}

/// Scans all live entries of a view in pages of `limit`, each with the checkpoint of its page.
async fn scan(
    live: &dyn LiveWrite,
    epochs: (Epoch, Epoch),
    limit: usize,
    checkpoint: Option<Checkpoint>,
) -> Result<ScanResult> {
    let mut scanned = ScanResult::new();
    let mut after: Option<Key> = None;
    loop {
        let previous = after.clone();
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
                previous.as_ref().is_none_or(|previous| key > *previous),
                "{key:?} after {previous:?}"
            );
            let duplicate = scanned.insert(key, value);
            assert_eq!(duplicate, None, "no member is returned twice");
        }
        after = page.next;
        if after.is_none() {
            return Ok(scanned);
        }
    }
}

/// A scan returns the newest live entry of each member within the epochs, with its epoch. It skips
/// entries of other views, pruned epochs and earlier generations.
pub async fn the_newest_entries_are_scanned_in_order(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let all_epochs = (0, Epoch::MAX);
    let scanned = scan(live, all_epochs, 9, None).await?;
    assert_eq!(scanned, ScanResult::new(), "no state");
    let start = new_generation(0, 0, 1);
    assert_eq!(live.rebuild(state_id(0), None, &start).await?, Ok(()));
    let mut checkpoint = START;
    let scanned = scan(live, all_epochs, 9, Some(checkpoint)).await?;
    assert_eq!(scanned, ScanResult::new());
    let first = [
        (key("k", ""), Some("k1")),
        (key("k", "a"), Some("ka1")),
        (key("k", "b"), None),
        (key("", "z"), Some("")),
        (key("k0", "\u{ff}"), Some("k0")),
        (key("\u{0}", "a"), Some("zero")),
    ];
    apply(live, &mut checkpoint, &entry_changes(VIEW, &first)).await?;
    let other_view = entry_changes(OTHER_VIEW, &first[..2]);
    apply(live, &mut checkpoint, &other_view).await?;
    let end = end_epoch(live, &mut checkpoint).await?;
    let second = [
        (key("k", "a"), None),
        (key("k", "c"), Some("kc2")),
        (key("l", "a"), Some("la2")),
    ];
    apply(live, &mut checkpoint, &entry_changes(VIEW, &second)).await?;
    let expected_rows = |epoch: Epoch, rows: &[(Key, Option<&str>)]| -> ScanResult {
        let value = |entry: &Option<&str>| (epoch, entry.map(|entry| entry.as_bytes().to_vec()));
        rows.iter()
            .map(|(key, entry)| (key.clone(), value(entry)))
            .collect()
    };
    let mut newest = expected_rows(1, &first);
    newest.extend(expected_rows(2, &second));
    for limit in [1, 2, 3, 100] {
        let actual = scan(live, all_epochs, limit, Some(checkpoint)).await?;
        assert_eq!(actual, newest, "pages of {limit}");
        let actual = scan(live, (1, 1), limit, Some(checkpoint)).await?;
        assert_eq!(actual, expected_rows(1, &first), "pages of {limit}");
        let actual = scan(live, (2, 7), limit, Some(checkpoint)).await?;
        assert_eq!(actual, expected_rows(2, &second), "pages of {limit}");
    }
    let scanned = scan(live, (3, 9), 9, Some(checkpoint)).await?;
    assert_eq!(scanned, ScanResult::new());
    assert!(live.prune_through(state_id(0), 1, end).await?);
    let scanned = scan(live, all_epochs, 2, Some(checkpoint)).await?;
    assert_eq!(scanned, expected_rows(2, &second));
    let outcome = live
        .rebuild(state_id(0), Some(checkpoint), &new_generation(0, 0, 9))
        .await?;
    assert_eq!(outcome, Ok(()));
    let rebuilt = Checkpoint {
        generation: 9,
        ..START
    };
    let scanned = scan(live, all_epochs, 2, Some(rebuilt)).await?;
    assert_eq!(scanned, ScanResult::new());
    Ok(())
}

/// The checkpoint of a page shows changes since the previous page.
pub async fn pages_carry_their_checkpoint(ports: &Stores) -> Result<()> {
    let live = &*ports.live;
    let all_epochs = (0, Epoch::MAX);
    let missing = live
        .scan_deltas(state_id(0), VIEW, all_epochs, None, 1)
        .await?;
    assert!(missing.state.is_none() && missing.next.is_none());
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    let counted = [(key("g", "a"), 1), (key("g", "b"), 2), (key("h", "a"), 3)];
    apply(live, &mut checkpoint, &deltas(VIEW, &counted)).await?;
    let (mut after, mut rows) = (None, Vec::new());
    loop {
        let page = live
            .scan_deltas(state_id(0), VIEW, all_epochs, after, 1)
            .await?;
        assert_eq!(page.state.map(|state| state.checkpoint()), Some(checkpoint));
        let keys = bytes(&page.deltas.groups)
            .into_iter()
            .zip(bytes(&page.deltas.rows));
        rows.extend(keys.zip(page.deltas.counts.values().iter().copied()));
        after = page.next;
        if after.is_none() {
            break;
        }
        if rows.len() == 2 {
            end_epoch(live, &mut checkpoint).await?;
        }
        apply(live, &mut checkpoint, &deltas(VIEW, &counted)).await?;
    }
    assert_eq!(checkpoint.epoch, 2);
    let keys: Vec<&Key> = rows.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, counted.iter().map(|(key, _)| key).collect::<Vec<_>>());
    // Each page has its own checkpoint.
    assert_eq!(rows[0].1, 1);
    assert_eq!(rows[1].1, 4);
    assert_eq!(rows[2].1, 9);
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
    let member_key = |n: usize| key("large", &format!("{n:05}"));
    let neighbors = [
        (key("a", "1"), Some("before")),
        (key("z", "1"), Some("behind")),
    ];
    apply(live, &mut checkpoint, &entry_changes(VIEW, &neighbors)).await?;
    for step in [1, 2] {
        let numbers: Vec<usize> = (0..MEMBERS).step_by(step).collect();
        for chunk in numbers.chunks(8_000) {
            let rows = chunk.iter().map(|n| (member_key(*n), Some("entry")));
            apply(
                live,
                &mut checkpoint,
                &entry_changes(VIEW, &rows.collect::<Vec<_>>()),
            )
            .await?;
        }
        end_epoch(live, &mut checkpoint).await?;
    }
    let (mut after, mut count) = (None, 0_usize);
    loop {
        let page = live
            .scan_entries(state_id(0), VIEW, (1, 2), after, 9_000)
            .await?;
        for ((key, member), (epoch, _)) in rows_of(&page, 9_000) {
            let number = count.checked_sub(1).filter(|n| *n < MEMBERS);
            match number {
                Some(n) => {
                    assert_eq!((key, member), member_key(n));
                    assert_eq!(epoch, if n % 2 == 0 { 2 } else { 1 }, "of {n}");
                }
                None => assert_eq!(member, b"1"),
            }
            count += 1;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        let later_entries = [
            (member_key(0), Some("later")),
            (member_key(count), Some("later")),
        ];
        apply(live, &mut checkpoint, &entry_changes(VIEW, &later_entries)).await?;
    }
    assert_eq!(count, MEMBERS + 2);
    Ok(())
}

/// A page and its checkpoint are from one moment, despite concurrent writes.
pub async fn pages_are_consistent(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const STEPS: i64 = 60;
    let live = &*ports.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let write = async {
        let mut checkpoint = START;
        while checkpoint.next_offset < STEPS {
            let entry = (checkpoint.next_offset + 1).to_string();
            let rows = [
                (key("k", "a"), Some(&*entry)),
                (key("l", "b"), Some(&*entry)),
            ];
            let mut changes = entry_changes(OTHER_VIEW, &rows);
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
            let page = other_ports
                .live
                .scan_entries(state_id(0), OTHER_VIEW, (0, 99), None, 9);
            let page = page.await?;
            let offset = page.state.as_ref().expect("a state").position.next_offset;
            let expected = if offset == 0 {
                vec![]
            } else {
                vec![offset.to_string(); 2]
            };
            let actual = rows_of(&page, 9)
                .into_iter()
                .filter_map(|(_, (_, entry))| entry);
            let actual: Vec<String> = actual
                .map(|bytes| String::from_utf8(bytes).expect("text"))
                .collect();
            assert_eq!(actual, expected);
            let page = other_ports
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
    let states = other_ports
        .live
        .read_deltas(Source::Plays, 1, &[])
        .await?
        .partition_states;
    assert!(states[0].is_some());
    Ok(())
}

/// A page of a key that takes several reads is from the moment of its checkpoint, or fails during
/// concurrent writes.
pub async fn large_key_pages_are_consistent(ports: &Stores, other_ports: &Stores) -> Result<()> {
    const MEMBERS: usize = 12_000;
    const STEPS: i64 = 200;
    let live = &*ports.live;
    assert_eq!(
        live.rebuild(state_id(0), None, &new_generation(0, 0, 1))
            .await?,
        Ok(())
    );
    let mut checkpoint = START;
    let member_key = |n: usize| key("large", &format!("{n:05}"));
    let rows: Vec<_> = (0..MEMBERS).map(|n| (member_key(n), Some("0"))).collect();
    apply(live, &mut checkpoint, &entry_changes(VIEW, &rows)).await?;
    let write = async {
        while checkpoint.next_offset < STEPS {
            let entry = (checkpoint.next_offset + 1).to_string();
            let changed_rows = [3, 4_321].map(|n| (member_key(n), Some(&*entry)));
            apply(live, &mut checkpoint, &entry_changes(VIEW, &changed_rows)).await?;
            if checkpoint.next_offset % 20 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            }
        }
        Ok(())
    };
    let read = async {
        loop {
            let page = other_ports
                .live
                .scan_entries(state_id(0), VIEW, (1, 1), None, 5_000);
            let page = match page.await {
                Err(error) if error.kind() == ErrorKind::Retry => continue,
                page => page?,
            };
            let offset = page.state.as_ref().expect("a state").position.next_offset;
            let entry = if offset == 1 { 0 } else { offset };
            let changed = [3, 4_321].map(|n| page.entries.entry(n));
            assert_eq!(changed, [Some(entry.to_string().as_bytes()); 2]);
            assert_eq!(rows_of(&page, 5_000).len(), 5_000);
            if offset == STEPS {
                return Ok(());
            }
        }
    };
    tokio::try_join!(write, read)?;
    Ok(())
}
