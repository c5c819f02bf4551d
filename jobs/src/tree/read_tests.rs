use proptest::prelude::*;

use super::super::model::{Items, Plain, Store, items, key, many, now, plain, tiny};
use super::super::{NodeId, Options, TreeDamage};
use super::*;

const SMALL: Options = Options {
    leaf_items_mean: 8,
    inner_children_mean: 4,
    node_bytes_max: 64 << 10,
    compress: true,
};

fn list(items: &Items) -> Vec<Plain> {
    let plain =
        |(key, (weight, value)): (&Vec<u8>, &(i64, Vec<u8>))| (key.clone(), *weight, value.clone());
    items.iter().map(plain).collect()
}

fn plains(items: &[Item]) -> Vec<Plain> {
    items.iter().map(plain).collect()
}

fn below(items: &Items, key: &[u8]) -> Sum {
    let below = items.iter().take_while(|(item, _)| item.as_slice() < key);
    below.fold(Sum::default(), |sum, (_, (weight, _))| Sum {
        count: sum.count + 1,
        weight: sum.weight + weight,
    })
}

/// Keys of items and other keys, some of them twice.
fn lookup_keys(items: &Items, others: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let own = items.keys().step_by(3).cloned();
    let edges = [vec![], vec![255; 9]];
    let all = others.iter().cloned().chain(own).chain(edges);
    all.chain(others.iter().take(2).cloned()).collect()
}

