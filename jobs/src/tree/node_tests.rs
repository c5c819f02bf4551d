use proptest::prelude::*;

use super::super::draft::{Draft, Sealed};
use super::super::model::{Store, build, items, now, tiny};
use super::super::{Nodes, ReadError, Tree};
use super::*;

/// Asks for everything; what comes does not matter.
fn ask<N: Nodes>(tree: &Tree, nodes: &N, keys: &[&[u8]]) -> Vec<Option<ReadError<N::Error>>> {
    vec![
        now(tree.ranks(nodes, keys)).err(),
        now(tree.get(nodes, keys)).err(),
        now(tree.slice(nodes, 3, 1000)).err(),
        now(tree.walk_ids(nodes)).err(),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_a_node_or_damaged(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Node::decode(&bytes));
        drop(Tree::open(&bytes));
        // The same, past the first bytes.
        if let [layout, level, packing, ..] = bytes.as_mut_slice() {
            (*layout, *level, *packing) = (1, *level % 3, *packing % 2);
            drop(Node::decode(&bytes));
        }
    }

    #[test]
    fn a_damaged_node_is_not_taken_for_the_whole_one(
        items in items(200),
        options in tiny(),
        node in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
        cut in any::<bool>(),
    ) {
        let (root, mut nodes) = build(options, &items);
        nodes.push((NodeId::of(&root[NodeId::LEN..]), root.slice(NodeId::LEN..)));
        let (id, whole) = &nodes[node.index(nodes.len())];
        let mut bytes = whole.to_vec();
        if cut {
            bytes.truncate(at.index(bytes.len()));
        } else {
            bytes[at.index(whole.len())] ^= bits;
        }
        if let Ok(node) = Node::decode(&bytes) {
            prop_assert_ne!(node.id(), *id);
        }
        // As the root, its id is checked at once.
        let mut root = id.as_bytes().to_vec();
        root.extend(bytes);
        prop_assert!(Tree::open(&root).is_err());
    }

    #[test]
    fn a_tree_over_damaged_nodes_fails(
        items in items(300),
        options in tiny(),
        at in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
    ) {
        let (tree, mut store) = Store::build(options, &items);
        for bytes in store.nodes.values_mut() {
            let mut damaged = bytes.to_vec();
            damaged[at.index(bytes.len())] ^= bits;
            *bytes = damaged.into();
        }
        let keys: Vec<&[u8]> = items.keys().take(1).map(Vec::as_slice).collect();
        for error in ask(&tree, &store, &keys).into_iter().take(2) {
            let damaged = matches!(error, Some(ReadError::Damaged(_) | ReadError::Store(_)));
            prop_assert_eq!(damaged, tree.height() > 0);
        }
    }

    /// Only who can write heads can do this; no answer is right, but none may panic either.
    #[test]
    fn a_forged_root_is_survived(
        items in items(300),
        mut options in tiny(),
        at in any::<prop::sample::Index>(),
        bits in 1..=255_u8,
    ) {
        options.compress = false;
        let (root, nodes) = build(options, &items);
        let mut forged = root[NodeId::LEN..].to_vec();
        let at = at.index(forged.len());
        forged[at] ^= bits;
        let mut root = NodeId::of(&forged).as_bytes().to_vec();
        root.extend(forged);
        let store = Store { nodes: nodes.into_iter().collect(), ..Store::default() };
        if let Ok(tree) = Tree::open(&root) {
            let keys: Vec<&[u8]> = items.keys().map(Vec::as_slice).collect();
            ask(&tree, &store, &keys);
        }
    }
}

