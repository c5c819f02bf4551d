//! Editions of boards in the tables of `views.db`: for each view one of heads and one of nodes.

use std::collections::HashMap;

use bytes::Bytes;
use schemas::seam::Epoch;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::db::Opened;
use super::statement::stored;
use super::view_rows::find_table;
use crate::views::{Head, NewEdition, NodeName};
use crate::{Error, Result};

/// Values that one statement asks for; a few sizes of statements stay prepared.
const ASKED: [usize; 4] = [256, 32, 4, 1];

/// What makes the tables of a view.
pub(super) fn tables(id: i64, view: &str) -> String {
    let table = super::view_rows::table_name(id, view);
    // Nodes are larger than a tree without row ids is good for.
    format!(
        "CREATE TABLE {table}_heads (
            key BLOB NOT NULL PRIMARY KEY,
            root BLOB NOT NULL,
            epoch INTEGER NOT NULL,
            stamp_us INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE {table}_nodes (
            key BLOB NOT NULL,
            name BLOB NOT NULL,
            bytes BLOB NOT NULL,
            UNIQUE (key, name)
        ) STRICT;"
    )
}

/// What deletes them.
pub(super) fn drop_tables(id: i64, view: &str) -> String {
    let table = super::view_rows::table_name(id, view);
    format!("DROP TABLE {table}_heads; DROP TABLE {table}_nodes;")
}

pub(super) async fn heads(
    connection: &mut SqliteConnection,
    db: &Opened,
    view: &str,
    keys: &[Vec<u8>],
) -> Result<Option<Vec<Option<Head>>>> {
    let fault = db.fault("reading heads");
    let Some(table) = find_table(connection, db, view).await? else {
        return Ok(None);
    };
    let mut found: HashMap<Vec<u8>, Head> = HashMap::new();
    for (marks, keys) in statements(keys) {
        let text = format!("SELECT key, root, epoch FROM {table}_heads WHERE key IN ({marks})");
        let mut query = sqlx::query_as(AssertSqlSafe(text));
        for key in keys {
            query = query.bind(key);
        }
        let rows: Vec<(Vec<u8>, Vec<u8>, i64)> =
            query.fetch_all(&mut *connection).await.map_err(fault)?;
        found.extend(rows.into_iter().map(|(key, root, epoch)| {
            let head = Head {
                epoch: epoch.cast_unsigned(),
                root: Bytes::from(root),
            };
            (key, head)
        }));
    }
    Ok(Some(
        keys.iter().map(|key| found.get(key).cloned()).collect(),
    ))
}

pub(super) async fn nodes(
    connection: &mut SqliteConnection,
    db: &Opened,
    (view, key): (&str, &[u8]),
    names: &[NodeName],
) -> Result<Vec<Option<Bytes>>> {
    let fault = db.fault("reading nodes");
    let Some(table) = find_table(connection, db, view).await? else {
        return Ok(vec![None; names.len()]);
    };
    let mut found: HashMap<Vec<u8>, Bytes> = HashMap::new();
    for (marks, names) in statements(names) {
        let text =
            format!("SELECT name, bytes FROM {table}_nodes WHERE key = ? AND name IN ({marks})");
        let mut query = sqlx::query_as(AssertSqlSafe(text)).bind(key);
        for name in names {
            query = query.bind(name.as_slice());
        }
        let rows: Vec<(Vec<u8>, Vec<u8>)> =
            query.fetch_all(&mut *connection).await.map_err(fault)?;
        found.extend(
            rows.into_iter()
                .map(|(name, bytes)| (name, Bytes::from(bytes))),
        );
    }
    Ok(names
        .iter()
        .map(|name| found.get(name.as_slice()).cloned())
        .collect())
}

