use proptest::prelude::*;

use super::super::model::{
    ItemTuple, Items, Store, any_items, any_key, block_on, seeded_items, small_node_options,
    to_tuple,
};
use super::super::{NodeId, TreeDamage, TreeOptions};
use super::*;

const SMALL: TreeOptions = TreeOptions {
    leaf_items_mean: 8,
    inner_children_mean: 4,
    node_bytes_max: 64 << 10,
    compress: true,
};

fn list_items(items: &Items) -> Vec<ItemTuple> {
    let tuple =
        |(key, (weight, value)): (&Vec<u8>, &(i64, Vec<u8>))| (key.clone(), *weight, value.clone());
    items.iter().map(tuple).collect()
}

fn to_tuples(items: &[Item]) -> Vec<ItemTuple> {
    items.iter().map(to_tuple).collect()
}

fn sum_below(items: &Items, key: &[u8]) -> Sum {
    let below = items.iter().take_while(|(item, _)| item.as_slice() < key);
    below.fold(Sum::default(), |sum, (_, (weight, _))| Sum {
        count: sum.count + 1,
        weight: sum.weight + weight,
    })
}

/// Keys of items and other keys, some of them twice.
fn lookup_keys(items: &Items, others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let item_keys = items.keys().step_by(3).cloned();
    let edges = [vec![], vec![255; 9]];
    let all = others.iter().cloned().chain(item_keys).chain(edges);
    all.chain(others.iter().take(2).cloned()).collect()
}

proptest! {
    #[test]
    fn reads_equal_those_of_a_sorted_list(
        items in any_items(400),
        options in small_node_options(),
        others in prop::collection::vec(any_key(), 0..20),
        from in 0..450_usize,
        length in 0..100_usize,
    ) {
        let (tree, store) = Store::build(options, &items);
        let list = list_items(&items);
        prop_assert_eq!(tree.sum().count, items.len() as u64);

        let keys = lookup_keys(&items, &others);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let ranks = block_on(tree.ranks(&store, &keys)).unwrap();
        let expected: Vec<Sum> = keys.iter().map(|key| sum_below(&items, key)).collect();
        prop_assert_eq!(ranks, expected);
        store.take_checked_calls(&tree);

        let found_items = block_on(tree.get(&store, &keys)).unwrap();
        for (key, item) in keys.iter().zip(found_items) {
            let expected = items.get_key_value(*key).map(|(k, (w, v))| (k.clone(), *w, v.clone()));
            prop_assert_eq!(item.as_ref().map(to_tuple), expected);
        }
        store.take_checked_calls(&tree);

        let slice = block_on(tree.slice(&store, from as u64, length)).unwrap();
        let expected: Vec<_> = list.iter().skip(from).take(length).cloned().collect();
        prop_assert_eq!(to_tuples(&slice), expected);
        store.take_checked_calls(&tree);

        let mut ids = block_on(tree.list_node_ids(&store)).unwrap();
        let read = store.take_checked_calls(&tree);
        let leaf = |id: &NodeId| store.nodes[id][1] == 0;
        prop_assert!(!read.iter().flatten().any(leaf));
        let mut expected: Vec<NodeId> = store.nodes.keys().copied().collect();
        ids.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(ids, expected);
    }
}

#[test]
fn an_empty_tree_reads_no_nodes() {
    let (tree, store) = Store::build(TreeOptions::default(), &Items::new());
    assert_eq!((tree.sum(), tree.height()), (Sum::default(), 0));
    let keys: [&[u8]; 2] = [b"", b"a"];
    assert_eq!(
        block_on(tree.ranks(&store, &keys)).unwrap(),
        [Sum::default(); 2]
    );
    assert!(
        block_on(tree.get(&store, &keys))
            .unwrap()
            .iter()
            .all(Option::is_none)
    );
    assert!(block_on(tree.slice(&store, 0, 9)).unwrap().is_empty());
    assert!(block_on(tree.list_node_ids(&store)).unwrap().is_empty());
    assert!(store.nodes.is_empty() && store.calls.lock().unwrap().is_empty());
}

