//! Versions of boards: each view has a table of heads, one of nodes, and one of *stale* shards,
//! which may contain nodes that no head leads to.
//!
//! A writer may be overtaken at any moment: one that was suspended between reading and writing
//! sends its writes later, without limit. These rules make that harmless. An *attempt* is a run
//! with its stamp.
//!
//! * **An old head never returns.** Heads are in [`BUCKETS`] partitions, each with a *fence*: the
//!   largest stamp that was set there. A lightweight transaction writes a head only if the fence is
//!   the stamp of the writer. An attempt sets all fences before it reads any head
//!   (`begin_publishing`; otherwise before its first write). From then on, no older attempt can
//!   write a head, so an unchanged head remains as the attempt read it.
//! * **Versions share no nodes.** A node is stored under its name *and* the stamp of the attempt
//!   that wrote it. A head leads to the nodes with its own stamp; its attempt wrote all of them,
//!   and the servers acknowledged them before the head. So deleting nodes of another version is
//!   harmless, even if the names are equal, and no head leads to a node that is written late.
//! * **Only permanently stale nodes are deleted.** A collector has set the fences. It deletes a
//!   node with the stamp *w* if *w* is not larger than its own, and differs from the stamps of the
//!   key's head and its earlier root. No head with the stamp *w* can follow: the fence prevents
//!   older attempts, and the collector's own attempt has written all of its heads. No earlier root
//!   can follow either: a head copies it from the head that it replaces, where both stamps differ
//!   from *w*. Nodes that an overtaken collector found stale are still stale, for the same reason.
//! * **Stale shards are marked first.** Before a version writes nodes, it marks the shards of its
//!   own nodes and of the nodes of the head that it replaces, including those of its earlier root.
//!   A mark is deleted with the stamp that it had when it was read, so a renewed mark remains.
//! * **A head replaces the head that its attempt read.** No other head can be written in between:
//!   the fence prevents older attempts, a newer one raises it, and an attempt writes one head per
//!   key.
//!
//! Therefore a key is published once with a stamp, and a process that publishes after collecting
//! uses a new stamp. Nodes that an overtaken writer sends after the mark of their shard was deleted
//! can remain. They occupy space until the next version of their key, which marks its shards again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use schemas::seam::Epoch;
use scylla::response::PagingState;
use scylla::value::MaybeUnset;

use super::session::{CasOutcome, Cql, read_number, run_concurrently};
use crate::views::{EarlierRoot, Head, NewHead, NewVersion, NodeName};
use crate::{Error, Result};

/// The number of partitions of heads. They distribute the lightweight transactions. With 100,000
/// keys and roots of 4 KiB, a partition has 6 MiB.
pub(super) const BUCKETS: u32 = 64;
/// The number of partitions of the nodes of one key. With a few million rows, one has about 10 MiB.
const SHARDS: u8 = 16;
/// The maximum number of concurrent requests of one call.
const CONCURRENT_REQUESTS: usize = 64;
/// The maximum number of concurrent lightweight transactions of one call.
const CONCURRENT_TRANSACTIONS: usize = 16;
/// The maximum number of heads in one lightweight transaction, and their bytes.
const HEADS_PER_TRANSACTION: usize = 64;
const HEAD_BYTES_PER_TRANSACTION: usize = 256 << 10;
/// The number of marks in one batch.
const MARKS_PER_BATCH: usize = 100;
/// The number of keys in one query.
const KEYS_PER_QUERY: usize = 50;
/// The number of stale shards that are examined together.
const SHARDS_PER_READ: usize = 32;

