use proptest::prelude::*;

use super::super::draft::{EncodedNode, NodeDraft};
use super::super::model::{Store, any_items, block_on, build, small_node_options};
use super::super::{NodeReader, ReadError, Tree};
use super::*;

/// Calls every read method and returns the errors.
fn read_all<N: NodeReader>(
    tree: &Tree,
    nodes: &N,
    keys: &[&[u8]],
) -> Vec<Option<ReadError<N::Error>>> {
    vec![
        block_on(tree.ranks(nodes, keys)).err(),
        block_on(tree.get(nodes, keys)).err(),
        block_on(tree.slice(nodes, 3, 1000)).err(),
        block_on(tree.list_node_ids(nodes)).err(),
    ]
}

proptest! {
    #[test]
    fn decoding_any_bytes_does_not_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Node::decode(&bytes));
        drop(Tree::open(&bytes));
        // The same with a valid header.
        if let [layout, level, packing, ..] = bytes.as_mut_slice() {
            (*layout, *level, *packing) = (1, *level % 3, *packing % 2);
            drop(Node::decode(&bytes));
        }
    }

    #[test]
    fn a_damaged_node_has_another_id(
        items in any_items(200),
        options in small_node_options(),
        node in any::<prop::sample::Index>(),
        index in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
        cut in any::<bool>(),
    ) {
        let (root, mut nodes) = build(options, &items);
        nodes.push((NodeId::for_bytes(&root[NodeId::LEN..]), root.slice(NodeId::LEN..)));
        let (id, valid) = &nodes[node.index(nodes.len())];
        let mut bytes = valid.to_vec();
        if cut {
            bytes.truncate(index.index(bytes.len()));
        } else {
            bytes[index.index(valid.len())] ^= bits;
        }
        if let Ok(node) = Node::decode(&bytes) {
            prop_assert_ne!(node.id(), *id);
        }
        // For a root, the id is checked immediately.
        let mut root = id.as_bytes().to_vec();
        root.extend(bytes);
        prop_assert!(Tree::open(&root).is_err());
    }

    #[test]
    fn reading_damaged_nodes_fails(
        items in any_items(300),
        options in small_node_options(),
        index in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
    ) {
        let (tree, mut store) = Store::build(options, &items);
        for bytes in store.nodes.values_mut() {
            let mut damaged = bytes.to_vec();
            damaged[index.index(bytes.len())] ^= bits;
            *bytes = damaged.into();
        }
        let keys: Vec<&[u8]> = items.keys().take(1).map(Vec::as_slice).collect();
        for error in read_all(&tree, &store, &keys).into_iter().take(2) {
            let damaged = matches!(error, Some(ReadError::Damaged(_) | ReadError::Store(_)));
            prop_assert_eq!(damaged, tree.height() > 0);
        }
    }

    /// Only a writer of heads can forge a root. Results are then wrong, but no read may panic.
    #[test]
    fn a_forged_root_does_not_panic(
        items in any_items(300),
        mut options in small_node_options(),
        index in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
    ) {
        options.compress = false;
        let (root, nodes) = build(options, &items);
        let mut forged = root[NodeId::LEN..].to_vec();
        let index = index.index(forged.len());
        forged[index] ^= bits;
        let mut root = NodeId::for_bytes(&forged).as_bytes().to_vec();
        root.extend(forged);
        let store = Store { nodes: nodes.into_iter().collect(), ..Store::default() };
        if let Ok(tree) = Tree::open(&root) {
            let keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
            read_all(&tree, &store, &keys);
        }
    }
}

