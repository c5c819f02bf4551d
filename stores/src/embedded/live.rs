//! Live state in `live.db`: slots, and the live parts of each in places of their own.
//!
//! A *place* holds the parts of one slot, generation, epoch and view, and has a small number. So the
//! parts of a micro-batch lie together in its file, a read is a range of one place for each epoch
//! that is kept, and letting go of an epoch is the end of a whole range.
//!
//! The file can be made again from the log, so it may be deleted while processes use it: the next
//! call finds an empty one, without slots, and the worker heals them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use arrow::array::{BinaryArray, BinaryBuilder, Int64Array};
use async_trait::async_trait;
use futures::TryStreamExt;
use schemas::seam::{Cut, Epoch, Fence, Generation, Moved, RollRefused, Slot};
use schemas::source::Source;
use sqlx::{Arguments, Connection, Row, Sqlite, SqliteConnection, Transaction};

use super::db::{BEGIN_WRITE, Db, Kind, Opened};
use super::fault::is_constraint;
use super::live_read;
use super::statement::{BoundRows, RowsStatement, bind, heavy, stored};
use crate::live::{Deltas, LiveAnswer, LiveQuery, LiveRead, LiveWrite, SlotId};
use crate::{Error, Result};

/// So many old bounds are remembered when epochs are let go.
const KEEP_BOUNDS: u64 = 8;

/// Garbage is deleted so many parts at a time, since the worker waits meanwhile.
const GARBAGE_PARTS: usize = 4096;

static LIVE: Kind = Kind {
    name: "live.db",
    version: 1,
    // A count that overflows becomes a float in SQLite, which a strict table refuses; the check
    // says so once more.
    tables: "
        CREATE TABLE slots (
            id INTEGER PRIMARY KEY,
            source TEXT NOT NULL,
            partition INTEGER NOT NULL,
            generation INTEGER NOT NULL,
            oldest INTEGER NOT NULL,
            state TEXT NOT NULL,
            UNIQUE (source, partition)
        ) STRICT;
        CREATE TABLE places (
            id INTEGER PRIMARY KEY,
            slot INTEGER NOT NULL REFERENCES slots (id),
            view TEXT NOT NULL,
            generation INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            UNIQUE (slot, view, generation, epoch)
        ) STRICT;
        CREATE TABLE parts (
            place INTEGER NOT NULL,
            grp BLOB NOT NULL,
            row BLOB NOT NULL,
            count INTEGER NOT NULL CHECK (typeof(count) = 'integer'),
            PRIMARY KEY (place, grp, row)
        ) STRICT, WITHOUT ROWID;",
    durable: false,
    replaceable: true,
    readers: 4,
    rows_ahead: 512,
    remedy: "stop every process of this folder and delete live.db; it is made again from the log",
};

static UPSERT: LazyLock<RowsStatement> = LazyLock::new(|| {
    RowsStatement::new(
        "INSERT INTO parts (place, grp, row, count)",
        "p.id, v.column1, v.column2, v.column3",
        "SELECT ? AS id",
        "ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )
});

/// The live state of a data folder.
#[derive(Debug)]
pub struct SqliteLive {
    db: Db,
}

/// A slot as it is stored.
#[derive(Debug)]
struct Held {
    id: i64,
    slot: Slot,
}

impl SqliteLive {
    pub(super) async fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            db: Db::open(folder, &LIVE).await?,
        })
    }
}

#[async_trait]
impl LiveRead for SqliteLive {
    async fn read(
        &self,
        source: Source,
        partitions: u32,
        queries: &[LiveQuery],
    ) -> Result<LiveAnswer> {
        let db = self.db.current().await?;
        live_read::read(&db, source, partitions, queries).await
    }

