//! Rows of tallies: a table for each view, in which the larger stamp stays.
//!
//! Every write carries the stamp of its run as its time, and nothing else ever writes these tables; so
//! a load may be repeated, and what an overtaken writer still sends is older than what has taken its
//! place. Rows that no event gives any more stay as markers, of which the epoch is stored as its
//! complement: no cell of theirs is ever deleted, so reads meet no tombstones. Only what somebody else put where no
//! row of the view can be is deleted.

use std::ops::Range;

use arrow::array::{
    Array, ArrayBuilder, BinaryBuilder, Int64Builder, UInt32Builder, UInt64Builder,
};
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;

use super::session::{Cql, together};
use crate::views::{FoundRows, NewRows, PartQuery, RowKeys};
use crate::{Error, Result};

/// Rows of one partition that are written in one step: with fewer the steps cost, with more a
/// server's heap does.
const STEP_ROWS: usize = 50;
const STEP_BYTES: usize = 16 << 10;
/// Steps or partitions that are under way at once in one call.
const AT_ONCE: usize = 128;
/// Steps or partitions that are prepared at once.
const STEPS: usize = 2048;
/// Rows in a page: they are small, and pages come one after the other.
const PAGE_ROWS: i32 = 10_000;
/// What one call may ask for, at most.
const FOUND_MAX: usize = 8_000_000;

/// The table of a view: its name, and what makes it.
pub(super) fn table(id: &str) -> (String, String) {
    let name = format!("rows_{id}");
    let make = format!(
        "CREATE TABLE IF NOT EXISTS {name} (
            part blob, row blob, count bigint, epoch bigint, PRIMARY KEY (part, row)
        )"
    );
    (name, make)
}

/// Writes rows.
pub(super) async fn write(
    cql: &Cql,
    id: &str,
    (epoch, stamp_us): (u64, i64),
    rows: &NewRows,
) -> Result<()> {
    let doing = "publishing rows";
    let (parts, keys, counts) = (rows.parts.len(), rows.rows.len(), rows.counts.len());
    if parts != counts || keys != counts {
        return Err(Error::Refused(format!(
            "rows: {parts} partitions, {keys} rows and {counts} counts; give as many of each"
        )));
    }
    let text = format!(
        "INSERT INTO rows_{id} (part, row, count, epoch) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
    );
    let statement = cql.prepare(doing, &text).await?;
    let (statement, epoch) = (&statement, epoch.cast_signed());
    let values = |index| {
        let (count, epoch) = if rows.counts.is_valid(index) {
            (rows.counts.value(index), epoch)
        } else {
            (0, !epoch)
        };
        let (part, row) = (rows.parts.value(index), rows.rows.value(index));
        (part, row, count, epoch, stamp_us)
    };
    for steps in steps(rows).chunks(STEPS) {
        let calls = steps.iter().map(|step| {
            let values: Vec<_> = step.clone().map(values).collect();
            async move { cql.write(doing, statement, &values).await }
        });
        together(AT_ONCE, calls.collect()).await?;
    }
    Ok(())
}

/// Deletes rows.
pub(super) async fn delete(cql: &Cql, id: &str, stamp_us: i64, rows: &RowKeys) -> Result<()> {
    let doing = "deleting rows that somebody else wrote";
    let text = format!("DELETE FROM rows_{id} USING TIMESTAMP ? WHERE part = ? AND row = ?");
    let statement = cql.prepare(doing, &text).await?;
    let statement = &statement;
    let keys = rows.parts.iter().flatten().zip(rows.rows.iter().flatten());
    let calls = keys.map(|(part, row)| async move {
        let values = [(stamp_us, part, row)];
        cql.write(doing, statement, &values).await
    });
    together(AT_ONCE, calls.collect()).await?;
    Ok(())
}

/// Cuts rows into steps: rows of one partition that follow each other.
fn steps(rows: &NewRows) -> Vec<Range<usize>> {
    let mut steps = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for index in 0..rows.counts.len() {
        let row_bytes = rows.parts.value(index).len() + rows.rows.value(index).len() + 24;
        let is_full = index - from >= STEP_ROWS || bytes + row_bytes > STEP_BYTES;
        if index > from && (is_full || rows.parts.value(index) != rows.parts.value(from)) {
            steps.push(from..index);
            (from, bytes) = (index, 0);
        }
        bytes += row_bytes;
    }
    if from < rows.counts.len() {
        steps.push(from..rows.counts.len());
    }
    steps
}

type Row = (Vec<u8>, Option<i64>, u64);

/// Count and epoch of a row as it is stored. Nobody else writes these tables; where somebody did all the same, and one
/// of them is missing, the row has no count, or is of no run: whoever compares finds it, and others can be read.
pub(super) fn held(count: Option<i64>, epoch: Option<i64>) -> (Option<i64>, u64) {
    // The epoch of a marker is stored as its complement.
    match epoch.unwrap_or(0) {
        epoch @ 0.. => (count, epoch.cast_unsigned()),
        marker => (None, (!marker).cast_unsigned()),
    }
}