/// Returns the names of a view's tables, and the statements that create them. Tombstones of nodes
/// and marks may expire early: a row that returns without them is only stale, and is examined
/// again.
pub(super) fn tables(id: &str) -> Vec<(String, String)> {
    let define = |kind: &str, columns: &str| {
        let name = format!("{kind}_{id}");
        let create = format!("CREATE TABLE IF NOT EXISTS {name} ({columns}");
        (name, create)
    };
    vec![
        define(
            "heads",
            "bucket int, key blob, fence bigint static, epoch bigint, stamp_us bigint, root blob,
             shards int, earlier_epoch bigint, earlier_stamp_us bigint, earlier_root blob,
             earlier_shards int, PRIMARY KEY (bucket, key))",
        ),
        define(
            "nodes",
            "key blob, shard int, name blob, stamp_us bigint, bytes blob,
             PRIMARY KEY ((key, shard), name, stamp_us)) WITH gc_grace_seconds = 3600",
        ),
        define(
            "stale",
            "bucket int, key blob, shard int, stamp_us bigint,
             PRIMARY KEY (bucket, key, shard)) WITH gc_grace_seconds = 3600",
        ),
    ]
}

/// Returns the partition of a key's head.
pub(super) fn bucket(key: &[u8]) -> i32 {
    (crc32fast::hash(key) % BUCKETS).cast_signed()
}

fn shard(name: &NodeName) -> i32 {
    i32::from(name[0] % SHARDS)
}

/// Returns the shards of some nodes as a bit set.
fn shards_of<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> i32 {
    names
        .into_iter()
        .fold(0, |bits, name| bits | 1 << shard(name))
}

fn shards_in(bits: i32) -> impl Iterator<Item = i32> {
    (0..i32::from(SHARDS)).filter(move |shard| bits >> shard & 1 == 1)
}

/// The progress of this process by view, each with the stamp for which it is valid.
#[derive(Debug, Default)]
pub(super) struct Progress {
    fenced: Mutex<HashMap<String, i64>>,
    /// The first bucket that may have stale shards.
    collected: Mutex<HashMap<String, (i64, i32)>>,
}

impl Progress {
    /// Sets all fences of a view to a stamp.
    ///
    /// # Errors
    /// [`Error::Refused`] if a fence has a larger stamp.
    pub(super) async fn fence(&self, cql: &Cql, id: &str, stamp_us: i64) -> Result<()> {
        if self.is_fenced(id, stamp_us) {
            return Ok(());
        }
        let buckets = 0..BUCKETS.cast_signed();
        let calls = buckets.map(|bucket| fence(cql, id, bucket, stamp_us));
        run_concurrently(CONCURRENT_TRANSACTIONS, calls.collect()).await?;
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        if fenced.len() >= 1024 {
            fenced.clear();
        }
        fenced.insert(id.to_owned(), stamp_us);
        Ok(())
    }

    fn is_fenced(&self, id: &str, stamp_us: i64) -> bool {
        let fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        fenced.get(id) == Some(&stamp_us)
    }

    fn first_bucket(&self, id: &str, stamp_us: i64) -> i32 {
        let collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = collected.get(id).filter(|(of, _)| *of == stamp_us);
        known.map_or(0, |(_, bucket)| *bucket)
    }

    fn record_bucket(&self, id: &str, stamp_us: i64, bucket: i32) {
        let mut collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if collected.len() >= 1024 {
            collected.clear();
        }
        collected.insert(id.to_owned(), (stamp_us, bucket));
    }

    /// Restarts the collection at the first bucket.
    fn restart(&self, id: &str) {
        let mut collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        collected.remove(id);
    }
}

async fn fence(cql: &Cql, id: &str, bucket: i32, stamp_us: i64) -> Result<()> {
    let operation = "fencing the heads of a view";
    let raise = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence < ?");
    let begin = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence = NULL");
    let retry_policy = cql.retry_policy();
    retry_policy
        .retry_steps(operation, || async {
            let raised = cql.compare_and_set(operation, &raise, (stamp_us, bucket, stamp_us));
            let there = match raised.await? {
                CasOutcome::Applied => return Ok(()),
                CasOutcome::Unknown(error) => return Err(error),
                CasOutcome::NotApplied(row) => read_number(&row, "fence"),
            };
            match there {
                Some(there) if there == stamp_us => return Ok(()),
                Some(there) => return Err(overtaken_error(stamp_us, Some(there))),
                None => {}
            }
            match cql
                .compare_and_set(operation, &begin, (stamp_us, bucket))
                .await?
            {
                CasOutcome::Applied => Ok(()),
                CasOutcome::NotApplied(_) => {
                    Err(retry_policy.unavailable(operation, "another process does"))
                }
                CasOutcome::Unknown(error) => Err(error),
            }
        })
        .await
}

