use proptest::prelude::*;

use super::super::Options;
use super::super::model::{Items, Plain, Store, items, key, many, now, plain, tiny};
use super::*;

const ALL: usize = usize::MAX;

/// One store with the nodes of both trees.
fn both(options: Options, old: &Items, new: &Items) -> (Tree, Tree, Store) {
    let (before, mut store) = Store::build(options, old);
    let (after, other) = Store::build(options, new);
    store.nodes.extend(other.nodes);
    (before, after, store)
}

type Both = (Option<Plain>, Option<Plain>);

fn plains(changes: Vec<ItemChange>) -> Vec<Both> {
    let plain = |item: Option<Item>| item.as_ref().map(plain);
    let both = |change: ItemChange| (plain(change.before), plain(change.after));
    changes.into_iter().map(both).collect()
}

fn expected(old: &Items, new: &Items) -> Vec<Both> {
    let mut keys: Vec<&Vec<u8>> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let find = |items: &Items, key: &Vec<u8>| {
        let (weight, value) = items.get(key)?;
        Some((key.clone(), *weight, value.clone()))
    };
    let both = keys.into_iter().map(|key| (find(old, key), find(new, key)));
    both.filter(|(old, new)| old != new).collect()
}

proptest! {
    #[test]
    fn changes_equal_those_of_sorted_lists(
        old in items(300),
        new in items(300),
        options in tiny(),
    ) {
        let (before, after, store) = both(options, &old, &new);
        let changes = now(after.changes(Some(&before), &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(plains(changes), expected(&old, &new));
        let first = now(after.changes(None, &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(plains(first), expected(&Items::new(), &new));
    }

    #[test]
    fn few_changes_of_many_are_found(
        length in 0..600_u64,
        changed in prop::collection::vec((key(), any::<bool>(), 0..600_usize), 0..20),
        options in tiny(),
    ) {
        let old = many(length, 3);
        let mut new = old.clone();
        for (key, is_new, at) in changed {
            if is_new {
                new.insert(key, (1, Vec::new()));
            } else if let Some(key) = new.keys().nth(at).cloned() {
                new.remove(&key);
            }
        }
        let (before, after, store) = both(options, &old, &new);
        let changes = now(after.changes(Some(&before), &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(plains(changes), expected(&old, &new));
    }
}

#[test]
fn shared_nodes_are_not_read() {
    let options = Options {
        leaf_items_mean: 8,
        inner_children_mean: 4,
        node_bytes_max: 64 << 10,
        compress: true,
    };
    let old = many(5_000, 1);
    let mut new = old.clone();
    for (_, (weight, _)) in new.iter_mut().step_by(1_000) {
        *weight += 1;
    }
    let (before, after, store) = both(options, &old, &new);
    let changes = now(after.changes(Some(&before), &store, ALL))
        .unwrap()
        .unwrap();
    assert_eq!(changes.len(), 5);
    let read: usize = store.calls.lock().unwrap().iter().map(Vec::len).sum();
    assert!(
        read < 200,
        "{read} of {} nodes were read",
        store.nodes.len()
    );
    store.calls.lock().unwrap().clear();
    let same = now(before.changes(Some(&before), &store, 0))
        .unwrap()
        .unwrap();
    assert!(same.is_empty() && store.calls.lock().unwrap().is_empty());
    let other = many(5_000, 2);
    let (before, after, store) = both(options, &old, &other);
    assert!(
        now(after.changes(Some(&before), &store, 10))
            .unwrap()
            .is_none()
    );
    assert!(
        now(after.changes(Some(&before), &store, 10_000))
            .unwrap()
            .is_some()
    );
}
