//! Editions of boards: for each view a table of heads, one of nodes, and one of *stale* places, where
//! nodes may be that no head leads to.
//!
//! Writers may be overtaken at any moment: one that was stopped between looking and writing still
//! sends what it was about to send, however late. What keeps that harmless:
//!
//! * **An old head never comes back.** Heads lie in [`BUCKETS`] partitions, each with a *fence*: the
//!   largest stamp that has come there. A head is written by a lightweight transaction on condition
//!   that the fence is the writer's own stamp. A try sets all fences before it reads any head
//!   (`begin_publishing`; otherwise before its first write), so that from then on no older try can
//!   write one, and a head that it leaves alone since it is as it should be stays so.
//! * **Editions share no nodes.** A node is stored under its name *and* the stamp of the try that
//!   wrote it; a head leads to the nodes that have its own stamp, all of which its try has written
//!   (acknowledged before the head). So deleting what another edition left can't hurt it, whatever the
//!   two have in common, and a late write of a node is only one that nobody leads to.
//! * **Only what is stale for ever is deleted.** A collector has set the fences; it deletes a node with
//!   the stamp *w* if the key's head and its earlier root have other stamps and *w* is not larger than its
//!   own. A head with the stamp *w* can't come any more: not of an older try, because of the fence, and
//!   its own try has written all of its heads. Nor can an earlier root: a head takes it from the one
//!   that it replaces, which had another stamp in both places. A collector that was overtaken looks at
//!   nodes that were stale when it did: they still are, for the same reason.
//! * **What becomes stale is noted first.** Before an edition writes nodes, it notes the places of its
//!   own nodes and of those of the head that it replaces, the earlier root's among them. A note is
//!   deleted as of the stamp that it had when it was read, so one that was made again since stays.
//! * **A head keeps what it replaces as its try read it.** Between that and its being written no other
//!   can come: an older try is fenced off, a newer one raises the fence, and a key gets one head a try.
//!
//! Therefore a key is published once with a stamp, and whoever publishes after collecting takes a new
//! one. What can remain behind: nodes that an overtaken writer sends after the note of their place was
//! deleted. They cost space until the next edition of their key, which notes its places again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use schemas::seam::Epoch;
use scylla::response::PagingState;
use scylla::value::MaybeUnset;

use super::session::{CasOutcome, Cql, read_number, run_concurrently};
use crate::views::{EarlierRoot, Head, NewHead, NewVersion, NodeName};
use crate::{Error, Result};

/// Partitions of heads. They divide the work of lightweight transactions; a hundred thousand keys
/// with roots of 4 KiB make partitions of 6 MiB.
pub(super) const BUCKETS: u32 = 64;
/// Partitions of the nodes of one key: a key of a few million rows has partitions of some 10 MiB.
const SHARDS: u8 = 16;
/// Requests that are under way at once in one call.
const AT_ONCE: usize = 64;
/// Lightweight transactions that are.
const AGREED_AT_ONCE: usize = 16;
/// Heads and their bytes in one lightweight transaction.
const HEADS_STEP: usize = 64;
const HEADS_STEP_BYTES: usize = 256 << 10;
/// Notes in one step.
const NOTES_STEP: usize = 100;
/// Keys in one question.
const KEYS_ASKED: usize = 50;
/// Places that are looked at together.
const PLACES: usize = 32;

/// The tables of a view: their names, and what makes them. Tombstones of nodes and notes need not last
/// long: what comes back without them is only stale, and is looked at again.
pub(super) fn tables(id: &str) -> Vec<(String, String)> {
    let make = |kind: &str, columns: &str| {
        let name = format!("{kind}_{id}");
        let make = format!("CREATE TABLE IF NOT EXISTS {name} ({columns}");
        (name, make)
    };
    vec![
        make(
            "heads",
            "bucket int, key blob, fence bigint static, epoch bigint, stamp_us bigint, root blob,
             shards int, earlier_epoch bigint, earlier_stamp_us bigint, earlier_root blob,
             earlier_shards int, PRIMARY KEY (bucket, key))",
        ),
        make(
            "nodes",
            "key blob, shard int, name blob, stamp_us bigint, bytes blob,
             PRIMARY KEY ((key, shard), name, stamp_us)) WITH gc_grace_seconds = 3600",
        ),
        make(
            "stale",
            "bucket int, key blob, shard int, stamp_us bigint,
             PRIMARY KEY (bucket, key, shard)) WITH gc_grace_seconds = 3600",
        ),
    ]
}