fn overtaken_error(stamp_us: i64, by: Option<i64>) -> Error {
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    Error::Refused(format!(
        "publishing board versions: the stamp {stamp_us} was overtaken{by}: another process publishes"
    ))
}

/// A stored head, with the shards of its nodes and of those of its earlier root.
#[derive(Debug, Clone)]
struct StoredHead {
    head: Head,
    shards: i32,
    earlier_shards: i32,
}

impl StoredHead {
    /// Returns the stamps of the nodes to which the head leads.
    fn stamps_us(&self) -> [Option<i64>; 2] {
        let earlier = self.head.earlier.as_ref();
        [self.head.stamp_us, earlier.map(|root| root.stamp_us)]
    }

    /// Returns the earlier root for a head that replaces this one, and the shards of its nodes.
    fn earlier_root(&self, stamp_us: i64) -> Option<(EarlierRoot, i32)> {
        let root = self.head.find_earlier_root(stamp_us)?;
        let is_own = self.head.stamp_us == Some(root.stamp_us);
        let shards = if is_own {
            self.shards
        } else {
            self.earlier_shards
        };
        Some((root, shards))
    }
}

/// The columns of a head: key, epoch, stamp, root and shards, then those of the earlier root.
type HeadRow = (
    Vec<u8>,
    i64,
    i64,
    Bytes,
    i32,
    Option<i64>,
    Option<i64>,
    Option<Bytes>,
    Option<i32>,
);

fn decode_row(row: HeadRow) -> (Vec<u8>, StoredHead) {
    let (key, epoch, stamp_us, root, shards, earlier_epoch, earlier_us, earlier_root, of_earlier) =
        row;
    let earlier = earlier_epoch.zip(earlier_us).zip(earlier_root);
    let head = Head {
        epoch: epoch.cast_unsigned(),
        root,
        stamp_us: Some(stamp_us),
        earlier: earlier.map(|((epoch, stamp_us), root)| EarlierRoot {
            epoch: epoch.cast_unsigned(),
            stamp_us,
            root,
        }),
    };
    let stored = StoredHead {
        head,
        shards,
        earlier_shards: of_earlier.unwrap_or_default(),
    };
    (key, stored)
}

/// Reads the heads of keys, by key.
async fn read_stored_heads(
    cql: &Cql,
    id: &str,
    keys: &[&[u8]],
) -> Result<HashMap<Vec<u8>, StoredHead>> {
    let operation = "reading heads";
    let text = format!(
        "SELECT key, epoch, stamp_us, root, shards, earlier_epoch, earlier_stamp_us, earlier_root,
             earlier_shards FROM heads_{id} WHERE bucket = ? AND key IN ?"
    );
    let statement = &cql.prepare(operation, &text).await?;
    let mut by_bucket: BTreeMap<i32, HashSet<&[u8]>> = BTreeMap::new();
    for key in keys {
        by_bucket.entry(bucket(key)).or_default().insert(key);
    }
    let mut queries: Vec<(i32, Vec<&[u8]>)> = Vec::new();
    for (bucket, keys) in by_bucket {
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        let chunks = keys.chunks(KEYS_PER_QUERY);
        queries.extend(chunks.map(|keys| (bucket, keys.to_vec())));
    }
    let calls = queries
        .iter()
        .map(|values| cql.fetch_all::<HeadRow>(operation, statement, values));
    let results = run_concurrently(CONCURRENT_REQUESTS, calls.collect()).await?;
    Ok(results.into_iter().flatten().map(decode_row).collect())
}

/// Reads the heads of keys, in the order of `keys`.
pub(super) async fn heads(cql: &Cql, id: &str, keys: &[Vec<u8>]) -> Result<Vec<Option<Head>>> {
    let requested: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let stored_heads = read_stored_heads(cql, id, &requested).await?;
    let head = |key: &Vec<u8>| stored_heads.get(key).map(|stored| stored.head.clone());
    Ok(keys.iter().map(head).collect())
}