/// Rows of several partitions.
pub(super) async fn read(cql: &Cql, id: &str, queries: &[PartQuery]) -> Result<FoundRows> {
    let (mut indexes, mut epochs) = (UInt32Builder::new(), UInt64Builder::new());
    let (mut rows, mut counts) = (BinaryBuilder::new(), Int64Builder::new());
    let mut query = 0;
    for queries in queries.chunks(STEPS) {
        let calls = queries.iter().map(|query| read_part(cql, id, query));
        for part in together(AT_ONCE, calls.collect()).await? {
            for (row, count, epoch) in part {
                indexes.append_value(query);
                rows.append_value(&row);
                counts.append_option(count);
                epochs.append_value(epoch);
            }
            query += 1;
        }
        if ArrayBuilder::len(&indexes) > FOUND_MAX {
            return Err(Error::Refused(format!(
                "reading batch rows: there are more than {FOUND_MAX}; ask for less at once"
            )));
        }
    }
    Ok(FoundRows {
        queries: indexes.finish(),
        rows: rows.finish(),
        counts: counts.finish(),
        epochs: epochs.finish(),
    })
}

async fn read_part(cql: &Cql, id: &str, query: &PartQuery) -> Result<Vec<Row>> {
    let doing = "reading batch rows";
    let (begin, end) = &query.range;
    let until = if end.is_some() { "AND row < ?" } else { "" };
    let text =
        format!("SELECT row, count, epoch FROM rows_{id} WHERE part = ? AND row >= ? {until}");
    let mut statement = cql.prepare(doing, &text).await?;
    statement.set_page_size(PAGE_ROWS);
    let mut rows = Vec::new();
    let mut next = Some(PagingState::start());
    while let Some(from) = next {
        let (page, after) = match end {
            Some(end) => {
                let values = (&query.part, begin, end);
                cql.page(doing, &statement, &values, from).await?
            }
            None => {
                let values = (&query.part, begin);
                cql.page(doing, &statement, &values, from).await?
            }
        };
        next = after;
        let found = page.rows::<(&[u8], Option<i64>, Option<i64>)>();
        for row in found.map_err(|error| cql.broken(doing, error))? {
            let (row, count, epoch) = row.map_err(|error| cql.broken(doing, error))?;
            let (count, epoch) = held(count, epoch);
            rows.push((row.to_vec(), count, epoch));
        }
        if rows.len() > FOUND_MAX {
            break;
        }
    }
    Ok(rows)
}

/// Keys of rows with a count and a stamp before `stamp_us`, in the order of the table: by the tokens
/// of partitions, then by row.
pub(super) async fn before(
    cql: &Cql,
    id: &str,
    stamp_us: i64,
    after: Option<(Vec<u8>, Vec<u8>)>,
    limit: usize,
) -> Result<RowKeys> {
    let doing = "looking for rows of earlier results";
    let mut keys = Keys {
        parts: BinaryBuilder::new(),
        rows: BinaryBuilder::new(),
        stamp_us,
        limit,
    };
    let columns = "SELECT part, row, epoch, WRITETIME(epoch) FROM";
    let scans: Vec<(String, Vec<Vec<u8>>)> = match after {
        None => vec![(format!("{columns} rows_{id}"), Vec::new())],
        Some((part, row)) => vec![
            (
                format!("{columns} rows_{id} WHERE part = ? AND row > ?"),
                vec![part.clone(), row],
            ),
            (
                format!("{columns} rows_{id} WHERE token(part) > token(?)"),
                vec![part],
            ),
        ],
    };
    for (text, values) in scans {
        let statement = cql.prepare(doing, &text).await?;
        let mut next = Some(PagingState::start());
        while let Some(from) = next
            && !keys.is_full()
        {
            let (page, after) = cql.page(doing, &statement, &values, from).await?;
            next = after;
            let added = keys.add(&page);
            added.map_err(|error| cql.broken(doing, error))?;
        }
    }
    Ok(RowKeys {
        parts: keys.parts.finish(),
        rows: keys.rows.finish(),
    })
}

struct Keys {
    parts: BinaryBuilder,
    rows: BinaryBuilder,
    stamp_us: i64,
    limit: usize,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Keys {
    fn is_full(&self) -> bool {
        ArrayBuilder::len(&self.rows) >= self.limit
    }

    fn add(&mut self, page: &QueryRowsResult) -> Result<(), BoxError> {
        for row in page.rows::<(&[u8], &[u8], Option<i64>, Option<i64>)>()? {
            let (part, row, epoch, written_us) = row?;
            let is_before = written_us.unwrap_or(0) < self.stamp_us;
            if epoch.unwrap_or(0) >= 0 && is_before && !self.is_full() {
                self.parts.append_value(part);
                self.rows.append_value(row);
            }
        }
        Ok(())
    }
}
