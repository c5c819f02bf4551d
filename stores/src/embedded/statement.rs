//! Statements that write many rows at once.
//!
//! A statement with a thousand rows writes several times as many rows a second as single ones do.
//! Its text depends only on how many rows it has, so a few sizes make up every number and stay
//! prepared.

use std::ops::Range;
use std::sync::Arc;

use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::{Error, Result};

/// The numbers of rows that a statement may have, largest first.
const SIZES: [usize; 6] = [1024, 256, 64, 16, 4, 1];

/// Above so many rows, sorting and binding is work for a thread of its own.
const HEAVY_ROWS: usize = 2000;

/// A statement that takes rows of three values and then some values that hold for all of them, by
/// number of rows.
#[derive(Debug, Clone)]
pub(super) struct RowsStatement(Arc<[Arc<str>; SIZES.len()]>);

impl RowsStatement {
    /// The statement `insert SELECT columns FROM rows v, shared p WHERE true conflict`, in which
    /// the rows are `v.column1` to `v.column3`, and `shared` selects the values that hold for all.
    pub(super) fn new(insert: &str, columns: &str, shared: &str, conflict: &str) -> Self {
        let text = |size: usize| {
            let rows = vec!["(?,?,?)"; size].join(",");
            // Without `WHERE true` the parser takes `ON` for a part of the join.
            let text = format!(
                "{insert} SELECT {columns} FROM (VALUES {rows}) v CROSS JOIN ({shared}) p
                 WHERE true {conflict}"
            );
            Arc::from(text)
        };
        Self(Arc::new(SIZES.map(text)))
    }

    /// Runs the statement for rows that [`bind`] made ready, with the shared values.
    pub(super) async fn run(
        &self,
        connection: &mut SqliteConnection,
        rows: BoundRows,
        shared: &[i64],
    ) -> std::result::Result<(), sqlx::Error> {
        let Some(text) = self.0.get(rows.size) else {
            return Ok(());
        };
        let mut query = sqlx::query_with(AssertSqlSafe(Arc::clone(text)), rows.arguments);
        for value in shared {
            query = query.bind(*value);
        }
        query.execute(connection).await?;
        Ok(())
    }
}

/// Divides rows into statements of those sizes: the rows of each.
pub(super) fn ranges(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rows - from)?;
        let range = from..from + size;
        from = range.end;
        Some(range)
    })
}

/// Rows that are bound for one statement.
#[derive(Debug)]
pub(super) struct BoundRows {
    /// The index of the statement's size.
    size: usize,
    arguments: SqliteArguments,
}

/// Binds `rows` (by their number) with `bind_row`, which adds three values for a row.
pub(super) fn bind(
    mut rows: impl Iterator<Item = usize>,
    length: usize,
    bind_row: impl Fn(&mut SqliteArguments, usize) -> std::result::Result<(), sqlx::error::BoxDynError>,
) -> Result<Vec<BoundRows>> {
    use sqlx::Arguments;
    let mut bound = Vec::new();
    let mut left = length;
    for (size, count) in SIZES.into_iter().enumerate() {
        while left >= count {
            left -= count;
            let mut arguments = SqliteArguments::default();
            arguments.reserve(3 * count + 2, 0);
            for row in rows.by_ref().take(count) {
                bind_row(&mut arguments, row)
                    .map_err(|error| Error::broken("binding rows for SQLite", error))?;
            }
            bound.push(BoundRows { size, arguments });
        }
    }
    Ok(bound)
}

/// Does work on `rows` rows here, or on a thread of its own if they are many.
pub(crate) async fn heavy<T: Send + 'static>(
    rows: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if rows <= HEAVY_ROWS {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::broken("preparing rows", error)),
    }
}

/// A number as SQLite stores it.
///
/// # Errors
/// [`Error::Refused`] if it is larger than 2^63 - 1.
pub(super) fn stored(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Error::Refused(format!(
            "{number} is larger than any number that can be stored; give less than 2^63"
        ))
    })
}