/// Reads nodes of a key. All nodes with the same name have the same bytes, whatever their stamp. If
/// another program changed one, the newest is the replacement.
pub(super) async fn nodes(
    cql: &Cql,
    id: &str,
    key: &[u8],
    names: &[NodeName],
) -> Result<Vec<Option<Bytes>>> {
    let operation = "reading nodes";
    let text = format!(
        "SELECT bytes FROM nodes_{id} WHERE key = ? AND shard = ? AND name = ?
             ORDER BY name DESC, stamp_us DESC LIMIT 1"
    );
    let text = text.as_str();
    // Prepares it once, before the concurrent reads.
    cql.prepare(operation, text).await?;
    let calls = names.iter().map(|name| async move {
        let values = (key, shard(name), name.as_slice());
        let row: Option<(Option<Bytes>,)> = cql.fetch_first(operation, text, values).await?;
        Ok(row.map(|(bytes,)| bytes.unwrap_or_default()))
    });
    run_concurrently(CONCURRENT_REQUESTS, calls.collect()).await
}

/// Lists the nodes in a shard of a key: names and stamps.
async fn shard_nodes(cql: &Cql, id: &str, key: &[u8], shard: i32) -> Result<Vec<(NodeName, i64)>> {
    let operation = "listing nodes";
    let text = format!("SELECT name, stamp_us FROM nodes_{id} WHERE key = ? AND shard = ?");
    let statement = cql.prepare(operation, &text).await?;
    let found: Vec<(Vec<u8>, i64)> = cql.fetch_all(operation, &statement, &(key, shard)).await?;
    let node = |(name, stamp_us)| {
        let name = NodeName::try_from(name);
        let name = name.map_err(|_| cql.broken(operation, "a node's name is not 16 bytes"))?;
        Ok((name, stamp_us))
    };
    found.into_iter().map(node).collect()
}

/// Lists the names of all nodes of a key.
pub(super) async fn names(cql: &Cql, id: &str, key: &[u8]) -> Result<Vec<NodeName>> {
    let mut names = Vec::new();
    for shard in 0..i32::from(SHARDS) {
        let found = shard_nodes(cql, id, key, shard).await?;
        names.extend(found.into_iter().map(|(name, _)| name));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Lists the keys that have a head, by bucket and then by key.
pub(super) async fn keys(
    cql: &Cql,
    id: &str,
    after: Option<Vec<u8>>,
    limit: usize,
) -> Result<Vec<Vec<u8>>> {
    let operation = "listing heads";
    let text = format!("SELECT key FROM heads_{id} WHERE bucket = ? AND key > ?");
    let statement = cql.prepare(operation, &text).await?;
    let mut after = after.unwrap_or_default();
    let first = if after.is_empty() { 0 } else { bucket(&after) };
    let mut keys = Vec::new();
    for bucket in first..BUCKETS.cast_signed() {
        let mut next = Some(PagingState::start());
        while let Some(from) = next
            && keys.len() < limit
        {
            let (page, later) = cql
                .read_page(operation, &statement, &(bucket, &after), from)
                .await?;
            next = later;
            let rows = page.rows::<(Vec<u8>,)>();
            for row in rows.map_err(|error| cql.broken(operation, error))? {
                let (key,) = row.map_err(|error| cql.broken(operation, error))?;
                keys.push(key);
            }
        }
        after.clear();
    }
    keys.truncate(limit);
    Ok(keys)
}

/// Writes versions. The fences must be set.
pub(super) async fn write(
    cql: &Cql,
    progress: &Progress,
    id: &str,
    (epoch, stamp_us): (Epoch, i64),
    versions: &[NewVersion],
) -> Result<()> {
    if versions.is_empty() {
        return Ok(());
    }
    progress.restart(id);
    let replaced = mark_shards(cql, id, stamp_us, versions).await?;
    write_nodes(cql, id, stamp_us, versions).await?;
    let mut by_bucket: BTreeMap<i32, BTreeMap<&[u8], Replacing<'_>>> = BTreeMap::new();
    for version in versions {
        if let Some(head) = &version.head {
            let heads = by_bucket.entry(bucket(&version.key)).or_default();
            let replaced = replaced.get(&version.key);
            let earlier = replaced.filter(|_| !version.drops_earlier_root);
            let earlier = earlier.and_then(|stored| stored.earlier_root(stamp_us));
            heads.insert(&version.key, (head, earlier, version.drops_earlier_root));
        }
    }
    let calls = by_bucket
        .into_iter()
        .map(|(bucket, heads)| write_heads(cql, id, bucket, (epoch, stamp_us), heads));
    run_concurrently(CONCURRENT_TRANSACTIONS, calls.collect()).await?;
    Ok(())
}

/// A head to write; the earlier root that it keeps, with the shards of its nodes; and whether an
/// existing earlier root is removed.
type Replacing<'a> = (&'a NewHead, Option<(EarlierRoot, i32)>, bool);

/// The values of a mark: bucket, key, shard, and the stamp twice, as a value and as the write time.
type Mark<'a> = (i32, &'a [u8], i32, i64, i64);

