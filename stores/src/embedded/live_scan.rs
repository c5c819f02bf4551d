//! Scanning all live parts of a view in one slot, page by page, each page in one transaction.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use futures::TryStreamExt;
use schemas::seam::{Epoch, Slot};
use sqlx::sqlite::SqliteRow;
use sqlx::{Connection, Row, SqliteConnection};

use super::db::Opened;
use super::live_write::load;
use super::statement::stored;
use crate::Result;
use crate::live::SlotId;
use crate::live_scan::{
    LivePlace, ScannedDeltas, ScannedStates, StateOf, deltas_page, states_page,
};

/// So many rows a page has, at most.
const PAGE_ROWS: usize = 10_000;

/// How the first rows of a place are read, and those after a key: three columns, of which two are the key.
struct Statements {
    first: &'static str,
    after: &'static str,
}

const PARTS: Statements = Statements {
    first: "SELECT grp, row, count FROM parts WHERE place = ?1 ORDER BY grp, row LIMIT ?2",
    after: "SELECT grp, row, count FROM parts
            WHERE place = ?1 AND (grp, row) > (?3, ?4) ORDER BY grp, row LIMIT ?2",
};

const STATES: Statements = Statements {
    first: "SELECT key, member, state FROM states WHERE place = ?1 ORDER BY key, member LIMIT ?2",
    after: "SELECT key, member, state FROM states
            WHERE place = ?1 AND (key, member) > (?3, ?4) ORDER BY key, member LIMIT ?2",
};

/// A page that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) slot: SlotId,
    pub(super) view: &'a str,
    pub(super) epochs: (Epoch, Epoch),
    pub(super) after: Option<&'a LivePlace>,
    pub(super) limit: usize,
}

impl Asked<'_> {
    fn rows_max(&self) -> usize {
        self.limit.clamp(1, PAGE_ROWS)
    }
}

/// A page of deltas, added up over epochs.
pub(super) async fn deltas(db: &Opened, asked: Asked<'_>) -> Result<ScannedDeltas> {
    let doing = "scanning live parts";
    let fault = db.fault(doing);
    let mut connection = db.reader().await?;
    let mut tx = connection.begin().await.map_err(fault)?;
    let (slot, places) = places(&mut tx, db, (doing, asked)).await?;
    let mut sums: BTreeMap<LivePlace, i64> = BTreeMap::new();
    for (place, _) in places {
        let mut add = |key: LivePlace, row: &SqliteRow| {
            let count: i64 = row.try_get(2).map_err(fault)?;
            let sum = sums.entry(key).or_default();
            *sum = sum.checked_add(count).ok_or_else(|| {
                db.broken(
                    doing,
                    "the sum over epochs is larger than 64 bits can hold; look for wrong amounts \
                     among the events",
                )
            })?;
            Ok(())
        };
        each_row(&mut tx, (db, doing), &PARTS, (place, asked), &mut add).await?;
    }
    // The first rows of all places together are among the first rows of each.
    let rows_max = asked.rows_max();
    let is_last = sums.len() < rows_max;
    let rows = sums.into_iter().take(rows_max);
    Ok(deltas_page(asked.view, slot, rows, is_last))
}

/// A page of states, of each member the newest.
pub(super) async fn states(db: &Opened, asked: Asked<'_>) -> Result<ScannedStates> {
    let doing = "scanning live states";
    let fault = db.fault(doing);
    let mut connection = db.reader().await?;
    let mut tx = connection.begin().await.map_err(fault)?;
    let (slot, places) = places(&mut tx, db, (doing, asked)).await?;
    let mut newest: BTreeMap<LivePlace, StateOf> = BTreeMap::new();
    for (place, epoch) in places {
        let mut put = |key: LivePlace, row: &SqliteRow| {
            let state: Option<Vec<u8>> = row.try_get(2).map_err(fault)?;
            match newest.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert((epoch, state));
                }
                Entry::Occupied(mut there) if there.get().0 < epoch => {
                    there.insert((epoch, state));
                }
                Entry::Occupied(_) => {}
            }
            Ok(())
        };
        each_row(&mut tx, (db, doing), &STATES, (place, asked), &mut put).await?;
    }
    let rows_max = asked.rows_max();
    let is_last = newest.len() < rows_max;
    let rows = newest.into_iter().take(rows_max);
    Ok(states_page(asked.view, slot, rows, is_last))
}

/// The slot, and the places of the view within the epochs that are asked for, with their epochs.
async fn places(
    connection: &mut SqliteConnection,
    db: &Opened,
    (doing, asked): (&str, Asked<'_>),
) -> Result<(Option<Slot>, Vec<(i64, Epoch)>)> {
    let Some(held) = load(connection, db, asked.slot).await? else {
        return Ok((None, Vec::new()));
    };
    let (first, last) = asked.epochs;
    let found: Vec<(i64, i64)> = sqlx::query_as(
        "SELECT id, epoch FROM places
         WHERE slot = ? AND view = ? AND generation = ? AND epoch >= ? AND epoch BETWEEN ? AND ?",
    )
    .bind(held.id)
    .bind(asked.view)
    .bind(stored(held.slot.generation)?)
    .bind(stored(held.slot.oldest)?)
    .bind(stored(first)?)
    .bind(i64::try_from(last).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await
    .map_err(db.fault(doing))?;
    let places = found.into_iter();
    let places = places.map(|(id, epoch)| (id, epoch.cast_unsigned()));
    Ok((Some(held.slot), places.collect()))
}

/// Hands on the first rows of a place after a key.
async fn each_row(
    connection: &mut SqliteConnection,
    (db, doing): (&Opened, &str),
    statements: &Statements,
    (place, asked): (i64, Asked<'_>),
    take: &mut (impl FnMut(LivePlace, &SqliteRow) -> Result<()> + Send),
) -> Result<()> {
    let fault = db.fault(doing);
    let statement = match asked.after {
        Some(_) => statements.after,
        None => statements.first,
    };
    let mut rows = sqlx::query(statement)
        .bind(place)
        .bind(i64::try_from(asked.rows_max()).unwrap_or(i64::MAX))
        .bind(asked.after.map(|(key, _)| key))
        .bind(asked.after.map(|(_, row)| row))
        .fetch(connection);
    while let Some(row) = rows.try_next().await.map_err(fault)? {
        let key = (
            row.try_get(0).map_err(fault)?,
            row.try_get(1).map_err(fault)?,
        );
        take(key, &row)?;
    }
    Ok(())
}
