//! The laws of the views port for editions of boards.

use bytes::Bytes;
use schemas::key::KeyShape;
use schemas::seam::Epoch;
use stores::Result;
use stores::views::{BoardShape, Head, NewEdition, NodeName, ViewShape};

use super::views::{PLAYS, assert_refused, sealed};
use super::{OTHER_VIEW, Ports, VIEW};

fn shape(view: &str) -> ViewShape {
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

fn edition(key: &str, nodes: &[(u8, &'static str)], root: Option<&'static str>) -> NewEdition {
    NewEdition {
        key: key.into(),
        nodes: nodes
            .iter()
            .map(|(n, bytes)| (name(*n), Bytes::from_static(bytes.as_bytes())))
            .collect(),
        root: root.map(|root| Bytes::from_static(root.as_bytes())),
    }
}

fn head(epoch: Epoch, root: &'static str) -> Option<Head> {
    Some(Head {
        epoch,
        root: Bytes::from_static(root.as_bytes()),
    })
}

fn keys(keys: &[&str]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

/// Heads and nodes come back in the order of the question, each where it is there.
pub async fn editions_come_back(ports: &Ports) -> Result<()> {
    let views = &*ports.views;
    assert_eq!(
        views.heads(VIEW, &keys(&["a"])).await?,
        None,
        "no table yet"
    );
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    assert_eq!(views.heads(VIEW, &keys(&["a"])).await?, Some(vec![None]));
    let run = sealed(views, 1).await?;
    let first = [
        edition("a", &[(1, "one"), (2, "")], None),
        edition("b", &[(1, "another")], Some("of b")),
        edition("a", &[(1, "once more"), (3, "three")], Some("of a")),
    ];
    views
        .publish_editions(PLAYS, VIEW, 1, run.stamp_us, &first)
        .await?;
    let heads = views.heads(VIEW, &keys(&["x", "a", "b", "a"])).await?;
    let of_a = head(1, "of a");
    assert_eq!(heads, Some(vec![None, of_a.clone(), head(1, "of b"), of_a]));
    let found = views.nodes(VIEW, b"a", &[3, 9, 1, 2, 1].map(name)).await?;
    let text = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
    // A node that is there stays: its name is a hash of its bytes.
    let expected = [text("three"), None, text("one"), text(""), text("one")];
    assert_eq!(found, expected);
    assert_eq!(views.nodes(VIEW, b"x", &[name(1)]).await?, [None]);
    let mut names = views.node_names(VIEW, b"a").await?;
    names.sort_unstable();
    assert_eq!(names, [1, 2, 3].map(name));
    let at = (1, run.stamp_us);
    let gone = [name(2), name(7)];
    views.delete_nodes(PLAYS, (VIEW, b"a"), at, &gone).await?;
    let left = views.nodes(VIEW, b"a", &[1, 2].map(name)).await?;
    assert_eq!(left, [text("one"), None]);
    assert_eq!(
        views.nodes(VIEW, b"b", &[name(1)]).await?,
        [text("another")]
    );
    Ok(())
}

/// A head with a larger stamp stays; whoever was overtaken is refused.
pub async fn the_head_of_the_larger_stamp_stays(ports: &Ports) -> Result<()> {
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    let run = sealed(views, 1).await?;
    let none = edition("a", &[], Some("first"));
    views
        .publish_editions(PLAYS, VIEW, 1, run.stamp_us, &[none])
        .await?;
    let nothing = std::collections::BTreeMap::new();
    let later = views.begin_publishing(PLAYS, 1, &nothing, 5).await?;
    let stale = [edition("a", &[], Some("stale"))];
    let refused = views.publish_editions(PLAYS, VIEW, 1, run.stamp_us, &stale);
    assert_refused(refused.await, "its stamp was replaced");
    let at = (1, run.stamp_us);
    let names = [name(1)];
    let refused = views.delete_nodes(PLAYS, (VIEW, b"a"), at, &names);
    assert_refused(refused.await, "its stamp was replaced");
    // Once even without editions: a caller whose time is over must hear it.
    let refused = views.publish_editions(PLAYS, VIEW, 1, run.stamp_us, &[]);
    assert_refused(refused.await, "its stamp was replaced");
    let all = keys(&["a"]);
    assert_eq!(views.heads(VIEW, &all).await?, Some(vec![head(1, "first")]));
    assert_eq!(views.keys_before(VIEW, later, None, 9).await?, all);
    let new = [edition("a", &[], Some("second"))];
    views.publish_editions(PLAYS, VIEW, 1, later, &new).await?;
    assert_eq!(
        views.heads(VIEW, &all).await?,
        Some(vec![head(1, "second")])
    );
    assert!(views.keys_before(VIEW, later, None, 9).await?.is_empty());
    let refused = views.publish_editions(PLAYS, OTHER_VIEW, 1, later, &new);
    assert_refused(refused.await, "it has no table");
    Ok(())
}

/// Keys come in their order, page by page; many are asked for at once.
pub async fn many_keys_are_listed(ports: &Ports) -> Result<()> {
    const KEYS: usize = 700;
    let views = &*ports.views;
    views.ensure_view(PLAYS, &shape(VIEW)).await?;
    let run = sealed(views, 1).await?;
    let all: Vec<Vec<u8>> = (0..KEYS).map(|n| format!("{n:04}").into_bytes()).collect();
    let editions: Vec<NewEdition> = all
        .iter()
        .map(|key| NewEdition {
            key: key.clone(),
            nodes: Vec::new(),
            root: Some(Bytes::from(key.clone())),
        })
        .collect();
    views
        .publish_editions(PLAYS, VIEW, 1, run.stamp_us, &editions)
        .await?;
    let heads = views.heads(VIEW, &all).await?.expect("a table");
    let roots: Vec<Vec<u8>> = heads
        .into_iter()
        .map(|head| head.expect("a head").root.to_vec())
        .collect();
    assert_eq!(roots, all);
    let mut listed = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = views.keys_before(VIEW, i64::MAX, after, 300).await?;
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert_eq!(listed, all);
    Ok(())
}

/// A view that no job defines any more loses its tables, once nobody reads them.
pub async fn forgotten_boards_are_deleted(ports: &Ports) -> Result<()> {
    let views = &*ports.views;
    for view in [VIEW, OTHER_VIEW] {
        views.ensure_view(PLAYS, &shape(view)).await?;
    }
    let keep = [VIEW.to_owned()];
    for _ in 0..2 {
        views.forget_views(PLAYS, &keep).await?;
    }
    assert_eq!(views.heads(OTHER_VIEW, &keys(&["a"])).await?, None);
    assert_eq!(views.heads(VIEW, &keys(&["a"])).await?, Some(vec![None]));
    Ok(())
}