/// Marks the shards that will contain nodes to which no head leads: the new nodes if their head is
/// never written, otherwise the nodes of the replaced head. Returns the replaced heads.
async fn mark_shards(
    cql: &Cql,
    id: &str,
    stamp_us: i64,
    versions: &[NewVersion],
) -> Result<HashMap<Vec<u8>, StoredHead>> {
    let operation = "marking stale shards";
    let with_head = versions.iter().filter(|version| version.head.is_some());
    let replaced: Vec<&[u8]> = with_head.map(|version| version.key.as_slice()).collect();
    let replaced = read_stored_heads(cql, id, &replaced).await?;
    let mut stale_shards: BTreeMap<(i32, &[u8]), i32> = BTreeMap::new();
    for version in versions {
        let key = version.key.as_slice();
        let before = replaced.get(key);
        let before = before.map_or(0, |stored| stored.shards | stored.earlier_shards);
        let now = shards_of(version.nodes.iter().map(|(name, _)| name));
        *stale_shards.entry((bucket(key), key)).or_default() |= before | now;
    }
    let mut by_bucket: BTreeMap<i32, Vec<Mark<'_>>> = BTreeMap::new();
    for ((bucket, key), bits) in stale_shards {
        let marks = by_bucket.entry(bucket).or_default();
        marks.extend(shards_in(bits).map(|shard| (bucket, key, shard, stamp_us, stamp_us)));
    }
    let text = format!(
        "INSERT INTO stale_{id} (bucket, key, shard, stamp_us) VALUES (?, ?, ?, ?)
         USING TIMESTAMP ?"
    );
    let statement = &cql.prepare(operation, &text).await?;
    let batches = by_bucket
        .values()
        .flat_map(|marks| marks.chunks(MARKS_PER_BATCH));
    let calls = batches.map(|marks| cql.write(operation, statement, marks));
    run_concurrently(CONCURRENT_REQUESTS, calls.collect()).await?;
    Ok(replaced)
}

async fn write_nodes(cql: &Cql, id: &str, stamp_us: i64, versions: &[NewVersion]) -> Result<()> {
    let operation = "writing nodes";
    let text = format!(
        "INSERT INTO nodes_{id} (key, shard, name, stamp_us, bytes) VALUES (?, ?, ?, ?, ?)
         USING TIMESTAMP ?"
    );
    let statement = &cql.prepare(operation, &text).await?;
    let nodes = versions
        .iter()
        .flat_map(|version| version.nodes.iter().map(|node| (&version.key, node)));
    let calls = nodes.map(|(key, (name, bytes))| async move {
        let (shard, name) = (shard(name), name.as_slice());
        let values = (key, shard, name, stamp_us, bytes.as_ref(), stamp_us);
        cql.write(operation, statement, &[values]).await
    });
    run_concurrently(CONCURRENT_REQUESTS, calls.collect()).await?;
    Ok(())
}