    async fn scan(
        &self,
        slot: SlotId,
        view: &str,
        epochs: (Epoch, Epoch),
        after: Option<(Vec<u8>, Vec<u8>)>,
        limit: usize,
    ) -> Result<Deltas> {
        let db = self.db.current().await?;
        let fault = db.fault("scanning live parts");
        let mut connection = db.reader().await?;
        let mut tx = connection.begin().await.map_err(fault)?;
        let places: Vec<i64> = sqlx::query_scalar(
            "SELECT p.id FROM slots s JOIN places p ON p.slot = s.id
             WHERE s.source = ? AND s.partition = ? AND p.view = ? AND p.generation = s.generation
               AND p.epoch >= s.oldest AND p.epoch BETWEEN ? AND ?",
        )
        .bind(slot.source.name())
        .bind(slot.partition)
        .bind(view)
        .bind(stored(epochs.0)?)
        .bind(i64::try_from(epochs.1).unwrap_or(i64::MAX))
        .fetch_all(&mut *tx)
        .await
        .map_err(fault)?;
        // The first rows of all places together are among the first rows of each.
        let mut sums: BTreeMap<(Vec<u8>, Vec<u8>), i64> = BTreeMap::new();
        for place in places {
            let (after_group, after_row) = after.clone().unzip();
            let query = match after {
                Some(_) => sqlx::query(
                    "SELECT grp, row, count FROM parts
                     WHERE place = ?1 AND (grp, row) > (?3, ?4) ORDER BY grp, row LIMIT ?2",
                ),
                None => sqlx::query(
                    "SELECT grp, row, count FROM parts
                     WHERE place = ?1 ORDER BY grp, row LIMIT ?2",
                ),
            };
            let mut rows = query
                .bind(place)
                .bind(i64::try_from(limit).unwrap_or(i64::MAX))
                .bind(after_group)
                .bind(after_row)
                .fetch(&mut *tx);
            while let Some(row) = rows.try_next().await.map_err(fault)? {
                let key = (
                    row.try_get(0).map_err(fault)?,
                    row.try_get(1).map_err(fault)?,
                );
                let sum = sums.entry(key).or_default();
                *sum = sum
                    .checked_add(row.try_get(2).map_err(fault)?)
                    .ok_or_else(|| overflow(&db))?;
            }
        }
        let (mut groups, mut rows) = (BinaryBuilder::new(), BinaryBuilder::new());
        let mut counts = Vec::with_capacity(sums.len().min(limit));
        for ((group, row), count) in sums.into_iter().take(limit) {
            groups.append_value(group);
            rows.append_value(row);
            counts.push(count);
        }
        Ok(Deltas {
            view: view.to_owned(),
            groups: groups.finish(),
            rows: rows.finish(),
            counts: Int64Array::from(counts),
        })
    }
}

#[async_trait]
impl LiveWrite for SqliteLive {
    async fn apply(
        &self,
        slot: SlotId,
        believed: Fence,
        next: Cut,
        views: &[&str],
        deltas: &[Deltas],
    ) -> Result<Result<(), Moved>> {
        let bound = bind_deltas(deltas).await?;
        let db = self.db.current().await?;
        let fault = db.fault("applying a micro-batch");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let Some(mut held) = load(&mut tx, &db, slot).await? else {
            return Ok(Err(Moved { at: None }));
        };
        if let Err(moved) = held.slot.apply(&believed, next, views) {
            return Ok(Err(moved));
        }
        for (view, rows) in bound {
            let place = ensure_place(&mut tx, &held, &view).await?.map_err(fault)?;
            for rows in rows {
                UPSERT
                    .run(&mut tx, rows, &[place])
                    .await
                    .map_err(|error| match is_constraint(&error) {
                        true => overflow(&db),
                        false => fault(error),
                    })?;
            }
        }
        store(&mut tx, &db, slot, &held.slot).await?;
        tx.commit().await.map_err(fault)?;
        Ok(Ok(()))
    }

    async fn impose(&self, slot: SlotId, believed: Fence) -> Result<Result<(), Moved>> {
        let db = self.db.current().await?;
        let fault = db.fault("putting a cut back");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let Some(mut held) = load(&mut tx, &db, slot).await? else {
            return Ok(Err(Moved { at: None }));
        };
        if let Err(moved) = held.slot.impose(&believed) {
            return Ok(Err(moved));
        }
        store(&mut tx, &db, slot, &held.slot).await?;
        tx.commit().await.map_err(fault)?;
        Ok(Ok(()))
    }

    async fn roll(&self, slot: SlotId, epoch: Epoch) -> Result<Result<Cut, RollRefused>> {
        let db = self.db.current().await?;
        let fault = db.fault("ending an epoch");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let Some(mut held) = load(&mut tx, &db, slot).await? else {
            return Ok(Err(RollRefused::Missing));
        };
        let filling = held.slot.epoch;
        let rolled = held.slot.roll(epoch);
        if held.slot.epoch != filling {
            store(&mut tx, &db, slot, &held.slot).await?;
            tx.commit().await.map_err(fault)?;
        }
        Ok(rolled)
    }

    async fn heal(
        &self,
        slot: SlotId,
        seen: Option<Fence>,
        newest: Epoch,
        cut: Cut,
        hint: Generation,
    ) -> Result<Result<(), Moved>> {
        let db = self.db.current().await?;
        let fault = db.fault("healing a slot");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let held = load(&mut tx, &db, slot).await?;
        let stands = held.as_ref().map(|held| &held.slot);
        let healed = match Slot::heal(stands, seen, newest, cut, hint) {
            Ok(healed) => healed,
            Err(moved) => return Ok(Err(moved)),
        };
        store(&mut tx, &db, slot, &healed).await?;
        tx.commit().await.map_err(fault)?;
        Ok(Ok(()))
    }

