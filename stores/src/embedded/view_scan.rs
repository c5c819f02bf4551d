//! Scans of the tables of views in `views.db`, in key order.
//!
//! Keys do not show how many rows are between them, so a share of a scan is defined by a hash of
//! the key. Each scan of a share reads the whole table and skips the other rows.

use std::num::NonZeroU32;

use bytes::Bytes;
use futures::TryStreamExt;
use sqlx::{AssertSqlSafe, Row};

use super::db::Db;
use super::session::Session;
use super::view_rows::table_name;
use crate::Result;
use crate::view_scan::{
    HeadsPage, RowPosition, RowsPage, ScanShare, ScannedHead, ScannedHeads, ScannedRows,
    ShareScheme, wrong_kind_error,
};
use crate::views::ViewShape;

/// Most rows or heads that one page reads, even if the share contains few of them, because other
/// readers need the connection, too.
const PAGE_ROWS_READ: usize = 100_000;

pub(super) const DIVISION: ShareScheme = ShareScheme {
    parallel_shares: NonZeroU32::MIN,
    row_token: place,
    head_token: place,
};

fn place(key: &[u8]) -> u64 {
    u64::from(crc32fast::hash(key)) << 32
}

/// Returns the table of a view of the expected kind, if it exists.
async fn find_table_of_kind(
    session: &mut Session,
    view: &str,
    wants_board: bool,
) -> Result<Option<String>> {
    let query = sqlx::query("SELECT id, shape FROM views WHERE name = ?").bind(view);
    let rows: Option<(i64, String)> = session.fetch_first(query).await?;
    let Some((id, shape)) = rows else {
        return Ok(None);
    };
    let shape = serde_json::from_str(&shape).map_err(|error| session.damaged(error))?;
    let is_board = matches!(shape, ViewShape::Board(_));
    if is_board == wants_board {
        Ok(Some(table_name(id, view)))
    } else {
        Err(wrong_kind_error(view, is_board))
    }
}

/// Returns how many rows a statement reads: those of the page, if all of them belong to the share.
fn rows_to_read(share: ScanShare, remaining: usize) -> usize {
    if share == ScanShare::ALL {
        remaining.min(PAGE_ROWS_READ)
    } else {
        PAGE_ROWS_READ
    }
}

fn to_bound(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

/// Reads a page of rows of a share; `None` if the view has no table.
pub(super) async fn rows(
    db: &Db,
    view: &str,
    share: ScanShare,
    after: Option<&RowPosition>,
    limit: usize,
) -> Result<Option<ScannedRows>> {
    let mut tx = db.begin_read("scanning batch rows").await?;
    let Some(table) = find_table_of_kind(&mut tx, view, false).await? else {
        return Ok(None);
    };
    let after_filter = if after.is_some() {
        "WHERE (part, row) > (?, ?)"
    } else {
        ""
    };
    let mut page = RowsPage::new(limit);
    let limit = rows_to_read(share, page.budget().rows_left());
    let statement = format!(
        "SELECT part, row, count, epoch, stamp_us FROM {table} {after_filter} ORDER BY part, row LIMIT ?"
    );
    let mut statement = sqlx::query(AssertSqlSafe(statement));
    if let Some(at) = after {
        statement = statement.bind(&at.partition).bind(&at.row);
    }
    let (connection, to_error) = tx.split();
    let mut rows = statement.bind(to_bound(limit)).fetch(connection);
    let (mut rows_read, mut is_in_share) = (0, false);
    while !page.budget().is_full()
        && let Some(row) = rows.try_next().await.map_err(to_error)?
    {
        let part: &[u8] = row.try_get(0).map_err(to_error)?;
        let key: &[u8] = row.try_get(1).map_err(to_error)?;
        if rows_read == 0 || page.last().partition != part {
            is_in_share = share.contains(place(part));
        }
        rows_read += 1;
        page.visit(part, key);
        if is_in_share {
            let count = row.try_get(2).map_err(to_error)?;
            let epoch: i64 = row.try_get(3).map_err(to_error)?;
            let at = (epoch.cast_unsigned(), row.try_get(4).map_err(to_error)?);
            page.add(part, key, count, at.0, at.1);
        }
    }
    // A full page has not checked whether more rows follow.
    let is_last = rows_read < limit && !page.budget().is_full();
    Ok(Some(page.finish(is_last)))
}

/// Reads a page of heads of a share; `None` if the view has no table.
pub(super) async fn heads(
    db: &Db,
    view: &str,
    share: ScanShare,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Option<ScannedHeads>> {
    let mut tx = db.begin_read("scanning heads").await?;
    let Some(table) = find_table_of_kind(&mut tx, view, true).await? else {
        return Ok(None);
    };
    let after_filter = if after.is_some() { "WHERE key > ?" } else { "" };
    let mut page = HeadsPage::new(limit);
    let limit = rows_to_read(share, page.budget().rows_left());
    let statement = format!(
        "SELECT key, root, epoch, stamp_us FROM {table}_heads {after_filter} ORDER BY key LIMIT ?"
    );
    let mut statement = sqlx::query(AssertSqlSafe(statement));
    if let Some(key) = after {
        statement = statement.bind(key);
    }
    let (connection, to_error) = tx.split();
    let mut rows = statement.bind(to_bound(limit)).fetch(connection);
    let (mut rows_read, mut last) = (0, None);
    while !page.budget().is_full()
        && let Some(row) = rows.try_next().await.map_err(to_error)?
    {
        rows_read += 1;
        let key: Vec<u8> = row.try_get(0).map_err(to_error)?;
        if share.contains(place(&key)) {
            let epoch: i64 = row.try_get(2).map_err(to_error)?;
            page.add(ScannedHead {
                key: key.clone(),
                epoch: epoch.cast_unsigned(),
                root: Bytes::from(row.try_get::<Vec<u8>, _>(1).map_err(to_error)?),
                stamp_us: row.try_get(3).map_err(to_error)?,
            });
        }
        last = Some(key);
    }
    let is_last = rows_read < limit && !page.budget().is_full();
    Ok(Some(page.finish(last.filter(|_| !is_last))))
}
