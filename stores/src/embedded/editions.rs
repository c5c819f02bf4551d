//! Versions of boards in the tables of `views.db`. Each view has a table of heads, one of nodes,
//! one that lists the nodes to which no head leads, and one that lists the nodes of earlier roots.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use schemas::seam::Epoch;
use sqlx::AssertSqlSafe;

use super::session::Session;
use super::statement::{split_ranges, to_stored};
use super::view_rows::{expect_table, find_table};
use crate::Result;
use crate::views::{EarlierRoot, Head, NewHead, NewVersion, NodeName};

/// Returns the statements that create the tables of a view.
pub(super) fn tables(id: i64, view: &str) -> String {
    let table = super::view_rows::table_name(id, view);
    // Nodes are too large for a table without row ids.
    format!(
        "CREATE TABLE {table}_heads (
            key BLOB NOT NULL PRIMARY KEY,
            root BLOB NOT NULL,
            epoch INTEGER NOT NULL,
            stamp_us INTEGER,
            earlier_root BLOB,
            earlier_epoch INTEGER,
            earlier_stamp_us INTEGER
        ) STRICT;
        CREATE TABLE {table}_nodes (
            key BLOB NOT NULL,
            name BLOB NOT NULL,
            bytes BLOB NOT NULL,
            UNIQUE (key, name)
        ) STRICT;
        CREATE TABLE {table}_garbage (
            key BLOB NOT NULL,
            name BLOB NOT NULL,
            PRIMARY KEY (key, name)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE {table}_earlier (
            key BLOB NOT NULL,
            name BLOB NOT NULL,
            is_current INTEGER NOT NULL,
            PRIMARY KEY (key, name)
        ) STRICT, WITHOUT ROWID;"
    )
}

/// Returns the statements that drop them.
pub(super) fn drop_tables(id: i64, view: &str) -> String {
    let table = super::view_rows::table_name(id, view);
    ["heads", "nodes", "garbage", "earlier"]
        .map(|of| format!("DROP TABLE {table}_{of};"))
        .concat()
}

pub(super) async fn heads(
    session: &mut Session,
    view: &str,
    keys: &[Vec<u8>],
) -> Result<Option<Vec<Option<Head>>>> {
    let Some(table) = find_table(session, view).await? else {
        return Ok(None);
    };
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = heads_of(session, &table, &asked).await?;
    Ok(Some(
        keys.iter().map(|key| found.get(key).cloned()).collect(),
    ))
}

/// The columns of a head: key, root, epoch, stamp, then those of the earlier root.
type HeadRow = (
    Vec<u8>,
    Vec<u8>,
    i64,
    Option<i64>,
    Option<Vec<u8>>,
    Option<i64>,
    Option<i64>,
);

/// Reads the heads of keys, by key.
async fn heads_of(
    session: &mut Session,
    table: &str,
    keys: &[&[u8]],
) -> Result<HashMap<Vec<u8>, Head>> {
    let mut found = HashMap::new();
    for (placeholders, keys) in split_statements(keys) {
        let text = format!(
            "SELECT key, root, epoch, stamp_us, earlier_root, earlier_epoch, earlier_stamp_us
             FROM {table}_heads WHERE key IN ({placeholders})"
        );
        let mut query = sqlx::query(AssertSqlSafe(text));
        for key in keys {
            query = query.bind(*key);
        }
        let rows: Vec<HeadRow> = session.fetch_all(query).await?;
        for (key, root, epoch, stamp_us, earlier_root, earlier_epoch, earlier_us) in rows {
            let earlier = earlier_root.zip(earlier_epoch).zip(earlier_us);
            let head = Head {
                epoch: epoch.cast_unsigned(),
                root: Bytes::from(root),
                stamp_us,
                earlier: earlier.map(|((root, epoch), stamp_us)| EarlierRoot {
                    epoch: epoch.cast_unsigned(),
                    stamp_us,
                    root: Bytes::from(root),
                }),
            };
            found.insert(key, head);
        }
    }
    Ok(found)
}