pub(super) async fn write(
    connection: &mut SqliteConnection,
    db: &Opened,
    view: &str,
    (epoch, stamp_us): (Epoch, i64),
    editions: &[NewEdition],
) -> Result<()> {
    let fault = db.fault("publishing editions");
    let table = expect_table(connection, db, view).await?;
    let put_node = format!(
        "INSERT INTO {table}_nodes (key, name, bytes) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    );
    let put_head = format!(
        "INSERT INTO {table}_heads (key, root, epoch, stamp_us) VALUES (?, ?, ?, ?)
         ON CONFLICT DO UPDATE
         SET root = excluded.root, epoch = excluded.epoch, stamp_us = excluded.stamp_us
         WHERE excluded.stamp_us > stamp_us"
    );
    for edition in editions {
        for (name, bytes) in &edition.nodes {
            sqlx::query(AssertSqlSafe(put_node.as_str()))
                .bind(&edition.key)
                .bind(name.as_slice())
                .bind(bytes.as_ref())
                .execute(&mut *connection)
                .await
                .map_err(fault)?;
        }
        if let Some(root) = &edition.root {
            sqlx::query(AssertSqlSafe(put_head.as_str()))
                .bind(&edition.key)
                .bind(root.as_ref())
                .bind(stored(epoch)?)
                .bind(stamp_us)
                .execute(&mut *connection)
                .await
                .map_err(fault)?;
        }
    }
    Ok(())
}

pub(super) async fn names(
    connection: &mut SqliteConnection,
    db: &Opened,
    view: &str,
    key: &[u8],
) -> Result<Vec<NodeName>> {
    let doing = "listing nodes";
    let Some(table) = find_table(connection, db, view).await? else {
        return Ok(Vec::new());
    };
    let text = format!("SELECT name FROM {table}_nodes WHERE key = ?");
    let names: Vec<Vec<u8>> = sqlx::query_scalar(AssertSqlSafe(text))
        .bind(key)
        .fetch_all(connection)
        .await
        .map_err(db.fault(doing))?;
    let name = |name: Vec<u8>| {
        NodeName::try_from(name).map_err(|_| db.damaged(doing, "a node's name is not 16 bytes"))
    };
    names.into_iter().map(name).collect()
}

pub(super) async fn delete(
    connection: &mut SqliteConnection,
    db: &Opened,
    (view, key): (&str, &[u8]),
    names: &[NodeName],
) -> Result<()> {
    let table = expect_table(connection, db, view).await?;
    for (marks, names) in statements(names) {
        let text = format!("DELETE FROM {table}_nodes WHERE key = ? AND name IN ({marks})");
        let mut query = sqlx::query(AssertSqlSafe(text)).bind(key);
        for name in names {
            query = query.bind(name.as_slice());
        }
        let fault = db.fault("deleting nodes");
        query.execute(&mut *connection).await.map_err(fault)?;
    }
    Ok(())
}

pub(super) async fn keys_before(
    connection: &mut SqliteConnection,
    db: &Opened,
    (view, stamp_us): (&str, i64),
    after: Option<Vec<u8>>,
    limit: usize,
) -> Result<Vec<Vec<u8>>> {
    let Some(table) = find_table(connection, db, view).await? else {
        return Ok(Vec::new());
    };
    let text = format!(
        "SELECT key FROM {table}_heads WHERE stamp_us < ?1 AND (?2 IS NULL OR key > ?2)
         ORDER BY key LIMIT ?3"
    );
    sqlx::query_scalar(AssertSqlSafe(text))
        .bind(stamp_us)
        .bind(after)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(connection)
        .await
        .map_err(db.fault("looking for heads of earlier results"))
}

async fn expect_table(
    connection: &mut SqliteConnection,
    db: &Opened,
    view: &str,
) -> Result<String> {
    find_table(connection, db, view)
        .await?
        .ok_or_else(|| Error::Refused(format!("{view}: it has no table; make the view first")))
}

/// Cuts values into statements, each with the marks for them.
fn statements<T>(values: &[T]) -> impl Iterator<Item = (String, &[T])> {
    let mut rest = values;
    std::iter::from_fn(move || {
        let size = ASKED.into_iter().find(|size| *size <= rest.len())?;
        let (now, later) = rest.split_at(size);
        rest = later;
        Some((vec!["?"; size].join(","), now))
    })
}