    async fn drop_through(&self, slot: SlotId, epoch: Epoch, cut: Cut) -> Result<bool> {
        let db = self.db.current().await?;
        let fault = db.fault("letting go of epochs");
        let mut connection = db.writer().await?;
        let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
        let Some(mut held) = load(&mut tx, &db, slot).await? else {
            return Ok(false);
        };
        let dropped = held.slot.drop_through(epoch, cut, KEEP_BOUNDS);
        if dropped {
            store(&mut tx, &db, slot, &held.slot).await?;
            tx.commit().await.map_err(fault)?;
        }
        Ok(dropped)
    }

    async fn collect_garbage(&self, slot: SlotId, limit: usize) -> Result<usize> {
        let db = self.db.current().await?;
        let mut deleted = 0;
        while deleted < limit {
            let step = GARBAGE_PARTS.min(limit - deleted);
            let Some(parts) = delete_garbage(&db, slot, step).await? else {
                break;
            };
            deleted += parts;
        }
        Ok(deleted)
    }
}

/// Deletes up to `limit` parts of one place that can no longer be read, and the place with its last
/// parts; answers how many parts, or nothing if there is no such place.
async fn delete_garbage(db: &Opened, slot: SlotId, limit: usize) -> Result<Option<usize>> {
    let fault = db.fault("deleting dropped live parts");
    let mut connection = db.writer().await?;
    let mut tx = connection.begin_with(BEGIN_WRITE).await.map_err(fault)?;
    let place: Option<i64> = sqlx::query_scalar(
        "SELECT p.id FROM slots s JOIN places p ON p.slot = s.id
         WHERE s.source = ? AND s.partition = ?
           AND (p.generation <> s.generation OR p.epoch < s.oldest)
         LIMIT 1",
    )
    .bind(slot.source.name())
    .bind(slot.partition)
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let Some(place) = place else {
        return Ok(None);
    };
    let first_to_stay: Option<(Vec<u8>, Vec<u8>)> = sqlx::query_as(
        "SELECT grp, row FROM parts WHERE place = ? ORDER BY grp, row LIMIT 1 OFFSET ?",
    )
    .bind(place)
    .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    .fetch_optional(&mut *tx)
    .await
    .map_err(fault)?;
    let done = if let Some((group, row)) = first_to_stay {
        sqlx::query("DELETE FROM parts WHERE place = ? AND (grp, row) < (?, ?)")
            .bind(place)
            .bind(group)
            .bind(row)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
    } else {
        sqlx::query("DELETE FROM places WHERE id = ?")
            .bind(place)
            .execute(&mut *tx)
            .await
            .map_err(fault)?;
        sqlx::query("DELETE FROM parts WHERE place = ?")
            .bind(place)
            .execute(&mut *tx)
            .await
            .map_err(fault)?
    };
    tx.commit().await.map_err(fault)?;
    Ok(Some(
        usize::try_from(done.rows_affected()).unwrap_or(usize::MAX),
    ))
}

fn overflow(db: &Opened) -> Error {
    db.damaged(
        "counting",
        "a count would be larger than 64 bits can hold, so nothing was changed",
    )
}

/// Rows in the order of their keys, so that neighbours in the file are written together.
async fn bind_deltas(deltas: &[Deltas]) -> Result<Vec<(String, Vec<BoundRows>)>> {
    let rows = deltas.iter().map(|deltas| deltas.counts.len()).sum();
    let deltas = deltas.to_vec();
    heavy(rows, move || {
        let bind_view = |deltas: Deltas| Ok((deltas.view.clone(), bind_view(&deltas)?));
        deltas.into_iter().map(bind_view).collect()
    })
    .await
}

fn bind_view(deltas: &Deltas) -> Result<Vec<BoundRows>> {
    let Deltas {
        view,
        groups,
        rows,
        counts,
    } = deltas;
    if groups.len() != counts.len() || rows.len() != counts.len() {
        return Err(Error::Refused(format!(
            "deltas of {view}: {} groups, {} rows and {} counts; give as many of each",
            groups.len(),
            rows.len(),
            counts.len()
        )));
    }
    let key = |index: usize| (groups.value(index), rows.value(index));
    let mut order: Vec<usize> = (0..counts.len()).collect();
    if !order.is_sorted_by_key(|index| key(*index)) {
        order.sort_unstable_by(|a, b| key(*a).cmp(&key(*b)));
    }
    let length = order.len();
    bind(order.into_iter(), length, |arguments, index| {
        arguments.add(groups.value(index))?;
        arguments.add(rows.value(index))?;
        arguments.add(counts.value(index))
    })
}
