//! Statements that write many rows at once.
//!
//! A statement with a thousand rows writes several times as many rows per second as single ones.
//! Its text depends only on the number of rows, so a few sizes add up to every number and remain
//! prepared.

use std::ops::Range;
use std::sync::Arc;

use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::{Error, Result};

/// The possible numbers of rows in a statement, largest first.
const SIZES: [usize; 6] = [1024, 256, 64, 16, 4, 1];

/// The maximum number of rows that are sorted and bound without a blocking thread.
const INLINE_ROWS_MAX: usize = 2000;

/// A statement for rows of three values and some values shared by all rows, in each size.
#[derive(Debug, Clone)]
pub(super) struct RowsStatement(Arc<[Arc<str>; SIZES.len()]>);

impl RowsStatement {
    /// Creates the statement `insert SELECT columns FROM rows v, shared p WHERE true conflict`. The
    /// rows are `v.column1` to `v.column3`, and `shared` selects the shared values.
    pub(super) fn new(insert: &str, columns: &str, shared: &str, conflict: &str) -> Self {
        let text = |size: usize| {
            let rows = vec!["(?,?,?)"; size].join(",");
            // Without `WHERE true` the parser would treat `ON` as a part of the join.
            let text = format!(
                "{insert} SELECT {columns} FROM (VALUES {rows}) v CROSS JOIN ({shared}) p
                 WHERE true {conflict}"
            );
            Arc::from(text)
        };
        Self(Arc::new(SIZES.map(text)))
    }

    /// Runs the statement for rows from [`bind_batches`] and the shared values.
    pub(super) async fn run(
        &self,
        connection: &mut SqliteConnection,
        rows: BoundRows,
        shared: &[i64],
    ) -> std::result::Result<(), sqlx::Error> {
        let Some(text) = self.0.get(rows.size_index) else {
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

/// Splits a number of rows into ranges of these sizes.
pub(super) fn split_ranges(rows: usize) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let size = SIZES.into_iter().find(|size| *size <= rows - from)?;
        let range = from..from + size;
        from = range.end;
        Some(range)
    })
}

/// Rows that are bound to one statement.
#[derive(Debug)]
pub(super) struct BoundRows {
    /// The index of the statement's size in [`SIZES`].
    size_index: usize,
    arguments: SqliteArguments,
}

/// Binds `rows` by index with `bind_row`, which adds the three values of a row.
pub(super) fn bind_batches(
    mut rows: impl Iterator<Item = usize>,
    length: usize,
    bind_row: impl Fn(&mut SqliteArguments, usize) -> std::result::Result<(), sqlx::error::BoxDynError>,
) -> Result<Vec<BoundRows>> {
    use sqlx::Arguments;
    let mut bound = Vec::new();
    let mut remaining = length;
    for (size_index, count) in SIZES.into_iter().enumerate() {
        while remaining >= count {
            remaining -= count;
            let mut arguments = SqliteArguments::default();
            arguments.reserve(3 * count + 2, 0);
            for row in rows.by_ref().take(count) {
                bind_row(&mut arguments, row)
                    .map_err(|error| Error::broken("binding rows for SQLite", error))?;
            }
            bound.push(BoundRows {
                size_index,
                arguments,
            });
        }
    }
    Ok(bound)
}

/// Runs work on `rows` rows, on a blocking thread if they are many.
pub(crate) async fn run_heavy<T: Send + 'static>(
    rows: usize,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if rows <= INLINE_ROWS_MAX {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::broken("preparing rows", error)),
    }
}

/// Converts a number to SQLite's integer.
///
/// # Errors
/// [`Error::Refused`] if it exceeds 2^63 - 1.
pub(super) fn to_stored(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| {
        Error::Refused(format!(
            "{number} exceeds the largest number that can be stored, 2^63 - 1"
        ))
    })
}