/// The partition that the head of a key is in.
pub(super) fn bucket(key: &[u8]) -> i32 {
    (crc32fast::hash(key) % BUCKETS).cast_signed()
}

fn shard(name: &NodeName) -> i32 {
    i32::from(name[0] % SHARDS)
}

/// Which shards the nodes lie in, a bit for each.
fn shards_of<'a>(names: impl IntoIterator<Item = &'a NodeName>) -> i32 {
    names
        .into_iter()
        .fold(0, |bits, name| bits | 1 << shard(name))
}

fn shards_in(bits: i32) -> impl Iterator<Item = i32> {
    (0..i32::from(SHARDS)).filter(move |shard| bits >> shard & 1 == 1)
}

/// What this process has done for views already, each as of a stamp.
#[derive(Debug, Default)]
pub(super) struct Progress {
    fenced: Mutex<HashMap<String, i64>>,
    /// Buckets before this one have no stale places any more.
    collected: Mutex<HashMap<String, (i64, i32)>>,
}

impl Progress {
    /// Sets all fences of a view to a stamp.
    ///
    /// # Errors
    /// [`Error::Refused`] if a larger one is there.
    pub(super) async fn fence(&self, cql: &Cql, id: &str, stamp_us: i64) -> Result<()> {
        if self.is_fenced(id, stamp_us) {
            return Ok(());
        }
        let buckets = 0..BUCKETS.cast_signed();
        let calls = buckets.map(|bucket| fence(cql, id, bucket, stamp_us));
        run_concurrently(AGREED_AT_ONCE, calls.collect()).await?;
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

    fn note_bucket(&self, id: &str, stamp_us: i64, bucket: i32) {
        let mut collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if collected.len() >= 1024 {
            collected.clear();
        }
        collected.insert(id.to_owned(), (stamp_us, bucket));
    }

    /// Looks at all places again.
    fn begin_again(&self, id: &str) {
        let mut collected = self
            .collected
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        collected.remove(id);
    }
}

async fn fence(cql: &Cql, id: &str, bucket: i32, stamp_us: i64) -> Result<()> {
    let doing = "fencing the heads of a view";
    let raise = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence < ?");
    let begin = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence = NULL");
    let patience = cql.retry_policy();
    patience
        .retry_steps(doing, || async {
            let raised = cql.compare_and_set(doing, &raise, (stamp_us, bucket, stamp_us));
            let there = match raised.await? {
                CasOutcome::Applied => return Ok(()),
                CasOutcome::Unknown(error) => return Err(error),
                CasOutcome::NotApplied(row) => read_number(&row, "fence"),
            };
            match there {
                Some(there) if there == stamp_us => return Ok(()),
                Some(there) => return Err(overtaken(stamp_us, Some(there))),
                None => {}
            }
            match cql
                .compare_and_set(doing, &begin, (stamp_us, bucket))
                .await?
            {
                CasOutcome::Applied => Ok(()),
                CasOutcome::NotApplied(_) => Err(patience.unavailable(doing, "somebody else does")),
                CasOutcome::Unknown(error) => Err(error),
            }
        })
        .await
}

fn overtaken(stamp_us: i64, by: Option<i64>) -> Error {
    let by = by.map_or_else(String::new, |by| format!(" by {by}"));
    Error::Refused(format!(
        "publishing editions: the stamp {stamp_us} was overtaken{by}: somebody else publishes now"
    ))
}

/// What is stored of a head.
#[derive(Debug, Clone)]
struct Stored {
    head: Head,
    shards: i32,
    earlier_shards: i32,
}

impl Stored {
    /// The stamps of the nodes that are led to.
    fn stamps_us(&self) -> [Option<i64>; 2] {
        let earlier = self.head.earlier.as_ref();
        [self.head.stamp_us, earlier.map(|root| root.stamp_us)]
    }