/// Writes the heads of one bucket, while its fence is the stamp. The call may be repeated.
async fn write_heads(
    cql: &Cql,
    id: &str,
    bucket: i32,
    (epoch, stamp_us): (Epoch, i64),
    heads: BTreeMap<&[u8], Replacing<'_>>,
) -> Result<()> {
    let operation = "writing heads";
    let fenced = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence = ?");
    let head = format!(
        "INSERT INTO heads_{id} (bucket, key, epoch, stamp_us, root, shards, earlier_epoch,
             earlier_stamp_us, earlier_root, earlier_shards)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    );
    let fenced = cql.prepare(operation, &fenced).await?;
    let head = cql.prepare(operation, &head).await?;
    let heads: Vec<(&[u8], Replacing<'_>)> = heads.into_iter().collect();
    let mut rest = heads.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest
            .iter()
            .take(HEADS_PER_TRANSACTION)
            .take_while(|(_, (head, earlier, _))| {
                bytes += head.root.len();
                bytes += earlier.as_ref().map_or(0, |(root, _)| root.root.len());
                bytes <= HEAD_BYTES_PER_TRANSACTION
            });
        let (step, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let done = cql.retry_policy().retry_steps(operation, || async {
            let mut statements = vec![fenced.clone()];
            let mut values = vec![HeadValues::Fence(stamp_us, bucket, stamp_us)];
            for (key, replacing) in step {
                statements.push(head.clone());
                let epoch = epoch.cast_signed();
                values.push(HeadValues::Head(bucket, key, epoch, stamp_us, replacing));
            }
            match cql
                .compare_and_set_batch(operation, statements, values)
                .await?
            {
                CasOutcome::Applied => Ok(()),
                CasOutcome::NotApplied(row) => {
                    Err(overtaken_error(stamp_us, read_number(&row, "fence")))
                }
                CasOutcome::Unknown(error) => Err(error),
            }
        });
        done.await?;
    }
    Ok(())
}

/// The values of one statement of a transaction on heads.
enum HeadValues<'a> {
    Fence(i64, i32, i64),
    Head(i32, &'a [u8], i64, i64, &'a Replacing<'a>),
}

impl scylla::serialize::row::SerializeRow for HeadValues<'_> {
    fn serialize(
        &self,
        context: &scylla::serialize::row::RowSerializationContext<'_>,
        writer: &mut scylla::serialize::writers::RowWriter<'_>,
    ) -> std::result::Result<(), scylla::serialize::SerializationError> {
        match self {
            Self::Fence(set, bucket, is) => (set, bucket, is).serialize(context, writer),
            Self::Head(bucket, key, epoch, stamp_us, (head, earlier, drops_earlier_root)) => {
                let (root, shards) = (head.root.as_ref(), shards_of(&head.names));
                // A missing earlier root is not written, and none is stored: once a head has one,
                // all later heads of its key have one. An earlier root to remove is overwritten
                // with null.
                fn column<T>(value: Option<T>, drops_earlier_root: bool) -> MaybeUnset<Option<T>> {
                    match value {
                        None if !drops_earlier_root => MaybeUnset::Unset,
                        value => MaybeUnset::Set(value),
                    }
                }
                let (earlier, drops_earlier) = (earlier.as_ref(), *drops_earlier_root);
                let of_earlier = (
                    column(
                        earlier.map(|(root, _)| root.epoch.cast_signed()),
                        drops_earlier,
                    ),
                    column(earlier.map(|(root, _)| root.stamp_us), drops_earlier),
                    column(earlier.map(|(root, _)| root.root.as_ref()), drops_earlier),
                    column(earlier.map(|(_, shards)| *shards), drops_earlier),
                );
                let (earlier_epoch, earlier_us, earlier_root, earlier_shards) = of_earlier;
                (
                    bucket,
                    key,
                    epoch,
                    stamp_us,
                    root,
                    shards,
                    earlier_epoch,
                    earlier_us,
                    earlier_root,
                    earlier_shards,
                )
                    .serialize(context, writer)
            }
        }
    }

    fn is_empty(&self) -> bool {
        false
    }
}

/// A shard that may contain nodes to which no head leads.
#[derive(Debug)]
struct StaleShard {
    key: Vec<u8>,
    shard: i32,
    marked_us: i64,
}