pub(super) async fn nodes(
    session: &mut Session,
    (view, key): (&str, &[u8]),
    names: &[NodeName],
) -> Result<Vec<Option<Bytes>>> {
    let Some(table) = find_table(session, view).await? else {
        return Ok(vec![None; names.len()]);
    };
    let mut found: HashMap<Vec<u8>, Bytes> = HashMap::new();
    for (placeholders, names) in split_statements(names) {
        let text = format!(
            "SELECT name, bytes FROM {table}_nodes WHERE key = ? AND name IN ({placeholders})"
        );
        let mut query = sqlx::query(AssertSqlSafe(text)).bind(key);
        for name in names {
            query = query.bind(name.as_slice());
        }
        let rows: Vec<(Vec<u8>, Vec<u8>)> = session.fetch_all(query).await?;
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
    session: &mut Session,
    view: &str,
    (epoch, stamp_us): (Epoch, i64),
    versions: &[NewVersion],
) -> Result<()> {
    let table = expect_table(session, view).await?;
    let mut known = known_nodes(session, &table, versions).await?;
    let with_head = versions.iter().filter(|version| version.head.is_some());
    let keys: Vec<&[u8]> = with_head.map(|version| version.key.as_slice()).collect();
    let replaced = heads_of(session, &table, &keys).await?;
    let mut writer = Writer { session, table };
    for version in versions {
        let key = version.key.as_slice();
        let known = known.entry(key).or_default();
        let mut new = Vec::new();
        for (name, bytes) in &version.nodes {
            match known.entry(*name) {
                Entry::Vacant(place) => {
                    place.insert(Node {
                        references: References::default(),
                        recorded: References::BY_HEAD,
                    });
                    writer.put_node(key, name, bytes).await?;
                    new.push(*name);
                }
                Entry::Occupied(_) if version.rewrites_nodes => {
                    writer.put_node(key, name, bytes).await?;
                }
                Entry::Occupied(_) => {}
            }
        }
        let Some(head) = &version.head else {
            // If the head is never written, nothing else refers to these nodes.
            for name in new {
                if let Some(node) = known.get_mut(&name) {
                    writer.record(key, &name, node).await?;
                }
            }
            continue;
        };
        let replaced = replaced.get(key);
        let earlier = replaced.filter(|_| !version.drops_earlier_root);
        let earlier = earlier.and_then(|head| head.find_earlier_root(stamp_us));
        writer
            .put_head(key, head, (epoch, stamp_us), earlier.as_ref())
            .await?;
        // The replaced root becomes the earlier root, or the earlier root remains.
        let kept_us = earlier.map(|root| root.stamp_us);
        let is_replaced_kept =
            kept_us.is_some() && kept_us == replaced.and_then(|head| head.stamp_us);
        let named: HashSet<&NodeName> = head.names.iter().collect();
        for (name, node) in known {
            let by_earlier = if is_replaced_kept {
                node.references.by_head
            } else {
                node.references.by_earlier && kept_us.is_some()
            };
            node.references = References {
                by_head: named.contains(name),
                by_earlier,
            };
            writer.record(key, name, node).await?;
        }
    }
    Ok(())
}

/// The roots of a key's head that lead to a node. Without any, the node is garbage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct References {
    by_head: bool,
    by_earlier: bool,
}

impl References {
    const BY_HEAD: Self = Self {
        by_head: true,
        by_earlier: false,
    };

    fn is_garbage(self) -> bool {
        self == Self::default()
    }
}

/// A stored node.
#[derive(Debug)]
struct Node {
    references: References,
    /// The stored references. If only the head leads to a node, nothing is stored.
    recorded: References,
}

/// The columns of a node: its key and name, whether it is garbage, and, if an earlier root leads to
/// it, whether the head does, too.
type NodeRow = (Vec<u8>, Vec<u8>, bool, Option<bool>);

/// Reads the stored nodes of keys, by key.
async fn known_nodes<'a>(
    session: &mut Session,
    table: &str,
    versions: &'a [NewVersion],
) -> Result<HashMap<&'a [u8], HashMap<NodeName, Node>>> {
    let keys = versions.iter().map(|version| version.key.as_slice());
    let mut known: HashMap<&[u8], HashMap<NodeName, Node>> =
        keys.map(|key| (key, HashMap::new())).collect();
    let keys: Vec<&[u8]> = known.keys().copied().collect();
    for (placeholders, keys) in split_statements(&keys) {
        let text = format!(
            "SELECT n.key, n.name, g.name IS NOT NULL, e.is_current FROM {table}_nodes AS n
             LEFT JOIN {table}_garbage AS g ON g.key = n.key AND g.name = n.name
             LEFT JOIN {table}_earlier AS e ON e.key = n.key AND e.name = n.name
             WHERE n.key IN ({placeholders})"
        );
        let mut query = sqlx::query(AssertSqlSafe(text));
        for key in keys {
            query = query.bind(*key);
        }
        let rows: Vec<NodeRow> = session.fetch_all(query).await?;
        for (key, name, is_garbage, of_earlier) in rows {
            let name = node_name(session, name)?;
            let references = References {
                by_head: of_earlier.unwrap_or(!is_garbage),
                by_earlier: of_earlier.is_some(),
            };
            if let Some(nodes) = known.get_mut(key.as_slice()) {
                let node = Node {
                    references,
                    recorded: references,
                };
                nodes.insert(name, node);
            }
        }
    }
    Ok(known)
}

/// Writes to the tables of a view.
struct Writer<'a> {
    session: &'a mut Session,
    table: String,
}