/// A leaf written by hand, and the same with one byte wrong.
#[test]
fn each_contradiction_is_detected() {
    let valid = [
        1, 0, 0, 2, 4, 4, 2, 0, 1, 1, 1, 5, 1, 6, 0, b'a', b'b', b'v',
    ];
    let node = Node::decode(&valid).unwrap();
    let sum = Sum {
        count: 2,
        weight: 11,
    };
    assert_eq!((node.sum(), node.key(1)), (sum, &b"ab"[..]));
    let damaged = |index: usize, byte: u8| {
        let mut bytes = valid.to_vec();
        bytes[index] = byte;
        Node::decode(&bytes).unwrap_err().to_string()
    };
    let cases = [
        (0, 2, "layout 2"),
        (1, 1, "too early"),
        (2, 2, "packing"),
        (2, 1, "decompress"),
        (3, 3, "too early"),
        (3, 1, "bytes follow"),
        (4, 3, "too early"),
        (6, 9, "too early"),
        (7, 1, "shares more bytes"),
        (9, 2, "shares more bytes"),
        (10, 0, "ascending"),
        (10, 2, "too early"),
        (12, 2, "too early"),
        (12, 0, "bytes follow"),
    ];
    for (index, byte, message) in cases {
        let error = damaged(index, byte);
        assert!(error.contains(message), "{index}: {error}");
    }
}

#[test]
fn a_compressed_node_must_have_the_stated_length() {
    let mut draft = NodeDraft::default();
    draft.push_item(b"a", 1, &[b'v'; 100]);
    let mut bytes = draft.encode_and_reset(0, true).bytes.to_vec();
    assert!(bytes.len() < 100 && Node::decode(&bytes).is_ok());
    for claim in [-1, 2] {
        bytes[3] = bytes[3].wrapping_add_signed(claim);
        let error = Node::decode(&bytes).unwrap_err();
        assert_eq!(error, TreeDamage::Content("it does not decompress"));
    }
}

/// A few bytes that claim large lengths must not allocate much memory.
#[test]
fn large_stated_lengths_allocate_no_memory() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for claims in [1..2_usize, 1..5, 4..5] {
        let mut bytes = vec![1, 0, 0];
        for index in 1..5 {
            bytes.extend_from_slice(if claims.contains(&index) { &huge } else { &[0] });
        }
        assert!(Node::decode(&bytes).is_err());
    }
    for too_large in [&[0xff; 11][..], &[&[0xff; 9][..], &[2]].concat()] {
        let bytes = [&[1, 0, 0][..], too_large, &[0; 9]].concat();
        let error = Node::decode(&bytes).unwrap_err();
        assert_eq!(error, TreeDamage::Content("a number is too large"));
    }
    let packed = [&[1, 0, 1][..], &huge].concat();
    assert_eq!(Node::decode(&packed).unwrap_err(), wire::TOO_LONG);
    // Keys that share a long prefix take more memory than bytes.
    let mut draft = NodeDraft::default();
    for index in 0..200 {
        draft.push_item(&[&[0; 60 << 10][..], &[index]].concat(), 1, b"");
    }
    let bytes = draft.encode_and_reset(0, false).bytes;
    assert!(bytes.len() < 100 << 10);
    assert_eq!(Node::decode(&bytes).unwrap_err(), wire::TOO_LONG);
}

/// Each node is intact, but its parent was built over another one.
#[test]
fn a_child_must_match_its_parent() {
    let leaf = |weight| {
        let mut draft = NodeDraft::default();
        draft.push_item(b"a", weight, b"");
        draft.encode_and_reset(0, false)
    };
    let changes: [fn(&mut EncodedNode); 4] = [
        |_| (),
        |leaf| leaf.sum.weight += 1,
        |leaf| leaf.sum.count += 1,
        |leaf| leaf.last_key.push(0),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut child = leaf(1);
        change(&mut child);
        let store = Store {
            nodes: [(child.id, child.bytes.clone())].into(),
            ..Store::default()
        };
        for level in [1, 2] {
            let mut draft = NodeDraft::default();
            draft.push_child(&child);
            let root = draft.encode_and_reset(level, false);
            let root = [root.id.as_bytes(), &root.bytes[..]].concat();
            let result = block_on(Tree::open(&root).unwrap().slice(&store, 0, 1));
            let damaged = ReadError::Damaged(TreeDamage::Child(child.id));
            if index == 0 && level == 1 {
                assert!(result.is_ok());
            } else {
                assert_eq!(result.unwrap_err(), damaged);
            }
        }
    }
}