/// A node of one item by hand, and the same with one thing wrong.
#[test]
fn each_contradiction_is_found() {
    let whole = [
        1, 0, 0, 2, 4, 4, 2, 0, 1, 1, 1, 5, 1, 6, 0, b'a', b'b', b'v',
    ];
    let node = Node::decode(&whole).unwrap();
    let sum = Sum {
        count: 2,
        weight: 11,
    };
    assert_eq!((node.sum(), node.key(1)), (sum, &b"ab"[..]));
    let damaged = |at: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        Node::decode(&bytes).unwrap_err().to_string()
    };
    let cases = [
        (0, 2, "layout 2"),
        (1, 1, "too early"),
        (2, 2, "packing"),
        (2, 1, "decompress"),
        (3, 3, "too early"),
        (3, 1, "follows"),
        (4, 3, "too early"),
        (6, 9, "too early"),
        (7, 1, "shares more"),
        (9, 2, "shares more"),
        (10, 0, "ascend"),
        (10, 2, "too early"),
        (12, 2, "too early"),
        (12, 0, "follows"),
    ];
    for (at, byte, message) in cases {
        let found = damaged(at, byte);
        assert!(found.contains(message), "{at}: {found}");
    }
}

#[test]
fn a_packed_node_is_as_long_as_it_says() {
    let mut draft = Draft::default();
    draft.push_item(b"a", 1, &[b'v'; 100]);
    let mut bytes = draft.seal(0, true).bytes.to_vec();
    assert!(bytes.len() < 100 && Node::decode(&bytes).is_ok());
    for claim in [-1, 2] {
        bytes[3] = bytes[3].wrapping_add_signed(claim);
        let error = Node::decode(&bytes).unwrap_err();
        assert_eq!(error, Damaged::Content("it does not decompress"));
    }
}

/// Lengths are only claims: a few bytes must not make room for many.
#[test]
fn large_claims_take_no_memory() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for claims in [1..2_usize, 1..5, 4..5] {
        let mut bytes = vec![1, 0, 0];
        for at in 1..5 {
            bytes.extend_from_slice(if claims.contains(&at) { &huge } else { &[0] });
        }
        assert!(Node::decode(&bytes).is_err());
    }
    for too_large in [&[0xff; 11][..], &[&[0xff; 9][..], &[2]].concat()] {
        let bytes = [&[1, 0, 0][..], too_large, &[0; 9]].concat();
        let error = Node::decode(&bytes).unwrap_err();
        assert_eq!(error, Damaged::Content("a number is too large"));
    }
    let packed = [&[1, 0, 1][..], &huge].concat();
    assert_eq!(Node::decode(&packed).unwrap_err(), wire::TOO_LONG);
    // Keys that share a long one with the key before them take more in memory than in bytes.
    let mut draft = Draft::default();
    for at in 0..200 {
        draft.push_item(&[&[0; 60 << 10][..], &[at]].concat(), 1, b"");
    }
    let bytes = draft.seal(0, false).bytes;
    assert!(bytes.len() < 100 << 10);
    assert_eq!(Node::decode(&bytes).unwrap_err(), wire::TOO_LONG);
}

/// The bytes of each node are whole, but the parent was built over another one.
#[test]
fn a_child_is_what_its_parent_says() {
    let leaf = |weight| {
        let mut draft = Draft::default();
        draft.push_item(b"a", weight, b"");
        draft.seal(0, false)
    };
    let changes: [fn(&mut Sealed); 4] = [
        |_| (),
        |leaf| leaf.sum.weight += 1,
        |leaf| leaf.sum.count += 1,
        |leaf| leaf.last.push(0),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut child = leaf(1);
        change(&mut child);
        let store = Store {
            nodes: [(child.id, child.bytes.clone())].into(),
            ..Store::default()
        };
        for level in [1, 2] {
            let mut draft = Draft::default();
            draft.push_child(&child);
            let root = draft.seal(level, false);
            let root = [root.id.as_bytes(), &root.bytes[..]].concat();
            let answer = now(Tree::open(&root).unwrap().slice(&store, 0, 1));
            let damaged = ReadError::Damaged(Damaged::Child(child.id));
            if at == 0 && level == 1 {
                assert!(answer.is_ok());
            } else {
                assert_eq!(answer.unwrap_err(), damaged);
            }
        }
    }
}