/// Deletes at most `limit` stale nodes, and returns their number. The fences must be set.
pub(super) async fn collect(
    cql: &Cql,
    progress: &Progress,
    id: &str,
    stamp_us: i64,
    limit: usize,
) -> Result<usize> {
    let operation = "listing stale shards";
    let text = format!(
        "SELECT key, shard, stamp_us FROM stale_{id} WHERE bucket = ? LIMIT {SHARDS_PER_READ}"
    );
    let later = format!(
        "SELECT key, shard, stamp_us FROM stale_{id} WHERE bucket = ? AND (key, shard) > (?, ?)
         LIMIT {SHARDS_PER_READ}"
    );
    let mut deleted = 0;
    for bucket in progress.first_bucket(id, stamp_us)..BUCKETS.cast_signed() {
        let mut page = cql.read(operation, &text, (bucket,)).await?;
        loop {
            let mut stale_shards = Vec::new();
            let rows = page.rows::<(Vec<u8>, i32, i64)>();
            for row in rows.map_err(|error| cql.broken(operation, error))? {
                let (key, shard, marked_us) = row.map_err(|error| cql.broken(operation, error))?;
                stale_shards.push(StaleShard {
                    key,
                    shard,
                    marked_us,
                });
            }
            let Some(last) = stale_shards.last() else {
                break;
            };
            let after = (bucket, last.key.clone(), last.shard);
            let remaining = limit - deleted;
            deleted += clear_shards(cql, id, (bucket, stamp_us), &stale_shards, remaining).await?;
            if deleted >= limit {
                return Ok(deleted);
            }
            page = cql.read(operation, &later, after).await?;
        }
        progress.record_bucket(id, stamp_us, bucket + 1);
    }
    Ok(deleted)
}

/// Deletes the stale nodes of some shards, and the marks of shards that have no more of them.
async fn clear_shards(
    cql: &Cql,
    id: &str,
    (bucket, stamp_us): (i32, i64),
    stale_shards: &[StaleShard],
    limit: usize,
) -> Result<usize> {
    let operation = "deleting nodes";
    let keys = stale_shards.iter();
    let keys: Vec<&[u8]> = keys.map(|stale_shard| stale_shard.key.as_slice()).collect();
    let heads = read_stored_heads(cql, id, &keys).await?;
    let list = stale_shards
        .iter()
        .map(|stale_shard| shard_nodes(cql, id, &stale_shard.key, stale_shard.shard));
    let listed = run_concurrently(SHARDS_PER_READ, list.collect()).await?;
    let (mut stale, mut cleared) = (Vec::new(), Vec::new());
    for (stale_shard, nodes) in stale_shards.iter().zip(listed) {
        let kept_us = heads
            .get(&stale_shard.key)
            .map_or([None; 2], StoredHead::stamps_us);
        let mut is_cleared = stale_shard.marked_us <= stamp_us;
        for (name, written_us) in nodes {
            if kept_us.contains(&Some(written_us)) {
                continue;
            }
            if written_us > stamp_us || stale.len() >= limit {
                is_cleared = false;
                continue;
            }
            stale.push((&stale_shard.key, stale_shard.shard, name, written_us));
        }
        if is_cleared {
            cleared.push((
                stale_shard.marked_us,
                bucket,
                &stale_shard.key,
                stale_shard.shard,
            ));
        }
    }
    let text = format!(
        "DELETE FROM nodes_{id} USING TIMESTAMP ?
         WHERE key = ? AND shard = ? AND name = ? AND stamp_us = ?"
    );
    let statement = &cql.prepare(operation, &text).await?;
    let calls = stale
        .iter()
        .map(|(key, shard, name, written_us)| async move {
            let values = (written_us, key, shard, name.as_slice(), written_us);
            cql.write(operation, statement, &[values]).await
        });
    run_concurrently(CONCURRENT_REQUESTS, calls.collect()).await?;
    let text = format!(
        "DELETE FROM stale_{id} USING TIMESTAMP ? WHERE bucket = ? AND key = ? AND shard = ?"
    );
    let statement = cql.prepare(operation, &text).await?;
    for marks in cleared.chunks(MARKS_PER_BATCH) {
        cql.write(operation, &statement, marks).await?;
    }
    Ok(stale.len())
}
