use std::collections::HashSet;

use proptest::prelude::*;

use super::super::model::{Items, any_items, build, seeded_items, small_node_options};
use super::super::{Node, Tree};
use super::*;

const SMALL: TreeOptions = TreeOptions {
    leaf_items_mean: 16,
    inner_children_mean: 8,
    node_bytes_max: 64 << 10,
    compress: true,
};

proptest! {
    #[test]
    fn equal_items_give_equal_trees(
        items in any_items(300),
        others in any_items(300),
        options in small_node_options(),
    ) {
        let tree = build(options, &items);
        let other = build(options, &others);
        prop_assert_eq!(other.0 == tree.0, items == others);
        // The thread's compressor has packed other leaves before, and nodes are taken at other
        // times.
        let mut builder = TreeBuilder::new(options);
        for (key, (weight, value)) in &items {
            builder.push(key, *weight, value).unwrap();
        }
        let built = builder.finish();
        prop_assert_eq!((built.root, built.nodes), tree);
    }

    #[test]
    fn nodes_stay_within_their_bounds(items in any_items(400), options in small_node_options()) {
        let (root, nodes) = build(options, &items);
        for (id, bytes) in &nodes {
            let node = Node::decode(bytes).unwrap();
            prop_assert_eq!(node.id(), *id);
            let mean = [options.inner_children_mean, options.leaf_items_mean];
            prop_assert!(node.len() <= 4 * mean[usize::from(node.level() == 0)]);
            // A node with one entry, or two children, may exceed the limit.
            prop_assert!(bytes.len() <= options.node_bytes_max + 100);
        }
        let root = Tree::open(&root).unwrap();
        prop_assert_eq!(root.height() == 0, nodes.is_empty());
    }
}

/// The number of nodes that only the second tree has, and its height.
fn count_new_nodes(before: &Items, after: &Items) -> (usize, usize) {
    let (_, old) = build(SMALL, before);
    let (root, new) = build(SMALL, after);
    let old: HashSet<NodeId> = old.into_iter().map(|(id, _)| id).collect();
    let added = new.iter().filter(|(id, _)| !old.contains(id)).count();
    (added, Tree::open(&root).unwrap().height())
}

#[test]
fn a_change_keeps_most_nodes() {
    let (mut new_nodes_max, mut new_nodes_sum) = (0, 0);
    for seed in 0..40_u8 {
        let before = seeded_items(5000, u64::from(seed));
        let changed_key = before.keys().step_by(113).nth(usize::from(seed)).unwrap();

        let mut changed = before.clone();
        changed.get_mut(changed_key).unwrap().0 += 1;
        let (added, height) = count_new_nodes(&before, &changed);
        assert!(height >= 3);
        assert_eq!(added, height, "only the way down, without the root");

        let mut removed = before.clone();
        removed.remove(changed_key);
        let mut inserted = before.clone();
        inserted.insert(
            [changed_key.as_slice(), b"!"].concat(),
            (7, b"new".to_vec()),
        );
        for after in [removed, inserted] {
            let (added, _) = count_new_nodes(&before, &after);
            new_nodes_max = new_nodes_max.max(added);
            new_nodes_sum += added;
        }
    }
    assert!(new_nodes_max <= 12, "{new_nodes_max} new nodes");
    assert!(
        new_nodes_sum <= 80 * 5,
        "{new_nodes_sum} new nodes after 80 changes"
    );
}

#[test]
fn nodes_can_be_taken_before_the_end() {
    let mut builder = TreeBuilder::new(SMALL);
    let mut node_count = 0;
    for (key, (weight, value)) in &seeded_items(20_000, 0) {
        builder.push(key, *weight, value).unwrap();
        let nodes = builder.take_nodes();
        // The last node of each level, and the first two where a level begins.
        assert!(nodes.len() <= 8);
        node_count += nodes.len();
    }
    let built = builder.finish();
    assert!(node_count > 1000 && built.nodes.len() <= 8, "{node_count}");
}

#[test]
fn leaves_have_about_the_mean_number_of_items() {
    let options = TreeOptions {
        leaf_items_mean: 64,
        ..TreeOptions::default()
    };
    let (_, nodes) = build(options, &seeded_items(50_000, 0));
    let leaves = nodes.iter().filter(|(_, bytes)| bytes[1] == 0).count();
    assert!((600..1000).contains(&leaves), "{leaves}");
}

#[test]
fn few_items_give_only_a_root() {
    let items = seeded_items(60, 0);
    let (root, nodes) = build(TreeOptions::default(), &items);
    assert_eq!((nodes.len(), Tree::open(&root).unwrap().height()), (0, 0));
    // Also if the only leaf ends with its last item.
    let every_item_ends = TreeOptions {
        leaf_items_mean: 1,
        ..TreeOptions::default()
    };
    let single_item = items.into_iter().take(1).collect();
    assert_eq!(build(every_item_ends, &single_item).1, []);
}

#[test]
fn long_keys_and_values_give_a_finite_tree() {
    let mut builder = TreeBuilder::new(TreeOptions::default());
    for index in 0..40_u8 {
        let mut key = vec![index; ITEM_BYTES_MAX];
        key.truncate(ITEM_BYTES_MAX - usize::from(index) * 1500);
        let value = vec![index; ITEM_BYTES_MAX - key.len()];
        builder.push(&key, 1, &value).unwrap();
    }
    let built = builder.finish();
    assert_eq!(Tree::open(&built.root).unwrap().sum().count, 40);
    assert!(
        built
            .nodes
            .iter()
            .all(|(_, bytes)| Node::decode(bytes).is_ok())
    );
    assert!((40..80).contains(&built.nodes.len()));
}

#[test]
fn a_rejected_item_changes_nothing() {
    let mut builder = TreeBuilder::new(SMALL);
    builder.push(b"b", 1, b"one").unwrap();
    let long = vec![b'c'; ITEM_BYTES_MAX];
    let refused = [
        (builder.push(b"b", 1, b""), BuildError::NotAscending(1)),
        (builder.push(b"a", 1, b""), BuildError::NotAscending(1)),
        (
            builder.push(b"c", -1, b""),
            BuildError::Negative {
                item: 1,
                weight: -1,
            },
        ),
        (builder.push(b"c", i64::MAX, b""), BuildError::Overflow(1)),
        (
            builder.push(&long, 1, b"1"),
            BuildError::TooLong {
                item: 1,
                bytes: ITEM_BYTES_MAX + 1,
            },
        ),
    ];
    for (result, error) in refused {
        assert_eq!(result, Err(error));
    }
    builder.push(b"c", i64::MAX - 1, b"").unwrap();
    let items = [(b"b", 1, &b"one"[..]), (b"c", i64::MAX - 1, b"")];
    let items = items.map(|(key, weight, value)| (key.to_vec(), (weight, value.to_vec())));
    assert_eq!(builder.finish().root, build(SMALL, &Items::from(items)).0);
}

/// Stored nodes are found by id. This test fails if a change would give every published tree new
/// ids. It does not depend on the compressor.
#[test]
fn the_stored_layout_is_unchanged() {
    let plain = TreeOptions {
        compress: false,
        ..SMALL
    };
    let (root, nodes) = build(plain, &seeded_items(1000, 0));
    let root = Tree::open(&root).unwrap();
    assert_eq!((root.height(), nodes.len()), (3, 75));
    assert_eq!(
        root.root().id().to_string(),
        "9205901acfc4792b6263292a4383ecce"
    );
}