    /// The earlier root of a head that is written in the place of this one, and the shards of its nodes.
    fn earlier_at(&self, stamp_us: i64) -> Option<(EarlierRoot, i32)> {
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

/// A head as it is stored: key, epoch, stamp, root and shards, and the same of the earlier root.
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

fn of_row(row: HeadRow) -> (Vec<u8>, Stored) {
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
    let stored = Stored {
        head,
        shards,
        earlier_shards: of_earlier.unwrap_or_default(),
    };
    (key, stored)
}

/// The heads of keys, by key.
async fn stored(cql: &Cql, id: &str, keys: &[&[u8]]) -> Result<HashMap<Vec<u8>, Stored>> {
    let doing = "reading heads";
    let text = format!(
        "SELECT key, epoch, stamp_us, root, shards, earlier_epoch, earlier_stamp_us, earlier_root,
             earlier_shards FROM heads_{id} WHERE bucket = ? AND key IN ?"
    );
    let statement = &cql.prepare(doing, &text).await?;
    let mut by_bucket: BTreeMap<i32, HashSet<&[u8]>> = BTreeMap::new();
    for key in keys {
        by_bucket.entry(bucket(key)).or_default().insert(key);
    }
    let mut asked: Vec<(i32, Vec<&[u8]>)> = Vec::new();
    for (bucket, keys) in by_bucket {
        let keys: Vec<&[u8]> = keys.into_iter().collect();
        asked.extend(keys.chunks(KEYS_ASKED).map(|keys| (bucket, keys.to_vec())));
    }
    let ask = asked.iter();
    let ask = ask.map(|values| cql.fetch_all::<HeadRow>(doing, statement, values));
    let answers = run_concurrently(AT_ONCE, ask.collect()).await?;
    Ok(answers.into_iter().flatten().map(of_row).collect())
}

/// The heads of keys, in the order of the question.
pub(super) async fn heads(cql: &Cql, id: &str, keys: &[Vec<u8>]) -> Result<Vec<Option<Head>>> {
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = stored(cql, id, &asked).await?;
    let head = |key: &Vec<u8>| found.get(key).map(|stored| stored.head.clone());
    Ok(keys.iter().map(head).collect())
}

/// Nodes of a key. All that have a name have the same bytes, whatever their stamp, unless somebody else changed them: then
/// the newest are those that were written in their place.
pub(super) async fn nodes(
    cql: &Cql,
    id: &str,
    key: &[u8],
    names: &[NodeName],
) -> Result<Vec<Option<Bytes>>> {
    let doing = "reading nodes";
    let text = format!(
        "SELECT bytes FROM nodes_{id} WHERE key = ? AND shard = ? AND name = ?
             ORDER BY name DESC, stamp_us DESC LIMIT 1"
    );
    let text = text.as_str();
    // Concurrent reads find it prepared.
    cql.prepare(doing, text).await?;
    let ask = names.iter().map(|name| async move {
        let values = (key, shard(name), name.as_slice());
        let row: Option<(Option<Bytes>,)> = cql.fetch_first(doing, text, values).await?;
        Ok(row.map(|(bytes,)| bytes.unwrap_or_default()))
    });
    run_concurrently(AT_ONCE, ask.collect()).await
}

/// The nodes in a shard of a key: names and stamps.
async fn shard_nodes(cql: &Cql, id: &str, key: &[u8], shard: i32) -> Result<Vec<(NodeName, i64)>> {
    let doing = "listing nodes";
    let text = format!("SELECT name, stamp_us FROM nodes_{id} WHERE key = ? AND shard = ?");
    let statement = cql.prepare(doing, &text).await?;
    let found: Vec<(Vec<u8>, i64)> = cql.fetch_all(doing, &statement, &(key, shard)).await?;
    let node = |(name, stamp_us)| {
        let name = NodeName::try_from(name);
        let name = name.map_err(|_| cql.broken(doing, "a node's name is not 16 bytes"))?;
        Ok((name, stamp_us))
    };
    found.into_iter().map(node).collect()
}

/// The names of all nodes of a key.
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

/// Keys that have a head, by bucket and then by key.
pub(super) async fn keys(
    cql: &Cql,
    id: &str,
    after: Option<Vec<u8>>,
    limit: usize,
) -> Result<Vec<Vec<u8>>> {
    let doing = "listing heads";
    let text = format!("SELECT key FROM heads_{id} WHERE bucket = ? AND key > ?");
    let statement = cql.prepare(doing, &text).await?;
    let mut after = after.unwrap_or_default();
    let first = if after.is_empty() { 0 } else { bucket(&after) };
    let mut keys = Vec::new();
    for bucket in first..BUCKETS.cast_signed() {
        let mut next = Some(PagingState::start());
        while let Some(from) = next
            && keys.len() < limit
        {
            let (page, later) = cql
                .read_page(doing, &statement, &(bucket, &after), from)
                .await?;
            next = later;
            let rows = page.rows::<(Vec<u8>,)>();
            for row in rows.map_err(|error| cql.broken(doing, error))? {
                let (key,) = row.map_err(|error| cql.broken(doing, error))?;
                keys.push(key);
            }
        }
        after.clear();
    }
    keys.truncate(limit);
    Ok(keys)
}

/// Writes editions. The fences must be set.
pub(super) async fn write(
    cql: &Cql,
    progress: &Progress,
    id: &str,
    (epoch, stamp_us): (Epoch, i64),
    editions: &[NewVersion],
) -> Result<()> {
    if editions.is_empty() {
        return Ok(());
    }
    progress.begin_again(id);
    let replaced = note_places(cql, id, stamp_us, editions).await?;
    write_nodes(cql, id, stamp_us, editions).await?;
    let mut by_bucket: BTreeMap<i32, BTreeMap<&[u8], Replacing<'_>>> = BTreeMap::new();
    for edition in editions {
        if let Some(head) = &edition.head {
            let heads = by_bucket.entry(bucket(&edition.key)).or_default();
            let replaced = replaced.get(&edition.key);
            let earlier = replaced.filter(|_| !edition.drops_earlier_root);
            let earlier = earlier.and_then(|stored| stored.earlier_at(stamp_us));
            heads.insert(&edition.key, (head, earlier, edition.drops_earlier_root));
        }
    }
    let calls = by_bucket
        .into_iter()
        .map(|(bucket, heads)| write_heads(cql, id, bucket, (epoch, stamp_us), heads));
    run_concurrently(AGREED_AT_ONCE, calls.collect()).await?;
    Ok(())
}

/// A head to write, with the earlier root that it keeps and the shards of that one's nodes; and whether one that
/// is there goes.
type Replacing<'a> = (&'a NewHead, Option<(EarlierRoot, i32)>, bool);

/// The values of a note: bucket, key, shard, and the stamp twice, as a value and as the time.
type Note<'a> = (i32, &'a [u8], i32, i64, i64);

/// Notes where there will be nodes that no head leads to: should a head never come, or once it has
/// come, those of the head before. Answers the heads that are replaced.
async fn note_places(
    cql: &Cql,
    id: &str,
    stamp_us: i64,
    editions: &[NewVersion],
) -> Result<HashMap<Vec<u8>, Stored>> {
    let doing = "noting where nodes are";
    let with_head = editions.iter().filter(|edition| edition.head.is_some());
    let replaced: Vec<&[u8]> = with_head.map(|edition| edition.key.as_slice()).collect();
    let replaced = stored(cql, id, &replaced).await?;
    let mut places: BTreeMap<(i32, &[u8]), i32> = BTreeMap::new();
    for edition in editions {
        let key = edition.key.as_slice();
        let before = replaced.get(key);
        let before = before.map_or(0, |stored| stored.shards | stored.earlier_shards);
        let now = shards_of(edition.nodes.iter().map(|(name, _)| name));
        *places.entry((bucket(key), key)).or_default() |= before | now;
    }
    let mut by_bucket: BTreeMap<i32, Vec<Note<'_>>> = BTreeMap::new();
    for ((bucket, key), bits) in places {
        let notes = by_bucket.entry(bucket).or_default();
        notes.extend(shards_in(bits).map(|shard| (bucket, key, shard, stamp_us, stamp_us)));
    }
    let text = format!(
        "INSERT INTO stale_{id} (bucket, key, shard, stamp_us) VALUES (?, ?, ?, ?)
         USING TIMESTAMP ?"
    );
    let statement = &cql.prepare(doing, &text).await?;
    let steps = by_bucket
        .values()
        .flat_map(|notes| notes.chunks(NOTES_STEP));
    let calls = steps.map(|notes| cql.write(doing, statement, notes));
    run_concurrently(AT_ONCE, calls.collect()).await?;
    Ok(replaced)
}

async fn write_nodes(cql: &Cql, id: &str, stamp_us: i64, editions: &[NewVersion]) -> Result<()> {
    let doing = "writing nodes";
    let text = format!(
        "INSERT INTO nodes_{id} (key, shard, name, stamp_us, bytes) VALUES (?, ?, ?, ?, ?)
         USING TIMESTAMP ?"
    );
    let statement = &cql.prepare(doing, &text).await?;
    let nodes = editions
        .iter()
        .flat_map(|edition| edition.nodes.iter().map(|node| (&edition.key, node)));
    let calls = nodes.map(|(key, (name, bytes))| async move {
        let (shard, name) = (shard(name), name.as_slice());
        let values = (key, shard, name, stamp_us, bytes.as_ref(), stamp_us);
        cql.write(doing, statement, &[values]).await
    });
    run_concurrently(AT_ONCE, calls.collect()).await?;
    Ok(())
}

/// Writes the heads of one bucket, while its fence is our stamp. It may be done again.
async fn write_heads(
    cql: &Cql,
    id: &str,
    bucket: i32,
    (epoch, stamp_us): (Epoch, i64),
    heads: BTreeMap<&[u8], Replacing<'_>>,
) -> Result<()> {
    let doing = "writing heads";
    let fenced = format!("UPDATE heads_{id} SET fence = ? WHERE bucket = ? IF fence = ?");
    let head = format!(
        "INSERT INTO heads_{id} (bucket, key, epoch, stamp_us, root, shards, earlier_epoch,
             earlier_stamp_us, earlier_root, earlier_shards)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    );
    let fenced = cql.prepare(doing, &fenced).await?;
    let head = cql.prepare(doing, &head).await?;
    let heads: Vec<(&[u8], Replacing<'_>)> = heads.into_iter().collect();
    let mut rest = heads.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest
            .iter()
            .take(HEADS_STEP)
            .take_while(|(_, (head, earlier, _))| {
                bytes += head.root.len();
                bytes += earlier.as_ref().map_or(0, |(root, _)| root.root.len());
                bytes <= HEADS_STEP_BYTES
            });
        let (step, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let done = cql.retry_policy().retry_steps(doing, || async {
            let mut statements = vec![fenced.clone()];
            let mut values = vec![HeadValues::Fence(stamp_us, bucket, stamp_us)];
            for (key, replacing) in step {
                statements.push(head.clone());
                let epoch = epoch.cast_signed();
                values.push(HeadValues::Head(bucket, key, epoch, stamp_us, replacing));
            }
            match cql.compare_and_set_batch(doing, statements, values).await? {
                CasOutcome::Applied => Ok(()),
                CasOutcome::NotApplied(row) => Err(overtaken(stamp_us, read_number(&row, "fence"))),
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
                // What is not there is not written, and has not been: once a head has an earlier root,
                // so has every one after it. But one that is to go is written over with nothing.
                fn column<T>(value: Option<T>, drops_earlier_root: bool) -> MaybeUnset<Option<T>> {
                    match value {
                        None if !drops_earlier_root => MaybeUnset::Unset,
                        value => MaybeUnset::Set(value),
                    }
                }
                let (earlier, alone) = (earlier.as_ref(), *drops_earlier_root);
                let of_earlier = (
                    column(earlier.map(|(root, _)| root.epoch.cast_signed()), alone),
                    column(earlier.map(|(root, _)| root.stamp_us), alone),
                    column(earlier.map(|(root, _)| root.root.as_ref()), alone),
                    column(earlier.map(|(_, shards)| *shards), alone),
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

/// A place where nodes may be that no head leads to.
#[derive(Debug)]
struct Place {
    key: Vec<u8>,
    shard: i32,
    noted_us: i64,
}

/// Deletes stale nodes, at most `limit`, and answers how many. The fences must be set.
pub(super) async fn collect(
    cql: &Cql,
    progress: &Progress,
    id: &str,
    stamp_us: i64,
    limit: usize,
) -> Result<usize> {
    let doing = "listing where nodes may be deleted";
    let text =
        format!("SELECT key, shard, stamp_us FROM stale_{id} WHERE bucket = ? LIMIT {PLACES}");
    let later = format!(
        "SELECT key, shard, stamp_us FROM stale_{id} WHERE bucket = ? AND (key, shard) > (?, ?)
         LIMIT {PLACES}"
    );
    let mut deleted = 0;
    for bucket in progress.first_bucket(id, stamp_us)..BUCKETS.cast_signed() {
        let mut page = cql.read(doing, &text, (bucket,)).await?;
        loop {
            let mut places = Vec::new();
            let rows = page.rows::<(Vec<u8>, i32, i64)>();
            for row in rows.map_err(|error| cql.broken(doing, error))? {
                let (key, shard, noted_us) = row.map_err(|error| cql.broken(doing, error))?;
                places.push(Place {
                    key,
                    shard,
                    noted_us,
                });
            }
            let Some(last) = places.last() else { break };
            let after = (bucket, last.key.clone(), last.shard);
            deleted += clear(cql, id, (bucket, stamp_us), &places, limit - deleted).await?;
            if deleted >= limit {
                return Ok(deleted);
            }
            page = cql.read(doing, &later, after).await?;
        }
        progress.note_bucket(id, stamp_us, bucket + 1);
    }
    Ok(deleted)
}

/// Deletes what is stale in some places, and the notes of those where nothing is any more.
async fn clear(
    cql: &Cql,
    id: &str,
    (bucket, stamp_us): (i32, i64),
    places: &[Place],
    limit: usize,
) -> Result<usize> {
    let doing = "deleting nodes";
    let keys: Vec<&[u8]> = places.iter().map(|place| place.key.as_slice()).collect();
    let heads = stored(cql, id, &keys).await?;
    let list = places
        .iter()
        .map(|place| shard_nodes(cql, id, &place.key, place.shard));
    let listed = run_concurrently(PLACES, list.collect()).await?;
    let (mut stale, mut cleared) = (Vec::new(), Vec::new());
    for (place, nodes) in places.iter().zip(listed) {
        let kept_us = heads.get(&place.key).map_or([None; 2], Stored::stamps_us);
        let mut is_cleared = place.noted_us <= stamp_us;
        for (name, written_us) in nodes {
            if kept_us.contains(&Some(written_us)) {
                continue;
            }
            if written_us > stamp_us || stale.len() >= limit {
                is_cleared = false;
                continue;
            }
            stale.push((&place.key, place.shard, name, written_us));
        }
        if is_cleared {
            cleared.push((place.noted_us, bucket, &place.key, place.shard));
        }
    }
    let text = format!(
        "DELETE FROM nodes_{id} USING TIMESTAMP ?
         WHERE key = ? AND shard = ? AND name = ? AND stamp_us = ?"
    );
    let statement = &cql.prepare(doing, &text).await?;
    let calls = stale
        .iter()
        .map(|(key, shard, name, written_us)| async move {
            let values = (written_us, key, shard, name.as_slice(), written_us);
            cql.write(doing, statement, &[values]).await
        });
    run_concurrently(AT_ONCE, calls.collect()).await?;
    let text = format!(
        "DELETE FROM stale_{id} USING TIMESTAMP ? WHERE bucket = ? AND key = ? AND shard = ?"
    );
    let statement = cql.prepare(doing, &text).await?;
    for notes in cleared.chunks(NOTES_STEP) {
        cql.write(doing, &statement, notes).await?;
    }
    Ok(stale.len())
}
