//! Scans of all deltas or live entries of a view in one partition state, page by page, each page in
//! one transaction.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use schemas::seam::{Epoch, PartitionState};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::db::Db;
use super::live_state::load;
use super::session::Session;
use super::statement::to_stored;
use crate::Result;
use crate::live::PartitionId;
use crate::live_scan::{
    EntryWithEpoch, ScanKey, ScannedDeltas, ScannedEntries, build_deltas_page, build_entries_page,
};

/// The maximum number of rows in a page.
const PAGE_ROWS: usize = 10_000;

/// Statements that read the first rows of a container, and those after a key. Of the three columns,
/// the first two are the key.
struct Statements {
    first: &'static str,
    after: &'static str,
}

const DELTAS: Statements = Statements {
    first: "SELECT grp, row, count FROM parts WHERE place = ?1 ORDER BY grp, row LIMIT ?2",
    after: "SELECT grp, row, count FROM parts
            WHERE place = ?1 AND (grp, row) > (?3, ?4) ORDER BY grp, row LIMIT ?2",
};

const ENTRIES: Statements = Statements {
    first: "SELECT key, member, state FROM states WHERE place = ?1 ORDER BY key, member LIMIT ?2",
    after: "SELECT key, member, state FROM states
            WHERE place = ?1 AND (key, member) > (?3, ?4) ORDER BY key, member LIMIT ?2",
};

/// The page to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRequest<'a> {
    pub(super) partition_id: PartitionId,
    pub(super) view: &'a str,
    pub(super) epochs: (Epoch, Epoch),
    pub(super) after: Option<&'a ScanKey>,
    pub(super) limit: usize,
}

impl PageRequest<'_> {
    fn rows_max(&self) -> usize {
        self.limit.clamp(1, PAGE_ROWS)
    }
}

/// Reads a page of deltas, summed over epochs.
pub(super) async fn read_delta_page(db: &Db, request: PageRequest<'_>) -> Result<ScannedDeltas> {
    let mut tx = db.begin_read("scanning live deltas").await?;
    let (state, containers) = load_containers(&mut tx, request).await?;
    let mut sums: BTreeMap<ScanKey, Option<i64>> = BTreeMap::new();
    for (container, _) in containers {
        for_each_row(&mut tx, &DELTAS, container, request, |key, row| {
            let count: i64 = row.try_get(2)?;
            let sum = sums.entry(key).or_insert(Some(0));
            *sum = sum.and_then(|sum| sum.checked_add(count));
            Ok(())
        })
        .await?;
    }
    // The first rows of all containers together are among the first rows of each.
    let rows_max = request.rows_max();
    let is_last = sums.len() < rows_max;
    let rows = sums.into_iter().take(rows_max);
    let rows: Option<Vec<(ScanKey, i64)>> = rows.map(|(key, sum)| Some((key, sum?))).collect();
    let rows = rows.ok_or_else(|| {
        tx.broken("the sum over epochs exceeds 64 bits; look for events with wrong amounts")
    });
    Ok(build_deltas_page(request.view, state, rows?, is_last))
}

/// Reads a page of live entries, the newest of each member.
pub(super) async fn read_entry_page(db: &Db, request: PageRequest<'_>) -> Result<ScannedEntries> {
    let mut tx = db.begin_read("scanning live entries").await?;
    let (state, containers) = load_containers(&mut tx, request).await?;
    let mut newest: BTreeMap<ScanKey, EntryWithEpoch> = BTreeMap::new();
    for (container, epoch) in containers {
        for_each_row(&mut tx, &ENTRIES, container, request, |key, row| {
            let entry: Option<Vec<u8>> = row.try_get(2)?;
            match newest.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert((epoch, entry));
                }
                Entry::Occupied(mut older) if older.get().0 < epoch => {
                    older.insert((epoch, entry));
                }
                Entry::Occupied(_) => {}
            }
            Ok(())
        })
        .await?;
    }
    let rows_max = request.rows_max();
    let is_last = newest.len() < rows_max;
    let rows = newest.into_iter().take(rows_max);
    Ok(build_entries_page(request.view, state, rows, is_last))
}

/// Reads the partition state, and the containers of the view in the requested epochs.
async fn load_containers(
    session: &mut Session,
    request: PageRequest<'_>,
) -> Result<(Option<PartitionState>, Vec<(i64, Epoch)>)> {
    let Some(stored) = load(session, request.partition_id).await? else {
        return Ok((None, Vec::new()));
    };
    let (first, last) = request.epochs;
    let query = sqlx::query(
        "SELECT id, epoch FROM places
         WHERE slot = ? AND view = ? AND generation = ? AND epoch >= ? AND epoch BETWEEN ? AND ?",
    )
    .bind(stored.id)
    .bind(request.view)
    .bind(to_stored(stored.state.generation)?)
    .bind(to_stored(stored.state.oldest)?)
    .bind(to_stored(first)?)
    .bind(i64::try_from(last).unwrap_or(i64::MAX));
    let rows: Vec<(i64, i64)> = session.fetch_all(query).await?;
    let containers = rows.into_iter();
    let containers = containers.map(|(id, epoch)| (id, epoch.cast_unsigned()));
    Ok((Some(stored.state), containers.collect()))
}

/// Calls `each` for the first rows of a container after a key.
async fn for_each_row(
    session: &mut Session,
    statements: &Statements,
    container: i64,
    request: PageRequest<'_>,
    mut each: impl FnMut(ScanKey, &SqliteRow) -> Result<(), sqlx::Error> + Send,
) -> Result<()> {
    let statement = match request.after {
        Some(_) => statements.after,
        None => statements.first,
    };
    let query = sqlx::query(statement)
        .bind(container)
        .bind(i64::try_from(request.rows_max()).unwrap_or(i64::MAX))
        .bind(request.after.map(|(key, _)| key))
        .bind(request.after.map(|(_, row)| row));
    session
        .for_each_row(query, |row| each((row.try_get(0)?, row.try_get(1)?), row))
        .await
}