#[test]
fn empty_requests_read_no_nodes() {
    let (tree, store) = Store::build(SMALL, &seeded_items(500, 0));
    assert!(tree.height() >= 3);
    block_on(tree.ranks(&store, &[])).unwrap();
    block_on(tree.ranks(&store, &[&[255; 13]])).unwrap();
    block_on(tree.slice(&store, 500, 9)).unwrap();
    block_on(tree.slice(&store, u64::MAX, usize::MAX)).unwrap();
    block_on(tree.slice(&store, 3, 0)).unwrap();
    assert!(store.calls.lock().unwrap().is_empty());
    let all = block_on(tree.slice(&store, 0, usize::MAX)).unwrap();
    assert_eq!(all.len(), 500);
    assert_eq!(store.take_checked_calls(&tree).len(), tree.height());
}

#[test]
fn a_single_item_reads_one_node_per_level() {
    let items = seeded_items(5000, 1);
    let (tree, store) = Store::build(SMALL, &items);
    for index in 0..500 {
        block_on(tree.slice(&store, index, 1)).unwrap();
        assert!(
            store
                .take_checked_calls(&tree)
                .iter()
                .all(|ids| ids.len() == 1)
        );
    }
}

#[test]
fn a_missing_node_fails_only_reads_that_need_it() {
    let items = seeded_items(300, 2);
    let (tree, mut store) = Store::build(SMALL, &items);
    for id in block_on(tree.list_node_ids(&store)).unwrap() {
        let bytes = store.nodes.remove(&id).unwrap();
        let all = block_on(tree.slice(&store, 0, 300)).unwrap_err();
        assert_eq!(all, ReadError::Missing(id));
        let keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
        let readable = keys
            .iter()
            .filter(|key| block_on(tree.get(&store, &[key])).is_ok());
        assert!(readable.count() > 0);
        store.nodes.insert(id, bytes);
    }
    assert!(block_on(tree.slice(&store, 0, 300)).is_ok());
}

/// A call never requests more nodes than the keys of its batch, in any key order.
#[test]
fn many_keys_are_read_in_bounded_calls() {
    let items = seeded_items(3_000, 4);
    let (tree, store) = Store::build(
        TreeOptions {
            leaf_items_mean: 1,
            ..SMALL
        },
        &items,
    );
    let mut keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
    keys.reverse();
    keys.extend_from_slice(&[&[], &[255; 9]]);
    keys.rotate_left(1_000);
    let found_items = block_on(tree.get_with_rank(&store, &keys)).unwrap();
    let calls = std::mem::take(&mut *store.calls.lock().unwrap());
    assert!(calls.iter().all(|ids| ids.len() <= KEYS_PER_DESCENT));
    assert_eq!(
        calls.len(),
        keys.len().div_ceil(KEYS_PER_DESCENT) * tree.height()
    );
    let ranks = block_on(tree.ranks(&store, &keys)).unwrap();
    for ((key, item), rank) in keys.iter().zip(found_items).zip(ranks) {
        assert_eq!(item.is_some(), items.contains_key(*key));
        if let Some((before, item)) = item {
            assert_eq!((item.key(), before), (*key, rank));
        }
    }
    let sums: Vec<Sum> = keys[..20]
        .iter()
        .map(|key| sum_below(&items, key))
        .collect();
    assert_eq!(block_on(tree.ranks(&store, &keys[..20])).unwrap(), sums);
}

/// A store that returns too few nodes, or a wrong one.
struct FaultyStore(Store, fn(&mut Vec<Option<Arc<Node>>>));

impl NodeReader for FaultyStore {
    type Error = TreeDamage;

    async fn read_nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, TreeDamage> {
        let mut nodes = self.0.read_nodes(ids).await?;
        (self.1)(&mut nodes);
        Ok(nodes)
    }
}

#[test]
fn wrong_nodes_of_a_store_are_detected() {
    let items = seeded_items(300, 3);
    let (tree, store) = Store::build(SMALL, &items);
    let swapped = FaultyStore(store, |nodes| nodes.reverse());
    let error = block_on(tree.slice(&swapped, 0, 300)).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged(TreeDamage::Hash { .. })),
        "{error}"
    );
    let (tree, store) = Store::build(SMALL, &items);
    let short = FaultyStore(store, |nodes| nodes.truncate(1));
    let error = block_on(tree.slice(&short, 0, 300)).unwrap_err();
    assert!(matches!(error, ReadError::Missing(_)), "{error}");
}
