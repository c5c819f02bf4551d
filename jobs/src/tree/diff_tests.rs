use proptest::prelude::*;

use super::super::TreeOptions;
use super::super::model::{
    ItemTuple, Items, Store, any_items, any_key, block_on, seeded_items, small_node_options,
    to_tuple,
};
use super::*;

const ALL: usize = usize::MAX;

/// One store with the nodes of both trees.
fn build_trees(options: TreeOptions, old: &Items, new: &Items) -> (Tree, Tree, Store) {
    let (before, mut store) = Store::build(options, old);
    let (after, other) = Store::build(options, new);
    store.nodes.extend(other.nodes);
    (before, after, store)
}

type ChangeTuple = (Option<ItemTuple>, Option<ItemTuple>);

fn to_tuples(changes: Vec<ItemChange>) -> Vec<ChangeTuple> {
    let item_tuple = |item: Option<Item>| item.as_ref().map(to_tuple);
    let change_tuple = |change: ItemChange| (item_tuple(change.before), item_tuple(change.after));
    changes.into_iter().map(change_tuple).collect()
}

fn expected_changes(old: &Items, new: &Items) -> Vec<ChangeTuple> {
    let mut keys: Vec<&Vec<u8>> = old.keys().chain(new.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let find = |items: &Items, key: &Vec<u8>| {
        let (weight, value) = items.get(key)?;
        Some((key.clone(), *weight, value.clone()))
    };
    let pairs = keys.into_iter().map(|key| (find(old, key), find(new, key)));
    pairs.filter(|(old, new)| old != new).collect()
}

proptest! {
    #[test]
    fn changes_equal_those_of_sorted_lists(
        old in any_items(300),
        new in any_items(300),
        options in small_node_options(),
    ) {
        let (before, after, store) = build_trees(options, &old, &new);
        let changes = block_on(after.find_changes(Some(&before), &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(to_tuples(changes), expected_changes(&old, &new));
        let first = block_on(after.find_changes(None, &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(to_tuples(first), expected_changes(&Items::new(), &new));
    }

    #[test]
    fn few_changes_of_many_are_found(
        length in 0..600_u64,
        changed in prop::collection::vec((any_key(), any::<bool>(), 0..600_usize), 0..20),
        options in small_node_options(),
    ) {
        let old = seeded_items(length, 3);
        let mut new = old.clone();
        for (key, is_new, index) in changed {
            if is_new {
                new.insert(key, (1, Vec::new()));
            } else if let Some(key) = new.keys().nth(index).cloned() {
                new.remove(&key);
            }
        }
        let (before, after, store) = build_trees(options, &old, &new);
        let changes = block_on(after.find_changes(Some(&before), &store, ALL)).unwrap().unwrap();
        prop_assert_eq!(to_tuples(changes), expected_changes(&old, &new));
    }
}

#[test]
fn shared_nodes_are_not_read() {
    let options = TreeOptions {
        leaf_items_mean: 8,
        inner_children_mean: 4,
        node_bytes_max: 64 << 10,
        compress: true,
    };
    let old = seeded_items(5_000, 1);
    let mut new = old.clone();
    for (_, (weight, _)) in new.iter_mut().step_by(1_000) {
        *weight += 1;
    }
    let (before, after, store) = build_trees(options, &old, &new);
    let changes = block_on(after.find_changes(Some(&before), &store, ALL))
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
    let no_changes = block_on(before.find_changes(Some(&before), &store, 0))
        .unwrap()
        .unwrap();
    assert!(no_changes.is_empty() && store.calls.lock().unwrap().is_empty());
    let other = seeded_items(5_000, 2);
    let (before, after, store) = build_trees(options, &old, &other);
    assert!(
        block_on(after.find_changes(Some(&before), &store, 10))
            .unwrap()
            .is_none()
    );
    assert!(
        block_on(after.find_changes(Some(&before), &store, 10_000))
            .unwrap()
            .is_some()
    );
}
