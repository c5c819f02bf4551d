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
use futures::{TryStreamExt, stream};
use scylla::response::PagingState;
use scylla::response::query_result::QueryRowsResult;

use super::session::{Cql, run_concurrently};
use crate::views::{NewRows, PartitionQuery, RowKeys, ViewRows};
use crate::{Error, Result};

/// Rows that are written in one step: with fewer the steps cost, with more a server's heap does.
const STEP_ROWS: usize = 50;
const STEP_BYTES: usize = 16 << 10;
/// Partitions whose rows are written in one step; servers warn of more.
const STEP_PARTS: usize = 10;
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
    let (parts, keys, counts) = (rows.partitions.len(), rows.rows.len(), rows.counts.len());
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
        let (part, row) = (rows.partitions.value(index), rows.rows.value(index));
        (part, row, count, epoch, stamp_us)
    };
    let token = |index| {
        let token = statement.calculate_token(&values(index));
        let token = token.map_err(|error| cql.broken(doing, &error))?;
        Ok(token.map(|token| token.value()))
    };
    let calls = steps(rows, token)?.into_iter().map(|step| async move {
        let values: Vec<_> = step.into_iter().flatten().map(values).collect();
        cql.write(doing, statement, &values).await
    });
    stream::iter(calls.map(Ok))
        .try_for_each_concurrent(AT_ONCE, |call| call)
        .await
}

/// Deletes rows.
pub(super) async fn delete(cql: &Cql, id: &str, stamp_us: i64, rows: &RowKeys) -> Result<()> {
    let doing = "deleting rows that somebody else wrote";
    let text = format!("DELETE FROM rows_{id} USING TIMESTAMP ? WHERE part = ? AND row = ?");
    let statement = cql.prepare(doing, &text).await?;
    let statement = &statement;
    let keys = rows
        .partitions
        .iter()
        .flatten()
        .zip(rows.rows.iter().flatten());
    let calls = keys.map(|(part, row)| async move {
        let values = [(stamp_us, part, row)];
        cql.write(doing, statement, &values).await
    });
    run_concurrently(AT_ONCE, calls.collect()).await?;
    Ok(())
}

/// Cuts rows into steps. Rows of a partition that follow each other stay together; of partitions with few rows there are
/// several in a step, such as are neighbours by their tokens, since these lie on the same servers: what a step
/// costs hardly depends on how many rows it has.
fn steps(
    rows: &NewRows,
    token: impl Fn(usize) -> Result<Option<i64>>,
) -> Result<Vec<Vec<Range<usize>>>> {
    let row_bytes = |index| rows.partitions.value(index).len() + rows.rows.value(index).len() + 24;
    let (mut steps, mut small): (Vec<Vec<Range<usize>>>, _) = (Vec::new(), Vec::new());
    let mut from = 0;
    while from < rows.counts.len() {
        let (mut to, mut bytes) = (from + 1, row_bytes(from));
        while to < rows.counts.len() && rows.partitions.value(to) == rows.partitions.value(from) {
            bytes += row_bytes(to);
            if to - from >= STEP_ROWS || bytes > STEP_BYTES {
                break;
            }
            to += 1;
        }
        if to - from > STEP_ROWS / 2 {
            steps.push(alone(from..to));
        } else {
            small.push((token(from)?, bytes, from..to));
        }
        from = to;
    }
    small.sort_unstable_by_key(|(token, _, rows)| (*token, rows.start));
    let (mut step, mut held, mut held_bytes) = (Vec::new(), 0, 0);
    for (_, bytes, rows) in small {
        let is_full = held + rows.len() > STEP_ROWS || held_bytes + bytes > STEP_BYTES;
        if !step.is_empty() && (is_full || step.len() >= STEP_PARTS) {
            steps.push(std::mem::take(&mut step));
            (held, held_bytes) = (0, 0);
        }
        held += rows.len();
        held_bytes += bytes;
        step.push(rows);
    }
    if !step.is_empty() {
        steps.push(step);
    }
    Ok(steps)
}

/// A step of rows of one partition.
fn alone(rows: Range<usize>) -> Vec<Range<usize>> {
    vec![rows]
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
pub(super) async fn read(cql: &Cql, id: &str, queries: &[PartitionQuery]) -> Result<ViewRows> {
    let (mut indexes, mut epochs) = (UInt32Builder::new(), UInt64Builder::new());
    let (mut rows, mut counts) = (BinaryBuilder::new(), Int64Builder::new());
    let mut query = 0;
    for queries in queries.chunks(STEPS) {
        let calls = queries.iter().map(|query| read_part(cql, id, query));
        for part in run_concurrently(AT_ONCE, calls.collect()).await? {
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
    Ok(ViewRows {
        queries: indexes.finish(),
        rows: rows.finish(),
        counts: counts.finish(),
        epochs: epochs.finish(),
    })
}

async fn read_part(cql: &Cql, id: &str, query: &PartitionQuery) -> Result<Vec<Row>> {
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
                let values = (&query.partition, begin, end);
                cql.read_page(doing, &statement, &values, from).await?
            }
            None => {
                let values = (&query.partition, begin);
                cql.read_page(doing, &statement, &values, from).await?
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
            let (page, after) = cql.read_page(doing, &statement, &values, from).await?;
            next = after;
            let added = keys.add(&page);
            added.map_err(|error| cql.broken(doing, error))?;
        }
    }
    Ok(RowKeys {
        partitions: keys.parts.finish(),
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

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int64Array};

    use super::*;

    /// Rows of partitions, each with so many rows of so many bytes, and tokens that go the other way round.
    fn steps_of(parts: &[(usize, usize)]) -> Vec<Vec<Range<usize>>> {
        let of = |(part, (rows, bytes)): (usize, &(usize, usize))| {
            let row = move |n: usize| {
                (
                    part.to_be_bytes(),
                    [n.to_be_bytes().to_vec(), vec![0; *bytes]].concat(),
                )
            };
            (0..*rows).map(row).collect::<Vec<_>>()
        };
        let all: Vec<_> = parts.iter().enumerate().flat_map(of).collect();
        let rows = NewRows {
            partitions: BinaryArray::from_iter_values(all.iter().map(|(part, _)| part)),
            rows: BinaryArray::from_iter_values(all.iter().map(|(_, row)| row)),
            counts: Int64Array::from(vec![1; all.len()]),
        };
        let token = |index: usize| Ok(Some(-i64::try_from(index).unwrap()));
        let steps = steps(&rows, token).unwrap();
        let mut seen: Vec<usize> = steps.iter().flatten().cloned().flatten().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..all.len()).collect::<Vec<_>>(), "each row once");
        steps
    }

    #[test]
    fn small_partitions_share_a_step_with_their_neighbours() {
        let steps = steps_of(&[(1, 0); 25]);
        let parts: Vec<usize> = steps.iter().map(Vec::len).collect();
        assert_eq!(parts, [10, 10, 5]);
        assert_eq!(steps[0][0], 24..25, "the least token first");
        assert_eq!(steps_of(&[(20, 0), (20, 0), (20, 0)]).len(), 2);
        assert_eq!(steps_of(&[]), Vec::<Vec<Range<usize>>>::new());
    }

    #[test]
    fn large_partitions_are_cut() {
        assert_eq!(
            steps_of(&[(120, 0)]),
            [alone(0..50), alone(50..100), alone(100..120)]
        );
        let steps = steps_of(&[(40, 0), (1, 0), (30, 0)]);
        assert_eq!(steps, [alone(0..40), alone(41..71), alone(40..41)]);
        assert_eq!(steps_of(&[(3, 10_000)]).len(), 3, "rows that are long");
    }
}
