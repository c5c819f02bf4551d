//! Batch rows in the tables of `views.db`.

use arrow::array::{Array, BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder};
use sqlx::sqlite::SqliteRow;
use sqlx::{Arguments, AssertSqlSafe, Row};

use super::session::Session;
use super::statement::{BoundRows, RowsStatement, bind_batches, run_heavy};
use crate::views::{NewRows, PartitionQuery, RowKeys, ViewRows};
use crate::{Error, Result};

/// Returns the name of a view's table for use in statements; `None` if the view does not exist.
pub(super) async fn find_table(session: &mut Session, view: &str) -> Result<Option<String>> {
    let query = sqlx::query("SELECT id FROM views WHERE name = ?").bind(view);
    let id: Option<(i64,)> = session.fetch_first(query).await?;
    Ok(id.map(|(id,)| table_name(id, view)))
}

/// Returns the name of a view's table, or an error if the view does not exist.
pub(super) async fn expect_table(session: &mut Session, view: &str) -> Result<String> {
    let table = find_table(session, view).await?;
    table.ok_or_else(|| Error::Refused(format!("{view}: it has no table; create the view first")))
}

/// Formats the name of a table. The number makes it unique; the view's name is for readers, and
/// contains no characters with a meaning in SQL.
pub(super) fn table_name(id: i64, view: &str) -> String {
    let plain = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' => letter,
        _ => '_',
    };
    let view: String = view.chars().map(plain).collect();
    format!("rows_{id}_{view}")
}

/// Builds the statement that writes rows to a table. All rows have the same epoch and stamp.
pub(super) fn upsert(table: &str) -> RowsStatement {
    RowsStatement::new(
        &format!("INSERT INTO {table} (part, row, count, epoch, stamp_us)"),
        "v.column1, v.column2, v.column3, p.epoch, p.stamp_us",
        "SELECT ? AS epoch, ? AS stamp_us",
        "ON CONFLICT DO UPDATE
         SET count = excluded.count, epoch = excluded.epoch, stamp_us = excluded.stamp_us
         WHERE excluded.stamp_us > stamp_us",
    )
}

/// Binds `length` rows, starting at index `from`.
pub(super) async fn bind_rows(
    view: &str,
    rows: &NewRows,
    from: usize,
    length: usize,
) -> Result<Vec<BoundRows>> {
    let (parts, keys, counts) = (rows.partitions.len(), rows.rows.len(), rows.counts.len());
    if parts != counts || keys != counts {
        return Err(Error::Refused(format!(
            "rows of {view}: {parts} partitions, {keys} rows and {counts} counts; give as many of \
             each"
        )));
    }
    // Arrays are shared, so this copies no rows.
    let rows = rows.clone();
    run_heavy(length, move || {
        bind_batches(from..from + length, length, |arguments, index| {
            let count = rows
                .counts
                .is_valid(index)
                .then(|| rows.counts.value(index));
            arguments.add(rows.partitions.value(index))?;
            arguments.add(rows.rows.value(index))?;
            arguments.add(count)
        })
    })
    .await
}

/// Deletes rows with stamps up to `stamp_us`.
pub(super) async fn delete(
    tx: &mut Session,
    (view, stamp_us): (&str, i64),
    rows: &RowKeys,
) -> Result<()> {
    let table = expect_table(tx, view).await?;
    let statement = format!("DELETE FROM {table} WHERE part = ? AND row = ? AND stamp_us <= ?");
    for (part, row) in rows
        .partitions
        .iter()
        .flatten()
        .zip(rows.rows.iter().flatten())
    {
        let query = sqlx::query(AssertSqlSafe(statement.clone()));
        tx.execute(query.bind(part).bind(row).bind(stamp_us))
            .await?;
    }
    Ok(())
}

/// Lists the keys of rows with a count and a stamp before `stamp_us`, after a key.
pub(super) async fn rows_before(
    session: &mut Session,
    (view, stamp_us): (&str, i64),
    after: Option<(Vec<u8>, Vec<u8>)>,
    limit: usize,
) -> Result<RowKeys> {
    let mut keys = (BinaryBuilder::new(), BinaryBuilder::new());
    if let Some(table) = find_table(session, view).await? {
        let later = if after.is_some() {
            "AND (part, row) > (?, ?)"
        } else {
            ""
        };
        let statement = format!(
            "SELECT part, row FROM {table} WHERE stamp_us < ? AND count IS NOT NULL {later}
             ORDER BY part, row LIMIT ?"
        );
        let mut statement = sqlx::query(AssertSqlSafe(statement)).bind(stamp_us);
        if let Some((part, row)) = after {
            statement = statement.bind(part).bind(row);
        }
        let rows = statement.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let take = |row: &SqliteRow| {
            keys.0.append_value(row.try_get::<&[u8], _>(0)?);
            keys.1.append_value(row.try_get::<&[u8], _>(1)?);
            Ok(())
        };
        session.for_each_row(rows, take).await?;
    }
    Ok(RowKeys {
        partitions: keys.0.finish(),
        rows: keys.1.finish(),
    })
}

/// Collects the rows of several queries.
#[derive(Debug, Default)]
pub(super) struct Found {
    queries: UInt32Builder,
    rows: BinaryBuilder,
    counts: Int64Builder,
    epochs: UInt64Builder,
}

impl Found {
    pub(super) async fn read(
        &mut self,
        session: &mut Session,
        table: &str,
        (index, query): (u32, &PartitionQuery),
    ) -> Result<()> {
        let (begin, end) = &query.range;
        let until = if end.is_some() { "AND row < ?" } else { "" };
        let statement = format!(
            "SELECT row, count, epoch FROM {table} WHERE part = ? AND row >= ? {until} ORDER BY row"
        );
        let mut statement = sqlx::query(AssertSqlSafe(statement))
            .bind(&query.partition)
            .bind(begin);
        if let Some(end) = end {
            statement = statement.bind(end);
        }
        session
            .for_each_row(statement, |row| self.add(index, row))
            .await
    }

    fn add(&mut self, index: u32, row: &SqliteRow) -> std::result::Result<(), sqlx::Error> {
        self.queries.append_value(index);
        self.rows.append_value(row.try_get::<&[u8], _>(0)?);
        self.counts.append_option(row.try_get(1)?);
        self.epochs
            .append_value(row.try_get::<i64, _>(2)?.cast_unsigned());
        Ok(())
    }

    pub(super) fn finish(mut self) -> ViewRows {
        ViewRows {
            queries: self.queries.finish(),
            rows: self.rows.finish(),
            counts: self.counts.finish(),
            epochs: self.epochs.finish(),
        }
    }
}
