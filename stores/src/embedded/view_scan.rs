//! Scanning the tables of views in `views.db`, in the order of their keys.
//!
//! Keys tell nothing of how many rows lie between them, so a share is what a hash of the key puts into it:
//! each scan of a share goes over the whole table and leaves the rest out.

use std::num::NonZeroU32;

use bytes::Bytes;
use futures::TryStreamExt;
use sqlx::{AssertSqlSafe, Row};

use super::db::Db;
use super::session::Session;
use super::view_rows::table_name;
use crate::Result;
use crate::view_scan::{
    Division, HeadsPage, RowsPage, ScanPlace, ScanShare, ScannedHead, ScannedHeads, ScannedRows,
    other_kind,
};
use crate::views::ViewShape;

/// So many rows or heads one page looks at, also where the share has few of them: other readers use
/// the connection too.
const LOOKED_AT: usize = 100_000;

pub(super) const DIVISION: Division = Division {
    side_by_side: NonZeroU32::MIN,
    row_place: place,
    head_place: place,
};

fn place(key: &[u8]) -> u64 {
    u64::from(crc32fast::hash(key)) << 32
}

/// The table of a view of one of the two kinds, if it was made.
async fn table_of(session: &mut Session, view: &str, wants_board: bool) -> Result<Option<String>> {
    let query = sqlx::query("SELECT id, shape FROM views WHERE name = ?").bind(view);
    let found: Option<(i64, String)> = session.first(query).await?;
    let Some((id, shape)) = found else {
        return Ok(None);
    };
    let shape = serde_json::from_str(&shape).map_err(|error| session.damaged(error))?;
    let is_board = matches!(shape, ViewShape::Board(_));
    if is_board == wants_board {
        Ok(Some(table_name(id, view)))
    } else {
        Err(other_kind(view, is_board))
    }
}

/// How many rows a statement looks at: those of the page, where all of them belong to it.
fn looked_at(share: ScanShare, left: usize) -> usize {
    if share == ScanShare::ALL {
        left.min(LOOKED_AT)
    } else {
        LOOKED_AT
    }
}

fn bound(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// A page of the rows of a share; nothing if the view has no table.
pub(super) async fn rows(
    db: &Db,
    view: &str,
    share: ScanShare,
    after: Option<&ScanPlace>,
    limit: usize,
) -> Result<Option<ScannedRows>> {
    let mut tx = db.snapshot("scanning batch rows").await?;
    let Some(table) = table_of(&mut tx, view, false).await? else {
        return Ok(None);
    };
    let later = if after.is_some() {
        "WHERE (part, row) > (?, ?)"
    } else {
        ""
    };
    let mut page = RowsPage::new(limit);
    let most = looked_at(share, page.room().rows_left());
    let statement = format!(
        "SELECT part, row, count, epoch, stamp_us FROM {table} {later} ORDER BY part, row LIMIT ?"
    );
    let mut statement = sqlx::query(AssertSqlSafe(statement));
    if let Some(at) = after {
        statement = statement.bind(&at.part).bind(&at.row);
    }
    let (connection, fault) = tx.split();
    let mut found = statement.bind(bound(most)).fetch(connection);
    let (mut looked_at, mut is_mine) = (0, false);
    while !page.room().is_full()
        && let Some(row) = found.try_next().await.map_err(fault)?
    {
        let part: &[u8] = row.try_get(0).map_err(fault)?;
        let key: &[u8] = row.try_get(1).map_err(fault)?;
        if looked_at == 0 || page.last().part != part {
            is_mine = share.has(place(part));
        }
        looked_at += 1;
        page.pass(part, key);
        if is_mine {
            let count = row.try_get(2).map_err(fault)?;
            let epoch: i64 = row.try_get(3).map_err(fault)?;
            let at = (epoch.cast_unsigned(), row.try_get(4).map_err(fault)?);
            page.add((part, key), count, at);
        }
    }
    // Of a full page nobody has looked what follows.
    let is_last = looked_at < most && !page.room().is_full();
    Ok(Some(page.finish(is_last)))
}

/// A page of the heads of a share; nothing if the view has no table.
pub(super) async fn heads(
    db: &Db,
    view: &str,
    share: ScanShare,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Option<ScannedHeads>> {
    let mut tx = db.snapshot("scanning heads").await?;
    let Some(table) = table_of(&mut tx, view, true).await? else {
        return Ok(None);
    };
    let later = if after.is_some() { "WHERE key > ?" } else { "" };
    let mut page = HeadsPage::new(limit);
    let most = looked_at(share, page.room().rows_left());
    let statement = format!(
        "SELECT key, root, epoch, stamp_us FROM {table}_heads {later} ORDER BY key LIMIT ?"
    );
    let mut statement = sqlx::query(AssertSqlSafe(statement));
    if let Some(key) = after {
        statement = statement.bind(key);
    }
    let (connection, fault) = tx.split();
    let mut found = statement.bind(bound(most)).fetch(connection);
    let (mut looked_at, mut last) = (0, None);
    while !page.room().is_full()
        && let Some(row) = found.try_next().await.map_err(fault)?
    {
        looked_at += 1;
        let key: Vec<u8> = row.try_get(0).map_err(fault)?;
        if share.has(place(&key)) {
            let epoch: i64 = row.try_get(2).map_err(fault)?;
            page.add(ScannedHead {
                key: key.clone(),
                epoch: epoch.cast_unsigned(),
                root: Bytes::from(row.try_get::<Vec<u8>, _>(1).map_err(fault)?),
                stamp_us: row.try_get(3).map_err(fault)?,
            });
        }
        last = Some(key);
    }
    let is_last = looked_at < most && !page.room().is_full();
    Ok(Some(page.finish(last.filter(|_| !is_last))))
}