impl Writer<'_> {
    async fn put_node(&mut self, key: &[u8], name: &NodeName, bytes: &Bytes) -> Result<()> {
        let table = &self.table;
        let text =
            format!("INSERT OR REPLACE INTO {table}_nodes (key, name, bytes) VALUES (?, ?, ?)");
        let query = sqlx::query(AssertSqlSafe(text));
        let query = query.bind(key).bind(name.as_slice()).bind(bytes.as_ref());
        self.session.execute(query).await.map(drop)
    }

    async fn put_head(
        &mut self,
        key: &[u8],
        head: &NewHead,
        (epoch, stamp_us): (Epoch, i64),
        earlier: Option<&EarlierRoot>,
    ) -> Result<()> {
        let text = format!(
            "INSERT OR REPLACE INTO {}_heads (key, root, epoch, stamp_us, earlier_root,
                 earlier_epoch, earlier_stamp_us) VALUES (?, ?, ?, ?, ?, ?, ?)",
            self.table
        );
        let earlier_epoch = earlier.map(|root| to_stored(root.epoch)).transpose()?;
        let query = sqlx::query(AssertSqlSafe(text))
            .bind(key)
            .bind(head.root.as_ref())
            .bind(to_stored(epoch)?)
            .bind(stamp_us)
            .bind(earlier.map(|root| root.root.as_ref()))
            .bind(earlier_epoch)
            .bind(earlier.map(|root| root.stamp_us));
        self.session.execute(query).await.map(drop)
    }

    /// Records the roots that lead to a node, if they have changed.
    async fn record(&mut self, key: &[u8], name: &NodeName, node: &mut Node) -> Result<()> {
        let (table, references, recorded) = (&self.table, node.references, node.recorded);
        let mut texts = Vec::new();
        if references.is_garbage() && !recorded.is_garbage() {
            texts.push(format!(
                "INSERT INTO {table}_garbage (key, name) VALUES (?, ?)"
            ));
        }
        if recorded.is_garbage() && !references.is_garbage() {
            texts.push(format!(
                "DELETE FROM {table}_garbage WHERE key = ? AND name = ?"
            ));
        }
        if references.by_earlier && references != recorded {
            let is_current = u8::from(references.by_head);
            texts.push(format!(
                "INSERT OR REPLACE INTO {table}_earlier (key, name, is_current)
                 VALUES (?, ?, {is_current})"
            ));
        }
        if recorded.by_earlier && !references.by_earlier {
            texts.push(format!(
                "DELETE FROM {table}_earlier WHERE key = ? AND name = ?"
            ));
        }
        node.recorded = references;
        for text in texts {
            let query = sqlx::query(AssertSqlSafe(text));
            let query = query.bind(key).bind(name.as_slice());
            self.session.execute(query).await?;
        }
        Ok(())
    }
}

pub(super) async fn names(session: &mut Session, view: &str, key: &[u8]) -> Result<Vec<NodeName>> {
    let Some(table) = find_table(session, view).await? else {
        return Ok(Vec::new());
    };
    let text = format!("SELECT name FROM {table}_nodes WHERE key = ?");
    let query = sqlx::query(AssertSqlSafe(text)).bind(key);
    let names: Vec<(Vec<u8>,)> = session.fetch_all(query).await?;
    let names = names.into_iter();
    names.map(|(name,)| node_name(session, name)).collect()
}

/// Deletes garbage nodes, and returns their number.
pub(super) async fn collect(session: &mut Session, view: &str, limit: usize) -> Result<usize> {
    let Some(table) = find_table(session, view).await? else {
        return Ok(0);
    };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut deleted = 0;
    for of in ["nodes", "garbage"] {
        let text = format!(
            "DELETE FROM {table}_{of} WHERE (key, name) IN (
                 SELECT key, name FROM {table}_garbage ORDER BY key, name LIMIT ?)"
        );
        let query = sqlx::query(AssertSqlSafe(text)).bind(limit);
        deleted = session.execute(query).await?;
    }
    Ok(usize::try_from(deleted).unwrap_or(usize::MAX))
}

pub(super) async fn keys(
    session: &mut Session,
    view: &str,
    after: Option<Vec<u8>>,
    limit: usize,
) -> Result<Vec<Vec<u8>>> {
    let Some(table) = find_table(session, view).await? else {
        return Ok(Vec::new());
    };
    let later = if after.is_some() { "WHERE key > ?" } else { "" };
    let text = format!("SELECT key FROM {table}_heads {later} ORDER BY key LIMIT ?");
    let mut query = sqlx::query(AssertSqlSafe(text));
    if let Some(after) = after {
        query = query.bind(after);
    }
    let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let keys: Vec<(Vec<u8>,)> = session.fetch_all(query).await?;
    Ok(keys.into_iter().map(|(key,)| key).collect())
}

fn node_name(session: &Session, name: Vec<u8>) -> Result<NodeName> {
    NodeName::try_from(name).map_err(|_| session.damaged("a node's name is not 16 bytes"))
}

/// Divides values among statements, each with its placeholders.
fn split_statements<T>(values: &[T]) -> impl Iterator<Item = (String, &[T])> {
    split_ranges(values.len()).map(|range| {
        let placeholders = vec!["?"; range.len()].join(",");
        (placeholders, values.get(range).unwrap_or_default())
    })
}
