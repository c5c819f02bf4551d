//! Scanning all live parts of a view in one slot, page by page, each page in one transaction.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use schemas::seam::{Epoch, Slot};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::db::Db;
use super::live_write::load;
use super::session::Session;
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
pub(super) async fn deltas(db: &Db, asked: Asked<'_>) -> Result<ScannedDeltas> {
    let mut tx = db.snapshot("scanning live parts").await?;
    let (slot, places) = places(&mut tx, asked).await?;
    let mut sums: BTreeMap<LivePlace, Option<i64>> = BTreeMap::new();
    for (place, _) in places {
        each_row(&mut tx, &PARTS, (place, asked), |key, row| {
            let count: i64 = row.try_get(2)?;
            let sum = sums.entry(key).or_insert(Some(0));
            *sum = sum.and_then(|sum| sum.checked_add(count));
            Ok(())
        })
        .await?;
    }
    // The first rows of all places together are among the first rows of each.
    let rows_max = asked.rows_max();
    let is_last = sums.len() < rows_max;
    let rows = sums.into_iter().take(rows_max);
    let rows: Option<Vec<(LivePlace, i64)>> = rows.map(|(key, sum)| Some((key, sum?))).collect();
    let rows = rows.ok_or_else(|| {
        tx.broken(
            "the sum over epochs is larger than 64 bits can hold; look for wrong amounts among the \
             events",
        )
    });
    Ok(deltas_page(asked.view, slot, rows?, is_last))
}

/// A page of states, of each member the newest.
pub(super) async fn states(db: &Db, asked: Asked<'_>) -> Result<ScannedStates> {
    let mut tx = db.snapshot("scanning live states").await?;
    let (slot, places) = places(&mut tx, asked).await?;
    let mut newest: BTreeMap<LivePlace, StateOf> = BTreeMap::new();
    for (place, epoch) in places {
        each_row(&mut tx, &STATES, (place, asked), |key, row| {
            let state: Option<Vec<u8>> = row.try_get(2)?;
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
        })
        .await?;
    }
    let rows_max = asked.rows_max();
    let is_last = newest.len() < rows_max;
    let rows = newest.into_iter().take(rows_max);
    Ok(states_page(asked.view, slot, rows, is_last))
}

/// The slot, and the places of the view within the epochs that are asked for, with their epochs.
async fn places(
    session: &mut Session,
    asked: Asked<'_>,
) -> Result<(Option<Slot>, Vec<(i64, Epoch)>)> {
    let Some(held) = load(session, asked.slot).await? else {
        return Ok((None, Vec::new()));
    };
    let (first, last) = asked.epochs;
    let query = sqlx::query(
        "SELECT id, epoch FROM places
         WHERE slot = ? AND view = ? AND generation = ? AND epoch >= ? AND epoch BETWEEN ? AND ?",
    )
    .bind(held.id)
    .bind(asked.view)
    .bind(stored(held.slot.generation)?)
    .bind(stored(held.slot.oldest)?)
    .bind(stored(first)?)
    .bind(i64::try_from(last).unwrap_or(i64::MAX));
    let found: Vec<(i64, i64)> = session.all(query).await?;
    let places = found.into_iter();
    let places = places.map(|(id, epoch)| (id, epoch.cast_unsigned()));
    Ok((Some(held.slot), places.collect()))
}

/// Hands on the first rows of a place after a key.
async fn each_row(
    session: &mut Session,
    statements: &Statements,
    (place, asked): (i64, Asked<'_>),
    mut take: impl FnMut(LivePlace, &SqliteRow) -> Result<(), sqlx::Error> + Send,
) -> Result<()> {
    let statement = match asked.after {
        Some(_) => statements.after,
        None => statements.first,
    };
    let query = sqlx::query(statement)
        .bind(place)
        .bind(i64::try_from(asked.rows_max()).unwrap_or(i64::MAX))
        .bind(asked.after.map(|(key, _)| key))
        .bind(asked.after.map(|(_, row)| row));
    session
        .each(query, |row| take((row.try_get(0)?, row.try_get(1)?), row))
        .await
}
