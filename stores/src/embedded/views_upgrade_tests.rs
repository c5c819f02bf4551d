//! Tests of upgrades of older files, which must preserve heads and nodes.

use schemas::key::KeyShape;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::*;
use crate::views::{BoardShape, NewHead};

const VIEW: &str = "boards@1";
const HOUR_MS: i64 = 3_600_000;

/// Restores the tables from before heads had an earlier root.
async fn downgrade(folder: &Path) -> std::result::Result<(), sqlx::Error> {
    let path = folder.join("views.db");
    let mut file = SqliteConnectOptions::new().filename(path).connect().await?;
    let table = table_name(1, VIEW);
    let statements = format!(
        "ALTER TABLE {table}_heads DROP COLUMN stamp_us;
         ALTER TABLE {table}_heads DROP COLUMN earlier_root;
         ALTER TABLE {table}_heads DROP COLUMN earlier_epoch;
         ALTER TABLE {table}_heads DROP COLUMN earlier_stamp_us;
         DROP TABLE {table}_earlier;
         PRAGMA user_version = 3;"
    );
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(&mut file)
        .await?;
    file.close().await
}

/// Publishes a version at an hour, and returns its stamp.
async fn publish(views: &SqliteViews, hour: i64, root: &'static str, leads: &[u8]) -> i64 {
    let nothing = BTreeMap::new();
    let beginning = views.begin_publishing(Source::Efforts, 1, &nothing, hour * HOUR_MS);
    let stamp_us = beginning.await.expect("a stamp");
    let names = leads.iter().map(|n| [*n; 16]);
    let edition = NewVersion {
        key: b"a".to_vec(),
        nodes: names.clone().map(|name| (name, Bytes::new())).collect(),
        head: Some(NewHead {
            root: Bytes::from_static(root.as_bytes()),
            names: names.collect(),
        }),
        rewrites_nodes: false,
        drops_earlier_root: false,
    };
    let editions = [edition];
    let published = views.publish_versions(Source::Efforts, VIEW, 1, stamp_us, &editions);
    published.await.expect("publishing");
    let collected = views.collect_garbage(Source::Efforts, VIEW, (1, stamp_us), 99);
    collected.await.expect("collecting");
    stamp_us
}

async fn head(views: &SqliteViews) -> Head {
    let heads = views.heads(VIEW, &[b"a".to_vec()]).await;
    let head = heads.expect("heads").expect("a table").remove(0);
    head.expect("a head")
}

async fn nodes(views: &SqliteViews) -> Vec<u8> {
    let names = views.node_names(VIEW, b"a").await.expect("names");
    let mut nodes: Vec<u8> = names.iter().map(|name| name[0]).collect();
    nodes.sort_unstable();
    nodes
}

#[tokio::test]
async fn upgrades_preserve_heads() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(super::super::db::LOCKS)).expect("a folder");
    let views = SqliteViews::open(folder.path()).await.expect("a new file");
    let none = KeyShape::default;
    let shape = ViewShape::Board(BoardShape {
        view: VIEW.to_owned(),
        key: none(),
        boards: none(),
        member: none(),
        score: none(),
        payload: none(),
    });
    let source = Source::Efforts;
    views.ensure_view(source, &shape).await.expect("a view");
    let proposed = views.propose(source, 1, &[], "token", 1).await;
    proposed.expect("a run");
    views.seal(source, 1, "token").await.expect("a run");
    publish(&views, 1, "old", &[1, 2]).await;
    drop(views);
    downgrade(folder.path()).await.expect("an older file");

    let views = SqliteViews::open(folder.path()).await.expect("opening");
    views.ensure_view(source, &shape).await.expect("a view");
    let found = head(&views).await;
    assert_eq!((found.stamp_us, &found.earlier), (None, &None));
    assert_eq!(&*found.root, b"old");
    // Its day is unknown.
    assert_eq!(found.find_earlier_root(i64::MAX), None);
    let second = publish(&views, 50, "second", &[2, 3]).await;
    assert_eq!(
        (head(&views).await.earlier, nodes(&views).await),
        (None, vec![2, 3])
    );
    publish(&views, 80, "third", &[4]).await;
    let earlier = head(&views).await.earlier.expect("an earlier root");
    assert_eq!((earlier.stamp_us, &*earlier.root), (second, &b"second"[..]));
    assert_eq!(nodes(&views).await, [2, 3, 4]);
}
