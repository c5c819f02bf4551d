//! Laws of the views port: versions of boards.

use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::Epoch;
use stores::views::{
    BoardShape, EarlierRoot, Head, NewHead, NewVersion, NodeName, ViewShape, ViewsWrite,
};
use stores::{Result, Stores};

use super::views::{PLAYS, assert_refused, complete, forget, seal_run};
use super::{OTHER_VIEW, VIEW};

pub(super) fn shape(view: &str) -> ViewShape {
    ViewShape::Board(BoardShape {
        view: view.to_owned(),
        key: KeyShape::default(),
        boards: KeyShape::default(),
        member: KeyShape::default(),
        score: KeyShape::default(),
        payload: KeyShape::default(),
    })
}

fn name(n: u8) -> NodeName {
    [n; 16]
}

fn new_version(key: &str, nodes: &[(u8, &'static str)], head: Option<NewHead>) -> NewVersion {
    NewVersion {
        key: key.into(),
        nodes: nodes
            .iter()
            .map(|(n, bytes)| (name(*n), Bytes::from_static(bytes.as_bytes())))
            .collect(),
        head,
        rewrites_nodes: false,
        drops_earlier_root: false,
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the type of a version")]
fn leads_to(root: &'static str, names: &[u8]) -> Option<NewHead> {
    Some(NewHead {
        root: Bytes::from_static(root.as_bytes()),
        names: names.iter().copied().map(name).collect(),
    })
}

/// Returns the head that the stamp wrote, without an earlier root.
fn head(epoch: Epoch, root: &'static str, stamp_us: i64) -> Option<Head> {
    Some(Head {
        epoch,
        root: Bytes::from_static(root.as_bytes()),
        stamp_us: Some(stamp_us),
        earlier: None,
    })
}

fn keys(keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

/// Heads and nodes are returned in the requested order, each if it exists.
pub async fn versions_round_trip(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    assert_eq!(
        views.heads(VIEW, &keys(&["a"])).await?,
        None,
        "no table yet"
    );
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    assert_eq!(views.heads(VIEW, &keys(&["a"])).await?, Some(vec![None]));
    let run = seal_run(views, 1).await?;
    let first = [
        new_version("a", &[(1, "one"), (2, "")], None),
        new_version("b", &[(1, "another")], leads_to("of b", &[1])),
        new_version(
            "a",
            &[(1, "one"), (3, "three")],
            leads_to("of a", &[1, 2, 3]),
        ),
    ];
    views
        .publish_versions(PLAYS, VIEW, 1, run.stamp_us, &first)
        .await?;
    let heads = views.heads(VIEW, &keys(&["x", "a", "b", "a"])).await?;
    let of_a = head(1, "of a", run.stamp_us);
    let of_b = head(1, "of b", run.stamp_us);
    assert_eq!(heads, Some(vec![None, of_a.clone(), of_b, of_a]));
    let nodes = views.nodes(VIEW, b"a", &[3, 9, 1, 2, 1].map(name)).await?;
    let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    let expected = [text("three"), None, text("one"), text(""), text("one")];
    assert_eq!(nodes, expected);
    assert_eq!(views.nodes(VIEW, b"x", &[name(1)]).await?, [None]);
    assert_eq!(stored_nodes(views, "a").await?, [1, 2, 3]);
    Ok(())
}

/// Returns the stored nodes of a key, by the number in their names.
async fn stored_nodes(views: &dyn ViewsWrite, key: &str) -> Result<Vec<u8>> {
    let names = views.node_names(VIEW, key.as_bytes()).await?;
    let mut numbers: Vec<u8> = names.into_iter().map(|name| name[0]).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// A step of an attempt: the versions that it publishes, the nodes of a key that are stored then,
/// and the nodes that remain after garbage collection.
type Step<'a> = (Vec<NewVersion>, &'a [u8], &'a [u8]);

fn steps() -> [Step<'static>; 7] {
    [
        // A part whose head may never be written, including a key without a head.
        (
            vec![new_version("a", &[(1, "1"), (2, "2")], None)],
            &[1, 2],
            &[],
        ),
        // The part is written again and referenced, by a later version or the same one.
        (
            vec![
                new_version("a", &[(1, "1"), (2, "2")], None),
                new_version("a", &[(3, "3")], leads_to("first", &[1, 2, 3])),
            ],
            &[1, 2, 3],
            &[1, 2, 3],
        ),
        // Nodes shared with the previous version stay; the others are replaced.
        (
            vec![new_version(
                "a",
                &[(2, "2"), (4, "4")],
                leads_to("second", &[2, 4]),
            )],
            &[1, 2, 3, 4],
            &[2, 4],
        ),
        // An interrupted part with existing and new nodes.
        (
            vec![new_version("a", &[(4, "4"), (5, "5")], None)],
            &[2, 4, 5],
            &[2, 4],
        ),
        // Other keys have nodes with the same names.
        (
            vec![new_version(
                "b",
                &[(2, "2"), (4, "4")],
                leads_to("of b", &[2, 4]),
            )],
            &[2, 4],
            &[2, 4],
        ),
        (
            vec![new_version("b", &[], leads_to("empty", &[]))],
            &[2, 4],
            &[2, 4],
        ),
        (
            vec![new_version("a", &[], leads_to("empty", &[]))],
            &[2, 4],
            &[],
        ),
    ]
}

/// A node without a head that references it is garbage, regardless of its writer and age. No
/// other node is ever collected.
pub async fn unreferenced_nodes_are_garbage(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    seal_run(views, 1).await?;
    for (versions, expected_nodes, remaining) in steps() {
        let attempt = begin_again(views).await?;
        views
            .publish_versions(PLAYS, VIEW, attempt.0, attempt.1, &versions)
            .await?;
        assert_eq!(stored_nodes(views, "a").await?, expected_nodes);
        while views.collect_garbage(PLAYS, VIEW, attempt, 1).await? == 1 {}
        assert_eq!(stored_nodes(views, "a").await?, remaining);
        let names: Vec<NodeName> = remaining.iter().copied().map(name).collect();
        let nodes = views.nodes(VIEW, b"a", &names).await?;
        assert!(
            nodes.iter().all(Option::is_some),
            "{remaining:?}: {nodes:?}"
        );
    }
    assert!(stored_nodes(views, "b").await?.is_empty());
    let attempt = begin_again(views).await?;
    assert_eq!(
        views.collect_garbage(PLAYS, OTHER_VIEW, attempt, 9).await?,
        0
    );
    Ok(())
}

/// Begins to publish run 1 again.
async fn begin_again(views: &dyn ViewsWrite) -> Result<(Epoch, i64)> {
    begin_at(views, 5).await
}

/// Begins to publish run 1 at a time in milliseconds.
async fn begin_at(views: &dyn ViewsWrite, now_ms: i64) -> Result<(Epoch, i64)> {
    let no_results = std::collections::BTreeMap::new();
    Ok((
        1,
        views
            .begin_publishing(PLAYS, 1, &no_results, now_ms)
            .await?,
    ))
}

/// An attempt at an hour, counted from the first day, that publishes a root and its nodes; then the
/// head's earlier root and the nodes that remain after garbage collection.
type Hour = (
    i64,
    &'static str,
    &'static [u8],
    Option<&'static str>,
    &'static [u8],
);

const HOURS: [Hour; 11] = [
    (1, "first", &[1, 2], None, &[1, 2]),
    // On the same day, replaced nodes are deleted.
    (2, "second", &[2, 3], None, &[2, 3]),
    (26, "third", &[3, 4], Some("second"), &[2, 3, 4]),
    // The run is repeated with the same or other nodes.
    (27, "third", &[3, 4], Some("second"), &[2, 3, 4]),
    (28, "fourth", &[2, 5], Some("second"), &[2, 3, 5]),
    // A day later the earlier root is replaced, and the nodes that only it referenced are garbage.
    (50, "fifth", &[3, 6], Some("fourth"), &[2, 3, 5, 6]),
    (51, "sixth", &[6, 7], Some("fourth"), &[2, 5, 6, 7]),
    // Days without a run make no difference.
    (220, "seventh", &[7, 2], Some("sixth"), &[2, 6, 7]),
    (221, "eighth", &[], Some("sixth"), &[6, 7]),
    (250, "ninth", &[1], Some("eighth"), &[1]),
    (251, "tenth", &[], Some("eighth"), &[]),
];

/// A head keeps the key's root after the last run of an earlier day, with all its nodes, until
/// another root replaces it.
pub async fn earlier_roots_are_kept_for_a_day(ports: &Stores) -> Result<()> {
    const HOUR_MS: i64 = 3_600_000;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    seal_run(views, 1).await?;
    let key = keys(&["a"]);
    let mut stamps = std::collections::BTreeMap::new();
    for (hour, root, node_numbers, earlier, remaining) in HOURS {
        // An interrupted attempt with nodes that others reference too.
        let interrupted = begin_at(views, hour * HOUR_MS).await?;
        let part = new_version("a", &[(1, "\u{1}"), (9, "\u{9}")], None);
        views
            .publish_versions(PLAYS, VIEW, interrupted.0, interrupted.1, &[part])
            .await?;
        let attempt = begin_at(views, hour * HOUR_MS).await?;
        stamps.insert(root, attempt.1);
        let bytes = |n: &u8| (name(*n), Bytes::copy_from_slice(&[*n]));
        let version = NewVersion {
            nodes: node_numbers.iter().map(bytes).collect(),
            head: leads_to(root, node_numbers),
            ..new_version("a", &[], None)
        };
        views
            .publish_versions(PLAYS, VIEW, attempt.0, attempt.1, &[version])
            .await?;
        while views.collect_garbage(PLAYS, VIEW, attempt, 2).await? == 2 {}
        assert_eq!(stored_nodes(views, "a").await?, remaining, "{root}");
        let names: Vec<NodeName> = remaining.iter().copied().map(name).collect();
        let nodes = views.nodes(VIEW, b"a", &names).await?;
        assert!(nodes.iter().all(Option::is_some), "{root}: {nodes:?}");
        let heads = views.heads(VIEW, &key).await?.unwrap_or_default();
        let earlier = earlier.map(|root: &'static str| EarlierRoot {
            epoch: 1,
            stamp_us: stamps[root],
            root: Bytes::from_static(root.as_bytes()),
        });
        let expected = head(1, root, attempt.1).map(|head| Head { earlier, ..head });
        assert_eq!(heads, std::slice::from_ref(&expected));
        // For a reader on the next day, the root itself is the earlier one.
        let next_day_root =
            expected.and_then(|head| head.find_earlier_root((hour + 24) * HOUR_MS * 1000));
        assert_eq!(
            next_day_root.map(|root| root.root),
            Some(Bytes::from_static(root.as_bytes()))
        );
    }
    Ok(())
}

/// A day; the root published on it with its nodes; whether the head keeps no earlier root; the
/// earlier root afterwards; and the remaining nodes.
type HistoryStep = (
    i64,
    &'static str,
    &'static [u8],
    bool,
    Option<&'static str>,
    &'static [u8],
);

/// A head without history keeps no earlier root, neither the kept one nor the one that it replaces,
/// and nodes that only those referenced are garbage. The next head keeps an earlier root again.
pub async fn a_head_may_have_no_history(ports: &Stores) -> Result<()> {
    const DAY_MS: i64 = 86_400_000;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    seal_run(views, 1).await?;
    let steps: [HistoryStep; 5] = [
        (1, "first", &[1, 2], false, None, &[1, 2]),
        (2, "second", &[2, 3], false, Some("first"), &[1, 2, 3]),
        (2, "third", &[3, 4], true, None, &[3, 4]),
        (3, "fourth", &[4, 5], true, None, &[4, 5]),
        (4, "fifth", &[5, 6], false, Some("fourth"), &[4, 5, 6]),
    ];
    for (day, root, node_numbers, drops_earlier_root, earlier, remaining) in steps {
        let attempt = begin_at(views, day * DAY_MS).await?;
        let bytes = |n: &u8| (name(*n), Bytes::copy_from_slice(&[*n]));
        let version = NewVersion {
            nodes: node_numbers.iter().map(bytes).collect(),
            head: leads_to(root, node_numbers),
            drops_earlier_root,
            ..new_version("a", &[], None)
        };
        views
            .publish_versions(PLAYS, VIEW, attempt.0, attempt.1, &[version])
            .await?;
        while views.collect_garbage(PLAYS, VIEW, attempt, 2).await? == 2 {}
        assert_eq!(stored_nodes(views, "a").await?, remaining, "{root}");
        let heads = views.heads(VIEW, &keys(&["a"])).await?.unwrap_or_default();
        let new_head = heads.into_iter().next().flatten().expect("a head");
        let earlier_root = new_head.earlier.map(|earlier| earlier.root);
        let expected = earlier.map(|root| Bytes::copy_from_slice(root.as_bytes()));
        assert_eq!(
            (new_head.root.as_ref(), earlier_root),
            (root.as_bytes(), expected)
        );
    }
    Ok(())
}

/// A garbage node is no longer garbage once a head references it, even if it was never collected. A
/// later run collects the garbage of an earlier one.
pub async fn garbage_can_be_referenced_again(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    seal_run(views, 1).await?;
    let versions = [
        new_version("a", &[(1, "1"), (2, "2")], leads_to("first", &[1, 2])),
        new_version("a", &[(2, "2"), (3, "3")], leads_to("second", &[2, 3])),
        new_version("a", &[(1, "1"), (4, "4")], leads_to("third", &[1, 4])),
    ];
    let mut last = 0;
    for version in versions {
        let (epoch, stamp_us) = begin_again(views).await?;
        views
            .publish_versions(PLAYS, VIEW, epoch, stamp_us, &[version])
            .await?;
        last = stamp_us;
    }
    complete(views, 1, &[VIEW], true, 1).await?;
    assert_eq!(stored_nodes(views, "a").await?, [1, 2, 3, 4]);
    let next = seal_run(views, 2).await?;
    let overtaken = views.collect_garbage(PLAYS, VIEW, (1, last), 9);
    assert_refused(overtaken.await, "a newer run has been recorded");
    let attempt = (2, next.stamp_us);
    while views.collect_garbage(PLAYS, VIEW, attempt, 9).await? == 9 {}
    assert_eq!(stored_nodes(views, "a").await?, [1, 4]);
    let nodes = views.nodes(VIEW, b"a", &[1, 4].map(name)).await?;
    assert!(nodes.iter().all(Option::is_some), "{nodes:?}");
    Ok(())
}

/// The head of the later stamp stays: an attempt with an older stamp is refused.
pub async fn an_old_stamp_changes_no_head(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    let run = seal_run(views, 1).await?;
    let first = new_version("a", &[], leads_to("first", &[]));
    views
        .publish_versions(PLAYS, VIEW, 1, run.stamp_us, &[first])
        .await?;
    let no_results = std::collections::BTreeMap::new();
    let later_stamp_us = views.begin_publishing(PLAYS, 1, &no_results, 5).await?;
    let stale = [new_version("a", &[], leads_to("stale", &[]))];
    let refused = views.publish_versions(PLAYS, VIEW, 1, run.stamp_us, &stale);
    assert_refused(refused.await, "its stamp was replaced");
    let refused = views.collect_garbage(PLAYS, VIEW, (1, run.stamp_us), 9);
    assert_refused(refused.await, "its stamp was replaced");
    // An attempt with an old stamp is refused even if it publishes no versions.
    let refused = views.publish_versions(PLAYS, VIEW, 1, run.stamp_us, &[]);
    assert_refused(refused.await, "its stamp was replaced");
    let queried = keys(&["a"]);
    let first = head(1, "first", run.stamp_us);
    assert_eq!(views.heads(VIEW, &queried).await?, Some(vec![first]));
    let new = [new_version("a", &[], leads_to("second", &[]))];
    views
        .publish_versions(PLAYS, VIEW, 1, later_stamp_us, &new)
        .await?;
    assert_eq!(
        views.heads(VIEW, &queried).await?,
        Some(vec![head(1, "second", later_stamp_us)])
    );
    let refused = views.publish_versions(PLAYS, OTHER_VIEW, 1, later_stamp_us, &new);
    assert_refused(refused.await, "it has no table");
    Ok(())
}

/// Each key is listed once, page by page, in the store's order; many keys are read in one call.
pub async fn many_keys_are_listed(ports: &Stores) -> Result<()> {
    const KEYS: usize = 700;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    let run = seal_run(views, 1).await?;
    let all_keys: Vec<Vec<u8>> = (0..KEYS).map(|n| format!("{n:04}").into_bytes()).collect();
    let versions: Vec<NewVersion> = all_keys
        .iter()
        .map(|key| NewVersion {
            key: key.clone(),
            nodes: Vec::new(),
            head: Some(NewHead {
                root: Bytes::from(key.clone()),
                names: Vec::new(),
            }),
            rewrites_nodes: false,
            drops_earlier_root: false,
        })
        .collect();
    views
        .publish_versions(PLAYS, VIEW, 1, run.stamp_us, &versions)
        .await?;
    let heads = views.heads(VIEW, &all_keys).await?.expect("a table");
    let roots: Vec<Vec<u8>> = heads
        .into_iter()
        .map(|head| head.expect("a head").root.to_vec())
        .collect();
    assert_eq!(roots, all_keys);
    let mut listed = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = views.keys(VIEW, after, 300).await?;
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    listed.sort();
    assert_eq!(listed, all_keys);
    Ok(())
}

/// The tables of a view that no job defines any more are dropped once they are no longer read.
pub async fn forgotten_boards_are_deleted(ports: &Stores) -> Result<()> {
    let views = &*ports.views;
    for view in [VIEW, OTHER_VIEW] {
        views.ensure_view(PLAYS, &shape(view)).await?;
    }
    seal_run(views, 1).await?;
    let keep = [VIEW.to_owned()];
    for _ in 0..2 {
        forget(views, &keep).await?;
    }
    assert_eq!(views.heads(OTHER_VIEW, &keys(&["a"])).await?, None);
    assert_eq!(views.heads(VIEW, &keys(&["a"])).await?, Some(vec![None]));
    Ok(())
}