proptest! {
    #[test]
    fn reads_equal_those_of_a_sorted_list(
        items in items(400),
        options in tiny(),
        others in prop::collection::vec(key(), 0..20),
        from in 0..450_usize,
        length in 0..100_usize,
    ) {
        let (tree, store) = Store::build(options, &items);
        let list = list(&items);
        prop_assert_eq!(tree.sum().count, items.len() as u64);

        let keys = lookup_keys(&items, &others);
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let ranks = now(tree.ranks(&store, &keys)).unwrap();
        let expected: Vec<Sum> = keys.iter().map(|key| below(&items, key)).collect();
        prop_assert_eq!(ranks, expected);
        store.checked_calls(&tree);

        let found = now(tree.get(&store, &keys)).unwrap();
        for (key, item) in keys.iter().zip(found) {
            let expected = items.get_key_value(*key).map(|(k, (w, v))| (k.clone(), *w, v.clone()));
            prop_assert_eq!(item.as_ref().map(plain), expected);
        }
        store.checked_calls(&tree);

        let slice = now(tree.slice(&store, from as u64, length)).unwrap();
        let expected: Vec<_> = list.iter().skip(from).take(length).cloned().collect();
        prop_assert_eq!(plains(&slice), expected);
        store.checked_calls(&tree);

        let mut ids = now(tree.walk_ids(&store)).unwrap();
        let read = store.checked_calls(&tree);
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
    let (tree, store) = Store::build(Options::default(), &Items::new());
    assert_eq!((tree.sum(), tree.height()), (Sum::default(), 0));
    let keys: [&[u8]; 2] = [b"", b"a"];
    assert_eq!(now(tree.ranks(&store, &keys)).unwrap(), [Sum::default(); 2]);
    assert!(
        now(tree.get(&store, &keys))
            .unwrap()
            .iter()
            .all(Option::is_none)
    );
    assert!(now(tree.slice(&store, 0, 9)).unwrap().is_empty());
    assert!(now(tree.walk_ids(&store)).unwrap().is_empty());
    assert!(store.nodes.is_empty() && store.calls.lock().unwrap().is_empty());
}

#[test]
fn empty_requests_read_no_nodes() {
    let (tree, store) = Store::build(SMALL, &many(500, 0));
    assert!(tree.height() >= 3);
    now(tree.ranks(&store, &[])).unwrap();
    now(tree.ranks(&store, &[&[255; 13]])).unwrap();
    now(tree.slice(&store, 500, 9)).unwrap();
    now(tree.slice(&store, u64::MAX, usize::MAX)).unwrap();
    now(tree.slice(&store, 3, 0)).unwrap();
    assert!(store.calls.lock().unwrap().is_empty());
    let all = now(tree.slice(&store, 0, usize::MAX)).unwrap();
    assert_eq!(all.len(), 500);
    assert_eq!(store.checked_calls(&tree).len(), tree.height());
}

#[test]
fn a_single_item_reads_one_node_per_level() {
    let items = many(5000, 1);
    let (tree, store) = Store::build(SMALL, &items);
    for at in 0..500 {
        now(tree.slice(&store, at, 1)).unwrap();
        assert!(store.checked_calls(&tree).iter().all(|ids| ids.len() == 1));
    }
}

#[test]
fn a_missing_node_fails_only_reads_that_need_it() {
    let items = many(300, 2);
    let (tree, mut store) = Store::build(SMALL, &items);
    for id in now(tree.walk_ids(&store)).unwrap() {
        let bytes = store.nodes.remove(&id).unwrap();
        let all = now(tree.slice(&store, 0, 300)).unwrap_err();
        assert_eq!(all, ReadError::Missing(id));
        let keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
        let whole = keys
            .iter()
            .filter(|key| now(tree.get(&store, &[key])).is_ok());
        assert!(whole.count() > 0);
        store.nodes.insert(id, bytes);
    }
    assert!(now(tree.slice(&store, 0, 300)).is_ok());
}

/// A call never requests more nodes than the keys of its batch, in any key order.
#[test]
fn many_keys_are_read_in_bounded_calls() {
    let items = many(3_000, 4);
    let (tree, store) = Store::build(
        Options {
            leaf_items_mean: 1,
            ..SMALL
        },
        &items,
    );
    let mut keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
    keys.reverse();
    keys.extend_from_slice(&[&[], &[255; 9]]);
    keys.rotate_left(1_000);
    let found = now(tree.find(&store, &keys)).unwrap();
    let calls = std::mem::take(&mut *store.calls.lock().unwrap());
    assert!(calls.iter().all(|ids| ids.len() <= KEYS_PER_DESCENT));
    assert_eq!(
        calls.len(),
        keys.len().div_ceil(KEYS_PER_DESCENT) * tree.height()
    );
    let ranks = now(tree.ranks(&store, &keys)).unwrap();
    for ((key, found), rank) in keys.iter().zip(found).zip(ranks) {
        assert_eq!(found.is_some(), items.contains_key(*key));
        if let Some((before, item)) = found {
            assert_eq!((item.key(), before), (*key, rank));
        }
    }
    let sums: Vec<Sum> = keys[..20].iter().map(|key| below(&items, key)).collect();
    assert_eq!(now(tree.ranks(&store, &keys[..20])).unwrap(), sums);
}

/// A store that returns too few nodes, or a wrong one.
struct FaultyStore(Store, fn(&mut Vec<Option<Arc<Node>>>));

impl Nodes for FaultyStore {
    type Error = TreeDamage;

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Option<Arc<Node>>>, TreeDamage> {
        let mut nodes = self.0.nodes(ids).await?;
        (self.1)(&mut nodes);
        Ok(nodes)
    }
}

#[test]
fn wrong_nodes_of_a_store_are_detected() {
    let items = many(300, 3);
    let (tree, store) = Store::build(SMALL, &items);
    let swapped = FaultyStore(store, |nodes| nodes.reverse());
    let error = now(tree.slice(&swapped, 0, 300)).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged(TreeDamage::Hash { .. })),
        "{error}"
    );
    let (tree, store) = Store::build(SMALL, &items);
    let short = FaultyStore(store, |nodes| nodes.truncate(1));
    let error = now(tree.slice(&short, 0, 300)).unwrap_err();
    assert!(matches!(error, ReadError::Missing(_)), "{error}");
}
